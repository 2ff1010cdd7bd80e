"""Are the rows of a compacted file still those that were verified when it was made? Read all of it and see."""

import json
from dataclasses import dataclass

import pyarrow

from compaction_platform.compact.engines import digest_of, read_back
from compaction_platform.compact.inputs import UNREADABLE, Input
from compaction_platform.compact.outputs import ROWS_KEY
from compaction_platform.compact.plan import Listed
from compaction_platform.lake.objects import ObjectChanged, ObjectMissing, Objects


@dataclass(frozen=True)
class Audited:
    rows: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Audit:
    """It travels to where the work is done."""

    store: Objects

    def __call__(self, file: Listed) -> Audited:
        try:
            output = Input(file, pyarrow.py_buffer(self.store.read(file.key, file.etag)))
            said = json.loads((output.metadata.metadata or {}).get(ROWS_KEY, b"null"))
            found = read_back(output)
        except (ObjectChanged, ObjectMissing):
            return Audited()  # compacted again meanwhile
        except UNREADABLE as error:
            return Audited(problem=f"it cannot be read: {error}")
        if said != json.loads(digest_of(found)):
            return Audited(found.rows, f"its rows are not those that were verified: {found.rows:,} rows, said: {said}")
        return Audited(found.rows)
