"""Layers converted from other libraries give the results of the original layers."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from comparison import scaled_error
from oracles import require
from tolerances import FLOAT32, ONNX
from vkrnn.convert import Layer, from_keras, from_torch, to_torch

os.environ.setdefault("KERAS_BACKEND", "torch")

# Keras and torch use NumPy 1's array protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

TORCH = [("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"})]
every_torch = pytest.mark.parametrize(("kind", "options"), TORCH, ids=["LSTM", "GRU", "RNN tanh", "RNN relu"])
both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
with_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


@pytest.fixture(scope="session")
def keras() -> Any:
    """Return Keras 3, or skip the test if it is not installed."""
    require("torch")
    return require("keras")


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
    """Options that torch's modules have not are those of a module of vkrnn.torch, and of layers that are made of it."""
    source = np.random.default_rng(0).uniform(-1, 1, (7, 4, 3)).astype(np.float32)
    wanted = layer(source).output
    module = to_torch(layer)
    assert type(module).__module__ == "vkrnn.torch"
    assert repr(module) == shown
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


KERAS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"activation": "relu", "recurrent_activation": "tanh"}),
    ("GRU", {}),
    ("GRU", {"reset_after": False}),
    ("GRU", {"activation": "sigmoid", "recurrent_activation": "linear"}),
    ("SimpleRNN", {}),
    ("SimpleRNN", {"activation": "relu"}),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}),
    ("GRU", {"activation": "hard_sigmoid", "recurrent_activation": "hard_sigmoid"}),
    ("SimpleRNN", {"activation": "hard_sigmoid"}),
]
every_keras = pytest.mark.parametrize(
    ("kind", "options"), KERAS, ids=lambda value: value if isinstance(value, str) else ",".join(value)
)


def keras_layer(keras: Any, kind: str, options: dict[str, Any]) -> Any:
    """Return a layer with random biases. Keras starts with zeros, which would hide mistakes."""
    keras.utils.set_random_seed(3)  # linear gates enlarge errors with some weights
    drawn = (
        {"bias_initializer": keras.initializers.RandomUniform(-1, 1, seed=3)} if options.get("use_bias", True) else {}
    )
    return getattr(keras.layers, kind)(5, return_sequences=True, **drawn, **options)


def compare(keras: Any, layer: Any) -> None:
    """Compare a Keras layer's output with ours."""
    source = np.random.default_rng(7).uniform(-1, 1, (7, 4, 3)).astype(np.float32)
    wanted = keras.ops.convert_to_numpy(layer(source.swapaxes(0, 1))).swapaxes(0, 1)
    assert scaled_error(from_keras(layer)(source).output, wanted) < ONNX


@every_keras
@with_bias
@pytest.mark.parametrize("go_backwards", [False, True], ids=["forward", "go_backwards"])
def test_from_keras(keras: Any, kind: str, options: dict[str, Any], *, bias: bool, go_backwards: bool) -> None:
    """The converted layer gives the Keras layer's output in the same order."""
    compare(keras, keras_layer(keras, kind, {**options, "use_bias": bias, "go_backwards": go_backwards}))


@every_keras
def test_from_keras_bidirectional(keras: Any, kind: str, options: dict[str, Any]) -> None:
    """A Bidirectional layer that concatenates becomes one call."""
    compare(keras, keras.layers.Bidirectional(keras_layer(keras, kind, options)))


def test_masks_of_keras_are_lengths(keras: Any) -> None:
    """A mask that ends rows early becomes `lengths`. Past the end, Keras repeats the last output."""
    layer = keras_layer(keras, "LSTM", {})
    source, lengths = np.random.default_rng(7).uniform(-1, 1, (7, 3, 3)).astype(np.float32), np.array([7, 2, 5])
    mask = np.arange(7) < lengths[:, np.newaxis]
    wanted = keras.ops.convert_to_numpy(layer(source.swapaxes(0, 1), mask=keras.ops.convert_to_tensor(mask)))
    found = from_keras(layer)(source, lengths=lengths).output
    rows = np.minimum(np.arange(7), lengths[:, np.newaxis] - 1)
    repeated = found.swapaxes(0, 1)[np.arange(3)[:, np.newaxis], rows]
    assert scaled_error(repeated, wanted) < ONNX


