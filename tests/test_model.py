"""The torch model against torch's own modules, autograd's numerical check, and NumPy formulas."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from minigpt import array, example, model
from minigpt.model import ARRAY_NAMES, Block, CausalSelfAttention, GPTConfig, LayerNorm, MiniGPT, attend

SEED = st.integers(0, 2**31 - 1)
BOTH = pytest.mark.parametrize("flash", [False, True], ids=["manual", "SDPA"])
SMALL = GPTConfig(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8)


def close(got: torch.Tensor, expected: object, bound: float = 1e-12) -> None:
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=bound)


def gpt(config: GPTConfig = SMALL, dtype: torch.dtype = torch.float64) -> MiniGPT:
    """A model in which every weight matters."""
    torch.manual_seed(0)
    made = MiniGPT(config).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def random_ids(T: int, B: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randint(11, (B, T), generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- LayerNorm


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_layer_norm_is_torchs_module(bias: bool, eps: float) -> None:
    torch.manual_seed(1)
    ours, theirs = LayerNorm(6, bias, eps).double(), nn.LayerNorm(6, eps, bias=bias).double()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert set(ours.state_dict()) == ({"weight", "bias"} if bias else {"weight"})
    state = {name: torch.randn_like(value) for name, value in theirs.state_dict().items()}
    ours.load_state_dict(state)
    theirs.load_state_dict(state)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    close(ours(a), theirs(b), 0)
    ours(a).square().sum().backward()
    theirs(b).square().sum().backward()
    close(a.grad, b.grad, 0)
    for name, parameter in theirs.named_parameters():
        close(ours.get_parameter(name).grad, parameter.grad, 0)


def test_layer_norm_without_bias_has_none() -> None:
    norm = LayerNorm(4, bias=False)
    assert norm.bias is None
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    assert LayerNorm(4).eps == GPTConfig().eps == 1e-5
    assert not list(norm.buffers())  # no running averages


def test_layer_norm_starts_as_pure_normalisation() -> None:
    close(
        LayerNorm(2).double()(torch.tensor([[1.0, 3.0]]).double()), np.array([[-1, 1]]) / math.sqrt(1 + 1e-5)
    )


# ---------------------------------------------------------------- attend


def qkv(seed: int, T_q: int = 5, T_k: int = 5, d: int = 3) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    shapes = [(2, 3, T_q, d), (2, 3, T_k, d), (2, 3, T_k, d)]
    return [torch.tensor(rng.normal(size=shape)).requires_grad_() for shape in shapes]


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v, written as a quotient of sums."""
    q, k, v = (part.detach().numpy() for part in (q, k, v))
    powers = np.exp(np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])) * mask
    total = powers.sum(-1, keepdims=True)
    return np.einsum("bhij,bhjd->bhid", powers, v) / np.where(total == 0, 1, total)


@BOTH
@reference.FEW
@given(SEED, st.integers(1, 6), st.integers(0, 3), st.booleans())
def test_attend_is_the_formula(flash: bool, seed: int, T_q: int, more: int, causal: bool) -> None:
    q, k, v = qkv(seed, T_q, T_q + more)
    if causal:  # query i is position `more` + i
        mask = np.arange(T_q + more) <= more + np.arange(T_q)[:, None]
        close(attend(q, k, v, flash=flash), formula(q, k, v, mask))
    else:
        mask = np.random.default_rng(seed).random((2, 1, T_q, T_q + more)) < 0.5
        close(attend(q, k, v, torch.tensor(mask), flash=flash), formula(q, k, v, mask))


@BOTH
def test_cached_queries_give_the_last_rows(flash: bool) -> None:
    q, k, v = qkv(3, 7, 7)
    whole = attend(q, k, v, flash=flash)
    for count in range(1, 8):
        close(attend(q[..., -count:, :], k, v, flash=flash), whole[..., -count:, :])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_that_may_read_nothing(flash: bool, dtype: torch.dtype) -> None:
    q, k, v = (part.detach().to(dtype).requires_grad_() for part in qkv(4))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False
    y = attend(q, k, v, mask, flash=flash)
    assert not y[:, :, 2].any()
    y.square().sum().backward()
    for leaf in (q, k, v):
        assert leaf.grad is not None and leaf.grad.isfinite().all()
    assert not q.grad[:, :, 2].any()
    rest = [0, 1, 3, 4]  # the others go on as if this query were not there
    others = [part.detach().clone().requires_grad_() for part in (q[:, :, rest], k, v)]
    attend(*others, mask[rest], flash=flash).square().sum().backward()
    bound = 1e-12 if dtype is torch.float64 else 1e-5
    close(k.grad, others[1].grad, bound)
    close(v.grad, others[2].grad, bound)
    everything_hidden = attend(q, k, v, torch.zeros(5, 5, dtype=torch.bool), flash=flash)
    assert not everything_hidden.any()


