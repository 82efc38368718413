"""Sequences of different lengths against PyTorch's packed sequences, for the reference and the device."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import Case, gradient_inputs, last_states
from comparison import assert_close
from tolerances import DTYPES, TORCH_IN_FLOAT64
from torch_layers import cell_of, weights_of
from training import differentiated, trained

Array = NDArray[Any]
Arrays = dict[str, Array]


def torch_layer(torch: Any, kind: str, arrays: Arrays, lengths: Array, directions: int) -> tuple[Any, Arrays, Arrays]:
    """Run a torch layer on packed sequences. Return its output and states, and the inputs' gradients."""
    T, _, I = arrays["source"].shape
    H = arrays["h0"].shape[-1]
    torch.manual_seed(3)
    layer = getattr(torch.nn, kind)(I, H, bidirectional=directions == 2).double()
    fed = {name: torch.from_numpy(arrays[name].copy()).requires_grad_() for name in ("source", "h0", "c0")}
    packed = torch.nn.utils.rnn.pack_padded_sequence(fed["source"], lengths, enforce_sorted=False)
    out, last = layer(packed, (fed["h0"], fed["c0"]) if kind == "LSTM" else fed["h0"])
    output, _ = torch.nn.utils.rnn.pad_packed_sequence(out, total_length=T)
    h, c = last if kind == "LSTM" else (last, None)
    total = (output * torch.from_numpy(arrays["d_output"])).sum() + (h * torch.from_numpy(arrays["d_h"])).sum()
    if c is not None:
        total = total + (c * torch.from_numpy(arrays["d_c"])).sum()
    total.backward()
    results = {"output": output.detach().numpy(), "h": h.detach().numpy()}
    results |= {} if c is None else {"c": c.detach().numpy()}
    gradients = {name: tensor.grad.numpy() for name, tensor in fed.items() if tensor.grad is not None}
    return layer, results, gradients


def side_by_side(state: Array) -> Array:
    """Return torch's [D, N, H] as [N, DH]."""
    return np.concatenate(list(state), axis=-1)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("module", [vkrnn.reference, vkrnn], ids=["reference", "device"])
def test_agrees_with_torchs_packed_sequences(torch: Any, module: Any, kind: str, *, bidirectional: bool) -> None:
    """Outputs, last states and gradients of `pack_padded_sequence` with ``enforce_sorted=False``, in float64."""
    T, N, I, H, D = 6, 5, 7, 4, 1 + bidirectional
    lengths = np.array([3, 6, 1, 5, 3])
    draw = np.random.default_rng(5).standard_normal
    names = {"h0": (D, N, H), "c0": (D, N, H), "d_h": (D, N, H), "d_c": (D, N, H), "d_output": (T, N, D * H)}
    given = {"source": draw((T, N, I))} | {name: draw(shape) for name, shape in names.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer, results, inner = torch_layer(torch, kind, given, lengths, D)

    def arguments(*, grad: bool = False) -> Arrays:
        states = inner if grad else given
        found = {"source": states["source"], "init_state": side_by_side(states["h0"])}
        if kind == "LSTM":
            found["init_cell"] = side_by_side(states["c0"])
        return found | weights_of(layer, grad=grad)

    cell, descriptor = cell_of(kind, bidirectional=bidirectional)
    case = Case(cell, T, N, I, H, vars(descriptor), frozenset(arguments()) - {"source", "recurrent_weight"})
    arrays = arguments()
    forward = trained(case, module, arrays, lengths)
    tolerance = TORCH_IN_FLOAT64 if module is vkrnn.reference else DTYPES["float64"]
    assert_close({"output": forward.output}, {"output": results["output"]}, tolerance)
    upstream = {"source_gradient": given["d_output"], "state_gradient": side_by_side(given["d_h"])}
    lasts = {"h": (forward.output, "h")}
    if kind == "LSTM":
        upstream["cell_gradient"] = side_by_side(given["d_c"])
        lasts["c"] = (forward.cell_output, "c")
    for sequence, name in lasts.values():
        last = last_states(case, sequence, lengths)
        assert_close({name: last}, {name: side_by_side(results[name])}, tolerance)
    saved = gradient_inputs(case, forward)  # its source_gradient is not used here
    got = differentiated(case, module, arrays, saved | upstream, lengths)._asdict()
    wanted = arguments(grad=True)
    assert set(got) == set(wanted)
    assert_close(got, {name: wanted[name] for name in got}, tolerance)
