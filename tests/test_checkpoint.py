"""Checkpoints: what is saved comes back, what is wrong is refused, and GPT-2 against transformers."""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cache import SMALL, gpt, random_ids

from minigpt import checkpoint, files
from minigpt.model import GPTConfig, MiniGPT


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def same(one: MiniGPT, other: MiniGPT) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


# ---------------------------------------------------------------- save and load


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_saved_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "checkpoint.pt"
    config = replace(
        SMALL, eps=0.25, activation="relu", norm_order="post", bias=False, n_hidden=5, dropout=0.1
    )
    made = gpt(config).to(dtype).train()
    training = {"step": 3, "rows": [(1, 0.1)], "big": 2**100, "t": torch.arange(3), "none": None}
    checkpoint.save(path, made, "abc", training)
    assert list(tmp_path.iterdir()) == [path]
    before = torch.get_rng_state()
    back = checkpoint.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert back.config == config and same(back, made) and not back.training
    assert back.wte.weight.dtype is dtype and back.lm_head.weight is back.wte.weight
    found = checkpoint.read(path)
    assert found.characters == "abc" and found.config == config
    assert torch.equal(found.training.pop("t"), training.pop("t")) and found.training == training
    assert (
        path.stat().st_size < sum(p.nbytes for p in made.parameters()) + 15_000
    )  # the tied head is there once
    plain = torch.load(path, weights_only=True)  # tensors and plain values only
    assert plain["config"]["norm_order"] == "post" and plain["config"]["eps"] == 0.25


def test_deepcopy_and_load_keep_the_tie(tmp_path: Path) -> None:
    made = gpt()
    checkpoint.save(tmp_path / "a.pt", copy.deepcopy(made))
    for other in (copy.deepcopy(made), checkpoint.load(tmp_path / "a.pt", into=MiniGPT(SMALL))):
        assert other.lm_head.weight is other.wte.weight
        assert sum(p.numel() for p in other.parameters()) == sum(made.count_parameters().values())


def compiled_whole(model: MiniGPT) -> Any:
    return torch.compile(model, backend="eager")


def compiled_blocks(model: MiniGPT) -> MiniGPT:
    for i, block in enumerate(model.h):
        model.h[i] = torch.compile(block, backend="eager")
    return model


@pytest.mark.parametrize("compiled", [compiled_whole, compiled_blocks])
def test_compiled_and_plain_checkpoints_load_into_each_other(
    tmp_path: Path, compiled: Callable[[MiniGPT], Any]
) -> None:
    plain, fast, ids = gpt(), compiled(gpt(seed=1)), random_ids(5)
    assert any("_orig_mod" in name for name in fast.state_dict())
    with torch.no_grad():
        expected = fast(ids)[0]
        checkpoint.save(tmp_path / "fast.pt", fast)
        checkpoint.save(tmp_path / "plain.pt", plain)
        assert not [n for n in torch.load(tmp_path / "fast.pt")["weights"] if "_orig_mod" in n]
        assert (checkpoint.load(tmp_path / "fast.pt")(ids)[0] - expected).abs().max() < 1e-12
        taken = checkpoint.load(tmp_path / "plain.pt", into=fast)
        assert isinstance(taken, MiniGPT)
        assert (fast(ids)[0] - plain(ids)[0]).abs().max() < 1e-12
        assert (expected - plain(ids)[0]).abs().max() > 0.1
    raw = torch.load(
        tmp_path / "fast.pt"
    )  # names with the prefix, as torch.save(model.state_dict()) has them
    raw["weights"] = {f"_orig_mod.{name}": tensor for name, tensor in raw["weights"].items()}
    torch.save(raw, tmp_path / "prefix.pt")
    assert same(checkpoint.load(tmp_path / "prefix.pt"), checkpoint.load(tmp_path / "fast.pt"))


def test_load_into_keeps_dtype_and_ignores_dropout_and_path(tmp_path: Path) -> None:
    made = gpt()
    checkpoint.save(tmp_path / "a.pt", made)
    into = MiniGPT(replace(SMALL, dropout=0.3, flash=False, n_hidden=32)).train()  # 32 is 4 C, as None says
    assert checkpoint.load(tmp_path / "a.pt", into=into) is into
    assert into.wte.weight.dtype is torch.float32 and into.training and into.config.dropout == 0.3
    assert torch.equal(into.wte.weight, made.wte.weight.float())


