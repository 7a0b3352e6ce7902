"""The tasks of the exercise notebooks: what each function takes and gives, and the cases it is tried on.

A task is one entry of TASKS. `minigpt.check` compares with its reference, which comes from `array`, `scalar`,
`model` or torch, or is a formula in loops. Cases go from small to large, so that the first one that fails is
the smallest. Their numbers are chosen so that mistakes show: eps is 0.1, gamma is not 1, beta is not 0, and
B, T, C, H, d, F are all different wherever that is possible.

Axes: B sequences, T positions, C width, H heads of width d, F hidden width, V vocabulary size.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from minigpt import array, model, scalar
from minigpt.array import Array
from minigpt.model import GPTConfig

NOTEBOOKS = (
    "03_layernorm",
    "03_layernorm_backward",
    "04_feed_forward",
    "05_residual",
    "06_attention",
    "07_heads",
    "08_causal_mask",
    "10_block",
    "11_order",
    "12_minigpt",
    "13_training",
    "14_sampling",
    "14_kv_cache",
)


@dataclass(frozen=True)
class Case:
    """One input. `dtype`: only in this one; `wide`: only in float64; `rough`: a wrong result is not compared
    with that of a famous mistake number by number; `slack`: the tolerance, times this."""

    arguments: tuple[Any, ...]
    dtype: str | None = None
    wide: bool = False
    rough: bool = False
    slack: float = 1.0


@dataclass(frozen=True)
class Task:
    """One function to be written."""

    name: str
    notebook: str
    signature: str  # what it takes and gives, with shapes
    reference: Callable[..., Any]
    make_cases: Callable[[], Iterator[Case]]
    home: str = "numpy"  # the library of the reference; a task of NumPy may be solved in torch as well
    plain: bool = (
        False  # no arrays of floats that could come in another library or dtype
    )
    returns: tuple[str, ...] = ()  # names, where there is more than one result
    fresh: bool = False  # the result must have memory of its own
    may_change: bool = False  # the function may write into its arguments
    observe: Callable[..., Any] = field(
        default=lambda function, *arguments: function(*arguments)
    )

    @functools.cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments, read from the signature."""
        inner = re.sub(
            r"\[[^\]]*\]",
            "",
            self.signature.split("->")[0].partition("(")[2].rpartition(")")[0],
        )
        return tuple(
            part.split()[0].split("=")[0] for part in inner.split(",") if part.strip()
        )

    def cases(self) -> tuple[Case, ...]:
        return _cases(self.name)


TASKS: dict[str, Task] = {}


@functools.cache
def _cases(name: str) -> tuple[Case, ...]:
    return tuple(TASKS[name].make_cases())


def case(*arguments: Any, **options: Any) -> Case:
    return Case(arguments, **options)


def normal(seed: int, *shape: int) -> Array:
    """Normal numbers with a seed, of two decimals, so that they can be read."""
    return np.random.default_rng(seed).normal(size=shape).round(2)


def add(
    notebook: str,
    signature: str,
    reference: Callable[..., Any],
    cases: Callable[[], Iterator[Case]],
    **rest: Any,
) -> None:
    name = signature.partition("(")[0]
    TASKS[name] = Task(name, notebook, signature, reference, cases, **rest)


# ---------------------------------------------------------------- 03 LayerNorm, forward

EPS = 0.1
PAIR, ROW = np.array([1.0, 3.0]), np.array([1.0, 2.0, 3.0, 6.0])
LEVEL = 1e9 + np.array(
    [[0.0, 1.0, 2.0, 6.0], [0.0, 3.0, 3.0, 7.0]]
)  # squares of these lose the variance


def row_statistics(x: Array) -> tuple[Array, Array]:
    return x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)


def _rows() -> Iterator[Case]:
    yield case(PAIR)
    yield case(ROW)
    yield case(normal(1, 3, 4))
    yield case(normal(2, 2, 3, 5) + 4)
    yield case(LEVEL, wide=True, rough=True, slack=1e3)


def _rows_eps() -> Iterator[Case]:
    for one in _rows():
        yield case(*one.arguments, EPS, wide=one.wide, rough=one.rough, slack=one.slack)


def _affine(seed: int, C: int) -> tuple[Array, Array]:
    """A gamma that is nowhere 1, and a beta that is nowhere 0."""
    rng = np.random.default_rng(seed)
    return (1.5 + rng.random(C)).round(2), (rng.random(C) - 2).round(2)


def _layer_norms() -> Iterator[Case]:
    yield case(PAIR, np.array([2.0, 0.5]), np.array([0.5, -1.0]), EPS)
    for number, x in enumerate((ROW, normal(3, 3, 4), normal(4, 2, 3, 5) + 4)):
        yield case(x, *_affine(number, x.shape[-1]), EPS)
    yield case(np.array([[5.0, 5.0, 5.0]]), *_affine(8, 3), EPS)
    yield case(LEVEL, *_affine(9, 4), EPS, wide=True, rough=True, slack=1e3)


def _optional_betas() -> Iterator[Case]:
    gamma, beta = _affine(5, 3)
    yield case(PAIR, np.array([2.0, 0.5]), None, EPS)
    yield case(normal(6, 2, 3), gamma, beta, EPS)
    yield case(normal(7, 2, 4, 3), gamma, None, EPS)


def output_variance(variance: float, eps: float) -> float:
    row = [-math.sqrt(variance), math.sqrt(variance)]
    return sum(value**2 for value in scalar.layer_norm(row, [1.0, 1.0], None, eps)) / 2


def over_positions(x: Array) -> Array:
    """LayerNorm's mistake: each column over all positions."""
    return (x - x.mean(0)) / (x.var(0) + EPS) ** 0.5


def over_everything(x: Array) -> Array:
    return (x - x.mean()) / (x.var() + EPS) ** 0.5


def each_row(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + EPS) ** 0.5


def positions_so_far(x: Array) -> Array:
    """Each column over the positions up to its own: unusual, and no leak."""
    return np.stack([(x[t] - x[: t + 1].mean(0)) for t in range(len(x))])


def a_trace_of_the_last(x: Array) -> Array:
    return each_row(x) + 1e-3 * x[-1]


def one_row_back(x: Array) -> Array:
    """A leak from the last position into the one before it, and nowhere else."""
    y = each_row(x)
    y[-2] += x[-1]
    return y


def _norms() -> Iterator[Case]:
    x = normal(11, 3, 2)
    for norm in (
        each_row,
        over_positions,
        over_everything,
        positions_so_far,
        a_trace_of_the_last,
        one_row_back,
    ):
        yield case(norm, x)


def last_row_leaks(norm: Callable[[Array], Array], x: Array) -> bool:
    changed = x.copy()
    changed[-1] = 3 * x[-1] + 7
    return not np.array_equal(norm(x)[:-1], norm(changed)[:-1])


N3 = "03_layernorm"
add(
    N3,
    "row_statistics(x [..., C]) -> mean [..., 1], variance [..., 1]",
    row_statistics,
    _rows,
    returns=("mean", "variance"),
)
add(
    N3,
    "normalise(x [..., C], eps) -> [..., C]",
    lambda x, eps: array.layer_norm(x, np.ones(x.shape[-1]), None, eps),
    _rows_eps,
)
add(
    N3,
    "layer_norm(x [..., C], gamma [C], beta [C], eps) -> [..., C]",
    array.layer_norm,
    _layer_norms,
)
add(
    N3,
    "layer_norm_optional(x [..., C], gamma [C], beta [C] or None, eps) -> [..., C]",
    array.layer_norm,
    _optional_betas,
)
add(
    N3,
    "output_variance(variance, eps) -> number",
    output_variance,
    lambda: (
        case(v, e) for v, e in ((1.0, 0.5), (0.25, 0.75), (4.0, 0.1), (0.01, 0.03))
    ),
    plain=True,
)
add(
    N3,
    "last_row_leaks(norm, x [T, C]) -> True or False",
    last_row_leaks,
    _norms,
    plain=True,
)

