"""The mechanisms of part I of the course: N LayerNorm, P positions, R the residual sum, F feed-forward.

A function yields the checks of one mechanism and begins with its id. `minigpt.verify` runs all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import numpy as np
import torch
from numpy.random import default_rng

from minigpt import array, example, model, scalar
from minigpt.array import Array
from minigpt.measure import (
    EXACT,
    PATHS,
    PRINTED,
    ROUNDING,
    SLOPE,
    Arrays,
    Check,
    Place,
    error,
    feed_forward,
    let_through,
    lists,
    numbers,
    prefix_moves,
    random_weights,
    record_error,
    slope_error,
    worst,
    wrong,
)

# ---------------------------------------------------------------- N: LayerNorm


def n1_formula(place: Place) -> Iterator[Check]:
    rng = default_rng(1)
    x, gamma, beta = (
        rng.normal(2.0, 3.0, size=(4, 5)),
        rng.normal(size=5),
        rng.normal(size=5),
    )

    def by_statistics(row: list[float]) -> Array:
        # pvariance divides by C, variance by C - 1
        std = math.sqrt(statistics.pvariance(row) + 1e-5)
        return gamma * (np.array(row) - statistics.fmean(row)) / std + beta

    expected = [by_statistics(row) for row in x.tolist()]
    rows = [scalar.layer_norm(row, gamma.tolist(), beta.tolist()) for row in x.tolist()]
    yield Check("N1 LayerNorm, plain Python against statistics", error(rows, expected))
    yield Check(
        "N1 LayerNorm, NumPy against statistics",
        error(array.layer_norm(x, gamma, beta), expected),
    )
    off = error(place.norm(gamma, beta)(place.tensor(x)), expected)
    yield place.check("N1 LayerNorm, torch against statistics", off)


def n2_printed_rows(place: Place) -> Iterator[Check]:
    x = np.array([[1.0, 3.0], [10.0, 10.0], [2.0, 4.0], [20.0, 20.0]])
    printed = [[-0.999995, 0.999995], [0.0, 0.0], [-0.999995, 0.999995], [0.0, 0.0]]
    one, beta = np.ones(2), np.array([0.5, -2.0])
    rows = [scalar.layer_norm(row, [1.0, 1.0]) for row in x.tolist()]
    yield Check("N2 rows as printed, plain Python", error(rows, printed), PRINTED)
    yield Check(
        "N2 rows as printed, NumPy", error(array.layer_norm(x, one), printed), PRINTED
    )
    off = error(place.norm(one, 0 * one)(place.tensor(x)), printed)
    yield place.check("N2 rows as printed, torch", off, PRINTED + place.rounding)
    row = scalar.layer_norm([1.0, 1.0], [1.0, 1.0], beta.tolist())
    yield Check("N2 [1, 1] gives beta, plain Python", error(row, beta), EXACT)
    yield Check(
        "N2 [1, 1] gives beta, NumPy",
        error(array.layer_norm(one, one, beta), beta),
        EXACT,
    )
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
    yield Check(
        "N3 sequences and positions in another order, NumPy",
        error(moved, y[::-1, order]),
    )

    later = x.copy()
    later[:, -1] += rng.normal(size=5)  # only the last position changes
    after = array.layer_norm(later, gamma)
    yield Check(
        "N3 a later position leaves earlier outputs alone, NumPy",
        error(after[:, :-1], y[:, :-1]),
        EXACT,
    )
    norm = place.norm(gamma, None)
    off = error(norm(place.tensor(later))[:, :-1], norm(place.tensor(x))[:, :-1])
    yield place.check(
        "N3 a later position leaves earlier outputs alone, torch", off, EXACT
    )

    # statistics over T, then attention under a correct mask
    def over_positions(
        x: Array,
    ) -> Array:
        h = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(
            x.var(axis=1, keepdims=True) + 1e-5
        )
        return array.attention(h, h, h, array.causal_mask(4))[0]

    off = error(over_positions(later)[:, :-1], over_positions(x)[:, :-1])
    yield wrong(
        "N3 statistics over T: a later position, behind the mask, is heard", off
    )


class OverTime(torch.nn.Module):
    """The mistake of N3: statistics over the positions of x [B, T, C]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(1, keepdim=True)) / (
            x.var(1, correction=0, keepdim=True) + 1e-5
        ).sqrt()


