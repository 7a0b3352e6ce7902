"""The block computed by torch's own encoder layer, which shares no code with minigpt."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import settings
from torch import nn

torch.set_num_threads(1)  # the tensors are small, and tests run side by side
FEW = settings(max_examples=25, deadline=None, derandomize=True)


def weights(seed: int, C: int, F: int, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    """Random weights under the names of `minigpt.array.block`."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        **{name: (C,) for name in ("gamma1", "beta1", "b_o", "gamma2", "beta2", "b2")},
        **{"w_qkv": (C, 3 * C), "b_qkv": (3 * C,), "w_o": (C, C), "w1": (C, F), "b1": (F,), "w2": (F, C)},
    }
    return {name: rng.normal(0, 0.6, size=shape).astype(dtype) for name, shape in shapes.items()}


def block(
    x: np.ndarray, w: dict[str, np.ndarray], n_head: int, activation: str = "relu", pre: bool = True
) -> np.ndarray:
    """x [T, C] or [B, T, C] through nn.TransformerEncoderLayer under a causal mask, in float64."""
    functions = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh")}
    layer = nn.TransformerEncoderLayer(
        w["w1"].shape[0],
        n_head,
        w["w1"].shape[1],
        dropout=0.0,
        activation=functions[activation],
        batch_first=True,
        norm_first=pre,
        dtype=torch.float64,
    )
    names = {
        "self_attn.in_proj_weight": "w_qkv",
        "self_attn.in_proj_bias": "b_qkv",
        "self_attn.out_proj.weight": "w_o",
        "self_attn.out_proj.bias": "b_o",
        "linear1.weight": "w1",
        "linear1.bias": "b1",
        "linear2.weight": "w2",
        "linear2.bias": "b2",
        "norm1.weight": "gamma1",
        "norm1.bias": "beta1",
        "norm2.weight": "gamma2",
        "norm2.bias": "beta2",
    }
    layer.load_state_dict({theirs: torch.tensor(w[ours].T) for theirs, ours in names.items()})
    hidden = nn.Transformer.generate_square_subsequent_mask(x.shape[-2], dtype=torch.float64)
    return layer(torch.tensor(x, dtype=torch.float64), src_mask=hidden).detach().numpy()