@BOTH
def test_attend_gradients_are_numerical_ones(flash: bool) -> None:
    mask = torch.tensor(np.random.default_rng(0).random((4, 5)) < 0.6)
    mask[1] = False
    assert torch.autograd.gradcheck(
        lambda *qkv: attend(*qkv, mask, flash=flash), qkv(5, 4, 5, 2), fast_mode=True
    )


def test_attention_weights_are_masked_before_the_softmax() -> None:
    q, k = (torch.tensor(rows, dtype=torch.float64) for rows in ([[1.0]], [[0.0], [math.log(2)], [100.0]]))
    weights = model.attention_weights(q, k, torch.tensor([[True, True, False]]))
    close(weights, [[1 / 3, 2 / 3, 0]], 1e-15)


R = torch.zeros
ATTEND = [
    (
        lambda: attend(R(2, 3, 4), R(2, 3, 5), R(2, 3, 5)),
        ValueError,
        "k: got shapes q [2, 3, 4], k [2, 3, 5], v",
    ),
    (
        lambda: attend(R(2, 3, 4), R(2, 3, 4), R(2, 2, 4)),
        ValueError,
        "k: got shapes q [2, 3, 4], k [2, 3, 4], v",
    ),
    (
        lambda: attend(R(2, 3, 4), R(1, 3, 4), R(1, 3, 4)),
        ValueError,
        "k: got shapes q [2, 3, 4], k [1, 3, 4], v",
    ),
    (lambda: attend(R(2, 4, 4), R(2, 3, 4), R(2, 3, 4)), ValueError, "q: got 4 queries for 3 keys"),
    (
        lambda: attend(*[R(2, 3, 4)] * 3, R(3, 3)),
        TypeError,
        "mask: got dtype torch.float32, expected torch.bool",
    ),
    (lambda: attend(*[R(2, 3, 4)] * 3, R(3, 3).int()), TypeError, "mask: got dtype torch.int32"),
    (
        lambda: attend(*[R(2, 3, 4)] * 3, R(1, 3).bool()),
        ValueError,
        "mask: got shape [1, 3], expected [2, 3, 3], leading axes may be 1 or missing",
    ),
    (lambda: attend(*[R(2, 3, 4)] * 3, R(3).bool()), ValueError, "mask: got shape [3], expected [2, 3, 3]"),
    (lambda: attend(*[R(2, 3, 4)] * 3, R(4, 3, 3).bool()), ValueError, "mask: got shape [4, 3, 3]"),
    (
        lambda: attend(*[R(3, 4)] * 3, R(1, 3, 3).bool()),
        ValueError,
        "mask: got shape [1, 3, 3], expected [3, 3]",
    ),
]


@BOTH
@pytest.mark.parametrize(("call", "kind", "words"), ATTEND, ids=[words[:50] for *_, words in ATTEND])
def test_attend_names_wrong_input(
    call, kind, words: str, flash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "__defaults__", (*attend.__defaults__[:-1], flash))
    with pytest.raises(kind, match="^" + re.escape(words)):
        call()


# ---------------------------------------------------------------- residual, MLP


def test_residual_takes_equal_shapes_only() -> None:
    x = torch.tensor([[1.0, 0.0]])
    assert model.residual(x, torch.tensor([[0.0, 2.0]])).tolist() == [[1, 2]]
    for shape, other in [((3, 2), (1, 2)), ((2, 5, 16), (1, 5, 16)), ((1, 2), (3, 2)), ((3, 2), (2,))]:
        words = re.escape(f"update: got shape {list(other)}, expected {list(shape)}, exactly the shape of x")
        with pytest.raises(ValueError, match=words):
            model.residual(R(shape), R(other))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("bias", [True, False])
