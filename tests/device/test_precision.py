"""The precision of float32 products: how it is chosen, what it changes, and the error bounds that follow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from resident import dtype_of
from targets import is_there
from tolerances import ACTIVATION, ROUNDED_ACTIVATION, TF32_UNIT
from vkrnn import reference
from vkrnn.checks import _self_check

ROUNDING = [one.index for one in vkrnn.devices() if one.rounds_products]
SOURCE, WEIGHT = np.ones((5, 3, 16), np.float32), np.full((16, 4), 0.1, np.float32)

needs_matrix_units = pytest.mark.skipif(not ROUNDING, reason="no device has matrix units")
on_each = pytest.mark.parametrize("index", ROUNDING or [pytest.param(0, marks=needs_matrix_units)])


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VKRNN_FLOAT32", raising=False)


def refusal(make: Callable[[], Any]) -> str:
    """Return the class and the message of the error that is raised."""
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_where_the_precision_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block comes first, then the device's own setting, then the environment; the default is ieee."""
    plain = vkrnn.Device("cpu (")
    assert plain.float32 == "ieee"
    assert "float32" not in repr(plain)
    own = vkrnn.Device("cpu (", float32="tf32")
    assert own.float32 == "tf32"
    assert ", float32='tf32'>" in repr(own)
    monkeypatch.setenv("VKRNN_FLOAT32", "tf32")
    assert plain.float32 == "ieee"
    by_environment = vkrnn.Device("cpu (")
    assert by_environment.float32 == "tf32"
    assert ", float32='tf32'>" in repr(by_environment)
    assert vkrnn.Device("cpu (", float32="ieee").float32 == "ieee"
    with vkrnn.fp32_precision("ieee"):
        assert own.float32 == by_environment.float32 == "ieee"
        with vkrnn.fp32_precision("tf32"):
            assert plain.float32 == "tf32"
            seen: list[str] = []
            thread = threading.Thread(target=lambda: seen.append(plain.float32))
            thread.start()
            thread.join()
            assert seen == ["ieee"], "a block applies to its own thread"
        assert own.float32 == "ieee"
    assert (plain.float32, own.float32) == ("ieee", "tf32")


def test_unknown_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where it is given, and the message names it."""
    wrong: Any = "bf16"
    no_text: Any = 32
    ending = "expected 'ieee' or 'tf32', got 'bf16'"
    assert refusal(lambda: vkrnn.Device("cpu (", float32=wrong)) == f"ValueError: [Device] float32: {ending}"
    assert refusal(lambda: vkrnn.Device("cpu (", float32=no_text)) == (
        "TypeError: [Device] float32: expected a str, got int"
    )
    assert refusal(vkrnn.fp32_precision(wrong).__enter__) == f"ValueError: [fp32_precision] precision: {ending}"
    monkeypatch.setenv("VKRNN_FLOAT32", "bf16")
    assert refusal(lambda: vkrnn.Device("cpu (")) == f"ValueError: VKRNN_FLOAT32: {ending}"


def test_precision_without_matrix_units(caplog: pytest.LogCaptureFixture) -> None:
    """Plans and bits are the same, and the log says so."""
    with caplog.at_level(logging.INFO, "vkrnn"):
        device = vkrnn.Device("cpu (", float32="tf32")
        plan = vkrnn.plan(vkrnn.lstm, SOURCE, WEIGHT, device=device)
    assert f"float32='tf32' makes no difference on {device.name}: it has no matrix units" in caplog.messages
    assert plan.float32 == "ieee"
    assert plan == vkrnn.plan(vkrnn.lstm, SOURCE, WEIGHT, device="cpu (")
    got, wanted = (vkrnn.lstm(SOURCE, WEIGHT, device=one).output for one in (device, "cpu ("))
    assert np.array_equal(got, wanted)
    report = vkrnn.check(vkrnn.lstm, SOURCE, WEIGHT, device=device)
    assert (report.ok, report.tolerance, report.float32) == (True, 5e-6, "ieee")


def on_matrix_units(index: int, float32: Any, schedule: str = "steps", **sizes: Any) -> vkrnn.Device:
    """Open a device that computes products on matrix units."""
    return vkrnn.Device(index, float32=float32, schedule=schedule, gemm="matrices", **sizes)


def product_sizes(index: int) -> tuple[int, int, int, int]:
    """Return T, N, I and H for which GPUs compute x W^T on matrix units: from 2e8 operations on."""
    return (3, 20, 37, 24) if vkrnn.Device(index).type == "cpu" else (8, 200, 307, 220)


@on_each
def test_plans_show_the_precision(index: int) -> None:
    """It is a property and in the text. ieee is the default, and other dtypes are not rounded."""
    T, N, inputs, H = product_sizes(index)
    call: dict[str, Any] = {
        "source": np.ones((T, N, inputs), np.float32),
        "recurrent_weight": np.full((4 * H, H), 0.01, np.float32),
        "input_weight": np.full((4 * H, inputs), 0.01, np.float32),
    }
    default, ieee, tf32 = (on_matrix_units(index, float32) for float32 in (None, "ieee", "tf32"))
    plans = [vkrnn.plan(vkrnn.lstm, **call, device=device) for device in (default, ieee, tf32)]
    assert plans[0] == plans[1]
    assert [plan.float32 for plan in plans] == ["ieee", "ieee", "tf32"]
    assert [str(plan).splitlines()[1].endswith(", float32 tf32") for plan in plans] == [False, False, True]
    assert "float32" not in str(plans[0]).splitlines()[1]
    with vkrnn.fp32_precision("ieee"):
        assert vkrnn.plan(vkrnn.lstm, **call, device=tf32) == plans[0]
    half = {name: array.astype(np.float16) for name, array in call.items()}
    assert vkrnn.plan(vkrnn.lstm, **half, device=tf32) == vkrnn.plan(vkrnn.lstm, **half, device=ieee)
    report = vkrnn.check(vkrnn.lstm, **call, device=tf32)
    assert (report.ok, report.tolerance, report.float32) == (True, 5e-3, "tf32")
    assert "agrees with the reference (float32 tf32, tolerance 0.005)" in repr(report)


@on_each
def test_a_compiler_is_checked_with_ieee(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment and the block around the first call say."""
    monkeypatch.setenv("VKRNN_FLOAT32", "tf32")
    with vkrnn.fp32_precision("tf32"):
        assert _self_check._error(index, "matrices") < 1e-5


