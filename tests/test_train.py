"""Training: its parts against plain computations, runs that break off, several processes, what is refused."""

from __future__ import annotations

import csv
import itertools
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_checkpoint import full_disk

from minigpt import checkpoint, data, runs, settings, train
from minigpt.model import GPTConfig, MiniGPT
from minigpt.processes import World
from minigpt.settings import TrainConfig
from minigpt.train import Trainer, learning_rate, make_optimizer

TEXT = "".join(random.Random(0).choices("abcdefgh \n", k=600))
TINY = TrainConfig(
    block_size=8, n_layer=1, n_head=2, n_embd=8, steps=9, batch_size=4, warmup_steps=3, eval_every=4,
    eval_windows=5, device="cpu", dtype="float64", learning_rate=0.01, min_learning_rate=0.001,
)  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> TrainConfig:
    (tmp_path / "text.txt").write_text(TEXT)
    return replace(TINY, data=str(tmp_path / "text.txt"), out=str(tmp_path / "run"))


def trainer(config: TrainConfig = TINY, world: World | None = None, **choices: Any) -> Trainer:
    tokens = data.CharacterTokenizer(TEXT).encode(TEXT)
    torch.manual_seed(config.seed)
    model = MiniGPT(replace(config.model(10), **choices))
    return Trainer(model, config, *data.split(tokens, config.validation, config.block_size), world)


def table(folder: str | Path) -> list[dict[str, str]]:
    with open(Path(folder) / "losses.csv", newline="") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- the parts


def test_only_matrices_decay_and_tied_weights_are_one() -> None:
    model = MiniGPT(GPTConfig(block_size=8, vocab_size=11, n_layer=2, n_head=2, n_embd=8))
    optimizer = make_optimizer(model, 0.1, 0.5)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == sum(len(group["params"]) for group in optimizer.param_groups)
    named = dict(model.named_parameters())
    assert {id(p) for p in named.values()} == decay.keys() and "lm_head.weight" not in named
    for name, parameter in named.items():
        assert decay[id(parameter)] == (0.5 if re.search(r"(wte|wpe|c_\w+)\.weight$", name) else 0), name


def test_an_update_follows_indices_and_not_memory() -> None:
    start, slope = torch.randn(2, 3, 5, dtype=torch.float64)
    gains = torch.ones(5, dtype=torch.float64)
    results = []
    for turned_parameter, turned_gradient in itertools.product((False, True), repeat=2):
        model = torch.nn.Linear(5, 3, bias=False, dtype=torch.float64)
        model.gains = torch.nn.Parameter(gains.clone())
        model.weight.data = start.T.contiguous().T if turned_parameter else start.clone()
        optimizer = make_optimizer(model, 0.1, 0.5)
        for _ in range(3):
            model.weight.grad = slope.T.contiguous().T if turned_gradient else slope.clone()
            model.gains.grad = gains.clone()
            optimizer.step()
        results.append(model.weight.detach())
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-15)


def test_learning_rate_rises_and_falls() -> None:
    config = replace(TINY, steps=103, warmup_steps=3, learning_rate=0.9, min_learning_rate=0.1)
    rates = [learning_rate(step, config) for step in range(104)]
    assert rates[:4] == pytest.approx([0.3, 0.6, 0.9, 0.9])
    assert rates[53] == pytest.approx(0.5) and rates[103] == pytest.approx(0.1)
    assert rates[28] == pytest.approx(0.1 + 0.4 * (1 + math.sqrt(0.5)))
    assert sorted(rates[3:], reverse=True) == rates[3:]
    assert learning_rate(0, replace(config, warmup_steps=0)) == 0.9
    assert learning_rate(2, replace(config, steps=2, warmup_steps=5)) == pytest.approx(0.54)  # still rising


