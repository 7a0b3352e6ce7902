"""NumPy against torch's functions, autograd and closed forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from minigpt import array, example

SEED = st.integers(0, 2**32 - 1)
LEADING = st.lists(st.integers(1, 3), max_size=4).map(tuple)
FLOATS = (np.float16, np.float32, np.float64)


def close(got: object, expected: object, bound: float = 1e-12) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.tensor(values, dtype=torch.float64) for values in arrays]


# ---------------------------------------------------------------- LayerNorm


@reference.FEW
@given(SEED, LEADING, st.integers(2, 33), st.booleans(), st.sampled_from([1e-5, 0.1]))
def test_layer_norm_and_its_gradients_are_torchs(
    seed: int, leading: tuple[int, ...], C: int, has_beta: bool, eps: float
) -> None:
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(1, 2, size=(2, *leading, C))
    gamma, beta = rng.normal(size=(2, C))
    tx, tgamma, tbeta, tdy = tensors(x, gamma, beta, dy)
    for leaf in (tx, tgamma, tbeta):
        leaf.requires_grad_()
    y = F.layer_norm(tx, (C,), tgamma, tbeta if has_beta else 0 * tbeta, eps)
    close(array.layer_norm(x, gamma, beta if has_beta else None, eps), y.detach())
    F.layer_norm(tx, (C,), tgamma, tbeta, eps).backward(tdy)
    rows = 1 / x.std(-1).min()  # a narrow row magnifies rounding
    for got, leaf in zip(array.layer_norm_backward(dy, x, gamma, eps), (tx, tgamma, tbeta), strict=True):
        close(got, leaf.grad, 1e-12 * max(1.0, rows**2))


def test_layer_norm_closed_forms() -> None:
    one = np.ones(2)
    expected = np.array([[-1, 1], [0, 0]]) / math.sqrt(1 + 1e-5)
    close(array.layer_norm(np.array([[1.0, 3.0], [20.0, 20.0]]), one), expected, 1e-15)
    assert array.layer_norm(one, 7 * one, np.array([0.5, -2.0])).tolist() == [0.5, -2.0]
    with pytest.warns(RuntimeWarning, match="invalid value"):  # without eps: 0/0
        assert np.isnan(array.layer_norm(one, one, eps=0.0)).all()


def test_layer_norm_of_a_large_mean_in_float32() -> None:
    x = np.array([1, 2, 3, 4], np.float32) + np.float32(10000)
    expected = np.array([-1.5, -0.5, 0.5, 1.5]) / math.sqrt(1.25 + 1e-5)
    close(array.layer_norm(x, np.ones(4, np.float32)), expected, 1e-6)


@reference.FEW
@given(SEED)
def test_layer_norm_knows_no_other_position(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, gamma, order = rng.normal(size=(2, 6, 5)), rng.normal(size=5), rng.permutation(6)
    y = array.layer_norm(x, gamma)
    close(array.layer_norm(x[:, order], gamma), y[:, order])
    close(array.layer_norm(x[1, 3], gamma), y[1, 3])


# ---------------------------------------------------------------- dtypes, axes, mutation


def unary(dtype: type, shape: tuple[int, ...] = (2, 3, 4)) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Every function that maps [..., T, C] to one array, with its other arguments filled in."""
    C, w = shape[-1], reference.weights(0, shape[-1], 6, dtype)
    one = np.ones(C, dtype)
    return {
        "linear": lambda x: array.linear(x, w["w1"], w["b1"]),
        "layer_norm": lambda x: array.layer_norm(x, one, one),
        "layer_norm without beta": lambda x: array.layer_norm(x, one),
        "layer_norm_backward": lambda x: array.layer_norm_backward(x, x, one)[0],
        "relu": array.relu,
        "gelu": array.gelu,
        "gelu_tanh": array.gelu_tanh,
        "feed_forward": lambda x: array.feed_forward(x, w["w1"], w["b1"], w["w2"], w["b2"], array.gelu)[0],
        "residual": lambda x: array.residual(x, x),
        "softmax": array.softmax,
        "attention": lambda x: array.attention(x, x, x)[0],
        "masked attention": lambda x: array.attention(x, x, x, array.causal_mask(x.shape[-2]))[1],
        "split_heads": lambda x: array.split_heads(x, 2),
        "merge_heads": lambda x: array.merge_heads(x[..., None, :, :]),
        "multi_head_attention": lambda x: array.multi_head_attention(x, w, 2),
        "block": lambda x: array.block(x, w, 2, activation=array.gelu_tanh)[0],
    }


