"""Plain Python against torch's functions and closed forms."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from minigpt import example, scalar

SEED = st.integers(0, 2**32 - 1)


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.array(values), dtype=torch.float64)


def close(got: object, expected: object, bound: float = 1e-12) -> None:
    np.testing.assert_allclose(np.array(got), np.asarray(expected), rtol=0, atol=bound)


@reference.FEW
@given(SEED, st.integers(1, 9), st.booleans(), st.sampled_from([1e-5, 0.1]))
def test_layer_norm_is_torchs(seed: int, C: int, has_beta: bool, eps: float) -> None:
    rng = np.random.default_rng(seed)
    x, gamma, beta = rng.normal(1, 2, size=(3, C)).tolist()
    expected = F.layer_norm(tensor(x), (C,), tensor(gamma), tensor(beta) if has_beta else None, eps)
    close(scalar.layer_norm(x, gamma, beta if has_beta else None, eps), expected)


def test_layer_norm_closed_forms() -> None:
    close(scalar.layer_norm([1, 3], [1, 1]), np.array([-1, 1]) / math.sqrt(1 + 1e-5), 1e-15)
    assert scalar.layer_norm([1, 1], [7, 7], [0.5, -2]) == [0.5, -2]
    assert scalar.layer_norm([10, 10], [1, 1]) == [0, 0]
    with pytest.raises(ZeroDivisionError):  # what eps is for
        scalar.layer_norm([10, 10], [1, 1], eps=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: scalar.layer_norm([], []), "x: got no numbers"),
        (lambda: scalar.layer_norm([1, 2], [1]), "gamma: got 1 numbers, expected 2"),
        (lambda: scalar.layer_norm([1, 2], [1, 1], [1, 2, 3]), "beta: got 3 numbers, expected 2"),
        (lambda: scalar.linear([1, 2], [[1, 2]]), "x: got 2 numbers for a weight with 1 rows"),
        (lambda: scalar.linear([1], [[1, 2]], [1, 2, 3]), "bias: got 3 numbers, expected 2"),
        (lambda: scalar.softmax([0, math.nan]), "scores: got .*nan.*; NaN and"),
        (lambda: scalar.softmax([0, math.inf]), "scores: got .*inf"),
        (lambda: scalar.attention([[1.0]], [[1.0, 5.0]], [[1.0]]), "k: got width 2 for q of width 1"),
        (lambda: scalar.block(example.X, example.WEIGHTS, 3), "n_head: got 3 for width C = 2"),
        (lambda: scalar.block(example.X, example.WEIGHTS, 0), "n_head: got 0 for width C = 2"),
        (lambda: scalar.residual([[1, 2]] * 3, [[1, 2]]), r"update: got .*\[2\], expected .*\[2, 2, 2\]"),
        (lambda: scalar.residual([[1, 2]], [[1]]), r"update: got .*\[1\], expected .*\[2\]"),
    ],
)
def test_wrong_input_is_named(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("x", [-40.0, -6.0, -1.0, -1e-9, 0.0, 0.5, 3.0, 40.0])
def test_activations_are_torchs(x: float) -> None:
    close(scalar.relu(x), F.relu(tensor(x)), 0)
    close(scalar.gelu(x), F.gelu(tensor(x)))
    close(scalar.gelu_tanh(x), F.gelu(tensor(x), approximate="tanh"))


def test_softmax_closed_forms() -> None:
    close(scalar.softmax([0, math.log(2), -math.inf]), [1 / 3, 2 / 3, 0], 1e-15)
    close(scalar.softmax([5000, 5000 + math.log(3)]), [0.25, 0.75])
    assert scalar.softmax([-math.inf, -math.inf]) == [0, 0]


@reference.FEW
@given(SEED, st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_attention_is_torchs(seed: int, T: int, d: int, causal: bool) -> None:
    q, k, v = np.random.default_rng(seed).normal(size=(3, T, d))
    output, weights = scalar.attention(q.tolist(), k.tolist(), v.tolist(), causal)
    close(output, F.scaled_dot_product_attention(*map(tensor, (q, k, v)), is_causal=causal))
    close(np.sum(weights, axis=-1), np.ones(T))
    if causal:
        assert not np.triu(weights, 1).any()


@reference.FEW
@given(SEED, st.integers(1, 5), st.sampled_from([1, 2, 3]), st.integers(1, 3), st.integers(1, 7))
def test_block_is_torchs_encoder_layer(seed: int, T: int, H: int, d: int, hidden: int) -> None:
    w = reference.weights(seed, H * d, hidden)
    x = np.random.default_rng(seed + 1).normal(size=(T, H * d))
    lists = {name: value.tolist() for name, value in w.items()}
    y, record = scalar.block(x.tolist(), lists, H, activation=scalar.gelu)
    close(y, reference.block(x, w, H, "gelu"), 1e-11)  # torch's LayerNorm of a narrow row loses a digit
    assert list(record) == ["norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output"]
    assert record["output"] == y


def test_inputs_stay_as_they_are() -> None:
    x = [list(row) for row in example.X]
    scalar.block(x, example.WEIGHTS, 2)
    assert x == [[1, 0], [0, 2], [2, 1]]


def test_no_numpy_in_the_reference() -> None:
    source = Path(scalar.__file__).read_text(encoding="utf-8")
    assert "import numpy" not in source and "import torch" not in source
