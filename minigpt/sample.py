"""Let a model continue a text, one token after another.

Run it as `python -m minigpt.sample --checkpoint runs/first/checkpoint.pt`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minigpt import checkpoint
from minigpt import device as devices
from minigpt.cache import KVCache
from minigpt.data import CharacterTokenizer
from minigpt.model import GPTConfig

# ---------------------------------------------------------------- from logits to one token


def check_settings(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """ValueError for a setting of `probabilities` that is out of its range."""
    if not 0 <= temperature < math.inf:
        raise ValueError(
            f"temperature: got {temperature}, expected a finite number of at least 0"
        )
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ValueError(
            f"top_k: got {top_k!r}, expected a whole number of at least 1, or None for no filter"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(
            f"top_p: got {top_p!r}, expected 0 < top_p <= 1, or None for no filter"
        )


def probabilities(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """What the next token is drawn from: logits [B, V] -> probabilities [B, V].

    They are float64, on the CPU.

    In this order: softmax(logits / temperature), where 0 means all on the largest
    logit; only the top_k largest; of these, the fewest of the largest that hold at
    least top_p of the sum (Holtzman et al. 2020, section 3.1), at least one; and what
    is left is scaled to the sum 1. Of equal ones the lower ids come first, so that
    exactly k are kept. top_k >= V and top_p = 1 filter nothing. ValueError for a
    setting out of its range, and for NaN among the logits.
    """
    check_settings(temperature, top_k, top_p)
    logits = logits.detach().cpu().double()
    if logits.isnan().any():
        raise ValueError("logits: got NaN; the weights of the model are broken")
    if temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    below = logits - logits.max(-1, keepdim=True).values  # at most 0: no overflow
    weights = (below / temperature).softmax(-1)
    V = logits.shape[-1]
    kept = V if top_k is None else min(top_k, V)
    if kept == V and top_p in (None, 1):
        return weights
    # stable: of equal ones, lower ids first
    ordered, ids = weights.sort(dim=-1, descending=True, stable=True)
    ordered[:, kept:] = 0
    if top_p is not None and top_p < 1:
        before = ordered.cumsum(-1) - ordered  # the sum of all larger ones
        ordered[before >= top_p * ordered.sum(-1, keepdim=True)] = 0
    weights = torch.zeros_like(weights).scatter(-1, ids, ordered)
    return weights / weights.sum(-1, keepdim=True)


def draw(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One id for each row of probabilities [B, V] -> [B, 1].

    The sums 0, p_0, p_0 + p_1, ... cut the interval from 0 to 1 into pieces; one random
    number for each row says in which piece it falls.
    """
    ends = weights.cumsum(-1)
    ends = ends / ends[:, -1:]  # the last ends at exactly 1, above any number drawn
    number = torch.rand(len(weights), 1, dtype=ends.dtype, generator=generator)
    return torch.searchsorted(ends, number, right=True)


