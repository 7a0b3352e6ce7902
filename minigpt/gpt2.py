"""GPT-2's weights in the layout of Hugging Face's transformers, turned into that of Mini GPT.

The names are the same, since both follow the code of GPT-2. Two things differ: GPT-2 keeps its matrices as
[in, out] (transformers calls that Conv1D) where nn.Linear has [out, in], and a file may hold masks as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.model import GPTConfig

HEADS = {768: 12, 1024: 16, 1280: 20, 1600: 25}  # of the four published sizes, by width
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
FIXED = {  # settings of a config.json that change what the model computes, at the one value allowed
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def convert(
    weights: Mapping[str, Any], **settings: Any
) -> tuple[GPTConfig, dict[str, Tensor]]:
    """A GPT-2 state dict -> config and weights of a MiniGPT. settings: n_head (or None), eps, activation.

    ValueError, by name, for what makes it no GPT-2; whether names and shapes fit is left to `checkpoint`.
    """
    weights = _without_prefix(weights)
    sizes = _sizes(weights)
    C, T_max = sizes["n_embd"], sizes["block_size"]
    if settings["n_head"] is None:
        if C not in HEADS:
            raise ValueError(
                f"n_head: got None for width {C}; a state dict does not say how many heads there are, "
                f"and only the widths {', '.join(map(str, HEADS))} have a published number"
            )
        settings["n_head"] = HEADS[C]
    config = GPTConfig(**sizes, **settings)
    triangle, turned = torch.ones(1, 1, T_max, T_max, dtype=torch.bool).tril(), []
    for i in range(config.n_layer):
        # masked_bias is what older versions put in place of -inf
        weights.pop(f"h.{i}.attn.masked_bias", None)
        mask = weights.pop(f"h.{i}.attn.bias", None)
        if mask is not None and not torch.equal(mask.bool().cpu(), triangle):
            raise ValueError(
                f"h.{i}.attn.bias: not the causal mask {list(triangle.shape)}"
            )
        fused = weights.get(f"h.{i}.attn.c_attn.weight")
        if fused is not None and fused.shape == (3 * C, C):
            turned += [
                name
                for name in weights
                if name.startswith(f"h.{i}.") and _is_matrix(name)
            ]
    if turned:
        shapes = "\n  ".join(
            f"{name}: got {list(weights[name].shape)}" for name in turned
        )
        raise ValueError(
            f"weights: already transposed; expected [in, out], as c_attn [C, 3C]:\n  {shapes}"
        )
    return config, {
        name: tensor.T if _is_matrix(name) else tensor
        for name, tensor in weights.items()
    }


def _is_matrix(name: str) -> bool:
    """Whether this is one of the four matrices of a block."""
    return re.fullmatch(r"h\.\d+\.(attn|mlp)\.c_\w+\.weight", name) is not None


def _without_prefix(weights: Mapping[str, Any]) -> dict[str, Any]:
    bare: dict[str, Any] = {}
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: got {type(tensor).__name__}, expected a tensor")
        if (short := name.removeprefix("transformer.")) in bare:
            raise ValueError(
                f"{short}: there twice, with the prefix transformer. and without"
            )
        bare[short] = tensor
    return bare


def _sizes(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The sizes that the shapes of the tensors tell."""
    none = torch.empty(0)
    wte, wpe = weights.get("wte.weight", none), weights.get("wpe.weight", none)
    layers = [
        int(match[1]) for name in weights if (match := re.match(r"h\.(\d+)\.", name))
    ]
    if wte.ndim != 2 or wpe.ndim != 2 or wte.shape[1] != wpe.shape[1] or not layers:
        raise ValueError(
            "weights: no GPT-2: expected wte.weight [V, C], wpe.weight [T_max, C] and h.0 with its tensors, "
            f"got {', '.join(sorted(weights)[:4]) or 'nothing'}, ..."
        )
    # F is told by a bias, which has one axis, so that a transposed matrix cannot mislead
    F = weights.get("h.0.mlp.c_fc.bias", torch.empty(4 * wte.shape[1])).numel()
    sizes = {
        "vocab_size": wte.shape[0],
        "n_embd": wte.shape[1],
        "block_size": wpe.shape[0],
    }
    return {**sizes, "n_layer": max(layers) + 1, "n_hidden": F}


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict and the settings for `convert` from a folder with config.json and model.safetensors."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    for path in (config, weights):
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder}: has no {path.name}; expected config.json and model.safetensors"
            )
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as problem:
        raise ModuleNotFoundError(
            f"{weights}: needs the package safetensors: pip install safetensors"
        ) from problem
    found: dict[str, Any] = {
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        **FIXED,
    }
    try:
        found |= json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{config}: not a JSON object ({problem})") from problem
    allowed = {name: [value] for name, value in FIXED.items()} | {
        "activation_function": [*ACTIVATIONS]
    }
    for name, values in allowed.items():
        if found[name] not in values:
            raise ValueError(
                f"{config}: {name}: got {found[name]!r}, expected {', '.join(map(str, values))}"
            )
    if "n_head" not in found:
        raise ValueError(f"{config}: n_head: missing")
    try:
        tensors = load_file(weights)
    except SafetensorError as problem:
        raise ValueError(f"{weights}: damaged or cut short ({problem})") from problem
    activation = ACTIVATIONS[found["activation_function"]]
    return tensors, {
        "n_head": found["n_head"],
        "eps": found["layer_norm_epsilon"],
        "activation": activation,
    }
