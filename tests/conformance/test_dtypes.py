"""The other dtypes: float64 throughout, and float16 and bfloat16 as storage for float32 arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CASES, CELLS, Case, by_id, gradient_inputs, gradient_names, inputs, loss
from comparison import assert_close, dtype_limits
from float32 import narrows_operands, rounded_program
from resident import dtype_of
from tolerances import DEVICE_DIFFERENCE, DEVICE_DIFFERENCE_STEP, DTYPES
from training import differentiated, trained
from vkrnn import SingleGateRNNDescriptor
from vkrnn.results import Results

Array = NDArray[Any]
Arrays = dict[str, Any]  # arrays by name

SIXTEEN = ["float16", "bfloat16"]
UNTAGGED = [case for case in CASES if not case.tags]
# All tagged cases, and every third of the others.
COVERING = [case for case in CASES if case.tags or case.values != "modest" or case.seed or case.lenient] + [
    case for case in UNTAGGED if case.values == "modest" and not case.seed and not case.lenient
][::3]


def cast(case: Case, dtype: np.dtype[Any]) -> Arrays:
    """Return the case's inputs in the dtype. In float64 they have digits beyond float32."""
    arrays = inputs(case)
    if dtype == np.float64 and case.values != "kinks":
        return {name: np.asarray(array.astype(dtype) * (1 + 2.0**-30)) for name, array in arrays.items()}
    return {name: array.astype(dtype) for name, array in arrays.items()}


def above(case: Case, forward: Results, dtype: np.dtype[Any]) -> Arrays:
    """Return what the gradients take besides the inputs: the upstream gradients and results of this call."""
    return {name: array.astype(dtype, copy=False) for name, array in gradient_inputs(case, forward).items()}


