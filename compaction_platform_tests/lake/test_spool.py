"""A file that goes to a store while it is made, with a local directory as the store."""

import random
from pathlib import Path
from typing import Any

import pytest

from compaction_platform.lake.storage import object_store, staged_upload
from compaction_platform.lake.storage.object_store import MultipartWrite, ObjectStore, StoreRefused
from compaction_platform.lake.storage.staged_upload import StagedUpload

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PIECE", 1000)
    monkeypatch.setattr(staged_upload, "HELD_BACK", 500)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "store").mkdir()
    return ObjectStore(f"file://{tmp_path / 'store'}")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What goes to the store, in order."""
    pieces: list[bytes] = []
    real = MultipartWrite.write

    def write(growing: MultipartWrite, data: Any) -> None:
        pieces.append(bytes(data))
        real(growing, data)

    monkeypatch.setattr(MultipartWrite, "write", write)
    return pieces


def keys(store: ObjectStore) -> list[str]:
    return [stored.key for stored in store.list()]


def test_what_is_written_is_sent_but_for_its_end_and_seen_when_it_is_complete(
    store: ObjectStore, tmp_path: Path, sent: list[bytes]
) -> None:
    content = random.Random(1).randbytes(3700)
    with StagedUpload(tmp_path / "file", store, "key") as made:
        for start in range(0, 3700, 100):
            made.write(content[start : start + 100])
        assert (b"".join(sent), keys(store)) == (content[:3000], [])
        assert made.complete()
        assert (b"".join(sent), bytes(store.read("key"))) == (content, content)
    assert bytes(store.read("key")) == content


def test_little_is_not_sent(store: ObjectStore, tmp_path: Path, sent: list[bytes]) -> None:
    with StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(bytes(1499))
        assert not made.complete()
        assert (made.size, sent, keys(store)) == (1499, [], [])


def test_without_a_store_nothing_is_sent(tmp_path: Path, sent: list[bytes]) -> None:
    with StagedUpload(tmp_path / "file") as made:
        made.write(bytes(100_000))
        assert not made.complete()
        assert (made.size, sent) == (100_000, [])


def test_an_end_that_is_written_again_was_not_sent(store: ObjectStore, tmp_path: Path, sent: list[bytes]) -> None:
    with StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(b"r" * 2000)
        made.write(b"f" * 500)
        made.seek(2000)
        made.truncate()
        made.write(b"footer")
        assert made.complete()
    assert b"".join(sent) == bytes(store.read("key")) == b"r" * 2000 + b"footer"


def test_what_was_sent_and_is_written_again_is_sent_anew(store: ObjectStore, tmp_path: Path) -> None:
    with StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(b"a" * 5000)
        made.seek(0)
        made.truncate()
        made.write(b"b" * 4000)
        assert made.complete()
    assert bytes(store.read("key")) == b"b" * 4000


def test_what_was_sent_and_is_cut_off_is_sent_anew(store: ObjectStore, tmp_path: Path) -> None:
    with StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(b"a" * 5000)
        made.truncate(1200)
        made.seek(0, 2)
        made.write(b"b" * 4000)
        assert made.complete()
    assert bytes(store.read("key")) == b"a" * 1200 + b"b" * 4000


def test_any_order_of_writing_gives_the_same_file_in_both_places(store: ObjectStore, tmp_path: Path) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        model = bytearray()
        with StagedUpload(tmp_path / "file", store, f"key-{seed}") as made:
            for _ in range(chance.randrange(1, 30)):
                if chance.random() < 0.2:
                    place = chance.randrange(len(model) + 1)
                    made.seek(place)
                    made.truncate()
                    del model[place:]
                data = chance.randbytes(chance.randrange(700))
                assert made.write(data) == len(data)
                model += data
            is_stored = made.complete()
            assert made.path.read_bytes() == bytes(made.mapped() if model else b"") == model
        assert is_stored == (store.stat(f"key-{seed}") is not None)
        if is_stored:
            assert bytes(store.read(f"key-{seed}")) == model


def test_what_is_not_completed_is_given_up(store: ObjectStore, tmp_path: Path, sent: list[bytes]) -> None:
    with pytest.raises(KeyError), StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(bytes(5000))
        raise KeyError
    assert (len(sent), keys(store)) == (4, [])
    assert [path.name for path in (tmp_path / "store").iterdir()] == []


def test_a_store_that_refuses_is_not_asked_again_and_the_file_is_whole(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(growing: MultipartWrite, data: Any) -> None:
        asked.append(len(data))
        raise StoreRefused("busy")

    monkeypatch.setattr(MultipartWrite, "write", refuse)
    content = random.Random(2).randbytes(9000)
    with StagedUpload(tmp_path / "file", store, "key") as made:
        for start in range(0, 9000, 300):
            made.write(content[start : start + 300])
        assert not made.complete()
        assert (made.path.read_bytes(), len(asked), keys(store)) == (content, 1, [])


def test_a_refusal_that_comes_at_the_end_leaves_nothing_there_and_the_file_is_whole(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are sent meanwhile: of the last ones, and of the end itself, one hears when all is sent."""
    real = MultipartWrite.complete

    def refuse(growing: MultipartWrite) -> None:
        real(growing)  # only the answer is lost
        assert keys(store) == ["key"]
        raise StoreRefused("busy")

    monkeypatch.setattr(MultipartWrite, "complete", refuse)
    content = random.Random(3).randbytes(5000)
    with StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(content)
        assert not made.complete()
        assert (made.path.read_bytes(), keys(store)) == (content, [])


def test_a_store_that_loses_a_piece_is_noticed(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MultipartWrite.write
    monkeypatch.setattr(MultipartWrite, "write", lambda growing, data: real(growing, bytes(data)[:-1]))
    with StagedUpload(tmp_path / "file", store, "key") as made:
        made.write(bytes(5000))
        with pytest.raises(StoreRefused, match="not as large"):
            made.complete()
    assert keys(store) == []
