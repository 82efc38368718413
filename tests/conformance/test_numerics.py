"""Numbers at the edges: limits, corners, tiny and huge numbers, NaN, infinities, saturated gates, repeatability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import ACTIVATIONS, CASES, GATES, NAMES, Case, by_id, gradient_inputs, inputs
from comparison import assert_close
from resident import assert_same_bits, everything
from scale import sample
from targets import devices
from tolerances import ACTIVATION
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

Array = NDArray[Any]

FLOAT32 = np.finfo(np.float32)
INF = np.float32(np.inf)
EXACT: dict[str, Callable[[Array], Array]] = {
    "none": lambda p: p,
    "relu": lambda p: np.maximum(p, 0),
    "tanh": np.tanh,
    "sigmoid": lambda p: np.where(p < 0, np.exp(-np.abs(p)), 1) / (1 + np.exp(-np.abs(p))),
    "hard_sigmoid": lambda p: np.clip(0.2 * p + 0.5, 0, 1),
}
SLOPE: dict[str, Callable[[Array], Array]] = {
    "none": np.ones_like,
    "relu": lambda p: np.where(p > 0, 1.0, 0.0),
    "tanh": lambda p: 1 / np.cosh(np.clip(p, -300, 300)) ** 2,
    "sigmoid": lambda p: 0.25 / np.cosh(np.clip(p, -300, 300) / 2) ** 2,
    "hard_sigmoid": lambda p: np.where(np.abs(p) < 2.5, 0.2, 0.0),
}
LIMITS = {
    "none": (-np.inf, np.inf),
    "relu": (0, np.inf),
    "tanh": (-1, 1),
    "sigmoid": (0, 1),
    "hard_sigmoid": (0, 1),
}

every_activation = pytest.mark.parametrize("activation", NAMES)
every_cell = pytest.mark.parametrize("cell", GATES)


@pytest.fixture(autouse=True, scope="module", params=devices(), ids=lambda target: target.id)
def _on_every_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the calls on each device of this machine in turn."""
    with request.param.opened() as device:
        yield
    device.close()


def activate(activation: str, values: Any) -> Array:
    """Return the device's activation of some numbers, computed as one step of one unit each."""
    source = np.asarray(values, np.float32).reshape(1, -1, 1)
    descriptor = SingleGateRNNDescriptor(activation=activation)
    output: Array = vkrnn.single_gate_rnn(source, np.zeros((1, 1), np.float32), descriptor=descriptor).output
    return output.reshape(-1)


def slope(activation: str, values: Any) -> Array:
    """Return the device's derivative of the activation at some numbers."""
    state = np.asarray(values, np.float32).reshape(1, -1, 1)
    weight = np.zeros((1, 1), np.float32)
    descriptor = SingleGateRNNDescriptor(activation=activation)
    gradients = vkrnn.single_gate_rnn_gradients(state, weight, np.ones_like(state), state, descriptor=descriptor)
    found: Array = gradients.source
    return found.reshape(-1)


def grid() -> Array:
    """Return arguments of both signs, dense where the functions bend, and of every order of magnitude."""
    dense = np.linspace(0, 30, 60_001)
    orders = np.geomspace(1e-36, 1e36, 20_001)
    positive = np.concatenate([dense, orders]).astype(np.float32)
    return np.concatenate([-positive[::-1], positive])


@every_activation
def test_activation_over_the_grid(activation: str) -> None:
    p = grid()
    got = activate(activation, p).astype(np.float64)
    wanted = EXACT[activation](p.astype(np.float64))
    # Subnormals may be flushed to zero, and the exponential underflows at twice the smallest normal number.
    limit = ACTIVATION * np.abs(wanted) + 2 * FLOAT32.tiny
    if activation == "hard_sigmoid":
        limit = ACTIVATION * np.maximum(np.abs(0.2 * p.astype(np.float64)), 1) * (wanted > 0) * (wanted < 1)
        limit += ACTIVATION * (np.abs(np.abs(p) - 2.5) < 1e-5)
    wrong = ~(np.abs(got - wanted) <= limit)
    assert not wrong.any(), list(zip(p[wrong][:5], got[wrong][:5], wanted[wrong][:5], strict=True))


@every_activation
def test_derivative_over_the_grid(activation: str) -> None:
    p = grid()
    p = p[np.abs(np.abs(p) - 2.5) > 1e-5]
    got = slope(activation, p).astype(np.float64)
    wanted = SLOPE[activation](p.astype(np.float64))
    # The derivative is computed from the rounded y, so near y = 1 half a unit of y is the whole error.
    wrong = ~(np.abs(got - wanted) <= ACTIVATION)
    assert not wrong.any(), list(zip(p[wrong][:5], got[wrong][:5], wanted[wrong][:5], strict=True))


