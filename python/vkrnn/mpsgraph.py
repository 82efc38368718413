"""The twenty recurrent methods of MPSGraph under their own names and labels, for code that is ported from there.

Swift's names, which several methods share and which the labels tell apart::

    mpsgraph.LSTM(x, recurrentWeight=R, initState=h, initCell=c, descriptor=d, name=None)

and the selectors as PyObjC spells them, every argument by position::

    mpsgraph.LSTMWithSourceTensor_recurrentWeight_initState_initCell_descriptor_name_(x, R, h, c, d, None)

Both return a list, packed as MPSGraph's. ``None`` stands for nil where the method allows it. The labels are required as
in Swift, nothing but ``name`` may be left out, and ``device`` may be added. Other than in Swift they may come in any
order: Python keeps none. Arguments, results and errors are those of the functions of `vkrnn` with the same arguments in
snake_case. A descriptor is one of `vkrnn`, or one of the three here, whose properties change as Apple's do.

>>> import numpy as np
>>> from vkrnn import mpsgraph
>>> x, R = np.zeros((5, 3, 8), np.float32), np.zeros((8, 2), np.float32)
>>> descriptor = mpsgraph.MPSGraphLSTMDescriptor()
>>> descriptor.produceCell = True
>>> [h, c] = mpsgraph.LSTM(
...     x, recurrentWeight=R, initState=None, initCell=None, descriptor=descriptor, name="first"
... )
>>> h.shape
(5, 3, 2)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vkrnn import gradients, operations
from vkrnn._mpsgraph_descriptors import (
    MPSGraphGRUDescriptor,
    MPSGraphLSTMDescriptor,
    MPSGraphRNNActivation,
    MPSGraphSingleGateRNNDescriptor,
    frozen,
)
from vkrnn.devices import DeviceLike
from vkrnn.results import Results

__all__ = [
    "GRU",
    "LSTM",
    "METHODS",
    "GRUGradients",
    "LSTMGradients",
    "MPSGraphGRUDescriptor",
    "MPSGraphLSTMDescriptor",
    "MPSGraphRNNActivation",
    "MPSGraphSingleGateRNNDescriptor",
    "Method",
    "singleGateRNN",
    "singleGateRNNGradients",
]

_NAMES: dict[str, Callable[..., Results]] = {
    "singleGateRNN": operations.single_gate_rnn,
    "singleGateRNNGradients": gradients.single_gate_rnn_gradients,
    "LSTM": operations.lstm,
    "LSTMGradients": gradients.lstm_gradients,
    "GRU": operations.gru,
    "GRUGradients": gradients.gru_gradients,
}


@dataclass(frozen=True)
class Method:
    """One method: its Swift base name, and its labels in order, ``descriptor`` and ``name`` excluded."""

    base: str
    labels: tuple[str, ...]

    @property
    def swift(self) -> str:
        """The name as Swift's documentation writes it."""
        return f"{self.base}(_:{''.join(f'{label}:' for label in self.labels)}descriptor:name:)"

    @property
    def python(self) -> str:
        """The selector with underscores for colons."""
        return f"{self.base}WithSourceTensor_{''.join(f'{label}_' for label in self.labels)}descriptor_name_"

    def __call__(self, source: Any, given: dict[str, Any], device: DeviceLike | None) -> list[Any]:
        """Call the function of the package that does the same; `given` holds the labels, descriptor and name."""
        arguments = {_snake_case(label): value for label, value in given.items()}
        arguments["descriptor"] = frozen(arguments["descriptor"])
        return list(_NAMES[self.base](source, device=device, **arguments))


