"""Sequences of different lengths: the reference is checked in several ways, then the device against it.

Numbers past a sequence's end must be finite and are otherwise ignored. The gradients of the weights multiply those
rows of the source by zero, which leaves NaN for infinity and NaN.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import (
    CASES,
    GATES,
    OPTIONAL,
    UPSTREAM,
    Case,
    by_id,
    gradient_inputs,
    gradient_names,
    inputs,
    lengths_of,
    loss,
)
from comparison import assert_close, limits, within_contract
from float32 import Program
from resident import dtype_of, position
from scale import sample
from targets import Target, fits, targets
from tolerances import COMPLEX, COMPLEX_STEP, DTYPES, FLOAT32, SAME_IN_FLOAT64
from training import differentiated, trained
from vkrnn import SingleGateRNNDescriptor

Array = NDArray[Any]
Arrays = dict[str, Array]

GARBAGE = 1e30  # finite, and so large that any use of it shows
# Arguments with axes of time and batch, and with a batch axis alone. A mask may lack these axes or have size 1, and the
# cells' gradient may lack the axis of time.
CELL_STATES = ("cell", "normalizer", "stabilizer")
SEQUENCES = (
    *("source", "source_gradient", "z_state", "output_fwd", "mask", "output"),
    *(f"{name}{kind}" for name in CELL_STATES for kind in ("_gradient", "_output", "_output_fwd")),
)
STATES = ("init_state", "state_gradient", *(f"init_{name}" for name in CELL_STATES))
LASTS = {f"init_{name}": f"{name}_gradient" for name in ("state", *CELL_STATES)}

SMALL = [case for case in CASES if not case.tags]
SEVERAL = [case for case in SMALL if case.N > 1 and case.T > 1]


def past_the_end(array: Array, lengths: Array) -> Array:
    """Return where the padding of a [T, N, ...] array is, as [T, N, 1]."""
    return (np.arange(len(array))[:, None] >= lengths)[..., None]


def littered(arrays: Mapping[str, Array], lengths: Array, steps: int, garbage: float = GARBAGE) -> Arrays:
    """Return the arrays with garbage of both signs in the padding of all that are [T, N, ...]."""
    rng = np.random.default_rng(len(lengths))
    found = dict(arrays)
    for name in SEQUENCES:
        if name in arrays and arrays[name].shape[:-1] == (steps, len(lengths)):
            array = arrays[name]
            rows = np.broadcast_to(past_the_end(array, lengths), array.shape)
            found[name] = np.where(rows, (garbage * rng.choice([-1, 1], array.shape)).astype(array.dtype), array)
    return found


def one_sequence(name: str, array: Array, n: int, length: int) -> Array:
    """Return an argument for a call on sequence n alone, or the part of a result that belongs to it."""
    if name in STATES:
        return array[..., n : n + 1, :]
    if name in SEQUENCES:
        array = array[:length] if array.ndim == 3 and array.shape[0] > 1 else array
        return array[..., n : n + 1, :] if array.ndim > 1 and array.shape[-2] > 1 else array
    return array


def in_doubles(case: Case, lengths: Array | None) -> tuple[Arrays, Arrays]:
    """Return the reference's inputs and upstream gradients in float64."""
    arrays = {name: array.astype(np.float64) for name, array in inputs(case).items()}
    upstream = gradient_inputs(case, trained(case, vkrnn.reference, arrays, lengths))
    return arrays, {name: array.astype(np.float64) for name, array in upstream.items()}


# The reference


