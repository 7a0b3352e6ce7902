"""What several tests share: copies of the course in which a test may break things."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tools import course, stamp


def copy_course(target: Path) -> Path:
    """Copy all source files; the browser libraries are shared, since no step changes them."""
    for path in stamp.tree():
        copy = target / path.relative_to(course.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    if (course.ROOT / "vendor").is_dir():
        (target / "vendor").symlink_to(course.ROOT / "vendor")
    return target


def make(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run make in a copy, with the environment of these tests, as a reader's shell would."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "VENV")
        and not name.startswith(("PYTEST_", "COV_"))
    }
    command = ["make", f"VENV={sys.prefix}", *arguments]
    return subprocess.run(command, cwd=folder, env=kept | extra, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> tuple[Path, str]:
    """An untouched copy after `make book`, and what that printed; made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "untouched"
    output = shared.with_suffix(".txt")
    with FileLock(shared.with_suffix(".lock")):
        if not output.is_file():
            done = make(copy_course(shared), "book")
            output.write_text(f"exit code {done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
    return shared, output.read_text(encoding="utf-8")


@pytest.fixture
def copy(untouched: tuple[Path, str], tmp_path: Path) -> Path:
    """A fresh copy in which every step has passed, except that it has no site yet."""
    source, output = untouched
    assert output.startswith("exit code 0\n"), output
    target = copy_course(tmp_path / "course")
    shutil.copytree(source / "_build" / "stamps", target / "_build" / "stamps")
    return target
