"""One word, one thing: names that a stranger meets are unique, and folders small enough to be read at a glance."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import compaction_platform

pytestmark = pytest.mark.unit
PACKAGE = Path(compaction_platform.__file__).parent
import_marker = None
MOST_MODULES_IN_A_FOLDER = 12


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_a_class_name_is_used_once() -> None:
    names = Counter(
        node.name
        for module in modules()
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_a_folder_is_read_at_a_glance() -> None:
    folders = Counter(module.parent for module in modules() if module.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MOST_MODULES_IN_A_FOLDER} == {}
