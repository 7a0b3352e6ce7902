"""The twin: what each MyST construct becomes, that nothing of MyST stays, that sync keeps outputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import nbformat
import pytest
from markdown_it import MarkdownIt
from small_course import HEADER, URL, record, small_course
from sphinx.application import Sphinx

from tools import course, myst, twin

OTHER = """(other-page)=
# The *other* page

(eq-section)=
## A section: of its own

$$ z = 1 $$ (eq-other)

```{figure} figures/block.svg
:name: fig-other
:alt: A block.

The other figure.
```

```{glossary}
Logit
: A score before softmax.
```
"""
CODE = "```{code-cell} ipython3\nx = 1\n```\n"


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Convert the text of a chapter and join the Markdown cells of its notebook."""
    pages = {"book/index": "# Home\n", "book/checked": OTHER, "book/01_chapter": HEADER + "# Chapter\n"}
    with small_course(tmp_path, pages) as root:

        def convert(text: str) -> str:
            chapter = root / "book" / "01_chapter.md"
            chapter.write_text(HEADER + text, encoding="utf-8")
            notebook = twin.plain_notebook(chapter)
            return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")

        yield convert


BLOB = f"{URL}/blob/main"
CHECKED = f"{BLOB}/book/checked.md"
CASES = {
    "admonition": (
        ":::{admonition} What *you* do\n:class: tip\nText.\n\n- a\n:::",
        "> **What *you* do**\n>\n> Text.\n>\n> - a",
    ),
    "note": ("```{note}\nText.\n```", "> **Note**\n>\n> Text."),
    "note on one line": ("```{note} Text.\n```", "> **Note**\n>\n> Text."),
    "see also": (":::{seealso}\nText.\n:::", "> **See also**\n>\n> Text."),
    "dropdown": (
        ":::{dropdown} The `a < b` answer\n$x<1$\n:::",
        "<details><summary>The <code>a &lt; b</code> answer</summary>\n\n$x<1$\n\n</details>",
    ),
    "class dropdown": (
        "```{admonition} Hint\n:class: tip, dropdown\nText.\n```".replace(",", ""),
        "<details><summary>Hint</summary>\n\nText.\n\n</details>",
    ),
    "nested": (
        "::::{admonition} Out\n:::{note}\n```python\n:::{x}\n```\n:::\n::::",
        "> **Out**\n>\n> > **Note**\n> >\n> > ```python\n> > :::{x}\n> > ```",
    ),
    "in a list": ("- item\n\n  ```{note}\n  Text.\n  ```", "- item\n\n  > **Note**\n  >\n  > Text."),
    "exercise": (
        "## Part\n\n```{exercise} Rows\n:label: ex-rows\nDo.\n```\n\n"
        "```{solution} ex-rows\n:class: dropdown\nDone.\n```",
        "## Part\n\n### Exercise 1: Rows\n\nDo.\n\n"
        "<details><summary>Solution: Rows</summary>\n\nDone.\n\n</details>",
    ),
    "gated exercise": (
        "# A\n\n```{exercise-start} Rows\n:label: ex-rows\n:nonumber:\nDo.\n```\n\n"
        "More.\n\n```{exercise-end}\n```",
        "# A\n\n## Exercise: Rows\n\nDo.\n\nMore.",
    ),
    "figure": (
        "```{figure} figures/block.svg\n:alt: Two paths.\n:name: fig-a\n\n"
        "The *block*.\n```\n\nSee {numref}`fig-a`.",
        f"![Two paths.]({URL}/raw/main/book/figures/block.svg)\n\n**Fig. 2.** The *block*.\n\nSee Fig. 2.",
    ),
    "image": (
        "```{image} /book/figures/block.svg\n:alt: A.\n```",
        f"![A.]({URL}/raw/main/book/figures/block.svg)",
    ),
    "include object": (
        "```{literalinclude} ../minigpt/module.py\n:pyobject: Norm.apply\n:dedent: 4\n```",
        f"From [`minigpt/module.py`]({BLOB}/minigpt/module.py):\n\n"
        "```python\ndef apply(self, x):\n    return x / 0.125\n```",
    ),
    "include between": (
        "```{literalinclude} ../minigpt/module.py\n:start-after: '# begin'\n:end-before: '# end'\n```",
        f"From [`minigpt/module.py`]({BLOB}/minigpt/module.py):\n\n"
        "```python\ndef twice(x):\n    return 2 * x\n```",
    ),
    "include lines": (
        "```{literalinclude} ../minigpt/module.py\n:lines: 1,3\n```",
        f"From [`minigpt/module.py`]({BLOB}/minigpt/module.py):\n\n"
        '```python\n"""A module."""\nEPS = 1e-5\n```',
    ),
    "equation": ("$$\nx = 1\n$$ (eq-a)\n\nBy {eq}`eq-a`.", "$$\nx = 1\n\\tag{2}\n$$\n\nBy (2)."),
    "equation elsewhere": ("{eq}`eq-other`", f"[(1)]({CHECKED})"),
    "aligned equation": (
        "```{math}\n:label: eq-a\na &= 1 \\\\\nb &= 2\n```",
        "$$\n\\begin{aligned}\na &= 1 \\\\\nb &= 2\n\\end{aligned}\n\\tag{2}\n$$",
    ),
    "equation in a quoted block": (":::{note}\n$$\na\n= 1\n$$\n:::", "> **Note**\n>\n> $$a = 1$$"),
    "starred environment": (
        "\\begin{align*}\na &= 1\n\\end{align*}",
        "$$\n\\begin{align*}\na &= 1\n\\end{align*}\n$$",
    ),
    "reference": (
        "{ref}`other-page` and {ref}`there <eq-section>`",
        f"[The *other* page]({CHECKED}#the-other-page) and [there]({CHECKED}#a-section-of-its-own)",
    ),
    "reference on the page": (
        "(here)=\n## Here\n\n{ref}`here`, [](#here), [above](#here)",
        "## Here\n\n**Here**, **Here**, above",
    ),
    "document": (
        "{doc}`checked`, [](checked.md), [it](checked.md#other-page)",
        f"[The *other* page]({CHECKED}), [The *other* page]({CHECKED}), [it]({CHECKED}#the-other-page)",
    ),
    "figure elsewhere": (
        "{numref}`fig-other`, {numref}`picture %s <fig-other>`",
        f"[Fig. 1]({CHECKED}), [picture 1]({CHECKED})",
    ),
    "file": ("[the code](../minigpt/module.py)", f"[the code]({BLOB}/minigpt/module.py)"),
    "download": (
        "{download}`the file <../minigpt/module.py>`",
        f"[the file]({URL}/raw/main/minigpt/module.py)",
    ),
    "term": ("{term}`logits <Logit>`", f"[logits]({CHECKED})"),
    "citations": (
        "{cite:t}`vaswani2017`, {cite}`press2017,torch`, {cite:p}`accents`",
        f"[Vaswani et al. (2017)]({BLOB}/book/bibliography.md), "
        f"([Press and Wolf, 2017]({BLOB}/book/bibliography.md); "
        f"[PyTorch contributors, 2026]({BLOB}/book/bibliography.md)), "
        f"([Müller, 2020]({BLOB}/book/bibliography.md))",
    ),
    "list table": (
        "```{list-table} Names\n:header-rows: 1\n\n* - a\n  - b\n* - `x | y`\n  - long\n    cell\n```",
        "**Table 1.** Names\n\n| a | b |\n| --- | --- |\n| `x \\| y` | long cell |",
    ),
    "footnotes": (
        "One.[^b] Two.[^a]\n\n[^a]: Second\n    note.\n\n[^b]: First.",
        "One.<sup>1</sup> Two.<sup>2</sup>\n\n<sup>2</sup> Second\nnote.\n\n<sup>1</sup> First.",
    ),
    "definition list": ("Width\n: How many.\n  At all.", "- **Width**:\n  How many.\n  At all."),
    "invisible": ("% a comment\n(label)=\nText.\n\n+++\n\nMore.", "Text.\n\nMore."),
    "code is left alone": ("```text\n{ref}`x` $ (y)=\n% z\n```\n\n`{ref}` and ``{eq}`a` ``", None),
    "mathematics is left alone": (r"$[x](y) \{a\} `b$ costs \$5, and $$x$$"[:-12] + "\n\n$$\n{n}\n$$", None),
    "brackets are left alone": ("Shapes [B,T,C] and $[3,2]$, [x] (y).", None),
}


