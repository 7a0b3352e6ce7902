"""The one way in which a chapter prints a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

GUARD = 16  # a printed digit must survive an error of this many units in the last place


def show(
    label: str, value: Any, decimals: int = 6, *, allow_nonfinite: bool = False
) -> None:
    """Print label, shape, dtype and the value with fixed decimals.

    value: a number, a NumPy array, a torch tensor, or nested lists of numbers. Raises ValueError for NaN and
    infinity, unless they are what is to be shown, and for a number so close to a rounding tie that another
    machine could print another digit.
    """
    array, dtype, eps = _as_array(label, value)
    if array.dtype.kind == "f":
        _check_printable(label, array, eps, decimals, allow_nonfinite)
        texts = [_fixed(number, decimals) for number in array.ravel().tolist()]
    else:
        texts = [str(number) for number in array.ravel().tolist()]
    width = max(map(len, texts), default=0) if array.ndim else 0
    padded = iter([text.rjust(width) for text in texts])
    body = _nested(padded, array.shape)
    head = f"{label}  {list(array.shape)}  {dtype}"
    print(f"{head}  {body}" if array.ndim < 2 else f"{head}\n{body}")


def agree(label: str, got: Any, expected: Any, bound: float) -> None:
    """Print that two results of one shape differ by less than the bound; AssertionError if they do not."""
    left, right = _as_array(label, got)[0], _as_array(label, expected)[0]
    if left.shape != right.shape:
        raise AssertionError(
            f"{label}: shapes {list(left.shape)} and {list(right.shape)} differ"
        )
    error = float(
        np.max(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0.0)
    )
    if not error < bound:
        raise AssertionError(
            f"{label}: the largest difference is {error:.3g}, the bound is {bound:g}"
        )
    print(f"{label}: the largest difference is below {bound:g}")


@contextmanager
def show_error(kind: type[Exception]) -> Iterator[None]:
    """Run something that must fail, and print its error; AssertionError if it does not fail."""
    try:
        yield
    except kind as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError(f"expected {kind.__name__}, but nothing was raised")


def figure_style() -> None:
    """Draw the figures of a notebook as SVG on white paper, which reads in a light page and in a dark one."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    grey = "#555555"
    colours = ["#1f6fbf", "#b85c00", "#1f7a4d", "#9440a8", "#7a6400"]
    mpl.rcParams.update(
        {
            "figure.figsize": (6.4, 3.6),
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "savefig.facecolor": "white",
            "axes.edgecolor": grey,
            "axes.labelcolor": grey,
            "axes.titlecolor": grey,
            "axes.prop_cycle": cycler(color=colours),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": grey,
            "grid.alpha": 0.25,
            "text.color": grey,
            "xtick.color": grey,
            "ytick.color": grey,
            "legend.frameon": False,
            "font.size": 11,
            "lines.linewidth": 2,
            "svg.fonttype": "none",  # text stays text: small files, and readable to a screen reader
        }
    )


def _as_array(label: str, value: Any) -> tuple[np.ndarray, str, float]:
    """The value as an array, the name of its dtype, and the rounding step of that dtype."""
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            raise TypeError(
                f"{label}: got a tensor of {value.dtype}, expected real numbers"
            )
        kept = value.detach().cpu()
        eps = torch.finfo(kept.dtype).eps if kept.dtype.is_floating_point else 0.0
        wide = kept.float() if kept.dtype is torch.bfloat16 else kept
        return wide.numpy(), str(value.dtype), eps
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(
            f"{label}: got lists of different lengths, expected an array of numbers"
        ) from error
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{label}: got {type(value).__name__} of dtype {array.dtype}, expected real numbers"
        )
    plain = isinstance(value, bool | int | float | list | tuple) and not isinstance(
        value, np.generic
    )
    name = (
        {"f": "float", "i": "int", "u": "int", "b": "bool"}[array.dtype.kind]
        if plain
        else str(array.dtype)
    )
    return (
        array,
        name,
        float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0,
    )


def _check_printable(
    label: str, array: np.ndarray, eps: float, decimals: int, allow_nonfinite: bool
) -> None:
    if decimals < 0:
        raise ValueError(f"decimals: got {decimals}, expected 0 or more")
    finite = np.isfinite(array)
    if not finite.all() and not allow_nonfinite:
        what = "NaN" if np.isnan(array).any() else "infinity"
        raise ValueError(
            f"{label}: holds {what}; pass allow_nonfinite=True if that is what the cell is to show"
        )
    numbers = array[finite].astype(np.float64)
    slack = GUARD * eps * np.maximum(np.abs(numbers), 1.0) * 10.0**decimals
    if (slack >= 0.5).any():
        raise ValueError(
            f"{label}: this dtype is too coarse for {decimals} decimals; print fewer"
        )
    from_tie = np.abs(np.abs(numbers) * 10.0**decimals % 1 - 0.5)
    if (close := from_tie <= slack).any():
        number = numbers[close][0]
        raise ValueError(
            f"{label}: {float(number)!r} lies too near a rounding tie to be printed with {decimals} decimals "
            f"in this dtype; another machine could print another digit, so print fewer or more"
        )


def _fixed(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return text.removeprefix("-") if set(text) <= set("-0.") else text  # no -0.000000


def _nested(texts: Iterator[str], shape: tuple[int, ...], indent: int = 0) -> str:
    if not shape:
        return next(texts)
    if len(shape) == 1:
        return "[" + "  ".join(next(texts) for _ in range(shape[0])) + "]"
    gap = "," + "\n" * (len(shape) - 1) + " " * (indent + 1)
    return (
        "["
        + gap.join(_nested(texts, shape[1:], indent + 1) for _ in range(shape[0]))
        + "]"
    )
