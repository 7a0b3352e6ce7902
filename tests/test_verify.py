"""The command that recomputes everything: that it passes, what it writes, and that it can fail."""

from __future__ import annotations

import errno
import importlib
import json
import math
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import reference  # noqa: F401  (one thread for torch)
import test_invariance
import torch

from minigpt import checkpoint, device, files, measure, verify, verify_attention, verify_parts
from minigpt.measure import EXACT, Check, Place

CPU = torch.device("cpu")
PLACE = Place(CPU, torch.float64)
STAGES = ["norm1", "attention", "residual1", "norm2", "hidden", "ffn", "output"]


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return verify.run(CPU)


def failures(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.passed]


# ---------------------------------------------------------------- the checks


def test_every_check_passes(checks: list[Check]) -> None:
    assert failures(checks) == []
    assert {check.dtype for check in checks} == {"float64", "float32", "bfloat16"}


def test_names_are_unique_and_short_enough_for_a_line(checks: list[Check]) -> None:
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert [
        name for name in names if not re.fullmatch(r"[NPRFASKOMTGCL]\d+ \S.*", name) or len(name) >= 80
    ] == []


def test_every_fact_that_can_be_computed_has_a_check(checks: list[Check]) -> None:
    numbers = {"N": 8, "P": 5, "R": 4, "F": 4, "A": 9, "S": 6, "K": 5, "O": 4}
    numbers |= {"M": 5, "T": 6, "G": 4, "C": 3, "L": 6}
    facts = {f"{part}{number + 1}" for part, count in numbers.items() for number in range(count)}
    assert {check.name.split()[0] for check in checks} == facts


@pytest.mark.parametrize("mechanism", verify.MECHANISMS, ids=lambda mechanism: mechanism.__name__)
def test_a_mechanism_checks_what_its_name_says(mechanism: Callable[[Place], Iterator[Check]]) -> None:
    names = [check.name.split()[0].lower() for check in mechanism(PLACE)]
    assert names and set(names) == {mechanism.__name__.split("_")[0]}


def test_what_ends_in_wrong_must_exceed_its_bound(checks: list[Check]) -> None:
    assert [check.wrong for check in checks] == [check.name.endswith("(wrong)") for check in checks]
    assert all(check.error > check.bound > 0 for check in checks if check.wrong)


def test_every_mechanism_runs_once() -> None:
    functions = [
        value for part in verify.PARTS for name, value in vars(part).items() if re.match(r"[a-z]\d+_", name)
    ]
    assert len(functions) > 50
    assert functions == verify.MECHANISMS and len(set(functions)) == len(functions)


def test_every_kernel_that_the_cpu_offers_is_compared(checks: list[Check]) -> None:
    names = {check.name.split(",")[0] for check in checks if check.name.startswith("S1 ")}
    assert names == {f"S1 {name}" for name in test_invariance.KERNELS} >= {"S1 MATH"}
    for name in names:
        for dtype in ("float64", "float32"):
            assert sum(check.name.startswith(f"{name}, {dtype}, ") for check in checks) == 4


def test_a_kernel_that_refuses_is_left_out_unless_it_is_the_separate_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("No available kernel")

    monkeypatch.setattr(verify_attention.model, "attend", refuse)
    monkeypatch.setattr(verify_attention, "KERNELS", ("FLASH_ATTENTION",))
    assert list(verify_attention.s1_backends(PLACE)) == []
    monkeypatch.setattr(verify_attention, "KERNELS", ("MATH",))
    with pytest.raises(RuntimeError, match="No available kernel"):
        list(verify_attention.s1_backends(PLACE))


def test_float32_passes_where_there_is_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "widest_float", lambda where: torch.float32)
    narrow = verify.run(CPU)
    assert failures(narrow) == []
    assert sum(check.dtype == "float32" for check in narrow) > 30
    assert max(check.error for check in narrow if check.dtype == "float32" and not check.wrong) > 1e-9


