"""The twin of a chapter: the notebook that GitHub and Colab show, in plain Markdown, with recorded outputs.

`python -m tools.twin [chapter.md ...]` rewrites the Markdown cells of the twins whose code is unchanged;
`python -m tools.twin --check` names stale twins and changes nothing.
"""

from __future__ import annotations

import argparse
import html
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NoReturn

import nbformat
from jupytext.myst import myst_to_notebook
from nbformat import NotebookNode
from sphinx.directives.code import LiteralInclude, LiteralIncludeReader

from tools import course, labels, myst, stamp
from tools.labels import ADMONITIONS, NUMBERED, Book, Label

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
FOLDABLE = {"class", "name", "open", "animate", "color", "icon", "margin", "width", "height", "align"}
OPTIONS = {
    "dropdown": FOLDABLE,
    "exercise": {"label", "class", "nonumber"},
    "exercise-start": {"label", "class", "nonumber"},
    "exercise-end": set(),
    "solution": {"label", "class"},
    "solution-start": {"label", "class"},
    "solution-end": set(),
    "figure": {"alt", "name", "class", "width", "height", "align", "figclass", "figwidth", "scale"},
    "image": {"alt", "name", "class", "width", "height", "align", "scale"},
    "math": {"label", "name", "class", "nowrap"},
    "table": {"name", "class", "align", "width", "widths"},
    "list-table": {"name", "class", "align", "width", "widths", "header-rows", "stub-columns"},
    "code-block": {"name", "class", "caption", "linenos", "lineno-start", "emphasize-lines"},
    "literalinclude": set(LiteralInclude.option_spec) - {"diff"},
    "glossary": {"sorted"},
    **dict.fromkeys(ADMONITIONS, FOLDABLE),
}