@pytest.mark.parametrize("case", SEVERAL[::3], ids=by_id)
def test_the_reference_runs_each_sequence_alone(case: Case) -> None:
    """One call per sequence, cut to its length, gives the same rows. Padding is zero; weights' gradients add up."""
    lengths = lengths_of(case)
    arrays, upstream = in_doubles(case, lengths)
    arrays, upstream = (littered(given, lengths, case.T) for given in (arrays, upstream))
    whole = {
        "forward": trained(case, vkrnn.reference, arrays, lengths)._asdict(),
        "gradients": differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict(),
    }
    sums: Arrays = {}
    for n, length in enumerate(lengths):
        if length == 0:  # the last states are the initial ones
            for state, last in LASTS.items():
                if state in arrays:
                    passed = one_sequence(last, upstream[last], n, 0) if last in upstream else 0
                    assert (one_sequence(state, whole["gradients"][state], n, 0) == passed).all()
            continue
        own, own_upstream = (
            {name: one_sequence(name, array, n, length) for name, array in given.items()}
            for given in (arrays, upstream)
        )
        alone = {
            "forward": trained(case, vkrnn.reference, own, None)._asdict(),
            "gradients": differentiated(case, vkrnn.reference, own, own_upstream, None)._asdict(),
        }
        for kind, results in alone.items():
            assert list(results) == list(whole[kind])
            for name, array in results.items():
                if name in SEQUENCES or name in STATES:
                    got = one_sequence(name, whole[kind][name], n, length)
                    np.testing.assert_allclose(got, array, rtol=0, atol=SAME_IN_FLOAT64 * (1 + np.abs(array).max()))
                else:
                    sums[name] = sums.get(name, 0) + array
    assert_close({name: whole["gradients"][name] for name in sums}, sums, SAME_IN_FLOAT64)
    for array in (*whole["forward"].values(), whole["gradients"]["source"]):
        assert not array[np.broadcast_to(past_the_end(array, lengths), array.shape)].any()


@pytest.mark.parametrize("case", SMALL[::5], ids=by_id)
@pytest.mark.parametrize("module", [vkrnn.reference, vkrnn], ids=["reference", "device"])
def test_full_lengths_equal_no_lengths(case: Case, module: Any) -> None:
    """The device gives the same bits. The reference may add in another order."""
    arrays = inputs(case)
    full = np.full(case.N, case.T)
    forward = [trained(case, module, arrays, lengths) for lengths in (None, full)]
    upstream = gradient_inputs(case, forward[0])
    gradients = [differentiated(case, module, arrays, upstream, lengths) for lengths in (None, full)]
    for without, with_lengths in (forward, gradients):
        assert with_lengths._fields == without._fields
        assert with_lengths._reasons == without._reasons
        assert_close(with_lengths._asdict(), without._asdict(), SAME_IN_FLOAT64 if module is vkrnn.reference else 0)


def test_steps_by_hand() -> None:
    """Sequences of two, three and no steps, where h[k] = x[k] + h[k-1] / 2."""
    source = np.array([[1.0, 2, 9], [10, 20, 9], [99, 200, 9]])[..., None]

    def rows(**options: bool) -> Any:
        width = 1 + options.get("bidirectional", False)
        weight = np.full((width, 1, 1), 0.5) if width > 1 else np.full((1, 1), 0.5)
        descriptor = SingleGateRNNDescriptor(activation="none", **options)
        x = np.repeat(source, width, axis=2)
        return vkrnn.reference.single_gate_rnn(x, weight, lengths=[2, 3, 0], descriptor=descriptor).output.tolist()

    assert rows() == [[[1], [2], [0]], [[10.5], [21], [0]], [[0], [210.5], [0]]]
    # A reversed call starts at each sequence's own end.
    assert rows(reverse=True) == [[[10], [200], [0]], [[6], [120], [0]], [[0], [62], [0]]]
    # Bidirectional results are aligned with the source.
    assert rows(bidirectional=True) == [
        [[1, 6], [2, 62], [0, 0]],
        [[10.5, 10], [21, 120], [0, 0]],
        [[0, 0], [210.5, 200], [0, 0]],
    ]


@pytest.mark.parametrize("case", [case for case in SEVERAL if case.is_smooth][::5], ids=by_id)
def test_the_references_gradients_are_derivatives(case: Case) -> None:
    """Gradients of the output and of each sequence's last states, compared with the complex step."""
    lengths = lengths_of(case)
    arrays, upstream = in_doubles(case, lengths)

    gradients = differentiated(case, vkrnn.reference, arrays, upstream, lengths)
    assert gradients._fields == gradient_names(case)
    rng = np.random.default_rng(1)
    for name, gradient in gradients._asdict().items():
        along = rng.standard_normal(gradient.shape)
        changed = arrays | {name: arrays[name] + 1j * COMPLEX_STEP * along}
        results = trained(case, vkrnn.reference, changed, lengths)
        slope = loss(case, changed, results, upstream, lengths).imag / COMPLEX_STEP
        assert abs(np.sum(gradient * along) - slope) <= COMPLEX * (1 + np.sum(np.abs(gradient * along))), name