def n3_whole_model(place: Place) -> Iterator[Check]:
    ids = place.whole(default_rng(31).integers(11, size=(2, 8)))
    for path, flash in PATHS:
        gpt = place.gpt(flash=flash)
        gpt.h[0].register_module("ln_1", OverTime())
        off, _ = prefix_moves(gpt, ids, 4)
        yield place.wrong(
            f"N3 one LayerNorm over T leaks through a causal model, {path}", off
        )


def n4_no_running_averages(place: Place) -> Iterator[Check]:
    rng = default_rng(4)
    x, norm = (
        place.tensor(rng.normal(size=(3, 5))),
        place.norm(rng.normal(size=5), rng.normal(size=5)),
    )
    before = norm.eval()(x)
    # BatchNorm would remember this batch
    norm.train()(place.tensor(rng.normal(9.0, 4.0, size=(3, 5))))
    yield place.check(
        "N4 training gives what evaluation gives", error(norm.train()(x), before), EXACT
    )
    yield place.check(
        "N4 another batch leaves nothing behind", error(norm.eval()(x), before), EXACT
    )


def n5_moments(place: Place) -> Iterator[Check]:
    x = np.array([[0.01, 0.02, 0.03], [1.0, 2.0, 4.0]])
    got, var = array.layer_norm(x, np.ones(3)).var(axis=-1), x.var(axis=-1)
    yield Check(
        "N5 the variance of the output is var / (var + eps)",
        error(got, var / (var + 1e-5)),
    )
    yield wrong("N5 the variance of the output taken for 1", error(got, np.ones(2)))


def n6_no_bias(place: Place) -> Iterator[Check]:
    norm, x = place.norm(np.ones(5), None), default_rng(6).normal(size=(3, 5))
    extra = len(set(norm.state_dict()) - {"weight"}) + (norm.bias is not None)
    yield place.check("N6 bias=False: what there is besides gamma", extra, EXACT)
    off = error(norm(place.tensor(x)), array.layer_norm(x, np.ones(5), beta=None))
    yield place.check("N6 bias=False, torch against NumPy", off)


def n7_backward(place: Place) -> Iterator[Check]:
    rng = default_rng(70)
    at: Arrays = {
        "x": rng.normal(size=(2, 3, 5)),
        "gamma": rng.normal(size=5),
        "beta": rng.normal(size=5),
    }
    dy = rng.normal(size=(2, 3, 5))
    gradient = dict(
        zip(at, array.layer_norm_backward(dy, at["x"], at["gamma"]), strict=True)
    )

    def loss(at: Arrays) -> float:
        return float((dy * array.layer_norm(at["x"], at["gamma"], at["beta"])).sum())

    leaves = {name: place.tensor(value).requires_grad_() for name, value in at.items()}
    y = torch.nn.functional.layer_norm(
        leaves["x"], (5,), leaves["gamma"], leaves["beta"], 1e-5
    )
    (y * place.tensor(dy)).sum().backward()
    off = record_error(gradient, {name: leaf.grad for name, leaf in leaves.items()})
    yield place.check("N7 LayerNorm backward, NumPy against autograd", off)
    off = slope_error(loss, at, gradient)
    yield Check("N7 LayerNorm backward, NumPy against finite differences", off, SLOPE)
    std = np.sqrt(at["x"].var(axis=-1, keepdims=True) + 1e-5)
    off = slope_error(loss, at, {**gradient, "x": dy * at["gamma"] / std})
    yield wrong("N7 backward with mean and variance held constant", off)


