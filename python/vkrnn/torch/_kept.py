"""Packed weights that a module keeps while its parameters stay the same."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from vkrnn import _core
from vkrnn._interop.torch_tensors import to_array
from vkrnn._ops.layer import Layer
from vkrnn._ops.prepared import Prepared
from vkrnn.convert._torch_layout import FORWARD, from_torch_layout
from vkrnn.devices import Device, resolve
from vkrnn.torch._threads import pytorch_threads
from vkrnn.torch._tracing import seen_by_others

__all__ = ["Kept", "drops", "has_all_parameters"]

_PREFIX = "[vkrnn.torch]"


class Kept:
    """A module's parameters at one call and, from the second such call on, their packed weights.

    A fingerprint of all bytes of the parameters tells whether they have changed. A frozen module needs none, and packs
    its weights at the first call.
    """

    def __init__(self, module: Any) -> None:
        self._device = resolve(None, _PREFIX)
        self._parameters = list(module._parameters.values())  # noqa: SLF001
        self._dtypes = [each.dtype for each in self._parameters]
        self._places = _places(self._parameters)
        self._frozen: bool = module._frozen  # noqa: SLF001
        self._fingerprint = None if self._frozen else _core.Fingerprint(list(map(to_array, self._parameters)))
        self._prepared: Prepared | None = None

    @staticmethod
    def is_possible(module: Any) -> bool:
        """Return whether the layers run in one call on the parameters themselves."""
        return (
            not drops(module)
            and not module.proj_size
            and has_all_parameters(module)
            and all(
                type(parameter) is torch.nn.Parameter and parameter.is_contiguous()
                for parameter in module._parameters.values()  # noqa: SLF001
            )
        )

    def prepared(self, module: Any) -> Prepared | None:
        """Return the module's layers with packed weights; None if the parameters or the device are others now."""
        dtypes = [each.dtype for each in self._parameters]  # `call` only takes inputs of the dtype
        if not self._is_for(module) or dtypes != self._dtypes or not self._is_unchanged():
            return None
        if self._prepared is None:
            prepared = _prepare(module, self._device)
            if not self._is_unchanged():  # another thread may have written while the weights were packed
                return None
            self._prepared = prepared
        return self._prepared

    def _is_for(self, module: Any) -> bool:
        """Return whether the module has the same parameters, device and mode."""
        parameters = module._parameters  # noqa: SLF001
        device = resolve(None, _PREFIX)
        return (
            device is self._device
            and not device.closed
            and not drops(module)
            and len(parameters) == len(self._parameters)
            and all(map(operator.is_, parameters.values(), self._parameters))
            and (self._frozen or _places(self._parameters) == self._places)
        )

    def _is_unchanged(self) -> bool:
        return self._fingerprint is None or self._fingerprint.unchanged()

    def call(self, module: Any, source: Any, hx: Any) -> Any:
        """Return the results of a usual call, on a step or a sequence [T, N, I]; None for any other call.

        That includes calls with mistakes, for which the ordinary way raises the error.
        """
        prepared = self._prepared
        if (
            prepared is None
            or type(source) is not Tensor
            or module.batch_first
            or torch.is_grad_enabled()
            or seen_by_others()
            or not self._is_for(module)
        ):
            return None
        lstm = module.mode == "LSTM"
        states = () if hx is None else hx if lstm else (hx,)
        if type(states) is not tuple or len(states) not in (0, 1 + lstm):
            return None
        for each in states:  # `all` would take longer
            if type(each) is not Tensor:
                return None
        try:
            with pytorch_threads:
                results = prepared.run_unless_changed(
                    self._fingerprint, source.numpy(), *[each.numpy() for each in states]
                )
                if results is None:
                    return None
                output, *last = map(torch.from_numpy, results)
        except (RuntimeError, TypeError, ValueError):
            return None
        return output, tuple(last) if lstm else last[0]


def _places(parameters: list[Tensor]) -> list[int]:
    """Return where the tensors are, and whether they are contiguous. Assignments to `tensor.data` can change it."""
    return [*map(Tensor.data_ptr, parameters), *map(Tensor.is_contiguous, parameters)]


def has_all_parameters(module: Any) -> bool:
    """Return whether all weights are parameters. Those of parametrized modules are computed."""
    return all(name in module._parameters for name in module._weight_names())  # noqa: SLF001


def drops(module: Any) -> bool:
    """Return whether a call has dropout, of units or weights, or zoneout masks."""
    if module.zoneout or module.zoneout_cell:
        return True
    in_training = module.recurrent_dropout or module.weight_dropout
    return bool(module.training and (in_training or (module.dropout and module.num_layers > 1)))


def _prepare(module: Any, device: Device) -> Prepared:
    how = module.descriptor
    layers = []
    for number in range(module.num_layers):
        weights: Any = tuple(None if weight is None else to_array(weight) for weight in module._weights(number))  # noqa: SLF001
        given = from_torch_layout(weights, how)
        layers.append(Layer(FORWARD[module.mode], given, how))
    return Prepared(layers, device)