class Page:
    """Turns the MyST of one page into plain Markdown."""

    def __init__(self, path: Path, book: Book) -> None:
        self.path = path
        self.book = book
        self.level = 1  # of the heading above
        self.quoted = 0  # how many quoted blocks are around

    # -- addresses ------------------------------------------------------------------------------

    def fail(self, line: int, what: str) -> NoReturn:
        myst.fail(self.path, line, what)

    def address(self, path: Path, view: str = "blob") -> str:
        url, branch = course.repository()
        return f"{url}/{view}/{branch}/{path.relative_to(course.ROOT).as_posix()}"

    def file(self, name: str, line: int) -> Path:
        """The file that a page names, relative to itself or, with a slash in front, to the root."""
        base = course.ROOT if name.startswith("/") else self.path.parent
        path = Path(os.path.normpath(base / name.lstrip("/")))
        if not path.is_relative_to(course.ROOT) or not path.exists():
            self.fail(line, f"{name}: there is no such file in the course")
        return path

    def page_address(self, page: Path) -> str:
        return self.address(course.twin(page) if course.is_notebook(page) else page)

    def link(self, text: str, label: Label) -> str:
        """A link to a label of another page; on the same page the text itself."""
        if label.page == self.path:
            return text
        anchor = ""
        if label.kind == "section" and label.title and not course.is_notebook(label.page):
            words = re.sub(r"[^\w\- ]", "", label.title.lower())
            anchor = f"#{words.strip().replace(' ', '-')}"
        return f"[{text}]({self.page_address(label.page)}{anchor})"

    def find(self, name: str, line: int) -> Label:
        if name not in self.book.labels:
            self.fail(line, f"the label {name} does not exist in any page of the course")
        return self.book.labels[name]

    def title(self, label: Label, name: str, line: int) -> str:
        """The title of what a label names, as plain Markdown without links."""
        if label.kind == "equation":
            return f"({label.number})"
        if label.kind == "exercise":
            return f"{NUMBERED['exercise']} {label.number}" if label.number else label.title or "Exercise"
        if label.kind == "solution":
            return f"Solution: {self.title(self.find(label.title, line), label.title, line)}"
        if not label.title:
            self.fail(line, f"the label {name} names nothing with a title; write text for the link")
        return self.unlinked(Page(label.page, self.book).inline(label.title, label.line))

    @staticmethod
    def unlinked(text: str) -> str:
        return re.sub(r"\[([^\[\]]*)\]\([^()\s]*\)", r"\1", text)

    def cross(self, name: str, text: str, line: int) -> str:
        label = self.find(name, line)
        if text:
            return self.link(text, label)
        found = self.title(label, name, line)
        if label.page == self.path and label.kind not in ("equation", "exercise"):
            return f"**{found}**"
        return self.link(found, label)

    # -- inside a paragraph ---------------------------------------------------------------------

    def inline(self, text: str, line: int) -> str:
        out = []
        for part in myst.inline(text, self.path, line):
            here = line + text.count("\n", 0, part.start)
            raw = text[part.start : part.end]
            if part.kind == "role":
                raw = self.role(part.name, part.text, here)
            elif part.kind == "link":
                raw = self.anchor(part, here)
            elif part.kind == "image":
                raw = f"![{part.text}]({self.picture(part.name, here)})"
            elif part.kind == "note":
                raw = f"<sup>{self.book.notes[self.path][part.text]}</sup>"
            elif part.kind == "math" and self.quoted:
                raw = " ".join(piece.strip() for piece in raw.split("\n"))
            out.append(raw)
        return "".join(out)

    def anchor(self, part: myst.Inline, line: int) -> str:
        text = self.inline(part.text, line)
        if re.match(r"^(https?:|mailto:)", part.name):
            return f"[{text or part.name}]({part.name})"
        name, _, label = part.name.partition("#")
        if not name:
            return self.cross(label, text, line)
        path = self.file(name, line) if not self.is_page(name) else self.page(name, line)
        if label:
            found = self.find(label, line)
            if found.page != path:
                self.fail(line, f"{part.name}: {label} is a label of {course.short(found.page)}")
            return self.cross(label, text, line)
        if path in self.book.titles:
            text = text or self.inline(self.book.titles[path], line)
            return f"[{text}]({self.page_address(path)})"
        view = "tree" if path.is_dir() else "blob"
        return f"[{text or f'`{path.name}`'}]({self.address(path, view)})"

    def is_page(self, name: str) -> bool:
        base = course.ROOT if name.startswith("/") else self.path.parent
        return Path(os.path.normpath(base / f"{name.lstrip('/')}.md")) in self.book.titles

    def page(self, name: str, line: int) -> Path:
        return self.file(f"{name}.md", line)

    def picture(self, name: str, line: int) -> str:
        return name if re.match(r"^https?:", name) else self.address(self.file(name, line), "raw")

    def role(self, role: str, content: str, line: int) -> str:
        text, name = myst.titled(content)
        shown = self.inline(text, line) if text else ""
        if role == "ref":
            return self.cross(name, shown, line)
        if role == "numref":
            label = self.find(name, line)
            if not label.number or label.kind == "equation":
                self.fail(line, f"{{numref}}: {name} has no number of a figure, table, listing or exercise")
            if shown and not re.search(r"%s|\{number\}", shown):
                return self.link(shown, label)
            form = shown or f"{NUMBERED[label.kind]} %s"
            return self.link(re.sub(r"%s|\{number\}", str(label.number), form), label)
        if role == "eq":
            label = self.find(name, line)
            if label.kind != "equation":
                self.fail(line, f"{{eq}}: {name} is not the label of an equation")
            return self.link(f"({label.number})", label)
        if role == "doc":
            path = self.page(name.removesuffix(".md"), line)
            if path not in self.book.titles:
                self.fail(line, f"{{doc}}: {name} is not in the table of contents")
            return f"[{shown or self.inline(self.book.titles[path], line)}]({self.page_address(path)})"
        if role == "download":
            return f"[{shown or PurePosixPath(name).name}]({self.address(self.file(name, line), 'raw')})"
        if role == "term":
            page = self.book.terms.get(name.lower())
            if page is None:
                self.fail(line, f"{{term}}: no glossary of the course has {name}")
            return shown or name if page == self.path else f"[{shown or name}]({self.page_address(page)})"
        if role in ("cite", "cite:p", "cite:t"):
            return self.cite([key.strip() for key in content.split(",")], role == "cite:t", line)
        if role == "math":
            return f"${content}$"
        self.fail(
            line,
            f"the role {{{role}}} has no plain form; known: ref, numref, eq, doc, download, term, cite, math",
        )

    def cite(self, keys: list[str], textual: bool, line: int) -> str:
        if self.book.bibliography is None:
            self.fail(line, "cites a work, but no page of the course has a {bibliography}")
        address = self.page_address(self.book.bibliography) if self.book.bibliography else ""
        out = []
        for key in keys:
            entry = labels.entry(key, self.path, line)
            who, year = labels.authors(entry), labels.year(entry)
            out.append(f"[{who} ({year})]({address})" if textual else f"[{who}, {year}]({address})")
        return ", ".join(out) if textual else f"({'; '.join(out)})"

    # -- blocks ---------------------------------------------------------------------------------

    def convert(self, text: str, line: int) -> str:
        """Plain Markdown for `text`, whose first line is line `line` of the page."""
        return "\n".join(tidy(self.blocks(myst.parse(text, self.path, line))))

    def body(self, block: myst.Block) -> list[str]:
        level = self.level
        lines = tidy(self.blocks(myst.parse(block.text, self.path, block.body_line)))
        self.level = level
        return lines

    def blocks(self, blocks: Iterable[myst.Block]) -> list[str]:
        out: list[str] = []
        for block in blocks:
            lines = self.block(block)
            spaced = block.kind in ("directive", "math", "amsmath")
            gap = [""] if spaced and lines and not block.indent else []
            out += [*gap, *lines, *gap]
        return out

    def block(self, block: myst.Block) -> list[str]:
        if block.kind == "blank":
            return [""]
        if block.kind in ("target", "comment"):
            return []
        if block.kind == "text":
            return self.paragraph(block)
        if block.kind == "heading":
            self.level = block.level
            return [f"{'#' * block.level} {self.inline(block.text, block.line)}"]
        if block.kind == "code":
            return fenced(block.text, block.name, block.indent, block.mark)
        if block.kind == "math":
            if not block.label and not self.quoted:
                return block.text.split("\n")
            match = myst.MATH.match(block.text)
            assert match is not None
            return self.formula(match["body"], block)
        if block.kind == "amsmath":
            if not block.name.endswith("*"):
                self.fail(
                    block.line, f"\\begin{{{block.name}}} is numbered; write {block.name}* or $$, labelled"
                )
            return self.display(block.text)
        if block.kind == "footnote":
            number = self.book.notes[self.path].get(block.label)
            if number is None:
                self.fail(block.line, f"the footnote {block.label} is nowhere referred to")
            return ["", f"<sup>{number}</sup> {self.inline(block.text, block.line)}", ""]
        return [f"{block.indent}{line}" if line else "" for line in self.directive(block)]

    def paragraph(self, block: myst.Block) -> list[str]:
        text = block.text
        if re.search(r"^\[(?!\^)[^\]]+\]:\s", text):
            self.fail(block.line, "a link definition; write the address in place: [text](address)")
        lines = self.inline(text, block.line).split("\n")
        if any(re.match(r"^:\s+\S", line) for line in lines):  # a definition list
            out: list[str] = []
            for line in lines:
                if re.match(r"^:\s+\S", line):
                    out.append(f"  {line[1:].strip()}")
                elif line.startswith(" "):
                    out.append(f"  {line.strip()}")
                else:
                    out.append(f"- **{line.strip()}**:")
            return out
        return lines

    def display(self, body: str) -> list[str]:
        """A formula between $$; on one line inside a quoted block, where Jupyter would show the > signs."""
        lines = [line.rstrip() for line in body.strip("\n").split("\n") if line.strip()]
        if self.quoted:
            return ["$$" + " ".join(line.strip() for line in lines) + "$$"]
        return ["$$", *lines, "$$"]

    def formula(self, body: str, block: myst.Block) -> list[str]:
        if "\\begin{" not in body and re.search(r"\\\\|(?<!\\)&", body):
            body = f"\\begin{{aligned}}\n{body.strip()}\n\\end{{aligned}}"  # as Sphinx sets it
        label = self.book.places.get((self.path, block.line))
        if label and label.kind == "equation":
            body = f"{body.strip()}\n\\tag{{{label.number}}}"
        return [f"{block.indent if block.kind == 'math' else ''}{line}" for line in self.display(body)]

    def quote(self, title: str, block: myst.Block) -> list[str]:
        self.quoted += 1
        lines = self.body(block)
        self.quoted -= 1
        head = [f"**{title}**", ""] if title and lines else [f"**{title}**"] if title else []
        return [f"> {line}".rstrip() for line in [*head, *lines]]

    def fold(self, title: str, block: myst.Block) -> list[str]:
        opened = "<details open>" if "open" in block.options else "<details>"
        return [f"{opened}<summary>{as_html(title)}</summary>", "", *self.body(block), "", "</details>"]

    def directive(self, block: myst.Block) -> list[str]:
        name, line = block.name, block.line
        if name == "code-cell":
            self.fail(line, "{code-cell} inside another block; a code cell stands by itself, between ```")
        if name not in OPTIONS:
            self.fail(line, f"the directive {{{name}}} has no plain form; known are {', '.join(OPTIONS)}")
        for option in block.options:
            if option not in OPTIONS[name]:
                allowed = ", ".join(sorted(OPTIONS[name])) or "none"
                place = block.option_lines.get(option, line)
                self.fail(place, f"{{{name}}} has no option {option}; it has: {allowed}")
        folded = "dropdown" in (block.options.get("class") or "").split()
        if name in ADMONITIONS or name == "dropdown":
            if ADMONITIONS.get(name) and block.argument:  # MyST takes it as the first line of the body
                text = f"{block.argument}\n{block.text}" if block.text.strip() else block.argument
                block = myst.Block(**{**vars(block), "text": text, "argument": "", "body_line": line})
            title = self.inline(block.argument, line) or ADMONITIONS.get(name, "")
            if name in ("admonition", "dropdown") and not title:
                self.fail(line, f"{{{name}}} has no title")
            return self.fold(title, block) if folded or name == "dropdown" else self.quote(title, block)
        if name in labels.EXERCISES:
            return self.exercise(block)
        if name in labels.SOLUTIONS:
            label = self.find(block.argument, line)
            if label.kind != "exercise":
                self.fail(line, f"{{{name}}} names {block.argument}, which is not an exercise")
            head = self.inline(label.title, label.line) or self.title(label, block.argument, line)
            if name == "solution":
                return self.fold(f"Solution: {head}", block)
            return [f"**Solution: {head}**", "", *self.body(block)]
        if name in ("exercise-end", "solution-end"):
            return []
        if name in ("figure", "image"):
            return self.figure(block)
        if name == "math":
            return self.formula(f"{block.argument}\n{block.text}", block)
        if name in ("table", "list-table"):
            return self.table(block)
        if name == "literalinclude":
            return self.include(block)
        if name == "code-block":
            caption = self.caption(block, self.inline(block.options.get("caption", ""), line))
            return [*caption, *fenced(block.text, block.argument)]
        return self.glossary(block)

    def exercise(self, block: myst.Block) -> list[str]:
        label = self.book.places[self.path, block.line]
        head = f"Exercise {label.number}" if label.number else "Exercise"
        if block.argument:
            head += f": {self.inline(block.argument, block.line)}"
        return [f"{'#' * min(self.level + 1, 6)} {head}", "", *self.body(block)]

    def caption(self, block: myst.Block, text: str) -> list[str]:
        """`**Fig. 1.** text`, or nothing where there is neither number nor text."""
        label = self.book.places[self.path, block.line]
        head = f"**{NUMBERED[label.kind]} {label.number}.**" if label.number else ""
        shown = f"{head} {text}".strip()
        return [*shown.split("\n"), ""] if shown else []

    def figure(self, block: myst.Block) -> list[str]:
        if not block.argument:
            self.fail(block.line, f"{{{block.name}}} names no file")
        if not (alt := " ".join((block.options.get("alt") or "").split())):
            self.fail(block.line, f"{{{block.name}}} {block.argument} has no :alt: that says what it shows")
        alt = re.sub(r"([\[\]])", r"\\\1", alt)
        image = f"![{alt}]({self.picture(block.argument, block.line)})"
        if block.name == "image":
            return [image]
        caption = self.caption(block, "\n".join(self.body(block)))
        return [image, "", *caption] if caption else [image]

    def table(self, block: myst.Block) -> list[str]:
        caption = self.caption(block, self.inline(block.argument, block.line))
        if block.name == "table":
            return [*caption, *self.body(block)]
        rows: list[list[list[str]]] = []
        for offset, text in enumerate(block.text.split("\n")):
            here = block.body_line + offset
            match = re.match(r"^(?P<row>[*-] )?\s*(?:[-*](?:\s+(?P<cell>.*))?$)", text)
            if match and (match["row"] or re.match(r"^ {1,4}[-*](\s|$)", text)):
                if match["row"]:
                    rows.append([])
                elif not rows:
                    self.fail(here, "{list-table}: a cell before the first row; a row begins with * -")
                rows[-1].append([match["cell"] or ""])
            elif text.strip():
                if not rows:
                    self.fail(here, "{list-table}: a row begins with * -")
                rows[-1][-1].append(text.strip())
        widths = sorted({len(row) for row in rows})
        if len(widths) != 1:
            self.fail(block.line, f"{{list-table}}: rows of {widths} cells; all must be equal")
        heads = int(block.options.get("header-rows") or 0)
        if heads > 1:
            self.fail(block.line, f"{{list-table}}: {heads} header rows; plain Markdown has at most one")
        cells = [[self.cell(" ".join(cell).strip(), block.line) for cell in row] for row in rows]
        if not heads:
            cells.insert(0, [""] * len(cells[0]))
        lines = [f"| {' | '.join(row)} |" for row in cells]
        return [*caption, lines[0], f"|{' --- |' * len(cells[0])}", *lines[1:]]

    def cell(self, text: str, line: int) -> str:
        out = self.inline(text, line)
        for part in myst.inline(text, self.path, line):
            if part.kind == "math" and "|" in part.text:
                self.fail(line, rf"|: write \vert or \Vert in the mathematics of a table, not ${part.text}$")
        return re.sub(r"(?<!\\)\|", r"\\|", out)

    def included(self, block: myst.Block) -> tuple[str, Path, str]:
        """The text that Sphinx's own reader includes, its file and its language."""
        path = self.file(block.argument, block.line)
        options: dict[str, Any] = {}
        for name, value in block.options.items():
            try:
                options[name] = LiteralInclude.option_spec[name](value)
            except (ValueError, TypeError) as error:
                self.fail(block.option_lines.get(name, block.line), f":{name}: {value}: {error}")
        try:
            config: Any = SimpleNamespace(source_encoding="utf-8-sig")
            text, _ = LiteralIncludeReader(str(path), options, config).read((str(self.path), block.line))
        except (ValueError, OSError, UnicodeError) as error:
            self.fail(block.line, f"{{literalinclude}} {block.argument}: {error}")
        return text.rstrip("\n"), path, options.get("language") or ("python" if path.suffix == ".py" else "")

    def include(self, block: myst.Block) -> list[str]:
        text, path, language = self.included(block)
        short = path.relative_to(course.ROOT).as_posix()
        caption = self.caption(block, self.inline(block.options.get("caption") or "", block.line))
        return [f"From [`{short}`]({self.address(path)}):", "", *caption, *fenced(text, language)]

    def glossary(self, block: myst.Block) -> list[str]:
        out: list[str] = []
        for offset, text in enumerate(block.text.split("\n")):
            shown = self.inline(text.strip(), block.body_line + offset)
            if text and not text[0].isspace():
                out.append(f"- **{shown}**:")
            elif shown:
                out.append(f"  {shown.removeprefix(': ')}")
        return out