def test_documented_conversion(keras: Any, torch: Any) -> None:
    """The example of docs/torch.md gives the module that stands beside it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (program,) = (block for block in blocks if "keras.layers" in block)
    names: dict[str, Any] = {"keras": keras, "vkrnn": vkrnn}
    exec(program, names)  # noqa: S102 - of our own
    assert repr(names["gru"]) == program.rpartition("# ")[2].strip()
    assert names["gru"](torch.zeros(5, 1, 3))[0].shape == (5, 1, 16)


RECURRENT_DROPOUT: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"recurrent_activation": "hard_sigmoid"}),
    ("GRU", {}),
    ("GRU", {"reset_after": False}),
    ("SimpleRNN", {}),
]


@pytest.mark.parametrize(
    ("kind", "options"), RECURRENT_DROPOUT, ids=lambda value: value if isinstance(value, str) else ",".join(value)
)
@both_ways
@with_bias
def test_keras_recurrent_dropout_to_torch(
    keras: Any,
    torch: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: dict[str, Any],
    *,
    bidirectional: bool,
    bias: bool,
) -> None:
    """A Keras layer with recurrent dropout becomes a module that trains with the same masks as it does."""
    T, N, H, p = 7, 4, 5, 0.4
    options = {**options, "recurrent_dropout": p, "use_bias": bias}
    layer = keras_layer(keras, kind, options)
    if bidirectional:
        layer = keras.layers.Bidirectional(layer)
    rng = np.random.default_rng(7)
    source = torch.from_numpy(rng.uniform(-1, 1, (N, T, 3)).astype(np.float32)).requires_grad_()
    layer.build(source.shape)
    module = to_torch(from_keras(layer))
    assert type(module).__module__ == "vkrnn.torch"
    assert module.recurrent_dropout == p
    parts = [layer.forward_layer, layer.backward_layer] if bidirectional else [layer]
    masks = [torch.from_numpy(((rng.uniform(size=(N, H)) > p) / (1 - p)).astype(np.float32)) for _ in parts]
    for part, mask in zip(parts, masks, strict=True):
        gates = {"LSTM": 4, "GRU": 3}.get(kind)
        part.cell._recurrent_dropout_mask = mask if gates is None else [mask] * gates
    monkeypatch.setattr(type(module), "_mask", lambda *_: torch.cat(masks, dim=1).unsqueeze(0))
    above = torch.from_numpy(rng.uniform(-1, 1, (N, T, H * len(parts))).astype(np.float32))
    wanted = layer(source, training=True)
    assert scaled_error(wanted.detach().numpy(), layer(source).detach().numpy()) > 0.01
    again = source.detach().requires_grad_()
    found = module(again.transpose(0, 1))[0].transpose(0, 1)
    assert scaled_error(found.detach().numpy(), wanted.detach().numpy()) < ONNX
    variables = [variable for part in parts for variable in part.trainable_weights]
    gradients = torch.autograd.grad((wanted * above).sum(), [source, *(each.value for each in variables)])
    (found * above).sum().backward()
    assert scaled_error(again.grad.numpy(), gradients[0].numpy()) < ONNX
    for variable, gradient in zip(variables, gradients[1:], strict=True):
        variable.assign(gradient)
    for name, weight in to_torch(from_keras(layer)).named_parameters():
        if not name.startswith("bias"):  # Keras has another number of biases
            error = scaled_error(getattr(module, name).grad.numpy(), weight.detach().numpy())
            assert error < ONNX, name


def test_scale_of_keras_masks(keras: Any, torch: Any) -> None:
    """Keras' masks have the two values of ours. Its LSTM and GRU drop nothing if the probability is 1."""
    cell = keras.layers.LSTMCell(400, recurrent_dropout=0.2)
    mask = cell.get_recurrent_dropout_mask(keras.ops.ones((1, 400)))[0]
    ours = importlib.import_module("vkrnn.torch").LSTM(3, 400, recurrent_dropout=0.2)._mask(torch.ones(1, 1, 3), 1)
    assert set(mask.unique().tolist()) == set(ours.unique().tolist()) == {0.0, 1.25}
    for kind, p in (("LSTM", 0.0), ("GRU", 0.0), ("SimpleRNN", 1.0)):
        layer = keras_layer(keras, kind, {"recurrent_dropout": 1.0})
        layer.build((None, None, 3))
        assert from_keras(layer).recurrent_dropout == p


def test_keras_variants_to_torch(keras: Any, torch: Any) -> None:
    """Layers whose variants torch's modules have not become modules of vkrnn.torch."""
    for kind, options in KERAS:
        for bidirectional in (False, True):
            layer = keras_layer(keras, kind, options)
            if bidirectional:
                layer = keras.layers.Bidirectional(layer)
            source = np.random.default_rng(7).uniform(-1, 1, (7, 4, 3)).astype(np.float32)
            wanted = keras.ops.convert_to_numpy(layer(source.swapaxes(0, 1))).swapaxes(0, 1)
            found = to_torch(from_keras(layer))(torch.from_numpy(source))[0].detach().numpy()
            assert scaled_error(found, wanted) < ONNX


def test_keras_options_that_change_nothing(keras: Any) -> None:
    """Options of training and of Keras's implementation are ignored; `keras.ops` functions are known."""
    options = {
        "activation": keras.ops.tanh,
        "recurrent_activation": keras.ops.sigmoid,
        "dropout": 0.5,
        "recurrent_dropout": 0.5,
        "kernel_constraint": "max_norm",
        "bias_regularizer": "l2",
        "seed": 3,
        "unroll": True,
        "implementation": 1,
        "use_cudnn": False,
        "zero_output_for_mask": True,
    }
    compare(keras, keras_layer(keras, "LSTM", options))
    compare(keras, keras.layers.RNN(keras.layers.GRUCell(5, bias_initializer="normal"), return_sequences=True))


def test_hard_sigmoids_of_keras(keras: Any) -> None:
    """Keras 2's hard sigmoid has another slope than Keras 3's, and a call has one slope."""
    keras_2 = importlib.import_module("keras.src.legacy.backend").hard_sigmoid  # needs TensorFlow to run
    layer = keras_layer(keras, "LSTM", {"recurrent_activation": keras_2})
    layer.build((None, None, 3))
    converted = from_keras(layer)
    layer.cell.recurrent_activation = lambda p: keras.ops.clip(0.2 * p + 0.5, 0, 1)
    source = np.random.default_rng(7).uniform(-3, 3, (7, 4, 3)).astype(np.float32)
    wanted = keras.ops.convert_to_numpy(layer(source.swapaxes(0, 1))).swapaxes(0, 1)
    assert scaled_error(converted(source).output, wanted) < ONNX
    both = keras_layer(keras, "LSTM", {"activation": keras_2, "recurrent_activation": "hard_sigmoid"})
    assert refusal(both) == (
        "[from_keras] recurrent_activation: expected the same hard sigmoid as activation, "
        "keras.src.legacy.backend.hard_sigmoid, got keras.src.activations.activations.hard_sigmoid"
    )


def refusal(layer: Any, shape: tuple[int | None, ...] = (None, None, 3)) -> str:
    """Return the message with which a built layer is refused."""
    layer.build(shape)
    with pytest.raises(NotImplementedError) as caught:
        from_keras(layer)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("LSTM", {"use_bias": False}, "use_bias: {same}, got True in forward_layer and False in backward_layer"),
        ("GRU", {"units": 6}, "units: {same}, got 5 in forward_layer and 6 in backward_layer"),
        ("GRU", {"reset_after": False}, "reset_after: {same}, got True in forward_layer and False in backward_layer"),
        (
            "LSTM",
            {"recurrent_dropout": 0.5},
            "recurrent_dropout: {same}, got 0.0 in forward_layer and 0.5 in backward_layer",
        ),
        ("GRU", {"dtype": "float64"}, "dtype: {same}, got float32 in forward_layer and float64 in backward_layer"),
        (
            "SimpleRNN",
            {"activation": "relu"},
            "activation: {same}, got keras.src.activations.activations.tanh in forward_layer and "
            "keras.src.activations.activations.relu in backward_layer",
        ),
    ],
    ids=["use_bias", "units", "reset_after", "recurrent_dropout", "dtype", "activation"],
)
def test_keras_directions_that_differ(keras: Any, kind: str, options: dict[str, Any], message: str) -> None:
    """If the layers of a Bidirectional differ in an option, the message names it with both values."""
    forward, backward = (getattr(keras.layers, kind)(**{"units": 5, **more}) for more in ({}, options))
    backward.go_backwards = True
    same = "expected the same in both layers of a Bidirectional"
    both = keras.layers.Bidirectional(forward, backward_layer=backward)
    assert refusal(both) == f"[from_keras] {message.format(same=same)}"


def test_keras_directions_of_two_kinds(keras: Any) -> None:
    """Both layers must be of one kind, and the first must run forward."""
    L = keras.layers
    mixed = L.Bidirectional(L.GRU(5), backward_layer=L.SimpleRNN(5, go_backwards=True))
    assert refusal(mixed) == "[from_keras] backward_layer: expected GRU, as forward_layer, got SimpleRNN"
    swapped = L.Bidirectional(L.GRU(5, go_backwards=True), backward_layer=L.GRU(5))
    assert refusal(swapped) == (
        "[from_keras] go_backwards: expected False in forward_layer and True in backward_layer, got True and False"
    )


def test_keras_layers_that_compute_something_else(keras: Any) -> None:
    """Subclasses, other cells and stateful layers are refused."""

    class Doubled(keras.layers.LSTM):  # type: ignore[misc, name-defined]
        def call(self, *args: Any, **options: Any) -> Any:
            return 2 * super().call(*args, **options)

    class OtherCell(keras.layers.LSTMCell):  # type: ignore[misc, name-defined]
        pass

    layer = Doubled(5)
    layer.build((None, None, 3))
    with pytest.raises(TypeError) as caught:
        from_keras(layer)
    expected = "[from_keras] layer: expected a keras.layers.LSTM, GRU, SimpleRNN or Bidirectional, got"
    assert str(caught.value) == f"{expected} Doubled, a subclass of LSTM"
    assert refusal(keras.layers.RNN(OtherCell(5))) == (
        "[from_keras] cell: expected a keras.layers.LSTMCell, GRUCell or SimpleRNNCell, got OtherCell"
    )
    for stateful in (
        keras.layers.LSTM(5, stateful=True),
        keras.layers.Bidirectional(keras.layers.GRU(5, stateful=True)),
    ):
        assert refusal(stateful, (2, 7, 3)) == (
            "[from_keras] stateful: expected False, got True; pass the last state as init_state instead"
        )


def test_no_equivalent_of_keras(keras: Any) -> None:
    """The message names the option for which vkrnn has no equivalent."""
    layer = keras_layer(keras, "LSTM", {"recurrent_activation": "gelu"})
    with pytest.raises(ValueError, match=re.escape("expected one that was built, got one without weights")):
        from_keras(layer)
    known = "linear, relu, tanh, sigmoid or hard_sigmoid of keras.activations"
    assert refusal(layer) == (
        f"[from_keras] recurrent_activation: expected {known}, got keras.src.activations.activations.gelu"
    )

    def sigmoid(p: Any) -> Any:
        return keras.ops.sigmoid(2 * p)

    assert refusal(keras.layers.SimpleRNN(5, activation=sigmoid)) == (
        f"[from_keras] activation: expected {known}, got {__name__}.test_no_equivalent_of_keras.<locals>.sigmoid"
    )
    summed = keras.layers.Bidirectional(keras.layers.GRU(5), merge_mode="sum")
    summed.build((None, None, 3))
    with pytest.raises(NotImplementedError, match=re.escape("[from_keras] merge_mode: expected 'concat', got 'sum'")):
        from_keras(summed)
    with pytest.raises(TypeError, match=re.escape("SimpleRNN or Bidirectional, got Dense")):
        from_keras(keras.layers.Dense(3))
