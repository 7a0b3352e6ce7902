"""Check a built site: every resource that its pages load is a file of the site itself.

Ordinary links may lead anywhere. What a page loads by itself (scripts, styles, images, fonts, frames, and
what those load in turn) may not.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

# Attributes by which an element loads something. <link> depends on its rel, see below.
LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "frame": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "audio": ("src",),
    "video": ("src", "poster"),
    "track": ("src",),
    "input": ("src",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
    "feimage": ("href", "xlink:href"),
    "body": ("background",),
    "base": ("href",),
}
LINKS = {
    "stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "prerender",
    "icon", "apple-touch-icon", "mask-icon", "manifest",
}  # fmt: skip
ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
CSS_LOAD = re.compile(r"""url\(\s*(?:"([^"]*)"|'([^']*)'|([^)"']*))\s*\)|@import\s+(?:"([^"]*)"|'([^']*)')""")
JS_LOAD = re.compile(
    r"""(?:\bimport\s*(?:[\w*{}\s,$]+?\bfrom\s*)?|\bexport\s*[\w*{}\s,$]+?\bfrom\s*|\bimport\s*\(\s*|"""
    r"""\bimportScripts\s*\(\s*|\bfetch\s*\(\s*|\.src\s*=\s*|\bnew\s+(?:Worker|EventSource|WebSocket)\s*\(\s*)"""
    r"""["'`]([^"'`\n]*)["'`]"""
)
WIDGETS = {"@jupyter-widgets/base", "@jupyter-widgets/controls", "@jupyter-widgets/output"}
FORBIDDEN = ("mathjax", "require.js", "require.min.js", "thebe")


class Page(HTMLParser):
    """What one page loads: addresses, and the style and script text that stands in it."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.styles: list[str] = []
        self.scripts: list[str] = []
        self.widgets: list[str] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        names: tuple[str, ...] = LOADS.get(tag, ())
        if tag == "link" and LINKS & set(values.get("rel", "").lower().split()):
            names = ("href",)
        for name in names:
            if name in values:
                parts = values[name].split(",") if name == "srcset" else [values[name]]
                self.addresses += [part.strip().split(" ")[0] for part in parts]
        if tag == "meta" and values.get("http-equiv", "").lower() == "refresh":
            self.addresses += re.findall(
                r"url\s*=\s*['\"]?([^'\"]+)", values.get("content", ""), re.IGNORECASE
            )
        if "style" in values:
            self.styles.append(values["style"])
        if tag in ("style", "script"):
            kind = values.get("type", "")
            self._within = "widgets" if "widget-state" in kind else "" if "json" in kind else tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("style", "script"):
            self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "style":
            self.styles.append(data)
        elif self._within == "script":
            self.scripts.append(data)
        elif self._within == "widgets":
            self.widgets.append(data)


def css_loads(text: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return [next((part for part in groups if part), "") for groups in CSS_LOAD.findall(text)]


def problems(html: Path) -> list[str]:
    """One line for each resource that lies on another host or is missing: who loads it, and its address."""
    found: list[str] = []
    seen: set[Path] = set()

    def visit(owner: Path, page: Path, address: str) -> None:
        """`owner` is the file in which the address stands, `page` the one it is resolved against."""
        address = address.strip()
        if not address or address.startswith(("#", "data:", "blob:", "about:", "javascript:")):
            return
        name = owner.relative_to(html).as_posix()
        if ELSEWHERE.match(address):
            found.append(f"{name}: loads {address} from another host")
            return
        path = unquote(urldefrag(address)[0].split("?")[0])
        target = (html / path[1:] if path.startswith("/") else page.parent / path).resolve()
        if not target.is_relative_to(html.resolve()):
            found.append(f"{name}: loads {address}, which lies outside the site")
        elif not target.is_file():
            found.append(f"{name}: loads {address}, but there is no such file")
        elif any(word in target.name.lower() for word in FORBIDDEN):
            found.append(f"{name}: loads {address}, which no page of this book needs")
        elif target not in seen:
            seen.add(target)
            follow(target)

    def follow(path: Path) -> None:
        if path.suffix == ".css":
            for address in css_loads(path.read_text(encoding="utf-8")):
                visit(path, path, address)
        elif path.suffix in (".js", ".mjs"):
            for address in JS_LOAD.findall(path.read_text(encoding="utf-8")):
                if ELSEWHERE.match(address):
                    visit(path, path, address)
        elif path.suffix == ".svg":
            read(path)

    def read(path: Path) -> None:
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        for address in page.addresses:
            visit(path, path, address)
        for style in page.styles:
            for address in css_loads(style):
                visit(path, path, address)
        for script in page.scripts:
            for address in JS_LOAD.findall(script):
                if ELSEWHERE.match(address):
                    visit(path, path, address)
        for state in page.widgets:
            for model in json.loads(state).get("state", {}).values():
                if model.get("model_module") not in WIDGETS:
                    name = path.relative_to(html).as_posix()
                    found.append(
                        f"{name}: the widget {model.get('model_name')} is not one of ipywidgets' own"
                    )

    html = html.resolve()
    for path in sorted(html.rglob("*.html")):
        if "_sources" not in path.parts and "_static" not in path.relative_to(html).parts:
            read(path)
    return list(dict.fromkeys(found))
