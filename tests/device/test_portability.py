"""Drivers of a subset of Vulkan, such as MoltenVK, which the loader lists only on request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CC = shutil.which("cc")
HEADERS = Path("/usr/include/vulkan/vk_icd.h")
MESA = next(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"), None)

CALL = """
import numpy, vkrnn
[name] = [device.name for device in vkrnn.devices() if device.backend != "native"]
result = vkrnn.check(vkrnn.lstm, numpy.ones((5, 3, 16), "f4"), numpy.ones((16, 4), "f4"), device=name)
print("llvmpipe" in name, result.ok)
"""


@pytest.mark.skipif(
    CC is None or MESA is None or not HEADERS.exists(), reason="needs a C compiler, Vulkan headers and llvmpipe"
)
@pytest.mark.usefixtures("vulkan_build")
def test_a_driver_of_a_subset_of_vulkan(tmp_path: Path) -> None:
    """Its device is listed, opened with VK_KHR_portability_subset, and computes."""
    assert MESA is not None
    described = json.loads(MESA.read_text())
    driver = tmp_path / "portability_driver.so"
    source = Path(__file__).parents[1] / "support" / "portability_driver.c"
    real = json.dumps(described["ICD"]["library_path"])
    subprocess.run([str(CC), "-shared", "-fPIC", f"-DLLVMPIPE={real}", "-o", driver, source, "-ldl"], check=True)
    described["file_format_version"] = "1.0.1"
    described["ICD"] |= {"library_path": str(driver), "is_portability_driver": True}
    manifest = tmp_path / "portability_driver.json"
    manifest.write_text(json.dumps(described))
    given = {name: value for name, value in os.environ.items() if name != "VKRNN_DEVICE"}
    alone = {"VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest), "VKRNN_VALIDATION": ""}
    done = subprocess.run(
        [sys.executable, "-c", CALL], env={**given, **alone}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
