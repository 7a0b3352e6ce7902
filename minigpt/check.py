"""Exercise checks: `check.layer_norm(layer_norm)` says whether a function is right, and what is wrong if not.

Each check has the name of its task in `minigpt.tasks`. It runs the function on the task's cases, from the
smallest to the largest, in float64 and float32, with NumPy arrays or torch tensors, and compares with the
reference exactly in shape and dtype: nothing is broadcast. What fails is run against `minigpt.mistakes`, to
say by name what went wrong. A check prints; `judge` returns the same as a `Result`.

`progress()` lists what is done; `report(function, inputs, unit)` prints measurements and grades nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import io
import linecache
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from minigpt import device as devices
from minigpt.tasks import TASKS, Case, Task

SECONDS = 5.0  # that one call may take
KEPT = 300  # characters of what a function prints
SMALL = 8  # numbers that are shown one by one
TOLERANCE = {
    "float64": 1e-8,
    "float32": 2e-4,
    "float16": 5e-3,
}  # relative to the largest number, at least to 1

_passed: dict[str, bool] = {}  # task -> whether its last check passed, for `progress`
_last: list[str] = []  # the notebook of the last check


@dataclass(frozen=True)
class Result:
    """What a check found. `status` is passed, failed or not done; `mistake` the name of a famous one."""

    task: str
    status: str
    lines: tuple[str, ...]
    mistake: str | None = None
    where: str = ""  # the smallest input that fails
    short: str = ""  # what is wrong with it, in a few words

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


# ---------------------------------------------------------------- running somebody else's function


class TooLong(BaseException):
    """Raised inside a function that runs beyond its time; no `except Exception` stops it."""


@dataclass
class Outcome:
    """What one call did: its value or its error, and what else was seen."""

    value: Any = None
    error: BaseException | None = None
    where: str = ""  # the line of the function that raised
    printed: str = ""
    changed: list[str] = field(
        default_factory=list
    )  # arguments that are not what they were
    shared: list[str] = field(
        default_factory=list
    )  # arguments whose memory the value uses


class Paper(io.TextIOBase):
    """Keeps the beginning of what is printed and counts the rest."""

    def __init__(self) -> None:
        self.text, self.length = "", 0

    def write(self, text: str) -> int:
        self.length += len(text)
        self.text = (self.text + text)[:KEPT] if len(self.text) < KEPT else self.text
        return len(text)

    def __str__(self) -> str:
        more = self.length - len(self.text)
        return self.text.rstrip("\n") + (
            f" ... ({more} characters more)" if more > 0 else ""
        )


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TooLong in this thread, the main one, after so many seconds, and again until it is heeded."""
    armed = True

    def ring(*_: Any) -> None:
        if armed:
            raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    rest = signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, *rest)
        signal.signal(signal.SIGALRM, before)


def limited(call: Callable[[], Any], seconds: float) -> Any:
    """The value of the call; TooLong after so many seconds, in every thread and on every system."""
    if (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
    ):
        with _alarm(seconds):
            return call()
    found: list[tuple[bool, Any]] = []

    def work() -> None:
        try:
            found.append((True, call()))
        except BaseException as error:
            found.append((False, error))

    worker = threading.Thread(
        target=work, daemon=True
    )  # it cannot be stopped, only left behind
    worker.start()
    worker.join(seconds)
    if not found:
        raise TooLong
    good, value = found[0]
    if not good:
        raise value
    return value


