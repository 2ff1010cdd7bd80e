"""What the documentation names is there: links, files of the code, and words of the glossary where it says they are."""

import re
from pathlib import Path

import pytest

from compaction_platform.verbs import VERBS

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "compaction_platform"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.py)\b")
GLOSSARY_ROW = re.compile(r"^\| (?P<term>[^|]+) \| [^|]+ \| (?P<where>[^|]+) \|$", re.MULTILINE)


def pages() -> list[Path]:
    return sorted(
        page for places in ("*.md", "docs/**/*.md", "docker/*.md", ".github/*.md") for page in ROOT.glob(places)
    )


def code_files() -> list[str]:
    folders = ("compaction_platform", "compaction_platform_tests", "bench")
    return [file.relative_to(ROOT).as_posix() for folder in folders for file in (ROOT / folder).rglob("*.py")]


def test_links_between_pages_lead_to_files() -> None:
    targets = [(page, target) for page in pages() for target in LINK.findall(CODE_BLOCK.sub("", page.read_text()))]
    assert targets
    assert [f"{page.name}: {target}" for page, target in targets if not (page.parent / target).exists()] == []


def test_modules_that_pages_name_are_there() -> None:
    files = code_files()
    named = {(page.name, name) for page in pages() for name in MODULE.findall(page.read_text())}
    assert named
    assert [each for each in sorted(named) if not any(f"/{file}".endswith(f"/{each[1]}") for file in files)] == []


def test_words_of_the_glossary_are_where_it_says() -> None:
    missing = []
    rows = list(GLOSSARY_ROW.finditer((ROOT / "docs/glossary.md").read_text()))
    for row in rows:
        names, places = (re.findall(r"`([^`]+)`", row[part]) for part in ("term", "where"))
        missing += [place for place in places if not (PACKAGE / place).exists()]
        text = "".join((PACKAGE / place).read_text() for place in places if (PACKAGE / place).is_file())
        missing += [name for name in names if not re.search(rf"^class {name}\b", text, re.MULTILINE)]
    assert len(rows) > 100
    assert missing == []


def test_every_component_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/components.md").read_text()
    places = [place.replace(":", ".") for verb in VERBS for place in verb.components]
    assert places
    assert [place for place in places if f"::: compaction_platform.{place}\n" not in text] == []
