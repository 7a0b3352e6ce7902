"""A pytest plugin beside nbval: it counts what nbval compared, and says in plain words what differed."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tools import course
from tools.record import WIDGETS, first_line, rename_widgets

PLAN = "COURSE_VALUES_PLAN"  # names a file: {chapter: number of code cells}
REPORT = "COURSE_VALUES_REPORT"  # names the file that is written at the end
LINES = 24  # of a difference that are shown
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def values(outputs: list[Any], skipped: tuple[str, ...]) -> list[list[str]]:
    """For each output the texts that nbval compares, given the keys that it skips."""
    found = []
    for output in outputs:
        if output["output_type"] == "stream":
            found.append([output["text"]])
        elif output["output_type"] == "error":
            found.append([f"{output['ename']}: {output['evalue']}"])
        else:
            data = sorted(output["data"].items())
            found.append([f"{text}" for mime, text in data if mime not in skipped])
    return [texts for texts in found if texts]


def difference(expected: list[list[str]], got: list[list[str]]) -> list[str]:
    """The lines that differ: `expected` before what is recorded, `got` before what came now."""

    def lines(outputs: list[list[str]]) -> list[str]:
        return [line[:200] for texts in outputs for text in texts for line in text.splitlines()]

    marks = {"- ": "expected ", "+ ": "got      "}
    changed = difflib.ndiff(lines(expected), lines(got))
    shown = [marks[line[:2]] + line[2:] for line in changed if line[:2] in marks]
    return shown[:LINES] + ([f"... and {len(shown) - LINES} more lines"] if len(shown) > LINES else [])


class Widgets:
    """The states of the widgets that a kernel makes; nbval reads past them, but the site shows them."""

    def __init__(self, notebook: Any) -> None:
        self.source = notebook.get_kernel_message
        self.states: dict[str, dict[str, Any]] = {}
        notebook.get_kernel_message = self.message

    def message(self, *arguments: Any, **options: Any) -> Any:
        message = self.source(*arguments, **options)
        if message["msg_type"] in ("comm_open", "comm_msg"):
            content = message["content"]
            state = content["data"].get("state", {}) if isinstance(content["data"], dict) else {}
            self.states.setdefault(content["comm_id"], {}).update(state)
        return message

    def problem(self, notebook: Any) -> list[str]:
        """The first state that is not the recorded one; empty if all agree."""
        now = {name: state for name, state in self.states.items() if "_model_name" in state}
        got = json.loads(rename_widgets(json.dumps(now), now, notebook.path.stem))
        recorded = notebook.nb.metadata.get("widgets", {}).get(WIDGETS, {}).get("state", {})
        expected = {name: model["state"] for name, model in recorded.items()}
        if len(got) != len(expected):
            return [f"expected {len(expected)} widgets", f"got      {len(got)} widgets"]
        for name, state in expected.items():
            for key in sorted({*state, *got.get(name, {})}):
                old, new = state.get(key), got.get(name, {}).get(key)
                if old != new:
                    lines = difference([[f"{old}"]], [[f"{new}"]])
                    return [f"{key} of the widget {state['_model_name']}", *lines]
        return []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, Any]:
    compare = item.compare_outputs

    def compare_and_count(test: Any, ref: Any, skip_compare: Any = None) -> bool:
        same: bool = compare(test, ref, skip_compare)
        skipped = skip_compare or item.parent.skip_compare
        expected, got = values(ref, skipped), values(test, skipped)
        item.user_properties.append(("compared", len(expected) if same else 0))
        if not same:
            lines = difference(expected, got) or ["the kinds of the outputs differ"]
            item.user_properties.append(("problem", lines))
        return same

    item.compare_outputs = compare_and_count
    if item.cell_num == 0:
        item.parent.course_widgets = Widgets(item.parent)
    item.user_properties.append(("line", first_line(item.cell.source)))
    try:
        result = yield
        last = sum(cell.cell_type == "code" for cell in item.parent.nb.cells) - 1
        if item.cell_num == last and (lines := item.parent.course_widgets.problem(item.parent)):
            item.user_properties.append(("problem", lines))
            raise AssertionError("the recorded widgets differ")
        return result
    except Exception as error:
        if not any(name == "problem" for name, _ in item.user_properties):
            trace = ANSI.sub("", getattr(error, "inner_traceback", None) or "").strip().splitlines()
            lines = ["expected no error", f"got      {trace[-1]}" if trace else f"got      {error}"]
            item.user_properties.append(("problem", lines))
        raise


class Collector:
    """In the process that the user started: progress while it runs, and the report for `tools.values`."""

    def __init__(self) -> None:
        self.plan: dict[str, int] = json.loads(Path(os.environ[PLAN]).read_text(encoding="utf-8"))
        self.cells: dict[str, list[dict[str, Any]]] = {chapter: [] for chapter in self.plan}
        self.errors: list[str] = []

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.errors.append(report.longreprtext)

    def pytest_runtest_logreport(self, report: Any) -> None:
        chapter = Path(report.nodeid.split("::")[0]).with_suffix(".md").as_posix()
        number = int(report.nodeid.rsplit(" ", 1)[1]) + 1
        if report.when != "call":
            if report.failed:
                self.errors.append(f"{chapter}: code cell {number}: {report.longreprtext}")
            return
        properties = dict(report.user_properties)
        cells = self.cells[chapter]
        cells.append(
            {
                "number": number,
                "line": properties.get("line", ""),
                "outcome": report.outcome,
                "compared": properties.get("compared", 0),
                "problem": properties.get("problem", []),
                "seconds": report.duration,
            }
        )
        if len(cells) == self.plan[chapter]:
            failed = sum(cell["outcome"] != "passed" for cell in cells)
            outputs = sum(cell["compared"] for cell in cells)
            seconds = sum(cell["seconds"] for cell in cells)
            result = f"{failed} FAILED" if failed else f"{outputs} outputs agree"
            print(f"{chapter}: {len(cells)} cells ran in {seconds:.1f} s, {result}", flush=True)

    def pytest_sessionfinish(self) -> None:
        report = {"chapters": self.cells, "errors": self.errors}
        Path(os.environ[REPORT]).write_text(json.dumps(report), encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in the processes that pytest-xdist starts
        os.chdir(course.ROOT)
        config.pluginmanager.unregister(name="terminalreporter")  # this plugin and `tools.values` report
        config.pluginmanager.register(Collector(), "course-values")