# ---------------------------------------------------------------- refused, and never overwritten


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = torch.load(path)
        change(content)
        torch.save(content, path)

    return write


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def flip(path: Path) -> None:
    """Another bit in the numbers of a tensor; torch.load alone does not notice."""
    content = bytearray(path.read_bytes())
    place = content.index(gpt().wpe.weight.detach().numpy().tobytes()[:64])
    content[place] ^= 1
    path.write_bytes(content)
    torch.load(path)


def weight(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Path], None]:
    return edited(lambda c: c["weights"].update({name: change(c["weights"][name])}))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "not a checkpoint, or one that was cut short"),
    "text": (lambda path: path.write_text("my diary"), "not a checkpoint, or one that was cut short"),
    "cut at 1 %": (cut(0.01), "cut short"),
    "cut at half": (cut(0.5), "cut short"),
    "cut at the end": (cut(0.999), "cut short"),
    "other version": (edited(lambda c: c.update(version=2)), "got version 2, this minigpt reads 1"),
    "no version": (edited(lambda c: c.pop("version")), "got version None"),
    "no minigpt": (edited(lambda c: c.pop("format")), "not a checkpoint of minigpt"),
    "other zip": (lambda path: torch.save([1, 2], path), "not a checkpoint of minigpt"),
    "object": (
        edited(lambda c: c["training"].update(x=Path("a"))),
        "holds a Python object other than tensors",
    ),
    "code": (edited(lambda c: c.update(config=GPTConfig())), "holds a Python object other than tensors"),
    "no weights": (edited(lambda c: c.pop("weights")), "damaged: missing, or of a wrong type: weights"),
    "no tensors": (weight("wpe.weight", lambda w: w.tolist()), "missing, or of a wrong type: weights"),
    "strange config": (edited(lambda c: c["config"].update(rope=1)), "its config is none of this minigpt"),
    "bad config": (edited(lambda c: c["config"].update(eps=-1.0)), "eps: got -1.0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_file_is_refused_and_stays(tmp_path: Path, what: str) -> None:
    path, (damage, words) = tmp_path / "checkpoint.pt", REFUSED[what]
    checkpoint.save(path, gpt())
    damage(path)
    content = path.read_bytes()
    for call in (lambda: checkpoint.load(path), lambda: checkpoint.save(path, gpt())):
        with pytest.raises(ValueError, match="^" + re.escape(str(path)) + ".*" + re.escape(words)):
            call()
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_pickled_object_does_not_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    path = tmp_path / "checkpoint.pt"
    torch.save({"format": "minigpt checkpoint", "version": 1, "x": Harm()}, path)
    with pytest.raises(ValueError, match="could run code of its author"):
        checkpoint.load(path)
    assert not (tmp_path / "harm").exists()


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, gpt())
    flip(path)
    with pytest.raises(ValueError, match="damaged: the checksum of its part"):
        checkpoint.load(path)


TENSORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        edited(lambda c: c["weights"].pop("ln_f.bias")),
        "does not fit the model:\n  ln_f.bias: missing, [8] in the model",
    ),
    "extra": (
        edited(lambda c: c["weights"].update({"h.2.ln_1.bias": torch.ones(8)})),
        "  h.2.ln_1.bias: [8] in the file, not in the model",
    ),
    "shape": (weight("wpe.weight", lambda w: w[:5]), "  wpe.weight: [5, 8] in the file, [6, 8] in the model"),
    "turned": (
        weight("h.1.mlp.c_fc.weight", lambda w: w.T),
        "  h.1.mlp.c_fc.weight: [8, 32] in the file, [32, 8] in the model",
    ),
    "whole numbers": (
        weight("wpe.weight", lambda w: w.int()),
        "  wpe.weight: torch.int32 in the file, expected floats",
    ),
    "untied": (weight("lm_head.weight", lambda w: w + 1), "lm_head.weight differs from wte.weight"),
}


