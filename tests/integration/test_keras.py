"""The layers of vkrnn.keras compute what Keras's do, with Keras's own dropout masks, on PyTorch and on JAX.

The tests run with the back end that KERAS_BACKEND names, PyTorch unless told otherwise. The last ones start them, and
the tests that come with Keras, in processes of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from comparison import scaled_error
from oracles import require
from scale import HANGS_AFTER
from tolerances import ONNX

BACKEND = os.environ["KERAS_BACKEND"]
SUPPORT = Path(__file__).resolve().parents[1] / "support"
TOLERANCE = ONNX

# Keras and torch use NumPy 1's array protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

N, T, I, H = 3, 7, 4, 5
Array = npt.NDArray[Any]
KINDS = ("LSTM", "GRU", "SimpleRNN")
BOTH = {"dropout": 0.3, "recurrent_dropout": 0.4}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((kind, options) for kind in KINDS for options in ({}, BOTH, {"go_backwards": True, **BOTH})),
    *((kind, {"recurrent_dropout": 0.4, "use_bias": False, "activation": "relu"}) for kind in KINDS),
    ("SimpleRNN", {"dropout": 0.4, "unroll": True}),
    ("LSTM", {"recurrent_activation": "hard_sigmoid", "activation": "sigmoid", "recurrent_dropout": 0.2}),
    ("GRU", {"reset_after": False}),
    ("GRU", {"reset_after": False, "recurrent_activation": "hard_sigmoid", **BOTH}),
]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="session")
def keras() -> Any:
    """Return Keras, or skip the test if it is not installed."""
    require(BACKEND)
    found = require("keras")
    require("vkrnn.keras")
    assert found.backend.backend() == BACKEND
    return found


@pytest.fixture(scope="session")
def ours() -> Any:
    """Return vkrnn.keras."""
    return require("vkrnn.keras")


def built(keras: Any, module: Any, kind: str, **options: Any) -> Any:
    """Return a layer whose weights and seed are always the same."""
    drawn = {
        f"{name}_initializer": keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)
        for seed, name in enumerate(("kernel", "recurrent", "bias"))
    }
    layer = getattr(module, kind)(H, seed=7, **{**drawn, **options})
    layer.build((N, T, I))
    return layer


def numbers(keras: Any, tensors: Any) -> list[Array]:
    """Return tensors as arrays of float32."""
    flat = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return [np.array(keras.ops.convert_to_numpy(keras.ops.cast(each, "float32"))) for each in flat]


def results_and_gradients(keras: Any, layer: Any, source: Array, **given: Any) -> list[Array]:
    """Return a training call's results, and its gradients of the source and of the weights."""

    def loss(found: Any) -> Any:
        return sum(keras.ops.sum(keras.ops.sin(each * (1 + place))) for place, each in enumerate(found))

    if BACKEND == "torch":
        tensor = keras.ops.convert_to_tensor(source).requires_grad_()
        found = layer(tensor, training=True, **given)
        weights = [weight.value for weight in layer.trainable_variables]
        gradients = require("torch").autograd.grad(loss(found), [tensor, *weights])
        return numbers(keras, [each.detach() for each in (*found, *gradients)])
    jax = require("jax")

    def call(weights: Any, source: Any) -> Any:
        others = [variable.value for variable in layer.non_trainable_variables]
        found, _ = layer.stateless_call(weights, others, source, training=True, **given)
        return loss(found), found

    weights = [weight.value for weight in layer.trainable_variables]
    gradients, found = jax.jit(jax.grad(call, argnums=(1, 0), has_aux=True))(weights, source)
    return numbers(keras, [*found, gradients[0], *gradients[1]])


