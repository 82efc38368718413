"""Layers converted from and to modules of PyTorch give the results of the original ones."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from comparison import scaled_error
from tolerances import FLOAT32
from vkrnn.convert import Layer, from_torch, to_torch

# torch uses NumPy 1's array protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

TORCH = [("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"})]
every_torch = pytest.mark.parametrize(("kind", "options"), TORCH, ids=["LSTM", "GRU", "RNN tanh", "RNN relu"])
both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
with_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def run(layers: list[Layer], source: NDArray[Any]) -> NDArray[Any]:
    """Run layers one after the other."""
    for layer in layers:
        source = layer(source).output
    return source


@every_torch
@both_ways
@with_bias
def test_from_torch_and_back(
    torch: Any, kind: str, options: dict[str, str], *, bidirectional: bool, bias: bool
) -> None:
    """Converted layers give the module's output, and so does a module made from them."""
    module = getattr(torch.nn, kind)(3, 5, 2, bias=bias, bidirectional=bidirectional, **options)
    source = torch.rand(7, 4, 3) - 0.5
    wanted = module(source)[0].detach().numpy()
    layers = from_torch(module)
    assert scaled_error(run(layers, source.numpy()), wanted) < FLOAT32
    back = to_torch(layers)
    assert type(back) is type(module)
    assert {name: p.shape for name, p in back.named_parameters()} == {
        name: p.shape for name, p in module.named_parameters()
    }
    assert scaled_error(back(source)[0].detach().numpy(), wanted) < FLOAT32


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes_of_torch(torch: Any, dtype: str) -> None:
    """Both conversions keep the dtype and the bits of the matrices."""
    module = torch.nn.GRU(3, 5, dtype=getattr(torch, dtype))
    (layer,) = from_torch(module)
    assert {array.dtype.name for array in layer.arguments.values()} == {dtype}
    back = to_torch(layer)
    assert torch.equal(back.weight_hh_l0, module.weight_hh_l0)
    assert torch.equal(back.weight_ih_l0, module.weight_ih_l0)


def test_weights_are_copies(torch: Any) -> None:
    """Further training does not change converted weights."""
    module = torch.nn.LSTM(3, 5)
    (layer,) = from_torch(module)
    before = {name: array.copy() for name, array in layer.arguments.items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    assert all(np.array_equal(before[name], array) for name, array in layer.arguments.items())


def some_layer(function: Any, descriptor: Any, G: int, **more: Any) -> Layer:
    """Return a layer with random weights."""
    rng = np.random.default_rng(G)
    shapes = {"recurrent_weight": (G * 5, 5), "input_weight": (G * 5, 3), "bias": (G * 5,), **more}
    return Layer(function, {name: rng.uniform(-1, 1, s).astype(np.float32) for name, s in shapes.items()}, descriptor)


@pytest.mark.parametrize(
    "layer",
    [
        some_layer(vkrnn.lstm, vkrnn.LSTMDescriptor(forget_gate_last=True), 4),
        some_layer(vkrnn.gru, vkrnn.GRUDescriptor(reset_after=True), 3, secondary_bias=(5,)),
        some_layer(vkrnn.gru, vkrnn.GRUDescriptor(reset_after=True, reset_gate_first=True), 3),
        some_layer(vkrnn.lstm, vkrnn.LSTMDescriptor(hard_sigmoid_alpha=0.3, output_peephole_new_cell=True), 4),
    ],
    ids=["forget gate last", "z first", "no secondary bias", "options without effect"],
)
def test_other_orders_to_torch(torch: Any, layer: Layer) -> None:
    """Gates are reordered to torch's order, and options without effect are ignored."""
    source = np.random.default_rng(0).uniform(-1, 1, (7, 4, 3)).astype(np.float32)
    wanted = layer(source).output
    assert scaled_error(to_torch(layer)(torch.from_numpy(source))[0].detach().numpy(), wanted) < FLOAT32


LSTM, GRU, RNN = vkrnn.LSTMDescriptor, vkrnn.GRUDescriptor, vkrnn.SingleGateRNNDescriptor


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (some_layer(vkrnn.lstm, LSTM(reverse=True), 4), "reverse: torch.nn.LSTM supports only False, got True"),
        (
            some_layer(vkrnn.lstm, LSTM(), 4, init_state=(1, 5)),
            "layer 0: init_state: torch's modules do not have this weight",
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("torch")
def test_no_equivalent_in_torch(layer: Layer, message: str) -> None:
    """The message names the option for which torch has no equivalent."""
    with pytest.raises(NotImplementedError, match=f"^{re.escape(f'[to_torch] {message}')}$"):
        to_torch(layer)


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (some_layer(vkrnn.lstm, LSTM(activation="relu"), 4), "LSTM(3, 5, activation='relu')"),
        (some_layer(vkrnn.lstm, LSTM(clip=2), 4), "LSTM(3, 5, clip=2.0)"),
        (
            some_layer(vkrnn.lstm, LSTM(forget_gate_last=True), 4, peephole=(20,)),
            "LSTM(3, 5, peephole=True)",
        ),
        (
            some_layer(vkrnn.lstm, LSTM(output_peephole_new_cell=True), 4, peephole=(20,)),
            "LSTM(3, 5, peephole=True, output_peephole_new_cell=True)",
        ),
        (
            some_layer(vkrnn.single_gate_rnn, RNN(activation="hard_sigmoid", hard_sigmoid_alpha=0.3), 1),
            "RNN(3, 5, activation='hard_sigmoid', hard_sigmoid_alpha=0.3)",
        ),
        (some_layer(vkrnn.single_gate_rnn, RNN(clip=0.5), 1), "RNN(3, 5, clip=0.5)"),
        (some_layer(vkrnn.gru, GRU(), 3), "GRU(3, 5, reset_after=False)"),
        (some_layer(vkrnn.gru, GRU(), 3, secondary_bias=(5,)), "GRU(3, 5, reset_after=False)"),
        (some_layer(vkrnn.gru, GRU(reset_after=True, flip_z=True), 3, secondary_bias=(5,)), "GRU(3, 5, flip_z=True)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_to_torch(torch: Any, layer: Layer, shown: str) -> None:
    """Layers with options that torch's modules lack become a module of vkrnn.torch, and that these layers again."""
    source = np.random.default_rng(0).uniform(-1, 1, (7, 4, 3)).astype(np.float32)
    wanted = layer(source).output
    module = to_torch(layer)
    assert type(module).__module__ == "vkrnn.torch"
    assert repr(module) == f"vkrnn.torch.{shown}"
    assert scaled_error(module(torch.from_numpy(source))[0].detach().numpy(), wanted) < FLOAT32
    assert scaled_error(run(from_torch(module), source), wanted) < FLOAT32


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"peephole": True, "cell_gate_activation": "relu"}),
        ("GRU", {"reset_after": False}),
        ("RNN", {"activation": "sigmoid"}),
    ],
)
@both_ways
@with_bias
def test_modules_with_options_and_back(
    torch: Any, kind: str, options: dict[str, Any], *, bidirectional: bool, bias: bool
) -> None:
    """A module of vkrnn.torch becomes layers with its options, and these become the module again."""
    ours = importlib.import_module("vkrnn.torch")
    module = getattr(ours, kind)(3, 5, 2, bias=bias, bidirectional=bidirectional, recurrent_dropout=0.25, **options)
    source = torch.rand(7, 4, 3) - 0.5
    wanted = module.eval()(source)[0].detach().numpy()
    layers = from_torch(module)
    assert [layer.recurrent_dropout for layer in layers] == [0.25, 0.25]
    assert scaled_error(run(layers, source.numpy()), wanted) < FLOAT32
    back = to_torch(layers)
    assert repr(back) == repr(module)
    assert scaled_error(back.eval()(source)[0].detach().numpy(), wanted) < FLOAT32


