"""Recording: the same bytes each time, and a cell that raises leaves the old record alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import copy_course

from tools import record, setup_cell

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  language: python
  name: python3
  display_name: Python 3
---

# A sample
"""

CELLS = """\
import sys
print("one", flush=True)
print("two")
sys.stdout.flush()
print("three")
---
import ipywidgets
slider = ipywidgets.IntSlider(3)
stack = ipywidgets.Stack([ipywidgets.HTML("<b>1</b>"), ipywidgets.HTML("<b>2</b>")], selected_index=0)
ipywidgets.VBox([slider, stack])
---
import matplotlib.pyplot as plt
from minigpt.show import figure_style
figure_style()
fig, ax = plt.subplots()
ax.plot([1.0, 4.0, 9.0], label="squares")
ax.fill_between([0, 1, 2], [0, 1, 2], hatch="//")
_ = ax.legend()
---
print({"a", "b", "c", "d", "e", "f"})
"""


def sample(folder: Path) -> Path:
    """A copy of the course with one chapter, whose cells are CELLS."""
    course = copy_course(folder)
    for path in [*course.glob("book/*.md"), *course.glob("book/*.ipynb")]:
        path.unlink()
    cells = [f"```{{code-cell}} ipython3\n{source.strip()}\n```\n" for source in CELLS.split("---\n")]
    (course / "book/sample.md").write_text("\n".join([HEADER, setup_cell.cell(), *cells]), encoding="utf-8")
    (course / "_toc.yml").write_text("format: jb-book\nroot: book/sample\n", encoding="utf-8")
    return course


def run(course: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = record.environment() | {"PYTHONPATH": str(course), "PYTHONHASHSEED": "random"} | extra
    command = [sys.executable, "-m", "tools.record", *arguments]
    return subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, timeout=300)


def test_recording_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    course = sample(tmp_path / "first")
    recorded = course / "book" / "sample.ipynb"
    done = run(course)
    assert done.returncode == 0, done.stderr
    first = recorded.read_bytes()
    recorded.unlink()
    # settings of a user that change figures, the order of sets and the place of caches
    done = run(course, MPLBACKEND="agg", SOURCE_DATE_EPOCH="1000000", MATPLOTLIBRC="/dev/null")
    assert done.returncode == 0, done.stderr
    assert recorded.read_bytes() == first

    cells = [cell for cell in json.loads(first)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3, 4, 5]
    assert ["".join(output["text"]) for output in cells[1]["outputs"]] == ["one\ntwo\nthree\n"]
    view = cells[2]["outputs"][0]["data"]["application/vnd.jupyter.widget-view+json"]
    state = json.loads(first)["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    children = state[view["model_id"]]["state"]["children"]
    assert all(child.removeprefix("IPY_MODEL_") in state for child in children)
    assert "image/svg+xml" in cells[3]["outputs"][-1]["data"]


def test_recording_again_says_that_nothing_changed(tmp_path: Path) -> None:
    course = sample(tmp_path / "course")
    assert "recorded" in run(course).stdout
    before = (course / "book/sample.ipynb").stat().st_mtime_ns
    assert "the same as before" in run(course).stdout
    assert (course / "book/sample.ipynb").stat().st_mtime_ns == before


def test_cell_that_raises_is_named_and_leaves_the_old_record(tmp_path: Path) -> None:
    course = sample(tmp_path / "course")
    (course / "book/sample.ipynb").write_text("the old record", encoding="utf-8")
    with (course / "book/sample.md").open("a", encoding="utf-8") as file:
        file.write("\n```{code-cell} ipython3\n# a comment\nx = 1\nx / 0\n```\n")
    done = run(course)
    assert done.returncode != 0
    assert "book/sample.md: code cell 6 raised" in done.stderr
    assert "\n    x = 1\n" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert (course / "book/sample.ipynb").read_text(encoding="utf-8") == "the old record"


def test_unknown_chapter_is_refused(tmp_path: Path) -> None:
    course = sample(tmp_path / "course")
    done = run(course, "book/none.md")
    assert done.returncode != 0
    assert "CHAPTER=book/none.md" in done.stderr and "book/sample.md" in done.stderr


@pytest.mark.parametrize(
    ("source", "line"), [("# note\n\nx = 1\n", "x = 1"), ("# note", "# note"), ("", "(empty)")]
)
def test_first_line(source: str, line: str) -> None:
    assert record.first_line(source) == line
