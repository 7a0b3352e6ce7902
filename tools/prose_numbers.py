"""Hold the numbers of the prose to what the chapter computes.

`python -m tools.prose_numbers [page.md ...]`, all pages by default. A decimal, a number in scientific
notation or an integer of four digits or more in a page's Markdown must be, at its printed precision, in the
recorded outputs of that page or in its code. Exit 1 with one line for each number that is not.
"""

from __future__ import annotations

import argparse
import html
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path

import nbformat

from tools import course, labels, myst, twin

UNCOMPARED = {"nbval-ignore-output", "nbval-skip", "setup"}

_DASH = "[-−]"
_SPACE = r"[ \u00a0\u2009\u202f]"
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
NUMBER = re.compile(
    rf"""(?<!\w)(?<!\d\.)
    (?P<sign>[-−+±](?=[.\d]))?
    (?: (?P<grouped>\d{{1,3}}(?:(?:,|\{{,\}}|\\,|_|{_SPACE})\d{{3}})+(?![\d])(?:\.\d+)?)
      | (?P<plain>\d+(?:\.\d+)?|(?<!\.)\.\d+)
    )
    (?: [eE](?P<exponent>[+-]?\d+)(?![\w])
      | \s*(?:×|·|\\times|\\cdot|\*)\s*10(?:\^\{{?\s*(?P<power>{_DASH}?\d+)\s*\}}?|(?P<raised>⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)
              |\*\*(?P<code>-?\d+))
    )?""",
    re.VERBOSE,
)
POWER = re.compile(
    rf"(?<![\w.\\])(?P<sign>[-−])?10(?:\^\{{?\s*(?P<power>{_DASH}?\d+)\s*\}}?|(?P<raised>⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    r"|\*\*(?P<code>-?\d+))"
)
PERCENT = re.compile(r"^\s*(?:\\?%|per ?cent\b)")

# -- numbers that are names: each pattern takes the whole name away ------------------------------

