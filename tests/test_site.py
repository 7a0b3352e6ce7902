"""The site: built from a small book in a copy of the tree, then read as files and in a browser."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import browser
import ipywidgets
import nbformat
import pytest
from ipywidgets.embed import embed_data

from tools import browser_libraries, course, site_check

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

"""
CELL = 'print("y  [3]  float64   -1.224736  0.000000  1.224736" + 20 * " and a long line")'
PLOT = 'print("a plot")'
SLIDER = "slider_and_stack()"
PROSE = "Each row is shifted by its own mean and divided by its own deviation. " * 4
PAGES = {
    "index.md": "# A small book\n\nSee {doc}`03_sample` and [the part by hand](03_sample.md#sec-hand).\n",
    "plain.md": "# A page without code\n\nNothing to run.\n\n## A part\n\nText.\n",
    "03_sample.md": HEADER
    + f"""\
# A chapter

One row $x=[1,2,3]$, {{numref}}`fig-block`, {{eq}}`eq-ln`, {{cite:t}}`ba2016`[^note]. {PROSE}

[^note]: A footnote with $a^2$.

(sec-hand)=
## By hand

$$
y_i = \\gamma_i\\,\\frac{{x_i-\\mu}}{{\\sqrt{{\\sigma^2+\\varepsilon}}}}+\\beta_i
$$ (eq-ln)

\\begin{{align}}
Y &= \\begin{{bmatrix}}1.999980 & 2.999940\\\\ 0.999912 & 1.476742\\end{{bmatrix}}
\\end{{align}}

:::{{note}}
A note. See [](#sec-hand) and {{ref}}`ex-one`.
:::

`````{{dropdown}} The answer
The mean is $2$.

````{{admonition}} Inside
:class: dropdown
Folded again.
````
`````

```{{exercise}} Divide by C
:label: ex-one
What breaks if $C-1$ stands there?
```

```{{solution}} ex-one
:class: dropdown
The scale: $\\sqrt{{3/2}}$.
```

```{{figure}} figures/block.svg
:alt: Two boxes joined by an arrow.
:name: fig-block
The two paths.
```

```{{image}} figures/block.svg
:alt: The same boxes again.
:width: 50%
```

| {" | ".join(f"column {i}" for i in range(12))} |
|{" --- |" * 12}
| {" | ".join("0.999980" for _ in range(12))} |

### Run it

```{{code-cell}} ipython3
{CELL}
```

```{{code-cell}} ipython3
{PLOT}
```
""",
    "04_slider.md": HEADER + f"# A slider\n\n```{{code-cell}} ipython3\n{SLIDER}\n```\n",
}
TOC = """\
format: jb-book
root: book/index
parts:
- caption: The parts
  chapters:
  - file: book/03_sample
  - file: book/04_slider
- caption: Back matter
  chapters:
  - file: book/plain
  - file: book/bibliography
"""
FIGURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 80" width="320" height="80">
  <title>not shown</title>
  <style>.ink { fill: var(--figure-ink, #1f2328) } svg { letter-spacing: 1px }</style>
  <defs><marker id="tip" markerWidth="8"><path class="ink" d="M0 0L8 4L0 8z"/></marker></defs>
  <path d="M100 40H200" marker-end="url(#tip)"/><text class="ink" x="10" y="45">LayerNorm</text>
</svg>
"""
PLOT_SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50"><path d="M0 0L100 50"/></svg>'


def twin(cells: list[tuple[str, dict]], widgets: dict | None = None) -> str:
    """A recorded run, written by hand."""
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    for count, (code, output) in enumerate(cells, 1):
        cell = nbformat.v4.new_code_cell(
            code, execution_count=count, outputs=[output], id=f"cell-{count:03d}"
        )
        notebook.cells.append(cell)
    if widgets:
        notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": widgets}
    return nbformat.writes(notebook)


def write_book(tree: Path) -> None:
    book = tree / "book"
    (tree / "_toc.yml").write_text(TOC)
    for name, text in PAGES.items():
        (book / name).write_text(text)
    (book / "figures").mkdir()
    (book / "figures" / "block.svg").write_text(FIGURE)
    stream = nbformat.v4.new_output("stream", name="stdout", text="y  [3]" + 20 * " and a long line" + "\n")
    plot = nbformat.v4.new_output("display_data", data={"image/svg+xml": PLOT_SVG, "text/plain": "a plot"})
    (book / "03_sample.ipynb").write_text(twin([(CELL, stream), (PLOT, plot)]))

    slider = ipywidgets.IntSlider(min=0, max=2, description="row")
    stack = ipywidgets.Stack([ipywidgets.HTML(f"<b>row {name}</b>") for name in ("zero", "one", "two")])
    stack.selected_index = 0
    link = ipywidgets.jslink((slider, "value"), (stack, "selected_index"))
    box = ipywidgets.VBox([slider, stack])
    state = embed_data(views=[box, link])["manager_state"]
    view = {"model_id": box.model_id, "version_major": 2, "version_minor": 0}
    data = {"application/vnd.jupyter.widget-view+json": view, "text/plain": "VBox()"}
    output = nbformat.v4.new_output("display_data", data=data)
    (book / "04_slider.ipynb").write_text(twin([(SLIDER, output)], state))


def run_site(tree: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PATH": "/nonexistent", **variables}
    if "CI" not in variables:
        environment.pop("CI", None)
    command = [sys.executable, "-m", "tools.site"]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree with a small book, built. PATH leads nowhere: node can only be the wheel's."""
    browser_libraries.lay()
    tree = tmp_path_factory.mktemp("site") / "course"
    tree.mkdir()
    for name in ("_config.yml", "requirements.txt"):
        shutil.copy(course.ROOT / name, tree)
    for name in ("tools", "_ext", "minigpt", "vendor", "book/_static"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(course.ROOT / name, tree / name, ignore=ignored)
    for name in ("references.bib", "bibliography.md"):
        shutil.copy(course.ROOT / "book" / name, tree / "book")
    write_book(tree)
    result = run_site(tree)
    assert result.returncode == 0, result.stdout + result.stderr
    return tree


@pytest.fixture(scope="session")
def html(tree: Path) -> Path:
    return tree / "_build" / "html"


@pytest.fixture
def other(tree: Path, tmp_path: Path) -> Path:
    """A copy of the built tree, to plant a fault in."""
    return Path(shutil.copytree(tree, tmp_path / "course"))


def page(html: Path, name: str) -> str:
    return (html / "book" / f"{name}.html").read_text(encoding="utf-8")


# ---------------------------------------------------------------- the files


def test_the_site_starts_at_the_first_page(html: Path) -> None:
    assert 'url=book/index.html"' in (html / "index.html").read_text()


def test_nothing_is_executed_and_outputs_are_the_recorded_ones(tree: Path, html: Path) -> None:
    assert "Executing notebook" not in (tree / "_build" / "site.log").read_text()
    assert "and a long line and a long line" in re.sub(r"<[^>]+>", "", page(html, "03_sample"))


def test_no_page_loads_anything_from_elsewhere_or_anything_missing(html: Path) -> None:
    assert site_check.problems(html) == []
    names = " ".join(path.name.lower() for path in html.rglob("*"))
    for word in ("mathjax", "thebe", "require.js", "fontawesome.js", "togglebutton"):
        assert word not in names


def test_mathematics_is_typeset_in_the_page(html: Path) -> None:
    text = page(html, "03_sample")
    assert text.count('class="katex"') >= 6 and "katex-error" not in text
    assert 'class="tag"' not in text  # equations are numbered by Sphinx alone
    assert "katex.min.js" not in text


def test_only_pages_with_widgets_load_the_widget_manager(html: Path) -> None:
    assert {
        name for name in ("index", "03_sample", "04_slider", "plain") if "embed.js" in page(html, name)
    } == {"04_slider"}


def test_every_launch_link_leads_to_a_file_of_the_tree(tree: Path, html: Path) -> None:
    address, branch = course.repository()
    head = f"https://colab.research.google.com/github{urlsplit(address).path}/blob/{branch}/"
    links = {
        name: re.findall(r'href="(https://colab[^"]*)"', page(html, name))
        for name in ("03_sample", "04_slider")
    }
    for name, found in links.items():
        assert found == [f"{head}book/{name}.ipynb"]
        assert (tree / found[0].removeprefix(head)).is_file()
    for name in ("index", "plain", "bibliography"):
        assert "colab" not in page(html, name)


def test_repository_buttons_follow_the_one_address(html: Path) -> None:
    address, _ = course.repository()
    text = page(html, "03_sample")
    assert f'href="{address}"' in text
    assert re.search(rf'href="{re.escape(address)}/issues/new\?[^"]*"', text)


def test_the_download_is_the_recorded_run(tree: Path, html: Path) -> None:
    link = re.search(r'href="\.\./(_sources/book/03_sample\.ipynb)"', page(html, "03_sample"))
    assert link is not None
    assert (html / link.group(1)).read_bytes() == (tree / "book" / "03_sample.ipynb").read_bytes()


def test_figures_stand_in_the_page_with_label_and_ids_of_their_own(html: Path) -> None:
    text = page(html, "03_sample")
    figures = re.findall(r"<svg[^>]*figure-svg.*?</svg>", text, re.DOTALL)
    assert len(figures) == 2 and "not shown" not in text
    assert 'aria-label="Two boxes joined by an arrow."' in figures[0] and 'role="img"' in figures[0]
    assert "width: 50%" in figures[1]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for figure in figures:
        own = set(re.findall(r'\bid="([^"]+)"', figure))
        assert set(re.findall(r"url\(#([^)]+)\)", figure)) <= own


def test_folded_text_needs_no_script(html: Path) -> None:
    text = page(html, "03_sample")
    assert len(re.findall(r"<details[^>]*\badmonition\b", text)) == 2
    assert "sd-dropdown" in text and 'class="toggle' not in text


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []
        self._article = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._article |= tag == "article"
        if self._article and re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        self._article &= tag != "article"


@pytest.mark.parametrize("name", ["index", "03_sample", "plain", "bibliography"])
def test_headings_descend_one_level_at_a_time(html: Path, name: str) -> None:
    outline = Outline()
    outline.feed(page(html, name))
    assert outline.levels[0] == 1 and outline.levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(outline.levels, outline.levels[1:], strict=False))
    assert 'href="#main-content"' in page(html, name) and 'id="main-content"' in page(html, name)


def test_the_footer_says_what_may_be_done_with_the_book_and_no_more(html: Path) -> None:
    footer = re.search(r'<footer class="bd-footer-content">.*?</footer>', page(html, "index"), re.DOTALL)
    assert footer is not None
    words = re.sub(r"<[^>]+>", " ", footer.group(0))
    assert "MIT" in words and "CC BY 4.0" in words
    assert "By " not in words and "Last updated" not in words


# ---------------------------------------------------------------- building again


def test_a_second_run_does_nothing_and_a_changed_page_is_built_on_the_rest(other: Path) -> None:
    # The copy has files of another age, so the first run here stands for "nothing has changed".
    again = run_site(other)
    assert again.returncode == 0 and "unchanged" in again.stdout
    path = other / "book" / "plain.md"
    path.write_text(path.read_text().replace("A page without code", "Another title"))
    changed = run_site(other)
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert "again where changed" in changed.stdout
    html = other / "_build" / "html"
    assert "Another title" in page(html, "plain")
    assert "Another title" in page(html, "03_sample")  # the sidebar of a page that was not edited
    assert site_check.problems(html) == []
    style = other / "book" / "_static" / "course.css"
    style.write_text(style.read_text() + "\n")
    assert "from nothing" in run_site(other).stdout


def test_a_new_recorded_output_reaches_the_page(other: Path) -> None:
    path = other / "book" / "03_sample.ipynb"
    path.write_text(path.read_text().replace("y  [3] and", "z  [3] and"))
    result = run_site(other)
    assert result.returncode == 0 and "again where changed" in result.stdout, result.stdout + result.stderr
    assert "z  [3]" in re.sub(r"<[^>]+>", "", page(other / "_build" / "html", "03_sample"))


# ---------------------------------------------------------------- planted faults


def fails(tree: Path) -> str:
    result = run_site(tree)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stderr


def append(tree: Path, name: str, text: str) -> None:
    path = tree / "book" / name
    path.write_text(path.read_text() + text)


def test_a_script_from_another_host_is_named(other: Path) -> None:
    append(other, "plain.md", '\n<script src="https://cdn.example.org/a.js"></script>\n')
    assert "book/plain.html: loads https://cdn.example.org/a.js from another host" in fails(other)


def test_a_chapter_whose_code_is_not_the_recorded_code_is_not_executed(other: Path) -> None:
    path = other / "book" / "03_sample.md"
    path.write_text(path.read_text().replace(PLOT, 'open("ran-after-all", "w")'))
    message = fails(other)
    assert "book/03_sample.md" in message and "03_sample.ipynb" in message and "make record" in message
    assert not list(other.rglob("ran-after-all"))


def test_a_chapter_without_a_recorded_run_is_named(other: Path) -> None:
    (other / "book" / "03_sample.ipynb").unlink()
    assert "book/03_sample.md: has no recorded run" in fails(other)


def test_jupyter_book_alone_does_not_execute_either(other: Path) -> None:
    shutil.rmtree(other / "_build")
    environment = {**os.environ, "PYTHONPATH": str(other)}
    script = "from jupyter_book.cli.main import main; main(['build', '.'])"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=other, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0 and "no recorded run" in result.stdout + result.stderr


FAULTS = {
    "nowhere": "See {ref}`nowhere`.",
    "05_absent": "See {doc}`05_absent`.",
    "no-such-label": "[text](#no-such-label)",
    "nobody1900": "See {cite}`nobody1900`.",
    "KaTeX parse error": "$\\frac{1$",
    "absent.py": "```{literalinclude} absent.py\n```",
    "needs :alt:": "```{image} figures/block.svg\n```",
}


def test_every_fault_of_a_page_is_named_with_file_and_line(other: Path) -> None:
    append(other, "plain.md", "\n" + "\n\n".join(FAULTS.values()) + "\n")
    numbered = (other / "book" / "plain.md").read_text().splitlines()
    expected = {words: numbered.index(text.splitlines()[0]) + 1 for words, text in FAULTS.items()}
    expected["needs :alt:"] = (
        numbered.index("## A part") + 1
    )  # MyST keeps no line for an image: its section's
    found = fails(other).splitlines()
    assert {words: [line.split(": ")[0] for line in found if words in line] for words in FAULTS} == {
        words: [f"book/plain.md:{number}"] for words, number in expected.items()
    }
    assert run_site(other).returncode == 1  # a second run does not forget them


@pytest.mark.parametrize(
    "text",
    [
        '<link rel="stylesheet" href="//cdn.example.org/a.css">',
        '<link rel="preconnect" href="https://cdn.example.org">',
        '<link rel="shortcut icon" href="https://cdn.example.org/a.ico">',
        '<img src="a.png" srcset="a.png 1x, https://cdn.example.org/b.png 2x">',
        "<style>@import 'https://cdn.example.org/a.css';</style>",
        "<p style=\"background: url('http://cdn.example.org/a.png')\">",
        '<script type="module">import a from "https://cdn.example.org/a.js"</script>',
        '<script>fetch("https://cdn.example.org/a.json")</script>',
        '<svg><image href="https://cdn.example.org/a.png"/></svg>',
        '<iframe src="https://cdn.example.org/"></iframe>',
        '<link rel="stylesheet" href="absent.css">',
        '<link rel="stylesheet" href="deep.css">',
        '<script src="deep.js"></script>',
        '<script src="tex-mathjax.js"></script>',
    ],
)
def test_the_check_sees_every_way_of_loading(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "deep.css").write_text(
        "/* https://a.example */ @font-face { src: url(https://cdn.example.org/a.woff2) }"
    )
    (tmp_path / "deep.js").write_text('import("https://cdn.example.org/a.js")')
    (tmp_path / "tex-mathjax.js").write_text("")
    (tmp_path / "index.html").write_text(f"<html><body>{text}</body></html>")
    assert len(site_check.problems(tmp_path)) == 1


def test_the_check_lets_ordinary_links_pass(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://example.org/">x</a> <link rel="canonical" href="https://example.org/"> '
        '<img src="data:image/png;base64,AAAA"> <p>url(https://example.org)</p> '
        '<script>const home = "https://example.org/"; /* import x from y */</script>'
    )
    assert site_check.problems(tmp_path) == []


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[browser.Browser]:
    if browser.PROGRAM is None:
        pytest.skip("no Chromium on this machine; the pages are checked as files only")
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="session")
def address(html: Path) -> Iterator[str]:
    with browser.served(html) as found:
        yield found


def no_trouble(visit: browser.Visit, address: str) -> None:
    outside = [
        url for url in visit.requests if not url.startswith((f"{address}/", "data:", "blob:", "about:"))
    ]
    assert (outside, visit.failures, visit.errors) == ([], [], [])


@pytest.mark.parametrize("name", ["index", "03_sample", "04_slider", "plain", "bibliography"])
def test_a_page_asks_no_other_host_and_reports_no_error(
    chromium: browser.Browser, address: str, name: str
) -> None:
    no_trouble(chromium.visit(f"{address}/book/{name}.html"), address)


@pytest.mark.parametrize("name", ["index", "03_sample", "04_slider", "bibliography"])
def test_a_narrow_page_does_not_scroll_sideways(chromium: browser.Browser, address: str, name: str) -> None:
    script = """
      document.querySelectorAll('details').forEach(d => d.open = true);
      document.scrollingElement.scrollWidth"""
    assert chromium.visit(f"{address}/book/{name}.html", script, width=360).values == [360]


def test_wide_tables_and_code_scroll_in_themselves(chromium: browser.Browser, address: str) -> None:
    script = """
      const scrolls = element => { for (let e = element; e; e = e.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return e.scrollWidth > e.clientWidth;
        return false; };
      const output = document.querySelector('.cell_output pre');  // a long line of output wraps
      [scrolls(document.querySelector('article table')), scrolls(document.querySelector('.cell_input pre')),
       output.scrollWidth <= output.clientWidth]"""
    assert chromium.visit(f"{address}/book/03_sample.html", script, width=360).values == [[True, True, True]]


def test_a_line_of_text_holds_some_seventy_characters(chromium: browser.Browser, address: str) -> None:
    script = """
      const p = document.querySelector('article p'); const range = document.createRange();
      const walk = document.createTreeWalker(p, NodeFilter.SHOW_TEXT); let last, text = '';
      while (walk.nextNode())
        if (walk.currentNode.data.length > text.length) { last = walk.currentNode; text = last.data; }
      const lines = {};
      for (let i = 0; i < text.length; i++) { range.setStart(last, i); range.setEnd(last, i + 1);
        const top = Math.round(range.getBoundingClientRect().top); lines[top] = (lines[top] || 0) + 1; }
      Math.max(...Object.values(lines))"""
    assert 60 <= chromium.visit(f"{address}/book/03_sample.html", script).values[0] <= 85


def test_a_page_is_light(chromium: browser.Browser, address: str, html: Path) -> None:
    script = "performance.getEntriesByType('resource').map(e => [e.name, e.encodedBodySize])"
    size = 0
    for url in dict.fromkeys(chromium.visit(f"{address}/book/03_sample.html", script).requests):
        path = html / urlsplit(url).path.lstrip("/")
        if url.startswith(address) and path.is_file():
            data = path.read_bytes()
            size += len(data) if path.suffix in (".woff", ".woff2", ".png") else len(gzip.compress(data))
    assert 50_000 < size < 350_000


def test_a_slider_works_without_a_kernel(chromium: browser.Browser, address: str) -> None:
    shown = """[...document.querySelectorAll('article .jupyter-widgets b')]
      .filter(e => e.offsetParent).map(e => e.innerText)"""
    ready = f"""new Promise((done, fail) => {{ const end = Date.now() + 10000; const look = () => {{
      const found = {shown}; if (found.length) done(found);
      else if (Date.now() > end) fail(document.querySelector('article').innerHTML.slice(0, 500));
      else setTimeout(look, 50); }}; look(); }})"""
    press = """(() => { const handle = document.querySelector('.noUi-handle'); handle.focus();
      handle.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})); })()"""
    wait = "new Promise(done => setTimeout(done, 300))"
    visit = chromium.visit(f"{address}/book/04_slider.html", ready, press, wait, shown)
    assert visit.values[0] == ["row zero"] and visit.values[3] == ["row one"]
    no_trouble(visit, address)


COLOURS = """
  const luminance = colour => {
    const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    c.fillStyle = colour; c.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...c.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const paper = element => { for (let e = element; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; }
    return 'white'; };
  const contrast = (element, colour) => { const [a, b] = [luminance(colour), luminance(paper(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
"""
PAGE = """
  [...['article p', '.katex', '.cell_output pre', '.cell_input pre', 'figcaption', 'summary', 'article td',
       '.bd-footer-content p'].map(s => document.querySelector(s))
       .map(e => contrast(e, getComputedStyle(e).color)),
   (e => contrast(e, getComputedStyle(e).fill))(document.querySelector('svg.figure-svg text')),
   (e => contrast(e, 'black'))(document.querySelector('.cell_output img'))]
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_figures_and_plots_are_readable_in_light_and_dark(
    chromium: browser.Browser, address: str, dark: bool
) -> None:
    url = f"{address}/book/03_sample.html"
    visit = chromium.visit(url, COLOURS + PAGE, "document.documentElement.dataset.theme", dark=dark)
    assert visit.values[1] == (
        "dark" if dark else "light"
    )  # the page follows the system until the reader chooses
    assert min(visit.values[0]) >= 4.5, visit.values[0]


def test_a_slider_is_readable_in_the_dark(chromium: browser.Browser, address: str) -> None:
    label = """[...document.querySelectorAll('.widget-label, article .jupyter-widgets b')]
      .filter(e => e.offsetParent && e.innerText.trim()).map(e => contrast(e, getComputedStyle(e).color))"""
    visit = chromium.visit(f"{address}/book/04_slider.html", COLOURS + label, dark=True, settle=1.5)
    assert len(visit.values[0]) >= 2 and min(visit.values[0]) >= 4.5, visit.values[0]


def test_the_reader_can_switch_the_theme_and_figures_follow(chromium: browser.Browser, address: str) -> None:
    fill = "getComputedStyle(document.querySelector('svg.figure-svg text')).fill"
    click = """(() => { for (let i = 0; i < 3 && document.documentElement.dataset.theme !== 'dark'; i++)
      document.querySelector('.theme-switch-button').click(); })()"""
    visit = chromium.visit(f"{address}/book/03_sample.html", fill, click, fill)
    assert visit.values[0] != visit.values[2]


def test_search_copy_buttons_and_folds_work(chromium: browser.Browser, address: str) -> None:
    found = """new Promise(done => { const end = Date.now() + 8000; const look = () => {
      const links = [...document.querySelectorAll('#search-results a')].map(a => a.getAttribute('href'));
      links.length || Date.now() > end ? done(links.join(' ')) : setTimeout(look, 50); }; look(); })"""
    visit = chromium.visit(f"{address}/search.html?q=footnote", found)
    assert "03_sample.html" in visit.values[0]
    no_trouble(visit, address)
    fold = """(() => {
      const d = document.querySelector('details.admonition.solution'); const before = d.offsetHeight;
      d.querySelector('summary').click(); return d.open && d.offsetHeight > before; })()"""
    copies = "document.querySelectorAll('.cell_input button.copybtn').length"
    visit = chromium.visit(f"{address}/book/03_sample.html", fold, copies)
    assert visit.values == [True, 2]


def test_icons_are_drawn(chromium: browser.Browser, address: str) -> None:
    """Every icon of the page has a glyph in the fonts that were cut down to what is used."""
    script = """document.fonts.ready.then(() =>
      [...document.querySelectorAll('i[class*="fa-"], .admonition-title')].map(e => {
      const s = getComputedStyle(e, e.tagName === 'I' ? '::before' : '::after');
      const text = s.content.replaceAll('"', ''); if (!/[\\ue000-\\uf8ff]/.test(text)) return null;
      const c = document.createElement('canvas').getContext('2d');
      const draw = t => { c.canvas.width = c.canvas.height = 40;
        c.font = `${s.fontWeight} 24px ${s.fontFamily}`;
        c.fillText(t, 4, 30); return c.canvas.toDataURL(); };
      return [e.className, text, draw(text) !== draw('\\uf8fe'), draw(text) !== draw(' ')];
      }).filter(Boolean))"""
    drawn = chromium.visit(f"{address}/book/03_sample.html", script).values[0]
    assert len(drawn) >= 8
    assert [icon for icon in drawn if not (icon[2] and icon[3])] == []


def test_the_keyboard_reaches_the_text_first_and_focus_is_seen(
    chromium: browser.Browser, address: str
) -> None:
    script = """(() => { const a = document.querySelector('#pst-skip-link a'); a.focus();
      const s = document.querySelector('article details summary'); s.focus({focusVisible: true});
      const style = getComputedStyle(s);
      return [a.getAttribute('href'), style.outlineStyle, parseFloat(style.outlineWidth) >= 2]; })()"""
    assert chromium.visit(f"{address}/book/03_sample.html", script).values == [
        ["#main-content", "solid", True]
    ]


def test_configuration_keeps_what_the_design_needs() -> None:
    settings = course.config()
    assert settings["sphinx"]["recursive_update"] is True
    assert settings["sphinx"]["config"]["html_theme_options"]["navbar_persistent"] == []
    assert settings["sphinx"]["config"]["html_context"]["default_mode"] == "auto"
    assert {".*", "_build", "book/*.ipynb"} <= set(settings["exclude_patterns"])
    assert json.dumps(settings).count("https://") == 2  # the repository and Colab