@every_activation
@pytest.mark.parametrize("size", [1e2, 1e4, 1e10, FLOAT32.max, np.inf], ids=str)
def test_limits_are_exact(activation: str, size: float) -> None:
    low, high = LIMITS[activation]
    wanted = np.float32([max(low, -size), min(high, size)])
    np.testing.assert_array_equal(activate(activation, [-size, size]), wanted)
    flat = activation in ("tanh", "sigmoid", "hard_sigmoid")
    slopes = [0, 0] if flat else [0 if activation == "relu" else 1, 1]
    np.testing.assert_array_equal(slope(activation, [-size, size]), np.float32(slopes))


@every_activation
def test_nan_stays_nan(activation: str) -> None:
    values = np.float32([np.nan, -np.nan, 1.0, np.nan, -1.0])
    np.testing.assert_array_equal(np.isnan(activate(activation, values)), np.isnan(values))


def test_signed_zero_and_the_smallest_numbers() -> None:
    """An odd function keeps the sign of zero, and returns numbers next to zero unchanged."""
    small = np.float32([FLOAT32.tiny, 1e-30, 1e-20, 1e-10])
    for activation in ("none", "tanh"):
        np.testing.assert_array_equal(activate(activation, small), small)
        np.testing.assert_array_equal(activate(activation, -small), -small)
    np.testing.assert_array_equal(activate("relu", [0.0, -0.0, *small, *-small]), [0, 0, *small, 0, 0, 0, 0])


def test_corners() -> None:
    """The functions are exact at their corners, and the derivative there is that of the flat side."""
    below, above = np.nextafter(np.float32(2.5), np.float32([0, 9]))
    np.testing.assert_array_equal(activate("hard_sigmoid", [-2.5, 2.5, -above, above, 0]), [0, 1, 0, 1, 0.5])
    np.testing.assert_array_equal(slope("hard_sigmoid", [-2.5, 2.5, -above, above]), [0, 0, 0, 0])
    np.testing.assert_array_equal(slope("hard_sigmoid", [-2.4999, 2.4999, 0]), np.float32([0.2, 0.2, 0.2]))
    assert 0 <= activate("hard_sigmoid", [-below])[0] <= ACTIVATION
    tiny = FLOAT32.tiny
    np.testing.assert_array_equal(slope("relu", [0.0, -0.0, tiny, -tiny]), [0, 0, 1, 0])


def test_lstm_with_saturated_gates_keeps_its_cell() -> None:
    """With input gate 0 and forget and output gates 1, c stays the same bit for bit and h is tanh(c)."""
    T, N, H = 6, 3, 5
    cell = np.random.default_rng(1).normal(size=(N, H)).astype(np.float32)
    source = np.zeros((T, N, 4 * H), np.float32)
    for size in (100.0, 1e4, np.inf):
        source[:] = np.repeat(np.float32([-size, size, 0.3, size]), H)  # i, f, z, o
        got = vkrnn.lstm(
            source,
            np.zeros((4 * H, H), np.float32),
            init_cell=cell,
            descriptor=LSTMDescriptor(produce_cell=True),
        )
        np.testing.assert_array_equal(got.cell_output, np.broadcast_to(cell, (T, N, H)))
        assert_close({"h": got.output[-1]}, {"h": np.tanh(cell.astype(np.float64))}, ACTIVATION)


@pytest.mark.parametrize("flip_z", [False, True])
@pytest.mark.parametrize("reset_after", [False, True])
def test_gru_with_a_saturated_gate_keeps_its_state(*, flip_z: bool, reset_after: bool) -> None:
    """With an update gate of exactly 1 (0 with flip_z), the state stays the same bit for bit."""
    T, N, H = 6, 3, 5
    rng = np.random.default_rng(2)
    state = rng.normal(size=(N, H)).astype(np.float32)
    weight = rng.normal(size=(3 * H, H)).astype(np.float32)
    for size in (1e3, 1e4):
        source = rng.normal(size=(T, N, 3 * H)).astype(np.float32)
        source[..., :H] = -size if flip_z else size
        descriptor = GRUDescriptor(flip_z=flip_z, reset_after=reset_after)
        got = vkrnn.gru(source, weight, init_state=state, descriptor=descriptor).output
        np.testing.assert_array_equal(got, np.broadcast_to(state, (T, N, H)))


