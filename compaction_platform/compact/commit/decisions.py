"""Decide once for each output whether it is kept or withdrawn: what a process that slept for a day cannot undo.

A run publishes an output before it knows whether another run has published one of the same files. From then on, its
inputs may be removed only by whoever has it decided as kept, the output only by whoever has it decided as withdrawn.
The decision is one object, created on the condition that there is none: the first wins, and it holds for ever. No file
is ever published again under the name of a withdrawn one.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from compaction_platform.compact.plan.reconcile import Decision
from compaction_platform.errors import CompactionError
from compaction_platform.lake.storage.object_store import ObjectExists, ObjectMissing, ObjectStore
from compaction_platform.lake.storage.threads import map_concurrently
from compaction_platform.persisted_names import DECIDED_DIRECTORY

AT_ONCE = 16


class DecisionUnreadable(CompactionError):
    """What was decided about an output cannot be read. Neither it nor its inputs are removed."""


@dataclass(frozen=True)
class Decisions:
    """What was decided about outputs in one directory tree."""

    store: ObjectStore

    def keep(self, output: str) -> bool:
        """Decide that an output is kept. Returns False if it was withdrawn before."""
        return self._decide(output, "kept") == "kept"

    def withdraw(self, output: str) -> bool:
        """Decide that an output is withdrawn. Returns False if it was kept before."""
        return self._decide(output, "withdrawn") == "withdrawn"

    def of(self, output: str) -> Decision | None:
        """What was decided about an output; None if nothing was."""
        key = _key(output)
        try:
            decision = json.loads(bytes(self.store.read(key)))["decision"]
        except ObjectMissing:
            return None
        except (ValueError, KeyError, TypeError) as invalid:
            raise DecisionUnreadable(f"{self.store.uri}/{key}, about {output}, cannot be read.") from invalid
        if decision not in ("kept", "withdrawn"):
            raise DecisionUnreadable(f"{self.store.uri}/{key}, about {output}, says {decision!r}.")
        found: Decision = decision
        return found

    def of_all(self, outputs: Iterable[str]) -> dict[str, Decision]:
        """What was decided about these outputs, by key."""
        keys = list(outputs)
        found = dict(zip(keys, map_concurrently(self.of, keys, AT_ONCE), strict=True))
        return {key: decision for key, decision in found.items() if decision is not None}

    def _decide(self, output: str, decision: Decision) -> Decision:
        """The decision that holds: this one, or an earlier one."""
        content = json.dumps({"output": output, "decision": decision}).encode()
        try:
            self.store.create(_key(output), content)
        except ObjectExists:
            earlier = self.of(output)
            if earlier is None:
                raise DecisionUnreadable(f"what was decided about {output} is gone as soon as it was there.") from None
            return earlier
        return decision


def _key(output: str) -> str:
    return f"{DECIDED_DIRECTORY}/{hashlib.sha256(output.encode()).hexdigest()[:32]}.json"
