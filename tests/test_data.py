"""Text as numbers: the tokenizer, files of tokens, windows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt import data
from minigpt.data import CharacterTokenizer

# ---------------------------------------------------------------- the tokenizer


@reference.FEW
@given(st.text(st.characters(), min_size=1, max_size=40))  # surrogates and all planes included
def test_round_trip(text: str) -> None:
    tokenizer = CharacterTokenizer(text)
    ids = tokenizer.encode(text)
    assert tokenizer.characters == "".join(sorted(set(text)))
    assert ids.tolist() == [sorted(set(text)).index(character) for character in text]
    assert ids.dtype == np.uint16 and tokenizer.decode(ids) == text
    assert CharacterTokenizer(tokenizer.characters).characters == tokenizer.characters


def test_decode_takes_tensors_arrays_and_lists() -> None:
    tokenizer = CharacterTokenizer("abc")
    for ids in ([2, 0], np.array([2, 0]), torch.tensor([2, 0]), (2, 0)):
        assert tokenizer.decode(ids) == "ca"
    assert tokenizer.decode([]) == "" and tokenizer.encode("").tolist() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abé", "text: got 'é' at position 2, which is not among the 3 characters of the vocabulary"),
        ("Xab", "text: got 'X' at position 0"),
        ("a\U0001f600", "text: got '\U0001f600' at position 1"),
        ("aac~\n", "text: got '~' at position 3"),
    ],
)
def test_an_unknown_character_is_named_with_its_position(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        CharacterTokenizer("abc").encode(text)


@pytest.mark.parametrize(
    ("ids", "kind", "words"),
    [
        ([0, 3], ValueError, "ids: got values from 0 to 3, expected 0 to 2"),
        ([-1], ValueError, "ids: got values from -1 to -1"),
        ([[0]], TypeError, "ids: got shape [1, 1] of int64, expected [n] of whole numbers"),
        ([0.5], TypeError, "ids: got shape [1] of float64"),
    ],
)
def test_wrong_ids_are_named(ids: list[object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(words)):
        CharacterTokenizer("abc").decode(ids)


def test_a_vocabulary_has_1_to_65536_characters() -> None:
    everything = "".join(map(chr, range(0xE000, 0xE000 + 2**16)))
    tokenizer = CharacterTokenizer(everything)
    assert (
        tokenizer.encode(everything[-1]).tolist() == [65535] and tokenizer.decode([65535]) == everything[-1]
    )
    for text, count in (("", 0), (everything + "a", 65537)):
        with pytest.raises(ValueError, match=f"text: got {count} different characters, expected 1 to 65536"):
            CharacterTokenizer(text)


# ---------------------------------------------------------------- text


def test_the_default_text_is_pythons_documentation() -> None:
    from pydoc_data.topics import topics

    text = data.read_text()
    assert text == data.documentation() and len(text) > 300_000
    assert text.startswith(topics[min(topics)]) and text.endswith(topics[max(topics)])
    assert sum(map(len, topics.values())) == len(text)


def test_text_files(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffé\r\nb\n".encode())
    assert data.read_text(path) == "é\nb\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; expected a text file"),
        (b"abc\xff\xfe", "got byte 0xff at 3, which is not UTF-8"),
        (b"ab\0c", "got a zero byte at 2, so it is binary"),
        (bytes(range(128, 256)), "got byte 0x80 at 0"),
    ],
)
def test_no_text(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: {words}")):
        data.read_text(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(FileNotFoundError, match="^" + re.escape(f"{path}: no such file")):
            data.read_text(path)


# ---------------------------------------------------------------- tokens on the disk


def test_tokens_are_two_bytes_each_and_mapped(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    data.write_tokens(path, np.array([1, 258, 65535]))
    assert path.read_bytes() == b"\x01\x00\x02\x01\xff\xff" and list(tmp_path.iterdir()) == [path]
    tokens = data.open_tokens(path)
    assert isinstance(tokens, np.memmap) and tokens.tolist() == [1, 258, 65535]
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 2
    for content in (b"", b"abc"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"got {len(content)} bytes, expected 2 for each"):
            data.open_tokens(path)


def test_split_is_by_position() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    first, second = data.split(tokens, 0.1, 4)
    assert first.tolist() == list(range(90)) and second.tolist() == list(range(90, 100))
    assert [len(part) for part in data.split(tokens, 0.05, 4)] == [95, 5]
    with pytest.raises(
        ValueError, match=re.escape("text: got 100 tokens, of which 5 for validation; expected at")
    ):
        data.split(tokens, 0.05, 5)
    with pytest.raises(ValueError, match=r"of which 5 for training; expected at least block_size \+ 1 = 6"):
        data.split(tokens, 0.95, 5)
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=f"validation: got {fraction}"):
            data.split(tokens, fraction, 4)


# ---------------------------------------------------------------- windows


def test_block_size_and_one_more_token_give_exactly_one_window_at_0() -> None:
    tokens = np.arange(10, 15, dtype=np.uint16)
    assert data.window_count(tokens, 4) == 1
    ids, targets = data.batch(tokens, 4, 3, np.random.default_rng(0))
    assert ids.tolist() == [[10, 11, 12, 13]] * 3 and targets.tolist() == [[11, 12, 13, 14]] * 3
    for short in (0, 1, 4):
        with pytest.raises(
            ValueError, match=re.escape(f"tokens: got {short} for block_size 4, expected at least")
        ):
            data.batch(tokens[:short], 4, 3, np.random.default_rng(0))


@reference.FEW
@given(st.integers(0, 2**31 - 1), st.integers(1, 5), st.integers(1, 6), st.integers(1, 7))
def test_targets_are_the_text_one_token_later(seed: int, T: int, more: int, B: int) -> None:
    tokens = np.arange(500, 500 + T + more, dtype=np.uint16)
    ids, targets = data.batch(tokens, T, B, np.random.default_rng(seed))
    assert ids.shape == targets.shape == (B, T) and ids.dtype is targets.dtype is torch.int64
    starts = ids[:, :1]
    assert torch.equal(ids, starts + torch.arange(T)) and torch.equal(targets, ids + 1)
    assert starts.min() >= 500 and targets.max() < 500 + T + more
    again = data.batch(tokens, T, B, np.random.default_rng(seed))
    assert torch.equal(again[0], ids) and ids.is_contiguous() and targets.is_contiguous()


def test_every_window_is_drawn_equally_often() -> None:
    ids, _ = data.batch(np.arange(9, dtype=np.uint16), 4, 20_000, np.random.default_rng(1))
    share = ids[:, 0].bincount() / 20_000
    assert len(share) == 5 and (share - 0.2).abs().max() < 0.01


def test_windows_at_given_starts() -> None:
    tokens = np.arange(9, dtype=np.uint16)
    ids, targets = data.windows(tokens, 3, np.array([5, 0]))
    assert ids.tolist() == [[5, 6, 7], [0, 1, 2]] and targets.tolist() == [[6, 7, 8], [1, 2, 3]]
    for starts in ([6], [-1], []):
        with pytest.raises(ValueError, match=r"starts: got .* expected at least one, from 0 to 5"):
            data.windows(tokens, 3, np.array(starts, int))