@pytest.mark.parametrize("what", TENSORS)
def test_a_tensor_that_does_not_fit_is_named_and_nothing_is_taken(tmp_path: Path, what: str) -> None:
    path, (damage, words) = tmp_path / "checkpoint.pt", TENSORS[what]
    checkpoint.save(path, gpt())
    damage(path)
    into = gpt(seed=1)
    for call in (lambda: checkpoint.load(path), lambda: checkpoint.load(path, into=into)):
        with pytest.raises(ValueError, match="^" + re.escape(str(path)) + ": .*") as problem:
            call()
        assert words in str(problem.value)
    assert same(into, gpt(seed=1))


def test_a_head_that_is_left_out_is_the_table(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pt", gpt())
    edited(lambda c: c["weights"].pop("lm_head.weight"))(tmp_path / "a.pt")
    assert same(checkpoint.load(tmp_path / "a.pt"), gpt())


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"norm_order": "post"}, "norm_order: 'pre' in the file, 'post' in the model"),
        ({"eps": 1e-6}, "eps: 1e-05 in the file, 1e-06 in the model"),
        ({"activation": "gelu_tanh"}, "activation: 'gelu' in the file, 'gelu_tanh' in the model"),
        ({"n_head": 4}, "n_head: 2 in the file, 4 in the model"),
        ({"n_layer": 3, "block_size": 7}, "block_size: 6 in the file, 7 in the model\n  n_layer: 2 in"),
        ({"bias": False}, "bias: True in the file, False in the model"),
        ({"n_hidden": 16}, "n_hidden: 32 in the file, 16 in the model"),
    ],
)
def test_another_model_is_refused_and_never_overwritten(
    tmp_path: Path, choice: dict[str, Any], words: str
) -> None:
    path, other = tmp_path / "checkpoint.pt", gpt(replace(SMALL, **choice))
    checkpoint.save(path, gpt())
    content, weights = path.read_bytes(), copy.deepcopy(other)
    with pytest.raises(ValueError, match=re.escape(f"{path}: is of another model:\n  {words}")):
        checkpoint.load(path, into=other)
    with pytest.raises(ValueError, match=re.escape(words)):
        checkpoint.save(path, other)
    assert path.read_bytes() == content and same(other, weights)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, gpt())
    content = path.read_bytes()
    with (
        full_disk(len(content) // 2),
        pytest.raises(OSError, match=r"not written \(File too large\)") as problem,
    ):
        checkpoint.save(path, gpt(seed=1))
    assert problem.value.filename == str(path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="not written"):
        checkpoint.save(tmp_path / "nowhere" / "a.pt", gpt())
    with pytest.raises(FileNotFoundError, match="no such file"):
        checkpoint.load(tmp_path / "a.pt")
    with pytest.raises(TypeError, match="model: got Linear, expected a MiniGPT"):
        checkpoint.save(path, torch.nn.Linear(2, 2))


def test_files_are_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with files.written(path) as file:
        file.write(b"one")
        assert not path.exists()
    for error in (KeyboardInterrupt, RuntimeError, ZeroDivisionError):
        with pytest.raises(error, match="stop"), files.written(path) as file:
            file.write(b"two")
            raise error("stop")
    assert path.read_bytes() == b"one" and list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- GPT-2

SIZES = [  # V, T_max, C, N, H, F
    (101, 17, 48, 2, 3, None),
    (64, 8, 64, 1, 1, 64),  # square everywhere but in c_attn
    (50, 9, 32, 3, 4, 100),
    (7, 1, 4, 1, 2, 5),
]


def hugging(size: tuple[Any, ...] = SIZES[0], dtype: torch.dtype = torch.float32, **choices: Any) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    V, T_max, C, N, H, F = size
    sizes = {"vocab_size": V, "n_positions": T_max, "n_embd": C, "n_layer": N, "n_head": H, "n_inner": F}
    torch.manual_seed(0)
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **choices)
    made = transformers.GPT2LMHeadModel(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # biases and gains that matter too
            parameter += 0.1 * torch.randn_like(parameter)
    return made


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gpt2_logits_are_those_of_transformers(
    size: tuple[Any, ...], dtype: torch.dtype, bound: float
) -> None:
    theirs = hugging(size, dtype)
    ours = checkpoint.from_gpt2(theirs.state_dict(), n_head=size[4])
    assert not ours.training and ours.wte.weight.dtype is dtype and ours.config.activation == "gelu_tanh"
    ids = torch.randint(size[0], (2, size[1]))
    with torch.no_grad():
        for T in range(1, size[1] + 1):
            assert (ours(ids[:, :T])[0] - theirs(ids[:, :T]).logits).abs().max() < bound
    theirs.transformer.wte.weight.data += 1  # the weights were copied
    with torch.no_grad():
        assert (ours(ids)[0] - theirs(ids).logits).abs().max() > 1e-2


def test_gpt2_is_near_only_with_the_tanh_form() -> None:
    theirs = hugging(dtype=torch.float64)
    ours = checkpoint.from_gpt2(theirs.state_dict(), n_head=3, activation="gelu")
    ids = torch.randint(101, (2, 17))
    with torch.no_grad():
        assert 1e-6 < (ours(ids)[0] - theirs(ids).logits).abs().max() < 1e-2


Weights = dict[str, torch.Tensor]


def masks(weights: Weights) -> Weights:
    for i in range(2):
        weights[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 17, 17).tril().byte()
        weights[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    return weights


VARIANTS: dict[str, Callable[[Weights], Weights]] = {
    "masks": masks,
    "no prefix": lambda w: {name.removeprefix("transformer."): tensor for name, tensor in w.items()},
    "no head": lambda w: {name: tensor for name, tensor in w.items() if "lm_head" not in name},
    "masks, no prefix": lambda w: {k.removeprefix("transformer."): v for k, v in masks(w).items()},
    "half": lambda w: {name: tensor.half() for name, tensor in w.items()},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_gpt2_variants_of_the_layout(variant: str) -> None:
    weights = hugging().state_dict()
    expected = checkpoint.from_gpt2(weights, n_head=3)
    got = checkpoint.from_gpt2(VARIANTS[variant](dict(weights)), n_head=3)
    if variant == "half":
        assert got.wte.weight.dtype is torch.float32
        assert torch.equal(got.wte.weight, expected.wte.weight.half().float())
    else:
        assert same(got, expected)


def turned(*ends: str) -> Callable[[Weights], Weights]:
    """Matrices whose names end like this as [out, in], as nn.Linear has them."""
    return lambda w: {name: t.T.clone() if name.endswith(ends) else t for name, t in w.items()}


def named(change: dict[str, Callable[[Weights], Any]]) -> Callable[[Weights], Weights]:
    return lambda w: {**w, **{name: make(w) for name, make in change.items()}}


ALL = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
GPT2_REFUSED: dict[str, tuple[Callable[[Weights], Weights], list[str]]] = {
    "all turned": (
        turned(*ALL),
        [
            "already transposed; expected [in, out], as c_attn [C, 3C]:",
            "h.0.attn.c_attn.weight: got [144, 48]",
            "h.0.attn.c_proj.weight: got [48, 48]",  # square, so its shape says nothing
            "h.1.mlp.c_fc.weight: got [192, 48]",
        ],
    ),
    "one block turned": (
        turned("h.1.attn.c_attn.weight", "h.1.attn.c_proj.weight"),
        ["already transposed", "h.1.attn.c_attn.weight: got [144, 48]", "h.1.attn.c_proj.weight"],
    ),
    "one matrix turned": (
        turned("h.1.mlp.c_fc.weight"),
        ["h.1.mlp.c_fc.weight: [48, 192] in the file, [192, 48] in the model"],
    ),
    "missing": (
        lambda w: {name: t for name, t in w.items() if name != "transformer.h.0.ln_2.bias"},
        ["h.0.ln_2.bias: missing, [48] in the model"],
    ),
    "block missing": (
        lambda w: {name: t for name, t in w.items() if ".h.0." not in name},
        ["h.0.attn.c_attn.weight: missing", "h.0.mlp.c_proj.bias: missing"],
    ),
    "extra": (
        named({"transformer.h.0.crossattention.q.weight": lambda w: torch.ones(48, 48)}),
        ["h.0.crossattention.q.weight: [48, 48] in the file, not in the model"],
    ),
    "untied": (named({"lm_head.weight": lambda w: w["lm_head.weight"] + 1}), ["lm_head.weight differs from"]),
    "not causal": (
        named({"transformer.h.1.attn.bias": lambda w: torch.ones(1, 1, 17, 17)}),
        ["h.1.attn.bias: not the causal mask [1, 1, 17, 17]"],
    ),
    "twice": (named({"wte.weight": lambda w: torch.ones(101, 48)}), ["wte.weight: there twice"]),
    "whole numbers": (
        named({"transformer.ln_f.weight": lambda w: torch.ones(48).int()}),
        ["ln_f.weight: torch.int32 in the file, expected floats"],
    ),
    "another model": (lambda w: {"model.embed_tokens.weight": torch.ones(2, 2)}, ["no GPT-2: expected wte"]),
    "nothing": (lambda w: {}, ["no GPT-2: expected wte.weight [V, C]"]),
    "widths": (named({"transformer.wpe.weight": lambda w: torch.ones(17, 47)}), ["no GPT-2"]),
}


@pytest.mark.parametrize("what", GPT2_REFUSED)
def test_gpt2_a_wrong_state_dict_is_refused_by_name(what: str) -> None:
    change, words = GPT2_REFUSED[what]
    with pytest.raises(ValueError) as problem:
        checkpoint.from_gpt2(change(dict(hugging().state_dict())), n_head=3)
    for part in words:
        assert part in str(problem.value)


def test_gpt2_minigpts_own_weights_are_in_the_wrong_layout() -> None:
    with pytest.raises(ValueError, match="already transposed"):
        checkpoint.from_gpt2(gpt().state_dict(), n_head=2)


def test_gpt2_number_of_heads() -> None:
    weights = hugging().state_dict()
    with pytest.raises(ValueError, match="n_head: got None for width 48; a state dict does not say"):
        checkpoint.from_gpt2(weights)
    with pytest.raises(ValueError, match="n_head: got 5, which does not divide"):
        checkpoint.from_gpt2(weights, n_head=5)
    wide = hugging((5, 3, 768, 1, 12, 4))
    assert checkpoint.from_gpt2(wide.state_dict()).config.n_head == 12
    with pytest.raises(TypeError, match=r"wte\.weight: got list, expected a tensor"):
        checkpoint.from_gpt2({"wte.weight": [1.0]})


# ---------------------------------------------------------------- a folder


@pytest.mark.parametrize("activation", ["gelu_new", "relu", "gelu"])
def test_gpt2_folder(tmp_path: Path, activation: str) -> None:
    theirs = hugging(activation_function=activation, layer_norm_epsilon=0.01)
    theirs.save_pretrained(tmp_path)
    ours, ids = checkpoint.from_gpt2(tmp_path), torch.randint(101, (2, 17))
    assert (ours.config.n_head, ours.config.eps) == (3, 0.01)
    with torch.no_grad():
        assert (ours(ids)[0] - theirs(ids).logits).abs().max() < 1e-5
        assert torch.equal(checkpoint.from_gpt2(str(tmp_path))(ids)[0], ours(ids)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hugging().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"activation_function": "silu"}, "activation_function: got 'silu', expected gelu_new"),
        ({"scale_attn_weights": False}, "scale_attn_weights: got False, expected True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: got True"),
        ({"model_type": "llama"}, "model_type: got 'llama', expected gpt2"),
        ({"add_cross_attention": True}, "add_cross_attention: got True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: got False"),
    ],
)
def test_gpt2_folder_of_another_computation(folder: Path, setting: dict[str, Any], words: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(ValueError, match=re.escape(f"{path}: {words}")):
        checkpoint.from_gpt2(folder)


def test_gpt2_folder_that_is_damaged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cut(0.5)(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged or cut short"):
        checkpoint.from_gpt2(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        checkpoint.from_gpt2(folder)
    hugging().save_pretrained(folder)
    for content, words in (
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("{}", "n_head: missing"),
    ):
        (folder / "config.json").write_text(content)
        with pytest.raises(ValueError, match=rf"config\.json: {words}"):
            checkpoint.from_gpt2(folder)
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        checkpoint.from_gpt2(tmp_path_factory.mktemp("empty"))
