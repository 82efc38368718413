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

    Each head's weight becomes a block on the diagonal of `recurrent_weight`. ``gradient_recurrent_clipval`` becomes
    `gradient_clip`, and ``gradient_recurrent_cut`` a `gradient_clip` of 0.

    The layer of a cell has no input weight. As the cell, it takes the input part of the gates i, f, z, o, [N, T, 4H].
    Its output is [N, T, H], where the cell's is [N, heads, T, H / heads].

    The layer of an ``sLSTMLayer`` takes the layer's input, [N, T, H]. If the layer has a convolution, it takes
    [N, T, 2H] instead: the input after the convolution and its activation, which gates i and f read, and then the input
    itself, which gates z and o read. Dropout and the norm of the output are left to you.

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
    arguments = {
        "recurrent_weight": _blocks(kernel.transpose(0, 2, 3, 1)),
        "bias": bias.swapaxes(0, 1).ravel(),
    }
    batch_first = config.input_shape == "BSGNH"
    if is_layer:
        # The gates i and f read the weights that are named after the other one.
        gates = [array(getattr(module, f"{gate}gate").weight).astype(kernel.dtype) for gate in "fizo"]
        weight = _blocks(np.stack(gates, axis=1))
        if module.config.conv1d_kernel_size > 0:
            first, last = np.split(weight, 2)
            zeros = np.zeros_like(first)
            weight = np.block([[first, zeros], [zeros, last]])
        arguments["input_weight"], batch_first = weight, True
    clip = 0.0 if config.gradient_recurrent_cut else config.gradient_recurrent_clipval
    return Layer(operations.slstm, arguments, SLSTMDescriptor(gradient_clip=clip), batch_first=batch_first)


def _blocks(weights: Array) -> Array:
    """Return weights of heads, [heads, gates, rows, columns], as one with blocks: [gates heads rows, heads columns]."""
    heads, gates, rows, columns = weights.shape
    dense = np.zeros((gates, heads, rows, heads, columns), weights.dtype)
    for head in range(heads):
        dense[:, head, :, head] = weights[head]
    return dense.reshape(gates * heads * rows, heads * columns)
