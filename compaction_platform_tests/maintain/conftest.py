from collections.abc import Callable
from typing import Any

import pytest

from compaction_platform.settings import Settings
from compaction_platform_tests.maintain.scene import Scene


@pytest.fixture
def new_scene(settings: Settings, spark: Any) -> Callable[..., Scene]:
    """Scenes with a table of their own."""

    def make(*arguments: Any, **named: Any) -> Scene:
        return Scene(settings, spark, *arguments, **named)

    return make


@pytest.fixture
def scene(new_scene: Callable[..., Scene]) -> Scene:
    return new_scene()
