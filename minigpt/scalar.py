"""The transformer block in plain Python: lists, loops and `math`, nothing else.

This is the reference. It is slow on purpose, so that each sum can be seen. A vector is
a list of floats, a matrix is a list of rows, and `x @ W` is `linear(x, W)` for one row
x. The keys of `weights` are those of `minigpt.array.block`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Vector = Sequence[float]
Matrix = Sequence[Sequence[float]]
Rows = list[list[float]]
Weights = Mapping[str, Any]  # name -> Vector or Matrix


def linear(x: Vector, weight: Matrix, bias: Vector | None = None) -> list[float]:
    """One row times a matrix, plus the bias.

    x [n_in], weight [n_in][n_out], bias [n_out] -> [n_out].
    """
    if len(x) != len(weight):
        raise ValueError(
            f"x: got {len(x)} numbers for a weight with {len(weight)} rows; "
            "they must be equal"
        )
    if bias is not None and len(bias) != len(weight[0]):
        raise ValueError(
            f"bias: got {len(bias)} numbers, expected {len(weight[0])}, "
            "one for each column"
        )
    out = []
    for j in range(len(weight[0])):
        total = 0.0 if bias is None else bias[j]
        for i in range(len(x)):
            total += x[i] * weight[i][j]
        out.append(total)
    return out


def layer_norm(
    x: Vector, gamma: Vector, beta: Vector | None = None, eps: float = 1e-5
) -> list[float]:
    """Normalise one position (Ba, Kiros and Hinton 2016, section 3).

    x, gamma, beta [C] -> [C].

    beta=None means that there is no beta, which is not the same as a beta of zeros that
    could be trained.
    """
    C = len(x)
    if C == 0:
        raise ValueError("x: got no numbers; the mean of nothing is not defined")
    for name, values in (("gamma", gamma), ("beta", beta)):
        if values is not None and len(values) != C:
            raise ValueError(
                f"{name}: got {len(values)} numbers, expected {C}, as many as x has"
            )
    mu = sum(x) / C
    var = sum((value - mu) ** 2 for value in x) / C
    std = math.sqrt(var + eps)
    out = []
    for i in range(C):
        y = gamma[i] * (x[i] - mu) / std
        out.append(y if beta is None else y + beta[i])
    return out


def relu(x: float) -> float:
    """max(x, 0)."""
    return x if x > 0 else 0.0


def gelu(x: float) -> float:
    """x times the probability that a standard normal number lies below x.

    Hendrycks and Gimpel 2016, section 2.
    """
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x: float) -> float:
    """The approximation of `gelu` by tanh, used by GPT-2.

    Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(scores: Vector) -> list[float]:
    """Weights in proportion to exp(score): [T] -> [T], a sum of 1.

    A score of -inf gets the weight 0. If every score is -inf, there is nothing to read:
    all weights are 0.
    """
    if any(math.isnan(score) or score == math.inf for score in scores):
        raise ValueError(f"scores: got {list(scores)}; NaN and +inf have no softmax")
    top = max(scores)
    if top == -math.inf:
        return [0.0] * len(scores)
    # the largest power is exp(0): nothing overflows
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def attention(
    q: Matrix, k: Matrix, v: Matrix, causal: bool = True
) -> tuple[Rows, Rows]:
    """One head (Vaswani et al. 2017, equation 1).

    q, k, v [T][d] -> output [T][d], weights [T][T]. With causal=True position i reads
    positions 0 to i and no later one.
    """
    d = len(q[0])
    if len(k[0]) != d:
        raise ValueError(
            f"k: got width {len(k[0])} for q of width {d}; they must be equal"
        )
    output, weights = [], []
    for i in range(len(q)):
        scores = []
        for j in range(len(k)):
            visible = j <= i or not causal
            scores.append(
                sum(q[i][c] * k[j][c] for c in range(d)) / math.sqrt(d)
                if visible
                else -math.inf
            )
        row = softmax(scores)
        output.append(
            [sum(row[j] * v[j][c] for j in range(len(v))) for c in range(len(v[0]))]
        )
        weights.append(row)
    return output, weights


def multi_head_attention(
    x: Matrix, weights: Weights, n_head: int, causal: bool = True
) -> Rows:
    """H heads side by side and the output projection: x [T][C] -> [T][C].

    Each head has d = C/H columns.
    """
    C = len(x[0])
    if n_head < 1 or C % n_head != 0:
        raise ValueError(
            f"n_head: got {n_head} for width C = {C}; "
            "it must be at least 1 and divide C"
        )
    d = C // n_head
    qkv = [linear(row, weights["w_qkv"], weights["b_qkv"]) for row in x]  # [T][3C]
    merged: Rows = [[] for _ in x]
    for h in range(n_head):
        q, k, v = (
            [row[part * C + h * d : part * C + (h + 1) * d] for row in qkv]
            for part in range(3)
        )
        head, _ = attention(q, k, v, causal)
        for t in range(len(x)):
            merged[t] += head[t]
    return [linear(row, weights["w_o"], weights["b_o"]) for row in merged]


def feed_forward(
    x: Vector, weights: Weights, activation: Callable[[float], float] = relu
) -> tuple[list[float], list[float]]:
    """Two linear maps and a bend between them, on one position.

    x [C] -> output [C], hidden [F].
    """
    hidden = [activation(value) for value in linear(x, weights["w1"], weights["b1"])]
    return linear(hidden, weights["w2"], weights["b2"]), hidden


def residual(x: Matrix, update: Matrix) -> Rows:
    """x + update, row by row: both [T][C]."""
    shapes = [len(row) for row in x], [len(row) for row in update]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"update: got rows of lengths {shapes[1]}, expected those of x, {shapes[0]}"
        )
    return [
        [a + b for a, b in zip(x[t], update[t], strict=True)] for t in range(len(x))
    ]


def block(
    x: Matrix,
    weights: Weights,
    n_head: int,
    eps: float = 1e-5,
    activation: Callable[[float], float] = relu,
) -> tuple[Rows, dict[str, Rows]]:
    """The pre-norm block.

    x [T][C] -> output [T][C] and the record of its seven stages, by name.
    """
    norm1 = [layer_norm(row, weights["gamma1"], weights["beta1"], eps) for row in x]
    attended = multi_head_attention(norm1, weights, n_head)
    residual1 = residual(x, attended)
    norm2 = [
        layer_norm(row, weights["gamma2"], weights["beta2"], eps) for row in residual1
    ]
    pairs = [feed_forward(row, weights, activation) for row in norm2]
    ffn, hidden = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
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
