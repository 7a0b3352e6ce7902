"""What must hold before anything is executed: each recorded run is its chapter's, and will be compared.

nbval is silent where nothing was recorded (no execution_count, no output, a tag that says not to look).
`python -m tools.gate` lists all such places in all chapters, then fails.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools import course, labels, mechanisms, myst, setup_cell, twin
from tools.record import first_line

IGNORE = "nbval-ignore-output"
TAGS = frozenset({*setup_cell.TAGS, "hide-output", "hide-cell", "nowrap", IGNORE})
SAID = "not compared"  # the words by which a cell says so to the reader
PRINTING = frozenset({"show", "agree", "show_error", "print", "display", "check"})
NOT_COMPARED = frozenset({"image/png", "image/jpeg", "application/vnd.jupyter.widget-view+json"})
COMMENTS = re.compile(r"^\s*#+\s*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", re.MULTILINE)
CUT = (
    re.compile(r"output truncated|data rate exceeded", re.IGNORECASE),
    re.compile(r"\[\s*\.\.\.|[\d.,\]]\s+\.\.\.,?\s+[-\d\[]"),  # how NumPy and torch leave out the middle
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def text_of(value: Any) -> str:
    """A text of the notebook format, which may be stored as a list of lines."""
    return "".join(value) if isinstance(value, list) else str(value)


def texts(output: dict[str, Any]) -> Iterator[str]:
    """The texts of an output that nbval compares."""
    if output["output_type"] == "stream":
        yield text_of(output["text"])
    for mime, value in output.get("data", {}).items():
        if mime not in NOT_COMPARED:
            yield text_of(value)


def compared(cell: dict[str, Any]) -> int:
    """How many outputs of a code cell nbval will compare; it takes all pieces of one stream together."""
    if IGNORE in cell["metadata"].get("tags", []) or cell.get("execution_count") is None:
        return 0
    streams = {output["name"] for output in cell["outputs"] if output["output_type"] == "stream"}
    others = [output for output in cell["outputs"] if output["output_type"] != "stream"]
    return len(streams) + sum(any(True for _ in texts(output)) for output in others)


def widgets(path: Path) -> dict[str, Any]:
    """The recorded state of the widgets of a chapter."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("widgets", {})
    return found


def code_cells(path: Path) -> list[dict[str, Any]]:
    """The code cells of a recorded run, in order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def calls(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Names of the functions that a cell certainly calls: not those inside a definition or a branch."""
    skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.Try, ast.While)
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*skipped, ast.IfExp)):
            continue
        if isinstance(node, ast.Call):
            function = node.func
            yield function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                yield "check" * (function.value.id == "check")  # check.layer_norm(...) prints
        waiting += ast.iter_child_nodes(node)


def prints(source: str) -> str | None:
    """The name of a function in a cell whose call leaves an output, if there is one."""
    plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    try:
        body = ast.parse(plain).body
    except SyntaxError:
        return None  # executing the cell will say so
    return next((name for name in calls(body) if name in PRINTING), None)


def check_cell(number: int, cell: dict[str, Any], before: str) -> Iterator[str]:
    """Problems of one recorded code cell; `before` is all Markdown between it and the code cell before."""
    source, tags, outputs = text_of(cell["source"]), cell["metadata"].get("tags", []), cell["outputs"]
    if cell.get("execution_count") is None:
        yield "was never executed: expected an execution_count, found none"
    elif cell.get("execution_count") != number:
        yield f"expected execution_count {number}, found {cell['execution_count']}"
    if unknown := sorted(set(tags) - TAGS - mechanisms.mechanisms().keys()):
        known = ", ".join(sorted(TAGS))
        yield f"has the unknown tag {', '.join(unknown)}; known are {known}, and a fact such as N1"
    if marker := COMMENTS.search(source):
        yield f"holds the comment {marker[1]}; tags say what is compared, comments do not"
    if IGNORE in tags and SAID not in source and SAID not in before:
        yield f"is tagged {IGNORE}: say in its code or in the text before it that the output is {SAID!r}"
    name = prints(source)
    if name and not outputs:
        yield f"calls {name}(), but no output is recorded"
    for output in outputs:
        if output["output_type"] == "error":
            yield f"recorded an error: {output['ename']}: {output['evalue']}"
        if output.get("name") == "stderr":
            yield f"wrote to stderr: {text_of(output['text']).strip().splitlines()[0]}"
        if IGNORE in tags:
            continue
        for text in texts(output):
            if any(pattern.search(text) for pattern in CUT):
                yield "has an output with its middle left out; print fewer numbers or all of them"
            if address := ADDRESS.search(text):
                yield f"prints an address in memory ({address[0]}); assign the result to _"
            if output["output_type"] == "stream" and re.search(r"\r(?!\n)", text):
                yield "prints a carriage return; what stands before it is not compared"