# The device


def in_cells(cases: list[Case]) -> list[Case]:
    """Return one case of each cell with one and two directions, and those whose source holds the gates."""
    found: dict[tuple[str, int, bool], Case] = {}
    for case in cases:
        found.setdefault((case.cell, case.D, "input_weight" in case.present), case)
    return list(found.values())


FEW = in_cells([case for case in SEVERAL if "mask" in case.present]) + in_cells(SEVERAL[::-1])


@pytest.mark.parametrize("case", FEW, ids=by_id)
def test_the_cpu_skips_padding(case: Case) -> None:
    """It computes nothing for steps past the ends, so NaN there does not reach any sum."""
    lengths = lengths_of(case)
    answers = []
    with vkrnn.Device(position(native=True)):
        for garbage in (0.0, np.nan):
            arrays = littered(inputs(case), lengths, case.T, garbage)
            forward = trained(case, vkrnn, arrays, lengths)
            upstream = littered(gradient_inputs(case, forward), lengths, case.T, garbage)
            answers.append([*forward, *differentiated(case, vkrnn, arrays, upstream, lengths)])
    for clean, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(other, clean)


@pytest.mark.parametrize("case", sample(CASES, 2), ids=by_id)
def test_the_device_agrees_with_the_reference(case: Case) -> None:
    """Forward and gradients, with garbage in the padding."""
    lengths = lengths_of(case)
    arrays = littered(inputs(case), lengths, case.T)
    got = trained(case, vkrnn, arrays, lengths)
    wanted = trained(case, vkrnn.reference, arrays, lengths)._asdict()
    upstream = littered(gradient_inputs(case, got), lengths, case.T)
    got_gradients = differentiated(case, vkrnn, arrays, upstream, lengths)
    wanted_gradients = differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict()

    def allowed(order: int) -> Mapping[str, float]:  # from a float32 program without lengths
        plain = inputs(case)
        full = trained(case, vkrnn.reference, plain, None)
        above = gradient_inputs(case, full)
        program = Program(case, plain, order=order)
        return limits(case, full._asdict(), program.forward()) | limits(
            case, differentiated(case, vkrnn.reference, plain, above, None)._asdict(), program.gradients(above)
        )

    tolerance = FLOAT32 if within_contract(case) else allowed
    assert_close(got._asdict(), wanted, tolerance)
    assert_close(got_gradients._asdict(), wanted_gradients, tolerance)
    for array in (*got, got_gradients.source):
        rows = np.broadcast_to(past_the_end(array, lengths), array.shape)
        assert not array[rows].any(), "padding that is not zero"
    # Training adds results and changes no other.
    plain_call = getattr(vkrnn, case.cell)(**arrays, lengths=lengths, descriptor=case.descriptor(training=False))
    np.testing.assert_array_equal(plain_call.output, got.output)


@pytest.mark.parametrize("case", SEVERAL[4::9], ids=by_id)
def test_garbage_past_the_ends_does_not_matter(case: Case) -> None:
    """Results have the same bits for any finite numbers in the padding of any input."""
    lengths = lengths_of(case)
    answers = []
    for garbage in (0.0, GARBAGE):
        arrays = littered(inputs(case), lengths, case.T, garbage)
        forward = trained(case, vkrnn, arrays, lengths)
        upstream = littered(gradient_inputs(case, forward), lengths, case.T, garbage)
        answers.append([*forward, *differentiated(case, vkrnn, arrays, upstream, lengths)])
    for clean, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(clean, other)


@pytest.mark.parametrize("case", [case for case in SEVERAL if case.D == 2][::20], ids=by_id)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_in_other_dtypes(case: Case, dtype: str) -> None:
    """Each dtype agrees with the reference on the same numbers."""
    kind = dtype_of(dtype)
    lengths = lengths_of(case)
    garbage = 6e4 if dtype == "float16" else GARBAGE
    arrays = littered({name: array.astype(kind) for name, array in inputs(case).items()}, lengths, case.T, garbage)
    got = trained(case, vkrnn, arrays, lengths)
    assert_close(got._asdict(), trained(case, vkrnn.reference, arrays, lengths)._asdict(), DTYPES[dtype])
    above = {name: array.astype(kind) for name, array in gradient_inputs(case, got).items()}
    upstream = littered(above, lengths, case.T, garbage)
    wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict()
    assert_close(differentiated(case, vkrnn, arrays, upstream, lengths)._asdict(), wanted, DTYPES[dtype])


