"""The loop `split`: scales of float16 deltas where several workgroups compute a batch row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from comparison import scaled_error
from targets import is_there
from tolerances import DTYPES
from vkrnn import SingleGateRNNDescriptor, reference

INDICES = [one.index for one in vkrnn.devices() if "split" in vkrnn.Device(one.index).strategies["schedule"]]

if not INDICES:
    pytest.skip("no device has this loop", allow_module_level=True)


@pytest.mark.parametrize("index", INDICES)
def test_each_step_has_its_own_scales(index: int) -> None:
    """A workgroup may store the scale of its deltas before another one of the row has read that of the later step."""
    device = vkrnn.Device(index, schedule="split")
    if not is_there(device):
        pytest.skip("cuBLASLt is not installed")
    T, N, H = 6, 3, 2 * min(device.profile.max_workgroup_invocations, 1024)
    draw = np.random.default_rng(5).standard_normal
    sizes = 2.0 ** np.array([-8, 3, -5, 0, -9, 2])[:, None, None]
    call: dict[str, Any] = {
        "source": draw((T, N, H)).astype(np.float16),
        "recurrent_weight": (draw((H, H)) / H**0.5).astype(np.float16),
        "init_state": np.zeros((N, H), np.float16),
        "z_state": np.zeros((T, N, H), np.float16),
        "source_gradient": (draw((T, N, H)) * sizes).astype(np.float16),
        "descriptor": SingleGateRNNDescriptor(activation="none"),
    }
    gradients = vkrnn.single_gate_rnn_gradients
    assert "scaled_blocks 2" in repr(vkrnn.plan(gradients, **call, device=device))
    got = gradients(**call, device=device)
    wanted = reference.single_gate_rnn_gradients(**call)
    for name, array in wanted._asdict().items():
        assert scaled_error(np.asarray(getattr(got, name), np.float64), array) < 2 * DTYPES["float16"], name
    device.close()