def test_mlp_is_two_linear_maps(activation: str, bias: bool) -> None:
    config = replace(SMALL, activation=activation, bias=bias)
    mlp = model.MLP(config).double()
    act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh")}[activation]
    assert (mlp.c_fc.weight.shape, mlp.c_fc.bias is None) == ((32, 8), not bias)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    close(mlp(x), nn.Sequential(mlp.c_fc, act, mlp.c_proj)(x), 0)


# ---------------------------------------------------------------- Block


def loaded(w: dict[str, np.ndarray], n_head: int, **choices: object) -> Block:
    C, hidden = w["w1"].shape
    config = GPTConfig(
        block_size=8, vocab_size=3, n_layer=1, n_head=n_head, n_embd=C, n_hidden=hidden, **choices
    )
    return Block(config).double().load_arrays(w)


@BOTH
@pytest.mark.parametrize("order", ["pre", "post"])
@reference.FEW
@given(
    SEED,
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(2, 4),
    st.sampled_from(["relu", "gelu", "gelu_tanh"]),
)
def test_block_is_torchs_encoder_layer(
    flash: bool, order: str, seed: int, T: int, H: int, d: int, activation: str
) -> None:
    w = reference.weights(seed, H * d, 7)
    x = np.random.default_rng(seed + 1).normal(size=(2, T, H * d))
    block = loaded(w, H, activation=activation, norm_order=order, flash=flash)
    close(block(torch.tensor(x)), reference.block(x, w, H, activation, pre=order == "pre"), 1e-10)
    if order == "pre":
        close(block(torch.tensor(x)), array.block(x, w, H, activation=getattr(array, activation))[0], 1e-10)