def test_steps_are_those_of_a_loop_written_out() -> None:
    config = replace(TINY, clip=0.5, weight_decay=0.3)
    ours = trainer(config)
    losses = [ours.step() for _ in range(9)]
    torch.manual_seed(config.seed)
    model = MiniGPT(config.model(10)).double()
    rng, moments = np.random.default_rng(config.seed), {}
    tokens = data.CharacterTokenizer(TEXT).encode(TEXT)[:540]
    for n in range(9):
        starts = rng.integers(540 - 8, size=4)
        ids, targets = (
            torch.tensor(np.stack([tokens[s + k : s + k + 8] for s in starts]).astype(int)) for k in (0, 1)
        )
        logits = model(ids)[0].log_softmax(-1)
        loss = -logits.gather(-1, targets[..., None]).mean()
        assert losses[n] == pytest.approx(loss.item(), abs=1e-12)
        model.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        rate = 0.01 * (n + 1) / 3 if n < 3 else 0.001 + 0.0045 * (1 + math.cos(math.pi * (n - 3) / 6))
        with torch.no_grad():
            for p in model.parameters():  # AdamW, algorithm 2 of Loshchilov and Hutter 2019
                g = p.grad * min(1, 0.5 / (norm + 1e-6))
                m, v = moments.get(p, (0, 0))
                m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
                moments[p] = m, v
                p *= 1 - rate * (0.3 if p.ndim > 1 else 0)
                p -= rate * (m / (1 - 0.9 ** (n + 1))) / ((v / (1 - 0.95 ** (n + 1))).sqrt() + 1e-8)
    for (name, p), q in zip(model.named_parameters(), ours.model.parameters(), strict=True):
        assert (p - q).abs().max() < 1e-10, name


def test_evaluation_is_the_mean_over_the_same_windows_and_draws_nothing() -> None:
    ours = trainer(replace(TINY, dropout=0.3))
    state, batches = torch.get_rng_state(), str(ours.batches.bit_generator.state)
    loss = ours.evaluate()
    assert ours.evaluate() == loss and ours.evaluations == {0: loss}
    assert torch.equal(torch.get_rng_state(), state) and str(ours.batches.bit_generator.state) == batches
    tokens = data.CharacterTokenizer(TEXT).encode(TEXT)[540:].astype(int)
    starts = [0, 12, 25, 38, 51]  # 52 windows in 60 tokens
    with torch.no_grad():
        each = [
            ours.model(torch.tensor(tokens[s : s + 8])[None], torch.tensor(tokens[s + 1 : s + 9])[None])[1]
            for s in starts
        ]
    assert loss == pytest.approx(float(sum(each)) / 5, abs=1e-12)


def test_dropout_draws_are_those_of_the_seed_and_no_evaluation_changes_them() -> None:
    losses = []
    for seed in (1, 2):
        ours = trainer(replace(TINY, dropout=0.5))
        torch.manual_seed(seed)  # what a caller did before
        ours = Trainer(ours.model, ours.config, ours.training, ours.validation)
        if seed == 2:
            ours.evaluate()
        losses.append([ours.step() for _ in range(3)])
    assert losses[0] == losses[1] != [trainer().step() for _ in range(3)]


def test_the_loss_falls() -> None:
    ours = trainer(replace(TINY, steps=60, learning_rate=0.03))
    ours.training = np.array([1, 2, 3, 4] * 30, dtype=np.uint16)
    losses = [ours.step() for _ in range(60)]
    assert abs(losses[0] - math.log(10)) < 0.2 and losses[-1] < 0.1


def test_nothing_is_updated_by_a_loss_that_is_not_finite() -> None:
    ours = trainer()
    with torch.no_grad():
        ours.model.ln_f.weight[0] = math.nan
    before = ours.model.wpe.weight.clone()
    with pytest.raises(FloatingPointError, match="step 0: got a loss of nan with a gradient of norm nan"):
        ours.step()
    assert torch.equal(ours.model.wpe.weight, before) and ours.done == 0


def test_mixed_precision_keeps_weights_in_float32() -> None:
    mixed, exact = trainer(replace(TINY, dtype="bfloat16")), trainer(replace(TINY, dtype="float32"))
    seen = []
    mixed.model.h[0].mlp.c_fc.register_forward_hook(lambda _, __, result: seen.append(result.dtype))
    losses = [(mixed.step(), exact.step()) for _ in range(5)]
    assert set(seen) == {torch.bfloat16} and {p.dtype for p in mixed.model.parameters()} == {torch.float32}
    assert all(0 < abs(a - b) < 0.02 for a, b in losses)
    assert abs(mixed.evaluate() - exact.evaluate()) < 0.02


def test_bfloat16_only_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert train.has_bfloat16(torch.device("cpu"))
    monkeypatch.setattr(train, "has_bfloat16", lambda device: False)
    with pytest.raises(ValueError, match="dtype: got bfloat16, which cpu does not have; use float32"):
        trainer(replace(TINY, dtype="bfloat16"))


def test_compiled_steps_are_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="eager"))
    fast, plain = trainer(replace(TINY, compile=True)), trainer()
    for _ in range(4):
        assert fast.step() == pytest.approx(plain.step(), abs=1e-12)
    assert "_orig_mod" in next(iter(fast.forward.state_dict()))


