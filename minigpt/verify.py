"""Recompute every mechanism of the course.

Run it as `python -m minigpt.verify [--device cpu|cuda|mps] [--json FILE]`.

Each line is one check: the measured error, the bound that it must keep, the dtype. A check compares with
another computation (plain Python, NumPy, torch, a standard library) or with the digits that the book prints.
Checks that end in "(wrong)" make a famous mistake on purpose and pass if its error is larger than the bound:
the mistake shows. Names start with what they belong to: N LayerNorm, P positions, R residual sum,
F feed-forward, A attention, S fused attention, K the block, O the order of its steps.

To add a mechanism, write a function that yields checks and put it into MECHANISMS.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import default_rng

import minigpt
from minigpt import array, device, example, model, scalar
from minigpt.array import Array

Arrays = Mapping[str, Array]

# ---------------------------------------------------------------- bounds

EXACT = 0.0  # the same to the last bit, or a count that must be 0
ROUNDING = {
    # The same sums in another order: a chain of at most 128 roundings, each of at most half a step (2^-53 or
    # 2^-24) of a number below 4. That is 6e-14 and 3e-5; for float64 the course promises 1e-12.
    "float64": 1e-12,
    "float32": 128 * 4 * 2.0**-24,
}
PRINTED = 0.5e-6  # half a unit of the sixth decimal: rounded, it is the number that the book prints
STEP = 1e-5  # of finite differences, along a direction of length 1. That leaves a truncation of STEP^2 and a
SLOPE = 1e-8  # rounding of 2^-52 / STEP, both near 1e-10 times a loss, or third derivative, of up to 100
VISIBLE = 0.1  # what a mistake must at least do to numbers of size 1


@dataclass(frozen=True)
class Check:
    """One measured error beside its bound."""

    name: str
    error: float
    bound: float = ROUNDING["float64"]
    dtype: str = "float64"
    wrong: bool = False  # a mistake made on purpose: its error must be larger than the bound

    @property
    def passed(self) -> bool:
        """NaN never passes: it compares false both ways."""
        return self.error > self.bound if self.wrong else self.error <= self.bound

    def __str__(self) -> str:
        mark, sign = "ok  " if self.passed else "FAIL", "> " if self.wrong else "<="
        return f"{mark}  {self.name:<74}  {self.error:7.1e} {sign} {self.bound:7.1e}  {self.dtype}"


def wrong(name: str, error: float, bound: float = VISIBLE) -> Check:
    """A mistake made on purpose, in NumPy."""
    return Check(f"{name} (wrong)", error, bound, wrong=True)


@dataclass(frozen=True)
class Place:
    """Where the torch side of a check runs, and in which dtype."""

    device: torch.device
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def rounding(self) -> float:
        return ROUNDING[self.name]

    def check(self, name: str, error: float, bound: float | None = None) -> Check:
        return Check(name, error, self.rounding if bound is None else bound, self.name)

    def tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def norm(self, gamma: Array, beta: Array | None) -> model.LayerNorm:
        norm = model.LayerNorm(len(gamma), bias=beta is not None).to(self.device, self.dtype)
        state = {"weight": gamma, "bias": beta}
        norm.load_state_dict(
            {name: torch.tensor(value) for name, value in state.items() if value is not None}
        )
        return norm

    def block(self, weights: Arrays, n_head: int, **choices: Any) -> model.Block:
        C, F = weights["w1"].shape
        sizes = {"block_size": 8, "vocab_size": 8, "n_layer": 1, "n_head": n_head, "n_embd": C, "n_hidden": F}
        block = model.Block(model.GPTConfig(**{"activation": "relu", **sizes, **choices}))
        return block.to(self.device, self.dtype).load_arrays(weights)

    def gpt(self, flash: bool) -> model.MiniGPT:
        """A Mini GPT of two layers, its weights large enough for each position to matter."""
        config = model.GPTConfig(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8, flash=flash)
        gpt, rng = model.MiniGPT(config).to(self.device, self.dtype).eval(), default_rng(11)
        with torch.no_grad():
            for parameter in gpt.parameters():
                parameter.copy_(self.tensor(rng.normal(0.3, 0.4, size=tuple(parameter.shape))))
        return gpt


# ---------------------------------------------------------------- errors


def numbers(values: Any) -> Array:
    """Lists, arrays and tensors as a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def error(got: Any, expected: Any) -> float:
    """The largest absolute difference; infinite if the shapes differ, NaN if a number is NaN."""
    left, right = numbers(got), numbers(expected)
    return float(np.abs(left - right).max()) if left.shape == right.shape else math.inf


