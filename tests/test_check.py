"""The checks: right answers in any clothes pass, broken ones are told what is wrong and break nothing."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from minigpt import array, check, device, scalar
from minigpt.tasks import TASKS

torch.set_num_threads(1)


def said(name: str, function: Callable[..., Any], **options: Any) -> str:
    return check.judge(name, function, **options).text


# ---------------------------------------------------------------- tasks


@pytest.mark.parametrize("name", TASKS)
def test_cases_ask_for_different_answers(name: str) -> None:
    """A constant cannot pass: the expected values are not all the same."""
    task = TASKS[name]
    seen = [repr(check._expected(name, i).value) for i in range(len(task.cases()))]
    assert len(task.cases()) >= 2 and len(set(seen)) >= 2
    assert len(task.arguments) == len(task.cases()[0].arguments), task.signature


@pytest.mark.parametrize("name", TASKS)
def test_references_are_finite(name: str) -> None:
    for i in range(len(TASKS[name].cases())):
        for values in check._arrays(check._expected(name, i).value):
            assert not np.isnan(check._numpy(values)).any()


@pytest.mark.parametrize("name", TASKS)
def test_constants_fail_everywhere(name: str) -> None:
    for value in (None, 0, math.nan, "text", [], (1, 2), {}):
        result = check.judge(name, lambda *_, value=value: value)
        assert result.status == "failed" and len(result.lines) >= 3, value


@pytest.mark.parametrize("name", TASKS)
def test_stubs_are_not_done_yet(name: str) -> None:
    def stub(*_: Any) -> None:
        raise NotImplementedError("do this")

    result = check.judge(name, stub)
    assert result.status == "not done"
    assert result.text == f"· {name}: not done yet. do this"


# ---------------------------------------------------------------- right answers in other clothes


def numpy_in_place(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> np.ndarray:
    y = x.copy()
    y -= y.mean(axis=-1)[..., None]
    y /= np.sqrt((y * y).mean(-1, keepdims=True) + eps)
    y *= gamma
    y += beta
    return y


def einsum(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> np.ndarray:
    deviations = x - np.einsum("...c->...", x)[..., None] / x.dtype.type(x.shape[-1])
    squares = np.einsum("...c,...c->...", deviations, deviations) / x.dtype.type(x.shape[-1])
    return deviations * (gamma / np.sqrt(squares + x.dtype.type(eps))[..., None]) + beta


def in_torch(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def torch_by_hand(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return torch.addcmul(
        beta, gamma, centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    )


@pytest.mark.parametrize("function", [array.layer_norm, numpy_in_place, einsum, in_torch, torch_by_hand])
def test_layer_norm_in_other_clothes(function: Callable[..., Any]) -> None:
    result = check.judge("layer_norm", function)
    assert result.status == "passed", result.text
    library = "torch" if "torch" in function.__name__ else "NumPy"
    assert result.text == f"✓ layer_norm: right on 6 inputs, {library} float64 and float32"


OTHERS: list[tuple[str, Callable[..., Any]]] = [
    ("relu", lambda x: x * (x > 0)),
    ("relu", F.relu),
    ("gelu", F.gelu),
    ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("softmax", lambda s: torch.softmax(s, -1)),
    ("softmax", lambda s: np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True))),
    ("attention", F.scaled_dot_product_attention),
    ("causal_attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    ("causal_mask", lambda T: torch.ones(T, T, dtype=torch.bool).tril().numpy()),
    ("split_heads", lambda x, H: x.view(*x.shape[:2], H, -1).transpose(1, 2)),
    ("split_heads", lambda x, H: np.stack(np.split(x, H, axis=-1), axis=1)),
    ("merge_heads", lambda x: np.concatenate(list(x.swapaxes(0, 1)), axis=-1)),
    ("merge_heads_torch", lambda x: x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)),
    ("merge_heads_torch", lambda x: x.transpose(1, 2).flatten(2)),
    ("row_statistics", lambda x: list(torch.var_mean(x, -1, keepdim=True, correction=0))[::-1]),
    ("entropy", lambda a: torch.special.entr(a).sum(-1)),
    ("fuse", lambda *w: np.hstack(w)),
    ("cross_entropy", lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten(), ignore_index=-1)),
    ("next_token_loss", lambda z, t: F.cross_entropy(z[:, :-1].flatten(0, 1), t[:, 1:].flatten())),
    ("embed", lambda ids, wte, wpe: F.embedding(ids, wte) + wpe[: ids.shape[1]]),
    ("ffn_parameters", lambda C, F, bias: np.int64(2 * C * F + (C + F) * bias)),
    (
        "last_row_leaks",
        lambda norm, x: np.bool_((norm(x)[:-1] != norm(np.vstack([x[:-1], x[:1] + 9]))[:-1]).any()),
    ),
    ("append", lambda cache, new, n: (_write(cache, new, n), n + len(new))),
    ("residual", lambda x, u: array.residual(x, u)),
]


def _write(cache: Any, new: Any, n: int) -> Any:
    cache[n : n + len(new)] = new
    return cache


@pytest.mark.parametrize(
    ("name", "function"), OTHERS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(OTHERS)]
)
def test_others_in_other_clothes(name: str, function: Callable[..., Any]) -> None:
    assert check.judge(name, function).status == "passed", said(name, function)


@pytest.mark.parametrize("place", device.available())
def test_on_every_device(place: str) -> None:
    widths = "float32" if place == "mps" else "float64 and float32"
    assert said("layer_norm", in_torch, device=place) == (
        f"✓ layer_norm: right on 6 inputs, torch {widths} on {place}"
    )
    assert check.judge("gelu", lambda x: F.gelu(x, approximate="tanh"), device=place).status == "failed"


# ---------------------------------------------------------------- wrong and broken answers


def test_a_mistake_without_a_name_shows_the_smallest_failing_input() -> None:
    result = check.judge(
        "layer_norm", lambda x, gamma, beta, eps: array.layer_norm(x, gamma, beta, eps) + 0.25
    )
    assert result.status == "failed" and result.mistake is None
    assert result.lines == (
        "✗ layer_norm",
        "  smallest input that fails: x = [1, 3], gamma = [2, 0.5], beta = [0.5, -1], eps = 0.1"
        "  (NumPy, float64)",
        "  expected  [-1.40693, -0.523269]",
        "  got       [-1.15693, -0.273269]",
        "  largest error 0.25",
    )


def test_the_first_of_many_that_fails_is_shown() -> None:
    result = check.judge("relu", lambda x: array.relu(x) if x.ndim == 1 else x)
    assert result.where == "x [2, 3, 4]"
    assert "of 24 numbers of [2, 3, 4] differ; at [0, 0," in result.text


def test_nothing_is_broadcast() -> None:
    text = said("output_variance", lambda variance, eps: np.array([variance / (variance + eps)]))
    assert "expected one value" in text
    column = said("gradient_beta", lambda dy: dy.reshape(-1, dy.shape[-1]).sum(0)[:, None])
    assert "expected  shape [2]" in column
    assert "got       shape [2, 1]; shapes must be equal, nothing is broadcast here" in column


def test_dtype_is_kept() -> None:
    text = said("relu", lambda x: np.maximum(x, 0).astype(np.float64))
    assert "(NumPy, float32)" in text
    assert "expected  dtype float32, that of the input" in text and "got       dtype float64" in text


def test_an_extra_trace_is_refused() -> None:
    text = said("relu", lambda x: (array.relu(x), {"x": x}))
    assert "got a tuple of 2, expected one array and nothing beside it" in text


def test_none() -> None:
    assert "got None (is a return missing?)" in said("relu", lambda x: None)


def test_the_result_instead_of_the_function() -> None:
    assert "expected the function itself: check.relu(relu)" in said("relu", np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", "got 'text' (str), expected a NumPy array [2]"),
        ([1.0, 2.0], "got a list of 2, expected a NumPy array [2]"),
        (torch.zeros(2), "expected  dtype float64"),
        (np.float64(2.0), "got the single number 2.0 of float64, expected a NumPy array [2]"),
        (np.array(["a", "b"]), "expected  dtype float64"),
    ],
)
def test_wrong_types(value: Any, words: str) -> None:
    assert words in said("relu", lambda x: value)


def test_nan_and_infinity() -> None:
    assert "got NaN" in said("relu", lambda x: x * np.nan)
    assert "got infinity" in said("relu", lambda x: x / 0)


def test_an_error_is_shown_with_its_line() -> None:
    def broken(x: np.ndarray) -> np.ndarray:
        y = x + 1
        return y[0] / missing  # type: ignore[name-defined] # noqa: F821

    text = said("relu", broken)
    assert "raised NameError: name 'missing' is not defined" in text
    line = broken.__code__.co_firstlineno + 2
    assert f"in line {line}: return y[0] / missing" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("error", [SystemExit(1), RecursionError("deep"), MemoryError(), AssertionError()])
def test_every_error_is_caught(error: BaseException) -> None:
    def raises(x: np.ndarray) -> None:
        raise error

    assert f"raised {type(error).__name__}" in said("relu", raises)


def test_a_stub_inside_is_not_done_yet() -> None:
    def inner() -> None:
        raise NotImplementedError("first do task 1")

    assert said("relu", lambda x: inner()) == "· relu: not done yet. first do task 1"


def forever(x: np.ndarray) -> np.ndarray:
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # the reader's own code may catch everything
            continue


def test_running_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SECONDS", 0.2)
    start = time.monotonic()
    assert "stopped: it ran for more than 0.2 seconds" in said("relu", forever)
    assert time.monotonic() - start < 3
    time.sleep(0.3)  # no alarm is left behind


def test_running_for_ever_outside_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SECONDS", 0.2)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(said("relu", lambda x: time.sleep(2))))
    thread.start()
    thread.join(10)
    assert found and "stopped: it ran for more than 0.2 seconds" in found[0]


def test_prints_are_caught_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    def loud(x: np.ndarray) -> np.ndarray:
        for i in range(10_000):
            print("line", i)
        return array.relu(x)

    text = said("relu", loud)
    assert text.startswith("✓ relu") and "your function printed: line 0" in text
    assert len(text) < 1000
    assert capsys.readouterr() == ("", "")


def test_a_changed_input_is_told() -> None:
    def in_place(x: np.ndarray) -> np.ndarray:
        x[x < 0] = 0
        return x.copy()

    assert "the argument x was changed; work on a copy of it" in said("relu", in_place)

    def tensor(x: torch.Tensor) -> torch.Tensor:
        return x.clamp_(min=0).clone()

    assert "the argument x was changed" in said("relu", tensor, device="cpu")


def test_shared_memory_is_told_where_it_matters() -> None:
    def alias(x: np.ndarray, branches: list[Any]) -> np.ndarray:
        for branch in branches:
            x = x + branch(x)
        return x  # without branches, the caller's own array

    assert "the result shares its memory with x" in said("residual_stack", alias)
    views = said("split_qkv", lambda qkv: tuple(np.split(qkv, 3, axis=-1)))
    assert views.startswith("✓"), views


def test_input_that_must_be_refused() -> None:
    text = said("residual", lambda x, update: x + update)
    assert "expected ValueError: this input must be refused" in text

    def other(x: np.ndarray, update: np.ndarray) -> np.ndarray:
        if x.shape != update.shape:
            raise KeyError("shapes")
        return x + update

    assert "raised KeyError" in said("residual", other)


def test_the_solution_is_never_printed() -> None:
    for name in TASKS:
        text = said(name, lambda *_: None)
        assert "def " not in text and "lambda" not in text and "import" not in text


# ---------------------------------------------------------------- what a notebook calls


def test_check_prints_and_returns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.relu(array.relu) is None
    assert capsys.readouterr().out == "✓ relu: right on 3 inputs, NumPy float64 and float32\n"
    assert check.relu.__name__ == "relu" and "relu(x [...]) -> [...]" in check.relu.__doc__


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match=r"did you mean check.layer_norm\?"):
        check.layernorm(array.layer_norm)
    assert {"relu", "progress", "report"} <= set(dir(check))


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_passed", {})
    monkeypatch.setattr(check, "_last", [])
    check.progress()
    assert "Nothing has been checked yet" in capsys.readouterr().out
    check.relu(array.relu)
    check.gelu(array.gelu_tanh)
    capsys.readouterr()
    check.progress()
    assert capsys.readouterr().out.splitlines() == [
        "04_feed_forward: 1 of 6 tasks done",
        "  ✓ relu",
        "  · feed_forward   <- next",
        "  · fold",
        "  ✗ gelu",
        "  · gelu_tanh",
        "  · ffn_parameters",
    ]


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    def square(n: int) -> float:
        return float(n * n)

    def stub(n: int) -> float:
        raise NotImplementedError("measure it")

    def broken(n: int) -> float:
        return 1 / 0

    check.report(square, [2, 100], "ms")
    check.report(stub, [2])
    check.report(broken, [2])
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == ["square(2)  4 ms", "square(100)  1e+04 ms", "· stub: not done yet. measure it"]
    assert out[3] == "✗ broken(2) raised ZeroDivisionError: division by zero" and "return 1 / 0" in out[4]


def test_loops_of_scalar_agree_with_the_task() -> None:
    """The reference of a task is not the only witness: the plain loops pass the same check."""

    def loops(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float) -> np.ndarray:
        rows = x.reshape(-1, x.shape[-1]).astype(float).tolist()
        out = [scalar.layer_norm(row, gamma.tolist(), beta.tolist(), eps) for row in rows]
        return np.array(out, dtype=x.dtype).reshape(x.shape)

    assert check.judge("layer_norm", loops).status == "passed"
