"""Numbers of the prose: which are found, which are names, what backs them; a changed digit is seen."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_course import HEADER, record, small_course

from tools import course, prose_numbers

CODE = "```{code-cell} ipython3\nx = 1\n```\n"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Path]:
    with small_course(tmp_path, {"index": "# Home\n", "book/01_a": f"{HEADER}# A\n\n{CODE}"}) as root:
        yield root / "book" / "01_a.md"


def prose(text: str) -> list[str]:
    """The numbers of a paragraph that need backing, with + or - or ? in front where it is no plain +."""
    shown = prose_numbers.visible(text, course.ROOT / "text.md", 1)
    found = prose_numbers.numbers(prose_numbers.blank(prose_numbers._names(course.ROOT), shown))
    signs = {(1,): "", (-1,): "-", (1, -1): "?"}
    return [f"{signs[n.signs]}{n.size.normalize():g}" for n in found if not n.small]


FOUND = {
    "It is 1.48, or .5, and 0.999980.": ["1.48", "0.5", "0.99998"],
    "gives -0.5 and −0.25; (-1.5), [-2.5], `-3.5` and = −4.5": [
        "-0.5",
        "-0.25",
        "-1.5",
        "-2.5",
        "-3.5",
        "-4.5",
    ],
    "$=-0.5$ $\\approx-0.5$ $\\approx 1.5$ $\\approx1.5$ $\\frac{-0.5}{2.5}$": [
        "-0.5",
        "-0.5",
        "1.5",
        "1.5",
        "-0.5",
        "2.5",
    ],
    "$a-0.5$ and $\\gamma-0.5$ and 0.5-1.5 and 0.5–1.5": ["0.5", "0.5", "0.5", "1.5", "0.5", "1.5"],
    "$x - 0.5$ and ±0.5 and $\\pm0.5$ and $(a)-0.5$": ["?0.5", "?0.5", "?0.5", "?0.5"],
    "1e-5, 2.5E+03, $10^{-5}$, $10^3$, 10⁻⁵, $10^{−5}$, `10**-5`": [
        "1e-5",
        "2.5e+3",
        "0.00001",
        "1e+3",
        "0.00001",
        "0.00001",
        "0.00001",
    ],
    "$2.78\\times10^{-17}$, 2.78×10⁻¹⁷, $3\\cdot10^5$, $-2.5\\times 10^{3}$": [
        "2.78e-17",
        "2.78e-17",
        "3e+5",
        "-2.5e+3",
    ],
    "12,288 and 12 288 and 12\u202f288 and $12{,}288$ and $12\\,288$ and `12_288`": ["12288"] * 6,
    "50257 rows of 1234 numbers, 1,000,000 in all, 2048 of them, 1.5x": [
        "50257",
        "1234",
        "1e+6",
        "2048",
        "1.5",
    ],
    "shapes [2,128], `[1,100,200]` and (2, 128); 100, 200": [],
    "a list [0.5,0.25] and [1024,2048]": ["0.5", "0.25", "1024", "2048"],
    "a half is 1/2, 3 of 100, from 0..31, with 32 rows and 768": [],
    "12.5% and 12.5 % and $12.5\\%$": ["12.5"] * 3,
    "**0.125** *0.25* `y = 0.5` <b>0.75</b> ![a 1.5](x-9.5.png)": ["0.125", "0.25", "0.5", "0.75", "1.5"],
    "It was 1.4 MiB, 2.5 GiB and 3.5ms.": ["1.4", "2.5", "3.5"],
    # addresses, labels and keys
    "[text 0.5](https://example.org/1.5/2.5) {ref}`a-1.5`": ["0.5"],
    "{ref}`rows 0.25 <a-1.5>` {eq}`e-1.5`": ["0.25"],
    "{cite}`vaswani2017` {cite:t}`ba2016` https://example.org/v1.5/12345 <https://example.org/1.5>": [],
    # parts of texts
    "section 3.1; Sections 3.1, 3.3 and 3.5; §5.4; § 5.4; Section 5.4 of eq. (5.1); Table 1.2; Fig. 2.1": [],
    "Chapter 10.1, equations 1.1 to 1.3, and exercise 2.5. Then 0.5": ["0.5"],
    "Section 3.1 gives 0.5 and section 3.1, 0.25": ["0.5"],
    # identifiers
    "arXiv:1706.03762, arXiv 1706.03762v2, doi:10.1234/abc.56": [],
    "ISBN 978-3-16-148410-0, ISO 8601, RFC 2119": [],
    "issue #1234, commit 9cc42de0a, 127.0.0.1": [],
    "see book/03_1.5.md and `data_1.5.json`, GPT-3.5 and SmolLM2-1.7B": [],
    # versions and licences
    "torch 2.13.0, v1.0, version 2.1, versions 2.5 and 2.6": [],
    "Python 3.13, numpy>=2.1, `torch >= 2.5`, Sphinx 7.4": [],
    "NumPy 1.48, torch 1.48, Python 1.48": ["1.48", "1.48", "1.48"],  # those compute: a value, not a version
    "CUDA 12.8; CC BY 4.0; Apache-2.0": [],
    "x >= 0.5 and eps>=0.25": ["0.5", "0.25"],
    # years
    "In 2017, it was new. In 2019 OpenAI did; the 2017 paper; © 2026; between 2015 and 2017": [],
    "August 2026, 1 August 2026, May 3, 2017 and 2026-08-01": [],
    "Vaswani et al. (2017), Ba et al. 2016, (Ba et al., 2016), Press and Wolf (2017), Press (2017)": [],
    "Press and Wolf 2017; Hendrycks & Gimpel, 2016; *Attention*, 2017.": [],
    "in 2048 steps, after 2000 steps, the 2048 rows, a width of 2048, of 2000.": [
        "2048",
        "2000",
        "2048",
        "2048",
        "2000",
    ],
    "In 2048, rows. Width (2048), rows since 1024": ["2048", "2048", "1024"],
}


@pytest.mark.parametrize("text", FOUND)
def test_found(text: str, page: Path) -> None:
    assert [Decimal(n.lstrip("-?")) for n in prose(text)] == [Decimal(n.lstrip("-?")) for n in FOUND[text]]
    assert [n[0] for n in prose(text) if n[0] in "-?"] == [n[0] for n in FOUND[text] if n[0] in "-?"]


def complaints(page: Path, text: str, *outputs: str, code: str = "x = 1", tags: str = "") -> list[str]:
    option = f":tags: [{tags}]\n\n" if tags else ""
    cell = f"```{{code-cell}} ipython3\n{option}{code}\n```\n"
    page.write_text(f"{HEADER}# A\n\n{cell}\n{text}\n", encoding="utf-8")
    record(page, outputs or [""])
    return prose_numbers.check(page)


BACKED = [
    ("1.48", "1.476742"),
    ("1.476742", "1.476742"),
    ("0.9999", "0.99995"),
    ("1.0000", "0.99995"),
    ("0.9999", "0.999949"),
    ("-0.999980", "[ 0.1, -0.999980]"),
    ("$a-0.5$", "0.5"),
    ("±0.5", "-0.5"),
    ("12.5%", "0.125"),
    ("12.5%", "12.5"),
    ("12.5 %", "12.5%"),
    ("12,288", "12288"),
    ("12 288", "12,288"),
    ("12288", "[12288]"),
    ("$10^{-5}$", "1e-05"),
    ("$2.78\\times10^{-17}$", "2.7755575615628914e-17"),
    ("1e-5", "0.000010"),
    ("2.0", "2"),
    ("1234", "1234.4"),
    ("0.000000", "0.000000"),
    ("0.25", "x=0.25,"),
    ("1024", "(2,1024)"),
    ("1.5", "[-1.5 1.5]"),
    ("$3\\times10^5$", "300000"),
]
UNBACKED = [
    ("1.48", "1.486"),
    ("1.48", "1.5"),
    ("1.4800", "1.48"),
    ("0.9998", "0.999980"),
    ("0.999981", "0.999980"),
    ("-0.999980", "0.999980"),
    ("0.999980", "-0.999980"),
    ("12.5%", "1.25"),
    ("12.5", "0.125"),
    ("12,289", "12288"),
    ("$10^{-5}$", "1.2e-05"),
    ("$10^{-6}$", "1e-05"),
    ("2.78e-17", "2.775"),
    ("1.5", ""),
    ("2048", "1024"),
    ("1.5", "1.5.2"),
    ("0.5", "float32 H100"),
]


@pytest.mark.parametrize(("said", "output"), BACKED)
def test_backed(said: str, output: str, page: Path) -> None:
    assert complaints(page, f"It is {said}.", output) == []


@pytest.mark.parametrize(("said", "output"), UNBACKED)
def test_unbacked(said: str, output: str, page: Path) -> None:
    assert len(complaints(page, f"It is {said}.", output)) == 1


def test_message(page: Path) -> None:
    line = HEADER.count("\n") + 7
    assert complaints(page, "It is\nso: 0.9998, and 0.5.", "y  [2]  0.999980 0.500000") == [
        f"book/01_a.md:{line + 1}: 0.9998 stands in the prose, but no output or code of this chapter has it"
        " (nearest: 0.999980)"
    ]
    with pytest.raises(SystemExit, match=rf"^book/01_a.md:{line + 1}: 0.9998 stands"):
        prose_numbers.main([])
    assert complaints(page, "It is 0.9999800.", "0.999980") != []
    assert complaints(page, "It is 0.999980.", "0.999980") == []
    prose_numbers.main([])


PLACES = {
    "heading": "## A 0.123 B",
    "formula": "$$\nx =\n0.123\n$$ (eq-9.9)",
    "formula directive": "```{math}\n:label: e-9.9\nx =\n0.123\n```",
    "environment": "\\begin{align*}\n0.123\n\\end{align*}",
    "table": "| a | b |\n|---|---|\n| 1 | 0.123 |",
    "list table": "```{list-table} Names\n* - a\n  - 0.123\n```",
    "admonition": ":::{admonition} Title\n:name: a-9.9\n0.123\n:::",
    "title": ":::{admonition} Title 0.123\n:name: a-9.9\nText.\n:::",
    "nested answer": "::::{note}\n:::{dropdown} Answer\n\nIt is `0.123`.\n:::\n::::",
    "exercise": "```{exercise} E\n:label: ex-9.9\n0.123\n```",
    "solution": "```{exercise} E\n:label: ex-9.9\n1\n```\n\n```{solution} ex-9.9\n0.123\n```",
    "alt": "```{figure} figures/block.svg\n:width: 9.9\n:alt: At 0.123.\n```",
    "caption": "```{figure} figures/block.svg\n:alt: x\n:name: f-9.9\n\nAt 0.123.\n```",
    "image": "![at 0.123](figures/block.svg)",
    "footnote": "Text.[^a]\n\n[^a]: At 0.123.",
    "listing's caption": "```{literalinclude} ../minigpt/module.py\n:caption: At 0.123\n```",
    "definition": "Width\n: 0.123",
    "quoted": "> It is 0.123",
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_counts(place: str, page: Path) -> None:
    text = f"(target-9.9)=\nText.\n\n% 9.9 in a comment\n\n{PLACES[place]}"
    found = complaints(page, text, "9.123")
    assert len(found) == 1 and ": 0.123 stands" in found[0]
    line = next(i for i, line in enumerate(page.read_text().split("\n"), 1) if "0.123" in line)
    assert found[0].startswith(f"book/01_a.md:{line}: ")
    assert complaints(page, text, "0.123") == []


def test_words_about_the_picture_of_a_cell_count(page: Path) -> None:
    settings = "---\nmystnb:\n  image:\n    alt: At 0.123.\n  figure:\n    caption: At 0.456.\n---\nplot()"
    line = HEADER.count("\n") + 4
    first, second = complaints(page, "Text.", code=settings)
    assert first.startswith(f"book/01_a.md:{line + 3}: 0.123 stands")
    assert second.startswith(f"book/01_a.md:{line + 5}: 0.456 stands")


def test_code_backs(page: Path) -> None:
    assert complaints(page, "It is 0.125.", code="x = 0.125") == []
    assert complaints(page, "It is 0.1250 and 12,288.", code="x = 0.125  # 12_288") == []
    assert complaints(page, "It is 0.125.\n\n```python\nx = 0.125\n```") == []
    assert complaints(page, "It is 0.125.\n\n```{code-block} python\nx = 0.125\n```") == []
    include = "```{literalinclude} ../minigpt/module.py\n:pyobject: Norm\n```"
    assert complaints(page, f"It is 0.125.\n\n{include}") == []
    assert len(complaints(page, f"It is 1e-5.\n\n{include}")) == 1  # in the file, but not in what is included
    assert len(complaints(page, "It is 0.125.\n\n`x = 0.125`", code="x = 1")) == 2


def test_what_is_not_compared_backs_nothing(page: Path) -> None:
    for tag in ("nbval-ignore-output", "setup"):
        (found,) = complaints(page, "It took 1.25 s.", "1.25", tags=tag)
        assert found.endswith("1.25 stands in the prose, only in an output that is not compared")
    assert complaints(page, "It took 1.25 s.", "1.25", tags="hide-input") == []


def test_page_without_code(page: Path) -> None:
    other = course.ROOT / "book" / "bibliography.md"
    other.write_text("# Bibliography\n\nIn 2017, section 3.1: 20 minutes. But 0.5.\n")
    assert prose_numbers.check(other) == [
        "book/bibliography.md:3: 0.5 stands in the prose, but this page has no code or output to back it"
    ]


def test_chapter_that_is_not_recorded(page: Path) -> None:
    (found,) = prose_numbers.check(page)
    assert "book/01_a.md: has no recorded run" in found


def test_tables_of_an_output_count(page: Path) -> None:
    complaints(page, "It is 0.125 and 0.25.", "")
    twin_path = course.twin(page)
    table = (
        '{"output_type": "display_data", "metadata": {}, "data": {"text/html": "<td width=0.25>0.125</td>"}}'
    )
    text = twin_path.read_text().replace('"outputs": []', f'"outputs": [{table}]')
    twin_path.write_text(text)
    (found,) = prose_numbers.check(page)
    assert ": 0.25 stands" in found


FLOATS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: Decimal(repr(x)))


def backing(*outputs: str) -> prose_numbers.Backing:
    made = prose_numbers.Backing()
    for output in outputs:
        made.add(output, exact=False)
    return made


def one(text: str) -> prose_numbers.Number:
    (number,) = prose_numbers.numbers(text)
    return number


@given(FLOATS, st.integers(1, 6), st.integers(0, 6))
def test_a_value_printed_with_fewer_digits_is_found(value: Decimal, decimals: int, more: int) -> None:
    said = f"{value:.{decimals}f}"
    printed = f"{Decimal(value):.{decimals + more + 1}f}"
    if said.lstrip("-0.") or not said.startswith("-"):
        rounded = Decimal(printed).quantize(Decimal(said), ROUND_HALF_EVEN)
        assert backing(f"y  [2]  float64  {printed}").holds(one(f"{rounded:f}"))


@given(FLOATS, st.integers(1, 6), st.data())
def test_any_changed_digit_is_seen(value: Decimal, decimals: int, data: st.DataObject) -> None:
    said = f"{value:.{decimals}f}"
    places = [i for i, char in enumerate(said) if char.isdigit()]
    place = data.draw(st.sampled_from(places))
    digit = data.draw(st.sampled_from([d for d in "0123456789" if d != said[place]]))
    changed = said[:place] + digit + said[place + 1 :]
    have = backing(f"y  [2]  float64  {said}")
    assert not have.holds(one(changed)) or Decimal(changed) == 2  # 2 is the printed shape


@given(st.integers(1000, 10**9))
def test_thousands(value: int) -> None:
    for said in (
        f"{value:,}",
        f"{value:_}",
        f"{value:,}".replace(",", "{,}"),
        f"{value:,}".replace(",", " "),
        str(value),
    ):
        number = one(said)
        assert number.size == value and not number.small
        assert backing(str(value)).holds(number)
        assert not backing(str(value + 1), str(-value)).holds(number)


@given(st.floats(1e-30, 1e30), st.integers(1, 4))
def test_scientific(value: float, decimals: int) -> None:
    mantissa, exponent = f"{value:.{decimals}e}".split("e")
    for said in (f"{mantissa}e{int(exponent)}", rf"{mantissa}\times10^{{{int(exponent)}}}"):
        assert backing(f"{value:.12e}").holds(one(said))
        assert not backing(f"{value * 1.5:.12e}").holds(one(said))
