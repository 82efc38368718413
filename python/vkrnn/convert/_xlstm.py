"""The function `from_xlstm` of `vkrnn.convert`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import operations
from vkrnn._base.packages import import_package
from vkrnn._ops.layer import Layer
from vkrnn.descriptors import SLSTMDescriptor

__all__ = ["from_xlstm"]

Array = npt.NDArray[Any]

_WHERE = "[from_xlstm]"


def from_xlstm(module: Any) -> Layer:
    """Return the recurrence of an ``sLSTMCell`` or ``sLSTMLayer`` of the package xlstm, with copies of its weights.

    Heads become `heads`, so the recurrent weight is [4H, H / heads]. ``gradient_recurrent_clipval`` becomes
    `gradient_clip`, and ``gradient_recurrent_cut`` a `gradient_clip` of 0.

    The layer of a cell has no input weight. As the cell, it takes the input part of the gates i, f, z, o, [N, T, 4H].
    Its output is [N, T, H], where the cell's is [N, heads, T, H / heads].

    The layer of an ``sLSTMLayer`` takes the layer's input, [N, T, H], and has `input_heads`. If the layer has a
    convolution, it takes [N, T, 2H] instead: the input after the convolution and its activation, which gates i and f
    read, and then the input itself, which gates z and o read. Its input weight is then dense. Dropout and the norm of
    the output are left to you.

    Parameters
    ----------
    module : xlstm.sLSTMLayer or its attribute slstm_cell
        With any back end.

    Raises
    ------
    TypeError
        If it is another module.
    NotImplementedError
        If it computes another function than the sLSTM, or clips its output.

    Examples
    --------
    >>> import numpy as np, vkrnn, xlstm  # doctest: +SKIP
    >>> config = xlstm.sLSTMLayerConfig(embedding_dim=16, num_heads=4, conv1d_kernel_size=0, backend="vanilla")
    ... # doctest: +SKIP
    >>> layer = vkrnn.convert.from_xlstm(xlstm.sLSTMLayer(config))  # doctest: +SKIP
    >>> layer(np.ones((1, 5, 16), np.float32))  # doctest: +SKIP
    Results(slstm: output [1, 5, 16] float32)
    """
    names = {base.__name__ for base in type(module).__mro__ if base.__module__.split(".")[0] == "xlstm"}
    if not names & {"sLSTMLayer", "sLSTMCellBase"}:
        raise TypeError(f"{_WHERE} module: expected an sLSTMLayer or sLSTMCell of xlstm, got {type(module).__name__}")
    import_package("torch", _WHERE)
    from vkrnn._interop.torch_tensors import to_array  # noqa: PLC0415 - needs torch

    def array(tensor: Any) -> Array:
        return to_array(tensor.detach().cpu())

    is_layer = "sLSTMLayer" in names
    cell = module.slstm_cell if is_layer else module
    config = cell.config
    if config.function != "slstm":
        raise NotImplementedError(f"{_WHERE} function: expected 'slstm', got {config.function!r}")
    if config.forward_clipval is not None:
        raise NotImplementedError(f"{_WHERE} forward_clipval: expected None, got {config.forward_clipval!r}")
    # Whatever the back end, [heads, units of h[t-1], gates, units], and [heads, gates, units].
    kernel = array(cell._recurrent_kernel_int2ext(cell._recurrent_kernel))  # noqa: SLF001 - xlstm has no other way
    bias = array(cell._bias_int2ext(cell._bias)).astype(kernel.dtype)  # noqa: SLF001
    heads, units = kernel.shape[0], kernel.shape[1]
    arguments = {
        "recurrent_weight": np.ascontiguousarray(kernel.transpose(2, 0, 3, 1)).reshape(-1, units),
        "bias": bias.swapaxes(0, 1).ravel(),
    }
    input_heads = 1
    batch_first = config.input_shape == "BSGNH"
    if is_layer:
        # The gates i and f read the weights that are named after the other one.
        gates = [array(getattr(module, f"{gate}gate").weight).astype(kernel.dtype) for gate in "fizo"]
        if module.config.conv1d_kernel_size > 0:
            weight = np.zeros((4, heads, units, 2, heads, units), kernel.dtype)
            for gate, head in np.ndindex(4, heads):
                weight[gate, head, :, gate // 2, head] = gates[gate][head]
            arguments["input_weight"] = weight.reshape(4 * heads * units, -1)
        else:
            arguments["input_weight"], input_heads = np.concatenate(gates).reshape(-1, units), heads
        batch_first = True
    clip = 0.0 if config.gradient_recurrent_cut else config.gradient_recurrent_clipval
    descriptor = SLSTMDescriptor(heads=heads, input_heads=input_heads, gradient_clip=clip)
    return Layer(operations.slstm, arguments, descriptor, batch_first=batch_first)
