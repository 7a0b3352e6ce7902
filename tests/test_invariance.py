"""What must hold for all sizes and seeds: no look ahead, two equal paths, one answer to wrong input."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from minigpt import array, model


def kernels() -> dict[str, SDPBackend]:
    """The kernels behind torch's fused call that run on this CPU in float64, by name."""
    offered, q = {}, torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    for backend in SDPBackend.__members__.values():
        with warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # torch explains each refusal in a warning
            try:
                torch.nn.functional.scaled_dot_product_attention(q, q, q)
            except RuntimeError:
                continue
        offered[backend.name] = backend
    return offered


KERNELS = kernels()
WAYS = ["manual", "SDPA", *KERNELS]  # written out; the fused call, as torch chooses; each kernel of it
BOTH = pytest.mark.parametrize("flash", [False, True], ids=["manual", "SDPA"])
ALL_WAYS = pytest.mark.parametrize("way", WAYS)
BOUND = {torch.float64: 1e-12, torch.float32: 3e-5}
DTYPES = pytest.mark.parametrize("dtype", BOUND, ids=lambda dtype: str(dtype).removeprefix("torch."))

SEED = st.integers(0, 2**31 - 1)
SIZES = st.fixed_dictionaries(
    {
        "block_size": st.integers(1, 9),
        "n_layer": st.integers(1, 3),
        "n_head": st.integers(2, 3),
        "head": st.integers(2, 4),
        "norm_order": st.sampled_from(["pre", "post"]),
        "activation": st.sampled_from(sorted(model.ACTIVATIONS)),
        "bias": st.booleans(),
    }
)


def build(sizes: dict[str, Any], seed: int, dtype: torch.dtype, flash: bool) -> model.MiniGPT:
    """A random model of vocabulary 11 in which every weight matters."""
    choices = {name: value for name, value in sizes.items() if name != "head"}
    width = sizes["n_head"] * sizes["head"]
    config = model.GPTConfig(vocab_size=11, n_embd=width, n_hidden=2 * width, flash=flash, **choices)
    gpt, rng = model.MiniGPT(config).to(dtype), np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.copy_(torch.tensor(rng.normal(0.3, 0.6, size=tuple(parameter.shape))))
    return gpt


def random_ids(seed: int, B: int, T: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).integers(11, size=(B, T)))


def arrays(seed: int, lead: tuple[int, ...], T_q: int, T_k: int, d: int = 4) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(*lead, T, d)) for T in (T_q, T_k, T_k)]


