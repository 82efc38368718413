"""Single steps of the cells: networks of one layer and one step, and calls of them that are made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from vkrnn.devices import resolve
from vkrnn.torch._autograd import (
    Form,
    first_with_gradients,
    gradients_of,
    has_changed,
    restored,
    save,
)
from vkrnn.torch._calls import ALL, Planned, keep_until_read, may_round
from vkrnn.torch._network import Inputs, names_of_weights, network, plan_network, results_of
from vkrnn.torch._repeated import can_compare, comparison
from vkrnn.torch._tracing import is_plain, seen_by_others, unseen_by_dynamo

__all__ = ["Steps", "step"]

_MOST = 64  # calls of a cell


def step(mode: str, source: Tensor, weights: Sequence[Tensor], states: Sequence[Tensor], mask: Tensor | None) -> Any:
    """Compute one step by the operator `network`. The source is [N, I], states and mask are [N, H]."""
    h_0, c_0 = [*[each.unsqueeze(0) for each in states], None, None][:2]
    masks = [] if mask is None else [mask.unsqueeze(0)]
    inputs = Inputs(source.unsqueeze(0), list(weights), h_0, c_0, masks, [], None, mode, 1, 0)
    output, _, c_n, _ = network(*inputs._replace(trained=first_with_gradients(inputs)))
    return (output[0], c_n[0]) if mode.startswith("LSTM") else output[0]


class Steps:
    """A cell's calls on tensors that one comparison in C++ recognizes, by the input's shape and what there is."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], _Step | _TorchsStep] = {}

    def call(self, cell: Any, source: Any, hx: Any) -> Any:
        """Return the results of a call that was kept; None for any other call."""
        if type(source) is not Tensor:
            return None
        known = self._calls.get((source.shape, hx is None, torch.is_grad_enabled()))
        return None if known is None else known.compute(cell, source, hx)

    def leave(self, source: Tensor, hx: Any) -> None:
        """Leave calls like this one to PyTorch."""
        self._calls[source.shape, hx is None, torch.is_grad_enabled()] = _TorchsStep(source)

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
        self._calls[key] = _Step(cell, source, states, parameters)


