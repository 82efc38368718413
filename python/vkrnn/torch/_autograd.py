"""Derivatives of the operators `layer` and `layer_backward`, and their rules for torch.vmap.

Importing this module registers them with PyTorch. `_Layer` and `_LayerBackward` differentiate with respect to one level
of autograd or of a transform of torch.func. PyTorch's dispatcher calls them once for each level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from vkrnn.convert._torch_layout import descriptor
from vkrnn.torch._ops import compute_layer, compute_layer_backward, layer, layer_backward
from vkrnn.torch._repeated_layer import RepeatedLayer
from vkrnn.torch._tracing import is_plain, unseen_by_dynamo

__all__ = [
    "ReverseModeOnly",
    "apply_layer",
    "apply_repeated_layer",
    "at_lower_levels",
    "connected",
    "differentiable",
    "library",
    "one_by_one",
    "saved_bias",
]

_NOTHING = torch.empty(0, device="cpu")
_GRADIENTS_OF_GRADIENTS = (
    "[vkrnn.torch] gradients of gradients: vkrnn has first derivatives only; use PyTorch's own modules, "
    "which vkrnn.torch.revert(model) puts back"
)
_CHANGED = (
    "[vkrnn.torch] a GRU's output and a bias were both changed in place before the backward pass, which computes the "
    "output again; change a copy of one of them"
)
_FORWARD_MODE = (
    "[vkrnn.torch] forward-mode derivatives: vkrnn has reverse-mode derivatives only; use torch.func.vjp or jacrev, "
    "or PyTorch's own modules, which vkrnn.torch.revert(model) puts back"
)


class ReverseModeOnly(torch.autograd.Function):
    """A function without forward-mode derivatives."""

    @staticmethod
    def jvp(_ctx: Any, *_tangents: Any) -> NoReturn:
        """Refuse forward mode."""
        raise NotImplementedError(_FORWARD_MODE)


class _Layer(ReverseModeOnly):
    """`layer` with its gradients. A `setup_context` would add 30 microseconds to each call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        """Call `layer`."""
        outputs: tuple[Tensor | None, ...] = at_lower_levels(layer, inputs)
        return _saved(ctx, inputs, outputs)

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, d_output: Tensor | None, d_h_n: Tensor | None, d_c_n: Tensor | None, *_: None) -> Any:
        """Call `layer_backward`."""
        return *_gradients(ctx, d_output, d_h_n, d_c_n, None), None, None, None, None


class _PlainLayer(_Layer):
    """`_Layer` for calls that need no operator."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        """Call `compute_layer`."""
        return _saved(ctx, inputs, compute_layer(*inputs))


class _RepeatedLayer(ReverseModeOnly):
    """A `RepeatedLayer` with its gradients."""

    @staticmethod
    def forward(ctx: Any, repeated: RepeatedLayer, *tensors: Any) -> tuple[Tensor | None, ...]:
        """Compute from the source, the weights and the initial states."""
        ctx.repeated = repeated
        outputs = repeated.train(tensors[0], [each for each in tensors[6:] if each is not None])
        return _saved(ctx, (*tensors, None, None, repeated.mode, True), outputs)

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, d_output: Tensor | None, d_h_n: Tensor | None, d_c_n: Tensor | None, *_: None) -> Any:
        """Compute the gradients."""
        return None, *_gradients(ctx, d_output, d_h_n, d_c_n, ctx.repeated)


class _LayerBackward(ReverseModeOnly):
    """`layer_backward`, whose derivatives raise an error."""

    @staticmethod
    def forward(_ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Compute the gradients."""
        found: tuple[Tensor, ...] = at_lower_levels(layer_backward, inputs)
        return found

    @staticmethod
    def backward(_ctx: Any, *_gradients: Tensor) -> NoReturn:
        """Refuse second derivatives."""
        raise NotImplementedError(_GRADIENTS_OF_GRADIENTS)


