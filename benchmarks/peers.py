"""`make bench-peers`: training and generation of Mini GPT beside two other packages, in one run.

The peers are GPT-2 of `transformers` and the models of the book "Build a Large Language Model (From
Scratch)", whose package is fetched for this alone. All have the same sizes, weights, data, dtype and
optimizer; before anything is timed, their logits are compared. They take turns in rounds, and a ratio is that
of one round: what the machine does besides falls on all of them. Peak memory comes from a process of its own
for each.

The results go to _build/peers.json; `--json book/15_benchmarks.json` is what chapter 15 shows.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt import data, sample
from minigpt.checkpoint import from_gpt2
from minigpt.model import GPTConfig, MiniGPT
from minigpt.train import make_optimizer
from tools import course, stamp

PEER = "llms-from-scratch==1.0.19"
PEERS = course.BUILD / "peers"  # where it is installed, away from the environment
OURS, HF, BOOK, FAST = "Mini GPT", "transformers", "LLMs-from-scratch", "LLMs-from-scratch, fast"
UNCACHED, BOOK_UNCACHED = f"{OURS}, no cache", f"{BOOK}, no cache"
TRAINERS = (OURS, HF, BOOK, FAST)
CHARACTERS = len(data.CharacterTokenizer(data.documentation()).characters)


@dataclass(frozen=True)
class Size:
    n_layer: int
    n_head: int
    n_embd: int
    T: int
    B: int = 1
    V: int = CHARACTERS
    writers: tuple[str, ...] = (OURS, HF)  # who generates

    def __str__(self) -> str:
        return f"N={self.n_layer} C={self.n_embd} T={self.T} B={self.B} V={self.V}"


TRAINING = (Size(4, 4, 128, 64, 12), Size(6, 6, 384, 256, 4))
GENERATION = (
    # the cache of the book's package raises an error in this version, so it is measured without
    Size(4, 4, 128, 256, writers=(OURS, HF, UNCACHED, BOOK_UNCACHED)),
    Size(6, 6, 384, 1024, writers=(OURS, HF, UNCACHED)),
    Size(12, 12, 768, 256, V=50257),
)
TINY = Size(1, 2, 8, 16, 2)  # warms up a process before its memory is measured

# ---------------------------------------------------------------- the models


def install() -> None:
    """The package of the book, without what it depends on: its models need torch alone."""
    if not (PEERS / "llms_from_scratch").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PEERS)]
        subprocess.run([*command, PEER], check=True)
    sys.path.insert(0, str(PEERS))


def build(name: str, size: Size) -> nn.Module:
    """A model of that size with random weights."""
    if name in (OURS, UNCACHED):
        sizes = {"n_layer": size.n_layer, "n_head": size.n_head, "n_embd": size.n_embd}
        return MiniGPT(GPTConfig(size.T, size.V, **sizes, activation="gelu_tanh"))
    if name == HF:
        from transformers import GPT2Config, GPT2LMHeadModel

        shape = {"n_positions": size.T, "n_layer": size.n_layer, "n_head": size.n_head, "n_embd": size.n_embd}
        dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        tokens = {"vocab_size": size.V, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
        return GPT2LMHeadModel(GPT2Config(**shape, **dropout, **tokens))
    from llms_from_scratch import ch04

    config = {
        "vocab_size": size.V,
        "context_length": size.T,
        "emb_dim": size.n_embd,
        "n_heads": size.n_head,
        "n_layers": size.n_layer,
        "drop_rate": 0.0,
        "qkv_bias": True,
    }
    model = (ch04.GPTModelFast if name == FAST else ch04.GPTModel)(config)
    model.out_head.weight = model.tok_emb.weight  # tied, as GPT-2 is
    return model


def book_weights(ours: MiniGPT, fused: bool) -> dict[str, Tensor]:
    """The weights of a Mini GPT under the names of the book."""
    names = {
        "wte": "tok_emb",
        "wpe": "pos_emb",
        "h": "trf_blocks",
        "ln_1.weight": "norm1.weight" if fused else "norm1.scale",
        "ln_1.bias": "norm1.bias" if fused else "norm1.shift",
        "ln_2.weight": "norm2.weight" if fused else "norm2.scale",
        "ln_2.bias": "norm2.bias" if fused else "norm2.shift",
        "attn.c_attn": "att.qkv",
        "attn.c_proj": "att.proj" if fused else "att.out_proj",
        "mlp.c_fc": "ff.layers.0",
        "mlp.c_proj": "ff.layers.2",
        "ln_f.weight": "final_norm.weight" if fused else "final_norm.scale",
        "ln_f.bias": "final_norm.bias" if fused else "final_norm.shift",
        "lm_head": "out_head",
    }
    state = {}
    for name, value in ours.state_dict().items():
        for old, new in names.items():
            name = name.replace(f"{old}.", f"{new}.") if "." not in old else name.replace(old, new)
        if "att.qkv" in name and not fused:
            for part, rows in zip(("W_query", "W_key", "W_value"), value.chunk(3), strict=True):
                state[name.replace("qkv", part)] = rows
        else:
            state[name] = value
    return state


def same_models(names: tuple[str, ...], size: Size, where: torch.device) -> dict[str, nn.Module]:
    """One model for each name, all with the weights of the first GPT-2; checked by their logits."""
    torch.manual_seed(1)
    models = {HF: build(HF, size)}
    models[OURS] = models[UNCACHED] = ours = from_gpt2(models[HF].state_dict(), n_head=size.n_head)
    for name in names:
        if name.startswith(BOOK):
            models[name] = build(name, size)
            state = book_weights(ours, name == FAST)
            missing = models[name].load_state_dict(state, strict=False)[0]
            assert all(name.endswith("mask") for name in missing), missing
    ids = torch.randint(size.V, (1, size.T), device=where)
    for model in models.values():
        model.to(where)
    with torch.no_grad():
        logits = {name: logits_of(model, ids) for name, model in models.items()}
    for name, value in logits.items():
        torch.testing.assert_close(value, logits[OURS], atol=1e-4, rtol=0, msg=f"{name}: other logits")
    return {name: models[name] for name in names}


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    """ids [B, T] -> logits [B, T, V]."""
    found = model(ids, use_cache=False) if "GPT2" in repr(type(model)) else model(ids)
    return found if isinstance(found, Tensor) else found[0]


# ---------------------------------------------------------------- what is measured


class Steps:
    """Train steps: loss, gradient, clipping, AdamW. The same for all, except for the call of the model."""

    def __init__(self, name: str, model: nn.Module, ids: Tensor, targets: Tensor, bfloat16: bool) -> None:
        self.name, self.model, self.ids, self.targets = name, model.train(), ids, targets
        self.optimizer = make_optimizer(model, learning_rate=1e-4, weight_decay=0.1)
        self.parameters = list(model.parameters())
        self.bfloat16 = bfloat16

    def loss(self) -> Tensor:
        if self.name == OURS:
            return self.model(self.ids, self.targets)[1]
        found = self.model(self.ids, use_cache=False).logits if self.name == HF else self.model(self.ids)
        return F.cross_entropy(found.flatten(0, 1), self.targets.flatten())

    def __call__(self) -> None:
        with torch.autocast(self.ids.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def write(name: str, model: nn.Module, new_tokens: int, where: torch.device) -> Tensor:
    """new_tokens greedy ids after one id 0 -> [1, 1 + new_tokens]."""
    ids = torch.zeros(1, 1, dtype=torch.int64, device=where)
    if name in (OURS, UNCACHED):
        return sample.generate(model, ids, new_tokens, temperature=0, cache=name == OURS)
    if name == HF:
        length = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        mask = torch.ones_like(ids)  # without it, id 0 would count as padding
        return model.generate(ids, attention_mask=mask, do_sample=False, **length)
    from llms_from_scratch import ch04

    return ch04.generate_text_simple(model, ids, new_tokens, context_size=new_tokens + 1)


def batch(size: Size, where: torch.device) -> tuple[Tensor, Tensor]:
    text = data.documentation()
    tokens = data.CharacterTokenizer(text).encode(text)
    ids, targets = data.batch(tokens, size.T, size.B, np.random.default_rng(1))
    return ids.to(where), targets.to(where)


# ---------------------------------------------------------------- time


def seconds(work: Callable[[], object], where: torch.device, repeat: int = 1) -> float:
    finish = torch.cuda.synchronize if where.type == "cuda" else lambda: None
    finish()
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    finish()
    return (time.perf_counter() - start) / repeat


def in_turns(works: dict[str, Callable[[], object]], where: torch.device, rounds: int, least: float) -> dict:
    """Seconds of each piece of work in each round. Each round has an order of its own, since what ran before
    leaves its mark on caches and on the memory that is free.
    """
    names = list(works)
    repeats, order = dict.fromkeys(names, 1), np.random.default_rng(1)
    for name in names if least else []:  # the first run warms up
        once = min(seconds(works[name], where) for _ in range(3))
        repeats[name] = max(1, round(least / once))
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        print(f"\r  round {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        for name in order.permutation(names):
            found[name].append(seconds(works[name], where, repeats[name]))
    print("\r" + " " * 30 + "\r", end="", file=sys.stderr, flush=True)
    return found


def quartiles(values: list[float]) -> list[float]:
    """A quarter of the values lie below the first, half below the second, a quarter above the third."""
    return [float(q) for q in np.quantile(values, (0.25, 0.5, 0.75))]


def rows(kind: str, size: Size, times: dict[str, list[float]], scale: float) -> list[dict[str, Any]]:
    """One row for each name: its time, and its time over that of Mini GPT in the same round."""
    return [
        {
            "what": kind,
            "size": str(size),
            "who": name,
            "ms": quartiles([1000 * value / scale for value in values]),
            "ratio": quartiles([value / ours for value, ours in zip(values, times[OURS], strict=True)]),
        }
        for name, values in times.items()
    ]


def products(step: Steps) -> float:
    """The share of a step's time in matrix products and attention, which a compiler leaves as they are."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(5):
            step()
    times = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    named = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product")
    return sum(time for key, time in times.items() if key.startswith(named)) / sum(times.values())