# ---------------------------------------------------------------- a run


def test_a_run_and_its_files(tiny: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    done = train.train(tiny)
    out = Path(tiny.out)
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint.pt",
        "losses.csv",
        "losses.png",
        "tokens.bin",
    ]
    assert "9/9" in capsys.readouterr().err
    rows = table(out)
    assert [int(row["step"]) for row in rows] == list(range(10))
    assert [float(row["loss"]) for row in rows[:9]] == done.losses and rows[9]["loss"] == ""
    assert {
        int(r["step"]): float(r["validation_loss"]) for r in rows if r["validation_loss"]
    } == done.evaluations
    assert list(done.evaluations) == [0, 4, 8, 9]
    assert [float(row["learning_rate"]) for row in rows] == [learning_rate(n, tiny) for n in range(10)]
    found = checkpoint.read(out / "checkpoint.pt")
    assert found.characters == "\n abcdefgh" and found.training["config"] == asdict(tiny)
    assert torch.equal(found.weights["wte.weight"], done.model.wte.weight)
    assert (out / "losses.png").read_bytes().startswith(b"\x89PNG")
    again = train.train(replace(tiny, out=tiny.out + "2"), quiet=True)
    assert again.losses == done.losses and not capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_run_broken_off_anywhere_goes_on_to_the_same_losses(
    tiny: TrainConfig, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(tiny, dropout=0.2, dtype=dtype)
    unbroken = train.train(replace(tiny, out=tiny.out + "-whole"), quiet=True)
    step = Trainer.step
    for stop in range(9):
        config = replace(tiny, out=f"{tiny.out}-{stop}")

        def broken(self: Trainer, stop: int = stop) -> float:
            if self.done == stop:
                raise KeyboardInterrupt
            return step(self)

        monkeypatch.setattr(Trainer, "step", broken)
        with pytest.raises(KeyboardInterrupt):
            train.train(config, quiet=True)
        monkeypatch.setattr(Trainer, "step", step)
        torch.manual_seed(stop)  # whatever happens in between
        resumed = train.train(config, resume=True, quiet=True)
        assert resumed.losses == unbroken.losses and resumed.evaluations == unbroken.evaluations
        assert table(config.out) == table(tiny.out + "-whole")
        for p, q in zip(resumed.model.parameters(), unbroken.model.parameters(), strict=True):
            assert torch.equal(p, q)


def start(config: TrainConfig, *options: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "-m", "minigpt.train", *options]
    for name, value in asdict(config).items():
        if value not in ("", False):
            command.append(f"--{name.replace('_', '-')}={value}")
    kept = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in these tests, so that sums come in the same order
    return subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_kill_9_at_a_random_step(tiny: TrainConfig) -> None:
    config = replace(tiny, steps=2000, eval_every=7, dropout=0.2)
    process = start(config)
    path = Path(config.out) / "losses.csv"
    deadline = time.monotonic() + 60
    while not (path.exists() and len(table(config.out)) > 7):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    reached = len(checkpoint.read(Path(config.out) / "checkpoint.pt").training["losses"])
    assert 7 <= reached < 2000
    for name in os.listdir(config.out):
        assert name in ("checkpoint.pt", "losses.csv", "tokens.bin") or name.startswith(
            "."
        )  # a draft at most
    until = reached + 20

    def first(config: TrainConfig, resume: bool) -> list[float]:
        """The losses of the first steps of a run of 2000."""
        step, monkey = Trainer.step, pytest.MonkeyPatch()
        seen: list[float] = []

        def counted(self: Trainer) -> float:
            if self.done == until:
                seen.extend(self.losses)
                raise KeyboardInterrupt
            return step(self)

        monkey.setattr(Trainer, "step", counted)
        with monkey.context(), pytest.raises(KeyboardInterrupt):
            train.train(config, resume, quiet=True)
        monkey.undo()
        return seen

    assert first(config, True) == first(replace(config, out=config.out + "-whole", eval_every=1000), False)


def test_two_processes_see_the_joint_batch(tiny: TrainConfig) -> None:
    """The bound: a mean of two means is the same sum in another order, which in float64 is within 1e-12."""
    with start(
        tiny, launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ) as process:
        words, _ = process.communicate(timeout=120)
    assert process.returncode == 0, words
    alone = train.train(replace(tiny, out=tiny.out + "-alone"), quiet=True)
    together = table(tiny.out)
    assert [float(row["loss"]) for row in together[:9]] == pytest.approx(alone.losses, abs=1e-12)
    evaluations = [float(row["validation_loss"]) for row in together if row["validation_loss"]]
    assert evaluations == pytest.approx(list(alone.evaluations.values()), abs=1e-12)
    found = checkpoint.read(Path(tiny.out) / "checkpoint.pt")
    for name, parameter in alone.model.named_parameters():
        assert (found.weights[name] - parameter).abs().max() < 1e-10, name
    assert words.count("9 steps, validation loss") == 1
    with pytest.raises(ValueError, match="this run was made by 2 processes, now there are 1"):
        train.train(tiny, resume=True, quiet=True)


def test_processes_share_a_batch_equally() -> None:
    assert [World(rank, 3).share(12) for rank in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 12)]
    with pytest.raises(ValueError, match="batch_size: got 4, expected a multiple of the 3 processes"):
        trainer(world=World(0, 3))


