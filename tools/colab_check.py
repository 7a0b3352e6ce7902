"""Run all exercises and solutions as Colab would: its versions, an empty folder, the package from a wheel.

`make colab-check` builds the wheel and an environment in `_build/colab` (1 GB; kept for the next time).
Each notebook is put alone with the wheel into a new folder and executed there; its first cell installs the
package. An exercise must say "not done yet" at each check, a solution must pass, and numpy, torch,
matplotlib, IPython, ipykernel and ipywidgets must be what they were.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from tools import course, exercises
from tools.gate import text_of

ENVIRONMENT = course.BUILD / "colab"
PYTHON = ENVIRONMENT / "bin" / "python"
PINS = (
    "numpy==2.1.3",
    "matplotlib==3.10.0",
    "ipython==7.34.0",
    "ipykernel==6.17.1",
    "ipywidgets==7.7.1",
)
SECONDS_PER_CELL = 300


def clean() -> dict[str, str]:
    """The environment variables of a new user: nothing of this course or of this process."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | {
        "PATH": f"{PYTHON.parent}:/usr/local/bin:/usr/bin:/bin",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def pip(*arguments: str) -> None:
    # what reaches a package index is the user's own business, so the whole environment is passed on
    subprocess.run([PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def prepare() -> None:
    """The environment with Colab's versions and the torch of requirements.txt."""
    lines = (course.ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [*PINS, *(line for line in lines if line.startswith("torch=="))]
    stamp, wanted = ENVIRONMENT / "pins.txt", "\n".join(pins)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"colab-check: a new environment in {course.short(ENVIRONMENT)}, about 1 GB", flush=True)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        venv.create(ENVIRONMENT, with_pip=True)
        pip("install", "--quiet", *pins)
        stamp.write_text(wanted, encoding="utf-8")
    kernel = ENVIRONMENT / "kernels" / "colab"
    kernel.mkdir(parents=True, exist_ok=True)
    command = [str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "Colab", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")


def versions() -> str:
    code = "import numpy, torch, ipywidgets, IPython, ipykernel, matplotlib\nfor m in "
    code += "(numpy, torch, ipywidgets, IPython, ipykernel, matplotlib): print(m.__name__, m.__version__)"
    done = subprocess.run(
        [PYTHON, "-c", code], env=clean(), cwd="/", capture_output=True, text=True, check=True
    )
    return ", ".join(done.stdout.splitlines())


def run(notebook: Path, wheel: Path) -> list[Any]:
    """The cells of a notebook after it was run alone in a folder with the wheel."""
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    pip("uninstall", "--quiet", "--yes", "minigpt-course")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (notebook, wheel):
            shutil.copy(path, folder)
        found = nbformat.read(folder / notebook.name, as_version=4)
        for cell in found.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        specs = KernelSpecManager(kernel_dirs=[str(ENVIRONMENT / "kernels")], ensure_native_kernel=False)
        manager = AsyncKernelManager(kernel_name="colab", kernel_spec_manager=specs)
        client = NotebookClient(
            found, km=manager, timeout=SECONDS_PER_CELL, resources={"metadata": {"path": name}}
        )
        client.execute(env=clean(), cleanup_kc=True)
        place = subprocess.run(
            [PYTHON, "-c", "import minigpt; print(minigpt.__file__)"],
            env=clean(),
            cwd=name,
            capture_output=True,
            text=True,
        )
        if not Path(place.stdout.strip()).is_relative_to(ENVIRONMENT):
            raise SystemExit(
                f"{course.short(notebook)}: the first cell did not install the package: {place.stderr}"
            )
        return [cell for cell in found.cells if cell.cell_type == "code"]


def problems(cells: list[Any], solved: bool) -> list[str]:
    """What the checks of a notebook did not say as they should."""
    found = []
    for cell in cells:
        printed = "".join(text_of(output.get("text", "")) for output in cell.outputs)
        if errors := [output for output in cell.outputs if output.output_type == "error"]:
            found.append(f"{cell.source.splitlines()[0]}: {errors[0].ename}: {errors[0].evalue}")
        for line in cell.source.splitlines():
            if line.startswith(("check.progress", "check.report")) and (solved or "report" not in line):
                continue
            if line.startswith("check."):
                wanted = "✓ " if solved else "not done yet"
                if wanted not in printed:
                    found.append(f"{line}: expected {wanted!r}, found {printed.strip()!r}")
    return found


def main() -> None:
    wheels = sorted((course.ROOT / "dist").glob("minigpt_course-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist/: holds {len(wheels)} wheels, expected one; run make wheel")
    prepare()
    pip("uninstall", "--quiet", "--yes", "minigpt-course")
    before = versions()
    print(f"colab-check: {before}", flush=True)
    failed = []
    for solution in exercises.solutions():
        for notebook, solved in ((exercises.exercise(solution), False), (course.twin(solution), True)):
            start = time.monotonic()
            found = problems(run(notebook, wheels[0]), solved)
            failed += [f"{course.short(notebook)}: {problem}" for problem in found]
            word = "solutions pass" if solved else "all tasks not done yet"
            end = f"{time.monotonic() - start:.1f} s"
            print(f"{course.short(notebook)}: {'failed' if found else word}, {end}", flush=True)
    if (after := versions()) != before:
        failed.append(f"the versions are {after} now, and were {before}")
    if failed:
        raise SystemExit("\n".join(failed))
    print("colab-check: numpy, torch, ipywidgets, IPython, ipykernel and matplotlib are what they were")


if __name__ == "__main__":
    main()
