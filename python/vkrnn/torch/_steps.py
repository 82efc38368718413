"""Single steps of the cells: networks of one layer and one step, and calls of them that are made again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from vkrnn import _core
from vkrnn._interop.torch_tensors import to_array
from vkrnn.convert._torch_layout import FORWARD, descriptor, from_torch_layout, torch_mode
from vkrnn.devices import is_default
from vkrnn.torch._autograd import (
    Form,
    first_with_gradients,
    gradients_of,
    restored,
    save,
    with_trained,
)
from vkrnn.torch._calls import ALL, Planned, keep_until_read, may_round
from vkrnn.torch._network import Inputs, names_of_weights, network, plan_network
from vkrnn.torch._repeated import can_compare, comparison
from vkrnn.torch._threads import pytorch_threads
from vkrnn.torch._tracing import is_plain, seen_by_others, unseen_by_dynamo

__all__ = ["Steps", "step"]

_MOST = 64  # calls of a cell
_VARIANTS = 3  # of a call
# Steps of one row with fewer elements of weights use packed weights, if they are the same as in the step before.
_PACKED = 140_000
_OPERATORS = {
    "LSTM": torch._VF.lstm_cell,  # noqa: SLF001
    "GRU": torch._VF.gru_cell,  # noqa: SLF001
    "RNN_TANH": torch._VF.rnn_tanh_cell,  # noqa: SLF001
    "RNN_RELU": torch._VF.rnn_relu_cell,  # noqa: SLF001
}
_is_tracing = torch._C._is_tracing  # noqa: SLF001
_count_of_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)  # of PyTorch 2.10 or later


def step(mode: str, source: Tensor, weights: Sequence[Tensor], states: Sequence[Tensor], mask: Tensor | None) -> Any:
    """Compute one step by the operator `network`. The source is [N, I], states and mask are [N, H]."""
    h_0, c_0 = [*[each.unsqueeze(0) for each in states], None, None][:2]
    masks = [] if mask is None else [mask.unsqueeze(0)]
    inputs = Inputs(source.unsqueeze(0), list(weights), h_0, c_0, masks, [], None, mode, 1, 0)
    output, _, c_n, _ = network(*with_trained(inputs))
    return (output[0], c_n[0]) if mode.startswith("LSTM") else output[0]


class Steps:
    """A cell's calls on tensors that one comparison in C++ recognizes, by the input's shape and what there is."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], list[_Step | _TorchsStep]] = {}  # the latest first

    def call(self, cell: Any, source: Any, hx: Any) -> Any:
        """Return the results of a call that was kept; None for any other call."""
        if type(source) is not Tensor:
            return None
        for known in self._calls.get((source.shape, hx is None, torch.is_grad_enabled()), ()):
            found = known.compute(cell, source, hx)
            if found is not None:
                return found
        return None

    def leave(self, source: Tensor, hx: Any) -> None:
        """Leave calls like this one to PyTorch."""
        self._calls[source.shape, hx is None, torch.is_grad_enabled()] = [_TorchsStep(source)]

    def keep(self, cell: Any, source: Tensor, hx: Any) -> None:
        """Keep a call that was computed before, and so has no mistakes, if calls like it can take a shorter way."""
        states = () if hx is None else hx if type(hx) is tuple else (hx,)
        parameters = [each for each in cell._parameters.values() if each is not None]  # noqa: SLF001
        tensors = [source, *states, *parameters]
        key = source.shape, hx is None, torch.is_grad_enabled()
        if (
            source.dim() != 2
            or source.numel() == 0
            or source.is_meta
            or torch.is_autocast_enabled(source.device.type)
            or seen_by_others()
            or any(type(each) is not Tensor for each in (source, *states))
            or any(type(each) is not torch.nn.Parameter for each in parameters)
            or not is_plain(tensors)
            or {id(each) for each in cell.weights()} != {id(each) for each in parameters}  # parametrized
            or not can_compare()
            or not all(each.is_contiguous() and each.dtype is source.dtype for each in tensors)
        ):
            self._calls.pop(key, None)
            return
        if len(self._calls) == _MOST:
            self._calls.clear()
        # States of a loop's first step differ from later ones: they require no gradients, or were made elsewhere.
        self._calls[key] = [_Step(cell, source, states, parameters), *self._calls.get(key, ())][:_VARIANTS]


