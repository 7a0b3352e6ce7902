"""Execute chapters and write their recorded runs, the same bytes for the same results.

`python -m tools.record [--fresh] [chapter.md ...]`, all chapters by default. A cell that raises stops
everything, and the old recorded run stays. Outputs that are not compared (times, device names) differ on
every run, so the recorded ones are kept as long as their cell is the same; `--fresh` takes new ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools import course, myst, stamp, twin

SECONDS_PER_CELL = 600
WIDGETS = "application/vnd.jupyter.widget-state+json"


def environment() -> dict[str, str]:
    """The environment in which cells run, here and when they are compared; no setting of a user counts."""
    profile = course.BUILD / "ipython"
    profile.mkdir(parents=True, exist_ok=True)
    found = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return found | {
        "PYTHONPATH": str(course.ROOT),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",  # the order of a sum depends on the number of threads
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MATPLOTLIBRC": str(course.ROOT / "tools" / "matplotlibrc"),
        "SOURCE_DATE_EPOCH": "0",  # the date inside an SVG
        "IPYTHONDIR": str(profile),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
    }


def first_line(source: str) -> str:
    """The first line of a cell that is code, as messages name the cell."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("#")), lines[0] if lines else "(empty)")


def merge_streams(outputs: list[Any]) -> list[Any]:
    """Neighbouring pieces of one stream as one output: how often a kernel flushes is chance."""
    merged: list[Any] = []
    for output in outputs:
        if merged and output["output_type"] == "stream" and merged[-1].get("name") == output["name"]:
            merged[-1]["text"] += output["text"]
        else:
            merged.append(output)
    return merged


def rename_widgets(text: str, state: dict[str, Any], stem: str) -> str:
    """Names by order of creation in place of the random names of widget models."""
    for number, name in enumerate(state):
        text = text.replace(name, hashlib.md5(f"{stem}-{number}".encode(), usedforsecurity=False).hexdigest())
    return text


def run(chapter: Path) -> Any:
    """The notebook of a chapter with its outputs."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager  # type: ignore[import-untyped]

    notebook = twin.plain_notebook(chapter)
    metadata = json.loads(json.dumps(notebook.metadata))
    code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    at = 0

    def starts(cell: Any, cell_index: int) -> None:
        nonlocal at
        at = cell_index

    # the kernel of this environment, whatever kernels the user has installed: the one that nbval starts
    manager = AsyncKernelManager(
        kernel_name=CURRENT_ENV_KERNEL_NAME, kernel_spec_manager=NbvalKernelspecManager()
    )
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=SECONDS_PER_CELL,
        record_timing=False,
        resources={"metadata": {"path": str(chapter.parent)}},
        on_cell_start=starts,
    )
    try:
        client.execute(env=environment(), stderr=subprocess.DEVNULL, cleanup_kc=True)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        cell = f"{course.short(chapter)}: code cell {code.index(at) + 1 if at in code else '?'}"
        if isinstance(error, CellExecutionError):
            what = f"{error.ename}: {error.evalue}"
        else:
            what = str(error).splitlines()[0]
        what = re.sub(r"\x1b\[[0-9;]*m", "", what).strip()
        line = first_line(notebook.cells[at].source)
        raise SystemExit(f"{cell} raised while it was recorded\n    {line}\n    {what}") from None
    state = notebook.metadata.get("widgets")
    notebook.metadata.clear()  # the kernel added its version
    notebook.metadata.update(metadata | ({"widgets": state} if state and state[WIDGETS]["state"] else {}))
    for index in code:
        notebook.cells[index].outputs = merge_streams(notebook.cells[index].outputs)
    return notebook


def keep_uncompared(notebook: Any, old: Path) -> None:
    """Keep the recorded output of each unchanged cell that is not compared: it would differ on every run."""
    import nbformat

    from tools.gate import IGNORE

    if not old.is_file():
        return
    before = {
        cell.source: cell for cell in nbformat.read(old, as_version=4).cells if cell.cell_type == "code"
    }
    for cell in notebook.cells:
        same = before.get(cell.source)
        if same and same.outputs and IGNORE in cell.metadata.get("tags", []):
            cell.outputs = same.outputs


def record(chapter: Path, fresh: bool) -> bool:
    """Write the recorded run of a chapter; return whether it changed."""
    import nbformat

    notebook = run(chapter)
    if not fresh:
        keep_uncompared(notebook, course.twin(chapter))
    state = notebook.metadata.get("widgets", {}).get(WIDGETS, {}).get("state", {})
    renamed = nbformat.reads(rename_widgets(json.dumps(notebook), state, chapter.stem), as_version=4)
    return stamp.write(course.twin(chapter), twin.text_of(renamed).encode())


def main(arguments: list[str]) -> None:
    known = {path.resolve(): path for path in course.chapters()}
    chapters = []
    fresh = "--fresh" in arguments
    for name in (argument for argument in arguments if argument != "--fresh"):
        path = Path(name).resolve()
        if path not in known:
            allowed = ", ".join(course.short(chapter) for chapter in known.values())
            raise SystemExit(f"CHAPTER={name}: not a chapter of _toc.yml; allowed are {allowed}")
        chapters.append(known[path])
    chapters = chapters or list(known.values())
    for number, chapter in enumerate(chapters, 1):
        print(f"[{number}/{len(chapters)}] {course.short(chapter)} ...", end=" ", flush=True)
        start = time.perf_counter()
        try:
            changed = record(chapter, fresh)
        except myst.SourceError as error:
            raise SystemExit(f"\n{error}") from None
        seconds = time.perf_counter() - start
        print(f"{seconds:.1f} s, {'recorded' if changed else 'the same as before'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
