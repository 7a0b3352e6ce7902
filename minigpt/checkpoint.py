"""Checkpoints: tensors and plain values in one file.

A file that is cut short, damaged, of another version, of another model, or that holds
anything to be run is refused with a ValueError that says so. Only a checkpoint of the
same model is ever overwritten.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minigpt import files, gpt2
from minigpt.gguf_file import from_gguf as from_gguf  # the third source of weights
from minigpt.model import GPTConfig, MiniGPT

FORMAT, VERSION = "minigpt checkpoint", 1
FREE = {
    "dropout",
    "flash",
}  # settings that leave what a model computes in evaluation as it is


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds."""

    config: GPTConfig
    weights: dict[str, Tensor]  # by the names of MiniGPT's parameters
    characters: str  # the vocabulary, if the tokens are characters, else ""
    training: dict[str, Any]  # what `minigpt.train` needs to go on, else {}


# ---------------------------------------------------------------- write and read


def save(
    path: str | Path,
    model: nn.Module,
    characters: str = "",
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint of a MiniGPT, compiled or not.

    characters: the vocabulary of a character tokenizer. training: tensors and plain
    values only. ValueError if the path holds anything but a checkpoint of a model like
    this, OSError if the disk refuses; what was there then stays.
    """
    path, config = Path(path), _config(model)
    if path.exists():
        _refuse(
            path,
            "is of another model, so it stays as it is",
            _differences(_open(path, mmap=True)[0], config),
        )
    content = {
        "format": FORMAT,
        "version": VERSION,
        "config": asdict(config),
        "weights": {
            plain(name): tensor.detach() for name, tensor in model.state_dict().items()
        },
        "characters": characters,
        "training": dict(training or {}),
    }
    with files.written(path) as file:
        torch.save(content, file)


def read(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Check a checkpoint file and read it, with its tensors on that device.

    FileNotFoundError if it is not there, else ValueError for whatever is wrong with it.
    """
    path = Path(path)
    config, content = _open(path, device)
    with zipfile.ZipFile(path) as archive:  # torch does not look at the checksums
        if (damaged := archive.testzip()) is not None:
            raise ValueError(
                f"{path}: damaged: the checksum of its part {damaged} is wrong"
            )
    weights = {plain(name): tensor for name, tensor in content["weights"].items()}
    return Checkpoint(config, weights, content["characters"], content["training"])


def load(
    path: str | Path, into: nn.Module | None = None, device: torch.device | str = "cpu"
) -> MiniGPT:
    """The model of a checkpoint file, in evaluation mode and in the dtype of the file.

    into: a MiniGPT, compiled or not, that takes the weights instead, on its own device
    and in its own dtype. ValueError if the file is of another model, with every setting
    and tensor that differs; `into` then keeps its weights.
    """
    found = read(path, device)
    if into is None:
        return _build(found.config, found.weights, str(path), device)
    _refuse(path, "is of another model", _differences(found.config, _config(into)))
    return _copy(found.weights, into, str(path))


def from_gpt2(
    source: Mapping[str, Tensor] | str | Path,
    n_head: int | None = None,
    eps: float = 1e-5,
    activation: str = "gelu_tanh",
) -> MiniGPT:
    """A MiniGPT with the weights of a GPT-2 (Radford et al. 2019), in evaluation mode.

    source: a folder with config.json and model.safetensors, which says all the rest
    itself, or a state dict in the layout of Hugging Face's transformers. The dict does
    not say n_head, which may be left out for the four published widths. Its names may
    begin with `transformer.`; mask buffers and the tied head may be there or not.
    float64 stays, all else becomes float32.

    ValueError, by name, for a tensor that is missing, extra or of another shape.
    Matrices that are [out, in] already are known by c_attn, which is never square; all
    of its block are then named, the square ones too. What cannot be known: a square
    matrix that alone is transposed, or another n_head. Both fit. Compare the logits of
    a known text.
    """
    if isinstance(source, Mapping):
        return _build(
            *gpt2.convert(source, n_head=n_head, eps=eps, activation=activation),
            "weights",
        )
    weights, settings = gpt2.read_folder(Path(source))
    return _build(*gpt2.convert(weights, **settings), str(source))


# ---------------------------------------------------------------- the checks


def plain(name: str) -> str:
    """The name of a tensor without the prefixes of torch.compile and of DistributedDataParallel."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _open(
    path: Path, device: torch.device | str = "cpu", mmap: bool = False
) -> tuple[GPTConfig, dict[str, Any]]:
    """The config and all content, after every check for which the tensors need not be read (mmap)."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: not a checkpoint, or one that was cut short")
    try:
        content = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as problem:
        raise ValueError(
            f"{path}: holds a Python object other than tensors, numbers, texts, lists and dicts; "
            "to load it could run code of its author, so it is refused"
        ) from problem
    except (RuntimeError, EOFError, KeyError, OSError, ValueError) as problem:
        raise ValueError(
            f"{path}: not a checkpoint, or a damaged one ({problem})"
        ) from problem
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: not a checkpoint of minigpt")
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path}: got version {content.get('version')!r}, this minigpt reads {VERSION}"
        )
    kinds = {"config": dict, "weights": dict, "characters": str, "training": dict}
    wrong = [
        key for key, kind in kinds.items() if not isinstance(content.get(key), kind)
    ]
    if wrong or not all(
        isinstance(tensor, Tensor) for tensor in content["weights"].values()
    ):
        raise ValueError(
            f"{path}: damaged: missing, or of a wrong type: {', '.join(wrong) or 'weights'}"
        )
    try:
        return GPTConfig(**content["config"]), content
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"{path}: its config is none of this minigpt: {problem}"
        ) from problem