def worst(errors: Iterable[float]) -> float:
    """The largest error; NaN if one of them is NaN, which `max` does not promise."""
    return float(np.max(list(errors)))


def record_error(got: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The largest error of all named parts; infinite if the names or their order differ."""
    if list(got) != list(expected):
        return math.inf
    return worst(error(got[name], expected[name]) for name in expected)


def let_through(function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> int:
    """How many of the calls do not raise ValueError, as each of them must."""
    count = 0
    for values in arguments:
        try:
            function(*values)
        except ValueError:
            continue
        count += 1
    return count


def slope_error(loss: Callable[[Arrays], float], at: Arrays, gradient: Arrays) -> float:
    """How far a gradient is from central finite differences of the loss, along six random directions."""
    rng, errors = default_rng(7), []
    for _ in range(6):
        along = {name: rng.normal(size=value.shape) for name, value in at.items()}
        length = math.sqrt(sum(float((part**2).sum()) for part in along.values()))
        ahead, behind = (
            loss({name: at[name] + step / length * along[name] for name in at}) for step in (STEP, -STEP)
        )
        predicted = sum(float((gradient[name] * along[name]).sum()) for name in at) / length
        errors.append(abs(predicted - (ahead - behind) / (2 * STEP)))
    return worst(errors)


def random_weights(seed: int, C: int, F: int) -> dict[str, Array]:
    """Weights of a block, all different, of a size that keeps each stage near 1."""
    rng = default_rng(seed)
    matrices = {"w_qkv": (C, 3 * C), "w_o": (C, C), "w1": (C, F), "w2": (F, C)}
    vectors = {"b_qkv": 3 * C, "b_o": C, "b1": F, "b2": C, "beta1": C, "beta2": C, "gamma1": C, "gamma2": C}
    weights: dict[str, Array] = {}
    for name, shape in matrices.items():
        weights[name] = rng.normal(size=shape) / math.sqrt(shape[0])
    for name, width in vectors.items():
        weights[name] = rng.normal(1.0 if name.startswith("gamma") else 0.0, 0.2, size=width)
    return weights


def feed_forward(x: Array, weights: Arrays, **choices: Any) -> tuple[Array, Array]:
    return array.feed_forward(x, weights["w1"], weights["b1"], weights["w2"], weights["b2"], **choices)


def lists(weights: Arrays) -> dict[str, Any]:
    return {name: value.tolist() for name, value in weights.items()}


# ---------------------------------------------------------------- N: LayerNorm


def n1_formula(place: Place) -> Iterator[Check]:
    rng = default_rng(1)
    x, gamma, beta = rng.normal(2.0, 3.0, size=(4, 5)), rng.normal(size=5), rng.normal(size=5)

    def by_statistics(row: list[float]) -> Array:
        std = math.sqrt(statistics.pvariance(row) + 1e-5)  # pvariance divides by C, variance by C - 1
        return gamma * (np.array(row) - statistics.fmean(row)) / std + beta

    expected = [by_statistics(row) for row in x.tolist()]
    rows = [scalar.layer_norm(row, gamma.tolist(), beta.tolist()) for row in x.tolist()]
    yield Check("N1 LayerNorm, plain Python against statistics", error(rows, expected))
    yield Check("N1 LayerNorm, NumPy against statistics", error(array.layer_norm(x, gamma, beta), expected))
    off = error(place.norm(gamma, beta)(place.tensor(x)), expected)
    yield place.check("N1 LayerNorm, torch against statistics", off)


def n2_printed_rows(place: Place) -> Iterator[Check]:
    x = np.array([[1.0, 3.0], [10.0, 10.0], [2.0, 4.0], [20.0, 20.0]])
    printed = [[-0.999995, 0.999995], [0.0, 0.0], [-0.999995, 0.999995], [0.0, 0.0]]
    one, beta = np.ones(2), np.array([0.5, -2.0])
    rows = [scalar.layer_norm(row, [1.0, 1.0]) for row in x.tolist()]
    yield Check("N2 rows as printed, plain Python", error(rows, printed), PRINTED)
    yield Check("N2 rows as printed, NumPy", error(array.layer_norm(x, one), printed), PRINTED)
    off = error(place.norm(one, 0 * one)(place.tensor(x)), printed)
    yield place.check("N2 rows as printed, torch", off, PRINTED + place.rounding)
    row = scalar.layer_norm([1.0, 1.0], [1.0, 1.0], beta.tolist())
    yield Check("N2 [1, 1] gives beta, plain Python", error(row, beta), EXACT)
    yield Check("N2 [1, 1] gives beta, NumPy", error(array.layer_norm(one, one, beta), beta), EXACT)
    off = error(place.norm(one, beta)(place.tensor(one)), beta)
    yield place.check("N2 [1, 1] gives beta, torch", off)


def n3_axis(place: Place) -> Iterator[Check]:
    rng = default_rng(3)
    x, gamma = rng.normal(size=(2, 4, 5)), rng.normal(size=5)  # x [B, T, C]
    y = array.layer_norm(x, gamma)
    alone = [[array.layer_norm(x[b, t], gamma) for t in range(4)] for b in range(2)]
    yield Check("N3 each position by itself, NumPy", error(alone, y))
    order = [2, 0, 3, 1]
    moved = array.layer_norm(x[::-1, order], gamma)
    yield Check("N3 sequences and positions in another order, NumPy", error(moved, y[::-1, order]))

    later = x.copy()
    later[:, -1] += rng.normal(size=5)  # only the last position changes
    after = array.layer_norm(later, gamma)
    yield Check(
        "N3 a later position leaves earlier outputs alone, NumPy", error(after[:, :-1], y[:, :-1]), EXACT
    )
    norm = place.norm(gamma, None)
    off = error(norm(place.tensor(later))[:, :-1], norm(place.tensor(x))[:, :-1])
    yield place.check("N3 a later position leaves earlier outputs alone, torch", off, EXACT)

    def over_positions(x: Array) -> Array:  # statistics over T, then attention under a correct mask
        h = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        return array.attention(h, h, h, array.causal_mask(4))[0]

    off = error(over_positions(later)[:, :-1], over_positions(x)[:, :-1])
    yield wrong("N3 statistics over T: a later position, behind the mask, is heard", off)


def n4_no_running_averages(place: Place) -> Iterator[Check]:
    rng = default_rng(4)
    x, norm = place.tensor(rng.normal(size=(3, 5))), place.norm(rng.normal(size=5), rng.normal(size=5))
    before = norm.eval()(x)
    norm.train()(place.tensor(rng.normal(9.0, 4.0, size=(3, 5))))  # BatchNorm would remember this batch
    yield place.check("N4 training gives what evaluation gives", error(norm.train()(x), before), EXACT)
    yield place.check("N4 another batch leaves nothing behind", error(norm.eval()(x), before), EXACT)


def n5_moments(place: Place) -> Iterator[Check]:
    x = np.array([[0.01, 0.02, 0.03], [1.0, 2.0, 4.0]])
    got, var = array.layer_norm(x, np.ones(3)).var(axis=-1), x.var(axis=-1)
    yield Check("N5 the variance of the output is var / (var + eps)", error(got, var / (var + 1e-5)))
    yield wrong("N5 the variance of the output taken for 1", error(got, np.ones(2)))


def n6_no_bias(place: Place) -> Iterator[Check]:
    norm, x = place.norm(np.ones(5), None), default_rng(6).normal(size=(3, 5))
    extra = len(set(norm.state_dict()) - {"weight"}) + (norm.bias is not None)
    yield place.check("N6 bias=False: what there is besides gamma", extra, EXACT)
    off = error(norm(place.tensor(x)), array.layer_norm(x, np.ones(5), beta=None))
    yield place.check("N6 bias=False, torch against NumPy", off)


def n7_backward(place: Place) -> Iterator[Check]:
    rng = default_rng(70)
    at: Arrays = {"x": rng.normal(size=(2, 3, 5)), "gamma": rng.normal(size=5), "beta": rng.normal(size=5)}
    dy = rng.normal(size=(2, 3, 5))
    gradient = dict(zip(at, array.layer_norm_backward(dy, at["x"], at["gamma"]), strict=True))

    def loss(at: Arrays) -> float:
        return float((dy * array.layer_norm(at["x"], at["gamma"], at["beta"])).sum())

    leaves = {name: place.tensor(value).requires_grad_() for name, value in at.items()}
    y = torch.nn.functional.layer_norm(leaves["x"], (5,), leaves["gamma"], leaves["beta"], 1e-5)
    (y * place.tensor(dy)).sum().backward()
    off = record_error(gradient, {name: leaf.grad for name, leaf in leaves.items()})
    yield place.check("N7 LayerNorm backward, NumPy against autograd", off)
    off = slope_error(loss, at, gradient)
    yield Check("N7 LayerNorm backward, NumPy against finite differences", off, SLOPE)
    std = np.sqrt(at["x"].var(axis=-1, keepdims=True) + 1e-5)
    off = slope_error(loss, at, {**gradient, "x": dy * at["gamma"] / std})
    yield wrong("N7 backward with mean and variance held constant", off)


def n8_variants(place: Place) -> Iterator[Check]:
    x = 10000 + np.array(
        [1.0, 2.0, 3.0, 4.0], dtype=np.float32
    )  # each number and the mean exact; variance 1.25
    deviations = np.array([-1.5, -0.5, 0.5, 1.5])
    y = deviations / math.sqrt(1.25 + 1e-5)
    off = error(array.layer_norm(x, np.ones(4, np.float32)), y)
    yield Check("N8 a large mean in float32, NumPy", off, ROUNDING["float32"], "float32")
    yield wrong("N8 E[x^2] - E[x]^2 in float32", abs(float((x**2).mean() - x.mean() ** 2) - 1.25))
    yield wrong("N8 denominator C - 1", error(deviations / math.sqrt(5 / 3 + 1e-5), y))
    off = error(np.array([-1.0, 1.0]) / (1 + 1e-5), array.layer_norm(np.array([1.0, 3.0]), np.ones(2)))
    yield wrong("N8 eps outside the root: [1, 3] in the sixth decimal", off, PRINTED)


# ---------------------------------------------------------------- P, R: positions, the residual sum


def p3_input(place: Place) -> Iterator[Check]:
    yield Check("P3 X = E + P", error(example.X, np.add(example.E, example.P)), EXACT)
    yield Check("P3 X as printed", error(example.X, [[1, 0], [0, 2], [2, 1]]), EXACT)


def r1_sum(place: Place) -> Iterator[Check]:
    x, update, printed = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]]), [[1, 2]]
    off = error(scalar.residual(x.tolist(), update.tolist()), printed)
    yield Check("R1 [1, 0] + [0, 2] = [1, 2], plain Python", off, EXACT)
    yield Check("R1 [1, 0] + [0, 2] = [1, 2], NumPy", error(array.residual(x, update), printed), EXACT)
    off = error(model.residual(place.tensor(x), place.tensor(update)), printed)
    yield place.check("R1 [1, 0] + [0, 2] = [1, 2], torch", off, EXACT)


def r2_exact_shapes(place: Place) -> Iterator[Check]:
    shapes = [((3, 2), (1, 2)), ((2, 5, 16), (1, 5, 16)), ((3, 2), (2,))]  # each would broadcast
    pairs = [(np.zeros(x), np.zeros(update)) for x, update in shapes]
    off = let_through(array.residual, pairs)
    yield Check("R2 sums that would broadcast, let through by NumPy", off, EXACT)
    off = let_through(model.residual, [(place.tensor(x), place.tensor(update)) for x, update in pairs])
    yield place.check("R2 sums that would broadcast, let through by torch", off, EXACT)


# ---------------------------------------------------------------- F: the feed-forward network


def f1_printed_rows(place: Place) -> Iterator[Check]:
    x, (_, weights) = np.array([[-1.0, 1.0], [1.0, -1.0]]), example.arrays()
    bent, printed = [[0, 2, 1], [1, 0, 0]], [[1, 1], [1, 0]]
    rows = [scalar.feed_forward(row, example.WEIGHTS) for row in x.tolist()]
    off = worst([error([row[0] for row in rows], printed), error([row[1] for row in rows], bent)])
    yield Check("F1 rows as printed, plain Python", off, EXACT)
    y, hidden = feed_forward(x, weights)
    yield Check("F1 rows as printed, NumPy", worst([error(y, printed), error(hidden, bent)]), EXACT)
    off = error(place.block(weights, 2).mlp(place.tensor(x)), printed)
    yield place.check("F1 rows as printed, torch", off, EXACT)
    yield wrong(
        "F1 FFN(a) + FFN(b) taken for FFN(a + b)", error(y[0] + y[1], feed_forward(x[0] + x[1], weights)[0])
    )


def f2_each_position(place: Place) -> Iterator[Check]:
    x, weights = default_rng(21).normal(size=(2, 5, 16)), random_weights(22, 16, 64)
    mlp = place.block(weights, 4).mlp
    y, hidden = feed_forward(x, weights)
    differ = (hidden.shape != (2, 5, 64)) + (y.shape != (2, 5, 16))
    yield Check("F2 shapes other than [2, 5, 16] -> [2, 5, 64] -> [2, 5, 16]", differ, EXACT)
    rows = [[scalar.feed_forward(row, lists(weights))[0] for row in sequence] for sequence in x.tolist()]
    yield Check("F2 the same weights at each position, plain Python against NumPy", error(rows, y))
    got = mlp(place.tensor(x))
    yield place.check("F2 the same weights at each position, torch against NumPy", error(got, y))
    other, rest = x.copy(), [0, 1, 3, 4]
    other[:, 2] += 5.0
    off = error(feed_forward(other, weights)[0][:, rest], y[:, rest])
    yield Check("F2 one position changes, the others do not, NumPy", off, EXACT)
    off = error(mlp(place.tensor(other))[:, rest], got[:, rest])
    yield place.check("F2 one position changes, the others do not, torch", off, EXACT)


def f3_without_the_bend(place: Place) -> Iterator[Check]:
    x, weights = default_rng(31).normal(size=(5, 3)), random_weights(32, 3, 7)
    matrix, vector = weights["w1"] @ weights["w2"], weights["b1"] @ weights["w2"] + weights["b2"]
    folded = x @ matrix + vector
    straight, _ = feed_forward(x, weights, activation=lambda h: h)
    yield Check("F3 two maps without a bend fold into one", error(straight, folded))
    yield wrong("F3 the folded map taken for the one with ReLU", error(feed_forward(x, weights)[0], folded))


def f4_gelu(place: Place) -> Iterator[Check]:
    x = np.linspace(-6, 6, 2401)
    below = statistics.NormalDist().cdf  # the probability that a standard normal number is smaller
    exact, bent = [v * below(v) for v in x.tolist()], array.gelu_tanh(x)
    yield Check(
        "F4 GELU, plain Python against statistics", error([scalar.gelu(v) for v in x.tolist()], exact)
    )
    yield Check("F4 GELU, NumPy against statistics", error(array.gelu(x), exact))
    yield place.check(
        "F4 GELU, torch against statistics", error(model.ACTIVATIONS["gelu"](place.tensor(x)), exact)
    )
    rows = [scalar.gelu_tanh(v) for v in x.tolist()]
    yield Check("F4 GELU by tanh, plain Python against NumPy", error(rows, bent))
    off = error(model.ACTIVATIONS["gelu_tanh"](place.tensor(x)), bent)
    yield place.check("F4 GELU by tanh, torch against NumPy", off)
    yield Check("F4 the largest distance of the two forms on [-6, 6]", error(bent, exact), 5e-4)
    yield wrong("F4 the tanh form taken for the exact one, in the fourth decimal", error(bent, exact), 1e-4)


# ---------------------------------------------------------------- A, S: attention


def a2_attention(place: Place) -> Iterator[Check]:
    rng = default_rng(61)
    q, k, v = (rng.normal(size=(2, 2, 6, 3)) for _ in range(3))  # [B, H, T, d]
    mask = rng.random((2, 1, 6, 6)) < 0.5
    mask[:, :, 1] = False  # a query that may read nothing
    masked, _ = array.attention(q, k, v, mask)
    causal, _ = array.attention(q, k, v, array.causal_mask(6))
    last, _ = array.attention(q[..., -2:, :], k, v, array.causal_mask(2, 6))
    heads = [
        [scalar.attention(*(part[b, h].tolist() for part in (q, k, v)))[0] for h in range(2)]
        for b in range(2)
    ]
    yield Check("A2 causal attention, plain Python against NumPy", error(heads, causal))
    yield Check(
        "A6 the last 2 queries alone give their rows of the whole, NumPy", error(last, causal[..., -2:, :])
    )
    yield Check(
        "A6 a query that may read nothing gives zeros, NumPy", error(masked[:, :, 1], 0 * q[:, :, 1]), EXACT
    )
    for path, flash in (("manual", False), ("SDPA", True)):
        tq, tk, tv = (place.tensor(part).requires_grad_() for part in (q, k, v))
        y = model.attend(tq, tk, tv, flash=flash)
        yield place.check(f"A2 causal attention, torch {path} against NumPy", error(y, causal))
        y = model.attend(tq[..., -2:, :], tk, tv, flash=flash)
        yield place.check(f"A6 the last 2 queries alone, torch {path} against NumPy", error(y, last))
        y = model.attend(tq, tk, tv, torch.tensor(mask, device=place.device), flash=flash)
        yield place.check(f"A6 some mask, torch {path} against NumPy", error(y, masked))
        off = error(y[:, :, 1], 0 * q[:, :, 1])
        yield place.check(f"A6 a query that may read nothing gives zeros, torch {path}", off, EXACT)
        y.square().sum().backward()
        gradient = np.array([numbers(leaf.grad) for leaf in (tq, tk, tv)])
        broken = int((~np.isfinite(gradient)).sum())
        yield place.check(f"A6 gradients under that mask that are not finite, torch {path}", broken, EXACT)


def a6_softmax(place: Place) -> Iterator[Check]:
    scores, weights = [0.0, math.log(2.0), -math.inf], [1 / 3, 2 / 3, 0.0]
    yield Check(
        "A6 [0, log 2, masked] -> [1/3, 2/3, 0], plain Python", error(scalar.softmax(scores), weights)
    )
    off = error(array.softmax(np.array(scores)), weights)
    yield Check("A6 [0, log 2, masked] -> [1/3, 2/3, 0], NumPy", off)
    nothing, zeros = [-math.inf] * 3, [0, 0, 0]
    yield Check("A6 a row of -inf gives zeros, plain Python", error(scalar.softmax(nothing), zeros), EXACT)
    yield Check("A6 a row of -inf gives zeros, NumPy", error(array.softmax(np.array(nothing)), zeros), EXACT)
    off = error(array.softmax(np.array([1000.0, 1000.0 + math.log(2.0)])), weights[:2])
    yield Check("A6 scores near 1000 do not overflow, NumPy", off)


def a7_buffer(place: Place) -> Iterator[Check]:
    gpt = place.gpt(flash=False)
    names = [*gpt.state_dict(), *(name for name, _ in gpt.named_parameters())]
    yield place.check(
        "A7 masks among the parameters and in a checkpoint", sum("mask" in n for n in names), EXACT
    )


def a8_prefix(place: Place) -> Iterator[Check]:
    ids = torch.tensor(default_rng(81).integers(11, size=(2, 8)), device=place.device)
    changed = ids.clone()
    changed[:, 4:] = (ids[:, 4:] + 3) % 11
    for path, flash in (("manual", False), ("SDPA", True)):
        gpt = place.gpt(flash)
        with torch.no_grad():
            before, after = gpt(ids)[0], gpt(changed)[0]
        off = error(after[:, :4], before[:, :4])
        yield place.check(f"A8 the second half leaves the first half's logits alone, {path}", off, EXACT)
        off = error(after[:, 4:], before[:, 4:])
        yield wrong(f"A8 the second half's logits taken for unchanged, {path}", off)


def s3_two_paths(place: Place) -> Iterator[Check]:
    x, block = (
        place.tensor(default_rng(33).normal(size=(2, 7, 12))),
        place.block(random_weights(34, 12, 20), 3),
    )
    fused = block(x)
    block.attn.flash = False
    yield place.check("S3 a block, manual path against SDPA", error(block(x), fused))
    ids = torch.tensor([[1, 5, 9, 2, 0, 10, 3, 3]], device=place.device)
    off = error(place.gpt(flash=False)(ids)[0], place.gpt(flash=True)(ids)[0])
    yield place.check("S3 a Mini GPT, manual path against SDPA", off)


# ---------------------------------------------------------------- K: the block


def k1_two_norms(place: Place) -> Iterator[Check]:
    x, weights = default_rng(41).normal(size=(5, 6)), random_weights(42, 6, 8)
    swapped = {**weights, "gamma1": weights["gamma2"], "gamma2": weights["gamma1"]}
    off = error(array.block(x, swapped, 2)[0], array.block(x, weights, 2)[0])
    yield wrong("K1 the gammas of the two LayerNorms swapped", off)


def k1_gradient(place: Place) -> Iterator[Check]:
    rng, weights = default_rng(43), random_weights(44, 6, 8)
    x, dy = rng.normal(size=(5, 6)), rng.normal(size=(5, 6))

    def loss(at: Arrays) -> float:
        return float((dy * array.block(at["x"], at, 2, activation=array.gelu)[0]).sum())

    block, leaf = place.block(weights, 2, activation="gelu"), place.tensor(x[None]).requires_grad_()
    (block(leaf) * place.tensor(dy[None])).sum().backward()
    gradient = {"x": numbers(leaf.grad)[0]}
    for theirs, ours in model.ARRAY_NAMES.items():
        gradient[ours] = numbers(block.get_parameter(theirs).grad).T  # nn.Linear keeps [out, in]
    off = slope_error(loss, {"x": x, **weights}, gradient)
    yield place.check(
        "K1 the block's gradient, torch against finite differences", off, SLOPE + place.rounding
    )


def k2_printed(place: Place) -> Iterator[Check]:
    first = {
        "norm1": [0.999980, -0.999980],
        "attention": [0.0, 1.999960],
        "residual1": [1.0, 1.999960],
        "norm2": [-0.999980, 0.999980],
        "hidden": [0.0, 1.999960, 0.999980],
        "ffn": [0.999980, 0.999980],
        "output": [1.999980, 2.999940],
    }
    whole = [[1.999980, 2.999940], [0.999912, 1.476742], [2.999964, 3.746396]]
    x, weights = example.arrays()
    y, record = array.block(x, weights, example.N_HEAD)
    for stage, printed in first.items():
        yield Check(f"K2 {stage}, row 1 as printed, NumPy", error(record[stage][0], printed), PRINTED)
    rows, _ = scalar.block(example.X, example.WEIGHTS, example.N_HEAD)
    yield Check("K2 Y as printed, plain Python", error(rows, whole), PRINTED)
    yield Check("K2 Y as printed, NumPy", error(y, whole), PRINTED)
    off = error(place.block(weights, example.N_HEAD)(place.tensor(x[None])), [whole])
    yield place.check("K2 Y as printed, torch", off, PRINTED + place.rounding)
    a = 0.5 / math.sqrt(0.25001)
    u = (2 * a - 1) / (2 * math.sqrt(((2 * a - 1) / 2) ** 2 + 1e-5))
    yield Check("K2 row 1 against its closed form, NumPy", error(y[0], [1 + u, 2 * a + u]))


def k3_record(place: Place) -> Iterator[Check]:
    names = ("norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output")
    expected = [(name, (3, 3) if name == "hidden" else (3, 2)) for name in names]
    x, weights = example.arrays()

    def differ(record: Mapping[str, Any]) -> int:
        got = [(name, numbers(value).shape[-2:]) for name, value in record.items()]
        return abs(len(got) - len(expected)) + sum(a != b for a, b in zip(got, expected, strict=False))

    count = differ(scalar.block(example.X, example.WEIGHTS, example.N_HEAD)[1])
    yield Check("K3 stages with another name, place or shape, plain Python", count, EXACT)
    count = differ(array.block(x, weights, example.N_HEAD)[1])
    yield Check("K3 stages with another name, place or shape, NumPy", count, EXACT)
    count = differ(place.block(weights, example.N_HEAD).stages(place.tensor(x[None])))
    yield place.check("K3 stages with another name, place or shape, torch", count, EXACT)


def k4_three_computations(place: Place) -> Iterator[Check]:
    def case(seed: int, T: int, C: int, H: int, F: int, activation: str) -> tuple[Any, ...]:
        x, weights = default_rng(seed).normal(size=(T, C)), random_weights(seed + 1, C, F)
        return f"random, T={T} C={C} H={H} F={F} {activation}", x, weights, H, activation

    cases = [
        ("the worked example", *example.arrays(), example.N_HEAD, "relu"),
        case(401, 1, 4, 1, 3, "relu"),
        case(403, 5, 6, 3, 10, "gelu"),
        case(405, 8, 12, 4, 20, "gelu_tanh"),
    ]
    for name, x, weights, H, activation in cases:
        _, rows = scalar.block(x.tolist(), lists(weights), H, activation=getattr(scalar, activation))
        _, record = array.block(x, weights, H, activation=getattr(array, activation))
        yield Check(f"K4 all stages, plain Python against NumPy: {name}", record_error(rows, record))
        stages = place.block(weights, H, activation=activation).stages(place.tensor(x[None]))
        off = record_error({stage: value[0] for stage, value in stages.items()}, record)
        yield place.check(f"K4 all stages, torch against NumPy: {name}", off)


def k5_batch(place: Place) -> Iterator[Check]:
    x, weights = default_rng(51).normal(size=(3, 5, 6)), random_weights(52, 6, 8)
    other, block = x.copy(), place.block(weights, 2)
    other[1:] += 5.0 * x[::-1][1:]
    y, alone = array.block(x, weights, 2)[0], [array.block(sequence, weights, 2)[0] for sequence in x]
    yield Check("K5 each sequence alone gives what the batch gives, NumPy", error(alone, y))
    off = error(array.block(other, weights, 2)[0][0], y[0])
    yield Check("K5 other sequences change, the first does not, NumPy", off, EXACT)
    got = block(place.tensor(x))
    yield place.check("K5 a batch, torch against NumPy", error(got, y))
    off = error(block(place.tensor(other))[0], got[0])
    yield place.check("K5 other sequences change, the first does not, torch", off, EXACT)


# ---------------------------------------------------------------- O: the order of the steps


def o1_post_norm(place: Place) -> Iterator[Check]:
    x, weights = default_rng(91).normal(size=(5, 6)), random_weights(92, 6, 8)

    def norm(x: Array, which: int) -> Array:
        return array.layer_norm(x, weights[f"gamma{which}"], weights[f"beta{which}"])

    middle = norm(x + array.multi_head_attention(x, weights, 2), 1)
    y = norm(middle + feed_forward(middle, weights)[0], 2)
    got = place.block(weights, 2, norm_order="post")(place.tensor(x[None]))[0]
    yield place.check("O1 post-norm, torch against NumPy", error(got, y))
    yield wrong("O1 pre-norm taken for post-norm", error(array.block(x, weights, 2)[0], y))


MECHANISMS: list[Callable[[Place], Iterator[Check]]] = [
    n1_formula,
    n2_printed_rows,
    n3_axis,
    n4_no_running_averages,
    n5_moments,
    n6_no_bias,
    n7_backward,
    n8_variants,
    p3_input,
    r1_sum,
    r2_exact_shapes,
    f1_printed_rows,
    f2_each_position,
    f3_without_the_bend,
    f4_gelu,
    a2_attention,
    a6_softmax,
    a7_buffer,
    a8_prefix,
    s3_two_paths,
    k1_two_norms,
    k1_gradient,
    k2_printed,
    k3_record,
    k4_three_computations,
    k5_batch,
    o1_post_norm,
]


# ---------------------------------------------------------------- the command


def run(where: torch.device) -> list[Check]:
    """Every check, its torch side on that device. A mechanism that raises is a failed check."""
    place = Place(where, device.widest_float(where))
    checks: list[Check] = []
    with _undisturbed():
        for mechanism in MECHANISMS:
            try:
                checks.extend(mechanism(place))
            except Exception as problem:
                what = mechanism.__name__.replace("_", " ").capitalize()
                checks.append(Check(f"{what} raised {type(problem).__name__}: {problem}", math.nan))
    return checks


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No TF32, which rounds each factor to 10 bits; torch's random numbers go on afterwards as before."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def to_json(checks: list[Check], where: torch.device) -> str:
    """The record of a run: checks, device, versions, and the values of the worked example's stages."""
    keys = ("name", "error", "bound", "passed", "dtype")
    rows = [{key: getattr(check, key) for key in keys} for check in checks]
    for row in rows:
        row["error"] = row["error"] if math.isfinite(row["error"]) else None  # JSON has no NaN
    versions = {
        "minigpt": minigpt.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
    }
    _, stages = array.block(*example.arrays(), example.N_HEAD)
    record = {"checks": rows, "device": str(where), "versions": versions, "stages": lists(stages)}
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def check_writable(path: Path) -> None:
    """ValueError if no file can be written there."""
    try:
        if path.exists() and not path.is_file():
            reason = "which is not a file"
        elif path.exists() and not os.access(path, os.W_OK):
            reason = "which is write-protected"
        else:
            _draft(path).write_text("", encoding="utf-8")
            _draft(path).unlink()
            return
    except OSError as problem:
        reason = f"where no file can be made ({problem.strerror})"
    raise ValueError(f"--json: got {str(path)!r}, {reason}; expected a file in a folder that takes new files")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    try:
        _draft(path).write_text(text, encoding="utf-8")
        _draft(path).replace(path)
    finally:
        _draft(path).unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m minigpt.verify", description="Recompute every mechanism.")
    parser.add_argument("--device", metavar="cpu|cuda|mps", help="default: the fastest at hand")
    parser.add_argument(
        "--json", metavar="FILE", type=os.path.realpath, help="write a record of the run there"
    )
    options = parser.parse_args(arguments)
    path = Path(options.json) if options.json else None
    try:
        where = device.pick(options.device)
        if path:
            check_writable(path)
    except ValueError as problem:
        parser.error(str(problem))
    checks = run(where)
    for check in checks:
        print(check)
    failed = sum(not check.passed for check in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed on {where}")
    if path:
        write_whole(path, to_json(checks, where))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
