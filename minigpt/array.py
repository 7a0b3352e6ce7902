"""The transformer block in NumPy: the functions of `minigpt.scalar`, on whole arrays.

Axes: B sequences, T positions, C width, H heads of width d = C/H, F hidden width.
Leading axes may be missing: what takes [B, T, C] takes [T, C] as well. Arrays must be
floating point and keep their dtype. Weights multiply from the right: x @ W, where W is
[in, out].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Weights = Mapping[str, Array]


def _floating(**arrays: object) -> None:
    """Refuse everything but real floating-point arrays, by the name of the argument."""
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"{name}: got {type(value).__name__}, expected a NumPy array of floats"
            )
        if not np.issubdtype(value.dtype, np.floating):
            raise TypeError(
                f"{name}: got dtype {value.dtype}, "
                "expected a float dtype such as float64"
            )


def _shape(name: str, array: Array, expected: tuple[int, ...], why: str) -> None:
    if array.shape != expected:
        raise ValueError(
            f"{name}: got shape {list(array.shape)}, expected {list(expected)}, {why}"
        )


# ---------------------------------------------------------------- linear maps


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x @ weight + bias.

    x [..., n_in], weight [n_in, n_out], bias [n_out] -> [..., n_out].
    """
    _floating(x=x, weight=weight)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"weight: got shape {list(weight.shape)} for x of shape {list(x.shape)}; "
            "expected [n_in, n_out] with n_in the last axis of x"
        )
    if bias is None:
        return x @ weight
    _floating(bias=bias)
    _shape("bias", bias, weight.shape[1:], "one number for each column of weight")
    return x @ weight + bias


# ---------------------------------------------------------------- LayerNorm


def layer_norm(
    x: Array, gamma: Array, beta: Array | None = None, eps: float = 1e-5
) -> Array:
    """Normalise the last axis (Ba, Kiros and Hinton 2016, section 3).

    x [..., C], gamma, beta [C] -> [..., C]. beta=None means that there is no beta.
    Raises TypeError for anything but float arrays, ValueError for an empty last axis or
    a gamma or beta that is not [C].
    """
    _check_layer_norm(x, gamma, beta)
    mu = x.mean(axis=-1, keepdims=True)  # [..., 1]
    var = ((x - mu) ** 2).mean(axis=-1, keepdims=True)  # [..., 1], denominator C
    y = gamma * (x - mu) / np.sqrt(var + eps)  # [..., C]
    return y if beta is None else y + beta


def layer_norm_backward(
    dy: Array, x: Array, gamma: Array, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """The gradients of a loss L through `layer_norm`.

    dy = dL/dy [..., C] -> dL/dx [..., C], dL/dgamma [C], dL/dbeta [C].

    x moves y in three ways: directly, through the mean, and through the variance. Each
    has its term.
    """
    _check_layer_norm(x, gamma, None)
    _floating(dy=dy)
    _shape("dy", dy, x.shape, "the shape of x")
    mu = x.mean(axis=-1, keepdims=True)
    std = np.sqrt(((x - mu) ** 2).mean(axis=-1, keepdims=True) + eps)
    x_hat = (x - mu) / std  # [..., C]
    d_hat = dy * gamma  # dL/dx_hat
    through_mean = d_hat.mean(axis=-1, keepdims=True)
    through_var = x_hat * (d_hat * x_hat).mean(axis=-1, keepdims=True)
    dx = (d_hat - through_mean - through_var) / std
    positions = tuple(range(x.ndim - 1))  # all of them share gamma and beta: sum
    return dx, (dy * x_hat).sum(axis=positions), dy.sum(axis=positions)


def _check_layer_norm(x: Array, gamma: Array, beta: Array | None) -> None:
    _floating(x=x, gamma=gamma)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"x: got shape {list(x.shape)}; the last axis must hold at least one number"
        )
    _shape("gamma", gamma, x.shape[-1:], "one number for each column of x")
    if beta is not None:
        _floating(beta=beta)
        _shape("beta", beta, x.shape[-1:], "one number for each column of x")


