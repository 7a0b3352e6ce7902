"""Write `exercises/NN_name.ipynb` from `solutions/NN_name.md`, the one source of both.

`python -m tools.exercises [solution.md ...]` writes them, all by default; `--check` names those out of date
and changes nothing. Lines between two marks are the solution and are cut out:

    # --- solution: what to do ---     in code: `raise NotImplementedError("what to do")` takes its place
    # --- solution ---                 in code: nothing takes its place; a cell left empty is dropped
    # --- end solution ---
    % --- solution ---                 in the text: likewise
    % --- end solution ---

A mark that is unknown, nested or without its partner in the same cell stops everything, with file and line.
The notebook has no outputs and fixed ids, and its Markdown is as plain as that of the recorded runs.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from tools import course, myst, stamp, twin
from tools.labels import Book

FOLDER = course.ROOT / "exercises"
COLUMNS = 88  # that a page shows without a scroll bar
MARK = re.compile(r"^(?P<indent>\s*)(?P<sign>[#%])\s*-{2,}(?P<text>.*)$")
OPEN = re.compile(r"^ solution(?:: (?P<todo>\S.*?))? ---$")
CLOSE = " end solution ---"
TITLE = re.compile(r"\A# Solutions: (.+)$", re.MULTILINE)

BEFORE = """\
**Before you start.** In Colab, choose *File > Save a copy in Drive*; what you change here is not kept. Then \
run the cells from top to bottom. Each task has a cell that ends with a check. Replace the line with \
`raise NotImplementedError`, run the cell, and read what the check prints: a tick, or the smallest input \
that fails and, if it is a famous one, the name of the mistake. A check never prints the solution. \
`check.progress()` at the end shows what is done. \
The [solutions]({solutions}) stand in a notebook of their own.\
"""


def exercise(solution: Path) -> Path:
    """The notebook that is made from a solution."""
    return FOLDER / f"{solution.stem}.ipynb"


def solutions() -> list[Path]:
    """The solutions that the table of contents lists."""
    return [chapter for chapter in course.chapters() if chapter.parent.name == "solutions"]


def cut(source: str, sign: str, path: Path, line: int) -> str:
    """A cell without what stands between marks. Lines keep their numbers, so cut ones are left empty.

    sign: how a mark begins in this cell; line: where the cell's text begins in the file.
    """
    out: list[str] = []
    opened = 0
    for number, text in enumerate(source.split("\n"), line):
        mark = MARK.match(text)
        if mark is None or (mark["sign"] != sign and not re.search(r"solution", text)):
            out.append("" if opened else text)
            continue
        out.append("")
        found = OPEN.match(mark["text"])
        if mark["sign"] != sign:
            myst.fail(path, number, f"the mark {text.strip()!r}: expected {sign} at its beginning here")
        if re.match(r"^\s*[#%] --- ", text) is None or not (found or mark["text"] == CLOSE):
            known = ", ".join(
                f"{sign} --- {words} ---" for words in ("solution: what to do", "solution", "end solution")
            )
            myst.fail(path, number, f"the unknown mark {text.strip()!r}; known are {known}")
        if found:
            if opened:
                myst.fail(path, number, f"a solution begins inside the one of line {opened}")
            opened = number
            if found["todo"] and sign == "%":
                myst.fail(path, number, "text has no stub: expected % --- solution ---")
            if found["todo"]:
                out[-1] = f"{mark['indent']}raise NotImplementedError({quoted(found['todo'])})"
                if len(out[-1]) > COLUMNS:
                    myst.fail(
                        path, number, f"the stub has {len(out[-1])} columns, allowed are {COLUMNS}: say less"
                    )
        elif not opened:
            myst.fail(path, number, "a solution ends here, but none has begun in this cell")
        else:
            opened = 0
    if opened:
        myst.fail(path, opened, "this solution has no end in its cell")
    return "\n".join(out)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def tidy(source: str) -> str:
    """A code cell without the empty lines that a cut left: at most two in a row, none at the ends."""
    lines = re.sub(r"\n{4,}", "\n\n\n", source.strip("\n"))
    stub = r"(raise NotImplementedError\([^\n]*\))\n"
    lines = re.sub(stub + r"\n\n?(?=[ \t])", r"\1\n", lines)
    return re.sub(stub + r"(?=[ \t]+(?:def|@))", r"\1\n\n", lines)  # the next method


def notebook(solution: Path, book: Book | None = None) -> NotebookNode:
    """The exercise notebook of a solution."""

    def change(cell: NotebookNode, line: int) -> str:
        if cell.cell_type == "markdown":
            return cut(cell.source, "%", solution, line)
        skipped = next(
            (i for i, text in enumerate(lines_from(line)) if text == cell.source.split("\n")[0]), 0
        )
        return tidy(cut(cell.source, "#", solution, line + skipped))

    source = solution.read_text(encoding="utf-8").split("\n")

    def lines_from(line: int) -> list[str]:
        return source[line - 1 :]

    made = twin.plain_notebook(solution, book, change)
    first = made.cells[0]
    if first.cell_type != "markdown" or not TITLE.search(first.source):
        myst.fail(solution, 1, "the page must begin with the title `# Solutions: name`")
    first.source = TITLE.sub(r"# Exercises: \1", first.source, count=1)
    stubs = 0
    for cell in made.cells:
        if cell.cell_type != "code":
            continue
        stubs += cell.source.count("raise NotImplementedError(")
        plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.MULTILINE)
        try:
            ast.parse(plain)
        except SyntaxError as error:
            head = cell.source.splitlines()[0]
            myst.fail(solution, 1, f"the cell that begins with {head!r} is no Python once it is cut: {error}")
    if not stubs:
        myst.fail(solution, 1, "nothing is left to do: no mark says what")
    address = twin.Page(solution, Book()).address(course.twin(solution))
    made.cells.insert(1, new_markdown_cell(BEFORE.format(solutions=address)))
    made.cells = [cell for cell in made.cells if cell.source.strip()]
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number:03d}"
    return made


def stale(paths: list[Path]) -> list[str]:
    """What is not as it should be, one line for each file."""
    found = []
    book = Book.read(*paths)
    for path in paths:
        target, text = exercise(path), twin.text_of(notebook(path, book))
        if not target.is_file():
            found.append(f"{course.short(target)}: is missing; make exercises writes it")
        elif target.read_text(encoding="utf-8") != text:
            found.append(f"{course.short(target)}: is not what {path.name} makes of it; run make exercises")
    return found + [f"{course.short(path)}: no solution makes it" for path in leftover(paths)]


def leftover(paths: list[Path]) -> list[Path]:
    """Exercise notebooks whose solution is gone."""
    known = {exercise(path) for path in [*paths, *solutions()]}
    return sorted(path for path in FOLDER.glob("*.ipynb") if path not in known)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.exercises", description=__doc__.split("\n")[0])
    parser.add_argument("solutions", nargs="*", type=Path, help="solutions as .md files; default: all")
    parser.add_argument(
        "--check", action="store_true", help="name what is out of date, exit 1, change nothing"
    )
    given = parser.parse_args(arguments)
    paths = [path.resolve() for path in given.solutions] or solutions()
    if given.check:
        if problems := stale(paths):
            raise SystemExit("\n".join(problems))
        return
    book = Book.read(*paths)
    for path in paths:
        if stamp.write(exercise(path), twin.text_of(notebook(path, book)).encode()):
            print(f"{course.short(exercise(path))}: written from {course.short(path)}")
    if not given.solutions and (gone := leftover(paths)):
        raise SystemExit("\n".join(f"{course.short(path)}: no solution makes it; remove it" for path in gone))


if __name__ == "__main__":
    main()
