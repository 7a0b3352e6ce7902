"""The one execution of `make book`: run each chapter and compare every recorded output, with nbval.

A chapter is run only if something that its values depend on has changed since it last passed. On a difference
this names chapter, cell, what was expected and what came.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tools import course, gate, record, stamp
from tools.values_plugin import PLAN, REPORT

WORKERS = 2
TOOLS = ("course.py", "gate.py", "matplotlibrc", "record.py", "stamp.py", "values.py", "values_plugin.py")


def depends(chapter: Path) -> str:
    """The digest of all that the values of a chapter depend on; its prose is not among it."""
    files = [*(course.ROOT / "minigpt").rglob("*.py"), *(course.ROOT / "tools" / name for name in TOOLS)]
    files.append(course.ROOT / "requirements.txt")
    for folder in course.FOLDERS:  # data that a cell may read
        data = (course.ROOT / folder).rglob("*")
        files += [path for path in data if path.is_file() and path.suffix not in (".md", ".ipynb")]
    twin = course.twin(chapter)
    recorded = json.dumps([gate.code_cells(twin), gate.widgets(twin)], sort_keys=True)
    return stamp.digest(files, course.short(chapter), recorded)


def lacking(chapter: Path) -> list[str]:
    """The packages that a chapter's header lists under `needs` and that are not installed."""
    header = chapter.read_text(encoding="utf-8").split("---\n", 2)[1]
    needs = yaml.safe_load(header).get("needs", [])
    return [package for package in needs if importlib.util.find_spec(package) is None]


def name(chapter: Path) -> str:
    return "values-" + course.short(chapter).replace("/", "-")


def run(chapters: list[Path]) -> dict[str, Any]:
    """Run pytest with nbval on the recorded runs of these chapters, and return the report of the plugin."""
    with tempfile.TemporaryDirectory() as folder:
        plan, report = Path(folder) / "plan.json", Path(folder) / "report.json"
        counts = {course.short(chapter): len(gate.code_cells(course.twin(chapter))) for chapter in chapters}
        plan.write_text(json.dumps(counts), encoding="utf-8")
        command = [sys.executable, "-m", "pytest"]
        command += [course.short(course.twin(chapter)) for chapter in chapters]
        command += ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={record.SECONDS_PER_CELL}"]
        command += ["-c", str(course.ROOT / "pyproject.toml"), f"--rootdir={course.ROOT}", "-o", "addopts="]
        command += ["--noconftest", "-p", "tools.values_plugin", "-q", "--color=no"]
        for plugin in ("cacheprovider", "hypothesispytest"):
            command += ["-p", f"no:{plugin}"]
        if len(chapters) > 1:
            command += ["-n", str(min(WORKERS, len(chapters))), "--dist", "loadfile"]
        else:
            command += ["-p", "no:xdist"]
        environment = record.environment() | {PLAN: str(plan), REPORT: str(report)}
        environment = {key: value for key, value in environment.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(command, cwd=course.ROOT, env=environment)
        if not report.is_file():
            raise SystemExit(f"pytest --nbval ended with exit code {done.returncode} and without a report")
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found | {"code": done.returncode}


def problems(chapter: Path, cells: list[dict[str, Any]]) -> list[str]:
    """What the run of a chapter showed to be wrong, ready to be printed."""
    short = course.short(chapter)
    recorded = gate.code_cells(course.twin(chapter))
    found = []
    for cell in sorted(cells, key=lambda cell: int(cell["number"])):
        if cell["outcome"] != "passed":
            lines = "\n".join(f"    {line}" for line in cell["problem"]) or f"    {cell['outcome']}"
            found.append(f"{short}: code cell {cell['number']} ({cell['line']})\n{lines}")
    if len(cells) != len(recorded):
        found.append(f"{short}: expected {len(recorded)} cells to run, found that {len(cells)} did")
    if not found:  # nothing differs: then as much was compared as the gate promised
        promised = [gate.compared(cell) for cell in recorded]
        compared = {cell["number"]: cell["compared"] for cell in cells}
        for number, count in enumerate(promised, 1):
            if compared[number] != count:
                what = f"expected {count} outputs to be compared, found {compared[number]}"
                found.append(f"{short}: code cell {number}: {what}")
        if not sum(promised):
            found.append(f"{short}: no output was compared")
    return found


def main() -> None:
    skipped = {chapter: packages for chapter in course.chapters() if (packages := lacking(chapter))}
    for chapter, packages in skipped.items():  # the page shows its recorded run
        print(f"{course.short(chapter)}: SKIPPED, nothing compared: not installed: {', '.join(packages)}")
    chapters = [chapter for chapter in course.chapters() if chapter not in skipped]
    keys = {chapter: depends(chapter) for chapter in chapters}
    waiting = [chapter for chapter in chapters if not stamp.passed(name(chapter), keys[chapter])]
    if unchanged := len(chapters) - len(waiting):
        print(
            f"{unchanged} of {len(chapters)} chapters: nothing they depend on has changed since they passed"
        )
    if not waiting:
        return
    print(f"running {', '.join(course.short(chapter) for chapter in waiting)}", flush=True)
    report = run(waiting)
    seconds: dict[str, float] = {}
    failed: list[str] = list(report["errors"])
    for chapter in waiting:
        cells = report["chapters"].get(course.short(chapter), [])
        found = problems(chapter, cells)
        if found:
            change = f"make record CHAPTER={course.short(chapter)}"
            failed += [*found, f"{course.short(chapter)}: if this change is meant, run `{change}`"]
        elif not report["errors"] and depends(chapter) == keys[chapter]:
            stamp.set_passed(name(chapter), keys[chapter])
            seconds[course.short(chapter)] = round(sum(cell["seconds"] for cell in cells), 2)
    path = course.BUILD / "chapters.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    stamp.write(path, json.dumps(known | seconds, indent=1).encode())
    if failed or report["code"]:
        print("\n".join(failed) or f"pytest --nbval ended with exit code {report['code']}", flush=True)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
