"""The five activations y = f(p), and their derivatives as functions of y.

Complex arguments are accepted for the complex-step derivative. Branches depend on the real part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vkrnn.descriptors import Activation

Array = NDArray[Any]


class _Numbers(Protocol):
    @property
    def hard_sigmoid_alpha(self) -> float: ...
    @property
    def hard_sigmoid_beta(self) -> float: ...
    @property
    def clip(self) -> float: ...


class Function(NamedTuple):
    """An activation, and its derivative as a function of the activation's result."""

    of: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _relu(p: Array) -> Array:
    return np.where(p.real <= 0, 0, p)  # NaN stays NaN


def _sigmoid(p: Array) -> Array:
    small = np.exp(np.where(p.real >= 0, -p, p))  # never overflows
    y: Array = np.where(p.real >= 0, 1, small) / (1 + small)
    return y


def _hard_sigmoid(alpha: float, beta: float) -> Function:
    def of(p: Array) -> Array:
        y = alpha * p + beta
        return np.where(y.real <= 0, 0, np.where(y.real >= 1, 1, y))

    return Function(of, lambda y: np.where((y.real > 0) & (y.real < 1), alpha, 0.0))


def _clipped(function: Function, clip: float, rounding: float) -> Function:
    def of(p: Array) -> Array:
        return function.of(np.where(p.real > clip, clip, np.where(p.real < -clip, -clip, p)))

    # All activations are monotonic, so a clamped sum gives one of the two values at the thresholds, up to rounding.
    low, high = sorted(function.of(np.array([-clip, clip])).tolist())
    low, high = low + rounding * abs(low), high - rounding * abs(high)
    return Function(of, lambda y: np.where((y.real <= low) | (y.real >= high), 0.0, function.slope(y)))


def functions(descriptor: _Numbers) -> dict[Activation, Function]:
    """Return the activations with the descriptor's hard sigmoid, without its clipping."""
    return {
        Activation.NONE: Function(lambda p: p, np.ones_like),
        Activation.RELU: Function(_relu, lambda y: np.where(y.real > 0, 1.0, 0.0)),
        Activation.TANH: Function(np.tanh, lambda y: 1 - y * y),
        Activation.SIGMOID: Function(_sigmoid, lambda y: y * (1 - y)),
        Activation.HARD_SIGMOID: _hard_sigmoid(descriptor.hard_sigmoid_alpha, descriptor.hard_sigmoid_beta),
    }


def gate_functions(descriptor: _Numbers, z_state: ArrayLike | None = None) -> dict[Activation, Function]:
    """Return the activations as the gates have them: their sum is clamped to [-clip, clip] if clip is not 0.

    Derivatives are taken from gates of the type of `z_state`.
    """
    plain = functions(descriptor)
    if descriptor.clip == 0:
        return plain
    rounding = _rounding(np.asarray(z_state).dtype)
    return {name: _clipped(function, descriptor.clip, rounding) for name, function in plain.items()}


def _rounding(dtype: np.dtype[Any]) -> float:
    """Return how far a gate of the type may be from the same activation computed once more, relative to itself."""
    if dtype.itemsize == 2:
        return 2.0**-10 if dtype == np.float16 else 2.0**-7  # else bfloat16
    return 2.0**-21 if dtype.itemsize == 4 else 2.0**-49
