"""The native CPU device: selection, description, every instruction set, 16-bit types."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from cases import Case, inputs
from resident import dtype_of, is_native, opened
from scale import HANGS_AFTER
from vkrnn import SingleGateRNNDescriptor

Array = NDArray[Any]

MODULES = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
LINEAR = SingleGateRNNDescriptor(activation="none")
SMALL = Case("lstm", 5, 3, 7, 4, {"bidirectional": True}, frozenset({"input_weight", "bias", "peephole", "init_state"}))
SIXTEEN = ["float16", "bfloat16"]


@pytest.fixture(name="cpu", scope="module")
def _cpu() -> Iterator[vkrnn.Device]:
    with opened("native") as device:
        yield device


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own that can import the tests' modules."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {MODULES!r}\n" + textwrap.dedent(program)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
    )


# Selection


def test_name_of_the_cpu_device() -> None:
    """A part of the name in any case selects it, and does not select a Vulkan device on the CPU."""
    for selector in ("cpu", "CPU (", "cpu ("):
        device = vkrnn.Device(selector)
        assert is_native(device)
        assert device.name.startswith("cpu (")
        assert device.type == "cpu"
        assert device.profile.unified_memory


def test_the_cpu_comes_after_gpus() -> None:
    """It is the best device without a GPU, and comes right after GPUs."""
    gpus = [device for device in vkrnn.devices() if device.type != "cpu"]
    assert is_native(vkrnn.devices()[len(gpus)])
    assert vkrnn.Device().index == 0


def test_strategies_of_the_cpu(cpu: vkrnn.Device) -> None:
    """It has one for each part of a call, which can be named. Vulkan's strategies and parameters are refused."""
    assert cpu.strategies == {"schedule": ["native"], "gemm": ["native"]}
    assert [device.backend for device in vkrnn.devices() if device.strategies == cpu.strategies] == ["native"]
    named = vkrnn.Device("cpu", schedule="native", gemm="native")
    call = {**inputs(SMALL), "descriptor": SMALL.descriptor()}
    assert vkrnn.plan(vkrnn.lstm, **call, device=named) == vkrnn.plan(vkrnn.lstm, **call, device=cpu)
    named.close()
    for options in ({"schedule": "steps"}, {"gemm": "tiled"}):
        with pytest.raises(ValueError) as caught:
            vkrnn.Device("cpu", **options)
        [(option, name)] = options.items()
        assert str(caught.value) == f"[Device] {option}: expected 'native', got '{name}'"
    for size in ("lanes", "rows", "workgroup"):
        with pytest.raises(TypeError) as unknown:
            vkrnn.Device("cpu", **{size: 1})
        assert (
            str(unknown.value) == f"[Device] {size}: unknown option; the options are float32, schedule, gemm, wavefront"
        )


def test_the_cpu_cannot_be_lost() -> None:
    """Simulating a loss raises an error, and the device goes on working."""
    with opened("native") as device:
        with pytest.raises(NotImplementedError) as caught:
            device._open().lose_for_test()
        assert str(caught.value) == "[Device] the CPU device cannot be lost"
        assert not device.lost
        vkrnn.lstm(**inputs(SMALL), descriptor=SMALL.descriptor(), device=device)


def test_statistics_of_vulkan_stay_zero() -> None:
    """A call is one submission. Arguments are read in place, nothing is recorded, and there are no pipelines."""
    with opened("native") as device:
        arrays = inputs(SMALL)
        for _ in range(5):
            vkrnn.lstm(**arrays, descriptor=SMALL.descriptor(), device=device)
        found = device.statistics()
        assert (found["calls"], found["submissions"], found["repeated"], found["pipelines"]) == (5, 5, 0, 0)
        assert (
            found["dispatches"]
            == 5 * vkrnn.plan(vkrnn.lstm, **arrays, descriptor=SMALL.descriptor(), device=device).dispatches
        )
        assert found["bytes_imported"] == 5 * sum(array.nbytes for array in arrays.values())
        assert (found["bytes_uploaded"], found["bytes_downloaded"]) == (0, 0)
        assert 0 < found["last_device_seconds"] <= found["last_host_seconds"]


