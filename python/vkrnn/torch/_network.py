"""The torch operators `network` and `network_backward`: the recurrent layers of a module, and their gradients.

Arguments are in torch's layout, with the rows of both directions of a weight one after the other. L layers, D
directions, G gates: each layer has the weights weight_ih [DGH, I] and weight_hh [DGH, H], or their blocks if the mode
has heads, then, if there are any, the biases bias_ih and bias_hh and the peephole [DGH]. States are [LD, N, H], and so
are those that resets start from. There is no recurrent mask, or one for each layer: [1, N, DH]. There is no mask
between layers, or L - 1: [T, N, DH]. There is no zoneout mask of h, and none of c, or one for each layer: [T, N, DH],
or [DH], the same in all steps. All layers have the same reset: [T, N], [T, N, 1] or [T, N, DH]. The source is
[T, N, I], or packed: [S, I] with the `lengths` of its batch rows, longest first. Then all sequences are packed, as in a
PackedSequence: S is the sum of the lengths, and the rows of step 0 come first, then those of step 1 of the batch rows
that have one, and so on. The mode says which options there are: see `vkrnn.convert._torch_layout`.

The gradients with respect to the weights are a list, in which those of resets follow.

What the gradients need is a list: the outputs of the layers that are read by one with gradients, then z_state of each
layer with gradients, and the cells of an LSTM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vkrnn.convert._torch_layout import FORWARD, GATES, descriptor, torch_mode
from vkrnn.devices import resolve
from vkrnn.torch._calls import ALL, KEYS, Kind, Planned, keep_until_read, may_round, on_device, plan, run
from vkrnn.torch._tracing import unseen_by_dynamo

__all__ = [
    "Inputs",
    "Padding",
    "compute_network",
    "compute_network_backward",
    "compute_shapes",
    "keeps_outputs",
    "names_of_weights",
    "network",
    "network_backward",
    "plan_network",
    "register",
    "repeated_backward",
    "results_of",
]

Outputs = tuple[Tensor, Tensor, Tensor | None, list[Tensor]]
"""The output [T, N, DH], h_n and c_n [LD, N, H], and what the gradients need. c_n is None unless the cells are LSTMs.