def infinite_case(cell: str, *, bidirectional: bool = False) -> Case:
    """Return a case with every argument except a mask, where H is not a multiple of four."""
    given = {
        "single_gate_rnn": {"input_weight", "bias", "init_state"},
        "lstm": {"input_weight", "bias", "init_state", "init_cell", "peephole"},
        "gru": {"input_weight", "bias", "init_state", "secondary_bias"},
        "slstm": {"input_weight", "bias", "init_state", "init_cell", "init_normalizer", "init_stabilizer"},
    }[cell]
    options: dict[str, Any] = {"bidirectional": True} if bidirectional else {}
    if cell == "gru":
        options["reset_after"] = True
    return Case(cell, 4, 5, 6, 7, options, present=frozenset(given))


def assert_alike(got: dict[str, Array], wanted: dict[str, Array]) -> None:
    """Check that NaN and infinities are where the reference has them, and that other numbers agree."""
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.isnan(got[name]), np.isnan(array), err_msg=name)
        infinite = np.isinf(array)
        np.testing.assert_array_equal(np.isinf(got[name]), infinite, err_msg=name)
        np.testing.assert_array_equal(got[name][infinite], array[infinite], err_msg=name)
        finite = np.isfinite(array)
        if finite.any():
            assert_close({name: got[name][finite]}, {name: array[finite]})


@every_cell
@every_activation
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_infinities_and_nan_agree_with_numpy(cell: str, activation: str, value: float, *, bidirectional: bool) -> None:
    """One such number in the source and one in the initial state. Other rows of the batch stay finite."""
    case = infinite_case(cell, bidirectional=bidirectional)
    if cell == "single_gate_rnn":
        case.options["activation"] = activation  # type: ignore[index]
    else:
        for name in ACTIVATIONS[cell]:
            case.options[name] = activation  # type: ignore[index]
    arrays = inputs(case)
    arrays["source"][2, 1, 5] = value
    arrays["init_state"][3, 6] = value
    if "init_cell" in arrays:
        arrays["init_cell"][4, 0] = value
    descriptor = case.descriptor(training=True)
    got = getattr(vkrnn, cell)(**arrays, descriptor=descriptor)
    wanted = getattr(vkrnn.reference, cell)(**arrays, descriptor=descriptor)
    assert_alike(got._asdict(), wanted._asdict())
    clean = [0, 2] if "init_cell" in arrays else [0, 2, 4]
    assert all(np.isfinite(array[:, clean]).all() for array in got)


@every_cell
@pytest.mark.parametrize("name", ["source_gradient", "state_gradient"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_infinities_and_nan_in_upstream_gradients(cell: str, name: str, value: float) -> None:
    """Gradients are as in NumPy: NaN where a sum has both signs, else infinity."""
    base = infinite_case(cell)
    case = Case(cell, base.T, base.N, base.I, base.H, base.options, base.present | {"state_gradient"})
    if cell == "single_gate_rnn":
        case.options["activation"] = "sigmoid"  # type: ignore[index] - relu's slope of 0 turns infinity into NaN at once
    arrays = inputs(case)
    forward = getattr(vkrnn, cell)(**arrays, descriptor=case.descriptor(training=True))
    above = gradient_inputs(case, forward)
    above[name][..., 1, 6] = value
    got, wanted = (
        getattr(module, f"{cell}_gradients")(**arrays, **above, descriptor=case.descriptor())
        for module in (vkrnn, vkrnn.reference)
    )
    assert_alike(got._asdict(), wanted._asdict())


@every_cell
def test_nan_in_one_sequence_stays_in_it(cell: str) -> None:
    """Other rows of the batch have the same bits with and without it, also rows of the same invocation."""
    case = Case(cell, 5, 11, 6, 9, present=frozenset({"input_weight", "init_state"}))
    arrays = inputs(case)
    wanted = getattr(vkrnn, cell)(**arrays).output
    for spoilt in (0, 7, 10):
        source = arrays["source"].copy()
        source[1, spoilt] = np.nan
        got = getattr(vkrnn, cell)(**{**arrays, "source": source}).output
        others = [row for row in range(case.N) if row != spoilt]
        np.testing.assert_array_equal(got[:, others], wanted[:, others])
        np.testing.assert_array_equal(got[0], wanted[0])
        assert np.isnan(got[1:, spoilt]).all()


LARGE = [case for case in CASES if "large" in case.tags]


@pytest.mark.parametrize("case", sample(LARGE, 4), ids=by_id)
def test_results_are_repeatable(case: Case) -> None:
    """A call gives the same bits on the same device after other calls, and on a newly opened device."""
    wanted = everything(case)
    for other in CASES[::140]:
        everything(other)
        assert_same_bits(everything(case), wanted)
    fresh = vkrnn.Device(vkrnn.default_device().index)
    try:
        assert_same_bits(everything(case, fresh), wanted)
    finally:
        fresh.close()
