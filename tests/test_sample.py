"""Sampling: the distribution against a plain Python one, texts, the command."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_cache import SMALL, gpt, random_ids

from minigpt import checkpoint, sample
from minigpt.sample import draw, generate, probabilities, stream

# ---------------------------------------------------------------- probabilities


def plain_python(logits: list[float], temperature: float, k: int | None, p: float | None) -> list[float]:
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return [float(i == order[0]) for i in range(len(logits))]
    powers = [math.exp((x - max(logits)) / temperature) for x in logits]
    kept = order[:k]
    if p is not None:
        total, held = math.fsum(powers[i] for i in kept), 0.0
        for n, i in enumerate(kept):
            held += powers[i] / total
            if held >= p - 1e-12:
                kept = kept[: n + 1]
                break
    total = math.fsum(powers[i] for i in kept)
    return [powers[i] / total if i in kept else 0.0 for i in range(len(logits))]


@reference.FEW
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=9),  # few values, so many ties
    st.sampled_from([0, 0.3, 1, 2.5]),
    st.one_of(st.none(), st.integers(1, 12)),
    st.one_of(st.none(), st.sampled_from([1e-9, 0.37, 0.53, 0.91, 0.999, 1])),
)
def test_probabilities_are_those_of_plain_python(
    logits: list[int], temperature: float, k: int | None, p: float | None
) -> None:
    got = probabilities(torch.tensor([logits, logits[::-1]]).float(), temperature, k, p)
    assert got.dtype is torch.float64
    for row, values in zip(got, (logits, logits[::-1]), strict=True):
        assert row.tolist() == pytest.approx(plain_python(values, temperature, k, p), abs=1e-12)


def row(logits: list[float], **choices: object) -> list[float]:
    return probabilities(torch.tensor([logits]), **choices)[0].tolist()


def test_ties_keep_exactly_k_lower_ids_first() -> None:
    assert row([1.0, 2.0, 2.0, 2.0, 2.0], top_k=2) == [0, 0.5, 0.5, 0, 0]
    assert row([2.0] * 5, top_p=0.4) == pytest.approx([0.5, 0.5, 0, 0, 0])
    assert row([0.0] * 4, top_p=0.5) == [0.5, 0.5, 0, 0]  # reached exactly
    assert row([1.0, 2.0, 2.0], temperature=0) == [0, 1, 0]
    many = probabilities(torch.zeros(3, 5000), top_k=1234)
    assert (many[:, :1234] - 1 / 1234).abs().max() < 1e-15 and not many[:, 1234:].any()


def test_filters_that_filter_nothing() -> None:
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(0)) * 30
    whole = probabilities(logits)
    for choice in ({"top_k": 30}, {"top_k": 31}, {"top_k": 10**9}, {"top_p": 1.0}, {"top_p": 1}):
        assert torch.equal(probabilities(logits, **choice), whole), choice
    assert (whole - logits.double().softmax(-1)).abs().max() < 1e-15


def test_top_p_counts_what_top_k_left() -> None:
    logits = [math.log(x) for x in (0.4, 0.3, 0.2, 0.1)]
    assert row(logits, top_k=2, top_p=0.56) == pytest.approx([1, 0, 0, 0])  # 0.4 / 0.7 = 0.571...
    assert row(logits, top_p=0.56) == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_extreme_temperatures_and_logits() -> None:
    assert row([0.0, 1.0, -1e30], temperature=1e-300) == [0, 1, 0]
    assert row([1e38, 0.0], temperature=1e-5) == [1, 0]
    assert row([0.0, -math.inf], temperature=2.0) == [1, 0]
    assert row([0.0, 1.0], temperature=1e300) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"temperature": -0.1}, "temperature: got -0.1, expected a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature: got nan"),
        ({"temperature": math.inf}, "temperature: got inf"),
        ({"top_k": 0}, "top_k: got 0, expected a whole number of at least 1"),
        ({"top_k": -1}, "top_k: got -1"),
        ({"top_k": 2.0}, "top_k: got 2.0"),
        ({"top_p": 0.0}, "top_p: got 0.0, expected 0 < top_p <= 1"),
        ({"top_p": 1.1}, "top_p: got 1.1"),
        ({"top_p": math.nan}, "top_p: got nan"),
    ],
)
def test_settings_out_of_range_are_named(choice: dict[str, object], words: str) -> None:
    for call in (lambda: row([0.0], **choice), lambda: stream(gpt(), random_ids(2), 3, **choice)):
        with pytest.raises(ValueError, match="^" + re.escape(words)):
            call()  # a stream refuses before its first token is asked for


def test_nan_is_refused() -> None:
    for temperature in (0, 1):
        with pytest.raises(ValueError, match="logits: got NaN; the weights of the model are broken"):
            row([0.0, math.nan], temperature=temperature)


# ---------------------------------------------------------------- draw


def test_draw_follows_the_probabilities() -> None:
    weights = torch.tensor([[0.5, 0.0, 0.25, 0.2, 0.05, 0.0]], dtype=torch.float64)
    ids = draw(weights.expand(20_000, 6), torch.Generator().manual_seed(0))
    share = ids[:, 0].bincount(minlength=6) / len(ids)
    assert (share - weights[0]).abs().max() < 0.012  # more than 3 standard deviations of 0.0035
    assert share[1] == share[5] == 0


def test_draw_uses_one_number_for_each_row() -> None:
    weights = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = torch.cat([draw(weights, generator) for _ in range(50)], 1)
    numbers = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for b, n in itertools.product(range(2), range(50)):
        expected = sum(float(end) <= numbers[n, b] for end in weights[b].cumsum(0)[:2])
        assert ids[b, n] == expected


def test_draw_at_both_ends_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = torch.zeros(1, 1, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: zero)
    assert draw(torch.tensor([[0.0, 0.0, 0.3, 0.7]], dtype=torch.float64)) == 2
    last = torch.tensor([[1 - 2.0**-53]], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: last)
    for sums in ([0.1] * 10, [1 / 3, 1 / 3, 1 / 3 + 1e-15], [0.7, 0.2, 0.1]):
        weights = torch.tensor([[*sums, 0.0, 0.0]], dtype=torch.float64)
        assert draw(weights) == len(sums) - 1


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("cache", [True, False])
def test_greedy_text_across_the_border_is_the_loop_written_out(cache: bool) -> None:
    made, ids = gpt(), random_ids(3)
    text = ids
    for _ in range(9):
        with torch.no_grad():
            text = torch.cat([text, made(text[:, -6:])[0][:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(generate(made, ids, 9, temperature=0, cache=cache), text)
    assert len(set(text[0].tolist())) > 2


@reference.FEW
@given(st.integers(0, 2**31 - 1), st.integers(1, 9), st.integers(0, 12))
def test_the_same_seed_gives_the_same_text_cached_or_not(seed: int, T: int, new: int) -> None:
    made, ids = gpt(), random_ids(T, seed=seed)
    first = generate(made, ids, new, 1.2, top_k=9, top_p=0.95, seed=seed)
    assert first.shape == (2, T + new) and torch.equal(first[:, :T], ids)
    torch.manual_seed(4)  # other random numbers in between do not matter
    assert torch.equal(generate(made, ids, new, 1.2, top_k=9, top_p=0.95, seed=seed, cache=False), first)


def test_seeds_differ_and_no_seed_follows_torch() -> None:
    made, ids = gpt(), random_ids(2)
    texts = [generate(made, ids, 20, seed=seed).tolist() for seed in range(4)]
    assert all(a != b for a, b in itertools.combinations(texts, 2))
    assert texts[0][0][2:] != texts[0][1][2:]
    torch.manual_seed(0)
    first, second = generate(made, ids, 20), generate(made, ids, 20)
    torch.manual_seed(0)
    assert torch.equal(generate(made, ids, 20), first) and not torch.equal(first, second)


def test_a_prompt_longer_than_the_context_counts_by_its_end() -> None:
    made, ids = gpt(), random_ids(15)
    long, short = generate(made, ids, 8, seed=1), generate(made, ids[:, -6:], 8, seed=1)
    assert torch.equal(long[:, 15:], short[:, 6:]) and torch.equal(long[:, :15], ids)


def test_stream_computes_only_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, calls = gpt(), []
    whole = generate(made, random_ids(2), 8, seed=5)
    forward = made.forward
    monkeypatch.setattr(made, "forward", lambda ids, **kw: calls.append(ids.shape[1]) or forward(ids, **kw))
    columns = stream(made, random_ids(2), 8, seed=5)
    assert not calls
    assert torch.equal(next(columns), whole[:, 2:3]) and calls == [2]
    assert torch.equal(next(columns), whole[:, 3:4]) and calls == [2, 1]
    rest = list(columns)
    assert torch.equal(torch.cat(rest, 1), whole[:, 4:]) and {column.shape for column in rest} == {(2, 1)}
    assert calls == [2, 1, 1, 1, 1, 6, 6, 6]  # one row each, until the window slides


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    made = gpt(replace(SMALL, dropout=0.5))
    quiet = generate(made, random_ids(2), 10, seed=0)
    made.train()
    columns = stream(made, random_ids(2), 10, seed=0)
    text = [random_ids(2)]
    for column in columns:
        assert made.training and made.h[0].mlp.training
        text.append(column)
    assert torch.equal(torch.cat(text, 1), quiet)
    assert not quiet.requires_grad and torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("ids", "new", "kind", "words"),
    [
        (torch.zeros(1, 0).long(), 3, ValueError, "ids: got an empty text; give at least one token"),
        (torch.tensor([[0, 11]]), 3, ValueError, "ids: got values from 0 to 11, expected 0 to 10"),
        (torch.tensor([[-1]]), 3, ValueError, "ids: got values from -1 to -1"),
        (torch.zeros(4).long(), 3, TypeError, "ids: got shape [4] of torch.int64, expected [B, T]"),
        (torch.zeros(1, 4), 3, TypeError, "ids: got shape [1, 4] of torch.float32"),
        (torch.zeros(0, 4).long(), 3, TypeError, "ids: got shape [0, 4]"),
        ([[0]], 3, TypeError, "ids: got list, expected a tensor [B, T]"),
        (torch.zeros(1, 1).long(), -1, ValueError, "new_tokens: got -1, expected a whole number"),
        (torch.zeros(1, 1).long(), 2.0, ValueError, "new_tokens: got 2.0"),
    ],
)
def test_wrong_input_is_named(ids: object, new: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(words)):
        stream(gpt(), ids, new)


def test_no_new_tokens() -> None:
    assert torch.equal(generate(gpt(), random_ids(3), 0), random_ids(3))


# ---------------------------------------------------------------- the command


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, gpt(), "\n abcdefghi")
    return path


def run(path: Path, *arguments: str) -> int:
    return sample.main(["--checkpoint", str(path), "--device", "cpu", *arguments])


def test_command_prints_the_text(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "abc", "--new-tokens", "30", "--seed", "2"]
    assert run(trained, *options) == 0
    text = capsys.readouterr().out
    assert text.startswith("abc") and text.endswith("\n") and len(text) == 34
    assert run(trained, *options, "--no-cache") == 0
    assert capsys.readouterr().out == text
    assert run(trained, "--prompt", "abc", "--new-tokens", "30", "--temperature", "0", "--top-k", "3") == 0
    ids = torch.tensor([[2, 3, 4]])
    expected = "".join("\n abcdefghi"[i] for i in generate(gpt(), ids, 30, temperature=0)[0])
    assert capsys.readouterr().out == expected + "\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", "abz"], "text: got 'z' at position 2, which is not among the 11 characters"),
        (["--prompt", ""], "--prompt: got an empty text; give at least one character to continue"),
        (["--temperature", "-1"], "temperature: got -1.0"),
        (["--top-k", "0"], "top_k: got 0"),
        (["--top-p", "2"], "top_p: got 2.0"),
        (["--new-tokens", "-1"], "new_tokens: got -1"),
        (["--device", "tpu"], "device: got 'tpu', this machine offers"),
        (["--checkpoint", "nowhere.pt"], "nowhere.pt: no such file"),
        (["--checkpoint", __file__], "not a checkpoint"),
    ],
)
def test_command_names_what_is_wrong(
    trained: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(trained, *options)
    captured = capsys.readouterr()
    assert words in captured.err and not captured.out


def test_command_needs_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.save(tmp_path / "bare.pt", gpt())
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path / "bare.pt")
    assert "has no characters" in capsys.readouterr().err


def test_command_as_a_process_ends_quietly_when_nobody_listens(trained: Path) -> None:
    command = [sys.executable, "-m", "minigpt.sample", "--checkpoint", str(trained), "--new-tokens", "100000"]
    with subprocess.Popen(
        [*command, "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read(20)) == 20
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
