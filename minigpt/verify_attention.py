"""The mechanisms of part II of the course: A attention, S its fused path in torch.

A function yields the checks of one mechanism and begins with its id. `minigpt.verify` runs all of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import default_rng
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from minigpt import array, model, scalar
from minigpt.array import Array
from minigpt.measure import (
    EXACT,
    PATHS,
    SAMPLING,
    Check,
    Mask,
    Place,
    blocks,
    error,
    let_through,
    lists,
    numbers,
    prefix_moves,
    random_weights,
    worst,
    wrong,
)

# of torch's fused call
KERNELS = (
    "MATH",
    "FLASH_ATTENTION",
    "EFFICIENT_ATTENTION",
    "CUDNN_ATTENTION",
)


def qkv(seed: int, *shape: int) -> list[Array]:
    """Random queries, keys and values of one shape."""
    return list(default_rng(seed).normal(size=(3, *shape)))


def switch(gpt: model.MiniGPT, flash: bool) -> None:
    for block in blocks(gpt):
        block.attn.flash = flash


def gradients(module: torch.nn.Module) -> Array:
    """The gradients of all parameters in one row."""
    return np.concatenate(
        [numbers(parameter.grad).ravel() for parameter in module.parameters()]
    )


# ---------------------------------------------------------------- A: attention


def a1_projection(place: Place) -> Iterator[Check]:
    rng = default_rng(11)
    draws: dict[str, Callable[..., Array]] = {
        "whole numbers": lambda *shape: rng.integers(-9, 10, size=shape).astype(float),
        "random numbers": lambda *shape: rng.normal(size=shape),
    }
    for kind, draw in draws.items():
        x, thirds = draw(2, 5, 12), [draw(12, 12) for _ in range(3)]
        one = array.linear(x, np.concatenate(thirds, axis=1))
        three = np.concatenate([array.linear(x, third) for third in thirds], axis=-1)
        if kind == "whole numbers":  # every sum is exact in floating point
            yield Check(
                f"A1 one product against three, {kind}, NumPy", error(one, three), EXACT
            )
        else:
            yield Check(
                f"A1 one product against three, {kind}, NumPy", error(one, three)
            )

    x, weights = rng.normal(size=(2, 5, 12)), random_weights(12, 12, 20)
    y = array.multi_head_attention(x, weights, 3)
    rows = [scalar.multi_head_attention(part, lists(weights), 3) for part in x.tolist()]
    yield Check("A1 three heads, plain Python against NumPy", error(rows, y))
    for path, flash in PATHS:
        layer = place.block(weights, 3, flash=flash).attn
        yield place.check(
            f"A1 three heads, {path} against NumPy", error(layer(place.tensor(x)), y)
        )
    thirds = np.split(weights["w_qkv"], 3, axis=1)
    swapped = {
        **weights,
        "w_qkv": np.concatenate([thirds[2], thirds[1], thirds[0]], axis=1),
    }
    yield wrong(
        "A1 the thirds read as V, K, Q",
        error(array.multi_head_attention(x, swapped, 3), y),
    )

    heads = (0, 5, 24)  # none of them divides 12
    off = let_through(array.split_heads, [(x, count) for count in heads])
    yield Check(
        "A1 numbers of heads that do not divide C, let through by NumPy", off, EXACT
    )
    off = let_through(
        scalar.multi_head_attention, [(x[0].tolist(), lists(weights), n) for n in heads]
    )
    yield Check(
        "A1 numbers of heads that do not divide C, let through by plain Python",
        off,
        EXACT,
    )
    off = let_through(
        lambda n: model.GPTConfig(n_embd=12, n_head=n), [(n,) for n in heads]
    )
    yield place.check(
        "A1 numbers of heads that do not divide C, let through by torch", off, EXACT
    )


def a2_attention(place: Place) -> Iterator[Check]:
    q, k, v = qkv(61, 2, 2, 6, 3)  # [B, H, T, d]
    causal, weights = array.attention(q, k, v, array.causal_mask(6))
    heads = [
        [
            scalar.attention(*(part[b, h].tolist() for part in (q, k, v)))[0]
            for h in range(2)
        ]
        for b in range(2)
    ]
    yield Check("A2 causal attention, plain Python against NumPy", error(heads, causal))
    other = q.copy()
    other[..., 3:, :] += 1.0
    off = error(
        array.attention(other, k, v, array.causal_mask(6))[0][..., :3, :],
        causal[..., :3, :],
    )
    yield Check("A2 later queries leave earlier rows alone, NumPy", off, EXACT)
    for path, flash in PATHS:
        y = place.attend(q, k, v, flash=flash)
        yield place.check(
            f"A2 causal attention, torch {path} against NumPy", error(y, causal)
        )
        off = error(place.attend(other, k, v, flash=flash)[..., :3, :], y[..., :3, :])
        yield place.check(
            f"A2 later queries leave earlier rows alone, {path}", off, EXACT
        )

    doubled, same = array.attention(q, k, 2 * v, array.causal_mask(6))
    off = worst([error(doubled, 2 * causal), error(same, weights)])
    yield Check("A2 V doubled: the same weights, twice the output", off, EXACT)
    turn, _ = np.linalg.qr(default_rng(64).normal(size=(3, 3)))
    off = error(
        array.attention(q @ turn, k @ turn, v, array.causal_mask(6))[1], weights
    )
    yield Check("A2 Q and K turned together: the same weights", off)


def a2_softmax(place: Place) -> Iterator[Check]:
    # eighths: no shift by a whole number rounds
    scores = default_rng(62).integers(-24, 25, size=(4, 6)) / 8
    weights = array.softmax(scores)

    def in_torch(scores: Array) -> torch.Tensor:
        # [4, 6, 1], read by queries of 1: the scores are the keys
        keys = place.tensor(scores[..., None])
        visible = place.whole(np.ones((1, 6), dtype=bool))
        return model.attention_weights(torch.ones_like(keys[:, :1]), keys, visible)[
            :, 0
        ]

    powers = [[math.exp(score) for score in row] for row in scores.tolist()]
    expected = [[power / sum(row) for power in row] for row in powers]
    yield Check(
        "A2 softmax, NumPy against powers over their sum", error(weights, expected)
    )
    yield Check(
        "A2 softmax, plain Python",
        error([scalar.softmax(row) for row in scores.tolist()], expected),
    )
    yield place.check("A2 softmax, torch", error(in_torch(scores), expected))
    shifts = (1000.0, -1000.0)
    off = worst(error(array.softmax(scores + c), weights) for c in shifts)
    yield Check(
        "A2 all scores moved by a thousand, up or down: the same weights, NumPy",
        off,
        EXACT,
    )
    rows = [
        [scalar.softmax(row) for row in (scores + c).tolist()] for c in (0.0, *shifts)
    ]
    yield Check(
        "A2 all scores moved by a thousand, up or down: the same weights, plain Python",
        worst([error(rows[1], rows[0]), error(rows[2], rows[0])]),
        EXACT,
    )
    off = worst(error(in_torch(scores + c), in_torch(scores)) for c in shifts)
    yield place.check(
        "A2 all scores moved by a thousand, up or down: the same weights, torch",
        off,
        EXACT,
    )

    # the mistake: each column of the weights sums to 1
    def over_queries(
        q: Array,
    ) -> Array:
        scores = np.where(array.causal_mask(3), q @ k.T / 2, -np.inf)
        return array.softmax(scores.T).T @ v

    q, k, v = qkv(65, 3, 4)
    other = q.copy()
    other[2] = -4 * q[2]
    yield wrong(
        "A2 softmax over the queries: a later query is heard",
        error(over_queries(other)[0], over_queries(q)[0]),
    )


def a3_scale(place: Place) -> Iterator[Check]:
    rng, variance = default_rng(63), {}
    for d in (1, 16, 64):
        left, right = rng.normal(size=(2, 50_000, d))
        variance[d] = float((left * right).sum(axis=-1).var())
    off = worst(abs(value / d - 1) for d, value in variance.items())
    yield Check(
        "A3 variance of q.k over d, from 1, for d = 1, 16 and 64", off, SAMPLING
    )
    yield wrong("A3 variance of q.k at d = 64 taken for 1", abs(variance[64] - 1))

    q, k, v = qkv(66, 2, 3, 5, 4)  # C = H d = 12

    def formula(width: int) -> Array:
        powers = np.exp(
            np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(width)
        ) * array.causal_mask(5)
        return np.einsum(
            "bhij,bhjd->bhid", powers / powers.sum(axis=-1, keepdims=True), v
        )

    y = array.attention(q, k, v, array.causal_mask(5))[0]
    yield Check(
        "A3 the scale is the root of the head width, NumPy against the formula",
        error(y, formula(4)),
    )
    for path, flash in PATHS:
        off = error(place.attend(q, k, v, flash=flash), formula(4))
        yield place.check(
            f"A3 the scale is the root of the head width, {path} against the formula",
            off,
        )
    yield wrong("A3 the scale taken from C", error(formula(12), formula(4)))


def a3_jacobian(place: Place) -> Iterator[Check]:
    scores, visible = (
        default_rng(67).normal(size=6),
        place.whole(np.ones((1, 6), dtype=bool)),
    )

    def weights(scores: torch.Tensor) -> torch.Tensor:
        return model.attention_weights(
            torch.ones_like(scores[:1, None]), scores[:, None], visible
        )[0]

    a = array.softmax(scores)
    jacobian = torch.autograd.functional.jacobian(weights, place.tensor(scores))
    off = error(jacobian, np.diag(a) - np.outer(a, a))
    yield place.check("A3 slopes of the softmax: autograd against diag(a) - a a^T", off)
    yield place.wrong(
        "A3 slopes of the softmax taken for diag(a)", error(jacobian, np.diag(a))
    )


def a4_shapes(place: Place) -> Iterator[Check]:
    B, T, C, H, d = 2, 5, 12, 3, 4
    x, weights = default_rng(68).normal(size=(B, T, C)), random_weights(69, C, 20)
    expected = [
        (B, T, 3 * C),
        *[(B, H, T, d)] * 3,
        (B, H, T, T),
        (B, H, T, d),
        (B, T, C),
        (B, T, C),
    ]
    projected = array.linear(x, weights["w_qkv"], weights["b_qkv"])
    q, k, v = (array.split_heads(part, H) for part in np.split(projected, 3, axis=-1))
    output, attended = array.attention(q, k, v, array.causal_mask(T))
    merged = array.merge_heads(output)
    last = array.linear(merged, weights["w_o"], weights["b_o"])
    got = [part.shape for part in (projected, q, k, v, attended, output, merged, last)]
    differ = sum(a != b for a, b in zip(got, expected, strict=True))
    yield Check(
        "A4 shapes between [B, T, C] and [B, T, C] that differ, NumPy", differ, EXACT
    )
    yield Check(
        "A4 sums of the weights' rows, from 1, NumPy",
        error(attended.sum(axis=-1), np.ones((B, H, T))),
    )
    off = error(last, array.multi_head_attention(x, weights, H))
    yield Check("A4 the steps one by one and the whole layer, NumPy", off, EXACT)

    layer, shapes = place.block(weights, H).attn, []
    for part in (layer.c_attn, layer.c_proj):
        part.register_forward_hook(
            lambda part, given, made: shapes.extend([given[0].shape, made.shape])
        )
    layer(place.tensor(x))
    expected = [(B, T, C), (B, T, 3 * C), (B, T, C), (B, T, C)]
    differ = abs(len(shapes) - 4) + sum(
        tuple(a) != b for a, b in zip(shapes, expected, strict=False)
    )
    yield place.check("A4 shapes at both projections that differ, torch", differ, EXACT)
    tq, tk, tv = map(place.tensor, (q, k, v))
    rows = model.attention_weights(tq, tk, place.whole(array.causal_mask(T)))
    yield place.check(
        "A4 weights [B, H, T, T], torch against NumPy", error(rows, attended)
    )
    yield place.check(
        "A4 sums of the weights' rows, from 1, torch",
        error(rows.sum(-1), np.ones((B, H, T))),
    )
    yield place.check(
        "A4 weights times values, torch against NumPy", error(rows @ tv, output)
    )


def a5_strides(place: Place) -> Iterator[Check]:
    x, weights = default_rng(70).normal(size=(2, 5, 12)), random_weights(71, 12, 20)
    heads = array.split_heads(x, 3)  # [B, H, T, d]
    columns = np.stack([x[..., h * 4 : (h + 1) * 4] for h in range(3)], axis=1)
    yield Check(
        "A5 head h has columns h d to (h + 1) d, NumPy", error(heads, columns), EXACT
    )
    yield Check(
        "A5 numbers that the split copies, NumPy",
        0 if np.shares_memory(heads, x) else x.size,
        EXACT,
    )
    strides = [step // x.itemsize for step in heads.strides]
    yield Check(
        "A5 strides against (T C, d, C, 1), NumPy",
        error(strides, [60, 4, 12, 1]),
        EXACT,
    )
    yield Check(
        "A5 merge(split(x)) = x, NumPy", error(array.merge_heads(heads), x), EXACT
    )
    yield wrong(
        "A5 heads merged without exchanging the axes back",
        error(heads.reshape(x.shape), x),
    )

    q, k, v = np.split(array.linear(x, weights["w_qkv"], weights["b_qkv"]), 3, axis=-1)
    total = np.zeros(x.shape) + weights["b_o"]
    for h in range(3):
        mine = slice(h * 4, (h + 1) * 4)
        output, _ = array.attention(
            q[..., mine], k[..., mine], v[..., mine], array.causal_mask(5)
        )
        total += output @ weights["w_o"][mine]
    whole = array.multi_head_attention(x, weights, 3)
    yield Check(
        "A5 heads one by one, each with its rows of W_O, against all at once",
        error(total, whole),
    )

    cut = place.tensor(x).view(2, 5, 3, 4).transpose(1, 2)  # [B, H, T, d]
    yield place.check(
        "A5 strides against (T C, d, C, 1), torch",
        error(cut.stride(), [60, 4, 12, 1]),
        EXACT,
    )
    back = cut.contiguous().transpose(1, 2)  # [B, T, H, d]
    try:
        back.view(2, 5, 12)
        viewed = 1
    except RuntimeError:
        viewed = 0
    yield place.check(
        "A5 views of transposed heads that torch lets through", viewed, EXACT
    )
    off = worst(
        [error(back.contiguous().view(2, 5, 12), x), error(back.reshape(2, 5, 12), x)]
    )
    yield place.check(
        "A5 contiguous and view, or reshape: x again", off, place.rounding
    )


def a6_masks(place: Place) -> Iterator[Check]:
    q, k, v = qkv(72, 2, 2, 6, 3)  # [B, H, T, d]
    mask = default_rng(73).random((2, 1, 6, 6)) < 0.5
    mask[:, :, 1] = False  # a query that may read nothing
    masked, _ = array.attention(q, k, v, mask)
    causal, _ = array.attention(q, k, v, array.causal_mask(6))
    last, _ = array.attention(q[..., -2:, :], k, v, array.causal_mask(2, 6))
    off = error(last, causal[..., -2:, :])
    yield Check("A6 the last 2 queries alone give their rows of the whole, NumPy", off)
    off = error(masked[:, :, 1], 0 * q[:, :, 1])
    yield Check("A6 a query that may read nothing gives zeros, NumPy", off, EXACT)
    for path, flash in PATHS:
        tq, tk, tv = (place.tensor(part).requires_grad_() for part in (q, k, v))
        y = model.attend(tq[..., -2:, :], tk, tv, flash=flash)
        yield place.check(
            f"A6 the last 2 queries alone, torch {path} against NumPy", error(y, last)
        )
        y = model.attend(tq, tk, tv, place.whole(mask), flash=flash)
        yield place.check(f"A6 some mask, torch {path} against NumPy", error(y, masked))
        off = error(y[:, :, 1], 0 * q[:, :, 1])
        yield place.check(
            f"A6 a query that may read nothing gives zeros, torch {path}", off, EXACT
        )
        y.square().sum().backward()
        gradient = np.array([numbers(leaf.grad) for leaf in (tq, tk, tv)])
        broken = int((~np.isfinite(gradient)).sum())
        yield place.check(
            f"A6 gradients under that mask that are not finite, torch {path}",
            broken,
            EXACT,
        )

    keys, steps = np.zeros((1, 1, 3, 4)), np.array([[[[3.0], [6.0], [9.0]]]])
    for path, flash in PATHS:
        off = error(place.attend(keys[:, :, :1], keys, steps, flash=flash), [[[[6.0]]]])
        yield place.check(
            f"A6 1 query behind 3 equal keys reads their mean, {path}", off
        )
    tk, tv = place.tensor(keys), place.tensor(steps)
    corner = F.scaled_dot_product_attention(tk[:, :, :1], tk, tv, is_causal=True)
    yield place.wrong(
        "A6 torch's is_causal for 1 query and 3 keys", error(corner, [[[[6.0]]]])
    )


def a6_softmax(place: Place) -> Iterator[Check]:
    scores, weights = [0.0, math.log(2.0), -math.inf], [1 / 3, 2 / 3, 0.0]
    off = error(scalar.softmax(scores), weights)
    yield Check("A6 [0, log 2, masked] -> [1/3, 2/3, 0], plain Python", off)
    off = error(array.softmax(np.array(scores)), weights)
    yield Check("A6 [0, log 2, masked] -> [1/3, 2/3, 0], NumPy", off)
    keys, visible = (
        place.tensor([[0.0], [math.log(2.0)], [100.0]]),
        place.whole([[True, True, False]]),
    )
    off = error(
        model.attention_weights(torch.ones_like(keys[:1]), keys, visible), [weights]
    )
    yield place.check("A6 [0, log 2, masked 100] -> [1/3, 2/3, 0], torch", off)
    late = array.softmax(np.array([0.0, math.log(2.0), 100.0])) * [1, 1, 0]
    yield wrong("A6 softmax first, mask after: [0, log 2, 100]", error(late, weights))
    nothing, zeros = [-math.inf] * 3, [0, 0, 0]
    yield Check(
        "A6 a row of -inf gives zeros, plain Python",
        error(scalar.softmax(nothing), zeros),
        EXACT,
    )
    yield Check(
        "A6 a row of -inf gives zeros, NumPy",
        error(array.softmax(np.array(nothing)), zeros),
        EXACT,
    )
    off = error(array.softmax(np.array([1000.0, 1000.0 + math.log(2.0)])), weights[:2])
    yield Check("A6 scores near a thousand do not overflow, NumPy", off)


def a6_enormous_score(place: Place) -> Iterator[Check]:
    q, k, v = qkv(74, 1, 1, 6, 4)
    q[..., 3], k[..., 3] = 1.0, 0.0
    enormous = k.copy()
    enormous[..., 5, 3] = 1e30  # the last key, in the future of rows 0 to 4
    before, after = (
        array.attention(q, keys, v, array.causal_mask(6))[0] for keys in (k, enormous)
    )
    yield Check(
        "A6 an enormous score in the future changes nothing, NumPy",
        error(after[..., :5, :], before[..., :5, :]),
        EXACT,
    )
    yield Check(
        "A6 the one row that sees it reads its value, NumPy",
        error(after[..., 5, :], v[..., 5, :]),
    )
    for path, flash in PATHS:
        for how, mask in (("causal", None), ("by a mask", array.causal_mask(6))):
            pair = [
                place.attend(q, keys, v, mask, flash)[..., :5, :]
                for keys in (k, enormous)
            ]
            name = f"A6 an enormous score in the future changes nothing, {path} {how}"
            yield place.check(name, error(*pair), EXACT)


def a7_buffer(place: Place) -> Iterator[Check]:
    gpt = place.gpt()
    names = [*gpt.state_dict(), *(name for name, _ in gpt.named_parameters())]
    among = sum("mask" in name for name in names)
    yield place.check("A7 masks among the parameters and in a checkpoint", among, EXACT)
    masks = [mask for name, mask in gpt.named_buffers() if name.endswith("mask")]
    yield place.check(
        "A7 layers without a mask among the buffers", len(gpt.h) - len(masks), EXACT
    )
    off = worst(error(mask, np.tri(8)[None, None]) for mask in masks)
    yield place.check("A7 the mask against a triangle [1, 1, T_max, T_max]", off, EXACT)
    left = sum(
        mask.device.type != place.device.type or mask.dtype is not torch.bool
        for mask in masks
    )
    yield place.check(
        "A7 masks left on another device, or turned into floats", left, EXACT
    )
    q, k, v = qkv(75, 1, 1, 6, 3)
    given = place.tensor([q, k, v])
    for _, flash in PATHS:
        model.attend(given[0], given[1], given[2], flash=flash)
    yield place.check(
        "A7 queries, keys and values that a mask changes",
        error(given, place.tensor([q, k, v])),
        EXACT,
    )
    ids = place.whole(default_rng(76).integers(11, size=(2, 8)))
    for layer in range(2):
        gpt = place.gpt()
        blocks(gpt)[layer].attn.mask.fill_(True)
        off, _ = prefix_moves(gpt, ids, 4)
        yield place.wrong(f"A7 a model with layer {layer} open taken for causal", off)


def a8_prefix(place: Place) -> Iterator[Check]:
    ids = place.whole(default_rng(81).integers(11, size=(2, 8)))
    for here in place.narrower():
        for path, flash in PATHS:
            gpt, moves = here.gpt(flash=flash), []
            for T_max in (8, 5):
                gpt.crop(T_max)
                for training in (False, True):
                    gpt.train(training)
                    cases = [(T, t) for T in range(1, T_max + 1) for t in range(1, T)]
                    moves += [prefix_moves(gpt, ids[:, :T], t) for T, t in cases]
            before, after = zip(*moves, strict=True)
            name = f"{path}, {here.name}"
            yield here.check(
                f"A8 logits before t, all T and t, train, eval, cropped: {name}",
                worst(before),
                EXACT,
            )
            yield here.wrong(
                f"A8 logits from t on taken for unchanged: {name}", min(after)
            )


def a8_gradient(place: Place) -> Iterator[Check]:
    # [T, C], what the first block reads
    x = place.tensor(default_rng(82).normal(size=(5, 8)))
    for path, flash in PATHS:
        gpt = place.gpt(flash=flash)

        def logits(x: torch.Tensor, gpt: model.MiniGPT = gpt) -> torch.Tensor:
            x = x[None]
            for block in gpt.h:
                x = block(x)
            return gpt.lm_head(gpt.ln_f(x))[0]  # [T, V]

        slopes = numbers(torch.autograd.functional.jacobian(logits, x))  # [T, V, T, C]
        reach = np.abs(slopes).max(axis=(1, 3))  # [T, T]: logits at t, input at s
        off = float(reach[~np.tri(5, dtype=bool)].max())
        yield place.check(
            f"A8 gradient of the logits at t by the input at s > t, {path}", off, EXACT
        )
        unread = int((reach[np.tri(5, dtype=bool)] == 0).sum())
        yield place.check(
            f"A8 pairs s <= t for which that gradient is 0, {path}", unread, EXACT
        )


def a9_leak(place: Place) -> Iterator[Check]:
    B, T, V = 200, 8, 4
    # tokens at random: nothing about the next is known
    text = default_rng(91).integers(V, size=(B, T + 1))
    # query i asks for position i + 1, whose value is its token
    asks = np.tile(np.eye(T, k=1), (B, 1, 1))

    # logits [B, T, V]
    def copied(
        ids: NDArray[np.integer], mask: Mask, flash: bool | None = None
    ) -> Array:
        q, k, v = (
            50 * math.sqrt(T) * asks,
            np.tile(np.eye(T), (B, 1, 1)),
            np.eye(V)[ids],
        )
        if flash is None:
            return 10 * array.attention(q, k, v, mask)[0]
        return 10 * numbers(place.attend(q, k, v, mask, flash))

    # the last position has no next one to copy: left out
    def loss(
        logits: Array,
    ) -> float:
        right = np.take_along_axis(logits, text[:, 1:, None], axis=2)[..., 0]
        return float((np.log(np.exp(logits).sum(axis=2)) - right)[:, :-1].mean())

    ids, open_mask, triangle = (
        text[:, :-1],
        np.ones((T, T), dtype=bool),
        array.causal_mask(T),
    )
    leaked, honest = loss(copied(ids, open_mask)), loss(copied(ids, triangle))
    closed_form = math.log(1 + 3 * math.exp(-10))
    yield Check(
        "A9 loss of a head that copies the next token, no mask, NumPy",
        abs(leaked - closed_form),
    )
    for path, flash in PATHS:
        off = abs(loss(copied(ids, open_mask, flash)) - closed_form)
        yield place.check(
            f"A9 loss of a head that copies the next token, no mask, {path}", off
        )
        off = abs(loss(copied(ids, triangle, flash)) - honest)
        yield place.check(f"A9 its loss under the mask, {path} against NumPy", off)
    yield wrong(
        "A9 its loss without the mask taken for its loss with it", honest - leaked
    )
    yield wrong(
        "A9 its loss without the mask taken for possible: below log V",
        math.log(V) - leaked,
        1.0,
    )
    other = ids.copy()
    other[:, 4:] = (ids[:, 4:] + 1) % V
    off = error(copied(other, triangle)[:, :4], copied(ids, triangle)[:, :4])
    yield Check(
        "A9 later tokens, under the mask, leave earlier logits alone", off, EXACT
    )
    off = error(copied(other, open_mask)[:, :4], copied(ids, open_mask)[:, :4])
    yield wrong("A9 the head without a mask taken for causal", off)


# ---------------------------------------------------------------- S: the fused path


def s1_backends(place: Place) -> Iterator[Check]:
    q, k, v = qkv(191, 2, 2, 6, 8)
    real = np.ones((2, 6), dtype=bool)
    real[0, :2] = False  # two places of padding before the first sequence
    padded = array.causal_mask(6) & real[:, None, None, :]
    cases = {
        "causal": (q, None, array.causal_mask(6)),
        "padded": (q, padded, padded),
        "cached": (q[..., -2:, :], None, array.causal_mask(2, 6)),
        "cached and padded": (q[..., -2:, :], padded[:, :, -2:], padded[:, :, -2:]),
    }
    for here in place.narrower():
        for name in KERNELS:
            for case, (queries, given, mask) in cases.items():
                with warnings.catch_warnings(), sdpa_kernel(getattr(SDPBackend, name)):
                    # torch explains each refusal in a warning
                    warnings.simplefilter("ignore")
                    try:
                        y = here.attend(queries, k, v, given)
                    except RuntimeError:
                        if name == "MATH":  # the separate steps, which take everything
                            raise
                        continue
                expected, _ = array.attention(queries, k, v, mask)
                yield here.check(
                    f"S1 {name}, {here.name}, {case}, against NumPy", error(y, expected)
                )


def s2_dropout(place: Place) -> Iterator[Check]:
    torch.manual_seed(2)
    ids = place.whole(default_rng(192).integers(11, size=(2, 8)))
    x = place.tensor(default_rng(193).normal(size=(2, 8, 8)))
    for path, flash in PATHS:
        noisy, quiet = place.gpt(flash=flash, dropout=0.5), place.gpt(flash=flash)
        first = noisy(ids)[0]
        off = error(noisy(ids)[0], first)
        yield place.check(
            f"S2 dropout one half, two runs in evaluation, {path}", off, EXACT
        )
        off = error(first, quiet(ids)[0])
        yield place.check(
            f"S2 dropout one half in evaluation against dropout 0, {path}", off, EXACT
        )
        layer = model.Block(noisy.config).attn.to(place.device, place.dtype)
        yield place.wrong(
            f"S2 dropout one half, two runs in training taken for equal, {path}",
            error(layer(x), layer(x)),
        )
    q, k, v = map(place.tensor, qkv(194, 2, 2, 6, 4))
    careless = [
        F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.5)
        for _ in range(2)
    ]
    yield place.wrong(
        "S2 the config's dropout_p in evaluation: two runs taken for equal",
        error(*careless),
    )
    triangle = place.tensor(np.tri(6))
    off = error(
        F.scaled_dot_product_attention(q, k, v, attn_mask=triangle),
        model.attend(q, k, v),
    )
    yield place.wrong("S2 a triangle of floats, 1 and 0, as the mask", off)


def s3_two_paths(place: Place) -> Iterator[Check]:
    x, block = (
        place.tensor(default_rng(33).normal(size=(2, 7, 12))),
        place.block(random_weights(34, 12, 20), 3),
    )
    fused = block(x)
    block.attn.flash = False
    yield place.check("S3 a block, manual path against SDPA", error(block(x), fused))
    ids = place.whole(default_rng(35).integers(11, size=(2, 8)))
    results = []
    for _, flash in PATHS:
        gpt = place.gpt(flash=flash)
        logits, loss = gpt(ids, ids.roll(-1, dims=1))
        assert loss is not None
        loss.backward()
        results.append((logits, gradients(gpt)))
    yield place.check(
        "S3 logits of a Mini GPT, manual path against SDPA",
        error(results[0][0], results[1][0]),
    )
    off = error(results[0][1], results[1][1])
    yield place.check(
        "S3 gradients of all its parameters, manual path against SDPA", off
    )


def s4_switch(place: Place) -> Iterator[Check]:
    ids = place.whole(default_rng(195).integers(11, size=(2, 5)))
    for path, built in PATHS:
        gpt = place.gpt(flash=built)
        for when in ("before", "after"):
            first = gpt(ids)[0]
            switch(gpt, not built)
            off = error(gpt(ids)[0], first)
            yield place.check(f"S4 built for {path}, then switched, {when} crop", off)
            switch(gpt, built)
            off = error(gpt(ids)[0], first)
            yield place.check(
                f"S4 built for {path}, switched and back, {when} crop", off, EXACT
            )
            gpt.crop(5)


def s5_dropped_weights(place: Place) -> Iterator[Check]:
    torch.manual_seed(5)
    N, p = 10_000, 0.5
    q, k = (
        place.tensor(part).expand(N, 1, 4, 8)
        for part in default_rng(196).normal(size=(2, 4, 8))
    )
    # values of 1 and 0: the output is the weights
    unit = place.tensor(np.eye(4)).expand(N, 1, 4, 4)
    weights = numbers(model.attend(q[:1], k[:1], unit[:1]))
    for path, flash in PATHS:
        dropped = numbers(model.attend(q, k, unit, dropout_p=p, flash=flash))
        off = float(
            np.minimum(np.abs(dropped), np.abs(dropped - weights / (1 - p))).max()
        )
        yield place.check(
            f"S5 each weight after dropout is 0 or w / (1 - p), {path}", off
        )
        off = error(dropped.mean(axis=0), weights[0])
        yield place.check(
            f"S5 the mean of many draws against w, {path}", off, 2 * SAMPLING
        )


def blockwise(q: Array, k: Array, v: Array, size: int, rescale: bool = True) -> Array:
    """Causal attention with never more than [T, size] scores: q, k [T, d], v [T, d_v] -> [T, d_v]."""
    T = len(q)
    top, total, y = (
        np.full((T, 1), -np.inf),
        np.zeros((T, 1)),
        np.zeros((T, v.shape[1])),
    )
    for start in range(0, T, size):
        part = slice(start, start + size)
        scores = np.where(
            array.causal_mask(T)[:, part],
            q @ k[part].T / math.sqrt(q.shape[1]),
            -np.inf,
        )
        # finite from the first block on
        new = np.maximum(top, scores.max(axis=1, keepdims=True))
        powers, old = np.exp(scores - new), np.exp(top - new) if rescale else 1.0
        total, y = (
            old * total + powers.sum(axis=1, keepdims=True),
            old * y + powers @ v[part],
        )
        top = new
    return y / total


def s6_blocks(place: Place) -> Iterator[Check]:
    q, k, v = qkv(197, 10, 4)
    whole, _ = array.attention(q, k, v, array.causal_mask(10))
    for size in (1, 3, 10):
        off = error(blockwise(q, k, v, size), whole)
        yield Check(
            f"S6 attention in blocks of {size} keys against the whole, NumPy", off
        )
    off = error(blockwise(q, k, v, 3, rescale=False), whole)
    yield wrong("S6 blocks of 3 keys without rescaling what was collected", off)
    off = error(
        place.attend(q[None, None], k[None, None], v[None, None])[0, 0],
        blockwise(q, k, v, 3),
    )
    yield place.check("S6 torch's fused call against blocks of 3 keys", off)
