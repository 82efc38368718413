"""`vkrnn.stream`: steps give the bits of a call, and errors leave the state unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require
from polls import polling
from vkrnn.convert import Layer

DESCRIPTORS = {
    "single_gate_rnn": vkrnn.SingleGateRNNDescriptor(activation="tanh"),
    "lstm": vkrnn.LSTMDescriptor(input_gate_activation="hard_sigmoid", forget_gate_last=True),
    "gru": vkrnn.GRUDescriptor(reset_after=True, reset_gate_first=True, flip_z=True),
    "slstm": vkrnn.SLSTMDescriptor(),
}
GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3, "slstm": 4}


def layer_of(cell: str, I: int, H: int, dtype: Any = np.float32, descriptor: Any = None) -> Layer:
    """Return a layer with all weights that the cell has."""
    rng, G = np.random.default_rng(I + H), GATES[cell]
    shapes = {"input_weight": (G * H, I), "recurrent_weight": (G * H, H), "bias": (G * H,)}
    descriptor = descriptor or DESCRIPTORS[cell]
    if cell == "lstm":
        shapes["peephole"] = (4 * H,)
    if cell == "gru" and descriptor.reset_after:
        shapes["secondary_bias"] = (H,)
    weights = {name: rng.uniform(-0.4, 0.4, shape).astype(dtype) for name, shape in shapes.items()}
    return Layer(getattr(vkrnn, cell), weights, descriptor)


def source(*shape: int, dtype: Any = np.float32) -> Any:
    """Return random numbers."""
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(dtype)


def in_calls(layers: list[Layer], x: Any) -> Any:
    """Return the output of one call per layer over the whole sequence."""
    for layer in layers:
        x = layer(x, device="cpu").output
    return x


@pytest.fixture
def lstm() -> vkrnn.Stream:
    return vkrnn.stream(layer_of("lstm", 3, 5))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("batch", [1, 3])
def test_same_bits_as_calls(batch: int, dtype: str) -> None:
    """Streams of all cells, run by single steps and by blocks of several sizes, equal one call."""
    layers = [
        layer_of("lstm", 3, 21, dtype),
        layer_of("gru", 21, 9, dtype),
        layer_of("gru", 9, 17, dtype, vkrnn.GRUDescriptor()),
        layer_of("slstm", 17, 7, dtype),
        layer_of("single_gate_rnn", 7, 6, dtype),
    ]
    x = source(80, batch, 3, dtype=dtype)
    expected = in_calls(layers, x)
    stream = vkrnn.stream(layers, batch=batch)
    assert np.array_equal(np.stack([stream.step(row) for row in x]), expected)
    stream.reset()
    parts = [stream.step(part) for part in np.split(x, [1, 4, 5])]
    assert np.array_equal(np.concatenate(parts), expected)


def test_out_is_returned(lstm: vkrnn.Stream) -> None:
    """The result is written to `out`, which is returned."""
    x, out = source(1, 3), np.empty((1, 5), np.float32)
    assert lstm.step(x, out=out) is out
    lstm.reset()
    assert np.array_equal(lstm.step(x), out)


def test_weights_are_copied() -> None:
    """Changing the weights after the stream was made has no effect."""
    layer, x = layer_of("gru", 3, 5), source(4, 1, 3)
    stream, expected = vkrnn.stream(layer), in_calls([layer], x)
    for array in layer.arguments.values():
        array.fill(0)
    assert np.array_equal(stream.step(x), expected)


def test_state(lstm: vkrnn.Stream) -> None:
    """Reading the state and setting it later continues the sequence from there."""
    x = source(6, 1, 3)
    lstm.step(x[:3])
    state = lstm.state
    assert [[array.shape for array in arrays] for arrays in state] == [[(1, 5), (1, 5)]]
    expected = lstm.step(x[3:])
    lstm.reset()
    assert not any(array.any() for arrays in lstm.state for array in arrays)
    lstm.state = state
    assert np.array_equal(lstm.step(x[3:]), expected)


def test_state_of_an_slstm() -> None:
    """It has four arrays, which continue the sequence. Initial states of the layer are its start."""
    layer, x = layer_of("slstm", 3, 5), source(6, 2, 3)
    names = ("state", "cell", "normalizer", "stabilizer")
    starts = {f"init_{name}": source(2, 5) + at for at, name in enumerate(names)}
    layer.arguments.update(starts)
    expected = in_calls([layer], x)
    stream = vkrnn.stream(layer, batch=2)
    assert all(np.array_equal(found, start) for found, start in zip(stream.state[0], starts.values(), strict=True))
    assert np.array_equal(stream.step(x[:3]), expected[:3])
    state = stream.state
    assert [array.shape for array in state[0]] == [(2, 5)] * 4
    assert np.array_equal(stream.step(x[3:]), expected[3:])
    stream.state = state
    assert np.array_equal(stream.step(x[3:]), expected[3:])
    message = r"^\[stream\] state\[0\]: expected 4 items, \(hidden, cell, normalizer, stabilizer\), got 2$"
    with pytest.raises(ValueError, match=message):
        stream.state = [state[0][:2]]


@pytest.mark.parametrize("rows", [1, [1], slice(1, 2), np.array([False, True, False]), -2])
def test_reset_of_rows(rows: Any) -> None:
    """Only the rows that were named start anew."""
    stream, x = vkrnn.stream(layer_of("lstm", 3, 5), batch=3), source(3, 3)
    first = stream.step(x)
    stream.reset(rows)
    again = stream.step(x)
    assert [bool((a == b).all()) for a, b in zip(again, first, strict=True)] == [False, True, False]


def test_error_about_rows(lstm: vkrnn.Stream) -> None:
    """A row that does not exist is refused and changes nothing."""
    lstm.step(source(1, 3))
    before = lstm.state
    with pytest.raises(ValueError, match=r"^\[stream\] rows: expected an index of 1 batch rows: "):
        lstm.reset([0, 1])
    assert all(np.array_equal(a, b) for a, b in zip(lstm.state[0], before[0], strict=True))


def test_initial_states() -> None:
    """A stream starts with its layers' initial states, and `reset` returns to them."""
    layer = layer_of("lstm", 3, 5)
    layer.arguments["init_state"], layer.arguments["init_cell"] = source(2, 5), source(2, 5)
    stream, x = vkrnn.stream(layer, batch=2), source(4, 2, 3)
    expected = in_calls([layer], x)
    assert np.array_equal(stream.step(x), expected)
    stream.reset()
    assert np.array_equal(stream.step(x), expected)
    for rows in (1, [[1]]):
        stream.reset(rows)
        assert np.array_equal(stream.step(x)[:, 1], expected[:, 1])


