"""What a module keeps of its calls on a CUDA device, so that the next ones like them take the host less time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vkrnn._ops.cuda import cuda_device
from vkrnn.devices import Device
from vkrnn.torch._autograd import apply_repeated_layer
from vkrnn.torch._choice import has_gradients, is_settled
from vkrnn.torch._cuda_calls import may_round
from vkrnn.torch._cuda_layers import Operands
from vkrnn.torch._kept import drops, has_all_parameters
from vkrnn.torch._repeated_call import RepeatedCall
from vkrnn.torch._repeated_layer import RepeatedLayer, infer_layers, place
from vkrnn.torch._tracing import seen_by_others

__all__ = ["KeptCalls"]

_MOST = 64  # kinds of calls of a module


class KeptCalls:
    """A module's calls on a CUDA device: for each kind, whether vkrnn or PyTorch computes it, and the planned layers.

    A kind is everything that a call depends on, except for the numbers. Each call reads the parameters anew, in the
    memory, the shapes and the dtypes that they had when the object was made.
    """

    def __init__(self, module: Any) -> None:
        self._parameters = [(each, place(each)) for each in module._parameters.values()]  # noqa: SLF001
        self._ways: dict[tuple[Any, ...], str] = {}
        self._layers: dict[tuple[Any, ...], list[RepeatedLayer]] = {}
        self._latest: dict[tuple[Any, ...], RepeatedCall] = {}  # by the source's shape, and whether there are states
        self._device: Device | None = None  # of the layers

    @staticmethod
    def of(module: Any) -> KeptCalls:
        """Return the kept calls of a module, or new ones if its parameters have moved or the device cannot be used."""
        kept = module.__dict__.get("_kept")
        if not isinstance(kept, KeptCalls) or not kept._is_for(module):  # noqa: SLF001
            kept = module.__dict__["_kept"] = KeptCalls(module)
        return kept

    @staticmethod
    def keep(module: Any, source: Any, hx: Any, way: str) -> None:
        """Remember whether vkrnn or PyTorch computes usual calls of this kind, if that choice is final.

        Drop what was kept for other parameters, so that these can be freed.
        """
        kept = module.__dict__.get("_kept")
        if isinstance(kept, KeptCalls) and not kept._is_for(module):  # noqa: SLF001
            module._forget()  # noqa: SLF001
        states = _usual_states(module, source, hx)
        if states is None or not _has_own_parameters(module):
            return
        if module.backend == "auto" and not module._needs_vkrnn() and not is_settled(module, source, hx):  # noqa: SLF001
            return
        _put(KeptCalls.of(module)._ways, _kind(module, source, states), way)  # noqa: SLF001

    @staticmethod
    def plan(module: Any, source: Any, hx: Any) -> None:
        """Plan the layers for calls of a kind that vkrnn has just computed, if they can be repeated."""
        states = _usual_states(module, source, hx)
        if states is None or not _is_repeatable(module, source, states):
            return
        kept = KeptCalls.of(module)
        kept._device = cuda_device(source.get_device(), "[vkrnn.torch]")  # noqa: SLF001
        _put(kept._layers, _kind(module, source, states), _planned(module, source, states))  # noqa: SLF001

    def call(self, module: Any, source: Any, hx: Any) -> Any:
        """Return the results of a call of a kind that was kept; None for any other call."""
        if type(source) is Tensor:
            latest = self._latest.get((source.shape, hx is None))
            results = None if latest is None else latest.compute(module, source, hx)
            if results is not None:
                return results
        return self.repeat(module, source, hx, self._ways)

    def repeat(self, module: Any, source: Any, hx: Any, ways: Mapping[tuple[Any, ...], str] | None = None) -> Any:
        """Return the results of a call by the planned layers, or by PyTorch if one of `ways` says so.

        Return None if there are none for this kind, or if a tensor has moved or changed its layout.
        """
        states = _usual_states(module, source, hx)
        if states is None:
            return None
        kind = _kind(module, source, states)
        if ways is not None:
            way = ways.get(kind)
            if way == "torch":
                self._remember(module, source, states, None)
                return module._compute_by_torch(source, hx)  # noqa: SLF001
            if way is None:
                return None
        layers = self._layers.get(kind)
        if layers is None or not _can_be_read(source, states) or not self._is_for(module):
            return None
        if ways is not None:
            self._remember(module, source, states, layers)
        return _run(module, layers, source, states)

    def _remember(
        self, module: Any, source: Tensor, states: tuple[Tensor, ...], layers: list[RepeatedLayer] | None
    ) -> None:
        """Let the next calls on tensors like these take the shortest way."""
        if self._is_for(module) and RepeatedCall.is_possible(module, source, states, layers):
            _put(self._latest, (source.shape, not states), RepeatedCall(module, source, states, layers))

    def _is_for(self, module: Any) -> bool:
        """Return whether the parameters have their old addresses, shapes and dtypes, and the device can be used."""
        parameters, device = module._parameters, self._device  # noqa: SLF001
        if len(parameters) != len(self._parameters) or (device is not None and (device.closed or device.lost)):
            return False
        for parameter, (same, before) in zip(parameters.values(), self._parameters, strict=True):
            if parameter is not same or place(parameter) != before:
                return False
        return True


def _put(kept: dict[tuple[Any, ...], Any], kind: tuple[Any, ...], value: Any) -> None:
    """Set an item. Items of other kinds are dropped if there are too many."""
    if len(kept) == _MOST:
        kept.clear()
    kept[kind] = value


def _usual_states(module: Any, source: Any, hx: Any) -> tuple[Tensor, ...] | None:
    """Return the given initial states, or None if the call cannot be repeated."""
    if type(source) is not Tensor or not _is_usual(module):
        return None
    if hx is None:
        return ()
    states = hx if module.mode == "LSTM" else (hx,)
    count = 2 if module.mode == "LSTM" else 1
    if type(states) is not tuple or len(states) != count or any(type(each) is not Tensor for each in states):
        return None
    return states


def _is_usual(module: Any) -> bool:
    """Return whether calls can be repeated now: without autocast, dropout, tracers, transforms and other observers."""
    return not (
        torch.is_autocast_enabled("cuda")
        or torch._C._is_tracing()  # noqa: SLF001 - torch.jit.is_tracing takes longer
        or seen_by_others()
        or drops(module)
    )


def _has_own_parameters(module: Any) -> bool:
    """Return whether the module has its own parameters, and not the tensors of torch.func.functional_call."""
    return all(type(each) is torch.nn.Parameter for each in module._parameters.values())  # noqa: SLF001


def _kind(module: Any, source: Tensor, states: tuple[Tensor, ...]) -> tuple[Any, ...]:
    dtype = source.dtype
    return (
        source.shape,
        dtype,
        source.get_device(),
        module.backend,
        module.batch_first,
        module.training,
        has_gradients(module, source, states),
        dtype is torch.float32 and may_round(),
        *[each.shape for each in states],
    )


def _can_be_read(source: Tensor, states: tuple[Tensor, ...]) -> bool:
    """Return whether kernels can read the tensors in place."""
    dtype, ordinal = source.dtype, source.get_device()
    for each in (source, *states):
        if each.dtype is not dtype or each.get_device() != ordinal or not each.is_contiguous() or each.is_neg():
            return False
    return True


def _is_repeatable(module: Any, source: Tensor, states: tuple[Tensor, ...]) -> bool:
    """Return whether `RepeatedLayer` can compute the call, which was computed before and so has no mistakes."""
    parameters = tuple(module._parameters.values())  # noqa: SLF001
    return (
        source.dim() == 3
        and source.numel() > 0
        and not module.batch_first
        and not module.bidirectional
        and has_all_parameters(module)
        and (not has_gradients(module, source, states) or all(each.requires_grad for each in parameters))
        and _has_own_parameters(module)
        and _can_be_read(source, (*states, *parameters))
    )


def _planned(module: Any, source: Tensor, states: tuple[Tensor, ...]) -> list[RepeatedLayer]:
    training = has_gradients(module, source, states)
    layers = []
    for number in range(module.num_layers):
        first = [each[number] for each in states] + [None] * (2 - len(states))
        given = Operands._make([source, *module._weights(number), *first, None])  # noqa: SLF001
        layers.append(RepeatedLayer(module.mode + module._options, given, training=training))  # noqa: SLF001
        source = source.new_empty((*source.shape[:2], module.hidden_size))
    return layers


def _run(module: Any, layers: list[RepeatedLayer], source: Tensor, states: tuple[Tensor, ...]) -> Any:
    """Compute the layers. Return the output and the last states."""
    lstm = module.mode == "LSTM"
    if layers[0].training:
        last: Any = []
        for number, layer in enumerate(layers):
            first = [module._of_layer(each, number, 1) for each in states]  # noqa: SLF001
            absent = [None] * (2 - len(states))
            source, *ends = apply_repeated_layer(layer, source, *layer.weights, *first, *absent)
            last.append(ends[: 1 + lstm])
        last = [each[0] if len(layers) == 1 else torch.cat(each) for each in zip(*last, strict=True)]
    else:
        found = infer_layers(layers, source, states)
        if found is None:
            return None
        source, last = found
    return source, tuple(last) if lstm else last[0]
