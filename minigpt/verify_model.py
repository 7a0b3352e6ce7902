"""The mechanisms of part IV of the course: M the whole model, T training, G sampling, C cost, L after GPT-2.

A function yields the checks of one mechanism and begins with its id. `minigpt.verify` runs all of them.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minigpt import (
    array,
    cache,
    checkpoint,
    data,
    model,
    modern,
    processes,
    sample,
    train,
)
from minigpt.array import Array
from minigpt.measure import (
    EXACT,
    SAMPLING,
    Arrays,
    Check,
    Place,
    error,
    lists,
    numbers,
    random_weights,
    worst,
    wrong,
)
from minigpt.settings import TrainConfig

# ---------------------------------------------------------------- M: the whole model

IDS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]  # [B, T], of a vocabulary of 11
TARGETS = [[1, 4, 1, 5, 9], [2, 6, 5, 3, -1]]  # the last one is not counted


def logits_by_array(state: Arrays, n_layer: int, n_head: int, ids: list[int]) -> Array:
    """The logits [T, V] of the text ids [T], from the weights of a MiniGPT, in NumPy."""
    x: Array = state["wte.weight"][ids] + state["wpe.weight"][: len(ids)]
    for i in range(n_layer):
        weights = {}
        for theirs, ours in model.ARRAY_NAMES.items():
            weights[ours] = state[f"h.{i}.{theirs}"].T  # nn.Linear keeps [out, in]
        x, _ = array.block(x, weights, n_head, activation=array.gelu)
    x = array.layer_norm(x, state["ln_f.weight"], state["ln_f.bias"])
    return x @ state["wte.weight"].T


def state_of(gpt: nn.Module) -> dict[str, Array]:
    return {name: numbers(value) for name, value in gpt.state_dict().items()}


def m1_whole(place: Place) -> Iterator[Check]:
    gpt, ids = place.gpt(), place.whole(IDS)
    logits, loss = gpt(ids, place.whole(TARGETS))
    assert loss is not None
    state, expected = state_of(gpt), []
    for text in IDS:
        expected.append(logits_by_array(state, 2, 2, text))
    size = float(np.abs(expected).max())  # rounding grows with the numbers
    off = error(logits, expected)
    yield place.check("M1 ids to logits, torch against NumPy", off / size)
    surprises = []  # -ln of the probability of each target that counts, in plain Python
    for rows, targets in zip(lists({"": np.array(expected)})[""], TARGETS, strict=True):
        for row, target in zip(rows, targets, strict=True):
            top = max(row)
            total = math.fsum(math.exp(z - top) for z in row)
            if target >= 0:
                surprises.append(math.log(total) + top - row[target])
    mean = math.fsum(surprises) / len(surprises)
    yield place.check(
        "M1 mean loss, torch against plain Python", error(loss, mean) / size
    )
    shifted = gpt(ids, ids)[1]  # each position asked for the id that it can see
    off = error(shifted, mean)
    yield place.wrong("M1 the ids themselves as targets, by the loss", off, 0.01)


def m2_parameters(place: Place) -> Iterator[Check]:
    sizes = ((96, 11, 2, 2, 8, 20), (1024, 50257, 12, 12, 768, 3072))
    counts = []
    for T_max, V, N, H, C, F in sizes:
        with torch.device("meta"):  # shapes alone, no memory
            gpt = model.MiniGPT(model.GPTConfig(T_max, V, N, H, C, F))
        block = 4 * C + (3 * C * C + 3 * C) + (C * C + C) + (2 * C * F + F + C)
        expected = V * C + T_max * C + N * block + 2 * C
        counts.append(sum(gpt.count_parameters().values()))
        yield Check(
            f"M2 parameters for C = {C}, from the formula",
            error(counts[-1], expected),
            EXACT,
        )
    yield Check(
        "M2 parameters of the smallest GPT-2, from the known number",
        error(counts[-1], 124_439_808),
        EXACT,
    )


def m3_tied(place: Place) -> Iterator[Check]:
    gpt, ids, targets = place.gpt(), place.whole(IDS), place.whole(TARGETS)
    other = copy.deepcopy(gpt)
    loaded = place.gpt()
    loaded.load_state_dict(gpt.state_dict())
    moved = copy.deepcopy(gpt).to("cpu", torch.float32)
    untied = sum(m.lm_head.weight is not m.wte.weight for m in (other, loaded, moved))
    yield place.check("M3 heads untied by a copy, a load or a move", untied, EXACT)
    loss = gpt(ids, targets)[1]
    assert loss is not None
    loss.backward()
    # The same function of two tables, equal and apart: each gets the gradient of its path.
    tables = [gpt.wte.weight.detach().clone().requires_grad_() for _ in range(2)]
    parts = dict(zip(("wte.weight", "lm_head.weight"), tables, strict=True))
    call = torch.func.functional_call
    call(gpt, parts, (ids, targets), tie_weights=False)[1].backward()
    lookup, head = (numbers(table.grad) for table in tables)
    tied = numbers(gpt.wte.weight.grad)
    size = float(np.abs(tied).max())
    off = error(tied, lookup + head) / size
    yield place.check("M3 the tied gradient is the sum of both paths", off)
    yield place.wrong(
        "M3 the gradient of the head's path alone", error(tied, head) / size
    )


def m4_start(place: Place) -> Iterator[Check]:
    N, V = 3, 97
    torch.manual_seed(4)
    gpt = model.MiniGPT(model.GPTConfig(64, V, N, 4, 64))
    gpt = gpt.to(place.device, place.dtype)
    ids = place.whole(default_rng(4).integers(V, size=(8, 16)))
    loss = gpt(ids, ids.roll(-1, 1))[1]
    assert loss is not None
    off = error(loss, math.log(V))
    yield place.check("M4 the first loss near ln V", off, 0.2)
    ratios = []
    for name, weight in gpt.named_parameters():
        if weight.ndim == 2:
            branch = name.endswith("c_proj.weight")
            due = 0.02 / math.sqrt(2 * N) if branch else 0.02
            ratios.append(weight.std().item() / due)
    yield place.check(
        "M4 deviations of the first weights, over the due ones",
        worst(abs(ratio - 1) for ratio in ratios),
        SAMPLING,
    )


def m5_gpt2(place: Place) -> Iterator[Check]:
    rng, N, C, V, T_max = default_rng(5), 2, 8, 11, 6
    state: dict[str, Array] = {"wte.weight": rng.normal(size=(V, C)) / 2}
    state["wpe.weight"] = rng.normal(size=(T_max, C)) / 2
    state["ln_f.weight"], state["ln_f.bias"] = rng.normal(size=(2, C))
    layers = [random_weights(50 + i, C, 4 * C) for i in range(N)]
    for i, weights in enumerate(layers):
        for name, ours in model.ARRAY_NAMES.items():
            state[f"h.{i}.{name}"] = weights[ours]  # [in, out], as GPT-2 keeps them
    published = {name: torch.tensor(value) for name, value in state.items()}
    gpt = checkpoint.from_gpt2(published, n_head=2).to(place.device, place.dtype)
    text = [3, 1, 4, 1, 5]
    x: Array = state["wte.weight"][text] + state["wpe.weight"][: len(text)]
    for weights in layers:
        x, _ = array.block(x, weights, 2, activation=array.gelu_tanh)
    x = array.layer_norm(x, state["ln_f.weight"], state["ln_f.bias"])
    expected = x @ state["wte.weight"].T
    off = error(gpt(place.whole([text]))[0], [expected])
    yield place.check(
        "M5 weights in GPT-2's layout, torch against NumPy", off, 10 * place.rounding
    )
    square = gpt.h[1].get_parameter("attn.c_proj.weight")
    with torch.no_grad():
        square.copy_(square.T.clone())
    off = error(gpt(place.whole([text]))[0], [expected])
    yield place.wrong("M5 a square matrix that was not transposed", off)


# ---------------------------------------------------------------- T: training


def t1_windows(place: Place) -> Iterator[Check]:
    tokens = np.arange(100, 120).astype(data.TOKEN)  # token i is 100 + i
    starts = np.array([0, 3, 13])
    ids, targets = data.windows(tokens, 6, starts)
    due = [[100 + start + t for t in range(6)] for start in starts.tolist()]
    yield Check("T1 windows begin where they should", error(ids, due), EXACT)
    yield Check(
        "T1 each target is the next token", error(targets - ids, np.ones((3, 6))), EXACT
    )
    count = data.window_count(tokens[:7], 6)
    yield Check("T1 block_size + 1 tokens give one window", error(count, 1), EXACT)
    seen: set[int] = set()
    rng = default_rng(1)
    for _ in range(20):
        seen |= set(data.batch(tokens, 6, 8, rng)[0][:, 0].tolist())
    missed = len(set(range(100, 114)) ^ seen)
    yield Check("T1 starts that 160 random windows never took", missed, EXACT)


def adamw(
    theta: float, gradients: list[float], rate: float, decay: float, l2: bool = False
) -> float:
    """One number after steps of AdamW, as Loshchilov and Hutter write it; l2: as they advise against."""
    b1, b2, eps, m, v = 0.9, 0.95, 1e-8, 0.0, 0.0
    for t, g in enumerate(gradients, start=1):
        if l2:
            g += decay * theta
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        step = m / (1 - b1**t) / (math.sqrt(v / (1 - b2**t)) + eps)
        theta -= rate * (step if l2 else step + decay * theta)
    return theta


def t2_adamw(place: Place) -> Iterator[Check]:
    rng, rate, decay = default_rng(6), 0.1, 0.5
    start, slopes = rng.normal(size=(2, 4)), rng.normal(size=(4, 2, 4))
    columns = [decay, decay, decay, 0.0]  # the last one is the bias
    due, mixed = np.empty((2, 4)), np.empty((2, 4))
    for at, theta in np.ndenumerate(start):
        gradients = slopes[:, at[0], at[1]].tolist()
        due[at] = adamw(float(theta), gradients, rate, columns[at[1]])
        mixed[at] = adamw(float(theta), gradients, rate, columns[at[1]], l2=True)

    def four_steps(transposed: bool) -> Array:
        layer = nn.Linear(3, 2).to(place.device, place.dtype)
        weights = {
            "weight": torch.tensor(start[:, :3]),
            "bias": torch.tensor(start[:, 3]),
        }
        layer.load_state_dict(weights)
        optimizer = train.make_optimizer(layer, rate, decay)
        for slope in slopes:
            gradient = place.tensor(slope[:, :3])
            layer.weight.grad = gradient.T.contiguous().T if transposed else gradient
            layer.bias.grad = place.tensor(slope[:, 3])
            optimizer.step()
        return np.column_stack([numbers(layer.weight), numbers(layer.bias)])

    got = four_steps(transposed=False)
    yield place.check("T2 four steps of AdamW against plain Python", error(got, due))
    off = error(got, mixed)
    yield place.wrong("T2 the decay added to the gradient (L2)", off, 0.01)
    if place.device.type == "cpu":  # a GPU's kernel refuses it, with an error
        off = error(four_steps(transposed=True), due)
        yield place.check("T2 with gradients that lie transposed in memory", off)
    gpt = place.gpt()
    groups = train.make_optimizer(gpt, 1e-3, 0.1).param_groups
    decayed = [p for group in groups if group["weight_decay"] for p in group["params"]]
    pulled = {id(p) for p in decayed}
    odd = sum((id(p) in pulled) != (p.ndim == 2) for p in gpt.parameters())
    yield Check("T2 vectors that decay and matrices that do not", odd, EXACT)


def t3_clipping(place: Place) -> Iterator[Check]:
    leaves = [place.tensor([value]).requires_grad_() for value in (0.0, 0.0)]
    for limit, due in ((1.0, [0.6, 0.8]), (10.0, [3.0, 4.0])):
        for leaf, value in zip(leaves, (3.0, 4.0), strict=True):
            leaf.grad = place.tensor([value])
        norm = nn.utils.clip_grad_norm_(leaves, limit)
        got = [numbers(leaf.grad)[0] for leaf in leaves]
        # torch divides by norm + 1e-6
        off = worst([error(got, due), error(norm, 5.0)])
        yield place.check(f"T3 the gradient [3, 4] clipped at {limit:.0f}", off, 1e-6)
    single = [min(3.0, 1.0), min(4.0, 1.0)]  # points another way
    off = 1 - (3 * single[0] + 4 * single[1]) / (5 * math.hypot(*single))
    yield wrong("T3 each number clipped alone, by the cosine lost", off, 0.01)


def t4_schedule(place: Place) -> Iterator[Check]:
    plan = TrainConfig(
        learning_rate=0.4, min_learning_rate=0.1, warmup_steps=10, steps=110
    )
    corners = {0: 0.04, 4: 0.2, 9: 0.4, 10: 0.4, 60: 0.25, 110: 0.1, 500: 0.1}
    off = worst(
        abs(train.learning_rate(step, plan) - due) for step, due in corners.items()
    )
    yield Check("T4 the learning rate at seven corners", off)
    rates = [train.learning_rate(step, plan) for step in range(111)]
    rises = sum(after > before for before, after in itertools.pairwise(rates[10:]))
    yield Check("T4 steps after the warm-up at which it rises", rises, EXACT)


def t5_resume(place: Place) -> Iterator[Check]:
    plan = TrainConfig(
        block_size=8,
        n_layer=1,
        n_head=2,
        n_embd=8,
        dropout=0.1,
        batch_size=4,
        warmup_steps=2,
        steps=6,
        device=str(place.device),
        dtype=place.name,
    )
    tokens = default_rng(7).integers(11, size=200).astype(data.TOKEN)

    def begin() -> train.Trainer:
        torch.manual_seed(8)
        return train.Trainer(model.MiniGPT(plan.model(11)), plan, tokens, tokens)

    def go_on(trainer: train.Trainer, count: int) -> train.Trainer:
        for _ in range(count):
            trainer.step()
        return trainer

    whole, first = go_on(begin(), 6), go_on(begin(), 3)
    weights, state = copy.deepcopy((first.model.state_dict(), first.state()))
    second, forgetful = begin(), begin()
    for trainer in (second, forgetful):
        trainer.model.load_state_dict(weights)
    second.restore(state)
    go_on(second, 3)
    forgetful.losses = list(first.losses)
    go_on(forgetful, 3)
    # a CPU adds in the same order each time; a GPU may not
    bound = EXACT if place.device.type == "cpu" else place.rounding
    off = error(second.losses, whole.losses)
    yield place.check("T5 losses after a stop, against an unbroken run", off, bound)
    off = error(forgetful.losses, whole.losses)
    yield place.wrong("T5 only the weights kept, by the losses", off, 0.01)


def t6_pieces(place: Place) -> Iterator[Check]:
    rng = default_rng(9)
    ids = place.whole(rng.integers(11, size=(6, 5)))
    targets = ids.roll(-1, 1)
    padded = targets.clone()
    padded[4:, 1:] = -1

    def gradient(due: Tensor, shares: list[tuple[slice, float]]) -> Array:
        gpt = place.gpt()
        for rows, part in shares:
            loss = gpt(ids[rows], due[rows])[1]
            assert loss is not None
            (part * loss).backward()
        return np.concatenate([numbers(p.grad).ravel() for p in gpt.parameters()])

    joint = gradient(targets, [(slice(0, 6), 1.0)])
    shares = [(processes.World(rank, 3).share(6), 1 / 3) for rank in range(3)]
    size = float(np.abs(joint).max())
    off = error(gradient(targets, shares), joint) / size
    yield place.check("T6 three equal pieces against the whole batch", off)
    joint = gradient(padded, [(slice(0, 6), 1.0)])
    size = float(np.abs(joint).max())
    counts = [int((padded[rows] >= 0).sum()) for rows, _ in shares]
    weighted = [
        (rows, count / sum(counts))
        for (rows, _), count in zip(shares, counts, strict=True)
    ]
    off = error(gradient(padded, weighted), joint) / size
    yield place.check("T6 unequal pieces, by their counted tokens", off)
    off = error(gradient(padded, shares), joint) / size
    yield place.wrong("T6 unequal pieces, each a third", off)


# ---------------------------------------------------------------- G: sampling


def distribution(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> list[float]:
    """What `sample.probabilities` promises, for one row, in plain Python."""
    top = max(logits)
    weights = [math.exp((z - top) / temperature) for z in logits]
    order = sorted(range(len(logits)), key=lambda i: (-weights[i], i))[:top_k]
    if top_p is not None:
        total, held, kept = math.fsum(weights[i] for i in order), 0.0, []
        for i in order:
            if held >= top_p * total:
                break
            kept.append(i)
            held += weights[i]
        order = kept
    total = math.fsum(weights[i] for i in order)
    return [weights[i] / total if i in order else 0.0 for i in range(len(logits))]


def g1_filters(place: Place) -> Iterator[Check]:
    logits = [1.5, -0.5, 1.5, 0.25, -2.0, 3.0, 0.0]  # two are equal
    row = place.tensor([logits])
    for name, temperature, top_k, top_p in (
        ("no filter", 1.0, None, None),
        ("half the temperature", 0.5, None, None),
        ("twice the temperature, top_k", 2.0, 2, None),
        ("top_p", 1.0, None, 0.8),
        ("top_k, then top_p", 1.0, 3, 0.8),
        ("filters that keep everything", 1.0, 99, 1.0),
    ):
        got = sample.probabilities(row, temperature, top_k, top_p)
        due = distribution(logits, temperature, top_k, top_p)
        yield place.check(f"G1 {name}, against plain Python", error(got, [due]))
    got = sample.choose(row, 0.0)
    yield place.check("G1 temperature 0 takes the largest", error(got, [[5]]), EXACT)
    cold = sample.probabilities(row, 0.01)
    off = error(cold, [[0, 0, 0, 0, 0, 1, 0]])
    yield place.check("G1 a small temperature comes near to it", off)
    off = error(
        sample.probabilities(row * 2.0), [distribution(logits, 2.0, None, None)]
    )
    yield place.wrong("G1 logits multiplied by the temperature", off)


def g2_draw(place: Place) -> Iterator[Check]:
    shares = [0.1, 0.0, 0.4, 0.25, 0.25]
    generator = torch.Generator().manual_seed(2)
    rows = torch.tensor(shares, dtype=torch.float64).expand(20_000, 5)
    ids = sample.draw(rows, generator).flatten()
    got = np.bincount(ids, minlength=5) / len(ids)
    yield Check("G2 shares of many draws", error(got, shares), SAMPLING)
    yield Check("G2 draws of a token whose share is 0", int((ids == 1).sum()), EXACT)
    gpt, text = place.gpt(), place.whole(IDS)
    first, again, other = (sample.generate(gpt, text, 9, seed=s) for s in (3, 3, 4))
    yield place.check("G2 one seed gives one text", error(first, again), EXACT)
    yield place.wrong("G2 another seed, by the ids", error(first, other), 0.5)


def g3_cached(place: Place) -> Iterator[Check]:
    for where in place.narrower():
        gpt, ids = where.gpt(flash=True), where.whole(IDS)  # block_size 8
        text = torch.cat(
            [ids, where.whole(default_rng(3).integers(11, size=(2, 9)))], 1
        )
        steps, size = [], 1.0
        for kept in (True, False):
            steps.append([row for _, row in sample.next_logits(gpt, text, 5, kept)])
        size = worst(float(row.abs().max()) for row in steps[1])
        off = worst(error(a, b) for a, b in zip(*steps, strict=True)) / size
        name = f"G3 cached against uncached, past the border too, {where.name}"
        yield where.check(name, off)
    gpt = place.gpt()
    store = cache.KVCache(gpt.config, 2, place.device, place.dtype)
    with torch.no_grad():
        whole = gpt(text[:, :8])[0]
        gpt(text[:, :7], cache=store)
        got = gpt(text[:, 7:8], cache=store)[0]
        alone = gpt(text[:, 7:8])[0]
    size = float(whole.abs().max())
    off = error(got[:, 0], whole[:, 7]) / size
    yield place.check("G3 one row behind seven in the cache", off)
    off = error(alone[:, 0], whole[:, 7]) / size
    yield place.wrong("G3 the same row without what came before", off)


def g4_bytes(place: Place) -> Iterator[Check]:
    config = model.GPTConfig(
        block_size=32, vocab_size=11, n_layer=3, n_head=2, n_embd=8
    )
    width = place.tensor([0.0]).element_size()
    got = cache.KVCache(config, 5, place.device, place.dtype).nbytes
    due = 2 * 3 * 5 * 8 * 32 * width
    yield place.check(
        "G4 bytes of the cache, from 2 N B C T_max", error(got, due), EXACT
    )


# ---------------------------------------------------------------- C: cost


def c1_flops(place: Place) -> Iterator[Check]:
    N, B, T, C, V = 2, 2, 5, 8, 11
    gpt, ids = place.gpt(), place.whole(IDS)  # the manual path: the counter sees it all
    due = B * T * (N * (24 * C * C + 4 * T * C) + 2 * V * C)
    with FlopCounterMode(display=False) as forward:
        loss = gpt(ids, ids)[1]
    assert loss is not None
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    off = error(forward.get_total_flops(), due)
    yield place.check("C1 FLOPs forward, counted, from the formula", off, EXACT)
    off = error(backward.get_total_flops(), 2 * due)
    yield place.check("C1 FLOPs backward, counted, from twice that", off, EXACT)


def c2_activations(place: Place) -> Iterator[Check]:
    N, B, T, H, C, V = 2, 2, 5, 2, 8, 11
    gpt = Place(torch.device("cpu"), torch.float32).gpt(flash=True)
    ids = torch.tensor(IDS)
    weights = {p.untyped_storage().data_ptr() for p in gpt.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        gpt(ids, ids.clone())
    got = sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in kept.items()
        if address not in weights
    )
    floats = B * T * (N * (16 * C + 4 + H) + 2 * C + 2 + V)
    due = 4 * floats + 8 * (2 * B * T + T) + 4
    name = "C2 bytes kept for the backward pass on a CPU, from the formula"
    yield Check(name, error(got, due), EXACT, "float32")


def c3_sixteen_bits(place: Place) -> Iterator[Check]:
    weight = torch.tensor(1.0, dtype=torch.bfloat16)
    for _ in range(1000):
        weight = weight + 0.001
    off = error(weight.float(), 1.0)
    yield Check(
        "C3 a weight in bfloat16 after a thousand small updates", off, EXACT, "bfloat16"
    )
    off = error(weight.float(), 2.0)
    yield Check(
        "C3 the same, from the true sum (wrong)", off, 0.1, "bfloat16", wrong=True
    )


# ---------------------------------------------------------------- L: after GPT-2


def rms(x: Array, gamma: Array, eps: float = 1e-5) -> Array:
    return gamma * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def turned(x: Array, positions: range, base: float) -> Array:
    """Pairs of the two halves as complex numbers, times e^(i angle): x [..., T, d]."""
    d = x.shape[-1]
    angles = np.outer(positions, base ** (-np.arange(0, d, 2) / d))
    pairs = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def gated(x: Array, weights: Arrays) -> Array:
    gate = x @ weights["w_gate"]
    return (gate / (1 + np.exp(-gate)) * (x @ weights["w_up"])) @ weights["w_down"]


def grouped(x: Array, weights: Arrays, H: int, G: int, base: float) -> Array:
    """Causal attention of H heads over G, head by head: x [T, C]."""
    (T, C), heads = x.shape, []
    d = C // H
    q, k, v = (x @ weights[name] for name in ("w_q", "w_k", "w_v"))
    for h in range(H):
        g = h // (H // G)
        own, read = slice(h * d, h * d + d), slice(g * d, g * d + d)
        query, key = (turned(part, range(T), base) for part in (q[:, own], k[:, read]))
        heads.append(array.attention(query, key, v[:, read], array.causal_mask(T))[0])
    return np.concatenate(heads, axis=1) @ weights["w_o"]


def modern_weights(seed: int, C: int, G: int, d: int, F: int) -> dict[str, Array]:
    rng = default_rng(seed)
    shapes = {"w_q": (C, C), "w_k": (C, G * d), "w_v": (C, G * d), "w_o": (C, C)}
    shapes |= {"w_gate": (C, F), "w_up": (C, F), "w_down": (F, C)}
    weights: dict[str, Array] = {}
    for name, shape in shapes.items():
        weights[name] = rng.normal(size=shape) / math.sqrt(shape[0])
    for name in ("gamma1", "gamma2"):
        weights[name] = rng.normal(1, 0.2, size=C)
    return weights


SIZES = modern.ModernConfig(16, 11, 2, 4, 2, 16, 20, rope_base=100.0)


def l1_rms_norm(place: Place) -> Iterator[Check]:
    rng = default_rng(71)
    x, gamma = rng.normal(0.5, 2, size=(2, 3, 6)), rng.normal(size=6)
    norm = modern.RMSNorm(6).to(place.device, place.dtype)
    norm.load_state_dict({"weight": torch.tensor(gamma)})
    off = error(norm(place.tensor(x)), rms(x, gamma))
    yield place.check("L1 RMSNorm, torch against NumPy", off)
    centred = x - x.mean(-1, keepdims=True)
    off = error(norm(place.tensor(centred)), array.layer_norm(x, gamma))
    yield place.check("L1 on rows whose mean is taken off, LayerNorm", off)
    off = error(norm(place.tensor(x)), array.layer_norm(x, gamma))
    yield place.wrong("L1 RMSNorm taken for LayerNorm", off)


def l2_rotary(place: Place) -> Iterator[Check]:
    rng, T, d, base = default_rng(72), 6, 8, 100.0
    q, k = rng.normal(size=(T, d)), rng.normal(size=(T, d))

    def rotate(x: Array, shift: int = 0, pairing: str = "half") -> Tensor:
        positions = torch.arange(shift, shift + T)
        return modern.rotate(place.tensor(x), positions, base, pairing)

    off = error(rotate(q), turned(q, range(T), base))
    yield place.check("L2 rotation against complex numbers", off)
    off = error(rotate(q).norm(dim=-1), np.linalg.norm(q, axis=-1))
    yield place.check("L2 the length of each row stays", off)
    scores = [rotate(q, shift) @ rotate(k, shift).T for shift in (0, 1000)]
    yield place.check("L2 scores, all positions moved by a thousand", error(*scores))
    off = error(rotate(q, 1) @ rotate(k).T, scores[0])
    yield place.wrong("L2 only the queries moved, by 1", off)
    table = rng.normal(size=(T + 1, d))  # added, as GPT-2 does
    first, second = ((q + table[s : s + T]) @ (k + table[s : s + T]).T for s in (0, 1))
    yield wrong("L2 scores with added positions, moved by 1", error(first, second))


def l3_pairings(place: Place) -> Iterator[Check]:
    x, d = default_rng(73).normal(size=(5, 8)), 8
    positions, order = torch.arange(5), modern.half_order(d)
    both = [
        modern.rotate(place.tensor(rows), positions, 100.0, pairing)
        for rows, pairing in ((x, "interleaved"), (x[:, order.numpy()], "half"))
    ]
    off = error(numbers(both[0])[:, order.numpy()], both[1])
    yield place.check("L3 the two pairings, columns reordered", off)
    half = modern.rotate(place.tensor(x), positions, 100.0, "half")
    off = error(both[0], half)
    yield place.wrong("L3 the two pairings, columns as they are", off)


def l4_swiglu(place: Place) -> Iterator[Check]:
    weights, x = modern_weights(74, 16, 2, 4, 20), default_rng(75).normal(size=(3, 16))
    block = modern.ModernBlock(SIZES).to(place.device, place.dtype).load_arrays(weights)
    off = error(block.mlp(place.tensor(x)), gated(x, weights))
    yield place.check("L4 SwiGLU, torch against NumPy", off)
    swapped = weights | {"w_gate": weights["w_up"], "w_up": weights["w_gate"]}
    off = error(block.mlp(place.tensor(x)), gated(x, swapped))
    yield place.wrong("L4 gate and value exchanged", off)
    own, gpt2 = 3 * 64 * (8 * 64 // 3), 2 * 64 * (4 * 64)
    yield Check(
        "L4 weights at F = 8 C / 3 over those at 4 C, from 1", abs(own / gpt2 - 1), 0.01
    )


def l5_grouped(place: Place) -> Iterator[Check]:
    x, C, H, d = default_rng(76).normal(size=(7, 16)), 16, 4, 4
    for G in (1, 2, 4):
        weights = modern_weights(77 + G, C, G, d, 20)
        for flash in (True, False):
            config = replace(SIZES, n_kv_head=G, flash=flash)
            block = modern.ModernBlock(config).to(place.device, place.dtype)
            attn = block.load_arrays(weights).attn
            off = error(attn(place.tensor(x[None])), [grouped(x, weights, H, G, 100.0)])
            path = "SDPA" if flash else "manual"
            yield place.check(f"L5 H = 4 over G = {G}, {path}, against NumPy", off)
        if G == 2:
            # query head h reads h // 2: 0 0 1 1; taken for h % 2: 0 1 0 1
            order = [0, 2, 1, 3]
            columns = np.concatenate([np.arange(h * d, h * d + d) for h in order])
            other = weights | {
                "w_q": weights["w_q"][:, columns],
                "w_o": weights["w_o"][columns],
            }
            off = error(attn(place.tensor(x[None])), [grouped(x, other, H, G, 100.0)])
            yield place.wrong("L5 query heads read key-value head h % G", off)


def l6_modern(place: Place) -> Iterator[Check]:
    config = SIZES
    gpt = modern.ModernGPT(config).to(place.device, place.dtype).eval()
    layers = [modern_weights(80 + i, 16, 2, 4, 20) for i in range(config.n_layer)]
    rng = default_rng(82)
    table, gamma = rng.normal(size=(11, 16)) / 4, rng.normal(1, 0.2, size=16)
    with torch.no_grad():
        gpt.wte.weight.copy_(place.tensor(table))
        gpt.norm_f.weight.copy_(place.tensor(gamma))
    for block, weights in zip(gpt.h, layers, strict=True):
        assert isinstance(block, modern.ModernBlock)
        block.load_arrays(weights)
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    x = table[text]
    for weights in layers:
        x = x + grouped(rms(x, weights["gamma1"]), weights, 4, 2, 100.0)
        x = x + gated(rms(x, weights["gamma2"]), weights)
    ids = place.whole([text])
    with torch.no_grad():
        logits = gpt(ids)[0]
        store = gpt.make_cache()
        pieces = [gpt(ids[:, a:b], cache=store)[0] for a, b in ((0, 4), (4, 5), (5, 9))]
    off = error(logits, [rms(x, gamma) @ table.T])
    yield place.check("L6 the whole model, torch against NumPy", off)
    off = error(torch.cat(pieces, 1), logits)
    yield place.check("L6 in three pieces with a cache", off)
    width = place.tensor([0.0]).element_size()
    off = error(store.nbytes, 2 * 2 * 16 * (2 * 4) * width)
    yield place.check("L6 bytes of the cache, from 2 N B G d T_max", off, EXACT)
    with torch.device("meta"):
        smol = modern.ModernGPT(modern.ModernConfig())
    off = error(sum(smol.count_parameters().values()), 134_515_008)
    yield Check("L6 parameters of SmolLM2-135M, from the known number", off, EXACT)