# ---------------------------------------------------------------- 03 LayerNorm, backward


def _shapes_dy(seed: int) -> Iterator[tuple[Array, Array, Array]]:
    """dy, x and gamma, from one row to a batch."""
    for number, shape in enumerate(((2,), (4,), (3, 4), (2, 3, 5))):
        x, dy = normal(seed + number, *shape), normal(seed + 10 + number, *shape)
        yield (dy, x * 2 + 1, _affine(number, shape[-1])[0])


def numeric_gradient(f: Callable[[Array], float], x: Array, h: float) -> Array:
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = h
        out[index] = (f(x + step) - f(x - step)) / (2 * h)
    return out


def sum_of_cubes(x: Array) -> float:
    return float((x**3).sum())


def product_of_all(x: Array) -> float:
    return float(x.prod())


def relative_error(a: Array, b: Array) -> float:
    top = max(float(np.abs(a).max()), float(np.abs(b).max()))
    return 0.0 if top == 0 else float(np.abs(a - b).max()) / top


N3B = "03_layernorm_backward"
add(
    N3B,
    "gradient_beta(dy [..., C]) -> [C]",
    lambda dy: array.layer_norm_backward(dy, dy, np.ones(dy.shape[-1]))[2],
    lambda: (case(dy) for dy, _, _ in _shapes_dy(100)),
)
add(
    N3B,
    "gradient_gamma(dy [..., C], x [..., C], eps) -> [C]",
    lambda dy, x, eps: array.layer_norm_backward(dy, x, np.ones(x.shape[-1]), eps)[1],
    lambda: (case(dy, x, EPS) for dy, x, _ in _shapes_dy(120)),
)
add(
    N3B,
    "gradient_row(dy [C], x [C], gamma [C], eps) -> [C]",
    lambda dy, x, gamma, eps: array.layer_norm_backward(dy, x, gamma, eps)[0],
    lambda: (case(dy, x, gamma, EPS) for dy, x, gamma in list(_shapes_dy(140))[:2]),
)
add(
    N3B,
    "layer_norm_backward(dy [..., C], x [..., C], gamma [C], eps) -> dx [..., C], dgamma [C], dbeta [C]",
    array.layer_norm_backward,
    lambda: (case(dy, x, gamma, EPS) for dy, x, gamma in _shapes_dy(160)),
    returns=("dx", "dgamma", "dbeta"),
)
add(
    N3B,
    "numeric_gradient(f, x [...], h) -> [...]",
    numeric_gradient,
    lambda: (
        case(f, x, 0.1)
        for f, x in (
            (sum_of_cubes, np.array([1.0])),
            (sum_of_cubes, np.array([1.0, -2.0])),
            (product_of_all, normal(181, 2, 3)),
        )
    ),
    plain=True,
)
add(
    N3B,
    "relative_error(a [...], b [...]) -> number",
    relative_error,
    lambda: (
        case(a, b)
        for a, b in (
            (np.array([2.0]), np.array([1.0])),
            (np.array([1.0, -4.0]), np.array([1.0, -5.0])),
            (np.array([-3.0, 2.0]), np.array([-1.0, 2.5])),
            (np.zeros(3), np.zeros(3)),
            (normal(182, 2, 3), normal(183, 2, 3)),
        )
    ),
    plain=True,
)

# ---------------------------------------------------------------- 04 feed-forward


def _ffn(seed: int, C: int, F: int) -> tuple[Array, Array, Array, Array]:
    return (
        normal(seed, C, F),
        normal(seed + 1, F) + 1,
        normal(seed + 2, F, C),
        normal(seed + 3, C) - 1,
    )


def _feed_forwards() -> Iterator[Case]:
    for number, shape in enumerate(((2,), (3, 3), (2, 3, 4))):
        yield case(
            normal(200 + number, *shape),
            *_ffn(210 + 5 * number, shape[-1], (3, 4, 5)[number]),
        )


def _bends(*rows: list[float]) -> Callable[[], Iterator[Case]]:
    return lambda: (case(np.array(row)) for row in (*rows, normal(230, 2, 3, 4) * 2))


def fold(w1: Array, b1: Array, w2: Array, b2: Array) -> tuple[Array, Array]:
    return w1 @ w2, array.linear(b1, w2, b2)


def ffn_parameters(C: int, F: int, bias: bool) -> int:
    mlp = model.MLP(GPTConfig(n_head=1, n_embd=C, n_hidden=F, bias=bias))
    return sum(parameter.numel() for parameter in mlp.parameters())


N4 = "04_feed_forward"
add(N4, "relu(x [...]) -> [...]", array.relu, _bends([-1.0, 2.0], [0.0, -3.5, 0.25]))
add(
    N4,
    "feed_forward(x [..., C], w1 [C, F], b1 [F], w2 [F, C], b2 [C]) -> [..., C]",
    lambda *given: array.feed_forward(*given)[0],
    _feed_forwards,
)
add(
    N4,
    "fold(w1 [C, F], b1 [F], w2 [F, C], b2 [C]) -> weight [C, C], bias [C]",
    fold,
    lambda: (case(*_ffn(240 + C, C, F)) for C, F in ((1, 2), (2, 3), (4, 3))),
    returns=("weight", "bias"),
)
add(N4, "gelu(x [...]) -> [...]", array.gelu, _bends([1.0, -1.0], [0.0, 3.0, -0.5]))
add(
    N4,
    "gelu_tanh(x [...]) -> [...]",
    array.gelu_tanh,
    _bends([1.0, -1.0], [0.0, 3.0, -0.5]),
)
add(
    N4,
    "ffn_parameters(C, F, bias) -> whole number",
    ffn_parameters,
    lambda: (
        case(*sizes)
        for sizes in ((1, 2, True), (2, 3, False), (3, 12, True), (16, 64, True))
    ),
    plain=True,
)

# ---------------------------------------------------------------- 05 residual


def plus_one(x: Any) -> Any:
    return x + 1


def threefold(x: Any) -> Any:
    return 3 * x


def squares(x: Any) -> Any:
    return x * x


def centred(x: Any) -> Any:
    """Half of each row minus its mean: a stand-in for LayerNorm; done twice it is seen."""
    return (x - x.sum(-1)[..., None] / x.shape[-1]) / 2


def _residuals() -> Iterator[Case]:
    yield case(np.array([1.0, 0.0]), np.array([0.0, 2.0]))
    yield case(normal(300, 3, 2), normal(301, 3, 2))
    yield case(normal(302, 3, 2), normal(303, 1, 2))  # refused
    yield case(normal(304, 2, 3, 4), normal(305, 1, 3, 4))  # refused
    yield case(normal(302, 3, 2), normal(308, 3, 1))  # refused, though equally long
    yield case(normal(304, 2, 3, 4), normal(309, 2, 1, 4))  # refused, likewise
    yield case(normal(306, 2, 3, 4), normal(307, 2, 3, 4))


def _branches() -> Iterator[Case]:
    for branch in (plus_one, threefold, squares):
        yield case(np.array([1.0, -2.0]), branch)
    yield case(normal(310, 2, 3, 4), squares)


