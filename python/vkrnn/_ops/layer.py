"""A recurrent layer with its weights, as converted from another library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import _core
from vkrnn._ops.cuda import as_operand
from vkrnn.arrays import Array, asarray
from vkrnn.results import Ends, Outputs

__all__ = ["Layer", "swapped"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One recurrent layer: a function of `vkrnn`, its keyword arguments and its descriptor. Can be called.

    Attributes
    ----------
    function : callable
        `vkrnn.lstm`, `vkrnn.gru` or `vkrnn.single_gate_rnn`.
    arguments : dict of str to numpy.ndarray
        The weights, by the names of the function's parameters.
    descriptor : LSTMDescriptor or GRUDescriptor or SingleGateRNNDescriptor
    recurrent_dropout : float, default 0.0
        Probability of zeroing a unit of the state in training, for `to_torch`. A call of the layer drops nothing.
    batch_first : bool, default False
        Whether sequences have the batch axis first, as those of the module that the layer was converted from: the
        source [N, T, I], a mask [N, T, H], and the results, which are then views. `function` itself has time first.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> weights = {"recurrent_weight": np.zeros((8, 2), np.float32), "input_weight": np.ones((8, 3), np.float32)}
    >>> layer = vkrnn.convert.Layer(vkrnn.lstm, weights, vkrnn.LSTMDescriptor())
    >>> layer(np.ones((5, 1, 3), np.float32))
    Results(lstm: output [5, 1, 2] float32)
    """

    function: Callable[..., Outputs[Any]]
    arguments: dict[str, npt.NDArray[Any]]
    descriptor: Any
    recurrent_dropout: float = 0.0
    batch_first: bool = False

    @property
    def hidden_size(self) -> int:
        """Units of one direction, H."""
        weight = self.arguments.get("recurrent_weight")
        if weight is not None:
            return int(weight.shape[-1]) * (1 if self.descriptor is None else int(self.descriptor.heads))
        [cell] = [cell for cell in _core.cells() if cell.name == self.function.__name__]
        directions = 1 + bool(getattr(self.descriptor, "bidirectional", False))
        rows: int = self.arguments["input_weight"].shape[0]
        return rows // (directions * len(cell.gates))

    def __call__(self, source: Any, **more: Any) -> Outputs[Any]:
        """Call the function. `more` adds arguments or replaces the layer's own.

        Raises
        ------
        NotImplementedError
            If there is an ``out``, and the layer has the batch axis first.
        """
        given = {"recurrent_weight": None, **self.arguments, "descriptor": self.descriptor, **more}
        if not self.batch_first:
            return self.function(source, **given)
        where = f"[{self.function.__name__}]"
        if given.get("out") is not None:
            raise NotImplementedError(f"{where} out: expected None, because the layer has batch_first, got arrays")
        if given.get("mask") is not None:
            given["mask"] = swapped(given["mask"], f"{where} mask:")
        found = self.function(swapped(source, f"{where} source:"), **given)
        ends = found._ends and Ends(*found._ends)._replace(batch_first=True)  # noqa: SLF001 - for this package
        arrays = [swapped(array, where) for array in found]
        return type(found)._of(found._function, found._fields, arrays, found._reasons, ends)  # noqa: SLF001

    def __repr__(self) -> str:
        """Return names, shapes and the descriptor."""
        shapes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in self.arguments.items())
        dropout = f"; recurrent_dropout={self.recurrent_dropout}" if self.recurrent_dropout else ""
        batch = "; batch_first=True" if self.batch_first else ""
        return f"Layer({self.function.__name__}: {shapes}; {self.descriptor!r}{dropout}{batch})"


def swapped(value: Any, where: str, axes: tuple[int, ...] = (3,)) -> Any:
    """Return an array with its first two axes swapped, a `vkrnn.Array` through the host's memory.

    One whose number of axes is none of `axes` is returned as it is. Calls refuse it.
    """
    array = as_operand(value, where)
    if getattr(array, "ndim", 0) not in axes:
        return array
    if isinstance(array, Array):
        return asarray(np.ascontiguousarray(array.numpy().swapaxes(0, 1)), device=array.device)
    return array.swapaxes(0, 1)