# ---------------------------------------------------------------- feed-forward


def relu(x: Array) -> Array:
    """max(x, 0), number by number."""
    _floating(x=x)
    return np.maximum(x, 0)


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy itself has no erf


def gelu(x: Array) -> Array:
    """x times the probability that a standard normal number lies below x.

    Hendrycks and Gimpel 2016, section 2.
    """
    _floating(x=x)
    return (x * 0.5 * (1 + _erf(x / math.sqrt(2)))).astype(x.dtype)


def gelu_tanh(x: Array) -> Array:
    """The approximation of `gelu` by tanh, used by GPT-2.

    Hendrycks and Gimpel 2016, section 2.
    """
    _floating(x=x)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def feed_forward(
    x: Array,
    w1: Array,
    b1: Array | None,
    w2: Array,
    b2: Array | None,
    activation: Callable[[Array], Array] = relu,
) -> tuple[Array, Array]:
    """Two linear maps and a bend between them, the same at each position.

    Vaswani et al. 2017, equation 2.

    x [..., C], w1 [C, F], b1 [F], w2 [F, C], b2 [C]
    -> output [..., C], hidden [..., F].
    """
    hidden = activation(linear(x, w1, b1))  # [..., F]
    return linear(hidden, w2, b2), hidden


# ---------------------------------------------------------------- residual sum


def residual(x: Array, update: Array) -> Array:
    """x + update, for equal shapes only.

    A sum that broadcasts would hand one row's update to another.
    """
    _floating(x=x, update=update)
    _shape("update", update, x.shape, "exactly the shape of x")
    return x + update


# ---------------------------------------------------------------- attention


def softmax(scores: Array) -> Array:
    """Weights in proportion to exp(score), along the last axis.

    [..., T] -> [..., T], each row with the sum 1.

    A score of -inf gets the weight 0; a row of nothing but -inf gets zeros. NaN and
    +inf are refused.
    """
    _floating(scores=scores)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(
            f"scores: got shape {list(scores.shape)}; the last axis must not be empty"
        )
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError(
            "scores: got NaN or +inf, which have no softmax; "
            "-inf is allowed and means masked"
        )
    top = scores.max(axis=-1, keepdims=True)  # [..., 1]
    top = np.where(np.isneginf(top), 0, top)
    powers = np.exp(scores - top)  # the largest power is exp(0): nothing overflows
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def causal_mask(n_query: int, n_key: int | None = None) -> NDArray[np.bool_]:
    """True where a query may read a key: [n_query, n_key].

    The queries are the last n_query of n_key positions, so that query i sees keys 0 to
    n_key - n_query + i.
    """
    n_key = n_query if n_key is None else n_key
    if not 1 <= n_query <= n_key:
        raise ValueError(
            f"n_query: got {n_query} with n_key {n_key}; expected 1 <= n_query <= n_key"
        )
    return np.tri(n_query, n_key, n_key - n_query, dtype=bool)


def attention(
    q: Array, k: Array, v: Array, mask: NDArray[np.bool_] | None = None
) -> tuple[Array, Array]:
    """Scaled dot-product attention, for one head or many.

    Vaswani et al. 2017, equation 1.

    q [..., T_q, d], k [..., T_k, d], v [..., T_k, d_v], mask [..., T_q, T_k] with True
    where a query may read -> output [..., T_q, d_v], weights [..., T_q, T_k]. A query
    that may read nothing gets zeros. A score of -inf counts as masked; NaN and +inf are
    refused unless the mask hides them.
    """
    _floating(q=q, k=k, v=v)
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1] or 0 in k.shape[-2:]:
        raise ValueError(
            f"k: got shape {list(k.shape)} for q of shape {list(q.shape)}; "
            "the widths d must be equal, and neither width nor keys may be missing"
        )
    if k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise ValueError(
            f"v: got shapes q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "all leading axes must be equal, and k and v must have the same T_k"
        )
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])  # [..., T_q, T_k]
    if mask is not None:
        _check_mask(mask, scores.shape)
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ v, weights