def _stacks() -> Iterator[Case]:
    yield case(np.array([1.0, -2.0]), [threefold])
    yield case(np.array([1.0, -2.0]), [plus_one, squares])
    yield case(normal(311, 2, 3, 4), [threefold, plus_one, squares])
    yield case(normal(312, 3, 2), [])


def _run_stack(x: Array, branches: list[Callable[[Array], Array]]) -> Array:
    x = x.copy()
    for branch in branches:
        x = array.residual(x, branch(x))
    return x


def _norm_steps() -> Iterator[Case]:
    for number, branch in enumerate((squares, plus_one, threefold)):
        x = np.array([1.0, 4.0]) if number == 0 else normal(320 + number, 2, 3, 4) + 1
        yield case(x, centred, branch)


def residual_gradient(dy: Array, weight: Array) -> Array:
    x = torch.zeros(dy.shape, dtype=torch.float64, requires_grad=True)
    model.residual(x, x @ torch.tensor(weight)).backward(torch.tensor(dy))
    assert x.grad is not None
    return x.grad.numpy()


N5 = "05_residual"
add(
    N5,
    "residual(x [...], update [...]) -> [...]; unequal shapes: ValueError",
    array.residual,
    _residuals,
    fresh=True,
)
add(
    N5,
    "residual_branch(x [...], branch) -> [...]",
    lambda x, branch: array.residual(x, branch(x)),
    _branches,
)
add(
    N5,
    "pre_norm_step(x [..., C], norm, branch) -> [..., C]",
    lambda x, norm, branch: array.residual(x, branch(norm(x))),
    _norm_steps,
)
add(N5, "residual_stack(x [...], branches) -> [...]", _run_stack, _stacks, fresh=True)
add(
    N5,
    "residual_gradient(dy [T, C], weight [C, C]) -> [T, C]",
    residual_gradient,
    lambda: (
        case(normal(330 + C, T, C), normal(340 + C, C, C))
        for T, C in ((1, 2), (3, 2), (2, 4))
    ),
)

# ---------------------------------------------------------------- 06 attention


def _qk() -> Iterator[tuple[Array, Array, Array]]:
    """q [..., T_q, d], k [..., T_k, d], v [..., T_k, d_v], from one query to a batch."""
    sizes: tuple[tuple[tuple[int, ...], int, int, int, int], ...] = (
        ((), 1, 2, 4, 3),
        ((), 3, 4, 5, 2),
        ((), 3, 3, 9, 2),
        ((2,), 3, 5, 4, 6),
    )
    for number, (lead, T_q, T_k, d, d_v) in enumerate(sizes):
        q, k = normal(400 + number, *lead, T_q, d), normal(410 + number, *lead, T_k, d)
        yield q * 2, k * 2, normal(420 + number, *lead, T_k, d_v)


def attention_scores(q: Array, k: Array) -> Array:
    scores = torch.einsum(
        "...id,...jd->...ij", torch.tensor(q), torch.tensor(k)
    ) / math.sqrt(q.shape[-1])
    return scores.numpy()


def _score_rows() -> Iterator[Case]:
    yield case(np.array([0.0, math.log(2.0)]))
    yield case(np.array([1000.0, 1001.0, 999.0]))
    yield case(normal(430, 3, 4) * 3)
    yield case(np.array([[0.0, 1.0], [-2000.0, -2001.0]]))
    yield case(np.array([0.5, -np.inf, 1.5]))
    yield case(normal(431, 2, 3, 5) * 3)


def _weights(seed: int, *shape: int) -> Array:
    return array.softmax(normal(seed, *shape) * 2)


def entropy(weights: Array) -> Array:
    return torch.special.entr(torch.tensor(weights)).sum(-1).numpy()


N6 = "06_attention"
add(
    N6,
    "attention_scores(q [..., T_q, d], k [..., T_k, d]) -> [..., T_q, T_k]",
    attention_scores,
    lambda: (case(q, k) for q, k, _ in _qk()),
)
add(N6, "softmax(scores [..., T]) -> [..., T]", array.softmax, _score_rows)
add(
    N6,
    "weighted_sum(weights [..., T_q, T_k], v [..., T_k, d]) -> [..., T_q, d]",
    lambda weights, v: (weights[..., None] * v[..., None, :, :]).sum(-2),
    lambda: (
        case(_weights(440 + i, *q.shape[:-1], k.shape[-2]), v)
        for i, (q, k, v) in enumerate(_qk())
    ),
)
add(
    N6,
    "attention(q [..., T_q, d], k [..., T_k, d], v [..., T_k, d_v]) -> [..., T_q, d_v]",
    lambda q, k, v: array.attention(q, k, v)[0],
    lambda: (case(*given) for given in _qk()),
)
add(
    N6,
    "entropy(weights [..., T]) -> [...] in nats",
    entropy,
    lambda: (
        case(weights)
        for weights in (
            np.array([[0.5, 0.5]]),
            np.array([[1.0, 0.0], [0.25, 0.75]]),
            _weights(450, 3, 4),
            _weights(451, 2, 3, 5),
        )
    ),
)

# ---------------------------------------------------------------- 07 heads


def _counted(*shape: int) -> Array:
    """0, 1, 2, ...: every number says where it came from."""
    return np.arange(math.prod(shape), dtype=float).reshape(shape)


def _mha(seed: int, B: int, T: int, H: int, d: int) -> tuple[Any, ...]:
    C = H * d
    parts = normal(seed, B, T, C), normal(seed + 1, C, 3 * C), normal(seed + 2, 3 * C)
    return (*parts, normal(seed + 3, C, C), normal(seed + 4, C), H)


