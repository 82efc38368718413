"""Packed weights that a module keeps while its parameters stay the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vkrnn import _core
from vkrnn._layer import Layer
from vkrnn._prepared import Prepared
from vkrnn._torch_layout import FORWARD, from_torch_layout
from vkrnn._torch_tensors import to_array
from vkrnn.devices import Device, resolve
from vkrnn.torch._threads import pytorch_threads
from vkrnn.torch._tracing import seen_by_others

__all__ = ["Kept", "drops", "has_all_parameters"]

_PREFIX = "[vkrnn.torch]"


class Kept:
    """A module's parameters at one call and, from the second such call on, their packed weights.

    PyTorch counts the changes of a tensor, but not those through `tensor.data` or an array in the same memory. To find
    these, samples of the elements are compared.
    """

    def __init__(self, module: Any) -> None:
        self._device = resolve(None, _PREFIX)
        parameters = list(module._parameters.values())  # noqa: SLF001
        self._known = [(each, each._version, each.data_ptr()) for each in parameters]  # noqa: SLF001 - torch's name
        self._samples: _core.Samples | None = None
        self._prepared: Prepared | None = None

    @staticmethod
    def is_possible(module: Any) -> bool:
        """Return whether all changes of the parameters would be noticed, and the layers run in one call."""
        parameters = module._parameters  # noqa: SLF001
        return (
            not drops(module)
            and has_all_parameters(module)
            and all(
                type(parameter) is torch.nn.Parameter
                and parameter.is_contiguous()
                and not parameter.is_inference()  # inference tensors have no version
                and not parameter.is_shared()  # other processes may change it
                for parameter in parameters.values()
            )
        )

    def prepared(self, module: Any) -> Prepared | None:
        """Return the module's layers with packed weights; None if the parameters or the device are others now."""
        if not self._is_for(module):
            return None
        if self._samples is None:
            samples = _core.Samples([to_array(parameter) for parameter, _, _ in self._known])
            self._prepared = _prepare(module, self._device)
            self._samples = samples
        return self._prepared if self._samples.unchanged() else None

    def _is_for(self, module: Any) -> bool:
        """Return whether the module is unchanged, as far as this is known without comparing samples."""
        parameters = module._parameters  # noqa: SLF001
        device = resolve(None, _PREFIX)
        if device is not self._device or device.closed or len(parameters) != len(self._known) or drops(module):
            return False
        for parameter, (same, version, address) in zip(parameters.values(), self._known, strict=True):
            if (
                parameter is not same
                or parameter._version != version  # noqa: SLF001
                or parameter.data_ptr() != address
                or not parameter.is_contiguous()  # transposed in place through `.data`
            ):
                return False
        return True

    def call(self, module: Any, source: Any, hx: Any) -> Any:
        """Return the results of a usual call, on a step or a sequence [T, N, I]; None for any other call.

        That includes calls with mistakes, for which the ordinary way raises the error.
        """
        samples, prepared = self._samples, self._prepared
        if (
            samples is None
            or prepared is None
            or type(source) is not Tensor
            or module.batch_first
            or torch.is_grad_enabled()
            or torch._C._is_tracing()  # noqa: SLF001 - torch.jit.is_tracing takes longer
            or seen_by_others()
            or not self._is_for(module)
        ):
            return None
        lstm = module.mode == "LSTM"
        try:
            states = () if hx is None else hx if lstm else (hx,)
            if (
                type(states) is not tuple
                or len(states) not in (0, 1 + lstm)
                or any(type(each) is not Tensor for each in states)
            ):
                return None
            with pytorch_threads:
                results = prepared.run_unless_changed(samples, source.numpy(), *[each.numpy() for each in states])
                if results is None:
                    return None
                output, *last = map(torch.from_numpy, results)
        except (RuntimeError, TypeError, ValueError):
            return None
        return output, tuple(last) if lstm else last[0]


def has_all_parameters(module: Any) -> bool:
    """Return whether all weights are parameters. Those of parametrized modules are computed."""
    return all(name in module._parameters for name in module._weight_names())  # noqa: SLF001


def drops(module: Any) -> bool:
    """Return whether a call draws a dropout mask."""
    return bool(module.training and (module.recurrent_dropout or (module.dropout and module.num_layers > 1)))


def _prepare(module: Any, device: Device) -> Prepared:
    how = module.descriptor
    layers = []
    for number in range(module.num_layers):
        weights: Any = tuple(None if weight is None else to_array(weight) for weight in module._weights(number))  # noqa: SLF001
        given = from_torch_layout(weights, how)
        layers.append(Layer(FORWARD[module.mode], given, how))
    return Prepared(layers, device)
