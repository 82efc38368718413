"""Very long, large and too large calls: each works or fails cleanly, and so does the next call."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import GATES, Case, gradient_inputs, inputs
from comparison import assert_close, limits
from float32 import Program
from scale import HANGS_AFTER, distinct
from vkrnn import GRUDescriptor, SingleGateRNNDescriptor

Array = NDArray[Any]

STORAGE_BUFFER = 128 << 20  # bytes: lavapipe's limit for a storage buffer
ITERATIONS = 65_535  # lavapipe 22.3 silently ends a shader's loop after these

everywhere = pytest.mark.usefixtures("current")


@pytest.fixture(name="own")
def _own(current: vkrnn.Device) -> Iterator[vkrnn.Device]:
    device = vkrnn.Device(current.index)
    yield device
    device.close()


def uniform(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Draw a float32 array without a float64 copy of it."""
    array = np.random.default_rng(seed).random(shape, np.float32)
    array -= np.float32(0.5)
    array *= np.float32(2 * scale)
    return array


def small_call(device: vkrnn.Device | None = None) -> None:
    """Make a small call and check its result, to show that the device still works."""
    case = Case("lstm", 5, 3, 7, 4, present=frozenset({"input_weight", "bias"}))
    arrays = inputs(case)
    got = vkrnn.lstm(**arrays, device=device)
    assert_close(got._asdict(), vkrnn.reference.lstm(**arrays)._asdict())


def compare(case: Case, above: Callable[[str, tuple[int, ...]], Array]) -> None:
    """Compare a large case with the reference, forward and gradients. `above` draws the upstream gradients.

    A result may have twice the error of the float32 NumPy program.
    """
    arrays = inputs(case)
    device, reference = (getattr(module, case.cell) for module in (vkrnn, vkrnn.reference))
    forward = device(**arrays, descriptor=case.descriptor(training=True))
    wanted = reference(**arrays, descriptor=case.descriptor(training=True))._asdict()

    def allowed(order: int) -> dict[str, float]:
        return limits(case, wanted, Program(case, arrays, order=order).forward())

    assert_close(forward._asdict(), wanted, allowed)
    upstream = gradient_inputs(case, forward)
    upstream |= {name: above(name, array.shape) for name, array in upstream.items() if name.endswith("gradient")}
    device, reference = (getattr(module, f"{case.cell}_gradients") for module in (vkrnn, vkrnn.reference))
    got = device(**arrays, **upstream, descriptor=case.descriptor())._asdict()
    wanted_gradients = reference(**arrays, **upstream, descriptor=case.descriptor())._asdict()

    def allowed_gradients(order: int) -> dict[str, float]:
        return limits(case, wanted_gradients, Program(case, arrays, order=order).gradients(upstream))

    assert_close(got, wanted_gradients, allowed_gradients)


# Long calls


LONG = [
    Case("single_gate_rnn", 100_000, 1, 3, 3, {"activation": "tanh"}, frozenset({"bias", "init_state"})),
    Case("lstm", 100_000, 1, 8, 2, {}, frozenset({"bias", "init_state", "init_cell"})),
    Case("gru", 100_000, 1, 6, 2, {}, frozenset({"bias", "init_state"})),
]


def before(first: Array, rows: Array) -> Array:
    """Return the state before each step."""
    return np.concatenate([first[None], rows[:-1]])