def multi_head_attention(
    x: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    n_head: int,
    causal: bool = False,
) -> Array:
    weights = {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_o": w_o, "b_o": b_o}
    return array.multi_head_attention(x, weights, n_head, causal)


N7 = "07_heads"
add(
    N7,
    "fuse(w_q [C, C], w_k [C, C], w_v [C, C]) -> [C, 3C]",
    lambda *parts: np.concatenate(parts, axis=1),
    lambda: (
        case(*(normal(500 + 10 * C + i, C, C) for i in range(3))) for C in (1, 2, 3)
    ),
)
add(
    N7,
    "split_qkv(qkv [B, T, 3C]) -> q, k, v, each [B, T, C]",
    lambda qkv: tuple(np.split(qkv, 3, axis=-1)),
    lambda: (case(_counted(*shape)) for shape in ((1, 1, 6), (1, 2, 6), (2, 3, 12))),
    returns=("q", "k", "v"),
)
add(
    N7,
    "split_heads(x [B, T, C], n_head) -> [B, H, T, d]",
    array.split_heads,
    lambda: (
        case(_counted(B, T, H * d), H)
        for B, T, H, d in ((1, 2, 2, 1), (1, 3, 2, 2), (2, 4, 3, 5))
    ),
)
add(
    N7,
    "merge_heads(x [B, H, T, d]) -> [B, T, C]",
    array.merge_heads,
    lambda: (
        case(_counted(*shape)) for shape in ((1, 2, 2, 1), (1, 2, 3, 2), (2, 3, 4, 5))
    ),
)
add(
    N7,
    "merge_heads_torch(x [B, H, T, d]) -> [B, T, C]",
    lambda x: torch.cat(x.unbind(1), dim=-1),
    lambda: (
        case(_counted(*shape)) for shape in ((1, 2, 2, 1), (1, 2, 3, 2), (2, 3, 4, 5))
    ),
    home="torch",
)
add(
    N7,
    "multi_head_attention(x [B, T, C], w_qkv [C, 3C], b_qkv [3C], w_o [C, C], b_o [C], n_head) -> [B, T, C]",
    multi_head_attention,
    lambda: (
        case(*_mha(*sizes))
        for sizes in ((520, 1, 2, 2, 2), (530, 1, 3, 3, 2), (540, 2, 4, 3, 5))
    ),
)

# ---------------------------------------------------------------- 08 causal mask


def _masked() -> Iterator[tuple[Array, Any]]:
    """Scores and masks, from the example of the chapter to a batch."""
    yield np.array([[0.0, math.log(2.0), 100.0]]), np.array([[True, True, False]])
    yield normal(600, 3, 3) * 3, np.tri(3, dtype=bool)
    yield (
        normal(601, 2, 4, 4) * 3,
        np.broadcast_to(np.tri(4, dtype=bool), (2, 4, 4)).copy(),
    )
    yield np.array([[1.0, 1e12], [2.0, 1.0]]), np.tri(2, dtype=bool)


def masked_softmax(scores: Array, mask: Any) -> Array:
    return array.softmax(np.where(mask, scores, -np.inf))


def _masked_softmaxes() -> Iterator[Case]:
    yield from (case(*pair) for pair in _masked())
    yield case(
        np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([[False, False], [True, False]])
    )
    yield case(
        np.array([[1000.0, 1.0], [-1000.0, -1001.0]]), np.tri(2, dtype=bool)
    )  # exp overflows in the first row, and is 0 in the second


def half_masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = masked_softmax(scores.double().numpy(), mask.numpy())
    return torch.tensor(weights).to(scores.dtype)


def _halves() -> Iterator[Case]:
    yield case(
        np.array([[0.0, 100.0], [1.0, 2.0]]), np.tri(2, dtype=bool), dtype="float16"
    )
    yield case(normal(610, 2, 3, 3) * 3, np.tri(3, dtype=bool), dtype="float16")
    yield case(
        np.array([[-20000.0, 60000.0], [-20000.0, -20016.0]]),
        np.tri(2, dtype=bool),
        dtype="float16",
    )
    yield case(normal(611, 3, 3) * 3, np.tri(3, dtype=bool))


def _self(seed: int) -> Iterator[tuple[Array, Array, Array]]:
    for number, (lead, T, d) in enumerate((((), 2, 3), ((), 3, 4), ((2, 3), 4, 5))):
        yield (
            normal(seed + number, *lead, T, d),
            normal(seed + 9 + number, *lead, T, d),
            normal(seed + 19, *lead, T, d),
        )


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, fused: bool
) -> torch.Tensor:
    return model.attend(q, k, v, flash=False)


def sees_itself(x: Array) -> Array:
    return 2 * x


def running_sum(x: Array) -> Array:
    return x.cumsum(0)


def mean_of_all(x: Array) -> Array:
    return x - x.mean(0)


def next_row(x: Array) -> Array:
    """Each position reads the one after it; the last one reads itself."""
    return x[np.minimum(np.arange(len(x)) + 1, len(x) - 1)]


def early_leak(x: Array) -> Array:
    """Only position 0 reads ahead, and only position 1."""
    y = x.copy()
    y[0] += x[1]
    return y


def late_leak(x: Array) -> Array:
    """Only the last position but one reads ahead."""
    y = x.copy()
    y[-2] += x[-1]
    return y


def ignores_input(x: Array) -> Array:
    return np.ones_like(x)


def faint_leak(x: Array) -> Array:
    return running_sum(x) + 1e-9 * x.sum(0)


def _readers() -> Iterator[Case]:
    x = normal(630, 4, 2)
    for f in (
        sees_itself,
        mean_of_all,
        next_row,
        running_sum,
        early_leak,
        late_leak,
        faint_leak,
        ignores_input,
    ):
        yield case(f, x)


def is_causal(f: Callable[[Array], Array], x: Array) -> bool:
    before = f(x.copy())
    for t in range(1, len(x)):
        other = x.copy()
        other[t:] = 5 - 2 * other[t:]
        if not np.array_equal(f(other)[:t], before[:t]):
            return False
    return True


N8 = "08_causal_mask"
add(
    N8,
    "causal_mask(T) -> bool [T, T], True where row i may read column j",
    array.causal_mask,
    lambda: (case(T) for T in (1, 2, 3, 5)),
    plain=True,
)
add(
    N8,
    "masked_scores(scores [..., T, T], mask bool [..., T, T]) -> [..., T, T]",
    lambda scores, mask: np.where(mask, scores, -np.inf),
    lambda: (case(*pair) for pair in _masked()),
)
add(
    N8,
    "masked_softmax(scores [..., T, T], mask bool [..., T, T]) -> [..., T, T]; a row without True: zeros",
    masked_softmax,
    _masked_softmaxes,
)
add(
    N8,
    "causal_attention(q [..., T, d], k [..., T, d], v [..., T, d]) -> [..., T, d]",
    lambda q, k, v: array.attention(q, k, v, array.causal_mask(q.shape[-2]))[0],
    lambda: (case(*given) for given in _self(640)),
)
add(
    N8,
    "cached_mask(n_query, n_key) -> bool [n_query, n_key]; the queries are the last positions",
    array.causal_mask,
    lambda: (case(*sizes) for sizes in ((1, 1), (1, 3), (2, 2), (3, 5))),
    plain=True,
)
add(
    N8,
    "half_masked_softmax(scores [..., T, T], mask bool [T, T]) -> [..., T, T], in torch, float16 too",
    half_masked_softmax,
    _halves,
    home="torch",
)
add(
    N8,
    "attend(q [B, H, T, d], k [B, H, T, d], v [B, H, T, d], fused) -> [B, H, T, d], torch, causal both ways",
    attend,
    lambda: (
        case(*(normal(660 + i, *shape) for i in range(3)), fused)
        for shape in ((1, 1, 2, 3), (2, 3, 4, 5))
        for fused in (False, True)
    ),
    home="torch",
)
add(N8, "is_causal(f, x [T, C]) -> True or False", is_causal, _readers, plain=True)

# ---------------------------------------------------------------- 10 the block


def block_weights(seed: int, C: int, F: int) -> dict[str, Array]:
    """Weights under the names of `array.block`, with two LayerNorms that differ and no bias of zero."""
    shapes: dict[str, tuple[int, ...]] = {
        **{"w_qkv": (C, 3 * C), "b_qkv": (3 * C,), "w_o": (C, C), "b_o": (C,)},
        **{"w1": (C, F), "b1": (F,), "w2": (F, C), "b2": (C,)},
    }
    weights = {
        name: normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())
    }
    for number in (1, 2):
        weights[f"gamma{number}"], weights[f"beta{number}"] = _affine(
            seed + 20 + number, C
        )
    return weights


def _blocks() -> Iterator[Case]:
    for number, (lead, T, H, d, F) in enumerate(
        (((), 2, 1, 2, 3), ((), 3, 2, 2, 5), ((2,), 4, 3, 2, 7))
    ):
        x = normal(700 + number, *lead, T, H * d) + 1
        yield case(x, block_weights(710 + 40 * number, H * d, F), H, EPS)


def attention_half(
    x: Array, weights: dict[str, Array], n_head: int, eps: float
) -> Array:
    return array.block(x, weights, n_head, eps)[1]["residual1"]


def ffn_half(x: Array, weights: dict[str, Array], eps: float) -> Array:
    silent = weights | {
        "w_o": weights["w_o"] * 0,
        "b_o": weights["b_o"] * 0,
    }  # then residual1 is x
    return array.block(x, silent, 1, eps)[0]


def block_parameters(C: int, F: int) -> int:
    block = model.Block(GPTConfig(block_size=1, n_head=1, n_embd=C, n_hidden=F))
    return sum(parameter.numel() for parameter in block.parameters())


