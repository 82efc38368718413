"""Products of cuBLASLt on CUDA devices, with a driver and a library that need no GPU. See cublaslt.c."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_cuda import build, environment, needs_compiler, needs_nvrtc, run

pytestmark = [*needs_compiler, needs_nvrtc]

START = """
import gc, logging, numpy as np, vkrnn
from ctypes import CDLL, POINTER, c_char_p, c_double, c_int64
from os import environ
def reason(call):
    try:
        call()
    except (MemoryError, ValueError, NotImplementedError, vkrnn.DeviceError) as error:
        return f"{type(error).__name__}: {error}"
"""
# T, N, I and H differ. The kernels do nothing, so what they would write is what the driver fills memory with.
CALLS = (
    START
    + """
library, driver = CDLL(environ["VKRNN_CUBLASLT"]), CDLL("libcuda.so.1")
library.fake_cublas_last.restype = c_char_p
library.fake_cublas_results.restype = c_int64
library.fake_cublas_result.restype = POINTER(c_double)
draw = np.random.default_rng(1).standard_normal
def arrays(dtype, D=1, T=3, N=2, I=5, H=4):
    given = {"source": draw((T, N, I)), "recurrent_weight": draw((D, 4 * H, H)), "input_weight": draw((D * 4 * H, I))}
    return {name: array.astype(dtype) for name, array in given.items()} | {"descriptor": vkrnn.LSTMDescriptor(
        bidirectional=D == 2, training=True)}
def open_device(**options):
    return vkrnn.Device("cuda:0", **({"schedule": "steps", "gemm": "cublas"} | options))
def last_result():
    return np.ctypeslib.as_array(library.fake_cublas_result(), (library.fake_cublas_results(),)).copy()