# ---------------------------------------------------------------- nothing is lost


def test_a_full_disk_ends_a_run_and_loses_nothing(tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train.train(replace(tiny, out=tiny.out + "-whole"), quiet=True)
    save, calls = checkpoint.save, []

    def crowded(*arguments: Any) -> None:
        calls.append(1)
        with full_disk(4096 if len(calls) == 3 else 1 << 30):
            save(*arguments)

    monkeypatch.setattr(checkpoint, "save", crowded)
    with pytest.raises(OSError, match=r"not written \(File too large\); what was there before is unchanged"):
        train.train(tiny, quiet=True)
    assert sorted(os.listdir(tiny.out)) == ["checkpoint.pt", "losses.csv", "tokens.bin"]
    assert len(checkpoint.read(Path(tiny.out) / "checkpoint.pt").training["losses"]) == 4
    assert len(table(tiny.out)) == 5
    assert train.train(tiny, resume=True, quiet=True).losses == whole.losses


def test_a_run_is_not_overwritten(tiny: TrainConfig) -> None:
    train.train(tiny, quiet=True)
    path = Path(tiny.out) / "checkpoint.pt"
    content = path.read_bytes()
    with pytest.raises(ValueError, match=re.escape(f"out: {path} is there; --resume goes on with that run")):
        train.train(tiny, quiet=True)
    for change, words in [
        ({"learning_rate": 0.02, "steps": 10}, "steps: 9 then, 10 now; learning_rate: 0.01 then, 0.02 now"),
        ({"n_embd": 16}, "n_embd: 8 then, 16 now"),
        ({"data": ""}, "the text is not the one that this run began with"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            train.train(replace(tiny, **change), resume=True, quiet=True)
    assert train.train(tiny, resume=True, quiet=True).done == 9  # nothing left to do
    os.truncate(path, 1000)
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"cut short|is there"):
            train.train(tiny, resume=resume, quiet=True)
    assert path.read_bytes() == content[:1000]
    checkpoint.save(Path(tiny.out + "2.pt"), MiniGPT(tiny.model(10)))
    os.replace(tiny.out + "2.pt", path)
    with pytest.raises(ValueError, match="holds a model, but no training run to go on with"):
        train.train(tiny, resume=True, quiet=True)


# ---------------------------------------------------------------- refused before any work


def nothing_done(config: TrainConfig) -> bool:
    return not Path(config.out).exists() or not os.listdir(config.out)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; expected a text file"),
        (b"a", "nothing else; there is nothing to predict"),
        (b"a" * 500, "text: got 'a' and nothing else; there is nothing to predict"),
        (bytes(range(256)), "which is not UTF-8"),
        (b"abc\0" * 99, "so it is binary"),
        (b"ab" * 4, "text: got 8 tokens, of which 8 for training; expected at least block_size + 1 = 9"),
        (b"ab" * 40, "text: got 80 tokens, of which 8 for validation; expected at least block_size + 1 = 9"),
        (None, "no such file; expected a text file"),
    ],
)
def test_a_text_that_will_not_do(tiny: TrainConfig, content: bytes | None, words: str) -> None:
    path = Path(tiny.data)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises((ValueError, OSError), match=re.escape(words)):
        train.train(tiny, quiet=True)
    assert nothing_done(tiny)