def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter numbers of its own, in a fixed order; norms stay near 1."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            size = 0.3 if "ln" not in name else 0.8
            parameter.copy_(
                torch.tensor(
                    rng.normal(0, size, parameter.shape) + (0.5 if "ln" in name else 0)
                )
            )
    return module


def _made(build: Callable[[GPTConfig], nn.Module], config: GPTConfig) -> nn.Module:
    """A module from its class; TypeError for anything else."""
    if isinstance(build, nn.Module):
        raise TypeError("got a module, expected its class")
    torch.manual_seed(0)
    module = build(config)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"got {type(module).__name__} from the class, expected a torch.nn.Module"
        )
    return module


def _shapes(module: nn.Module) -> dict[str, str]:
    return {name: str(list(p.shape)) for name, p in module.state_dict().items()}


def observe_block(
    build: Callable[[GPTConfig], nn.Module], config: GPTConfig, x: torch.Tensor
) -> dict[str, Any]:
    """A block from its class: names of its parameters, their number, and its output with given weights."""
    module = _made(build, config).to(x.device, x.dtype)
    source = fill(model.Block(config).double())
    seen: dict[str, Any] = {"parameters": _shapes(module)}
    if seen["parameters"] == _shapes(source):
        module.load_state_dict(source.state_dict())
        seen["count"] = sum(parameter.numel() for parameter in module.parameters())
        with torch.no_grad():
            seen["output"] = module.eval()(x.clone())
    return seen


def _configs(**more: Any) -> Iterator[GPTConfig]:
    small = {"block_size": 8, "vocab_size": 7, "flash": False, "eps": EPS} | more
    yield GPTConfig(n_layer=1, n_head=1, n_embd=4, **small)
    yield GPTConfig(n_layer=2, n_head=2, n_embd=6, n_hidden=10, **small)
    yield GPTConfig(n_layer=2, n_head=3, n_embd=6, bias=False, **small)


N10 = "10_block"
add(
    N10,
    "attention_half(x [..., T, C], weights, n_head, eps) -> [..., T, C], the first residual sum",
    attention_half,
    _blocks,
)
add(
    N10,
    "ffn_half(x [..., C], weights, eps) -> [..., C], the second residual sum",
    ffn_half,
    lambda: (
        case(x, weights, eps)
        for x, weights, _, eps in (one.arguments for one in _blocks())
    ),
)
add(
    N10,
    "block(x [..., T, C], weights, n_head, eps) -> [..., T, C]",
    lambda *given: array.block(*given)[0],
    _blocks,
)
add(
    N10,
    "block_stages(x [..., T, C], weights, n_head, eps) -> dict of the seven stages by name",
    lambda *given: array.block(*given)[1],
    _blocks,
)
add(
    N10,
    "block_parameters(C, F) -> whole number, every bias counted",
    block_parameters,
    lambda: (case(*sizes) for sizes in ((1, 2), (2, 3), (3, 12), (16, 64))),
    plain=True,
)
add(
    N10,
    "block_module(config, x [B, T, C]) -> [B, T, C]: a class Block(config) with ln_1, attn, ln_2, mlp",
    model.Block,
    lambda: (case(config, normal(790, 2, 3, config.n_embd)) for config in _configs()),
    home="torch",
    observe=observe_block,
)

# ---------------------------------------------------------------- 11 order


def post_norm_block(
    x: Array, weights: dict[str, Array], n_head: int, eps: float
) -> Array:
    C, F = weights["w1"].shape
    config = GPTConfig(
        x.shape[-2],
        1,
        1,
        n_head,
        C,
        F,
        eps=eps,
        activation="relu",
        norm_order="post",
        flash=False,
    )
    block = model.Block(config).double().load_arrays(weights)
    y = block(torch.tensor(x).reshape(-1, *x.shape[-2:])).reshape(x.shape)
    return y.detach().numpy()


def _layers() -> Iterator[Case]:
    for number, (C, F, H, count) in enumerate(
        ((2, 3, 1, 1), (4, 5, 2, 2), (6, 7, 3, 3))
    ):
        layers = [
            block_weights(800 + 100 * number + 30 * i, C, F) for i in range(count)
        ]
        yield case(
            normal(800 + number, 2 + number, C),
            layers,
            *_affine(810 + number, C),
            H,
            EPS,
        )


def pre_norm_stack(
    x: Array,
    layers: list[dict[str, Array]],
    gamma: Array,
    beta: Array,
    n_head: int,
    eps: float,
) -> Array:
    for weights in layers:
        x, _ = array.block(x, weights, n_head, eps)
    return array.layer_norm(x, gamma, beta, eps)


def looks_post_norm(y: Array, gamma: Array, beta: Array) -> bool:
    plain = (y - beta) / gamma
    return bool(
        np.abs(plain.mean(-1)).max() < 1e-6 and np.abs(plain.var(-1) - 1).max() < 0.1
    )


def _outputs() -> Iterator[Case]:
    """Outputs of blocks of both orders; eps is small here, so that the variance is nearly 1."""
    for number, (C, F, H) in enumerate(((4, 5, 2), (6, 7, 3))):
        x, weights = normal(840 + number, 3, C), block_weights(850 + 30 * number, C, F)
        end = weights["gamma2"], weights["beta2"]
        yield case(post_norm_block(x, weights, H, 1e-5), *end)
        yield case(array.block(x, weights, H, 1e-5)[0], *end)
    yield case(
        np.tile([1.0, 3.0, 2.0, 2.0], (2, 1)) - 2.0, np.ones(4) / 2, np.zeros(4)
    )  # mean 0, variance 2
    yield case(
        np.array([[1.0, -1.0, 1.0, -1.0], [4.0, 2.0, 2.0, 4.0]]),
        np.ones(4),
        np.zeros(4),
    )  # second row no
    yield case(
        np.array([[2.0, -2.0, 0.0, 4.0]]) / math.sqrt(5), np.ones(4), np.zeros(4)
    )  # mean is not 0
    ones, signs = np.ones(4), np.array([1.0, -1.0, 1.0, -1.0])
    yield case(np.array([signs, -signs]), ones, 0 * ones)  # nothing to undo
    yield case(np.array([signs - 2.0]), ones, 0 * ones)  # mean below 0
    for variances in ([0.5], [0.85], [1.3, 0.7]):  # the root of 0.85 is near 1
        yield case(np.sqrt(variances)[:, None] * signs, ones, 0 * ones)


Shapes = dict[str, tuple[int, ...]]


def checkpoint_problems(model_shapes: Shapes, checkpoint_shapes: Shapes) -> list[str]:
    names = sorted({*model_shapes, *checkpoint_shapes})
    return [
        name for name in names if model_shapes.get(name) != checkpoint_shapes.get(name)
    ]


def _checkpoints() -> Iterator[Case]:
    base: Shapes = {"ln.weight": (4,), "fc.weight": (4, 6), "proj.weight": (4, 4)}
    yield case(base, dict(base))
    yield case(base, {"ln.weight": (4,), "fc.weight": (4, 6)})
    yield case(base, base | {"ln.bias": (4,)})
    yield case(base, base | {"fc.weight": (6, 4)})
    yield case(base, {"ln.weight": (4,), "fc.weight": (4, 5), "ln.bias": (4,), "a": ()})


Record = dict[str, Array]


def first_difference(record: Record, other: Record, bound: float) -> str | None:
    for name in record:
        if float(np.abs(record[name] - other[name]).max()) > bound:
            return name
    return None


