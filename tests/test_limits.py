"""Long, large, too large, interrupted, many at once: what a call must survive, and the next call after it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CASES, GATES, Case, gradient_inputs, inputs
from comparison import assert_close, limits
from float32 import Program
from tolerances import FLOAT32
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

Array = NDArray[Any]

STORAGE_BUFFER = 128 << 20  # bytes: the most that a storage buffer of lavapipe's may have
ITERATIONS = 65_535  # after which lavapipe 22.3 silently ends a shader's loops


@pytest.fixture(name="own")
def _own() -> Iterator[vkrnn.Device]:
    device = vkrnn.Device(vkrnn.default_device().index)
    yield device
    device.close()


def uniform(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Draw an array in float32 without one in float64."""
    array = np.random.default_rng(seed).random(shape, np.float32)
    array -= np.float32(0.5)
    array *= np.float32(2 * scale)
    return array


def small_call(device: vkrnn.Device | None = None) -> None:
    """Make a call and check it: the device is all right."""
    case = Case("lstm", 5, 3, 7, 4, present=frozenset({"input_weight", "bias"}))
    arrays = inputs(case)
    got = vkrnn.lstm(**arrays, device=device)
    assert_close(got._asdict(), vkrnn.reference.lstm(**arrays)._asdict())


def compare(case: Case, above: Callable[[str, tuple[int, ...]], Array], names: tuple[str, ...] = ()) -> None:
    """Run a case too long for the fixed tolerance, forward and gradients; `above` draws the latter's upstream.

    A result may have twice the error of the NumPy program in float32.
    """
    arrays = inputs(case)
    device, reference = (getattr(module, case.cell) for module in (vkrnn, vkrnn.reference))
    forward = device(**arrays, descriptor=case.descriptor(training=True))
    wanted = reference(**arrays, descriptor=case.descriptor(training=True))._asdict()
    program = Program(case, arrays)
    assert_close(forward._asdict(), wanted, limits(case, wanted, program.forward()))
    upstream = gradient_inputs(case, forward)
    upstream |= {name: above(name, array.shape) for name, array in upstream.items() if name.endswith("gradient")}
    device, reference = (getattr(module, f"{case.cell}_gradients") for module in (vkrnn, vkrnn.reference))
    got = device(**arrays, **upstream, descriptor=case.descriptor())._asdict()
    wanted = reference(**arrays, **upstream, descriptor=case.descriptor())._asdict()
    assert set(names) <= set(wanted)
    assert_close(got, wanted, limits(case, wanted, program.gradients(upstream)))


# Long


LONG = [
    Case("single_gate_rnn", 100_000, 1, 2, 3, {"activation": "tanh"}, frozenset({"input_weight", "bias"})),
    Case("lstm", 100_000, 1, 8, 2, {}, frozenset({"bias", "init_state", "init_cell"})),
    Case("gru", 100_000, 1, 2, 1, {"reset_after": True}, frozenset({"input_weight", "secondary_bias"})),
]


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.cell)
def test_a_hundred_thousand_steps(case: Case) -> None:
    """The last steps are as right as the first, and so are sums over all of them."""
    compare(case, lambda name, shape: uniform(len(name), *shape))