_DOTTED = r"\d+(?:\.\d+)*[a-z]?"
_MONTH = (
    r"(?:Jan(?:uary|\.)?|Feb(?:ruary|\.)?|Mar(?:ch|\.)?|Apr(?:il|\.)?|May|June?|July?|Aug(?:ust|\.)?"
    r"|Sept?(?:ember|\.)?|Oct(?:ober|\.)?|Nov(?:ember|\.)?|Dec(?:ember|\.)?)"
)
_YEAR = r"(?:19\d\d|20[0-3]\d)(?!\d|\.\d|,\d{3})"  # a plausible year; 2048 is a width
_ANY_YEAR = r"(?:19\d\d|20\d\d|2100)(?!\d|\.\d)"
_AUTHOR = r"[A-ZÀ-Ý][\w’'-]*[a-zà-ÿ][\w’'-]*"
_NEXT = r"(?=\s*(?:$|[.,;:)\]!?–—]|(?:and|or|by|the|with|was|were|when|it|they|he|she|a|an|[A-Z]\w+)\b))"
NAMES = [
    # parts of a text: section 3.1; sections 3.1, 3.3 and 3.5; eq. (5); Table 1
    r"(?:§§?|\b(?:[Ss]ect?(?:ion)?s?\b\.?|[Ee]q(?:uation)?s?\b\.?|[Tt]ables?\b|[Ff]ig(?:ure)?s?\b\.?"
    r"|[Cc]h(?:apter)?s?\b\.?|[Aa]ppendi(?:x|ces)\b|[Aa]lgorithms?\b|[Tt]heorems?\b|[Ll]istings?\b"
    r"|[Ee]xercises?\b))"
    rf"[\s~]*\(?{_DOTTED}\)?(?:(?:,\s*(?:and\s+|or\s+)?|\s+(?:and|or|to)\s+|\s*[-–—]\s*)\(?{_DOTTED}\)?)*(?!\d)",
    # identifiers: arXiv, DOI, ISBN, standards, issues, hashes, network addresses and versions of three parts
    r"\barXiv:?\s*\d{4}\.\d{4,5}(?:v\d+)?",
    r"\b(?:doi:?\s*)?10\.\d{4,}/[^\s)>\]]+",
    r"\bISBN(?:-1[03])?:?\s*[\dX-]+",
    r"\b(?:ISO|RFC|PEP|IEEE|IEC|ANSI)(?:[/ -](?:ISO|IEC|IEEE))*[ -]?\d+(?:[-–:]\d+)*",
    r"#\d+\b",
    r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d[0-9a-f]*\d)[0-9a-f]{7,40}\b",
    r"(?<![\w.])v?\d+(?:\.\d+){2,}(?:[-.+]?(?:post|rc|dev|a|b|cu)\d+)*(?![\w])",
    # versions: v1.0, version 2.5, numpy>=2.1, and "Python 3.13" or another name that only has versions
    r"\bv\d+(?:\.\d+)+\b",
    r"\b(?:[Vv]ersions?|[Rr]eleases?)\s+\d+(?:\.\d+)*(?:(?:,\s*|\s+(?:and|or|to)\s+|\s*[-–]\s*)\d+(?:\.\d+)+)*",
    # licences: CC BY 4.0, Apache 2.0, GPL-3.0
    r"\b(?:CC[ -](?:BY|0)(?:-[A-Z]{2})*|[AL]?GPL|MPL|Apache(?:[ -]Licen[cs]e)?,?|OFL)[ -]?v?\d\.\d(?!\d)",
    # models named with a number: GPT-3.5, SmolLM2-1.7B
    r"(?<![\w-])[A-Z][A-Za-z]+[\w]*-\d+(?:\.\d+)?[BMKT]?\b(?!\.\d)",
    # files
    r"(?<![\w/])[\w./-]*\w\.(?:py|md|ipynb|json|txt|svg|png|csv|toml|ya?ml|bib|pt|whl|html)\b",
    # dates and years
    r"\b\d{4}-\d\d-\d\d\b",
    rf"\b(?:\d{{1,2}}\s+)?{_MONTH}\s+(?:\d{{1,2}},\s+)?{_ANY_YEAR}",
    rf"(?:©|\([cC]\)|[Cc]opyright)\s*{_ANY_YEAR}",
    rf"\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Bb]y|[Bb]efore|[Aa]fter|[Ff]rom|late|early|mid|year)\s+{_YEAR}{_NEXT}",
    rf"\b[Bb]etween\s+{_YEAR}\s+and\s+{_YEAR}",
    rf"\b[Tt]he\s+{_YEAR}\s+(?:paper|article|report|version|release|edition|model)s?\b",
    rf"\bet al\.?,?\s+\(?{_YEAR}[a-z]?\)?",
    rf"\b{_AUTHOR}\s+\({_YEAR}[a-z]?\)",
    rf"(?<=[(;])\s*(?:[^()\d]*\s)?{_AUTHOR},?\s+{_YEAR}[a-z]?(?=[);,])",
    rf"\b{_AUTHOR},?\s+(?:and|&)\s+{_AUTHOR},?\s+\(?{_YEAR}[a-z]?\)?",
    rf"(?<=[*_\"”)\]]),?\s+\(?{_YEAR}\)?(?=[.,;]|$)",
]
# sizes of LaTeX's layout, and what it calls by number
LATEX = re.compile(
    r"\\\\\[[^\]]*\]|\\(?:hspace|vspace|rule|kern|hskip|color|tag|label|ref|class)\*?(?:\[[^\]]*\])?\s*\{[^{}]*\}"
    r"|(?<![\w.])\d+(?:\.\d+)?(?:pt|em|ex|mu|cm|mm)\b"
)


@cache
def _versioned(root: Path) -> str:
    """`numpy>=2.1` for each pinned package; a bare `Sphinx 8.2` for those that do not compute."""
    pins = root / "requirements.txt"
    names = (
        re.findall(r"^([A-Za-z][\w.-]*)==", pins.read_text(encoding="utf-8"), re.M) if pins.is_file() else []
    )
    project = root / "pyproject.toml"
    computing: set[str] = set()
    if project.is_file():
        needs = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("dependencies", [])
        computing = {re.split(r"[^\w-]", need)[0].lower() for need in needs}

    def either(words: Iterable[str]) -> str:
        return "|".join(re.sub(r"[-_]", "[-_ ]", re.escape(word).replace(r"\-", "-")) for word in words)

    bare = [name for name in names if name.lower() not in computing]
    after = r"`?\s*(?:>=|<=|==|~=|!=|<|>)\s*\d+(?:\.\d+)*(?:,\s*(?:>=|<=|<|>)\s*\d+(?:\.\d+)*)*"
    return (
        rf"(?i:\b(?:{either(['python', 'cuda', *names])}){after}"
        rf"|\bpython`?\s+3\.1?\d\b(?!\.?\d)"
        rf"|\b(?:{either(['cuda', *bare])})`?\s+\d+\.(?:\d{{1,2}}|x)\b(?!\.?\d))"
    )


