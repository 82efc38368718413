"""A module's calls on a CUDA device, on tensors that one comparison in C++ recognizes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from vkrnn.torch._autograd import Form, apply_network, first_with_gradients
from vkrnn.torch._calls import Planned, may_round
from vkrnn.torch._choice import is_settled
from vkrnn.torch._kept import drops, has_all_parameters
from vkrnn.torch._network import Inputs, plan_network, results_of
from vkrnn.torch._tracing import seen_by_others

__all__ = ["RepeatedCalls", "can_compare", "comparison"]

_MOST = 64  # calls of a module
# What PyTorch's modules call, by their mode.
_FUNCTIONS = {
    "LSTM": torch._VF.lstm,  # noqa: SLF001
    "GRU": torch._VF.gru,  # noqa: SLF001
    "RNN_TANH": torch._VF.rnn_tanh,  # noqa: SLF001
    "RNN_RELU": torch._VF.rnn_relu,  # noqa: SLF001
}
_settings = operator.attrgetter("backend", "batch_first", "training", "recurrent_dropout", "weight_dropout", "dropout")


class RepeatedCalls:
    """Calls of a module, by the source's shape, whether there are states, and whether gradients may be recorded."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], _RepeatedCall] = {}

    def call(self, module: Any, source: Any, hx: Any) -> Any:
        """Return the results of a call that was kept; None for any other call."""
        if type(source) is not Tensor:
            return None
        known = self._calls.get((source.shape, hx is None, torch.is_grad_enabled()))
        return None if known is None else known.compute(module, source, hx)

    @staticmethod
    def keep(module: Any, source: Any, hx: Any, way: str) -> None:
        """Keep a call that vkrnn or PyTorch has computed, as `way` says, if calls like it can take a shorter way."""
        states = _usual_states(module, source, hx)
        if states is None:
            return
        kept = module.__dict__.get("_kept")
        if not isinstance(kept, RepeatedCalls):
            kept = RepeatedCalls()
        key = source.shape, hx is None, torch.is_grad_enabled()
        if not _is_possible(module, source, states, way):
            kept._calls.pop(key, None)
            return
        if len(kept._calls) == _MOST:
            kept._calls.clear()
        kept._calls[key] = _RepeatedCall(module, source, states, way)
        module.__dict__["_kept"] = kept

    @staticmethod
    def settle(module: Any, source: Any, hx: Any, way: str) -> None:
        """Keep a call that PyTorch has computed. Drop one that vkrnn has if that is not decided yet."""
        if type(source) is not Tensor:
            return
        kept = module.__dict__.get("_kept")
        decided = module.backend != "auto" or module._needs_vkrnn() or is_settled(module, source, hx)  # noqa: SLF001
        if not decided and isinstance(kept, RepeatedCalls):
            kept._calls.pop((source.shape, hx is None, torch.is_grad_enabled()), None)  # noqa: SLF001
        elif decided and way == "torch":
            RepeatedCalls.keep(module, source, hx, way)