def test_dtype_converts_the_weights() -> None:
    """`dtype=` converts the weights; calls never convert."""
    stream = vkrnn.stream(layer_of("gru", 3, 5, np.float64), dtype=np.float32)
    assert stream.dtype == np.float32
    assert stream.step(source(1, 3)).dtype == np.float32


def test_from_torch() -> None:
    """`stream` accepts the result of `convert.from_torch`."""
    torch = require("torch")
    module, x = torch.nn.LSTM(3, 8, num_layers=2), source(5, 1, 3)
    with torch.no_grad():
        expected = module(torch.from_numpy(x))[0].numpy()
    stream = vkrnn.stream(vkrnn.convert.from_torch(module))
    np.testing.assert_allclose(np.stack([stream.step(torch.from_numpy(row)) for row in x]), expected, atol=1e-6)


def test_batch_first() -> None:
    """If the first layer has it, blocks are [N, T, I] and have the bits of single steps."""
    torch = require("torch")
    module, x = torch.nn.LSTM(3, 8, num_layers=2, batch_first=True), source(2, 5, 3)
    layers = vkrnn.convert.from_torch(module)
    stream = vkrnn.stream(layers, batch=2)
    assert ", batch 2, batch_first, float32, on " in repr(stream)
    with torch.no_grad():
        np.testing.assert_allclose(block := stream.step(x), module(torch.from_numpy(x))[0].numpy(), atol=1e-6)
    stream.reset()
    steps = [stream.step(np.ascontiguousarray(x[:, t])) for t in range(5)]
    np.testing.assert_array_equal(np.stack(steps, axis=1), block)
    before = stream.state
    text = (
        r"^\[stream\] x: expected shape \[N, T, I\] = \[2, T, 3\], as the first layer has batch_first, got \[5, 2, 3\]$"
    )
    with pytest.raises(ValueError, match=text):
        stream.step(x.swapaxes(0, 1))
    with pytest.raises(NotImplementedError, match=r"^\[stream\] out: expected None for a block"):
        stream.step(x, out=block)
    with pytest.raises(TypeError, match=r"^\[stream\] x: expected dtype float32, got float64$"):
        stream.step(x.astype(np.float64))
    np.testing.assert_array_equal(stream.state, before)
    assert stream.step(x[:, 0], out := np.empty((2, 8), np.float32)) is out


