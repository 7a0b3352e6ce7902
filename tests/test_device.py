"""The device at hand, with machines that this one may not be."""

from __future__ import annotations

import re

import pytest
import torch

from minigpt import device


def pretend(monkeypatch: pytest.MonkeyPatch, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [
        (0, False, ["cpu"]),
        (0, True, ["mps", "cpu"]),
        (2, False, ["cuda", "cpu"]),
        (1, True, ["cuda", "mps", "cpu"]),
    ],
)
def test_the_fastest_device_comes_first(
    monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, expected: list[str]
) -> None:
    pretend(monkeypatch, cuda, mps)
    assert device.available() == expected
    assert device.pick() == torch.device(expected[0])
    for name in expected:
        assert device.pick(name) == torch.device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "meta", "gpu", "", "cpu cpu"])
def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pretend(monkeypatch)
    with pytest.raises(ValueError, match=re.escape(f"device: got {name!r}, this machine offers cpu")):
        device.pick(name)


def test_the_devices_of_one_kind_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=2)
    assert device.pick("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="device: got 'cuda:2', this machine has 2 CUDA devices"):
        device.pick("cuda:2")
    with pytest.raises(ValueError, match="device: got 'mps', this machine offers cuda, cpu"):
        device.pick("mps")


@pytest.mark.parametrize(
    ("name", "expected"), [("cpu", torch.float64), ("cuda", torch.float64), ("mps", torch.float32)]
)
def test_the_widest_float(name: str, expected: torch.dtype) -> None:
    assert device.widest_float(torch.device(name)) is expected


def test_describe_names_device_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    line = device.describe()
    assert re.fullmatch(
        rf"device cpu \(\w+\), torch {re.escape(torch.__version__)}, NumPy \d+\.\d+\.\d+\S*", line
    )
    pretend(monkeypatch, cuda=1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: "Some GPU")
    assert device.describe().startswith("device cuda (Some GPU), ")
