"""Derivatives of the operators `network` and `network_backward`. Importing this module registers them with PyTorch.

`_Network` and `_NetworkBackward` differentiate with respect to one level of autograd or of a transform of torch.func.
PyTorch's dispatcher calls them once for each level. They take tensors one by one, because torch.autograd.Function does
not see those in lists.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vkrnn.convert._torch_layout import descriptor
from vkrnn.torch._calls import Planned
from vkrnn.torch._levels import at_lower_levels, differentiable, library, requires_gradients
from vkrnn.torch._loops import network_loop, pulled_back
from vkrnn.torch._network import (
    Inputs,
    compute_network,
    compute_network_backward,
    compute_shapes,
    network,
    network_backward,
    repeated_backward,
    results_of,
)
from vkrnn.torch._tracing import is_plain, unseen_by_dynamo

__all__ = [
    "Form",
    "apply_network",
    "connected",
    "first_with_gradients",
    "gradients_of",
    "has_changed",
    "replaced",
    "require_no_transform",
    "requires_gradients",
    "restored",
    "save",
    "saved_bias",
    "with_trained",
]

_NOTHING = torch.empty(0, device="cpu")
_TRAINED = Inputs._fields.index("trained")
_OF_A_VJP = (
    "[vkrnn.torch] forward-mode derivatives of a backward pass whose forward pass was outside of torch.func.jvp: call "
    "torch.func.vjp or grad within the function that jvp differentiates"
)
_CHANGED = (
    "[vkrnn.torch] a GRU's output and a bias were both changed in place before the backward pass, which computes the "
    "output again; change a copy of one of them"
)


class Form(NamedTuple):
    """What the arguments of a network's call are besides tensors."""

    mode: str
    layers: int
    trained: int
    weights: int
    masks: int
    between: int
    resets: int  # 0 if there are none
    zoneout: tuple[int, int]  # masks of h, and of c

    @classmethod
    def of(cls, inputs: Inputs) -> tuple[Form, list[Any]]:
        """Return the form of a call, and its tensors one by one."""
        source, weights, h_0, c_0, masks, between, lengths, mode, layers, trained, *_ = inputs
        resets = inputs.resets if any(each is not None for each in inputs.resets) else ()
        tensors = [source, *weights, h_0, c_0, *masks, *between, lengths, *resets, *inputs.zoneout]
        zoneout = len(inputs.zoneout_masks or ()), len(inputs.zoneout_cell_masks or ())
        return cls(mode, layers, trained, len(weights), len(masks), len(between), len(resets), zoneout), tensors

    def inputs(self, flat: Sequence[Any]) -> Inputs:
        """Return the arguments as the operators take them."""
        first = 1 + self.weights
        masks = first + 2 + self.masks
        between = masks + self.between
        resets = between + 1 + self.resets
        of_cells = resets + self.zoneout[0]
        reset, reset_state, reset_cell = flat[between + 1 : resets] or (None, None, None)
        return Inputs(
            flat[0],
            list(flat[1:first]),
            flat[first],
            flat[first + 1],
            list(flat[first + 2 : masks]),
            list(flat[masks:between]),
            flat[between],
            self.mode,
            self.layers,
            self.trained,
            reset,
            reset_state,
            reset_cell,
            list(flat[resets:of_cells]) or None,
            list(flat[of_cells:]) or None,
        )

    @property
    def needs_output(self) -> bool:
        """Whether gradients need the output of the last layer."""
        return self.trained < self.layers and (self.mode.startswith("GRU") or any(self.zoneout))


class _Network(torch.autograd.Function):
    """`network` with its gradients. A `setup_context` would add 30 microseconds to each call."""

    @staticmethod
    def forward(ctx: Any, form: Form, _planned: None, *tensors: Any) -> tuple[Tensor | None, ...]:
        """Call `network`."""
        ctx.planned = None
        output, h_n, c_n, kept = at_lower_levels(network, form.inputs(tensors))
        return _saved(ctx, form, tensors, (output, h_n, c_n), kept)

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, d_output: Tensor | None, d_h_n: Tensor | None, d_c_n: Tensor | None, *_: None) -> Any:
        """Call `network_backward`."""
        return None, None, *_gradients(ctx, d_output, d_h_n, d_c_n)


