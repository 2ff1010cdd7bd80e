"""`make new-verb NAME=dedupe`: a verb of that name, copied from examples/verb_template, that works and is tested."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path.cwd()
TEMPLATE = Path(__file__).parent / "verb_template"
GOLDEN = "compaction_platform_tests.golden"


def copied(source: Path, target: Path, name: str) -> None:
    """A copy of the template in which the new name stands."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.rglob("*.py"):
        text = path.read_text().replace("new_verb", name).replace("NewVerb", camel(name))
        path.write_text(text)


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def register(name: str) -> None:
    """One entry in verbs.py, one name in the import contract of layers, one component in the reference."""
    verbs = ROOT / "compaction_platform" / "verbs.py"
    entry = (
        f'{name.upper()} = Verb(\n    "{name}",\n    components=("{name}.component:{camel(name)}Directory",),\n'
        f'    health="{name}.dagster.health:health_rows",\n)\n\n'
    )
    text = verbs.read_text().replace("\nVERBS = (", f"\n{entry}VERBS = (", 1)
    verbs.write_text(re.sub(r"^VERBS = \((.*)\)$", rf"VERBS = (\1, {name.upper()})", text, flags=re.MULTILINE))
    project = ROOT / "pyproject.toml"
    layer = "(compaction_platform.maintain)"
    project.write_text(project.read_text().replace(layer, f"{layer} | (compaction_platform.{name})", 1))
    with (ROOT / "docs" / "reference" / "components.md").open("a") as reference:
        component = f"compaction_platform.{name}.component.{camel(name)}Directory"
        reference.write(f"\n## {name}\n::: {component}\n    options: {{heading_level: 3}}\n")


def main(name: str) -> None:
    package, tests = ROOT / "compaction_platform" / name, ROOT / "compaction_platform_tests" / name
    if not re.fullmatch(r"[a-z][a-z_]*[a-z]", name) or package.exists() or tests.exists():
        sys.exit(f"{name!r} is no name for a new verb: small letters and underscores, and not one that is there.")
    copied(TEMPLATE / "package", package, name)
    copied(TEMPLATE / "tests", tests, name)
    register(name)
    python = [sys.executable, "-W", "ignore", "-m"]
    for command in (["ruff", "check", "--fix", "--quiet", "."], ["ruff", "format", "--quiet", "."], [GOLDEN]):
        subprocess.run([*python, *command], check=True)
    sys.stdout.write(f"compaction_platform/{name} works; `make lint` and its tests are green. Now make it yours.\n")


if __name__ == "__main__":
    main(sys.argv[1])