@BOTH
@pytest.mark.parametrize("order", ["pre", "post"])
def test_block_gradients_are_numerical_ones(flash: bool, order: str) -> None:
    block = loaded(reference.weights(7, 4, 5), 2, activation="gelu", norm_order=order, flash=flash)
    x = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    parameters = dict(block.named_parameters())

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(block, dict(zip(parameters, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters.values()), fast_mode=True)


ORDERS = {
    "pre": ["norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output"],
    "post": ["attention", "residual1", "norm1", "hidden", "ffn", "residual2", "output"],
}


@BOTH
@pytest.mark.parametrize("order", ORDERS)
def test_stages(order: str, flash: bool) -> None:
    x_array, w = example.arrays()
    block = loaded(w, 2, activation="relu", norm_order=order, flash=flash)
    x = torch.tensor(x_array[None])
    record = block.stages(x)
    shapes = {name: tuple(value.shape) for name, value in record.items()}
    assert list(shapes.items()) == [(name, (1, 3, 3 if name == "hidden" else 2)) for name in ORDERS[order]]
    close(record["residual1"], x + record["attention"], 0)
    close(record["output"], block(x), 0)
    if order == "pre":
        close(record["norm1"], block.ln_1(x), 0)
        close(record["norm2"], block.ln_2(record["residual1"]), 0)
        close(record["output"], record["residual1"] + record["ffn"], 0)
        for name, value in array.block(x_array, w, 2)[1].items():
            close(record[name][0], value)
    else:
        close(record["norm1"], block.ln_1(record["residual1"]), 0)
        close(record["residual2"], record["norm1"] + record["ffn"], 0)
        close(record["output"], block.ln_2(record["residual2"]), 0)


def test_stages_removes_its_hooks_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    block = loaded(reference.weights(0, 4, 5), 2)
    x = torch.zeros(1, 3, 4, dtype=torch.float64)
    block.stages(x)
    assert not any(module._forward_hooks for module in block.modules())

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    monkeypatch.setattr(block.mlp, "forward", broken)
    with pytest.raises(RuntimeError, match="no"):
        block.stages(x)
    assert not any(module._forward_hooks for module in block.modules())


def test_load_arrays_keeps_every_digit_of_lists_and_arrays() -> None:
    w = reference.weights(3, 4, 5)
    block = loaded({name: value.tolist() for name, value in w.items()} | {"w1": w["w1"]}, 2)
    for theirs, ours in ARRAY_NAMES.items():
        close(block.get_parameter(theirs), w[ours].T, 0)
    assert set(ARRAY_NAMES) == set(block.state_dict())
    with pytest.raises(KeyError, match="b2"):
        block.load_arrays({name: value for name, value in w.items() if name != "b2"})


@BOTH
def test_a_block_refuses_more_positions_than_its_mask_has(flash: bool) -> None:
    block = loaded(reference.weights(0, 4, 5), 2, flash=flash)
    block(torch.zeros(1, 8, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="x: got T = 9 positions, expected at most block_size = 8"):
        block(torch.zeros(1, 9, 4, dtype=torch.float64))


def test_mask_is_a_buffer_outside_checkpoints() -> None:
    attention = CausalSelfAttention(SMALL)
    assert attention.mask.shape == (1, 1, 8, 8)
    assert attention.mask[0, 0].tolist() == np.tri(8, dtype=bool).tolist()
    assert dict(attention.named_buffers()).keys() == {"mask"}
    assert not [name for name in attention.state_dict() if "mask" in name]
    assert not [name for name, _ in attention.named_parameters() if "mask" in name]
    assert attention.to(torch.float64).mask.dtype is torch.bool
    assert attention.to("meta").mask.device.type == "meta"


def test_paths_can_be_switched_after_construction_and_after_cropping() -> None:
    x, ids = torch.randn(2, 6, 8, dtype=torch.float64), random_ids(5)
    for built in (False, True):
        whole = gpt(replace(SMALL, flash=built))
        attention = whole.h[0].attn
        first = attention(x)
        attention.flash = not built
        close(attention(x), first)
        attention.flash = built
        whole.crop(5)
        before = whole(ids)[0]
        for block in whole.h:
            block.attn.flash = not built
        close(whole(ids)[0], before)


@BOTH
def test_dropout_is_off_in_evaluation(flash: bool) -> None:
    noisy = gpt(replace(SMALL, dropout=0.5, flash=flash)).eval()
    quiet = gpt(replace(SMALL, flash=flash)).eval()
    noisy.load_state_dict(quiet.state_dict())
    ids = random_ids(8)
    close(noisy(ids)[0], quiet(ids)[0], 0)
    noisy.train()
    assert (noisy(ids)[0] - noisy(ids)[0]).abs().max() > 0.1
    attention = noisy.h[0].attn  # attention's own dropout, before the output projection
    attention.c_proj = nn.Identity()
    attention.dropout = 0.5
    x = torch.randn(1, 8, 8, dtype=torch.float64)
    attention.eval()
    close(attention(x), attention(x), 0)


# ---------------------------------------------------------------- GPTConfig


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"n_embd": 10, "n_head": 4}, "n_head: got 4, which does not divide n_embd = 10"),
        ({"n_head": 0}, "n_head: got 0, expected a whole number of at least 1"),
        ({"n_embd": 0}, "n_embd: got 0"),
        ({"block_size": -1}, "block_size: got -1"),
        ({"vocab_size": 2.5}, "vocab_size: got 2.5"),
        ({"n_layer": "2"}, "n_layer: got '2'"),
        ({"n_hidden": 0}, "n_hidden: got 0"),
        ({"dropout": 1.0}, "dropout: got 1.0, expected 0 <= dropout < 1"),
        ({"dropout": -0.1}, "dropout: got -0.1"),
        ({"dropout": math.nan}, "dropout: got nan"),
        ({"eps": 0.0}, "eps: got 0.0, expected a finite number above 0"),
        ({"eps": math.inf}, "eps: got inf"),
        ({"n_layer": True}, "n_layer: got True"),
        ({"eps": -1e-5}, "eps: got -1e-05"),
        ({"eps": math.nan}, "eps: got nan"),
        ({"activation": "swish"}, "activation: got 'swish', expected one of gelu, gelu_tanh, relu"),
        ({"norm_order": "middle"}, "norm_order: got 'middle', expected 'pre' or 'post'"),
    ],
)
def test_config_names_what_is_wrong(choice: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        GPTConfig(**choice)  # type: ignore[arg-type]


def test_config_reaches_every_part() -> None:
    made = MiniGPT(replace(SMALL, bias=False, eps=0.25, n_hidden=5, norm_order="post", flash=False))
    assert not [name for name, _ in made.named_parameters() if name.endswith("bias")]
    assert {module.eps for module in made.modules() if isinstance(module, LayerNorm)} == {0.25}
    assert {block.mlp.c_fc.out_features for block in made.h} == {5}
    assert {(block.norm_order, block.attn.flash) for block in made.h} == {("post", False)}
    wider = replace(replace(SMALL, n_hidden=None), n_embd=16)  # F follows C where it is not given
    assert MiniGPT(wider).h[0].mlp.c_fc.out_features == 64


# ---------------------------------------------------------------- MiniGPT


def test_the_smallest_gpt2_has_its_published_number_of_parameters() -> None:
    with torch.device("meta"):
        made = MiniGPT(GPTConfig())
    assert sum(parameter.numel() for parameter in made.parameters()) == 124_439_808


def test_tied_weights_are_one_parameter() -> None:
    made = gpt()
    per_block = 12 * 8 * 8 + 13 * 8
    assert sum(p.numel() for p in made.parameters()) == 11 * 8 + 8 * 8 + 2 * per_block + 2 * 8
    for other in (made, copy.deepcopy(made)):
        assert other.lm_head.weight is other.wte.weight
    fresh = MiniGPT(SMALL).double()
    fresh.load_state_dict(made.state_dict())
    assert fresh.lm_head.weight is fresh.wte.weight
    close(fresh(random_ids(4))[0], made(random_ids(4))[0], 0)


def test_initial_loss_is_near_the_logarithm_of_the_vocabulary() -> None:
    torch.manual_seed(3)
    for vocab_size in (11, 65, 1000):
        made = MiniGPT(replace(SMALL, vocab_size=vocab_size, n_embd=32))
        ids, targets = torch.randint(vocab_size, (2, 16, 8))
        assert abs(made(ids, targets)[1].item() - math.log(vocab_size)) < 0.2


def test_initial_weights_have_the_spread_of_gpt2() -> None:
    torch.manual_seed(4)
    made = MiniGPT(replace(SMALL, n_embd=128, n_layer=3))
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif parameter.ndim == 1:
            assert (parameter == 1).all()
        else:
            std = 0.02 / math.sqrt(6) if name.endswith("c_proj.weight") else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.1), name


