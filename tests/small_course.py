"""A course of a few pages in a temporary folder, which the tools then take for the whole tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import nbformat

from tools import course, twin

URL = "https://example.org/owner/course"
HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {name: python3, display_name: Python 3}
---

"""
BIBLIOGRAPHY = """# Bibliography

```{bibliography}
```
"""
REFERENCES = r"""
@article{vaswani2017, author={Vaswani, A. and Shazeer, N. and Parmar, N.}, title={Attention}, year={2017}}
@article{press2017, author={Press, Ofir and Wolf, Lior}, title={Using the Output Embedding}, year={2017}}
@misc{torch, author={{PyTorch contributors}}, title={LayerNorm}, year={2026}}
@misc{accents, author={M{\"u}ller, {\L}ukasz}, title={Zahlen}, year={2020}}
"""
PACKAGE = '''"""A module."""

EPS = 1e-5


class Norm:
    """A class."""

    def apply(self, x):
        return x / 0.125


# begin
def twice(x):
    return 2 * x
# end
'''


@contextmanager
def small_course(root: Path, pages: dict[str, str]) -> Iterator[Path]:
    """Write the pages, the root of the book first, and a little beside them."""
    (root / "book" / "figures").mkdir(parents=True)
    (root / "minigpt").mkdir()
    pages = {**pages, "book/bibliography": BIBLIOGRAPHY}
    for name, text in pages.items():
        (root / f"{name}.md").write_text(text, encoding="utf-8")
    first, *others = pages
    toc = "\n".join(
        ["format: jb-book", f"root: {first}", "chapters:", *(f"- file: {name}" for name in others)]
    )
    (root / "_toc.yml").write_text(toc, encoding="utf-8")
    (root / "_config.yml").write_text(f"repository: {{url: {URL}/, branch: main}}\n", encoding="utf-8")
    (root / "book" / "references.bib").write_text(REFERENCES, encoding="utf-8")
    (root / "book" / "figures" / "block.svg").write_text("<svg/>", encoding="utf-8")
    (root / "minigpt" / "module.py").write_text(PACKAGE, encoding="utf-8")
    (root / "requirements.txt").write_text("sphinx==7.4.7\nnumpy==2.4.6\ntorch==2.13.0\n", encoding="utf-8")
    (root / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy>=2", "torch>=2.5"]\n', encoding="utf-8"
    )
    course.config.cache_clear()
    course.pages.cache_clear()
    try:
        with mock.patch.object(course, "ROOT", root):
            yield root
    finally:
        course.config.cache_clear()
        course.pages.cache_clear()


def record(chapter: Path, outputs: Sequence[str]) -> None:
    """A twin whose code cells have these texts as their outputs, as if the chapter had been run."""
    notebook = twin.plain_notebook(chapter)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, (cell, text) in enumerate(zip(code, outputs, strict=True), 1):
        cell["execution_count"] = number
        cell["outputs"] = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
    course.twin(chapter).write_text(twin.text_of(notebook), encoding="utf-8")
