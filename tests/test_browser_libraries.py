"""The browser libraries: pinned without addresses, laid out whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import browser_libraries, course


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the laying out needs of this tree, and no more."""
    tree = tmp_path / "course"
    shutil.copytree(course.ROOT / "tools", tree / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def run(tree: Path) -> subprocess.CompletedProcess[str]:
    """As on a machine that has Python alone: PATH leads nowhere."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PATH": "/nonexistent"}
    command = [sys.executable, "-m", "tools.browser_libraries"]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300)


def test_the_pins_are_exact_and_hold_no_address() -> None:
    text = (browser_libraries.PINS / "package-lock.json").read_text(encoding="utf-8")
    assert "http" not in text and "resolved" not in text
    lock, wanted = (
        json.loads(text)["packages"],
        json.loads((browser_libraries.PINS / "package.json").read_text()),
    )
    assert set(lock) == {"", *(f"node_modules/{name}" for name in wanted["dependencies"])}
    for name, version in wanted["dependencies"].items():
        entry = lock[f"node_modules/{name}"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", version) and entry["version"] == version
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", entry["integrity"])


def test_the_versions_are_those_that_the_python_packages_expect() -> None:
    import sphinxcontrib.katex

    wanted = json.loads((browser_libraries.PINS / "package.json").read_text())["dependencies"]
    assert wanted["katex"] == sphinxcontrib.katex.katex_version


def test_from_nothing_without_a_node_on_the_path_then_nothing_to_do(tree: Path) -> None:
    first = run(tree)
    assert first.returncode == 0, first.stderr
    served = tree / "vendor" / "served"
    assert {path.name for path in served.iterdir()} == {"katex", "widgets"}
    assert {path.suffix for path in served.rglob("*") if path.is_file()} <= {
        ".css",
        ".js",
        ".woff2",
        ".txt",
        "",
    }
    for folder in ("katex", "widgets"):
        assert "Copyright" in (served / folder / "LICENSE").read_text(encoding="utf-8")
    css = served / "katex" / "katex.min.css"
    fonts = re.findall(r"url\(([^)]*)\)", css.read_text(encoding="utf-8"))
    assert len(fonts) == 20 and all((css.parent / font).is_file() for font in fonts)
    before = (tree / "vendor").stat().st_ino
    again = run(tree)
    assert (again.returncode, again.stdout) == (0, "") and (tree / "vendor").stat().st_ino == before
    assert list((tree / "_build").iterdir()) == []


def test_a_file_with_another_hash_is_refused_and_nothing_is_laid_out(tree: Path) -> None:
    lock = tree / "tools" / "browser" / "package-lock.json"
    lock.write_text(re.sub(r"sha512-....", "sha512-AAAA", lock.read_text()))
    result = run(tree)
    assert result.returncode == 1 and "tools/browser/package-lock.json: npm ci failed" in result.stderr
    assert not (tree / "vendor").exists()


def test_a_broken_run_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    (vendor / "kept").write_text("")
    monkeypatch.setattr(browser_libraries, "VENDOR", vendor)
    monkeypatch.setattr(browser_libraries, "STAMP", vendor / "laid-out-for")
    monkeypatch.setattr(course, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(browser_libraries, "_download", lambda folder: folder / "node_modules")
    with pytest.raises(FileNotFoundError):
        browser_libraries.lay()
    assert [path.name for path in vendor.iterdir()] == ["kept"]
    assert list((tmp_path / "_build").iterdir()) == []