def _config(model: nn.Module) -> GPTConfig:
    config = getattr(model, "config", None)
    if not isinstance(config, GPTConfig):
        raise TypeError(
            f"model: got {type(model).__name__}, expected a MiniGPT, compiled or not"
        )
    return config


def _differences(file: GPTConfig, model: GPTConfig) -> list[str]:
    """Every setting with which the same weights would compute something else."""
    theirs, ours = (
        asdict(c) | {"n_hidden": c.n_hidden or 4 * c.n_embd} for c in (file, model)
    )
    return [
        f"{name}: {theirs[name]!r} in the file, {ours[name]!r} in the model"
        for name in theirs
        if name not in FREE and theirs[name] != ours[name]
    ]


def _refuse(source: object, what: str, problems: list[str]) -> None:
    if problems:
        raise ValueError(f"{source}: {what}:\n  " + "\n  ".join(problems))


def _build(
    config: GPTConfig,
    weights: Mapping[str, Tensor],
    source: str,
    device: torch.device | str = "cpu",
) -> MiniGPT:
    # a new model draws random weights; the caller's draws go on as before
    with torch.random.fork_rng(devices=[]):
        model = MiniGPT(config)
    wide = all(tensor.dtype is torch.float64 for tensor in weights.values())
    model.to(device, torch.float64 if wide else torch.float32)
    return _copy(weights, model, source).eval()


def _copy(weights: Mapping[str, Tensor], model: nn.Module, source: str) -> MiniGPT:
    """Copy the weights in, if names and shapes are exactly those of the model."""
    ours = {plain(name): tensor for name, tensor in model.state_dict().items()}
    # the head is tied to the table, so a file may leave it out
    theirs = {"lm_head.weight": weights.get("wte.weight", torch.empty(0)), **weights}
    problems = []
    for name in sorted(ours.keys() | theirs.keys()):
        shape, due = (
            list(side[name].shape) if name in side else None for side in (theirs, ours)
        )
        if shape is None:
            problems.append(f"{name}: missing, {due} in the model")
        elif due is None:
            problems.append(f"{name}: {shape} in the file, not in the model")
        elif shape != due:
            problems.append(f"{name}: {shape} in the file, {due} in the model")
        elif not (kind := theirs[name].dtype).is_floating_point:
            problems.append(f"{name}: {kind} in the file, expected floats")
    _refuse(source, "does not fit the model", problems)
    if not torch.equal(theirs["lm_head.weight"], theirs["wte.weight"]):
        raise ValueError(
            f"{source}: lm_head.weight differs from wte.weight; in Mini GPT they are one parameter"
        )
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(theirs[name])
    original = getattr(model, "_orig_mod", model)
    assert isinstance(original, MiniGPT)
    return original