def _gradients(
    ctx: Any,
    d_output: Tensor | None,
    d_h_n: Tensor | None,
    d_c_n: Tensor | None,
    repeated: RepeatedLayer | None,
) -> Iterator[Tensor | None]:
    """Return the gradients with respect to the source, the weights and the initial states of a layer."""
    if not ctx.trained:
        raise RuntimeError("[vkrnn.torch] gradients need a forward call with training=True, got training=False")
    source, weight_ih, weight_hh, inside, *rest, z_state, states = ctx.saved_tensors
    bias_ih, bias_hh = ctx.biases
    if inside is not None:
        bias_hh = connected(inside, bias_hh)
    tensors = [source, weight_ih, weight_hh, bias_ih, bias_hh, *rest]
    if ctx.version is not None and ctx.counter._version != ctx.version:  # noqa: SLF001 - torch's name
        if _versions(bias_ih, None if inside is not None else bias_hh) != ctx.bias_versions:
            raise RuntimeError(_CHANGED)
        with torch.no_grad():  # the caller has changed the output in place
            states, *_ = layer(*tensors, ctx.mode, False)  # noqa: FBT003
    if not ctx.mode.startswith("LSTM"):
        d_c_n = None
    given: Any = d_output, d_h_n, d_c_n, z_state, states, *tensors
    if torch.is_grad_enabled() or not is_plain(given) or _are_batched(given[:3]):
        found = layer_backward(*given, ctx.mode)
    else:
        compute: Any = compute_layer_backward
        found = compute(*given, ctx.mode, repeated)
    *differentiable, _mask, _lengths = tensors
    return (None if tensor is None else one for tensor, one in zip(differentiable, found, strict=True))


def _are_batched(gradients: Sequence[Tensor | None]) -> bool:
    """Return whether they are those of many calls, as the argument `is_grads_batched` of torch.autograd.grad says."""
    is_batched = torch._C._functorch.is_legacy_batchedtensor  # noqa: SLF001
    return any(gradient is not None and is_batched(gradient) for gradient in gradients)


