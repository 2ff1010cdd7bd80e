from concurrent.futures import ThreadPoolExecutor

import pytest

from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.settings import Settings
from compaction_platform_tests.zygote import Zygote

pytestmark = pytest.mark.integration


def test_a_catalog_is_opened_once_for_each_thread_and_each_address(settings: Settings) -> None:
    ours = open_catalog(settings)
    assert open_catalog(settings.model_copy()) is ours
    with ThreadPoolExecutor(1) as other:
        assert other.submit(open_catalog, settings).result() is not ours
    renamed = settings.model_copy(update={"catalog_name": "another"})
    assert open_catalog(renamed) is not ours
    assert open_catalog(renamed).name == "another"


def test_a_fork_opens_one_of_its_own(settings: Settings, zygote: Zygote) -> None:
    script = """
import os
import pyiceberg.catalog.rest
from compaction_platform.lake.iceberg.catalog import open_catalog
ours = open_catalog(*arguments)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
else:
    assert open_catalog(*arguments) is not ours
"""
    ended = zygote.run(script, settings)
    assert ended.returncode == 0, ended.stderr