def drawn(*shape: int, seed: int = 0) -> Array:
    """Return numbers of a normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_alike(found: list[Array], expected: list[Array]) -> None:
    """Compare arrays with those of Keras."""
    assert [each.shape for each in found] == [each.shape for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert scaled_error(one, other) <= TOLERANCE


@pytest.mark.parametrize("masked", ["no mask", "mask", "zeros for masked"])
@pytest.mark.parametrize(
    ("kind", "options"), CASES, ids=lambda value: value if isinstance(value, str) else ",".join(value)
)
def test_results_and_gradients_are_those_of_keras(
    keras: Any, ours: Any, kind: str, options: dict[str, Any], masked: str
) -> None:
    """Outputs, states and all gradients agree, with the masks that Keras draws, from initial states."""
    given: dict[str, Any] = {"initial_state": [drawn(N, H, seed=each) for each in (1, 2)[: 1 + (kind == "LSTM")]]}
    if masked != "no mask":
        mask = np.random.default_rng(4).random((N, T)) < 0.6
        mask[1] = False
        given["mask"] = keras.ops.convert_to_tensor(mask)
        if BACKEND == "torch" and options.get("unroll"):
            pytest.skip("Keras cannot flip the mask")
    asked = {"return_sequences": masked != "mask", "return_state": True, "zero_output_for_mask": "zeros" in masked}
    found, expected = (
        results_and_gradients(keras, built(keras, module, kind, **asked, **options), drawn(N, T, I), **given)
        for module in (ours, keras.layers)
    )
    assert_alike(found, expected)


def squares_of(keras: Any, function: Any) -> Any:
    """Return the sum of the squares of a function's results, as a function."""
    return lambda source: keras.ops.sum(keras.ops.square(function(source)))


@every_kind
def test_second_derivatives_are_those_of_keras(keras: Any, ours: Any, kind: str) -> None:
    """The gradient of a gradient's squares agrees, with Keras's masks."""
    found = []
    for module in (ours, keras.layers):
        layer = built(keras, module, kind, recurrent_dropout=0.4)
        if BACKEND == "torch":
            torch = require("torch")
            source = keras.ops.convert_to_tensor(drawn(N, T, I)).requires_grad_()
            [first] = torch.autograd.grad(layer(source, training=True).sin().sum(), source, create_graph=True)
            found.append(numbers(keras, torch.autograd.grad(first.square().sum(), source)))
            continue
        jax = require("jax")

        def loss(source: Any, layer: Any = layer) -> Any:
            weights, others = layer.trainable_variables, layer.non_trainable_variables
            values = [[variable.value for variable in each] for each in (weights, others)]
            output, _ = layer.stateless_call(*values, source, training=True)
            return keras.ops.sum(keras.ops.sin(output))

        found.append(numbers(keras, jax.grad(squares_of(keras, jax.grad(loss)))(drawn(N, T, I))))
    assert_alike(*found)


@every_kind
def test_stateful_layers_go_on_from_their_last_states(keras: Any, ours: Any, kind: str) -> None:
    """Three calls, and one after a reset, give the results of Keras; states that are assigned leave gradients alone."""
    calls = []
    for module in (ours, keras.layers):
        layer = built(keras, module, kind, stateful=True)
        made = [layer(drawn(N, T, I, seed=seed), training=True) for seed in range(3)]
        layer.reset_state()
        if BACKEND == "torch" and module is ours:  # Keras's LSTM and GRU raise an error of autograd here
            made[-1].sum().backward()
        calls.append(numbers(keras, [keras.ops.stop_gradient(each) for each in (*made, layer(drawn(N, T, I)))]))
    assert_alike(*calls)