@pytest.fixture(name="other_strategy", scope="module")
def _other_strategy() -> Iterator[vkrnn.Device]:
    """Return a Vulkan device with a GPU's strategies if it is a CPU, and with a CPU's if it is a GPU."""
    usual = vkrnn.Device(position(native=False))
    options: dict[str, Any] = {"gemm": "tiled", "lanes": min(4, usual.profile.subgroup_size), "rows": 4}
    if usual.type != "cpu":
        options = {"gemm": "register", "lanes": 1, "rows": 2}
    device = vkrnn.Device(usual.index, **options, workgroup=128)
    yield device
    device.close()


WITH_ANOTHER_STRATEGY = list(
    zip(
        [*SEVERAL[::29], *[case for case in CASES if "wide" in case.tags][::4]],
        itertools.cycle(["float32", "float64", "bfloat16"]),
        strict=False,
    )
)


@pytest.mark.parametrize(("case", "dtype"), sample(WITH_ANOTHER_STRATEGY, 2), ids=by_id)
def test_with_another_strategy(case: Case, dtype: str, other_strategy: vkrnn.Device) -> None:
    """Results are right if rows of one invocation, or invocations of one sum, end at different steps."""
    kind = dtype_of(dtype)
    lengths = lengths_of(case)
    arrays = littered({name: array.astype(kind) for name, array in inputs(case).items()}, lengths, case.T)
    with other_strategy:
        got = trained(case, vkrnn, arrays, lengths)
        above = {name: array.astype(kind) for name, array in gradient_inputs(case, got).items()}
        upstream = littered(above, lengths, case.T)
        gradients = differentiated(case, vkrnn, arrays, upstream, lengths)
    assert_close(got._asdict(), trained(case, vkrnn.reference, arrays, lengths)._asdict(), DTYPES[dtype])
    wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict()
    assert_close(gradients._asdict(), wanted, DTYPES[dtype])


WITHOUT_STEPS = [
    *(
        Case(cell, 4, 3, 5, 16, {"bidirectional": True}, frozenset((*OPTIONAL[cell], *UPSTREAM[cell])))
        for cell in GATES
    ),
    Case("lstm", 4, 3, 5, 16, {"reverse": True}, frozenset(["input_weight", "init_cell", *UPSTREAM["lstm"]])),
]


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.id)
def test_rows_without_steps(target: Target) -> None:
    """Every strategy returns zeros for them, and passes the gradients of their last states to the initial states."""
    device = target.opened()
    for case, lengths in itertools.product(WITHOUT_STEPS, np.array([[0, 4, 2], [0, 0, 0]])):
        arrays = littered(inputs(case), lengths, case.T)
        forward = getattr(vkrnn, case.cell)
        if not fits(device, target, forward, **arrays, lengths=lengths, descriptor=case.descriptor(training=True)):
            continue
        with device:
            got = trained(case, vkrnn, arrays, lengths)
            upstream = littered(gradient_inputs(case, got), lengths, case.T)
        assert_close(got._asdict(), trained(case, vkrnn.reference, arrays, lengths)._asdict(), FLOAT32)
        backward = getattr(vkrnn, f"{case.cell}_gradients")
        if not fits(device, target, backward, **arrays, **upstream, lengths=lengths, descriptor=case.descriptor()):
            continue
        with device:
            got_gradients = differentiated(case, vkrnn, arrays, upstream, lengths)
        wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict()
        assert_close(got_gradients._asdict(), wanted, FLOAT32)
        for state, last in LASTS.items():
            if state in arrays:
                rows = upstream[last][lengths == 0]
                np.testing.assert_array_equal(getattr(got_gradients, state)[lengths == 0], rows)
        for array in (*got, got_gradients.source):
            assert not array[:, lengths == 0].any()
    device.close()


