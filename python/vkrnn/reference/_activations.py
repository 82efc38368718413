"""The five activations y = f(p) and their derivatives, written through y.

Complex arguments work too, branching on the real part: the complex-step derivative needs that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vkrnn.descriptors import Activation

Array = NDArray[Any]

# Not documented for MPSGraph; these are Apple's elsewhere, ONNX's and the older Keras's. (PyTorch's slope is 1/6.)
HARD_SIGMOID_SLOPE = 0.2
HARD_SIGMOID_OFFSET = 0.5


class Function(NamedTuple):
    """An activation and its derivative, the latter as a function of the activation's own result."""

    of: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _relu(p: Array) -> Array:
    return np.where(p.real <= 0, 0, p)  # NaN stays NaN


def _sigmoid(p: Array) -> Array:
    small = np.exp(np.where(p.real >= 0, -p, p))  # never overflows
    y: Array = np.where(p.real >= 0, 1, small) / (1 + small)
    return y


def _hard_sigmoid(p: Array) -> Array:
    y = HARD_SIGMOID_SLOPE * p + HARD_SIGMOID_OFFSET
    return np.where(y.real <= 0, 0, np.where(y.real >= 1, 1, y))


FUNCTIONS = {
    Activation.NONE: Function(lambda p: p, np.ones_like),
    Activation.RELU: Function(_relu, lambda y: np.where(y.real > 0, 1.0, 0.0)),
    Activation.TANH: Function(np.tanh, lambda y: 1 - y * y),
    Activation.SIGMOID: Function(_sigmoid, lambda y: y * (1 - y)),
    Activation.HARD_SIGMOID: Function(
        _hard_sigmoid, lambda y: np.where((y.real > 0) & (y.real < 1), HARD_SIGMOID_SLOPE, 0.0)
    ),
}