def test_staging_does_not_apply_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays on the CPU are host memory, whatever VKRNN_STAGING is."""
    monkeypatch.setenv("VKRNN_STAGING", "1")
    device = vkrnn.Device("cpu")
    assert vkrnn.zeros(3, device=device).host_visible
    device.close()


def test_cpu_calls_are_synchronous(cpu: vkrnn.Device) -> None:
    """Views of arrays show the results without a wait."""
    source = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array, out = vkrnn.asarray(source, device=cpu), vkrnn.zeros((2, 3, 4), device=cpu)
    view = out.numpy()
    vkrnn.single_gate_rnn(array, np.zeros((4, 4), np.float32), descriptor=LINEAR, out=out)
    np.testing.assert_array_equal(view, source)


FORWARD = """\
lstm  T=5 N=3 I=7 H=4 D=2
schedule native, gemm native
"""


def test_the_text_of_a_plan(cpu: vkrnn.Device) -> None:
    """The plan has one loop over all steps of both directions, on weights in the kernel's order."""
    planned = vkrnn.plan(vkrnn.lstm, **inputs(SMALL), descriptor=SMALL.descriptor(), device=cpu)
    assert str(planned).startswith(FORWARD)
    labels = [step["label"] for step in planned.steps if step["kind"] == "dispatch"]
    assert labels.count("time loop") == labels.count("pack recurrent_weight") == 1
    assert labels[-1] == "time loop"
    assert not [step for step in planned.steps if step["kind"] == "loop"]
    packed = [name for name, role, _ in planned.buffers if role == "packed"]
    assert packed
    assert all(f"\n  packed    {name} " in str(planned) for name in packed)


# Instruction sets

# The flags of /proc/cpuinfo that each instruction set needs, best first.
FLAGS: dict[str, set[str]] = {
    "avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"},
    "avx2": {"avx2", "fma", "bmi1", "bmi2", "f16c"},
    "sse4": {"sse4_2", "pclmulqdq", "aes"},
    "scalar": set(),
}


def targets() -> list[str]:
    """Return the instruction sets of this processor, best first."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["neon", "scalar"]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    return [name for name, needed in FLAGS.items() if needed <= flags]


@pytest.mark.parametrize("name", ["abacus", "AVX2", "avx1024", *(name for name in FLAGS if name not in targets())])
def test_unknown_instruction_set(name: str) -> None:
    """The message lists those that exist."""
    done = run("import vkrnn; vkrnn.devices()", VKRNN_CPU_TARGET=name)
    assert done.returncode == 1
    listed = ", ".join(f"'{target}'" for target in targets())
    message = f"vkrnn.DeviceError: VKRNN_CPU_TARGET: expected one of {listed}, got '{name}'"
    assert done.stderr.splitlines()[-1] == message


def test_the_best_instruction_set_is_the_default() -> None:
    """It is used if VKRNN_CPU_TARGET is not set."""
    for environment in ({}, {"VKRNN_CPU_TARGET": ""}):
        done = run("import vkrnn; print(vkrnn.Device('cpu').driver_version)", **environment)
        wanted = targets()[0] if environment else os.environ.get("VKRNN_CPU_TARGET") or targets()[0]
        assert (done.returncode, done.stdout) == (0, f"{wanted}\n"), done.stderr


CONFORM = """
    import numpy as np, vkrnn, vkrnn.reference
    from cases import CASES, gradient_inputs, inputs
    from comparison import assert_close, within_contract
    from resident import dtype_of
    from test_cpu import check_all_bits
    from tolerances import DTYPES

    device = vkrnn.Device("cpu")
    chosen = [case for case in CASES if within_contract(case)]
    chosen = chosen[::9] + [case for case in chosen if "wide" in case.tags]
    with device:
        for index, case in enumerate(chosen):
            dtype = ("float32", "float32", "float64", "float16", "bfloat16")[index % 5]
            kind = dtype_of(dtype)
            forward, gradients = (getattr(vkrnn, case.cell + ending) for ending in ("", "_gradients"))
            arrays = {name: array.astype(kind) for name, array in inputs(case).items()}
            got = forward(**arrays, descriptor=case.descriptor(training=True))
            wanted = getattr(vkrnn.reference, case.cell)(**arrays, descriptor=case.descriptor(training=True))
            assert_close(got._asdict(), wanted._asdict(), DTYPES[dtype])
            above = {name: array.astype(kind) for name, array in gradient_inputs(case, got).items()}
            got = gradients(**arrays, **above, descriptor=case.descriptor())
            reference = getattr(vkrnn.reference, f"{case.cell}_gradients")
            wanted = reference(**arrays, **above, descriptor=case.descriptor())
            assert_close(got._asdict(), wanted._asdict(), DTYPES[dtype])
    for dtype in ("float16", "bfloat16"):
        check_all_bits(device, dtype)
    assert len(chosen) > 45
    print(device.driver_version)
