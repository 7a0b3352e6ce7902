"""Read the MyST of a page: its blocks and inline parts, each with its line; an error for what is unclear."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from myst_parser.parsers.options import TokenizeError, options_to_items

from tools import course

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,}|:{3,})(?P<info>.*)$")
DIRECTIVE = re.compile(r"^\{(?P<name>[^\s{}]+)\}\s*(?P<argument>.*)$")
TARGET = re.compile(r"^\s*\((?P<label>[^()\s]+)\)=\s*$")
HEADING = re.compile(r"^(?P<marks>#{1,6})[ \t]+(?P<title>.*?)(?:[ \t]+#+)?[ \t]*$")
MATH = re.compile(r"^\s*\$\$(?P<body>.*?)\$\$(?:[ \t]*\((?P<label>[^()\s]+)\))?\s*$", re.DOTALL)
AMSMATH = re.compile(r"^\s*\\begin\{(?P<name>[a-z]+\*?)\}")
FOOTNOTE = re.compile(r"^\[\^(?P<label>[^\]\s]+)\]:[ \t]*(?P<text>.*)$")
LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s")
BURIED_FENCE = re.compile(r"^\s*(?:>\s*|[-*+]\s+|\d+[.)]\s+)+(?:`{3,}|~{3,}|:{3,})")


class SourceError(SystemExit):
    """Something in a page that cannot be read. It ends a tool with its message: file, line, what is wrong."""


def fail(page: Path, line: int, what: str) -> NoReturn:
    raise SourceError(f"{course.short(page)}:{line}: {what}")


@dataclass(frozen=True)
class Block:
    """One block of a page. `line` is the line of the file where it begins, `body_line` where its body begins.

    kind: blank, text, heading, code, directive, math, amsmath, footnote, target, comment.
    """

    kind: str
    line: int
    text: str = ""  # the paragraph, heading, code, formula or footnote; the body of a directive
    name: str = ""  # of a directive; the info string of code
    argument: str = ""  # of a directive
    label: str = ""  # of a target, formula or footnote
    level: int = 0  # of a heading
    indent: str = ""  # what stands before a fence
    mark: str = ""  # the fence
    options: dict[str, str] = field(default_factory=dict)
    option_lines: dict[str, int] = field(default_factory=dict)
    body_line: int = 0


def front_matter(text: str) -> int:
    """How many lines the header of a file takes."""
    lines = text.split("\n")
    if lines[0].strip() != "---":
        return 0
    return next((i + 1 for i, line in enumerate(lines) if i and line.strip() == "---"), 0)


def _directive(page: Path, line: int, head: re.Match[str], fence: re.Match[str], body: list[str]) -> Block:
    """A directive: the lines at the top of its body that begin with a colon are its options, as in MyST."""
    count = 0
    if head["name"] == "code-cell":  # its options are the metadata of a cell, which jupytext reads
        return Block("directive", line, "\n".join(body), name=head["name"], body_line=line + 1)
    if body and body[0].startswith("---"):
        fail(page, line + 1, "options between --- lines are not read; write each as :name: value")
    while count < len(body) and re.match(r"^\s*:(?!::)", body[count]):
        count += 1
    raw = "\n".join(text.lstrip()[1:] for text in body[:count])
    try:
        options = dict(options_to_items(raw)[0])
    except TokenizeError as error:
        fail(page, line + 1, f"the options of {{{head['name']}}} cannot be read: {error.problem}")
    places: dict[str, int] = {}
    for offset, text in enumerate(body[:count]):
        if key := re.match(r"^\s*:([\w-]+):", text):
            places[key[1]] = line + 1 + offset
    return Block(
        "directive",
        line,
        "\n".join(body[count:]),
        name=head["name"],
        argument=head["argument"].strip(),
        indent=fence["indent"],
        mark=fence["mark"],
        options=options,
        option_lines=places,
        body_line=line + 1 + count,
    )


def parse(text: str, page: Path, line: int = 1) -> list[Block]:
    """The blocks of `text`, whose first line is line `line` of `page`."""
    lines = text.split("\n")
    blocks: list[Block] = []
    at = 0

    def flows() -> bool:
        """Whether the line before belongs to a paragraph that the next line continues."""
        return bool(blocks) and blocks[-1].kind == "text"

    while at < len(lines):
        here, now = line + at, lines[at]
        fence = FENCE.match(now)
        if fence and fence["mark"][0] == "`" and "`" in fence["info"]:
            fence = None  # a code span that begins with three backticks
        if not now.strip():
            blocks.append(Block("blank", here))
            at += 1
        elif fence:
            mark = fence["mark"]
            close = re.compile(rf"^\s*{re.escape(mark[0])}{{{len(mark)},}}\s*$")
            end = next((i for i in range(at + 1, len(lines)) if close.match(lines[i])), None)
            if end is None:
                fail(page, here, f"the fence {mark}{fence['info']} is never closed")
            indent = fence["indent"]
            inner = lines[at + 1 : end]
            body = [item[len(indent) :] if item.startswith(indent) else item.lstrip() for item in inner]
            info = fence["info"].strip()
            if head := DIRECTIVE.match(info):
                blocks.append(_directive(page, here, head, fence, body))
            elif info.startswith("{") or (mark[0] == ":"):
                fail(page, here, f"{mark}{fence['info']}: a directive is written {mark}{{name}} argument")
            else:
                code = "\n".join(body)
                blocks.append(
                    Block("code", here, code, name=info, indent=indent, mark=mark, body_line=here + 1)
                )
            at = end + 1
        elif BURIED_FENCE.match(now):
            fail(page, here, "a fence must begin on a line of its own, outside a quoted block")
        elif target := TARGET.match(now):
            blocks.append(Block("target", here, label=target["label"]))
            at += 1
        elif now.startswith("%") or re.match(r"^\+\+\+(\s|$)", now):
            blocks.append(Block("comment", here, now))
            at += 1
        elif now.lstrip().startswith("$$"):
            end = at
            while now.count("$$") < 2 and end + 1 < len(lines):
                end += 1
                now += "\n" + lines[end]
                if "$$" in lines[end]:
                    break
            math = MATH.match(now)
            if math is None or "$$" in math["body"]:
                fail(page, here, "display mathematics must end with $$ or $$ (label) at the end of a line")
            indent = re.match(r"\s*", lines[at])
            assert indent is not None
            blocks.append(Block("math", here, now, label=math["label"] or "", indent=indent[0]))
            at = end + 1
        elif (ams := AMSMATH.match(now)) and not flows():
            stop = f"\\end{{{ams['name']}}}"
            end = next((i for i in range(at, len(lines)) if stop in lines[i]), None)
            if end is None:
                fail(page, here, f"\\begin{{{ams['name']}}} has no {stop}")
            blocks.append(Block("amsmath", here, "\n".join(lines[at : end + 1]), name=ams["name"]))
            at = end + 1
        elif heading := HEADING.match(now):
            blocks.append(Block("heading", here, heading["title"], level=len(heading["marks"])))
            at += 1
        elif note := FOOTNOTE.match(now):
            parts = [note["text"]]
            while at + 1 < len(lines) and re.match(r"^( {2,}|\t)\S", lines[at + 1]):
                at += 1
                parts.append(lines[at].strip())
            blocks.append(Block("footnote", here, "\n".join(parts), label=note["label"]))
            at += 1
        elif flows():
            last = blocks.pop()
            blocks.append(Block("text", last.line, f"{last.text}\n{now}"))
            at += 1
        else:
            before = [block for block in blocks if block.kind != "blank"]
            listed = any(
                block.kind == "text" and re.search(LIST_ITEM.pattern + r"|^: ", block.text, re.MULTILINE)
                for block in before
            )
            if re.match(r"^( {4}|\t)", now) and not listed:
                fail(page, here, "code by indentation; write it in a fence")
            blocks.append(Block("text", here, now))
            at += 1
    return blocks


@dataclass(frozen=True)
class Inline:
    """A part of a paragraph. kind: text, escape, role, code, math, html, url, note, link, image."""

    kind: str
    start: int
    end: int
    text: str  # what a reader sees: the text of a link, the content of a role, code or formula
    name: str = ""  # of a role; the address of a link
    text_start: int = 0


_INLINE = re.compile(
    r"""(?P<escape>\\[^\w\s])
      | (?P<role>\{(?P<name>[a-zA-Z][\w:.+-]*)\}(?P<rmark>`+)(?P<rtext>.+?)(?<!`)(?P=rmark)(?!`))
      | (?P<code>(?P<mark>`+)(?P<ctext>.+?)(?<!`)(?P=mark)(?!`))
      | (?P<double>\$\$)
      | (?P<math>\$(?P<mtext>(?:\\.|[^$\\])+?)\$)
      | (?P<dollar>\$)
      | (?P<comment><!--.*?-->)
      | (?P<auto><(?P<address>[a-z]+:[^>\s]+)>)
      | (?P<html></?[a-zA-Z][^>]*>)
      | (?P<url>https?://[^\s<>)\]]+)
      | \[\^(?P<note>[^\]\s]+)\]
      | (?P<bracket>!?\[)
      | (?P<substitution>\{\{)
    """,
    re.VERBOSE | re.DOTALL,
)
_DESTINATION = re.compile(
    r"""\(\s*(?:<(?P<angle>[^<>\n]*)>|(?P<plain>(?:\\.|[^\s()\\]|\([^\s()]*\))*))
    (?:\s+(?:"[^"]*"|'[^']*'))?\s*\)""",
    re.VERBOSE,
)


def _closing(text: str, start: int) -> int | None:
    """Where the bracket closes that opens before `start`; code, formulas and escapes inside do not count."""
    depth, at = 1, start
    while at < len(text):
        part = _INLINE.match(text, at)
        if part and part.lastgroup != "bracket" and not part["bracket"] and not part["note"]:
            at = part.end()
            continue
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1
    return None


def inline(text: str, page: Path, line: int) -> Iterator[Inline]:
    """The parts of a paragraph, in order, without a gap."""
    at = 0
    while at < len(text):
        part = _INLINE.search(text, at)
        if part is None:
            break
        start, end = part.span()
        here = line + text.count("\n", 0, start)
        found: Inline | None = None
        if part["escape"]:
            found = Inline("escape", start, end, part[0])
        elif part["role"]:
            found = Inline("role", start, end, part["rtext"], part["name"], part.start("rtext"))
        elif part["code"]:
            found = Inline("code", start, end, part["ctext"], text_start=part.start("ctext"))
        elif part["math"]:
            found = Inline("math", start, end, part["mtext"], text_start=part.start("mtext"))
        elif part["double"]:
            fail(page, here, "$$ inside a paragraph; display mathematics begins on a line of its own")
        elif part["dollar"]:
            fail(page, here, r"a $ without its partner; write \$ for the sign itself")
        elif part["comment"]:
            found = Inline("html", start, end, part[0])
        elif part["auto"]:
            found = Inline("url", start, end, part[0])
        elif part["html"]:
            if re.search(r"\b(?:src|href)\s*=\s*[\"']?(?!https?:|#)", part[0]):
                fail(page, here, f"{part[0]}: an HTML tag with a relative address; write it in Markdown")
            found = Inline("html", start, end, part[0])
        elif part["url"]:
            found = Inline("url", start, end, part[0])
        elif part["note"]:
            found = Inline("note", start, end, part["note"])
        elif part["substitution"]:
            fail(page, here, "{{ }}: substitutions are not used; write the text itself")
        else:
            close = _closing(text, end)
            target = _DESTINATION.match(text, close + 1) if close is not None else None
            if close is not None and target:
                address = target["angle"] if target["angle"] is not None else target["plain"]
                kind = "image" if part[0].startswith("!") else "link"
                found = Inline(kind, start, target.end(), text[end:close], address, end)
            elif (
                close is not None
                and re.match(r"\[[^\]\n]*[A-Za-z][^\]\n]*\]", text[close + 1 :])
                and (re.search(r"[A-Za-z]{2}", text[end:close]))
            ):
                fail(page, here, f"[{text[end:close]}][...]: write the address in place: [text](address)")
        if found is None:  # a bracket that opens no link
            yield Inline("text", at, end, text[at:end])
            at = end
            continue
        if start > at:
            yield Inline("text", at, start, text[at:start])
        yield found
        at = found.end
    if at < len(text):
        yield Inline("text", at, len(text), text[at:])


def titled(text: str) -> tuple[str, str]:
    """The parts of a role's content: `text <label>` gives ("text", "label"), `label` gives ("", "label")."""
    match = re.match(r"^(?P<text>.*\S)\s*<(?P<label>[^<>]+)>$", text, re.DOTALL)
    return (match["text"], match["label"].strip()) if match else ("", text.strip())
