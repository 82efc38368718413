"""Plans: what a call would do on a device, without doing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from vkrnn import _core
from vkrnn._calls import bind
from vkrnn.results import Results

__all__ = ["plan"]

P = ParamSpec("P")


def plan(function: Callable[P, Results[Any]], /, *args: P.args, **kwargs: P.kwargs) -> _core.Plan:
    """Return the plan of a call: buffers, kernels and steps.

    Plans are values: they print as text, compare by contents, and have the same for the same call on the same device.

    Parameters
    ----------
    function : callable
        One of the six operations, such as `vkrnn.lstm`.
    *args, **kwargs
        Arguments that it would be called with, ``device`` included. Only shapes and dtypes of the arrays matter.

    Returns
    -------
    Plan
        With ``buffers``, ``steps``, ``bytes``, ``dispatches``, ``flops``, ``strategy``, and ``float32``: ``tf32`` if
        the call rounds operands of products, which ``Device(..., float32="tf32")`` allows, else ``ieee``.

    Raises
    ------
    TypeError, ValueError
        As the call itself.
    DeviceError
        If there is no device to plan for.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.zeros((5, 3, 4), np.float32), np.zeros((4, 4), np.float32)
    >>> plan(vkrnn.single_gate_rnn, source, weight) == plan(vkrnn.single_gate_rnn, source + 1, weight, name="twin")
    True
    """
    return bind("plan", function, args, kwargs).plan()
