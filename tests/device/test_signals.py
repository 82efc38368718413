"""Five hundred signals at random moments of calls: each arrives, and the next call is right."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import pytest

import vkrnn
from cases import Case, gradient_inputs, inputs

SIGNALS = 500
pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")


class Stop(Exception):  # noqa: N818
    """What the handler raises."""


@pytest.fixture(name="_handler", autouse=True)
def _stop_at_the_alarm() -> Iterator[None]:
    def handle(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_at_random_moments(either: vkrnn.Device) -> None:
    case = Case("lstm", 12, 33, 65, 66, {}, frozenset({"input_weight", "bias", "init_state"}))
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
        if number % 10 == 0:
            assert_right()
    assert_right()
    assert not either.lost
