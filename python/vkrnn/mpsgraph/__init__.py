"""MPSGraph's twenty recurrent methods under their own names and labels, for code that is ported from there.

Several methods share a name in Swift, and their labels distinguish them::

    mpsgraph.LSTM(x, recurrentWeight=R, initState=h, initCell=c, descriptor=d, name=None)

PyObjC's selectors take every argument by position::

    mpsgraph.LSTMWithSourceTensor_recurrentWeight_initState_initCell_descriptor_name_(x, R, h, c, d, None)

Both return a list, as MPSGraph does. Pass ``None`` for nil where the method allows nil. As in Swift, labels are required
and only ``name`` may be left out; ``device`` may be added. Unlike in Swift, labels may be in any order. Arguments,
results and errors are those of the functions of `vkrnn`, but none warns of a secondary bias without reset_after. A
descriptor is one of `vkrnn`, or one of the three here, whose properties can be set as in MPSGraph.

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

# ruff: noqa: E501, N816 - the selectors' names are Apple's

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from vkrnn import gradients, operations
from vkrnn._base.generics import A
from vkrnn._ops.types import Tensor
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from vkrnn.devices import DeviceLike
from vkrnn.mpsgraph._descriptors import (
    MPSGraphGRUDescriptor,
    MPSGraphLSTMDescriptor,
    MPSGraphRNNActivation,
    MPSGraphSingleGateRNNDescriptor,
    frozen,
)
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

Function = TypeVar("Function", bound=Callable[..., object])

_NAMES: dict[str, Callable[..., Results[Any]]] = {
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
        function = _NAMES[self.base]
        if arguments["recurrent_weight"] is None:  # which the functions of vkrnn take
            raise ValueError(f"[{function.__name__}] recurrent_weight: expected an array, got None")
        masks, weights = np.shape(arguments.get("mask", ())), np.shape(arguments["recurrent_weight"])
        if "RNN" not in self.base and masks[-1:] == (math.prod(weights[:-1]),):  # a mask for each gate
            raise ValueError(f"[{function.__name__}] mask: expected one for all gates, got {list(masks)}")
        return list(function(source, device=device, **arguments))


_Selector: TypeAlias = Callable[..., list[Any]]

# The twenty methods, in the order of the documentation. Editors and type checkers read these names, too.
singleGateRNNWithSourceTensor_recurrentWeight_initState_descriptor_name_: _Selector
singleGateRNNWithSourceTensor_recurrentWeight_inputWeight_bias_initState_descriptor_name_: _Selector
singleGateRNNWithSourceTensor_recurrentWeight_inputWeight_bias_initState_mask_descriptor_name_: _Selector
singleGateRNNGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_initState_descriptor_name_: _Selector
singleGateRNNGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_inputWeight_bias_initState_descriptor_name_: _Selector
singleGateRNNGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_inputWeight_bias_initState_mask_descriptor_name_: _Selector
singleGateRNNGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_stateGradient_inputWeight_bias_initState_mask_descriptor_name_: _Selector
LSTMWithSourceTensor_recurrentWeight_initState_initCell_descriptor_name_: _Selector
LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_descriptor_name_: _Selector
LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_mask_peephole_descriptor_name_: _Selector
LSTMGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_cellOutputFwd_descriptor_name_: _Selector
LSTMGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_cellOutputFwd_inputWeight_bias_initState_initCell_descriptor_name_: _Selector
LSTMGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_cellOutputFwd_inputWeight_bias_initState_initCell_mask_descriptor_name_: _Selector
LSTMGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_cellOutputFwd_stateGradient_cellGradient_inputWeight_bias_initState_initCell_mask_peephole_descriptor_name_: _Selector
GRUWithSourceTensor_recurrentWeight_inputWeight_bias_descriptor_name_: _Selector
GRUWithSourceTensor_recurrentWeight_inputWeight_bias_initState_descriptor_name_: _Selector
GRUWithSourceTensor_recurrentWeight_inputWeight_bias_initState_mask_secondaryBias_descriptor_name_: _Selector
GRUGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_outputFwd_inputWeight_bias_descriptor_name_: (
    _Selector
)
GRUGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_outputFwd_inputWeight_bias_initState_descriptor_name_: _Selector
GRUGradientsWithSourceTensor_recurrentWeight_sourceGradient_zState_outputFwd_stateGradient_inputWeight_bias_initState_mask_secondaryBias_descriptor_name_: _Selector

METHODS = [
    Method(base, tuple(rest.split("_")[:-3]))  # without descriptor_name_
    for base, _, rest in (
        name.partition("WithSourceTensor_") for name in inspect.get_annotations(sys.modules[__name__])
    )
    if rest
]
"""The twenty methods, in the order of the documentation."""


def _snake_case(label: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", label)


def _by_labels(signature: Function) -> Function:
    """Return the function that calls the method with the given labels; `signature` is there for its parameters."""
    base = signature.__name__
    methods = {frozenset(method.labels): method for method in METHODS if method.base == base}
    listed = "\n".join(f"    {method.swift}" for method in methods.values())

    @functools.wraps(signature)
    def call(
        source: Any, /, *, descriptor: Any, name: str | None = None, device: Any = None, **labels: Any
    ) -> list[Any]:
        method = methods.get(frozenset(labels))
        if method is None:
            got = f"{base}(_:{''.join(f'{label}:' for label in labels)}descriptor:name:)"
            raise TypeError(f"[{base}] there is no method {got}; there are\n{listed}")
        return method(source, {**labels, "descriptor": descriptor, "name": name}, device)

    call.__doc__ = (
        f"{signature.__doc__}\n\nThere are::\n\n{listed}\n\n"
        "Returns\n-------\nlist of arrays\n    Absent results are left out.\n\n"
        "Raises\n------\nTypeError\n    If no method has these labels, and as the function itself.\n"
    )
    return cast(Function, call)


def _by_position(method: Method) -> Callable[..., list[Any]]:
    def call(source: Any, *values: Any, device: Any = None) -> list[Any]:
        labels = (*method.labels, "descriptor", "name")
        if len(values) != len(labels):
            raise TypeError(f"[{method.python}] expected {len(labels) + 1} arguments, got {len(values) + 1}")
        return method(source, dict(zip(labels, values, strict=True)), device)

    call.__name__ = call.__qualname__ = method.python
    call.__doc__ = f"Mirror ``{method.swift}``; see `vkrnn.{_NAMES[method.base].__name__}`."
    return call


# Each of the six functions lists the labels of all its methods. Labels that some methods lack are optional. The call
# raises an error if no method has exactly the given labels.


@_by_labels
def singleGateRNN(
    source: Tensor[A],
    /,
    *,
    recurrentWeight: Tensor[A],
    initState: Tensor[A] | None,
    descriptor: SingleGateRNNDescriptor | MPSGraphSingleGateRNNDescriptor | None,
    inputWeight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
) -> list[A]:
    """Call the method of MPSGraph that has these labels; see `vkrnn.single_gate_rnn`."""
    raise NotImplementedError


@_by_labels
def singleGateRNNGradients(
    source: Tensor[A],
    /,
    *,
    recurrentWeight: Tensor[A],
    sourceGradient: Tensor[A],
    zState: Tensor[A],
    initState: Tensor[A] | None,
    descriptor: SingleGateRNNDescriptor | MPSGraphSingleGateRNNDescriptor | None,
    stateGradient: Tensor[A] | None = None,
    inputWeight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
) -> list[A]:
    """Call the method of MPSGraph that has these labels; see `vkrnn.single_gate_rnn_gradients`."""
    raise NotImplementedError


@_by_labels
def LSTM(
    source: Tensor[A],
    /,
    *,
    recurrentWeight: Tensor[A],
    initState: Tensor[A] | None,
    initCell: Tensor[A] | None,
    descriptor: LSTMDescriptor | MPSGraphLSTMDescriptor | None,
    inputWeight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    peephole: Tensor[A] | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
) -> list[A]:
    """Call the method of MPSGraph that has these labels; see `vkrnn.lstm`."""
    raise NotImplementedError


@_by_labels
def LSTMGradients(
    source: Tensor[A],
    /,
    *,
    recurrentWeight: Tensor[A],
    sourceGradient: Tensor[A],
    zState: Tensor[A],
    cellOutputFwd: Tensor[A],
    descriptor: LSTMDescriptor | MPSGraphLSTMDescriptor | None,
    stateGradient: Tensor[A] | None = None,
    cellGradient: Tensor[A] | None = None,
    inputWeight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    initState: Tensor[A] | None = None,
    initCell: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    peephole: Tensor[A] | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
) -> list[A]:
    """Call the method of MPSGraph that has these labels; see `vkrnn.lstm_gradients`."""
    raise NotImplementedError


@_by_labels
def GRU(
    source: Tensor[A],
    /,
    *,
    recurrentWeight: Tensor[A],
    inputWeight: Tensor[A] | None,
    bias: Tensor[A] | None,
    descriptor: GRUDescriptor | MPSGraphGRUDescriptor | None,
    initState: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    secondaryBias: Tensor[A] | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
) -> list[A]:
    """Call the method of MPSGraph that has these labels; see `vkrnn.gru`."""
    raise NotImplementedError


@_by_labels
def GRUGradients(
    source: Tensor[A],
    /,
    *,
    recurrentWeight: Tensor[A],
    sourceGradient: Tensor[A],
    zState: Tensor[A],
    outputFwd: Tensor[A],
    inputWeight: Tensor[A] | None,
    bias: Tensor[A] | None,
    descriptor: GRUDescriptor | MPSGraphGRUDescriptor | None,
    stateGradient: Tensor[A] | None = None,
    initState: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    secondaryBias: Tensor[A] | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
) -> list[A]:
    """Call the method of MPSGraph that has these labels; see `vkrnn.gru_gradients`."""
    raise NotImplementedError


globals().update({method.python: _by_position(method) for method in METHODS})