def test_matrices_of_blocks_lie_as_gpt2s_do_through_copies_loads_and_training() -> None:
    config = GPTConfig(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8)
    gpt = MiniGPT(config)
    loaded = MiniGPT(config)
    loaded.load_state_dict({name: value.contiguous() for name, value in gpt.state_dict().items()})
    trained = copy.deepcopy(gpt)
    loss = trained(torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64))[1]
    assert loss is not None
    loss.backward()
    for found in (gpt, copy.deepcopy(gpt), loaded, trained, MiniGPT(config).double()):
        matrices = {n: p for n, p in found.h.named_parameters() if p.ndim == 2}
        assert len(matrices) == 8
        for name, matrix in matrices.items():
            assert matrix.stride() == (1, matrix.shape[0]), name  # [out, in], each column in one piece
            assert matrix.grad is None or matrix.grad.stride() == matrix.stride(), name
        assert found.wte.weight.is_contiguous() and found.lm_head.weight.is_contiguous()


def test_all_parameters_receive_gradients() -> None:
    for order in ("pre", "post"):
        made = gpt(replace(SMALL, norm_order=order))
        made(random_ids(8), random_ids(8, seed=1))[1].backward()
        for name, parameter in made.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@BOTH
@pytest.mark.parametrize("order", ["pre", "post"])
def test_logits_and_loss_are_those_of_a_stack_of_encoder_layers(flash: bool, order: str) -> None:
    made, ids = gpt(replace(SMALL, norm_order=order, flash=flash)), random_ids(7)
    x = (made.wte.weight[ids] + made.wpe.weight[:7]).detach().numpy()
    for block in made.h:
        w = {ours: block.get_parameter(theirs).detach().numpy().T for theirs, ours in ARRAY_NAMES.items()}
        x = reference.block(x, w, 2, "gelu", pre=order == "pre")
    x = F.layer_norm(torch.tensor(x), (8,), made.ln_f.weight, made.ln_f.bias)
    logits = x @ made.wte.weight.T
    targets = random_ids(7, seed=2)
    targets[0, :3] = -1
    got, loss = made(ids, targets)
    close(got, logits, 1e-11)
    chosen = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    close(loss, -chosen[targets >= 0].mean(), 1e-11)
    assert made(ids)[1] is None


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("crop", [None, 6])
def test_prefix_invariance_is_exact(
    flash: bool, dtype: torch.dtype, training: bool, crop: int | None
) -> None:
    made = gpt(replace(SMALL, flash=flash), dtype).train(training)
    if crop:
        made.crop(crop)
    with torch.no_grad():
        for T in range(1, (crop or 8) + 1):
            ids, changed = random_ids(T), random_ids(T)
            half = T // 2
            changed[:, half:] = (ids[:, half:] + 4) % 11
            before, after = made(ids)[0], made(changed)[0]
            assert torch.equal(after[:, :half], before[:, :half])
            assert (after[:, half:] - before[:, half:]).abs().min() > 0


