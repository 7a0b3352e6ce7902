"""Write `book/mechanisms.md`: each mechanism, the cells that show it, and what of `verify` checks it.

A code cell names what it shows by a tag such as `N1`. The lines of `minigpt.verify` begin with such ids, and
their names are read from the recorded run of the page `checked`, where they are compared. A mechanism that no
cell shows is an error. `python -m tools.mechanisms --check` compares and changes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from tools import course, stamp

PAGE = course.ROOT / "book" / "mechanisms.md"
CHECKED = course.ROOT / "book" / "checked.md"
IDS = re.compile(r"^[A-Z]\d+(?:,? [A-Z]\d+)*(?= )")

HEAD = """\
(mechanisms)=
# Where each thing is shown

What the course claims to show, cell by cell. The first column names the mechanism. The second one links to \
the section and counts the code cells of that chapter, from 1, the set-up cell included. The third one gives \
the lines of `python -m minigpt.verify` that check the same mechanism on your device. This page is generated \
from tags in the chapters, and the build stops if it is out of date.
"""


class Mechanism(NamedTuple):
    part: str
    title: str
    section: str | None  # shown by this section of every numbered chapter, not by a cell


class Shown(NamedTuple):
    chapter: Path
    heading: str
    number: int | None  # of the code cell


@cache
def mechanisms() -> dict[str, Mechanism]:
    """All mechanisms by id, from `mechanisms.yml`."""
    parts = yaml.safe_load((course.ROOT / "tools" / "mechanisms.yml").read_text(encoding="utf-8"))
    found = {}
    for part, entries in parts.items():
        for name, entry in entries.items():
            title, section = (entry, None) if isinstance(entry, str) else (entry["title"], entry["section"])
            found[name] = Mechanism(part.split(" ", 1)[1], title, section)
    return found


def shown() -> Iterator[tuple[str, Shown]]:
    """Each mechanism with each place that shows it, in the order of the book."""
    import jupytext

    sections = {mechanism.section: name for name, mechanism in mechanisms().items() if mechanism.section}
    for chapter in course.chapters():
        heading, number = "", 0
        for cell in jupytext.read(chapter).cells:
            if cell.cell_type == "markdown":
                prose = re.sub(r"^(```+|:::+).*?^\1", "", cell.source, flags=re.MULTILINE | re.DOTALL)
                for found in re.findall(r"^##? (.+)$", prose, re.MULTILINE):
                    heading = found.strip()
                    if heading in sections and chapter.stem[:2].isdigit():
                        yield sections[heading], Shown(chapter, heading, None)
                continue
            number += 1
            for tag in cell.metadata.get("tags", []):
                if tag in mechanisms():
                    yield tag, Shown(chapter, heading, number)


def verified() -> dict[str, list[str]]:
    """The names of the lines of `verify`, by the ids that they begin with, as `checked` recorded them."""
    from tools import gate

    found: dict[str, list[str]] = {}
    if not course.twin(CHECKED).is_file():
        return found
    for cell in gate.code_cells(course.twin(CHECKED)):
        for output in cell["outputs"]:
            for line in gate.text_of(output.get("text", "")).splitlines():
                if (name := re.match(r"pass (.+?) +(?:<=|> ) ", line)) and (start := IDS.match(name[1])):
                    for part in re.findall(r"[A-Z]\d+", start[0]):
                        found.setdefault(part, []).append(name[1][start.end() :].strip())
    return found


def slug(heading: str) -> str:
    """The anchor that MyST gives to a heading."""
    from myst_parser.mdit_to_docutils.base import default_slugify

    return str(default_slugify(re.sub(r"\$[^$]*\$|[`*]", "", heading)))  # formulas do not count


def label(chapter: Path) -> str:
    """How the page names a chapter: by its number, if it has one."""
    number = chapter.stem[:2]
    return f"{int(number)}." if number.isdigit() else f"{chapter.stem}:"


def page() -> str:
    """The text of the page."""
    cells: dict[str, list[Shown]] = {}
    for name, place in shown():
        cells.setdefault(name, []).append(place)
    if missing := sorted(mechanisms().keys() - cells.keys()):
        raise SystemExit(f"tools/mechanisms.yml: no code cell has the tag {', '.join(missing)}")
    lines = verified()
    text, part = [HEAD], ""
    for name, mechanism in mechanisms().items():
        if mechanism.part != part:
            part = mechanism.part
            text += [f"\n## {part}\n", "| | shown in | checked by `verify` |", "|:--|:--|:--|"]
        places: dict[tuple[Path, str], list[str]] = {}
        for place in cells[name]:
            numbers = places.setdefault((place.chapter, place.heading), [])
            numbers += [str(place.number)] if place.number else []
        links = []
        for (chapter, heading), numbers in places.items():
            count = f", cell{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""
            links.append(f"[{label(chapter)} {heading}]({chapter.name}#{slug(heading)}){count}")
        checks = "; ".join(lines.get(name, ["—"]))
        text.append(f"| **{name}** {mechanism.title} | {'; '.join(links)} | {checks} |")
    return "\n".join(text) + "\n"


def main() -> None:
    text = page()
    if "--check" in sys.argv:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{course.short(PAGE)}: is out of date; run `python -m tools.mechanisms`")
    elif stamp.write(PAGE, text.encode()):
        print(f"{course.short(PAGE)}: written")


if __name__ == "__main__":
    main()
