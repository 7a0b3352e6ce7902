"""What the labels of the book mean: titles, numbers as Sphinx counts them, pages, terms, references."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from pybtex.database import Entry, parse_file
from pybtex.richtext import Text

from tools import course, myst

EXERCISES = ("exercise", "exercise-start")
SOLUTIONS = ("solution", "solution-start")
ADMONITIONS = {
    "admonition": "",
    "attention": "Attention",
    "caution": "Caution",
    "danger": "Danger",
    "error": "Error",
    "hint": "Hint",
    "important": "Important",
    "note": "Note",
    "seealso": "See also",
    "tip": "Tip",
    "warning": "Warning",
    "margin": "",
    "sidebar": "",
}
# Sphinx runs one count of each kind through the whole book, in the order of the table of contents, because
# Jupyter Book turns `numfig` on and the parts carry no section numbers.
NUMBERED = {"figure": "Fig.", "table": "Table", "code": "Listing", "exercise": "Exercise"}


@dataclass(frozen=True)
class Label:
    """Where a label stands and what it names. `title` is MyST as the page has it, "" if there is none."""

    page: Path
    line: int
    kind: str  # section, figure, table, code, equation, exercise, solution, block
    title: str = ""
    number: int = 0


@dataclass
class Book:
    labels: dict[str, Label] = field(default_factory=dict)
    titles: dict[Path, str] = field(default_factory=dict)
    terms: dict[str, Path] = field(default_factory=dict)
    places: dict[tuple[Path, int], Label] = field(default_factory=dict)  # what stands at a line
    notes: dict[Path, dict[str, int]] = field(default_factory=dict)  # numbers of the footnotes of a page
    bibliography: Path | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, *more: Path) -> Book:
        """Read the pages of the table of contents, and any further ones after them."""
        book = cls()
        pages = [page for page in course.pages() if page.suffix == ".md"]
        for page in dict.fromkeys([*pages, *more]):
            book.add(page)
        return book

    def add(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        skip = myst.front_matter(text)
        blocks = myst.parse("\n".join(text.split("\n")[skip:]), page, skip + 1)
        self.titles[page] = next((block.text for block in blocks if block.kind == "heading"), page.stem)
        self.notes[page] = {}
        self._scan(blocks, page)

    def _count(self, kind: str) -> int:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return self._counts[kind]

    def _name(self, names: list[str], label: Label) -> None:
        self.places[label.page, label.line] = label
        for name in filter(None, names):
            if name in self.labels:
                old = self.labels[name]
                where = f"{course.short(old.page)}:{old.line}"
                myst.fail(label.page, label.line, f"the label {name} is already taken at {where}")
            self.labels[name] = label

    def _scan(self, blocks: list[myst.Block], page: Path) -> None:
        waiting: list[str] = []
        for block in blocks:
            if block.kind in ("blank", "comment"):
                continue
            if block.kind == "target":
                waiting.append(block.label)
                continue
            names, waiting = waiting, []
            if block.kind == "heading":
                self._name(names, Label(page, block.line, "section", block.text))
            elif block.kind == "math":
                if block.label:
                    label = Label(page, block.line, "equation", number=self._count("equation"))
                    self._name([block.label], label)
                self._name(names, self.places.get((page, block.line), Label(page, block.line, "block")))
            elif block.kind == "directive":
                self._directive(block, page, names)
            else:
                self._name(names, Label(page, block.line, "block"))
            if block.kind in ("text", "footnote"):
                for part in myst.inline(block.text, page, block.line):
                    if part.kind == "note":
                        self.notes[page].setdefault(part.text, len(self.notes[page]) + 1)
        if waiting:
            myst.fail(page, blocks[-1].line, f"the target ({waiting[0]})= has nothing after it")

    def _directive(self, block: myst.Block, page: Path, names: list[str]) -> None:
        name, options = block.name, block.options
        named = any((options.get("label"), options.get("name")))
        names = [*names, options.get("label", ""), options.get("name", "")]
        kind, title, number = "block", "", 0
        if name == "code-cell":
            if figure := cell_figure(cell_metadata(block.text)):
                kind, title = "figure", figure["caption"]
                number, names = self._count("figure"), [*names, figure["name"]]
        elif name == "figure":
            kind, title = "figure", block.text.strip().split("\n\n")[0]
            number = self._count("figure") if title or named else 0
        elif name == "image":
            kind = "block"
        elif name in ("table", "list-table"):
            kind, title = "table", block.argument
            number = self._count("table") if title or named else 0
        elif name in ("code-block", "literalinclude"):
            kind, title = "code", options.get("caption", "")
            number = self._count("code") if title else 0
        elif name == "math":
            if named:
                kind, number = "equation", self._count("equation")
        elif name in EXERCISES:
            kind, title = "exercise", block.argument
            number = 0 if "nonumber" in options else self._count("exercise")
        elif name in SOLUTIONS:
            kind, title = "solution", block.argument
        elif name in ADMONITIONS or name == "dropdown":
            title = block.argument or ADMONITIONS.get(name, "")
        elif name == "glossary":
            for line in block.text.split("\n"):
                if line and not line[0].isspace():
                    self.terms.setdefault(line.strip().lower(), page)
        elif name == "bibliography" and self.bibliography is None and "filter" not in options:
            self.bibliography = page
        self._name(names, Label(page, block.line, kind, title, number))
        if name in ADMONITIONS or name in EXERCISES + SOLUTIONS or name in ("dropdown", "figure"):
            self._scan(myst.parse(block.text, page, block.body_line), page)


def cell_metadata(body: str) -> dict[str, Any]:
    """The metadata at the top of a code cell: between --- lines, or lines that begin with a colon."""
    lines = body.split("\n")
    if lines[0].strip() == "---":
        text = body.split("\n---", 1)[0][3:]
    else:
        text = "\n".join(
            line.lstrip()[1:] for line in takewhile(lambda line: line.lstrip()[:1] == ":", lines)
        )
    return yaml.safe_load(text) or {}


def cell_figure(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The name and the caption that a code cell gives its picture, empty if it makes no figure of it."""
    figure = metadata.get("mystnb", {}).get("figure", {})
    return {key: str(figure.get(key, "")) for key in ("name", "caption")} if figure.get("caption") else {}


@cache
def _entries(file: Path, _stamp: int) -> dict[str, Entry]:
    return dict(parse_file(str(file)).entries)


def entry(key: str, page: Path, line: int) -> Entry:
    """The reference `key` of book/references.bib."""
    file = course.ROOT / "book" / "references.bib"
    entries = _entries(file, file.stat().st_mtime_ns) if file.is_file() else {}
    if key not in entries:
        myst.fail(page, line, f"cites {key}, but {course.short(file)} has no such entry")
    return entries[key]


def _plain(latex: str) -> str:
    return str(Text.from_latex(latex))


def authors(reference: Entry) -> str:
    """Vaswani et al.; Press and Wolf; PyTorch contributors."""
    people = reference.persons.get("author") or reference.persons.get("editor") or []
    names = [_plain(" ".join([*person.prelast_names, *person.last_names])) for person in people]
    if not names:
        return _plain(reference.fields.get("key") or reference.fields.get("title", reference.key))
    return names[0] if len(names) == 1 else " and ".join(names) if len(names) == 2 else f"{names[0]} et al."


def year(reference: Entry) -> str:
    return re.sub(r"[{}]", "", reference.fields.get("year", "n.d."))