class _PlainNetwork(_Network):
    """`_Network` for calls that need no operator."""

    @staticmethod
    def forward(ctx: Any, form: Form, planned: Planned | None, *tensors: Any) -> tuple[Tensor | None, ...]:
        """Call `compute_network`, or run a plan on contiguous tensors without lengths."""
        if planned is None:
            output, h_n, c_n, kept = compute_network(form.inputs(tensors))
        else:
            operands = [each for each in tensors if each is not None]
            output, h_n, c_n, kept = results_of(planned.kind, planned.run(operands))
        ctx.planned = planned
        return _saved(ctx, form, tensors, (output, h_n, c_n), kept)


class _NetworkBackward(torch.autograd.Function):
    """`network_backward`, whose derivatives are those of a loop of PyTorch's operations."""

    @staticmethod
    def forward(ctx: Any, spec: Any, *flat: Any) -> tuple[Tensor, ...]:
        """Compute the gradients."""
        ctx.call = _BackwardCall(spec, flat)
        ctx.save_for_backward(*[each if isinstance(each, Tensor) else None for each in flat])
        d_source, d_weights, d_h_0, d_c_0 = at_lower_levels(network_backward, pytree.tree_unflatten(flat, spec))
        return d_source, *d_weights, d_h_0, d_c_0

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, *above: Tensor | None) -> Any:
        """Compute second derivatives: do the backward pass again, and differentiate it."""
        call: _BackwardCall = ctx.call
        flat = call.filled(ctx.saved_tensors)
        primals = [flat[place] for place in call.places]
        gradients = pulled_back(lambda *given: call.gradients(replaced(flat, call.places, given)), primals, above)
        found: list[Tensor | None] = [None] * len(flat)
        for place, gradient in zip(call.places, gradients, strict=True):
            found[place] = gradient
        return None, *found