@pytest.mark.parametrize("error", [math.nan, math.inf, 1e-11])
def test_a_large_or_missing_error_fails(error: float) -> None:
    assert not Check("N1 x", error, 1e-12).passed
    assert "FAIL" in str(Check("N1 x", error, 1e-12))
    assert not Check("N1 x (wrong)", math.nan, 1e-12, wrong=True).passed
    assert Check("N1 x (wrong)", 1e-11, 1e-12, wrong=True).passed
    assert Check("N1 x", 0.0, EXACT).passed
    assert not Check("N1 x (wrong)", 0.0, EXACT, wrong=True).passed


def test_errors_are_measured_as_they_should_be() -> None:
    assert measure.error([1, 2.5], np.array([1.0, 2.0])) == 0.5
    assert measure.error(torch.tensor([1.0]), [3]) == 2
    assert measure.error([[1.0, 2.0]], [1.0, 2.0]) == math.inf  # never broadcast
    assert math.isnan(measure.error([math.nan, 5], [0, 0]))
    assert math.isnan(measure.worst([1.0, math.nan, 2.0]))
    assert measure.record_error({"a": [1]}, {"b": [1]}) == math.inf
    assert measure.record_error({"a": [1], "b": [3]}, {"a": [1], "b": [1]}) == 2
    assert measure.let_through(float, [("1",), ("x",), ("2",)]) == 2


def test_finite_differences_find_a_gradient_and_its_absence() -> None:
    at = {"a": np.array([1.0, 2.0]), "b": np.array([[3.0]])}

    def loss(at: measure.Arrays) -> float:
        return float((at["a"] ** 3).sum() + at["b"].sum() * at["a"][0])

    right = {"a": np.array([3.0 + 3.0, 12.0]), "b": np.array([[1.0]])}
    assert measure.slope_error(loss, at, right) < measure.SLOPE
    assert measure.slope_error(loss, at, {**right, "b": np.array([[1.1]])}) > 1e-3


def test_a_mechanism_that_raises_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def k9_broken(place: Place) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(verify, "MECHANISMS", [k9_broken, verify_parts.p5_same_token])
    got = verify.run(CPU)
    assert failures(got) == ["K9 broken raised RuntimeError: no such kernel"]
    assert len(got) == 4
    assert json.loads(verify.to_json(got, CPU))["checks"][0]["error"] is None


def test_torch_is_left_as_it_was() -> None:
    before, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    seen = []
    try:
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(2)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        with pytest.MonkeyPatch.context() as patch:
            probe = lambda place: iter([seen.append(torch.get_float32_matmul_precision())] * 0)  # noqa: E731
            patch.setattr(verify, "MECHANISMS", [probe, verify_attention.s5_dropped_weights])
            verify.run(CPU)
        assert seen == ["highest"]
        assert torch.equal(torch.rand(3), expected)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_num_threads() == 2
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_num_threads(threads)


# ---------------------------------------------------------------- mistakes

