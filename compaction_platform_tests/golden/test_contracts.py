"""Names that users and stored data rely on. A change shows here in review; `python -m …golden` accepts it."""

import json
from pathlib import Path

import pytest

from compaction_platform_tests.golden.contracts import contracts

pytestmark = pytest.mark.unit
ACCEPTED = Path(__file__).with_name("contracts.json")


@pytest.mark.parametrize("kind", ["names", "yaml", "commands", "settings", "ledger"])
def test_names_that_others_rely_on_are_what_they_were(kind: str) -> None:
    assert contracts()[kind] == json.loads(ACCEPTED.read_text())[kind]
