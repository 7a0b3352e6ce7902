"""The transformer block and Mini GPT in torch: one file, to be read from top to bottom.

Axes: B sequences, T positions, C = n_embd, H = n_head heads of width d = C/H,
F = n_hidden, V = vocab_size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minigpt.cache import KVCache, LayerCache

Record = dict[str, Tensor]  # the stages of a block, by name

ACTIVATIONS = {
    "gelu": F.gelu,
    # what GPT-2's weights were trained with
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and choices of a model; the defaults: the smallest GPT-2, exact GELU."""

    block_size: int = 1024  # T_max, rows of the position table
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_hidden: int | None = None  # None means 4 * n_embd
    dropout: float = 0.0
    bias: bool = True  # False: no bias in any Linear, no beta in any LayerNorm
    eps: float = 1e-5
    activation: str = "gelu"
    norm_order: str = "pre"
    flash: bool = True  # True: torch's fused attention; False: the steps written out

    def __post_init__(self) -> None:
        sizes = ["block_size", "vocab_size", "n_layer", "n_head", "n_embd"]
        for name in sizes + ["n_hidden"] * (self.n_hidden is not None):
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise ValueError(
                    f"{name}: got {size!r}, expected a whole number of at least 1"
                )
        if self.n_embd % self.n_head != 0:
            raise ValueError(
                f"n_head: got {self.n_head}, "
                f"which does not divide n_embd = {self.n_embd}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, expected 0 <= dropout < 1")
        if not 0 < self.eps < math.inf:
            raise ValueError(f"eps: got {self.eps}, expected a finite number above 0")
        known = {
            "activation": (ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"),
            "norm_order": (("pre", "post"), "'pre' or 'post'"),
        }
        for name, (values, words) in known.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, expected {words}"
                )


class LayerNorm(nn.Module):
    """Normalise the last axis: [..., C] -> [..., C] (Ba, Kiros and Hinton 2016).

    F.layer_norm does the arithmetic. The class exists so that bias=False means that
    there is no beta.
    """

    def __init__(self, n_embd: int, bias: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))  # gamma
        self.bias = nn.Parameter(torch.zeros(n_embd)) if bias else None  # beta
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) under a mask.

    q [..., T_q, d], k [..., T_k, d] -> [..., T_q, T_k].

    mask: bool, [..., T_q, T_k], True where a query may read; each query must be allowed
    at least one key.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [..., T_q, T_k]
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    flash: bool = True,
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1).

    q [B, H, T_q, d], k and v [B, H, T_k, d] -> [B, H, T_q, d].

    mask: bool, broadcast to [B, H, T_q, T_k], True where a query may read. None means
    causal: the queries are the last T_q of T_k positions, and each reads up to its own.
    A query that may read nothing gives zeros.
    """
    _check_attend(q, k, v, mask)
    T_q, T_k = q.shape[-2], k.shape[-2]
    fused = F.scaled_dot_product_attention
    if mask is None and flash and T_q in (1, T_k):
        # elsewhere is_causal would let query i see keys 0 to i; one query sees all
        return fused(q, k, v, is_causal=T_q == T_k, dropout_p=dropout_p)
    if mask is None:
        mask = torch.ones(T_q, T_k, dtype=torch.bool, device=q.device).tril(T_k - T_q)
    readable = mask.any(dim=-1, keepdim=True)  # [..., T_q, 1]
    # A row of nothing would be 0/0: let it read all, and drop the result below.
    mask = mask | ~readable
    if flash:
        y = fused(q, k, v, attn_mask=mask, dropout_p=dropout_p)
    else:
        y = F.dropout(attention_weights(q, k, mask), dropout_p) @ v
    return y.masked_fill(~readable, 0.0)


def _check_attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    same_width = q.shape[-1] == k.shape[-1]
    if not same_width or q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"k: got shapes q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "q and k must have one width, k and v one number of positions, "
            "all three the same leading axes"
        )
    if mask is None:
        if q.shape[-2] > k.shape[-2]:
            raise ValueError(
                f"q: got {q.shape[-2]} queries for {k.shape[-2]} keys; "
                "queries are the last of the keys"
            )
        return
    if mask.dtype is not torch.bool:
        raise TypeError(
            f"mask: got dtype {mask.dtype}, "
            "expected torch.bool, True where a query may read"
        )
    shape = (*q.shape[:-1], k.shape[-2])
    lead = zip(reversed(mask.shape[:-2]), reversed(shape[:-2]), strict=False)
    fits = mask.ndim <= len(shape) and mask.shape[-2:] == shape[-2:]
    if not fits or any(got not in (1, want) for got, want in lead):
        raise ValueError(
            f"mask: got shape {list(mask.shape)}, expected {list(shape)}, "
            "leading axes may be 1 or missing"
        )


class CausalSelfAttention(nn.Module):
    """H causal heads side by side and the output projection: [B, T, C] -> [B, T, C].

    With a cache, x holds the T positions after the P that are in the cache, and joins
    them there.
    """

    mask: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, T_max = config.n_embd, config.block_size
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.flash = config.flash
        self.c_attn = nn.Linear(C, 3 * C, bias=config.bias)  # Q, K and V in one product
        self.c_proj = nn.Linear(C, C, bias=config.bias)
        triangle = torch.ones(T_max, T_max, dtype=torch.bool)
        triangle = triangle.tril().view(1, 1, T_max, T_max)
        # A buffer moves with the device and is no parameter; not persistent: it is
        # absent from checkpoints.
        self.register_buffer("mask", triangle, persistent=False)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        B, T, C = x.shape
        T_k = T if cache is None else cache.length + T  # P + T
        if T_k > self.mask.shape[-1]:
            bound = f"at most block_size = {self.mask.shape[-1]}"
            raise ValueError(f"x: got T = {T_k} positions, expected {bound}")
        H, d = self.n_head, C // self.n_head
        q, k, v = self.c_attn(x).split(C, dim=2)  # three times [B, T, C]
        q = q.view(B, T, H, d).transpose(1, 2)  # [B, H, T, d]
        k = k.view(B, T, H, d).transpose(1, 2)  # [B, H, T, d]
        v = v.view(B, T, H, d).transpose(1, 2)  # [B, H, T, d]
        if cache is not None:
            k, v = cache.append(k, v)  # [B, H, P + T, d]: the earlier positions first
        # None: causal, by the kernel's own rule
        mask = None if self.flash else self.mask[:, :, T_k - T : T_k, :T_k]
        dropout = self.dropout if self.training else 0.0
        y = attend(q, k, v, mask, dropout, self.flash)  # [B, H, T, d]
        y = y.transpose(1, 2).reshape(B, T, C)  # heads side by side again
        return F.dropout(self.c_proj(y), self.dropout, self.training)


class MLP(nn.Module):
    """The position-wise feed-forward network: [B, T, C] -> [B, T, F] -> [B, T, C]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, F = config.n_embd, config.n_hidden or 4 * config.n_embd
        self.c_fc = nn.Linear(C, F, bias=config.bias)
        self.c_proj = nn.Linear(F, C, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.c_fc(x))  # [B, T, F]
        return F.dropout(self.c_proj(hidden), self.dropout, self.training)


