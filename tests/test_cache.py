"""The key-value cache: cached and uncached logits agree at every step, also when the window slides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.cache import KVCache
from minigpt.model import GPTConfig, MiniGPT
from minigpt.sample import next_logits

SMALL = GPTConfig(block_size=6, vocab_size=11, n_layer=2, n_head=2, n_embd=8)
BOTH = pytest.mark.parametrize("flash", [False, True], ids=["manual", "SDPA"])


def gpt(config: GPTConfig = SMALL, seed: int = 0) -> MiniGPT:
    """A model in which every weight matters."""
    torch.manual_seed(seed)
    made = MiniGPT(config).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def random_ids(T: int, B: int = 2, V: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


@BOTH
@reference.FEW
@given(
    st.integers(0, 2**31 - 1),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 10),
    st.sampled_from(["pre", "post"]),
)
def test_cached_and_uncached_logits_agree_at_every_step(
    flash: bool, seed: int, N: int, H: int, d: int, T_max: int, start: int, order: str
) -> None:
    config = GPTConfig(T_max, 11, N, H, H * d, norm_order=order, flash=flash)
    made, text = gpt(config, seed % 1000), random_ids(T_max + 4, seed=seed)
    start = min(start, T_max + 3)
    lengths = []
    for (length, cached), (_, uncached) in zip(
        next_logits(made, text, start, cache=True), next_logits(made, text, start, cache=False), strict=True
    ):
        with torch.no_grad():
            direct = made(text[:, max(0, length - T_max) : length])[0][:, -1]
        assert (cached - direct).abs().max() < 1e-11
        assert (uncached - direct).abs().max() < 1e-11
        lengths.append(length)
    assert lengths == list(range(start, T_max + 4))


def test_a_cache_that_is_kept_when_the_window_slides_would_be_wrong() -> None:
    """What the border test protects against: keys of the old positions."""
    made, text = gpt(), random_ids(7)
    with torch.no_grad():
        stale = KVCache(SMALL, 2, dtype=torch.float64)
        made(text[:, :6], cache=stale)
        for layer in stale.layers:  # forget the oldest position, keep the rest
            layer.k[:, :, :5], layer.v[:, :, :5] = layer.k[:, :, 1:].clone(), layer.v[:, :, 1:].clone()
            layer.length = 5
        wrong = made(text[:, 6:], cache=stale)[0][:, -1]
        assert (wrong - made(text[:, 1:])[0][:, -1]).abs().max() > 1e-2


@BOTH
@pytest.mark.parametrize("chunks", [[6], [1] * 6, [2, 4], [4, 1, 1], [3, 2, 1]])
def test_any_chunks_give_the_whole(flash: bool, chunks: list[int]) -> None:
    made, ids = gpt(replace(SMALL, flash=flash)), random_ids(6)
    cache, rows = KVCache(SMALL, 2, dtype=torch.float64), []
    with torch.no_grad():
        for part in ids.split(chunks, dim=1):
            rows.append(made(part, cache=cache)[0])
        assert (torch.cat(rows, 1) - made(ids)[0]).abs().max() < 1e-12
    assert cache.length == 6


def test_keys_and_values_lie_at_their_positions_in_buffers_that_stay() -> None:
    made, ids = gpt(), random_ids(5)
    cache = KVCache(SMALL, 2, dtype=torch.float64)
    first = cache.layers[0]
    places = [(layer.k.data_ptr(), layer.v.data_ptr()) for layer in cache.layers]
    assert {tuple(layer.k.shape) for layer in cache.layers} == {(2, 2, 6, 4)}
    with torch.no_grad():
        made(ids[:, :3], cache=cache)
        made(ids[:, 3:], cache=cache)
        x = made.h[0].ln_1(made.wte(ids) + made.wpe.weight[:5])
        k, v = made.h[0].attn.c_attn(x)[..., 8:].view(2, 5, 2, 2, 4).permute(2, 0, 3, 1, 4)
    assert (first.k[:, :, :5] - k).abs().max() < 1e-14
    assert (first.v[:, :, :5] - v).abs().max() < 1e-14
    assert not first.k[:, :, 5:].any() and not first.v[:, :, 5:].any()
    assert [(layer.k.data_ptr(), layer.v.data_ptr()) for layer in cache.layers] == places
    got, _ = first.append(torch.ones(2, 2, 1, 4).double(), torch.ones(2, 2, 1, 4).double())
    assert got.data_ptr() == places[0][0] and got.shape == (2, 2, 6, 4)


def test_clear_begins_anew() -> None:
    made, ids = gpt(), random_ids(6)
    cache = KVCache(SMALL, 2, dtype=torch.float64)
    with torch.no_grad():
        made(ids, cache=cache)
        cache.clear()
        assert cache.length == 0
        other = random_ids(3, seed=1)
        assert (made(other, cache=cache)[0] - made(other)[0]).abs().max() < 1e-12


def test_size() -> None:
    assert KVCache(SMALL, 3).nbytes == 2 * 2 * 3 * 8 * 6 * 4  # 2 N B C T_max numbers of 4 bytes
    gpt2 = KVCache(GPTConfig(), 1, device="meta", dtype=torch.float16)
    assert gpt2.nbytes == 2 * 12 * 768 * 1024 * 2


def test_last_is_the_last_row() -> None:
    made, ids = gpt(), random_ids(5)
    with torch.no_grad():
        assert (made(ids, last=True)[0] - made(ids)[0][:, -1:]).abs().max() < 1e-13


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, c: m(random_ids(4), cache=c), "ids: got T = 4 after 3 in the cache, expected 6 together"),
        (lambda m, c: m.h[0].attn(ones(2, 4, 8), c.layers[0]), "x: got T = 7 positions, expected at most"),
        (
            lambda m, c: m(random_ids(1, B=3), cache=c),
            "k: got shape [3, 2, 1, 4] of torch.float64, expected [2",
        ),
        (lambda m, c: m.float()(random_ids(1), cache=c), "k: got shape [2, 2, 1, 4] of torch.float32"),
        (lambda m, c: c.layers[0].append(ones(2, 2, 1, 4), ones(2, 2, 2, 4)), "v: got shape [2, 2, 2, 4]"),
        (lambda m, c: c.layers[0].append(*[ones(2, 2, 4, 4)] * 2), "k: got 4 more positions for 3 of 6"),
        (lambda m, c: c.layers[0].append(*[ones(2, 2, 1, 4).requires_grad_()] * 2), "k: carries a gradient"),
        (lambda m, c: m(random_ids(1), random_ids(1), cache=c), "targets: got some with cache"),
        (lambda m, c: m(random_ids(1), random_ids(1), last=True), "targets: got some with cache"),
        (lambda m, c: KVCache(SMALL, 0), "batch_size: got 0, expected at least 1"),
    ],
)
def test_errors_name_what_is_wrong_and_leave_the_cache_as_it_was(call, words: str) -> None:
    made, cache = gpt(), KVCache(SMALL, 2, dtype=torch.float64)
    with torch.no_grad():
        made(random_ids(3), cache=cache)
        with pytest.raises(ValueError, match="^" + re.escape(words)):
            call(made, cache)
    assert cache.length == 3


def test_a_forward_that_breaks_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, cache = gpt(), KVCache(SMALL, 2, dtype=torch.float64)

    def broken(*_: object) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(made.h[1], "forward", broken)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        made(random_ids(3), cache=cache)
    with pytest.raises(ValueError, match=re.escape("layers hold [0, 3] positions")):
        _ = cache.length


@BOTH
@reference.FEW
@given(
    st.integers(0, 2**31 - 1),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(2, 9),
    st.sampled_from(["pre", "post"]),
)
def test_prefix_invariance_for_any_sizes(
    flash: bool, seed: int, N: int, H: int, d: int, T: int, order: str
) -> None:
    made = gpt(GPTConfig(T, 11, N, H, H * d, norm_order=order, flash=flash), seed % 1000)
    ids, cut = random_ids(T, seed=seed), 1 + seed % (T - 1)
    changed = ids.clone()
    changed[:, cut:] = (ids[:, cut:] + 1 + seed % 10) % 11
    with torch.no_grad():
        assert torch.equal(made(ids)[0][:, :cut], made(changed)[0][:, :cut])


@reference.FEW
@given(st.integers(0, 2**31 - 1), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9))
def test_manual_and_fused_path_agree_for_any_sizes(seed: int, H: int, d: int, T: int) -> None:
    made, ids = gpt(GPTConfig(T, 11, 2, H, H * d), seed % 1000), random_ids(T, seed=seed)
    with torch.no_grad():
        fused = made(ids)[0]
        for block in made.h:
            block.attn.flash = False
        assert (made(ids)[0] - fused).abs().max() < 1e-11


def test_parameter_count_by_part() -> None:
    parts = MiniGPT(SMALL).count_parameters()
    assert parts == {"wte": 88, "wpe": 48, "attn": 2 * (4 * 64 + 32), "mlp": 2 * (8 * 64 + 40), "ln_": 5 * 16}
    with torch.device("meta"):
        assert sum(MiniGPT(GPTConfig()).count_parameters().values()) == 124_439_808
