"""The key-value cache: what attention computed for earlier positions, kept for the later ones.

Under a causal mask the keys and values of a position depend on nothing after it. So
while the text grows at its end they stay as they are, and each new token needs one row
of each layer instead of all rows again.

Axes: N layers, B sequences, H heads of width d = C/H, T_max = block_size positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from minigpt.model import GPTConfig


class LayerCache:
    """Keys and values of one attention layer: two buffers [B, H, T_max, d], filled from the left."""

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        d = config.n_embd // config.n_head
        shape = (batch_size, config.n_head, config.block_size, d)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0  # positions that are filled

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [B, H, T, d] behind the filled positions; return all of them.

        What comes back, [B, H, length, d] twice, are views of the buffers: nothing is
        copied but the new rows. ValueError for another B, H, d or dtype, for more than
        T_max positions, and for rows that carry a gradient.
        """
        B, H, T_max, d = self.k.shape
        start, end = self.length, self.length + k.shape[2]
        for name, rows, buffer in (("k", k, self.k), ("v", v, self.v)):
            if rows.shape != (B, H, end - start, d) or rows.dtype != buffer.dtype:
                raise ValueError(
                    f"{name}: got shape {list(rows.shape)} of {rows.dtype}, "
                    f"expected {[B, H, 'T', d]} of {buffer.dtype}, those of the cache"
                )
            if rows.requires_grad:
                raise ValueError(
                    f"{name}: carries a gradient; use a cache inside torch.no_grad()"
                )
        if end > T_max:
            raise ValueError(
                f"k: got {end - start} more positions "
                f"for {start} of {T_max} in the cache"
            )
        self.k[:, :, start:end] = k
        self.v[:, :, start:end] = v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]


class KVCache:
    """One LayerCache for each block: `model(ids, cache=cache)` computes the positions after `cache.length`.

    Positions are absolute rows of a learned table, so the cache holds for a text that
    starts at position 0 and has at most T_max tokens. When the start of the text moves,
    all of it is wrong: `clear` it.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, expected at least 1")
        device = torch.device(device)
        self.layers = [
            LayerCache(config, batch_size, device, dtype) for _ in range(config.n_layer)
        ]

    @property
    def length(self) -> int:
        """The number of positions in the cache; ValueError if an interrupted run left the layers uneven."""
        lengths = {layer.length for layer in self.layers}
        if len(lengths) > 1:
            raise ValueError(
                f"cache: layers hold {sorted(lengths)} positions, after a run that broke off"
            )
        return lengths.pop()

    @property
    def nbytes(self) -> int:
        """Size of the buffers: 2 N B C T_max numbers."""
        return sum(
            buffer.nbytes for layer in self.layers for buffer in (layer.k, layer.v)
        )

    def clear(self) -> None:
        """Forget all positions; the buffers stay."""
        for layer in self.layers:
            layer.length = 0
