"""Large outputs on their way to S3 while they are made: hidden, and copied to their place in one step when proved.

The copy inside the store is the commit, as the put of a whole file is otherwise. Both refuse to replace anything, and
date the file by that moment: others tell by the date whether its maker may still take it back. (S3 dates what came in
parts by when the first of them did, and so the parts cannot be the file itself.)
"""

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from compaction_platform.lake.errors import CompactionError
from compaction_platform.lake.objects import ObjectExists, Objects
from compaction_platform.lake.settings import Settings
from compaction_platform.lake.spool import Spool
from compaction_platform.lake.uploads import give_up_uploads

Upload = Literal["whole", "while_made"]
HIDDEN = "_compaction/uploads"
LEFT_AFTER = timedelta(hours=24)


def hidden_spool(store: Objects, path: Path) -> Spool:
    return Spool(path, store, f"{HIDDEN}/{uuid.uuid4()}")


def publish(spool: Spool, store: Objects, key: str) -> None:
    """One atomic step. ObjectExists: something is there already; it was not changed."""
    if not spool.complete():
        store.create_from(key, spool.path)
        return
    try:
        store.copy(spool.key, key)
    finally:
        store.delete([spool.key])


def can_commit_by_copy(store: Objects) -> bool:
    """Whether this store refuses to copy over something, as S3 and SeaweedFS do. It is tried: one that ignores the
    condition would let two runs believe that the same file is theirs."""
    if store.is_local:
        return False
    source, target = (f"{HIDDEN}/{uuid.uuid4()}" for _ in range(2))
    try:
        store.write(source, b"may it be copied over the other one?")
        store.write(target, b"it may not")
        store.copy(source, target)
    except ObjectExists:
        return True
    except CompactionError:  # it does not let us try: then files are put whole
        return False
    finally:
        store.delete([source, target])
    return False


def remove_leftovers(store: Objects, settings: Settings, now: datetime, say: Callable[[str], None]) -> None:
    """What killed runs have left: hidden files, and parts of such. Rows are never only there."""
    before = now - LEFT_AFTER
    left = [stored.key for stored in store.list(HIDDEN) if stored.last_modified < before]
    failures = store.delete(left)
    if left:
        say(f"{len(left) - len(failures)} hidden files were removed that killed runs had left in {HIDDEN}")
    give_up_uploads(f"{store.uri}/{HIDDEN}", "", settings, before, say)
