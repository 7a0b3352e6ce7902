"""The block after GPT-2, and a model of such blocks, in torch.

One file, to be read from top to bottom. Against `minigpt.model`, four parts are
exchanged: RMSNorm for LayerNorm, rotary positions for the table of positions, SwiGLU
for the feed-forward network with GELU, and fewer heads of keys and values than of
queries. There are no biases. The order stays pre-norm. SmolLM2 is built like this.

Axes: B sequences, T positions, C = n_embd, H = n_head query heads and G = n_kv_head
key-value heads, both of width d = C/H, F = n_hidden, V = vocab_size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.cache import KVCache, LayerCache
from minigpt.model import GPTConfig, attend, check_ids, residual

PAIRINGS = ("half", "interleaved")


@dataclass(frozen=True)
class ModernConfig:
    """The sizes and choices of a model; the defaults are SmolLM2-135M."""

    block_size: int = 8192  # the longest text; no parameter depends on it
    vocab_size: int = 49152
    n_layer: int = 30
    n_head: int = 9
    n_kv_head: int = 3
    n_embd: int = 576
    n_hidden: int = 1536
    rope_base: float = 100000.0
    eps: float = 1e-5
    pairing: str = "half"  # which columns of a head turn together, see `rotate`
    tied: bool = True  # False: the head has a matrix of its own
    flash: bool = True  # True: torch's fused attention; False: the steps written out

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "vocab_size",
            "n_layer",
            "n_head",
            "n_kv_head",
            "n_embd",
            "n_hidden",
        ):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"{name}: got {value!r}, expected a whole number of at least 1"
                )
        if self.n_embd % self.n_head != 0:
            raise ValueError(
                f"n_head: got {self.n_head}, "
                f"which does not divide n_embd = {self.n_embd}"
            )
        if self.n_head % self.n_kv_head != 0:
            raise ValueError(
                f"n_kv_head: got {self.n_kv_head}, "
                f"which does not divide n_head = {self.n_head}"
            )
        if self.d % 2 != 0:
            raise ValueError(
                f"n_head: got {self.n_head}, heads of width {self.d}; "
                "pairs need an even width"
            )
        for name, least in (("rope_base", 1), ("eps", 0)):
            if not least < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}, "
                    f"expected a finite number above {least}"
                )
        if self.pairing not in PAIRINGS:
            raise ValueError(
                f"pairing: got {self.pairing!r}, expected one of {', '.join(PAIRINGS)}"
            )

    @property
    def d(self) -> int:
        """The width of a head."""
        return self.n_embd // self.n_head


class RMSNorm(nn.Module):
    """Divide by the root mean square of the last axis: [..., C] -> [..., C].

    Zhang and Sennrich 2019, section 4. No mean is taken away and nothing is added. eps
    is inside the root, as in Llama; the paper writes none.
    """

    def __init__(self, n_embd: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))  # gamma
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(
    x: Tensor, positions: Tensor, base: float = 10000.0, pairing: str = "half"
) -> Tensor:
    """Turn pairs of columns by the position: x [..., T, d] -> [..., T, d].

    Pair i at position t turns by the angle t * base^(-2i/d) (Su et al. 2021, section
    3.2.2). positions: whole numbers [T].

    pairing: "interleaved" turns columns 2i and 2i+1 together, as the paper writes it;
    "half" turns columns i and i + d/2, as transformers does for Llama. They are one map
    but for the order of the columns, see `half_order`. Weights that were made for one
    are wrong with the other.
    """
    d = x.shape[-1]
    if d % 2 != 0 or positions.shape != x.shape[-2:-1]:
        raise ValueError(
            f"positions: got shape {list(positions.shape)} for x of shape "
            f"{list(x.shape)}; expected [T] for [..., T, d] with an even d"
        )
    pairs = torch.arange(0, d, 2, dtype=torch.float64)  # 0, 2, ..., d - 2
    rates = base ** (-pairs / d)  # [d/2], from 1 down
    # [T, d/2], in float64 on the CPU: in float32 a large angle would lose its digits
    angles = torch.outer(positions.cpu().double(), rates)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    if pairing == "half":
        a, b = x.chunk(2, dim=-1)  # [..., T, d/2] each
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    if pairing == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    raise ValueError(f"pairing: got {pairing!r}, expected one of {', '.join(PAIRINGS)}")


def half_order(d: int) -> Tensor:
    """The order that turns interleaved pairs into halves: 0, 2, ..., then 1, 3, ..."""
    return torch.arange(d).view(d // 2, 2).T.flatten()


def share(x: Tensor, n_head: int) -> Tensor:
    """Repeat each key-value head for its H/G query heads: [B, G, T, d] -> [B, H, T, d].

    Query head h reads key-value head h // (H/G) (Ainslie et al. 2023, section 2.2).
    """
    return x.repeat_interleave(n_head // x.shape[1], dim=1)


class GroupedQueryAttention(nn.Module):
    """H causal query heads over G key-value heads: [B, T, C] -> [B, T, C].

    G = H is multi-head attention, G = 1 multi-query attention. With a cache, x holds
    the T positions after the P in the cache, which keeps G heads of keys, already
    turned, and of values.
    """

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        C, H, G, d = config.n_embd, config.n_head, config.n_kv_head, config.d
        self.n_head, self.d, self.flash = H, d, config.flash
        self.rope_base, self.pairing = config.rope_base, config.pairing
        self.w_q = nn.Linear(C, H * d, bias=False)
        self.w_k = nn.Linear(C, G * d, bias=False)
        self.w_v = nn.Linear(C, G * d, bias=False)
        self.w_o = nn.Linear(H * d, C, bias=False)

    def project(self, x: Tensor, past: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, C], from position past -> q [B, H, T, d], k and v [B, G, T, d].

        Queries and keys are turned by their positions; values are not.
        """
        parts = []
        for matrix in (self.w_q, self.w_k, self.w_v):
            rows = matrix(x).unflatten(-1, (-1, self.d))  # [B, T, H or G, d]
            parts.append(rows.transpose(1, 2))  # [B, H or G, T, d]
        q, k, v = parts
        positions = torch.arange(past, past + x.shape[1])  # [T]
        q = rotate(q, positions, self.rope_base, self.pairing)
        k = rotate(k, positions, self.rope_base, self.pairing)
        return q, k, v

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        q, k, v = self.project(x, 0 if cache is None else cache.length)
        if cache is not None:
            k, v = cache.append(k, v)  # [B, G, P + T, d]: the earlier positions first
        k, v = share(k, self.n_head), share(v, self.n_head)  # [B, H, P + T, d]
        y = attend(q, k, v, flash=self.flash)  # [B, H, T, d]
        return self.w_o(y.transpose(1, 2).flatten(2))  # heads side by side again