def tidy(lines: list[str]) -> list[str]:
    """Without empty lines at both ends, and with one at most between; code keeps its own."""
    out: list[str] = []
    inside = ""
    for line in lines:
        fence = re.match(r"^[\s>]*(`{3,}|~{3,})", line)
        if not inside and not line.strip() and (not out or not out[-1].strip()):
            continue
        if fence and not inside:
            inside = fence[1]
        elif fence and fence[1].startswith(inside) and not line.strip(" \t>" + inside[0]):
            inside = ""
        out.append(line)
    while out and not out[-1].strip():
        out.pop()
    return out


def fenced(text: str, language: str = "", indent: str = "", mark: str = "```") -> list[str]:
    while re.search(rf"^\s*{mark}", text, re.MULTILINE):
        mark += mark[0]
    lines = [f"{mark}{language}", *text.split("\n"), mark]
    return [f"{indent}{line}" if line else "" for line in lines]


def as_html(title: str) -> str:
    """A title for <summary>, where Markdown is not read: code and emphasis as tags, links as their text."""
    text = html.escape(Page.unlinked(title), quote=False)
    text = re.sub(r"(`+)(.+?)\1", r"<code>\2</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return re.sub(r"(?<![\w*])\*(?!\s)([^*]+?)\*(?![\w*])", r"<i>\1</i>", text)


def leftovers(markdown: str) -> list[str]:
    """What of MyST is still in a text that should be plain Markdown, as messages; none if it is plain."""
    nowhere = course.ROOT / "text"
    found: list[str] = []
    try:
        for block in myst.parse(re.sub(r"^(?:[ \t]*>[ \t]?)+", "", markdown, flags=re.MULTILINE), nowhere):
            where = f"line {block.line}: "
            if block.kind in ("directive", "target", "comment", "footnote") or block.mark.startswith(":"):
                found.append(f"{where}{block.kind} {block.name or block.label or block.text}")
            elif block.kind == "math" and block.label:
                found.append(f"{where}equation label ({block.label})")
            elif block.kind == "amsmath":
                found.append(f"{where}\\begin{{{block.name}}} outside $$")
            elif block.kind in ("text", "heading"):
                if re.search(r"^:\s+\S", block.text, re.MULTILINE):
                    found.append(f"{where}definition list")
                for part in myst.inline(block.text, nowhere, block.line):
                    if part.kind in ("role", "note"):
                        found.append(f"{where}{part.kind} {block.text[part.start : part.end]}")
                    elif part.kind in ("link", "image") and not re.match(r"^(https?|mailto):", part.name):
                        found.append(f"{where}address {part.name!r} is not absolute")
                    elif part.kind in ("link", "image") and not part.text:
                        found.append(f"{where}link to {part.name} without text")
    except myst.SourceError as error:
        found.append(str(error))
    return found


def cells(chapter: Path) -> list[tuple[NotebookNode, int]]:
    """The cells of a chapter as they stand in its source, each with the line where its text begins.

    The text of a code cell begins below its fence, with its metadata.
    """
    text = chapter.read_text(encoding="utf-8")
    notebook = myst_to_notebook(text, add_source_map=True)
    lines = text.split("\n")
    out = []
    for cell, start in zip(notebook.cells, notebook.metadata["source_map"], strict=True):
        while cell.cell_type == "markdown" and not lines[start].strip():
            start += 1
        out.append((cell, start + 1))
    return out


def plain_notebook(
    chapter: Path, book: Book | None = None, change: Callable[[NotebookNode, int], str] | None = None
) -> NotebookNode:
    """The notebook of a chapter: plain Markdown, code with its tags, fixed ids, no outputs.

    change: makes another source of a cell and its line, before anything else is done with it.
    """
    chapter = chapter.resolve()
    page = Page(chapter, book or Book.read(chapter))
    out = []
    for cell, line in cells(chapter):
        if change:
            cell.source = change(cell, line)
        if cell.cell_type == "markdown":
            text = page.convert(cell.source, line)
            if rest := leftovers(text):
                myst.fail(chapter, line, f"the cell from here has MyST in its plain form: {'; '.join(rest)}")
            if text:
                out.append(nbformat.v4.new_markdown_cell(text))
        elif cell.cell_type == "code":
            tags = cell.metadata.get("tags")
            out.append(nbformat.v4.new_code_cell(cell.source, metadata={"tags": list(tags)} if tags else {}))
            if figure := labels.cell_figure(cell.metadata):  # the caption, below the picture
                number = page.book.places[chapter, line - 1].number
                caption = page.inline(figure["caption"], line)
                out.append(nbformat.v4.new_markdown_cell(f"**{NUMBERED['figure']} {number}.** {caption}"))
        else:
            myst.fail(chapter, line, "a raw cell; chapters have Markdown and code")
    for number, cell in enumerate(out):
        cell["id"] = f"cell-{number:03d}"
    notebook = nbformat.v4.new_notebook(cells=out, metadata=METADATA)
    notebook["nbformat_minor"] = 5
    return notebook


def text_of(notebook: NotebookNode) -> str:
    """The bytes of a twin: every tool that writes one writes it so."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def synced(chapter: Path, book: Book | None = None) -> str | None:
    """What the twin should hold: its outputs, the chapter's Markdown; None if the code is another."""
    path = course.twin(chapter)
    if not path.is_file():
        return None
    old = nbformat.read(path, as_version=4)
    new = plain_notebook(chapter, book)
    recorded = [cell for cell in old.cells if cell.cell_type == "code"]
    fresh = [cell for cell in new.cells if cell.cell_type == "code"]
    if [cell.source for cell in recorded] != [cell.source for cell in fresh]:
        return None
    for cell, run in zip(fresh, recorded, strict=True):
        cell["outputs"], cell["execution_count"] = run.outputs, run.execution_count
    new["metadata"] = {**old.metadata, **new.metadata}
    return text_of(new)


def sync(chapter: Path, book: Book | None = None) -> bool:
    """Bring the Markdown of a twin up to its chapter, if the code is the same; say whether it changed."""
    text = synced(chapter, book)
    return text is not None and stamp.write(course.twin(chapter), text.encode())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.twin", description=__doc__)
    parser.add_argument("chapters", nargs="*", type=Path, help="chapters as .md files; default: all")
    parser.add_argument("--check", action="store_true", help="name stale twins, exit 1, change nothing")
    given = parser.parse_args(arguments)
    chapters = [path.resolve() for path in given.chapters] or course.chapters()
    book = Book.read(*chapters)
    if not given.check:
        for chapter in chapters:
            if sync(chapter, book):
                print(f"{course.short(course.twin(chapter))}: Markdown brought up to {chapter.name}")
        return
    stale = []
    for chapter in chapters:
        path, name = course.twin(chapter), chapter.name
        text = synced(chapter, book)
        short = course.short(path)
        if not path.is_file():
            stale.append(f"{short}: is missing; make record writes it")
        elif text is None:
            stale.append(f"{short}: its code is not that of {name}; make record runs it anew")
        elif text != path.read_text(encoding="utf-8"):
            stale.append(f"{short}: its Markdown is not that of {name}; python -m tools.twin brings it up")
    if stale:
        raise SystemExit("\n".join(stale))


if __name__ == "__main__":
    main()