def run(
    function: Callable[..., Any], task: Task, arguments: tuple[Any, ...]
) -> Outcome:
    """Call a function as its task does, and let nothing that it does get out."""
    names, before, paper = task.arguments, copied(arguments), Paper()
    outcome = Outcome()
    with (
        contextlib.redirect_stdout(paper),
        contextlib.redirect_stderr(paper),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        try:
            outcome.value = limited(lambda: task.observe(function, *arguments), SECONDS)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcome.error, outcome.where = error, _line(error, function)
    outcome.printed = str(paper)
    for name, now, then in zip(names, arguments, before, strict=False):
        if not task.may_change and not _identical(now, then):
            outcome.changed.append(name)
        if any(
            _share(ours, theirs)
            for ours in _arrays(now)
            for theirs in _arrays(outcome.value)
        ):
            outcome.shared.append(name)
    return outcome


def _line(error: BaseException, function: Callable[..., Any]) -> str:
    """The line of the learner's own code in which an error arose."""
    code = getattr(function, "__code__", None) or getattr(
        getattr(function, "forward", None), "__code__", None
    )
    ours = code.co_filename if code else None
    lines = [
        (
            frame.lineno,
            frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip(),
        )
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == ours
    ]
    return f"line {lines[-1][0]}: {lines[-1][1]}" if lines else ""


def converted(value: Any, library: str, dtype: str, device: torch.device) -> Any:
    """A fresh copy of an argument in this library; its floating-point arrays in this dtype."""
    if isinstance(value, dict):
        return {
            key: converted(item, library, dtype, device) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(converted(item, library, dtype, device) for item in value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray):
        return value
    fresh = value.astype(dtype) if value.dtype.kind == "f" else value.copy()
    return torch.from_numpy(fresh).to(device) if library == "torch" else fresh


def copied(value: Any) -> Any:
    """A copy of all arrays in an argument."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, np.ndarray | torch.Tensor):
        yield value


def _identical(now: Any, then: Any) -> bool:
    if isinstance(then, dict):
        return now.keys() == then.keys() and all(
            _identical(now[key], then[key]) for key in then
        )
    if isinstance(then, list | tuple):
        return len(now) == len(then) and all(map(_identical, now, then))
    if not isinstance(then, np.ndarray | torch.Tensor):
        return now is then or bool(now == then)
    return now.shape == then.shape and np.array_equal(
        _numpy(now), _numpy(then), equal_nan=now.dtype not in (bool, torch.bool)
    )


def _share(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return bool(np.may_share_memory(ours, theirs))
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return (
            ours.untyped_storage().data_ptr()
            == theirs.untyped_storage().data_ptr()
            != 0
        )
    return False


def _numpy(value: Any) -> np.ndarray:
    return (
        value.detach().cpu().numpy()
        if isinstance(value, torch.Tensor)
        else np.asarray(value)
    )


# ---------------------------------------------------------------- comparing


@dataclass(frozen=True)
class Difference:
    """Why a value is not the expected one, in lines to be printed, and the largest error if there is one."""

    lines: tuple[str, ...]
    error: float | None = None

    @property
    def short(self) -> str:
        """The same in a few words."""
        if self.error is not None:
            return f"largest error {self.error:.2g}"
        if self.lines[-1].startswith("got NaN"):
            return "got NaN"
        both = re.match(r"(\w+: )?expected  ", self.lines[0])  # and what came instead
        lines = self.lines[: 2 if both else 1]
        return ", ".join(" ".join(line.split(";")[0].split()) for line in lines)


def shape_of(value: Any) -> str:
    return str(list(value.shape)).replace("[]", "[] (one number)")


def name_of(value: Any) -> str:
    """What kind of thing a value is, in a reader's words."""
    if isinstance(value, np.ndarray):
        return f"a NumPy array {shape_of(value)} of {value.dtype}"
    if isinstance(value, torch.Tensor):
        return (
            f"a tensor {shape_of(value)} of {str(value.dtype).removeprefix('torch.')}"
        )
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.generic):
        return f"the single number {value.item()!r} of {value.dtype}"
    if isinstance(value, bool | int | float | str):
        return f"{value!r} ({type(value).__name__})"
    return f"an object of type {type(value).__name__}"


def compare(
    expected: Any, got: Any, tolerance: float, library: str, names: tuple[str, ...] = ()
) -> Difference | None:
    """How a value differs from the expected one, or None. Shapes and dtypes must be equal."""
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return Difference((f"got {name_of(got)}, expected a dict",))
        for key, value in expected.items():
            if key not in got:
                return Difference((f"{key!r} is missing",))
            pair = (str(key), value, got[key])
            if difference := _first([pair], tolerance, library):
                return difference
        if extra := [key for key in got if key not in expected]:
            return Difference((f"{extra[0]!r} is not asked for",))
        return None
    if isinstance(expected, tuple) or (
        isinstance(expected, list) and any(True for _ in _arrays(expected))
    ):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            due = ", ".join(names) or "values"
            return Difference(
                (f"got {name_of(got)}, expected a tuple of {len(expected)}: {due}",)
            )
        labels = (
            names
            if len(names) == len(expected)
            else tuple(f"result {i}" for i in range(len(expected)))
        )
        return _first(list(zip(labels, expected, got, strict=True)), tolerance, library)
    rows = (
        isinstance(got, list)
        and isinstance(expected, np.ndarray | torch.Tensor)
        and expected.ndim > 0
        and len(got) == len(expected)
    )  # of the one array that is expected
    if isinstance(got, list | tuple) and not isinstance(expected, list) and not rows:
        due = (
            "one array"
            if isinstance(expected, np.ndarray | torch.Tensor)
            else "one value"
        )
        return Difference(
            (f"got {name_of(got)}, expected {due} and nothing beside it",)
        )
    if isinstance(expected, np.ndarray | torch.Tensor) and expected.ndim:
        return _compare_arrays(expected, got, tolerance, library)
    if isinstance(expected, np.ndarray | torch.Tensor | np.generic):
        expected = expected.item()
    return _compare_plain(expected, got, tolerance)


def _first(
    pairs: Iterable[tuple[str, Any, Any]], tolerance: float, library: str
) -> Difference | None:
    for name, expected, got in pairs:
        if difference := compare(expected, got, tolerance, library):
            first, *rest = difference.lines
            return Difference((f"{name}: {first}", *rest), difference.error)
    return None


def _compare_plain(expected: Any, got: Any, tolerance: float) -> Difference | None:
    """A number, a text, a truth value, None, or a list of such."""
    if isinstance(got, np.ndarray | torch.Tensor):
        if got.ndim:
            return Difference((f"got {name_of(got)}, expected one value",))
        got = got.item()
    if isinstance(got, np.generic):
        got = got.item()
    if type(expected) is float and type(got) in (int, float):
        size = max(1.0, abs(expected))
        if (
            got == expected
            or abs(got - expected) <= tolerance * size
            or (got != got and expected != expected)
        ):
            return None
        error = abs(got - expected) if np.isfinite(got) else None
        lines = [f"expected  {expected:.6g}", f"got       {got:.6g}"]
        if lines[0].split()[1] == lines[1].split()[1]:  # six digits do not show it
            lines.append(f"largest error {error:.3g}")
        return Difference(tuple(lines), error)
    if type(expected) is not type(got) and not (
        expected is None or got is None or isinstance(expected, str | list)
    ):
        return Difference((f"got {name_of(got)}, expected {type(expected).__name__}",))
    if isinstance(expected, list) and isinstance(got, set | tuple):
        return Difference((f"got {name_of(got)}, expected a list",))
    return (
        None
        if got == expected
        else Difference((f"expected  {_cut(expected)}", f"got       {_cut(got)}"))
    )


def _compare_arrays(
    expected: Any, got: Any, tolerance: float, library: str
) -> Difference | None:
    wanted = torch.Tensor if library == "torch" else np.ndarray
    if not isinstance(got, wanted):
        due = "a tensor" if library == "torch" else "a NumPy array"
        return Difference((f"got {name_of(got)}, expected {due} {shape_of(expected)}",))
    if tuple(got.shape) != tuple(expected.shape):
        return Difference(
            (
                f"expected  shape {list(expected.shape)}",
                f"got       shape {list(got.shape)}; shapes must be equal, nothing is broadcast here",
            )
        )
    dtypes = [str(value.dtype).removeprefix("torch.") for value in (expected, got)]
    if dtypes[0] != dtypes[1]:
        return Difference(
            (
                f"expected  dtype {dtypes[0]}"
                + (", that of the input" if "float" in dtypes[0] else ""),
                f"got       dtype {dtypes[1]}",
            )
        )
    want, have = _numpy(expected), _numpy(got)
    if want.dtype.kind != "f":
        wrong = want != have
        error = None
    else:
        want, have = want.astype(np.float64), have.astype(np.float64)
        finite = np.isfinite(want)
        size = max(1.0, float(np.max(np.abs(want[finite]), initial=0.0)))
        with np.errstate(invalid="ignore"):
            same = (want == have) | (
                np.isnan(want) & np.isnan(have)
            )  # NaN is expected of a mistake only
            apart = np.where(same, 0.0, np.abs(want - have))
        wrong = ~(apart <= tolerance * size)
        error = (
            float(np.max(apart)) if wrong.any() and np.isfinite(apart).all() else None
        )
    if not wrong.any():
        return None
    lines = []
    if want.size <= SMALL:
        digits = next(
            (n for n in (6, 9, 12) if _numbers(want, n) != _numbers(have, n)), 17
        )
        lines += [
            f"expected  {_numbers(want, digits)}",
            f"got       {_numbers(have, digits)}",
        ]
    else:
        place = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), want.shape))
        lines.append(
            f"{int(wrong.sum())} of {want.size} numbers of {list(want.shape)} differ; "
            f"at {list(place)} expected {_number(want[place])}, got {_number(have[place])}"
        )
    if (
        want.dtype.kind == "f"
        and not np.isfinite(have).all()
        and np.isfinite(want).all()
    ):
        lines.append("got NaN" if np.isnan(have).any() else "got infinity")
    elif error is not None:
        lines.append(f"largest error {error:.3g}")
    return Difference(tuple(lines), error)


