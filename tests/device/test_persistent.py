"""The persistent loop: what becomes of a call whose workgroups wait in vain for each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn import reference

INDICES = [one.index for one in vkrnn.devices() if "persistent" in vkrnn.Device(one.index).strategies["schedule"]]
T, N, H = 5, 20, 40
TOLERANCE = 2e-6  # of the largest value

if not INDICES:
    pytest.skip("no device here has matrix units", allow_module_level=True)


@pytest.fixture(name="device", params=itertools.product(INDICES, ({}, {"kept_blocks": 1, "depth_groups": 2})))
def _device(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    # A workgroup gives up before its first turn; the rows stand in several tiles, and so do the units.
    index, sizes = request.param
    device = vkrnn.Device(index, schedule="persistent", matrix_rows=1, matrix_columns=1, most_turns=0, **sizes)
    yield device
    device.close()


def error(got: Any, ideal: Any) -> float:
    """Return max |a - b| / max |b|."""
    return float(np.abs(np.asarray(got) - ideal).max() / np.abs(ideal).max())


@pytest.mark.parametrize("lengths", [None, [5] * 7 + [1, 4] + [3] * 11], ids=["whole", "lengths"])
def test_a_wait_that_gives_up_is_made_good(device: vkrnn.Device, lengths: list[int] | None) -> None:
    """Forward and gradients, with rows of all lengths, are those of the reference, the same bits every time."""
    draw = np.random.default_rng(7).standard_normal
    arrays = {
        "source": draw((T, N, H)).astype(np.float32),
        "recurrent_weight": (draw((4 * H, H)) / H**0.5).astype(np.float32),
        "input_weight": (draw((4 * H, H)) / H**0.5).astype(np.float32),
        "init_state": draw((N, H)).astype(np.float32),
    }
    more: dict[str, Any] = {} if lengths is None else {"lengths": np.array(lengths, np.int32)}
    descriptor = vkrnn.LSTMDescriptor(training=True)
    ideal = reference.lstm(**arrays, **more, descriptor=descriptor)
    got = vkrnn.lstm(**arrays, **more, descriptor=descriptor, device=device)
    assert vkrnn.plan(vkrnn.lstm, **arrays, **more, descriptor=descriptor, device=device).strategy["most_turns"] == 0
    again = vkrnn.lstm(**arrays, **more, descriptor=descriptor, device=device)
    for name in ("output", "cell_output", "z_state"):
        assert error(getattr(got, name), getattr(ideal, name)) < TOLERANCE, name
        assert np.array_equal(np.asarray(getattr(got, name)), np.asarray(getattr(again, name))), name

    upstream = draw((T, N, H)).astype(np.float32)
    saved = {"source_gradient": upstream, "z_state": got.z_state, "cell_output_fwd": got.cell_output}
    ideal_saved = {"source_gradient": upstream, "z_state": ideal.z_state, "cell_output_fwd": ideal.cell_output}
    gradients = vkrnn.lstm_gradients(**arrays, **saved, **more, descriptor=descriptor, device=device)._asdict()
    expected = reference.lstm_gradients(**arrays, **ideal_saved, **more, descriptor=descriptor)._asdict()
    assert gradients.keys() == expected.keys()
    for name, ideal_gradient in expected.items():
        assert error(gradients[name], ideal_gradient) < TOLERANCE, name
