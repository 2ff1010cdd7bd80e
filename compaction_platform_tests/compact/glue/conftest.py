from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compaction_platform.settings import Settings
from compaction_platform_tests.compact.glue.catalog_server import CatalogServer
from compaction_platform_tests.compact.glue.scene import Scene


@pytest.fixture(scope="session")
def catalog_server() -> Iterator[CatalogServer]:
    with CatalogServer() as server:
        yield server


@pytest.fixture
def server(catalog_server: CatalogServer) -> Iterator[CatalogServer]:
    catalog_server.forget_hooks()
    yield catalog_server
    catalog_server.forget_hooks()


@pytest.fixture
def new_scene(settings: Settings, server: CatalogServer) -> Callable[..., Scene]:
    with_glue = settings.model_copy(update={"glue_endpoint": server.url})

    def make(**arguments: Any) -> Scene:
        return Scene(with_glue, server, **arguments)

    return make


@pytest.fixture
def scene(new_scene: Callable[..., Scene]) -> Scene:
    return new_scene()
