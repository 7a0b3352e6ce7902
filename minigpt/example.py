"""The given numbers of the worked example.

Three tokens, width 2, two heads, hidden width 3.

Plain lists, so that each of the three computations starts from the same digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigpt.array import Array

E = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]  # token rows      [T, C] = [3, 2]
P = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]  # position rows   [3, 2]
X = [[1.0, 0.0], [0.0, 2.0], [2.0, 1.0]]  # X = E + P, what the block reads   [3, 2]

N_HEAD = 2  # each of width d = 1
EPS = 1e-5

WEIGHTS: dict[str, Any] = {
    "gamma1": [1.0, 1.0],
    "beta1": [0.0, 0.0],
    "w_qkv": [
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        [0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
    ],  # identity three times [2, 6]
    "b_qkv": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "w_o": [[1.0, 1.0], [1.0, -1.0]],
    "b_o": [0.0, 0.0],
    "gamma2": [1.0, 1.0],
    "beta2": [0.0, 0.0],
    "w1": [[1.0, -1.0, 0.0], [0.0, 1.0, 1.0]],  # [C, F] = [2, 3]
    "b1": [0.0, 0.0, 0.0],
    "w2": [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]],  # [F, C] = [3, 2]
    "b2": [0.0, 0.0],
}


def arrays(dtype: type = np.float64) -> tuple[Array, dict[str, Array]]:
    """X [3, 2] and the weights as NumPy arrays."""
    return np.array(X, dtype), {
        name: np.array(value, dtype) for name, value in WEIGHTS.items()
    }
