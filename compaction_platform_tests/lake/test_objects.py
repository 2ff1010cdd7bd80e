"""The same behaviour on a local directory and on S3."""

import errno
import os
import pickle
import secrets
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from compaction_platform.lake.storage.object_store import (
    AddressInvalid,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StoreRefused,
)
from compaction_platform.settings import Settings, load_settings, settings_from

NAMES = [
    "plain.parquet",
    "year=2026/month=01/part 1.parquet",
    "100%.parquet",
    "a%20b.parquet",
    "ünïcode/😀.parquet",
    "quote'\".parquet",
    "plus+and&and?.parquet",
    "[brackets]{braces}*.parquet",
]

unit = pytest.mark.unit
integration = pytest.mark.integration


@pytest.fixture(params=[pytest.param("file", marks=unit), pytest.param("s3", marks=integration)])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        return ObjectStore.at(str(tmp_path / "store"), load_settings())
    settings: Settings = request.getfixturevalue("settings")
    return ObjectStore.at(f"{settings.lake_uri}/objects-{tmp_path.name}", settings)


def listed(objects: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(stored.key for stored in objects.list(prefix))


def test_what_is_written_is_listed_and_read_whatever_its_name(objects: ObjectStore) -> None:
    for name in NAMES:
        objects.write(name, name.encode())
    assert listed(objects) == sorted(NAMES)
    assert {name: bytes(objects.read(name)) for name in NAMES} == {name: name.encode() for name in NAMES}
    assert listed(objects, "year=2026") == [NAMES[1]]


def test_a_listing_tells_size_etag_and_the_stores_time(objects: ObjectStore) -> None:
    objects.write("a", b"1234567")
    (stored,) = objects.list()
    assert stored.size == 7
    assert stored.etag
    assert stored.last_modified.tzinfo is not None
    assert objects.stat("a") == stored
    assert objects.stat("b") is None


def test_a_prefix_is_whole_path_segments(objects: ObjectStore) -> None:
    objects.write("ab/1", b"")
    objects.write("abc/1", b"")
    assert listed(objects, "ab") == ["ab/1"]


def test_a_replaced_object_is_not_read_as_the_old_version(objects: ObjectStore) -> None:
    objects.write("a", b"old")
    before = objects.stat("a")
    assert before is not None
    assert bytes(objects.read("a", before.etag)) == b"old"
    objects.write("a", b"new and longer")
    with pytest.raises(ObjectChanged, match="a is not the version"):
        objects.read("a", before.etag)


def test_a_range_is_read_without_the_rest(objects: ObjectStore) -> None:
    objects.write("a", bytes(range(100)))
    assert bytes(objects.read_range("a", 10, 13)) == b"\x0a\x0b\x0c"


def test_create_never_replaces(objects: ObjectStore) -> None:
    objects.create("a", b"first")
    with pytest.raises(ObjectExists):
        objects.create("a", b"second")
    assert bytes(objects.read("a")) == b"first"
    assert listed(objects) == ["a"], "nothing unfinished is left behind"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["near", "on another file system"])
def test_a_file_becomes_an_object(objects: ObjectStore, tmp_path: Path, elsewhere: bool) -> None:
    other = Path("/dev/shm")  # noqa: S108 (a second file system, where there is one)
    if elsewhere and (not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev):
        pytest.skip(f"there is no second file system at {other}")
    with tempfile.NamedTemporaryFile(dir=other if elsewhere else tmp_path) as file:
        for number, content in enumerate((b"first" * 100_000, b"")):
            file.seek(0)
            file.truncate()
            file.write(content)
            file.flush()
            objects.create_from(f"d/{number}", Path(file.name))
            with pytest.raises(ObjectExists):
                objects.create_from(f"d/{number}", Path(file.name))
            if elsewhere or not objects.uri.startswith("file://"):
                continue
            break  # the object is this very file now; whoever gave it away must not write to it
    assert bytes(objects.read("d/0")) == b"first" * 100_000
    if objects.uri.startswith("file://"):
        made = tmp_path / "made"
        made.touch()
        assert (tmp_path / "store" / "d" / "0").stat().st_mode == made.stat().st_mode


@unit
def test_a_file_that_cannot_be_linked_is_copied_and_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "made"
    content = secrets.token_bytes(1 << 20) * 64
    file.write_bytes(content)
    link, refused = Path.hardlink_to, []

    def refuse_to_link(path: Path, target: Path) -> None:
        if target == file:
            refused.append(path)
            raise OSError(errno.EXDEV, "another file system")
        link(path, target)

    monkeypatch.setattr(Path, "hardlink_to", refuse_to_link)
    tracemalloc.start()
    try:
        ObjectStore.at(str(tmp_path / "store"), load_settings()).create_from("copied", file)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused, "the fault was not injected"
    assert most < len(content) // 8
    assert (tmp_path / "store" / "copied").read_bytes() == content