@pytest.mark.parametrize("name", unary(np.float64))
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtype_is_kept_and_inputs_stay_as_they_are(name: str, dtype: type) -> None:
    x = np.random.default_rng(5).normal(size=(2, 3, 4)).astype(dtype)
    x.setflags(write=False)
    got = unary(dtype)[name](x)
    assert got.dtype == dtype
    assert np.isfinite(got).all()
    wide = unary(np.float64)[name](x.astype(np.float64))
    close(got, wide, 200 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("name", unary(np.float64))
def test_leading_axes_may_be_missing_or_many(name: str) -> None:
    function = unary(np.float64)[name]
    x = np.random.default_rng(6).normal(size=(2, 1, 3, 2, 4))
    y = function(x)
    for b in range(2):
        for c in range(3):
            close(function(x[b, 0, c]), y[b, 0, c])


@pytest.mark.parametrize("name", sorted(set(unary(np.float64)) - {"merge_heads", "masked attention"}))
@pytest.mark.parametrize(
    ("bad", "got"),
    [
        ([[1.0, 2.0, 3.0, 4.0]], "list"),
        ("text", "str"),
        (None, "NoneType"),
        (np.ones((3, 4), int), "int64"),
        (np.ones((3, 4), complex), "complex128"),
        (np.ones((3, 4), bool), "bool"),
        (np.array([[None]]), "object"),
    ],
)
def test_only_float_arrays(name: str, bad: object, got: str) -> None:
    with pytest.raises(TypeError, match=rf"^\w+: got (dtype )?{got}, expected a"):
        unary(np.float64)[name](bad)  # type: ignore[arg-type]


def test_only_float_arrays_in_merge_heads() -> None:
    with pytest.raises(TypeError, match="x: got list, expected a NumPy array of floats"):
        array.merge_heads([[[1.0]]])  # type: ignore[arg-type]


Z = np.zeros
SHAPES = [
    (
        lambda: array.linear(Z((2, 3)), Z((2, 3))),
        "weight: got shape [2, 3] for x of shape [2, 3]; expected [n_in",
    ),
    (lambda: array.linear(Z(3), Z(3)), "weight: got shape [3] for x of shape [3]"),
    (lambda: array.linear(Z(3), Z((3, 2)), Z(3)), "bias: got shape [3], expected [2]"),
    (lambda: array.linear(Z(3), Z((3, 2)), Z((1, 2))), "bias: got shape [1, 2], expected [2]"),
    (lambda: array.layer_norm(Z((3, 0)), Z(0)), "x: got shape [3, 0]; the last axis must hold at least one"),
    (lambda: array.layer_norm(np.array(1.0), Z(1)), "x: got shape []; the last axis"),
    (lambda: array.layer_norm(Z((3, 2)), Z(3)), "gamma: got shape [3], expected [2]"),
    (lambda: array.layer_norm(Z((3, 2)), Z(1)), "gamma: got shape [1], expected [2]"),
    (lambda: array.layer_norm(Z((3, 2)), Z(2), Z((3, 2))), "beta: got shape [3, 2], expected [2]"),
    (lambda: array.layer_norm_backward(Z((1, 2)), Z((3, 2)), Z(2)), "dy: got shape [1, 2], expected [3, 2]"),
    (lambda: array.layer_norm_backward(Z((3, 0)), Z((3, 0)), Z(0)), "x: got shape [3, 0]; the last axis"),
    (lambda: array.residual(Z((3, 2)), Z((1, 2))), "update: got shape [1, 2], expected [3, 2]"),
    (
        lambda: array.residual(Z((2, 5, 16)), Z((1, 5, 16))),
        "update: got shape [1, 5, 16], expected [2, 5, 16]",
    ),
    (lambda: array.residual(Z((1, 2)), Z((3, 2))), "update: got shape [3, 2], expected [1, 2]"),
    (lambda: array.residual(Z((3, 2)), Z(2)), "update: got shape [2], expected [3, 2]"),
    (lambda: array.softmax(Z((3, 0))), "scores: got shape [3, 0]; the last axis"),
    (lambda: array.softmax(np.array([0, np.nan])), "scores: got NaN or +inf"),
    (lambda: array.softmax(np.array([0, np.inf])), "scores: got NaN or +inf"),
    (lambda: array.causal_mask(3, 2), "n_query: got 3 with n_key 2; expected 1 <= n_query <= n_key"),
    (lambda: array.causal_mask(0), "n_query: got 0"),
    (
        lambda: array.attention(Z((3, 2)), Z((3, 4)), Z((3, 2))),
        "k: got shape [3, 4] for q of shape [3, 2]; the widths",
    ),
    (lambda: array.attention(Z((3, 2)), Z((3, 2)), Z((4, 2))), "v: got shapes q [3, 2], k [3, 2], v [4, 2]"),
    (
        lambda: array.attention(Z((2, 3, 2)), Z((1, 3, 2)), Z((1, 3, 2))),
        "v: got shapes q [2, 3, 2], k [1, 3, 2]",
    ),
    (lambda: array.attention(Z(2), Z(2), Z(2)), "k: got shape [2] for q of shape [2]"),
    (
        lambda: array.attention(*[Z((5, 3, 2))] * 3, np.ones((3, 1), bool)),
        "mask: got shape [3, 1], expected [5, 3, 3], leading axes may be 1 or missing",
    ),
    (lambda: array.attention(*[Z((5, 3, 2))] * 3, np.ones((4, 3, 3), bool)), "mask: got shape [4, 3, 3]"),
    (lambda: array.attention(*[Z((3, 2))] * 3, np.ones((1, 3, 3), bool)), "mask: got shape [1, 3, 3]"),
    (
        lambda: array.split_heads(Z((5, 6)), 4),
        "n_head: got 4 for width C = 6; it must be at least 1 and divide C",
    ),
    (lambda: array.split_heads(Z((5, 6)), 0), "n_head: got 0 for width C = 6"),
    (lambda: array.split_heads(Z(6), 2), "x: got shape [6], expected [..., T, C]"),
    (lambda: array.merge_heads(Z((5, 6))), "x: got shape [5, 6], expected [..., H, T, d]"),
    (lambda: array.block(*example.arrays(), 3), "n_head: got 3 for width C = 2"),
]


@pytest.mark.parametrize(("call", "words"), SHAPES, ids=[words[:60] for _, words in SHAPES])
def test_wrong_shapes_are_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        call()


@pytest.mark.parametrize(
    ("mask", "got"), [(np.ones((3, 3)), "float64"), ([[True]], "list"), (np.eye(3, dtype=int), "int64")]
)
def test_a_mask_must_be_bool(mask: object, got: str) -> None:
    with pytest.raises(TypeError, match=f"mask: got {got}, expected a NumPy array of bool"):
        array.attention(*[Z((3, 2))] * 3, mask)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the other functions


@reference.FEW
@given(SEED, LEADING, st.booleans())
def test_linear_is_torchs(seed: int, leading: tuple[int, ...], has_bias: bool) -> None:
    rng = np.random.default_rng(seed)
    x, weight, bias = rng.normal(size=(*leading, 3)), rng.normal(size=(3, 4)), rng.normal(size=4)
    tx, tw, tb = tensors(x, weight, bias)
    close(array.linear(x, weight, bias if has_bias else None), F.linear(tx, tw.T, tb if has_bias else None))


@reference.FEW
@given(SEED, LEADING)
def test_activations_are_torchs(seed: int, leading: tuple[int, ...]) -> None:
    x = np.random.default_rng(seed).normal(0, 4, size=(*leading, 5))
    (tx,) = tensors(x)
    close(array.relu(x), F.relu(tx), 0)
    close(array.gelu(x), F.gelu(tx))
    close(array.gelu_tanh(x), F.gelu(tx, approximate="tanh"))


def test_the_two_gelus_differ_by_less_than_a_thousandth() -> None:
    x = np.linspace(-6, 6, 100001)
    assert 4.7e-4 < np.abs(array.gelu(x) - array.gelu_tanh(x)).max() < 4.8e-4


def test_feed_forward_of_the_book() -> None:
    _, w = example.arrays()
    y, hidden = array.feed_forward(np.array([[-1.0, 1.0], [1.0, -1.0]]), w["w1"], None, w["w2"], None)
    assert hidden.tolist() == [[0, 2, 1], [1, 0, 0]]
    assert y.tolist() == [[1, 1], [1, 0]]


@reference.FEW
@given(SEED, LEADING, st.integers(1, 5))
def test_softmax_is_torchs(seed: int, leading: tuple[int, ...], T: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 300, size=(*leading, T))
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    expected = np.nan_to_num(torch.softmax(torch.tensor(scores), -1).numpy())  # torch: NaN for a row of -inf
    close(array.softmax(scores), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_masked_rows(dtype: type) -> None:
    scores = np.array([[-np.inf, -np.inf], [0, -np.inf], [60000, 60000]], dtype)
    got = array.softmax(scores)
    assert got.tolist() == [[0, 0], [1, 0], [0.5, 0.5]]
    assert got.dtype == dtype


def test_causal_mask_is_the_last_rows_of_the_triangle() -> None:
    for n_key in range(1, 6):
        whole = [[key <= query for key in range(n_key)] for query in range(n_key)]
        assert array.causal_mask(n_key).tolist() == whole
        for n_query in range(1, n_key + 1):
            assert array.causal_mask(n_query, n_key).tolist() == whole[-n_query:]


@reference.FEW
@given(SEED, LEADING, st.integers(1, 5), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3))
def test_attention_is_torchs(
    seed: int, leading: tuple[int, ...], T_q: int, more: int, d: int, d_v: int
) -> None:
    rng, T_k = np.random.default_rng(seed), T_q + more
    q, k = rng.normal(size=(*leading, T_q, d)), rng.normal(size=(*leading, T_k, d))
    v, mask = rng.normal(size=(*leading, T_k, d_v)), rng.random((T_q, T_k)) < 0.7
    output, weights = array.attention(q, k, v, mask)
    seen = torch.tensor(mask | ~mask.any(-1, keepdims=True))
    expected = F.scaled_dot_product_attention(*tensors(q, k, v), attn_mask=seen).numpy()
    expected[..., ~mask.any(-1), :] = 0
    close(output, expected)
    close(weights.sum(-1), np.broadcast_to(mask.any(-1), weights.shape[:-1]).astype(float))
    assert not weights[..., ~mask].any()


def test_attention_without_a_mask_is_equivariant() -> None:
    x = np.random.default_rng(8).normal(size=(5, 3))
    order = [2, 0, 1, 4, 3]
    close(array.attention(*[x[order]] * 3)[0], array.attention(x, x, x)[0][order])
    mask = array.causal_mask(5)
    moved = array.attention(*[x[order]] * 3, mask)[0] - array.attention(x, x, x, mask)[0][order]
    assert np.abs(moved).max() > 0.01  # under a fixed triangle it is not


@reference.FEW
@given(SEED, LEADING, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_heads(seed: int, leading: tuple[int, ...], T: int, H: int, d: int) -> None:
    x = np.random.default_rng(seed).normal(size=(*leading, T, H * d))
    heads = array.split_heads(x, H)
    assert heads.shape == (*leading, H, T, d)
    for h in range(H):
        assert (heads[..., h, :, :] == x[..., h * d : (h + 1) * d]).all()
    assert (array.merge_heads(heads) == x).all()


@reference.FEW
@given(
    SEED,
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(2, 4),
    st.sampled_from(["relu", "gelu", "gelu_tanh"]),
)
def test_block_is_torchs_encoder_layer(seed: int, T: int, H: int, d: int, activation: str) -> None:
    w = reference.weights(seed, H * d, 7)
    x = np.random.default_rng(seed + 1).normal(size=(2, T, H * d))
    y, record = array.block(x, w, H, activation=getattr(array, activation))
    close(y, reference.block(x, w, H, activation), 1e-11)
    stages = {name: value.shape for name, value in record.items()}
    same = (2, T, H * d)
    names = ("norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output")
    assert list(stages.items()) == [(name, (2, T, 7) if name == "hidden" else same) for name in names]
    close(record["residual1"], x + record["attention"], 0)
    close(record["output"], record["residual1"] + record["ffn"], 0)


def test_block_of_the_book_and_its_closed_form() -> None:
    y, _ = array.block(*example.arrays(), 2)
    printed = [[1.999980, 2.999940], [0.999912, 1.476742], [2.999964, 3.746396]]
    close(y, printed, 5e-7)
    a = 0.5 / math.sqrt(0.25001)
    u = (2 * a - 1) / (2 * math.sqrt(((2 * a - 1) / 2) ** 2 + 1e-5))
    close(y[0], [1 + u, 2 * a + u])


def test_example_is_what_the_book_says() -> None:
    assert np.add(example.E, example.P).tolist() == example.X
    x, w = example.arrays(np.float32)
    assert {value.dtype for value in [x, *w.values()]} == {np.dtype(np.float32)}
    qkv = example.X @ w["w_qkv"]
    assert (qkv == np.hstack([example.X] * 3)).all()  # three identity projections