MISTAKES = [
    (source(1, 4), ValueError, "x: expected shape [N, I] = [1, 3] or [T, N, I] = [T, 1, 3], got [1, 4]"),
    (source(3), ValueError, "x: expected shape [N, I] = [1, 3] or [T, N, I] = [T, 1, 3], got [3]"),
    (source(0, 1, 3), ValueError, "x: expected shape [N, I] = [1, 3] or [T, N, I] = [T, 1, 3], got [0, 1, 3]"),
    (source(1, 3, dtype=np.float64), TypeError, "x: expected dtype float32, got float64"),
    ([[1.0, 2.0, 3.0]], TypeError, "x: expected a numpy.ndarray, got list"),
]


@pytest.mark.parametrize(("x", "kind", "message"), MISTAKES)
def test_errors_of_step(lstm: vkrnn.Stream, x: Any, kind: type[Exception], message: str) -> None:
    """The message names what is wrong, and the state stays unchanged."""
    lstm.step(source(1, 3))
    before = lstm.state
    with pytest.raises(kind) as caught:
        lstm.step(x)
    assert str(caught.value) == f"[stream] {message}"
    assert all(np.array_equal(a, b) for a, b in zip(lstm.state[0], before[0], strict=True))


def test_errors_about_out(lstm: vkrnn.Stream) -> None:
    """Errors about `out` leave the state unchanged, too."""
    x = source(1, 3)
    lstm.step(x)
    before = lstm.state
    with pytest.raises(ValueError, match=r"^\[stream\] out: expected shape \[1, 5\], got \[5\]$"):
        lstm.step(x, out=np.empty(5, np.float32))
    with pytest.raises(TypeError, match=r"^\[stream\] out: expected dtype float32, got float64$"):
        lstm.step(x, out=np.empty((1, 5)))
    assert all(np.array_equal(a, b) for a, b in zip(lstm.state[0], before[0], strict=True))
    square = vkrnn.stream(layer_of("lstm", 5, 5))
    x = source(1, 5)
    with pytest.raises(ValueError, match=r"^\[stream\] out: expected memory of its own, got memory shared with x$"):
        square.step(x, out=x)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda h, c: ((h[:, :4], c),), ValueError, "state[0][0]: expected shape [N, H] = [1, 5], got [1, 4]"),
        (lambda h, c: ((h, c.astype("f8")),), TypeError, "state[0][1]: expected dtype float32, got float64"),
        (lambda h, _: ((h,),), ValueError, "state[0]: expected 2 items, (hidden, cell), got 1"),
        (lambda *_: (), ValueError, "state: expected 1 items, of each layer, got 0"),
        (lambda h, _: h, TypeError, "state: expected a tuple of each layer, got ndarray"),
    ],
)
def test_errors_about_a_state(lstm: vkrnn.Stream, change: Any, kind: type[Exception], message: str) -> None:
    """A state that does not fit is refused and changes nothing."""
    lstm.step(source(1, 3))
    before = lstm.state
    with pytest.raises(kind) as caught:
        lstm.state = change(*(array + 1 for array in before[0]))
    assert str(caught.value) == f"[stream] {message}"
    assert all(np.array_equal(a, b) for a, b in zip(lstm.state[0], before[0], strict=True))


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        ([], ValueError, "[stream] layers: expected at least one, got none"),
        (
            [layer_of("lstm", 3, 5), layer_of("gru", 6, 5)],
            ValueError,
            "[gru 'layer 1'] input_weight: expected a layer of 5 inputs, the H of layer 0, got one of 6",
        ),
        (
            [layer_of("lstm", 3, 5), layer_of("gru", 5, 5, np.float64)],
            TypeError,
            "[gru 'layer 1'] recurrent_weight: expected dtype float32, that of layer 0, got float64",
        ),
        (
            layer_of("lstm", 3, 5, descriptor=vkrnn.LSTMDescriptor(reverse=True)),
            NotImplementedError,
            "[lstm 'layer 0'] reverse: expected False, got True; a stream runs forward in time",
        ),
        (
            ("lstm", {"recurrent_weight": np.zeros((20, 5), np.float32), "bias": np.zeros(19, np.float32)}),
            ValueError,
            "[lstm 'layer 0'] bias: expected shape [4H] = [20], got [19] (H = 5 from recurrent_weight.shape[0] / 4)",
        ),
        (
            ("lstm", {"recurrent_weight": np.zeros((20, 5), np.float32), "mask": np.ones((1, 1, 5), np.float32)}),
            TypeError,
            "[lstm 'layer 0'] mask: expected only weights in a layer",
        ),
        (3, TypeError, "[stream] layers: expected a vkrnn.convert.Layer, a tuple (name, weights, descriptor) or a list "
         "of these, got int"),
    ],
)  # fmt: skip
def test_errors_about_layers(layers: Any, kind: type[Exception], message: str) -> None:
    """Layers are checked as the arguments of a call are."""
    with pytest.raises(kind) as caught:
        vkrnn.stream(layers)
    assert str(caught.value) == message


