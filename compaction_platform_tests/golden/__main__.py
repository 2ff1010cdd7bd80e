"""`python -m compaction_platform_tests.golden`: accept today's names as the ones to be kept."""

import json
from pathlib import Path

from compaction_platform_tests.golden.contracts import contracts

Path(__file__).with_name("contracts.json").write_text(json.dumps(contracts(), indent=1, sort_keys=True) + "\n")
