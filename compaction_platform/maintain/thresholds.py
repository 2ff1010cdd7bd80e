"""Thresholds where nothing else is said: commits between two looks, and small files that are worth a run."""

from compaction_platform.settings import Profile

CHECK_INTERVAL = {Profile.development: 5, Profile.staging: 75, Profile.production: 100}
MIN_FILES = {Profile.development: 3, Profile.staging: 15, Profile.production: 20}
