"""Fixtures, the device that tests run on, and the rule that the validation layers must be without messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("VKRNN_CACHE_DIR", str(ROOT / ".cache" / "vkrnn"))
# Before NumPy is imported. The reference's products are small, and OpenBLAS's threads spin while they wait for each
# other: with them the large cases take six times the processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# JAX takes a GPU where there is one; vkrnn takes arrays of the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import vkrnn  # noqa: E402
from oracles import require  # noqa: E402
from resident import VULKAN_WAYS, WAYS, opened  # noqa: E402
from scale import FULL  # noqa: E402
from vkrnn import _core  # noqa: E402


def _enter(wanted: str) -> None:
    """Have calls run on that device where they name none: "llvmpipe", or "llvmpipe gemm=tiled lanes=4 rows=4"."""
    selector, *options = wanted.split()
    os.environ["VKRNN_DEVICE"] = selector  # for threads and processes that tests start, which are outside of the block
    pairs = dict(option.split("=") for option in options)
    vkrnn.Device(
        int(selector) if selector.isdecimal() else selector,
        **{name: int(value) if value.isdecimal() else value for name, value in pairs.items()},
    ).__enter__()


if "VKRNN_TEST_DEVICE" in os.environ:
    _enter(os.environ["VKRNN_TEST_DEVICE"])  # here, not in a fixture, so that all that pytest runs is within the block

VALIDATION = os.environ.get("VKRNN_VALIDATION") == "1"
os.environ.setdefault("VKRNN_FUZZ_SEED", str(time.time_ns() % 2**32))  # here, so that xdist's workers inherit it
_messages: list[str] = []  # of this process and, in xdist's controller, of its workers


def pytest_report_header() -> str:
    """Show what test_fuzz draws from, and whether all tests run."""
    return f"VKRNN_FUZZ_SEED={os.environ['VKRNN_FUZZ_SEED']} VKRNN_TESTS={'full' if FULL else 'short'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that only a full run has."""
    long = [] if FULL else [item for item in items if item.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def device() -> vkrnn.Device:
    """Return the device that calls run on by default."""
    return vkrnn.default_device()


@pytest.fixture(params=WAYS)
def own(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a device of the test's own, which it may close; of either kind, memory goes every way."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(params=VULKAN_WAYS)
def own_vulkan(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a Vulkan device of the test's own, which it may close or lose; memory goes either way."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module", params=WAYS)
def either(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a device of either kind for a module's tests; memory goes every way."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module", params=VULKAN_WAYS)
def vulkan(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a Vulkan device for a module's tests; memory goes either way."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module", params=["native", "mapped"])
def kind(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return the CPU itself, then a Vulkan device, for a module's tests."""
    with opened(request.param) as device:
        yield device


@pytest.fixture
def current(kind: vkrnn.Device) -> Iterator[vkrnn.Device]:
    """Have a test's calls run on the CPU itself, then on a Vulkan device."""
    with kind:
        yield kind


@pytest.fixture(scope="session")
def vulkan_build() -> None:
    """Skip where vkrnn was built without Vulkan: what a driver or its absence does cannot be seen there."""
    if "built without Vulkan" in (problem := _core.vulkan_problem()):
        pytest.skip(problem)


@pytest.fixture(scope="session")
def torch() -> Any:
    """Return PyTorch, or skip where it is not installed."""
    return require("torch")


@pytest.fixture(autouse=True)
def _no_validation_messages() -> Iterator[None]:
    """Fail the test that made the validation layers speak."""
    before = len(_core.validation_messages()) if VALIDATION else 0
    yield
    if VALIDATION:
        new = _core.validation_messages()[before:]
        assert not new, "the validation layers say:\n" + "\n".join(new)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Close the devices, which makes the layers speak of what was left; fail the session if they ever spoke."""
    if not VALIDATION:
        return
    is_worker = hasattr(session.config, "workeroutput")
    if is_worker or not session.config.getoption("numprocesses", None):  # xdist's controller runs no tests
        for device in vkrnn.devices():
            vkrnn.zeros(0, device=device.index).device.close()  # the one that calls share
        _messages.extend(_core.validation_messages())
    if is_worker:
        session.config.workeroutput["validation_messages"] = list(_messages)
    if _messages:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect what an xdist worker's layers said."""
    _messages.extend(getattr(node, "workeroutput", {}).get("validation_messages", []))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the messages, or that there are none."""
    if VALIDATION:
        terminalreporter.section("validation layers")
        terminalreporter.write_line("\n".join(_messages) or "no messages")


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip what the strategies that VKRNN_TEST_DEVICE fixes do not fit; without it, that is a failure."""
    outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    fixed = "=" in os.environ.get("VKRNN_TEST_DEVICE", "")
    if fixed and isinstance(error, NotImplementedError) and "does not fit this call" in str(error):
        outcome.force_exception(pytest.skip.Exception(str(error)))