@pytest.mark.parametrize("name", CASES)
def test_conversion(name: str, plain: Callable[[str], str]) -> None:
    source, expected = CASES[name]
    got = plain(source)
    assert got == (source if expected is None else expected)
    assert twin.leftovers(got) == []


ERRORS = {
    "unknown directive": ("# A\n\n```{mermaid}\nx\n```", 3, "{mermaid}"),
    "unknown role": ("# A\n\nText\n{kbd}`x`", 4, "{kbd}"),
    "unknown option": ("```{note}\n:klass: x\nText\n```", 2, "klass"),
    "unknown label": ("Text {ref}`nowhere`", 1, "nowhere"),
    "unknown equation": ("Text {eq}`other-page`", 1, "not the label of an equation"),
    "unknown work": ("Text {cite}`nobody`", 1, "nobody"),
    "unknown file": ("[x](missing.md)", 1, "missing.md"),
    "unknown figure": ("```{figure} figures/none.svg\n:alt: x\n```", 1, "figures/none.svg"),
    "unknown object": ("```{literalinclude} ../minigpt/module.py\n:pyobject: Nobody\n```", 1, "Nobody"),
    "label of another page": ("[x](bibliography.md#eq-section)", 1, "eq-section"),
    "open fence": (":::{note}\nText", 1, "never closed"),
    "open formula": ("$$\nx", 1, "must end with $$"),
    "open dollar": ("costs $5", 1, "partner"),
    "display in a line": ("so $$x$$ holds", 1, "line of its own"),
    "figure without alt": ("```{figure} figures/block.svg\n```", 1, ":alt:"),
    "numbered environment": ("\\begin{align}\na\n\\end{align}", 1, "align*"),
    "uneven table": ("```{list-table}\n* - a\n  - b\n* - c\n```", 1, "[1, 2] cells"),
    "label twice": ("(a)=\n## A\n\n(a)=\n## B", 5, "already taken"),
    "label at the end": ("Text.\n\n(a)=", 3, "nothing after"),
    "substitution": ("{{ x }}", 1, "substitutions"),
    "fence in a list marker": ("- ```python\n  x\n  ```", 1, "line of its own"),
    "code cell in a block": ("::::{note}\n:::{code-cell}\nx\n:::\n::::", 2, "code cell"),
    "nested": ("::::{note}\n\n:::{tip}\n{ref}`nowhere`\n:::\n::::", 4, "nowhere"),
    "solution of nothing": ("```{solution} other-page\nx\n```", 1, "not an exercise"),
    "unused footnote": ("Text.\n\n[^a]: Note.", 3, "nowhere referred"),
    "bar in a table's formula": ("```{list-table}\n* - $|x|$\n```", 1, r"\vert"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_converted_is_an_error_with_file_and_line(
    name: str, plain: Callable[[str], str]
) -> None:
    source, line, what = ERRORS[name]
    with pytest.raises(myst.SourceError) as error:
        plain(source)
    assert str(error.value).startswith(f"book/01_chapter.md:{HEADER.count(chr(10)) + line}: ")
    assert what in str(error.value)


LEFT = ["{ref}`x`", ":::{note}\nx\n:::", "```{note}\nx\n```", "(a)=\nx", "% x", "$$x$$ (a)",
        "[x](y.md)", "[](https://a.b)",
        "x[^1]", "[^1]: x", "+++",
        "Term\n: meaning", "> :::{note}\n> x\n> :::", "{{ x }}",
        "\\begin{align}\nx\n\\end{align}"]  # fmt: skip


@pytest.mark.parametrize("text", LEFT)
def test_leftovers_are_seen(text: str) -> None:
    assert twin.leftovers(f"# A\n\n{text}\n")


def test_rendered_by_another_reader(plain: Callable[[str], str]) -> None:
    """GitHub's kind of Markdown sees a quoted block, a table, and Markdown inside the folded answer."""
    page = plain("\n\n".join(CASES[name][0] for name in ("admonition", "list table", "dropdown", "nested")))
    page += "\n\n<details><summary>a</summary>\n\n**b**\n\n</details>"
    html = MarkdownIt("commonmark").enable("table").render(page)
    assert "<blockquote>\n<p><strong>What <em>you</em> do</strong></p>" in html
    assert "<th>a</th>" in html and "<code>x | y</code>" in html
    assert "<details><summary>a</summary>\n<p><strong>b</strong></p>\n</details>" in html
    assert '<pre><code class="language-python">:::{x}\n</code></pre>' in html


def test_numbers_are_those_of_sphinx(tmp_path: Path) -> None:
    """Equations, figures, tables, listings and exercises carry the numbers that the site prints."""
    first = """# First

$$a$$ (eq-a)

$$unlabelled$$

```{math}
:label: eq-b
b
```

:::{note}
$$c$$ (eq-c)
:::

```{figure} book/figures/block.svg
:alt: x

No name, but a caption.
```

```{figure} book/figures/block.svg
:alt: x
:name: fig-a
Caption.
```

```{image} book/figures/block.svg
:alt: x
```

```{toctree}
book/second
book/bibliography
```
"""
    second = """# Second

```{exercise} One
:label: ex-a
$$d$$ (eq-d)
```

```{exercise} None
:label: ex-none
:nonumber:
x
```

```{solution} ex-a
$$e$$ (eq-e)
```

```{exercise} Two
:label: ex-b
x
```

(fig-bare)=
```{figure} figures/block.svg
:alt: x
```

```{figure} figures/block.svg
:alt: x
:name: fig-b
Caption.
```

(tab-a)=
| a | b |
|---|---|
| 1 | 2 |

| c | d |
|---|---|
| 1 | 2 |

```{list-table} Names
:name: tab-b
* - a
```

```{code-block} python
:caption: A listing
:name: code-a
x = 1
```

```{literalinclude} ../minigpt/module.py
:name: code-none
```

$$f$$ (eq-f)
"""
    with small_course(tmp_path, {"index": first, "book/second": second}):
        book = twin.Book.read()
        ours = {name: label.number for name, label in book.labels.items() if label.number}
    site = Sphinx(
        str(tmp_path), None, str(tmp_path / "out"), str(tmp_path / "trees"), "dummy", status=StringIO(),
        warning=StringIO(), freshenv=True, confoverrides={
            "extensions": ["myst_parser", "sphinx_exercise"],
            "myst_enable_extensions": ["dollarmath", "colon_fence"],
            "numfig": True, "root_doc": "index",
        },
    )  # fmt: skip
    site.build()
    theirs = {
        name.removeprefix("equation-"): number[-1]
        for kinds in site.env.toc_fignumbers.values()
        for names in kinds.values()
        for name, number in names.items()
        if not name.startswith("id")
    }
    assert ours == theirs
    assert {"eq-f": 6, "fig-b": 3, "ex-b": 2, "tab-b": 1, "code-a": 1}.items() <= ours.items()


def test_notebook(tmp_path: Path) -> None:
    cell = "```{code-cell} ipython3\n:tags: [setup, hide-input]\n:other: 1\n\nx\n```"
    text = f"{HEADER}# A\n\n{cell}\n\n% only a comment\n\n{CODE}"
    with small_course(tmp_path, {"index": "# Home\n", "book/01_a": text}) as root:
        chapter = root / "book" / "01_a.md"
        notebook = twin.plain_notebook(chapter)
        assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "code"]
        assert [cell.id for cell in notebook.cells] == ["cell-000", "cell-001", "cell-002"]
        assert [dict(cell.metadata) for cell in notebook.cells] == [{}, {"tags": ["setup", "hide-input"]}, {}]
        assert notebook.metadata["language_info"] == {"name": "python"}
        assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
        assert twin.text_of(notebook) == twin.text_of(twin.plain_notebook(chapter))


def test_picture_of_a_cell_has_its_caption_below(plain: Callable[[str], str]) -> None:
    cell = "---\nmystnb:\n  figure:\n    name: fig-a\n    caption: 'At {eq}`eq-other`: $x$.'\n---\nplot()"
    got = plain(f"See {{numref}}`fig-a`.\n\n```{{code-cell}} ipython3\n{cell}\n```\n\nAfter.")
    assert got == f"See Fig. 2.\n\n**Fig. 2.** At [(1)]({CHECKED}): $x$.\n\nAfter."


def test_sync_rewrites_prose_and_keeps_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_course(tmp_path, {"index": "# Home\n", "book/01_a": f"{HEADER}# A\n\n{CODE}"}) as root:
        chapter, path = root / "book" / "01_a.md", root / "book" / "01_a.ipynb"
        assert not twin.sync(chapter)  # nothing recorded: not for sync to make
        assert not path.exists()
        record(chapter, ["x  []  float64  1.5\n"])
        before, stamp = path.read_bytes(), path.stat().st_mtime_ns
        os.utime(path, ns=(stamp - 10**9, stamp - 10**9))
        assert not twin.sync(chapter)
        assert path.stat().st_mtime_ns == stamp - 10**9
        twin.main(["--check"])

        chapter.write_text(f"{HEADER}# B\n\n{CODE}\n:::{{note}}\nNew.\n:::\n", encoding="utf-8")
        with pytest.raises(SystemExit, match=r"book/01_a.ipynb: its Markdown is not that of 01_a.md"):
            twin.main(["--check"])
        assert path.read_bytes() == before
        twin.main([])
        assert "book/01_a.ipynb" in capsys.readouterr().out
        after = nbformat.read(path, as_version=4)
        assert [cell.source for cell in after.cells] == ["# B", "x = 1", "> **Note**\n>\n> New."]
        assert after.cells[1].outputs == nbformat.reads(before.decode(), as_version=4).cells[1].outputs
        assert after.cells[1].execution_count == 1

        chapter.write_text(f"{HEADER}# C\n\n{CODE.replace('1', '2')}", encoding="utf-8")
        kept = path.read_bytes()
        assert not twin.sync(chapter)
        assert path.read_bytes() == kept
        with pytest.raises(SystemExit, match="its code is not that of"):
            twin.main(["--check"])


def test_real_chapters_convert() -> None:
    for chapter in course.chapters():
        for cell in twin.plain_notebook(chapter).cells:
            if cell.cell_type == "markdown":
                assert twin.leftovers(cell.source) == []