def test_a_folder_that_will_not_do(tiny: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"out: got .*, which is not a folder"):
        train.train(replace(tiny, out=tiny.data), quiet=True)
    with pytest.raises(OSError, match="Not a directory"):
        train.train(replace(tiny, out=tiny.data + "/run"), quiet=True)
    with pytest.raises(ValueError, match="to resume from; leave --resume out to start a run"):
        train.train(tiny, resume=True, quiet=True)
    assert nothing_done(tiny) and Path(tiny.data).read_text() == TEXT


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"steps": 0}, "steps: got 0, expected at least 1"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"steps": 2.5}, "steps: got 2.5, expected int"),
        ({"steps": True}, "steps: got True, expected int"),
        ({"compile": 1}, "compile: got 1, expected bool"),
        ({"learning_rate": "high"}, "learning_rate: got 'high', expected float"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0, expected a finite number above 0"),
        ({"clip": math.nan}, "clip: got nan"),
        ({"min_learning_rate": 0.5}, "min_learning_rate: got 0.5, expected 0 to learning_rate = 0.001"),
        ({"weight_decay": -1.0}, "weight_decay: got -1.0"),
        ({"validation": 1.0}, "validation: got 1.0"),
        ({"warmup_steps": -1}, "warmup_steps: got -1"),
        ({"seed": -1}, "seed: got -1"),
        ({"dtype": "float16"}, "dtype: got 'float16', in which small gradients become 0"),
        ({"dtype": "int8"}, "dtype: got 'int8', expected one of float32, bfloat16, float64"),
        ({"n_head": 3}, "n_head: got 3, which does not divide n_embd = 128"),
        ({"dropout": 1.0}, "dropout: got 1.0"),
        ({"block_size": 0}, "block_size: got 0"),
    ],
)
def test_settings_out_of_range_are_named(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        replace(TrainConfig(learning_rate=1e-3, n_embd=128, n_head=4), **choice)


def test_yaml_below_the_command_line(
    tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.yaml"
    lines = [f"{name}: {value}" for name, value in asdict(tiny).items() if value not in ("", False)]
    path.write_text("\n".join(lines) + "\nmin_learning_rate: 1e-3\n")  # YAML reads 1e-3 as a text
    assert train.main(["--config", str(path), "--steps", "5"]) == 0
    found = checkpoint.read(Path(tiny.out) / "checkpoint.pt")
    assert found.training["config"] == asdict(replace(tiny, steps=5))
    assert "5 steps, validation loss" in capsys.readouterr().out
    assert train.main(["--out", tiny.out, "--resume"]) == 0  # the run knows its settings
    assert "5 steps, validation loss" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        train.main(["--out", tiny.out, "--resume", "--steps", "7"])
    assert "steps: 5 then, 7 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("stepz: 3\nlr: 1", "got stepz, lr; the settings are data, out, block_size"),
        ("- 1", "got list, expected lines such as `steps: 2000`"),
        ("", "got NoneType"),
        ("a: [", "not YAML"),
        ("learning_rate: high", "learning_rate: got 'high', expected a number"),
        ("steps: many", "steps: got 'many', expected int"),
        ("steps: 0", "steps: got 0"),
    ],
)
def test_yaml_that_will_not_do(
    tmp_path: Path, content: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        train.main(["--config", str(path), "--out", str(tmp_path / "run")])
    assert words in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_the_command_names_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in [
        (["--config", str(tmp_path / "none.yaml")], "none.yaml"),
        (["--device", "tpu"], "device: got 'tpu', this machine offers"),
        (["--data", str(tmp_path / "none.txt")], "none.txt: no such file"),
        (["--dtype", "float16"], "use bfloat16 or float32"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            train.main(["--out", str(tmp_path / "run"), *options])
        assert words in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_missing_packages(
    tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tqdm", "matplotlib.figure", "yaml", "safetensors"):
        monkeypatch.setitem(sys.modules, name, None)
    train.train(tiny)
    words = capsys.readouterr().err
    assert "pip install tqdm" in words and "no losses.png without matplotlib" in words
    with pytest.raises(ModuleNotFoundError, match=r"a\.yaml: needs the package PyYAML: pip install pyyaml"):
        settings.read_yaml("a.yaml")


def test_ctrl_c_says_how_to_go_on(
    tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", stop)
    assert train.main(["--out", tiny.out]) == 130
    assert "--resume" in capsys.readouterr().err


@reference.FEW
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=5))
def test_a_table_keeps_every_digit(tmp_path_factory: pytest.TempPathFactory, numbers: list[float]) -> None:
    path = tmp_path_factory.mktemp("table") / "losses.csv"
    runs.write_csv(path, ("a", "b"), [(number, None) for number in numbers])
    assert [(float(row["a"]), row["b"]) for row in table(path.parent)] == [(number, "") for number in numbers]