@cache
def _names(root: Path) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{name})" for name in [*NAMES, _versioned(root)]))


# -- reading numbers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A number as it is printed. `signs` holds what its sign may be: a minus can also be an operator."""

    text: str
    start: int
    size: Decimal  # without sign
    step: Decimal  # one unit of its last printed digit
    signs: tuple[int, ...]
    exact: bool = False  # a bare power of ten
    percent: bool = False
    small: bool = False  # an integer below 1000: backs others, needs no backing itself

    def values(self) -> set[Decimal]:
        return {sign * self.size for sign in self.signs}


def _signs(text: str, start: int, sign: str) -> tuple[int, ...]:
    """What the sign before a number may mean, from what stands before it."""
    text, start = text[max(0, start - 200) : start], min(start, 200)  # a search in a whole output is slow
    if sign == "±" or re.search(r"[±∓]\s*$", text[:start]):
        return (1, -1)
    before = text[:start]
    if sign not in ("-", "−"):
        lone = re.search(rf"(?P<before>.?)\s*(?P<dash>{_DASH})\s+$", before)  # `= - 0.5`, `x - 0.5`
        if sign == "" and lone and lone["before"] and lone["before"] in "=(<>,&":
            return (-1,)
        return (1, -1) if sign == "" and lone and re.search(r"[\w)\]}]\s*[-−]\s+$", before) else (1,)
    if not before.strip() or re.search(r"\\[,;:!\\]\s*$", before):
        return (-1,)
    last = before[-1]
    if last.isspace():  # `gives -0.5`, as against `x - 0.5`
        return (-1,)
    if last.isalnum() or last in ")]}'’_!%":  # `a-0.5`, `0.5-1.5`
        return (1, -1)
    return (-1,)


_RELATIONS = (
    r"(?:times|cdot|approx|to|leq?|geq?|lt|gt|neq?|in|q?quad|pm|mp|div|equiv|sim|mapsto|cong|implies|iff"
    r"|(?:long)?(?:right|left)arrow|Longrightarrow|Rightarrow)(?![a-zA-Z])"
)
_COMMAND = re.compile(rf"\\(?:{_RELATIONS}|[a-zA-Z]+(?=\.?\d))")
_SYMBOLS = {"times": "×", "cdot": "·", "pm": "±", "mp": "±"}


def _as_symbol(command: re.Match[str]) -> str:
    """As many characters, but such that a number may follow: `\\approx1.5`, `3\\times10^{-5}`."""
    return _SYMBOLS.get(command[0][1:], " ").ljust(len(command[0]))


def _exponent(match: re.Match[str]) -> int | None:
    groups = match.groupdict()
    for name in ("exponent", "power", "raised", "code"):
        if found := groups.get(name):
            return int(found.translate(_SUPERSCRIPT).replace("−", "-"))
    return None


def _in_list(text: str, match: re.Match[str]) -> bool:
    """Whether a number with commas stands between square brackets, where commas part numbers: [2,128]."""
    before = text[max(0, match.start() - 200) : match.start()]
    opened = re.search(r"\[[^\[\]]*$", before)
    return bool(opened) and bool(re.match(r"[^\[\]]*\]", text[match.end() :]))


def numbers(text: str, separators: bool = True) -> Iterator[Number]:
    """The numbers of a text. `separators`: whether 12 288 and 12,288 may be one number."""
    source, text = text, _COMMAND.sub(_as_symbol, text)
    at = 0
    while at < len(text):
        power, match = POWER.search(text, at), NUMBER.search(text, at)
        if power and (not match or power.start() <= match.start()):
            exponent = _exponent(power)
            assert exponent is not None
            size = Decimal(1).scaleb(exponent)
            signs = _signs(text, power.start(), power["sign"] or "")
            yield Number(source[power.start() : power.end()], power.start(), size, size, signs, exact=True)
            at = power.end()
            continue
        if match is None:
            return
        digits = match["grouped"] or match["plain"]
        end = match.end()
        if match["grouped"]:
            loose = re.search(rf",|{_SPACE}", digits) is not None
            if loose and (not separators or ("," in digits and "{" not in digits and _in_list(text, match))):
                single = re.match(r"\d+", digits)
                assert single is not None
                digits, end = single[0], match.start() + len(match["sign"] or "") + single.end()
        whole = digits == (match["grouped"] or match["plain"])
        exponent = _exponent(match) if whole else None
        clean = re.sub(r"[^\d.]", "", digits)
        size, step = Decimal(clean), Decimal(1).scaleb(-len(clean.partition(".")[2]))
        if exponent is not None:
            size, step = size.scaleb(exponent), step.scaleb(exponent)
        yield Number(
            source[match.start() : end].strip(),
            match.start(),
            size,
            step,
            _signs(text, match.start(), match["sign"] or ""),
            percent=bool(PERCENT.match(text[end:])),
            small=exponent is None and "." not in clean and len(clean) < 4,
        )
        at = end


