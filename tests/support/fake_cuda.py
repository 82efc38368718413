"""CUDA without a GPU: programs run with the driver of cuda_driver.c, and the products of cublaslt.c if a test wants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hidden import NO_VULKAN
from tests.support import nvrtc

CC = shutil.which("cc")
NVRTC = nvrtc.find_path()

needs_compiler = [
    pytest.mark.skipif(CC is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is built for Linux"),
]
needs_nvrtc = pytest.mark.skipif(NVRTC is None, reason="NVRTC is not installed (pip install nvidia-cuda-nvrtc)")


def build(source: str, library: Path) -> None:
    """Compile a C file of this folder to a shared library."""
    options = ["-shared", "-fPIC", "-o", str(library)]
    subprocess.run([str(CC), *options, str(Path(__file__).parent / source)], check=True)


def environment(folder: Path) -> dict[str, str]:
    """Build the driver in a folder, and return the environment of programs that use it, without cuBLASLt."""
    build("cuda_driver.c", folder / "libcuda.so.1")
    inherited = {name: value for name, value in os.environ.items() if name != "VKRNN_DEVICE"}
    return (
        inherited
        | NO_VULKAN
        | {
            "LD_LIBRARY_PATH": str(folder),
            "VKRNN_NVRTC": NVRTC or "",
            "VKRNN_CUBLASLT": str(folder / "none"),
            "VKRNN_CACHE_DIR": str(folder),
            "VKRNN_SELF_CHECK": "0",  # kernels that do nothing would not pass it
        }
    )


def run(program: str, environment: dict[str, str], **more: str) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