def training(size: Size, options: argparse.Namespace, where: torch.device) -> list[dict[str, Any]]:
    ids, targets = batch(size, where)
    models = same_models(TRAINERS, size, where)
    works: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        works[name] = Steps(name, model, ids, targets, options.bfloat16)
    if options.compile:
        for name, model in same_models(TRAINERS, size, where).items():
            works[f"{name}, compiled"] = Steps(name, torch.compile(model), ids, targets, options.bfloat16)
    found = rows("train step", size, in_turns(works, where, options.rounds, least=0.3), 1)
    if where.type == "cpu":
        found[0]["products"] = products(works[OURS])
    return found


def generation(size: Size, options: argparse.Namespace, where: torch.device) -> list[dict[str, Any]]:
    models = same_models(size.writers, size, where)
    new = size.T - 1
    works: dict[str, Callable[[], object]] = {
        name: partial(write, name, model.eval(), new, where) for name, model in models.items()
    }
    first = {name: write(name, model, 8, where)[0].tolist() for name, model in models.items()}
    assert all(text == first[OURS] for text in first.values()), first
    rounds = max(3, options.rounds // 3)
    return rows("new token", size, in_turns(works, where, rounds, least=0), new)


# ---------------------------------------------------------------- memory


def resident(field: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise SystemExit("peak memory: this system does not tell")


def peak(kind: str, name: str, size: Size, bfloat16: bool, where: torch.device) -> int:
    """Bytes at the highest moment of this process, over what it had before the model was built."""

    def work(size: Size, count: int) -> None:
        model = build(name, size).to(where)
        if kind == "new token":
            write(name, model.eval(), size.T - 1 if count == 1 else count, where)
            return
        step = Steps(name, model, *batch(size, where), bfloat16)
        for _ in range(count):
            step()

    work(TINY, 2)  # imports and kernels are there, and count for nobody
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work(size, 3 if kind == "train step" else 1)
        return torch.cuda.max_memory_allocated() - before
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    work(size, 3 if kind == "train step" else 1)
    return resident("VmHWM") - before


def memory(kind: str, name: str, number: int, options: argparse.Namespace) -> float:
    """The median of three such processes, in MB."""
    same = ["--device", options.device, "--threads", str(options.threads)]
    call = [sys.executable, __file__, *same, "--peak", kind, name, str(number)]
    found = []
    for _ in range(3):
        done = subprocess.run(
            call + ["--bfloat16"] * options.bfloat16, check=True, capture_output=True, text=True
        )
        found.append(int(done.stdout.split()[-1]) / 1e6)
    return statistics.median(found)


# ---------------------------------------------------------------- the command


def machine(where: torch.device) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    return {
        "device": torch.cuda.get_device_name() if where.type == "cuda" else "CPU",
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),  # of other work, before the run
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **versions,
        "llms-from-scratch": PEER.split("==")[1],
    }


def table(results: dict[str, Any]) -> None:
    print(f"{results['machine']}\nmedians (quartiles)")
    last = ""
    for row in results["rows"]:
        head = f"{row['what']}, {row['size']}"
        if head != last:
            print(f"\n{head}\n{'':<36}{'ms':>10}{'':<22}{'of Mini GPT':>12}{'':<16}{'peak MB':>10}")
            last = head
        (a, b, c), (d, e, f) = row["ms"], row["ratio"]
        spread = f"({a:.2f} to {c:.2f})"
        mega = f"{row['peak_mb']:.0f}" if "peak_mb" in row else "-"
        print(f"{row['who']:<36}{b:>10.2f} {spread:<21}{e:>12.2f} {f'({d:.2f} to {f:.2f})':<15}{mega:>10}")
        if "products" in row:
            print(f"{'    of which products and attention':<36}{row['products']:>10.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bfloat16", action="store_true", help="mixed precision")
    parser.add_argument("--compile", action="store_true", help="the compiled models as well")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, default=course.BUILD / "peers.json", metavar="FILE")
    parser.add_argument("--only", choices=("training", "generation"), help="keep the other rows of FILE")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)  # what a process of its own is asked for
    options = parser.parse_args()
    where = torch.device(options.device)
    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)
    install()
    if options.peak:
        kind, name, number = options.peak
        size = (TRAINING if kind == "train step" else GENERATION)[int(number)]
        print(peak(kind, name, size, options.bfloat16, where))
        return
    found: list[dict[str, Any]] = []
    about = machine(where)
    about |= {"dtype": "bfloat16, mixed" if options.bfloat16 else "float32", "rounds": options.rounds}
    before: dict[str, Any] = {"rows": []}
    if options.only and options.json.is_file():  # what is not measured now stays as it was
        before = json.loads(options.json.read_text(encoding="utf-8"))
        if {**before["machine"], "load": 0} != {**about, "load": 0}:
            raise SystemExit(f"{options.json}: made on another machine or with other settings, left alone")
    for kind, sizes, measure in (("train step", TRAINING, training), ("new token", GENERATION, generation)):
        if options.only not in (None, measure.__name__):
            continue
        for number, size in enumerate(sizes):
            print(f"{kind}, {size}", file=sys.stderr, flush=True)
            for row in measure(size, options, where):
                if not row["who"].endswith(("compiled", "no cache")):
                    row["peak_mb"] = memory(kind, row["who"], number, options)
                found.append(row)
    measured = {row["what"] for row in found}
    found += [row for row in before["rows"] if row["what"] not in measured]
    found.sort(key=lambda row: row["what"], reverse=True)  # training first
    results = {"machine": about, "rows": found}
    table(results)
    stamp.write(options.json, (json.dumps(results, indent=1) + "\n").encode())
    print(f"\nwritten to {course.short(options.json.resolve())}")


if __name__ == "__main__":
    main()
