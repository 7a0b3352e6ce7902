"""The Sphinx extension of this book: what its pages load, and how folded text and figures are written.

Nothing comes from another host. KaTeX and the widget manager are laid out by `tools.browser_libraries`;
mathematics is typeset while the book is built. What the theme and Jupyter Book add and no page of this book
uses (thebe, toggle buttons, tabs, most icons) is left out.

Nothing is executed: pages show the recorded runs. A chapter without one stops the build.

Figures. An SVG below `book/figures/` that a `figure` or `image` directive names is written into the page
itself, so that it follows the switch between light and dark; an `<img>` cannot, since it sees the system's
choice and never the reader's. Its colours are variables of the page (`course.css`), each with a value of its
own for the places where the file stands alone, such as Colab: `fill: var(--figure-ink, #1f2328)`. Its style
rules apply to this figure only, its ids are made unique, and the directive's `alt` becomes its label for
screen readers. `tools/FIGURES.md` tells authors how to draw one.

Folded text. `admonition` and `solution` with `:class: dropdown` become `<details>`, which need no script.
"""

from __future__ import annotations

import atexit
import io
import logging as python_logging
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import myst_nb.core.execute.cache
import sphinxcontrib.katex as katex  # type: ignore[import-untyped]
from docutils import nodes  # type: ignore[import-untyped]
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx_exercise.nodes import solution_node  # type: ignore[import-untyped]

from tools import browser_libraries, course

LOGGER = logging.getLogger(__name__)
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"

# Scripts and style sheets that no page of this book uses.
UNUSED = {"design-tabs.js", "sphinx-thebe.js", "sphinx-thebe.css", "togglebutton.js", "togglebutton.css"}
UNUSED_VARIABLES = re.compile(
    r"THEBE_JS_URL|thebe_selector|toggleHint|toggleOpenOnPrint|togglebuttonSelector"
)


# ---------------------------------------------------------------- set-up


def use_local_libraries(app: Sphinx, config: Config) -> None:
    """Serve the laid-out libraries, and typeset with the node and the KaTeX that came with them."""
    if not browser_libraries.present():
        raise ExtensionError("vendor/: not laid out for these pins; run python -m tools.browser_libraries")
    # Not in `_static`: Jupyter Book loads every script below that folder on every page.
    config.html_static_path.append(str(browser_libraries.SERVED))
    config.katex_js_path = str(browser_libraries.KATEX)
    katex.NODEJS_BINARY = str(browser_libraries.node())
    katex.render_latex = typeset
    katex.KaTeXServer.start_server_process = staticmethod(start_katex)
    katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = 60.0  # a busy machine is no error


def refuse_to_execute(*_: Any, **__: Any) -> None:
    raise ExtensionError("this chapter has no recorded run with the same code; run make record")


def depend_on_twin(app: Sphinx, docname: str, source: list[str]) -> None:
    """A page is read again when its recorded run has changed."""
    twin = course.twin(Path(app.env.doc2path(docname)))
    if twin.is_file():
        app.env.note_dependency(str(twin))


def name_labels(app: Sphinx, env: Any) -> None:
    """Let `[text](page.md#label)` reach `(label)=`; MyST knows only the headings of another page."""
    for label, (docname, target, title) in env.domaindata["std"]["labels"].items():
        env.metadata[docname].setdefault("myst_slugs", {}).setdefault(label, (0, target, title))
    for label, (docname, target) in env.domaindata["std"]["anonlabels"].items():
        env.metadata[docname].setdefault("myst_slugs", {}).setdefault(label, (0, target, label))


# ---------------------------------------------------------------- folded text


class fold(nodes.General, nodes.Element):
    """A block that opens on a click, written as <details>."""


class fold_title(nodes.General, nodes.TextElement):
    """The line of a fold that is always seen, written as <summary>."""


def visit_fold(self: Any, node: fold) -> None:
    self.body.append(self.starttag(node, "details", CLASS="admonition"))


def depart_fold(self: Any, node: fold) -> None:
    self.body.append("</details>\n")


def visit_fold_title(self: Any, node: fold_title) -> None:
    self.body.append(self.starttag(node, "summary", "", CLASS="admonition-title"))


def depart_fold_title(self: Any, node: fold_title) -> None:
    self.body.append("</summary>\n")


