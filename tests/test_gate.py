"""The gate: each way in which a cell could escape the comparison is refused, and sound cells pass."""

from __future__ import annotations

from typing import Any

import pytest

from tools import gate


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def result(**data: str) -> dict[str, Any]:
    mimes = {name.replace("__", "/"): value for name, value in data.items()}
    return {"output_type": "display_data", "data": mimes, "metadata": {}}


def cell(
    source: str = "show('x', x)", *outputs: dict[str, Any], count: int | None = 3, tags: Any = ()
) -> Any:
    return {
        "cell_type": "code",
        "source": source,
        "execution_count": count,
        "outputs": list(outputs),
        "metadata": {"tags": list(tags)} if tags else {},
    }


ONE = stream("x  1.000000\n")

SOUND = [
    cell("show('x', x)", ONE),
    cell("import numpy as np"),
    cell("def f(x):\n    print(x)"),
    cell("if slow:\n    print('slow')"),
    cell("f(1)", tags=["N1", "K2"]),
    cell("%pip list\nprint(1)", ONE),
    cell("print('and so on ...')", stream("and so on ...\n")),
    cell("print(d)  # not compared", ONE, tags=["nbval-ignore-output"]),
]


@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound["source"])
def test_sound_cell_passes(sound: Any) -> None:
    assert list(gate.check_cell(3, sound, "")) == []


def test_text_before_may_say_that_a_cell_is_not_compared() -> None:
    ignored = cell("print(d)", ONE, tags=["nbval-ignore-output"])
    assert list(gate.check_cell(3, ignored, "Its output is not compared.")) == []
    assert len(list(gate.check_cell(3, ignored, ""))) == 1


UNSOUND = {
    "never executed": (cell("x = 1", count=None), "found none"),
    "executed out of order": (cell("x = 1", count=9), "expected execution_count 3, found 9"),
    "output removed": (cell("show('x', x)"), "calls show()"),
    "output removed from a with": (cell("with show_error(ValueError):\n    f(1)"), "calls show_error()"),
    "output removed from a loop": (cell("for x in rows:\n    print(x)"), "calls print()"),
    "unknown tag": (cell("x = 1", tags=["nbval-skip"]), "unknown tag nbval-skip;"),
    "expected error": (cell("x = 1", tags=["raises-exception"]), "unknown tag raises-exception;"),
    "comment for nbval": (cell("# NBVAL_IGNORE_OUTPUT\nprint(1)", ONE), "NBVAL_IGNORE_OUTPUT"),
    "comment to skip": (cell("x = 1\n  # NBVAL_SKIP"), "NBVAL_SKIP"),
    "error": (cell("f()", {"output_type": "error", "ename": "KeyError", "evalue": "'a'"}), "KeyError: 'a'"),
    "stderr": (cell("f()", stream("a warning\n", "stderr")), "a warning"),
    "NumPy's dots": (cell("print(x)", stream("[0. 1. 2. ... 7. 8. 9.]\n")), "middle left out"),
    "torch's dots": (cell("x", result(text__plain="tensor([0, 1,  ..., 8, 9])")), "middle left out"),
    "dots for rows": (cell("x", result(text__plain="[[0, 1],\n ...,\n [8, 9]]")), "middle left out"),
    "cut by Colab": (
        cell("f()", stream("Streaming output truncated to the last 5000 lines.\n")),
        "middle left out",
    ),
    "address": (cell("f", result(text__plain="<Line2D at 0x7f3a5c001d90>")), "0x7f3a5c001d90"),
    "carriage return": (cell("f()", stream("1.5\r2.5\n")), "carriage return"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_cell_is_refused(name: str) -> None:
    unsound, message = UNSOUND[name]
    problems = list(gate.check_cell(3, unsound, ""))
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        ([], 0),
        ([stream("a"), stream("b")], 1),
        ([stream("a"), stream("w", "stderr"), stream("b")], 2),
        ([stream("a"), result(text__plain="3")], 2),
        ([result(image__png="iVBO")], 0),
        ([result(image__png="iVBO", text__plain="<Figure size 640x480 with 1 Axes>")], 1),
        ([{"output_type": "display_data", "data": {"image/svg+xml": "<svg/>"}, "metadata": {}}], 1),
    ],
)
def test_number_of_compared_outputs(outputs: list[dict[str, Any]], count: int) -> None:
    assert gate.compared(cell("f()", *outputs)) == count
    assert gate.compared(cell("f()", *outputs, count=None)) == 0
    assert gate.compared(cell("f()", *outputs, tags=["nbval-ignore-output"])) == 0


def test_difference_shows_expected_before_got() -> None:
    from tools.values_plugin import difference

    assert difference([["a\nb 1.5"]], [["a\nb 2.5"]]) == ["expected b 1.5", "got      b 2.5"]
    assert difference([["a"]], []) == ["expected a"]