@every_torch
@both_ways
def test_batch_first(torch: Any, kind: str, options: dict[str, str], *, bidirectional: bool) -> None:
    """Layers of a batch_first module take and return what the module does, and become such a module again."""
    module = getattr(torch.nn, kind)(3, 5, 2, batch_first=True, bidirectional=bidirectional, **options)
    source = torch.rand(4, 7, 3) - 0.5
    wanted = module(source)[0].detach().numpy()
    layers = from_torch(module)
    assert all(repr(layer).endswith("; batch_first=True)") for layer in layers)
    assert scaled_error(run(layers, source.numpy()), wanted) < FLOAT32
    resident = run(layers, vkrnn.asarray(source.numpy()))
    assert isinstance(resident, vkrnn.Array)
    assert scaled_error(resident.numpy(), wanted) < FLOAT32
    back = to_torch(layers)
    assert repr(back) == repr(module)
    assert scaled_error(back(source)[0].detach().numpy(), wanted) < FLOAT32


def test_all_arrays_of_a_batch_first_layer(torch: Any) -> None:
    """Lengths, states and masks fit the same axes, every result is swapped, and mistakes raise the call's errors."""
    (layer,) = from_torch(torch.nn.LSTM(3, 5, batch_first=True))
    training = replace(layer.descriptor, training=True)
    rng = np.random.default_rng(0)
    shapes = {"init_state": (4, 5), "init_cell": (4, 5)}
    states = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    source, mask = (rng.uniform(-1, 1, (4, 7, width)).astype(np.float32) for width in (3, 5))
    more: dict[str, Any] = {**states, "lengths": [7, 2, 5, 1], "descriptor": training}
    found = layer(source, mask=mask, **more)
    first = replace(layer, batch_first=False)
    wanted = first(source.swapaxes(0, 1), mask=mask.swapaxes(0, 1), **more)
    assert list(found._asdict()) == ["output", "cell_output", "z_state"]
    assert all(np.array_equal(one.swapaxes(0, 1), other) for one, other in zip(found, wanted, strict=True))
    assert np.array_equal(found.last_state, wanted.last_state)
    assert np.array_equal(found.last_cell, wanted.last_cell)
    resident = layer(vkrnn.asarray(source), mask=mask, **more)
    assert np.array_equal(resident.last_state.numpy(), wanted.last_state)
    assert (
        repr(found)
        == "Results(lstm: output [4, 7, 5] float32, cell_output [4, 7, 5] float32, z_state [4, 7, 20] float32)"
    )
    with pytest.raises(ValueError, match=r"^\[lstm\] source: expected .*, got \[4, 3\]"):
        layer(source[:, 0])
    with pytest.raises(NotImplementedError, match=r"^\[lstm\] out: expected None, because the layer has batch_first"):
        layer(source, out=np.empty((4, 7, 5), np.float32))