def _saved(ctx: Any, inputs: Sequence[Any], outputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Save what the gradients of a layer need. Return the outputs."""
    source, weight_ih, weight_hh, bias_ih, bias_hh, *rest, mode, training = inputs
    output, _, _, z_state, cells = outputs
    ctx.mode, ctx.trained, ctx.version = mode, training, None
    ctx.biases = bias_ih, bias_hh  # may be changed, because their numbers are not read except for `inside`
    inside = None
    states = z_state if not mode.startswith("LSTM") else cells
    if mode.startswith("GRU"):
        states, ctx.version, ctx.counter = _saved_output(output)
        if bias_hh is not None and descriptor(mode, bidirectional=False).reset_after:
            inside = saved_bias(bias_hh)
        if ctx.version is not None:  # the output may be computed again
            ctx.bias_versions = _versions(bias_ih, None if inside is not None else bias_hh)
    ctx.save_for_backward(source, weight_ih, weight_hh, inside, *rest, z_state, states)
    ctx.mark_non_differentiable(*(each for each in (z_state, cells) if each is not None))
    ctx.set_materialize_grads(False)  # saves zeros as large as the gates
    return outputs


def saved_bias(bias: Tensor) -> Tensor:
    """Return what to save of a bias that the gradients read: a copy on the CPU, where callers may change PyTorch's."""
    return bias.clone() if bias.is_cpu and is_plain((bias,)) else bias


def connected(saved: Tensor, given: Tensor) -> Tensor:
    """Return the numbers that were saved of an argument, in a graph that leads to the argument if one is recorded."""
    if saved is given or not (torch.is_grad_enabled() and given.requires_grad):
        return saved
    return torch.where(torch.ones_like(saved, dtype=torch.bool), saved, given)


def _versions(*tensors: Tensor | None) -> list[int]:
    """Return how often tensors were changed in place. Inference tensors do not count it."""
    return [each._version for each in tensors if each is not None and not each.is_inference()]  # noqa: SLF001


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


def _below_autograd(operator: Any, inputs: Sequence[Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as torch.library does it
        return operator(*inputs)


def at_lower_levels(operator: Any, inputs: Sequence[Any]) -> Any:
    """Compute from within Function.forward, with derivatives on again for lower levels of torch.func."""
    if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return _below_autograd(operator, inputs)
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):  # noqa: FBT003, SLF001 - as torch.func does it
        return _below_autograd(operator, inputs)


def _require_gradients(inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.requires_grad for value in inputs)


def differentiable(operator: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return what PyTorch's dispatcher calls before the operator itself where autograd is on."""

    @unseen_by_dynamo
    def compute(*inputs: Any) -> Any:
        # Under forward mode, `apply` finds out whether there are tangents.
        if not (torch.is_grad_enabled() and _require_gradients(inputs)) and forward_ad._current_level < 0:  # noqa: SLF001
            return _below_autograd(operator, inputs)
        if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return apply(*inputs)
        with enable_single_level_autograd_function():
            return apply(*inputs)

    return compute


def _layer_vmap(info: Any, in_dims: Sequence[int | None], *inputs: Any) -> tuple[Any, Any]:
    """Compute `layer` for many inputs as one batch. Packed inputs and many weights are computed one after the other."""
    *given, training = inputs
    # Under torch.vmap, a module cannot see whether its parameters require gradients.
    inputs = (*given, training or (torch.is_grad_enabled() and _require_gradients(given)))
    packed = inputs[0].dim() - (in_dims[0] is not None) == 2
    if packed or any(dim is not None for dim in in_dims[1:6]):
        return one_by_one(layer, info, in_dims, inputs), 0
    B = info.batch_size
    rows = {0: 1, 6: 1, 7: 1, 8: 1, 9: 0}  # the axis of the batch's rows in source, h_0, c_0, mask and lengths
    folded = list(inputs)
    for number, axis in rows.items():
        tensor, dim = inputs[number], in_dims[number]
        if tensor is not None:
            many = tensor.movedim(dim, axis) if dim is not None else _repeated(tensor, B, axis)
            folded[number] = many.flatten(axis, axis + 1)
    found = layer(*folded)
    dims = [None if tensor.dim() == 1 else 1 for tensor in found]  # an absent output has one axis
    return tuple(
        tensor if dim is None else tensor.unflatten(1, (B, -1)) for tensor, dim in zip(found, dims, strict=True)
    ), tuple(dims)


def _layer_backward_vmap(info: Any, in_dims: Sequence[int | None], *inputs: Any) -> tuple[Any, int]:
    """Compute `layer_backward` many times: each has its own gradients of the weights."""
    return one_by_one(layer_backward, info, in_dims, inputs), 0


def one_by_one(operator: Callable[..., Any], info: Any, in_dims: Sequence[int | None], inputs: Sequence[Any]) -> Any:
    split = [
        [value] * info.batch_size if dim is None else value.unbind(dim)
        for value, dim in zip(inputs, in_dims, strict=True)
    ]
    results = [operator(*each) for each in zip(*split, strict=True)]
    return tuple(map(torch.stack, zip(*results, strict=True)))


def _repeated(tensor: Tensor, times: int, axis: int) -> Tensor:
    return tensor.unsqueeze(axis).expand(*tensor.shape[:axis], times, *tensor.shape[axis:])


# The `apply` of Function's base class skips checks that the dispatcher has made, or that `is_plain` makes.
apply_layer = super(torch.autograd.Function, _PlainLayer).apply
apply_repeated_layer = super(torch.autograd.Function, _RepeatedLayer).apply
library = torch.library.Library("vkrnn", "FRAGMENT")
library.impl("layer", differentiable(layer, super(torch.autograd.Function, _Layer).apply), "Autograd")
library.impl(
    "layer_backward",
    differentiable(layer_backward, super(torch.autograd.Function, _LayerBackward).apply),
    "Autograd",
)
torch.library.register_vmap("vkrnn::layer", _layer_vmap)
torch.library.register_vmap("vkrnn::layer_backward", _layer_backward_vmap)