def n8_variants(place: Place) -> Iterator[Check]:
    # each number and the mean exact; variance 1.25
    x = 10000 + np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    deviations = np.array([-1.5, -0.5, 0.5, 1.5])
    y = deviations / math.sqrt(1.25 + 1e-5)
    off = error(array.layer_norm(x, np.ones(4, np.float32)), y)
    yield Check(
        "N8 a large mean in float32, NumPy", off, ROUNDING["float32"], "float32"
    )
    yield wrong(
        "N8 E[x^2] - E[x]^2 in float32",
        abs(float((x**2).mean() - x.mean() ** 2) - 1.25),
    )
    yield wrong("N8 denominator C - 1", error(deviations / math.sqrt(5 / 3 + 1e-5), y))
    off = error(
        np.array([-1.0, 1.0]) / (1 + 1e-5),
        array.layer_norm(np.array([1.0, 3.0]), np.ones(2)),
    )
    yield wrong("N8 eps outside the root: [1, 3] in the sixth decimal", off, PRINTED)


# ---------------------------------------------------------------- P: positions


ORDER = [3, 0, 4, 2, 1]  # another order of five positions


def p1_equivariance(place: Place) -> Iterator[Check]:
    x, weights = default_rng(101).normal(size=(2, 5, 16)), random_weights(102, 16, 24)

    def heads(x: Array) -> Array:
        return array.multi_head_attention(x, weights, 4, causal=False)

    yield Check(
        "P1 without a mask the output's rows move with the input's, NumPy",
        error(heads(x[:, ORDER]), heads(x)[:, ORDER]),
    )
    rows = [
        scalar.multi_head_attention(part, lists(weights), 4, causal=False)
        for part in x[:, ORDER].tolist()
    ]
    yield Check(
        "P1 without a mask, plain Python against NumPy", error(rows, heads(x[:, ORDER]))
    )
    block = place.block(weights, 4, flash=False)
    block.attn.mask.fill_(True)  # every position reads every other one
    off = error(block(place.tensor(x[:, ORDER])), block(place.tensor(x))[:, ORDER])
    yield place.check(
        "P1 a block with an open mask: rows move with the input's, torch", off
    )
    off = error(heads(x[:, ORDER]).mean(axis=1), heads(x).mean(axis=1))
    yield Check("P1 the mean over positions is invariant, NumPy", off)
    yield wrong("P1 attention taken for invariant", error(heads(x[:, ORDER]), heads(x)))


def p2_triangle(place: Place) -> Iterator[Check]:
    x, mask = default_rng(103).normal(size=(2, 5, 4)), array.causal_mask(5)
    carried = mask[np.ix_(ORDER, ORDER)]  # the permissions travel with the rows
    expected = array.attention(x, x, x, mask)[0][:, ORDER]
    moved = x[:, ORDER]
    off = error(array.attention(moved, moved, moved, carried)[0], expected)
    yield Check("P2 a mask that moves with the rows restores equivariance, NumPy", off)
    heads = moved[:, None]  # [B, H, T, d]
    for path, flash in PATHS:
        off = error(place.attend(heads, heads, heads, carried, flash)[:, 0], expected)
        yield place.check(
            f"P2 a mask that moves with the rows restores equivariance, {path}", off
        )
    off = error(array.attention(moved, moved, moved, mask)[0], expected)
    yield wrong("P2 a fixed triangle taken for equivariant", off)


def p3_input(place: Place) -> Iterator[Check]:
    yield Check("P3 X = E + P", error(example.X, np.add(example.E, example.P)), EXACT)
    yield Check("P3 X as printed", error(example.X, [[1, 0], [0, 2], [2, 1]]), EXACT)
    tables, rng = [np.array(example.E), np.array(example.P)], default_rng(104)
    w1, w2 = rng.normal(size=(2, 2, 6))
    off = error(
        np.concatenate(tables, axis=1) @ np.concatenate([w1, w2]),
        tables[0] @ w1 + tables[1] @ w2,
    )
    yield Check("P3 [E, P] W = E W1 + P W2", off)
    gpt = place.gpt(block_size=3, vocab_size=3, n_embd=2)
    entering = []
    gpt.h[0].register_forward_pre_hook(lambda block, inputs: entering.append(inputs[0]))
    with torch.no_grad():
        gpt.wte.weight.copy_(place.tensor(example.E))
        gpt.wpe.weight.copy_(place.tensor(example.P))
        gpt(place.whole([[0, 1, 2], [2, 2, 0]]))
    expected = [
        example.X,
        np.add([example.E[2], example.E[2], example.E[0]], example.P),
    ]
    yield place.check(
        "P3 what enters the first block is E + P, torch",
        error(entering[0], expected),
        EXACT,
    )


