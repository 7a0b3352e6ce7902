"""Every famous mistake is caught by its check and called by its name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minigpt import check
from minigpt.mistakes import CATALOGUE, Mistake, of_task
from minigpt.tasks import NOTEBOOKS, TASKS

torch.set_num_threads(1)

# Mistakes that no input of their check can tell from another one: (task, name) -> the name they are given.
KIN: dict[tuple[str, str], str] = {}


@pytest.mark.parametrize("mistake", CATALOGUE, ids=lambda mistake: f"{mistake.task}: {mistake.name}")
def test_caught_and_named(mistake: Mistake) -> None:
    result = check.judge(mistake.task, mistake.wrong)
    assert result.status == "failed", result.text
    assert result.mistake == KIN.get((mistake.task, mistake.name), mistake.name), result.text
    assert f"this matches a famous mistake: {result.mistake}" in result.text
    assert result.where and result.short


def test_enough_of_them_and_nearly_all_named_exactly() -> None:
    assert len({mistake.name for mistake in CATALOGUE}) >= 60
    assert len(KIN) <= len(CATALOGUE) / 10
    assert KIN.keys() <= {(mistake.task, mistake.name) for mistake in CATALOGUE}


def test_names_are_unique_within_a_task() -> None:
    pairs = [(mistake.task, mistake.name) for mistake in CATALOGUE]
    assert len(pairs) == len(set(pairs))


def test_every_task_has_mistakes_and_every_mistake_a_task() -> None:
    assert {mistake.task for mistake in CATALOGUE} == TASKS.keys()
    assert {task.notebook for task in TASKS.values()} == set(NOTEBOOKS)
    assert all(len(of_task(name)) >= 2 for name in TASKS)


ISSUE = """\
denominator C - 1;
eps outside the root;
eps added to the standard deviation;
normalised over T;
normalised over T and C;
beta forgotten;
gamma forgotten;
gamma and beta swapped;
E[x²] - E[x]²;
statistics detached;
scale by C;
no scale;
scale after softmax;
softmax over queries;
no shift for large scores;
mask after softmax;
mask inverted;
mask off by one;
mask that zeroes scores;
mask dropped on one path;
-1e9 in half precision;
heads merged without swapping axes back;
heads split by view in the wrong order;
reshape without contiguous;
Q and K swapped;
V from the wrong third;
residual dropped;
residual from the normalised input;
residual by broadcast;
post-norm for pre-norm;
one LayerNorm shared by both places;
ReLU for GELU;
tanh GELU for exact;
no nonlinearity;
FFN over positions;
bias forgotten;
positions added twice;
position table off by one;
final LayerNorm forgotten;
head not tied;
tied by copy;
dropout left on;
loss not shifted;
loss shifted twice;
targets flattened wrongly;
padding counted;
weight decay on LayerNorm;
temperature multiplied;
top-k after softmax without renormalising;
cache written at the wrong place;
cached query that sees only the oldest keys;
cache positions restarting at 0\
"""


@pytest.mark.parametrize("name", [" ".join(name.split()) for name in ISSUE.split(";")])
def test_well_known_ones_are_there(name: str) -> None:
    assert any(mistake.name == name for mistake in CATALOGUE)


def test_named_for_an_answer_in_torch_as_well() -> None:
    def over_time(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> torch.Tensor:
        axis = max(0, x.ndim - 2)
        mu, var = x.mean(axis, keepdim=True), x.var(axis, keepdim=True, correction=0)
        return gamma * (x - mu) / torch.sqrt(var + eps) + beta

    assert check.judge("layer_norm", over_time).mistake == "normalised over T"


def test_a_mistake_in_other_words_gets_the_same_name() -> None:
    def einsum(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        powers = np.exp(np.einsum("...id,...jd->...ij", q, k))
        return np.einsum("...ij,...jd->...id", powers / powers.sum(-1, keepdims=True), v)

    assert check.judge("attention", einsum).mistake == "no scale"
