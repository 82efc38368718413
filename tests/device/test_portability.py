"""Drivers of a subset of Vulkan, such as MoltenVK, which the loader lists only on request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hidden import NO_CUDA, vulkan_alone

CC = shutil.which("cc")
HEADERS = Path("/usr/include/vulkan/vk_icd.h")
MESA = next(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"), None)

CALL = """
import logging, numpy, vkrnn
logging.basicConfig(level=logging.INFO, format="%(message)s")
[gpu] = [device for device in vkrnn.devices() if device.backend != "native"]
for device in (gpu, vkrnn.Device(gpu.index), vkrnn.Device(gpu.index, gemm="register")):
    result = vkrnn.check(vkrnn.lstm, numpy.ones((5, 3, 16), "f4"), numpy.ones((16, 4), "f4"), device=device)
print(gpu.type, "llvmpipe" in gpu.name, result.ok)
half = numpy.ones((5, 3, 16), "f2"), numpy.full((16, 4), 0.1, "f2")
plan = str(vkrnn.plan(vkrnn.lstm, *half, device=gpu))
print(vkrnn.check(vkrnn.lstm, *half, tolerance=2**-10, device=gpu).ok, "widen source" in plan, "_16bit" in plan)
T, N, H = 9, 2, 6  # in three dispatches of slices, which read the deltas of the step after from memory
draw = numpy.random.default_rng(0)
given = {
    "source": draw.standard_normal((T, N, 3 * H)).astype("f2"),
    "recurrent_weight": (0.3 * draw.standard_normal((3 * H, H))).astype("f2"),
    "secondary_bias": draw.standard_normal(H).astype("f2"),
    "descriptor": vkrnn.GRUDescriptor(reset_after=True, training=True),
}
forward = vkrnn.reference.gru(**given)
saved = {"output_fwd": forward.output, "z_state": forward.z_state, "source_gradient": numpy.ones((T, N, H))}
given |= {name: numpy.asarray(array, "f2") for name, array in saved.items()}
for schedule in ("slices", "steps"):
    sizes = {"slice_steps": 3} if schedule == "slices" else {}
    device = vkrnn.Device(gpu.index, schedule=schedule, **sizes)
    print(schedule, vkrnn.check(vkrnn.gru_gradients, **given, tolerance=2**-8, device=device).ok)
print(gpu.name)
"""


@pytest.mark.skipif(
    CC is None or MESA is None or not HEADERS.exists(), reason="needs a C compiler, Vulkan headers and llvmpipe"
)
@pytest.mark.usefixtures("vulkan_build")
def test_a_driver_of_a_subset_of_vulkan(tmp_path: Path) -> None:
    """Its device is listed, opened with VK_KHR_portability_subset, and computes.

    It has no 16-bit storage, so calls in float16 convert their arguments and results.
    No costs were measured for this GPU, which the log says once.
    """
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
    alone = vulkan_alone(manifest) | NO_CUDA | {"VKRNN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CALL], env={**given, **alone}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, half, *gradients, name = done.stdout.splitlines()
    assert gradients == ["slices True", "steps True"]
    assert first == "integrated_gpu True True"
    assert half == "True True False"
    assert (
        done.stderr.splitlines().count(
            f"no costs were measured on {name}: strategies are chosen by those of an NVIDIA H200; "
            "python -m vkrnn tune measures this device"
        )
        == 1
    )