class _BackwardCall:
    """The arguments of `network_backward` one by one, and the call as a loop of PyTorch's operations."""

    def __init__(self, spec: Any, flat: Sequence[Any]) -> None:
        self._spec = spec
        self._others = [None if isinstance(each, Tensor) else each for each in flat]
        numbers = pytree.tree_unflatten(list(range(len(flat))), spec)
        d_output, d_h_n, d_c_n, _, _, *inputs = numbers
        given = Inputs(*pytree.tree_unflatten(flat, spec)[5:])
        at = Inputs(*inputs)
        frozen = given.trained * given.each
        resets = [number for number, each in zip(at.resets, given.resets, strict=True) if _is_float(each)]
        # The differentiable arguments in the order of the results, which has empty tensors for absent ones.
        results = [None if given.trained else at.source, *[None] * frozen, *at.weights[frozen:], *resets]
        states: list[Any] = [at.h_0, at.c_0]
        self._results = [*results, *(number if flat[number] is not None else None for number in states)]
        above = [number for number in (d_output, d_h_n, d_c_n) if flat[number] is not None]
        self.places: list[int] = [*above, *(number for number in self._results if number is not None)]

    def filled(self, tensors: Sequence[Any]) -> list[Any]:
        """Return all arguments, of which `tensors` has the tensors."""
        return [own if tensor is None else tensor for own, tensor in zip(self._others, tensors, strict=True)]

    def gradients(self, flat: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return the results of `network_backward`."""
        d_output, d_h_n, d_c_n, _, _, *inputs = pytree.tree_unflatten(list(flat), self._spec)
        above = [d_output, d_h_n, d_c_n] if Inputs(*inputs).mode.startswith("LSTM") else [d_output, d_h_n]
        places = [number for number in self._results if number is not None]

        def loop(*given: Tensor) -> tuple[Tensor, ...]:
            again = pytree.tree_unflatten(replaced(flat, places, given), self._spec)
            return network_loop(Inputs(*again[5:]))

        found = iter(pulled_back(loop, [flat[place] for place in places], above))
        empty = Inputs(*inputs).source.new_zeros(0)
        return tuple(empty if number is None else next(found) for number in self._results)


def _is_float(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dtype != torch.bool


def replaced(values: Sequence[Any], places: Sequence[int], given: Sequence[Any]) -> list[Any]:
    """Return the values with others in some places."""
    found = list(values)
    for place, each in zip(places, given, strict=True):
        found[place] = each
    return found


def _gradients(ctx: Any, d_output: Tensor | None, d_h_n: Tensor | None, d_c_n: Tensor | None) -> list[Tensor | None]:
    """Return the gradients with respect to the tensors of a call."""
    form: Form = ctx.form
    if form.trained == form.layers:
        raise RuntimeError("[vkrnn.torch] gradients need a forward call with training=True, got training=False")
    tensors, output, kept = restored(ctx)
    above = d_output, d_h_n, d_c_n if form.mode.startswith("LSTM") else None
    is_changed = has_changed(ctx)
    if ctx.planned is not None and not is_changed and not torch.is_grad_enabled() and is_plain(above):
        repeated = repeated_backward(ctx.planned, above, output, kept, tensors)
        if repeated is not None:
            return [*repeated, None]
    return gradients_of(ctx, above, output, kept, tensors)


def restored(ctx: Any) -> tuple[list[Tensor | None], Tensor | None, tuple[Tensor, ...]]:
    """Return what `save` has saved: the tensors of a call, the output if gradients need it, and what was kept."""
    form: Form = ctx.form
    later = form.resets + sum(form.zoneout)
    count = form.weights + form.masks + form.between + later + 4  # with the source, two states and the lengths
    saved = ctx.saved_tensors  # which may only be read once
    tensors, output, kept = list(saved[:count]), saved[count], saved[count + 1 :]
    for number, bias in ctx.biases.items():
        tensors[number] = bias if tensors[number] is None else connected(tensors[number], bias)
    return tensors, output, kept


def has_changed(ctx: Any) -> bool:
    """Return whether the caller has changed the output in place, if gradients need it."""
    return ctx.version is not None and bool(ctx.counter._version != ctx.version)  # noqa: SLF001 - torch's name


def gradients_of(
    ctx: Any,
    above: tuple[Tensor | None, Tensor | None, Tensor | None],
    output: Tensor | None,
    kept: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Return the gradients with respect to the tensors of a call, which are shaped as those of `network`."""
    form: Form = ctx.form
    inputs = form.inputs(tensors)
    if has_changed(ctx):
        if _versions(form, inputs.weights) != ctx.bias_versions:
            raise RuntimeError(_CHANGED)
        with torch.no_grad():  # the caller has changed the output in place
            output, *_ = network(*inputs._replace(trained=form.layers))
    d_weights: Any
    if _are_batched(above):
        d_source, d_weights, *d_states = _batched_gradients(*above, output, list(kept), inputs)
    elif torch.is_grad_enabled() or not is_plain((*above, output, *kept, *tensors)):
        d_source, d_weights, *d_states = network_backward(*above, output, list(kept), *inputs)
    else:
        d_source, d_weights, *d_states = compute_network_backward(above, output, kept, inputs, ctx.planned)
    d_resets = dict(zip(inputs.resets_with_gradients, d_weights[form.weights :], strict=True))
    found: list[Any] = [d_source, *d_weights[: form.weights], *d_states]
    for number in range(1 + form.trained * inputs.each if form.trained else 0):
        found[number] = None  # of frozen layers
    found = [None if tensor is None else one for tensor, one in zip(tensors, found, strict=False)]
    later = form.resets + sum(form.zoneout)
    found += [None] * (len(tensors) - later - len(found))
    found += [d_resets.get(name) for name in ("reset", "reset_state", "reset_cell")] if form.resets else []
    return found + [None] * sum(form.zoneout)


def _are_batched(gradients: Sequence[Tensor | None]) -> bool:
    """Return whether they are those of many calls, as the argument `is_grads_batched` of torch.autograd.grad says."""
    is_batched = torch._C._functorch.is_legacy_batchedtensor  # noqa: SLF001
    return any(gradient is not None and is_batched(gradient) for gradient in gradients)


_calls: dict[int, tuple[Any, ...]] = {}  # of operators that PyTorch calls once for each upstream gradient
_numbers = itertools.count()


def _batched_gradients(*given: Any) -> tuple[Any, ...]:
    """Call `network_backward` for each of many upstream gradients. PyTorch does so with operators without lists."""
    *above, output, kept, inputs = given
    number = next(_numbers)
    _calls[number] = output, kept, *inputs
    try:
        together = torch.ops.vkrnn.joined_gradients(*above, number)
    finally:
        del _calls[number]
    frozen = inputs.trained * inputs.each
    first = None if frozen else inputs.source
    resets = inputs.resets_with_gradients.values()
    likes = [first, *[None] * frozen, *inputs.weights[frozen:], *resets, inputs.h_0, inputs.c_0]
    parts = iter(together.split([each.numel() for each in likes if each is not None]))
    found = [None if each is None else next(parts).view(each.shape) for each in likes]
    return found[0], found[1:-2], *found[-2:]


def _joined_gradients(d_output: Tensor | None, d_h_n: Tensor | None, d_c_n: Tensor | None, number: int) -> Tensor:
    """Return the gradients of `network_backward` as one vector."""
    d_source, d_weights, *d_states = network_backward(d_output, d_h_n, d_c_n, *_calls[number])
    return torch.cat([each.flatten() for each in (d_source, *d_weights, *d_states)])


def _saved(
    ctx: Any, form: Form, tensors: Sequence[Any], results: tuple[Tensor, Tensor, Tensor | None], kept: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Save what the gradients of a network need. Return the outputs."""
    save(ctx, form, tensors, results[0], kept)
    ctx.mark_non_differentiable(*kept)
    return *results, *kept


def save(ctx: Any, form: Form, tensors: Sequence[Any], output: Tensor | None, kept: Sequence[Tensor]) -> None:
    """Save what the gradients of a call need, for `restored`. Those of a single step need no output."""
    ctx.form, ctx.version = form, None
    saved = list(tensors)
    # Biases may be changed before the backward pass: their numbers are not read, except for those of a GRU with
    # reset_after. These are the biases, by their number among the tensors.
    ctx.biases = {}
    each = form.weights // form.layers
    if each >= 4:
        reads = form.mode.startswith("GRU") and descriptor(form.mode, bidirectional=False).reset_after
        for first in range(1, 1 + form.weights, each):
            for number in (first + 2, first + 3):
                ctx.biases[number] = saved[number]
                saved[number] = saved_bias(saved[number]) if reads and number == first + 3 else None
    last = None
    if form.needs_output and output is not None:
        last, ctx.version, ctx.counter = _saved_output(output)
        if ctx.version is not None:  # the output may be computed again
            ctx.bias_versions = _versions(form, tensors[1 : 1 + form.weights])
    ctx.save_for_backward(*saved, last, *kept)
    ctx.set_materialize_grads(False)  # saves zeros as large as the gates


def saved_bias(bias: Tensor) -> Tensor:
    """Return what to save of a bias that the gradients read: a copy on the CPU, where callers may change PyTorch's."""
    return bias.clone() if bias.is_cpu and is_plain((bias,)) else bias


def connected(saved: Tensor, given: Tensor) -> Tensor:
    """Return the numbers that were saved of an argument, in a graph that leads to the argument if one is recorded."""
    if saved is given or not (torch.is_grad_enabled() and given.requires_grad):
        return saved
    return given + (saved - given).detach()


def _versions(form: Form, weights: Sequence[Tensor]) -> list[int]:
    """Return how often the biases that are not saved were changed in place. Inference tensors do not count it."""
    each = form.weights // form.layers
    if each < 4:
        return []
    reads = form.mode.startswith("GRU") and descriptor(form.mode, bidirectional=False).reset_after
    places = (2,) if reads else (2, 3)
    biases = [weights[first + place] for first in range(0, form.weights, each) for place in places]
    return [bias._version for bias in biases if not bias.is_inference()]  # noqa: SLF001


def _saved_output(output: Tensor) -> tuple[Tensor, int | None, Tensor | None]:
    """Return the output as it is saved, its version, and an empty tensor that shares its version counter.

    Autograd refuses a saved tensor that was changed in place. PyTorch's GRU does not save its output, so callers may
    change it. The alias that is saved has a version counter of its own, and the version says whether it has changed.
    """
    if type(output) is not Tensor or output.is_meta or torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return output, None, None
    counter = output.detach()
    counter.data = _NOTHING
    return output.data, counter._version, counter  # noqa: SLF001 - torch's name


def first_with_gradients(inputs: Inputs) -> int:
    """Return the first layer with gradients, or the number of layers if there is none.

    That is the first one for torch.jit.trace, which checks in torch.no_grad what it has recorded outside of it.
    """
    if torch.jit.is_tracing():
        return 0
    if not torch.is_grad_enabled():
        return inputs.layers
    # Dynamo of PyTorch 2.5 to 2.7 cannot read the properties of `inputs`.
    starts = inputs.h_0, inputs.c_0, inputs.reset, inputs.reset_state, inputs.reset_cell
    if requires_gradients((inputs.source, *starts)):
        return 0
    each = len(inputs.weights) // inputs.layers
    for number, weight in enumerate(inputs.weights):
        if weight.requires_grad:
            return number // each
    return inputs.layers


def with_trained(inputs: Inputs) -> Inputs:
    """Return the arguments of a call whose layers with gradients begin at the first one that has them."""
    given: list[Any] = list(inputs)  # Dynamo of PyTorch 2.5 to 2.7 cannot trace `_replace`, nor that of 2.6 slices
    given[_TRAINED] = first_with_gradients(inputs)
    return Inputs(*given)


def _apply_network(*inputs: Any) -> tuple[Any, ...]:
    """Call `_Network` with the operator's arguments, and return the operator's results."""
    form, tensors = Form.of(Inputs(*inputs))
    output, h_n, c_n, *kept = super(torch.autograd.Function, _Network).apply(form, None, *tensors)
    return output, h_n, c_n, kept


def _apply_network_backward(*inputs: Any) -> tuple[Any, ...]:
    flat, spec = pytree.tree_flatten(inputs)
    d_source, *d_weights, d_h_0, d_c_0 = super(torch.autograd.Function, _NetworkBackward).apply(spec, *flat)
    return d_source, d_weights, d_h_0, d_c_0


def _network_by_loop(*inputs: Any) -> tuple[Any, ...]:
    """Do what `network` does, by PyTorch's operations. What the gradients of kernels would need is zeros."""
    output, h_n, *c_n = network_loop(Inputs(*inputs))
    _, _, empty, kept = compute_shapes(*inputs)
    return output, h_n, c_n[0] if c_n else empty, [torch.zeros_like(each) for each in kept]


def require_no_transform() -> None:
    """Raise NotImplementedError within torch.func, which cannot begin a transform within an operator."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001
        raise NotImplementedError(_OF_A_VJP)


def _backward_by_loop(*inputs: Any) -> tuple[Any, ...]:
    require_no_transform()
    flat, spec = pytree.tree_flatten(inputs)
    d_source, *d_weights, d_h_0, d_c_0 = _BackwardCall(spec, flat).gradients(flat)
    return d_source, d_weights, d_h_0, d_c_0


# The `apply` of Function's base class skips checks that the dispatcher has made, or that `is_plain` makes.
apply_network = super(torch.autograd.Function, _PlainNetwork).apply
library.impl("network", differentiable(network, _apply_network, _network_by_loop), "Autograd")
library.impl(
    "network_backward", differentiable(network_backward, _apply_network_backward, _backward_by_loop), "Autograd"
)
library.define("joined_gradients(Tensor? d_output, Tensor? d_h_n, Tensor? d_c_n, int number) -> Tensor")
library.impl("joined_gradients", _joined_gradients, "CPU")
library.impl("joined_gradients", _joined_gradients, "CUDA")