def p4_last_row(place: Place) -> Iterator[Check]:
    gpt = place.gpt()
    refused = {
        "T = T_max + 1": [[0] * 9],
        "the id -1": [[0, -1]],
        "the id V": [[0, 11]],
        "no position": [[]],
    }
    for name, ids in refused.items():
        tensor = place.whole(np.array(ids, dtype=np.int64))
        yield place.check(
            f"P4 {name}, let through", let_through(gpt, [(tensor,)]), EXACT
        )
    lacking = 8 - gpt(place.whole([[0] * 8]))[0].shape[1]
    yield place.check("P4 positions that T = T_max lacks", lacking, EXACT)

    # Vaswani et al. 2017, section 3.5: [T] -> pairs of sine and cosine [T, 4, 2]
    def rule(
        t: Array,
    ) -> Array:
        angles = t[:, None] / 10000 ** (np.arange(4) / 4)
        return np.stack([np.sin(angles), np.cos(angles)], axis=-1)

    t, turn = np.arange(200.0), rule(np.array([7.0]))[0]  # [4, 2]
    sine, cosine = turn[:, 0], turn[:, 1]
    now = rule(t)
    turned = np.stack(
        [
            now[..., 0] * cosine + now[..., 1] * sine,
            now[..., 1] * cosine - now[..., 0] * sine,
        ],
        axis=-1,
    )
    yield Check(
        "P4 sinusoids: 7 positions further is one turn, the same at each",
        error(rule(t + 7), turned),
    )
    # the slow sine: near t for small t
    reading = 100 * rule(np.array([31.0, 200.0]))[:, 2, 0]
    yield Check(
        "P4 a reading of the position at 31, where it was fitted",
        abs(reading[0] - 31),
        0.5,
    )
    yield wrong(
        "P4 the same reading at 200, where it is only defined",
        abs(reading[1] - 200),
        100.0,
    )


def p5_same_token(place: Place) -> Iterator[Check]:
    token, positions = np.array([2.0, 1.0]), np.array([[0.0, 0.0], [0.0, 1.0]])
    entering, blind = token + positions, np.array([[1.0, 1.0], [0.0, 0.0]])
    yield Check(
        "P5 [2, 1] at two positions enters as printed",
        error(entering, [[2, 1], [2, 2]]),
        EXACT,
    )
    left, right = array.linear(entering, blind)
    yield Check(
        "P5 a layer that reads column 0 makes the same of both",
        error(left, right),
        EXACT,
    )
    gpt = place.gpt()
    first, second = numbers(gpt(place.whole([[5, 5]]))[0])[0]
    yield place.wrong(
        "P5 one token, two positions: the logits taken for equal", error(first, second)
    )


# ---------------------------------------------------------------- R: the residual sum


def r1_sum(place: Place) -> Iterator[Check]:
    x, update, printed = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]]), [[1, 2]]
    off = error(scalar.residual(x.tolist(), update.tolist()), printed)
    yield Check("R1 [1, 0] + [0, 2] = [1, 2], plain Python", off, EXACT)
    yield Check(
        "R1 [1, 0] + [0, 2] = [1, 2], NumPy",
        error(array.residual(x, update), printed),
        EXACT,
    )
    off = error(model.residual(place.tensor(x), place.tensor(update)), printed)
    yield place.check("R1 [1, 0] + [0, 2] = [1, 2], torch", off, EXACT)

    x, weights = default_rng(111).normal(size=(5, 6)), random_weights(112, 6, 8)
    shut = {
        **weights,
        **{name: 0 * weights[name] for name in ("w_o", "b_o", "w2", "b2")},
    }
    rows, _ = scalar.block(x.tolist(), lists(shut), 2)
    yield Check(
        "R1 branches of zeros pass X whole, plain Python", error(rows, x), EXACT
    )
    yield Check(
        "R1 branches of zeros pass X whole, NumPy",
        error(array.block(x, shut, 2)[0], x),
        EXACT,
    )
    given = place.tensor(x[None])
    off = error(place.block(shut, 2)(given), given)
    yield place.check("R1 branches of zeros pass X whole, torch", off, EXACT)