@everywhere
@pytest.mark.parametrize("case", distinct(LONG, len(LONG)), ids=lambda case: case.cell)
def test_a_hundred_thousand_steps(case: Case) -> None:
    """Every step and the sums over all steps are right.

    A reference that takes 100,000 steps in Python is slow. The forward reference computes all steps at once, each from
    the device's previous state. The backward reference computes many overlapping pieces at once. Each piece starts so
    many steps late that gradients from later steps have died away. The sums are then formed from the checked gradients.
    """
    arrays = inputs(case)
    descriptor = case.descriptor(training=True)
    forward = getattr(vkrnn, case.cell)(**arrays, descriptor=descriptor)
    weights = {name: arrays[name] for name in ("recurrent_weight", "bias")}
    states = {"init_state": before(arrays["init_state"], forward.output)}
    if case.cell == "lstm":
        states["init_cell"] = before(arrays["init_cell"], forward.cell_output)
    reference = getattr(vkrnn.reference, case.cell)
    as_batch = {name: state[:, 0] for name, state in states.items()}
    steps = reference(arrays["source"].swapaxes(0, 1), **weights, **as_batch, descriptor=descriptor)
    assert_close(forward._asdict(), {name: array.swapaxes(0, 1) for name, array in steps._asdict().items()})

    above = gradient_inputs(case, forward)
    got = getattr(vkrnn, f"{case.cell}_gradients")(**arrays, **above, descriptor=descriptor)
    piece, run_in = 400, 200
    first = np.arange(0, case.T - run_in, piece)
    rows = np.arange(piece + run_in)[:, None] + first
    rows[rows >= case.T] = case.T - 1  # only the last piece reaches beyond; it is cut off below
    in_range = (np.arange(piece + run_in)[:, None] + first) < case.T
    pieces = {name: array[rows, 0] for name, array in above.items()}
    pieces["source_gradient"] = pieces["source_gradient"] * in_range[..., None]
    begun = {name: state[first] for name, state in as_batch.items()}
    reference = getattr(vkrnn.reference, f"{case.cell}_gradients")
    wanted = reference(arrays["source"][rows, 0], **weights, **pieces, **begun, descriptor=descriptor)
    delta = wanted.source[:piece].swapaxes(0, 1).reshape(-1, 1, case.I)[: case.T]
    assert len(delta) == case.T
    assert_close({"source": got.source}, {"source": delta})
    assert_close({"init_state": got.init_state[0]}, {"init_state": wanted.init_state[0]})

    delta = got.source[:, 0].astype(np.float64)
    into, fed = delta.copy(), np.repeat(as_batch["init_state"][:, None].astype(np.float64), case.G, axis=1)
    if case.cell == "gru":  # the candidate's weights multiply the reset state
        reset = forward.z_state[:, 0, case.H : 2 * case.H].astype(np.float64)
        fed[:, 2] *= reset
    d_weight = np.einsum("tgh,tgi->ghi", into.reshape(case.T, case.G, case.H), fed).reshape(-1, case.H)
    sums = {"recurrent_weight": d_weight, "bias": delta.sum(axis=0)}
    assert_close({name: getattr(got, name) for name in sums}, sums)


@everywhere
@pytest.mark.full
def test_a_hundred_thousand_steps_in_other_directions() -> None:
    """Two exact calls: a bidirectional one that copies its source, and a reversed one that halves the distance to 1."""
    T = 100_000
    source = uniform(1, T, 1, 2)
    linear = SingleGateRNNDescriptor(bidirectional=True, activation="none")
    got = vkrnn.single_gate_rnn(source, np.zeros((2, 1, 1), np.float32), descriptor=linear)
    np.testing.assert_array_equal(got.output, source)
    # z = 1/2: h = h/2 + o/2 with o = 1, exact in float32 until it is 1.
    half = np.zeros((T, 1, 3), np.float32)
    half[..., 2] = 1
    descriptor = GRUDescriptor(output_gate_activation="none", reverse=True)
    steps = vkrnn.gru(half, np.zeros((3, 1), np.float32), descriptor=descriptor).output[:, 0, 0]
    wanted = np.ones(T)
    wanted[:30] -= 0.5 ** np.arange(1, 31)
    np.testing.assert_array_equal(steps, wanted.astype(np.float32))


@everywhere
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("H", [1, pytest.param(3, marks=pytest.mark.full)])
def test_gradients_over_many_rows(cell: str, H: int) -> None:
    """With T * N beyond lavapipe's limit for loops, sums over all rows include every row."""
    optional = {"lstm": {"peephole"}, "gru": {"secondary_bias"}}.get(cell, set())
    given = frozenset({"input_weight", "bias", *optional})
    options = {"single_gate_rnn": {"activation": "tanh"}, "gru": {"reset_after": True}}.get(cell, {})
    T, N = 20, 15_000
    assert T * N > 4 * ITERATIONS

    def positive(name: str, shape: tuple[int, ...]) -> Array:  # in sums of one sign, a missing row shows
        return np.abs(uniform(len(name), *shape))

    compare(Case(cell, T, N, 2, H, options, given), positive)


@everywhere
@pytest.mark.full
def test_gru_gradients_over_many_rows_with_the_reset_before() -> None:
    """The candidate's weights have a product of their own."""
    case = Case("gru", 20, 15_000, 2, 2, {"bidirectional": True}, frozenset({"input_weight", "bias", "init_state"}))
    compare(case, lambda name, shape: np.abs(uniform(len(name), *shape)))


@everywhere
def test_every_row_is_counted() -> None:
    """With sources and gradients of 1, each gradient is the number of rows, which float32 sums represent exactly."""
    T, N, I, H = 50, 10_000, 3, 2
    assert T * N > 7 * ITERATIONS
    ones = np.ones((T, N, I), np.float32)
    states = np.ones((T, N, H), np.float32)
    gradients = vkrnn.single_gate_rnn_gradients(
        ones,
        np.zeros((H, H), np.float32),
        states,
        states,  # z = 1 = h, and dz = 1 since there is no recurrent weight
        input_weight=np.ones((H, I), np.float32),
        bias=np.zeros(H, np.float32),
        init_state=np.ones((N, H), np.float32),
        descriptor=SingleGateRNNDescriptor(activation="none"),
    )
    assert gradients.input_weight.tolist() == [[T * N] * I] * H
    assert gradients.bias.tolist() == [T * N] * H
    assert gradients.recurrent_weight.tolist() == [[T * N] * H] * H
    np.testing.assert_array_equal(gradients.source, H * ones)


