"""What a line of `minigpt.verify` is: a measured error beside its bound; and what measures it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray

from minigpt import array, model
from minigpt.array import Array

Arrays = Mapping[str, Array]
Mask = NDArray[np.bool_]
PATHS = (
    ("manual", False),
    ("SDPA", True),
)  # of attention in torch, and the flag that chooses it

# ---------------------------------------------------------------- bounds

EXACT = 0.0  # the same to the last bit, or a count that must be 0
ROUNDING = {
    # The same sums in another order: a chain of at most 128 roundings, each of at most half a step (2^-53 or
    # 2^-24) of a number below 4. That is 6e-14 and 3e-5; for float64 the course promises 1e-12.
    "float64": 1e-12,
    "float32": 128 * 4 * 2.0**-24,
}
PRINTED = 0.5e-6  # half a unit of the sixth decimal: rounded, it is the number that the book prints
STEP = 1e-5  # of finite differences, along a direction of length 1. That leaves a truncation of STEP^2 and a
SLOPE = 1e-8  # rounding of 2^-52 / STEP, both near 1e-10 times a loss, or third derivative, of up to 100
SAMPLING = (
    0.05  # of a mean over many random numbers: four of its standard deviations or more
)
VISIBLE = 0.1  # what a mistake must at least do to numbers of size 1


@dataclass(frozen=True)
class Check:
    """One measured error beside its bound."""

    name: str
    error: float
    bound: float = ROUNDING["float64"]
    dtype: str = "float64"
    wrong: bool = (
        False  # a mistake made on purpose: its error must be larger than the bound
    )

    @property
    def passed(self) -> bool:
        """NaN never passes: it compares false both ways."""
        return bool(self.error > self.bound if self.wrong else self.error <= self.bound)

    def __str__(self) -> str:
        mark, sign = "ok  " if self.passed else "FAIL", "> " if self.wrong else "<="
        return f"{mark}  {self.name:<79}  {self.error:7.1e} {sign} {self.bound:7.1e}  {self.dtype}"


def wrong(name: str, error: float, bound: float = VISIBLE) -> Check:
    """A mistake made on purpose, in NumPy."""
    return Check(f"{name} (wrong)", error, bound, wrong=True)


@dataclass(frozen=True)
class Place:
    """Where the torch side of a check runs, and in which dtype."""

    device: torch.device
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def rounding(self) -> float:
        return ROUNDING[self.name]

    def narrower(self) -> list[Place]:
        """This place and, unless it is the same, the one with float32."""
        return (
            [self]
            if self.dtype is torch.float32
            else [self, replace(self, dtype=torch.float32)]
        )

    def check(self, name: str, error: float, bound: float | None = None) -> Check:
        return Check(name, error, self.rounding if bound is None else bound, self.name)

    def wrong(self, name: str, error: float, bound: float = VISIBLE) -> Check:
        """A mistake made on purpose, in torch."""
        return replace(wrong(name, error, bound), dtype=self.name)

    def tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def whole(self, values: Any) -> torch.Tensor:
        """Ids or a mask, in the dtype that they have."""
        return torch.tensor(np.asarray(values), device=self.device)

    def norm(self, gamma: Array, beta: Array | None) -> model.LayerNorm:
        norm = model.LayerNorm(len(gamma), bias=beta is not None).to(
            self.device, self.dtype
        )
        state = {"weight": gamma, "bias": beta}
        norm.load_state_dict(
            {
                name: torch.tensor(value)
                for name, value in state.items()
                if value is not None
            }
        )
        return norm

    def block(self, weights: Arrays, n_head: int, **choices: Any) -> model.Block:
        C, F = weights["w1"].shape
        sizes = {
            "block_size": 8,
            "vocab_size": 8,
            "n_layer": 1,
            "n_head": n_head,
            "n_embd": C,
            "n_hidden": F,
        }
        block = model.Block(
            model.GPTConfig(**{"activation": "relu", **sizes, **choices})
        )
        return block.to(self.device, self.dtype).load_arrays(weights)

    def gpt(self, **choices: Any) -> model.MiniGPT:
        """A Mini GPT of two layers, on its manual path, with weights that let each position matter."""
        sizes = {
            "block_size": 8,
            "vocab_size": 11,
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 8,
            "flash": False,
        }
        gpt = (
            model.MiniGPT(model.GPTConfig(**{**sizes, **choices}))
            .to(self.device, self.dtype)
            .eval()
        )
        rng = default_rng(11)
        with torch.no_grad():
            for parameter in gpt.parameters():
                parameter.copy_(
                    self.tensor(rng.normal(0.3, 0.8, size=tuple(parameter.shape)))
                )
        return gpt

    def attend(
        self, q: Array, k: Array, v: Array, mask: Mask | None = None, flash: bool = True
    ) -> torch.Tensor:
        """`model.attend` for arrays."""
        seen = None if mask is None else self.whole(mask)
        return model.attend(
            self.tensor(q), self.tensor(k), self.tensor(v), seen, flash=flash
        )


# ---------------------------------------------------------------- errors


def numbers(values: Any) -> Array:
    """Lists, arrays and tensors as a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def error(got: Any, expected: Any) -> float:
    """The largest absolute difference; infinite if the shapes differ, NaN if a number is NaN."""
    left, right = numbers(got), numbers(expected)
    return float(np.abs(left - right).max()) if left.shape == right.shape else math.inf


