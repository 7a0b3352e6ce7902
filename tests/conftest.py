"""What several tests share: copies of the course in which a test may break things."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from tools import course, stamp

KEEP = "03_layernorm.md"  # the chapter in which faults are planted
CODE = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
TAGS = re.compile(r"^:tags: .*$", re.MULTILINE)
EXERCISES = re.compile(r"\[([^\]]*)\]\(\.\./(?:exercises|solutions)/[^)]*\)")


def copy_course(target: Path, source: Path = course.ROOT) -> Path:
    """Copy all source files; the browser libraries are shared, since no step changes them."""
    for path in stamp.tree(source):
        copy = target / path.relative_to(source)
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


def shrink(folder: Path, keep: str) -> Path:
    """Make all chapters but one plain pages that hold only what others link to: a test takes seconds."""
    for path in [
        *folder.glob("exercises/*.ipynb"),
        *folder.glob("solutions/0*"),
        *folder.glob("solutions/1*"),
    ]:
        path.unlink()
    toc = folder / "_toc.yml"
    pages = yaml.safe_load(toc.read_text(encoding="utf-8"))
    for part in pages["parts"]:
        part["chapters"] = [page for page in part["chapters"] if not page["file"].startswith("exercises/")]
    toc.write_text(yaml.safe_dump(pages), encoding="utf-8")
    for path in folder.glob("book/*.md"):
        text = path.read_text(encoding="utf-8")
        if path.name == keep or "jupytext:" not in text[:200]:
            path.write_text(EXERCISES.sub(r"\1", text), encoding="utf-8")
            continue
        linked = re.findall(r"^(?:\([^()\s]+\)=|#{1,6} .+)$", re.sub(CODE, "", text), re.MULTILINE)
        path.write_text("\n\n".join(linked) + "\n", encoding="utf-8")
        path.with_suffix(".ipynb").unlink(missing_ok=True)
    mechanisms = folder / "tools" / "mechanisms.yml"
    parts = yaml.safe_load(mechanisms.read_text(encoding="utf-8"))
    tags = set(re.findall(r"\b[A-Z]\d+\b", " ".join(re.findall(TAGS, (folder / "book" / keep).read_text()))))
    shown = {part: {name: text for name, text in ids.items() if name in tags} for part, ids in parts.items()}
    mechanisms.write_text(yaml.safe_dump({part: ids for part, ids in shown.items() if ids}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> tuple[Path, str]:
    """An untouched copy after `make book`, and what that printed; made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "untouched"
    output = shared.with_suffix(".txt")
    with FileLock(shared.with_suffix(".lock")):
        if not output.is_file():
            done = make(shrink(copy_course(shared), KEEP), "book")
            output.write_text(f"exit code {done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
    return shared, output.read_text(encoding="utf-8")


@pytest.fixture
def copy(untouched: tuple[Path, str], tmp_path: Path) -> Path:
    """A fresh copy in which every step has passed, except that it has no site yet."""
    source, output = untouched
    assert output.startswith("exit code 0\n"), output
    target = copy_course(tmp_path / "course", source)
    shutil.copytree(source / "_build" / "stamps", target / "_build" / "stamps")
    return target