@everywhere
def test_sums_over_many_features() -> None:
    """One step with half a million features is one long sum, exact in whole numbers."""
    I, H = 8 * ITERATIONS, 2
    source = np.ones((1, 3, I), np.float32)
    weight = np.ones((H, I), np.float32)
    linear = SingleGateRNNDescriptor(activation="none", training=True)
    arguments = (source, np.zeros((H, H), np.float32))
    forward = vkrnn.single_gate_rnn(*arguments, input_weight=weight, descriptor=linear)
    np.testing.assert_array_equal(forward.output, np.full((1, 3, H), I, np.float32))
    above = np.ones((1, 3, H), np.float32)
    gradients = vkrnn.single_gate_rnn_gradients(
        *arguments, above, forward.z_state, input_weight=weight, descriptor=linear
    )
    np.testing.assert_array_equal(gradients.source, np.full((1, 3, I), H, np.float32))
    np.testing.assert_array_equal(gradients.input_weight, np.full((H, I), 3, np.float32))


# Large calls


@everywhere
@pytest.mark.parametrize("cell", GATES)
def test_weights_beyond_a_processors_caches(cell: str) -> None:
    """If weights exceed the caches, the CPU computes the units in parts, in reverse order at every other step."""
    case = Case(cell, 5, 3, 7, 700, present=frozenset({"input_weight"}))
    compare(case, lambda _, shape: uniform(5, *shape))


@everywhere
def test_an_input_beyond_a_storage_buffer() -> None:
    """A source of 140 MiB, forward and gradients, including the gradient of the source."""
    T, N, I, H = 12, 1_024, 3_000, 3
    source = uniform(1, T, N, I)
    assert source.nbytes > 1.09 * STORAGE_BUFFER
    weight, recurrent = uniform(2, H, I, scale=1 / np.sqrt(I)), uniform(3, H, H)
    above = uniform(4, T, N, H)
    tanh = SingleGateRNNDescriptor(activation="tanh", training=True)
    forward = vkrnn.single_gate_rnn(source, recurrent, input_weight=weight, descriptor=tanh)
    # The reference gets the projected source. Arrays as large as the source are computed from it step by step.
    projected = np.stack([step.astype(np.float64) @ weight.T.astype(np.float64) for step in source])
    wanted = vkrnn.reference.single_gate_rnn(projected, recurrent, descriptor=tanh)
    assert_close(forward._asdict(), wanted._asdict())
    got = vkrnn.single_gate_rnn_gradients(
        source, recurrent, above, forward.z_state, input_weight=weight, descriptor=tanh
    )
    delta, d_recurrent = vkrnn.reference.single_gate_rnn_gradients(
        projected, recurrent, above, forward.z_state, descriptor=tanh
    )
    d_weight = sum(d.T @ step.astype(np.float64) for d, step in zip(delta, source, strict=True))
    rest = {"recurrent_weight": d_recurrent, "input_weight": np.asarray(d_weight)}
    assert_close({name: getattr(got, name) for name in rest}, rest)
    for k in range(T):
        assert_close({"source": got.source[k]}, {"source": delta[k] @ weight})


