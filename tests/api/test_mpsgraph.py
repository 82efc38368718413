"""MPSGraph's twenty methods: their names and labels, and that each equals a call of one of the six functions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, mpsgraph
from vkrnn.mpsgraph import METHODS, Method

# The documented names, and the results of each if no argument is nil and training is on.
RNN_GRADIENTS = ["source", "recurrent_weight", "input_weight", "bias", "init_state"]
LSTM_GRADIENTS = ["source", "recurrent_weight", "input_weight", "bias", "init_state", "init_cell"]
GRU_GRADIENTS = ["source", "recurrent_weight", "input_weight", "bias"]
DOCUMENTED = {
    "singleGateRNN(_:recurrentWeight:initState:descriptor:name:)": ["h", "z"],
    "singleGateRNN(_:recurrentWeight:inputWeight:bias:initState:descriptor:name:)": ["h", "z"],
    "singleGateRNN(_:recurrentWeight:inputWeight:bias:initState:mask:descriptor:name:)": ["h", "z"],
    "singleGateRNNGradients(_:recurrentWeight:sourceGradient:zState:initState:descriptor:name:)": [
        "source",
        "recurrent_weight",
        "init_state",
    ],
    "singleGateRNNGradients(_:recurrentWeight:sourceGradient:zState:inputWeight:bias:initState:descriptor:name:)": (
        RNN_GRADIENTS
    ),
    "singleGateRNNGradients(_:recurrentWeight:sourceGradient:zState:inputWeight:bias:initState:mask:"
    "descriptor:name:)": (RNN_GRADIENTS),
    "singleGateRNNGradients(_:recurrentWeight:sourceGradient:zState:stateGradient:inputWeight:bias:initState:mask:"
    "descriptor:name:)": RNN_GRADIENTS,
    "LSTM(_:recurrentWeight:initState:initCell:descriptor:name:)": ["h", "c", "z"],
    "LSTM(_:recurrentWeight:inputWeight:bias:initState:initCell:descriptor:name:)": ["h", "c", "z"],
    "LSTM(_:recurrentWeight:inputWeight:bias:initState:initCell:mask:peephole:descriptor:name:)": ["h", "c", "z"],
    "LSTMGradients(_:recurrentWeight:sourceGradient:zState:cellOutputFwd:descriptor:name:)": [
        "source",
        "recurrent_weight",
    ],
    "LSTMGradients(_:recurrentWeight:sourceGradient:zState:cellOutputFwd:inputWeight:bias:initState:initCell:descriptor:"
    "name:)": LSTM_GRADIENTS,
    "LSTMGradients(_:recurrentWeight:sourceGradient:zState:cellOutputFwd:inputWeight:bias:initState:initCell:mask:"
    "descriptor:name:)": LSTM_GRADIENTS,
    "LSTMGradients(_:recurrentWeight:sourceGradient:zState:cellOutputFwd:stateGradient:cellGradient:inputWeight:bias:"
    "initState:initCell:mask:peephole:descriptor:name:)": [
        "source",
        "recurrent_weight",
        "input_weight",
        "bias",
        "peephole",
        "init_state",
        "init_cell",
    ],
    "GRU(_:recurrentWeight:inputWeight:bias:descriptor:name:)": ["h", "z"],
    "GRU(_:recurrentWeight:inputWeight:bias:initState:descriptor:name:)": ["h", "z"],
    "GRU(_:recurrentWeight:inputWeight:bias:initState:mask:secondaryBias:descriptor:name:)": ["h", "z"],
    "GRUGradients(_:recurrentWeight:sourceGradient:zState:outputFwd:inputWeight:bias:descriptor:name:)": GRU_GRADIENTS,
    "GRUGradients(_:recurrentWeight:sourceGradient:zState:outputFwd:inputWeight:bias:initState:descriptor:name:)": [
        *GRU_GRADIENTS,
        "init_state",
    ],
    "GRUGradients(_:recurrentWeight:sourceGradient:zState:outputFwd:stateGradient:inputWeight:bias:initState:mask:"
    "secondaryBias:descriptor:name:)": [*GRU_GRADIENTS, "init_state", "secondary_bias"],
}
FUNCTIONS = {
    "singleGateRNN": vkrnn.single_gate_rnn,
    "singleGateRNNGradients": vkrnn.single_gate_rnn_gradients,
    "LSTM": vkrnn.lstm,
    "LSTMGradients": vkrnn.lstm_gradients,
    "GRU": vkrnn.gru,
    "GRUGradients": vkrnn.gru_gradients,
}
DESCRIPTORS: dict[str, Any] = {
    "singleGateRNN": SingleGateRNNDescriptor(training=True),
    "LSTM": LSTMDescriptor(training=True),
    "GRU": GRUDescriptor(training=True, reset_after=True),
}
GATES = {"singleGateRNN": 1, "LSTM": 4, "GRU": 3}
T, N, H = 5, 3, 4


def cell_of(method: Method) -> str:
    """Return the base name without "Gradients"."""
    return method.base.removesuffix("Gradients")


def values(method: Method) -> dict[str, Any]:
    """Return an array for the source, ``_``, and for every label. I = GH, so that inputWeight may be nil."""
    G = GATES[cell_of(method)]
    shapes = {
        "_": (T, N, G * H),
        "recurrentWeight": (G * H, H),
        "inputWeight": (G * H, G * H),
        "bias": (G * H,),
        "initState": (N, H),
        "initCell": (N, H),
        "mask": (T, N, H),
        "peephole": (4 * H,),
        "secondaryBias": (H,),
        "sourceGradient": (T, N, H),
        "zState": (T, N, G * H),
        "cellOutputFwd": (T, N, H),
        "outputFwd": (T, N, H),
        "stateGradient": (N, H),
        "cellGradient": (N, H),
    }
    rng = np.random.default_rng(11)
    drawn = {name: rng.uniform(0.1, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: drawn[name] for name in ("_", *method.labels)}


def snake_case(label: str) -> str:
    """Return the package's argument for a Swift label."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in label)