# the fact whose check must fail, the module, what stands there, what a mistake would put there
MISTAKES = [
    ("N1", "array", "np.sqrt(var + eps)", "(np.sqrt(var) + eps)"),
    (
        "N1",
        "array",
        "mean(axis=-1, keepdims=True)  # [..., 1], denominator C",
        "sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)",
    ),
    ("N1", "scalar", "for value in x) / C", "for value in x) / (C - 1)"),
    ("N2", "array", "eps: float = 1e-5", "eps: float = 1e-6"),
    ("N2", "scalar", "eps: float = 1e-5", "eps: float = 1e-6"),
    ("N2", "model", "eps: float = 1e-5", "eps: float = 1e-6"),
    (
        "N3",
        "array",
        "    mu = x.mean(axis=-1, keepdims=True)  # [..., 1]",
        "    mu = x.mean(axis=-2 if x.ndim == 3 else -1, keepdims=True)",
    ),
    ("N6", "model", "torch.zeros(n_embd)) if bias else None", "torch.zeros(n_embd))"),
    ("N7", "array", "(d_hat - through_mean - through_var)", "(d_hat - through_mean)"),
    ("N7", "array", "(d_hat - through_mean - through_var)", "d_hat"),
    ("N7", "array", "(dy * x_hat).sum", "(dy * x).sum"),
    ("P1", "array", "causal_mask(x.shape[-2]) if causal else None", "causal_mask(x.shape[-2])"),
    ("P1", "scalar", "attention(q, k, v, causal)", "attention(q, k, v)"),
    ("P1", "model", "y = attend(q, k, v, mask,", "y = attend(q, k, v, None,"),
    ("P2", "array", "np.where(mask, scores", "np.where(mask.swapaxes(-2, -1), scores"),
    ("P2", "model", "mask = mask | ~readable", "mask = torch.ones_like(mask).tril() | ~readable"),
    ("P3", "example", "X = [[1.0, 0.0], [0.0, 2.0]", "X = [[1.0, 0.0], [0.0, 1.0]"),
    ("P3", "model", "self.wte(ids) + self.wpe(", "self.wte(ids) + 2 * self.wpe("),
    (
        "P3",
        "model",
        "self.wte(ids) + self.wpe(",
        "self.wte(ids) + self.wpe.weight.roll(1, 0)[: ids.shape[1]] + 0 * self.wpe(",
    ),
    ("P4", "model", "most >= V", "most > V"),
    ("P4", "model", "least < low or", "least < low - 1 or"),
    ("P4", "model", "if not 1 <= shape[1] <= T_max", "if not 0 <= shape[1] <= T_max"),
    ("P4", "model", "if not 1 <= shape[1] <= T_max", "if not 1 <= shape[1] < T_max"),
    ("P5", "model", "self.wte(ids) + self.wpe(", "self.wte(ids) + 0 * self.wpe("),
    ("R1", "array", "residual1 = residual(x, attended)", "residual1 = residual(norm1, attended)"),
    ("R1", "scalar", "residual1 = residual(x, attended)", "residual1 = residual(norm1, attended)"),
    ("R1", "model", "return x + update", "return update"),
    ("R2", "array", '    _shape("update", update, x.shape, "exactly the shape of x")\n', ""),
    ("R2", "model", "if x.shape != update.shape:", "if x.shape[-1] != update.shape[-1]:"),
    ("R3", "model", "return x + update", "return x.detach() + update"),
    ("R4", "model", "if x.shape != update.shape:", "if x.shape[:-1] != update.shape[:-1]:"),
    (
        "R4",
        "array",
        '_shape("update", update, x.shape, "',
        '_shape("update", update[..., :1], x[..., :1].shape, "',
    ),
    ("F1", "array", "np.maximum(x, 0)", "np.abs(x)"),
    ("F1", "scalar", "return x if x > 0 else 0.0", "return x"),
    ("F2", "array", "linear(hidden, w2, b2), hidden", "linear(hidden, w2), hidden"),
    ("F4", "array", "0.044715", "0.0447"),
    ("F4", "model", '"gelu": F.gelu,', '"gelu": lambda x: F.gelu(x, approximate="tanh"),'),
    ("A1", "array", "    q, k, v = (split_heads", "    k, q, v = (split_heads"),
    ("A1", "model", "q, k, v = self.c_attn(x)", "k, q, v = self.c_attn(x)"),
    ("A1", "array", "if n_head < 1 or C % n_head != 0:", "if C % n_head != 0:"),
    ("A1", "scalar", "if n_head < 1 or C % n_head != 0:", "if n_head < 1:"),
    ("A1", "model", "if self.n_embd % self.n_head != 0:", "if self.n_embd < self.n_head:"),
    ("A2", "array", "np.exp(scores - top)", "np.exp(scores)"),
    ("A2", "scalar", "math.exp(score - top)", "math.exp(score)"),
    ("A2", "scalar", "/ math.sqrt(d)", "/ d"),
    (
        "A2",
        "array",
        "total = powers.sum(axis=-1, keepdims=True)",
        "total = powers.sum(axis=-2, keepdims=True)",
    ),
    ("A2", "model", ".softmax(dim=-1)", ".softmax(dim=-2)"),
    (
        "A2",
        "model",
        ".softmax(dim=-1)",
        ".exp() / scores.masked_fill(~mask, -math.inf).exp().sum(-1, keepdim=True)",
    ),
    (
        "A3",
        "array",
        "/ math.sqrt(q.shape[-1])",
        "/ math.sqrt(q.shape[-1] * (q.shape[-3] if q.ndim > 2 else 1))",
    ),
    ("A3", "model", "/ math.sqrt(q.shape[-1])", "/ math.sqrt(q.shape[-1] * q.shape[1])"),
    ("A3", "model", ".softmax(dim=-1)", ".softmax(dim=-1).detach()"),
    ("A4", "array", "return weights @ v, weights", "return weights @ v, weights.swapaxes(-2, -1)"),
    ("A4", "model", "self.c_attn = nn.Linear(C, 3 * C", "self.c_attn = nn.Linear(C, 4 * C"),
    (
        "A5",
        "array",
        "n_head, C // n_head).swapaxes(-3, -2)",
        "C // n_head, n_head).swapaxes(-3, -2).swapaxes(-2, -1)",
    ),
    (
        "A5",
        "array",
        "    x = x.swapaxes(-3, -2)  # [..., T, H, d]\n"
        "    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])",
        "    return x.reshape(*x.shape[:-3], x.shape[-2], -1)",
    ),
    ("A6", "array", "np.tri(n_query, n_key, n_key - n_query", "np.tri(n_query, n_key, 0"),
    ("A6", "model", "tril(T_k - T_q)", "tril()"),
    ("A6", "model", "y.masked_fill(~readable, 0.0)", "y"),
    ("A6", "model", "mask = mask | ~readable", "mask = mask"),
    ("A6", "array", "powers / np.where(total == 0, 1, total)", "powers"),
    ("A6", "array", "np.where(mask, scores, -np.inf)", "(scores - 1e9 * ~mask)"),
    ("A6", "model", "scores.masked_fill(~mask, -math.inf)", "(scores - 1e9 * (~mask).to(scores.dtype))"),
    ("A7", "model", "persistent=False", "persistent=True"),
    ("A7", "model", 'self.register_buffer("mask", triangle, persistent=False)', "self.mask = triangle"),
    (
        "A7",
        "model",
        "triangle = torch.ones(T_max, T_max, dtype=torch.bool)",
        "triangle = torch.ones(T_max, T_max)",
    ),
    ("A8", "model", ".tril().view", ".tril(1).view"),
    ("A8", "model", "is_causal=T_q == T_k", "is_causal=False"),
    (
        "A8",
        "model",
        "module.mask[:, :, :block_size, :block_size]",
        "module.mask[:, :, -block_size:, :block_size]",
    ),
    ("A8", "model", "logits = self.lm_head(x)", "logits = self.lm_head(x - x.mean(1, keepdim=True))"),
    ("A9", "model", "scores.masked_fill(~mask, -math.inf)", "scores"),
    ("S1", "model", "tril(T_k - T_q)", "tril()"),
    ("S1", "model", "y.masked_fill(~readable, 0.0)", "y"),
    ("S2", "model", "self.dropout if self.training else 0.0", "self.dropout"),
    (
        "S2",
        "model",
        "F.dropout(self.c_proj(y), self.dropout, self.training)",
        "F.dropout(self.c_proj(y), self.dropout)",
    ),
    ("S3", "model", "/ math.sqrt(q.shape[-1])", "/ math.sqrt(q.shape[-1] * q.shape[1])"),
    (
        "S3",
        "model",
        "F.dropout(attention_weights(q, k, mask), dropout_p)",
        "attention_weights(q, k, mask).detach()",
    ),
    (
        "S4",
        "model",
        'self.register_buffer("mask", triangle, persistent=False)',
        'self.flash or self.register_buffer("mask", triangle, persistent=False)',
    ),
    (
        "S4",
        "model",
        "module.mask[:, :, :block_size, :block_size]",
        "module.mask[:, :, -block_size:, :block_size]",
    ),
    (
        "S5",
        "model",
        "attention_weights(q, k, mask), dropout_p)",
        "attention_weights(q, k, mask), dropout_p / 2)",
    ),
    ("S5", "model", "dropout_p=dropout_p", "dropout_p=0.0"),
    ("S6", "array", "/ math.sqrt(q.shape[-1])", "/ q.shape[-1]"),
    ("S6", "model", "is_causal=T_q == T_k", "is_causal=False"),
    ("K2", "array", "np.tri(n_query, n_key, n_key - n_query", "np.tri(n_query, n_key, n_key - n_query + 1"),
    ("K2", "scalar", "visible = j <= i or", "visible = j <= i + 1 or"),
    ("K2", "model", "y.transpose(1, 2).reshape(B, T, C)", "y.reshape(B, T, C)"),
    ("K2", "array", "residual(residual1, ffn)", "residual(x, ffn)"),
    ("K2", "example", '"w_o": [[1.0, 1.0], [1.0, -1.0]]', '"w_o": [[1.0, 1.0], [-1.0, 1.0]]'),
    (
        "K4",
        "array",
        'layer_norm(residual1, weights["gamma2"], weights["beta2"], eps)',
        'layer_norm(residual1, weights["gamma1"], weights["beta1"], eps)',
    ),
    ("K4", "model", "residual(x, self.mlp(self.ln_2(x)))", "residual(x, self.mlp(self.ln_1(x)))"),
    ("K3", "model", 'tap(self.mlp.c_proj, "hidden", None)', 'tap(self.mlp.c_proj, None, "hidden")'),
    (
        "O1",
        "model",
        "return self.ln_2(residual(x, self.mlp(x)))",
        "return residual(x, self.mlp(self.ln_2(x)))",
    ),
    ("O1", "model", "x = self.ln_1(residual(x, self.attn(x", "x = (residual(x, self.attn(self.ln_1(x)"),
    (
        "O2",
        "model",
        "self.ln_2 = LayerNorm(config.n_embd, config.bias",
        'self.ln_2 = LayerNorm(config.n_embd, config.bias and config.norm_order == "pre"',
    ),
    ("O2", "model", '"residual1" if pre else "residual2"', '"residual1"'),
    ("O2", "model", "self.norm_order = config.norm_order", 'self.norm_order = "pre"'),
    ("O3", "model", "= self.ln_f(x", "= (x"),
    ("O3", "model", "= self.ln_f(x", "= x + self.ln_f(x"),
    ("O3", "model", 'norm_order: str = "pre"', 'norm_order: str = "post"'),
    ("O4", "array", "np.where(total == 0, 1, total)", "np.where(total == 0, 1, total[..., :1, :])"),
    ("O4", "model", "mask = mask | ~readable", "mask = mask.tril(T_k - T_q) | ~readable"),
    ("M1", "model", "x = block(x,", "x = self.h[0](x,"),
    ("M1", "model", "ignore_index=-1)", "ignore_index=9)"),
    ("M1", "model", "targets.flatten()", "ids.flatten()"),
    ("M2", "model", "self.wpe = nn.Embedding(T_max, C)", "self.wpe = nn.Embedding(T_max + 1, C)"),
    ("M3", "model", "self.lm_head.weight = self.wte.weight", "pass"),
    ("M3", "model", "logits = self.lm_head(x)", "logits = x @ self.lm_head.weight.detach().T"),
    ("M4", "model", "nn.init.normal_(module.weight, std=0.02)", "nn.init.normal_(module.weight, std=0.2)"),
    ("M4", "model", "0.02 / math.sqrt(2 * config.n_layer)", "0.02 / math.sqrt(config.n_layer)"),
    ("M4", "model", "self.apply(self._init)", "pass"),
    ("M5", "gpt2", "name: tensor.T if _is_matrix(name) else tensor", "name: tensor"),
    ("M5", "gpt2", r"(attn|mlp)\.c_\w+\.weight", r"(attn|mlp)\.c_[af]\w+\.weight"),
    ("M5", "checkpoint", 'activation: str = "gelu_tanh"', 'activation: str = "gelu"'),
    ("T1", "data", "both[:, 1:]", "both[:, :-1]"),
    ("T1", "data", "return len(tokens) - block_size", "return len(tokens) - block_size - 1"),
    ("T1", "data", "starts[:, None] + np.arange", "starts[:, None] + 1 + np.arange"),
    ("T2", "train", "if p.ndim < 2", "if p.ndim < 1"),
    ("T2", "train", '"weight_decay": 0.0', '"weight_decay": weight_decay'),
    ("T2", "train", "betas, fused=fused", "fused=fused"),
    ("T2", "train", "torch.optim.AdamW([", "torch.optim.Adam(["),
    ("T2", "train", 'p.device.type == "cuda"', 'p.device.type in ("cpu", "cuda")'),
    ("T4", "train", "(step + 1) / config.warmup_steps", "step / config.warmup_steps"),
    ("T4", "train", "math.cos(math.pi * done)", "math.cos(2 * math.pi * done)"),
    ("T4", "train", "min(1.0, (step", "max(0.0, (step"),
    ("T5", "train", 'self.optimizer.load_state_dict(state["optimizer"])', "pass"),
    ("T5", "train", 'self.batches.bit_generator.state = state["batches"]', "pass"),
    ("T5", "train", '_set_random_state(self.device, state["dropout"][self.world.rank])', "pass"),
    ("T6", "processes", "self.rank * B, (self.rank + 1) * B", "0, B"),
    ("G1", "sample", "(below / temperature)", "(below * temperature)"),
    ("G1", "sample", "stable=True", "stable=True).flip(-1).sort(-1, descending=True"),
    ("G1", "sample", "before >= top_p * ordered.sum(-1, keepdim=True)", "before >= top_p"),
    ("G1", "sample", "before = ordered.cumsum(-1) - ordered", "before = ordered.cumsum(-1)"),
    ("G1", "sample", "ordered[:, kept:] = 0", "ordered[:, kept + 1 :] = 0"),
    ("G1", "sample", "return logits.argmax(-1, keepdim=True)", "return logits.argmin(-1, keepdim=True)"),
    ("G1", "sample", "return weights / weights.sum(-1, keepdim=True)", "return weights"),
    ("G2", "sample", "right=True", "right=False) * 0 + torch.searchsorted(ends, number**2, right=True"),
    ("G2", "sample", "torch.Generator().manual_seed(seed)", "torch.Generator().manual_seed(0)"),
    ("G3", "sample", "kept = store if length <= config.block_size else None", "kept = store"),
    ("G3", "sample", "window = window[:, kept.length :]", "window = window[:, kept.length - 1 :]"),
    ("G3", "cache", "self.v[:, :, start:end] = v", "self.v[:, :, start:end] = k"),
    ("G3", "model", "torch.arange(past, past + ids.shape[1]", "torch.arange(0, ids.shape[1]"),
    ("G3", "model", "T_q in (1, T_k)", "T_q <= T_k"),
    ("G4", "cache", "for buffer in (layer.k, layer.v)", "for buffer in (layer.k,)"),
    ("C1", "model", "self.mlp = MLP(config)", "self.mlp = nn.Sequential(MLP(config), MLP(config))"),
    ("C2", "model", "return x + update", "return (x + update).exp().log()"),
    (
        "L1",
        "modern",
        "F.rms_norm(x, self.weight.shape, self.weight, self.eps)",
        "F.layer_norm(x, self.weight.shape, self.weight, None, self.eps)",
    ),
    ("L1", "modern", "self.weight, self.eps)", "self.weight)"),
    ("L2", "modern", "a * sin + b * cos], dim=-1)\n    if", "b * cos - a * sin], dim=-1)\n    if"),
    ("L2", "modern", "base ** (-pairs / d)", "base ** (-pairs / (d - 2))"),
    ("L3", "modern", "view(d // 2, 2).T", "view(2, d // 2).T"),
    ("L3", "modern", 'if pairing == "half":', 'if pairing != "half":'),
    ("L4", "modern", "F.silu(self.w_gate(x)) * self.w_up(x)", "F.silu(self.w_up(x)) * self.w_gate(x)"),
    ("L4", "modern", "F.silu(", "F.gelu("),
    (
        "L5",
        "modern",
        "x.repeat_interleave(n_head // x.shape[1], dim=1)",
        "x.repeat(1, n_head // x.shape[1], 1, 1)",
    ),
    ("L5", "modern", "k = rotate(k, positions, self.rope_base, self.pairing)", "pass"),
    ("L6", "modern", "self.project(x, 0 if cache is None else cache.length)", "self.project(x)"),
    ("L6", "modern", "x = self.norm_f(x[:, -1:] if last else x)", "pass"),
    ("L6", "modern", "self.attn(self.norm_1(x), cache)", "self.attn(x, cache)"),
    ("L6", "modern", "c.n_kv_head * c.d", "c.n_head * c.d"),
    ("L6", "modern", "n_hidden: int = 1536", "n_hidden: int = 2304"),
]


