"""`vkrnn.convert.from_xlstm` and `vkrnn.torch.slstm` beside the vanilla back end of the package xlstm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require

torch = require("torch")
xlstm = require("xlstm")
import vkrnn.torch  # noqa: E402

N, T, H, HEADS = 3, 7, 12, 3


def drawn(module: Any) -> Any:
    """Return the module in float64, with other parameters than zeros."""
    generator = torch.Generator().manual_seed(1)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return module


def layer_of(**options: Any) -> Any:
    config = xlstm.sLSTMLayerConfig(embedding_dim=H, num_heads=HEADS, backend="vanilla", dtype="float32", **options)
    return drawn(xlstm.sLSTMLayer(config))


@pytest.mark.parametrize("kernel", [0, 4])
def test_a_layer_has_xlstms_numbers(kernel: int) -> None:
    """The output before the norm, with and without the convolution."""
    module = layer_of(conv1d_kernel_size=kernel)
    module.group_norm = torch.nn.Identity()
    x = torch.randn(N, T, H, dtype=torch.float64)
    with torch.no_grad():
        wanted = module(x)
        source = torch.cat([module.conv_act_fn(module.conv1d(x)), x], -1) if kernel else x
    found = vkrnn.convert.from_xlstm(module)(source.numpy(), device="cpu").output
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("given", [False, True], ids=["from zeros", "from given states"])
def test_states_and_gradients_are_xlstms(given: bool) -> None:  # noqa: FBT001
    """Results of a cell, and the gradients of a loss on all outputs and on the last states."""
    cell = layer_of().slstm_cell
    layer = vkrnn.convert.from_xlstm(cell)
    start = torch.randn(4, N, H, dtype=torch.float64)
    start[2] = 1 + start[2].abs()
    source = torch.randn(N, T, 4 * H, dtype=torch.float64)
    above, ends = torch.randn(N, T, H, dtype=torch.float64), torch.randn(4, N, H, dtype=torch.float64)
    leaves = [source.clone().requires_grad_(), start.clone().requires_grad_()]
    output, last = cell(leaves[0], leaves[1] if given else None)
    output = output.transpose(1, 2).reshape(N, T, H)
    ((output * above).sum() + (last * ends).sum()).backward()

    names = ("init_state", "init_cell", "init_normalizer", "init_stabilizer")
    own = [source.transpose(0, 1).clone().requires_grad_(), start.clone().requires_grad_()]
    weights = {name: torch.from_numpy(array).requires_grad_() for name, array in layer.arguments.items()}
    states = dict(zip(names, own[1], strict=True)) if given else {}
    found = vkrnn.torch.slstm(own[0], **weights, **states, descriptor=replace(layer.descriptor, produce_cell=True))
    sequences = found.output, found.cell_output, found.normalizer_output, found.stabilizer_output
    for ours, theirs in zip(sequences, last, strict=True):
        np.testing.assert_allclose(ours[-1].detach(), theirs.detach(), rtol=0, atol=1e-12)
    loss = (found.output * above.transpose(0, 1)).sum()
    loss = loss + sum((sequence[-1] * end).sum() for sequence, end in zip(sequences, ends, strict=True))
    loss.backward()
    np.testing.assert_allclose(own[0].grad.transpose(0, 1), leaves[0].grad, rtol=0, atol=1e-11)
    if given:
        np.testing.assert_allclose(own[1].grad, leaves[1].grad, rtol=0, atol=1e-11)
    d_heads = cell._recurrent_kernel_int2ext(cell._recurrent_kernel_.grad).permute(2, 0, 3, 1)
    d_recurrent = weights["recurrent_weight"].grad
    np.testing.assert_allclose(d_recurrent, d_heads.reshape(d_recurrent.shape), rtol=0, atol=1e-11)
    d_bias = cell._bias_int2ext(cell._bias_.grad).transpose(0, 1).reshape(-1)
    np.testing.assert_allclose(weights["bias"].grad, d_bias, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("options", "wanted"), [({}, None), ({"gradient_recurrent_clipval": 0.5}, 0.5)])
def test_clipped_gradients(options: dict[str, Any], wanted: float | None) -> None:
    """The vanilla back end ignores the options, but the others do not."""
    assert vkrnn.convert.from_xlstm(layer_of(**options)).descriptor.gradient_clip == wanted
    assert vkrnn.convert.from_xlstm(layer_of(**options, gradient_recurrent_cut=True)).descriptor.gradient_clip == 0


def test_what_cannot_be_converted() -> None:
    message = r"^\[from_xlstm\] module: expected an sLSTMLayer or sLSTMCell of xlstm, got Linear$"
    with pytest.raises(TypeError, match=message):
        vkrnn.convert.from_xlstm(torch.nn.Linear(2, 2))
    with pytest.raises(NotImplementedError, match=r"^\[from_xlstm\] function: expected 'slstm', got 'lstm'$"):
        vkrnn.convert.from_xlstm(layer_of(function="lstm"))
    with pytest.raises(NotImplementedError, match=r"^\[from_xlstm\] forward_clipval: expected None, got 3\.0$"):
        vkrnn.convert.from_xlstm(layer_of(forward_clipval=3.0))
