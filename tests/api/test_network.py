"""Networks: several layers in one call, beside PyTorch's modules and beside one call for each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require

rng = np.random.default_rng(3)
T, N, I, H, L = 7, 3, 5, 4, 3


def draw(*shape: int, dtype: Any = np.float64) -> Any:
    return (rng.standard_normal(shape) * 0.5).astype(dtype)


def modules(torch: Any, kind: str, *, bidirectional: bool) -> Any:
    torch.manual_seed(1)
    return getattr(torch.nn, kind)(I, H, num_layers=L, bidirectional=bidirectional).double()


@pytest.mark.parametrize("lengths", [None, [7, 2, 5]], ids=["whole", "lengths"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two directions"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_trains_as_pytorch_does(kind: str, bidirectional: bool, lengths: Any) -> None:  # noqa: FBT001
    torch = require("torch")
    module = modules(torch, kind, bidirectional=bidirectional)
    D = 1 + bidirectional
    lstm = kind == "LSTM"
    source, above = draw(T, N, I), draw(T, N, D * H)
    starts = [draw(L, N, D * H) for _ in range(1 + lstm)]
    ends = [draw(L, N, D * H) for _ in range(1 + lstm)]
    if lengths is not None:
        for row, length in enumerate(lengths):
            above[length:, row] = 0

    def torchs(states: Any) -> Any:
        """Return [L D, N, H] of [L, N, D H]."""
        return torch.from_numpy(np.concatenate([np.stack(np.split(state, D, axis=1)) for state in states]))

    x, first = torch.from_numpy(source).requires_grad_(), [torchs(each).requires_grad_() for each in starts]
    given = x if lengths is None else torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, last = module(given, tuple(first) if lstm else first[0])
    if lengths is not None:
        output, _ = torch.nn.utils.rnn.pad_packed_sequence(output, total_length=T)
    last = last if lstm else (last,)
    loss = (output * torch.from_numpy(above)).sum()
    loss = loss + sum((each * torchs(end)).sum() for each, end in zip(last, ends, strict=True))
    loss.backward()

    net = vkrnn.network(vkrnn.convert.from_torch(module))
    names = ["init_state", "init_cell"][: 1 + lstm]
    result = net.forward(
        source,
        lengths=None if lengths is None else np.array(lengths),
        training=True,
        **{name: list(start) for name, start in zip(names, starts, strict=True)},
    )
    np.testing.assert_allclose(result.output, output.detach().numpy(), rtol=0, atol=1e-12)
    for found, wanted in zip([result.last_state, result.last_cell], last, strict=False):
        np.testing.assert_allclose(torchs(found), wanted.detach(), rtol=0, atol=1e-12)
    upstream = {
        name: list(end) for name, end in zip(["state_gradient", "cell_gradient"], ends, strict=False) if end is not None
    }
    found = net.gradients(result, above, **upstream)
    np.testing.assert_allclose(found.source, x.grad, rtol=0, atol=1e-11)
    for name, start in zip(names, first, strict=True):
        np.testing.assert_allclose(torchs([getattr(each, name) for each in found.layers]), start.grad, atol=1e-11)
    for number, (layer, gradients) in enumerate(zip(net.layers, found.layers, strict=True)):
        wanted = vkrnn.convert.from_torch(_with_gradients(torch, module, kind, bidirectional=bidirectional))[number]
        for name in layer.arguments:
            np.testing.assert_allclose(getattr(gradients, name), wanted.arguments[name], rtol=0, atol=1e-11)


def _with_gradients(torch: Any, module: Any, kind: str, *, bidirectional: bool) -> Any:
    """Return a module whose weights are the gradients of another one.

    vkrnn's bias is the sum of PyTorch's two, each of which has the gradient of the sum. So one of them becomes zero,
    except for the candidate of a GRU, whose biases are two in vkrnn as well.
    """
    copy = modules(torch, kind, bidirectional=bidirectional)
    with torch.no_grad():
        for (name, to), start in zip(copy.named_parameters(), module.parameters(), strict=True):
            to.copy_(start.grad)
            if name.startswith("bias_hh"):
                to[: 2 * H if kind == "GRU" else None] = 0
    return copy


def lstm_layer(features: int, units: int, dtype: Any = np.float32, **options: Any) -> Any:
    D = 2 if options.get("bidirectional") else 1
    recurrent = draw(4 * units, units, dtype=dtype) if D == 1 else draw(2, 4 * units, units, dtype=dtype)
    weights = {"input_weight": draw(4 * D * units, features, dtype=dtype), "recurrent_weight": recurrent}
    return "lstm", weights | {"bias": draw(4 * D * units, dtype=dtype)}, vkrnn.LSTMDescriptor(**options)


def test_has_the_bits_of_a_call_for_each_layer() -> None:
    layers = [lstm_layer(I, 6, bidirectional=True), lstm_layer(12, 3, reverse=True)]
    source, mask = draw(T, N, I, dtype=np.float32), draw(T, N, 12, dtype=np.float32)
    result = vkrnn.network(layers).forward(source, between=[mask])
    first = vkrnn.lstm(source, **layers[0][1], descriptor=layers[0][2])
    second = vkrnn.lstm(first.output * mask, **layers[1][1], descriptor=layers[1][2])
    np.testing.assert_array_equal(result.output, second.output)
    assert result.training_state is None


def test_calls_use_the_current_numbers_of_the_weights() -> None:
    layers = [lstm_layer(I, 6), lstm_layer(6, 3)]
    net, source = vkrnn.network(layers), draw(T, N, I, dtype=np.float32)
    before = net.forward(source).output
    layers[1][1]["recurrent_weight"][5, 2] += 1
    after = net.forward(source).output
    assert (before != after).any()
    np.testing.assert_array_equal(after, vkrnn.network(layers).forward(source).output)
    transposed = np.asfortranarray(layers[0][1]["input_weight"])
    net = vkrnn.network([("lstm", layers[0][1] | {"input_weight": transposed}), layers[1]])
    transposed[3, 4] += 1
    layers[0][1]["input_weight"][3, 4] += 1
    np.testing.assert_array_equal(net.forward(source).output, vkrnn.network(layers).forward(source).output)


def test_frozen_weights_are_those_of_the_beginning() -> None:
    layers = [lstm_layer(I, 6)]
    net, source = vkrnn.network(layers, frozen=True), draw(T, N, I, dtype=np.float32)
    before = net.forward(source).output
    layers[0][1]["recurrent_weight"][5, 2] += 1
    np.testing.assert_array_equal(before, net.forward(source).output)


def test_last_states_continue_a_sequence() -> None:
    net, source = vkrnn.network([lstm_layer(I, 6), lstm_layer(6, 3)]), draw(2 * T, N, I, dtype=np.float32)
    whole = net.forward(source)
    first = net.forward(source[:T])
    second = net.forward(source[T:], init_state=first.last_state, init_cell=first.last_cell)
    np.testing.assert_array_equal(second.output, whole.output[T:])
    for a, b in zip(second.last_cell, whole.last_cell, strict=True):
        np.testing.assert_array_equal(a, b)


def test_absent_upstream_gradients_are_zeros() -> None:
    net, source = vkrnn.network([lstm_layer(I, 6), lstm_layer(6, 3)]), draw(T, N, I, dtype=np.float32)
    result, end = net.forward(source, training=True), draw(N, 3, dtype=np.float32)
    one = net.gradients(result, state_gradient=[None, end])
    zeros = [np.zeros((N, 6), np.float32), end]
    other = net.gradients(result, np.zeros_like(result.output), state_gradient=zeros)
    np.testing.assert_array_equal(one.source, other.source)
    for a, b in zip(one.layers, other.layers, strict=True):
        assert a._fields == b._fields == ("recurrent_weight", "input_weight", "bias")
        for name in a._fields:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_gradients_of_all_cells() -> None:
    layer = lstm_layer(I, 6, bidirectional=True)
    net, source, every = vkrnn.network([layer]), draw(T, N, I, dtype=np.float32), draw(T, N, 12, dtype=np.float32)
    found = net.gradients(net.forward(source, training=True), cell_gradient=[every])
    kept = vkrnn.lstm(source, **layer[1], descriptor=vkrnn.LSTMDescriptor(bidirectional=True, training=True))
    arguments = layer[1] | {"cell_output_fwd": kept.cell_output, "z_state": kept.z_state, "cell_gradient": every}
    above = np.zeros_like(every)
    wanted = vkrnn.lstm_gradients(source, source_gradient=above, **arguments, descriptor=layer[2])
    np.testing.assert_array_equal(found.source, wanted.source)
    for name in layer[1]:
        np.testing.assert_array_equal(getattr(found.layers[0], name), getattr(wanted, name))


def test_streams_have_the_bits_of_calls() -> None:
    net, source = vkrnn.network([lstm_layer(I, 6), lstm_layer(6, 3)], device="cpu ("), draw(T, N, I, dtype=np.float32)
    stream = net.stream(batch=N)
    np.testing.assert_array_equal(np.stack([stream.step(x) for x in source]), net.forward(source).output)


def test_wrong_arguments_are_refused() -> None:
    net, source = vkrnn.network([lstm_layer(I, 6), lstm_layer(6, 3)]), draw(T, N, I, dtype=np.float32)

    def message(error: Any, call: Any) -> str:
        with pytest.raises(error) as caught:
            call()
        return str(caught.value)

    assert message(ValueError, lambda: net.forward(source, init_state=[None, np.zeros((N, 4), np.float32)])) == (
        "[lstm 'layer 1'] init_state: expected shape [N, H] = [3, 3] or [1, N, H] = [1, 3, 3], got [3, 4] "
        "(N = 3 from source.shape[1], H = 3 from recurrent_weight.shape[0] / 4)"
    )
    assert message(ValueError, lambda: net.forward(source, init_state=[None])) == (
        "[network] init_state: expected 2 entries, one for each layer, got 1"
    )
    assert message(TypeError, lambda: net.forward(source, init_state=source)) == (
        "[network] init_state: expected a list with an entry for each layer, got ndarray"
    )
    assert message(ValueError, lambda: net.forward(source, between=[np.ones((T, N, 3), np.float32)])) == (
        "[network] between[0]: expected shape [T, N, H] = [7, 3, 6], got [7, 3, 3]"
    )
    assert message(ValueError, lambda: net.gradients(net.forward(source))) == (
        "[network] result: expected one of forward with training=True, got training=False"
    )
    assert message(TypeError, lambda: net.gradients(source)) == (
        "[network] result: expected a NetworkResult, got ndarray"
    )
    result = net.forward(source, training=True)
    assert message(ValueError, lambda: net.gradients(result, np.ones((T, N, 6), np.float32))) == (
        "[network] source_gradient: expected shape [T, N, H] = [7, 3, 3], got [7, 3, 6]"
    )
    other = vkrnn.network([lstm_layer(I, 6), lstm_layer(6, 3)])
    assert message(ValueError, lambda: other.gradients(result)) == (
        "[network] result: expected one of this network, got one of another network"
    )
    assert message(TypeError, vkrnn.Network) == "[network] a Network has no constructor; call vkrnn.network"
    assert message(ValueError, lambda: vkrnn.network([])) == "[network] layers: expected at least one, got none"
    assert message(ValueError, lambda: vkrnn.network([lstm_layer(I, 6), lstm_layer(5, 3)])) == (
        "[lstm 'layer 1'] input_weight: expected a layer of 6 inputs, the H of layer 0, got one of 5"
    )


@pytest.mark.parametrize("resident", [False, True], ids=["NumPy", "arrays"])
def test_batch_first(resident: bool) -> None:  # noqa: FBT001
    """If the first layer has it, all sequences have the batch first, and the bits are the same."""
    layers = [
        vkrnn.convert.Layer(vkrnn.lstm, {"recurrent_weight": draw(4 * H, H), "input_weight": draw(4 * H, width)}, None)
        for width in (I, H)
    ]
    arguments = {"source": draw(T, N, I), "between": [draw(T, N, H)], "mask": [None, draw(T, N, H)]}
    above, ends = draw(T, N, H), {"state_gradient": [None, draw(N, H)]}
    found = []
    for batch_first in (False, True):

        def sequence(array: Any, *, swaps: bool = batch_first) -> Any:
            array = array.swapaxes(0, 1) if swaps and array is not None else array
            return vkrnn.asarray(np.ascontiguousarray(array)) if resident and array is not None else array

        def back(array: Any, *, swaps: bool = batch_first) -> Any:
            return np.asarray(array).swapaxes(0, 1) if swaps else np.asarray(array)

        net = vkrnn.network([replace(layer, batch_first=batch_first) for layer in layers])
        assert (", batch_first" in repr(net)) is batch_first
        given = {
            name: [*map(sequence, value)] if isinstance(value, list) else value for name, value in arguments.items()
        }
        given["source"] = sequence(arguments["source"])
        result = net.forward(**given, training=True)
        gradients = net.gradients(result, sequence(above), **ends)
        found.append(
            [
                back(result.output),
                *result.last_state,
                back(gradients.source),
                *gradients.layers[0],
                *gradients.layers[1],
            ]
        )
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_arrays_on_a_device_give_arrays() -> None:
    """With a source on the device, results stay there, and have the same bits."""
    layers = [lstm_layer(I, 6, bidirectional=True), lstm_layer(12, 3)]
    net, source = vkrnn.network(layers, device="cpu ("), draw(T, N, I, dtype=np.float32)
    above = draw(T, N, 3, dtype=np.float32)
    there = net.forward(vkrnn.asarray(source, device=net.device), training=True)
    here = net.forward(source, training=True)
    gradients = net.gradients(there, vkrnn.asarray(above, device=net.device))
    wanted = net.gradients(here, above)
    pairs = [(there.output, here.output), (gradients.source, wanted.source)]
    pairs += [(there.last_cell[0], here.last_cell[0])]
    pairs += [(gradients.layers[0].input_weight, wanted.layers[0].input_weight)]
    for found, right in pairs:
        assert isinstance(found, vkrnn.Array)
        np.testing.assert_array_equal(found.numpy(), right)


def test_weights_on_a_device_must_be_frozen() -> None:
    """They are copied once, so that a change would go unnoticed."""
    name, weights, descriptor = lstm_layer(I, 6)
    there = {key: vkrnn.asarray(weight, device="cpu (") for key, weight in weights.items()}
    source = draw(T, N, I, dtype=np.float32)
    with pytest.raises(NotImplementedError) as caught:
        vkrnn.network((name, there, descriptor))
    assert str(caught.value) == (
        "[network] layers: weights in a device's memory are copied once, so changes of them would not be noticed; "
        "expected NumPy arrays, or frozen=True"
    )
    found = vkrnn.network((name, there, descriptor), frozen=True).forward(source).output
    np.testing.assert_array_equal(found, vkrnn.network((name, weights, descriptor)).forward(source).output)


@pytest.mark.parametrize("device", ["cpu (", None], ids=["cpu", "default"])
def test_an_empty_batch_gives_empty_results(device: Any) -> None:
    """As in the functions, and the weights' gradients are zeros."""
    net = vkrnn.network([lstm_layer(I, 6), lstm_layer(6, 3)], device=device)
    mask = np.ones((T, 0, 6), np.float32)
    result = net.forward(np.zeros((T, 0, I), np.float32), between=[mask], training=True)
    assert (result.output.shape, result.last_cell[0].shape) == ((T, 0, 3), (0, 6))
    found = net.gradients(result)
    assert found.source.shape == (T, 0, I)
    assert not found.layers[0].input_weight.any()
    assert found.layers[0].input_weight.shape == (24, I)