"""
)


@pytest.fixture(name="without", scope="module")
def _without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of programs that find no cuBLASLt."""
    return environment(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(name="fake", scope="module")
def _fake(without: dict[str, str]) -> dict[str, str]:
    """Build the library and return the environment of programs that use it."""
    library = Path(without["VKRNN_CACHE_DIR"]) / "libcublasLt.so.13"
    build("cublaslt.c", library)
    return without | {"VKRNN_CUBLASLT": str(library)}


CHOICE = """
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("vkrnn").addFilter(lambda record: "own kernels" in record.msg)
device = vkrnn.Device("cuda:0", float32="tf32")
x, w = np.ones((128, 128, 1024), np.float32), np.ones((4096, 1024), np.float32)
def gemm(x, w, device):
    return vkrnn.plan(vkrnn.lstm, x, w, input_weight=w, device=device).strategy["gemm"]
double = (x.astype(np.float64), w.astype(np.float64))
half = (x.astype(np.float16), w.astype(np.float16))
small = (x[:2, :2], w)
print(device.strategies["gemm"], list(vkrnn._core.list_variants(device.profile)["gemm"]))
print(gemm(x, w, device), gemm(*half, device), gemm(*double, device), gemm(*small, device))
print(gemm(x, w, vkrnn.Device("cuda:0")))
"""


def test_the_planner_chooses_it_for_large_products(fake: dict[str, str]) -> None:
    """For types and precisions in which it is faster: not in float32 with its full accuracy."""
    listed, chosen, ieee = run(START + CHOICE, fake).splitlines()
    assert listed == "['register', 'tiled', 'matrices', 'cublas'] ['cublas', 'matrices', 'register', 'tiled']"
    assert chosen == "cublas cublas cublas tiled"
    assert ieee == "matrices"


@needs_nvrtc
def test_large_products_run_beside_other_work(fake: dict[str, str]) -> None:
    """A stream of its own packs the weights. With kept ones, what is left is not worth a stream."""
    program = (
        CALLS
        + """
device = vkrnn.Device("cuda:0", float32="tf32")
x, w = np.ones((128, 128, 1024), np.float32), np.ones((4096, 1024), np.float32)
def beside(x, w):
    before = driver.fake_cuda_lane_launches()
    vkrnn.lstm(x, w, input_weight=w, device=device)
    return driver.fake_cuda_lane_launches() - before
there = vkrnn.asarray(w, device=device)
print(beside(x, w) > 0, beside(x[:2, :2], w), beside(x, there) > 0, beside(x, there))
"""
    )
    assert run(program, fake, FAKE_CUBLAS_IDLE="1").split() == ["True", "0", "True", "0"]


def test_without_the_library_our_kernels_compute(without: dict[str, str]) -> None:
    """The log says why. Naming the strategy is an error that says what to install."""
    program = START + CHOICE + "print(reason(lambda: gemm(x, w, vkrnn.Device('cuda:0', gemm='cublas'))))"
    _, chosen, ieee, named = run(program, without).splitlines()
    assert chosen == "matrices matrices tiled tiled"
    assert ieee == "matrices"
    reason = f"VKRNN_CUBLASLT={without['VKRNN_CUBLASLT']} is not cuBLASLt: it cannot be loaded"
    assert named == f"DeviceError: [Device] gemm 'cublas' cannot be used: {reason}"


def test_libraries_that_cannot_be_used(fake: dict[str, str]) -> None:
    """One of a newer major version than the driver, another library, and none at all."""
    program = START + "print(reason(lambda: vkrnn.Device('cuda:0', gemm='cublas').synchronize()))"
    prefix = "DeviceError: [Device] gemm 'cublas' cannot be used: "
    hint = (
        "install it (pip install nvidia-cublas for a driver of CUDA 13, nvidia-cublas-cu12 for one of CUDA 12), or "
        "name the library in VKRNN_CUBLASLT\n"
    )
    path = fake["VKRNN_CUBLASLT"]
    assert run(program, fake, FAKE_CUBLAS_VERSION="14000") == (
        f"{prefix}cuBLASLt 14.0 ({path}) is newer than the driver, which is of CUDA 13.0; {hint}"
    )
    assert run(program, fake, FAKE_CUBLAS_VERSION="13020") == "None\n", "a later minor version"
    other = str(Path(path).with_name("libcuda.so.1"))
    assert run(program, fake, VKRNN_CUBLASLT=other) == (
        f"{prefix}VKRNN_CUBLASLT={other} is not cuBLASLt: it has no cublasLtGetCudartVersion\n"
    )


def test_products_are_the_references(fake: dict[str, str]) -> None:
    """For each type: x W^T, and the gradients of a plan's three products.

    With two directions and three units, the second one's matrices are not aligned to 16 bytes.
    """
    program = (
        CALLS
        + """
import ml_dtypes
def near(got, wanted):
    return np.abs(np.asarray(got).astype(np.float64) - wanted).max() <= 2 * unit * np.abs(wanted).max()
for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
    filled = float(np.frombuffer(b"\\x3c" * 8, dtype)[0])  # each delta and each operand of a recurrent product
    unit = max(float(ml_dtypes.finfo(dtype).eps), 1e-6)
    for D, H in ((1, 4), (2, 3)):
        device = open_device()
        given = arrays(dtype, D, H=H)
        x, w = given["source"].reshape(-1, 5), given["input_weight"]
        given["recurrent_weight"] = given["recurrent_weight"] if D == 2 else given["recurrent_weight"][0]
        forward = vkrnn.lstm(**given, device=device)
        x, w = x.astype(np.float64), w.astype(np.float64)
        print(np.allclose(last_result().reshape(6, D * 4 * H), x @ w.T, 1e-5, 1e-6), end=" ")
        saved = {"source_gradient": forward.output, "z_state": forward.z_state, "cell_output_fwd": forward.cell_output}
        back = vkrnn.lstm_gradients(**given, **saved, device=device)
        print(near(back.source, filled * w.sum(0)), end=" ")
        print(near(back.input_weight, filled * x.sum(0)), end=" ")
        print(near(back.recurrent_weight, filled**2 * 6), end=" ")
        print(library.fake_cublas_last().decode())
        device.close()
"""
    )
    types = ["compute 68 types 0 0 0", "compute 70 types 1 1 1", "compute 68 types 2 2 2", "compute 68 types 14 14 14"]
    assert run(program, fake).splitlines() == [f"True True True True {each}" for each in types for _ in range(2)]


def test_types_of_products(fake: dict[str, str]) -> None:
    """Arguments and results of a 16-bit type are read and written as they are; x W^T is float32."""
    program = (
        CALLS
        + """
for dtype, options in (("float32", {"float32": "tf32"}), ("float16", {}), ("bfloat16", {})):
    if dtype == "bfloat16":
        import ml_dtypes
        dtype = ml_dtypes.bfloat16
    device = open_device(**options)
    given = arrays(dtype)
    given["recurrent_weight"] = given["recurrent_weight"][0]
    forward = vkrnn.lstm(**given, device=device)
    print(library.fake_cublas_last().decode(), end="; ")
    saved = {"source_gradient": forward.output, "z_state": forward.z_state, "cell_output_fwd": forward.cell_output}
    vkrnn.lstm_gradients(**given, **saved, device=device)
    print(library.fake_cublas_last().decode())
"""
    )
    rounded = "compute 77 types 0 0 0"
    assert run(program, fake).splitlines() == [
        f"{rounded}; {rounded}",
        "compute 68 types 2 2 0; compute 68 types 2 2 2",
        "compute 68 types 14 14 0; compute 68 types 14 14 14",
    ]


def test_an_algorithm_is_chosen_once_for_a_shape(fake: dict[str, str]) -> None:
    """The first algorithm that sums in a fixed order and fits in the workspace is used. None at all is an error."""
    program = (
        CALLS
        + """
device = open_device()
given = arrays(np.float32)
given["recurrent_weight"] = given["recurrent_weight"][0]
for reductions in ("1482", "12", "0"):  # the first choice stays
    environ["FAKE_CUBLAS_REDUCTIONS"] = reductions
    vkrnn.lstm(**given, device=device)
    print(library.fake_cublas_chosen(), library.fake_cublas_heuristics(), library.fake_cublas_products())
other = arrays(np.float32, T=4)
other["recurrent_weight"] = other["recurrent_weight"][0]
environ["FAKE_CUBLAS_REDUCTIONS"] = "148"
print(reason(lambda: vkrnn.lstm(**other, device=device)))
environ["FAKE_CUBLAS_REDUCTIONS"] = "102"
vkrnn.lstm(**other, device=device)
print(library.fake_cublas_chosen(), library.fake_cublas_heuristics())
"""
    )
    assert run(program, fake).splitlines() == [
        "3 1 1",
        "3 1 2",
        "3 1 3",
        "DeviceError: [lstm] cuBLASLt has no algorithm for a product of 8 x 16 x 5",
        "1 3",
    ]


FUNCTIONS = [
    "Create",
    "MatmulDescCreate",
    "MatmulDescSetAttribute",
    "MatrixLayoutCreate",
    "MatrixLayoutSetAttribute",
    "MatmulPreferenceCreate",
    "MatmulPreferenceSetAttribute",
    "MatmulAlgoGetHeuristic",
    "MatmulAlgoConfigGetAttribute",
    "Matmul",
]


def test_parts_of_a_product_have_the_algorithm_of_the_whole(fake: dict[str, str]) -> None:
    """A wavefront multiplies a piece at a time. If the library refuses an algorithm for a piece, another is chosen."""
    program = (
        CALLS
        + """
layer = "lstm", {"input_weight": np.ones((32, 8), np.float32), "recurrent_weight": np.ones((32, 8), np.float32)}
device = open_device(wavefront=4)
net = vkrnn.network([layer] * 2, device=device, frozen=True)
x = draw((10, 2, 8)).astype(np.float32)
net.forward(x)
print(library.fake_cublas_heuristics(), library.fake_cublas_products())
"""
    )
    # Two shapes of parts: four steps, and the two that are left. Each asks for the algorithm of all ten.
    assert run(program, fake).splitlines() == ["2 6"]
    assert run(program, fake, FAKE_CUBLAS_FAIL="cublasLtMatmulAlgoCheck:7").splitlines() == ["4 6"]


def test_failing_functions(fake: dict[str, str]) -> None:
    """Each becomes a DeviceError that names the call, or a MemoryError. Nothing leaks, and later calls work."""
    program = (
        CALLS
        + f"""
given = arrays(np.float32)
given["recurrent_weight"] = given["recurrent_weight"][0]
for function in {FUNCTIONS}:
    for status in (14, 3):
        device = open_device()
        environ["FAKE_CUBLAS_FAIL"] = f"cublasLt{{function}}:{{status}}"
        print(function, reason(lambda: vkrnn.lstm(**given, device=device)))
        del environ["FAKE_CUBLAS_FAIL"]
        vkrnn.lstm(**given, device=device)
        device.close()
        gc.collect()
        print(driver.fake_cuda_allocations(), library.fake_cublas_descriptors(), library.fake_cublas_handles())
"""
    )
    lines = iter(run(program, fake).splitlines())
    for function in FUNCTIONS:
        reported = "cuBLASLt reported CUBLAS_STATUS_INTERNAL_ERROR: an internal operation failed"
        assert next(lines) == f"{function} DeviceError: [lstm] {reported}"
        assert next(lines) == "0 0 0"
        assert next(lines).startswith(f"{function} MemoryError: [lstm] the call needs ")
        assert next(lines) == "0 0 0"


def test_plans_show_products(fake: dict[str, str]) -> None:
    """A line says what computes it, and the next which operands are stored by columns, in which type, and rounded."""
    program = (
        CALLS
        + """
given = arrays(np.float32)
given["recurrent_weight"] = given["recurrent_weight"][0]
forward = vkrnn.plan(vkrnn.lstm, **given, device=open_device(float32="tf32"))
print(forward.float32, [(step["shader"], step["constants"], step["groups"]) for step in forward.steps
                        if step.get("label") == "project"])
half = {name: array.astype(np.float16) for name, array in given.items() if name != "descriptor"}
plan = vkrnn.plan(vkrnn.lstm, **half, device=open_device())
text = str(plan).splitlines()
at = next(i for i, line in enumerate(text) if line.startswith("  project"))
print(plan.float32, text[at : at + 2])
"""
    )
    assert run(program, fake).splitlines() == [
        "tf32 [('cublas_product', {'tf32': True}, (0, 0, 0))]",
        f"ieee ['  {'project':33} cublas_product', '      operands float16']",
    ]