class _TorchsStep:
    """A call that is left to PyTorch while its cell has no options."""

    def __init__(self, source: Tensor) -> None:
        self._on_host = source.is_cpu

    def compute(self, cell: Any, source: Tensor, hx: Any) -> Any:
        """Return the results; None if it is another kind of call. `source` has two axes."""
        if (
            source.is_cpu is not self._on_host
            or cell.needs_vkrnn()
            or (self._on_host and torch.is_autocast_enabled("cpu"))
            or torch._C._are_functorch_transforms_active()  # noqa: SLF001
        ):
            return None
        if hx is not None:
            parameters = cell._parameters  # noqa: SLF001
            names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
            try:  # the operator itself: the module's checks and its look-ups of weights take microseconds
                return _OPERATORS[cell.mode](source, hx, *[parameters[name] for name in names])
            except (KeyError, RuntimeError, TypeError, IndexError):
                pass  # a weight that is computed, or a mistake, of which the module tells
        return cell.compute_by_torch(source, hx)


class _Step:
    """A call that can be repeated while the cell's options, the device and what is special about tensors stay.

    What is special: class, shape, strides, dtype, device, whether they require gradients, and transforms, modes and
    tracers, which PyTorch sees in the tensors' dispatch keys. The object keeps no tensor alive.
    """

    def __init__(self, cell: Any, source: Tensor, states: Sequence[Tensor], parameters: list[Tensor]) -> None:
        self._mode = cell.mode_with_options
        self._count = len(states)
        self._same = _are_same(states)
        self._is_same = comparison([source, *states[: 1 if self._same else None], *parameters])
        self.on_host = source.is_cpu
        self._type = source.device.type
        self._rounds = may_round()
        weights = cell.weights()
        self._order = [next(at for at, each in enumerate(parameters) if each is one) for one in weights]
        h_0, c_0 = [*[each.unsqueeze(0) for each in states], None, None][:2]
        inputs = Inputs(source.unsqueeze(0), weights, h_0, c_0, [], [], None, self._mode, 1, 0)
        inputs = inputs._replace(trained=first_with_gradients(inputs))
        self.form, _ = Form.of(inputs)
        self.planned: Planned = plan_network(inputs)
        self.backward: dict[tuple[bool, ...], _Backward] = {}  # by which upstream gradients there are, and precision
        # Where the results are among those of the plan.
        at = {name: number for number, (name, _) in enumerate(self.planned.names)}
        states_at = [(at["output"], True), *((at[name], True) for name in ("last_cell",) if name in at)]
        self._has_cell = len(states_at) == 2
        kept = [(at[name], False) for name in ("z_state", "cell_output") if name in at]
        self._results = Results(self.planned, [*states_at, *kept])
        self._short = None
        if self.form.trained and not self._same and self._results.run is not None:
            packs = len(source) == 1 and source.itemsize >= 4 and sum(each.numel() for each in weights) <= _PACKED
            self._short = _core.StepCall(
                self._results.run,
                check=self._is_same,
                order=self._order,
                states=self._count,
                is_lstm=self._has_cell,
                pack=functools.partial(_packed, self._mode) if packs else None,
                sizes=[each.nbytes for each in parameters],
            )

    def compute(self, cell: Any, source: Tensor, hx: Any) -> Any:
        """Return the results; None if it is another kind of call. `source` is a Tensor."""
        if (
            cell.mode_with_options != self._mode
            or _is_tracing()
            or _count_of_modes()  # not all are among the keys
            or forward_ad._current_level >= 0  # noqa: SLF001
            or (self.on_host and not is_default(self.planned.owner))
        ):
            return None
        if self._short is not None:
            return self._short.run(source, hx, cell._parameters)  # noqa: SLF001
        states: Any = () if hx is None else hx if type(hx) is tuple else (hx,)
        parameters = [each for each in cell._parameters.values() if each is not None]  # noqa: SLF001
        if (
            len(states) != self._count
            or _are_same(states) is not self._same
            or may_round() is not self._rounds
            or torch.is_autocast_enabled(self._type)
            or not self.planned.core.usable
            or not self._is_same(source, *(states[:1] if self._same else states), *parameters)
        ):
            return None
        weights = [parameters[at] for at in self._order]
        if self.form.trained == 0:
            return _apply(self, source, *weights, *states, *(None, None, None)[: 3 - self._count])
        h, c, _ = self.run([source, *weights, *states])
        return h if c is None else (h, c)

    def run(self, operands: list[Tensor]) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """Return h, the cell of an LSTM, and what gradients need."""
        found: Any = self._results.of(operands)
        h, *found = found
        return (h, found[0], found[1:]) if self._has_cell else (h, None, found)


class Results:
    """Runs of a plan that return some results as tensors, by their numbers, or without their first axis."""

    def __init__(self, planned: Planned, wanted: list[tuple[int, bool]]) -> None:
        self.planned, self._wanted = planned, wanted
        self.run: _core.TensorRun | None = None
        if planned.owner.backend == "native" and _EXCHANGE is not None:
            threads = pytorch_threads if isinstance(pytorch_threads, _core.OpenMP) else None
            self.run = _core.TensorRun(planned.core, _EXCHANGE, wanted, threads)

    def of(self, operands: list[Tensor]) -> Sequence[Any] | None:
        """Return the results, with None for negative numbers. Operands are contiguous and like those planned."""
        if self.run is not None:
            return self.run.run(operands)
        found = list(self.planned.run(operands).values())
        # Autograd forbids changes in place of a Function's results that are views. `data` is none.
        return [
            None if number < 0 else found[number].squeeze(0).data if drops_axis else found[number]
            for number, drops_axis in self._wanted
        ]


