from collections.abc import Iterator
from typing import Any

import pytest

from compaction_platform.settings import Settings
from compaction_platform_tests.serve.served import Caller, Served, serving


@pytest.fixture(scope="module")
def served(settings: Settings, spark: Any) -> Iterator[Served]:
    with serving(settings, spark) as served:
        yield served


@pytest.fixture
def caller(served: Served) -> Caller:
    return served.caller()