def by_labels(method: Method, given: dict[str, Any], **rest: Any) -> list[Any]:
    """Call the method under its Swift name."""
    labels = {label: given[label] for label in method.labels}
    descriptor = DESCRIPTORS[cell_of(method)]
    result = getattr(mpsgraph, method.base)(given["_"], **labels, descriptor=descriptor, name=None, **rest)
    assert type(result) is list
    return result


def test_the_twenty_documented_methods() -> None:
    """`METHODS` has exactly these, in this order."""
    assert [method.swift for method in METHODS] == list(DOCUMENTED)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.swift)
def test_method(method: Method) -> None:
    """The Swift and the PyObjC spelling return the same bits as the package's function."""
    given = values(method)
    descriptor = DESCRIPTORS[cell_of(method)]
    arguments = {snake_case(label): given[label] for label in method.labels}
    wanted = FUNCTIONS[method.base](given["_"], descriptor=descriptor, **arguments)
    names = DOCUMENTED[method.swift]
    if method.base.endswith("Gradients"):
        assert list(wanted._asdict()) == names
    assert len(wanted) == len(names)

    labelled = by_labels(method, given)
    by_position = getattr(mpsgraph, method.python)(*given.values(), descriptor, "call", device=0)
    assert type(by_position) is list
    for results in (labelled, by_position):
        assert len(results) == len(wanted)
        for got, ideal in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(got, ideal)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.swift)
def test_nil(method: Method) -> None:
    """An argument that may be nil in Swift may be None; its gradient is then not in the list."""
    given = values(method)
    required = {name for name, optional in _parameters(method) if not optional}
    for label in method.labels:
        if snake_case(label) not in required:
            given[label] = None
    gradients = method.base.endswith("Gradients")
    assert len(by_labels(method, given)) == (2 if gradients else len(DOCUMENTED[method.swift]))


def _parameters(method: Method) -> list[tuple[str, bool]]:
    signature = inspect.signature(FUNCTIONS[method.base])
    return [(name, parameter.default is None) for name, parameter in signature.parameters.items()]


def test_order_of_labels_does_not_matter() -> None:
    """Keywords may come in any order."""
    x, R = np.ones((T, N, 16), np.float32), np.ones((16, H), np.float32)
    descriptor = LSTMDescriptor()
    [first] = mpsgraph.LSTM(x, recurrentWeight=R, initState=None, initCell=None, descriptor=descriptor, name="a")
    [second] = mpsgraph.LSTM(x, name="a", descriptor=descriptor, initCell=None, initState=None, recurrentWeight=R)
    np.testing.assert_array_equal(first, second)


def test_unknown_labels() -> None:
    """The message lists the methods of that name."""
    with pytest.raises(TypeError) as caught:
        mpsgraph.GRU(np.ones(1), recurrentWeight=None, initState=None, descriptor=None)
    assert str(caught.value) == (
        "[GRU] there is no method GRU(_:recurrentWeight:initState:descriptor:name:); there are\n"
        "    GRU(_:recurrentWeight:inputWeight:bias:descriptor:name:)\n"
        "    GRU(_:recurrentWeight:inputWeight:bias:initState:descriptor:name:)\n"
        "    GRU(_:recurrentWeight:inputWeight:bias:initState:mask:secondaryBias:descriptor:name:)"
    )


def test_wrong_number_of_arguments() -> None:
    """A selector takes exactly as many arguments as its name has colons."""
    name = "GRUWithSourceTensor_recurrentWeight_inputWeight_bias_descriptor_name_"
    with pytest.raises(TypeError) as caught:
        getattr(mpsgraph, name)(np.ones(1), None)
    assert str(caught.value) == f"[{name}] expected 6 arguments, got 2"


def test_unknown_selector() -> None:
    """An unknown name is an AttributeError; `dir` lists the twenty."""
    with pytest.raises(AttributeError, match=r"^module 'vkrnn\.mpsgraph' has no attribute 'GRUWithSourceTensor_'$"):
        mpsgraph.GRUWithSourceTensor_  # noqa: B018
    assert {method.python for method in METHODS} <= set(dir(mpsgraph))


def test_every_function_is_documented() -> None:
    """Each docstring names the method that it mirrors."""
    for method in METHODS:
        assert method.swift in (getattr(mpsgraph, method.base).__doc__ or "")
        assert method.swift in (getattr(mpsgraph, method.python).__doc__ or "")