def test_only_the_version_that_is_named_is_deleted(objects: ObjectStore) -> None:
    for name in ("d/a b.parquet", "d/c", "d/ü#&?"):
        objects.write(name, b"x")
    etags = {stored.key: stored.etag for stored in objects.list()}
    objects.write("d/c", b"a new version")
    failures = objects.delete_versions([*etags.items(), ("d/never there", '"1"')])
    assert list(failures) == ["d/c"] and "replaced" in failures["d/c"]
    assert bytes(objects.read("d/c")) == b"a new version"
    assert listed(objects) == ["d/c"]
    assert [stored.key for stored in objects.list_directory("d")] == ["d/c"]
    assert list(objects.list_directory()) == []


@integration
def test_what_a_store_that_does_not_answer_was_to_delete_is_told(settings: Settings) -> None:
    nobody = settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:9"})
    (reason,) = ObjectStore.at("s3://bucket/x", nobody).delete_versions([("key", "1")]).values()
    assert "EndpointConnectionError" in reason


def test_of_many_creators_exactly_one_wins(objects: ObjectStore) -> None:
    start = threading.Barrier(16)
    won: list[int] = []

    def create(number: int) -> None:
        start.wait()
        try:
            objects.create("a", str(number).encode())
        except ObjectExists:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert bytes(objects.read("a")) == str(won[0]).encode()


def test_copy_keeps_an_existing_target(objects: ObjectStore) -> None:
    objects.write("a", b"a")
    objects.copy("a", "deep/b")
    assert bytes(objects.read("deep/b")) == b"a"
    objects.write("a", b"changed")
    with pytest.raises(ObjectExists):
        objects.copy("a", "deep/b")
    assert bytes(objects.read("deep/b")) == b"a"
    objects.copy("a", "deep/b", overwrite=True)
    assert bytes(objects.read("deep/b")) == b"changed"


def test_delete_takes_only_what_it_is_told_and_a_missing_key_is_no_failure(objects: ObjectStore) -> None:
    for number in range(5):
        objects.write(f"k{number}", b"")
    assert objects.delete(["k1", "not there", "k3"]) == {}
    assert listed(objects) == ["k0", "k2", "k4"]


@integration
def test_thousands_of_keys_are_deleted_and_listed_in_pages(settings: Settings) -> None:
    objects = ObjectStore.at(f"{settings.lake_uri}/many", settings)
    keys = [f"k{number:05d}" for number in range(2_500)]
    for key in keys:
        objects.write(key, b"")
    assert listed(objects) == keys
    assert objects.delete(keys[:2_300]) == {}
    assert listed(objects) == keys[2_300:]


@unit
def test_a_delete_that_fails_for_some_keys_names_them(tmp_path: Path) -> None:
    """A directory in the place of an object cannot be deleted as one, not even by root."""
    objects = ObjectStore.at(str(tmp_path), load_settings())
    for key in ("a", "b", "stubborn/inside"):
        objects.write(key, b"")
    failures = objects.delete(["a", "stubborn", "b"])
    assert set(failures) == {"stubborn"}
    assert failures["stubborn"]
    assert listed(objects) == ["stubborn/inside"]


@unit
def test_a_long_listing_is_streamed_in_bounded_memory(tmp_path: Path) -> None:
    for directory in [*(f"half/{number}" for number in range(5)), *(f"rest/{number}" for number in range(5))]:
        (tmp_path / directory).mkdir(parents=True)
        for number in range(1_000):
            (tmp_path / directory / str(number)).touch()
    objects = ObjectStore.at(str(tmp_path), load_settings())

    def peak_bytes(work: Callable[[], int]) -> int:
        tracemalloc.start()
        try:
            assert work() in (5_000, 10_000)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    streamed_half = peak_bytes(lambda: sum(1 for _ in objects.list("half")))
    streamed = peak_bytes(lambda: sum(1 for _ in objects.list()))
    kept_half = peak_bytes(lambda: len(list(objects.list("half"))))
    kept = peak_bytes(lambda: len(list(objects.list())))
    assert streamed < streamed_half * 1.25, "twice as many names do not need more memory"
    assert kept > kept_half * 1.5, "this is what it would look like if they did"


@unit
def test_local_writes_leave_nothing_unfinished_when_they_fail(tmp_path: Path) -> None:
    objects = ObjectStore.at(str(tmp_path), load_settings())
    (tmp_path / "a").mkdir()
    with pytest.raises((StoreRefused, ObjectExists)):
        objects.write("a", b"data")
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


@unit
def test_objects_travel_into_tasks_without_showing_credentials() -> None:
    settings = settings_from(
        {
            "COMPACTION_S3_ACCESS_KEY_ID": "hidden-id",
            "COMPACTION_S3_SECRET_ACCESS_KEY": "hidden-secret",
        }
    )
    objects = ObjectStore.at("s3://bucket/prefix", settings)
    assert "hidden" not in repr(objects)
    copy = pickle.loads(pickle.dumps(objects))  # noqa: S301
    assert copy == objects
    assert copy.options["credential_provider"]()["secret_access_key"] == "hidden-secret"