def test_no_constructor() -> None:
    """Only `vkrnn.stream` makes a stream, because it checks the layers."""
    with pytest.raises(TypeError, match=r"^\[stream\] a Stream has no constructor; call vkrnn.stream$"):
        vkrnn.Stream()
    with pytest.raises(TypeError):
        vkrnn.Stream([], 1, vkrnn.Device("cpu ("), 1)  # type: ignore[call-arg]


def test_large_numbers() -> None:
    """More threads than there are may be allowed; a batch must fit the core's integers."""
    layer, x = layer_of("lstm", 3, 5), source(1, 3)
    expected = vkrnn.stream(layer, threads=1).step(x)
    for threads in (np.int64(2), 2**40):
        assert np.array_equal(vkrnn.stream(layer, threads=threads).step(x), expected)
    with pytest.raises(
        ValueError, match=r"^\[stream\] batch: expected 1 to 9223372036854775807, got 9223372036854775808$"
    ):
        vkrnn.stream(layer, batch=2**63)


def test_closed_device() -> None:
    """All uses of a stream on a closed device raise an error that says so."""
    device = vkrnn.Device("cpu (")
    stream = vkrnn.stream(layer_of("lstm", 3, 5), device=device)
    state = stream.state
    device.close()
    assert repr(stream).startswith("<vkrnn.Stream: 3 -> lstm 5, ")
    for use in (
        lambda: stream.step(source(1, 3)),
        lambda: stream.state,
        lambda: setattr(stream, "state", state),
        stream.reset,
        lambda: stream.reset(0),
    ):
        with pytest.raises(vkrnn.DeviceError, match=r"^\[stream\] the device is closed; open a new vkrnn.Device$"):
            use()


def attempt(use: Callable[[], Any]) -> Any:
    """Return the result, or the message of the RuntimeError."""
    try:
        return use()
    except RuntimeError as error:
        return str(error)


def test_two_threads() -> None:
    """If another thread uses a stream during a block, it gets an error, and the block is right."""
    layer, x = layer_of("lstm", 64, 200), source(200, 1, 64)
    stream, expected = vkrnn.stream(layer, threads=1), in_calls([layer], x)
    answers: list[Any] = []

    def intrude() -> None:
        thread = threading.Thread(target=lambda: answers.append(attempt(lambda: stream.state)))
        thread.start()
        thread.join()

    with polling(intrude):
        block = stream.step(x)
    assert np.array_equal(block, expected)
    assert answers == ["[stream] another thread is using the stream; give each thread a stream of its own"]


def test_repr(lstm: vkrnn.Stream) -> None:
    """The repr shows layers, batch, dtype and device."""
    assert repr(lstm) == f"<vkrnn.Stream: 3 -> lstm 5, batch 1, float32, on {lstm.device.name}>"


def test_on_vulkan() -> None:
    """Other devices run steps as ordinary calls, and the repr says that the CPU is faster."""
    device = next((each for each in vkrnn.devices() if each.backend != "native"), None)
    if device is None:
        pytest.skip("no Vulkan device")
    layers = [layer_of("lstm", 3, 5), layer_of("gru", 5, 4)]
    stream, x = vkrnn.stream(layers, batch=2, device=device), source(4, 2, 3)
    assert repr(stream).endswith(f"on {device.name} by ordinary calls; the CPU runs steps faster>")
    np.testing.assert_allclose(np.stack([stream.step(row) for row in x]), in_calls(layers, x), atol=1e-5)
    stream.reset(0)
    state = stream.state
    assert not state[0][0][0].any()
    assert state[0][0][1].any()
