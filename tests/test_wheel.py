"""The wheel holds the package and nothing else, and asks for numpy and torch only."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import copy_course

from tools import course


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_course(tmp_path_factory.mktemp("wheel") / "course")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_contents(wheel: Path) -> None:
    assert wheel.name.startswith("minigpt_course-") and wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"minigpt/{path.name}" for path in (course.ROOT / "minigpt").glob("*.py")}
    assert {name for name in names if name.startswith("minigpt/")} == modules | {"minigpt/py.typed"}
    others = {name for name in names if not name.startswith("minigpt/")}
    assert all(".dist-info/" in name for name in others), others
    assert any(name.endswith("/LICENSE") for name in others), others


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Name"] == "minigpt-course"
    assert metadata["Requires-Python"] == ">=3.11"
    assert sorted(metadata.get_all("Requires-Dist", [])) == ["numpy>=2", "torch>=2.5"]


def test_installed_package_runs_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--target",
        target,
    ]
    subprocess.run([*command, wheel], check=True, timeout=300)
    code = "import minigpt.array, minigpt.model, minigpt.device; print(minigpt.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(target)
