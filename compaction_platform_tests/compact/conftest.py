from pathlib import Path

import pytest

from compaction_platform.settings import Settings
from compaction_platform_tests.compact.yard import Yard, local_yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return local_yard(tmp_path / "yard", Settings(_env_file=None))
