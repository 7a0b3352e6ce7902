"""The first code cell of every chapter and exercise, with the address of the repository filled in.

`python -m tools.setup_cell [chapter.md ...]` writes it into each chapter; the gate compares. It works in a
clone, in Colab, and in a plain folder that holds the notebook and the package's wheel.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools import course

TAGS = ("setup", "hide-input", "nbval-ignore-output")

TEXT = """\
# In Colab, first choose File > Save a copy in Drive: changes here are not kept.
import importlib.util, pathlib, sys

if importlib.util.find_spec("minigpt") is None:
    if pathlib.Path("../minigpt/__init__.py").is_file():  # in a clone of the course
        sys.path.insert(0, "..")
    else:  # a wheel beside the notebook, or the repository; numpy and torch stay
        wheels = pathlib.Path().glob("minigpt_course-*.whl")
        source = next(wheels, "git+{address}@{branch}")
        %pip install --quiet --no-deps "{{source}}"

from minigpt import device

print(device.describe())  # differs from machine to machine, so it is not compared"""


def source() -> str:
    """The text of the cell."""
    address, branch = course.repository()
    return TEXT.format(address=address, branch=branch)


def cell() -> str:
    """The cell as it stands in a chapter's .md file."""
    return f"```{{code-cell}} ipython3\n:tags: [{', '.join(TAGS)}]\n\n{source()}\n```\n"


def main() -> None:
    pattern = re.compile(r"^```\{code-cell\}[^\n]*\n:tags: \[setup,.*?^```\n", re.MULTILINE | re.DOTALL)
    for chapter in [Path(name).resolve() for name in sys.argv[1:]] or course.chapters():
        old = chapter.read_text(encoding="utf-8")
        new, count = pattern.subn(lambda _: cell(), old, count=1)
        if count == 0:
            raise SystemExit(f"{course.short(chapter)}: has no code cell with the tag 'setup'")
        if new != old:
            chapter.write_text(new, encoding="utf-8")
            print(f"{course.short(chapter)}: setup cell written")


if __name__ == "__main__":
    main()