def _number(value: Any, digits: int = 6) -> str:
    is_float = np.asarray(value).dtype.kind == "f"
    return f"{value + 0.0:.{digits}g}" if is_float else str(value)


def _numbers(array: np.ndarray, digits: int = 6) -> str:
    if array.ndim == 0:
        return _number(array[()], digits)
    return "[" + ", ".join(_numbers(row, digits) for row in array) + "]"


def _cut(value: Any, length: int = 70) -> str:
    text = repr(value)
    return text if len(text) <= length else text[:length] + " ..."


# ---------------------------------------------------------------- judging


@functools.cache
def _expected(name: str, number: int) -> Outcome:
    """What the reference does on a case, in its own library and in float64."""
    task = TASKS[name]
    return run(
        task.reference, task, _given(task, task.cases()[number], task.home, "float64")
    )


@functools.cache
def _mistaken(name: str, mistake: str) -> tuple[Outcome, ...]:
    """What a famous mistake does on all cases of its task."""
    from minigpt.mistakes import of_task

    task = TASKS[name]
    wrong = next(entry.wrong for entry in of_task(name) if entry.name == mistake)
    cases = enumerate(task.cases())
    return tuple(
        run(wrong, task, _given(task, case, task.home, case.dtype or "float64"))
        for _, case in cases
    )