def write_folds(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for node in list(doctree.findall(lambda node: isinstance(node, (nodes.admonition, solution_node)))):
        if "dropdown" not in node.get("classes", []) or not isinstance(node[0], nodes.title):
            continue
        title, *content = node.children
        folded = fold("", ids=node["ids"], classes=node["classes"])
        folded += fold_title("", "", *title.children)
        folded += content
        node.replace_self(folded)


# ---------------------------------------------------------------- figures


def inline_svg(path: Path, label: str, prefix: str, size: dict[str, str]) -> str:
    """The figure as markup for the page; `prefix` makes its ids and its style rules its own."""
    for short, name in (("", SVG), ("xlink", XLINK)):
        ElementTree.register_namespace(short, name)
    root = ElementTree.parse(path).getroot()
    if root.tag != f"{{{SVG}}}svg" or "viewBox" not in root.attrib:
        raise ValueError("a figure must be an <svg> with a viewBox")
    root.set("id", prefix)
    root.set("class", f"figure-svg {root.get('class', '')}".strip())
    root.set("role", "img")
    root.set("aria-label", label)
    root.attrib.pop("aria-labelledby", None)
    if size:
        root.set("style", "".join(f"{key}: {value};" for key, value in size.items()))
    for element in root.iter():
        for child in list(element):
            if child.tag in (f"{{{SVG}}}title", f"{{{SVG}}}desc", f"{{{SVG}}}metadata"):
                element.remove(child)  # the label says it; a title would show as a tooltip
        if element is not root and "id" in element.attrib:
            element.set("id", f"{prefix}-{element.get('id')}")
        for key, value in element.attrib.items():
            value = re.sub(r"url\((['\"]?)#", rf"url(\1#{prefix}-", value)
            if key in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
                value = f"#{prefix}-{value[1:]}"
            element.set(key, value)
        if element.tag == f"{{{SVG}}}style" and element.text:
            rules = re.sub(r"/\*.*?\*/", "", element.text, flags=re.DOTALL)
            rules = re.sub(r"(^|[{},;])(\s*)(?:svg|:root)(?=\s*[{,])", r"\1\2&", rules)
            rules = re.sub(r"url\((['\"]?)#", rf"url(\1#{prefix}-", rules)
            element.text = f"#{prefix} {{ {rules} }}"
    text = io.StringIO()
    ElementTree.ElementTree(root).write(text, encoding="unicode", short_empty_elements=True)
    return text.getvalue()


def place(node: nodes.Node | None) -> nodes.Node | None:
    """The node, or the nearest one around it, that knows its line."""
    while node is not None and not node.line:
        node = node.parent
    return node


def write_figures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    figures = course.ROOT / "book" / "figures"
    for count, node in enumerate(list(doctree.findall(nodes.image))):
        path = Path(app.srcdir, node["uri"]).resolve()
        if path.suffix != ".svg" or not path.is_relative_to(figures):
            continue
        label = node.get("alt", "").strip()
        if not label:
            LOGGER.warning(
                "%s: a figure needs :alt: text that says what it shows", node["uri"], location=place(node)
            )
        size = {key: node[key] for key in ("width", "height") if key in node}
        try:
            markup = inline_svg(path, label, f"figure-{count}-{path.stem}", size)
        except (ValueError, ElementTree.ParseError) as error:
            LOGGER.warning("%s: %s", course.short(path), error, location=place(node))
            continue
        node.replace_self(nodes.raw("", markup, format="html"))


# ---------------------------------------------------------------- exercises


def link_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """In an exercise notebook links to pages go to the repository, for Colab; on the site, to the page."""
    if not docname.startswith("exercises/"):
        return
    url, branch = course.repository()
    start = f"{url}/blob/{branch}/"
    for node in doctree.findall(nodes.reference):
        target, _, anchor = node.get("refuri", "").partition("#")
        page = re.sub(r"\.(ipynb|md)$", "", target.removeprefix(start))
        if target.startswith(start) and page in app.env.found_docs:
            node["refuri"] = app.builder.get_relative_uri(docname, page) + (f"#{anchor}" if anchor else "")
            node["internal"] = True


# ---------------------------------------------------------------- mathematics


def start_katex(rundir: Path, timeout: float) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the KaTeX server and connect once it listens; its socket file appears a moment earlier."""
    path = rundir / "katex.sock"
    command = katex.KaTeXServer.build_command(socket=path)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=rundir)
    atexit.register(process.kill)
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return process, connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if process.poll() is not None or time.monotonic() > deadline:
                raise ExtensionError(f"KaTeX: {command[0]} did not start within {timeout:.0f} s") from None
            time.sleep(0.01)


def typeset(latex: str, options: dict[str, Any] | None = None, render: Any = katex.render_latex) -> str:
    """Typeset a formula. Sphinx numbers equations, so KaTeX must not number `align` and its like again."""
    numbered = r"\\(begin|end)\{(equation|align|gather|alignat|multline|flalign|eqnarray)\}"
    html: str = render(re.sub(numbered, r"\\\1{\2*}", latex), options)
    return html


# ---------------------------------------------------------------- pages


def report_bad_mathematics(app: Sphinx, doctree: nodes.document | None, body: str) -> None:
    """KaTeX writes what it cannot typeset in red; here that is a warning with the line of the formula."""
    if doctree is None or "katex-error" not in body:
        return
    for node in doctree.findall(lambda node: isinstance(node, (nodes.math, nodes.math_block))):
        display = isinstance(node, nodes.math_block)
        html = typeset(node.astext(), {"displayMode": display})
        if error := re.search(r'class="katex-error"[^>]*title="([^"]*)"', html):
            LOGGER.warning("%s", error.group(1), location=place(node))


def trim_page(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out what no page uses, and check the mathematics."""
    report_bad_mathematics(app, doctree, context.get("body", ""))
    for kind in ("script_files", "css_files"):
        context[kind] = [
            item
            for item in context.get(kind, [])
            if str(getattr(item, "filename", item)).rsplit("/", 1)[-1].split("?")[0] not in UNUSED
            and not UNUSED_VARIABLES.search(getattr(item, "attributes", {}).get("body", "") or "")
        ]


# ---------------------------------------------------------------- the finished site


def serve_twins(outdir: Path) -> None:
    """The page's download is the recorded run; the theme's own copy lacks the outputs."""
    for chapter in course.chapters():
        copy = outdir / "_sources" / chapter.relative_to(course.ROOT).with_suffix(".ipynb")
        if copy.is_file():
            shutil.copyfile(course.twin(chapter), copy)


def subset_icons(outdir: Path) -> None:
    """Of the theme's icon fonts and rules, keep the icons that the pages and scripts of this book name."""
    from fontTools import subset  # type: ignore[import-untyped]
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

    python_logging.getLogger("fontTools").setLevel(python_logging.ERROR)

    static = outdir / "_static"
    sheet = static / "styles" / "pydata-sphinx-theme.css"
    css = sheet.read_text(encoding="utf-8")
    texts = [*outdir.rglob("*.html"), *(static / "scripts").glob("*theme.js")]
    used = {
        name for path in texts for name in re.findall(r"\bfa-[a-z0-9-]+", path.read_text(encoding="utf-8"))
    }
    points: set[int] = set()

    def keep(rule: re.Match[str]) -> str:
        names = {name[1:].removesuffix(":before") for name in rule.group(1).split(",")}
        if not names & used:
            return ""
        points.add(int(rule.group(2), 16))
        return rule.group(0)

    css = re.sub(r'((?:\.fa-[\w-]+:before,?)+)\{content:"\\([0-9a-f]+)"\}', keep, css)
    for text in (css, *(path.read_text(encoding="utf-8") for path in static.rglob("*.css") if path != sheet)):
        # Icons of admonitions, written as escapes or as the characters of the private use area themselves.
        points |= {int(point, 16) for point in re.findall(r'"\\([ef][0-9a-f]{3})"', text)}
        points |= {ord(character) for character in text if "\ue000" <= character <= "\uf8ff"}
    fonts = static / "vendor" / "fontawesome" / "webfonts"
    for name in ("fa-solid-900", "fa-regular-400", "fa-brands-400"):
        font = TTFont(fonts / f"{name}.ttf")
        cutter = subset.Subsetter(subset.Options(hinting=False))
        cutter.populate(unicodes=points)
        cutter.subset(font)
        font.flavor = "woff"
        font.save(fonts / f"{name}.woff")
        css = re.sub(
            rf"src:url\([^)]*{name}\.woff2\)[^;}}]*",
            f'src:url(../vendor/fontawesome/webfonts/{name}.woff) format("woff")',
            css,
        )
    sheet.write_text(css, encoding="utf-8")


def drop_unused_files(outdir: Path) -> None:
    static = outdir / "_static"
    for pattern in (
        "scripts/*.map",
        "styles/*.map",
        "scripts/fontawesome.*",
        "vendor/fontawesome/webfonts/*.ttf",
    ):
        for path in static.glob(pattern):
            path.unlink()
    for path in (static / "vendor" / "fontawesome" / "webfonts").glob("*.woff2"):
        path.unlink()
    for name in UNUSED:
        (static / name).unlink(missing_ok=True)
    for path in static.glob("*webpack-macros.html"):
        path.unlink()
    for page in outdir.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        # The theme draws its icons with a script of 1.5 MB; the fonts below draw the same ones.
        slim = re.sub(
            r"\s*<!-- So that users can add custom icons -->\s*<script[^>]*fontawesome\.js[^>]*></script>",
            "",
            text,
        )
        if slim != text:
            page.write_text(slim, encoding="utf-8")


def finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        outdir = Path(app.outdir)
        serve_twins(outdir)
        subset_icons(outdir)
        drop_unused_files(outdir)


def setup(app: Sphinx) -> dict[str, Any]:
    myst_nb.core.execute.cache.single_nb_execution = refuse_to_execute
    app.add_node(fold, html=(visit_fold, depart_fold))
    app.add_node(fold_title, html=(visit_fold_title, depart_fold_title))
    app.connect("config-inited", use_local_libraries)
    app.connect("source-read", depend_on_twin)
    app.connect("env-updated", name_labels)
    app.connect("doctree-resolved", write_folds)
    app.connect("doctree-resolved", write_figures)
    app.connect("doctree-resolved", link_pages)
    app.connect("html-page-context", trim_page, priority=900)
    app.connect("build-finished", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
