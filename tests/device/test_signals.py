"""Signals during calls: five hundred at random moments, Ctrl-C, and handlers that make calls."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import numpy as np
import pytest

import vkrnn
from cases import Case, gradient_inputs, inputs
from resident import is_native, position
from scale import scaled

SIGNALS = scaled(500, 200)
pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signal.setitimer on this system")


class Stop(Exception):  # noqa: N818
    """The exception that the handler raises."""


def raise_stop(*_: object) -> None:
    """Raise `Stop`."""
    raise Stop


@pytest.fixture(name="_handler", autouse=True)
def _stop_at_the_alarm() -> Iterator[None]:
    # Python drops an exception that a handler raises during a callback of the garbage collector. Hypothesis and JAX
    # install such callbacks, so the test could wait forever.
    gc.disable()
    before = signal.signal(signal.SIGALRM, raise_stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


def test_signals_at_random_moments(either: vkrnn.Device) -> None:
    case = Case("lstm", 12, 5, 17, 18, {}, frozenset({"input_weight", "bias", "init_state"}))
    given, training = inputs(case), case.descriptor(training=True)
    wanted = vkrnn.lstm(**given, descriptor=training, device=either)
    arrays = {name: vkrnn.asarray(array, device=either) for name, array in given.items()}
    above = {name: vkrnn.asarray(array, device=either) for name, array in gradient_inputs(case, wanted).items()}

    def assert_right() -> None:
        for array, same in zip(vkrnn.lstm(**given, descriptor=training, device=either), wanted, strict=True):
            np.testing.assert_array_equal(array, same)

    rng = np.random.default_rng(1)
    for number in range(SIGNALS):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-2))
            while True:
                if number % 2:
                    vkrnn.lstm(**given, descriptor=training, device=either)
                else:
                    vkrnn.lstm_gradients(**arrays, **above).source.numpy()
        except Stop:
            pass
        assert_right()
    assert not either.lost


def test_a_handler_that_makes_calls(either: vkrnn.Device) -> None:
    """The interrupted call is right, and so is the handler's unless the device is recording commands."""
    calls = [Case("lstm", T, 8, 65, 66, {}, frozenset({"input_weight", "bias"})) for T in (1500, 400)]
    short = Case("lstm", 3, 70, 130, 131, {}, frozenset({"input_weight", "bias"}))
    wanted = {case: vkrnn.lstm(**inputs(case), device=either).output for case in (*calls, short)}
    during: list[bool | str] = []

    def call(*_: object) -> None:
        try:
            got = vkrnn.lstm(**inputs(short), device=either).output
            during.append(np.array_equal(got, wanted[short]))
        except vkrnn.DeviceError as error:
            during.append(str(error))

    signal.signal(signal.SIGALRM, call)
    # On llvmpipe, a signal arrives while the longer call records commands, or while the shorter one waits.
    for case, most in zip(calls, (scaled(5, 2), scaled(20, 6)), strict=True):
        given = inputs(case)
        while len(during) < most:
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            np.testing.assert_array_equal(vkrnn.lstm(**given, device=either).output, wanted[case])
    refused = "[lstm] the device is busy with another call of this thread, which a signal interrupted"
    assert set(during) <= ({True} if is_native(either) else {True, refused})


def test_a_handler_that_closes_the_device(own: vkrnn.Device) -> None:
    """It is closed, or an error in the call says why not; in that case it can be closed later."""
    case = Case("lstm", 1500, 8, 65, 66, {}, frozenset({"input_weight", "bias"}))
    vkrnn.lstm(**inputs(case), device=own)
    signal.signal(signal.SIGALRM, lambda *_: own.close())
    signal.setitimer(signal.ITIMER_REAL, 0.05)

    def call_for_ever() -> None:
        while True:
            vkrnn.lstm(**inputs(case), device=own)

    with pytest.raises(vkrnn.DeviceError, match=r"the device is (closed|busy with another call of this thread)"):
        call_for_ever()
    own.close()
    with pytest.raises(vkrnn.DeviceError, match="the device is closed"):
        vkrnn.lstm(**inputs(case), device=own)


INTERRUPTED = """
    import signal
    import numpy as np
    import vkrnn

    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored when the tests start
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
    """Ctrl-C during a long call is a KeyboardInterrupt, and the next call on the device is right."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
        env=os.environ | {"VKRNN_DEVICE": str(position(native=False))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            time.sleep(1)  # until the call has started, which the program checks
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert out.splitlines() == ["interrupted True", "right True False False"], err
    assert process.returncode == 0