@pytest.mark.usefixtures("torch")
def test_layers_that_do_not_fit() -> None:
    """The layers of a stack must have one cell and matching sizes."""
    first = some_layer(vkrnn.lstm, LSTM(), 4)
    with pytest.raises(
        TypeError, match=re.escape("[to_torch] layers: expected a Layer or a sequence of them, got str")
    ):
        to_torch(["x"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=re.escape("[to_torch] layers: expected at least one, got none")):
        to_torch([])
    with pytest.raises(ValueError, match=re.escape("input_weight: expected 5 columns, the width of the output before")):
        to_torch([first, first])
    other = some_layer(vkrnn.single_gate_rnn, RNN(activation="tanh"), 1, input_weight=(5, 5))
    with pytest.raises(ValueError, match=re.escape("[to_torch] layer 1: expected lstm with LSTMDescriptor(")):
        to_torch([first, other])
    above = some_layer(vkrnn.lstm, LSTM(), 4, input_weight=(20, 5))
    with pytest.raises(
        ValueError, match=re.escape("[to_torch] layer 1: recurrent_dropout: expected 0.0, as layer 0, got 0.5")
    ):
        to_torch([first, replace(above, recurrent_dropout=0.5)])
    with pytest.raises(
        ValueError, match=re.escape("[to_torch] layer 1: batch_first: expected False, as layer 0, got True")
    ):
        to_torch([first, replace(above, batch_first=True)])
    without = replace(first, arguments={"recurrent_weight": first.arguments["recurrent_weight"]})
    with pytest.raises(
        NotImplementedError,
        match=re.escape("[to_torch] layer 0: input_weight: expected an array, which torch's modules always"),
    ):
        to_torch(without)


def test_other_modules_of_torch(torch: Any) -> None:
    """Only recurrent modules without projections are accepted."""
    with pytest.raises(
        TypeError, match=re.escape("[from_torch] module: expected a torch.nn.LSTM, GRU or RNN, got Linear")
    ):
        from_torch(torch.nn.Linear(3, 4))

    class Halved(torch.nn.GRU):  # type: ignore[misc, name-defined]
        def forward(self, *args: Any) -> Any:
            return super().forward(*args)[0] / 2

    with pytest.raises(TypeError) as caught:
        from_torch(Halved(3, 4))
    assert str(caught.value) == (
        "[from_torch] module: expected a torch.nn.LSTM, GRU or RNN, got Halved, a subclass with a forward of its own"
    )
    ours = importlib.import_module("vkrnn.torch").GRU(3, 4)
    assert [layer.function for layer in from_torch(ours)] == [vkrnn.gru]
    with pytest.raises(NotImplementedError, match=re.escape("[from_torch] proj_size: expected 0, got 2")):
        from_torch(torch.nn.LSTM(3, 4, proj_size=2))
    learns = importlib.import_module("vkrnn.torch").GRU(3, 4, learn_initial_state=True)
    text = "[from_torch] learn_initial_state: expected False, got True; pass states in each call"
    with pytest.raises(NotImplementedError, match=re.escape(text)):
        from_torch(learns)


@pytest.mark.usefixtures("torch")
def test_layers_of_wrong_shapes() -> None:
    """`to_torch` and a call of the layer have the same message."""
    weights = {"recurrent_weight": np.ones((5, 20), np.float32), "input_weight": np.ones((20, 3), np.float32)}
    layer = Layer(vkrnn.lstm, weights, LSTM())
    wanted = "recurrent_weight: expected shape [4H, H] = [20, 5], got [5, 20] (it looks transposed)"
    for function, prefix in (
        (lambda: to_torch(layer), "[lstm 'layer 0']"),
        (lambda: vkrnn.stream(layer), "[lstm 'layer 0']"),
        (lambda: layer(np.ones((2, 1, 3), np.float32)), "[lstm]"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{prefix} {wanted}')}$"):
            function()


def test_a_stream_names_the_converter(torch: Any) -> None:
    """A stream takes no modules, and says which function makes layers of them."""
    module = torch.nn.GRU(3, 4)
    for given in (module, [module], [[module, module]], (module, {})):
        with pytest.raises(TypeError) as caught:
            vkrnn.stream(given)
        assert str(caught.value) == (
            "[stream] layers: expected a vkrnn.convert.Layer, a tuple (name, weights, descriptor) or a list of these, "
            "got GRU; see vkrnn.convert.from_torch"
        )
    assert vkrnn.stream(from_torch(module)).inputs == 3
