"""Objects in S3 or a local directory: list, read, create, write, copy, delete.

One thing to know: times and etags are the store's own, and a write is visible whole or not at all. An
`Objects` value can be pickled into Spark tasks; it carries credentials but never shows them.
"""

import contextlib
import errno
import mmap
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, S3Store
from typing_extensions import Buffer

from compaction_platform.errors import CompactionError
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from obstore.store import S3Credential

LIST_CHUNK = 1000
DELETE_CHUNK = 1000
PIECE = 16 << 20
PARTS_AT_ONCE = 4  # of an object that is made, on their way
# One request: SeaweedFS lets several of those win that come as uploads in parts (seen with 4.x; there is a test).
COPY_IF_NONE_IS_THERE = "header: If-None-Match: *"


class AddressInvalid(CompactionError):
    """This is not an address of objects: s3://bucket/prefix, file:///directory or a path."""


class ObjectExists(CompactionError):
    """Something is stored under this key already; it was not changed."""


class ObjectChanged(CompactionError):
    """The object is not the version that was asked for any more, or is gone."""


class ObjectMissing(CompactionError):
    """Nothing is stored under this key."""


class StoreRefused(CompactionError):
    """The store answered with an error."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    etag: str
    last_modified: datetime


@dataclass(frozen=True, repr=False)
class GivenCredentials:
    """Exactly these credentials. Given as plain options, a session token in the environment would be added."""

    access_key_id: str
    secret_access_key: str
    token: str | None

    def __call__(self) -> "S3Credential":
        return {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "token": self.token,
            "expires_at": None,
        }


@dataclass(frozen=True)
class MultipartWrite:
    """An object in the making, in a store that takes it in parts: nobody sees it before it is complete."""

    key: str
    writer: Any = field(repr=False)
    explained: Callable[[str], contextlib.AbstractContextManager[None]] = field(repr=False)

    def write(self, data: Buffer) -> None:
        with self.explained(self.key):
            self.writer.write(data)

    def complete(self) -> None:
        """From now on it is there, in place of what was."""
        with self.explained(self.key):
            self.writer.close()

    def give_up(self) -> None:
        """A store may not let us: nobody sees the parts."""
        problem = StoreRefused(f"{self.key} was given up")
        with contextlib.suppress(BaseError, OSError, ValueError, StoreRefused):
            self.writer.__exit__(StoreRefused, problem, None)


@dataclass(frozen=True)
class ObjectStore:
    """The objects below one address. Keys are relative to it."""

    uri: str
    options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def at(cls, uri: str, settings: Settings) -> "ObjectStore":
        if urlsplit(uri).scheme != "s3":
            return cls(f"file://{local_directory(uri)}")
        options: dict[str, Any] = {"region": settings.s3_region, "copy_if_not_exists": COPY_IF_NONE_IS_THERE}
        if settings.s3_access_key_id and settings.s3_secret_access_key:
            token = settings.s3_session_token
            options["credential_provider"] = GivenCredentials(
                settings.s3_access_key_id.get_secret_value(),
                settings.s3_secret_access_key.get_secret_value(),
                token.get_secret_value() if token else None,
            )
        if settings.s3_endpoint:
            options |= {"endpoint": settings.s3_endpoint, "virtual_hosted_style_request": False}
        # Uploads of whole files go in one request when they must be conditional: give them time.
        options["client_options"] = {"timeout": "600s", "connect_timeout": "10s"}
        if (settings.s3_endpoint or "").startswith("http://"):
            options["client_options"]["allow_http"] = True
        return cls(uri.rstrip("/"), options)

    def __getstate__(self) -> dict[str, Any]:
        return {"uri": self.uri, "options": self.options}  # the open connection stays behind

    @cached_property
    def _store(self) -> LocalStore | S3Store:
        if self._local:
            if not self._local.is_dir():
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(self._local))
            return LocalStore(prefix=self._local)
        bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        if not bucket:
            raise AddressInvalid(f"{self.uri} names no bucket: s3://bucket/prefix is wanted.")
        return S3Store(bucket, prefix=prefix or None, **self.options)

    @cached_property
    def _local(self) -> Path | None:
        return local_directory(self.uri) if self.uri.startswith("file://") else None

    @property
    def is_local(self) -> bool:
        return self._local is not None

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Everything below a prefix (whole path segments), page by page: memory does not grow with the count.

        A directory that does not exist holds nothing, as a prefix of S3 without objects does.
        """
        with self._explained(prefix), contextlib.suppress(FileNotFoundError):
            for page in obstore.list(self._store, prefix=prefix.strip("/") or None, chunk_size=LIST_CHUNK):
                for entry in page:
                    yield _stored(entry)

    def list_directory(self, directory: str = "") -> Sequence[StoredObject]:
        """What lies right inside a directory, not further down."""
        with self._explained(directory), contextlib.suppress(FileNotFoundError):
            found = obstore.list_with_delimiter(self._store, prefix=directory.strip("/") or None)
            # Some stores list an empty directory as an object of its own name.
            return [_stored(entry) for entry in found["objects"] if entry["path"] != directory.strip("/")]
        return []

    def stat(self, key: str) -> StoredObject | None:
        """What is stored under this key now."""
        with self._explained(key), contextlib.suppress(FileNotFoundError):
            return _stored(obstore.head(self._store, key))
        return None

    def read(self, key: str, etag: str | None = None) -> "obstore.Bytes":
        """The whole object as a buffer; with an etag, that version or ObjectChanged."""
        with self._explained(key):
            return obstore.get(self._store, key, options={"if_match": etag} if etag else None).bytes()

    def read_range(self, key: str, start: int, end: int, etag: str | None = None) -> "obstore.Bytes":
        """Bytes from `start` up to `end`; with an etag, of that version or ObjectChanged."""
        with self._explained(key):
            if etag is None:
                return obstore.get_range(self._store, key, start=start, end=end)
            return obstore.get(self._store, key, options={"if_match": etag, "range": (start, end)}).bytes()

    def pieces(self, key: str, size: int, etag: str) -> Iterator["obstore.Bytes"]:
        """All of that version, so much at a time as is good for memory; or ObjectChanged."""
        for start in range(0, size, PIECE):
            yield self.read_range(key, start, min(size, start + PIECE), etag)

    def now(self) -> datetime:
        """The store's own time, told by the object `clock` that is written here. On a local disk files are stamped by
        this machine's clock, and nothing is written."""
        if self._local:
            return datetime.now(UTC)
        self.write("clock", b"its time of change is the time")
        seen = self.stat("clock")
        if seen is None:
            raise ObjectMissing(f"{self.uri}/clock is gone as soon as it is written; is something deleting here?")
        return seen.last_modified

    def write(self, key: str, data: Buffer) -> None:
        """Store under this key, replacing what is there."""
        with self._explained(key):
            if self._local:
                _write_locally(self._local / _checked(key), data, replace=True)
            else:
                obstore.put(self._store, key, memoryview(data).cast("B"))

    def create(self, key: str, data: Buffer) -> None:
        """Store under this key if nothing is there: of many at once, one wins and the others get ObjectExists."""
        with self._explained(key):
            if self._local:
                _write_locally(self._local / _checked(key), data, replace=False)
            else:
                obstore.put(self._store, key, memoryview(data).cast("B"), mode="create", use_multipart=False)

    def create_from(self, key: str, file: Path) -> None:
        """As `create`, with the content of a local file that nobody writes to any more. On the same file system it is
        not copied: it gets a second name."""
        with self._explained(key):
            if self._local:
                _link_or_copy(file, self._local / _checked(key))
            elif file.stat().st_size == 0:
                obstore.put(self._store, key, b"", mode="create", use_multipart=False)
            else:
                with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    obstore.put(self._store, key, memoryview(data), mode="create", use_multipart=False)

    def begin(self, key: str) -> MultipartWrite:
        """An object that goes to the store while it is made. (A process that dies leaves parts: see docs.)"""
        with self._explained(key):
            if self._local:
                (self._local / _checked(key)).parent.mkdir(parents=True, exist_ok=True)
            writer = obstore.open_writer(self._store, key, buffer_size=PIECE, max_concurrency=PARTS_AT_ONCE)
        return MultipartWrite(key, writer, self._explained)

    def copy(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Copy inside the store, atomically. Without `overwrite`, an existing target raises ObjectExists."""
        with self._explained(source):
            obstore.copy(self._store, source, target, overwrite=overwrite)

    def delete(self, keys: Iterable[str]) -> dict[str, str]:
        """Delete these keys. Returns the reason for each key that is still there; a missing key is no failure."""
        failures: dict[str, str] = {}
        chunk: list[str] = []
        for key in keys:
            chunk.append(key)
            if len(chunk) == DELETE_CHUNK:
                failures |= self._delete_chunk(chunk)
                chunk = []
        return failures | self._delete_chunk(chunk)

    def delete_versions(self, versions: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Delete these keys, each only while it has this etag: compared at the moment of the deletion. Returns the
        reason for each key that is still there; a missing key is no failure."""
        from compaction_platform.lake.storage.conditional_delete import delete_unchanged

        wanted = dict(versions)
        try:
            return delete_unchanged(self, wanted)
        except StoreRefused as refused:
            return dict.fromkeys(wanted, str(refused))

    def _delete_chunk(self, keys: Sequence[str]) -> dict[str, str]:
        if not keys:
            return {}
        try:
            obstore.delete(self._store, keys)
        except (BaseError, OSError, ValueError):
            # The bulk call names only its first failure, so each key is asked for by itself.
            return {key: reason for key in keys if (reason := self._delete_one(key))}
        return {}

    def _delete_one(self, key: str) -> str | None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            return _first_line(error)
        return None

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Turn the library's errors into ours."""
        where = f"{self.uri}/{key}"
        try:
            yield
        except (AlreadyExistsError, FileExistsError):
            raise ObjectExists(f"{where} exists; it was not changed.") from None
        except PreconditionError:
            raise ObjectChanged(f"{where} is not the version that was listed any more.") from None
        except FileNotFoundError:
            raise ObjectMissing(f"{where} does not exist.") from None
        except InvalidPathError as error:
            raise StoreRefused(
                f"below {self.uri} there is a key that cannot be handled safely ({_first_line(error)}). "
                "Nothing was changed. Rename that object, or choose a narrower prefix."
            ) from None
        except (PermissionError, PermissionDeniedError, UnauthenticatedError) as error:
            raise StoreRefused(f"{where}: access denied ({_first_line(error)}). Check the credentials.") from None
        except OSError as error:
            raise StoreRefused(f"{where}: {error.strerror or _first_line(error)}.") from error
        except ValueError as error:
            raise AddressInvalid(f"{where}: {_first_line(error)}") from None
        except BaseError as error:
            raise StoreRefused(f"{where}: {_first_line(error)}") from None


def local_directory(uri: str) -> Path:
    """The directory a file:// URI or a plain path means."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise AddressInvalid(f"{uri} names a host; file:///absolute/path is wanted.")
        return Path(uri.removeprefix("file://").removeprefix(parts.netloc))
    if "://" in uri:
        raise AddressInvalid(f"{uri}: only s3://, file:// and plain paths are supported.")
    return Path(uri).expanduser().absolute()


def _checked(key: str) -> str:
    """This key, if it stays below its address. The store library holds the same rule for its own calls."""
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise ValueError("a key has no empty segments, no . and no ..")
    return key


def _stored(entry: Any) -> StoredObject:
    return StoredObject(entry["path"], entry["size"], entry["e_tag"] or "", entry["last_modified"])


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


def _link_or_copy(file: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.stat().st_dev != path.parent.stat().st_dev:
        _write_locally(path, file, replace=False)
        return
    with file.open("rb+") as opened:
        os.fchmod(opened.fileno(), 0o666 & ~_umask())  # temporary files are their owner's alone
        os.utime(opened.fileno())  # it is new as of now, however long ago it was written
        os.fsync(opened.fileno())
    try:
        path.hardlink_to(file)
    except FileExistsError:
        raise
    except OSError:  # two mounts of one device, a file system without links
        _write_locally(path, file, replace=False)
    _sync_directory(path.parent)


def _umask() -> int:
    """What this process takes from the permissions of new files. (It can only be asked for by setting it.)"""
    for line in Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").exists() else ():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def _write_locally(path: Path, data: Buffer | Path, *, replace: bool) -> None:
    """Whole or not at all, and on the disk before it is visible. `data`: the content, or the file that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Listings pass over names that end like this: the library's own mark of an unfinished file.
    unfinished = path.with_name(f"{path.name}#{secrets.randbits(48)}")
    try:
        with unfinished.open("xb") as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            unfinished.replace(path)
        else:
            path.hardlink_to(unfinished)
        _sync_directory(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
