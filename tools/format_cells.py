"""Format the code cells of all pages with ruff, 88 columns wide: a page shows as much without scrolling.

`python -m tools.format_cells` rewrites them; with `--check` it names the cells that it would change, and the
lines that ruff cannot break, and changes nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import course

WIDTH = 88
CELL = re.compile(
    r"^```\{code-cell\}[^\n]*\n(?P<options>(?:---\n.*?\n---\n|(?::[^\n]*\n)+\n)?)(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def formatted(codes: list[str]) -> list[str]:
    """The cells as ruff would write them; one run for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"cell_{number}.py" for number in range(len(codes))]
        for file, code in zip(files, codes, strict=True):
            file.write_text(code, encoding="utf-8")
        ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", f"--line-length={WIDTH}"]
        subprocess.run([*ruff, folder], check=True)
        return [file.read_text(encoding="utf-8") for file in files]


def main(arguments: list[str]) -> None:
    check = "--check" in arguments
    texts = {path: path.read_text(encoding="utf-8") for path in course.chapters()}
    found = [
        (path, match)
        for path, text in texts.items()
        for match in CELL.finditer(text)
        if "setup" not in match["options"]  # its magic command is not Python
    ]
    problems = []
    pieces: dict[Path, list[tuple[int, int, str]]] = {path: [] for path in texts}
    for (path, match), new in zip(found, formatted([match["code"] for _, match in found]), strict=True):
        line = texts[path].count("\n", 0, match.start("code")) + 1
        if new != match["code"]:
            problems.append(f"{course.short(path)}:{line}: the code cell is not formatted")
            pieces[path].append((match.start("code"), match.end("code"), new))
        for offset, row in enumerate((match["code"] if check else new).splitlines()):
            if len(row) > WIDTH:
                problems.append(
                    f"{course.short(path)}:{line + offset}: {len(row)} columns, allowed are {WIDTH}"
                )
    if check:
        if problems:
            raise SystemExit("\n".join([*problems, "run `python -m tools.format_cells`"]))
        return
    for path, changes in pieces.items():
        text = texts[path]
        for start, end, new in reversed(changes):
            text = text[:start] + new + text[end:]
        if text != texts[path]:
            path.write_text(text, encoding="utf-8")
    print("\n".join(problem for problem in problems if "columns" in problem))


if __name__ == "__main__":
    main(sys.argv[1:])
