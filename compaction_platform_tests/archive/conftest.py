import pytest

from compaction_platform.settings import Settings
from compaction_platform_tests.archive.scene import Scene


@pytest.fixture
def scene(settings: Settings) -> Scene:
    """Thirty blocks, of which the last five are not final."""
    scene = Scene(settings)
    scene.grow(0, 30)
    return scene
