"""A chapter that needs a package which is not there is skipped, by name; every other chapter is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import course, values


def chapter(folder: Path, needs: str) -> Path:
    path = folder / "99_sample.md"
    path.write_text(
        f"---\njupytext:\n  text_representation: {{}}\n{needs}---\n\n# Sample\n", encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("needs", "missing"),
    [
        ("", []),
        ("needs: [numpy, torch]\n", []),
        ("needs: [numpy, no_such_package, nor_this]\n", ["no_such_package", "nor_this"]),
    ],
)
def test_packages_that_are_not_installed_are_named(tmp_path: Path, needs: str, missing: list[str]) -> None:
    assert values.lacking(chapter(tmp_path, needs)) == missing


def test_a_chapter_without_its_packages_is_skipped_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = chapter(tmp_path, "needs: [no_such_package]\n")
    monkeypatch.setattr(course, "chapters", lambda: [path])
    monkeypatch.setattr(values, "run", lambda chapters: pytest.fail("a chapter was run"))
    values.main()
    printed = capsys.readouterr().out
    assert f"{path}: SKIPPED, nothing compared: not installed: no_such_package" in printed