def worst(errors: Iterable[float]) -> float:
    """The largest error; NaN if one of them is NaN, which `max` does not promise."""
    return float(np.max(list(errors)))


def record_error(got: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The largest error of all named parts; infinite if the names or their order differ."""
    if list(got) != list(expected):
        return math.inf
    return worst(error(got[name], expected[name]) for name in expected)


def let_through(
    function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]
) -> int:
    """How many of the calls do not raise ValueError, as each of them must."""
    count = 0
    for values in arguments:
        try:
            function(*values)
        except ValueError:
            continue
        count += 1
    return count


def slope_error(loss: Callable[[Arrays], float], at: Arrays, gradient: Arrays) -> float:
    """How far a gradient is from central finite differences of the loss, along six random directions."""
    rng, errors = default_rng(7), []
    for _ in range(6):
        along = {name: rng.normal(size=value.shape) for name, value in at.items()}
        length = math.sqrt(sum(float((part**2).sum()) for part in along.values()))
        ahead, behind = (
            loss({name: at[name] + step / length * along[name] for name in at})
            for step in (STEP, -STEP)
        )
        predicted = (
            sum(float((gradient[name] * along[name]).sum()) for name in at) / length
        )
        errors.append(abs(predicted - (ahead - behind) / (2 * STEP)))
    return worst(errors)


def blocks(gpt: model.MiniGPT) -> list[model.Block]:
    return [block for block in gpt.h if isinstance(block, model.Block)]


def prefix_moves(gpt: model.MiniGPT, ids: torch.Tensor, t: int) -> tuple[float, float]:
    """With other ids from position t on: the largest change of the logits before t, and from t on."""
    other = ids.clone()
    other[:, t:] = (ids[:, t:] + 3) % gpt.config.vocab_size
    with torch.no_grad():
        before, after = numbers(gpt(ids)[0]), numbers(gpt(other)[0])  # [B, T, V]
    return error(after[:, :t], before[:, :t]), error(after[:, t:], before[:, t:])


def random_weights(seed: int, C: int, F: int) -> dict[str, Array]:
    """Weights of a block, all different, of a size that keeps each stage near 1."""
    rng = default_rng(seed)
    matrices = {"w_qkv": (C, 3 * C), "w_o": (C, C), "w1": (C, F), "w2": (F, C)}
    vectors = {
        "b_qkv": 3 * C,
        "b_o": C,
        "b1": F,
        "b2": C,
        "beta1": C,
        "beta2": C,
        "gamma1": C,
        "gamma2": C,
    }
    weights: dict[str, Array] = {}
    for name, shape in matrices.items():
        weights[name] = rng.normal(size=shape) / math.sqrt(shape[0])
    for name, width in vectors.items():
        weights[name] = rng.normal(
            1.0 if name.startswith("gamma") else 0.0, 0.2, size=width
        )
    return weights


def feed_forward(x: Array, weights: Arrays, **choices: Any) -> tuple[Array, Array]:
    return array.feed_forward(
        x, weights["w1"], weights["b1"], weights["w2"], weights["b2"], **choices
    )


def lists(weights: Arrays) -> dict[str, Any]:
    return {name: value.tolist() for name, value in weights.items()}
