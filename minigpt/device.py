"""The device at hand, and the widest float it can carry."""

from __future__ import annotations

import platform

import numpy as np
import torch


def available() -> list[str]:
    """The kinds of device that this machine and this torch offer, the fastest first."""
    kinds = [
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
        ("cpu", True),
    ]
    return [name for name, there in kinds if there]


def pick(name: str | None = None) -> torch.device:
    """The device of that name, or the fastest one; ValueError if it is not there."""
    offered = available()
    if name is None:
        return torch.device(offered[0])
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in offered:
        raise ValueError(
            f"device: got {name!r}, this machine offers {', '.join(offered)}"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device: got {name!r}, "
            f"this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


def widest_float(device: torch.device) -> torch.dtype:
    """float64, except on mps, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def describe() -> str:
    """One line about this machine."""
    device = pick()
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.machine()
    )
    versions = f"torch {torch.__version__}, NumPy {np.__version__}"
    return f"device {device.type} ({name}), {versions}"
