"""The catalogue of famous mistakes: each with its task, what happens and why, and the mistake itself.

The checks run a wrong answer against the mistakes of its task and name the one that fits; the tests run every
mistake against its check; the page "Famous mistakes" of the book lists them all with what each prints. Every
`wrong` takes the arguments of its task (see `minigpt.tasks`). Most raise no error of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt import array, model, tasks
from minigpt.array import Array
from minigpt.model import GPTConfig


@dataclass(frozen=True)
class Mistake:
    name: str
    task: str
    what: str  # what happens, and why
    wrong: Callable[..., Any]


CATALOGUE: list[Mistake] = []


def of_task(task: str) -> list[Mistake]:
    """The mistakes of one task, in the order in which they are tried."""
    return [mistake for mistake in CATALOGUE if mistake.task == task]


def add(task: str, name: str, what: str, wrong: Callable[..., Any]) -> None:
    CATALOGUE.append(Mistake(name, task, what, wrong))


# ---------------------------------------------------------------- 03 LayerNorm, forward


def normed(
    x: Array, eps: float, axis: Any = -1, ddof: int = 0, root: str = "inside"
) -> Array:
    """LayerNorm without gamma and beta, with everything that can be done wrong as an option."""
    mu = x.mean(axis=axis, keepdims=True)
    var = x.var(axis=axis, keepdims=True, ddof=ddof)
    if root == "squares first":
        var = (x**2).mean(axis=axis, keepdims=True) - mu**2
    below = {
        "outside": np.sqrt(var) + eps,
        "none": np.sqrt(var),
        "squared": var + eps,
        "not centred": np.sqrt((x**2).mean(axis=axis, keepdims=True) + eps),
    }
    return (x if root == "not centred" else x - mu) / below.get(
        root, np.sqrt(var + eps)
    )


def over_positions(x: Array) -> int:
    return max(0, x.ndim - 2)


def last_two(x: Array) -> tuple[int, ...]:
    return tuple(range(max(0, x.ndim - 2), x.ndim))


C_MINUS_1 = "the variance describes these C numbers and estimates nothing; C - 1 makes every output smaller"
OVER_T = "each column is normalised over the positions, so a later token changes an earlier output"
OVER_T_AND_C = "one mean and one variance for all positions, so every position reads every other one"
SQUARES_FIRST = "where the mean is large, two nearly equal numbers are subtracted and all digits are lost"

add(
    "row_statistics",
    "denominator C - 1",
    C_MINUS_1,
    lambda x: (x.mean(-1, keepdims=True), x.var(-1, keepdims=True, ddof=1)),
)
add(
    "row_statistics",
    "normalised over T",
    OVER_T,
    lambda x: (
        x.mean(over_positions(x), keepdims=True),
        x.var(over_positions(x), keepdims=True),
    ),
)
add(
    "row_statistics",
    "normalised over T and C",
    OVER_T_AND_C,
    lambda x: (x.mean(last_two(x), keepdims=True), x.var(last_two(x), keepdims=True)),
)
add(
    "row_statistics",
    "E[x²] - E[x]²",
    SQUARES_FIRST,
    lambda x: (
        x.mean(-1, keepdims=True),
        (x**2).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2,
    ),
)
add(
    "row_statistics",
    "standard deviation for variance",
    "the root is taken once here and once more later",
    lambda x: (x.mean(-1, keepdims=True), x.std(-1, keepdims=True)),
)
add(
    "row_statistics",
    "mean of squares for variance",
    "the mean is not subtracted before squaring, so the level of the row counts as spread",
    lambda x: (x.mean(-1, keepdims=True), (x**2).mean(-1, keepdims=True)),
)
add(
    "row_statistics",
    "axis lost",
    "without keepdims the axis is gone, and [T] against [T, C] fails or goes along the wrong one",
    lambda x: (x.mean(-1), x.var(-1)),
)

NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "denominator C - 1": (C_MINUS_1, {"ddof": 1}),
    "eps outside the root": (
        "eps is added after the root: a small eps then hardly protects a constant row",
        {"root": "outside"},
    ),
    "eps added to the standard deviation": (
        "the standard deviation with C - 1, plus eps: the form of The Annotated Transformer, not of torch",
        {"root": "outside", "ddof": 1},
    ),
    "eps forgotten": (
        "a constant row is 0/0, which is NaN, and NaN spreads",
        {"root": "none"},
    ),
    "root forgotten": (
        "divided by the variance: a row twice as wide comes out half as wide",
        {"root": "squared"},
    ),
    "mean not subtracted": (
        "this is RMSNorm: the level of the row stays in the output",
        {"root": "not centred"},
    ),
    "E[x²] - E[x]²": (SQUARES_FIRST, {"root": "squares first"}),
}
for _name, (_what, _options) in NORMS.items():
    add("normalise", _name, _what, lambda x, eps, o=_options: normed(x, eps, **o))
    add(
        "layer_norm",
        _name,
        _what,
        lambda x, gamma, beta, eps, o=_options: gamma * normed(x, eps, **o) + beta,
    )
add(
    "normalise",
    "normalised over T",
    OVER_T,
    lambda x, eps: normed(x, eps, over_positions(x)),
)
add(
    "normalise",
    "normalised over T and C",
    OVER_T_AND_C,
    lambda x, eps: normed(x, eps, last_two(x)),
)
add(
    "layer_norm",
    "normalised over T",
    OVER_T,
    lambda x, gamma, beta, eps: gamma * normed(x, eps, over_positions(x)) + beta,
)
add(
    "layer_norm",
    "normalised over T and C",
    OVER_T_AND_C,
    lambda x, gamma, beta, eps: gamma * normed(x, eps, last_two(x)) + beta,
)
add(
    "layer_norm",
    "beta forgotten",
    "the learned shift has no effect and gets no gradient",
    lambda x, gamma, beta, eps: gamma * normed(x, eps),
)
add(
    "layer_norm",
    "gamma forgotten",
    "the learned gain has no effect and gets no gradient",
    lambda x, gamma, beta, eps: normed(x, eps) + beta,
)
add(
    "layer_norm",
    "gamma and beta swapped",
    "with gamma of ones and beta of zeros, as they start, the output is all ones",
    lambda x, gamma, beta, eps: beta * normed(x, eps) + gamma,
)
add(
    "layer_norm",
    "beta inside the gain",
    "gamma multiplies beta as well: gamma (x̂ + beta) is another parametrisation than that of the checkpoint",
    lambda x, gamma, beta, eps: gamma * (normed(x, eps) + beta),
)
add(
    "layer_norm",
    "gamma before the statistics",
    "gamma stretches the columns and then is normalised away in part",
    lambda x, gamma, beta, eps: normed(gamma * x, eps) + beta,
)
add(
    "layer_norm_optional",
    "beta of None added",
    "None is no array of zeros: gamma x̂ + None raises a TypeError",
    lambda x, gamma, beta, eps: gamma * normed(x, eps) + beta,
)
add(
    "layer_norm_optional",
    "truth of an array",
    "`if beta` asks whether the array is true, which an array of several numbers does not say",
    lambda x, gamma, beta, eps: gamma * normed(x, eps) + (beta if beta else 0),
)
add(
    "layer_norm_optional",
    "beta never added",
    "the branch for None is taken always",
    lambda x, gamma, beta, eps: gamma * normed(x, eps),
)
add(
    "output_variance",
    "variance said to be 1",
    "eps takes its part: where the variance is not large beside eps, the output's is far below 1",
    lambda variance, eps: 1.0,
)
add(
    "output_variance",
    "root of the ratio",
    "that is the output's standard deviation; its square is the variance",
    lambda variance, eps: math.sqrt(variance / (variance + eps)),
)
add(
    "output_variance",
    "eps outside the root",
    "(s / (s + eps))² would belong to an eps added after the root",
    lambda variance, eps: (math.sqrt(variance) / (math.sqrt(variance) + eps)) ** 2,
)


def _changed_last(x: Array) -> Array:
    changed = x.copy()
    changed[-1] = 3 * x[-1] + 7
    return changed


add(
    "last_row_leaks",
    "the changed row compared too",
    "the last row itself may change; only the earlier ones must not",
    lambda norm, x: not np.array_equal(norm(x), norm(_changed_last(x))),
)
add(
    "last_row_leaks",
    "a tolerance that hides the leak",
    "what does not read a number cannot change by any amount: the comparison is exact",
    lambda norm, x: (
        not np.allclose(norm(x)[:-1], norm(_changed_last(x))[:-1], atol=0.1)
    ),
)
add(
    "last_row_leaks",
    "only the first row compared",
    "a leak into a later row is not seen",
    lambda norm, x: not np.array_equal(norm(x)[0], norm(_changed_last(x))[0]),
)

# ---------------------------------------------------------------- 03 LayerNorm, backward


def _lead(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def x_hat_std(x: Array, eps: float) -> tuple[Array, Array]:
    std = np.sqrt(x.var(-1, keepdims=True) + eps)
    return (x - x.mean(-1, keepdims=True)) / std, std


def gradient(
    dy: Array,
    x: Array,
    gamma: Array,
    eps: float,
    mean: float = 1,
    var: float = 1,
    gain: bool = True,
    power: int = 1,
    centred: bool = True,
) -> Array:
    """dL/dx, with the weight of each term and what else can be forgotten as options."""
    x_hat, std = x_hat_std(x, eps)
    g = dy * gamma if gain else dy
    inner = g * (x_hat if centred else x)
    total = (
        g
        - mean * g.mean(-1, keepdims=True)
        - var * x_hat * inner.mean(-1, keepdims=True)
    )
    return total / std**power


def gradients(
    dy: Array, x: Array, gamma: Array, eps: float, **options: Any
) -> tuple[Array, Array, Array]:
    dgamma = (dy * x_hat_std(x, eps)[0]).sum(_lead(x))
    return gradient(dy, x, gamma, eps, **options), dgamma, dy.sum(_lead(dy))


BACKWARD: dict[str, tuple[str, dict[str, Any]]] = {
    "statistics detached": (
        "mean and variance are treated as constants, but x moves y through both of them as well",
        {"mean": 0, "var": 0},
    ),
    "term through the mean missing": (
        "a shift of the whole row then gets a gradient; it must get none",
        {"mean": 0},
    ),
    "term through the variance missing": (
        "a stretch of the whole row then gets nearly its full gradient; it must get nearly none",
        {"var": 0},
    ),
    "gamma forgotten in the gradient": (
        "what reaches x̂ is dy times gamma",
        {"gain": False},
    ),
    "divided by the variance": (
        "the root is missing: the derivative of x̂ is 1 over the standard deviation",
        {"power": 2},
    ),
    "sign of the variance term": (
        "the two corrections are both subtracted",
        {"var": -1},
    ),
    "x for x̂ in the variance term": (
        "the mean of g x̂ is meant; with x its level counts as spread",
        {"centred": False},
    ),
}
for _name, (_what, _options) in BACKWARD.items():
    add("gradient_row", _name, _what, lambda *given, o=_options: gradient(*given, **o))
    add(
        "layer_norm_backward",
        _name,
        _what,
        lambda *given, o=_options: gradients(*given, **o),
    )
add(
    "gradient_beta",
    "mean over positions for the sum",
    "each use of beta adds its gradient; the mean is smaller by the number of positions",
    lambda dy: dy.mean(_lead(dy)),
)
add(
    "gradient_beta",
    "summed over the row",
    "the columns are added up, but beta has one number for each column",
    lambda dy: dy.sum(-1),
)
add(
    "gradient_beta",
    "summed over the batch only",
    "beta is shared by all positions too, so the sum is over B and T",
    lambda dy: dy.sum(0) if dy.ndim > 2 else dy.sum(_lead(dy)),
)
add(
    "gradient_gamma",
    "x for x̂",
    "gamma multiplies the normalised row, not the row",
    lambda dy, x, eps: (dy * x).sum(_lead(x)),
)
add(
    "gradient_gamma",
    "mean over positions for the sum",
    "each use of gamma adds its gradient; the mean is smaller by the number of positions",
    lambda dy, x, eps: (dy * x_hat_std(x, eps)[0]).mean(_lead(x)),
)
add(
    "gradient_gamma",
    "the gradient of beta",
    "dy alone is the gradient of the shift; that of the gain is dy times x̂",
    lambda dy, x, eps: dy.sum(_lead(x)),
)
add(
    "gradient_gamma",
    "eps forgotten",
    "the forward pass divides by the root of variance plus eps, and so must the backward pass",
    lambda dy, x, eps: (dy * x_hat_std(x, 0.0)[0]).sum(_lead(x)),
)
add(
    "layer_norm_backward",
    "gradients of gamma and beta swapped",
    "the shapes are equal, so nothing complains; the two parameters learn each other's step",
    lambda *given: (gradients(*given)[0], *gradients(*given)[:0:-1]),
)
add(
    "layer_norm_backward",
    "parameter gradients not summed",
    "one gradient for each position, but the parameters are shared by all positions",
    lambda dy, x, gamma, eps: (
        gradient(dy, x, gamma, eps),
        dy * x_hat_std(x, eps)[0],
        dy,
    ),
)
add(
    "layer_norm_backward",
    "parameter gradients averaged",
    "each use adds its gradient; the mean is smaller by the number of positions",
    lambda dy, x, gamma, eps: (
        gradient(dy, x, gamma, eps),
        (dy * x_hat_std(x, eps)[0]).mean(_lead(x)),
        dy.mean(_lead(dy)),
    ),
)


def _differences(
    f: Callable[[Array], float], x: Array, h: float, low: float, width: float
) -> Array:
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += h
        down[index] -= low * h
        out[index] = (f(up) - f(down)) / (width * h)
    return out


def _steps_stay(f: Callable[[Array], float], x: Array, h: float) -> Array:
    moving, out = x.copy(), np.zeros_like(x)
    for index in np.ndindex(x.shape):
        before = f(moving)
        moving[index] += h
        out[index] = (f(moving) - before) / h
    return out


add(
    "numeric_gradient",
    "one-sided difference",
    "its error is of the order of h; the two-sided one has an error of the order of h²",
    lambda f, x, h: _differences(f, x, h, 0, 1),
)
add(
    "numeric_gradient",
    "divided by h instead of 2h",
    "the two points are 2h apart, so the result is twice too large",
    lambda f, x, h: _differences(f, x, h, 1, 1),
)
add(
    "numeric_gradient",
    "steps that stay",
    "each number must go back to its place before the next one moves",
    _steps_stay,
)
add(
    "relative_error",
    "signs kept",
    "without the absolute value a negative difference looks like a perfect match",
    lambda a, b: float((a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-300)),
)
add(
    "relative_error",
    "zero over zero",
    "two arrays of zeros are equal, and 0/0 is NaN",
    lambda a, b: (
        float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max()))
        if a.any()
        else math.nan
    ),
)
add(
    "relative_error",
    "absolute error",
    "the same difference is tiny beside a thousand and huge beside a thousandth",
    lambda a, b: float(np.abs(a - b).max()),
)
add(
    "relative_error",
    "largest ratio of single numbers",
    "one number near zero then decides, though its error is harmless",
    lambda a, b: float(
        (np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-300)).max()
    ),
)

# ---------------------------------------------------------------- 04 feed-forward


def _erf(x: Array) -> Array:
    return torch.erf(torch.tensor(x)).numpy()


add(
    "relu",
    "absolute value",
    "negative numbers are turned round; ReLU sets them to zero",
    np.abs,
)
add(
    "relu",
    "leaky",
    "negative numbers keep a hundredth of themselves: that is LeakyReLU",
    lambda x: np.where(x > 0, x, 0.01 * x),
)
add(
    "relu",
    "cut at one",
    "large numbers must pass: there is no upper limit",
    lambda x: np.clip(x, 0, 1),
)
add(
    "relu",
    "negatives kept",
    "min where max is meant: the negative numbers pass and the positive ones do not",
    lambda x: np.minimum(x, 0),
)
add(
    "relu",
    "step for ramp",
    "the comparison alone gives zeros and ones; it is the derivative",
    lambda x: (x > 0).astype(x.dtype),
)


def ffn(
    x: Array,
    w1: Array,
    b1: Any,
    w2: Array,
    b2: Any,
    *,
    bend: Callable[[Array], Array] = array.relu,
) -> Array:
    return bend(x @ w1 + b1) @ w2 + b2


def _over_positions(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    """The first map mixes positions: every position gets the mean of all hidden rows."""
    hidden = array.relu(x @ w1 + b1)
    mixed = hidden.mean(-2, keepdims=True) + 0 * hidden if x.ndim > 1 else hidden
    return mixed @ w2 + b2


add(
    "feed_forward",
    "first bias forgotten",
    "b1 decides where each unit bends",
    lambda x, w1, b1, w2, b2: ffn(x, w1, 0, w2, b2),
)
add(
    "feed_forward",
    "second bias forgotten",
    "b2 shifts every output",
    lambda x, w1, b1, w2, b2: ffn(x, w1, b1, w2, 0),
)
add(
    "feed_forward",
    "bias forgotten",
    "both maps are affine: b1 and b2 belong to them",
    lambda x, w1, b1, w2, b2: ffn(x, w1, 0, w2, 0),
)
add(
    "feed_forward",
    "no nonlinearity",
    "two affine maps in a row are one affine map; the hidden width buys nothing",
    lambda *given: ffn(*given, bend=lambda h: h),
)
add(
    "feed_forward",
    "nonlinearity at the end too",
    "the output of the network may be negative; a ReLU there cuts half of it",
    lambda *given: array.relu(ffn(*given)),
)
add(
    "feed_forward",
    "nonlinearity only at the end",
    "the bend belongs between the two maps; after them the two maps fold into one",
    lambda *given: array.relu(ffn(*given, bend=lambda h: h)),
)
add(
    "feed_forward",
    "nonlinearity before the first map",
    "the bend belongs after the first map, on the hidden units",
    lambda x, w1, b1, w2, b2: (array.relu(x) @ w1 + b1) @ w2 + b2,
)
add(
    "feed_forward",
    "GELU for ReLU",
    "another bend: negative numbers do not become zero",
    lambda *given: ffn(*given, bend=array.gelu),
)
add(
    "feed_forward",
    "bias after the bend",
    "b1 is added after the ReLU, so it no longer decides which units are on",
    lambda x, w1, b1, w2, b2: (array.relu(x @ w1) + b1) @ w2 + b2,
)
add(
    "feed_forward",
    "FFN over positions",
    "the positions are mixed, but each one is handled by itself",
    _over_positions,
)
add(
    "fold",
    "first bias lost",
    "b1 passes through the second matrix: the folded bias is b1 W2 + b2",
    lambda w1, b1, w2, b2: (w1 @ w2, b2),
)
add(
    "fold",
    "second bias lost",
    "b2 is added after everything",
    lambda w1, b1, w2, b2: (w1 @ w2, b1 @ w2),
)
add(
    "fold",
    "product in the wrong order",
    "rows multiply from the left, so the first map stands left: W1 W2, [C, C]",
    lambda w1, b1, w2, b2: (w2 @ w1, b1 @ w2 + b2),
)
add(
    "fold",
    "transposed",
    "(x W1) W2 = x (W1 W2), and not its transpose",
    lambda w1, b1, w2, b2: ((w1 @ w2).T, b1 @ w2 + b2),
)

GELUS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "ReLU for GELU": (
        "GELU is smooth and lets small negative numbers through",
        lambda x: np.maximum(x, 0),
    ),
    "sigmoid for the normal distribution": (
        "x sigmoid(1.702 x) is a third form of GELU, off by up to two hundredths",
        lambda x: x / (1 + np.exp(-1.702 * x)),
    ),
    "SiLU for GELU": (
        "x sigmoid(x) is another function",
        lambda x: x / (1 + np.exp(-x)),
    ),
    "factor a half missing": (
        "the probability is (1 + erf) / 2; without the half large x doubles",
        lambda x: x * (1 + _erf(x / 2**0.5)),
    ),
    "root of two missing": (
        "erf is not the normal distribution: its argument is x over the root of 2",
        lambda x: x * (1 + _erf(x)) / 2,
    ),
}
for _name, (_what, _wrong) in GELUS.items():
    add("gelu", _name, _what, _wrong)
add(
    "gelu",
    "tanh GELU for exact",
    "the two differ by up to some ten-thousandths: enough to fail a checkpoint",
    array.gelu_tanh,
)
for _name in ("ReLU for GELU", "sigmoid for the normal distribution", "SiLU for GELU"):
    add("gelu_tanh", _name, *GELUS[_name])
add(
    "gelu_tanh",
    "exact GELU for tanh",
    "GPT-2's weights were trained with the tanh form",
    array.gelu,
)


def _tanh_gelu(x: Array, scale: float, cube: float) -> Array:
    return 0.5 * x * (1 + np.tanh(scale * (x + cube * x**3)))


add(
    "gelu_tanh",
    "cube missing",
    "0.044715 x³ bends the argument for large x",
    lambda x: _tanh_gelu(x, (2 / math.pi) ** 0.5, 0),
)
add(
    "gelu_tanh",
    "scale inverted",
    "the root of 2/pi is below 1, that of pi/2 above",
    lambda x: _tanh_gelu(x, (math.pi / 2) ** 0.5, 0.044715),
)
add(
    "gelu_tanh",
    "root of the scale missing",
    "2/pi stands under a root",
    lambda x: _tanh_gelu(x, 2 / math.pi, 0.044715),
)
add(
    "ffn_parameters",
    "biases forgotten",
    "F and C numbers more",
    lambda C, F, bias: 2 * C * F,
)
add(
    "ffn_parameters",
    "biases always counted",
    "with bias=False there are none",
    lambda C, F, bias: 2 * C * F + F + C,
)
add(
    "ffn_parameters",
    "one matrix counted",
    "there are two, [C, F] and [F, C]",
    lambda C, F, bias: C * F + (F + C) * bias,
)
add(
    "ffn_parameters",
    "both biases of width C",
    "the first bias belongs to the hidden units: F numbers",
    lambda C, F, bias: 2 * C * F + 2 * C * bias,
)

# ---------------------------------------------------------------- 05 residual


def _in_place(x: Array, update: Array) -> Array:
    x += update
    return x


add(
    "residual",
    "residual by broadcast",
    "the sum runs, and hands one row's update to another",
    lambda x, update: x + update,
)
add(
    "residual",
    "residual dropped",
    "the input is lost; only the update goes on",
    lambda x, update: _checked(x, update, update.copy()),
)
add(
    "residual",
    "update dropped",
    "the branch has no effect",
    lambda x, update: _checked(x, update, x.copy()),
)
add(
    "residual",
    "mean for sum",
    "both paths are halved, and the identity with them: after 12 such sums a 4096th is left",
    lambda x, update: _checked(x, update, (x + update) / 2),
)
add(
    "residual",
    "difference for sum",
    "the update is subtracted",
    lambda x, update: _checked(x, update, x - update),
)
add(
    "residual",
    "input overwritten",
    "x += update changes the array of the caller, who may still need it",
    lambda x, update: _in_place(x, _checked(x, update, update)),
)


def _checked(x: Array, update: Array, result: Array) -> Array:
    if x.shape != update.shape:
        raise ValueError("shapes differ")
    return result


add(
    "residual_branch",
    "residual dropped",
    "only the branch goes on, and the identity path is cut",
    lambda x, branch: branch(x),
)
add(
    "residual_branch",
    "branch applied twice",
    "the branch reads x, not its own output",
    lambda x, branch: x + branch(branch(x)),
)
add(
    "residual_branch",
    "branch of the sum",
    "the sum comes after the branch",
    lambda x, branch: branch(x + x),
)
add(
    "residual_branch",
    "residual from the branch",
    "the second summand is x itself",
    lambda x, branch: branch(x) + branch(x),
)
add(
    "pre_norm_step",
    "residual dropped",
    "the identity path is cut",
    lambda x, norm, branch: branch(norm(x)),
)
add(
    "pre_norm_step",
    "residual from the normalised input",
    "x is normalised before it is kept, so the identity path passes through a norm in every block",
    lambda x, norm, branch: norm(x) + branch(norm(x)),
)
add(
    "pre_norm_step",
    "post-norm for pre-norm",
    "the norm stands on the sum; pre-norm has it inside the branch",
    lambda x, norm, branch: norm(x + branch(x)),
)
add(
    "pre_norm_step",
    "norm after the branch",
    "the branch must read the normalised rows",
    lambda x, norm, branch: x + norm(branch(x)),
)
add(
    "pre_norm_step",
    "norm forgotten",
    "the branch reads rows of any size",
    lambda x, norm, branch: x + branch(x),
)


def _parallel(x: Array, branches: list[Any]) -> Array:
    return x + sum((branch(x) for branch in branches), np.zeros_like(x))


def _chain(x: Array, branches: list[Any]) -> Array:
    x = x.copy()
    for branch in branches:
        x = branch(x)
    return x


def _first_input(x: Array, branches: list[Any]) -> Array:
    y = x.copy()
    for branch in branches:
        y = x + branch(y)
    return y


def _stack(x: Array, branches: list[Any]) -> Array:
    x = x.copy()
    for branch in branches:
        x = x + branch(x)
    return x


add(
    "residual_stack",
    "branches side by side",
    "each branch must read the sum so far, not the first input",
    _parallel,
)
add(
    "residual_stack", "residual dropped", "without the sums it is a plain chain", _chain
)
add(
    "residual_stack",
    "always the first input",
    "the second summand is the sum so far, not the first x",
    _first_input,
)
add(
    "residual_stack",
    "last branch forgotten",
    "the loop ends one too early",
    lambda x, branches: _stack(x, branches[:-1]),
)
add(
    "residual_gradient",
    "identity path dropped",
    "the sum passes dy on to x directly as well",
    lambda dy, weight: dy @ weight.T,
)
add(
    "residual_gradient",
    "branch path dropped",
    "x also acts through the branch",
    lambda dy, weight: dy.copy(),
)
add(
    "residual_gradient",
    "weight not transposed",
    "forward x W, backward dy Wᵀ",
    lambda dy, weight: dy + dy @ weight,
)
add(
    "residual_gradient",
    "paths multiplied",
    "two paths that meet in a sum add their gradients",
    lambda dy, weight: dy * (dy @ weight.T),
)

# ---------------------------------------------------------------- 06 attention


def scores(q: Array, k: Array, scale: float) -> Array:
    return q @ k.swapaxes(-2, -1) * scale


def over_queries(s: Array) -> Array:
    return array.softmax(s.swapaxes(-2, -1)).swapaxes(-2, -1)


NO_SCALE = "dot products grow with d, and the softmax becomes sharp"
SCALES: dict[str, tuple[str, Callable[[int], float]]] = {
    "no scale": (NO_SCALE, lambda d: 1.0),
    "scale by d": (
        "the standard deviation of a dot product is the root of d, not d",
        lambda d: 1 / d,
    ),
    "multiplied by the root of d": (
        "the scores are made larger still",
        lambda d: d**0.5,
    ),
}
for _name, (_what, _scale) in SCALES.items():
    add(
        "attention_scores",
        _name,
        _what,
        lambda q, k, s=_scale: scores(q, k, s(q.shape[-1])),
    )
    add(
        "attention",
        _name,
        _what,
        lambda q, k, v, s=_scale: array.softmax(scores(q, k, s(q.shape[-1]))) @ v,
    )
add(
    "attention_scores",
    "scale by the root of T",
    "the scale is there for the d terms of one dot product; the number of keys has no part in it",
    lambda q, k: scores(q, k, k.shape[-2] ** -0.5),
)
add(
    "attention_scores",
    "Q and K swapped",
    "row i then says who reads i, not what i reads",
    lambda q, k: scores(k, q, q.shape[-1] ** -0.5),
)


def _softmax(s: Array, top: Any) -> Array:
    powers = np.exp(s - top)
    return powers / powers.sum(-1, keepdims=True)


add(
    "softmax",
    "no shift for large scores",
    "exp(1000) is infinite, and infinity over infinity is NaN",
    lambda s: _softmax(s, 0),
)
add(
    "softmax",
    "shift by the largest of all rows",
    "a row far below it becomes zeros over zero: the shift is for each row by itself",
    lambda s: _softmax(s, s.max()),
)
add(
    "softmax",
    "softmax over queries",
    "the sums must be 1 along the last axis, the keys of one query",
    lambda s: over_queries(s) if s.ndim > 1 else array.softmax(s),
)
add(
    "softmax",
    "softmax over everything",
    "all rows share one sum; each row needs its own",
    lambda s: array.softmax(s.ravel()).reshape(s.shape),
)
add(
    "softmax",
    "not normalised",
    "the powers are not divided by their sum",
    lambda s: np.exp(s - s.max(-1, keepdims=True)),
)
add(
    "softmax",
    "scores over their sum",
    "without the exponential negative scores give negative weights",
    lambda s: s / s.sum(-1, keepdims=True),
)
add(
    "weighted_sum",
    "weights transposed",
    "row i must weigh the values for query i",
    lambda a, v: a.swapaxes(-2, -1) @ v,
)
add(
    "weighted_sum",
    "mean for weighted sum",
    "every value counts the same, whatever the weights say",
    lambda a, v: np.broadcast_to(
        v.mean(-2, keepdims=True), (*a.shape[:-1], v.shape[-1])
    ).copy(),
)
add(
    "weighted_sum",
    "largest weight only",
    "attention reads a mixture; taking the heaviest key cuts the gradient of all the others",
    lambda a, v: np.take_along_axis(v, a.argmax(-1)[..., None], -2),
)
add(
    "attention",
    "scale after softmax",
    "the weights no longer have the sum 1, and the scores are as sharp as before",
    lambda q, k, v: array.softmax(scores(q, k, 1)) / q.shape[-1] ** 0.5 @ v,
)
add(
    "attention",
    "softmax over queries",
    "every query's weights must have the sum 1; here every key's have",
    lambda q, k, v: over_queries(scores(q, k, q.shape[-1] ** -0.5)) @ v,
)
add(
    "attention",
    "softmax forgotten",
    "scores are no weights: they can be negative",
    lambda q, k, v: scores(q, k, q.shape[-1] ** -0.5) @ v,
)
add(
    "attention",
    "Q and K swapped",
    "with as many keys as queries it runs, and each position gets what others would read",
    lambda q, k, v: array.softmax(scores(k, q, q.shape[-1] ** -0.5)) @ v,
)
add(
    "attention",
    "scale by the width of V",
    "the scale belongs to the dot product of q and k",
    lambda q, k, v: array.softmax(scores(q, k, v.shape[-1] ** -0.5)) @ v,
)


def _plogp(a: Array, log: Callable[[Array], Array]) -> Array:
    return a * log(np.where(a > 0, a, 1))


add(
    "entropy",
    "bits for nats",
    "the logarithm to base 2",
    lambda a: -_plogp(a, np.log2).sum(-1),
)
add(
    "entropy",
    "zero times infinity",
    "0 log 0 is NaN on a computer; its limit is 0",
    lambda a: -(a * np.log(a)).sum(-1),
)
add(
    "entropy",
    "sign forgotten",
    "logarithms of weights are negative",
    lambda a: _plogp(a, np.log).sum(-1),
)
add(
    "entropy",
    "mean for sum",
    "the entropy is a sum over the keys",
    lambda a: -_plogp(a, np.log).mean(-1),
)
add(
    "entropy",
    "one number for all rows",
    "each query has an entropy of its own",
    lambda a: -_plogp(a, np.log).sum(),
)

# ---------------------------------------------------------------- 07 heads


def _part(qkv: Array, i: int) -> Array:
    C = qkv.shape[-1] // 3
    return qkv[..., i * C : (i + 1) * C].copy()


def split_wrong(x: Array, H: int) -> Array:
    """[B, T, C] seen as [B, H, T, d]: the right shape, with rows of other positions in each head."""
    return x.reshape(*x.shape[:-2], H, x.shape[-2], x.shape[-1] // H)


def split_strided(x: Array, H: int) -> Array:
    return (
        x.reshape(*x.shape[:-1], x.shape[-1] // H, H)
        .swapaxes(-3, -2)
        .swapaxes(-3, -1)
        .swapaxes(-2, -1)
    )


def merge_wrong(x: Array) -> Array:
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])


def mha(
    x: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    H: int,
    *,
    order: tuple[int, int, int] = (0, 1, 2),
    scale: str = "d",
    split: Callable[[Array, int], Array] = array.split_heads,
    merge: Callable[[Array], Array] = array.merge_heads,
    causal: bool = False,
) -> Array:
    """Multi-head attention, with what can be done wrong as options."""
    C = x.shape[-1]
    q, k, v = (split(_part(x @ w_qkv + b_qkv, i), H) for i in order)
    s = scores(q, k, {"d": C / H, "C": C, "none": 1}[scale] ** -0.5)
    if causal:
        s = np.where(array.causal_mask(x.shape[-2]), s, -np.inf)
    return merge(array.softmax(s) @ v) @ w_o + b_o


MERGE_WRONG = "the axes H and T are not swapped back before the reshape, so positions and heads are mixed"
SPLIT_WRONG = "the shape is right, but a head gets whole rows of a few positions; split C, then swap the axes"
V_WRONG = "keys are read as values"
add(
    "fuse",
    "stacked along the rows",
    "[3C, C]: the three outputs must stand side by side, as columns",
    lambda *w: np.concatenate(w, axis=0),
)
add(
    "fuse",
    "Q and K swapped",
    "the fused columns are Q, then K, then V",
    lambda q, k, v: np.concatenate([k, q, v], axis=1),
)
add(
    "fuse",
    "columns interleaved",
    "Q, K and V must each be one block of C columns",
    lambda *w: np.stack(w, axis=-1).reshape(len(w[0]), -1),
)
add(
    "fuse",
    "transposed",
    "nn.Linear keeps [out, in]; here x multiplies from the left",
    lambda *w: np.concatenate([m.T for m in w], axis=1),
)
add(
    "split_qkv",
    "V from the wrong third",
    V_WRONG,
    lambda qkv: (_part(qkv, 0), _part(qkv, 1), _part(qkv, 1)),
)
add(
    "split_qkv",
    "K and V swapped",
    "the order of the thirds is Q, K, V",
    lambda qkv: (_part(qkv, 0), _part(qkv, 2), _part(qkv, 1)),
)
add(
    "split_qkv",
    "Q and K swapped",
    "the order of the thirds is Q, K, V",
    lambda qkv: (_part(qkv, 1), _part(qkv, 0), _part(qkv, 2)),
)
add(
    "split_qkv",
    "every third column",
    "the thirds are blocks of C columns, not every third column",
    lambda qkv: tuple(qkv[..., i::3] for i in range(3)),
)
add("split_heads", "heads split by view in the wrong order", SPLIT_WRONG, split_wrong)
add(
    "split_heads",
    "axes not swapped",
    "[B, T, H, d]: the product over keys would run over heads",
    lambda x, H: x.reshape(*x.shape[:-1], H, x.shape[-1] // H),
)
add(
    "split_heads",
    "every H-th column",
    "head h takes d neighbouring columns, not every H-th one",
    split_strided,
)
add(
    "split_heads",
    "H and d exchanged",
    "d heads of width H: the two numbers change places",
    lambda x, H: x.reshape(*x.shape[:-1], x.shape[-1] // H, H).swapaxes(-3, -2),
)
add("merge_heads", "heads merged without swapping axes back", MERGE_WRONG, merge_wrong)
add(
    "merge_heads",
    "columns of heads interleaved",
    "each head's d columns must stay together",
    lambda x: (
        x.swapaxes(-3, -2).swapaxes(-2, -1).reshape(*x.shape[:-3], x.shape[-2], -1)
    ),
)
add(
    "merge_heads",
    "heads added",
    "the heads stand side by side; a sum cannot be taken apart",
    lambda x: x.sum(-3),
)
add(
    "merge_heads", "mean of heads", "the heads stand side by side", lambda x: x.mean(-3)
)
add(
    "merge_heads_torch",
    "reshape without contiguous",
    "transpose changes the strides, and view needs the old order in memory: it raises a RuntimeError",
    lambda x: x.transpose(1, 2).view(x.shape[0], x.shape[2], -1),
)
add(
    "merge_heads_torch",
    "heads merged without swapping axes back",
    MERGE_WRONG,
    lambda x: x.reshape(x.shape[0], x.shape[2], -1),
)
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "no scale": (NO_SCALE, {"scale": "none"}),
    "scale by C": (
        "each head's dot product has d terms, not C: the scores come out too small",
        {"scale": "C"},
    ),
    "V from the wrong third": (V_WRONG, {"order": (0, 1, 1)}),
    "Q and K swapped": ("row i then says who reads i", {"order": (1, 0, 2)}),
    "heads split by view in the wrong order": (SPLIT_WRONG, {"split": split_wrong}),
    "heads merged without swapping axes back": (MERGE_WRONG, {"merge": merge_wrong}),
    "causal mask where none is due": (
        "this task lets every position read every other one",
        {"causal": True},
    ),
}
for _name, (_what, _options) in HEADS.items():
    add(
        "multi_head_attention",
        _name,
        _what,
        lambda *given, o=_options: mha(*given, **o),
    )
add(
    "multi_head_attention",
    "one head of width C",
    "the rows are not split, so there is one pattern of weights instead of H",
    lambda x, w, b, w_o, b_o, H: mha(x, w, b, w_o, b_o, 1),
)
add(
    "multi_head_attention",
    "output projection forgotten",
    "the heads stand side by side and nothing mixes them",
    lambda x, w, b, w_o, b_o, H: mha(x, w, b, np.eye(len(w_o)), 0 * b_o, H),
)
add(
    "multi_head_attention",
    "bias forgotten",
    "the two projections are affine",
    lambda x, w, b, w_o, b_o, H: mha(x, w, 0 * b, w_o, 0 * b_o, H),
)
add(
    "multi_head_attention",
    "output bias forgotten",
    "the two projections are affine; the second one has a bias too",
    lambda x, w, b, w_o, b_o, H: mha(x, w, b, w_o, 0 * b_o, H),
)

# ---------------------------------------------------------------- 08 causal mask

INVERTED = "True means that a query may read; inverted, each position reads only the later ones"
STRICT = "the diagonal is left out: no position reads itself, and the first one reads nothing"
AHEAD = "each position reads one token too far: that is the one it must predict"
add("causal_mask", "mask inverted", INVERTED, lambda T: ~np.tri(T, dtype=bool))
add("causal_mask", "mask off by one", STRICT, lambda T: np.tri(T, k=-1, dtype=bool))
add(
    "causal_mask", "mask off by one, ahead", AHEAD, lambda T: np.tri(T, k=1, dtype=bool)
)
add(
    "causal_mask",
    "mask transposed",
    "rows are queries and columns are keys: the upper triangle sees the future",
    lambda T: np.tri(T, dtype=bool).T,
)
add(
    "causal_mask",
    "everything visible",
    "a mask of True hides nothing",
    lambda T: np.ones((T, T), bool),
)
add(
    "causal_mask",
    "mask of numbers",
    "0.0 and 1.0 are no truth values: `~mask` fails and masked_fill refuses it",
    lambda T: np.tri(T),
)

ZEROED = "a score of 0 is an ordinary score, with weight exp(0) = 1; hidden is minus infinity"
MASKINGS: dict[str, tuple[str, Callable[[Array, Any], Array]]] = {
    "mask that zeroes scores": (ZEROED, lambda s, m: np.where(m, s, 0.0)),
    "mask inverted": (INVERTED, lambda s, m: np.where(m, -np.inf, s)),
    "mask dropped": ("every key stays visible", lambda s, m: s.copy()),
    "mask transposed": (
        "rows are queries and columns are keys",
        lambda s, m: np.where(_flip(m), s, -np.inf),
    ),
    "minus a large number": (
        "-1e9 is not below every score: an enormous one plus -1e9, or a row with nothing else, still counts",
        lambda s, m: np.where(m, s, s - 1e9),
    ),
}


def _flip(mask: Any) -> Any:
    return (
        mask.swapaxes(-2, -1) if mask.shape[-1] == mask.shape[-2] else mask[..., ::-1]
    )


for _name, (_what, _mask) in MASKINGS.items():
    add("masked_scores", _name, _what, _mask)
    add("masked_softmax", _name, _what, lambda s, m, f=_mask: array.softmax(f(s, m)))
add(
    "masked_scores",
    "hidden scores of minus one",
    "a small negative score still has a weight; hidden is minus infinity",
    lambda s, m: np.where(m, s, -1.0),
)
add(
    "masked_scores",
    "-1e9 for minus infinity",
    "exp(-1e9) is zero in most rows, but a row with nothing else gets equal weights for hidden keys",
    lambda s, m: np.where(m, s, -1e9),
)
AFTER = "the hidden keys have taken their part of the sum before they are cut, so the rows sum to less than 1"
add("masked_softmax", "mask after softmax", AFTER, lambda s, m: array.softmax(s) * m)


def _renormalised(s: Array, m: Any) -> Array:
    weights = array.softmax(s) * m
    return weights / weights.sum(-1, keepdims=True)


add(
    "masked_softmax",
    "mask after softmax, then renormalised",
    "right in exact arithmetic, but beside an enormous hidden score all that is visible has rounded to zero",
    _renormalised,
)


def _zero_over_zero(s: Array, m: Any) -> Array:
    hidden = np.where(m, s, -np.inf)
    powers = np.exp(hidden - hidden.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


add(
    "masked_softmax",
    "NaN in a row without keys",
    "minus infinity minus minus infinity is NaN; such a row must give zeros",
    _zero_over_zero,
)
add(
    "masked_softmax",
    "no shift for large scores",
    "exp(1000) is infinite and exp(-1000) is 0; the largest visible score must be taken off first",
    lambda s, m: _shifted(s, m, np.zeros_like(s)),
)
add(
    "masked_softmax",
    "largest score looked for among the hidden",
    "an enormous hidden score is taken off from all, and every visible power becomes 0",
    lambda s, m: _shifted(s, m, s.max(-1, keepdims=True)),
)
add(
    "masked_softmax",
    "-1e9 for minus infinity",
    "a row in which everything is hidden gets equal weights instead of zeros",
    lambda s, m: array.softmax(np.where(m, s, -1e9)),
)


def _shifted(s: Array, m: Any, top: Array) -> Array:
    powers = np.exp(np.where(m, s - top, -np.inf))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def masked_attention(
    q: Array, k: Array, v: Array, mask: Any, how: str = "inf", scale: str = "d"
) -> Array:
    s = scores(q, k, q.shape[-1] ** -0.5 if scale == "d" else 1)
    if how == "after":
        return (array.softmax(s) * mask) @ v
    return array.softmax(np.where(mask, s, -np.inf if how == "inf" else 0.0)) @ v


add(
    "causal_attention",
    "mask dropped",
    "every position reads the future",
    lambda q, k, v: array.attention(q, k, v)[0],
)
add(
    "causal_attention",
    "mask after softmax",
    AFTER,
    lambda q, k, v: masked_attention(q, k, v, np.tri(q.shape[-2], dtype=bool), "after"),
)
add(
    "causal_attention",
    "mask that zeroes scores",
    ZEROED,
    lambda q, k, v: masked_attention(q, k, v, np.tri(q.shape[-2], dtype=bool), "zero"),
)
add(
    "causal_attention",
    "mask off by one",
    STRICT,
    lambda q, k, v: masked_attention(q, k, v, np.tri(q.shape[-2], k=-1, dtype=bool)),
)
add(
    "causal_attention",
    "mask off by one, ahead",
    AHEAD,
    lambda q, k, v: masked_attention(q, k, v, np.tri(q.shape[-2], k=1, dtype=bool)),
)
add(
    "causal_attention",
    "mask inverted",
    INVERTED,
    lambda q, k, v: masked_attention(q, k, v, ~np.tri(q.shape[-2], dtype=bool)),
)
add(
    "causal_attention",
    "mask transposed",
    "the upper triangle sees the future",
    lambda q, k, v: masked_attention(q, k, v, np.tri(q.shape[-2], dtype=bool).T),
)
add(
    "causal_attention",
    "no scale",
    NO_SCALE,
    lambda q, k, v: masked_attention(
        q, k, v, np.tri(q.shape[-2], dtype=bool), "inf", "none"
    ),
)
add(
    "causal_attention",
    "future values zeroed",
    "the future keys still take their part of the weights; only what they would have handed over is zero",
    lambda q, k, v: (
        array.softmax(scores(q, k, q.shape[-1] ** -0.5)) * np.tri(q.shape[-2]) @ v * 1.0
        if q.shape[-2] == 1
        else _future_zeroed(q, k, v)
    ),
)


def _future_zeroed(q: Array, k: Array, v: Array) -> Array:
    """Keys and values of the future multiplied by zero, position by position: their scores become 0."""
    rows = []
    for t in range(q.shape[-2]):
        seen = (np.arange(q.shape[-2]) <= t)[:, None]
        rows.append(
            array.softmax(scores(q[..., t : t + 1, :], k * seen, q.shape[-1] ** -0.5))
            @ (v * seen)
        )
    return np.concatenate(rows, axis=-2)


add(
    "cached_mask",
    "cached query that sees only the oldest keys",
    "the triangle starts at the first key, as if the queries were the first positions and not the last",
    lambda n_query, n_key: np.tri(n_query, n_key, dtype=bool),
)
add(
    "cached_mask",
    "everything visible",
    "right for one query; with more, the earlier ones see the later",
    lambda n_query, n_key: np.ones((n_query, n_key), bool),
)
add(
    "cached_mask",
    "mask off by one",
    STRICT,
    lambda n_query, n_key: np.tri(n_query, n_key, n_key - n_query - 1, dtype=bool),
)
add(
    "cached_mask",
    "mask off by one, ahead",
    AHEAD,
    lambda n_query, n_key: np.tri(n_query, n_key, n_key - n_query + 1, dtype=bool),
)
add(
    "cached_mask",
    "mask transposed",
    "rows are queries and columns are keys",
    lambda n_query, n_key: np.tri(n_key, n_query, n_query - n_key, dtype=bool),
)
add(
    "half_masked_softmax",
    "-1e9 in half precision",
    "float16 ends at 65504, so torch refuses to fill in -1e9",
    lambda s, m: s.masked_fill(~m, -1e9).softmax(-1),
)
add(
    "half_masked_softmax",
    "-1e4 in half precision",
    "it fits into float16, but it is not below every score there",
    lambda s, m: s.masked_fill(~m, -1e4).softmax(-1),
)
add(
    "half_masked_softmax",
    "mask that zeroes scores",
    ZEROED,
    lambda s, m: (s * m).softmax(-1),
)
add("half_masked_softmax", "mask after softmax", AFTER, lambda s, m: s.softmax(-1) * m)
add(
    "half_masked_softmax",
    "mask inverted",
    INVERTED,
    lambda s, m: s.masked_fill(m, -math.inf).softmax(-1).nan_to_num(0),
)


def _paths(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fused: bool,
    mask_manual: bool = True,
    mask_fused: bool = True,
) -> Tensor:
    if fused:
        return F.scaled_dot_product_attention(q, k, v, is_causal=mask_fused)
    s = q @ k.mT / q.shape[-1] ** 0.5
    if mask_manual:
        s = s.masked_fill(
            ~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(),
            -math.inf,
        )
    return s.softmax(-1) @ v


add(
    "attend",
    "mask dropped on one path",
    "is_causal is False by default, so the fused call sees everything unless it is told not to",
    lambda q, k, v, fused: _paths(q, k, v, fused, mask_fused=False),
)
add(
    "attend",
    "mask dropped on the manual path",
    "the written-out steps need a mask of their own",
    lambda q, k, v, fused: _paths(q, k, v, fused, mask_manual=False),
)
add(
    "attend",
    "mask dropped on both paths",
    "every position reads the future",
    lambda q, k, v, fused: _paths(q, k, v, fused, False, False),
)
add(
    "attend",
    "scale given twice",
    "the fused call divides by the root of d itself; dividing q beforehand does it again",
    lambda q, k, v, fused: _paths(q / q.shape[-1] ** 0.5 if fused else q, k, v, fused),
)


def _compare_prefix(
    f: Any, x: Array, t: int, upto: int, atol: float | None = None
) -> bool:
    other = x.copy()
    other[t:] = 5 - 2 * other[t:]
    before, after = f(x.copy())[:upto], f(other)[:upto]
    return bool(
        np.allclose(before, after, atol=atol) if atol else np.array_equal(before, after)
    )


add(
    "is_causal",
    "only the last position changed",
    "a leak from an earlier position stays unseen",
    lambda f, x: _compare_prefix(f, x, len(x) - 1, len(x) - 1),
)
add(
    "is_causal",
    "a tolerance that hides the leak",
    "what does not read a number cannot change at all: the comparison is exact",
    lambda f, x: all(_compare_prefix(f, x, t, t, 1e-3) for t in range(1, len(x))),
)
add(
    "is_causal",
    "the changed positions compared too",
    "they may change; only the positions before them must not",
    lambda f, x: all(_compare_prefix(f, x, t, len(x)) for t in range(1, len(x))),
)
add(
    "is_causal",
    "only the first output compared",
    "a leak between later positions stays unseen",
    lambda f, x: _compare_prefix(f, x, 2, 1),
)

add(
    "is_causal",
    "everything changed from position 1 only",
    "a leak between later positions stays unseen; run through all t",
    lambda f, x: _compare_prefix(f, x, 1, 1),
)

# ---------------------------------------------------------------- 10 the block


def norm_of(x: Array, w: dict[str, Array], number: int, eps: float) -> Array:
    return array.layer_norm(x, w[f"gamma{number}"], w[f"beta{number}"], eps)


def ffn_of(
    x: Array, w: dict[str, Array], bend: Callable[[Array], Array] = array.relu
) -> Array:
    return array.feed_forward(x, w["w1"], w["b1"], w["w2"], w["b2"], bend)[0]


def block(
    x: Array,
    w: dict[str, Array],
    H: int,
    eps: float,
    *,
    order: str = "pre",
    norms: tuple[int, int] = (1, 2),
    keep: tuple[str, str] = ("x", "r"),
    ffn_reads: str = "r",
    causal: bool = True,
    bend: Callable[[Array], Array] = array.relu,
) -> Array:
    """The block, with what can be done wrong as options. `keep`: what each residual sum adds."""
    if order == "post":
        r = norm_of(x + array.multi_head_attention(x, w, H, causal), w, norms[0], eps)
        return norm_of(r + ffn_of(r, w, bend), w, norms[1], eps)
    n1 = norm_of(x, w, norms[0], eps)
    kept: dict[str, Any] = {"x": x, "n1": n1, "zero": 0 * x}
    r = kept[keep[0]] + array.multi_head_attention(n1, w, H, causal)
    n2 = norm_of(x if ffn_reads == "x" else r, w, norms[1], eps)
    kept |= {"r": r, "n2": n2}
    return kept[keep[1]] + ffn_of(r if ffn_reads == "raw" else n2, w, bend)


def attention_half(
    x: Array,
    w: dict[str, Array],
    H: int,
    eps: float,
    kept: str = "x",
    read: str = "n",
    **options: Any,
) -> Array:
    n = norm_of(x, w, options.get("norm", 1), eps)
    attended = array.multi_head_attention(
        n if read == "n" else x, w, H, options.get("causal", True)
    )
    return {"x": x, "n": n, "zero": 0 * x}[kept] + attended


KEPT_NORM = "the normalised rows are kept instead of the rows: the identity path passes through a norm"
SHARED = "the first LayerNorm's gamma and beta in both places: the two are separate parameters"
POST = "the norm stands on the sum; pre-norm has it on what the branch reads"
HALVES: dict[str, tuple[str, dict[str, Any]]] = {
    "residual dropped": ("only the branch goes on", {"kept": "zero"}),
    "residual from the normalised input": (KEPT_NORM, {"kept": "n"}),
    "norm forgotten": ("attention reads the rows as they are", {"read": "x"}),
    "mask dropped": ("every position reads the future", {"causal": False}),
    "the other LayerNorm": (
        "gamma2 and beta2 belong to the second half of the block",
        {"norm": 2},
    ),
}
for _name, (_what, _options) in HALVES.items():
    add(
        "attention_half",
        _name,
        _what,
        lambda *given, o=_options: attention_half(*given, **o),
    )
add(
    "attention_half",
    "post-norm for pre-norm",
    POST,
    lambda x, w, H, eps: norm_of(x + array.multi_head_attention(x, w, H), w, 1, eps),
)
add(
    "ffn_half",
    "residual dropped",
    "only the branch goes on",
    lambda x, w, eps: ffn_of(norm_of(x, w, 2, eps), w),
)
add(
    "ffn_half",
    "residual from the normalised input",
    KEPT_NORM,
    lambda x, w, eps: norm_of(x, w, 2, eps) + ffn_of(norm_of(x, w, 2, eps), w),
)
add(
    "ffn_half",
    "one LayerNorm shared by both places",
    SHARED,
    lambda x, w, eps: x + ffn_of(norm_of(x, w, 1, eps), w),
)
add(
    "ffn_half",
    "norm forgotten",
    "the FFN reads rows of any size",
    lambda x, w, eps: x + ffn_of(x, w),
)
add(
    "ffn_half",
    "post-norm for pre-norm",
    POST,
    lambda x, w, eps: norm_of(x + ffn_of(x, w), w, 2, eps),
)
add(
    "ffn_half",
    "GELU for ReLU",
    "the worked example has a ReLU",
    lambda x, w, eps: x + ffn_of(norm_of(x, w, 2, eps), w, array.gelu),
)
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "post-norm for pre-norm": (POST, {"order": "post"}),
    "one LayerNorm shared by both places": (SHARED, {"norms": (1, 1)}),
    "LayerNorms exchanged": (
        "the first norm's parameters stand in the second place, and the other way round",
        {"norms": (2, 1)},
    ),
    "first residual dropped": (
        "what came in is lost after attention",
        {"keep": ("zero", "r")},
    ),
    "second residual dropped": (
        "what attention found is lost after the FFN",
        {"keep": ("x", "zero")},
    ),
    "second residual from the input": (
        "the second sum adds x, and the update of attention is lost",
        {"keep": ("x", "x")},
    ),
    "residual from the normalised input": (KEPT_NORM, {"keep": ("n1", "n2")}),
    "first residual from the normalised input": (KEPT_NORM, {"keep": ("n1", "r")}),
    "second residual from the normalised input": (KEPT_NORM, {"keep": ("x", "n2")}),
    "FFN beside attention": (
        "both branches read x: that is the parallel block of GPT-J, not this one",
        {"ffn_reads": "x"},
    ),
    "second norm forgotten": (
        "the FFN reads the residual rows as they are",
        {"ffn_reads": "raw"},
    ),
    "mask dropped": ("every position reads the future", {"causal": False}),
    "GELU for ReLU": ("another bend", {"bend": array.gelu}),
}
for _name, (_what, _options) in BLOCKS.items():
    add("block", _name, _what, lambda *given, o=_options: block(*given, **o))
add(
    "block",
    "attention only",
    "the block ends after the first residual sum",
    lambda *given: attention_half(*given),
)


def _stages(
    x: Array,
    w: dict[str, Array],
    H: int,
    eps: float,
    **changes: Callable[[dict[str, Array]], Array],
) -> dict[str, Array]:
    record = dict(array.block(x, w, H, eps)[1])
    return record | {name: change(record) for name, change in changes.items()}


add(
    "block_stages",
    "hidden before the bend",
    "hidden is what the second map reads: the units after the ReLU",
    lambda x, w, H, eps: _stages(
        x, w, H, eps, hidden=lambda r: r["norm2"] @ w["w1"] + w["b1"]
    ),
)
add(
    "block_stages",
    "update for sum",
    "residual1 is the sum of input and update, attention the update alone",
    lambda x, w, H, eps: _stages(x, w, H, eps, residual1=lambda r: r["attention"]),
)
add(
    "block_stages",
    "sum for update",
    "attention is the update alone, before it is added",
    lambda x, w, H, eps: _stages(x, w, H, eps, attention=lambda r: r["residual1"]),
)
add(
    "block_stages",
    "norm2 of the input",
    "the second norm reads residual1, not x",
    lambda x, w, H, eps: _stages(x, w, H, eps, norm2=lambda r: norm_of(x, w, 2, eps)),
)
add(
    "block_parameters",
    "one LayerNorm counted",
    "two norms, each with gamma and beta: 4C",
    lambda C, F: 4 * C * C + 2 * C * F + F + 7 * C,
)
add(
    "block_parameters",
    "biases forgotten",
    "each of the four matrices has one",
    lambda C, F: 4 * C * C + 2 * C * F + 4 * C,
)
add(
    "block_parameters",
    "norms forgotten",
    "gamma and beta are parameters too",
    lambda C, F: 4 * C * C + 2 * C * F + F + 5 * C,
)
add(
    "block_parameters",
    "output projection forgotten",
    "after the heads there is one more C times C, with a bias",
    lambda C, F: 3 * C * C + 2 * C * F + F + 8 * C,
)


class SharedNormBlock(model.Block):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.ln_2 = self.ln_1


class PostNormBlock(model.Block):
    def forward(self, x: Tensor, *_: Any) -> Tensor:
        x = self.ln_1(x + self.attn(x))
        return self.ln_2(x + self.mlp(x))


class NormedResidualBlock(model.Block):
    def forward(self, x: Tensor, *_: Any) -> Tensor:
        x = self.ln_1(x)
        x = x + self.attn(x)
        x = self.ln_2(x)
        return x + self.mlp(x)


class ParallelBlock(model.Block):
    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return x + self.attn(self.ln_1(x)) + self.mlp(self.ln_2(x))


class NoResidualBlock(model.Block):
    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return self.mlp(self.ln_2(self.attn(self.ln_1(x))))


add(
    "block_module",
    "one LayerNorm shared by both places",
    "one module under two names is one set of parameters",
    SharedNormBlock,
)
add("block_module", "post-norm for pre-norm", POST, PostNormBlock)
add(
    "block_module", "residual from the normalised input", KEPT_NORM, NormedResidualBlock
)
add(
    "block_module",
    "FFN beside attention",
    "the FFN reads the sum after attention",
    ParallelBlock,
)
add("block_module", "residual dropped", "both identity paths are cut", NoResidualBlock)

# ---------------------------------------------------------------- 11 order


def post(x: Array, w: dict[str, Array], H: int, eps: float, *, how: str) -> Array:
    def attend(x: Array) -> Array:
        return array.multi_head_attention(x, w, H)

    if how == "branch":
        between = x + norm_of(attend(x), w, 1, eps)
        return between + norm_of(ffn_of(between, w), w, 2, eps)
    first: Array = norm_of(x, w, 1, eps) if how == "both" else x
    r = norm_of(x + attend(first), w, 1, eps)
    y = r + ffn_of(r, w)
    return y if how == "open" else norm_of(y, w, 2, eps)


add(
    "post_norm_block",
    "pre-norm for post-norm",
    "the norm stands on what the branch reads; post-norm has it on the sum",
    lambda *given: block(*given),
)
add(
    "post_norm_block",
    "norm on the update",
    "only the update is normalised, the sum is not",
    lambda *given: post(*given, how="branch"),
)
add(
    "post_norm_block",
    "last norm forgotten",
    "post-norm ends with a norm",
    lambda *given: post(*given, how="open"),
)
add(
    "post_norm_block",
    "attention reads normalised rows",
    "in post-norm attention reads x itself",
    lambda *given: post(*given, how="both"),
)
add(
    "post_norm_block",
    "LayerNorms exchanged",
    "ln_1 follows attention, ln_2 the FFN",
    lambda *given: block(*given, order="post", norms=(2, 1)),
)
add(
    "post_norm_block",
    "one LayerNorm shared by both places",
    SHARED,
    lambda *given: block(*given, order="post", norms=(1, 1)),
)
add(
    "post_norm_block",
    "mask dropped",
    "every position reads the future",
    lambda *given: block(*given, order="post", causal=False),
)


def stack(
    x: Array,
    layers: list[Any],
    gamma: Array,
    beta: Array,
    H: int,
    eps: float,
    *,
    where: str,
) -> Array:
    first: Array = x
    if where == "before":
        x = array.layer_norm(x, gamma, beta, eps)
    for w in layers:
        x = array.block(x, w, H, eps)[0]
        if where == "each":
            x = array.layer_norm(x, gamma, beta, eps)
    if where == "inside":
        return first + array.layer_norm(x - first, gamma, beta, eps)
    return (
        array.layer_norm(x, np.ones_like(gamma), np.zeros_like(beta), eps)
        if where == "plain"
        else x
    )


ONCE = "there is one final norm, after the last block and before the logits"
add(
    "pre_norm_stack",
    "final LayerNorm forgotten",
    "the residual rows reach the logits with whatever size they have",
    lambda *given: stack(*given, where="none"),
)
add(
    "pre_norm_stack",
    "final LayerNorm after each block",
    ONCE,
    lambda *given: stack(*given, where="each"),
)
add(
    "pre_norm_stack",
    "final LayerNorm first",
    ONCE,
    lambda *given: stack(*given, where="before"),
)
add(
    "pre_norm_stack",
    "final LayerNorm inside a residual path",
    "it stands on the sum, not on the updates alone",
    lambda *given: stack(*given, where="inside"),
)
add(
    "pre_norm_stack",
    "final gamma and beta forgotten",
    "the final norm has parameters of its own",
    lambda *given: stack(*given, where="plain"),
)
add(
    "pre_norm_stack",
    "one block for all",
    "the first layer's weights are used in every layer",
    lambda x, layers, *rest: tasks.pre_norm_stack(x, [layers[0]] * len(layers), *rest),
)


def _order_test(
    y: Array,
    gamma: Array,
    beta: Array,
    *,
    undo: bool = True,
    mean: bool = True,
    var: bool = True,
    rows: Any = all,
) -> bool:
    plain = (y - beta) / gamma if undo else y
    tests = [abs(row.mean()) < 1e-6 or not mean for row in plain]
    return bool(
        rows(
            a and (abs(row.var() - 1) < 0.1 or not var)
            for a, row in zip(tests, plain, strict=True)
        )
    )


add(
    "looks_post_norm",
    "gamma and beta not undone",
    "the statistics hold before gamma and beta, so these must be taken away first",
    lambda *given: _order_test(*given, undo=False),
)
add(
    "looks_post_norm",
    "variance not looked at",
    "rows can have mean 0 by another way",
    lambda *given: _order_test(*given, var=False),
)
add(
    "looks_post_norm",
    "mean not looked at",
    "rows can have variance 1 by another way",
    lambda *given: _order_test(*given, mean=False),
)
add(
    "looks_post_norm",
    "one row is enough",
    "every row of a post-norm output is normalised",
    lambda *given: _order_test(*given, rows=any),
)
add(
    "checkpoint_problems",
    "only common names compared",
    "a missing name and an unknown one pass unseen",
    lambda a, b: sorted(n for n in a.keys() & b.keys() if a[n] != b[n]),
)
add(
    "checkpoint_problems",
    "sizes for shapes",
    "a transposed matrix has as many numbers as the right one",
    lambda a, b: sorted(
        n
        for n in a.keys() | b.keys()
        if math.prod(a.get(n, (-1,))) != math.prod(b.get(n, (-1,)))
    ),
)
add(
    "checkpoint_problems",
    "missing names only",
    "extra names and other shapes are problems too",
    lambda a, b: sorted(a.keys() - b.keys()),
)
add(
    "checkpoint_problems",
    "names only",
    "the names fit and the shapes may not",
    lambda a, b: sorted(a.keys() ^ b.keys()),
)
add(
    "first_difference",
    "exact comparison",
    "two right computations differ by rounding; a bound says what is meant",
    lambda a, b, bound: next((n for n in a if not np.array_equal(a[n], b[n])), None),
)
add(
    "first_difference",
    "signs kept",
    "a negative difference looks like none; take the absolute value",
    lambda a, b, bound: next((n for n in a if (b[n] - a[n]).max() > bound), None),
)
add(
    "first_difference",
    "differences added up",
    "errors of opposite sign cancel in a sum",
    lambda a, b, bound: next((n for n in a if abs((a[n] - b[n]).sum()) > bound), None),
)
add(
    "first_difference",
    "last instead of first",
    "the first stage that differs is where the mistake is; the later ones inherit it",
    lambda a, b, bound: next(
        (n for n in reversed(a) if np.abs(a[n] - b[n]).max() > bound), None
    ),
)

# ---------------------------------------------------------------- 12 Mini GPT


add(
    "embed",
    "positions forgotten",
    "equal tokens enter as equal rows, wherever they stand",
    lambda ids, wte, wpe: wte[ids],
)
add(
    "embed",
    "positions added twice",
    "the position rows count double",
    lambda ids, wte, wpe: wte[ids] + 2 * wpe[: ids.shape[1]],
)
add(
    "embed",
    "position table off by one",
    "the first position has index 0; from 1 on, the last row of the table is passed",
    lambda ids, wte, wpe: wte[ids] + wpe[1 : ids.shape[1] + 1],
)
add(
    "embed",
    "positions by token id",
    "the table is read at the id, not at the position",
    lambda ids, wte, wpe: wte[ids] + wpe[ids],
)
add(
    "embed",
    "same position everywhere",
    "every token gets the row of position 0",
    lambda ids, wte, wpe: wte[ids] + wpe[0],
)
add(
    "embed",
    "concatenated",
    "adding keeps the width C, concatenating doubles it",
    lambda ids, wte, wpe: np.concatenate(
        [wte[ids], np.broadcast_to(wpe[: ids.shape[1]], (*ids.shape, wpe.shape[1]))], -1
    ),
)
add(
    "head_logits",
    "final LayerNorm forgotten",
    "the residual rows reach the logits with whatever size they have",
    lambda x, gamma, beta, wte, eps: x @ wte.T,
)
add(
    "head_logits",
    "LayerNorm on the logits",
    "the norm stands before the head, over C and not over V",
    lambda x, gamma, beta, wte, eps: normed(x @ wte.T, eps),
)
add(
    "head_logits",
    "softmax included",
    "logits are scores; the loss takes its own softmax, and would take a second one",
    lambda x, gamma, beta, wte, eps: array.softmax(
        array.layer_norm(x, gamma, beta, eps) @ wte.T
    ),
)
add(
    "head_logits",
    "logits scaled",
    "the head has no scale; that belongs to attention",
    lambda x, gamma, beta, wte, eps: (
        array.layer_norm(x, gamma, beta, eps) @ wte.T / x.shape[-1] ** 0.5
    ),
)


def nats(logits: Array) -> Array:
    """Minus the logarithm of the softmax, along the last axis."""
    top = logits - logits.max(-1, keepdims=True)
    return np.log(np.exp(top).sum(-1, keepdims=True)) - top


def loss_of(logits: Array, targets: Any, how: str = "mean") -> Array:
    losses, real = _picked(nats(logits), targets), targets != -1
    if how == "sum":
        return (losses * real).sum()
    if how == "padding":
        return (losses * real).sum() / real.size
    if how == "padding as last id":
        return losses.mean()
    if how == "sequences":
        return np.mean(
            [row[kept].mean() for row, kept in zip(losses, real, strict=True)]
        )
    return losses[real].mean()


def _picked(numbers: Array, targets: Any) -> Array:
    return np.take_along_axis(
        numbers, np.where(targets < 0, numbers.shape[-1] - 1, targets)[..., None], -1
    )[..., 0]


add(
    "cross_entropy",
    "padding counted",
    "the sum leaves the padding out and the divisor does not",
    lambda logits, targets: loss_of(logits, targets, "padding"),
)
add(
    "cross_entropy",
    "padding read as a token",
    "-1 is an index too: in Python it names the last token",
    lambda logits, targets: loss_of(logits, targets, "padding as last id"),
)
add(
    "cross_entropy",
    "sum for mean",
    "the loss then grows with the batch, and the learning rate with it",
    lambda logits, targets: loss_of(logits, targets, "sum"),
)
add(
    "cross_entropy",
    "mean of the means of sequences",
    "a token in a short sequence then counts more than one in a long one",
    lambda logits, targets: loss_of(logits, targets, "sequences"),
)
add(
    "cross_entropy",
    "bits for nats",
    "the logarithm to base 2",
    lambda logits, targets: loss_of(logits, targets) / math.log(2),
)
add(
    "cross_entropy",
    "softmax twice",
    "the probabilities are taken for logits: the loss is nearly ln V, whatever the model says",
    lambda logits, targets: loss_of(array.softmax(logits), targets),
)
add(
    "cross_entropy",
    "targets flattened wrongly",
    "the targets are read column by column, the logits row by row",
    lambda logits, targets: loss_of(logits, targets.T.reshape(targets.shape)),
)


def _unstable(logits: Array, targets: Any) -> Array:
    chosen = _picked(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), targets)
    return -np.log(chosen)[targets != -1].mean()


add(
    "cross_entropy",
    "no shift for large logits",
    "exp(1000) is infinite, and the loss is NaN or infinite",
    _unstable,
)
add(
    "cross_entropy",
    "exponentials of large logits",
    "exp(1000) is infinite, and so is the logarithm of the sum: subtract the largest logit first",
    lambda logits, targets: (np.log(np.exp(logits).sum(-1)) - _picked(logits, targets))[
        targets != -1
    ].mean(),
)
add(
    "next_token_loss",
    "loss not shifted",
    "position t is asked for the token that it has just read",
    lambda logits, ids: loss_of(logits, ids),
)
add(
    "next_token_loss",
    "loss shifted twice",
    "position t is asked for the token at t + 2",
    lambda logits, ids: loss_of(logits[:, :-2], ids[:, 2:]),
)
add(
    "next_token_loss",
    "loss shifted the wrong way",
    "position t is asked for the token before it, which it has read",
    lambda logits, ids: loss_of(logits[:, 1:], ids[:, :-1]),
)
add(
    "next_token_loss",
    "targets rolled round",
    "the last position is asked for the first token of the text",
    lambda logits, ids: loss_of(logits, np.roll(ids, -1, axis=1)),
)
add(
    "next_token_loss",
    "targets flattened wrongly",
    "the targets are read column by column, the logits row by row",
    lambda logits, ids: loss_of(logits[:, :-1], ids[:, 1:].T.reshape(ids[:, 1:].shape)),
)


def _count(config: GPTConfig, **parts: int) -> int:
    """Parameters by part, each of which can be counted another number of times."""
    C, V, N, bias = config.n_embd, config.vocab_size, config.n_layer, config.bias
    F_ = config.n_hidden or 4 * C
    norm = C * (1 + bias)
    biases = 5 * C + F_ if bias else 0
    sizes = {
        "wte": V * C,
        "wpe": config.block_size * C,
        "matrices": N * (4 * C * C + 2 * C * F_),
        "biases": N * biases,
        "norms": 2 * N * norm,
        "final": norm,
    }
    return sum(size * parts.get(name, 1) for name, size in sizes.items())


add(
    "minigpt_parameters",
    "tied head counted again",
    "head and token table are one parameter in two places",
    lambda config: _count(config, wte=2),
)
add(
    "minigpt_parameters",
    "position table forgotten",
    "it has block_size rows of width C",
    lambda config: _count(config, wpe=0),
)
add(
    "minigpt_parameters",
    "final LayerNorm forgotten",
    "one more gamma, and one more beta",
    lambda config: _count(config, final=0),
)
add(
    "minigpt_parameters",
    "norms forgotten",
    "two in each block and one at the end",
    lambda config: _count(config, norms=0, final=0),
)
add(
    "minigpt_parameters",
    "biases forgotten",
    "four in each block, if the configuration has them",
    lambda config: _count(config, biases=0),
)
add(
    "residual_std",
    "one branch for each layer",
    "each block adds two branches into the residual path: 2N in all",
    lambda n: 0.02 / n**0.5,
)
add(
    "residual_std",
    "root forgotten",
    "variances add up, so the standard deviation shrinks by the root of 2N",
    lambda n: 0.02 / (2 * n),
)
add(
    "residual_std",
    "not scaled",
    "the sum of 2N branches then has 2N times the variance",
    lambda n: 0.02,
)


class UntiedGPT(model.MiniGPT):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)


class CopiedHeadGPT(model.MiniGPT):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.lm_head.weight = nn.Parameter(self.wte.weight.detach().clone())


class VariantGPT(model.MiniGPT):
    """Mini GPT with one thing done otherwise."""

    shift, twice, last_norm, dropping, start = 0, 1, True, False, True

    def forward(self, ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(ids.shape[1], device=ids.device) + self.shift
        x = self.wte(ids) + self.twice * self.wpe(positions)
        x = F.dropout(x, self.config.dropout, self.training or self.dropping)
        for part in self.h:
            x = part(x)
        return self.lm_head(self.ln_f(x) if self.last_norm else x), None


class PositionsTwiceGPT(VariantGPT):
    twice = 2


class PositionsShiftedGPT(VariantGPT):
    shift = 1


class NoPositionsGPT(VariantGPT):
    twice = 0


class NoFinalNormGPT(VariantGPT):
    last_norm = False


class DroppingGPT(VariantGPT):
    dropping = True


class OneBlockGPT(model.MiniGPT):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.h = nn.ModuleList([self.h[0]] * config.n_layer)


add(
    "minigpt_module",
    "head not tied",
    "the head learns a second table of its own",
    UntiedGPT,
)
add(
    "minigpt_module",
    "tied by copy",
    "the two tables start equal and part at the first step of training",
    CopiedHeadGPT,
)
add(
    "minigpt_module",
    "positions added twice",
    "the position rows count double",
    PositionsTwiceGPT,
)
add(
    "minigpt_module",
    "position table off by one",
    "the first position has index 0",
    PositionsShiftedGPT,
)
add(
    "minigpt_module",
    "positions forgotten",
    "equal tokens enter as equal rows, wherever they stand",
    NoPositionsGPT,
)
add(
    "minigpt_module",
    "final LayerNorm forgotten",
    "the residual rows reach the logits with whatever size they have",
    NoFinalNormGPT,
)
add(
    "minigpt_module",
    "dropout left on",
    "F.dropout drops unless it is told that training is over: pass self.training",
    DroppingGPT,
)
add(
    "minigpt_module",
    "one block for all layers",
    "a list that repeats one module repeats one set of parameters",
    OneBlockGPT,
)

# ---------------------------------------------------------------- 13 training

add(
    "inputs_and_targets",
    "targets not shifted",
    "the model is asked for the token that it reads, and learns to copy",
    lambda ids: (ids[:-1], ids[:-1]),
)
add(
    "inputs_and_targets",
    "targets shifted twice",
    "the model is asked for the token after the next one",
    lambda ids: (ids[:-2], ids[2:]),
)
add(
    "inputs_and_targets",
    "targets shifted the wrong way",
    "the model is asked for the token before, which it has read",
    lambda ids: (ids[1:], ids[:-1]),
)
add(
    "inputs_and_targets",
    "targets rolled round",
    "the last position is asked for the first token of the text",
    lambda ids: (ids, np.roll(ids, -1)),
)


def _starts(n: int, T: int, off: int, step: int = 1) -> Any:
    if n < T + 1:
        raise ValueError("too short")
    return np.arange(0, n - T + off, step)


add(
    "window_starts",
    "last window forgotten",
    "a text of block_size + 1 tokens has one window, at 0",
    lambda n, T: _starts(n, T, -1),
)
add(
    "window_starts",
    "one window too many",
    "the last window has no target for its last position",
    lambda n, T: _starts(n, T, 1),
)
add(
    "window_starts",
    "windows side by side",
    "every start counts, not every block_size-th one",
    lambda n, T: _starts(n, T, 0, T),
)
add(
    "window_starts",
    "too short accepted",
    "a text without one whole window gives an empty list, and training ends in an odd place",
    lambda n, T: np.arange(max(0, n - T)),
)


def _rate(
    step: int,
    warmup: int,
    steps: int,
    peak: float,
    floor: float,
    *,
    first: int = 1,
    over: int = 0,
    floored: bool = True,
    half: float = math.pi,
    beyond: bool = True,
) -> float:
    if step < warmup:
        return peak * (step + first) / warmup
    done = (step - warmup * (1 - over)) / (steps - warmup * (1 - over))
    done = min(1.0, done) if beyond else done
    low = floor if floored else 0.0
    return low + (peak - low) * (1 + math.cos(half * done)) / 2


RATES: dict[str, tuple[str, dict[str, Any]]] = {
    "first step at zero": ("step 0 has a rate of 0 and is lost", {"first": 0}),
    "cosine from the start": (
        "the cosine begins after the warm-up, where done is 0",
        {"over": 1},
    ),
    "floor forgotten": ("the rate ends at 0 instead of the floor", {"floored": False}),
    "quarter of a cosine": (
        "half a period, from cos 0 to cos pi, ends at the floor",
        {"half": math.pi / 2},
    ),
    "rising again": (
        "after the last step the cosine turns round; done must stop at 1",
        {"beyond": False},
    ),
}
for _name, (_what, _options) in RATES.items():
    add("learning_rate", _name, _what, lambda *given, o=_options: _rate(*given, **o))
add(
    "learning_rate",
    "no warm-up",
    "the first steps are the largest, when the moments know least",
    lambda step, warmup, steps, peak, floor: _rate(step, 0, steps, peak, floor),
)
add(
    "decayed",
    "weight decay on LayerNorm",
    "decay pulls gamma to 0, and with it the whole branch",
    lambda shapes: sorted(n for n in shapes if n.endswith("weight")),
)
add(
    "decayed",
    "weight decay on everything",
    "biases and norms have no excess to be held down",
    lambda shapes: sorted(shapes),
)
add(
    "decayed",
    "embeddings left out",
    "the tables are matrices too, and the tied head is one of them",
    lambda shapes: sorted(
        n for n, s in shapes.items() if len(s) > 1 and "wte" not in n
    ),
)
add(
    "decayed",
    "groups exchanged",
    "the vectors are decayed and the matrices are not",
    lambda shapes: sorted(n for n, s in shapes.items() if len(s) < 2),
)


def _adamw(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    t: int,
    lr: float,
    decay: float,
    *,
    correct: bool = True,
    coupled: bool = False,
    bare: bool = False,
    inside: bool = False,
    square: bool = True,
    late: bool = False,
) -> tuple[Array, Array, Array]:
    if coupled:
        g = g + decay * p
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * (g**2 if square else np.abs(g))
    a, b = (m / (1 - 0.9**t), v / (1 - 0.95**t)) if correct else (m, v)
    step = a / (np.sqrt(b + 0.1) if inside else np.sqrt(b) + 0.1)
    shrink = 0.0 if coupled else decay if bare else lr * decay
    return p - lr * step - shrink * (p - lr * step if late else p), m, v


ADAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "no bias correction": (
        "the moments start at 0 and are too small in the first steps",
        {"correct": False},
    ),
    "decay inside the gradient": (
        "that is Adam with L2: the decay is divided by the second moment too",
        {"coupled": True},
    ),
    "decay not times the learning rate": (
        "the decay of torch's AdamW is lr times weight_decay",
        {"bare": True},
    ),
    "eps inside the root": (
        "Adam adds eps to the root, LayerNorm inside it",
        {"inside": True},
    ),
    "second moment of absolute values": (
        "the second moment averages squares",
        {"square": False},
    ),
    "decay after the step": (
        "torch shrinks the parameter first and steps then",
        {"late": True},
    ),
}
for _name, (_what, _options) in ADAMS.items():
    add("adamw_step", _name, _what, lambda *given, o=_options: _adamw(*given, **o))


def _joint(gradients: list[Array]) -> float:
    return math.sqrt(sum(float((g**2).sum()) for g in gradients))


add(
    "clip_gradients",
    "each array by itself",
    "the direction of the whole step changes; one norm for all is meant",
    lambda gradients, top: [g * min(1, top / np.linalg.norm(g)) for g in gradients],
)
add(
    "clip_gradients",
    "single numbers cut",
    "each number cut at the limit changes the direction",
    lambda gradients, top: [g.clip(-top, top) for g in gradients],
)
add(
    "clip_gradients",
    "small gradients enlarged",
    "a norm below the limit stays as it is",
    lambda gradients, top: [g * top / _joint(gradients) for g in gradients],
)
add(
    "clip_gradients",
    "root forgotten",
    "the sum of squares is the square of the norm",
    lambda gradients, top: [
        g * min(1, top / _joint(gradients) ** 2) for g in gradients
    ],
)
add(
    "clip_gradients",
    "norms added",
    "the joint norm is the root of the sum of squares, not the sum of the norms",
    lambda gradients, top: [
        g * min(1, top / sum(np.linalg.norm(g) for g in gradients)) for g in gradients
    ],
)


def _leaks(
    suspect: Any,
    ids: Any,
    V: int,
    *,
    times: list[int] | None = None,
    atol: float = 0.0,
    own: bool = False,
    pick: Any = min,
    reach: int = 99,
) -> int | None:
    before, found = suspect(ids.copy()), set()
    for t in times or range(1, len(ids)):
        for token in range(V):
            other = ids.copy()
            other[t] = token
            moved = np.abs(suspect(other) - before).max(-1) > atol
            found |= {
                int(i) for i in np.flatnonzero(moved[: t + own]) if t - i <= reach
            }
    return pick(found, default=None)


def _by_loss(suspect: Any, ids: Any, V: int) -> int | None:
    return 0 if loss_of(suspect(ids)[:-1], ids[1:]) < math.log(V) / 2 else None


add(
    "find_leak",
    "a low loss taken for a leak",
    "a predictable text has a low loss too; only the outputs show what was read",
    _by_loss,
)
add(
    "find_leak",
    "only the last token changed",
    "a leak between earlier positions stays unseen",
    lambda m, ids, V: _leaks(m, ids, V, times=[len(ids) - 1]),
)
add(
    "find_leak",
    "only the position before compared",
    "a leak can pass over the next position; all earlier ones count",
    lambda m, ids, V: _leaks(m, ids, V, reach=1),
)
add(
    "find_leak",
    "a tolerance that hides the leak",
    "what does not read a token cannot change at all",
    lambda m, ids, V: _leaks(m, ids, V, atol=1e-3),
)
add(
    "find_leak",
    "the changed position counted",
    "its own logits may change; only those before it must not",
    lambda m, ids, V: _leaks(m, ids, V, own=True),
)
add(
    "find_leak",
    "last leaking position for the first",
    "the first one is asked for",
    lambda m, ids, V: _leaks(m, ids, V, pick=max),
)

# ---------------------------------------------------------------- 14 sampling


def _tempered(logits: Array, t: float, how: str) -> Array:
    if t < 0:
        raise ValueError("negative")
    if t == 0 and how == "tiny":
        return array.softmax(logits / 1e-6)
    if t == 0 and how != "zero":
        return np.eye(len(logits))[logits.argmax()]
    if how == "multiplied":
        return array.softmax(logits * t)
    if how == "after":
        return array.softmax(logits) / t
    if how == "ignored":
        return array.softmax(logits)
    return _softmax(logits / t, (logits / t).max())


add(
    "with_temperature",
    "temperature multiplied",
    "a high temperature then sharpens and a low one flattens",
    lambda x, t: _tempered(x, t, "multiplied"),
)
add(
    "with_temperature",
    "temperature after softmax",
    "the sum is no longer 1, and the ratios are as before",
    lambda x, t: _tempered(x, t, "after"),
)
add(
    "with_temperature",
    "temperature ignored",
    "every temperature gives the same",
    lambda x, t: _tempered(x, t, "ignored"),
)
add(
    "with_temperature",
    "division by zero",
    "0 means the largest logit; dividing by it gives NaN",
    lambda x, t: _tempered(x, t, "zero"),
)
add(
    "with_temperature",
    "a tiny temperature for 0",
    "equal largest logits then share the probability; 0 means one id, the lowest of them",
    lambda x, t: _tempered(x, t, "tiny") if t <= 0 else array.softmax(x / t),
)
add(
    "with_temperature",
    "negative temperature accepted",
    "it turns the order of the tokens round",
    lambda x, t: array.softmax(x / t) if t else np.eye(len(x))[x.argmax()],
)


def _top_k(x: Array, k: int, how: str) -> Array:
    if k < 1 and how != "unchecked":
        raise ValueError("k")
    order = np.argsort(x if how == "smallest" else -x, kind="stable")
    if how == "late ties":
        order = np.lexsort((-np.arange(len(x)), -x))
    keep = np.isin(np.arange(len(x)), order[: k + (how == "one more")])
    if how == "ties":
        keep = x >= np.sort(x)[::-1][min(k, len(x)) - 1]
    if how == "after":
        return array.softmax(x) * keep
    return array.softmax(np.where(keep, x, 0.0 if how == "zeros" else -np.inf))


TOPS = {
    "top-k after softmax without renormalising": (
        "the kept probabilities do not have the sum 1",
        "after",
    ),
    "ties kept": (
        "everything as large as the k-th logit stays, so more than k tokens do",
        "ties",
    ),
    "ties from the end": (
        "of equal logits the lower ids are kept, so that every machine keeps the same",
        "late ties",
    ),
    "smallest kept": ("sorting goes from the smallest up", "smallest"),
    "one too many kept": ("k + 1 tokens stay", "one more"),
    "cut logits set to zero": (
        "a logit of 0 is an ordinary one; cut means minus infinity",
        "zeros",
    ),
    "k below 1 accepted": ("nothing would be left to draw from", "unchecked"),
}
for _name, (_what, _how) in TOPS.items():
    add("top_k", _name, _what, lambda x, k, how=_how: _top_k(x, k, how))


def _top_p(x: Array, p: float, how: str) -> Array:
    if not 0 < p <= 1 and how != "unchecked":
        raise ValueError("p")
    probabilities = array.softmax(x)
    order = np.argsort(-probabilities, kind="stable")
    if how == "rising":
        order = order[::-1]
    if how == "unsorted":
        order = np.arange(len(x))
    before = np.cumsum(probabilities[order]) - probabilities[order]
    keep = before + probabilities[order] < p if how == "short" else before < p
    if how == "border":
        keep = before <= p
    if how == "short":
        keep[0] = True
    if how == "threshold":
        order, keep = np.arange(len(x)), probabilities >= 1 - p
        keep[probabilities.argmax()] = True
    kept = np.isin(np.arange(len(x)), order[keep])
    return (
        probabilities * kept
        if how == "after"
        else array.softmax(np.where(kept, x, -np.inf))
    )


NUCLEI = {
    "crossing token left out": (
        "the token that brings the sum to p belongs to the set",
        "short",
    ),
    "one more where the sum is p exactly": (
        "a sum that has reached p takes no further token",
        "border",
    ),
    "not sorted": ("the sum runs in the order of the ids", "unsorted"),
    "sorted the wrong way": ("the sum begins with the least likely token", "rising"),
    "not renormalised": ("the kept probabilities do not have the sum 1", "after"),
    "threshold on single probabilities": (
        "p bounds the sum of the kept ones, not each of them",
        "threshold",
    ),
    "p out of range accepted": ("p = 0 keeps nothing", "unchecked"),
}
for _name, (_what, _how) in NUCLEI.items():
    add("top_p", _name, _what, lambda x, p, how=_how: _top_p(x, p, how))
add(
    "draw",
    "largest taken",
    "that is greedy, not sampling: the same id for every u",
    lambda p, u: int(p.argmax()),
)
add(
    "draw",
    "wrong side of the border",
    "u on a border belongs to the next share; else an id of probability 0 can be drawn",
    lambda p, u: int(np.searchsorted(np.cumsum(p), u, side="left")),
)
add(
    "draw",
    "past the last id",
    "rounding can leave the sum below u; the last id with a probability is meant then",
    lambda p, u: int(np.searchsorted(np.cumsum(p), u, side="right")),
)
add(
    "draw",
    "not accumulated",
    "u must be compared with running sums, not with single probabilities",
    lambda p, u: int(np.argmax(p > u)) if (p > u).any() else len(p) - 1,
)
add(
    "draw",
    "one too far",
    "ids start at 0",
    lambda p, u: int(np.searchsorted(np.cumsum(p), u, side="right")) + 1,
)


def _greedy(
    f: Any,
    ids: list[int],
    n: int,
    T: int,
    *,
    crop: str = "last",
    give: str = "all",
    feed: bool = True,
) -> list[int]:
    out = list(ids)
    for _ in range(n):
        seen = out if feed else list(ids)
        window = {"last": seen[-T:], "first": seen[:T], "none": seen, "one": seen[-1:]}[
            crop
        ]
        out.append(int(f(window).argmax()))
    return out[len(ids) :] if give == "new" else out


add(
    "greedy",
    "cropped to the first tokens",
    "past block_size the model sees the beginning for ever, and writes the same token",
    lambda *given: _greedy(*given, crop="first"),
)
add(
    "greedy",
    "not cropped",
    "past block_size the position table has no row",
    lambda *given: _greedy(*given, crop="none"),
)
add(
    "greedy",
    "only the last token shown",
    "without a cache the model must see the whole context",
    lambda *given: _greedy(*given, crop="one"),
)
add(
    "greedy",
    "new tokens not fed back",
    "every step sees the same prompt",
    lambda *given: _greedy(*given, feed=False),
)
add(
    "greedy",
    "prompt left out",
    "the given ids belong to the result",
    lambda *given: _greedy(*given, give="new"),
)

# ---------------------------------------------------------------- 14 KV cache


def _written(cache: Array, new: Array, start: int, count: int) -> tuple[Array, int]:
    out = cache.copy()
    start = min(max(start, 0), len(cache) - len(new))
    out[start : start + len(new)] = new
    return out, count


add(
    "append",
    "cache written at the wrong place",
    "the new rows stand at 0 and overwrite the oldest",
    lambda cache, new, n: _written(cache, new, 0, n + len(new)),
)
add(
    "append",
    "written one too far",
    "n rows are in use, so the next free one has index n; n + 1 leaves a hole",
    lambda cache, new, n: _written(cache, new, n + 1, n + len(new)),
)
add(
    "append",
    "last rows overwritten",
    "the place is n, not n minus the number of new rows",
    lambda cache, new, n: _written(cache, new, n - len(new), n + len(new)),
)
add(
    "append",
    "count not advanced",
    "the next call overwrites what this one wrote",
    lambda cache, new, n: _written(cache, new, n, n),
)
add(
    "append",
    "count advanced by one",
    "q rows were written, not always one",
    lambda cache, new, n: _written(cache, new, n, n + 1),
)
add(
    "append",
    "buffer grown",
    "the buffer has T_max rows from the start; growing copies everything at every step",
    lambda cache, new, n: (np.concatenate([cache[:n], new]), n + len(new)),
)
add(
    "new_positions",
    "cache positions restarting at 0",
    "the new tokens stand after the cached ones",
    lambda n, q: np.arange(q),
)
add(
    "new_positions",
    "positions off by one",
    "n tokens are cached, at 0 to n - 1; the next one stands at n",
    lambda n, q: np.arange(n + 1, n + q + 1),
)
add(
    "new_positions",
    "same position for all",
    "each new token has a position of its own",
    lambda n, q: np.full(q, n),
)
add(
    "new_positions",
    "positions of the cache too",
    "only the new tokens are asked for",
    lambda n, q: np.arange(n + q),
)


def _cached(
    q: Array, k: Array, v: Array, n: int, offset: int | None = 0, used: bool = True
) -> Array:
    if used:
        k, v = k[:n], v[:n]
    mask = (
        np.ones((len(q), len(k)), bool)
        if offset is None
        else np.tri(len(q), len(k), n - len(q) + offset, dtype=bool)
    )
    return array.attention(q, k, v, mask)[0]


add(
    "cached_attention",
    "cached query that sees only the oldest keys",
    "the triangle starts at key 0, as if the queries were the first positions",
    lambda q, k, v, n: _cached(q, k, v, n, len(q) - n),
)
add(
    "cached_attention",
    "empty rows read",
    "the buffer has T_max rows, and those past n hold nothing yet",
    lambda q, k, v, n: _cached(q, k, v, n, None, used=False),
)
add(
    "cached_attention",
    "no mask among the new queries",
    "right for one query; with more, the earlier ones see the later",
    lambda q, k, v, n: _cached(q, k, v, n, None),
)
add(
    "cached_attention",
    "query blind to itself",
    "its own key is in the cache and belongs to what it reads",
    lambda q, k, v, n: _cached(q, k, v, n, -1),
)
add(
    "cached_attention",
    "oldest key forgotten",
    "the first cached position counts as well",
    lambda q, k, v, n: _cached(q, k[1:], v[1:], n - 1),
)


def _decode(x: Array, w_q: Array, w_k: Array, w_v: Array, *, how: str) -> Array:
    rows: list[Array] = []
    keys: list[Array] = []
    values: list[Array] = []
    for t in range(len(x)):
        q, k, v = (x[t : t + 1] @ w for w in (w_q, w_k, w_v))
        if how == "late" and t:
            rows.append(
                array.attention(q, np.concatenate(keys), np.concatenate(values))[0]
            )
        keys.append(k)
        values.append(k if how == "keys" and t and k.shape == v.shape else v)
        if how == "only new":
            keys, values = [k], [v]
        if how == "swapped":
            q, keys[-1] = k, q
        if not (how == "late" and t):
            rows.append(
                array.attention(q, np.concatenate(keys), np.concatenate(values))[0]
            )
    return np.concatenate(rows)


add(
    "decode",
    "appended after attention",
    "the query does not see its own key; only the first position has to",
    lambda *given: _decode(*given, how="late"),
)
add(
    "decode",
    "cache lost between steps",
    "each position sees only itself",
    lambda *given: _decode(*given, how="only new"),
)
add(
    "decode",
    "keys cached as values",
    V_WRONG,
    lambda *given: _decode(*given, how="keys"),
)
add(
    "decode",
    "queries cached for keys",
    "what later positions are compared with is the key",
    lambda *given: _decode(*given, how="swapped"),
)
add(
    "decode",
    "everything visible",
    "the whole text at once and no mask: early positions see later ones",
    lambda x, w_q, w_k, w_v: array.attention(x @ w_q, x @ w_k, x @ w_v)[0],
)
add(
    "cache_bytes",
    "values forgotten",
    "keys and values are both kept",
    lambda c, B, T, size: c.n_layer * B * T * c.n_embd * size,
)
add(
    "cache_bytes",
    "one layer",
    "every layer has a cache of its own",
    lambda c, B, T, size: 2 * B * T * c.n_embd * size,
)
add(
    "cache_bytes",
    "heads counted again",
    "H heads of width d are C numbers in all",
    lambda c, B, T, size: 2 * c.n_layer * B * T * c.n_embd * c.n_head * size,
)
add(
    "cache_bytes",
    "numbers for bytes",
    "each number takes bytes_each bytes",
    lambda c, B, T, size: 2 * c.n_layer * B * T * c.n_embd,
)
add(
    "must_rebuild",
    "rebuilt one too early",
    "n + q = block_size still fits",
    lambda n, q, T: n + q >= T,
)
add(
    "must_rebuild",
    "new tokens not counted",
    "they need rows too",
    lambda n, q, T: n > T,
)
add(
    "must_rebuild",
    "one new token assumed",
    "q can be larger than 1",
    lambda n, q, T: n + 1 > T,
)
