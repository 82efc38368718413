"""Signals during calls: five hundred at random moments, handlers that raise, and handlers that make calls."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import vkrnn
from cases import Case, gradient_inputs, inputs
from polls import polling
from resident import is_native
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
    # On llvmpipe, the longer call polls while it records commands, and the shorter one while it waits.
    for case in calls:
        given = inputs(case)
        with polling(lambda: signal.raise_signal(signal.SIGALRM)):
            np.testing.assert_array_equal(vkrnn.lstm(**given, device=either).output, wanted[case])
    refused = "[lstm] the device is busy with another call of this thread, which a signal interrupted"
    assert len(during) == len(calls)
    assert set(during) <= ({True} if is_native(either) else {True, refused})


def test_a_handler_that_closes_the_device(own: vkrnn.Device) -> None:
    """It is closed, or an error in the call says why not; in that case it can be closed later."""
    case = Case("lstm", 1500, 8, 65, 66, {}, frozenset({"input_weight", "bias"}))
    vkrnn.lstm(**inputs(case), device=own)
    signal.signal(signal.SIGALRM, lambda *_: own.close())

    def call_twice() -> None:
        for _ in range(2):
            vkrnn.lstm(**inputs(case), device=own)

    with (
        polling(lambda: signal.raise_signal(signal.SIGALRM)),
        pytest.raises(vkrnn.DeviceError, match=r"the device is (closed|busy with another call of this thread)"),
    ):
        call_twice()
    own.close()
    with pytest.raises(vkrnn.DeviceError, match="the device is closed"):
        vkrnn.lstm(**inputs(case), device=own)


def test_an_interrupted_call(own_vulkan: vkrnn.Device) -> None:
    """A handler that raises ends a long call, and the next call on the device is right."""
    steps = 200_000
    source, weight = np.ones((steps, 1, 1), np.float32), np.full((1, 1), 0.5, np.float32)
    (short,) = vkrnn.single_gate_rnn(source[:10], weight, device=own_vulkan)
    before = own_vulkan.statistics()["dispatches"]
    with polling(lambda: signal.raise_signal(signal.SIGALRM), at=3), pytest.raises(Stop):
        vkrnn.single_gate_rnn(source, weight, device=own_vulkan)
    assert 0 < own_vulkan.statistics()["dispatches"] - before < steps
    (again,) = vkrnn.single_gate_rnn(source[:10], weight, device=own_vulkan)
    np.testing.assert_array_equal(short, again)
    assert (own_vulkan.lost, own_vulkan.closed) == (False, False)
