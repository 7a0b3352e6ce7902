"""The exercise notebooks: made from the solutions, with stubs that ask and solutions that pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from small_course import HEADER, small_course

from minigpt import check
from minigpt.tasks import NOTEBOOKS, TASKS
from tools import course, exercises, myst, setup_cell, twin
from tools.labels import Book

torch.set_num_threads(1)
SOLUTIONS = exercises.solutions()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def code(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def run(cells: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Execute cells in one namespace, without set-up and measurements, and return what they print."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, source in enumerate(cells):
        if source != setup_cell.source() and "check.report(" not in source:
            exec(compile(source, f"cell {number}", "exec"), names)
    return capsys.readouterr().out


def test_there_are_solutions() -> None:
    assert SOLUTIONS and {path.stem for path in SOLUTIONS} <= set(NOTEBOOKS)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_what_its_solution_makes_of_it(self, path: Path) -> None:
        made = twin.text_of(exercises.notebook(path))
        assert exercises.exercise(path).read_text(encoding="utf-8") == made

    def test_has_no_outputs_and_fixed_ids(self, path: Path) -> None:
        notebook = nbformat.read(exercises.exercise(path), as_version=4)
        nbformat.validate(notebook)
        assert [cell["id"] for cell in notebook.cells] == [
            f"cell-{i:03d}" for i in range(len(notebook.cells))
        ]
        for cell in notebook.cells:
            if cell.cell_type == "code":
                assert not cell.outputs and cell.execution_count is None
                assert "solution" not in cell.source and max(map(len, cell.source.splitlines())) <= 95
            else:
                assert not twin.leftovers(cell.source)

    def test_begins_with_what_to_do_and_the_set_up(self, path: Path) -> None:
        notebook = nbformat.read(exercises.exercise(path), as_version=4)
        assert notebook.cells[0].source.startswith("# Exercises: ")
        assert "Save a copy in Drive" in notebook.cells[1].source
        assert notebook.cells[2].source == setup_cell.source()

    def test_tasks_are_those_of_the_list(self, path: Path) -> None:
        wanted = [task.name for task in TASKS.values() if task.notebook == path.stem]
        notebook = exercises.notebook(path)
        stubs = [source for source in code(notebook) if "raise NotImplementedError(" in source]
        found = [name for source in stubs for name in re.findall(r"check\.(\w+)\(\w+\)", source)]
        assert found == wanted
        assert any("check.report(" in source for source in stubs), "the task for a GPU is missing"
        assert code(notebook)[-1] == "check.progress()"

    def test_every_task_has_hints_minutes_and_loops(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        parts = re.split(r"^## Task (\d+)\. ", text.split("\n## On a GPU")[0], flags=re.MULTILINE)[1:]
        assert [int(number) for number in parts[::2]] == list(range(1, len(parts) // 2 + 1))
        for body in parts[1::2]:
            assert re.search(r"^\*\d+ minutes, (easy|medium|hard)\.\*", body, re.MULTILINE), body[:80]
            hints = re.findall(r"^:::\{dropdown\} (Hint \d)$", body, re.MULTILINE)
            assert hints == ["Hint 1", "Hint 2", "Hint 3"], body[:80]
            (name,) = re.findall(r"^check\.(\w+)\(", body, re.MULTILINE)
            assert f"def {name}_in_loops(" in body, f"{name}: no specification in loops"

    def test_stubs_say_that_they_are_not_done(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = run(code(exercises.notebook(path)), capsys)
        tasks = [task.name for task in TASKS.values() if task.notebook == path.stem]
        assert [line.split(":")[0] for line in out.splitlines() if ": not done yet. " in line] == [
            f"· {name}" for name in tasks
        ]
        assert f"{path.stem}: 0 of {len(tasks)} tasks done" in out

    def test_solutions_pass(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = run(code(twin.plain_notebook(path)), capsys)
        tasks = [task.name for task in TASKS.values() if task.notebook == path.stem]
        assert f"{path.stem}: {len(tasks)} of {len(tasks)} tasks done" in out
        for name in tasks:
            assert f"✓ {name}: right on" in out


def test_solutions_of_layer_norm_pass_in_torch_too() -> None:
    names: dict[str, Any] = {}
    (path,) = [path for path in SOLUTIONS if path.stem == "03_layernorm"]
    cells = code(twin.plain_notebook(path))
    exec("import math, numpy as np, torch\nfrom minigpt import check", names)
    for source in cells:
        if source.startswith("def "):
            exec(source.split("\n\n\ncheck.")[0], names)
    for name in ("row_statistics", "normalise", "layer_norm", "layer_norm_optional"):
        assert check.judge(name, names[name], device="cpu").status == "passed"
    assert isinstance(names["normalise"](np.array([1.0, 3.0]), 0.1), np.ndarray)


# ---------------------------------------------------------------- marks

SETUP = "```{code-cell} ipython3\nx = 1\n```\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with small_course(tmp_path / "course", {"book/index": "# Book\n"}) as root:
        (root / "solutions").mkdir()
        yield root / "solutions"


def source(folder: Path, body: str, title: str = "# Solutions: A thing") -> Path:
    path = folder / "01_thing.md"
    path.write_text(f"{HEADER}\n{title}\n\n{SETUP}\n{body}\n", encoding="utf-8")
    return path


def cell(*lines: str) -> str:
    return "\n".join(["```{code-cell} ipython3", *lines, "```"])


GOOD = cell(
    "def f(x):",
    '    """Doc."""',
    "    # --- solution: do it ---",
    "    return x",
    "    # --- end solution ---",
    "",
    "",
    "f",
)


def test_a_solution_is_cut_out(folder: Path) -> None:
    only = cell("# --- solution ---", "print(f(3))", "# --- end solution ---")
    part = cell("a = 1", "# --- solution ---", "b = 2", "# --- end solution ---", "c = 3")
    said = "Before.\n\n% --- solution ---\nWhy it is so.\n% --- end solution ---\n\nAfter."
    path = source(folder, "\n\n".join([GOOD, said, only, part]))
    notebook = exercises.notebook(path, Book())
    assert code(notebook) == [
        "x = 1",
        'def f(x):\n    """Doc."""\n    raise NotImplementedError("do it")\n\n\nf',
        "a = 1\n\n\nc = 3",
    ]
    texts = "\n".join(each.source for each in notebook.cells if each.cell_type == "markdown")
    assert texts.startswith("# Exercises: A thing") and "Why it is so" not in texts
    assert "Before." in texts and "After." in texts
    assert "Why it is so" in "\n".join(each.source for each in twin.plain_notebook(path, Book()).cells)


WRONG = {
    "unknown": (("    # --- solutoin ---", "    pass"), 4, "the unknown mark '# --- solutoin ---'"),
    "spelling": (("    # -- solution --", "    pass"), 4, "the unknown mark '# -- solution --'"),
    "empty words": (("    # --- solution: ---", "    pass"), 4, "the unknown mark"),
    "not closed": (("    # --- solution: do it ---", "    pass"), 4, "this solution has no end in its cell"),
    "not opened": (("    pass", "    # --- end solution ---"), 5, "a solution ends here, but none has begun"),
    "nested": (
        ("    # --- solution: a ---", "    # --- solution: b ---", "    # --- end solution ---"),
        5,
        "a solution begins inside the one of line",
    ),
    "sign": (("    % --- solution ---", "    pass"), 4, "expected # at its beginning here"),
    "long": (("    # --- solution: " + "very " * 20 + "long ---", "    pass"), 4, "columns, allowed are 88"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_marks_stop_with_file_and_line(kind: str, folder: Path) -> None:
    lines, offset, words = WRONG[kind]
    path = source(folder, cell("def f(x):", '    """Doc."""', "    y = x", *lines))
    first = path.read_text(encoding="utf-8").split("\n").index("def f(x):") + 1
    with pytest.raises(myst.SourceError) as caught:
        exercises.notebook(path, Book())
    assert str(caught.value).startswith(f"solutions/01_thing.md:{first + offset - 1}: "), str(caught.value)
    assert words in str(caught.value)


def test_a_mark_in_the_text_must_end_in_its_cell(folder: Path) -> None:
    path = source(folder, f"Text.\n\n% --- solution ---\nWhy.\n\n{GOOD}\n\n% --- end solution ---\n")
    with pytest.raises(myst.SourceError, match="this solution has no end in its cell"):
        exercises.notebook(path, Book())


def test_what_is_no_exercise(folder: Path) -> None:
    with pytest.raises(myst.SourceError, match="must begin with the title"):
        exercises.notebook(source(folder, GOOD, "# Another title"), Book())
    with pytest.raises(myst.SourceError, match="nothing is left to do"):
        exercises.notebook(source(folder, "Text."), Book())
    cut = cell("if True:", "    # --- solution ---", "    y = 1", "    # --- end solution ---")
    with pytest.raises(myst.SourceError, match="is no Python once it is cut"):
        exercises.notebook(source(folder, f"{GOOD}\n\n{cut}"), Book())


def test_stale_notebooks_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(folder, GOOD)
    target = folder.parent / "exercises"
    target.mkdir()
    monkeypatch.setattr(exercises, "FOLDER", target)
    assert exercises.stale([path]) == ["exercises/01_thing.ipynb: is missing; make exercises writes it"]
    exercises.main([str(path)])
    assert exercises.stale([path]) == []
    written = (target / "01_thing.ipynb").read_bytes()
    exercises.main([str(path)])
    assert (target / "01_thing.ipynb").read_bytes() == written
    source(folder, GOOD + "\n\nMore.")
    assert "is not what 01_thing.md makes of it" in exercises.stale([path])[0]
    with pytest.raises(SystemExit, match="01_thing"):
        exercises.main([str(path), "--check"])
    (target / "02_gone.ipynb").write_text("{}", encoding="utf-8")
    assert "exercises/02_gone.ipynb: no solution makes it" in exercises.stale([path])


def test_course_lists_every_exercise() -> None:
    listed = {course.short(path) for path in course.pages()}
    assert {course.short(exercises.exercise(path)) for path in SOLUTIONS} <= listed