def _given(
    task: Task, case: Case, library: str, dtype: str, device: torch.device | None = None
) -> tuple[Any, ...]:
    given: tuple[Any, ...] = converted(
        case.arguments, library, dtype, device or torch.device("cpu")
    )
    return given


def _wanted(expected: Any, library: str, dtype: str) -> Any:
    """The reference's value as this library and dtype should have it."""
    return converted(expected, library, dtype, torch.device("cpu"))


def _difference(
    task: Task, number: int, outcome: Outcome, library: str, dtype: str
) -> Difference | None:
    """How a call differs from the reference on a case."""
    case, reference = task.cases()[number], _expected(task.name, number)
    if isinstance(outcome.error, TooLong):
        return Difference((f"stopped: it ran for more than {SECONDS:g} seconds",))
    if reference.error is not None:
        kind = type(reference.error).__name__
        if outcome.error is None:
            return Difference(
                (
                    f"got {name_of(outcome.value)}, expected {kind}: this input must be refused",
                )
            )
        if not isinstance(outcome.error, type(reference.error)):
            return Difference(
                (
                    f"raised {_raised(outcome)}",
                    f"expected {kind}: this input must be refused",
                )
            )
        return None
    if outcome.error is not None:
        lines = [f"raised {_raised(outcome)}"]
        return Difference(
            (*lines, f"in {outcome.where}") if outcome.where else tuple(lines)
        )
    nothing = outcome.value is None and reference.value is not None
    if nothing and not _nullable(task.name):
        return Difference((f"got {name_of(None)}",))
    if outcome.changed:
        return Difference(
            (f"the argument {outcome.changed[0]} was changed; work on a copy of it",)
        )
    tolerance = TOLERANCE[dtype] * case.slack
    wanted = _wanted(reference.value, library, dtype)
    if difference := compare(wanted, outcome.value, tolerance, library, task.returns):
        return difference
    if task.fresh and outcome.shared:
        return Difference(
            (
                f"the result shares its memory with {outcome.shared[0]}; a change of one changes the other",
            )
        )
    return None


