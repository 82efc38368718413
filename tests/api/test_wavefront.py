"""Layers as a wavefront have the results of one layer after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkrnn
from covering import covering_array
from scale import FULL

T, N, I, H, L = 21, 3, 12, 8, 3
BACKENDS = ("native", "vulkan", "cuda")
GATES = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}
rng = np.random.default_rng(5)


def draw(*shape: int) -> Any:
    return (rng.standard_normal(shape) * 0.4).astype(np.float32)


def layers_of(kind: str, dtype: Any, *, count: int = L, units: int = H, descriptor: Any = None) -> Any:
    gates, made = GATES[kind], []
    for width in (I, *[units] * (count - 1)):
        shapes = {"input_weight": (gates * units, width), "recurrent_weight": (gates * units, units)}
        weights = {name: draw(*shape).astype(dtype) for name, shape in shapes.items()}
        weights["recurrent_weight"] /= 2  # or an RNN's relu might let the states grow beyond float16
        made.append((kind, weights | {"bias": draw(gates * units).astype(dtype)}, descriptor))
    return made


@pytest.fixture(scope="module", params=BACKENDS)
def index(request: pytest.FixtureRequest) -> int:
    """Return the position of a device that can run wavefronts."""
    found = [each.index for each in vkrnn.devices() if each.backend == request.param]
    if not found:
        pytest.skip(f"no {request.param} device")
    return found[0]


def wavefronts(plan: vkrnn.Plan) -> list[Any]:
    """Return the numbers of lanes and of pieces of each wavefront."""
    return [(len(step["lanes"]), len(step["lanes"][0]["pieces"])) for step in plan.steps if step["kind"] == "wavefront"]


def call(net: vkrnn.Network, given: dict[str, Any], ends: dict[str, Any], above: Any) -> list[Any]:
    """Return all results of a forward call, of one for training, and of its gradient call."""
    result = net.forward(**given, training=True)
    gradients = net.gradients(result, above, **ends)
    arrays = [net.forward(**given).output, result.output, *result.last_state, gradients.source]
    return [np.asarray(each) for each in (*arrays, *(each for layer in gradients.layers for each in layer))]


def combinations() -> Iterator[Any]:
    """Yield all combinations. GPUs, whose kernels take long to compile, have every pair, except in full runs."""
    factors = {
        "kind": ["lstm", "gru", "gru, reset after", "single_gate_rnn"],
        "options": ["plain", "lengths", "masks and states"],
        "dtype": ["float32", "float16"],
        "pieces": [(8, 3), (5, 5)],
    }
    pairs = [tuple(row.values()) for row in covering_array(factors)]
    for backend in BACKENDS:
        for chosen in itertools.product(*factors.values()) if FULL or backend == "native" else pairs:
            yield pytest.param(backend, *chosen, id="-".join([backend, *map(str, chosen)]))


@pytest.mark.parametrize(("index", "kind", "options", "dtype", "pieces"), list(combinations()), indirect=["index"])
def test_has_the_bits_of_one_layer_after_the_other(
    index: int, kind: str, options: str, dtype: str, pieces: tuple[int, int]
) -> None:
    piece, count = pieces
    kind, after, _ = kind.partition(", reset after")
    layers = layers_of(kind, dtype, descriptor=vkrnn.GRUDescriptor(reset_after=True) if after else None)
    given: dict[str, Any] = {"source": draw(T, N, I).astype(dtype)}
    ends: dict[str, Any] = {}
    if options == "lengths":
        given["lengths"] = np.array([T, 6, 14])
    if options == "masks and states":
        given["between"] = [draw(T, N, H).astype(dtype) for _ in range(L - 1)]
        given["mask"] = [draw(T, N, H).astype(dtype), None, draw(N, H).astype(dtype)]
        given["init_state"] = [draw(N, H).astype(dtype) for _ in range(L)]
        ends["state_gradient"] = [draw(N, H).astype(dtype) for _ in range(L)]
    above, found = draw(T, N, H).astype(dtype), []
    for wavefront in (0, piece):
        net = vkrnn.network(layers, device=vkrnn.Device(index, wavefront=wavefront))
        found.append(call(net, given, ends, above))
        # On the CPU, numbers of a 16-bit type are converted for all steps at once, and gradient products with lengths
        # have no parts.
        native = net.device.backend == "native"
        runs = [(L, count)] if wavefront and not (native and dtype == "float16") else []
        assert wavefronts(vkrnn.plan(net.forward, **given)) == runs
        result = net.forward(**given, training=True)
        found_back = wavefronts(vkrnn.plan(net.gradients, result, above, **ends))
        assert found_back == ([] if native and options == "lengths" else runs)
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


def test_layers_that_cannot_join_run_apart(index: int) -> None:
    """A layer of two directions needs all steps of the layer below, and the layer above needs all of its own."""
    layers = layers_of("lstm", np.float32, count=2)
    both = vkrnn.LSTMDescriptor(bidirectional=True)
    R, W = draw(2, 4 * H, H), draw(8 * H, H)
    layers += [("lstm", {"recurrent_weight": R, "input_weight": W}, both)]
    layers += [("lstm", {"recurrent_weight": draw(4 * H, H), "input_weight": draw(4 * H, 2 * H)})]
    layers += layers_of("gru", np.float32, count=2)[1:]
    source, above, found = draw(T, N, I), draw(T, N, H), []
    for wavefront in (0, 7):
        net = vkrnn.network(layers, device=vkrnn.Device(index, wavefront=wavefront))
        found.append(call(net, {"source": source}, {}, above))
        assert wavefronts(vkrnn.plan(net.forward, source)) == ([(2, 3), (2, 3)] if wavefront else [])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_is_right_if_waits_fail(index: int) -> None:
    """A device need not run workgroups that wait for each other at the same time. Then they give up."""
    device = vkrnn.Device(index)
    if "persistent" not in device.strategies["schedule"]:
        pytest.skip("no loop whose workgroups wait for each other")
    layers, source, above, found = layers_of("lstm", np.float32, units=64), draw(T, N, I), draw(T, N, 64), []
    for options in ({}, {"max_spins": 0}):
        net = vkrnn.network(layers, device=vkrnn.Device(index, wavefront=8, schedule="persistent", **options))
        found.append(call(net, {"source": source}, {}, above))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(one).max())


def test_is_left_out_once_waits_have_failed(index: int) -> None:
    """Layers then run one after the other. Only an estimated wavefront is left out."""
    if "persistent" not in vkrnn.Device(index).strategies["schedule"]:
        pytest.skip("no loop whose workgroups wait for each other")
    layers, source = layers_of("lstm", np.float32, count=4, units=256), draw(256, 1, I)
    options: dict[str, Any] = {"schedule": "persistent", "max_spins": 0}
    nets = [vkrnn.network(layers, device=vkrnn.Device(index, wavefront=n, **options)) for n in (None, 0)]
    if not wavefronts(vkrnn.plan(nets[0].forward, source)):
        pytest.skip("by the estimates, no wavefront is faster")

    def run(net: vkrnn.Network) -> tuple[Any, int]:
        before = net.device.statistics()["dispatches"]
        output = np.asarray(net.forward(source).output)
        return output, int(net.device.statistics()["dispatches"] - before)

    wanted, in_turn = run(nets[1])
    for failures in range(3):
        assert nets[0].device.statistics()["failed_waits"] == failures
        output, dispatches = run(nets[0])
        np.testing.assert_allclose(output, wanted, rtol=0, atol=2e-5)
        assert dispatches != in_turn
    output, dispatches = run(nets[0])
    assert dispatches == in_turn
    np.testing.assert_array_equal(output, wanted)


def test_is_the_same_on_every_run(index: int) -> None:
    net = vkrnn.network(layers_of("lstm", np.float32, count=4), device=vkrnn.Device(index, wavefront=4))
    source, above = draw(T, N, I), draw(T, N, H)
    first = call(net, {"source": source}, {}, above)
    for _ in range(10):
        for one, other in zip(first, call(net, {"source": source}, {}, above), strict=True):
            np.testing.assert_array_equal(one, other)


def test_wrong_options_are_refused(index: int) -> None:
    with pytest.raises(TypeError, match=r"\[Device\] wavefront: expected an int of at least 0, got -1"):
        vkrnn.Device("cpu", wavefront=-1)
    with pytest.raises(TypeError, match=r"\[Device\] wavefront: expected an int of at least 0, got str"):
        vkrnn.Device(index, wavefront="8")  # type: ignore[arg-type]
