"""MPSGraph's descriptors have Apple's properties and are accepted by the twenty methods."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn import mpsgraph
from vkrnn.mpsgraph import (
    MPSGraphGRUDescriptor,
    MPSGraphLSTMDescriptor,
    MPSGraphRNNActivation,
    MPSGraphSingleGateRNNDescriptor,
)

# The documented properties with their defaults; activations are numbers.
DIRECTIONS = {"reverse": False, "bidirectional": False, "training": False}
DOCUMENTED: dict[type[Any], dict[str, int]] = {
    MPSGraphSingleGateRNNDescriptor: {**DIRECTIONS, "activation": 1},
    MPSGraphLSTMDescriptor: {
        **DIRECTIONS,
        "produceCell": False,
        "forgetGateLast": False,
        "inputGateActivation": 3,
        "forgetGateActivation": 3,
        "cellGateActivation": 2,
        "outputGateActivation": 3,
        "activation": 2,
    },
    MPSGraphGRUDescriptor: {
        **DIRECTIONS,
        "resetGateFirst": False,
        "resetAfter": False,
        "flipZ": False,
        "updateGateActivation": 3,
        "resetGateActivation": 3,
        "outputGateActivation": 2,
    },
}
BASES = {
    MPSGraphSingleGateRNNDescriptor: "singleGateRNN",
    MPSGraphLSTMDescriptor: "LSTM",
    MPSGraphGRUDescriptor: "GRU",
}
every_class = pytest.mark.parametrize("kind", DOCUMENTED, ids=lambda kind: kind.__name__)


@every_class
def test_properties(kind: type[Any]) -> None:
    """There are exactly the documented properties and defaults; setting one leaves the others unchanged."""
    assert {name for name, value in vars(kind).items() if isinstance(value, property)} == set(DOCUMENTED[kind])
    for name, default in DOCUMENTED[kind].items():
        descriptor = kind.descriptor()
        assert {other: getattr(descriptor, other) for other in DOCUMENTED[kind]} == DOCUMENTED[kind]
        setattr(descriptor, name, not default if isinstance(default, bool) else MPSGraphRNNActivation.hardSigmoid)
        changed = {other for other, value in DOCUMENTED[kind].items() if getattr(descriptor, other) != value}
        assert changed == {name}


def test_activations() -> None:
    """Activations have Swift's names and the documented numbers."""
    assert {member.name: member.value for member in MPSGraphRNNActivation} == {
        "none": 0,
        "relu": 1,
        "tanh": 2,
        "sigmoid": 3,
        "hardSigmoid": 4,
    }


@every_class
def test_wrong_values(kind: type[Any]) -> None:
    """The message names the class and the property."""
    descriptor = kind()
    with pytest.raises(TypeError) as caught:
        descriptor.training = 1
    assert str(caught.value) == f"[{kind.__name__}] training: expected a bool, got 1 (int)"
    name = next(name for name in DOCUMENTED[kind] if name.lower().endswith("activation"))
    with pytest.raises(ValueError, match=rf"^\[{kind.__name__}\] {name}: expected one of 'none', .*, got 'softsign'$"):
        setattr(descriptor, name, "softsign")
    with pytest.raises(AttributeError):
        descriptor.produce_cell = True
    assert descriptor == kind()


@every_class
def test_copies(kind: type[Any]) -> None:
    """Copies are equal and independent."""
    descriptor = kind()
    descriptor.training = True
    for same in (
        descriptor.copy(),
        copy.copy(descriptor),
        copy.deepcopy(descriptor),
        pickle.loads(pickle.dumps(descriptor)),
    ):
        assert same == descriptor
        same.reverse = True
        assert same != descriptor
        assert not descriptor.reverse
    assert descriptor != object()
    with pytest.raises(TypeError):
        hash(descriptor)


@every_class
@pytest.mark.parametrize("index", range(20), ids=lambda index: mpsgraph.METHODS[index].swift)
def test_methods_take_them(kind: type[Any], index: int) -> None:
    """Results equal those with the package's descriptor; a method of another cell refuses it."""
    method = mpsgraph.METHODS[index]
    descriptor = kind()
    descriptor.training = True
    own = {
        MPSGraphSingleGateRNNDescriptor: vkrnn.SingleGateRNNDescriptor,
        MPSGraphLSTMDescriptor: vkrnn.LSTMDescriptor,
        MPSGraphGRUDescriptor: vkrnn.GRUDescriptor,
    }[kind](training=True)
    G = {"singleGateRNN": 1, "LSTM": 4, "GRU": 3}[method.base.removesuffix("Gradients")]
    shapes = {"recurrentWeight": (G * 4, 4), "sourceGradient": (5, 3, 4), "zState": (5, 3, G * 4)}
    shapes |= {"cellOutputFwd": (5, 3, 4), "outputFwd": (5, 3, 4)}
    values = [np.full(shapes[name], 0.1, np.float32) if name in shapes else None for name in method.labels]
    call, source = getattr(mpsgraph, method.python), np.full((5, 3, G * 4), 0.1, np.float32)
    if method.base.removesuffix("Gradients") != BASES[kind]:
        with pytest.raises(TypeError, match=r"descriptor: expected an? "):
            call(source, *values, descriptor, None)
        return
    labels = dict(zip(method.labels, values, strict=True))
    wanted = call(source, *values, own, None)
    for got in (
        call(source, *values, descriptor, None),
        getattr(mpsgraph, method.base)(source, **labels, descriptor=descriptor),
    ):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_properties_are_no_arguments() -> None:
    """A property that is given to the class is refused by name, with what to do."""
    with pytest.raises(TypeError, match=r"^\[MPSGraphGRUDescriptor\] resetAfter: expected no arguments; set "):
        MPSGraphGRUDescriptor(resetAfter=True)
