"""The weights and the tokenizer of a GGUF file, for `minigpt.modern`.

A GGUF file holds named settings, the vocabulary, and named tensors, most of them
quantised: 32 numbers share a scale and keep 4 or 8 bits each. Reading it needs the
package gguf, and its tokenizer the package tokenizers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minigpt.modern import ModernConfig, ModernGPT, half_order

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GGUF_NAMES = {  # part of a block -> its name in the file, after blk.<i>.
    "norm_1": "attn_norm",
    "attn.w_q": "attn_q",
    "attn.w_k": "attn_k",
    "attn.w_v": "attn_v",
    "attn.w_o": "attn_output",
    "norm_2": "ffn_norm",
    "mlp.w_gate": "ffn_gate",
    "mlp.w_up": "ffn_up",
    "mlp.w_down": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The name of one of our tensors in a GGUF file."""
    outside = {"wte.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight"}
    outside["lm_head.weight"] = "output.weight"
    if name in outside:
        return outside[name]
    _, i, part = name.removesuffix(".weight").split(".", 2)
    return f"blk.{i}.{GGUF_NAMES[part]}.weight"


def from_gguf(
    path: str | Path, dtype: torch.dtype = torch.float32, pairing: str = "half"
) -> ModernGPT:
    """The model of a GGUF file, in evaluation mode; quantised tensors are expanded.

    A file of the architecture "llama" holds the rows of W_Q and W_K in the order of
    interleaved pairs. For the pairing "half" they are put into the other order, so that
    both pairings give the same logits.

    ValueError, by name, for another architecture, a setting that this model has not,
    and a tensor that is missing, extra or of another shape.
    """
    reader, gguf = _open(path)
    config = _config(path, reader, pairing)
    with torch.device("meta"):  # names and shapes, without memory or random numbers
        model = ModernGPT(config)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    _check_shapes(path, model, tensors)
    weights = {}
    for name, parameter in model.named_parameters():
        tensor = tensors[gguf_name(name)]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as problem:
            raise ValueError(
                f"{path}: {tensor.name}: cannot be expanded ({problem})"
            ) from problem
        weight = torch.tensor(values, dtype=dtype).view(parameter.shape)
        if pairing == "half" and name.endswith(("w_q.weight", "w_k.weight")):
            heads = weight.unflatten(0, (-1, config.d))  # [H or G, d, C]
            weight = heads[:, half_order(config.d)].flatten(0, 1)
        weights[name] = weight
    if config.tied:
        weights["lm_head.weight"] = weights["wte.weight"]
    model.load_state_dict(weights, assign=True)
    if config.tied:
        model.lm_head.weight = model.wte.weight
    return model.eval()


def gguf_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file: pairs of bytes as in GPT-2, and single digits."""
    reader, gguf = _open(path)
    found = {
        key: reader.fields[key].contents()
        for key in reader.fields
        if key.startswith("tokenizer.ggml.")
    }
    kind = found.get("tokenizer.ggml.model"), found.get("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"{path}: tokenizer: got {kind}, expected ('gpt2', 'smollm')")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in found["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == gguf.TokenType.CONTROL:  # <|im_start|> and such
            tokenizer.add_special_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def _open(path: str | Path) -> tuple[Any, Any]:
    """The reader of a GGUF file, and the package that has it."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        import gguf
    except ModuleNotFoundError as problem:
        raise ModuleNotFoundError(
            f"{path}: needs the package gguf: pip install gguf"
        ) from problem
    try:
        return gguf.GGUFReader(path), gguf
    except (ValueError, IndexError, KeyError, OverflowError) as problem:
        raise ValueError(
            f"{path}: not a GGUF file, or a damaged one ({problem})"
        ) from problem


def _check_shapes(path: str | Path, model: ModernGPT, tensors: dict[str, Any]) -> None:
    expected = {gguf_name(name): list(p.shape) for name, p in model.named_parameters()}
    # a file counts its axes from the last one
    found = {name: tensor.shape[::-1].tolist() for name, tensor in tensors.items()}
    problems = [
        f"{name}: got {found.get(name, 'none')}, expected {expected.get(name, 'none')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if problems:
        lines = "\n  ".join(problems)
        raise ValueError(f"{path}: does not fit the model:\n  {lines}")


def _config(path: str | Path, reader: Any, pairing: str) -> ModernConfig:
    found = {
        key: reader.fields[key].contents()
        for key in reader.fields
        if not key.startswith("tokenizer.")
    }
    if found.get("general.architecture") != "llama":
        raise ValueError(
            f"{path}: architecture: got {found.get('general.architecture')!r}, "
            "expected 'llama'"
        )

    def setting(key: str, default: Any = None) -> Any:
        value = found.get(f"llama.{key}", default)
        if value is None:
            raise ValueError(f"{path}: llama.{key}: missing")
        return value

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{path}: token_embd.weight: missing")
    # 1e-5 is there in float32, 9.9999997e-6
    eps = float(f"{setting('attention.layer_norm_rms_epsilon'):.7g}")
    config = ModernConfig(
        block_size=setting("context_length"),
        vocab_size=int(tensors["token_embd.weight"].shape[-1]),
        n_layer=setting("block_count"),
        n_head=setting("attention.head_count"),
        n_kv_head=setting("attention.head_count_kv", setting("attention.head_count")),
        n_embd=setting("embedding_length"),
        n_hidden=setting("feed_forward_length"),
        rope_base=setting("rope.freq_base", 10000.0),
        eps=eps,
        pairing=pairing,
        tied="output.weight" not in tensors,
    )
    allowed = {
        "rope.dimension_count": config.d,
        "attention.key_length": config.d,
        "rope.scaling.type": "none",
    }
    for key, value in allowed.items():
        if setting(key, value) != value:
            raise ValueError(
                f"{path}: llama.{key}: got {setting(key)!r}, expected {value!r}"
            )
    return config