def attend(
    way: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The output, and the leaves for whoever wants gradients."""
    leaves = [torch.tensor(part, dtype=dtype).requires_grad_() for part in (q, k, v)]
    seen = None if mask is None else torch.tensor(mask)
    with sdpa_kernel(KERNELS[way]) if way in KERNELS else nullcontext():
        return model.attend(*leaves, seen, flash=way != "manual"), leaves


def close(got: torch.Tensor, expected: np.ndarray, bound: float) -> None:
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=bound)


# ---------------------------------------------------------------- no look ahead


@BOTH
@DTYPES
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@reference.FEW
@given(SIZES, SEED, st.integers(1, 3), st.data())
def test_a_model_does_not_look_ahead(
    flash: bool,
    dtype: torch.dtype,
    training: bool,
    sizes: dict[str, Any],
    seed: int,
    B: int,
    data: st.DataObject,
) -> None:
    gpt, T_max = build(sizes, seed, dtype, flash).train(training), sizes["block_size"]
    if data.draw(st.booleans(), label="crop"):
        T_max = data.draw(st.integers(1, T_max), label="T_max")
        gpt.crop(T_max)
    T = data.draw(st.integers(1, T_max), label="T")
    t = data.draw(st.integers(0, T - 1), label="t")
    ids, other = random_ids(seed, B, T), random_ids(seed, B, T)
    other[:, t:] = (ids[:, t:] + data.draw(st.integers(1, 10), label="step")) % 11
    with torch.no_grad():
        before, after = gpt(ids)[0], gpt(other)[0]
    assert torch.equal(after[:, :t], before[:, :t])
    assert not torch.equal(after[:, t], before[:, t])  # the change did arrive where it may


@BOTH
@reference.FEW
@given(SIZES.filter(lambda sizes: sizes["block_size"] > 1 and sizes["norm_order"] == "pre"), SEED, st.data())
def test_one_open_layer_is_seen(flash: bool, sizes: dict[str, Any], seed: int, data: st.DataObject) -> None:
    gpt, T = build(sizes, seed, torch.float64, flash), sizes["block_size"]
    layer = data.draw(st.integers(0, sizes["n_layer"] - 1), label="layer")
    gpt.h[layer].attn.mask = torch.ones_like(gpt.h[layer].attn.mask)
    ids, other = random_ids(seed, 2, T), random_ids(seed, 2, T)
    other[:, -1] = (ids[:, -1] + 3) % 11
    with torch.no_grad():
        same = torch.equal(gpt(ids)[0][:, :-1], gpt(other)[0][:, :-1])
    assert same is flash  # the fused path is causal by its own argument and does not read the mask


@reference.FEW
@given(SIZES, SEED, st.integers(1, 3))
def test_both_paths_are_one_function(sizes: dict[str, Any], seed: int, B: int) -> None:
    ids = random_ids(seed, B, sizes["block_size"])
    results = []
    for flash in (False, True):
        gpt = build(sizes, seed, torch.float64, flash)
        logits, loss = gpt(ids, ids.roll(1, dims=0))
        loss.backward()
        results.append([logits, *(parameter.grad for parameter in gpt.parameters())])
    for manual, fused in zip(*results, strict=True):
        scale = 1 + float(manual.detach().abs().max())
        close(fused / scale, (manual / scale).detach().numpy(), 1e-11)


# ---------------------------------------------------------------- hidden keys, hidden queries, cached queries


LEAD = st.tuples(st.integers(1, 3), st.integers(1, 3))


def test_this_cpu_offers_the_separate_steps() -> None:
    assert KERNELS["MATH"] is SDPBackend.MATH


@ALL_WAYS
@DTYPES
@reference.FEW
@given(SEED, LEAD, st.integers(1, 6), st.integers(0, 4), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.data())
def test_any_mask_gives_what_numpy_gives(
    way: str,
    dtype: torch.dtype,
    seed: int,
    lead: tuple[int, int],
    T_q: int,
    more: int,
    share: float,
    data: st.DataObject,
) -> None:
    q, k, v = arrays(seed, lead, T_q, T_q + more)
    three_axes = [] if way in KERNELS else [(1,), lead[1:]]  # no kernel but MATH takes [H, T_q, T_k]
    given_lead = data.draw(st.sampled_from([(), (1, 1), (lead[0], 1), lead, *three_axes]), label="mask")
    mask = np.random.default_rng(seed).random((*given_lead, T_q, T_q + more)) < share
    mask[..., seed % T_q, :] = False  # a query that may read nothing
    y, leaves = attend(way, q, k, v, mask, dtype)
    close(y, array.attention(q, k, v, mask)[0], BOUND[dtype])
    hidden = np.broadcast_to(~mask.any(axis=-1), y.shape[:-1])
    assert not y.detach().numpy()[hidden].any()
    y.square().sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None and leaf.grad.isfinite().all()
    assert not leaves[0].grad.numpy()[hidden].any()
    unread = ~np.broadcast_to(mask, (*lead, *mask.shape[-2:])).any(axis=-2)  # keys that nobody reads
    assert not leaves[1].grad.numpy()[unread].any() and not leaves[2].grad.numpy()[unread].any()


@ALL_WAYS
@DTYPES
@reference.FEW
@given(SEED, LEAD, st.integers(1, 8), st.data())
def test_cached_queries_give_their_rows_of_the_whole(
    way: str, dtype: torch.dtype, seed: int, lead: tuple[int, int], T: int, data: st.DataObject
) -> None:
    q, k, v = arrays(seed, lead, T, T)
    whole, _ = array.attention(q, k, v, array.causal_mask(T))
    close(attend(way, q, k, v, None, dtype)[0], whole, BOUND[dtype])
    count = data.draw(st.integers(1, T), label="queries")
    last = q[..., -count:, :]
    close(attend(way, last, k, v, None, dtype)[0], whole[..., -count:, :], BOUND[dtype])
    mask = array.causal_mask(count, T)
    close(attend(way, last, k, v, mask, dtype)[0], whole[..., -count:, :], BOUND[dtype])
    np.testing.assert_allclose(array.attention(last, k, v, mask)[0], whole[..., -count:, :], atol=1e-12)


@ALL_WAYS
@reference.FEW
@given(SEED, st.integers(2, 6))
def test_a_hidden_key_leaves_no_trace(way: str, seed: int, T: int) -> None:
    """Whatever is finite in a hidden key and its value changes no bit of the queries that may not read it."""
    q, k, v = arrays(seed, (2, 2), T, T)
    j, mask = seed % T, np.random.default_rng(seed).random((T, T)) < 0.7
    mask[:, j] = False
    before, _ = attend(way, q, k, v, mask, torch.float64)
    k[..., j, :], v[..., j, :] = 1e30, -1e30
    after, _ = attend(way, q, k, v, mask, torch.float64)
    assert torch.equal(after, before)


# ---------------------------------------------------------------- infinities in the scores


def overflow(seed: int, i: int, j: int, sign: int, T: int = 5) -> list[np.ndarray]:
    """q, k and v [1, 1, T, 5], finite, with one product beyond float64, that of query i and key j."""
    q, k, v = (np.concatenate([part, np.zeros((1, 1, T, 1))], axis=-1) for part in arrays(seed, (1, 1), T, T))
    q[..., i, -1], k[..., j, -1] = 1e200, sign * 1e200
    return [q, k, v]


def plain(seed: int, T: int = 5) -> list[np.ndarray]:
    return [np.concatenate([part, np.zeros((1, 1, T, 1))], axis=-1) for part in arrays(seed, (1, 1), T, T)]


MASKS = pytest.mark.parametrize("explicit", [False, True], ids=["causal", "mask"])


@reference.FEW
@given(SEED, st.integers(0, 4), st.integers(0, 4))
def test_numpy_and_infinite_scores(seed: int, i: int, j: int) -> None:
    triangle = array.causal_mask(5)
    expected, _ = array.attention(*plain(seed), triangle)
    with np.errstate(over="ignore", invalid="ignore"):
        if j <= i:  # visible: refused by name
            with pytest.raises(ValueError, match=re.escape("scores: got NaN or +inf")):
                array.attention(*overflow(seed, i, j, 1), triangle)
        else:  # hidden: no trace
            assert np.array_equal(array.attention(*overflow(seed, i, j, 1), triangle)[0], expected)
        without = triangle.copy()
        without[i, j] = False
        got, _ = array.attention(*overflow(seed, i, j, -1), triangle)
    np.testing.assert_allclose(got, array.attention(*plain(seed), without)[0], rtol=0, atol=1e-12)


@ALL_WAYS
@MASKS
@reference.FEW
@given(SEED, st.integers(0, 4), st.integers(0, 4))
def test_torch_and_plus_infinity(way: str, explicit: bool, seed: int, i: int, j: int) -> None:
    mask = array.causal_mask(5) if explicit else None
    before, _ = attend(way, *plain(seed), mask, torch.float64)
    after, _ = attend(way, *overflow(seed, i, j, 1), mask, torch.float64)
    others = [row for row in range(5) if row != i]
    assert torch.equal(after[..., others, :], before[..., others, :])
    mine = after[0, 0, i]
    if j <= i:
        assert mine.isnan().all()
    elif way == "manual":
        assert torch.equal(mine, before[0, 0, i])
    else:  # some kernels add -inf to what is hidden: NaN, and never another number
        assert mine.isnan().all() or (mine - before[0, 0, i]).abs().max() < 1e-12


@ALL_WAYS
@MASKS
@reference.FEW
@given(SEED, st.integers(0, 4), st.integers(0, 4))
def test_torch_and_minus_infinity(way: str, explicit: bool, seed: int, i: int, j: int) -> None:
    mask = array.causal_mask(5)
    without = mask.copy()
    without[i, j] = False
    expected, _ = array.attention(*plain(seed), without)
    got, _ = attend(way, *overflow(seed, i, j, -1), mask if explicit else None, torch.float64)
    if without[i].any():
        close(got, expected, 1e-12)
    else:  # nothing that may be read is finite: NaN or zeros, as the kernel likes
        mine = got[0, 0, i]
        assert mine.isnan().all() or not mine.any()
        close(got[..., 1:, :], expected[..., 1:, :], 1e-12)


@ALL_WAYS
@reference.FEW
@given(SEED, st.integers(0, 4), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_broken_query_stays_alone(way: str, seed: int, i: int, value: float) -> None:
    q, k, v = plain(seed)
    before, _ = attend(way, q, k, v, None, torch.float64)
    q[..., i, 0] = value
    after, _ = attend(way, q, k, v, None, torch.float64)
    others = [row for row in range(5) if row != i]
    assert torch.equal(after[..., others, :], before[..., others, :])
    if math.isnan(value):
        # torch's own kernel for CPUs finds no largest score here and gives zeros (pytorch issue 141128)
        mine = after[..., i, :]
        assert mine.isnan().all() or (way not in ("manual", "MATH") and not mine.any())
        with pytest.raises(ValueError, match="scores: got NaN"):
            array.attention(q, k, v, array.causal_mask(5))


# ---------------------------------------------------------------- wrong input, the same in NumPy and torch


def in_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    return array.attention(q, k, v, mask)[0]


def in_torch(flash: bool) -> Callable[..., np.ndarray]:
    def call(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        seen = None if mask is None else torch.tensor(mask)
        return model.attend(torch.tensor(q), torch.tensor(k), torch.tensor(v), seen, flash=flash).numpy()

    return call


COMPUTATIONS = pytest.mark.parametrize(
    "attention", [in_numpy, in_torch(False), in_torch(True)], ids=["NumPy", "torch manual", "torch SDPA"]
)
Z = np.zeros
ONES = [Z((2, 3, 5, 4))] * 3
REFUSED = {
    "q and k of different widths": ((Z((2, 3, 5, 4)), Z((2, 3, 5, 3)), Z((2, 3, 5, 4))), ValueError, "k: "),
    "k and v of different lengths": (
        (Z((2, 3, 5, 4)), Z((2, 3, 5, 4)), Z((2, 3, 6, 4))),
        ValueError,
        "[kv]: ",
    ),
    "a batch that would broadcast": (
        (Z((2, 3, 5, 4)), Z((1, 3, 5, 4)), Z((1, 3, 5, 4))),
        ValueError,
        "[kv]: ",
    ),
    "heads that would broadcast": ((Z((2, 3, 5, 4)), Z((2, 1, 5, 4)), Z((2, 1, 5, 4))), ValueError, "[kv]: "),
    "a mask of floats": ((*ONES, np.tri(5)), TypeError, "mask: got "),
    "a mask of 0 and -inf": ((*ONES, np.where(np.tri(5, dtype=bool), 0, -np.inf)), TypeError, "mask: got "),
    "a mask of integers": ((*ONES, np.tri(5, dtype=np.int64)), TypeError, "mask: got "),
    "a mask for other keys": ((*ONES, np.ones((5, 4), bool)), ValueError, r"mask: got shape \[5, 4\]"),
    "a mask for other queries": ((*ONES, np.ones((4, 5), bool)), ValueError, r"mask: got shape \[4, 5\]"),
    "a mask of one key for all": ((*ONES, np.ones((5, 1), bool)), ValueError, r"mask: got shape \[5, 1\]"),
    "a mask of one row for all": ((*ONES, np.ones((1, 5), bool)), ValueError, r"mask: got shape \[1, 5\]"),
    "a mask of keys alone": ((*ONES, np.ones(5, bool)), ValueError, r"mask: got shape \[5\]"),
    "a mask [B, T, T]": ((*ONES, np.ones((2, 5, 5), bool)), ValueError, r"mask: got shape \[2, 5, 5\]"),
    "a mask of too many axes": ((*ONES, np.ones((1, 2, 3, 5, 5), bool)), ValueError, "mask: got shape"),
}


@COMPUTATIONS
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_attention_is_refused_alike(attention: Callable[..., np.ndarray], case: str) -> None:
    arguments, kind, words = REFUSED[case]
    with pytest.raises(kind, match="^" + words):
        attention(*arguments)


@COMPUTATIONS
def test_a_row_of_nothing_is_zeros_alike(attention: Callable[..., np.ndarray]) -> None:
    q, k, v = arrays(1, (2, 3), 5, 5)
    mask = array.causal_mask(5)
    mask[2] = False
    y = attention(q, k, v, mask)
    assert not y[..., 2, :].any() and np.isfinite(y).all() and y[..., [0, 1, 3, 4], :].all()
    assert not attention(q, k, v, np.zeros((5, 5), bool)).any()


@BOTH
@reference.FEW
@given(SIZES, SEED, st.data())
def test_ids_and_lengths_out_of_range_are_refused(
    flash: bool, sizes: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    gpt, T_max = build(sizes, seed, torch.float32, flash), sizes["block_size"]
    if data.draw(st.booleans(), label="crop"):
        T_max = data.draw(st.integers(1, T_max), label="T_max")
        gpt.crop(T_max)
    gpt(random_ids(seed, 2, T_max))
    longer = data.draw(st.integers(1, 5), label="longer")
    with pytest.raises(ValueError, match=f"^ids: got T = {T_max + longer} .*block_size = {T_max}"):
        gpt(random_ids(seed, 2, T_max + longer))
    bad = data.draw(st.one_of(st.integers(-(2**62), -1), st.integers(11, 2**62)), label="id")
    ids = random_ids(seed, 2, T_max)
    ids[seed % 2, seed % T_max] = bad
    with pytest.raises(ValueError, match=rf"^ids: got values from .*{bad}\b.*, expected 0 to 10"):
        gpt(ids)
