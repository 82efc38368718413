"""Masks with a block for each gate: properties, networks, transforms of PyTorch and JAX, and who refuses them.

The table of cases has them, too, so conformance, lengths, resets and derivatives of all cells are tested with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import DIRECTIONS, GATES, OPTIONAL, Case, by_id, gradient_inputs, inputs
from comparison import assert_close
from oracles import require
from tolerances import FLOAT32, TORCH_IN_FLOAT64
from training import differentiated, trained

T, N, I, H = 4, 3, 6, 5
GATED = [cell for cell in GATES if GATES[cell] > 1]
FLAGS: dict[str, tuple[dict[str, bool], ...]] = {"gru": ({}, {"reset_after": True}, {"reset_gate_first": True})}
CASES = [
    Case(
        cell, T, N, I, H, direction | flags, frozenset(OPTIONAL[cell]), (1, N, (1 + ("bidirectional" in direction)) * H)
    )
    for cell in GATED
    for direction in DIRECTIONS
    for flags in FLAGS.get(cell, ({},))
]


def of_gates(case: Case, mask: Any) -> Any:
    """Return a mask with a copy for each gate."""
    split = mask.reshape(*mask.shape[:-1], case.D, 1, case.H)
    return split.repeat(case.G, axis=-2).reshape(*mask.shape[:-1], -1)


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_equal_masks_are_one(case: Case) -> None:
    """The same mask for each gate gives the results and the gradients of one mask for all."""
    arrays = inputs(case)
    forward = trained(case, vkrnn, arrays, None)
    upstream = gradient_inputs(case, forward)
    expected = forward._asdict() | differentiated(case, vkrnn, arrays, upstream, None)._asdict()
    arrays["mask"] = of_gates(case, arrays["mask"])
    found = trained(case, vkrnn, arrays, None)._asdict()
    assert_close(found | differentiated(case, vkrnn, arrays, upstream, None)._asdict(), expected, FLOAT32)


@pytest.mark.parametrize("cell", GATED)
def test_a_gate_sees_its_own_mask(cell: str) -> None:
    """A mask of zeros for one gate does what zeros in its recurrent weight do."""
    case = replace(CASES[0], cell=cell, options={}, present=frozenset(("input_weight", "mask")), mask_shape=None)
    arrays = inputs(case)
    for gate in range(case.G):
        block = slice(gate * H, (gate + 1) * H)
        mask, weight = np.ones((1, N, case.G * H), np.float32), arrays["recurrent_weight"].copy()
        mask[..., block], weight[block] = 0, 0
        function = getattr(vkrnn, cell)
        plain = {name: array for name, array in arrays.items() if name != "mask"}
        found = function(**plain | {"mask": mask})
        np.testing.assert_allclose(found.output, function(**plain | {"recurrent_weight": weight}).output, atol=1e-6)


def test_a_network_takes_one_for_each_layer() -> None:
    """The bits of a network are those of one call for each layer."""
    cases = [replace(CASES[0], cell="lstm", options={}, mask_shape=None, I=width, seed=width) for width in (I, H)]
    weights = [inputs(replace(case, present=frozenset(("input_weight", "bias")))) for case in cases]
    source, _ = (arrays.pop("source") for arrays in weights)
    masks = [np.random.default_rng(seed).uniform(size=(1, N, 4 * H)).astype(np.float32) for seed in (0, 1)]
    network = vkrnn.network([(vkrnn.lstm, each, vkrnn.LSTMDescriptor()) for each in weights], device="cpu")
    found = network.forward(source, mask=masks)
    for each, mask in zip(weights, masks, strict=True):
        source = vkrnn.lstm(source, **each, mask=mask, device="cpu").output
    np.testing.assert_array_equal(found.output, source)


def test_second_derivatives_and_vmap_of_pytorch() -> None:
    """Gradients of gradients are those of finite differences, and examples of vmap those of calls."""
    torch = require("torch")
    functions = pytest.importorskip("vkrnn.torch")
    draw = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    mask, d = drawn(1, 2, 9), vkrnn.GRUDescriptor(reset_after=True)
    given = [drawn(3, 2, 2).requires_grad_(), drawn(9, 3).requires_grad_(), drawn(9, 2).requires_grad_()]

    def call(x: Any, R: Any, W: Any, mask: Any = mask) -> Any:
        return functions.gru(x, R, input_weight=W, mask=mask, descriptor=d).output

    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)
    masks = drawn(4, 1, 2, 9)
    found = torch.vmap(call, (None, None, None, 0))(*given, masks)
    for each, one in zip(found, masks, strict=True):
        torch.testing.assert_close(each, call(*given, one), rtol=0, atol=TORCH_IN_FLOAT64)


def test_other_strategies_and_mpsgraph_refuse_them() -> None:
    """The messages say so."""
    names = [profile.name for profile in vkrnn.devices()]
    arrays = inputs(Case("lstm", T, N, I, H, {}, frozenset(("input_weight", "mask")), (1, N, 4 * H)))
    for number, name in enumerate(names):
        if "llvmpipe" in name:
            with pytest.raises(NotImplementedError) as refused:
                vkrnn.lstm(**arrays, device=vkrnn.Device(number, schedule="slices"))
            assert str(refused.value) == f"[lstm] schedule 'slices' does not fit this call on {name}"
    labels = {"inputWeight": arrays["input_weight"], "bias": None, "initState": None, "initCell": None}
    with pytest.raises(ValueError) as error:
        vkrnn.mpsgraph.LSTM(
            arrays["source"],
            recurrentWeight=arrays["recurrent_weight"],
            **labels,
            mask=arrays["mask"],
            peephole=None,
            descriptor=vkrnn.LSTMDescriptor(),
            name=None,
        )
    assert str(error.value) == f"[lstm] mask: expected one for all gates, got [1, {N}, {4 * H}]"