class SwiGLU(nn.Module):
    """The feed-forward network with a gate: [B, T, C] -> [B, T, F] -> [B, T, C].

    Shazeer 2020, section 2. silu(x) = x / (1 + exp(-x)), which the paper calls Swish
    with beta = 1.
    """

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.w_gate = nn.Linear(config.n_embd, config.n_hidden, bias=False)
        self.w_up = nn.Linear(config.n_embd, config.n_hidden, bias=False)
        self.w_down = nn.Linear(config.n_hidden, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_down(F.silu(self.w_gate(x)) * self.w_up(x))


class ModernBlock(nn.Module):
    """One pre-norm block: [B, T, C] -> [B, T, C]."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.n_embd, config.eps)
        self.attn = GroupedQueryAttention(config)
        self.norm_2 = RMSNorm(config.n_embd, config.eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        x = residual(x, self.attn(self.norm_1(x), cache))
        return residual(x, self.mlp(self.norm_2(x)))

    def load_arrays(self, weights: Mapping[str, Any]) -> ModernBlock:
        """Copy in weights that multiply from the right; nn.Linear keeps [out, in].

        weights: gamma1, gamma2 [C], w_q, w_o [C, C], w_k, w_v [C, G d],
        w_gate, w_up [C, F], w_down [F, C].
        """
        names = {"norm_1.weight": "gamma1", "norm_2.weight": "gamma2"}
        state = {}
        for name, parameter in self.named_parameters():
            ours = names.get(name, name.split(".")[1])  # attn.w_q.weight: w_q
            value = torch.as_tensor(weights[ours], dtype=parameter.dtype)
            state[name] = value.T if value.ndim == 2 else value
        self.load_state_dict(state)
        return self


class ModernGPT(nn.Module):
    """The whole model: ids [B, T] -> logits [B, T, V]; no position joins the tokens."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(
            config.vocab_size, config.n_embd
        )  # one row for each token of the vocabulary
        self.h = nn.ModuleList(ModernBlock(config) for _ in range(config.n_layer))
        self.norm_f = RMSNorm(config.n_embd, config.eps)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if (
                parameter.ndim == 2
            ):  # as in Mini GPT: 2N branches add into the residual path
                branch = name.endswith(("w_o.weight", "w_down.weight"))
                nn.init.normal_(
                    parameter,
                    std=0.02 / math.sqrt(2 * config.n_layer) if branch else 0.02,
                )

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        cache: KVCache | None = None,
        last: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """ids [B, T] -> logits [B, T, V], and for targets [B, T] their mean loss.

        As `MiniGPT.forward`: a target of -1 is not counted; with a cache, ids are the
        positions after those in the cache; last: only the last logits, [B, 1, V].
        """
        past, c = 0 if cache is None else cache.length, self.config
        sampling = cache is not None or last
        check_ids(ids, targets, c.block_size, c.vocab_size, past, sampling)
        x = self.wte(ids)  # [B, T, C]
        for i, block in enumerate(self.h):
            x = block(x, None if cache is None else cache.layers[i])
        x = self.norm_f(x[:, -1:] if last else x)
        logits = self.lm_head(x)  # [B, T, V], or [B, 1, V]
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-1
        )

    def make_cache(self, batch_size: int = 1, length: int | None = None) -> KVCache:
        """An empty cache for texts of up to `length` tokens, block_size by default."""
        c, weight = self.config, self.wte.weight
        length = c.block_size if length is None else length
        if not 1 <= length <= c.block_size:
            raise ValueError(
                f"length: got {length}, expected 1 to block_size = {c.block_size}"
            )
        width = (
            c.n_kv_head * c.d
        )  # to a cache, a model with G heads of width d is one whose C is G d
        sizes = GPTConfig(
            block_size=length, n_layer=c.n_layer, n_head=c.n_kv_head, n_embd=width
        )
        return KVCache(sizes, batch_size, weight.device, weight.dtype)

    def count_parameters(self) -> dict[str, int]:
        """How many numbers each kind of part learns; a tied head is wte, not lm_head."""
        parts = {"wte": 0, "attn": 0, "mlp": 0, "norm_": 0, "lm_head": 0}
        for name, parameter in self.named_parameters():
            parts[next(part for part in parts if part in name)] += parameter.numel()
        return parts


def generate(
    model: ModernGPT, ids: Tensor, new_tokens: int, cache: bool = True
) -> Tensor:
    """Continue ids [B, T] by the likeliest token each time -> [B, T + new_tokens].

    ValueError if the text would grow past block_size: here the window does not slide.
    """
    if type(new_tokens) is not int or new_tokens < 0:
        raise ValueError(
            f"new_tokens: got {new_tokens!r}, expected a whole number of at least 0"
        )
    total = ids.shape[1] + new_tokens
    if total > model.config.block_size:
        raise ValueError(
            f"new_tokens: got {new_tokens} after {ids.shape[1]} tokens, "
            f"expected {model.config.block_size} together at most"
        )
    store = model.make_cache(len(ids), total) if cache else None
    with torch.no_grad():
        for _ in range(new_tokens):
            logits, _ = model(
                ids if store is None else ids[:, store.length :], cache=store, last=True
            )
            ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids
