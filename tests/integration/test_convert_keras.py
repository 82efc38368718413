"""Layers converted from Keras give the results of the original ones, or are refused by the option's name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from comparison import scaled_error
from oracles import require
from tolerances import ONNX
from vkrnn.convert import from_keras, to_torch

# Keras and torch use NumPy 1's array protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
with_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


@pytest.fixture(scope="session")
def keras() -> Any:
    """Return Keras 3, or skip the test if it is not installed."""
    require("torch")
    return require("keras")


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
    source = np.random.default_rng(7).uniform(-1, 1, (4, 7, 3)).astype(np.float32)
    wanted = keras.ops.convert_to_numpy(layer(source))  # which builds the layer
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
    found = from_keras(layer)(source.swapaxes(0, 1), lengths=lengths).output
    rows = np.minimum(np.arange(7), lengths[:, np.newaxis] - 1)
    repeated = found[np.arange(3)[:, np.newaxis], rows]
    assert scaled_error(repeated, wanted) < ONNX


@both_ways
def test_masks_in_front(keras: Any, *, bidirectional: bool) -> None:
    """With the lines of docs/conventions.md, a mask in front gives the outputs of Keras."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "conventions.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (program,) = (block for block in blocks if "rolled" in block)
    call = "vkrnn.lstm(rolled, **weights, lengths=lengths)"
    assert call in program
    program = program[program.index("steps =") : program.index("assert")].replace(call, "run(rolled, lengths)")
    layer = keras_layer(keras, "LSTM", {})
    layer = keras.layers.Bidirectional(layer) if bidirectional else layer
    names: dict[str, Any] = {"np": np, "T": 7, "lengths": np.array([7, 2, 5])}
    names["source"] = np.random.default_rng(7).uniform(-1, 1, (7, 3, 3)).astype(np.float32)
    mask = np.arange(7) >= 7 - names["lengths"][:, np.newaxis]
    wanted = keras.ops.convert_to_numpy(layer(names["source"].swapaxes(0, 1), mask=keras.ops.convert_to_tensor(mask)))
    converted = from_keras(layer)
    names["run"] = lambda rolled, lengths: vkrnn.lstm(
        rolled, **converted.arguments, descriptor=converted.descriptor, lengths=lengths
    )
    exec(program, names)  # noqa: S102 - of our own
    assert scaled_error((names["output"].swapaxes(0, 1) * mask[..., np.newaxis]), wanted * mask[..., np.newaxis]) < ONNX
    forward = slice(0, 5)
    assert scaled_error(names["output"].swapaxes(0, 1)[..., forward], wanted[..., forward]) < ONNX


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
    found = module(again)[0]
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
            wanted = keras.ops.convert_to_numpy(layer(source))
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
    wanted = keras.ops.convert_to_numpy(layer(source))
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
