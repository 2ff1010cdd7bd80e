"""A JSON-RPC node of the chain (the Ethereum API). Its address may hold a key: it is never shown."""

import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from compaction_platform.archive.chain.finality import Head
from compaction_platform.archive.config import ArchivedChain
from compaction_platform.errors import CompactionError

TIMEOUT_SECONDS = 10
MOST_BYTES = 4 << 20


class NodeUnreachable(CompactionError):
    """The node does not answer, or not with what was asked for."""


def same_hash(one: str, two: str) -> bool:
    """Whether in capitals or not, and with 0x or without."""
    return one.lower().removeprefix("0x") == two.lower().removeprefix("0x")


@dataclass(frozen=True)
class NodeBlock:
    number: int
    hash: str
    time: datetime


@dataclass(frozen=True)
class Node:
    variable: str
    url: str = field(repr=False)

    @classmethod
    def of(cls, archive: ArchivedChain) -> "Node | None":
        if archive.node_variable is None:
            return None
        url = os.environ.get(archive.node_variable)
        if not url or not url.startswith(("http://", "https://")):
            raise NodeUnreachable(f"the variable {archive.node_variable} should hold the node's http(s) address.")
        return cls(archive.node_variable, url)

    def head(self) -> Head:
        latest, final = self.block("latest"), self.block("finalized")
        if latest is None:
            raise NodeUnreachable(f"the node of {self.variable} knows no latest block.")
        return Head(
            latest.number, latest.hash, latest.time, final.number if final else None, final.hash if final else None
        )

    def block(self, which: int | str) -> NodeBlock | None:
        """A block by number, or by one of the names that nodes have for them; None if there is none."""
        name = hex(which) if isinstance(which, int) else which
        found = self._ask("eth_getBlockByNumber", [name, False])
        if found is None:
            return None
        try:
            number, when = int(found["number"], 16), int(found["timestamp"], 16)
            block = NodeBlock(number, str(found["hash"]), datetime.fromtimestamp(when, UTC))
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
            raise NodeUnreachable(f"the node of {self.variable} answers with something that is no block.") from error
        if isinstance(which, int) and number != which:
            raise NodeUnreachable(f"asked for block {which}, the node of {self.variable} answers with {number}.")
        return block

    def _ask(self, method: str, parameters: list[Any]) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
        request = urllib.request.Request(  # noqa: S310 (its scheme was looked at)
            self.url, body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
                content = json.loads(answer.read(MOST_BYTES))
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            raise NodeUnreachable(f"the node of {self.variable} does not answer: {_reason(error)}.") from None
        if not isinstance(content, dict) or content.get("error"):
            told = content.get("error") if isinstance(content, dict) else content
            raise NodeUnreachable(f"the node of {self.variable} refuses {method}: {str(told)[:200]}.")
        return content.get("result")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or type(error).__name__)[:200]