def r2_exact_shapes(place: Place) -> Iterator[Check]:
    # each would broadcast
    shapes = [
        ((3, 2), (1, 2)),
        ((2, 5, 16), (1, 5, 16)),
        ((3, 2), (2,)),
    ]
    pairs = [(np.zeros(x), np.zeros(update)) for x, update in shapes]
    off = let_through(array.residual, pairs)
    yield Check("R2 sums that would broadcast, let through by NumPy", off, EXACT)
    off = let_through(
        model.residual, [(place.tensor(x), place.tensor(update)) for x, update in pairs]
    )
    yield place.check("R2 sums that would broadcast, let through by torch", off, EXACT)
    rows, updates = default_rng(113).normal(size=(2, 2, 5, 6))
    swapped = error(array.residual(rows, updates[::-1]), array.residual(rows, updates))
    yield wrong(
        "R2 the updates of two sequences exchanged, in the right shape", swapped
    )


def r3_gradient(place: Place) -> Iterator[Check]:
    weights, rng = random_weights(114, 6, 8), default_rng(115)
    x, sent = place.tensor(rng.normal(size=6)), place.tensor(rng.normal(size=6))
    mlp = place.block(weights, 2, activation="gelu").mlp
    jacobian = torch.autograd.functional.jacobian(mlp, x)  # [C, C], of the branch alone
    leaf = x.clone().requires_grad_()
    model.residual(leaf, mlp(leaf)).backward(sent)
    yield place.check(
        "R3 autograd against dR (I + J)", error(leaf.grad, sent + sent @ jacobian)
    )
    yield place.wrong(
        "R3 the identity path taken for the whole gradient", error(leaf.grad, sent)
    )

    leaf = x.clone().requires_grad_()
    # an update of -x, by ReLU
    erased = model.residual(leaf, torch.relu(-leaf) - torch.relu(leaf))
    erased.backward(sent)
    yield place.check(
        "R3 an update of -X cancels its input", error(erased, torch.zeros(6)), EXACT
    )
    yield place.check(
        "R3 and the gradient with it", error(leaf.grad, torch.zeros(6)), EXACT
    )