def _check_mask(mask: object, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, np.ndarray) or mask.dtype != bool:
        got = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
        raise TypeError(
            f"mask: got {got}, expected a NumPy array of bool, "
            "True where a query may read"
        )
    fits = mask.ndim <= len(shape) and mask.shape[-2:] == shape[-2:]
    lead = zip(reversed(mask.shape[:-2]), reversed(shape[:-2]), strict=False)
    if not fits or any(got not in (1, want) for got, want in lead):
        raise ValueError(
            f"mask: got shape {list(mask.shape)}, expected {list(shape)}, "
            "leading axes may be 1 or missing"
        )


def split_heads(x: Array, n_head: int) -> Array:
    """[..., T, C] -> [..., H, T, d]: head h takes columns h*d to (h+1)*d."""
    _floating(x=x)
    if x.ndim < 2:
        raise ValueError(f"x: got shape {list(x.shape)}, expected [..., T, C]")
    C = x.shape[-1]
    if n_head < 1 or C % n_head != 0:
        raise ValueError(
            f"n_head: got {n_head} for width C = {C}; "
            "it must be at least 1 and divide C"
        )
    return x.reshape(*x.shape[:-1], n_head, C // n_head).swapaxes(-3, -2)


def merge_heads(x: Array) -> Array:
    """[..., H, T, d] -> [..., T, C]: the inverse of `split_heads`."""
    _floating(x=x)
    if x.ndim < 3:
        raise ValueError(f"x: got shape {list(x.shape)}, expected [..., H, T, d]")
    x = x.swapaxes(-3, -2)  # [..., T, H, d]
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def multi_head_attention(
    x: Array, weights: Weights, n_head: int, causal: bool = True
) -> Array:
    """H heads side by side and the output projection.

    Vaswani et al. 2017, section 3.2.2.

    x [..., T, C] -> [..., T, C].
    weights: w_qkv [C, 3C], b_qkv [3C], w_o [C, C], b_o [C].
    """
    qkv = linear(x, weights["w_qkv"], weights["b_qkv"])  # [..., T, 3C]
    # [..., H, T, d] each
    q, k, v = (split_heads(part, n_head) for part in np.split(qkv, 3, axis=-1))
    mask = causal_mask(x.shape[-2]) if causal else None
    output, _ = attention(q, k, v, mask)  # [..., H, T, d]
    return linear(merge_heads(output), weights["w_o"], weights["b_o"])


# ---------------------------------------------------------------- the block


def block(
    x: Array,
    weights: Weights,
    n_head: int,
    eps: float = 1e-5,
    activation: Callable[[Array], Array] = relu,
) -> tuple[Array, dict[str, Array]]:
    """The pre-norm block.

    x [..., T, C] -> output [..., T, C] and the record of its seven stages, by name.

    weights: gamma1, beta1, gamma2, beta2 [C], w_qkv [C, 3C], b_qkv [3C], w_o [C, C],
    b_o [C], w1 [C, F], b1 [F], w2 [F, C], b2 [C].
    """
    norm1 = layer_norm(x, weights["gamma1"], weights["beta1"], eps)
    attended = multi_head_attention(norm1, weights, n_head)
    residual1 = residual(x, attended)
    norm2 = layer_norm(residual1, weights["gamma2"], weights["beta2"], eps)
    ffn, hidden = feed_forward(
        norm2, weights["w1"], weights["b1"], weights["w2"], weights["b2"], activation
    )
    output = residual(residual1, ffn)
    record = {
        "norm1": norm1,
        "attention": attended,
        "residual1": residual1,
        "norm2": norm2,
        "hidden": hidden,
        "ffn": ffn,
        "output": output,
    }
    return output, record