def residual(x: Tensor, update: Tensor) -> Tensor:
    """x + update, for equal shapes only.

    A sum that broadcasts would hand one row's update to another.
    """
    if x.shape != update.shape:
        raise ValueError(
            f"update: got shape {list(update.shape)}, expected {list(x.shape)}, "
            "exactly the shape of x"
        )
    return x + update


class Block(nn.Module):
    """One transformer block, pre-norm or post-norm: [B, T, C] -> [B, T, C]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_order = config.norm_order
        self.ln_1 = LayerNorm(config.n_embd, config.bias, config.eps)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.bias, config.eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        if self.norm_order == "pre":
            x = residual(x, self.attn(self.ln_1(x), cache))
            return residual(x, self.mlp(self.ln_2(x)))
        x = self.ln_1(residual(x, self.attn(x, cache)))
        return self.ln_2(residual(x, self.mlp(x)))

    def stages(self, x: Tensor) -> Record:
        """Run the block on x [B, T, C] and keep each stage by its name, in order."""
        record: Record = {}

        def tap(
            module: nn.Module, given: str | None, made: str | None
        ) -> RemovableHandle:
            def hook(_: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
                both = ((given, inputs[0]), (made, result))
                record.update({name: value for name, value in both if name})

            return module.register_forward_hook(hook)

        pre = self.norm_order == "pre"
        taps = [
            tap(self.ln_1, None if pre else "residual1", "norm1"),
            tap(self.attn, None, "attention"),
            tap(
                self.ln_2, "residual1" if pre else "residual2", "norm2" if pre else None
            ),
            tap(self.mlp.c_proj, "hidden", None),
            tap(self.mlp, None, "ffn"),
        ]
        try:
            record["output"] = self(x)
        finally:
            for handle in taps:
                handle.remove()
        return record

    def load_arrays(self, weights: Mapping[str, Any]) -> Block:
        """Copy in the weights of `minigpt.array.block`; nn.Linear keeps [out, in]."""
        state = {}
        for theirs, ours in ARRAY_NAMES.items():
            # without the dtype, torch would make float32 of lists and drop digits
            value = torch.as_tensor(weights[ours], dtype=self.ln_1.weight.dtype)
            state[theirs] = value.T if value.ndim == 2 else value
        self.load_state_dict(state)
        return self


ARRAY_NAMES = {  # parameter of Block -> key of the weights in minigpt.array
    "ln_1.weight": "gamma1",
    "ln_1.bias": "beta1",
    "attn.c_attn.weight": "w_qkv",
    "attn.c_attn.bias": "b_qkv",
    "attn.c_proj.weight": "w_o",
    "attn.c_proj.bias": "b_o",
    "ln_2.weight": "gamma2",
    "ln_2.bias": "beta2",
    "mlp.c_fc.weight": "w1",
    "mlp.c_fc.bias": "b1",
    "mlp.c_proj.weight": "w2",
    "mlp.c_proj.bias": "b2",
}


def check_ids(
    ids: Tensor,
    targets: Tensor | None,
    T_max: int,
    V: int,
    past: int = 0,
    sampling: bool = False,
) -> None:
    """Refuse ids that are not [B, T] of 0 to V - 1, or do not fit behind `past` others.

    targets: of the same shape, -1 to V - 1, and none while sampling. TypeError or
    ValueError, by name.
    """
    for name, value, low in (("ids", ids, 0), ("targets", targets, -1)):
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name}: got {type(value).__name__}, "
                "expected a tensor [B, T] of torch.int64"
            )
        shape, kind = list(value.shape), value.dtype
        if len(shape) != 2 or shape[0] < 1 or kind is not torch.int64:
            expected = "[B, T] of torch.int64"
            raise TypeError(f"{name}: got shape {shape} of {kind}, expected {expected}")
        if not 1 <= shape[1] <= T_max:
            T, limit = shape[1], f"1 to block_size = {T_max}"
            raise ValueError(f"{name}: got T = {T} positions, expected {limit}")
        if torch.compiler.is_compiling():
            continue  # looking at the values would break the graph
        least, most = (int(bound) for bound in value.aminmax())
        if least < low or most >= V:
            bound = f"{low} to {V - 1}"
            raise ValueError(
                f"{name}: got values from {least} to {most}, expected {bound}"
            )
    if targets is not None and targets.shape != ids.shape:
        got, due = list(targets.shape), list(ids.shape)
        raise ValueError(f"targets: got shape {got}, expected {due}, the shape of ids")
    if past + ids.shape[1] > T_max:
        T, bound = ids.shape[1], f"{T_max} together at most"
        raise ValueError(
            f"ids: got T = {T} after {past} in the cache, expected {bound}"
        )
    if targets is not None and sampling:
        raise ValueError("targets: got some with cache or last, which are for sampling")


class MiniGPT(nn.Module):
    """The whole model: ids [B, T] -> logits [B, T, V]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        C, V, T_max = config.n_embd, config.vocab_size, config.block_size
        self.wte = nn.Embedding(V, C)  # one row for each token of the vocabulary
        self.wpe = nn.Embedding(T_max, C)  # one row for each position
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(C, config.bias, config.eps)
        self.lm_head = nn.Linear(C, V, bias=False)
        # tied: one parameter in two places (Press and Wolf 2017)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init)
        for name, parameter in self.named_parameters():
            # GPT-2: 2N branches add into the residual path
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.n_layer))
        for module in self.h.modules():
            # Shape [out, in] as ever, but [in, out] in memory, as GPT-2 has it: a CPU
            # multiplies the one row of a new token faster so, and many rows as fast.
            if isinstance(module, nn.Linear):
                module.weight.data = module.weight.data.T.contiguous().T

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        cache: KVCache | None = None,
        last: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """ids [B, T] -> logits [B, T, V]; with targets [B, T], their mean loss as well.

        The loss is the cross-entropy in nats. The target of position t is the id at
        t + 1 of the text; a target of -1 is not counted. With a cache (no targets
        then), ids are the positions after those in the cache. last: only the logits of
        the last position, [B, 1, V], all that sampling needs.
        """
        past, c = 0 if cache is None else cache.length, self.config
        sampling = cache is not None or last
        check_ids(ids, targets, c.block_size, c.vocab_size, past, sampling)
        positions = torch.arange(past, past + ids.shape[1], device=ids.device)
        x = self.wte(ids) + self.wpe(positions)  # [B, T, C] + [T, C]
        x = F.dropout(x, self.config.dropout, self.training)
        for i, block in enumerate(self.h):
            x = block(x, None if cache is None else cache.layers[i])
        x = self.ln_f(x[:, -1:] if last else x)
        logits = self.lm_head(x)  # [B, T, V], or [B, 1, V]
        if targets is None:
            return logits, None
        rows = logits.flatten(0, 1)  # [B * T, V]
        return logits, F.cross_entropy(rows, targets.flatten(), ignore_index=-1)

    def count_parameters(self) -> dict[str, int]:
        """How many numbers each kind of part learns. The tied head counts once, as wte."""
        parts = {"wte": 0, "wpe": 0, "attn": 0, "mlp": 0, "ln_": 0}
        for name, parameter in self.named_parameters():
            parts[next(part for part in parts if part in name)] += parameter.numel()
        return parts

    def crop(self, block_size: int) -> None:
        """Keep only the first block_size positions, in place."""
        if not 1 <= block_size <= self.config.block_size:
            bound = f"1 to {self.config.block_size}"
            raise ValueError(f"block_size: got {block_size}, expected {bound}")
        self.config = replace(self.config, block_size=block_size)
        self.wpe.weight = nn.Parameter(self.wpe.weight[:block_size].detach().clone())
        self.wpe.num_embeddings = block_size
        for module in self.modules():
            if isinstance(module, CausalSelfAttention):
                module.mask = module.mask[:, :, :block_size, :block_size]