@pytest.mark.parametrize(
    ("fact", "module", "right", "mistake"), MISTAKES, ids=[f"{f} {m}: {b[:50]}" for f, m, _, b in MISTAKES]
)
def test_a_mistake_is_caught(
    monkeypatch: pytest.MonkeyPatch, fact: str, module: str, right: str, mistake: str
) -> None:
    original = importlib.import_module(f"minigpt.{module}")
    source = Path(original.__file__).read_text(encoding="utf-8")
    tokens = map(re.escape, re.findall(r"\w+|\S", right))  # however the formatter broke the line
    altered_source, count = re.subn(r",?\s*".join(tokens), lambda _: mistake.strip(), source)
    assert count, "the fragment to replace is gone"
    altered = types.ModuleType(original.__name__)
    monkeypatch.setitem(sys.modules, original.__name__, altered)  # where dataclasses look it up
    exec(compile(altered_source, original.__file__, "exec"), altered.__dict__)
    for part in (measure, checkpoint, *verify.PARTS):
        monkeypatch.setattr(part, module, altered, raising=False)
    tried = [
        mechanism for mechanism in verify.MECHANISMS if mechanism.__name__.startswith(f"{fact.lower()}_")
    ]
    monkeypatch.setattr(verify, "MECHANISMS", tried)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # some mistakes divide by zero
        assert failures(verify.run(CPU)) != []


