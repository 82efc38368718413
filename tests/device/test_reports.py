"""What the core logs, and the warning about calls that run on the CPU because no GPU is usable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vkrnn
from hidden import NO_CUDA, NO_GPU, vulkan_alone

LOG = (
    "import logging; logging.basicConfig(level=logging.INFO, format='%(name)s %(levelname)s %(message)s');"
    "import numpy, vkrnn;"
)
CALL = "vkrnn.lstm(numpy.ones((2, 1, 8), 'f4'), numpy.ones((8, 2), 'f4')"
MESA = any(device.driver == "llvmpipe" for device in vkrnn.devices())
CC = shutil.which("cc")
HEADERS = Path("/usr/include/vulkan/vk_icd.h")


def run(program: str, **environment: str) -> str:
    """Run a program in a process of its own and return what it writes to its log."""
    given = {name: value for name, value in os.environ.items() if name != "VKRNN_DEVICE"}
    return subprocess.run(
        [sys.executable, "-c", LOG + program],
        env={**given, "VKRNN_VALIDATION": "", **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stderr


@pytest.fixture(name="old_gpu", scope="module")
def _old_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment whose driver has one GPU, which is too old."""
    request.getfixturevalue("vulkan_build")
    if CC is None or not HEADERS.exists():
        pytest.skip("needs a C compiler and Vulkan headers")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[1] / "support" / "old_driver.c"
    subprocess.run([CC, "-shared", "-fPIC", "-o", folder / "old_driver.so", source], check=True)
    described = {"library_path": str(folder / "old_driver.so"), "api_version": "1.2.175"}
    manifest = folder / "old_driver.json"
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": described}))
    return vulkan_alone(manifest) | NO_CUDA


def test_a_skipped_gpu_causes_one_warning(old_gpu: dict[str, str]) -> None:
    """It names the GPU, the reason, the device used instead, and points to the caller's line."""
    log = run(f"{CALL});\n{CALL}); vkrnn.zeros(1); vkrnn.devices()", **old_gpu)
    [line] = [line for line in log.splitlines() if "RuntimeWarning" in line]
    name = vkrnn.Device("cpu (").name
    assert line == (
        f"<string>:1: RuntimeWarning: no GPU can be used, calls run on {name}; "
        "skipped: Abacus 3000 (Vulkan 1.2.175, 1.3 is needed)"
    )


@pytest.mark.parametrize("program", [f"{CALL}, device='cpu (')", "vkrnn.devices()"])
def test_no_warning_if_a_device_is_named(old_gpu: dict[str, str], program: str) -> None:
    """There is no warning if a call names its device, or if devices are only listed."""
    assert "RuntimeWarning" not in run(program, **old_gpu)


def test_no_warning_if_the_environment_names_a_device(old_gpu: dict[str, str]) -> None:
    """VKRNN_DEVICE counts as naming a device."""
    assert "RuntimeWarning" not in run(f"{CALL})", **old_gpu, VKRNN_DEVICE="cpu")


def test_no_warning_without_a_gpu() -> None:
    """A machine without a GPU is nothing unusual."""
    assert "RuntimeWarning" not in run(f"{CALL})", **NO_GPU)


def test_skipped_devices_are_in_the_log(old_gpu: dict[str, str]) -> None:
    """Each is logged once, whether or not another Vulkan device is usable."""
    skipped = "skipped: Abacus 3000: Vulkan 1.2.175, 1.3 is needed"
    log = run("vkrnn.devices(); vkrnn.devices()", **old_gpu)
    assert [line.split(": ", 1)[0] for line in log.splitlines()] == [
        "vkrnn INFO no Vulkan 1.3 device was found (skipped"
    ]
    assert f"({skipped}); install one: " in log
    mesa = next(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"), None)
    if mesa is not None:
        both = vulkan_alone(f"{old_gpu['VK_DRIVER_FILES']}:{mesa}")
        log = run("vkrnn.devices(); vkrnn.devices()", **old_gpu | both)
        assert log == "vkrnn INFO skipped Abacus 3000: Vulkan 1.2.175, 1.3 is needed\n"


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ([], "  Abacus 3000, discrete_gpu: Vulkan 1.2.175, 1.3 is needed. A newer driver may help\n"),
        (["--details"], "\n\nskipped: Abacus 3000, discrete_gpu: Vulkan 1.2.175, 1.3 is needed\nVulkan: no Vulkan 1.3"),
    ],
)
def test_info_has_skipped_devices(old_gpu: dict[str, str], details: list[str], expected: str) -> None:
    """``python -m vkrnn info`` says why a device is missing."""
    done = subprocess.run(
        [sys.executable, "-m", "vkrnn", "info", *details],
        env={**os.environ, **old_gpu, "VKRNN_DEVICE": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected in done.stdout


@pytest.mark.usefixtures("vulkan_build")
def test_a_missing_driver_is_in_the_log() -> None:
    """It is logged at level INFO."""
    log = run("vkrnn.devices()", **NO_GPU)
    assert log.startswith("vkrnn INFO no Vulkan ")


def test_opening_is_in_the_log() -> None:
    """Opening a device is logged with its description."""
    assert "vkrnn INFO opened <vkrnn.Device" in run("vkrnn.zeros(1, device='cpu (')")


@pytest.mark.skipif(not MESA, reason="needs Mesa's driver")
def test_a_cache_that_cannot_be_written_is_in_the_log() -> None:
    """It is a warning, because every process then compiles its shaders."""
    program = f"device = vkrnn.Device('llvmpipe'); {CALL}, device=device); device.close()"
    log = run(program, VKRNN_CACHE_DIR="/proc/self/nowhere")  # where not even root can make folders
    assert "vkrnn WARNING /proc/self/nowhere/" in log
    assert "cannot be written: each process compiles the shaders anew" in log


@pytest.mark.skipif(not MESA, reason="needs Mesa's driver")
def test_a_cache_that_is_damaged_is_in_the_log(tmp_path: Path) -> None:
    """The cache is rebuilt and works the next time."""
    program = f"device = vkrnn.Device('llvmpipe'); {CALL}, device=device); device.close()"
    run(program, VKRNN_CACHE_DIR=str(tmp_path))
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?" + b"?")
    message = f"vkrnn INFO {file} is damaged or of another driver: shaders are compiled anew"
    assert message in run(program, VKRNN_CACHE_DIR=str(tmp_path))
    assert message not in run(program, VKRNN_CACHE_DIR=str(tmp_path))
