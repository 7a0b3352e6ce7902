"""Recompute every mechanism of the course.

Run it as `python -m minigpt.verify [--device cpu|cuda|mps] [--json FILE]`.

Each line is one check: the measured error, the bound that it must keep, the dtype. A check compares with
another computation (plain Python, NumPy, torch, a standard library) or with the digits that the book prints.
Checks that end in "(wrong)" make a famous mistake on purpose and pass if its error is larger than the bound:
the mistake shows. Names start with what they belong to: N LayerNorm, P positions, R residual sum,
F feed-forward, A attention, S fused attention, K the block, O the order of its steps, M the whole model,
T training, G sampling, C cost, L what came after GPT-2.

To add a mechanism, write a function that yields its checks into one of the modules of PARTS, and begin its
name with the id: `n3_axis` yields the checks of N3.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import minigpt
from minigpt import (
    array,
    device,
    example,
    files,
    verify_attention,
    verify_block,
    verify_model,
    verify_parts,
)
from minigpt.measure import Check, Place, lists

PARTS = (verify_parts, verify_attention, verify_block, verify_model)
MECHANISMS: list[Callable[[Place], Iterator[Check]]] = [
    function
    for part in PARTS
    for name, function in vars(part).items()
    if re.match(r"[a-z]\d+_", name)
]


def run(where: torch.device) -> list[Check]:
    """Every check, its torch side on that device. A mechanism that raises is a failed check."""
    place = Place(where, device.widest_float(where))
    checks: list[Check] = []
    with _undisturbed(where):
        for mechanism in MECHANISMS:
            try:
                checks.extend(mechanism(place))
            except Exception as problem:
                what = mechanism.__name__.replace("_", " ").capitalize()
                checks.append(
                    Check(
                        f"{what} raised {type(problem).__name__}: {problem}", math.nan
                    )
                )
    return checks


@contextmanager
def _undisturbed(where: torch.device) -> Iterator[None]:
    """No TF32, which rounds each factor to 10 bits, and one thread: tensors so small are computed sooner than
    several threads have found together. Afterwards torch goes on as before, its random numbers as well.
    """
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def to_json(checks: list[Check], where: torch.device) -> str:
    """The record of a run: checks, device, versions, and the values of the worked example's stages."""
    keys = ("name", "error", "bound", "passed", "dtype")
    rows = [{key: getattr(check, key) for key in keys} for check in checks]
    for row in rows:
        row["error"] = (
            row["error"] if math.isfinite(row["error"]) else None
        )  # JSON has no NaN
    versions = {
        "minigpt": minigpt.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
    }
    _, stages = array.block(*example.arrays(), example.N_HEAD)
    record = {
        "checks": rows,
        "device": str(where),
        "versions": versions,
        "stages": lists(stages),
    }
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def check_writable(path: Path) -> None:
    """ValueError if no file can be written there."""
    try:
        if path.exists() and not path.is_file():
            reason = "which is not a file"
        elif path.exists() and not os.access(path, os.W_OK):
            reason = "which is write-protected"
        else:
            files.draft(path).write_text("", encoding="utf-8")
            files.draft(path).unlink()
            return
    except OSError as problem:
        reason = f"where no file can be made ({problem.strerror})"
    raise ValueError(
        f"--json: got {str(path)!r}, {reason}; expected a file in a folder that takes new files"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m minigpt.verify", description="Recompute every mechanism."
    )
    parser.add_argument(
        "--device", metavar="cpu|cuda|mps", help="default: the fastest at hand"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=os.path.realpath,
        help="write a record of the run there",
    )
    options = parser.parse_args(arguments)
    path = Path(options.json) if options.json else None
    try:
        where = device.pick(options.device)
        if path:
            check_writable(path)
    except ValueError as problem:
        parser.error(str(problem))
    checks = run(where)
    for check in checks:
        print(check)
    failed = sum(not check.passed for check in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed on {where}")
    if path:
        with files.written(path) as file:
            file.write(to_json(checks, where).encode())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