def same_code(chapter: Path, recorded: list[dict[str, Any]], book: labels.Book | None) -> Iterator[str]:
    """Where the code cells of a recorded run are not those of the chapter."""
    path = course.short(course.twin(chapter))
    record = f"run `make record CHAPTER={course.short(chapter)}`"
    written = [cell for cell in twin.plain_notebook(chapter, book).cells if cell.cell_type == "code"]
    for number, (ours, theirs) in enumerate(zip(written, recorded, strict=False), 1):
        source = text_of(theirs["source"])
        if ours.source != source:
            old, new = source.splitlines() or [""], ours.source.splitlines() or [""]
            pairs = zip(new + [""] * len(old), old + [""] * len(new), strict=False)
            expected, found = next(pair for pair in pairs if pair[0] != pair[1])
            yield (
                f"code cell {number} ({first_line(ours.source)}): is not the recorded one; {record}\n"
                f"    chapter:  {expected}\n    recorded: {found}"
            )
            return  # what follows is shifted
        if dict(ours.metadata) != theirs["metadata"]:
            yield (
                f"code cell {number} ({first_line(ours.source)}): expected the metadata "
                f"{json.dumps(dict(ours.metadata))}, found {json.dumps(theirs['metadata'])}; {record}"
            )
    if len(written) > len(recorded):
        number = len(recorded) + 1
        source = written[len(recorded)].source
        yield (
            f"code cell {number} ({first_line(source)}): is in the chapter, but not recorded: expected "
            f"{len(written)} code cells in {path}, found {len(recorded)}; {record}"
        )
    elif len(recorded) > len(written):
        number = len(written) + 1
        source = text_of(recorded[len(written)]["source"])
        yield f"code cell {number} ({first_line(source)}): is recorded, but not in the chapter; {record}"


def check_chapter(chapter: Path, book: labels.Book | None = None) -> tuple[list[str], int, int]:
    """Problems of a chapter, and how many outputs of how many cells will be compared."""
    path = course.twin(chapter)
    if not path.is_file():
        return [f"has no recorded run; run `make record CHAPTER={course.short(chapter)}`"], 0, 0
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError) as error:
        return [f"{course.short(path)} is not a notebook: {error}"], 0, 0
    recorded = code_cells(path)
    try:
        problems = list(same_code(chapter, recorded, book))
    except myst.SourceError as error:
        return [str(error)], 0, 0
    number, before = 0, ""
    for cell in cells:
        if cell["cell_type"] != "code":
            before += text_of(cell["source"])
            continue
        number += 1
        where = f"code cell {number} ({first_line(text_of(cell['source']))})"
        problems += [f"{where}: {problem}" for problem in check_cell(number, cell, before)]
        before = ""
    if not recorded or text_of(recorded[0]["source"]) != setup_cell.source():
        problems.append("code cell 1: is not the setup cell; run `python -m tools.setup_cell`, then record")
    counts = [compared(cell) for cell in recorded]
    if not sum(counts):
        problems.append("no cell has an output that will be compared")
    return problems, sum(counts), sum(count > 0 for count in counts)


def check_files() -> Iterator[str]:
    """Files that no page stands for, and pages that are there twice."""
    listed = course.pages()
    for path in sorted({path for path in listed if listed.count(path) > 1}):
        yield f"{course.short(path)}: _toc.yml lists it more than once"
    for folder in course.FOLDERS:
        for path in sorted((course.ROOT / folder).rglob("*")):
            if any(part.startswith(".") for part in path.parts) or path.name == "README.md":
                continue
            if path.suffix == ".md" and path not in listed:
                yield f"{course.short(path)}: stands in {folder}/, but _toc.yml does not list it"
            if path.suffix == ".ipynb" and path.with_suffix(".md") not in course.chapters():
                yield f"{course.short(path)}: a recorded run, but _toc.yml lists no {path.stem}.md"


def main() -> None:
    problems = list(check_files())
    try:
        book = labels.Book.read()  # once for all chapters
    except myst.SourceError:
        book = None  # the chapter in which it happens will say so
    for chapter in course.chapters():
        found, outputs, cells = check_chapter(chapter, book)
        problems += [f"{course.short(chapter)}: {problem}" for problem in found]
        if not found:
            print(f"{course.short(chapter)}: {outputs} outputs of {cells} cells will be compared")
    if problems:
        print("\n".join(problems))
        raise SystemExit(1)


if __name__ == "__main__":
    main()