def r4_half_width(place: Place) -> Iterator[Check]:
    # for C = 2 it would broadcast
    pairs = [(np.zeros((2, 5, C)), np.zeros((2, 5, C // 2))) for C in (16, 2)]
    off = let_through(array.residual, pairs)
    yield Check("R4 updates of half the width, let through by NumPy", off, EXACT)
    off = let_through(
        model.residual, [tuple(map(place.tensor, pair)) for pair in pairs]
    )
    yield place.check("R4 updates of half the width, let through by torch", off, EXACT)
    off = let_through(scalar.residual, [([[1.0, 0.0]], [[5.0]])])
    yield Check("R4 updates of half the width, let through by plain Python", off, EXACT)
    rng = default_rng(116)
    rank = int(
        np.linalg.matrix_rank(rng.normal(size=(16, 8)) @ rng.normal(size=(8, 16)))
    )
    yield Check("R4 directions that 16 -> 8 -> 16 reaches beyond 8", rank - 8, EXACT)


# ---------------------------------------------------------------- F: the feed-forward network


def f1_printed_rows(place: Place) -> Iterator[Check]:
    x, (_, weights) = np.array([[-1.0, 1.0], [1.0, -1.0]]), example.arrays()
    bent, printed = [[0, 2, 1], [1, 0, 0]], [[1, 1], [1, 0]]
    rows = [scalar.feed_forward(row, example.WEIGHTS) for row in x.tolist()]
    off = worst(
        [
            error([row[0] for row in rows], printed),
            error([row[1] for row in rows], bent),
        ]
    )
    yield Check("F1 rows as printed, plain Python", off, EXACT)
    y, hidden = feed_forward(x, weights)
    yield Check(
        "F1 rows as printed, NumPy",
        worst([error(y, printed), error(hidden, bent)]),
        EXACT,
    )
    off = error(place.block(weights, 2).mlp(place.tensor(x)), printed)
    yield place.check("F1 rows as printed, torch", off, EXACT)
    yield wrong(
        "F1 FFN(a) + FFN(b) taken for FFN(a + b)",
        error(y[0] + y[1], feed_forward(x[0] + x[1], weights)[0]),
    )


def f2_each_position(place: Place) -> Iterator[Check]:
    x, weights = default_rng(21).normal(size=(2, 5, 16)), random_weights(22, 16, 64)
    mlp = place.block(weights, 4).mlp
    y, hidden = feed_forward(x, weights)
    differ = (hidden.shape != (2, 5, 64)) + (y.shape != (2, 5, 16))
    yield Check(
        "F2 shapes other than [2, 5, 16] -> [2, 5, 64] -> [2, 5, 16]", differ, EXACT
    )
    rows = [
        [scalar.feed_forward(row, lists(weights))[0] for row in sequence]
        for sequence in x.tolist()
    ]
    yield Check(
        "F2 the same weights at each position, plain Python against NumPy",
        error(rows, y),
    )
    got = mlp(place.tensor(x))
    yield place.check(
        "F2 the same weights at each position, torch against NumPy", error(got, y)
    )
    other, rest = x.copy(), [0, 1, 3, 4]
    other[:, 2] += 5.0
    off = error(feed_forward(other, weights)[0][:, rest], y[:, rest])
    yield Check("F2 one position changes, the others do not, NumPy", off, EXACT)
    off = error(mlp(place.tensor(other))[:, rest], got[:, rest])
    yield place.check("F2 one position changes, the others do not, torch", off, EXACT)


def f3_without_the_bend(place: Place) -> Iterator[Check]:
    x, weights = default_rng(31).normal(size=(5, 3)), random_weights(32, 3, 7)
    matrix, vector = (
        weights["w1"] @ weights["w2"],
        weights["b1"] @ weights["w2"] + weights["b2"],
    )
    folded = x @ matrix + vector
    straight, _ = feed_forward(x, weights, activation=lambda h: h)
    yield Check("F3 two maps without a bend fold into one", error(straight, folded))
    yield wrong(
        "F3 the folded map taken for the one with ReLU",
        error(feed_forward(x, weights)[0], folded),
    )


def f4_gelu(place: Place) -> Iterator[Check]:
    x = np.linspace(-6, 6, 2401)
    # the probability that a standard normal number is smaller
    below = statistics.NormalDist().cdf
    exact, bent = [v * below(v) for v in x.tolist()], array.gelu_tanh(x)
    yield Check(
        "F4 GELU, plain Python against statistics",
        error([scalar.gelu(v) for v in x.tolist()], exact),
    )
    yield Check("F4 GELU, NumPy against statistics", error(array.gelu(x), exact))
    yield place.check(
        "F4 GELU, torch against statistics",
        error(model.ACTIVATIONS["gelu"](place.tensor(x)), exact),
    )
    rows = [scalar.gelu_tanh(v) for v in x.tolist()]
    yield Check("F4 GELU by tanh, plain Python against NumPy", error(rows, bent))
    off = error(model.ACTIVATIONS["gelu_tanh"](place.tensor(x)), bent)
    yield place.check("F4 GELU by tanh, torch against NumPy", off)
    yield Check(
        "F4 the largest distance of the two forms on [-6, 6]", error(bent, exact), 5e-4
    )
    yield wrong(
        "F4 the tanh form taken for the exact one, in the fourth decimal",
        error(bent, exact),
        1e-4,
    )
