"""Fixtures, the device that tests run on, and the rule that validation layers must report nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("VKRNN_CACHE_DIR", str(ROOT / ".cache" / "vkrnn"))
# Set before NumPy is imported. The reference's products are small, and OpenBLAS's threads spin while they wait: with
# them, the large cases take six times the processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported
# Tests of JAX are on its CPU, but for those that name the GPU.
_on_cuda = any(find_spec(f"jax_cuda{major}_plugin") for major in (12, 13))
os.environ.setdefault("JAX_PLATFORMS", "cpu,cuda" if _on_cuda else "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes use the GPU

import vkrnn  # noqa: E402
from oracles import require  # noqa: E402
from plans import portable_device  # noqa: E402
from prepared_runs import record_runs  # noqa: E402
from resident import VULKAN_WAYS, WAYS, opened  # noqa: E402
from scale import MERGE, MODE  # noqa: E402
from vkrnn import _core  # noqa: E402


def _enter(wanted: str) -> None:
    """Make this device the current one, given as "llvmpipe" or "llvmpipe gemm=tiled lanes=4 rows=4"."""
    selector, *options = wanted.split()
    os.environ["VKRNN_DEVICE"] = selector  # for threads and processes, to which the block does not apply
    pairs = dict(option.split("=") for option in options)
    vkrnn.Device(
        int(selector) if selector.isdecimal() else selector,
        **{name: int(value) if value.isdecimal() else value for name, value in pairs.items()},
    ).__enter__()


if "VKRNN_TEST_DEVICE" in os.environ:
    _enter(
        os.environ["VKRNN_TEST_DEVICE"]
    )  # here and not in a fixture, so that it applies to everything that pytest runs

VALIDATION = os.environ.get("VKRNN_VALIDATION") == "1"
os.environ.setdefault("VKRNN_FUZZ_SEED", str(time.time_ns() % 2**32))  # here, so that xdist's workers inherit it
_messages: list[str] = []  # from this process and, in xdist's controller, its workers


def pytest_report_header() -> str:
    """Show the seed of test_fuzz, and whether all tests run."""
    return f"VKRNN_FUZZ_SEED={os.environ['VKRNN_FUZZ_SEED']} VKRNN_TESTS={MODE}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `full` in short runs."""
    long = [] if MERGE else [item for item in items if item.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def device() -> vkrnn.Device:
    """Return the device that calls run on by default."""
    return vkrnn.default_device()


@pytest.fixture(params=WAYS)
def own(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a device that the test may close: CPU and Vulkan, with mapped and with staged memory."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(params=VULKAN_WAYS)
def own_vulkan(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a Vulkan device that the test may close or lose, with mapped and with staged memory."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module", params=WAYS)
def either(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a device for a module's tests: CPU and Vulkan, with mapped and with staged memory."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module", params=VULKAN_WAYS)
def vulkan(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return a Vulkan device for a module's tests, with mapped and with staged memory."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module", params=["native", "mapped"])
def kind(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    """Return the native CPU device, then a Vulkan device, for a module's tests."""
    with opened(request.param) as device:
        yield device


@pytest.fixture
def current(kind: vkrnn.Device) -> Iterator[vkrnn.Device]:
    """Run a test's calls on the native CPU device, then on a Vulkan device."""
    with kind:
        yield kind


@pytest.fixture(scope="module")
def portable() -> Iterator[vkrnn.Device]:
    """Return a Vulkan device whose plans are the same on every machine, for a module's tests."""
    device = portable_device()
    yield device
    device.close()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the objects that run calls with kept weights, once per call."""
    return record_runs(monkeypatch)


@pytest.fixture
def torch_seed() -> None:
    """Let PyTorch draw the same numbers in each run of a test."""
    require("torch").manual_seed(0)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Let PyTorch record no gradients."""
    with require("torch").no_grad():
        yield


@pytest.fixture(scope="session")
def vulkan_build() -> None:
    """Skip the test if vkrnn was built without Vulkan, because it is about drivers."""
    if "built without Vulkan" in (problem := _core.vulkan_problem()):
        pytest.skip(problem)


@pytest.fixture(scope="session")
def torch() -> Any:
    """Return PyTorch, or skip the test if it is not installed."""
    return require("torch")


@pytest.fixture(autouse=True)
def _no_validation_messages() -> Iterator[None]:
    """Fail a test during which the validation layers reported something."""
    before = len(_core.validation_messages()) if VALIDATION else 0
    yield
    if VALIDATION:
        new = _core.validation_messages()[before:]
        assert not new, "the validation layers report:\n" + "\n".join(new)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Close the devices, so that the layers report leaks; fail the session if there were any messages."""
    if not VALIDATION:
        return
    is_worker = hasattr(session.config, "workeroutput")
    if is_worker or not session.config.getoption("numprocesses", None):  # xdist's controller runs no tests
        for device in vkrnn.devices():
            vkrnn.zeros(0, device=device.index).device.close()  # the device that all calls by this index share
        _messages.extend(_core.validation_messages())
    if is_worker:
        session.config.workeroutput["validation_messages"] = list(_messages)
    if _messages:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the messages of an xdist worker's layers."""
    _messages.extend(getattr(node, "workeroutput", {}).get("validation_messages", []))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the messages, or that there are none."""
    if VALIDATION:
        terminalreporter.section("validation layers")
        terminalreporter.write_line("\n".join(_messages) or "no messages")


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip a test if the strategies fixed by VKRNN_TEST_DEVICE do not fit; otherwise that is a failure."""
    outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    fixed = "=" in os.environ.get("VKRNN_TEST_DEVICE", "")
    if fixed and isinstance(error, NotImplementedError) and "does not fit this call" in str(error):
        outcome.force_exception(pytest.skip.Exception(str(error)))
