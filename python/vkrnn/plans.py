"""Plans: what a call would do on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, cast

from vkrnn import _core
from vkrnn._ops.calls import bind
from vkrnn.networks import Network, NetworkGradients, NetworkResult
from vkrnn.results import Results

__all__ = ["plan"]

P = ParamSpec("P")


def plan(
    function: Callable[P, Results[Any] | NetworkResult | NetworkGradients], /, *args: P.args, **kwargs: P.kwargs
) -> _core.Plan:
    """Return the plan of a call, without making the call: its buffers, kernels and steps.

    Plans print as text and compare by value. The same call on the same device has the same plan.

    Parameters
    ----------
    function : callable
        One of the operations, such as `vkrnn.lstm`, or `forward` or `gradients` of a `Network`.
    *args, **kwargs
        Arguments of the call, including ``device``. Only shapes and dtypes of the arrays matter.

    Returns
    -------
    Plan
        It has ``buffers``, ``steps``, ``bytes``, ``peak_bytes``, ``dispatches``, ``flops``, ``strategy`` and
        ``float32``, which is ``tf32`` if a float32 call may round operands of products (`Device` allows it with
        ``float32="tf32"``), else ``ieee``.

    Raises
    ------
    TypeError, ValueError
        As in the call itself.
    DeviceError
        If there is no device to plan for.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.zeros((5, 3, 4), np.float32), np.zeros((4, 4), np.float32)
    >>> plan(vkrnn.single_gate_rnn, source, weight) == plan(vkrnn.single_gate_rnn, source + 1, weight, name="twin")
    True
    >>> net = vkrnn.network([("single_gate_rnn", {"recurrent_weight": weight, "input_weight": weight})])
    >>> plan(net.forward, source).strategy["schedule"] in net.device.strategies["schedule"]
    True
    """
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Network) and function.__name__ in {"forward", "gradients"}:
        return owner._plan(function.__name__, args, kwargs)  # noqa: SLF001
    return bind("plan", cast("Callable[..., Results[Any]]", function), args, kwargs).plan()
