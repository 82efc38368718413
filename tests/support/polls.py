"""Polls that tests hand in, so that no test depends on how long a call takes. Test programs import this module, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vkrnn import _core


@contextmanager
def polling(act: Callable[[], object], at: int = 1) -> Iterator[None]:
    """Run `act` at this poll of the calls made meanwhile, in the calling thread.

    Calls then poll after each piece of work and at each wait, so that even short calls do.
    """
    left = at

    def poll() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    _core.poll_for_test(poll)
    try:
        yield
    finally:
        _core.poll_for_test(None)
