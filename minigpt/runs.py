"""The folder of a training run: what is in it, and what may be written there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minigpt import checkpoint, files
from minigpt.settings import TrainConfig

MAY_DIFFER = {"data", "out", "device", "compile"}  # between a run and its continuation


def check_folder(config: TrainConfig, fingerprint: str, resume: bool) -> dict[str, Any]:
    """See that config.out will do, and make it. To resume: the state of the run in it, else {}.

    fingerprint: of the text. ValueError for a folder that holds a run where none should be, none where one
    should be, or one with other settings or another text.
    """
    out = Path(config.out)
    path = out / "checkpoint.pt"
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: got {config.out!r}, which is not a folder")
    if not resume:
        if path.exists():
            raise ValueError(
                f"out: {path} is there; --resume goes on with that run, or name another folder"
            )
        out.mkdir(parents=True, exist_ok=True)
        return {}
    if not path.exists():
        raise ValueError(
            f"out: there is no {path} to resume from; leave --resume out to start a run"
        )
    state = checkpoint.read(path).training
    if not {"config", "losses", "optimizer", "text"} <= state.keys():
        raise ValueError(f"{path}: holds a model, but no training run to go on with")
    now, then = asdict(config), state["config"]
    changed = [
        name for name in now if name not in MAY_DIFFER and now[name] != then.get(name)
    ]
    if changed:
        shown = "; ".join(
            f"{name}: {then.get(name)!r} then, {now[name]!r} now" for name in changed
        )
        raise ValueError(f"{path}: a run goes on with its own settings only; {shown}")
    if state["text"] != fingerprint:
        raise ValueError(f"{path}: the text is not the one that this run began with")
    return state


def write_csv(
    path: Path, names: Sequence[str], rows: Iterable[Sequence[float | None]]
) -> None:
    """A table of numbers with all their digits; None becomes an empty cell."""
    lines = [",".join(names)] + [
        ",".join("" if cell is None else repr(cell) for cell in row) for row in rows
    ]
    with files.written(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def draw(path: Path, losses: Sequence[float], evaluations: Mapping[int, float]) -> None:
    """Both loss curves as a PNG, if matplotlib is there."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print(
            f"no {path.name} without matplotlib: pip install matplotlib",
            file=sys.stderr,
        )
        return
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss in nats")
    axes.plot(losses, linewidth=0.7, alpha=0.6, label="batch")
    axes.plot(
        list(evaluations), list(evaluations.values()), marker="o", label="validation"
    )
    axes.legend()
    with files.written(path) as file:
        figure.savefig(file, format="png", dpi=120)


class Silent:
    """A progress bar that nobody sees."""

    def update(self) -> None: ...

    def set_postfix_str(self, words: str) -> None: ...


@contextmanager
def progress(total: int, done: int, quiet: bool) -> Iterator[Any]:
    """A progress bar on stderr, if tqdm is there."""
    if quiet:
        yield Silent()
        return
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        print("no progress bar without tqdm: pip install tqdm", file=sys.stderr)
        yield Silent()
        return
    with tqdm(total=total, initial=done, unit="step") as bar:
        yield bar
