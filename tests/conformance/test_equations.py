"""The differentiable equations agree with the reference, forward and in first derivatives, for every option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import vkrnn.reference
from blends import draw_blends, with_output
from cases import CASES, Case, by_id, gradient_inputs, inputs, lengths_of
from comparison import scaled_error
from oracles import require
from resets import draw_resets
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
from vkrnn.torch._loops import operation_loop  # noqa: E402


def arguments_of(case: Case, extra: str) -> dict[str, Any]:
    """Return the arguments of a call, with lengths, resets or blends if `extra` says so."""
    given: dict[str, Any] = dict(inputs(case))
    if "lengths" in extra:
        given["lengths"] = lengths_of(case)
    if "resets" in extra:
        given |= draw_resets(case, "units", "sequences")
    for kind in ("mask", "leak"):
        if kind in extra:
            given |= draw_blends(case, kind)
    return given


def tensors_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as tensors, in float64 and with gradients where they have any."""
    found = {}
    for name, array in given.items():
        tensor = torch.from_numpy(np.array(array))
        found[name] = tensor.double().requires_grad_("mask" not in name) if tensor.is_floating_point() else tensor
    return found


EXTRAS = ("", "lengths", "resets", "lengths, resets", "mask", "resets, leak")
CALLS = [(case, EXTRAS[number % len(EXTRAS)]) for number, case in enumerate(CASES)]


@pytest.mark.parametrize(("case", "extra"), CALLS, ids=by_id)
def test_agree_with_the_reference(case: Case, extra: str) -> None:
    given = arguments_of(case, extra)
    tensors, descriptor = tensors_of(given), case.descriptor(training=True)
    wanted = getattr(vkrnn.reference, case.cell)(**given, descriptor=descriptor)
    found = operation_loop(case.cell, descriptor, tensors)
    sequences = [name for name in wanted._asdict() if name != "z_state"]
    for name in sequences:
        assert scaled_error(found[name].detach().numpy(), getattr(wanted, name)) < TORCH_IN_FLOAT64
    if case.values == "kinks":  # where derivatives are a matter of taste
        return
    upstream = gradient_inputs(case, wanted)
    loss = (found["output"] * torch.from_numpy(upstream["source_gradient"])).sum()
    order = [name for name, tensor in tensors.items() if tensor.requires_grad]
    gradients = torch.autograd.grad(loss, [tensors[name] for name in order], allow_unused=True)
    upstream = with_output(upstream, wanted)
    kept = {name: each for name, each in upstream.items() if name.endswith("_fwd") or name == "z_state"}
    right = getattr(vkrnn.reference, f"{case.cell}_gradients")(
        **given, source_gradient=upstream["source_gradient"], **kept, descriptor=descriptor
    )
    for name, gradient in zip(order, gradients, strict=True):
        if gradient is not None:
            assert scaled_error(gradient.numpy(), getattr(right, name)) < TORCH_IN_FLOAT64


@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru", "slstm"])
def test_without_a_recurrent_weight(cell: str) -> None:
    """The loop is that of zeros."""
    case = Case(cell, 5, 3, 4, 4, {}, present=frozenset({"input_weight", "bias"}))
    given = tensors_of(inputs(case))
    zeros = torch.zeros_like(given["recurrent_weight"])
    none, some = (
        operation_loop(cell, case.descriptor(), given | {"recurrent_weight": weight}) for weight in (None, zeros)
    )
    for name, each in none.items():
        torch.testing.assert_close(each, some[name])
