"""What `show` prints, against decimal arithmetic, and what it refuses."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
import reference
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minigpt.show import agree, show, show_error


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, **choices: object) -> str:
    show(*arguments, **choices)  # type: ignore[arg-type]
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (1.5, "x  []  float  1.500000"),
        (3, "x  []  int  3"),
        (True, "x  []  bool  True"),
        ([1, 2], "x  [2]  int  [1  2]"),
        ((0.5, -2.0), "x  [2]  float  [ 0.500000  -2.000000]"),
        (np.float64(0.25), "x  []  float64  0.250000"),
        (np.array([1, 20], np.int32), "x  [2]  int32  [ 1  20]"),
        (np.array([True, False]), "x  [2]  bool  [ True  False]"),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), "x  [2]  torch.float64  [1.000000  2.000000]"),
        (torch.tensor(7), "x  []  torch.int64  7"),
        (np.zeros(0), "x  [0]  float64  []"),
        (
            np.array([[1.0, -2.0], [30.0, 4.0]]),
            "x  [2, 2]  float64\n[[ 1.000000  -2.000000],\n [30.000000   4.000000]]",
        ),
        ([[1, 2]], "x  [1, 2]  int\n[[1  2]]"),
        (
            np.arange(8).reshape(2, 2, 2),
            "x  [2, 2, 2]  int64\n[[[0  1],\n  [2  3]],\n\n [[4  5],\n  [6  7]]]",
        ),
    ],
)
def test_what_is_printed(capsys: pytest.CaptureFixture[str], value: object, line: str) -> None:
    assert printed(capsys, "x", value) == line + "\n"


@pytest.mark.parametrize("value", [-0.0, -1e-9, -4e-7, 0.0])
def test_no_negative_zero(capsys: pytest.CaptureFixture[str], value: float) -> None:
    assert printed(capsys, "x", value) == "x  []  float  0.000000\n"
    assert printed(capsys, "x", np.array([value, -1.0])) == "x  [2]  float64  [ 0.000000  -1.000000]\n"
    assert printed(capsys, "x", value, decimals=0) == "x  []  float  0\n"


@reference.FEW
@given(st.floats(-1e5, 1e5), st.integers(0, 6))
def test_digits_are_those_of_decimal_arithmetic(value: float, decimals: int) -> None:
    import contextlib
    import io

    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            show("x", value, decimals)
    except ValueError:
        digits = abs(Decimal(value)).scaleb(decimals) % 1  # refused only very near a tie
        assert abs(digits - Decimal("0.5")) < Decimal("0.001")
        return
    expected = Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)
    text = out.getvalue().split("  ")[-1].strip()
    assert Decimal(text) == expected
    assert len(text.partition(".")[2]) == decimals


@pytest.mark.parametrize("tie", [0.5e-6, 2.5e-6, -0.1234565, 1000.0000005, 0.1234565 + 2e-17])
def test_a_tie_is_refused(tie: float) -> None:
    with pytest.raises(
        ValueError, match=r"x: .*\d lies too near a rounding tie to be printed with 6 decimals"
    ):
        show("x", [1.0, tie])


@pytest.mark.parametrize("units", [-14, -8, -2, 2, 8, 14])
def test_a_digit_survives_an_error_of_sixteen_units(units: int) -> None:
    step = 2.0**-52
    with pytest.raises(ValueError, match="rounding tie"):
        show("x", 0.1234565 + units * step)
    show("x", 0.1234565 + 4 * units * step + math.copysign(16 * step, units))


@reference.FEW
@given(st.floats(-10, 10), st.floats(-4, 4))
def test_what_is_printed_survives_another_machines_rounding(value: float, units: float) -> None:
    moved = value + units * np.spacing(max(abs(value), 1.0))
    try:
        show("x", value)
    except ValueError:
        assume(False)
    assert f"{value:.6f}".replace("-0.000000", "0.000000") == f"{moved:.6f}".replace("-0.000000", "0.000000")


def test_ties_are_judged_by_the_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    near = 0.12350001  # 1e-8 above a tie: far for float64, within the rounding of float32
    assert printed(capsys, "x", near, 3) == "x  []  float  0.124\n"
    assert printed(capsys, "x", np.float64(0.123500001), 3).endswith("0.124\n")
    with pytest.raises(ValueError, match="tie to be printed with 3 decimals in this dtype"):
        show("x", np.float32(near), 3)
    with pytest.raises(ValueError, match="tie"):
        show("x", torch.tensor(near), 3)
    assert printed(capsys, "x", torch.tensor(0.3, dtype=torch.bfloat16), 0) == "x  []  torch.bfloat16  0\n"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (math.nan, "NaN"),
        (math.inf, "infinity"),
        ([1.0, -math.inf], "infinity"),
        (np.array([np.inf, np.nan]), "NaN"),
        (torch.tensor([math.nan]), "NaN"),
    ],
)
def test_nan_and_infinity_are_shown_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], value: object, what: str
) -> None:
    with pytest.raises(ValueError, match=f"scores: holds {what}; pass allow_nonfinite=True"):
        show("scores", value)
    assert capsys.readouterr().out == ""
    assert "nan" in printed(capsys, "x", [math.nan, 1.0], allow_nonfinite=True)
    assert printed(capsys, "x", [-math.inf], allow_nonfinite=True) == "x  [1]  float  [-inf]\n"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("text", "str"),
        (1j, "complex"),
        (np.array([1j]), "ndarray of dtype complex128"),
        (torch.tensor([1j]), "tensor of torch.complex64"),
        (None, "NoneType"),
        ([None], "list"),
    ],
)
def test_only_real_numbers(value: object, got: str) -> None:
    with pytest.raises(TypeError, match=f"label: got (a )?{got}.*, expected real numbers"):
        show("label", value)


def test_decimals_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="decimals: got -1, expected 0 or more"):
        show("x", 1.0, -1)


def test_a_value_stays_as_it_is() -> None:
    value = np.array([-0.0, 1.0])
    value.setflags(write=False)
    show("x", value)
    leaf = torch.ones(2, requires_grad=True, dtype=torch.float64)
    show("x", leaf)
    assert leaf.requires_grad


def test_agree(capsys: pytest.CaptureFixture[str]) -> None:
    agree("two", [1.0, 2.0], torch.tensor([1.0, 2.0 + 1e-7], dtype=torch.float64), 1e-6)
    assert capsys.readouterr().out == "two: the largest difference is below 1e-06\n"
    agree("empty", np.zeros((0, 2)), np.zeros((0, 2)), 1e-6)
    with pytest.raises(AssertionError, match=r"two: the largest difference is 0\.5, the bound is 0\.1"):
        agree("two", [1.0, 2.0], [1.0, 2.5], 0.1)
    with pytest.raises(AssertionError, match=r"two: the largest difference is 1, the bound is 1"):
        agree("two", 1, 2, 1)  # below the bound, not at it
    with pytest.raises(AssertionError, match="nan"):
        agree("two", [math.nan], [math.nan], 1)
    with pytest.raises(AssertionError, match=r"two: shapes \[1, 2\] and \[2\] differ"):
        agree("two", [[1.0, 2.0]], [1.0, 2.0], 1)


def test_show_error(capsys: pytest.CaptureFixture[str]) -> None:
    with show_error(ValueError):
        raise ValueError("x: got 1")
    assert capsys.readouterr().out == "ValueError: x: got 1\n"
    with show_error(Exception):
        raise KeyError("k")
    assert capsys.readouterr().out == "KeyError: 'k'\n"
    with (
        pytest.raises(AssertionError, match="expected ValueError, but nothing was raised"),
        show_error(ValueError),
    ):
        pass
    with pytest.raises(TypeError, match="other"), show_error(ValueError):
        raise TypeError("other")


def test_float32_with_six_decimals_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="x: this dtype is too coarse for 6 decimals"):
        show("x", np.float32(1.0))


def test_lists_of_different_lengths_are_named() -> None:
    with pytest.raises(TypeError, match="x: got lists of different lengths"):
        show("x", [[1.0, 2.0], [3.0]])
