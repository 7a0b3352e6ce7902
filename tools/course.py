"""Where things are: the pages that the table of contents lists, and the address of the repository."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"  # everything that is made here and ignored by git
FOLDERS = ("book", "solutions")  # folders that hold the .md sources of pages


@cache
def config() -> dict[str, Any]:
    """The settings of the book, from `_config.yml`."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def repository() -> tuple[str, str]:
    """The one address of the course and its branch, without a slash at the end."""
    settings = config()["repository"]
    return settings["url"].rstrip("/"), settings["branch"]


@cache
def pages() -> tuple[Path, ...]:
    """All files that `_toc.yml` lists, in the order of the book; each must be there."""

    def entries(node: Any) -> list[str]:
        if isinstance(node, list):
            return [name for child in node for name in entries(child)]
        if isinstance(node, dict):
            own = [node[key] for key in ("root", "file") if key in node]
            return own + [
                name for value in node.values() if isinstance(value, list) for name in entries(value)
            ]
        return []

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found = []
    for name in entries(toc):
        candidates = [ROOT / f"{name}{suffix}" for suffix in ("", ".md", ".ipynb")]
        path = next((path for path in candidates if path.is_file()), None)
        if path is None and (ROOT / f"solutions/{name.removeprefix('exercises/')}.md").is_file():
            path = ROOT / f"{name}.ipynb"  # an exercise that `make exercises` is about to write
        if path is None:
            raise SystemExit(f"_toc.yml: lists {name}, but there is no {name}.md")
        found.append(path)
    return tuple(found)


def is_notebook(path: Path) -> bool:
    """Whether a Markdown page is a notebook: its header names jupytext."""
    if path.suffix != ".md":
        return False
    head = path.read_text(encoding="utf-8")[:2000]
    return head.startswith("---\n") and "jupytext:" in head.split("\n---", 1)[0]


def chapters() -> list[Path]:
    """The pages that are executed: the .md notebooks of the table of contents."""
    return [path for path in pages() if is_notebook(path)]


def twin(chapter: Path) -> Path:
    """The recorded run beside a chapter."""
    return chapter.with_suffix(".ipynb")


def short(path: Path) -> str:
    """A path as the messages print it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