CASE = Case("lstm", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
INPUTS: dict[str, Any] = {**inputs(CASE)}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", ">i4", "int64", "uint64", ">i8"])
def test_lengths_may_be_any_integers(dtype: str) -> None:
    """Lengths may have any size of integer, byte order and strides."""
    wanted = trained(CASE, vkrnn, INPUTS, np.array([2, 5, 1], np.int32))
    apart = np.array([2, 0, 5, 0, 1, 0], dtype)[::2]
    got = trained(CASE, vkrnn, INPUTS, apart)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert apart.tolist() == [2, 5, 1]


def test_lengths_do_not_change_the_plan() -> None:
    """Calls with other lengths share a plan; a call without lengths has another."""
    plans = [
        vkrnn.plan(vkrnn.lstm, **INPUTS, lengths=None if lengths is None else np.array(lengths))
        for lengths in ([2, 5, 1], [1, 1, 1], None)
    ]
    assert plans[0] == plans[1] != plans[2]
    assert ("lengths", "input", 12) in plans[0].buffers


def test_check_takes_lengths() -> None:
    """`vkrnn.check` passes them to the device and to the reference."""
    report = vkrnn.check(vkrnn.lstm, **INPUTS, lengths=np.array([2, 5, 1]))
    assert report.ok, report


# Messages

WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.ones(3, np.float32), TypeError, "expected dtype int32 or another integer, got float32"),
    (np.ones(3, bool), TypeError, "expected dtype int32 or another integer, got bool"),
    (np.ones(3, object), TypeError, "expected dtype int32 or another integer, got object"),
    (np.ones(3, "m8[s]"), TypeError, "expected dtype int32 or another integer, got timedelta64[s]"),
    (np.ones(4, np.int64), ValueError, "expected shape [N] = [3], got [4]"),
    (np.ones((3, 1), np.int64), ValueError, "expected shape [N] = [3], got [3, 1]"),
    (np.array(2), ValueError, "expected shape [N] = [3], got []"),
    (np.array([5, 7, 0]), ValueError, "expected 0 to T = 5, got 7 at [1]"),
    (np.array([-1, 6, 0], np.int8), ValueError, "expected 0 to T = 5, got -1 at [0]"),
    (np.array([1, 2**32 + 1, 3]), ValueError, "expected 0 to T = 5, got 4294967297 at [1]"),
    (np.array([1, 2, 2**63 - 1], np.uint64), ValueError, "expected 0 to T = 5, got 9223372036854775807 at [2]"),
]


@pytest.mark.parametrize(("lengths", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("cell", GATES)
def test_errors_about_lengths(
    cell: str, lengths: Array, error: type[Exception], message: str, *, gradients: bool
) -> None:
    """The device and the reference raise exactly these messages; the device's also says where N comes from."""
    case = dataclasses.replace(CASE, cell=cell)
    arrays = inputs(case)
    above = gradient_inputs(case, trained(case, vkrnn.reference, arrays, None)) if gradients else {}
    arrays |= {name: array.astype(np.float32) for name, array in above.items()}
    function = f"{cell}_gradients" if gradients else cell
    for module, rest in ((vkrnn.reference, ""), (vkrnn, " (N = 3 from source.shape[1])" * ("shape" in message))):
        with pytest.raises(error, match=f"^{re.escape(f'[{function}] lengths: {message}{rest}')}$"):
            getattr(module, function)(**arrays, lengths=lengths)


def test_errors_of_the_device() -> None:
    """The message names the call. Errors about other arguments are the same with lengths."""
    with pytest.raises(ValueError, match=r"^\[lstm 'layer 2'\] lengths: expected 0 to T = 5, got 9 at \[0\]$"):
        vkrnn.lstm(**INPUTS, lengths=np.array([9, 5, 1]), name="layer 2")
    for module in (vkrnn, vkrnn.reference):
        with pytest.raises(ValueError, match=r"^\[lstm\] bias: expected shape \[4H\] = \[16\], got \[4\]"):
            module.lstm(**INPUTS, bias=np.ones(4, np.float32), lengths=np.array([9, 5, 1]))


def test_integers_of_other_libraries_are_refused() -> None:
    """NumPy does not count them as integers, so their values could not be checked."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    message = r"^\[lstm\] lengths: expected dtype int32 or another integer, got int4$"
    for module in (vkrnn, vkrnn.reference):
        with pytest.raises(TypeError, match=message):
            module.lstm(**INPUTS, lengths=np.array([2, 5, 1], ml_dtypes.int4))