def test_a_hundred_thousand_steps_to_and_fro() -> None:
    """Both directions, and a GRU of two phases: against a hand-written sum, since every step is the same.

    Without recurrent weight, each step of a linear RNN is its source; of this GRU, a running mean that ends at it.
    """
    T = 100_000  # noqa: N806
    source = uniform(1, T, 1, 2)
    linear = SingleGateRNNDescriptor(bidirectional=True, activation="none")
    got = vkrnn.single_gate_rnn(source, np.zeros((2, 1, 1), np.float32), descriptor=linear)
    np.testing.assert_array_equal(got.output, source)
    # z = 1/2 exactly: h = h/2 + o/2 with o = 1 in every step, exact in float32 until it is 1.
    half = np.zeros((T, 1, 3), np.float32)
    half[..., 2] = 1
    descriptor = GRUDescriptor(output_gate_activation="none", reverse=True)
    steps = vkrnn.gru(half, np.zeros((3, 1), np.float32), descriptor=descriptor).output[:, 0, 0]
    wanted = np.ones(T)
    wanted[:30] -= 0.5 ** np.arange(1, 31)
    np.testing.assert_array_equal(steps, wanted.astype(np.float32))


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("H", [1, 3])
def test_gradients_over_many_rows(cell: str, H: int) -> None:  # noqa: N803
    """T * N far beyond the iterations after which lavapipe ends loops: sums over all rows must have every one of them."""
    optional = {"lstm": {"peephole"}, "gru": {"secondary_bias"}}.get(cell, set())
    given = frozenset({"input_weight", "bias", *optional})
    options = {"single_gate_rnn": {"activation": "tanh"}, "gru": {"reset_after": True}}.get(cell, {})
    T, N = 20, 15_000  # noqa: N806
    assert T * N > 4 * ITERATIONS

    def positive(name: str, shape: tuple[int, ...]) -> Array:  # what is left out shows in a sum of one sign
        return np.abs(uniform(len(name), *shape))

    compare(Case(cell, T, N, 2, H, options, given), positive)


def test_gru_gradients_over_many_rows_with_the_reset_before() -> None:
    """The product for the candidate's weights is one of its own."""
    case = Case("gru", 20, 15_000, 2, 2, {"bidirectional": True}, frozenset({"input_weight", "bias", "init_state"}))
    compare(case, lambda name, shape: np.abs(uniform(len(name), *shape)))


def test_every_row_is_counted() -> None:
    """Whole numbers, so that float32 sums are exact: with sources and gradients of 1 each gradient is a count of rows."""
    T, N, I, H = 50, 10_000, 3, 2  # noqa: E741, N806
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


def test_sums_over_many_features() -> None:
    """One step with half a million features: the projection is one long sum, exact in whole numbers."""
    I, H = 8 * ITERATIONS, 2  # noqa: E741, N806
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


# Large


def test_an_input_beyond_a_storage_buffer() -> None:
    """A source of 140 MiB, forward and gradients, the gradient of the source as large as that."""
    T, N, I, H = 12, 1_024, 3_000, 3  # noqa: E741, N806
    source = uniform(1, T, N, I)
    assert source.nbytes > 1.09 * STORAGE_BUFFER
    weight, recurrent = uniform(2, H, I, scale=1 / np.sqrt(I)), uniform(3, H, H)
    above = uniform(4, T, N, H)
    tanh = SingleGateRNNDescriptor(activation="tanh", training=True)
    forward = vkrnn.single_gate_rnn(source, recurrent, input_weight=weight, descriptor=tanh)
    # The reference gets the projected source, and what is as large as the source is made of it step by step.
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