Doubles = NDArray[np.float64]


def roundings(left: Doubles, right: Doubles) -> Doubles:
    """Return the bound of each element's error in ``left @ right`` if both operands are rounded.

    Each product has a relative error of at most (1 + u)^2 - 1. Every float32 sum adds 2^-23, by truncation instead of
    rounding. Operands below 2^-29 of the absmax lose digits, because a scaled half is no smaller than 2^-24.
    """
    magnitudes = np.abs(left) @ np.abs(right)
    depth = left.shape[-1]
    lost = 2.0**-39 * depth * np.abs(left).max() * np.abs(right).max()
    found: Doubles = (2 * TF32_UNIT + TF32_UNIT**2 + (depth + 8) * 2.0**-23) * magnitudes + 2 * lost
    return found


def within(got: Any, ideal: Doubles, bound: Doubles) -> float:
    """Return the largest ratio of error to bound."""
    return float((np.abs(np.asarray(got) - ideal) / bound).max())


def skip_without(index: int, gemm: str) -> None:
    """Skip the test if the device does not have that product strategy, or not its library."""
    if gemm not in vkrnn.Device(index).strategies["gemm"] or not is_there(vkrnn.Device(index, gemm=gemm)):
        pytest.skip(f"the device has no products of {gemm}")


@pytest.mark.parametrize("gemm", ["matrices", "cublas"])
@on_each
def test_errors_of_products_are_within_bounds(index: int, gemm: str) -> None:
    """For x W^T and the gradients of x and W. The error of ieee is below a hundredth of the bound."""
    skip_without(index, gemm)
    T, N, inputs, H = product_sizes(index)
    draw = np.random.default_rng(3).standard_normal
    source, upstream = draw((T, N, inputs)).astype(np.float32), draw((T, N, H)).astype(np.float32)
    weight = (draw((H, inputs)) * np.exp(2 * draw((H, inputs)))).astype(np.float32)
    call: dict[str, Any] = {
        "source": source,
        "recurrent_weight": np.zeros((H, H), np.float32),
        "input_weight": weight,
        "descriptor": vkrnn.SingleGateRNNDescriptor(activation="none", training=True),
    }
    x, w, d = (array.astype(np.float64) for array in (source, weight, upstream))
    rows, deltas = x.reshape(-1, inputs), d.reshape(-1, H)
    errors = {}
    float32: Any
    for float32 in ("ieee", "tf32"):
        device = vkrnn.Device(index, float32=float32, schedule="steps", gemm=gemm)
        forward = vkrnn.single_gate_rnn(**call, device=device)
        back = vkrnn.single_gate_rnn_gradients(**call, source_gradient=upstream, z_state=forward.z_state, device=device)
        errors[float32] = (
            within(forward.output, x @ w.T, roundings(x, w.T)),
            within(back.source, d @ w, roundings(d, w)),
            within(back.input_weight, deltas.T @ rows, roundings(deltas.T, rows)),
        )
        device.close()
    assert max(errors["tf32"]) <= 1
    assert min(errors["tf32"]) > 0.02, "nothing was rounded"
    assert max(errors["ieee"]) < 1e-2


