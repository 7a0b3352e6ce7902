"""Text as numbers: a character tokenizer, tokens on the disk, and windows of them for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minigpt import files

Tokens = NDArray[np.uint16]
TOKEN = np.dtype("<u2")  # two bytes for each token, so at most 65,536 different ones


class CharacterTokenizer:
    """One token for each different character, numbered in the order of their code points."""

    def __init__(self, text: str) -> None:
        """text: any text; its characters are the vocabulary. ValueError if there is none, or over 65,536."""
        self.characters = "".join(sorted(set(text)))
        if not 1 <= len(self.characters) <= 2**16:
            raise ValueError(
                f"text: got {len(self.characters)} different characters, expected 1 to {2**16}"
            )
        self._points = _code_points(self.characters)

    def encode(self, text: str) -> Tokens:
        """n characters -> n ids. ValueError for a character outside the vocabulary, with its position."""
        points = _code_points(text)
        ids = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        unknown = np.flatnonzero(self._points[ids] != points)
        if unknown.size:
            raise ValueError(
                f"text: got {text[unknown[0]]!r} at position {unknown[0]}, "
                f"which is not among the {len(self.characters)} characters of the vocabulary"
            )
        return ids.astype(TOKEN)

    def decode(self, ids: Tokens | Tensor | Sequence[int]) -> str:
        """n ids -> text of n characters. ValueError for an id outside 0 to V - 1."""
        array = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(
                f"ids: got shape {list(array.shape)} of {array.dtype}, expected [n] of whole numbers"
            )
        V = len(self.characters)
        if array.size and not 0 <= array.min() <= array.max() < V:
            raise ValueError(
                f"ids: got values from {array.min()} to {array.max()}, expected 0 to {V - 1}"
            )
        return "".join(self.characters[i] for i in array)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def documentation() -> str:
    """The text that ships with Python: the reference pages behind `help()`, about 460,000 characters."""
    from pydoc_data.topics import topics

    return "".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path | None = None) -> str:
    """The text of a UTF-8 file, every line end as "\\n"; without a path, `documentation()`.

    FileNotFoundError if there is no such file; ValueError if it is empty or binary.
    """
    if path is None:
        return documentation()
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a text file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        found = f"byte 0x{problem.object[problem.start]:02x} at {problem.start}"
        raise ValueError(
            f"{path}: got {found}, which is not UTF-8; expected a text file in UTF-8"
        ) from problem
    if not text:
        raise ValueError(f"{path}: is empty; expected a text file")
    if "\0" in text:
        raise ValueError(
            f"{path}: got a zero byte at {text.index(chr(0))}, so it is binary; expected a text file"
        )
    return text


# ---------------------------------------------------------------- tokens on the disk


def write_tokens(path: str | Path, tokens: Tokens) -> None:
    """Write ids as a file of two bytes each, whole or not at all."""
    with files.written(Path(path)) as file:
        file.write(np.ascontiguousarray(tokens, TOKEN).data)


def open_tokens(path: str | Path) -> Tokens:
    """The ids of such a file, mapped into memory: the disk is read where a batch looks, and nowhere else."""
    size = Path(path).stat().st_size
    if size == 0 or size % TOKEN.itemsize:
        raise ValueError(
            f"{path}: got {size} bytes, expected 2 for each of at least one token"
        )
    return np.memmap(path, TOKEN, mode="r")


def split(tokens: Tokens, fraction: float, block_size: int) -> tuple[Tokens, Tokens]:
    """The text in two, by position: all but the last `fraction` for training, the rest for validation.

    By position, since windows drawn at random overlap: training would have seen nearly
    all of the other part. ValueError if a part is too short for one window.
    """
    if not 0 < fraction < 1:
        raise ValueError(
            f"validation: got {fraction}, expected a fraction between 0 and 1"
        )
    cut = len(tokens) - int(len(tokens) * fraction)
    for name, part in (("training", tokens[:cut]), ("validation", tokens[cut:])):
        if len(part) < block_size + 1:
            raise ValueError(
                f"text: got {len(tokens)} tokens, of which {len(part)} for {name}; "
                f"expected at least block_size + 1 = {block_size + 1} for each part"
            )
    return tokens[:cut], tokens[cut:]


# ---------------------------------------------------------------- windows


def window_count(tokens: Tokens, block_size: int) -> int:
    """How many windows of block_size + 1 tokens there are: they start at 0, 1, ... ValueError if none."""
    if block_size < 1 or len(tokens) < block_size + 1:
        raise ValueError(
            f"tokens: got {len(tokens)} for block_size {block_size}, "
            f"expected at least block_size + 1 = {block_size + 1}"
        )
    return len(tokens) - block_size


def windows(
    tokens: Tokens, block_size: int, starts: NDArray[np.integer]
) -> tuple[Tensor, Tensor]:
    """The windows at these B starts: ids [B, T], and as targets [B, T] the same text one token later."""
    count = window_count(tokens, block_size)
    if len(starts) < 1 or not 0 <= starts.min() <= starts.max() < count:
        raise ValueError(
            f"starts: got {starts.tolist()}, expected at least one, from 0 to {count - 1}"
        )
    places = starts[:, None] + np.arange(block_size + 1)  # [B, T + 1]
    both = tokens[places].astype(np.int64)
    return torch.from_numpy(both[:, :-1].copy()), torch.from_numpy(both[:, 1:].copy())


def batch(
    tokens: Tokens, block_size: int, batch_size: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """batch_size windows at random starts, each as likely as any other: ids [B, T], targets [B, T]."""
    return windows(
        tokens,
        block_size,
        rng.integers(window_count(tokens, block_size), size=batch_size),
    )