@pytest.mark.parametrize("lengths", [None, np.array([4, 0, 6])], ids=["full", "with lengths"])
def test_an_slstm_has_four_states(lengths: Any) -> None:
    """Results and gradients have the bits of calls of the function, also next to a layer with fewer states."""
    steps, rows, features, units = 6, 3, 4, 5
    R, W = draw(2, 4 * units, units), draw(8 * units, features)
    both, above = vkrnn.SLSTMDescriptor(bidirectional=True), lstm_layer(2 * units, 3, np.float64)
    net = vkrnn.network([("slstm", {"recurrent_weight": R, "input_weight": W}, both), above])
    source, starts = draw(steps, rows, features), [draw(rows, 2 * units) for _ in range(4)]
    starts[2] = np.abs(starts[2])
    names = [f"init_{name}" for name in ("state", "cell", "normalizer", "stabilizer")]
    given: dict[str, Any] = {name: [start, None] for name, start in zip(names, starts, strict=True)}
    result = net.forward(source, training=True, lengths=lengths, **given)
    own = {"input_weight": W, "lengths": lengths, **dict(zip(names, starts, strict=True))}
    alone = vkrnn.slstm(source, R, **own, descriptor=replace(both, training=True))
    second = vkrnn.lstm(alone.output, **above[1], lengths=lengths)
    np.testing.assert_array_equal(result.output, second.output)
    lasts = ("last_state", "last_cell", "last_normalizer", "last_stabilizer")
    for name in lasts:
        np.testing.assert_array_equal(getattr(result, name)[0], getattr(alone, name))
        assert (getattr(result, name)[1] is None) == (name in lasts[2:])
    ends = [draw(rows, 2 * units) for _ in range(4)]
    gradients = [f"{name}_gradient" for name in ("state", "cell", "normalizer", "stabilizer")]
    upstream: dict[str, Any] = {name: [end, None] for name, end in zip(gradients, ends, strict=True)}
    found = net.gradients(result, draw(steps, rows, 3), **upstream)
    again = net.gradients(result, np.zeros((steps, rows, 3)), **upstream)
    kept = {f"{name}_fwd": getattr(alone, name) for name in ("cell_output", "normalizer_output", "stabilizer_output")}
    wanted = vkrnn.slstm_gradients(
        source,
        R,
        np.zeros_like(alone.output),
        alone.z_state,
        **kept,
        **own,
        **dict(zip(gradients, ends, strict=True)),
        descriptor=both,
    )
    assert again.layers[0]._fields == found.layers[0]._fields == wanted._fields[1:]
    for name in wanted._fields[1:]:
        np.testing.assert_allclose(getattr(again.layers[0], name), getattr(wanted, name), rtol=0, atol=1e-14)
