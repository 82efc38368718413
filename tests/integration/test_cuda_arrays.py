"""vkrnn's functions on arrays of CuPy and JAX on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CELLS, DESCRIPTORS, GATES
from targets import require_cuda_device

require_cuda_device()

T, N, H = 7, 3, 16


def _cupy() -> tuple[Any, Any]:
    cupy = pytest.importorskip("cupy")
    return cupy.asarray, cupy.from_dlpack


def _jax() -> tuple[Any, Any]:
    jax = pytest.importorskip("jax")
    try:
        (gpu, *_) = jax.devices("cuda")
    except RuntimeError as problem:
        pytest.skip(f"JAX has no GPU: {problem}")
    return lambda array: jax.device_put(array, gpu), jax.dlpack.from_dlpack


@pytest.mark.parametrize("library", [_cupy, _jax], ids=["cupy", "jax"])
@pytest.mark.parametrize("cell", GATES)
def test_calls_and_gradients(cell: str, library: Any) -> None:
    """Arguments are read where they are, and results are handed back without a copy."""
    there, back = library()
    rng = np.random.default_rng(1)
    G = GATES[cell]
    given = {
        "source": rng.standard_normal((T, N, H)).astype(np.float32),
        "recurrent_weight": rng.standard_normal((G * H, H)).astype(np.float32) / 4,
        "input_weight": rng.standard_normal((G * H, H)).astype(np.float32) / 4,
    }
    upstream = rng.standard_normal((T, N, H)).astype(np.float32)
    how: Any = DESCRIPTORS[cell](training=True)
    saved = {f"{name}_output_fwd": f"{name}_output" for name in CELLS[cell]}
    if cell == "gru":
        saved["output_fwd"] = "output"

    def computed(given: dict[str, Any], upstream: Any) -> list[Any]:
        found = getattr(vkrnn, cell)(**given, descriptor=how)
        kept = {name: getattr(found, result) for name, result in saved.items()}
        gradients = getattr(vkrnn, f"{cell}_gradients")(
            **given, **kept, source_gradient=upstream, z_state=found.z_state, descriptor=how
        )
        return [*found, *gradients]

    with vkrnn.Device("cpu ("):
        wanted = computed(given, upstream)
    device = vkrnn._ops.cuda.cuda_device(0, "[test]")
    copied = device.statistics()["bytes_uploaded"]
    found = computed({name: there(array) for name, array in given.items()}, there(upstream))
    assert device.statistics()["bytes_uploaded"] == copied
    for result, other in zip(found, wanted, strict=True):
        theirs = back(result)
        np.testing.assert_allclose(result.numpy(), other, rtol=0, atol=2e-5 * abs(other).max())
        np.testing.assert_array_equal(np.asarray(theirs.get() if hasattr(theirs, "get") else theirs), result.numpy())
