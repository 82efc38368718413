"""A kind of call of a module on a CUDA device, on tensors that one comparison in C++ recognizes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from vkrnn.torch._cuda_calls import may_round
from vkrnn.torch._repeated_layer import RepeatedLayer, infer_layers

__all__ = ["RepeatedCall"]

# What PyTorch's modules call, by their mode.
_FUNCTIONS = {
    "LSTM": torch._VF.lstm,  # noqa: SLF001
    "GRU": torch._VF.gru,  # noqa: SLF001
    "RNN_TANH": torch._VF.rnn_tanh,  # noqa: SLF001
    "RNN_RELU": torch._VF.rnn_relu,  # noqa: SLF001
}
_settings = operator.attrgetter("backend", "batch_first", "training", "recurrent_dropout", "dropout")


class RepeatedCall:
    """A call that can be repeated while the module, its parameters' memory and what is special about tensors stay.

    What is special: class, shape, strides, dtype, device, whether they require gradients, and transforms, modes and
    tracers, which PyTorch sees in the tensors' dispatch keys. The object keeps no tensor alive.
    """

    def __init__(
        self, module: Any, source: Tensor, states: tuple[Tensor, ...], layers: Sequence[RepeatedLayer] | None
    ) -> None:
        """Take a call that was made before, by these layers or by PyTorch."""
        parameters = list(module._parameters.values())  # noqa: SLF001
        tensors = [source, *states, *parameters]
        self._count = len(tensors)
        self._is_same = _comparison(tensors)
        self._addresses = [each.data_ptr() for each in parameters]
        self._settings = _settings(module)
        self._gradients = torch.is_grad_enabled()
        self._rounds = may_round()
        self._lstm = module.mode == "LSTM"
        self._layers = layers

    @staticmethod
    def is_possible(
        module: Any, source: Tensor, states: tuple[Tensor, ...], layers: Sequence[RepeatedLayer] | None
    ) -> bool:
        """Return whether there is such an object for a call that was kept."""
        if source.dim() != 3 or not _can_compare():
            return False
        if layers is None:  # torch.nn's modules make states of zeros, which this class does not
            return bool(states) and list(module._parameters) == module._flat_weights_names  # noqa: SLF001
        return not layers[0].training

    def compute(self, module: Any, source: Tensor, hx: Any) -> Any:
        """Return the results; None if it is another kind of call. `source` is a Tensor."""
        states: Any = () if hx is None else hx if self._lstm else (hx,)
        parameters = module._parameters.values()  # noqa: SLF001
        if (
            type(states) is not tuple
            or torch.is_grad_enabled() is not self._gradients
            or _settings(module) != self._settings
            or may_round() is not self._rounds
            or torch.is_autocast_enabled("cuda")
            or torch._C._is_tracing()  # noqa: SLF001
            or forward_ad._current_level >= 0  # noqa: SLF001
            or len(states) + len(parameters) + 1 != self._count
            or not self._is_same(source, *states, *parameters)
            or [each.data_ptr() for each in parameters] != self._addresses
        ):
            return None
        if self._layers is None:
            return self._computed_by_torch(module, source, hx)
        found = infer_layers(self._layers, source, states)
        if found is None:
            return None
        output, last = found
        return output, tuple(last) if self._lstm else last[0]

    def _computed_by_torch(self, module: Any, source: Tensor, hx: Any) -> Any:
        """Do what the module of torch.nn does after its checks, which calls like this one have passed."""
        output, *last = _FUNCTIONS[module.mode](
            source,
            hx,
            list(module._parameters.values()),  # noqa: SLF001
            module.bias,
            module.num_layers,
            module.dropout,
            module.training,
            module.bidirectional,
            module.batch_first,
        )
        return output, tuple(last) if self._lstm else last[0]


@functools.cache
def _can_compare() -> bool:
    """Return whether PyTorch compares tensors as `_comparison` expects. It does not document how."""
    try:
        is_same = _comparison([torch.zeros(2, 3)])
        return is_same(torch.ones(2, 3)) and not is_same(torch.zeros(2, 4)) and not is_same(torch.zeros(3, 2).T)
    except (ImportError, AttributeError, TypeError):
        return False


def _comparison(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return a function that says whether as many tensors are like these."""
    from torch._C._dynamo.guards import TensorGuards  # noqa: PLC0415 - torch.compile's, which may be missing

    check: Callable[..., bool] = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(each.shape) for each in tensors],
        dynamic_dims_strides=[list(each.stride()) for each in tensors],
    ).check
    return check