def rounding(result: Doubles, dtype: str) -> Doubles:
    """Return the bound of the error that a result has because it is stored in the dtype."""
    if dtype == "float32":
        return np.zeros_like(result)
    unit, least = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}[dtype]
    found: Doubles = unit * np.abs(result) + least
    return found


def training_step(
    index: int, dtype: str, activation: Any, **strategies: Any
) -> tuple[dict[str, Doubles], dict[str, Doubles]]:
    """Return the arguments and the results of a forward and a gradient call in the dtype, whose recurrence is 0."""
    T, N, inputs, H = product_sizes(index)
    draw = np.random.default_rng(5).standard_normal
    kind = dtype_of(dtype)
    source, upstream, weight = (
        draw(shape).astype(np.float32).astype(kind) for shape in ((T, N, inputs), (T, N, H), (H, inputs))
    )
    call: dict[str, Any] = {
        "source": source,
        "recurrent_weight": np.zeros((H, H), kind),
        "input_weight": weight,
        "bias": np.zeros(H, kind),
        "descriptor": vkrnn.SingleGateRNNDescriptor(activation=activation, training=True),
    }
    device = vkrnn.Device(index, **strategies)
    forward = vkrnn.single_gate_rnn(**call, device=device)
    back = vkrnn.single_gate_rnn_gradients(**call, source_gradient=upstream, z_state=forward.z_state, device=device)
    device.close()
    given = {"source": source, "input_weight": weight, "source_gradient": upstream}
    found = {"output": forward.output, "z_state": forward.z_state} | back._asdict()
    as_doubles = [{name: array.astype(np.float64) for name, array in arrays.items()} for arrays in (given, found)]
    return as_doubles[0], as_doubles[1]