"""


@pytest.mark.parametrize("target", targets())
def test_every_instruction_set_is_right(target: str) -> None:
    """A cross-section of the conformance cases in every dtype, and all values of the 16-bit types."""
    pytest.importorskip("ml_dtypes")
    done = run(CONFORM, VKRNN_CPU_TARGET=target)
    assert (done.returncode, done.stdout) == (0, f"{target}\n"), done.stderr


# 16-bit types, converted in software or by instructions


def sums(device: vkrnn.Device, source: Array, bias: Array) -> Array:
    """Return ``source + bias`` [n] as the device rounds it: one step of n sequences with one linear unit."""
    result: Array = vkrnn.single_gate_rnn(
        source.reshape(1, -1, 1), np.zeros((1, 1), source.dtype), bias=bias.reshape(1), descriptor=LINEAR, device=device
    ).output
    return result.ravel()


def assert_same_values(got: Array, wanted: Array) -> None:
    """Compare bit for bit, except that any NaN equals any other and zeros may differ in sign."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(wanted)
        np.testing.assert_array_equal(np.isnan(got), nan)
        wrong = ~nan & (got != wanted)
    assert not wrong.any(), [*zip(got[wrong][:5], wanted[wrong][:5], strict=True)]


def check_all_bits(device: vkrnn.Device, dtype: str) -> None:
    """Fail unless every 16-bit value is returned unchanged, subnormals, infinities and NaN included."""
    values = np.arange(2**16 + 1).astype(np.uint16).view(dtype_of(dtype))  # an odd number of them
    weight = np.zeros((1, 1), values.dtype)
    got = vkrnn.single_gate_rnn(values.reshape(1, -1, 1), weight, descriptor=LINEAR, device=device).output
    assert_same_values(got.ravel(), values)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_every_value_passes_unchanged(cpu: vkrnn.Device, dtype: str) -> None:
    """The CPU does not flush subnormals."""
    check_all_bits(cpu, dtype)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_sums_are_rounded_to_nearest_even(cpu: vkrnn.Device, dtype: str) -> None:
    """Sums of every value and of biases of many sizes are rounded as NumPy rounds the exact float32 sum."""
    kind = dtype_of(dtype)
    values = np.arange(2**16).astype(np.uint16).view(kind)
    drawn = np.random.default_rng(1).integers(0, 2**16, 24).astype(np.uint16).view(kind)
    tie = np.array([2.0**-12, 2.0**-9, 3 * 2.0**-9, 2.0**-24, -(2.0**-14), 1.0, 65504.0]).astype(kind)
    with np.errstate(all="ignore"):
        biases = [bias for bias in (*tie, *drawn) if np.isfinite(np.float32(bias))]
        for bias in biases:
            exact = values.astype(np.float32) + np.float32(bias)
            assert_same_values(sums(cpu, values, np.asarray(bias)), exact.astype(kind))
    assert len(biases) > 20


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_ties_go_to_the_even_neighbour(cpu: vkrnn.Device, dtype: str) -> None:
    """A tie above 1 is rounded down, and the next one up."""
    kind = dtype_of(dtype)
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    values = np.array([1, 1 + step]).astype(kind)
    half = np.array([step / 2]).astype(kind)
    assert sums(cpu, values, half).astype(np.float64).tolist() == [1, 1 + 2 * step]
    assert sums(cpu, -values, -half).astype(np.float64).tolist() == [-1, -1 - 2 * step]