class _TorchsStep:
    """A call that is left to PyTorch while its cell has no options."""

    def __init__(self, source: Tensor) -> None:
        self._type = source.device.type

    def compute(self, cell: Any, source: Tensor, hx: Any) -> Any:
        """Return the results; None if it is another kind of call."""
        if source.device.type != self._type or cell.needs_vkrnn() or torch.is_autocast_enabled(self._type):
            return None
        if torch._C._is_tracing() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return None
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
        self._h, self._c = at["output"], at.get("last_cell")
        self._kept = [at[name] for name in ("z_state", "cell_output") if name in at]
        self._bits = source.dtype if source.itemsize == 2 else None

    def compute(self, cell: Any, source: Tensor, hx: Any) -> Any:
        """Return the results; None if it is another kind of call. `source` is a Tensor."""
        states: Any = () if hx is None else hx if type(hx) is tuple else (hx,)
        parameters = [each for each in cell._parameters.values() if each is not None]  # noqa: SLF001
        if (
            len(states) != self._count
            or _are_same(states) is not self._same
            or cell.mode_with_options != self._mode
            or may_round() is not self._rounds
            or torch.is_autocast_enabled(self._type)
            or torch._C._is_tracing()  # noqa: SLF001
            or forward_ad._current_level >= 0  # noqa: SLF001
            or (self.on_host and resolve(None, "[vkrnn.torch]") is not self.planned.owner)
            or not self.planned.core.usable
            or not self._is_same(source, *(states[:1] if self._same else states), *parameters)
        ):
            return None
        weights = [parameters[at] for at in self._order]
        if self.form.trained == 0:
            return _apply(self, source, *weights, *states, *(None, None, None)[: 3 - self._count])
        h, c, _ = self.run((source, *weights, *states))
        return h if c is None else (h, c)

    def run(self, operands: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Return h, the cell of an LSTM, and what gradients need."""
        if not self.on_host:
            output, _, c_n, kept = results_of(self.planned.kind, self.planned.run(operands))
            return output.squeeze(0), None if c_n is None else c_n.squeeze(0), kept
        arrays = self.planned.run_on_host(operands)
        c = None if self._c is None else self._tensor(arrays[self._c][0])
        return self._tensor(arrays[self._h][0]), c, [self._tensor(arrays[at]) for at in self._kept]

    def _tensor(self, array: Any) -> Tensor:
        found = torch.from_numpy(array)
        return found if self._bits is None else found.view(self._bits)


def _are_same(states: Sequence[Tensor]) -> bool:
    """Return whether h and c are one tensor, which the comparison would not take twice."""
    return len(states) == 2 and states[0] is states[1]


class _RepeatedStep(torch.autograd.Function):
    """A repeated call with its gradients, on contiguous tensors that need no operator."""

    @staticmethod
    def forward(ctx: Any, call: _Step, *tensors: Any) -> Any:
        """Run the plan."""
        h, c, kept = call.run([each for each in tensors if each is not None])
        save(ctx, call.form, tensors, h, kept)
        ctx.call, ctx.planned = call, call.planned
        return h if c is None else (h, c)

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, d_h: Tensor | None, d_c: Tensor | None = None) -> Any:
        """Run the plan of the gradients, if there is one, or do what the modules do."""
        tensors, output, kept = restored(ctx)
        above = d_h, None, d_c
        if not torch.is_grad_enabled() and not has_changed(ctx) and is_plain(above):
            found = _run_backward(ctx.call, above, output, kept, tensors)
            if found is not None:
                return None, *found
        with_steps = d_h, d_c, output, tensors[0], *tensors[-3:-1]
        d_output, d_c_n, last, source, *states = (each if each is None else each.unsqueeze(0) for each in with_steps)
        given = [source, *tensors[1:-3], *states, None]
        d_source, *d_weights, d_h_0, d_c_0, _ = gradients_of(ctx, (d_output, None, d_c_n), last, kept, given)
        return None, _row(d_source), *d_weights, _row(d_h_0), _row(d_c_0), None


class _Backward:
    """A plan for gradients of a step, and where its results belong."""

    def __init__(self, planned: Planned, weights: int) -> None:
        self.planned = planned
        at = {name: number for number, name in enumerate(planned.names)}
        names = ("source", 0), *names_of_weights(1, weights), ("init_state", ALL), ("init_cell", ALL)
        states = {"source", "init_state", "init_cell"}  # which have a step in front
        self._places = [(name, at.get(name), name[0] in states) for name in names]

    def run(self, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients with respect to the source, the weights and the states."""
        dtype, found = operands[0].dtype, []
        if not operands[0].is_cpu:
            named = self.planned.run(operands)
            return [_row(named.get(name)) if is_state else named.get(name) for name, _, is_state in self._places]
        arrays = self.planned.run_on_host(operands)
        for _, at, is_state in self._places:
            tensor = None if at is None else torch.from_numpy(arrays[at][0] if is_state else arrays[at])
            found.append(tensor.view(dtype) if tensor is not None and dtype.itemsize == 2 else tensor)
        return found


def _run_backward(
    call: _Step,
    above: tuple[Tensor | None, None, Tensor | None],
    output: Tensor | None,
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
    planned = known.planned
    if not planned.core.usable:
        return None
    up = [each if each is None or each.is_contiguous() else each.contiguous() for each in (d_h, d_c)]
    operands = [each for each in (*tensors, *up, *kept, output) if each is not None]
    dtype = planned.dtype
    for tensor, shape in zip(operands, planned.operands):  # noqa: B905 - whose shapes may have a step in front
        if tensor.shape[-2:] != shape[-2:] or tensor.dtype is not dtype or not tensor.is_contiguous():
            return None
    if not call.on_host:
        keep_until_read(tensors[0], tensors[-3], tensors[-2])
    return [*known.run(operands), None]


def _row(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.squeeze(0)


_apply = super(torch.autograd.Function, _RepeatedStep).apply