@functools.cache
def _nullable(name: str) -> bool:
    """Whether None is the right answer to one of the cases."""
    seen = [_expected(name, number) for number in range(len(TASKS[name].cases()))]
    return any(one.value is None and one.error is None for one in seen)


def _raised(outcome: Outcome) -> str:
    text = str(outcome.error).strip().splitlines()
    return (
        f"{type(outcome.error).__name__}: {_cut(text[0], 160)[1:-1]}"
        if text
        else type(outcome.error).__name__
    )


def _alike(
    task: Task, number: int, ours: Outcome, theirs: Outcome, library: str
) -> bool:
    """Whether two calls did the same on a case."""
    case = task.cases()[number]
    dtype = case.dtype or "float64"
    if ours.error is not None or theirs.error is not None:
        return type(ours.error) is type(theirs.error)
    if ours.changed != theirs.changed:
        return False
    wrong = [
        _difference(task, number, theirs, task.home, dtype) is not None,
        _difference(task, number, ours, library, dtype) is not None,
    ]
    if case.rough and all(wrong):
        return True
    tolerance = TOLERANCE[dtype] * case.slack
    return (
        compare(_wanted(theirs.value, library, dtype), ours.value, tolerance, library)
        is None
    )


def _name_mistake(
    task: Task, outcomes: list[Outcome], library: str
) -> tuple[str, str] | None:
    """The famous mistake that did the same on every case, and what it is."""
    from minigpt.mistakes import of_task

    for mistake in of_task(task.name):
        theirs = _mistaken(task.name, mistake.name)
        if all(
            _alike(task, i, ours, theirs[i], library) for i, ours in enumerate(outcomes)
        ):
            return mistake.name, mistake.what
    return None


def _library(task: Task, function: Callable[..., Any]) -> str:
    """NumPy, unless the function wants tensors: seen on the smallest case."""
    if task.home == "torch" or task.plain:
        return task.home
    named = set(getattr(getattr(function, "__code__", None), "co_names", ()))
    for number, case in enumerate(task.cases()):
        if _expected(task.name, number).error is not None:
            continue
        first = run(function, task, _given(task, case, "numpy", "float64"))
        tensors = isinstance(first.value, torch.Tensor) or any(
            isinstance(value, torch.Tensor) for value in _arrays(first.value)
        )
        if isinstance(first.error, NotImplementedError | TooLong) or (
            first.error is None and not tensors
        ):
            return "numpy"
        second = run(function, task, _given(task, case, "torch", "float64"))
        misfit = isinstance(first.error, TypeError | AttributeError)
        if second.error is None or ("torch" in named and "np" not in named):
            return "torch"
        fits = not isinstance(second.error, TypeError | AttributeError)
        return "torch" if misfit and fits and not named & {"np", "math"} else "numpy"
    return "numpy"


