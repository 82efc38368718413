"""`with device:` and `fp32_precision` blocks that are left in another order than they were entered."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import vkrnn

Kind = tuple[list[Any], Callable[[Any], contextlib.AbstractContextManager[object]], Callable[[], Any]]


@pytest.fixture(name="kind", params=["device", "precision"])
def _kind(request: pytest.FixtureRequest) -> Kind:
    """Return three values, what makes a block of one of them, and what returns the innermost block's value."""
    if request.param == "device":
        devices = [vkrnn.Device("cpu (") for _ in range(3)]
        return devices, lambda device: device, vkrnn.default_device
    precise = vkrnn.Device("cpu (", float32="ieee")
    values: Any = ["tf32", "ieee", "tf32"]
    return values, vkrnn.fp32_precision, lambda: precise.float32


def block(make: Any, value: Any) -> Iterator[None]:
    """Yield within a block."""
    with make(value):
        yield


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_generators_end_in_any_order(kind: Kind, order: tuple[int, ...]) -> None:
    """After each end, the value is that of the last block that was entered and has not ended."""
    values, make, current = kind
    before = current()
    blocks = {number: block(make, value) for number, value in enumerate(values)}
    for number, value in enumerate(values):
        next(blocks[number])
        assert current() is value
    for number in order:
        blocks.pop(number).close()  # type: ignore[attr-defined]
        assert current() is (values[max(blocks)] if blocks else before)


def test_a_device_twice() -> None:
    """Each block of the same device ends one of them, also after an error."""
    first, second = vkrnn.Device("cpu ("), vkrnn.Device("cpu (")
    with first:
        with contextlib.suppress(KeyError), second, first:
            raise KeyError
        assert vkrnn.default_device() is first
        with second:
            left = block(lambda device: device, first)
            next(left)
            left.close()  # type: ignore[attr-defined]
            assert vkrnn.default_device() is second
        assert vkrnn.default_device() is first
    assert vkrnn.default_device() is not first


def test_tasks_have_blocks_of_their_own(kind: Kind) -> None:
    """Tasks that take turns within their blocks see their own values, and leave the caller's as it was."""
    values, make, current = kind
    before = current()

    async def task(number: int) -> list[bool]:
        seen = []
        with make(values[number]):
            for other in range(number, 3):
                await asyncio.sleep(0)
                with make(values[other]):
                    await asyncio.sleep(0)
                    seen.append(current() is values[other])
                seen.append(current() is values[number])
        return [*seen, current() is before]

    async def main() -> list[list[bool]]:
        return await asyncio.gather(*map(task, range(3)))

    assert all(itertools.chain(*asyncio.run(main())))
    assert current() is before


def test_async_generators(kind: Kind) -> None:
    """The blocks of two asynchronous generators of one task, the outer one closed first."""
    values, make, current = kind

    async def within(value: Any) -> AsyncIterator[None]:
        with make(value):
            yield

    async def main() -> None:
        before = current()
        first, second = within(values[0]), within(values[1])
        await anext(first)  # type: ignore[arg-type]
        await anext(second)  # type: ignore[arg-type]
        await first.aclose()  # type: ignore[attr-defined]
        assert current() is values[1]
        await second.aclose()  # type: ignore[attr-defined]
        assert current() is before

    asyncio.run(main())


def test_a_block_that_ends_in_another_context(kind: Kind) -> None:
    """It changes nothing there."""
    values, make, current = kind
    started = block(make, values[0])
    contextvars.copy_context().run(next, started)
    before = current()
    with make(values[1]):
        started.close()  # type: ignore[attr-defined]
        assert current() is values[1]
    assert current() is before