@pytest.mark.parametrize("gemm", ["matrices", "cublas"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_each
def test_errors_of_products_in_16_bits_are_within_bounds(index: int, dtype: str, gemm: str) -> None:
    """Operands fit in a half, so that only the sums, and then the results, are rounded."""
    skip_without(index, gemm)
    given, got = training_step(index, dtype, "none", schedule="steps", gemm=gemm)
    x, w, d = given["source"], given["input_weight"], given["source_gradient"]
    pairs = {
        "output": (x, w.T),
        "source": (d, w),
        "input_weight": (d.reshape(-1, d.shape[-1]).T, x.reshape(-1, x.shape[-1])),
    }
    for name, (left, right) in pairs.items():
        bound = (left.shape[-1] + 8) * 2.0**-23 * (np.abs(left) @ np.abs(right))
        assert within(got[name], left @ right, bound + rounding(np.abs(left @ right) + bound, dtype)) <= 1, name


@pytest.mark.parametrize("schedule", ["steps", "tiles", "slices", "split", "matrices", "persistent"])
@pytest.mark.parametrize(("dtype", "gemm"), [("float16", "cublas"), ("bfloat16", "cublas"), ("bfloat16", "matrices")])
@on_each
def test_errors_of_rounded_deltas_are_within_bounds(index: int, dtype: str, gemm: str, schedule: str) -> None:
    """Some products read deltas that were rounded to the type once, and so do the sums over their rows."""
    skip_without(index, gemm)
    given, got = training_step(index, dtype, "tanh", schedule=schedule, gemm=gemm)
    x, w, d = given["source"], given["input_weight"], given["source_gradient"]
    deltas = d * (1 - np.tanh(got["z_state"]) ** 2)
    # The slope has twice the error of tanh.
    errors = rounding(deltas, dtype) + 2 * ROUNDED_ACTIVATION * np.abs(d)
    rows, deltas_of_rows, errors_of_rows = (array.reshape(-1, array.shape[-1]) for array in (x, deltas, errors))
    sums = {
        "source": (deltas, errors, w),
        "input_weight": (deltas_of_rows.T, errors_of_rows.T, rows),
        "bias": (deltas_of_rows.T, errors_of_rows.T, np.ones(len(rows))),
    }
    for name, (left, error, right) in sums.items():
        bound = (error + (left.shape[-1] + 8) * 2.0**-23 * np.abs(left)) @ np.abs(right)
        assert within(got[name], left @ right, bound + rounding(np.abs(left @ right) + bound, dtype)) <= 1, name


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [("matrices", {}), ("persistent", {"tagged": 0}), ("persistent", {"tagged": 1})],
    ids=["matrices", "persistent", "tagged"],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@on_each
def test_errors_of_time_loops_are_within_bounds(index: int, schedule: str, sizes: dict[str, int], dtype: str) -> None:
    """A step's bound includes the errors of the steps before it. The bits are the same every time.

    States are carried in float32 whatever the dtype, so only the results are rounded to it.
    """
    T, N, H = 4, 11, 13
    draw = np.random.default_rng(4).standard_normal
    kind = dtype_of(dtype)
    source, upstream, initial = (
        draw(shape).astype(np.float32).astype(kind) for shape in ((T, N, H), (T, N, H), (N, H))
    )
    weight = (draw((H, H)) / H).astype(np.float32).astype(kind)
    call: dict[str, Any] = {
        "source": source,
        "recurrent_weight": weight,
        "init_state": initial,
        "descriptor": vkrnn.SingleGateRNNDescriptor(activation="tanh", training=True),
    }
    ideal = reference.single_gate_rnn(**call)
    saved = {"z_state": np.asarray(ideal.z_state).astype(np.float32).astype(kind), "source_gradient": upstream}
    ideal_back = reference.single_gate_rnn_gradients(**call, **saved)
    outputs, deltas = np.asarray(ideal.output, np.float64), np.asarray(ideal_back.source, np.float64)
    w = weight.astype(np.float64)
    # The growth of an error in a product, and the error of a step: of sums in float32, and of tanh, which is at most 1.
    factor, rest = 1 + 3 * TF32_UNIT, 1e-6 + ROUNDED_ACTIVATION
    bound, bounds = np.zeros((N, H)), []
    for before in [initial.astype(np.float64), *outputs[:-1]]:
        bound = roundings(before, w.T) + factor * bound @ np.abs(w.T) + rest  # tanh' is at most 1
        bounds.append(bound)
    back, bounds_back = np.full((N, H), rest), [np.full((N, H), rest)]
    for after in deltas[:0:-1]:
        back = roundings(after, w) + factor * back @ np.abs(w) + rest
        bounds_back.insert(0, back)

    device = (
        on_matrix_units(index, "tf32", schedule, max_spins=1 << 20, **sizes)
        if "tagged" in sizes
        else (on_matrix_units(index, "tf32", schedule))
    )
    assert vkrnn.plan(vkrnn.single_gate_rnn, **call, device=device).float32 == (
        "tf32" if dtype == "float32" else "ieee"
    )
    got, again = (vkrnn.single_gate_rnn(**call, device=device).output for _ in range(2))
    assert np.array_equal(got, again)
    assert 0.02 < within(got, outputs, np.array(bounds) + rounding(outputs, dtype)) <= 1
    gradients = vkrnn.single_gate_rnn_gradients(**call, **saved, device=device)
    assert 0.02 < within(gradients.source, deltas, np.array(bounds_back) + rounding(deltas, dtype)) <= 1
    device.close()


def sigmoid(x: Doubles) -> Doubles:
    """Return the sigmoid of x in float64."""
    found: Doubles = 1 / (1 + np.exp(-x))
    return found


@pytest.mark.parametrize(("name", "exact"), [("tanh", np.tanh), ("sigmoid", sigmoid)])
@pytest.mark.parametrize(("float32", "bound"), [("ieee", ACTIVATION), ("tf32", ROUNDED_ACTIVATION)])
@on_each
def test_errors_of_activations_are_within_bounds(
    index: int, float32: Any, bound: float, name: Any, exact: Callable[[Doubles], Doubles]
) -> None:
    """For arguments of all sizes, and exactly at the limits. NaN stays NaN."""
    sizes = np.geomspace(1e-30, 80, 4000)
    arguments = np.concatenate([sizes, -sizes]).astype(np.float32)
    extremes = np.array([0, 200, -200, np.inf, -np.inf, np.nan], np.float32)
    source = np.concatenate([arguments, extremes])
    device = vkrnn.Device(index, float32=float32)
    got = vkrnn.single_gate_rnn(
        source.reshape(1, -1, 1),
        np.zeros((1, 1), np.float32),
        descriptor=vkrnn.SingleGateRNNDescriptor(activation=name),
        device=device,
    ).output.ravel()
    device.close()
    ideal = exact(arguments.astype(np.float64))
    assert within(got[: len(arguments)], ideal, bound * np.abs(ideal)) <= 1
    low = -1 if name == "tanh" else 0
    np.testing.assert_array_equal(got[len(arguments) :], [(1 + low) / 2, 1, low, 1, low, np.nan])