def _records() -> Iterator[Case]:
    base = {
        name: normal(870 + i, 2, 3)
        for i, name in enumerate(("norm1", "attention", "residual1", "norm2"))
    }
    yield case(base, {name: value + 1e-9 for name, value in base.items()}, 1e-6)
    yield case(
        base,
        base | {"attention": base["attention"] + 1, "norm2": base["norm2"] + 2},
        1e-6,
    )
    yield case(base, base | {"residual1": base["residual1"] - 1}, 1e-6)
    yield case(
        base,
        base | {"norm2": base["norm2"] + np.array([[1.0, 0, 0], [0, -1.0, 0]])},
        1e-6,
    )
    one = np.array([[0, 0, 3.0], [0, 0, 0]])
    yield case(base, base | {"norm2": base["norm2"] + one}, 1.0)  # mean is below it
    yield case(base, base | {"norm2": base["norm2"] + one}, 4.0)


N11 = "11_order"
add(
    N11,
    "post_norm_block(x [..., T, C], weights, n_head, eps) -> [..., T, C]",
    post_norm_block,
    _blocks,
)
add(
    N11,
    "pre_norm_stack(x [T, C], layers, gamma [C], beta [C], n_head, eps) -> [T, C], with the final LayerNorm",
    pre_norm_stack,
    _layers,
)
add(
    N11,
    "looks_post_norm(y [T, C], gamma [C], beta [C]) -> True or False",
    looks_post_norm,
    _outputs,
    plain=True,
)
add(
    N11,
    "checkpoint_problems(model_shapes, checkpoint_shapes) -> sorted list of names",
    checkpoint_problems,
    _checkpoints,
    plain=True,
)
add(
    N11,
    "first_difference(record, other, bound) -> name of the first stage that differs, or None",
    first_difference,
    _records,
    plain=True,
)

# ---------------------------------------------------------------- 12 Mini GPT


def embed(ids: Any, wte: Array, wpe: Array) -> Array:
    rows = [
        [wte[token] + wpe[t] for t, token in enumerate(sequence)] for sequence in ids
    ]
    return np.array(rows)


def _embeds() -> Iterator[Case]:
    for number, (ids, V, C) in enumerate(
        (([[1]], 3, 2), ([[2, 0, 2]], 4, 3), ([[1, 4, 0, 3], [2, 2, 1, 0]], 5, 3))
    ):
        yield case(
            np.array(ids), normal(900 + number, V, C), normal(910 + number, 6, C)
        )


def head_logits(x: Array, gamma: Array, beta: Array, wte: Array, eps: float) -> Array:
    return np.einsum("...c,vc->...v", array.layer_norm(x, gamma, beta, eps), wte)


def _heads() -> Iterator[Case]:
    for number, (lead, C, V) in enumerate((((1,), 2, 3), ((3,), 4, 5), ((2, 3), 4, 7))):
        yield case(
            normal(920 + number, *lead, C) + 2,
            *_affine(930 + number, C),
            normal(940 + number, V, C),
            EPS,
        )


def cross_entropy(logits: Array, targets: Any) -> Array:
    flat = torch.tensor(logits).flatten(0, -2), torch.tensor(targets).flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=-1).numpy()


def _losses() -> Iterator[Case]:
    yield case(np.array([[[0.0, 1.0]]]), np.array([[1]]))
    yield case(normal(950, 1, 3, 4) * 2, np.array([[0, 3, 2]]))
    yield case(normal(951, 2, 3, 4) * 2, np.array([[0, 3, 2], [1, 1, 0]]))
    yield case(normal(952, 2, 3, 4) * 2, np.array([[0, -1, 2], [-1, -1, 3]]))
    yield case(np.array([[[1000.0, 0.0, 990.0]]]), np.array([[2]]))


def next_token_loss(logits: Array, ids: Any) -> Array:
    return cross_entropy(logits[:, :-1], ids[:, 1:])


def _shifts() -> Iterator[Case]:
    for number, (B, T, V) in enumerate(((1, 3, 3), (1, 4, 4), (3, 5, 6))):
        ids = np.random.default_rng(960 + number).integers(0, V, size=(B, T))
        yield case(normal(970 + number, B, T, V) * 2, ids)


def minigpt_parameters(config: GPTConfig) -> int:
    return sum(parameter.numel() for parameter in model.MiniGPT(config).parameters())


def observe_minigpt(
    build: Callable[[GPTConfig], nn.Module], config: GPTConfig, ids: torch.Tensor
) -> dict[str, Any]:
    """A model from its class: names, count, the tie, and the logits in evaluation with given weights."""
    module = _made(build, config).to(ids.device, torch.float64)
    source = fill(model.MiniGPT(config).double())
    seen: dict[str, Any] = {"parameters": _shapes(module)}
    if seen["parameters"] == _shapes(source):
        head, table = module.lm_head.weight, module.wte.weight  # type: ignore[union-attr]
        seen["head and table start equal"] = bool(torch.equal(head, table))  # type: ignore[arg-type]
        seen["head and table are one parameter"] = head is table
        seen["count"] = sum(parameter.numel() for parameter in module.parameters())
        module.load_state_dict(source.state_dict())
        with torch.no_grad():
            result = module.eval()(ids.clone())
        seen["logits"] = result[0] if isinstance(result, tuple) else result
    return seen


def _models() -> Iterator[Case]:
    for config in _configs():
        ids = torch.randint(
            0, 7, (2, 5), generator=torch.Generator().manual_seed(1)
        ).numpy()
        yield case(config, ids)
    yield case(next(_configs(dropout=0.5)), np.array([[1, 2, 3]]), rough=True)


def residual_std(n_layer: int) -> float:
    return 0.02 * (2 * n_layer) ** -0.5


N12 = "12_minigpt"
add(N12, "embed(ids [B, T], wte [V, C], wpe [T_max, C]) -> [B, T, C]", embed, _embeds)
add(
    N12,
    "head_logits(x [..., C], gamma [C], beta [C], wte [V, C], eps) -> [..., V]",
    head_logits,
    _heads,
)
add(
    N12,
    "cross_entropy(logits [B, T, V], targets [B, T]) -> number in nats; a target of -1 is not counted",
    cross_entropy,
    _losses,
)
add(
    N12,
    "next_token_loss(logits [B, T, V], ids [B, T]) -> number in nats",
    next_token_loss,
    _shifts,
)
add(
    N12,
    "minigpt_parameters(config) -> whole number, the tied head counted once",
    minigpt_parameters,
    lambda: (case(config) for config in _configs()),
    plain=True,
)
add(
    N12,
    "residual_std(n_layer) -> standard deviation of the initial c_proj weights",
    residual_std,
    lambda: (case(n) for n in (1, 2, 12)),
    plain=True,
)
add(
    N12,
    "minigpt_module(config, ids [B, T]) -> logits [B, T, V]: a class with wte, wpe, h, ln_f, lm_head",
    model.MiniGPT,
    _models,
    home="torch",
    plain=True,
    observe=observe_minigpt,
)

# ---------------------------------------------------------------- 13 training


def inputs_and_targets(ids: Any) -> tuple[Any, Any]:
    pairs = [(ids[t], ids[t + 1]) for t in range(len(ids) - 1)]
    inputs, targets = (
        np.array([pair[i] for pair in pairs], dtype=ids.dtype) for i in (0, 1)
    )
    return inputs, targets


def window_starts(n_tokens: int, block_size: int) -> Any:
    if n_tokens < block_size + 1:
        raise ValueError(
            f"n_tokens: got {n_tokens}, expected at least block_size + 1 = {block_size + 1}"
        )
    return np.array(
        [start for start in range(n_tokens) if start + block_size + 1 <= n_tokens]
    )