def test_prefix_invariance_sees_one_leaking_layer() -> None:
    made = gpt(replace(SMALL, flash=False))
    ids, changed = random_ids(8), random_ids(8)
    changed[:, 4:] = (ids[:, 4:] + 4) % 11
    made.h[1].attn.mask = torch.ones_like(made.h[1].attn.mask)
    assert (made(changed)[0] - made(ids)[0])[:, :4].abs().max() > 1e-3


def test_crop_keeps_the_first_positions() -> None:
    made = gpt()
    ids = random_ids(5)
    before, table = made(ids)[0], made.wpe.weight.detach().clone()
    made.crop(5)
    close(made(ids)[0], before, 0)
    close(made.wpe.weight, table[:5], 0)
    assert (made.config.block_size, made.wpe.num_embeddings, made.h[0].attn.mask.shape[-1]) == (5, 5, 5)
    assert made.lm_head.weight is made.wte.weight
    with pytest.raises(ValueError, match="ids: got T = 6 positions, expected 1 to block_size = 5"):
        made(random_ids(6))
    for size in (0, 6):
        with pytest.raises(ValueError, match=f"block_size: got {size}, expected 1 to 5"):
            made.crop(size)
    smaller = MiniGPT(replace(SMALL, block_size=5)).double()
    smaller.load_state_dict(made.state_dict())
    close(smaller(ids)[0], before, 0)


@pytest.mark.parametrize(
    ("ids", "kind", "words"),
    [
        (torch.tensor([[0, 11]]), ValueError, "ids: got values from 0 to 11, expected 0 to 10"),
        (torch.tensor([[-1, 3]]), ValueError, "ids: got values from -1 to 3, expected 0 to 10"),
        (torch.zeros(1, 9).long(), ValueError, "ids: got T = 9 positions, expected 1 to block_size = 8"),
        (torch.zeros(1, 0).long(), ValueError, "ids: got T = 0 positions"),
        (
            torch.zeros(4).long(),
            TypeError,
            "ids: got shape [4] of torch.int64, expected [B, T] of torch.int64",
        ),
        (torch.zeros(1, 4), TypeError, "ids: got shape [1, 4] of torch.float32"),
    ],
)
def test_ids_out_of_range_are_named(ids: torch.Tensor, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(words)):
        gpt()(ids)


@pytest.mark.parametrize(
    ("targets", "kind", "words"),
    [
        ([[0, 1, 2, 3]], TypeError, "targets: got list"),
        (torch.zeros(1, 4).int(), TypeError, "targets: got shape [1, 4] of torch.int32"),
        (torch.tensor([[0, 1, 2, 11]]), ValueError, "targets: got values from 0 to 11, expected -1 to 10"),
        (torch.tensor([[0, 1, -2, 3]]), ValueError, "targets: got values from -2 to 3, expected -1 to 10"),
    ],
)
def test_targets_out_of_range_are_named(targets: torch.Tensor, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(words)):
        gpt()(torch.zeros(1, 4).long(), targets)


def test_a_batch_without_sequences_is_refused() -> None:
    with pytest.raises(TypeError, match=re.escape("ids: got shape [0, 4]")):
        gpt()(torch.zeros(0, 4).long())


def test_targets_have_the_shape_of_ids() -> None:
    with pytest.raises(
        ValueError, match=re.escape("targets: got shape [2, 3], expected [2, 4], the shape of ids")
    ):
        gpt()(random_ids(4), random_ids(3))