def blank(pattern: re.Pattern[str], text: str) -> str:
    """The text with spaces (or a word, so that no minus becomes a sign) where the pattern matches."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)


# -- the prose ------------------------------------------------------------------------------------


def visible(text: str, page: Path, line: int) -> str:
    """A paragraph with its addresses, labels and keys blanked, everything else in its place."""
    out: list[str] = []
    for part in myst.inline(text, page, line):
        raw = text[part.start : part.end]
        keep: str | None = None
        if part.kind in ("text", "escape"):
            keep = raw
        elif part.kind == "code":
            keep = raw.replace("`", "\0")
        elif part.kind == "math":
            keep = "\0" + blank(LATEX, raw[1:-1]) + "\0"
        elif part.kind == "role":
            shown, start = "", part.text_start - part.start
            if part.name == "math":
                shown = blank(LATEX, part.text)
            elif part.name in ("ref", "numref", "doc", "term", "download"):
                titled, _ = myst.titled(part.text)
                shown = visible(titled, page, line) if titled else ""
            keep = "\0" * start + shown + re.sub(r"[^\n]", "\0", raw[start + len(shown) :])
        elif part.kind in ("link", "image"):
            start = part.text_start - part.start
            shown = visible(part.text, page, line + text.count("\n", 0, part.start))
            keep = "\0" * start + shown + re.sub(r"[^\n]", "\0", raw[start + len(shown) :])
        out.append(keep if keep is not None else re.sub(r"[^\n]", "\0", raw))
    return "".join(out)


@dataclass
class Prose:
    """What a page says, by line, and the code that it shows without running it."""

    page: Path
    texts: list[tuple[int, str]] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def read(self, blocks: Iterable[myst.Block]) -> None:
        for block in blocks:
            if block.kind in ("text", "heading", "footnote"):
                self.say(block.line, block.text)
            elif block.kind in ("math", "amsmath"):
                self.texts.append((block.line, blank(LATEX, _formula(block))))
            elif block.kind == "code":
                self.code.append(block.text)
            elif block.kind == "directive":
                self.directive(block)

    def say(self, line: int, text: str) -> None:
        self.texts.append((line, visible(text, self.page, line)))

    def directive(self, block: myst.Block) -> None:
        for option in ("alt", "caption"):
            if text := block.options.get(option):
                self.say(block.option_lines.get(option, block.line), text)
        if block.name == "literalinclude":
            page = twin.Page(self.page, labels.Book())
            self.code.append(page.included(block)[0])
        elif block.name == "code-block":
            self.code.append(block.text)
        elif block.name == "math":
            self.texts.append((block.line, blank(LATEX, block.argument)))
            self.texts.append((block.body_line, blank(LATEX, block.text)))
        elif block.name == "bibliography":
            return
        else:
            if block.name not in (*labels.SOLUTIONS, "figure", "image", "code-cell"):
                self.say(block.line, block.argument)
            self.read(myst.parse(block.text, self.page, block.body_line))


def _formula(block: myst.Block) -> str:
    """A displayed formula without its label."""
    return block.text.removesuffix(f"({block.label})") if block.label else block.text


# -- what backs it --------------------------------------------------------------------------------


_VERSION = re.compile(r"(?<![\w.])v?\d+(?:\.\d+){2,}")


class Backing:
    """The numbers of outputs (each good for as many digits as it prints) and of code (exact)."""

    def __init__(self) -> None:
        self.printed: dict[Decimal, Decimal] = {}  # value -> its finest step
        self._sorted: list[Decimal] = []

    def add(self, text: str, exact: bool) -> None:
        text = blank(_VERSION, text)
        for separators in (True, False):
            for number in numbers(text, separators):
                # what is exact: code, integers, and numbers that only code can state
                step = Decimal(0) if exact or number.step == 1 else number.step
                for value in number.values():
                    self.printed[value] = min(step, self.printed.get(value, step))
        self._sorted = sorted(self.printed)

    def near(self, low: Decimal, high: Decimal) -> Iterator[Decimal]:
        at = bisect_left(self._sorted, low)
        while at < len(self._sorted) and self._sorted[at] <= high:
            yield self._sorted[at]
            at += 1

    def holds(self, number: Number) -> bool:
        scales = (0, -2) if number.percent else (0,)
        for value in number.values():
            for scale in scales:
                want, step = value.scaleb(scale), number.step.scaleb(scale)
                reach = Decimal(0) if number.exact else step / 2
                if any(self.printed[have] <= step for have in self.near(want - reach, want + reach)):
                    return True
        return False

    def nearest(self, number: Number) -> str:
        if not self._sorted:
            return ""
        best = min(
            ((abs(have - value), have) for have in self._sorted for value in number.values()),
            key=lambda pair: pair[0],
        )
        return format(best[1], "f") if abs(best[1].adjusted()) < 8 else str(best[1])


def output_texts(cell: nbformat.NotebookNode) -> Iterator[str]:
    """What a code cell has printed or shown as text."""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            if output.name == "stdout":
                yield output.text
            continue
        data = output.get("data", {})
        if table := data.get("text/html"):
            yield html.unescape(re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", "".join(table), flags=re.S))
        elif (plain := "".join(data.get("text/plain", ""))) and not re.match(r"^<.*>$", plain, re.S):
            yield plain


def check(page: Path) -> list[str]:
    """One message for each number of a page that nothing backs."""
    short = course.short(page)
    text = page.read_text(encoding="utf-8")
    prose = Prose(page)
    backing, uncompared = Backing(), Backing()
    has_code = course.is_notebook(page)
    if has_code:
        for cell, line in twin.cells(page):
            if cell.cell_type == "markdown":
                prose.read(myst.parse(cell.source, page, line))
            elif cell.cell_type == "code":
                prose.code.append(cell.source)
                settings = cell.metadata.get("mystnb", {})
                for part, key in (("image", "alt"), ("figure", "caption")):
                    if said := settings.get(part, {}).get(key):
                        head = text.split("\n")[line - 1 :]
                        at = next(i for i, words in enumerate(head) if words.strip().startswith(f"{key}:"))
                        prose.say(line + at, " ".join(str(said).split()))
        recorded = course.twin(page)
        if not recorded.is_file():
            return [
                f"{short}: has no recorded run {recorded.name} to compare its numbers with; run make record"
            ]
        for cell in nbformat.read(recorded, as_version=4).cells:
            if cell.cell_type == "code":
                tagged = UNCOMPARED & set(cell.metadata.get("tags", []))
                for output in output_texts(cell):
                    (uncompared if tagged else backing).add(output, exact=False)
    else:
        skip = myst.front_matter(text)
        prose.read(myst.parse("\n".join(text.split("\n")[skip:]), page, skip + 1))
    for code in prose.code:
        backing.add(code, exact=True)
    names = _names(course.ROOT)
    found: list[tuple[int, int, str]] = []
    for line, said in prose.texts:
        for number in numbers(blank(names, said)):
            if number.small or backing.holds(number):
                continue
            here = line + said.count("\n", 0, number.start)
            shown = number.text.lstrip("+±")
            if uncompared.holds(number):
                why = "only in an output that is not compared"
            elif not has_code:
                why = "but this page has no code or output to back it"
            else:
                near = backing.nearest(number)
                why = f"but no output or code of this chapter has it{f' (nearest: {near})' if near else ''}"
            found.append((here, number.start, f"{short}:{here}: {shown} stands in the prose, {why}"))
    return [message for _, _, message in sorted(found)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.prose_numbers", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="pages as .md files; default: all")
    given = parser.parse_args(arguments).pages
    pages = [path.resolve() for path in given] or [page for page in course.pages() if page.suffix == ".md"]
    if messages := [message for page in pages for message in check(page)]:
        raise SystemExit("\n".join(messages))


if __name__ == "__main__":
    main()
