"""`make book` passes on the course as it is, and stops at each planted fault with a message that finds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import make

from tools import book

NAME = "book/03_layernorm.md"
DECIMAL = re.compile(r"(?<![\d.])\d\.\d{6}(?!\d)")


class Chapter:
    """A chapter and its recorded run in a copy of the course."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / NAME
        self.recorded = self.source.with_suffix(".ipynb")
        self.notebook: dict[str, Any] = json.loads(self.recorded.read_text(encoding="utf-8"))
        self.cells = [cell for cell in self.notebook["cells"] if cell["cell_type"] == "code"]

    def save(self) -> None:
        text = json.dumps(self.notebook, indent=1, sort_keys=True, ensure_ascii=False)
        self.recorded.write_text(text + "\n", encoding="utf-8")

    def edit(self, old: str, new: str, name: str = NAME) -> None:
        """Replace a text that stands exactly once in a file."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (
            f"{name}: {old!r} stands there {text.count(old)} times, the test needs one"
        )
        path.write_text(text.replace(old, new), encoding="utf-8")

    def printing_cell(self) -> tuple[int, dict[str, Any], str]:
        """The first cell that shows numbers and is compared: its number, itself and its text."""
        for number, cell in enumerate(self.cells, 1):
            ignored = "nbval-ignore-output" in cell["metadata"].get("tags", [])
            for output in cell["outputs"]:
                text = "".join(output.get("text", []))
                if not ignored and "show(" in "".join(cell["source"]) and DECIMAL.search(text):
                    return number, cell, text
        raise AssertionError(f"{NAME}: no cell shows a number with six decimals")


def recorded_digit(chapter: Chapter) -> list[str]:
    number, cell, text = chapter.printing_cell()
    match = DECIMAL.search(text)
    assert match
    wrong = match[0][:-1] + str((int(match[0][-1]) + 1) % 10)
    for output in cell["outputs"]:
        if "".join(output.get("text", [])) == text:
            output["text"] = text[: match.start()] + wrong + text[match.end() :]
    chapter.save()
    return [
        rf"{NAME}: code cell {number} \(",
        rf"expected .*{wrong}",
        rf"got .*{match[0]}",
        "make record CHAPTER=",
    ]


def prose_digit(chapter: Chapter) -> list[str]:
    lines = chapter.source.read_text(encoding="utf-8").split("\n")
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```{code-cell}"):
            inside = True
        elif line == "```":
            inside = False
        match = DECIMAL.search(line)
        if match and not inside:
            wrong = match[0][0] + ".0731" + match[0][-2:]
            lines[number - 1] = line[: match.start()] + wrong + line[match.end() :]
            chapter.source.write_text("\n".join(lines), encoding="utf-8")
            return [rf"{NAME}:{number}: .*{re.escape(wrong)}", "nearest"]
    raise AssertionError(f"{NAME}: no number with six decimals stands in the prose")


def eps(chapter: Chapter) -> list[str]:
    signature = "def layer_norm(\n    x: Array, gamma: Array, beta: Array | None = None, eps: float = "
    chapter.edit(f"{signature}1e-5", f"{signature}1e-3", "minigpt/array.py")
    return [rf"{NAME}: code cell \d+ \(", r"expected .*0\.999995", r"got .*0\.999500"]


def denominator(chapter: Chapter) -> list[str]:
    chapter.edit(
        "var = ((x - mu) ** 2).mean(axis=-1, keepdims=True)",
        "var = x.var(axis=-1, keepdims=True, ddof=1)",
        "minigpt/array.py",
    )
    return [rf"{NAME}: code cell \d+ \(", r"expected .*0\.999995", r"got .*0\.707105"]


def cell_added(chapter: Chapter) -> list[str]:
    with chapter.source.open("a", encoding="utf-8") as file:
        file.write('\n```{code-cell} ipython3\nprint("never recorded")\n```\n')
    count = len(chapter.cells)
    return [
        rf'{NAME}: code cell {count + 1} \(print\("never recorded"\)\): .*not recorded',
        f"expected {count + 1} code cells .* found {count}",
    ]


def never_executed(chapter: Chapter) -> list[str]:
    for cell in chapter.cells:
        cell["execution_count"] = None
    chapter.save()
    count = len(chapter.cells)
    return [rf"{NAME}: code cell {n} \(.*expected an execution_count, found none" for n in (1, count)]


def cell_raises(chapter: Chapter) -> list[str]:
    number, cell, _ = chapter.printing_cell()
    source = "".join(cell["source"])
    cell["source"] = f'{source}\nraise RuntimeError("planted")'
    chapter.edit(source, cell["source"])
    chapter.save()
    return [rf"{NAME}: code cell {number} \(", "expected no error", "got      RuntimeError: planted"]


def listed_nowhere(chapter: Chapter) -> list[str]:
    (chapter.folder / "book" / "99_forgotten.md").write_text("# Forgotten\n", encoding="utf-8")
    return [r"book/99_forgotten\.md: .*_toc\.yml does not list it"]


def output_removed(chapter: Chapter) -> list[str]:
    number, cell, _ = chapter.printing_cell()
    cell["outputs"] = []
    chapter.save()
    return [rf"{NAME}: code cell {number} \(.*calls \w+\(\), but no output is recorded"]


def all_ignored(chapter: Chapter) -> list[str]:
    text = chapter.source.read_text(encoding="utf-8")
    plain = re.sub(r"^:tags: .*\n", "", text, flags=re.MULTILINE)
    tagged = plain.replace(
        "```{code-cell} ipython3\n", "```{code-cell} ipython3\n:tags: [nbval-ignore-output]\n"
    )
    chapter.source.write_text(tagged, encoding="utf-8")
    for cell in chapter.cells:
        cell["metadata"]["tags"] = ["nbval-ignore-output"]
    chapter.save()
    return [rf"{NAME}: no cell has an output that will be compared"]


def run_removed(chapter: Chapter) -> list[str]:
    chapter.recorded.unlink()
    return [rf"{NAME}: has no recorded run; run `make record CHAPTER={NAME}`"]


FAULTS = [
    recorded_digit,
    prose_digit,
    eps,
    denominator,
    cell_added,
    never_executed,
    cell_raises,
    listed_nowhere,
    output_removed,
    all_ignored,
    run_removed,
]


def test_untouched_copy_passes_and_is_then_unchanged(untouched: tuple[Path, str]) -> None:
    folder, output = untouched
    assert output.startswith("exit code 0\n"), output
    assert re.search(rf"{NAME}: \d+ cells ran in .* outputs agree", output), output
    assert (folder / "_build" / "html" / "book" / "03_layernorm.html").is_file()
    make(folder, "book")  # the first run brought files up to date; earlier steps had looked at older ones
    again = make(folder, "book")
    assert again.returncode == 0
    assert again.stdout.count(": unchanged") == len(book.STEPS), again.stdout
    assert "ran in" not in again.stdout


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_fault_stops_the_book(copy: Path, plant: Callable[[Chapter], list[str]]) -> None:
    patterns = plant(Chapter(copy))
    done = make(copy, "book")
    output = done.stdout + done.stderr
    assert done.returncode != 0, output
    missing = [pattern for pattern in patterns if not re.search(pattern, output)]
    assert not missing, f"not found: {missing}\nin:\n{output}"
    assert "Traceback" not in output
    assert not (copy / "_build" / "html").exists(), "a site was built from a course that has a fault"


def test_edit_of_the_prose_executes_nothing(copy: Path) -> None:
    chapter = Chapter(copy)
    with chapter.source.open("a", encoding="utf-8") as file:
        file.write("\nOne more sentence.\n")
    stale = make(copy, "book", CI="true")
    assert stale.returncode != 0
    assert "book/03_layernorm.ipynb" in stale.stdout + stale.stderr
    assert chapter.recorded.read_text(encoding="utf-8").count("One more sentence.") == 0
    done = make(copy, "book")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran in" not in done.stdout
    assert chapter.recorded.read_text(encoding="utf-8").count("One more sentence.") == 1
    assert "One more sentence." in (copy / "_build/html/book/03_layernorm.html").read_text(encoding="utf-8")
