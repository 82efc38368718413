"""CUDA devices on a driver without a GPU, whose kernels do nothing: listing, memory, errors. See cuda_driver.c."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

import polls
from hidden import NO_CUDA
from tests.support.fake_cuda import environment, needs_compiler, needs_nvrtc, run

pytestmark = needs_compiler

CALL = """
import gc, numpy as np, vkrnn
from ctypes import CDLL
driver = CDLL("libcuda.so.1")
device = vkrnn.Device("cuda:0")
x, w = np.ones((5, 3, 8), np.float32), np.ones((32, 8), np.float32)
def call(x=x, w=w):
    return vkrnn.lstm(x, w, input_weight=w, device=device).output
"""


@pytest.fixture(name="fake", scope="module")
def _fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the driver and return the environment of programs that use it."""
    return environment(tmp_path_factory.mktemp("cuda"))


@needs_nvrtc
def test_devices_are_listed_and_the_others_say_why_not(fake: dict[str, str]) -> None:
    """Of two GPUs, the first is listed before the CPU. The second is too old, and is skipped with the reason."""
    listed = (
        "import vkrnn; print([d.name.split(' (')[0] for d in vkrnn.devices()]); print(vkrnn._core.skipped_devices())"
    )
    names, skipped = run(listed, fake).splitlines()
    assert literal_eval(names) == ["cuda:0", "cpu"]
    assert ("cuda:1 (Fake GPU)", "discrete_gpu", "compute capability 7.0, 8.0 is needed") in literal_eval(skipped)


def test_without_nvrtc_the_device_is_skipped(fake: dict[str, str]) -> None:
    """The reason says what was looked for, and calls run on the CPU."""
    program = """
import vkrnn
print(vkrnn.default_device().type)
print(vkrnn._core.skipped_devices()[0][2])
for refused in (lambda: vkrnn._ops.cuda.cuda_device(0, "[here]"), lambda: vkrnn.Device("cuda:0")):
    try:
        refused()
    except vkrnn.DeviceError as error:
        print(error)
"""
    kind, reason, message, other = run(program, fake, VKRNN_NVRTC="/none/libnvrtc.so").splitlines()
    assert kind == "cpu"
    assert reason == "VKRNN_NVRTC=/none/libnvrtc.so is not NVRTC: it cannot be loaded"
    assert message == f"[here] cuda:0 cannot be used: {reason}"
    assert other == f"[Device] selector: 'cuda:0' cannot be used: {reason}"


def test_a_driver_without_a_device(fake: dict[str, str]) -> None:
    """The CPU alone is listed, and asking for a CUDA device says why."""
    program = """
import vkrnn
print([device.backend for device in vkrnn.devices()])
try:
    vkrnn.Device("cuda:0")
except vkrnn.DeviceError as error:
    print(error)
"""
    listed, message = run(program, fake, **NO_CUDA).splitlines()
    assert listed == "['native']"
    assert message == "[Device] selector: 'cuda:0' cannot be used: the CUDA driver has no device"


@needs_nvrtc
def test_an_old_driver_is_named(fake: dict[str, str]) -> None:
    """NVRTC's code does not run on a driver of an earlier major version."""
    program = "import vkrnn; print(vkrnn._core.skipped_devices()[0][2])"
    assert "is newer than the driver, which is of CUDA 11.4" in run(program, fake, FAKE_CUDA_VERSION="11040")


@needs_nvrtc
def test_memory_is_freed_in_the_order_of_streams(fake: dict[str, str]) -> None:
    """Calls free what they allocate for themselves, and arrays what they hold, before or after the device is closed."""
    program = (
        CALL
        + """
print(call().shape, driver.fake_cuda_allocations())
arrays = [vkrnn.asarray(array, device=device) for array in (x, w)]
first = call(*arrays)
kept = driver.fake_cuda_allocations()
again = call(*arrays)
print(driver.fake_cuda_allocations() - kept, driver.fake_cuda_launches() > 0)
del first, again, arrays[0]
device.close()
del arrays
gc.collect()
print(driver.fake_cuda_allocations())
"""
    )
    assert run(program, fake).splitlines() == ["(5, 3, 8) 0", "1 True", "0"]


FAILURES = {
    "cuMemAllocFromPoolAsync:2": "MemoryError",
    "cuLaunchKernel:700": "DeviceError",
    "cuMemcpyHtoDAsync_v2:1": "DeviceError",
    "cuModuleLoadData:209": "DeviceError",
    "cuEventRecord:999": "DeviceError",
}


