"""Large products of the strategy `tiled`, whose tiles, slabs and blocks of summands small calls do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from resident import position
from scale import distinct
from tolerances import FLOAT32


@pytest.mark.parametrize(("rows", "features", "units"), distinct([(1101, 519, 258), (1100, 520, 260)], 2))
def test_large_tiles(rows: int, features: int, units: int) -> None:
    """Results and gradients are right, also where sums are added to what is stored."""
    rng = np.random.default_rng(0)
    gates = 4 * units
    shapes = {"source": (1, rows, features), "recurrent_weight": (gates, units), "input_weight": (gates, features)}
    arrays: dict[str, Any] = {name: 0.1 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    descriptor = vkrnn.LSTMDescriptor(training=True)
    exact = {name: value.astype(np.float64) for name, value in arrays.items()}
    kept = vkrnn.reference.lstm(**exact, descriptor=descriptor)
    upstream = rng.standard_normal(kept.output.shape, np.float32)
    saved = {"z_state": kept.z_state, "cell_output_fwd": kept.cell_output}
    right = vkrnn.reference.lstm_gradients(
        **exact, source_gradient=upstream.astype(np.float64), **saved, descriptor=descriptor
    )
    with vkrnn.Device(position(native=False), schedule="tiles", gemm="tiled") as device:
        found = vkrnn.lstm(**arrays, descriptor=descriptor, device=device)
        rounded = {name: value.astype(np.float32) for name, value in saved.items()}
        arguments = {**arrays, "source_gradient": upstream, **rounded, "descriptor": descriptor, "device": device}
        gradients = vkrnn.lstm_gradients(**arguments)
        plans = [vkrnn.plan(vkrnn.lstm, **arrays, device=device), vkrnn.plan(vkrnn.lstm_gradients, **arguments)]
    # Plans halve tiles that are too few for the multiprocessors. A discrete GPU's do so for gradients of these sizes.
    large = plans[:1] if device.profile.type == "discrete_gpu" else plans
    assert all("tile 128" in str(plan) for plan in large)
    for got, ideal in zip((*found, *gradients), (*kept, *right), strict=True):
        assert np.abs(got - ideal).max() <= FLOAT32 * np.abs(ideal).max()