def learning_rate(
    step: int, warmup: int, steps: int, peak: float, floor: float
) -> float:
    """Linear from peak / warmup up to peak in `warmup` steps, then half a cosine down to floor at `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / (steps - warmup))
    return floor + (peak - floor) * math.cos(done * math.pi / 2) ** 2


def decayed(shapes: Shapes) -> list[str]:
    return sorted(name for name, shape in shapes.items() if len(shape) >= 2)


def adamw_step(
    p: Array, g: Array, m: Array, v: Array, step: int, lr: float, decay: float
) -> tuple[Array, Array, Array]:
    """One step of torch's own AdamW, with betas 0.9 and 0.95 and eps 0.1."""
    parameter = nn.Parameter(torch.tensor(p))
    parameter.grad = torch.tensor(g)
    optimizer = torch.optim.AdamW(
        [parameter], lr=lr, betas=(0.9, 0.95), eps=0.1, weight_decay=decay
    )
    state = {
        "step": torch.tensor(float(step - 1)),
        "exp_avg": torch.tensor(m),
        "exp_avg_sq": torch.tensor(v),
    }
    optimizer.state[parameter] = state
    optimizer.step()
    return (
        parameter.detach().numpy(),
        state["exp_avg"].numpy(),
        state["exp_avg_sq"].numpy(),
    )


def _adam_cases() -> Iterator[Case]:
    for number, (shape, step) in enumerate((((1,), 1), ((2,), 3), ((2, 3), 10))):
        p, g, m = (normal(1000 + 10 * number + i, *shape) * 2 for i in range(3))
        yield case(p, g, m, np.abs(normal(1008 + number, *shape)), step, 0.1, 0.5)


def clip_gradients(gradients: list[Array], max_norm: float) -> list[Array]:
    norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients))
    return [g * (min(1.0, max_norm / norm) if norm else 1.0) for g in gradients]


def _gradients() -> Iterator[Case]:
    # slack: torch adds 1e-6 to the norm
    yield case([np.array([3.0, 4.0])], 1.0, slack=30.0)
    yield case([np.array([0.3, 0.4])], 1.0)
    yield case([np.array([3.0, 0.0]), np.array([[4.0], [0.0]])], 2.0, slack=30.0)
    yield case([normal(1020, 2, 3), normal(1021, 4)], 0.5, slack=30.0)


def _table(seed: int, V: int) -> Array:
    return normal(seed, V, V)


def honest(ids: Any) -> Array:
    """Logits from the tokens up to each position."""
    rows = _table(1030, 5)[ids]
    return rows.cumsum(0) / np.arange(1, len(ids) + 1)[:, None]


def no_mask(ids: Any) -> Array:
    rows = _table(1030, 5)[ids]
    return rows + rows.mean(0)


def mask_off_by_one(ids: Any) -> Array:
    rows = _table(1030, 5)[ids]
    ahead = np.minimum(np.arange(len(ids)) + 1, len(ids) - 1)
    return rows + 5 * rows[ahead]


def norm_over_time(ids: Any) -> Array:
    rows = honest(ids)
    return (rows - rows.mean(0)) / (rows.var(0) + EPS) ** 0.5


def first_position_leaks(ids: Any) -> Array:
    logits = honest(ids)
    logits[0] += _table(1031, 5)[ids[1]]
    return logits


def faint_average(ids: Any) -> Array:
    return honest(ids) + 1e-7 * _table(1030, 5)[ids].mean(0)


def reads_two_ahead(ids: Any) -> Array:
    """The token after the next one, and not the next."""
    logits = honest(ids)
    logits[:-2] += _table(1031, 5)[ids[2:]]
    return logits


def honest_and_good(ids: Any) -> Array:
    """No leak, and a low loss on the text 0 1 2 3 4 0 1 ..., because that text can be predicted."""
    return 9.0 * np.eye(5)[(ids + 1) % 5]


def _suspects() -> Iterator[Case]:
    ids = np.array([0, 1, 2, 3, 4, 0, 1])
    for suspect in (
        honest,
        no_mask,
        mask_off_by_one,
        honest_and_good,
        norm_over_time,
        first_position_leaks,
        reads_two_ahead,
        faint_average,
    ):
        yield case(suspect, ids, 5)


def find_leak(model: Callable[[Any], Array], ids: Any, V: int) -> int | None:
    """The first position whose logits change when a later token does; None if there is none."""
    before, leaking = model(ids.copy()), set()
    for t in range(1, len(ids)):
        for token in range(V):
            other = ids.copy()
            other[t] = token
            moved = (model(other)[:t] != before[:t]).any(axis=-1)
            leaking |= {int(position) for position in np.flatnonzero(moved)}
    return min(leaking, default=None)


N13 = "13_training"
add(
    N13,
    "inputs_and_targets(ids [n]) -> inputs [n-1], targets [n-1]",
    inputs_and_targets,
    lambda: (case(np.array(ids)) for ids in ([3, 1], [3, 1, 4], [3, 1, 4, 1, 5, 9])),
    returns=("inputs", "targets"),
    plain=True,
)
add(
    N13,
    "window_starts(n_tokens, block_size) -> starts of all windows of block_size + 1; too short: ValueError",
    window_starts,
    lambda: (case(*sizes) for sizes in ((3, 2), (4, 2), (9, 3), (2, 2))),
    plain=True,
)
add(
    N13,
    "learning_rate(step, warmup, steps, peak, floor) -> number",
    learning_rate,
    lambda: (case(step, 4, 12, 1.0, 0.1) for step in (0, 1, 3, 4, 6, 8, 11, 12, 20)),
    plain=True,
)
add(
    N13,
    "decayed(shapes) -> sorted list of the names that get weight decay",
    decayed,
    lambda: (
        case(shapes)
        for shapes in (
            {"fc.weight": (3, 4), "fc.bias": (4,)},
            {"ln.weight": (4,), "ln.bias": (4,), "proj.weight": (4, 4)},
            {
                "wte.weight": (9, 4),
                "h.0.ln_1.weight": (4,),
                "h.0.attn.c_attn.weight": (12, 4),
                "ln_f.bias": (4,),
            },
        )
    ),
    plain=True,
)
add(
    N13,
    "adamw_step(p [...], g [...], m [...], v [...], step, lr, decay) -> p [...], m [...], v [...]",
    adamw_step,
    _adam_cases,
    returns=("p", "m", "v"),
)
add(
    N13,
    "clip_gradients(gradients, max_norm) -> list of arrays, their joint norm at most max_norm",
    lambda gradients, max_norm: tuple(clip_gradients(gradients, max_norm)),
    _gradients,
)
add(
    N13,
    "find_leak(model, ids [T], V) -> first position that sees a later token, or None",
    find_leak,
    _suspects,
    plain=True,
)

# ---------------------------------------------------------------- 14 sampling


def with_temperature(logits: Array, temperature: float) -> Array:
    if temperature < 0:
        raise ValueError(f"temperature: got {temperature}, expected 0 or more")
    if temperature == 0:
        return np.eye(len(logits))[int(logits.argmax())]
    return array.softmax(logits / temperature)


