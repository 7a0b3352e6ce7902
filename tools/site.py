"""Build `_build/html` from the recorded runs: nothing executed, warnings are errors, no other host.

`python -m tools.site` does nothing where nothing that the site is made of has changed. Where only pages have
changed, unchanged ones are not parsed again, but all are written again, so that titles and references are
right everywhere. With CI set in the environment the build starts from nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import browser_libraries, course, site_check, stamp

HTML = course.BUILD / "html"
DOCTREES = course.BUILD / ".doctrees"
CACHE = course.BUILD / ".jupyter_cache"
LOG = course.BUILD / "site.log"


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    print(f"site: {name}, {time.monotonic() - start:.1f} s", flush=True)


def frame() -> list[Path]:
    """What every page depends on: a change here means a build from nothing."""
    root = course.ROOT
    files = [
        root / "_config.yml",
        root / "_toc.yml",
        root / "requirements.txt",
        root / "book" / "references.bib",
    ]
    for folder, pattern in (
        ("_ext", "**/*.py"),
        ("tools", "*.py"),
        ("tools/browser", "*"),
        ("book/_static", "**/*"),
    ):
        files += [path for path in (root / folder).glob(pattern) if path.is_file()]
    return files


def key(files: list[Path]) -> str:
    return stamp.digest(files, browser_libraries.wanted())


def _read(chapter: Path) -> Any:
    """The chapter as a notebook, read in the way in which the build reads it."""
    from myst_nb.core.config import NbParserConfig
    from myst_nb.core.read import create_nb_reader
    from myst_parser.config.main import MdParserConfig

    text = chapter.read_text(encoding="utf-8")
    extensions = set(course.config()["parse"]["myst_enable_extensions"])
    reader = create_nb_reader(
        str(chapter), MdParserConfig(enable_extensions=extensions), NbParserConfig(), text
    )
    if reader is None:
        raise SystemExit(
            f"{course.short(chapter)}: its header names jupytext, but it cannot be read as a notebook"
        )
    return reader.read(text)


def recorded(chapter: Path) -> Any:
    """The chapter with the outputs of its recorded run, whose code must be the chapter's."""
    import nbformat

    twin = course.twin(chapter)
    if not twin.is_file():
        raise ValueError(f"{course.short(chapter)}: has no recorded run {twin.name}; run make record")
    notebook, run = _read(chapter), nbformat.read(twin, 4)
    cells, ran = ([cell for cell in book.cells if cell.cell_type == "code"] for book in (notebook, run))
    if len(cells) != len(ran):
        raise ValueError(
            f"{course.short(chapter)}: has {len(cells)} code cells, its recorded run {twin.name} has "
            f"{len(ran)}; run make record"
        )
    for number, (cell, done) in enumerate(zip(cells, ran, strict=True), 1):
        if cell.source.strip() != done.source.strip():
            raise ValueError(
                f"{course.short(chapter)}: code cell {number} is not the one that {twin.name} records; "
                "run make record"
            )
        cell.outputs, cell.execution_count = done.outputs, done.execution_count
    # The colours of code follow this entry, which neither a chapter nor a recorded run need hold.
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    if "widgets" in run.metadata:
        notebook.metadata["widgets"] = run.metadata["widgets"]
    return notebook


def seed_cache() -> None:
    """Put every recorded run where the build looks for outputs."""
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    shutil.rmtree(CACHE, ignore_errors=True)
    cache = get_cache(CACHE)
    problems = []
    for chapter in course.chapters():
        try:
            bundle = CacheBundleIn(recorded(chapter), str(chapter))
        except ValueError as error:
            problems.append(str(error))
            continue
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    if problems:
        raise SystemExit("\n".join(problems))


def build(from_nothing: bool) -> None:
    """Run Jupyter Book in this process; its output goes to the log, its warnings to the screen."""
    from jupyter_book.sphinx import REDIRECT_TEXT, build_sphinx  # type: ignore[import-untyped]

    if from_nothing:
        for folder in (HTML, DOCTREES):
            shutil.rmtree(folder, ignore_errors=True)
    (course.BUILD / "jupyter_execute").mkdir(parents=True, exist_ok=True)
    with (
        LOG.open("w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        result = build_sphinx(
            course.ROOT,
            HTML,
            noconfig=True,
            path_config=course.ROOT / "_config.yml",
            confoverrides={
                "external_toc_path": str(course.ROOT / "_toc.yml"),
                "latex_individualpages": False,
                "nb_execution_cache_path": str(CACHE),
            },
            doctreedir=DOCTREES,
            force_all=True,  # write every page; only changed ones are read again
            warningiserror=True,
            keep_going=True,
        )
    log_text = re.sub(r"\x1b\[[0-9;]*m", "", LOG.read_text(encoding="utf-8"))
    LOG.write_text(log_text, encoding="utf-8")
    executed = re.findall(r"^(.*?): Executing notebook", log_text, re.MULTILINE)
    if result or executed:
        root = f"{course.ROOT}{os.sep}"
        shown = [
            line for line in log_text.splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b|Error\b", line)
        ]
        lines = [line.replace(root, "") for line in shown] or log_text.splitlines()[-20:]
        lines += [f"{name.replace(root, '')}: would have been executed; run make record" for name in executed]
        raise SystemExit(
            "\n".join([*dict.fromkeys(lines), f"site: not built; the whole log is {course.short(LOG)}"])
        )
    first = course.pages()[0].relative_to(course.ROOT).with_suffix(".html").as_posix()
    (HTML / "index.html").write_text(REDIRECT_TEXT.format(first_page=first), encoding="utf-8")


def check() -> None:
    if problems := site_check.problems(HTML):
        raise SystemExit("\n".join([*problems, f"site: {len(problems)} problems in {course.short(HTML)}"]))


def main() -> None:
    start = time.monotonic()
    clean = bool(os.environ.get("CI"))
    whole, base = key(stamp.tree()), key(frame())
    index = HTML / "index.html"
    if not clean and index.is_file() and stamp.passed("site", whole):
        print(f"site: unchanged, {course.short(index)}")
        return
    if browser_libraries.lay():
        print(f"site: browser libraries laid into {course.short(browser_libraries.VENDOR)}/", flush=True)
    clean = clean or not index.is_file() or not stamp.passed("site-frame", base)
    # Only a build that passed may be built upon: another one hides warnings of pages that are not read again.
    for name in ("site", "site-frame"):
        stamp.clear(name)
    with phase(f"{len(course.chapters())} recorded runs taken as outputs"):
        seed_cache()
    with phase(f"{len(course.pages())} pages built " + ("from nothing" if clean else "again where changed")):
        build(clean)
    with phase("checked: no address outside, no missing file"):
        check()
    stamp.set_passed("site-frame", base)
    if key(stamp.tree()) == whole:  # a file edited meanwhile was perhaps not seen
        stamp.set_passed("site", whole)
    print(f"site: {course.short(index)} in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
