"""What was replaced stays, whenever that happened."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from compaction_platform.lake.storage import conditional_delete
from compaction_platform.lake.storage.conditional_delete import CHANGED, delete_unchanged, looks_at_versions
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.settings import Settings

ANY = Settings(_env_file=None)


def versions(objects: ObjectStore) -> dict[str, str]:
    return {stored.key: stored.etag for stored in objects.list()}


def check_that_only_the_listed_versions_go(objects: ObjectStore) -> None:
    names = ["a", "in/b", "odd ü + 100%/c=d.parquet", "replaced", "gone"]
    for name in names:
        objects.write(name, name.encode())
    listed = versions(objects)
    objects.write("replaced", b"another")
    objects.delete(["gone"])
    assert delete_unchanged(objects, listed) == {"replaced": CHANGED}
    assert set(versions(objects)) == {"replaced"}
    assert bytes(objects.read("replaced")) == b"another"
    assert looks_at_versions(objects) and set(versions(objects)) == {"replaced"}
    assert delete_unchanged(objects, versions(objects)) == {}
    assert delete_unchanged(objects, {}) == {} == versions(objects)


@pytest.mark.unit
def test_in_a_directory_only_the_listed_versions_are_deleted(tmp_path: Path) -> None:
    check_that_only_the_listed_versions_go(ObjectStore.at(str(tmp_path), ANY))


@pytest.mark.integration
def test_on_s3_only_the_listed_versions_are_deleted(settings: Settings) -> None:
    check_that_only_the_listed_versions_go(ObjectStore.at(f"s3://lake/delete-{secrets.token_hex(4)}", settings))


@pytest.mark.integration
def test_a_store_that_does_not_know_the_condition_is_asked_for_each_object_first(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls the request malformed, as some do."""
    objects = ObjectStore.at(f"s3://lake/delete-{secrets.token_hex(4)}", settings)
    for name in "ab":
        objects.write(name, b"1")
    listed = versions(objects)
    objects.write("a", b"2")
    real = conditional_delete.client_for(objects)

    def refuse(**named: Any) -> None:
        raise real.exceptions.ClientError({"Error": {"Code": "MalformedXML"}}, "DeleteObjects")

    monkeypatch.setattr(real, "delete_objects", refuse)
    assert not looks_at_versions(objects)
    assert delete_unchanged(objects, listed) == {"a": CHANGED}
    assert set(versions(objects)) == {"a"}


@pytest.mark.unit
@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_is_replaced_at_the_very_last_moment_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The process slept between its look and the move; the second time, the file is replaced while it is aside, too."""
    objects = ObjectStore.at(str(tmp_path), ANY)
    objects.write("a", b"merged")
    listed = versions(objects)
    real = Path.rename

    def replaced_first(source: Path, target: Path) -> None:
        objects.write("a", b"delivered again")
        real(source, target)
        if times == 2:
            objects.write("a", b"and again")

    monkeypatch.setattr(Path, "rename", replaced_first)
    assert delete_unchanged(objects, listed) == {"a": CHANGED}
    assert bytes(objects.read("a")) == (b"delivered again" if times == 1 else b"and again")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
