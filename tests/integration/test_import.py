"""Import and calls on the CPU work without Vulkan; asking for a Vulkan device says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vkrnn
from hidden import NO_CUDA, NO_GPU
from vkrnn import _core

CALL = """
import numpy, vkrnn
print(vkrnn.lstm(numpy.ones((5, 3, 16), 'f4'), numpy.ones((16, 4), 'f4'), device="cpu (").output.sum())
"""
HINT = (
    "install one: a graphics driver with Vulkan 1.3, or Mesa's for the CPU "
    "(Debian/Ubuntu: apt install libvulkan1 mesa-vulkan-drivers)"
)
NM = shutil.which("nm")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_import_without_a_driver() -> None:
    """Importing looks for no driver, and the reference needs no device."""
    program = "import vkrnn, numpy; vkrnn.reference.lstm(numpy.ones((5, 3, 16)), numpy.ones((16, 4))); print('fine')"
    done = run(program, **NO_GPU)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.usefixtures("vulkan_build")
def test_calls_without_a_driver() -> None:
    """Calls run on the CPU. Asking for another device says what to install."""
    done = run(CALL, **NO_GPU)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(CALL).stdout
    done = run("import vkrnn; print([device.driver for device in vkrnn.devices()])", **NO_GPU)
    assert (done.returncode, done.stdout) == (0, "['native']\n"), done.stderr
    done = run("import vkrnn; vkrnn.Device('abacus')", **NO_GPU)
    assert done.returncode == 1
    assert re.fullmatch(
        r"ValueError: \[Device\] selector: expected a part of a device's name, got 'abacus' \(0: cpu \(.+\); "
        rf"Vulkan: no Vulkan (driver|1\.3 device) was found.*; {re.escape(HINT)}\)",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_a_build_without_vulkan() -> None:
    """Asking for a GPU or listing devices says how to get a build with Vulkan."""
    problem = "this vkrnn was built without Vulkan; to use GPUs, build it with -C cmake.define.VKRNN_VULKAN=ON"
    if _core.vulkan_problem() != problem:
        pytest.skip("this vkrnn was built with Vulkan")
    done = run("import vkrnn; vkrnn.zeros(3, device=1)")
    assert re.fullmatch(
        r"ValueError: \[zeros\] device: expected an index from 0 to 0, got 1 \(0: cpu \(.+\); "
        rf"Vulkan: {re.escape(problem)}\)",
        done.stderr.splitlines()[-1],
    ), done.stderr
    assert f"\n\nVulkan: {problem}\n" in run("from vkrnn.__main__ import main; main(['info', '--details'])").stdout
    assert problem in " ".join(run("from vkrnn.__main__ import main; main(['info'])").stdout.split())


@pytest.mark.usefixtures("vulkan_build")
def test_calls_without_a_loader(tmp_path: Path) -> None:
    """Calls run on the CPU even if libvulkan is missing or, as here, is not a library."""
    for name in ("libvulkan.so", "libvulkan.so.1"):
        (tmp_path / name).write_text("no library")
    hidden = NO_CUDA | {"LD_LIBRARY_PATH": str(tmp_path), "VKRNN_VALIDATION": ""}
    done = run(CALL, **hidden)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(CALL).stdout
    done = run("import vkrnn; print([device.driver for device in vkrnn.devices()])", **hidden)
    assert (done.returncode, done.stdout) == (0, "['native']\n"), done.stderr
    done = run("import vkrnn; vkrnn.Device(7)", **hidden)
    assert done.returncode == 1
    assert re.fullmatch(
        r"ValueError: \[Device\] selector: expected an index from 0 to 0, got 7 \(0: cpu \(.+\); "
        rf"Vulkan: no Vulkan loader \(libvulkan\.so\.1\) was found; {re.escape(HINT)}\)",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_the_loader_is_not_linked() -> None:
    """The extension opens libvulkan at run time, so importing works without it."""
    program = "import vkrnn; print('libvulkan' in open('/proc/self/maps').read())"
    assert run(program).stdout == "False\n"


@pytest.mark.skipif(NM is None, reason="needs nm of binutils")
def test_the_extension_exports_one_symbol() -> None:
    """Other symbols, such as those of a static libstdc++, are hidden from other modules."""
    done = subprocess.run([str(NM), "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["PyInit__core"]


def test_import_needs_numpy_alone() -> None:
    """No optional package is imported."""
    program = (
        "import sys, vkrnn; print({name.split('.')[0] for name in sys.modules} & {'jax', 'onnx', 'torch', 'ml_dtypes'})"
    )
    assert run(program).stdout == "set()\n"


def test_public_names() -> None:
    """Every public name exists and is documented."""
    project = next(
        folder / "pyproject.toml" for folder in Path(__file__).parents if (folder / "pyproject.toml").exists()
    )
    assert f'\nversion = "{vkrnn.__version__}"\n' in project.read_text()
    for name in vkrnn.__all__:
        assert getattr(vkrnn, name).__doc__, name


def test_the_module_exports_its_entry_point_alone() -> None:
    """Libraries linked into the module must not clash with the same symbols of other modules."""
    nm = shutil.which("nm")
    if nm is None or sys.platform != "linux":
        pytest.skip("needs nm of binutils, on Linux")
    done = subprocess.run([nm, "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["PyInit__core"]
