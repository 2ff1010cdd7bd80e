"""What the documentation site needs besides its theme: diagrams as SVG, descriptions of fields, a check of the result.

`mkdocs.yml` names the first two; `make docs` runs this module after the build.
"""

import ast
import html
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import griffe

SITE = Path("build/site")
LINK = re.compile(r"<(?:a|link|script|img)\b[^>]*\b(?:href|src)=[\"']?([^\"'\s>]+)")
FOREIGN = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*rel=.?stylesheet[^>]*//")


def diagram(source: str, *_: Any, **__: Any) -> str:
    """Render a Mermaid diagram as SVG, so that readers need neither a script nor a network."""
    import mermaidx

    name = f"diagram-{zlib.crc32(source.encode()):x}"  # styles inside the SVG are bound to its id
    svg = mermaidx.render(source).svg().replace("my-svg", name)
    return f"<figure>{svg}</figure>"


class FieldDescriptions(griffe.Extension):
    """Give attributes the `description` of their pydantic Field as docstring, and their bare type as annotation."""

    def __init__(self) -> None:
        self.of_aliases: dict[str, str] = {}  # Duration = Annotated[str, Field(description=...)]
        self.undescribed: list[griffe.Attribute] = []

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:  # COMPACTION_<FIELD> is no element of HTML
            obj.docstring.value = re.sub(r"<(?=\w)", "&lt;", obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        annotation = _parsed(attr.annotation)
        description = _description(annotation) or _description(_parsed(attr.value))
        if not attr.parent or not attr.parent.is_class:
            if description:
                self.of_aliases[attr.name] = description
            return
        if description:
            attr.docstring = griffe.Docstring(description, parent=attr)
        elif attr.annotation is not None and attr.docstring is None:
            self.undescribed.append(attr)
        if isinstance(annotation, ast.Subscript) and _name(annotation.value) == "Annotated":
            attr.annotation = ast.unparse(annotation.slice.elts[0])  # type: ignore[attr-defined]
        if (value := _parsed(attr.value)) and isinstance(value, ast.Call) and _name(value.func) == "Field":
            attr.value = ast.unparse(value.args[0]) if value.args else None

    def on_package(self, **_: Any) -> None:
        for attr in self.undescribed:
            if description := self.of_aliases.get(str(attr.annotation)):
                attr.docstring = griffe.Docstring(description, parent=attr)


def _parsed(expression: Any) -> ast.expr | None:
    return ast.parse(str(expression), mode="eval").body if expression is not None else None


def _description(expression: ast.expr | None) -> str | None:
    for node in ast.walk(expression) if expression is not None else ():
        if isinstance(node, ast.Call) and _name(node.func) == "Field":
            for keyword in node.keywords:
                if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                    return html.escape(str(keyword.value.value), quote=False)
    return None


def _name(expression: ast.expr) -> str:
    return ast.unparse(expression).rpartition(".")[2]


def main() -> None:
    """Fail if there is no page, if a page loads something from another host, or if a link leads to no file."""
    pages = sorted(SITE.rglob("*.html"))
    problems = [problem for page in pages for problem in _problems(page)]
    if not pages or problems:
        sys.exit("\n".join(["the site in build/site is not right:", *problems]))


def _problems(page: Path) -> Iterator[str]:
    text = page.read_text()
    for found in FOREIGN.finditer(text):
        yield f"{page}: loads something from another host: {found[0]}"
    for link in LINK.findall(text):
        address = urlsplit(html.unescape(link))
        if page.name != "404.html" and not address.scheme and not (page.parent / unquote(address.path)).exists():
            yield f"{page}: leads to {link}, which is not there"


if __name__ == "__main__":
    main()