@everywhere
@pytest.mark.full
def test_sequences_beyond_a_storage_buffer_in_every_step() -> None:
    """Gates of 140 MiB are read, stored and differentiated by the steps, and summed over 768,000 rows."""
    T, N, H = 12, 64_000, 16
    source = uniform(1, T, N, 3 * H)
    assert source.nbytes > 1.09 * STORAGE_BUFFER
    weight = uniform(2, 3 * H, H, scale=1 / np.sqrt(H))
    descriptor = GRUDescriptor(training=True, reset_after=True)
    forward = vkrnn.gru(source, weight, descriptor=descriptor)
    above = uniform(3, T, N, H)
    got = vkrnn.gru_gradients(source, weight, above, forward.z_state, forward.output, descriptor=descriptor)
    assert got.source.nbytes == forward.z_state.nbytes == source.nbytes
    for first in (0, N // 2, N - 1000):  # sequences are independent
        part = slice(first, first + 1000)
        wanted = vkrnn.reference.gru(source[:, part], weight, descriptor=descriptor)
        assert_close({name: array[:, part] for name, array in forward._asdict().items()}, wanted._asdict())
        mine = (source[:, part], weight, above[:, part], forward.z_state[:, part], forward.output[:, part])
        wanted = vkrnn.reference.gru_gradients(*mine, descriptor=descriptor)
        assert_close({"source": got.source[:, part]}, {"source": wanted.source})
    total = np.zeros((3 * H, H))  # sums of the gradients checked above
    for k in range(1, T):
        into = got.source[k].astype(np.float64)
        into[:, 2 * H :] *= forward.z_state[k, :, H : 2 * H]  # the reset gate is applied after the candidate's product
        total += into.T @ forward.output[k - 1].astype(np.float64)
    assert_close({"recurrent_weight": got.recurrent_weight}, {"recurrent_weight": total})


# Calls that are too large


def room() -> int:
    """Return more bytes than the device has free, and than the host has, which is lavapipe's memory."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return max(pages * page, vkrnn.default_device().memory_bytes)


def too_large(device: vkrnn.Device) -> dict[str, Array]:
    """Return a call that does not fit on the device, though its arguments fit in the host's memory."""
    H = 1_000
    N = 100_000
    # Per step, N * H floats of output and, except on the native CPU, four times that for the projection. The call needs
    # at least twice the free memory.
    T = max(1, int(2 * room() / ((1 if device.backend == "native" else 5) * 4 * N * H)) + 1)
    return {
        "source": np.zeros((T, N, 1), np.float32),
        "recurrent_weight": np.zeros((4 * H, H), np.float32),
        "input_weight": np.zeros((4 * H, 1), np.float32),
    }


def test_a_call_that_cannot_fit(own: vkrnn.Device) -> None:
    """The MemoryError names the bytes needed and free. No memory is kept, and the next call works."""
    for _ in range(3):  # the third call is recorded for reuse
        small_call(own)
    held = own.statistics()["bytes_allocated"]
    with pytest.raises(MemoryError, match=r"^\[lstm 'huge'\] .*\d.* [kMGTP]?i?B .*\d.* [kMGTP]?i?B .*free"):
        vkrnn.lstm(**too_large(own), name="huge", device=own)
    small_call(own)
    assert own.statistics()["bytes_allocated"] <= held


def test_a_call_that_no_machine_has_room_for(own: vkrnn.Device) -> None:
    """A broadcast array of any size is found too large before it is copied."""
    source = np.broadcast_to(np.float32(1), (1_000_000, 1_000_000, 4))
    with pytest.raises(MemoryError, match=r"^\[single_gate_rnn\] .*\d.* [kMGTP]?i?B .*\d.* [kMGTP]?i?B .*free"):
        vkrnn.single_gate_rnn(source, np.zeros((4, 4), np.float32), device=own)
    small_call(own)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(("limit", "line"), [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_memory_limit_of_a_process(limit: str, line: str) -> None:
    """The device frees unused memory when an allocation fails, and the message says what the limit leaves."""
    program = f"""
    import pathlib, re, resource, numpy as np, vkrnn
    MEBIBYTE = 1 << 20
    device = vkrnn.Device("cpu (")
    dropped = [vkrnn.zeros(10 * MEBIBYTE // 4, device=device) for _ in range(9)]
    del dropped
    status = pathlib.Path("/proc/self/status").read_text()
    used = int(re.search(r"{line}:\\s*(\\d+) kB", status)[1]) * 1024
    resource.setrlimit(resource.{limit}, (used + 8 * MEBIBYTE, used + 8 * MEBIBYTE))
    print(vkrnn.zeros(30 * MEBIBYTE // 4, device=device).nbytes // MEBIBYTE, "MiB")
    try:
        vkrnn.empty(3 << 30, np.float16, device=device)
    except MemoryError as error:
        asked, free = re.findall(r"\\(([\\d,]+) bytes\\)", str(error))
        print(asked, 60 * MEBIBYTE < int(free.replace(",", "")) < 140 * MEBIBYTE)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
    )
    assert done.stdout == "30 MiB\n6,442,450,944 True\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("resident", [False, True])
def test_a_result_holds_little_more_than_its_elements(resident: bool) -> None:  # noqa: FBT001
    """A kept result takes less than 2,000 bytes, even if it is a single number."""
    device = vkrnn.Device("cpu (")
    source, weight = np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32)
    arguments = [vkrnn.asarray(array, device=device) if resident else array for array in (source, weight)]

    def held() -> NDArray[np.int64]:
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return np.array([resident_pages * os.sysconf("SC_PAGE_SIZE"), device.statistics()["bytes_allocated"]])

    kept = [vkrnn.single_gate_rnn(*arguments, device=device).output for _ in range(100)]
    before, count = held(), 4_000
    kept += [vkrnn.single_gate_rnn(*arguments, device=device).output for _ in range(count)]
    assert (held() - before < count * 2_000).all()
    device.close()