def judge(name: str, function: Callable[..., Any], device: str | None = None) -> Result:
    """Run the check of a task and return what it found, printing nothing.

    device: run with torch tensors on this device; by default with NumPy arrays, or with tensors on the CPU if
    the function wants them.
    """
    task = _task(name)
    if not callable(function):
        return _failed(
            task,
            [
                f"got {name_of(function)}, expected the function itself: check.{name}({name})"
            ],
        )
    place = torch.device("cpu") if device is None else devices.pick(device)
    library = _library(task, function) if device is None or task.plain else "torch"
    widths = (
        ["float32"]
        if place.type == "mps"
        else ["float64"]
        if task.plain
        else ["float64", "float32"]
    )
    cases, printed = task.cases(), ""
    for dtype in widths:
        outcomes: list[Outcome] = []
        found: tuple[int, Difference] | None = None
        for number, case in enumerate(cases):
            used = case.dtype or dtype
            if case.dtype and dtype != widths[0]:
                continue
            if case.wide and dtype != "float64":
                continue
            outcome = run(function, task, _given(task, case, library, used, place))
            outcomes.append(outcome)
            printed = printed or outcome.printed
            if isinstance(outcome.error, NotImplementedError):
                text = str(outcome.error)
                return Result(
                    name,
                    "not done",
                    (f"· {name}: not done yet" + (f". {text}" if text else ""),),
                )
            if found is None and (
                difference := _difference(task, number, outcome, library, used)
            ):
                found = number, difference
                if dtype != widths[0] or isinstance(outcome.error, TooLong):
                    break
        if found:
            number, difference = found
            used = cases[number].dtype or dtype
            where = label(task, cases[number])
            kind = (
                ""
                if task.plain
                else f"  ({'torch' if library == 'torch' else 'NumPy'}, {used})"
            )
            lines = [f"smallest input that fails: {where}{kind}"]
            lines += difference.lines
            whole = dtype == "float64" and len(outcomes) == len(cases)
            named = _name_mistake(task, outcomes, library) if whole else None
            if named:
                lines.append(f"this matches a famous mistake: {named[0]}")
                lines.append(f"  {named[1]}")
            short = "nothing but noise" if cases[number].rough else difference.short
            return _failed(
                task, lines, printed, named[0] if named else None, where, short
            )
    tried = f"{len(cases)} inputs" if len(cases) > 1 else "1 input"
    kinds = (
        ""
        if task.plain
        else f", {'torch' if library == 'torch' else 'NumPy'} {' and '.join(widths)}"
    )
    where = f" on {place.type}" if device and not task.plain else ""
    return Result(
        name, "passed", (f"✓ {name}: right on {tried}{kinds}{where}", *_said(printed))
    )


def _failed(
    task: Task,
    lines: list[str],
    printed: str = "",
    mistake: str | None = None,
    where: str = "",
    short: str = "",
) -> Result:
    body = [f"  {line}" for line in lines]
    return Result(
        task.name,
        "failed",
        (f"✗ {task.name}", *body, *_said(printed)),
        mistake,
        where,
        short,
    )


def _said(printed: str) -> list[str]:
    if not printed:
        return []
    first, *rest = printed.splitlines()[:4]
    return [f"  your function printed: {first}", *(f"    {line}" for line in rest)]


