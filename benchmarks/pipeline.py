"""`make bench`: seconds of each step of `make book`, and of each chapter, on a copy of the course.

Three states are measured: cold (nothing stamped, no site), unchanged, and after an edit of prose alone. Each
is run several times; the table has the median and, after it, the smallest and the largest value.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import course, stamp
from tools.book import STEPS

RUNS = 3
Sample = dict[str, float]


def copy_course(target: Path) -> None:
    for path in stamp.tree():
        copy = target / path.relative_to(course.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (target / "vendor").symlink_to(course.ROOT / "vendor")


def book(folder: Path) -> Sample:
    """Run `make book` in a copy and return the seconds of its steps, its chapters and the whole."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "MAKEFLAGS", "MAKELEVEL")}
    start = time.perf_counter()
    command = ["make", f"VENV={sys.prefix}", "book"]
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)
    whole = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"make book failed in a copy of the course:\n{done.stdout}{done.stderr}")
    seconds: Sample = json.loads((folder / "_build/timings.json").read_text(encoding="utf-8"))
    if "ran in" in done.stdout:
        seconds |= json.loads((folder / "_build/chapters.json").read_text(encoding="utf-8"))
    return seconds | {"make book": whole}


def cell(samples: list[Sample], name: str) -> str:
    values = [sample[name] for sample in samples if name in sample]
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    samples: dict[str, list[Sample]] = {"cold": [], "unchanged": [], "prose edited": []}
    chapter = course.chapters()[0].relative_to(course.ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_course(folder)
        for number in range(RUNS):
            print(f"run {number + 1} of {RUNS}", file=sys.stderr, flush=True)
            shutil.rmtree(folder / "_build", ignore_errors=True)
            samples["cold"].append(book(folder))
            samples["unchanged"].append(book(folder))
            with (folder / chapter).open("a", encoding="utf-8") as file:
                file.write("\nOne more sentence.\n")
            samples["prose edited"].append(book(folder))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"seconds, median (smallest to largest) of {RUNS} runs; {machine}")
    chapters = [course.short(path) for path in course.chapters()]
    print(f"{'':<28}" + "".join(f"{state:<26}" for state in samples))
    for row in [*STEPS, "make book", *chapters]:
        print(f"{row:<28}" + "".join(f"{cell(runs, row):<26}" for runs in samples.values()))
    print("A chapter's seconds are those of its cells; starting its kernel is in the step values.")


if __name__ == "__main__":
    main()