@unit
@pytest.mark.parametrize("uri", ["ftp://host/x", "file://otherhost/x", "gs://bucket"])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(AddressInvalid):
        ObjectStore.at(uri, load_settings())


@unit
@pytest.mark.parametrize("make", [str, lambda path: f"file://{path}"])
def test_paths_and_file_uris_mean_the_same(tmp_path: Path, make: Callable[[Path], str]) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert listed(ObjectStore.at(make(tmp_path), load_settings())) == ["a"]


@unit
@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "a//b", "a/./b"])
def test_keys_cannot_leave_their_address(tmp_path: Path, key: str) -> None:
    objects = ObjectStore.at(str(tmp_path / "inside"), load_settings())
    with pytest.raises(AddressInvalid):
        objects.write(key, b"x")
    assert not list(tmp_path.rglob("outside"))


@integration
def test_a_session_token_of_another_account_in_the_environment_is_not_sent(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-account")
    objects = ObjectStore.at("s3://lake/token", settings)
    objects.write("a", b"")
    assert "of-another-account" not in obstore.sign(objects._store, "GET", "a", timedelta(seconds=60))  # type: ignore[arg-type]


@integration
def test_wrong_credentials_are_a_clear_refusal(settings: Settings) -> None:
    wrong = settings.model_copy(update={"s3_secret_access_key": _secret("wrong")})
    with pytest.raises(StoreRefused, match="credentials"):
        ObjectStore.at("s3://lake/x", wrong).write("a", b"")


def test_what_is_not_there_is_missing_and_looking_for_it_creates_nothing(objects: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing, match="nothing-here does not exist"):
        objects.read("nothing-here")
    assert objects.stat("nothing-here") is None
    assert list(objects.list()) == []
    assert objects.delete(["nothing-here"]) == {}
    assert not (tmp_path / "store").exists()


@integration
def test_a_missing_bucket_is_a_clear_refusal(settings: Settings) -> None:
    with pytest.raises(StoreRefused, match="no-such-bucket"):
        list(ObjectStore.at("s3://no-such-bucket/x", settings).list())


def _secret(text: str) -> Any:
    from pydantic import SecretStr

    return SecretStr(text)


def test_an_object_that_is_written_piece_by_piece_is_there_when_it_is_whole(objects: ObjectStore) -> None:
    growing = objects.begin("directory/growing")
    for number in range(40):
        growing.write(bytes([number]) * (1 << 20))
    assert listed(objects) == []
    growing.complete()
    stored = objects.stat("directory/growing")
    assert stored is not None and stored.size == 40 << 20
    assert bytes(objects.read_range("directory/growing", (7 << 20) - 1, (7 << 20) + 1)) == b"\x06\x07"


def test_an_object_that_is_given_up_is_not_there_and_what_was_there_stays(objects: ObjectStore) -> None:
    objects.write("growing", b"before")
    growing = objects.begin("growing")
    for _ in range(40):
        growing.write(bytes(1 << 20))
    growing.give_up()
    assert (listed(objects), bytes(objects.read("growing"))) == (["growing"], b"before")


@integration
def test_a_store_that_is_gone_is_told_while_an_object_is_written(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"})
    objects = ObjectStore.at(f"{settings.lake_uri}/gone", nowhere)
    objects.options["retry_config"] = {"max_retries": 0}
    growing = objects.begin("growing")
    with pytest.raises(StoreRefused, match="/gone/growing"):
        for _ in range(40):
            growing.write(bytes(1 << 20))


@integration
def test_a_store_that_lets_nobody_give_up_an_upload_is_no_problem(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = obstore.open_writer

    class Stubborn:
        def __init__(self, *given: Any, **options: Any) -> None:
            self.writer = real(*given, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.writer, name)

        def __exit__(self, *_: object) -> None:
            raise obstore.exceptions.PermissionDeniedError("s3:AbortMultipartUpload")

    monkeypatch.setattr(obstore, "open_writer", Stubborn)
    objects = ObjectStore.at(f"{settings.lake_uri}/stubborn", settings)
    growing = objects.begin("growing")
    growing.write(b"some")
    growing.give_up()
    assert listed(objects) == []


def test_of_many_copies_at_once_one_wins(objects: ObjectStore) -> None:
    for number in range(8):
        objects.write(f"from/{number}", bytes([number]) * 100)
    for turn in range(12):
        together = threading.Barrier(8)

        def copied(number: int, target: str = f"to/{turn}", together: threading.Barrier = together) -> int | None:
            own = pickle.loads(pickle.dumps(objects))  # noqa: S301
            together.wait(30)
            try:
                own.copy(f"from/{number}", target)
            except ObjectExists:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            winners = [number for number in pool.map(copied, range(8)) if number is not None]
        assert [bytes([number]) for number in winners] == [bytes(objects.read_range(f"to/{turn}", 0, 1))]
