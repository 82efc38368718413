"""Typed user code: type checkers accept it and infer the types in `assert_type`."""

# pyright: strict

from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import vkrnn
from vkrnn import Activation, mpsgraph, reference
from vkrnn.results import GRUGradients, LSTMGradients, LSTMOutputs, Outputs

Floats = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]


class Foreign:
    """An array of another library."""

    def __init__(self, array: Floats) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> AnyArray:
        return self.array


source: Floats = np.ones((5, 3, 8), np.float32)
weight: Floats = np.zeros((8, 2), np.float32)
resident = vkrnn.asarray(weight)

# NumPy arguments give NumPy results.
forward = vkrnn.lstm(source, weight, bias=None, descriptor=vkrnn.LSTMDescriptor(training=True))
assert_type(forward, LSTMOutputs[AnyArray])
assert_type(forward.output, AnyArray)
assert_type(forward[0], AnyArray)
output, cell_output, z_state = forward
same: LSTMOutputs = forward  # the type of arrays has a default
base: vkrnn.Results = forward

back = vkrnn.lstm_gradients(
    source, weight, np.ones_like(output), z_state, cell_output, peephole=np.zeros(8, np.float32)
)
assert_type(back, LSTMGradients[AnyArray])
updated = weight - 0.1 * back.recurrent_weight
by_name: dict[str, AnyArray] = back._asdict()  # pyright: ignore[reportPrivateUsage]  # as of a named tuple

# One device array makes all results device arrays.
assert_type(vkrnn.lstm(source, resident), LSTMOutputs[vkrnn.Array])
assert_type(vkrnn.lstm(vkrnn.asarray(source), weight).output, vkrnn.Array)
assert_type(vkrnn.lstm(source, resident).output.numpy(), AnyArray)
written = vkrnn.empty((5, 3, 2))
assert_type(vkrnn.lstm(source, weight, out=written).output, vkrnn.Array)
assert_type(vkrnn.lstm(source, weight, out=[np.empty((5, 3, 2), np.float32)]).output, AnyArray)

# Arrays of other libraries give NumPy results.
assert_type(vkrnn.lstm(Foreign(source), Foreign(weight)).output, AnyArray)

# Activations are given as members, names or numbers; `Activation` accepts any string. Descriptors store members.
descriptor = vkrnn.GRUDescriptor(update_gate_activation="hardSigmoid", reset_gate_activation=3, training=True)
assert_type(descriptor.update_gate_activation, Activation)
assert_type(Activation("TANH".lower()), Activation)
assert_type(Activation.TANH.value, int)

gates: Floats = np.ones((5, 3, 6), np.float32)
candidate: Floats = np.zeros((6, 2), np.float32)
states, kept = vkrnn.gru(gates, candidate, lengths=[5, 4, 1], descriptor=descriptor, device="cpu (")
back_of_gru = vkrnn.gru_gradients(gates, candidate, states, kept, states, lengths=np.array([5, 4, 1]), device="cpu (")
assert_type(back_of_gru, GRUGradients[AnyArray])
assert_type(reference.gru(gates, candidate).output, npt.NDArray[np.float64])
report = vkrnn.check(vkrnn.gru, gates, candidate, lengths=[5, 4, 1])
steps: int = vkrnn.plan(vkrnn.gru, gates, candidate, lengths=[5, 4, 1]).dispatches
layer = vkrnn.convert.Layer(vkrnn.gru, {"recurrent_weight": candidate}, descriptor)
assert_type(layer(gates), Outputs[Any])


def mean(results: Outputs[AnyArray]) -> float:
    """Take the results of any forward call."""
    return float(results.output.mean())


total: float = mean(forward) + mean(vkrnn.gru(gates, candidate))

with vkrnn.default_device() as device:
    assert_type(device, vkrnn.Device)
    arrays = vkrnn.zeros((5, 3, 8))[1:]
    assert_type(arrays, vkrnn.Array)

# MPSGraph's own names.
apples = mpsgraph.MPSGraphLSTMDescriptor.descriptor()
apples.produceCell = True
apples.activation = mpsgraph.MPSGraphRNNActivation.hardSigmoid
apples.inputGateActivation = "sigmoid"
assert_type(apples.activation, Activation)
listed = mpsgraph.LSTM(source, recurrentWeight=weight, initState=None, initCell=None, descriptor=apples, name="first")
assert_type(listed, list[AnyArray])
selector = mpsgraph.LSTMWithSourceTensor_recurrentWeight_initState_initCell_descriptor_name_
again: list[AnyArray] = selector(source, weight, None, None, apples, None)
