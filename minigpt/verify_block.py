"""The mechanisms of part III of the course: K the block, O the order of its steps.

A function yields the checks of one mechanism and begins with its id. `minigpt.verify` runs all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.random import default_rng

from minigpt import array, example, model, scalar
from minigpt.array import Array
from minigpt.measure import (
    EXACT,
    PATHS,
    PRINTED,
    SLOPE,
    Arrays,
    Check,
    Place,
    blocks,
    error,
    feed_forward,
    lists,
    numbers,
    random_weights,
    record_error,
    slope_error,
    wrong,
)

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

    block, leaf = (
        place.block(weights, 2, activation="gelu"),
        place.tensor(x[None]).requires_grad_(),
    )
    (block(leaf) * place.tensor(dy[None])).sum().backward()
    gradient = {"x": numbers(leaf.grad)[0]}
    for theirs, ours in model.ARRAY_NAMES.items():
        # nn.Linear keeps [out, in]
        gradient[ours] = numbers(block.get_parameter(theirs).grad).T
    off = slope_error(loss, {"x": x, **weights}, gradient)
    yield place.check(
        "K1 the block's gradient, torch against finite differences",
        off,
        SLOPE + place.rounding,
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
        yield Check(
            f"K2 {stage}, row 1 as printed, NumPy",
            error(record[stage][0], printed),
            PRINTED,
        )
    rows, _ = scalar.block(example.X, example.WEIGHTS, example.N_HEAD)
    yield Check("K2 Y as printed, plain Python", error(rows, whole), PRINTED)
    yield Check("K2 Y as printed, NumPy", error(y, whole), PRINTED)
    off = error(place.block(weights, example.N_HEAD)(place.tensor(x[None])), [whole])
    yield place.check("K2 Y as printed, torch", off, PRINTED + place.rounding)
    a = 0.5 / math.sqrt(0.25001)
    u = (2 * a - 1) / (2 * math.sqrt(((2 * a - 1) / 2) ** 2 + 1e-5))
    yield Check(
        "K2 row 1 against its closed form, NumPy", error(y[0], [1 + u, 2 * a + u])
    )


def k3_record(place: Place) -> Iterator[Check]:
    names = ("norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output")
    expected = [(name, (3, 3) if name == "hidden" else (3, 2)) for name in names]
    x, weights = example.arrays()

    def differ(record: Mapping[str, Any]) -> int:
        got = [(name, numbers(value).shape[-2:]) for name, value in record.items()]
        return abs(len(got) - len(expected)) + sum(
            a != b for a, b in zip(got, expected, strict=False)
        )

    count = differ(scalar.block(example.X, example.WEIGHTS, example.N_HEAD)[1])
    yield Check(
        "K3 stages with another name, place or shape, plain Python", count, EXACT
    )
    count = differ(array.block(x, weights, example.N_HEAD)[1])
    yield Check("K3 stages with another name, place or shape, NumPy", count, EXACT)
    count = differ(place.block(weights, example.N_HEAD).stages(place.tensor(x[None])))
    yield place.check(
        "K3 stages with another name, place or shape, torch", count, EXACT
    )


def k4_three_computations(place: Place) -> Iterator[Check]:
    def case(
        seed: int, T: int, C: int, H: int, F: int, activation: str
    ) -> tuple[Any, ...]:
        x, weights = (
            default_rng(seed).normal(size=(T, C)),
            random_weights(seed + 1, C, F),
        )
        return (
            f"random, T={T} C={C} H={H} F={F} {activation}",
            x,
            weights,
            H,
            activation,
        )

    cases = [
        ("the worked example", *example.arrays(), example.N_HEAD, "relu"),
        case(401, 1, 4, 1, 3, "relu"),
        case(403, 5, 6, 3, 10, "gelu"),
        case(405, 8, 12, 4, 20, "gelu_tanh"),
    ]
    for name, x, weights, H, activation in cases:
        _, rows = scalar.block(
            x.tolist(), lists(weights), H, activation=getattr(scalar, activation)
        )
        _, record = array.block(x, weights, H, activation=getattr(array, activation))
        yield Check(
            f"K4 all stages, plain Python against NumPy: {name}",
            record_error(rows, record),
        )
        stages = place.block(weights, H, activation=activation).stages(
            place.tensor(x[None])
        )
        off = record_error({stage: value[0] for stage, value in stages.items()}, record)
        yield place.check(f"K4 all stages, torch against NumPy: {name}", off)


def k5_batch(place: Place) -> Iterator[Check]:
    x, weights = default_rng(51).normal(size=(3, 5, 6)), random_weights(52, 6, 8)
    other, block = x.copy(), place.block(weights, 2)
    other[1:] += 5.0 * x[::-1][1:]
    y, alone = (
        array.block(x, weights, 2)[0],
        [array.block(sequence, weights, 2)[0] for sequence in x],
    )
    yield Check(
        "K5 each sequence alone gives what the batch gives, NumPy", error(alone, y)
    )
    off = error(array.block(other, weights, 2)[0][0], y[0])
    yield Check("K5 other sequences change, the first does not, NumPy", off, EXACT)
    got = block(place.tensor(x))
    yield place.check("K5 a batch, torch against NumPy", error(got, y))
    off = error(block(place.tensor(other))[0], got[0])
    yield place.check(
        "K5 other sequences change, the first does not, torch", off, EXACT
    )


# ---------------------------------------------------------------- O: the order of the steps


def o1_post_norm(place: Place) -> Iterator[Check]:
    x, weights = default_rng(91).normal(size=(5, 6)), random_weights(92, 6, 8)

    def norm(x: Array, which: int) -> Array:
        return array.layer_norm(x, weights[f"gamma{which}"], weights[f"beta{which}"])

    middle = norm(x + array.multi_head_attention(x, weights, 2), 1)
    y = norm(middle + feed_forward(middle, weights)[0], 2)
    got = place.block(weights, 2, norm_order="post")(place.tensor(x[None]))[0]
    yield place.check("O1 post-norm, torch against NumPy", error(got, y))
    yield wrong(
        "O1 pre-norm taken for post-norm", error(array.block(x, weights, 2)[0], y)
    )


def o1_no_straight_path(place: Place) -> Iterator[Check]:
    x, weights = default_rng(93).normal(size=(1, 5, 6)), random_weights(94, 6, 8)
    shut = {
        **weights,
        **{name: 0 * weights[name] for name in ("w_o", "b_o", "w2", "b2")},
    }
    twice: Array = x
    for which in (1, 2):
        twice = array.layer_norm(
            twice, weights[f"gamma{which}"], weights[f"beta{which}"]
        )
    off = error(place.block(shut, 2, norm_order="post")(place.tensor(x)), twice)
    yield place.check(
        "O1 post-norm with branches of zeros is two LayerNorms, torch against NumPy",
        off,
    )
    yield wrong(
        "O1 post-norm with branches of zeros taken to pass X whole", error(twice, x)
    )


def o2_checkpoints(place: Place) -> Iterator[Check]:
    pre, post = place.gpt(norm_order="pre"), place.gpt(norm_order="post")
    shapes = [
        {name: value.shape for name, value in gpt.state_dict().items()}
        for gpt in (pre, post)
    ]
    differ = len(shapes[0].items() ^ shapes[1].items())
    yield place.check(
        "O2 names and shapes in which checkpoints of the two orders differ",
        differ,
        EXACT,
    )
    post.load_state_dict(pre.state_dict())
    ids = place.whole(default_rng(95).integers(11, size=(2, 8)))
    off = error(post(ids)[0], pre(ids)[0])
    yield place.wrong(
        "O2 a pre-norm checkpoint in post-norm: its logits taken for right", off
    )
    again = place.gpt(norm_order="pre")
    again.load_state_dict(pre.state_dict())
    yield place.check(
        "O2 loaded into its own order: the logits",
        error(again(ids)[0], pre(ids)[0]),
        EXACT,
    )
    stages = [set(blocks(gpt)[0].stages(pre.wte(ids))) for gpt in (pre, post)]
    only = int(stages[0] - stages[1] != {"norm2"}) + int(
        stages[1] - stages[0] != {"residual2"}
    )
    yield place.check("O2 a record of stages that does not name its order", only, EXACT)


def o3_final_norm(place: Place) -> Iterator[Check]:
    gpt, results = place.gpt(), []
    gpt.h[-1].register_forward_hook(
        lambda block, inputs, result: results.append(result)
    )
    ids = place.whole(default_rng(96).integers(11, size=(2, 8)))
    logits = gpt(ids)[0]
    off = error(logits, gpt.lm_head(gpt.ln_f(results[0])))
    yield place.check(
        "O3 logits are the projection of one LayerNorm of the last block", off, EXACT
    )
    table = numbers(gpt.wte.weight)
    gamma, beta = numbers(gpt.ln_f.weight), numbers(gpt.ln_f.bias)
    x = numbers(gpt.wte(ids) + gpt.wpe.weight)
    for block in gpt.h:
        weights = {
            ours: numbers(block.get_parameter(theirs)).T
            for theirs, ours in model.ARRAY_NAMES.items()
        }
        x, _ = array.block(x, weights, 2, activation=array.gelu)
    off = error(logits, array.layer_norm(x, gamma, beta) @ table.T)
    yield place.check(
        "O3 two pre-norm blocks, LayerNorm and projection, torch against NumPy", off
    )
    yield place.wrong(
        "O3 the final LayerNorm left out", error(gpt.lm_head(results[0]), logits)
    )
    inside = array.residual(x, array.layer_norm(x, gamma, beta)) @ table.T
    yield place.wrong(
        "O3 the final LayerNorm inside a residual sum", error(logits, inside)
    )
    config = model.GPTConfig()
    others = int(config.norm_order != "pre") + int(config.dropout != 0)
    yield Check("O3 defaults other than pre-norm and dropout 0", others, EXACT)


def o4_cross_attention(place: Place) -> Iterator[Check]:
    rng = default_rng(97)
    # decoder, encoder
    q, k, v = (
        rng.normal(size=(2, 4)),
        rng.normal(size=(5, 4)),
        rng.normal(size=(5, 4)),
    )
    output, weights = scalar.attention(q.tolist(), k.tolist(), v.tolist(), causal=False)
    got, attended = array.attention(q, k, v)
    differ = int(got.shape != (2, 4)) + int(attended.shape != (2, 5))
    yield Check(
        "O4 cross-attention: shapes other than [T_q, d] and [T_q, T_k]", differ, EXACT
    )
    yield Check("O4 cross-attention, NumPy against plain Python", error(got, output))
    yield Check(
        "O4 cross-attention: weights, NumPy against plain Python",
        error(attended, weights),
    )
    everything = np.ones((2, 5), dtype=bool)
    heads = q[None, None], k[None, None], v[None, None]
    for path, flash in PATHS:
        off = error(place.attend(*heads, everything, flash)[0, 0], output)
        yield place.check(f"O4 cross-attention, {path} against plain Python", off)
    own = place.attend(*heads)[0, 0]  # causal: two queries at the end of the five keys
    yield place.wrong(
        "O4 causal self-attention taken for cross-attention", error(own, output)
    )