@needs_nvrtc
@pytest.mark.parametrize(("failure", "kind"), FAILURES.items(), ids=lambda value: value.partition(":")[0])
def test_errors_of_the_driver(fake: dict[str, str], failure: str, kind: str) -> None:
    """Each failure is the documented error, which names the call. The call's memory is freed, and other calls work."""
    program = (
        CALL
        + """
import os
try:
    call()
except (MemoryError, vkrnn.DeviceError) as error:
    print(type(error).__name__, str(error).startswith("[lstm] "), device.lost)
del os.environ["FAKE_CUDA_FAIL"]
gc.collect()
print(driver.fake_cuda_allocations())
if device.lost:
    device = vkrnn.Device("cuda:0")
print(call().shape)
"""
    )
    times = 2 if kind == "MemoryError" else 1  # memory is asked for again after unused memory was returned
    lines = run(program, fake, FAKE_CUDA_FAIL=f"{failure}:1:{times}").splitlines()
    assert lines == [f"{kind} True {failure.endswith(':700')}", "0", "(5, 3, 8)"]


LAYERS = """
import gc, os, numpy as np, vkrnn
from ctypes import CDLL
driver = CDLL("libcuda.so.1")
layer = "lstm", {"input_weight": np.ones((32, 8), np.float32), "recurrent_weight": np.ones((32, 8), np.float32)}
device = vkrnn.Device("cuda:0", wavefront=4)
net, x = vkrnn.network([layer] * 3, device=device, frozen=True), np.ones((10, 2, 8), np.float32)
"""


@needs_nvrtc
def test_lanes_of_a_wavefront_have_streams_of_their_own(fake: dict[str, str]) -> None:
    """Later calls use the streams of the first one, and closing the device destroys them."""
    program = (
        LAYERS
        + """
for _ in range(3):
    net.gradients(net.forward(x, training=True))
    print(driver.fake_cuda_streams(), driver.fake_cuda_lane_launches() > 0)
device.close()
print(driver.fake_cuda_streams())
"""
    )
    assert run(program, fake).splitlines() == ["3 True"] * 3 + ["0"]


@needs_nvrtc
def test_a_wavefront_is_left_out_once_waits_have_failed(fake: dict[str, str]) -> None:
    """Its launches are then those of one layer after the other, which pack their weights in the first call."""
    program = (
        LAYERS
        + """
R = np.ones((1024, 256), np.float32)
def launches(waits_fail, **wavefront):
    device = vkrnn.Device("cuda:0", **wavefront)
    net = vkrnn.network([("lstm", {"input_weight": R, "recurrent_weight": R})] * 4, device=device)
    counts = []
    for _ in range(5):
        before = driver.fake_cuda_launches()
        net.forward(np.ones((256, 1, 256), np.float32))
        counts.append(driver.fake_cuda_launches() - before)
        if waits_fail: driver.fake_cuda_fail_a_wait()
    print(device.statistics()["failed_waits"])
    device.close()
    return counts
before = driver.fake_cuda_host_allocations()
chosen, failing, in_turn = launches(False), launches(True), launches(True, wavefront=0)
print(chosen[0] != in_turn[0], failing == chosen[:3] + in_turn[:2], driver.fake_cuda_host_allocations() == before)
"""
    )
    lines = run(program, fake).splitlines()
    assert lines == ["0", "5", "5", "True True True"]


@needs_nvrtc
@pytest.mark.parametrize("failure", ["cuStreamCreate:2:2:1", "cuStreamWaitEvent:999:3:1", "cuEventRecord:999:4:1"])
def test_a_wavefront_that_fails(fake: dict[str, str], failure: str) -> None:
    """The call's memory is freed, its streams go back, and the next call works."""
    program = (
        LAYERS
        + f"""
os.environ["FAKE_CUDA_FAIL"] = "{failure}"
try:
    net.forward(x)
except (MemoryError, vkrnn.DeviceError) as error:
    print(type(error).__name__, str(error).startswith("[network] "))
del os.environ["FAKE_CUDA_FAIL"]
gc.collect()
before = driver.fake_cuda_allocations()
print(net.forward(x).output.shape, driver.fake_cuda_allocations() - before)
device.close()
print(driver.fake_cuda_streams())
"""
    )
    kind = "MemoryError" if failure.startswith("cuStreamCreate:2") else "DeviceError"
    assert run(program, fake).splitlines() == [f"{kind} True", "(10, 2, 8) 0", "0"]


