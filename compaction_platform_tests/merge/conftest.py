from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction_platform.settings import Settings
from compaction_platform_tests.merge.scene import Scene


@pytest.fixture
def new_scene(settings: Settings, spark: Any, tmp_path: Path) -> Callable[..., Scene]:
    """Scenes with a table and a staging directory of their own."""
    made: list[Scene] = []

    def make(**arguments: Any) -> Scene:
        staging = tmp_path / f"staging-{len(made)}"
        staging.mkdir()
        made.append(Scene(settings, spark, staging, **arguments))
        return made[-1]

    return make


@pytest.fixture
def scene(new_scene: Callable[..., Scene]) -> Scene:
    return new_scene()