def assert_of(results: Results, dtype: np.dtype[Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Fail unless these are writable arrays of this dtype and these shapes."""
    assert {name: array.shape for name, array in results._asdict().items()} == shapes
    for array in results:
        assert array.dtype == dtype
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        assert array.flags.writeable


def strategies(case: Case, arrays: Arrays, upstream: Arrays | None = None) -> dict[str, Any]:
    """Return the strategies of the training call or, with `upstream`, of the gradients."""
    if upstream is None:
        return vkrnn.plan(getattr(vkrnn, case.cell), **arrays, descriptor=case.descriptor(training=True)).strategy
    function = getattr(vkrnn, f"{case.cell}_gradients")
    return vkrnn.plan(function, **arrays, **upstream, descriptor=case.descriptor()).strategy


def agree(case: Case, dtype: np.dtype[Any]) -> None:
    """Compare forward and gradients with the reference on the same numbers."""
    arrays = cast(case, dtype)
    got = trained(case, vkrnn, arrays)
    states = (case.T, case.N, case.D * case.H)
    shapes = dict.fromkeys(("output", *(f"{name}_output" for name in CELLS[case.cell])), states)
    shapes["z_state"] = (case.T, case.N, case.D * case.G * case.H)
    assert_of(got, dtype, {name: shapes[name] for name in got._fields})
    program = rounded_program(case, arrays, strategies(case, arrays))
    wanted = trained(case, vkrnn.reference, arrays)._asdict()
    device = vkrnn.default_device()
    assert_close(got._asdict(), wanted, dtype_limits(dtype, device, wanted, program.forward))
    upstream = above(case, got, dtype)
    gradients = differentiated(case, vkrnn, arrays, upstream)
    assert_of(gradients, dtype, {name: case.shape(name) for name in gradient_names(case)})
    program = rounded_program(case, arrays, strategies(case, arrays, upstream))
    wanted = differentiated(case, vkrnn.reference, arrays, upstream)._asdict()
    limits = dtype_limits(dtype, device, wanted, lambda: program.gradients(upstream))
    assert_close(gradients._asdict(), wanted, limits)
    plain = getattr(vkrnn, case.cell)(**arrays, descriptor=case.descriptor(training=False))
    np.testing.assert_array_equal(plain.output, got.output)


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_float64(case: Case) -> None:
    """Every case is right to float64's precision."""
    agree(case, np.dtype(np.float64))


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("case", COVERING, ids=by_id)
def test_sixteen_bits(case: Case, dtype: str) -> None:
    """Results are right up to one rounding. On matrix units, roundings of the operands of products add to that."""
    agree(case, dtype_of(dtype))


# float64: derivatives of the device's own results


def slope(case: Case, name: str, arrays: Arrays, upstream: Arrays, along: Array) -> float:
    """Return the derivative of the device's loss along one direction of one input."""

    def at(steps: int) -> float:
        changed = arrays | {name: arrays[name] + steps * DEVICE_DIFFERENCE_STEP * along}
        return float(loss(case, changed, trained(case, vkrnn, changed), upstream))

    five_points = 8 * (at(1) - at(-1)) - (at(2) - at(-2))
    return five_points / (12 * DEVICE_DIFFERENCE_STEP)


DIFFERENTIATED = [
    [case for case in UNTAGGED if case.cell == cell and case.is_smooth and case.values == "modest" and case.D == D]
    for cell in ("single_gate_rnn", "lstm", "gru")
    for D in (1, 2)
]


@pytest.mark.parametrize("case", [case for cases in DIFFERENTIATED for case in cases[:: len(cases) // 4]], ids=by_id)
def test_float64_gradients_are_derivatives_on_the_device(case: Case) -> None:
    """The gradients equal differences of the device's own forward pass, without any reference."""
    arrays = cast(case, np.dtype(np.float64))
    upstream = above(case, trained(case, vkrnn, arrays), np.dtype(np.float64))
    rng = np.random.default_rng(3)
    for name, gradient in differentiated(case, vkrnn, arrays, upstream)._asdict().items():
        along = rng.uniform(-1, 1, gradient.shape)
        along /= max(1, np.sqrt(gradient.size))
        error = abs(np.sum(gradient * along) - slope(case, name, arrays, upstream, along))
        assert error <= DEVICE_DIFFERENCE * (1 + np.sum(np.abs(gradient * along))), (name, error)


# 16 bits: what happens between the caller's bits and float32


# Gradients take rounded sums that are near the threshold of `clip` as clipped, and how near depends on the type.
@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("case", [case for case in UNTAGGED if not case.options.get("clip")][::11], ids=by_id)
def test_sixteen_bits_are_the_float32_call_rounded(case: Case, dtype: str) -> None:
    """Results equal the rounded float32 results to the last bit: widening is exact, and NumPy rounds alike.

    Matrix units round the operands of the float32 call, too.
    """
    kind = dtype_of(dtype)
    arrays = cast(case, kind)
    wide = {name: array.astype(np.float32) for name, array in arrays.items()}
    forward = trained(case, vkrnn, arrays)
    with vkrnn.fp32_precision("tf32"):
        forward_wide = trained(case, vkrnn, wide)
    upstream = above(case, forward, kind)
    ahead, back = strategies(case, arrays), strategies(case, arrays, upstream)
    if narrows_operands(back["gemm"], kind) or "split" in (ahead["schedule"], back["schedule"]):
        pytest.skip("products read rounded operands, and cuBLASLt's add in another order for each type")
    gradients = differentiated(case, vkrnn, arrays, upstream)
    upstream_wide = {name: array.astype(np.float32) for name, array in upstream.items()}
    with vkrnn.fp32_precision("tf32"):
        gradients_wide = differentiated(case, vkrnn, wide, upstream_wide)
    for got, wanted in ((forward, forward_wide), (gradients, gradients_wide)):
        for name, array in wanted._asdict().items():
            bits = getattr(got, name).view(np.uint16)
            np.testing.assert_array_equal(bits, array.astype(kind).view(np.uint16), err_msg=name)


def passed_through(source: Array, bias: Array) -> Array:
    """Return ``source + bias`` [n], computed as one step of n sequences with one linear unit and no weights."""
    kind = source.dtype
    result: Array = vkrnn.single_gate_rnn(
        source.reshape(1, -1, 1),
        np.zeros((1, 1), kind),
        bias=bias.reshape(1),
        descriptor=SingleGateRNNDescriptor(activation="none"),
    ).output
    return result.ravel()


def assert_same_bits(got: Array, exact: Array) -> None:
    """Fail unless `got` is the float32 array `exact` as NumPy rounds it. Any NaN matches any other.

    Vulkan allows flushing float32's subnormals to zero, which includes bfloat16's.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = exact.astype(got.dtype)
    nan = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(got), nan)
    flushed = (np.abs(exact) < np.finfo(np.float32).tiny) & (got == 0)
    wrong = ~nan & ~flushed & (got.view(np.uint16) != wanted.view(np.uint16))
    assert not wrong.any(), [*zip(exact[wrong][:5], got[wrong][:5], wanted[wrong][:5], strict=True)]


def all_bits(kind: np.dtype[Any]) -> Array:
    """Return every value of a 16-bit type, and the first once more: an odd number of elements."""
    return np.append(np.arange(2**16), 0).astype(np.uint16).view(kind)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_every_value_passes_unchanged(dtype: str) -> None:
    """All values of a 16-bit type survive, with NaN, infinities and subnormals; -0 + 0 gives 0."""
    kind = dtype_of(dtype)
    values = all_bits(kind)
    with np.errstate(invalid="ignore"):
        exact = values.astype(np.float32) + np.float32(0)
    got = passed_through(values, np.zeros(1, kind))
    assert_same_bits(got, exact)
    normal = np.abs(exact) >= np.finfo(np.float32).tiny
    np.testing.assert_array_equal(got[normal].view(np.uint16), values[normal].view(np.uint16))


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_every_value_and_a_bias_rounds_as_numpy_does(dtype: str) -> None:
    """Sums need more than 16 bits: ties, carries into the exponent, overflow and subnormal results are rounded."""
    kind = dtype_of(dtype)
    values = all_bits(kind)
    exponents = [-24, -15, -14, -4, 0, 1, 11, 15] if dtype == "float16" else [-126, -118, -20, 0, 1, 100, 127]
    biases = [1.5 * 2.0**-14] + [sign * m * 2.0**e for e in exponents for sign in (1, -1) for m in (1, 1.25)]
    for bias in np.array(biases).astype(kind):
        with np.errstate(invalid="ignore", over="ignore"):
            exact = values.astype(np.float32) + np.float32(bias)
        # Subnormals may be flushed to zero, as a term or as the result.
        wide = values.astype(np.float32)
        whole = ~((wide != 0) & (np.abs(wide) < np.finfo(np.float32).tiny))
        assert_same_bits(passed_through(values, bias[None])[whole], exact[whole])


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_narrowing_float32s_of_every_kind(dtype: str) -> None:
    """Products ``source * weight`` of random 16-bit numbers use all of float32's bits before they are rounded."""
    kind = dtype_of(dtype)
    rng = np.random.default_rng(4)
    values, factors = (rng.integers(0, 2**16, count).astype(np.uint16).view(kind) for count in (1001, 40))
    with np.errstate(invalid="ignore"):
        values, factors = (drawn[np.isfinite(drawn.astype(np.float32))] for drawn in (values, factors))
    for factor in factors:
        got = vkrnn.single_gate_rnn(
            values.reshape(1, -1, 1),
            np.zeros((1, 1), kind),
            input_weight=factor.reshape(1, 1),
            descriptor=SingleGateRNNDescriptor(activation="none"),
        ).output.ravel()
        with np.errstate(over="ignore", under="ignore"):
            exact = values.astype(np.float32) * np.float32(factor) + np.float32(0)  # adding 0 turns -0 into 0
        # If a factor is flushed, so is the product.
        tiny = np.finfo(np.float32).tiny
        kept = (np.abs(values.astype(np.float32)) >= tiny) | (values == 0)
        kept &= bool(abs(np.float32(factor)) >= tiny or factor == 0)
        assert_same_bits(got[kept], exact[kept])


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("count", [1, 2, 3, 127, 128, 129, 257])
def test_odd_element_counts(dtype: str, count: int) -> None:
    """Two elements share a word. An odd last one must be written, and nothing past it."""
    kind = dtype_of(dtype)
    values = np.arange(1, count + 1).astype(kind)
    np.testing.assert_array_equal(passed_through(values, np.zeros(1, kind)), values)
    # All tensors with odd sizes.
    case = Case("lstm", 1, count, 3, 1, {}, frozenset(["input_weight", "init_state", "init_cell", "mask"]))
    agree(case, kind)


@pytest.mark.parametrize("dtype", ["float64", *SIXTEEN])
def test_special_values_stay_in_their_row(dtype: str) -> None:
    """NaN and infinity in one sequence do not reach another."""
    kind = dtype_of(dtype)
    case = Case("gru", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
    arrays = cast(case, kind)
    clean = vkrnn.gru(**arrays).output
    arrays["source"][2, 1, 3] = np.nan
    arrays["source"][3, 2, 0] = np.inf
    got = vkrnn.gru(**arrays).output
    np.testing.assert_array_equal(got[:, 0], clean[:, 0])
    np.testing.assert_array_equal(got[:2, 1], clean[:2, 1])
    assert np.isnan(got[2:, 1]).all()
    np.testing.assert_array_equal(got[:3, 2], clean[:3, 2])


@pytest.mark.parametrize("dtype", ["float64", *SIXTEEN])
def test_repeated_calls_give_the_same_bits(dtype: str) -> None:
    """Calls with the same numbers in another memory layout give the same bits, too."""
    kind = dtype_of(dtype)
    case = next(case for case in UNTAGGED if case.cell == "lstm" and case.D == 2 and len(case.present) > 6)
    arrays = cast(case, kind)
    apart = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in arrays.items()}
    for one, other in zip(trained(case, vkrnn, arrays), trained(case, vkrnn, apart), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("dtype", [">f8", ">f2"])
def test_other_byte_orders_are_copied(dtype: str) -> None:
    """Arguments in another byte order are copied, and results have native byte order."""
    case = Case("gru", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
    arrays: Arrays = {name: array.astype(dtype) for name, array in inputs(case).items()}
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    (got,), (wanted,) = vkrnn.gru(**arrays), vkrnn.gru(**native)
    assert got.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float64", *SIXTEEN])
def test_check_in_every_dtype(dtype: str) -> None:
    """`check` passes the same values to the reference, so that only rounding differs."""
    arrays = cast(Case("gru", 5, 3, 7, 4, {}, frozenset(["input_weight"])), dtype_of(dtype))
    report = vkrnn.check(vkrnn.gru, **arrays, tolerance=DTYPES[dtype])
    assert report.ok, report
    assert not vkrnn.check(vkrnn.gru, **arrays, tolerance=0).ok


def test_plans_differ_by_dtype() -> None:
    """Plans of different dtypes differ, and the text of a plan names the dtype."""
    case = Case("gru", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
    plans = {dtype: vkrnn.plan(vkrnn.gru, **cast(case, dtype_of(dtype))) for dtype in ("float32", "float64", *SIXTEEN)}
    for dtype, plan in plans.items():
        assert sum(plan == other for other in plans.values()) == 1
        size = dtype_of(dtype).itemsize
        sizes = {name: count for name, role, count in plan.buffers if role in ("input", "result")}
        elements = {"source": 5 * 3 * 7, "recurrent_weight": 12 * 4, "input_weight": 12 * 7, "output": 5 * 3 * 4}
        assert sizes == {name: count * size for name, count in elements.items()}
        profile = vkrnn.default_device().profile
        assert ("widen source" in repr(plan)) == (dtype in SIXTEEN and not profile.storage_16bit)
        assert ("narrow output" in repr(plan)) == (dtype in SIXTEEN and not profile.storage_16bit)
        assert ("_16bit" in repr(plan)) == (dtype in SIXTEEN and profile.storage_16bit)
        assert ("_f64" in repr(plan)) == (dtype == "float64")


# Messages

ANY = "float32, float64, float16 or bfloat16"
LSTM = Case("lstm", 5, 3, 7, 4, {}, frozenset(["input_weight", "bias"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "int64"}, f"[lstm] source: expected dtype {ANY}, got int64"),
        ({"source": "bool"}, f"[lstm] source: expected dtype {ANY}, got bool"),
        ({"source": "complex128"}, f"[lstm] source: expected dtype {ANY}, got complex128"),
        ({"source": "object"}, f"[lstm] source: expected dtype {ANY}, got object"),
        ({"source": "longdouble"}, f"[lstm] source: expected dtype {ANY}, got {np.dtype(np.longdouble).name}"),
        ({"source": "float64"}, "[lstm] recurrent_weight: expected dtype float64 like source, got float32"),
        ({"bias": "float64"}, "[lstm] bias: expected dtype float32 like source, got float64"),
        ({"bias": "float16"}, "[lstm] bias: expected dtype float32 like source, got float16"),
        ({"bias": "int32"}, "[lstm] bias: expected dtype float32 like source, got int32"),
        (
            {"source": "float64", "recurrent_weight": "float64", "input_weight": "float64"},
            "[lstm] bias: expected dtype float64 like source, got float32",
        ),
        (
            {"source": "bfloat16", "recurrent_weight": "float16"},
            "[lstm] recurrent_weight: expected dtype bfloat16 like source, got float16",
        ),
        (
            {"source": "float16", "recurrent_weight": "bfloat16"},
            "[lstm] recurrent_weight: expected dtype float16 like source, got bfloat16",
        ),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_errors_about_dtypes(changes: dict[str, str], message: str) -> None:
    """All floating-point arguments must have the source's dtype; nothing is converted."""
    arrays: Arrays = {**inputs(LSTM)}
    changed: Arrays = {name: arrays[name].astype(dtype_of(dtype)) for name, dtype in changes.items()}
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        vkrnn.lstm(**arrays | changed)


def test_other_types_of_eight_and_sixteen_bits_are_refused() -> None:
    """The message names the type."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4):
        with pytest.raises(TypeError) as caught:
            vkrnn.lstm(**cast(LSTM, np.dtype(kind)))
        assert str(caught.value) == f"[lstm] source: expected dtype {ANY}, got {np.dtype(kind).name}"


@pytest.mark.parametrize("dtype", ["float64", *SIXTEEN])
def test_errors_about_dtypes_of_gradients(dtype: str) -> None:
    """The forward call's results must have the source's dtype, too."""
    kind = dtype_of(dtype)
    arrays = cast(LSTM, kind)
    forward = trained(LSTM, vkrnn, arrays)
    upstream = above(LSTM, forward, kind)
    message = f"[lstm_gradients 'layer 2'] z_state: expected dtype {dtype} like source, got float32"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        vkrnn.lstm_gradients(**arrays, **upstream | {"z_state": upstream["z_state"].astype(np.float32)}, name="layer 2")