class _RepeatedCall:
    """A call that can be repeated while the module, its parameters' memory and what is special about tensors stay.

    What is special: class, shape, strides, dtype, device, whether they require gradients, and transforms, modes and
    tracers, which PyTorch sees in the tensors' dispatch keys. The object keeps no tensor alive.
    """

    def __init__(self, module: Any, source: Tensor, states: tuple[Tensor, ...], way: str) -> None:
        parameters = list(module._parameters.values())  # noqa: SLF001
        tensors = [source, *states, *parameters]
        self._count = len(tensors)
        self._is_same = comparison(tensors)
        self._addresses = [each.data_ptr() for each in parameters]
        self._settings = _settings(module)
        self._gradients = torch.is_grad_enabled()
        self._rounds = may_round()
        self._lstm = module.mode == "LSTM"
        self._planned: Planned | None = None
        if way == "torch":
            return
        weights = module._weights_of_all_layers()  # noqa: SLF001
        at = {id(each): number for number, each in enumerate(parameters)}
        self._order = [at[id(each)] for each in weights]
        h_0, c_0 = [*states, None, None][:2]
        mode = module.mode + module._options  # noqa: SLF001
        inputs = Inputs(source, weights, h_0, c_0, [], [], None, mode, module.num_layers, 0)
        inputs = inputs._replace(trained=first_with_gradients(inputs))
        self._form, _ = Form.of(inputs)
        self._planned = plan_network(inputs)

    def compute(self, module: Any, source: Tensor, hx: Any) -> Any:
        """Return the results; None if it is another kind of call. `source` is a Tensor."""
        states: Any = () if hx is None else hx if self._lstm else (hx,)
        parameters = list(module._parameters.values())  # noqa: SLF001
        if (
            type(states) is not tuple
            or torch.is_grad_enabled() is not self._gradients
            or _settings(module) != self._settings
            or may_round() is not self._rounds
            or torch.is_autocast_enabled("cuda")
            or torch._C._is_tracing()  # noqa: SLF001
            or torch._C._len_torch_dispatch_stack()  # noqa: SLF001 - not all modes are among the keys
            or forward_ad._current_level >= 0  # noqa: SLF001
            or len(states) + len(parameters) + 1 != self._count
            or not self._is_same(source, *states, *parameters)
            or [each.data_ptr() for each in parameters] != self._addresses
        ):
            return None
        planned = self._planned
        if planned is None:
            return self._computed_by_torch(module, source, hx)
        if not planned.core.usable:
            return None
        weights = [parameters[at] for at in self._order]
        if self._form.trained < self._form.layers:
            given = *weights, *[*states, None, None][:2]
            output, *last = apply_network(self._form, planned, source, *given, None)[:3]
        else:
            output, *last, _ = results_of(planned.kind, planned.run((source, *weights, *states)))
        return output, tuple(last) if self._lstm else last[0]

    def _computed_by_torch(self, module: Any, source: Tensor, hx: Any) -> Any:
        """Do what the module of torch.nn does after its checks, which calls like this one have passed."""
        if hx is None:  # the module makes states of zeros
            return module._compute_by_torch(source, hx)  # noqa: SLF001
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


def _usual_states(module: Any, source: Any, hx: Any) -> tuple[Tensor, ...] | None:
    """Return the given initial states, or None if the call cannot be repeated.

    That is one under autocast, with dropout, or with tracers, transforms and other observers.
    """
    if (
        type(source) is not Tensor
        or source.dim() != 3
        or source.numel() == 0
        or torch.is_autocast_enabled("cuda")
        or seen_by_others()
        or drops(module)
    ):
        return None
    if hx is None:
        return ()
    states = hx if module.mode == "LSTM" else (hx,)
    count = 2 if module.mode == "LSTM" else 1
    if type(states) is not tuple or len(states) != count or any(type(each) is not Tensor for each in states):
        return None
    return states


def _is_possible(module: Any, source: Tensor, states: tuple[Tensor, ...], way: str) -> bool:
    """Return whether a call can be repeated. It was computed before, and so has no mistakes."""
    parameters = tuple(module._parameters.values())  # noqa: SLF001
    if not can_compare() or any(type(each) is not torch.nn.Parameter for each in parameters):
        return False
    if way == "torch":
        return bool(list(module._parameters) == module._flat_weights_names)  # noqa: SLF001
    dtype, ordinal = source.dtype, source.get_device()
    return (
        not module.batch_first
        and not module.bidirectional
        and not module.proj_size
        and has_all_parameters(module)
        and all(
            each.dtype is dtype and each.get_device() == ordinal and each.is_contiguous() and not each.is_neg()
            for each in (source, *states, *parameters)
        )
    )


@functools.cache
def can_compare() -> bool:
    """Return whether PyTorch compares tensors as `comparison` expects. It does not document how."""
    try:
        is_same = comparison([torch.zeros(2, 3)])
        return is_same(torch.ones(2, 3)) and not is_same(torch.zeros(2, 4)) and not is_same(torch.zeros(3, 2).T)
    except (ImportError, AttributeError, TypeError):
        return False


def comparison(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return a function that says whether as many tensors are like these."""
    from torch._C._dynamo.guards import TensorGuards  # noqa: PLC0415 - torch.compile's, which may be missing

    check: Callable[..., bool] = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(each.shape) for each in tensors],
        dynamic_dims_strides=[list(each.stride()) for each in tensors],
    ).check
    return check