def choose(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The next id of each row: logits [B, V] -> [B, 1]; see `probabilities` and `draw`."""
    if temperature == 0 and not logits.isnan().any():
        return logits.argmax(-1, keepdim=True)  # the same id, with nothing to draw
    return draw(probabilities(logits, temperature, top_k, top_p), generator)


# ---------------------------------------------------------------- from one token to a text


def stream(
    model: nn.Module,
    ids: Tensor,
    new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    cache: bool = True,
) -> Iterator[Tensor]:
    """Continue the texts ids [B, T], and hand out the next ids [B, 1] as soon as they are drawn.

    temperature, top_k and top_p: see `probabilities`. The random numbers come from the
    CPU, so that a seed gives the same text on every device, as far as rounding lets it;
    without one they are torch's own.

    The model sees the last block_size ids. As long as that is the whole text, the cache
    saves all but one row for each token. Once the window slides, every id gets another
    position in it, and with learned positions all keys and values change: from there a
    token costs the whole window, with the cache or without.

    ValueError for an empty text, a negative count, ids or settings out of range: before
    anything is computed.
    """
    config = model.config
    assert isinstance(config, GPTConfig)
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids: got {type(ids).__name__}, expected a tensor [B, T]")
    if ids.ndim != 2 or len(ids) < 1 or ids.dtype is not torch.int64:
        got = f"shape {list(ids.shape)} of {ids.dtype}"
        raise TypeError(f"ids: got {got}, expected [B, T] of torch.int64")
    if ids.shape[1] < 1:
        raise ValueError(
            "ids: got an empty text; give at least one token to continue, such as a line end"
        )
    if not 0 <= ids.min() <= ids.max() < config.vocab_size:
        bounds = f"{ids.min()} to {ids.max()}"
        raise ValueError(
            f"ids: got values from {bounds}, expected 0 to {config.vocab_size - 1}"
        )
    if type(new_tokens) is not int or new_tokens < 0:
        raise ValueError(
            f"new_tokens: got {new_tokens!r}, expected a whole number of at least 0"
        )
    check_settings(temperature, top_k, top_p)
    generator = None if seed is None else torch.Generator().manual_seed(seed)

    def columns() -> Iterator[Tensor]:
        text = torch.cat([ids, ids.new_zeros(len(ids), new_tokens)], dim=1)
        for length, logits in next_logits(model, text, ids.shape[1], cache):
            chosen = choose(logits, temperature, top_k, top_p, generator)
            chosen = chosen.to(ids.device)  # [B, 1]
            text[:, length : length + 1] = chosen
            yield chosen

    return columns()


def next_logits(
    model: nn.Module, text: Tensor, start: int, cache: bool
) -> Iterator[tuple[int, Tensor]]:
    """The logits [B, V] after the first `length` ids of text [B, T].

    For each length from start to T - 1.

    The caller fills in id `length` of the text before it asks for the next.
    """
    config, weight = model.config, next(model.parameters())
    assert isinstance(config, GPTConfig)
    store = KVCache(config, len(text), weight.device, weight.dtype) if cache else None
    for length in range(start, text.shape[1]):
        window = text[:, max(0, length - config.block_size) : length]
        # a window that slides leaves nothing to keep
        kept = store if length <= config.block_size else None
        if kept is not None:
            window = window[:, kept.length :]
        training = model.training
        if training:  # no dropout here; between two tokens, the caller's mode is back
            model.eval()
        try:
            with torch.no_grad():
                logits, _ = model(window.to(weight.device), cache=kept, last=True)
        finally:
            if training:
                model.train()
        yield length, logits[:, -1]


def generate(
    model: nn.Module,
    ids: Tensor,
    new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    cache: bool = True,
) -> Tensor:
    """Continue the texts ids [B, T] by new_tokens ids -> [B, T + new_tokens], all at once; see `stream`."""
    columns = stream(model, ids, new_tokens, temperature, top_k, top_p, seed, cache)
    return torch.cat([ids, *columns], dim=1)


# ---------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m minigpt.sample", description="Let a trained model write."
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="FILE", help="written by minigpt.train"
    )
    parser.add_argument(
        "--prompt", default="\n", help="the text to continue; default: a line end"
    )
    parser.add_argument("--new-tokens", type=int, default=500, help="default: 500")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="default: 0.8; 0: the likeliest token",
    )
    parser.add_argument("--top-k", type=int, help="only the k likeliest tokens")
    parser.add_argument(
        "--top-p",
        type=float,
        help="only the likeliest tokens that together hold this much",
    )
    parser.add_argument("--seed", type=int, help="the same seed gives the same text")
    parser.add_argument(
        "--device", metavar="cpu|cuda|mps", help="default: the fastest at hand"
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="compute every position anew for each token",
    )
    options = parser.parse_args(arguments)
    try:
        if not options.prompt:
            raise ValueError(
                "--prompt: got an empty text; give at least one character to continue"
            )
        where = devices.pick(options.device)
        found = checkpoint.read(options.checkpoint)
        if not found.characters:
            raise ValueError(
                f"{options.checkpoint}: has no characters; it was not trained by minigpt.train"
            )
        tokenizer = CharacterTokenizer(found.characters)
        ids = torch.tensor([tokenizer.encode(options.prompt).tolist()])  # [1, T]
        columns = stream(
            checkpoint.load(options.checkpoint, device=where),
            ids,
            options.new_tokens,
            options.temperature,
            options.top_k,
            options.top_p,
            options.seed,
            not options.no_cache,
        )
    except (ValueError, OSError) as problem:
        parser.error(str(problem))
    try:
        print(options.prompt, end="", flush=True)
        for column in columns:
            print(tokenizer.decode(column[0]), end="", flush=True)
        print()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