def _order(logits: Array) -> list[int]:
    """Token ids from the largest logit down; of equal ones the lower id first."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def top_k(logits: Array, k: int) -> Array:
    if k < 1:
        raise ValueError(f"k: got {k}, expected at least 1")
    kept = np.isin(np.arange(len(logits)), _order(logits)[:k])
    return array.softmax(np.where(kept, logits, -np.inf))


def top_p(logits: Array, p: float) -> Array:
    if not 0 < p <= 1:
        raise ValueError(f"p: got {p}, expected 0 < p <= 1")
    probabilities, total = array.softmax(logits), 0.0
    kept = np.zeros(len(logits), dtype=bool)
    for i in _order(logits):
        if total >= p:
            break
        kept[i] = True
        total += float(probabilities[i])
    return array.softmax(np.where(kept, logits, -np.inf))


LOGITS = np.array([0.5, 2.0, -1.0, 1.0, -0.5])


def draw(probabilities: Array, u: float) -> int:
    total = 0.0
    for i, probability in enumerate(probabilities):
        total += float(probability)
        if u < total:
            return i
    return int(np.flatnonzero(probabilities)[-1])


def by_the_sum(ids: list[int]) -> Array:
    """A stand-in for a model: next-token logits from the tokens it is shown, and from where they stand."""
    assert 1 <= len(ids) <= 4, f"the model reads 1 to 4 tokens, got {len(ids)}"
    return np.cos(
        np.arange(1, 8) * (1.1 + sum((t + 1) * token for t, token in enumerate(ids)))
    )


def greedy(
    next_logits: Callable[[list[int]], Array],
    ids: list[int],
    new_tokens: int,
    block_size: int,
) -> list[int]:
    ids = list(ids)
    for _ in range(new_tokens):
        logits = next_logits(ids[max(0, len(ids) - block_size) :])
        ids.append(max(range(len(logits)), key=lambda i: logits[i]))
    return ids


N14 = "14_sampling"
add(
    N14,
    "with_temperature(logits [V], temperature) -> probabilities [V]; 0 means argmax; negative: ValueError",
    with_temperature,
    lambda: (
        case(x, t)
        for x, t in (
            (PAIR, 1.0),
            (PAIR, 0.5),
            (LOGITS, 2.0),
            (LOGITS, 0.0),
            (np.array([1.0, 2.0, 2.0]), 0.0),  # a tie: the lower id
            (LOGITS, -1.0),
        )
    ),
)
add(
    N14,
    "top_k(logits [V], k) -> probabilities [V]; exactly k kept, lower ids first; k < 1: ValueError",
    top_k,
    lambda: (
        case(x, k)
        for x, k in (
            (PAIR, 1),
            (LOGITS, 2),
            (LOGITS, 3),
            (np.array([1.0, 2.0, 2.0, 2.0]), 2),
            (PAIR, 9),
            (PAIR, 0),
        )
    ),
)
add(
    N14,
    "top_p(logits [V], p) -> probabilities [V]; the likeliest whose sum reaches p; else ValueError",
    top_p,
    lambda: (
        case(x, p)
        for x, p in (
            (np.zeros(2), 0.5),  # the first reaches p exactly
            (PAIR, 0.5),
            (PAIR, 0.95),
            (LOGITS, 0.7),
            (LOGITS, 0.9),
            (LOGITS, 1.0),
            (PAIR, 0.0),
        )
    ),
)
add(
    N14,
    "draw(probabilities [V], u) -> id; u in [0, 1) falls into the ids' shares, from id 0 up",
    draw,
    lambda: (
        case(np.array(p), u)
        for p, u in (
            ([0.5, 0.5], 0.25),
            ([0.5, 0.5], 0.5),
            ([0.125, 0.375, 0.5], 0.25),
            ([0.0, 0.25, 0.75], 0.0),
            ([0.125, 0.375, 0.25, 0.25], 0.75),
            ([0.25, 0.75, 0.0], 0.9999),
            ([0.1] * 10, float(np.nextafter(1, 0))),  # rounded, the sum is no larger
        )
    ),
    plain=True,
)
add(
    N14,
    "greedy(next_logits, ids, new_tokens, block_size) -> list of ids, the given ones and new_tokens more",
    greedy,
    lambda: (
        case(by_the_sum, ids, n, 4)
        for ids, n in (
            ([3], 1),
            ([3], 3),
            ([1, 2, 5], 4),
            ([6, 5, 4, 3, 2, 1], 3),
            ([2], 0),
        )
    ),
    plain=True,
)

# ---------------------------------------------------------------- 14 KV cache


def append(cache: Array, new: Array, n: int) -> tuple[Array, int]:
    rows = [*cache[:n], *new, *cache[n + len(new) :]]
    return np.stack(rows), n + len(new)


def _appends() -> Iterator[Case]:
    for T_max, d, n, q in ((3, 2, 0, 1), (4, 2, 2, 1), (6, 3, 1, 3), (5, 3, 3, 2)):
        yield case(normal(1100 + T_max, T_max, d), normal(1110 + T_max, q, d), n)


def cached_attention(q: Array, k_cache: Array, v_cache: Array, n: int) -> Array:
    return array.attention(q, k_cache[:n], v_cache[:n], array.causal_mask(len(q), n))[0]


def _caches() -> Iterator[Case]:
    for number, (T_max, d, n, q) in enumerate(
        ((3, 2, 2, 1), (5, 4, 3, 1), (6, 3, 4, 2), (6, 3, 6, 3))
    ):
        k, v = normal(1120 + number, T_max, d) * 2, normal(1130 + number, T_max, d)
        yield case(normal(1140 + number, q, d) * 2, k, v, n)


def cache_bytes(config: GPTConfig, batch: int, positions: int, bytes_each: int) -> int:
    head = config.n_embd // config.n_head
    rows = [
        torch.empty(batch, config.n_head, positions, head)
        for _ in range(2 * config.n_layer)
    ]
    return sum(row.numel() for row in rows) * bytes_each


def decode(x: Array, w_q: Array, w_k: Array, w_v: Array) -> Array:
    return array.attention(x @ w_q, x @ w_k, x @ w_v, array.causal_mask(len(x)))[0]


N14C = "14_kv_cache"
add(
    N14C,
    "append(cache [T_max, d], new [q, d], n) -> cache [T_max, d], count; the first n rows are in use",
    append,
    _appends,
    returns=("cache", "count"),
    may_change=True,
)
add(
    N14C,
    "new_positions(n, q) -> int array [q], the positions of q tokens after n cached ones",
    lambda n, q: np.arange(n + q)[n:],
    lambda: (case(*sizes) for sizes in ((0, 1), (0, 3), (2, 1), (4, 3))),
    plain=True,
)
add(
    N14C,
    "cached_attention(q [q, d], k_cache [T_max, d], v_cache [T_max, d], n) -> [q, d]; the last q of n",
    cached_attention,
    _caches,
)
add(
    N14C,
    "decode(x [T, C], w_q [C, d], w_k [C, d], w_v [C, d]) -> [T, d], one position at a time",
    decode,
    lambda: (
        case(
            normal(1150 + T, T, C), *(normal(1160 + 3 * T + i, C, d) for i in range(3))
        )
        for T, C, d in ((1, 2, 3), (3, 2, 3), (5, 4, 3))
    ),
)
add(
    N14C,
    "cache_bytes(config, batch, positions, bytes_each) -> whole number",
    cache_bytes,
    lambda: (
        case(config, *sizes)
        for config, sizes in zip(
            _configs(), ((1, 1, 4), (2, 3, 2), (3, 5, 4)), strict=True
        )
    ),
    plain=True,
)
add(
    N14C,
    "must_rebuild(n, q, block_size) -> True if q more tokens do not fit beside n cached ones",
    lambda n, q, block_size: len([*range(n), *range(q)]) > block_size,
    lambda: (
        case(*sizes)
        for sizes in ((0, 1, 4), (3, 1, 4), (4, 1, 4), (2, 3, 4), (1, 3, 4))
    ),
    plain=True,
)
