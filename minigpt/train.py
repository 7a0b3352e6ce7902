"""Train a Mini GPT on a text.

Run it as `python -m minigpt.train --data file.txt --out runs/first`, or in several
processes as `torchrun --nproc-per-node 2 -m minigpt.train ...`. A run that was broken
off goes on with `--resume`, to the same losses as if nothing had happened.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minigpt import checkpoint, data, runs, settings
from minigpt import device as devices
from minigpt.data import Tokens
from minigpt.model import MiniGPT
from minigpt.processes import World, joined
from minigpt.settings import TrainConfig

COLUMNS = ("step", "learning_rate", "loss", "validation_loss")

# ---------------------------------------------------------------- the parts of a step


def make_optimizer(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.95),
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) that pulls only matrices towards zero.

    Decayed: what has two or more axes, the tables of tokens and positions among them.
    Not decayed: biases and the gains of LayerNorm, for which zero is nothing to be near
    to. Tied weights are one parameter.
    """
    parameters = list(model.parameters())  # each once
    matrices = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # One kernel for all on a GPU. On a CPU that kernel goes through memory and not by
    # index: with a gradient that lies transposed it is wrong without a word.
    fused = all(p.device.type == "cuda" for p in parameters)
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], learning_rate, betas, fused=fused
    )


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of a step, from 0: a straight rise, then half a cosine down."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    falling = max(1, config.steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / falling)  # from 0 to 1
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + span * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    """A model on its way. `step` is one batch; `losses` and `evaluations` tell what came of it.

    All processes together see the batches that one process would see; each takes its
    share. Only dropout differs, since each draws its own. With dtype bfloat16, matrix
    products are in bfloat16, and weights and sums in float32.
    """

    def __init__(
        self,
        model: MiniGPT,
        config: TrainConfig,
        training: Tokens,
        validation: Tokens,
        world: World | None = None,
    ) -> None:
        self.config, self.training, self.validation = config, training, validation
        self.world = world or World()
        self.share = self.world.share(config.batch_size)
        self.device = pick_device(config)
        self.model = model.to(
            self.device, torch.float64 if config.dtype == "float64" else torch.float32
        )
        self.forward: nn.Module = self.model
        if self.world.size > 1:  # averages the gradients of all processes
            self.forward = nn.parallel.DistributedDataParallel(
                self.model, broadcast_buffers=False
            )
        if config.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        self.optimizer = make_optimizer(
            self.model, config.learning_rate, config.weight_decay
        )
        self.batches = np.random.default_rng(config.seed)
        torch.manual_seed(config.seed + 1 + self.world.rank)  # dropout
        self.losses: list[float] = []  # of each step, before its update
        # steps done -> loss on the validation text
        self.evaluations: dict[int, float] = {}

    @property
    def done(self) -> int:
        """Steps done."""
        return len(self.losses)

    def step(self) -> float:
        """One batch: loss, gradient, update. Returns the loss; FloatingPointError if it,
        or the gradient, is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.done, self.config)
        self.forward.train()
        whole = data.batch(
            self.training, self.config.block_size, self.config.batch_size, self.batches
        )
        ids, targets = (part[self.share].to(self.device) for part in whole)  # [B, T]
        with self._precision():
            loss = self.forward(ids, targets)[1]
        loss.backward()
        value = self.world.mean(loss.detach())
        norm = nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.clip
        ).item()
        if not math.isfinite(value + norm):
            raise FloatingPointError(
                f"step {self.done}: got a loss of {value} with a gradient "
                f"of norm {norm}; try a smaller learning_rate"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(value)
        return value

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss over windows spread evenly over the validation text, the same ones each time."""
        self.model.eval()
        count = data.window_count(self.validation, self.config.block_size)
        starts = np.unique(
            np.linspace(0, count - 1, self.config.eval_windows).astype(np.int64)
        )
        total = 0.0
        for first in range(0, len(starts), self.config.batch_size):
            some = starts[first : first + self.config.batch_size]
            ids, targets = data.windows(self.validation, self.config.block_size, some)
            with self._precision():
                loss = self.model(ids.to(self.device), targets.to(self.device))[1]
            total += loss.item() * len(some)
        self.evaluations[self.done] = total / len(starts)
        return self.evaluations[self.done]

    def rows(self) -> list[tuple[float | None, ...]]:
        """One row for each step: COLUMNS. The last has no batch, only the evaluation after all steps."""
        return [
            (
                step,
                learning_rate(step, self.config),
                self.losses[step] if step < self.done else None,
                self.evaluations.get(step),
            )
            for step in range(self.done + (self.done in self.evaluations))
        ]

    def _precision(self) -> Any:
        mixed = self.config.dtype == "bfloat16"
        return (
            torch.autocast(self.device.type, torch.bfloat16) if mixed else nullcontext()
        )

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on besides the weights, as plain values and tensors."""
        return {
            "config": asdict(self.config),
            "losses": self.losses,
            "evaluations": self.evaluations,
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.bit_generator.state,
            "dropout": self.world.gather(_random_state(self.device)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state; ValueError if it is of another number of processes."""
        if len(state["dropout"]) != self.world.size:
            raise ValueError(
                f"this run was made by {len(state['dropout'])} processes, now there are {self.world.size}"
            )
        self.losses = list(state["losses"])
        self.evaluations = dict(state["evaluations"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.bit_generator.state = state["batches"]
        _set_random_state(self.device, state["dropout"][self.world.rank])


def pick_device(config: TrainConfig) -> torch.device:
    """The device of a run; ValueError if it is not there, or cannot carry the dtype."""
    device = devices.pick(config.device or None)
    if config.dtype == "bfloat16" and not has_bfloat16(device):
        raise ValueError(
            f"dtype: got bfloat16, which {device} does not have; use float32"
        )
    if config.dtype == "float64" and devices.widest_float(device) is not torch.float64:
        raise ValueError(
            f"dtype: got float64, which {device} does not have; use float32"
        )
    if device.type == "cuda" and config.device in ("", "cuda"):
        # one GPU for each process
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16. A CPU always does; without such instructions it is slow."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        one = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
        return bool((one @ one == 1).all())
    except (RuntimeError, TypeError):
        return False


def _random_state(device: torch.device) -> list[Tensor]:
    """The states of torch's random numbers, on the CPU and on the device."""
    other = {"cuda": torch.cuda.get_rng_state, "mps": torch.mps.get_rng_state}.get(
        device.type
    )
    return [torch.get_rng_state()] + ([other()] if other else [])


def _set_random_state(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0].cpu())
    other = {"cuda": torch.cuda.set_rng_state, "mps": torch.mps.set_rng_state}.get(
        device.type
    )
    if other and len(states) > 1:
        other(states[1].cpu())


# ---------------------------------------------------------------- a run and its folder


def train(config: TrainConfig, resume: bool = False, quiet: bool = False) -> Trainer:
    """Train in the folder config.out, from the start or from its checkpoint.pt, and write into it:

    tokens.bin; checkpoint.pt and losses.csv at each evaluation; losses.png at the end.
    ValueError or OSError, before any work, for settings, a text or a folder that will
    not do.
    """
    device, out = pick_device(config), Path(config.out)
    with joined(device) as world:
        text = data.read_text(config.data or None)
        tokenizer = data.CharacterTokenizer(text)
        if len(tokenizer.characters) < 2:
            raise ValueError(
                f"text: got {text[0]!r} and nothing else; there is nothing to predict"
            )
        tokens = tokenizer.encode(text)
        data.split(tokens, config.validation, config.block_size)
        world.share(config.batch_size)
        fingerprint = hashlib.sha256(
            tokens.tobytes() + tokenizer.characters.encode()
        ).hexdigest()
        state = runs.check_folder(config, fingerprint, resume)
        torch.manual_seed(config.seed)
        model = MiniGPT(config.model(len(tokenizer.characters)))
        world.gather(None)  # no process writes before all have looked
        if world.rank == 0:
            data.write_tokens(out / "tokens.bin", tokens)
        world.gather(None)  # nor reads before it is written
        parts = data.split(
            data.open_tokens(out / "tokens.bin"), config.validation, config.block_size
        )
        trainer = Trainer(model, config, *parts, world)
        if state:
            # not before the model has its dtype: float32 would drop digits
            checkpoint.load(out / "checkpoint.pt", into=model)
            trainer.restore(state)
        with runs.progress(config.steps, trainer.done, quiet or world.rank > 0) as bar:
            while True:
                over = trainer.done == config.steps
                if over or trainer.done % config.eval_every == 0:
                    bar.set_postfix_str(f"validation loss {trainer.evaluate():.3f}")
                    state = trainer.state() | {"text": fingerprint}
                    if world.rank == 0:
                        checkpoint.save(
                            out / "checkpoint.pt", model, tokenizer.characters, state
                        )
                        runs.write_csv(out / "losses.csv", COLUMNS, trainer.rows())
                if over:
                    break
                trainer.step()
                bar.update()
        if world.rank == 0:
            runs.draw(out / "losses.png", trainer.losses, trainer.evaluations)
        return trainer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m minigpt.train", description="Train a Mini GPT on a text."
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings in YAML, with the names of the options below",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --out"
    )
    settings.add_options(parser, TrainConfig())
    given = vars(parser.parse_args(arguments))
    file, resume = given.pop("config"), given.pop("resume")
    try:
        layers = [settings.read_yaml(file) if file else {}, given]
        config = settings.merge(*layers)
        if resume and (path := Path(config.out) / "checkpoint.pt").exists():
            config = settings.merge(
                checkpoint.read(path).training.get("config", {}), *layers
            )
        trainer = train(config, resume)
    except (ValueError, OSError, ModuleNotFoundError, FloatingPointError) as problem:
        parser.error(str(problem))
    except KeyboardInterrupt:
        print(
            "\nbroken off; with --resume the run goes on from its last evaluation",
            file=sys.stderr,
        )
        return 130
    if trainer.world.rank == 0:
        loss = trainer.evaluations[trainer.done]
        print(f"{trainer.done} steps, validation loss {loss:.3f}, in {config.out}")
        print(
            f"python -m minigpt.sample --checkpoint {Path(config.out) / 'checkpoint.pt'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