def label(task: Task, case: Case) -> str:
    """An input as messages show it: small arrays with their numbers, larger ones with their shapes."""
    parts = []
    sizes = [value.size for value in case.arguments if isinstance(value, np.ndarray)]
    short = max(sizes, default=0) <= SMALL and sum(sizes) <= 2 * SMALL
    for name, value in zip(task.arguments, case.arguments, strict=False):
        if isinstance(value, np.ndarray):
            text = f" = {_numbers(value, 10)}" if short else f" {list(value.shape)}"
        elif callable(value):
            text = f" = {getattr(value, '__name__', 'a function')}"
        elif (
            isinstance(value, list) and value and all(callable(item) for item in value)
        ):
            text = f" = [{', '.join(getattr(item, '__name__', 'a function') for item in value)}]"
        elif isinstance(value, dict):
            text = f" (a dict of {len(value)})"
        elif dataclasses.is_dataclass(value):
            text = f" = {_chosen(value)}"
        elif isinstance(value, list | tuple) and (
            len(repr(value)) > 40 or any(True for _ in _arrays(value))
        ):
            text = f" (a {type(value).__name__} of {len(value)})"
        else:
            text = f" = {_cut(value)}"
        parts.append(f"{name}{text}")
    return ", ".join(parts)


def _chosen(value: Any) -> str:
    """A configuration, without the fields that have their defaults."""
    fields = [
        f"{one.name}={getattr(value, one.name)!r}"
        for one in dataclasses.fields(value)
        if getattr(value, one.name) != one.default
    ]
    return f"{type(value).__name__}({', '.join(fields)})"


# ---------------------------------------------------------------- what a notebook calls


def _task(name: str) -> Task:
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, 1)
        hint = f"; did you mean check.{near[0]}?" if near else ""
        raise AttributeError(f"there is no check of the name {name!r}{hint}")
    return TASKS[name]


def __getattr__(name: str) -> Callable[..., None]:
    """The check of a task, by its name."""
    if name.startswith("__"):
        raise AttributeError(name)
    task = _task(name)

    def check(function: Callable[..., Any], device: str | None = None) -> None:
        result = judge(name, function, device)
        _passed.pop(name, None)
        if result.status != "not done":
            _passed[name] = result.status == "passed"
        _last[:] = [task.notebook]
        print(result.text)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"{task.signature}\n\nPrint whether a function does this. Notebook {task.notebook}."
    return check


def __dir__() -> list[str]:
    return sorted([*TASKS, "judge", "progress", "report"])


def progress() -> None:
    """Print which tasks of this notebook are done and which one is next."""
    if not _last:
        print("Nothing has been checked yet. Run the cell of the first task.")
        return
    tasks = [task.name for task in TASKS.values() if task.notebook == _last[0]]
    done = [name for name in tasks if _passed.get(name)]
    waiting = [name for name in tasks if name not in done]
    print(f"{_last[0]}: {len(done)} of {len(tasks)} tasks done")
    for name in tasks:
        state = "✓" if name in done else "✗" if name in _passed else "·"
        print(
            f"  {state} {name}"
            + ("   <- next" if waiting and name == waiting[0] else "")
        )


def report(function: Callable[..., Any], inputs: Iterable[Any], unit: str = "") -> None:
    """Print what a function measures for each input. Nothing is graded: the answers are this machine's."""
    name = getattr(function, "__name__", "function")
    for value in inputs:
        try:
            got = function(value)
        except NotImplementedError as error:
            print(f"· {name}: not done yet" + (f". {error}" if str(error) else ""))
            return
        except Exception as error:
            where = _line(error, function)
            print(
                f"✗ {name}({value!r}) raised {type(error).__name__}: {error}"
                + (f"\n  in {where}" if where else "")
            )
            return
        text = (
            f"{float(got):.4g}"
            if isinstance(got, int | float | np.number)
            else str(got)
        )
        print(f"{name}({value!r})  {text} {unit}".rstrip())