@every_kind
def test_a_bidirectional_model_converts_trains_saves_and_loads(
    keras: Any, ours: Any, kind: str, tmp_path: Path
) -> None:
    """A converted model predicts as before, trains, and predicts the same after it was saved and loaded."""
    keras.utils.set_random_seed(2)
    inner = [getattr(keras.layers, kind)(H, return_sequences=True), getattr(keras.layers, kind)(H)]
    model = keras.Sequential([keras.Input((None, I)), keras.layers.Masking(), *map(keras.layers.Bidirectional, inner)])
    model.compile("sgd", "mse")
    source = drawn(N, T, I)
    source[1, 3:] = 0
    expected = model.predict(source, verbose=0)
    assert ours.convert(model) is model
    recurrent = [layer for layer in model._flatten_layers() if isinstance(layer, getattr(keras.layers, kind))]
    assert {type(layer) for layer in recurrent} == {getattr(ours, kind)}
    assert_alike([model.predict(source, verbose=0)], [expected])
    model.fit(source, drawn(N, 2 * H), verbose=0)
    trained = model.predict(source, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[1].forward_layer) is getattr(ours, kind)
    np.testing.assert_array_equal(loaded.predict(source, verbose=0), trained)
    ours.revert(model)
    assert {type(layer) for layer in recurrent} == {getattr(keras.layers, kind)}
    assert_alike([model.predict(source, verbose=0)], [trained])


@every_kind
@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_mixed_precision(keras: Any, ours: Any, kind: str, dropped: float) -> None:
    """With mixed_bfloat16, results are bfloat16 and closer to float32 than the spacing of 16 numbers there."""
    given = {"return_sequences": True, "recurrent_dropout": dropped}
    mixed = built(keras, ours, kind, dtype="mixed_bfloat16", **given)
    found = mixed(drawn(N, T, I), training=True)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    exact = built(keras, keras.layers, kind, **given)(drawn(N, T, I), training=True)
    assert scaled_error(*numbers(keras, [keras.ops.stop_gradient(each) for each in (found, exact)])) < 16 * 2**-8


def test_what_falls_back(keras: Any, ours: Any) -> None:
    """Layers that Keras computes say why, and give its results."""
    layer = built(keras, ours, "GRU", activation="gelu")
    assert ours.fallback(layer).startswith("activation: expected linear, relu, tanh, sigmoid or hard_sigmoid of ")
    plain = built(keras, keras.layers, "GRU", activation="gelu")
    assert_alike(*(numbers(keras, keras.ops.stop_gradient(each(drawn(N, T, I)))) for each in (layer, plain)))
    assert ours.fallback(ours.LSTM(3)) == ""
    assert ours.fallback(ours.LSTM(3, use_cudnn=True)) == "use_cudnn is True"
    assert ours.fallback(ours.LSTM(3, recurrent_dropout=0.5)) == ""
    with pytest.raises(TypeError) as error:
        ours.fallback(keras.layers.LSTM(3))
    assert str(error.value) == "[vkrnn.keras.fallback] layer: expected one of vkrnn.keras, got LSTM"
    with pytest.raises(TypeError) as error:
        ours.convert(3)
    assert str(error.value) == "[vkrnn.keras.convert] model: expected a keras.Layer, got int"


def in_a_process(backend: str, *arguments: str, folder: Path) -> str:
    """Run pytest with a back end and without this project's settings, and return what it printed."""
    paths = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": paths}
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *arguments]
    ran = subprocess.run(
        program, env=environment, cwd=folder, text=True, capture_output=True, timeout=HANGS_AFTER, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.skipif(BACKEND != "torch", reason="one process starts the others")
@pytest.mark.usefixtures("keras")
def test_jax(tmp_path: Path) -> None:
    """The tests above pass with JAX."""
    require("jax")
    assert " passed" in in_a_process("jax", "--noconftest", __file__, folder=tmp_path)


@pytest.mark.skipif(BACKEND != "torch", reason="one process starts the others")
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.usefixtures("keras")
def test_tests_of_keras(tmp_path: Path, backend: str) -> None:
    """Keras's tests of the three layers pass on vkrnn's, without an exception."""
    require(backend)
    spec = importlib.util.find_spec("keras.src.layers.rnn")
    assert spec is not None
    files = [Path(str(spec.origin)).parent / f"{name}_test.py" for name in ("lstm", "gru", "simple_rnn")]
    if not all(file.is_file() for file in files):
        pytest.skip("this package of Keras comes without its tests")
    options = ("--noconftest", "--import-mode=importlib", "-p", "keras_own_tests")
    assert " passed" in in_a_process(backend, *options, *map(str, files), folder=tmp_path)
