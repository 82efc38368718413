"""The kernels' sources compile as CUDA C++, too: see shaders/common/language.glsl. No GPU is needed."""

from __future__ import annotations

import pytest

from tests.support import nvrtc

pytestmark = pytest.mark.skipif(nvrtc.find() is None, reason="NVRTC is not installed (pip install nvidia-cuda-nvrtc)")

# Strategies whose kernels are built for float64, too: see CMakeLists.txt.
FLOAT64 = ("cuda/", "portable/", "slices/", "tiles/")
STORED = 61  # kStored of shaders/common/abi.h


@pytest.mark.parametrize(("file", "cell"), [(file, cell) for _, file, cell in nvrtc.kernels()])
def test_kernels_compile_as_cuda(file: str, cell: str) -> None:
    """Every kernel compiles without a change, for each of its types."""
    for kind in ("", "VKRNN_FLOAT64")[: 1 + file.startswith(FLOAT64)]:
        cubin, log = nvrtc.compile_kernel(file, cell, kind=kind)
        assert cubin, log
    tensors_in_bfloat16 = (*[-1] * STORED, 2**32 - 1, 2**32 - 1)  # both words
    cubin, log = nvrtc.compile_kernel(file, cell, kind="VKRNN_16BIT", constants=tensors_in_bfloat16)
    assert cubin, log