@needs_nvrtc
def test_memory_for_a_packed_weight_may_run_out(fake: dict[str, str]) -> None:
    """If a packed copy cannot be allocated, the call fails, and the next call makes the copy."""
    program = (
        CALL
        + """
import os
device = vkrnn.Device("cuda:0", schedule="matrices")  # which packs its weights
arrays = [vkrnn.asarray(array, device=device) for array in (x, w)]
os.environ["FAKE_CUDA_FAIL"] = "cuMemAllocFromPoolAsync:2:2:2"  # the result is first, the copy second, tried twice
try:
    call(*arrays)
except MemoryError as error:
    print(str(error).startswith("[lstm] the call needs "))
gc.collect()
before = driver.fake_cuda_allocations()
call(*arrays)
print(driver.fake_cuda_allocations() - before)
"""
    )
    assert run(program, fake).splitlines() == ["True", "1"]


@needs_nvrtc
def test_a_compiler_with_wrong_results_is_refused(fake: dict[str, str], tmp_path: Path) -> None:
    """Each call raises an error. No file is left that would let a later process trust the compiler."""
    program = (
        CALL
        + """
for _ in range(2):
    try:
        call()
    except vkrnn.DeviceError as error:
        print(error)
"""
    )
    messages = run(program, fake, VKRNN_SELF_CHECK="1", VKRNN_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(messages) == 2
    for message in messages:
        assert message.startswith("[lstm] the kernels that NVRTC-")
        assert "expected errors of at most 0.0001 of the largest value, got" in message
    assert not list(tmp_path.glob("cuda/*.checked"))


@needs_nvrtc
def test_memory_of_the_caller(fake: dict[str, str]) -> None:
    """A call takes what it alone needs from the caller; if there is not enough, the message says how much it needs."""
    program = (
        CALL
        + """
from vkrnn import _core
arrays = [vkrnn.asarray(array, device=device) for array in (x, w, w)]
spare = vkrnn.empty((1 << 20,), device=device)
address = lambda array: array.__cuda_array_interface__["data"][0]
names = "source", "recurrent_weight", "input_weight"
prepared = _core.TensorCall(
    device._open(), "lstm", vkrnn.LSTMDescriptor(), layers=1, gradients=False, trained=1, lengths=None, packed=False,
    torch_layout=False, tf32=False, operands=[(name, 0, "float32", a.shape) for name, a in zip(names, arrays)],
)
(name, _, shape), = prepared.results
print(name, shape)
output = vkrnn.empty(shape, device=device)
before, asked = driver.fake_cuda_allocations(), []
def allocate(count):
    asked.append(count)
    return address(spare)
for _ in range(2):
    prepared.run(list(map(address, arrays)), [address(output)], 0, 0, 0, allocate)
print(asked[0] == prepared.bytes)
prepared.run(list(map(address, arrays)), [address(output)], 0, address(spare), spare.nbytes, None)
print(len(asked), 0 < asked[0] < spare.nbytes, driver.fake_cuda_allocations() - before)
try:
    prepared.run(list(map(address, arrays)), [address(output)], 0, 0, 0, lambda count: 0)
except MemoryError as error:
    print(str(error).split(", ")[-1])
def interrupted(count):
    raise RuntimeError("the allocator's own words")
for wrong in (interrupted, lambda count: address(spare) + 8):
    try:
        prepared.run(list(map(address, arrays)), [address(output)], 0, 0, 0, wrong)
    except RuntimeError as error:
        print(type(error).__name__, error)
print(call(*arrays[:2]).shape)
"""
    )
    *first, raised, misaligned, last = run(program, fake).splitlines()
    assert first == ["output (5, 3, 8)", "True", "2 True 0", "which its caller's pool does not have"]
    assert "the allocator's own words" in raised
    assert "the caller's memory is not aligned" in misaligned
    assert last == "(5, 3, 8)"


@needs_nvrtc
def test_kernels_are_compiled_once(fake: dict[str, str], tmp_path: Path) -> None:
    """Compiled kernels are stored in the cache folder. A damaged file is replaced. A read-only folder is logged."""
    folder = {"VKRNN_CACHE_DIR": str(tmp_path)}
    run(CALL + "call()", fake, **folder)
    files = sorted((tmp_path / "cuda").iterdir())
    assert files
    before = [file.read_bytes() for file in files]
    files[0].write_bytes(before[0][:100])
    run(CALL + "call()", fake, **folder)
    assert [file.read_bytes() for file in sorted((tmp_path / "cuda").iterdir())] == before
    blocked = tmp_path / "file"
    blocked.write_text("")
    logs = "import logging; logging.basicConfig(level=logging.WARNING)\n" + CALL + "call(); device.close()"
    done = subprocess.run(
        [sys.executable, "-c", logs],
        env=fake | {"VKRNN_CACHE_DIR": str(blocked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written to: each process compiles the kernels anew" in done.stderr


@needs_nvrtc
def test_profilers_see_the_names_of_kernels(fake: dict[str, str], tmp_path: Path) -> None:
    run(CALL + "call()", fake, VKRNN_CACHE_DIR=str(tmp_path))
    code = b"".join(path.read_bytes() for path in tmp_path.glob("cuda/*.cubin"))
    assert b"vkrnn_lstm_slices_forward" in code
    assert b"vkrnn_gemm_tiled" in code


@needs_nvrtc
def test_a_disk_that_is_full(fake: dict[str, str], tmp_path: Path) -> None:
    """Kernels whose code cannot be written whole run all the same. No part of a file is left, and the log says so."""
    program = (
        "import logging, resource; logging.basicConfig(level=logging.WARNING)\n"
        + CALL
        + """
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # bytes of each file
print(call().shape)
device.close()
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=fake | {"VKRNN_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "(5, 3, 8)\n"
    assert done.stderr.count("cannot be written to: each process compiles the kernels anew") == 1
    assert not list((tmp_path / "cuda").iterdir())


@needs_nvrtc
def test_a_forked_child_gets_an_error(fake: dict[str, str]) -> None:
    """CUDA does not work in a child of a process that has started it."""
    program = (
        CALL
        + """
import os
call()
array = vkrnn.asarray(x, device=device)
if child := os.fork():
    print(os.waitpid(child, 0)[1])
else:
    try:
        call()
    except vkrnn.DeviceError as error:
        del array
        os._exit(0 if "cannot be used after a fork" in str(error) else 1)
"""
    )
    assert run(program, fake) == "0\n"


@needs_nvrtc
def test_a_weight_that_another_library_has_taken_is_packed_each_time(fake: dict[str, str]) -> None:
    """Weights in an array that another library has got are packed in each call, because that library may write them."""
    program = (
        CALL
        + """
device = vkrnn.Device("cuda:0", schedule="matrices")  # which packs its weights
arrays = [vkrnn.asarray(array, device=device) for array in (x, w)]
def launched():
    before = driver.fake_cuda_launches()
    call(*arrays)
    return driver.fake_cuda_launches() - before
first, kept = launched(), launched()
arrays[1].__dlpack__()
print(kept < first, launched() == launched() == first)
"""
    )
    assert run(program, fake).splitlines() == ["True True"]


@needs_nvrtc
def test_a_call_that_forks_while_it_waits(fake: dict[str, str]) -> None:
    """A signal handler may fork: the parent's call goes on, and the child's ends with an error."""
    program = (
        CALL
        + f"""
import os, signal, sys
sys.path.insert(0, {str(Path(polls.__file__).parent)!r})
from polls import polling
children = []
def fork(*_):
    children.append(os.fork())
signal.signal(signal.SIGALRM, fork)
call()
os.environ["FAKE_CUDA_BUSY"] = "9"
try:
    with polling(lambda: signal.raise_signal(signal.SIGALRM)):
        call()
    print("done", os.waitpid(children[0], 0)[1], flush=True)
except vkrnn.DeviceError as error:
    os._exit(0 if "fork" in str(error) else 1)
"""
    )
    assert run(program, fake) == "done 0\n"


@needs_nvrtc
def test_arrays_are_shared_with_other_libraries(fake: dict[str, str]) -> None:
    """An array's memory is described by both protocols, and one that another library describes is used in place."""
    program = (
        CALL
        + """
array = vkrnn.asarray(x, device=device)
interface = array.__cuda_array_interface__
print(array.__dlpack_device__(), interface["shape"], interface["typestr"])
class Theirs:
    __cuda_array_interface__ = interface
class Capsule:
    def __dlpack__(self, stream): return array.__dlpack__(stream=stream)
    def __dlpack_device__(self): return (2, 0)
uploaded = device.statistics()["bytes_uploaded"]
weight = vkrnn.asarray(w, device=device)
for theirs in (Theirs(), Capsule()):
    print(type(call(theirs, weight)).__name__)
print(device.statistics()["bytes_uploaded"] - uploaded - w.nbytes)
class Strided:
    __cuda_array_interface__ = interface | {"strides": (4, 8, 16)}
try:
    call(Strided(), weight)
except ValueError as error:
    print(error)
before = driver.fake_cuda_allocations()
kept = [array.__dlpack__(), array.__dlpack__(copy=False), array.__dlpack__(dl_device=(2, 0), copy=True)]
print(driver.fake_cuda_allocations() - before)
try:
    array.__dlpack__(dl_device=(1, 0))
except BufferError as error:
    print(error)
"""
    )
    assert run(program, fake).splitlines() == [
        "(2, 0) (5, 3, 8) <f4",
        "Array",
        "Array",
        "0",
        "[lstm] source: expected a C-contiguous array on a CUDA device, got a Strided with other strides",
        "1",
        "[Array] dl_device: expected (2, 0), got (1, 0); copy it with numpy()",
    ]