def test_sequences_beyond_a_storage_buffer_in_every_step() -> None:
    """Gates, states and their gradients of 140 MiB and more, read and written by the steps themselves."""
    T, N, H = 3, 1_024, 3_000  # noqa: N806
    source = uniform(1, T, N, H)
    assert source.nbytes > STORAGE_BUFFER // 4
    T = 12  # noqa: N806
    source = np.concatenate([source, -source, source / 2, 2 * source])
    assert source.nbytes > 1.09 * STORAGE_BUFFER
    # A GRU's three gates of a third of the channels; without recurrent weight its steps are elementwise.
    weight = np.zeros((H, H // 3), np.float32)
    descriptor = GRUDescriptor(training=True, reset_after=True)
    got = vkrnn.gru(source, weight, descriptor=descriptor)
    gate, _, candidate = np.split(source, 3, axis=-1)
    state = np.zeros((N, H // 3))
    for k in range(T):
        z = 1 / (1 + np.exp(-gate[k].astype(np.float64)))
        o = np.tanh(candidate[k].astype(np.float64))
        state = z * state + (1 - z) * o
        assert_close({"output": got.output[k]}, {"output": state})
        assert_close({"z": got.z_state[k, :, : H // 3]}, {"z": z})
        assert_close({"o": got.z_state[k, :, -(H // 3) :]}, {"o": o})


# Too large


def room() -> int:
    """Return more bytes than the device can have free, and the host, which is where lavapipe has its memory."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return max(pages * page, vkrnn.default_device().memory_bytes)


def too_large() -> dict[str, Array]:
    """Return a call whose arrays the host has room for, output included, but the device does not for the whole."""
    H = 1_000  # noqa: N806
    N = 100_000  # noqa: N806
    # Per T: N * H floats of output and four times that projected, of which at least twice what there is is asked for.
    T = max(1, int(2 * room() / (5 * 4 * N * H)) + 1)  # noqa: N806
    return {
        "source": np.zeros((T, N, 1), np.float32),
        "recurrent_weight": np.zeros((4 * H, H), np.float32),
        "input_weight": np.zeros((4 * H, 1), np.float32),
    }


def test_a_call_that_cannot_fit(own: vkrnn.Device) -> None:
    """MemoryError says what is asked for and what is free; the next call works, and no memory stays behind."""
    small_call(own)
    held = own.statistics()["bytes_allocated"]
    with pytest.raises(MemoryError, match=r"^\[lstm 'huge'\] .*\d.* [kMGTP]?i?B .*\d.* [kMGTP]?i?B .*free"):
        vkrnn.lstm(**too_large(), name="huge", device=own)
    small_call(own)
    assert own.statistics()["bytes_allocated"] <= held


def test_a_call_that_no_machine_has_room_for(own: vkrnn.Device) -> None:
    """An array may be a broadcast of one number, of any size: it is found too large before it is copied."""
    source = np.broadcast_to(np.float32(1), (1_000_000, 1_000_000, 4))
    with pytest.raises(MemoryError, match=r"^\[single_gate_rnn\] .*\d.* [kMGTP]?i?B .*\d.* [kMGTP]?i?B .*free"):
        vkrnn.single_gate_rnn(source, np.zeros((4, 4), np.float32), device=own)
    small_call(own)


# Interrupted


INTERRUPTED = """
    import numpy as np
    import vkrnn

    device = vkrnn.default_device()
    steps = 20_000_000
    source, weight = np.ones((steps, 1, 1), np.float32), np.full((1, 1), 0.5, np.float32)
    (short,) = vkrnn.single_gate_rnn(source[:10], weight)
    before = device.statistics()["dispatches"]
    try:
        print("running", flush=True)
        vkrnn.single_gate_rnn(source, weight, device=device)
        print("finished")
    except KeyboardInterrupt:
        made = device.statistics()["dispatches"] - before
        print("interrupted", 0 < made < steps)
    (again,) = vkrnn.single_gate_rnn(source[:10], weight, device=device)
    print("right", np.array_equal(short, again), device.lost, device.closed)
"""


def test_an_interrupted_call() -> None:
    """Ctrl-C in the midst of a long call is a KeyboardInterrupt, and the next call on the same device is right."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            time.sleep(1)  # for the call to get under way; the script checks that it did
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert out.splitlines() == ["interrupted True", "right True False False"], err
    assert process.returncode == 0


# Many


def mixed(device: vkrnn.Device | None, case: Case) -> dict[str, Array]:
    """Run a case forward and backward."""
    arrays = inputs(case)
    forward = getattr(vkrnn, case.cell)(**arrays, descriptor=case.descriptor(training=True), device=device)
    above = gradient_inputs(case, forward)
    gradients = getattr(vkrnn, f"{case.cell}_gradients")(**arrays, **above, descriptor=case.descriptor(), device=device)
    found: dict[str, Array] = forward._asdict() | {f"d {name}": array for name, array in gradients._asdict().items()}
    return found


MIXED = [*[case for case in CASES if not case.tags][:: len(CASES) // 18], *[c for c in CASES if "wide" in c.tags][::5]]


def test_a_thousand_mixed_calls(own: vkrnn.Device) -> None:
    """What the device holds after the first round is what it holds after the last: memory, pipelines, plans."""

    def a_round() -> int:
        for case in MIXED:
            mixed(own, case)
        with pytest.raises(ValueError, match="recurrent_weight"):
            vkrnn.lstm(np.ones((5, 3, 8), np.float32), np.ones((8, 3), np.float32), device=own)
        return 2 * len(MIXED)

    a_round()
    counted = ("bytes_allocated", "pipelines", "plans")
    first = {name: own.statistics()[name] for name in counted}
    assert all(first.values())
    calls = own.statistics()["calls"]
    while own.statistics()["calls"] < calls + 1000:
        a_round()
    assert {name: own.statistics()[name] for name in counted} == first


def test_devices_are_opened_and_dropped() -> None:
    """One after the other, some of them closed by nobody; the default device has its own memory."""
    held = vkrnn.default_device().open().statistics()["bytes_allocated"]
    for _ in range(5):
        closed, dropped = vkrnn.Device(), vkrnn.Device()
        small_call(closed)
        small_call(dropped)
        assert closed.statistics()["bytes_allocated"] > 0
        closed.close()
        del dropped
        gc.collect()
    assert vkrnn.default_device().statistics()["bytes_allocated"] == held
    small_call()


def test_a_lost_device_takes_no_other_with_it(own: vkrnn.Device) -> None:
    """The call that loses it and all later ones raise; another device, and one made after, give the same bits as ever."""
    case = MIXED[3]
    wanted = mixed(None, case)
    mixed(own, case)
    own.open().lose_for_test()
    for _ in range(2):
        with pytest.raises(vkrnn.DeviceError, match="lost"):
            mixed(own, case)
        assert own.lost
    fresh = vkrnn.Device(own.index)
    try:
        for device in (None, fresh):
            for name, array in mixed(device, case).items():
                np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    finally:
        fresh.close()


def test_four_threads_on_one_device(own: vkrnn.Device) -> None:
    """Whatever they run at the same time, each gets the bits that it gets alone."""
    wanted = [mixed(own, case) for case in MIXED]

    def work(first: int) -> None:
        for i in range(3 * len(MIXED)):
            at = (first + i * (first + 1)) % len(MIXED)
            for name, array in mixed(own, MIXED[at]).items():
                np.testing.assert_array_equal(array, wanted[at][name], err_msg=f"{MIXED[at].id}: {name}")

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, first) for first in range(4)]:
            future.result()


def test_other_threads_run_while_the_device_works() -> None:
    """The interpreter's lock is released: with switching turned off, another thread only runs where it is given up."""
    source = np.ones((100_000, 1, 1), np.float32)
    weight = np.full((1, 1), 0.5, np.float32)
    vkrnn.single_gate_rnn(source[:5], weight)
    ticks, done, ready = 0, False, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done:
            ticks += 1
            ready.set()
            time.sleep(0.001)  # gives the lock up, and needs it to go on

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        ready.wait()
        before = ticks
        vkrnn.single_gate_rnn(source, weight)
        made = ticks - before
    finally:
        done = True
        sys.setswitchinterval(interval)
        thread.join()
    assert made > 10  # noqa: PLR2004 - without the lock there are two at most: one for the plan, one for the call


DESCRIPTORS = [
    SingleGateRNNDescriptor(activation="hard_sigmoid", reverse=True),
    LSTMDescriptor(training=True, forget_gate_last=True, cell_gate_activation="relu"),
    GRUDescriptor(bidirectional=True, flip_z=True, reset_after=True),
]


def call(cell: str, arrays: Mapping[str, Array], descriptor: Any) -> Any:
    """Run a cell; found by name in the other process."""
    return getattr(vkrnn, cell)(**arrays, descriptor=descriptor)


def test_descriptors_and_results_cross_processes() -> None:
    """A descriptor goes to a process of its own, which runs with it; the results come back with their names."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for cell, descriptor in zip(GATES, DESCRIPTORS, strict=True):
            gates = GATES[cell] * (2 if descriptor.bidirectional else 1)
            weight = uniform(2, *([2] if descriptor.bidirectional else []), 4 * GATES[cell], 4)
            arguments = (uniform(1, 5, 3, 4 * gates), weight)
            theirs = pool.submit(getattr(vkrnn, cell), *arguments, descriptor=descriptor).result()
            ours = getattr(vkrnn, cell)(*arguments, descriptor=descriptor)
            assert repr(theirs) == repr(ours)
            assert pool.submit(repr, descriptor).result() == repr(descriptor)
            for name, array in ours._asdict().items():
                np.testing.assert_array_equal(getattr(theirs, name), array)
