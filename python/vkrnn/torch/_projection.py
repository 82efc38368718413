"""LSTMs with a projection: `proj_size` of PyTorch's module.

The network that vkrnn computes has the states s before the projection, h = s W_hr^T. Its recurrent weight is
W_hh W_hr. The first h, which is no s, is read as further features of the source: zeros in all other steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vkrnn.torch._network import Inputs

__all__ = ["require_no_options", "run_projected"]


def require_no_options(where: str, options: dict[str, Any]) -> None:
    """Raise NotImplementedError if one of these options, which act on h, is there beside a projection."""
    for name, value in options.items():
        if value:
            raise NotImplementedError(f"{where} {name}: not with proj_size, got {value!r}")


def run_projected(
    module: Any, source: Tensor, h_0: Tensor | None, c_0: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run the layers of a module, one after the other, over a source [T, N, I], or packed with its `lengths`.

    Return the output, and h_n and c_n, [L D, N, P] and [L D, N, H].
    """
    options = {"recurrent_dropout": module.training and module.recurrent_dropout, "zoneout": module.zoneout}
    require_no_options(f"[vkrnn.torch.{module._name}]", options)  # noqa: SLF001
    D = 1 + module.bidirectional
    mode = module.mode + module._options  # noqa: SLF001
    zoneout = module._zoneout_masks(source, module.zoneout_cell)  # noqa: SLF001
    output, last = source, []
    for number in range(module.num_layers):
        if number > 0:
            output = torch.nn.functional.dropout(output, module.dropout, module.training)
        own = slice(number * D, (number + 1) * D)
        weight_ih, weight_hh, *others = [
            each.to(source.dtype)
            for each in (*module._weights(number), module._rows("weight_hr", number))  # noqa: SLF001
            if each is not None
        ]
        inward, outward = (_halves(each, D) for each in (weight_hh, others.pop()))
        if h_0 is not None:
            firsts = [_in_first_step(state, output, lengths, reverse=d == 1) for d, state in enumerate(h_0[own])]
            output = torch.cat([output, *firsts], dim=-1)
            weight_ih = torch.cat([weight_ih, torch.block_diag(*inward)], dim=1)
        recurrent = torch.cat([each @ projection for each, projection in zip(inward, outward, strict=True)])
        cells = None if c_0 is None else c_0[own]
        inputs = Inputs(output, [weight_ih, recurrent, *others], None, cells, [], [], lengths, mode, 1, 0)
        inputs = inputs._replace(zoneout_cell_masks=zoneout[number : number + 1] or None)
        states, (s_n, c_n) = module._run_network(inputs)  # noqa: SLF001
        output = torch.cat([each @ to.T for each, to in zip(states.chunk(D, -1), outward, strict=True)], dim=-1)
        last.append((torch.stack([each @ to.T for each, to in zip(s_n, outward, strict=True)]), c_n))
    h_n, c_n = (torch.cat(each) for each in zip(*last, strict=True))
    return output, (h_n, c_n)


def _halves(weight: Tensor, D: int) -> list[Tensor]:
    """Return the rows of each direction. ONNX's exporter computes slices of constants, but not chunks."""
    rows = len(weight) // D
    return [weight[d * rows : (d + 1) * rows] for d in range(D)]


def _in_first_step(state: Tensor, source: Tensor, lengths: Tensor | None, *, reverse: bool) -> Tensor:
    """Return a state [N, P] in the rows of the source that a direction begins with, and zeros in the other rows."""
    if lengths is not None:
        return state.new_zeros(len(source), state.shape[1]).index_copy(0, _first_rows(lengths, reverse=reverse), state)
    first, zeros = state.unsqueeze(0), state.new_zeros(len(source) - 1, *state.shape)
    return torch.cat([zeros, first] if reverse else [first, zeros])


def _first_rows(lengths: Tensor, *, reverse: bool) -> Tensor:
    """Return the packed rows that a direction begins with: in reverse, those of the sequences' last steps."""
    rows = torch.arange(len(lengths), device=lengths.device)
    if not reverse:
        return rows
    sizes = (lengths > torch.arange(int(lengths[0]), device=lengths.device).unsqueeze(1)).sum(1)
    before = sizes.cumsum(0) - sizes  # rows of earlier steps
    return before[lengths - 1] + rows
