"""Drawn figures: safe to write into a page, and every number in them is the one that is computed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from minigpt import array, example
from tools import course

FIGURES = sorted((course.ROOT / "book" / "figures").glob("*.svg"))
BLOCK = course.ROOT / "book" / "figures" / "block.svg"
SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")
OUTSIDE = re.compile(r"https?:|//|@import|\burl\((?!\s*['\"]?#)|\bdata:", re.IGNORECASE)


def faults(svg: str) -> Iterator[str]:
    """What keeps an SVG from being a figure of this book."""
    root = ElementTree.fromstring(svg)
    if root.tag != f"{SVG}svg":
        yield f"root: got {root.tag}, expected svg in the namespace of SVG"
    sizes = root.get("viewBox", "").split()
    if len(sizes) != 4:
        yield "root: no viewBox of four numbers"
    elif (root.get("width"), root.get("height")) != (sizes[2], sizes[3]):
        yield "root: width and height are not those of the viewBox"
    said = [child for child in root if child.tag in (f"{SVG}title", f"{SVG}desc") and child.text]
    if not said and not root.get("aria-label"):
        yield "root: no title, no desc and no aria-label"
    if not set(root.get("aria-labelledby", "").split()) <= {child.get("id") for child in said}:
        yield "root: aria-labelledby names what is not there"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    if len(ids) != len(set(ids)):
        yield "an id occurs twice"
    for element in root.iter():
        name = element.tag.removeprefix(SVG)
        if name in ("script", "foreignObject", "image", "animate", "set"):
            yield f"<{name}> is not allowed"
        for key, value in element.attrib.items():
            if key.lower().startswith("on"):
                yield f"<{name}> has the script attribute {key}"
            if key.endswith("href") and not value.startswith("#"):
                yield f"<{name}> refers to {value}"
            if OUTSIDE.search(value):
                yield f"<{name}> {key}={value} refers to another place"
            found = re.search(r"url\(['\"]?#([^'\")]+)", value)
            if found and found[1] not in ids:
                yield f"<{name}> {key} refers to #{found[1]}, which is not there"
        if name == "style" and OUTSIDE.search(element.text or ""):
            yield "the style refers to another place"


def stages() -> dict[str, np.ndarray]:
    """Row 1 of every stage that the figure of the block may show."""
    x, weights = example.arrays()
    _, record = array.block(x, weights, example.N_HEAD, example.EPS)
    before = {"E": np.array(example.E), "P": np.array(example.P), "X": x}
    return {name: value[0] for name, value in (before | record).items()}


def wrong_numbers(svg: str) -> list[str]:
    """The numbers of the block's figure that are not the computed ones, or that no stage vouches for."""
    root = ElementTree.fromstring(svg)
    computed = stages()
    sizes = {"C": len(computed["X"]), "F": len(computed["hidden"])}
    wrong, vouched = [], set()
    shown = {group.get("data-stage"): group for group in root.iter(f"{SVG}g") if group.get("data-stage")}
    if list(shown) != list(computed):
        wrong.append(f"stages: got {list(shown)}, expected {list(computed)}")
    for name, group in shown.items():
        texts = [text for text in group.iter(f"{SVG}text") if text.get("class") != "name"]
        vouched |= set(texts)
        if len(texts) != len(computed.get(name or "", ())):
            wrong.append(f"{name}: got {len(texts)} numbers")
            continue
        for text, number in zip(texts, computed[name or ""].tolist(), strict=True):
            printed = (text.text or "").replace("−", "-")
            decimals = len(printed.partition(".")[2])
            exact = decimals > 0 or float(printed) == number  # a whole number is printed where it is exact
            if decimals not in (0, 6) or printed != f"{number:.{decimals}f}" or not exact:
                wrong.append(f"{name}: got {printed}, expected {number:.6f}")
    for text in root.iter(f"{SVG}text"):
        axis = text.get("data-axis")
        if axis and text.text != f"{axis} = {sizes[axis]}":
            wrong.append(f"axis {axis}: got {text.text}, expected {sizes[axis]}")
        loose = not axis and text not in vouched and text.text != "t = 1"
        if loose and NUMBER.search("".join(text.itertext())):
            wrong.append(f"{text.text}: a number that no stage vouches for")
    return wrong


def test_there_are_figures() -> None:
    assert BLOCK in FIGURES


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.name)
def test_a_figure_is_safe_and_labelled(path: Path) -> None:
    assert list(faults(path.read_text(encoding="utf-8"))) == []


def test_every_number_of_the_block_is_computed() -> None:
    assert wrong_numbers(BLOCK.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.999940", "2.999941"),
        ("−0.999980", "0.999980"),
        (">1.999980<", ">2<"),  # rounded to a whole number, which it is not
        (">U<", ">U 1.5<"),
        ("F = 3", "F = 4"),
        ('data-stage="norm2"', 'data-stage="norm1"'),
        ('data-stage="output"', 'data-stage="ffn"'),
    ],
)
def test_a_wrong_number_of_the_block_is_found(old: str, new: str) -> None:
    svg = BLOCK.read_text(encoding="utf-8")
    assert old in svg
    assert wrong_numbers(svg.replace(old, new, 1))


def test_all_printed_decimals_are_looked_at() -> None:
    """Change one digit of each number in turn."""
    svg = BLOCK.read_text(encoding="utf-8")
    found = list(re.finditer(r"(?<=>)[−]?\d\.\d{6}(?=<)", svg))
    assert len(found) == 12
    for match in found:
        step = Decimal("0.000001")
        changed = str(Decimal(match[0].replace("−", "-")) + step).replace("-", "−")
        assert wrong_numbers(svg[: match.start()] + changed + svg[match.end() :]), match[0]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("</svg>", "<script>1</script></svg>", "script"),
        ("</svg>", '<rect onclick="1"/></svg>', "onclick"),
        ("</svg>", '<a href="https://example.org"/></svg>', "https"),
        ("<defs>", '<image href="x.png"/><defs>', "image"),
        (".paper {", "@import 'x.css'; .paper {", "style"),
        (".paper {", ".paper { background: url(x.png);", "style"),
        ("url(#head)", "url(#tail)", "tail"),
        ('viewBox="0 0 680 790"', "", "viewBox"),
        ('aria-labelledby="title desc"', 'aria-labelledby="name"', "labelledby"),
        ('id="desc"', 'id="title"', "twice"),
    ],
)
def test_a_figure_with_a_fault_is_found(old: str, new: str, fault: str) -> None:
    svg = BLOCK.read_text(encoding="utf-8")
    assert old in svg
    assert any(fault in found for found in faults(svg.replace(old, new, 1)))


def test_a_figure_without_a_label_is_found() -> None:
    bare = re.sub(r"<(title|desc).*?</\1>| aria-labelledby=\"[^\"]*\"", "", BLOCK.read_text(encoding="utf-8"))
    assert list(faults(bare)) == ["root: no title, no desc and no aria-label"]