def test_a_leak_through_norms_is_what_n3_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a LayerNorm over C in its place nothing leaks, and the line that must see a leak fails."""
    monkeypatch.setattr(verify_parts, "OverTime", lambda: PLACE.norm(np.ones(8), np.zeros(8)))
    leaks = list(verify_parts.n3_whole_model(PLACE))
    assert [check.error for check in leaks] == [0.0, 0.0]
    assert failures(leaks) == [check.name for check in leaks]


# ---------------------------------------------------------------- the command


def no_work(where: torch.device) -> list[Check]:
    raise AssertionError("the work started")


def test_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    assert verify.main(["--device", "cpu", "--json", str(path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
    record = json.loads(path.read_text(encoding="utf-8"))
    assert set(record) == {"checks", "device", "versions", "stages"}
    assert record["device"] == "cpu"
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["numpy"] == np.__version__
    assert all(set(row) == {"name", "error", "bound", "passed", "dtype"} for row in record["checks"])
    assert all(row["passed"] is True and isinstance(row["error"], int | float) for row in record["checks"])
    assert list(record["stages"]) == STAGES
    printed = [[1.999980, 2.999940], [0.999912, 1.476742], [2.999964, 3.746396]]
    np.testing.assert_allclose(record["stages"]["output"], printed, rtol=0, atol=5e-7)
    assert np.shape(record["stages"]["hidden"]) == (3, 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(record["checks"]) + 1
    for line, row in zip(lines, record["checks"], strict=False):
        assert line.startswith("ok ") and row["name"] in line and row["dtype"] in line
        assert f"{row['error']:.1e}" in line and f"{row['bound']:.1e}" in line
    assert lines[-1] == f"{len(record['checks'])} of {len(record['checks'])} checks passed on cpu"


@pytest.mark.parametrize("error", [2.0, math.nan])
def test_a_failed_check_makes_exit_code_1_and_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: float
) -> None:
    monkeypatch.setattr(
        verify, "MECHANISMS", [lambda place: [Check("N1 x", error, 1.0), Check("N1 y", 1.0, 1.0)]]
    )
    path = tmp_path / "record.json"
    assert verify.main(["--device", "cpu", "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL  N1 x") and "1 of 2 checks passed on cpu" in out
    rows = json.loads(path.read_text(encoding="utf-8"))["checks"]
    assert [row["passed"] for row in rows] == [False, True]
    assert rows[0]["error"] == (None if math.isnan(error) else error)


def test_a_device_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    monkeypatch.setattr(verify, "run", no_work)
    for name in ("cuda", "mps", "abacus"):
        with pytest.raises(SystemExit) as stopped:
            verify.main(["--device", name])
        assert stopped.value.code == 2
        assert f"device: got '{name}', this machine offers cpu" in capsys.readouterr().err


def in_no_folder(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "missing" / "x.json", "No such file or directory"


def a_folder(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path, "which is not a file"


def below_a_file(tmp_path: Path) -> tuple[Path, str]:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "x.json", "where no file can be made"


def a_device_file(tmp_path: Path) -> tuple[Path, str]:
    return Path("/dev/null"), "which is not a file"


def too_long(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / ("x" * 300), "File name too long"


def read_only_folder(tmp_path: Path) -> tuple[Path, str]:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs a file system that takes no new files even from root")
    return Path("/proc/x.json"), "where no file can be made"


@pytest.mark.parametrize(
    "case", [in_no_folder, a_folder, below_a_file, a_device_file, too_long, read_only_folder]
)
def test_a_record_that_cannot_be_written_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: Callable[[Path], tuple[Path, str]],
) -> None:
    monkeypatch.setattr(verify, "run", no_work)
    path, reason = case(tmp_path)
    left = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stopped:
        verify.main(["--device", "cpu", "--json", str(path)])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert f"--json: got {str(path)!r}" in message and reason in message
    assert "expected a file in a folder that takes new files" in message
    assert sorted(tmp_path.iterdir()) == left


def test_a_write_protected_record_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("kept")
    monkeypatch.setattr(verify.os, "access", lambda where, mode: False)  # root may write to any file
    with pytest.raises(ValueError, match=r"--json: got .*record\.json', which is write-protected"):
        verify.check_writable(path)
    assert path.read_text() == "kept"


def test_a_record_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verify, "run", lambda where: [Check("N1 x", 0.0)])
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        verify.main(["--device", "cpu", "--json", str(path)])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_bad_arguments_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--devise", "cpu"], ["cpu"], ["--json"], ["--json", ""]):
        with pytest.raises(SystemExit) as stopped:
            verify.main(arguments)
        assert stopped.value.code == 2