The operator returns an empty tensor instead of None."""

Gradients = tuple[Tensor | None, list[Tensor | None], Tensor | None, Tensor | None]
"""With respect to the source, the weights, h_0 and c_0. Those of frozen layers and of absent arguments are None."""


class Inputs(NamedTuple):
    """The arguments of `network`. Layers before `trained` have no gradients, so that nothing is kept for them."""

    source: Tensor
    weights: list[Tensor]
    h_0: Tensor | None
    c_0: Tensor | None
    masks: list[Tensor]
    between: list[Tensor]
    lengths: Tensor | None
    mode: str
    layers: int
    trained: int
    reset: Tensor | None = None
    reset_state: Tensor | None = None
    reset_cell: Tensor | None = None
    zoneout_masks: Sequence[Tensor] | None = None
    zoneout_cell_masks: Sequence[Tensor] | None = None

    @property
    def resets(self) -> tuple[Tensor | None, ...]:
        """The arguments of resets."""
        return self.reset, self.reset_state, self.reset_cell

    @property
    def resets_with_gradients(self) -> dict[str, Tensor]:
        """Those of them that have gradients, by name."""
        named = zip(_RESETS, self.resets, strict=True)
        return {name: each for name, each in named if each is not None and each.dtype != torch.bool}

    @property
    def zoneout(self) -> list[Tensor]:
        """The zoneout masks."""
        return [*(self.zoneout_masks or ()), *(self.zoneout_cell_masks or ())]

    @property
    def each(self) -> int:
        """The number of a layer's weights."""
        return len(self.weights) // self.layers

    @property
    def directions(self) -> int:
        """D."""
        return int(self.weights[1].shape[0] // (GATES[torch_mode(self.mode)] * self.units))

    @property
    def units(self) -> int:
        """H."""
        return int(self.weights[1].shape[1] * descriptor(self.mode, bidirectional=False).heads)

    @property
    def is_packed(self) -> bool:
        """Whether sequences are packed."""
        return bool(self.source.dim() == 2)


_RESETS = ("reset", "reset_state", "reset_cell")


def _weights_of(each: int) -> list[str]:
    """Return the names of a layer's weights, by their number."""
    biases = ["bias", "recurrent_bias"] if each >= 4 else []
    return ["input_weight", "recurrent_weight", *biases, *(["peephole"] if each % 2 else [])]


def keeps_outputs(layers: int, trained: int) -> range:
    """Return the layers whose outputs are kept; that of the last layer is a result anyway."""
    return range(max(trained - 1, 0), layers - 1) if trained < layers else range(0)


_PLACES = ("reset", 0), ("reset_state", ALL), ("reset_cell", ALL)


@functools.lru_cache(maxsize=1024)
def _kind(
    mode: str,
    D: int,
    layers: int,
    each: int,
    trained: int,
    states: tuple[bool, bool],
    masks: bool,  # noqa: FBT001
    between: bool,  # noqa: FBT001
    resets: tuple[bool, ...],
    zoneout: tuple[bool, bool],
    packed: bool,  # noqa: FBT001
    above: tuple[bool, bool, bool] | None,
) -> Kind:
    """Return the kind of a call. `above` says which upstream gradients there are; it is None in a forward call."""
    name = torch_mode(mode)
    names = [("source", 0), *names_of_weights(layers, each)]
    names += [(state, ALL) for state, given in zip(("init_state", "init_cell"), states, strict=True) if given]
    names += [("mask", layer) for layer in range(layers)] if masks else []
    names += [("between", layer) for layer in range(layers - 1)] if between else []
    names += [each for each, given in zip(_PLACES, resets, strict=True) if given]
    for mask, given in zip(("zoneout_mask", "zoneout_cell_mask"), zoneout, strict=True):
        names += [(mask, layer) for layer in range(layers)] if given else []
    if above is not None:
        last = ("source_gradient", layers - 1), ("state_gradient", ALL), ("cell_gradient", ALL)
        names += [each for each, given in zip(last, above, strict=True) if given]
        names += [("output_fwd", layer) for layer in keeps_outputs(layers, trained)]
        names += [("z_state", layer) for layer in range(trained, layers)]
        names += [("cell_output_fwd", layer) for layer in range(trained, layers)] if name == "LSTM" else []
        if name == "GRU" or any(zoneout):  # that of the last layer is no result that is kept
            names += [("output_fwd", layers - 1)]
    return Kind(
        FORWARD[name].__name__,
        descriptor(mode, bidirectional=D == 2),
        names,
        gradients=above is not None,
        layers=layers,
        trained=trained,
        packed=packed,
        torch_layout=True,
    )


def _kind_of(inputs: Inputs, above: tuple[bool, bool, bool] | None = None) -> Kind:
    return _kind(
        inputs.mode,
        inputs.directions,
        inputs.layers,
        inputs.each,
        inputs.trained,
        (inputs.h_0 is not None, inputs.c_0 is not None),
        bool(inputs.masks),
        bool(inputs.between),
        tuple(each is not None for each in inputs.resets),
        (bool(inputs.zoneout_masks), bool(inputs.zoneout_cell_masks)),
        inputs.is_packed,
        above,
    )


def _operands(inputs: Inputs) -> list[Tensor]:
    """Return the operands that forward and backward calls have in common."""
    states = [state for state in (inputs.h_0, inputs.c_0) if state is not None]
    resets = [each for each in inputs.resets if each is not None]
    return [inputs.source, *inputs.weights, *states, *inputs.masks, *inputs.between, *resets, *inputs.zoneout]


def plan_network(inputs: Inputs) -> Planned:
    """Check and plan a forward call; see `plan`."""
    planned, _ = plan(_kind_of(inputs), _operands(inputs), inputs.lengths)
    return planned


@unseen_by_dynamo
def compute_network(inputs: Inputs) -> Outputs:
    """Compute the layers."""
    padding = Padding.of(inputs)
    if padding is not None:
        output, h_n, c_n, kept = compute_network(padding.padded(inputs))
        return padding.pack(output), h_n, c_n, [padding.pack(each) for each in kept]
    kind = _kind_of(inputs)
    return results_of(kind, run(kind, _operands(inputs), inputs.lengths))


def results_of(kind: Kind, found: dict[tuple[str, int], Tensor]) -> Outputs:
    """Return the results of a forward call by name as `Outputs`."""
    layers, trained = kind.layers, kind.trained
    kept = [found["output", layer] for layer in keeps_outputs(layers, trained)]
    kept += [found["z_state", layer] for layer in range(trained, layers)]
    if kind.cell == "lstm":
        kept += [found["cell_output", layer] for layer in range(trained, layers)]
    return found["output", layers - 1], found["last_state", ALL], found.get(("last_cell", ALL)), kept


def compute_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return empty tensors of the shapes of the operator's results."""
    inputs = Inputs(*given)
    source, layers, D = inputs.source, inputs.layers, inputs.directions
    gates, H = inputs.weights[1].shape[0], inputs.units
    *rows, _ = source.shape  # T and N, or the sum of the lengths
    N = rows[-1] if inputs.lengths is None or not inputs.is_packed else inputs.lengths.shape[0]
    lstm = torch_mode(inputs.mode) == "LSTM"
    widths = [D * H for _ in keeps_outputs(layers, inputs.trained)]
    widths += [gates] * (layers - inputs.trained)
    widths += [D * H] * (layers - inputs.trained) if lstm else []
    state = layers * D, N, H
    return (
        source.new_empty(*rows, D * H),
        source.new_empty(state),
        source.new_empty(state if lstm else 0),
        [source.new_empty(*rows, width) for width in widths],
    )


@unseen_by_dynamo
def compute_network_backward(
    above: tuple[Tensor | None, Tensor | None, Tensor | None],
    output: Tensor | None,
    kept: Sequence[Tensor],
    inputs: Inputs,
    planned: Planned | None = None,
) -> Gradients:
    """Return the gradients. `above` are those with respect to output, h_n and c_n. GRUs and zoneout need the output.

    `planned` is the plan of the forward call, if it was kept. It keeps those of the gradient calls that follow it.
    """
    padding = Padding.of(inputs)
    if padding is not None:
        up, last = (None if each is None else padding.pad(each) for each in (above[0], output))
        padded = (up, *above[1:]), last, [padding.pad(each) for each in kept], padding.padded(inputs)
        d_source, d_weights, *d_states = compute_network_backward(*padded)
        if inputs.reset is not None and inputs.reset.dtype != torch.bool:
            at, d_reset = len(inputs.weights), d_weights[len(inputs.weights)]
            d_weights[at] = None if d_reset is None else padding.pack(d_reset).view(inputs.reset.shape)
        return None if d_source is None else padding.pack(d_source), d_weights, *d_states  # type: ignore[return-value]
    states = inputs.h_0, inputs.c_0
    keep_until_read(
        inputs.source, *inputs.weights, *states, *inputs.masks, *inputs.between, *inputs.resets, *inputs.zoneout
    )
    key = _which(above)
    tensors = [*_operands(inputs), *[each for each in (*above, *kept, output) if each is not None]]
    if planned is None:
        found = run(_kind_of(inputs, key), tensors, inputs.lengths)
    else:
        known, tensors = plan(_kind_of(inputs, key), tensors)
        planned.backward[(*key, may_round())] = known
        found = known.run(tensors)
    names = names_of_weights(inputs.layers, inputs.each)
    d_weights = [
        each if each is None or each.shape == weight.shape else each.view(weight.shape)
        for each, weight in zip(map(found.get, names), inputs.weights, strict=True)
    ]
    for name, tensor in inputs.resets_with_gradients.items():
        d_layers = [each for (of, _), each in found.items() if of == name]
        d_weights.append(sum(d_layers[1:], d_layers[0]).view(tensor.shape))
    return found.get(("source", 0)), d_weights, found.get(("init_state", ALL)), found.get(("init_cell", ALL))


def repeated_backward(
    planned: Planned,
    above: tuple[Tensor | None, Tensor | None, Tensor | None],
    output: Tensor | None,
    kept: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
) -> list[Tensor | None] | None:
    """Return the gradients with respect to the source, the weights and the states of a call in one direction.

    `planned` is the plan of the forward call, which was on these tensors. Return None if it has no plan for a gradient
    call like this one, or if weights have moved.
    """
    known = planned.backward.get((*_which(above), may_round()))
    operands = [each for each in (*tensors, *above, *kept, output) if each is not None]
    if known is None or not known.takes(operands):
        return None
    source, *weights, h_0, c_0, _ = tensors
    assert source is not None  # noqa: S101
    keep_until_read(source, h_0, c_0)
    found = known.run(operands)
    layers = planned.kind.layers
    names = ("source", 0), *names_of_weights(layers, len(weights) // layers), ("init_state", ALL), ("init_cell", ALL)
    return list(map(found.get, names))


def _which(above: Sequence[Tensor | None]) -> tuple[bool, bool, bool]:
    d_output, d_h_n, d_c_n = above
    return d_output is not None, d_h_n is not None, d_c_n is not None


@functools.lru_cache(maxsize=64)
def names_of_weights(layers: int, each: int) -> list[tuple[str, int]]:
    """Return the operands that are weights, `each` of every layer."""
    return [(name, layer) for layer in range(layers) for name in _weights_of(each)]


def _compute_backward_shapes(*given: Any) -> tuple[Any, ...]:
    inputs = Inputs(*given[5:])
    frozen = inputs.trained * inputs.each

    def like(tensor: Tensor | None) -> Tensor:
        return inputs.source.new_empty(0 if tensor is None else tensor.shape)

    d_weights = [like(each if number >= frozen else None) for number, each in enumerate(inputs.weights)]
    d_weights += [like(each) for each in inputs.resets_with_gradients.values()]
    return like(None if inputs.trained else inputs.source), d_weights, like(inputs.h_0), like(inputs.c_0)


class Padding:
    """Where packed rows are in padded sequences."""

    def __init__(self, lengths: Tensor, device: torch.device) -> None:
        numbers = lengths.cpu().numpy()
        live = np.arange(numbers[0])[:, np.newaxis] < numbers
        self.shape = live.shape
        self.rows = on_device(torch.from_numpy(np.flatnonzero(live)), device)

    @staticmethod
    def of(inputs: Inputs) -> Padding | None:
        """Return that of a packed call; None if the device computes it as it is."""
        if inputs.lengths is None or not inputs.is_packed or _stays_packed(inputs):
            return None
        return Padding(inputs.lengths, inputs.source.device)

    def pad(self, packed: Tensor) -> Tensor:
        T, N = self.shape
        padded = packed.new_zeros(T * N, packed.shape[1])
        return padded.index_copy_(0, self.rows, packed).view(T, N, -1)

    def padded(self, inputs: Inputs) -> Inputs:
        between, reset = [self.pad(each) for each in inputs.between], inputs.reset
        if reset is not None:
            reset = self.pad(reset.view(len(reset), -1))
        of_h, of_c = (
            [each if each.dim() == 1 else self.pad(each) for each in masks or ()]
            for masks in (inputs.zoneout_masks, inputs.zoneout_cell_masks)
        )
        return inputs._replace(
            source=self.pad(inputs.source), between=between, reset=reset, zoneout_masks=of_h, zoneout_cell_masks=of_c
        )

    def pack(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, self.rows)


def _stays_packed(inputs: Inputs) -> bool:
    """Return whether the device computes packed sequences as they are."""
    return inputs.source.is_cpu and not inputs.masks and resolve(None, "[vkrnn.torch]").backend == "native"


def _without_none(source: Tensor, found: Sequence[Any]) -> Any:
    """Return results with empty tensors in place of None, which an operator cannot return."""
    return [
        _without_none(source, each) if isinstance(each, list) else source.new_empty(0) if each is None else each
        for each in found
    ]


@unseen_by_dynamo
def _network(*given: Any) -> tuple[Any, ...]:
    return tuple(_without_none(given[0], compute_network(Inputs(*given))))


@unseen_by_dynamo
def _network_backward(*given: Any) -> tuple[Any, ...]:
    above, (output, kept), inputs = given[:3], given[3:5], Inputs(*given[5:])
    return tuple(_without_none(inputs.source, compute_network_backward(above, output, kept, inputs)))


def _on_one_device(name: str, shapes: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises RuntimeError if only some tensors are on the meta device."""

    def checked(*given: Any) -> Any:
        tensors = [each for one in given for each in (one if isinstance(one, (list, tuple)) else (one,))]
        devices = {str(each.device) for each in tensors if isinstance(each, Tensor) and each.is_floating_point()}
        if len(devices) > 1:  # `lengths`, which are integers, may be on another one
            raise RuntimeError(f"[{name}] expected tensors on one device, got some on {' and '.join(sorted(devices))}")
        return shapes(*given)

    return checked


def register(schema: str, compute: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """Make an operator. torch.library.custom_op would do the same, and add tens of microseconds to each call."""
    name, _, signature = schema.partition("(")
    torch.library.define(name, f"({signature}", tags=torch.Tag.pt2_compliant_tag)
    for key in KEYS:
        torch.library.impl(name, key)(compute)
    torch.library.register_fake(name, _on_one_device(name, shapes))
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator).default


_NETWORK = (
    "Tensor source, Tensor[] weights, Tensor? h_0, Tensor? c_0, Tensor[] masks, Tensor[] between, Tensor? lengths, "
    "str mode, int layers, int trained, Tensor? reset=None, Tensor? reset_state=None, Tensor? reset_cell=None, "
    "Tensor[]? zoneout_masks=None, Tensor[]? zoneout_cell_masks=None"
)
network = register(f"vkrnn::network({_NETWORK}) -> (Tensor, Tensor, Tensor, Tensor[])", _network, compute_shapes)
network_backward = register(
    "vkrnn::network_backward(Tensor? d_output, Tensor? d_h_n, Tensor? d_c_n, Tensor? output, Tensor[] kept, "
    f"{_NETWORK}) -> (Tensor, Tensor[], Tensor, Tensor)",
    _network_backward,
    _compute_backward_shapes,
)
