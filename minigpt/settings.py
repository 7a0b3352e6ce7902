"""The settings of a training run: defaults, a YAML file, the command line, each over the one before."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from minigpt.model import GPTConfig

DTYPES = ("float32", "bfloat16", "float64")


def _set(default: Any, words: str) -> Any:
    return field(default=default, metadata={"help": words})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run; ValueError, by name, for a setting out of its range.

    The defaults are a model of 0.24 million parameters. On two CPU cores it trains in under a minute,
    on the default text, to a validation loss below 1.4 nats for each character.
    """

    data: str = _set(
        "", "a text file in UTF-8; empty: the documentation text inside Python"
    )
    out: str = _set("runs/first", "folder for checkpoint, losses and picture")
    # the model
    block_size: int = _set(64, "T_max, the longest text that the model sees at once")
    n_layer: int = _set(2, "blocks")
    n_head: int = _set(4, "attention heads in each")
    n_embd: int = _set(96, "width C")
    dropout: float = _set(0.0, "share of numbers set to zero while training")
    # the training
    steps: int = _set(2500, "batches")
    batch_size: int = _set(12, "windows in a batch, of all processes together")
    learning_rate: float = _set(4e-3, "the largest, after the warm-up")
    min_learning_rate: float = _set(1e-4, "the one at the end")
    warmup_steps: int = _set(100, "steps in which the learning rate rises")
    weight_decay: float = _set(0.1, "of matrices; gains and biases have none")
    clip: float = _set(1.0, "largest norm of the gradient")
    validation: float = _set(
        0.1, "share of the text, its end, that is only looked at to evaluate"
    )
    eval_every: int = _set(250, "steps between two evaluations; each saves the run")
    eval_windows: int = _set(
        128, "windows of an evaluation, spread over the validation text"
    )
    seed: int = _set(1, "of the first weights, the batches and dropout")
    # the machine
    device: str = _set("", "cpu, cuda or mps; empty: the fastest at hand")
    dtype: str = _set(
        "float32", f"{', '.join(DTYPES)}; bfloat16: mixed, with weights in float32"
    )
    compile: bool = _set(
        False, "let torch.compile make the model faster; needs a C++ compiler"
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, kind = getattr(self, setting.name), KINDS[str(setting.type)]
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise ValueError(
                    f"{setting.name}: got {value!r}, expected {kind.__name__}"
                )
        lowest = {
            "steps": 1,
            "batch_size": 1,
            "warmup_steps": 0,
            "eval_every": 1,
            "eval_windows": 1,
            "seed": 0,
        }
        for name, low in lowest.items():
            if getattr(self, name) < low:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}, expected at least {low}"
                )
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}, expected a finite number above 0"
                )
        if not 0 <= self.min_learning_rate <= self.learning_rate:
            bounds = f"0 to learning_rate = {self.learning_rate}"
            raise ValueError(
                f"min_learning_rate: got {self.min_learning_rate}, expected {bounds}"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(
                f"weight_decay: got {self.weight_decay}, expected a finite number of at least 0"
            )
        if not 0 < self.validation < 1:
            raise ValueError(
                f"validation: got {self.validation}, expected a share between 0 and 1"
            )
        if self.dtype == "float16":
            raise ValueError(
                "dtype: got 'float16', in which small gradients become 0 unless the loss is scaled. "
                "That is not done here; use bfloat16 or float32"
            )
        if self.dtype not in DTYPES:
            raise ValueError(
                f"dtype: got {self.dtype!r}, expected one of {', '.join(DTYPES)}"
            )
        self.model(vocab_size=1)

    def model(self, vocab_size: int) -> GPTConfig:
        """The part that belongs to the model."""
        names = ("block_size", "n_layer", "n_head", "n_embd", "dropout")
        return GPTConfig(
            vocab_size=vocab_size, **{name: getattr(self, name) for name in names}
        )


KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Settings from a YAML file: names of TrainConfig and values. ValueError, by name, for anything else."""
    try:
        import yaml
    except ModuleNotFoundError as problem:
        raise ModuleNotFoundError(
            f"{path}: needs the package PyYAML: pip install pyyaml"
        ) from problem
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: not YAML: {problem}") from problem
    if not isinstance(values, dict):
        raise ValueError(
            f"{path}: got {type(values).__name__}, expected lines such as `steps: 2000`"
        )
    known = {setting.name: str(setting.type) for setting in fields(TrainConfig)}
    if unknown := [str(name) for name in values if name not in known]:
        raise ValueError(
            f"{path}: got {', '.join(unknown)}; the settings are {', '.join(known)}"
        )
    for name, value in values.items():
        # YAML takes 1e-3 for a text
        if known[name] == "float" and isinstance(value, str):
            try:
                values[name] = float(value)
            except ValueError:
                raise ValueError(
                    f"{path}: {name}: got {value!r}, expected a number"
                ) from None
    return values


def add_options(parser: argparse.ArgumentParser, defaults: TrainConfig) -> None:
    """One option for each setting; those that are not given do not appear among the parsed ones."""
    for setting in fields(defaults):
        default, words = getattr(defaults, setting.name), setting.metadata["help"]
        flag = "--" + setting.name.replace("_", "-")
        words += f" (default: {default})" if default not in ("", False) else ""
        if setting.type == "bool":
            switch = argparse.BooleanOptionalAction
            parser.add_argument(
                flag, action=switch, default=argparse.SUPPRESS, help=words
            )
        else:
            kind = KINDS[str(setting.type)]
            parser.add_argument(
                flag, type=kind, metavar="X", default=argparse.SUPPRESS, help=words
            )


def merge(*layers: Mapping[str, Any]) -> TrainConfig:
    """The defaults under these layers of settings, the last one on top."""
    values: dict[str, Any] = {}
    for layer in layers:
        values |= layer
    return TrainConfig(**values)