def _packed(mode: str, weights: list[Tensor]) -> list[tuple[str, dict[str, Any], Any]]:
    """Return a cell as a layer with weights in vkrnn's layout."""
    how = descriptor(mode, bidirectional=False)
    arrays: list[Any] = list(map(to_array, weights))
    peephole = arrays.pop() if len(arrays) % 2 else None
    matrices, biases = arrays[:2], arrays[2:] or (None, None)
    given = from_torch_layout((*matrices, *biases, peephole), how)
    return [(FORWARD[torch_mode(mode)].__name__, given, how)]


def _are_same(states: Sequence[Tensor]) -> bool:
    """Return whether h and c are one tensor, which the comparison would not take twice."""
    return len(states) == 2 and states[0] is states[1]


class _RepeatedStep(torch.autograd.Function):
    """A repeated call with its gradients, on contiguous tensors that need no operator."""

    @staticmethod
    def forward(ctx: Any, call: _Step, *tensors: Any) -> Any:
        """Run the plan."""
        h, c, kept = call.run([each for each in tensors if each is not None])
        save(ctx, call.form, tensors, None, kept)
        ctx.call, ctx.planned = call, call.planned
        return h if c is None else (h, c)

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, d_h: Tensor | None, d_c: Tensor | None = None) -> Any:
        """Run the plan of the gradients, if there is one, or do what the modules do."""
        tensors, _, kept = restored(ctx)
        if d_h is None and d_c is None:
            return None, *[None] * len(tensors)
        above = d_h, None, d_c
        if not torch.is_grad_enabled() and is_plain(above):
            found = _run_backward(ctx.call, above, kept, tensors)
            if found is not None:
                return None, *found
        # A single step reads nothing of the output that it is given.
        output = torch.zeros_like(d_h) if d_h is not None and ctx.form.needs_output else None
        with_steps = d_h, d_c, output, tensors[0], *tensors[-3:-1]
        d_output, d_c_n, last, source, *states = (each if each is None else each.unsqueeze(0) for each in with_steps)
        given = [source, *tensors[1:-3], *states, None]
        d_source, *d_weights, d_h_0, d_c_0, _ = gradients_of(ctx, (d_output, None, d_c_n), last, kept, given)
        return None, _row(d_source), *d_weights, _row(d_h_0), _row(d_c_0), None


class _Backward(Results):
    """A plan for the gradients of a step with respect to the source, the weights and the states."""

    def __init__(self, planned: Planned, weights: int) -> None:
        at = {name: number for number, name in enumerate(planned.names)}
        names = ("source", 0), *names_of_weights(1, weights), ("init_state", ALL), ("init_cell", ALL)
        states = {"source", "init_state", "init_cell"}  # which have a step in front
        super().__init__(planned, [(at.get(name, -1), name[0] in states) for name in names])

    def of(self, operands: list[Tensor]) -> Sequence[Any] | None:
        """Return the gradients, or None if the operands are not like those that were planned."""
        if self.run is None:
            planned = self.planned
            for tensor, shape in zip(operands, planned.operands):  # noqa: B905 - whose shapes may have a step in front
                if tensor.shape[-2:] != shape[-2:] or tensor.dtype is not planned.dtype or not tensor.is_contiguous():
                    return None
        return super().of(operands)


def _run_backward(
    call: _Step,
    above: tuple[Tensor | None, None, Tensor | None],
    kept: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
) -> list[Tensor | None] | None:
    """Return the gradients with respect to a step's tensors, or None if no plan was kept for such gradients."""
    d_h, _, d_c = above
    key = d_h is not None, False, d_c is not None, may_round()
    known = call.backward.get(key)
    if known is None:
        planned = call.planned.backward.get(key)
        if planned is None:
            return None
        known = call.backward[key] = _Backward(planned, call.form.weights)
    if not known.planned.core.usable:
        return None
    up = [each if each is None or each.is_contiguous() else each.contiguous() for each in (d_h, d_c)]
    output = up[0] if call.form.needs_output else None  # of which a single step reads nothing
    operands = [each for each in (*tensors, *up, *kept, output) if each is not None]
    if not call.on_host:
        keep_until_read(tensors[0], tensors[-3], tensors[-2])
    found = known.of(operands)
    return None if found is None else [*found, None]


def _row(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.squeeze(0)


_apply = super(torch.autograd.Function, _RepeatedStep).apply