_RNN_STATE = "recurrentWeight sourceGradient zState"
_LSTM_STATE = f"{_RNN_STATE} cellOutputFwd"
_GRU_STATE = f"{_RNN_STATE} outputFwd"
_TABLE = (
    ("singleGateRNN", "recurrentWeight initState"),
    ("singleGateRNN", "recurrentWeight inputWeight bias initState"),
    ("singleGateRNN", "recurrentWeight inputWeight bias initState mask"),
    ("singleGateRNNGradients", f"{_RNN_STATE} initState"),
    ("singleGateRNNGradients", f"{_RNN_STATE} inputWeight bias initState"),
    ("singleGateRNNGradients", f"{_RNN_STATE} inputWeight bias initState mask"),
    ("singleGateRNNGradients", f"{_RNN_STATE} stateGradient inputWeight bias initState mask"),
    ("LSTM", "recurrentWeight initState initCell"),
    ("LSTM", "recurrentWeight inputWeight bias initState initCell"),
    ("LSTM", "recurrentWeight inputWeight bias initState initCell mask peephole"),
    ("LSTMGradients", _LSTM_STATE),
    ("LSTMGradients", f"{_LSTM_STATE} inputWeight bias initState initCell"),
    ("LSTMGradients", f"{_LSTM_STATE} inputWeight bias initState initCell mask"),
    ("LSTMGradients", f"{_LSTM_STATE} stateGradient cellGradient inputWeight bias initState initCell mask peephole"),
    ("GRU", "recurrentWeight inputWeight bias"),
    ("GRU", "recurrentWeight inputWeight bias initState"),
    ("GRU", "recurrentWeight inputWeight bias initState mask secondaryBias"),
    ("GRUGradients", f"{_GRU_STATE} inputWeight bias"),
    ("GRUGradients", f"{_GRU_STATE} inputWeight bias initState"),
    ("GRUGradients", f"{_GRU_STATE} stateGradient inputWeight bias initState mask secondaryBias"),
)
METHODS = [Method(base, tuple(labels.split())) for base, labels in _TABLE]
"""The twenty methods, in the order of the documentation."""


def _snake_case(label: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", label)


def _by_labels(base: str) -> Callable[..., list[Any]]:
    methods = {frozenset(method.labels): method for method in METHODS if method.base == base}
    listed = "\n".join(f"    {method.swift}" for method in methods.values())

    def call(
        source: Any, /, *, descriptor: Any, name: str | None = None, device: Any = None, **labels: Any
    ) -> list[Any]:
        method = methods.get(frozenset(labels))
        if method is None:
            got = f"{base}(_:{''.join(f'{label}:' for label in labels)}descriptor:name:)"
            raise TypeError(f"[{base}] there is no method {got}; there are\n{listed}")
        return method(source, {**labels, "descriptor": descriptor, "name": name}, device)

    call.__name__ = call.__qualname__ = base
    call.__doc__ = (
        f"Call the method of MPSGraph that has these labels; see `vkrnn.{_NAMES[base].__name__}`.\n\n"
        f"There are::\n\n{listed}\n\n"
        "Returns\n-------\nlist of arrays\n    Packed: what is absent is not there.\n\n"
        "Raises\n------\nTypeError\n    If no method has these labels, and as the function itself.\n"
    )
    return call


def _by_position(method: Method) -> Callable[..., list[Any]]:
    def call(source: Any, *values: Any, device: Any = None) -> list[Any]:
        labels = (*method.labels, "descriptor", "name")
        if len(values) != len(labels):
            raise TypeError(f"[{method.python}] expected {len(labels) + 1} arguments, got {len(values) + 1}")
        return method(source, dict(zip(labels, values, strict=True)), device)

    call.__name__ = call.__qualname__ = method.python
    call.__doc__ = f"Mirror ``{method.swift}``; see `vkrnn.{_NAMES[method.base].__name__}`."
    return call


singleGateRNN = _by_labels("singleGateRNN")  # noqa: N816 - Apple's names, here and below
singleGateRNNGradients = _by_labels("singleGateRNNGradients")  # noqa: N816
LSTM = _by_labels("LSTM")
LSTMGradients = _by_labels("LSTMGradients")
GRU = _by_labels("GRU")
GRUGradients = _by_labels("GRUGradients")

_SELECTORS = {method.python: _by_position(method) for method in METHODS}


# As attributes of the module, so that an editor completes them.
globals().update(_SELECTORS)


def __getattr__(name: str) -> Callable[..., list[Any]]:
    """Say what is missing; type checkers learn from this that the selectors are there."""
    raise AttributeError(f"module 'vkrnn.mpsgraph' has no attribute {name!r}", name=name)
