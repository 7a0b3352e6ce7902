"""Several processes that train one model together, started by torchrun; or one process alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """The processes: this one's number, from 0, and how many there are."""

    rank: int = 0
    size: int = 1

    def share(self, batch_size: int) -> slice:
        """The part of a batch that is this process's; ValueError if the parts would not be equal."""
        B, rest = divmod(batch_size, self.size)
        if rest:
            raise ValueError(
                f"batch_size: got {batch_size}, expected a multiple of the {self.size} processes"
            )
        return slice(self.rank * B, (self.rank + 1) * B)

    def mean(self, value: Tensor) -> float:
        """The mean of a number over all processes."""
        value = value.clone()
        if self.size > 1:
            dist.all_reduce(value)
        return value.item() / self.size

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their numbers. Each waits here for the others."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The world that torchrun describes in the environment, for as long as the block lasts."""
    if "WORLD_SIZE" not in os.environ:
        yield World()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
