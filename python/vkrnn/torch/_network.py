"""The torch operators `network` and `network_backward`: the recurrent layers of a module, and their gradients.

Arguments are in torch's layout, with the rows of both directions of a weight one after the other. L layers, D
directions, G gates: each layer has the weights weight_ih [DGH, I] and weight_hh [DGH, H], then, if there are any, the
biases bias_ih and bias_hh and the peephole [DGH]. States are [LD, N, H]. There is no recurrent mask, or one for each
layer: [1, N, DH]. There is no mask between layers, or L - 1: [T, N, DH]. The source is [T, N, I], or packed: [S, I]
with the `lengths` of its batch rows, longest first (see `vkrnn._ops.packed`). Then all sequences are packed. The mode
says which options there are: see `vkrnn.convert._torch_layout`.

What the gradients need is a list: the outputs of the layers that are read by one with gradients, then z_state of each
layer with gradients, and the cells of an LSTM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vkrnn.convert._torch_layout import FORWARD, GATES, descriptor, torch_mode
from vkrnn.devices import resolve
from vkrnn.torch._calls import ALL, KEYS, Kind, Planned, keep_until_read, on_device, plan, run
from vkrnn.torch._tracing import unseen_by_dynamo

__all__ = [
    "compute_network",
    "compute_network_backward",
    "keeps_outputs",
    "network",
    "network_backward",
    "register",
    "weights_of",
]

Optional = Tensor | None
Gradients = tuple[Optional, list[Optional], Optional, Optional]
"""With respect to the source, the weights, h_0 and c_0. Those of frozen layers and of absent arguments are None."""


def weights_of(each: int) -> list[str]:
    """Return the names of a layer's weights, by their number."""
    biases = ["bias", "recurrent_bias"] if each >= 4 else []
    return ["input_weight", "recurrent_weight", *biases, *(["peephole"] if each % 2 else [])]


def keeps_outputs(layers: int, trained: int) -> range:
    """Return the layers whose outputs are kept; that of the last layer is a result anyway."""
    return range(max(trained - 1, 0), layers - 1) if trained < layers else range(0)


@functools.lru_cache(maxsize=1024)
def _kind(  # noqa: PLR0913
    mode: str,
    D: int,
    layers: int,
    each: int,
    trained: int,
    states: tuple[bool, bool],
    masks: bool,  # noqa: FBT001
    between: bool,  # noqa: FBT001
    packed: bool,  # noqa: FBT001
    above: tuple[bool, bool, bool] | None,
) -> Kind:
    """Return the kind of a call. `above` says which upstream gradients there are; it is None in a forward call."""
    name = torch_mode(mode)
    names = [("source", 0), *((weight, layer) for layer in range(layers) for weight in weights_of(each))]
    names += [(state, ALL) for state, given in zip(("init_state", "init_cell"), states, strict=True) if given]
    names += [("mask", layer) for layer in range(layers)] if masks else []
    names += [("between", layer) for layer in range(layers - 1)] if between else []
    if above is not None:
        last = ("source_gradient", layers - 1), ("state_gradient", ALL), ("cell_gradient", ALL)
        names += [each for each, given in zip(last, above, strict=True) if given]
        names += [("output_fwd", layer) for layer in keeps_outputs(layers, trained)]
        names += [("z_state", layer) for layer in range(trained, layers)]
        names += [("cell_output_fwd", layer) for layer in range(trained, layers)] if name == "LSTM" else []
        if name == "GRU":  # that of the last layer is no result that is kept
            names += [("output_fwd", layers - 1)]
    how = descriptor(mode, bidirectional=D == 2, training=layers == 1 and trained == 0 and above is None)
    return Kind(
        FORWARD[name].__name__,
        how,
        names,
        gradients=above is not None,
        layers=layers,
        trained=trained,
        packed=packed,
        torch_layout=True,
    )


def plan_network(
    source: Tensor,
    weights: Sequence[Tensor],
    h_0: Optional,
    c_0: Optional,
    masks: Sequence[Tensor],
    between: Sequence[Tensor],
    lengths: Optional,
    mode: str,
    layers: int,
    trained: int,
) -> tuple[Planned, list[Tensor]]:
    """Check a forward call; see `plan`."""
    kind, tensors = _forward(source, weights, h_0, c_0, masks, between, mode, layers, trained)
    return plan(kind, tensors, lengths)


def _forward(
    source: Tensor,
    weights: Sequence[Tensor],
    h_0: Optional,
    c_0: Optional,
    masks: Sequence[Tensor],
    between: Sequence[Tensor],
    mode: str,
    layers: int,
    trained: int,
    above: tuple[bool, bool, bool] | None = None,
) -> tuple[Kind, list[Tensor]]:
    each = len(weights) // layers
    kind = _kind(
        mode,
        _directions(weights, mode),
        layers,
        each,
        trained,
        (h_0 is not None, c_0 is not None),
        bool(masks),
        bool(between),
        source.dim() == 2,
        above,
    )
    states = [state for state in (h_0, c_0) if state is not None]
    return kind, [source, *weights, *states, *masks, *between]


def _directions(weights: Sequence[Tensor], mode: str) -> int:
    rows, H = weights[1].shape
    return int(rows // (GATES[torch_mode(mode)] * H))


@unseen_by_dynamo
def compute_network(
    source: Tensor,
    weights: Sequence[Tensor],
    h_0: Optional,
    c_0: Optional,
    masks: Sequence[Tensor],
    between: Sequence[Tensor],
    lengths: Optional,
    mode: str,
    layers: int,
    trained: int,
) -> tuple[Tensor, Tensor, Optional, list[Tensor]]:
    """Return the output [T, N, DH], h_n and c_n [LD, N, H], and what the gradients need.

    Layers before `trained` have no gradients, so that nothing is kept for them. c_n is None unless the cells are LSTMs;
    the operator returns an empty tensor instead.
    """
    if lengths is not None and source.dim() == 2 and not _stays_packed(source, masks):
        padding = _Padding(lengths, source.device)
        padded = padding.pad(source), weights, h_0, c_0, masks, padding.pad_all(between)
        output, h_n, c_n, kept = compute_network(*padded, lengths, mode, layers, trained)
        return padding.pack(output), h_n, c_n, [padding.pack(each) for each in kept]
    kind, tensors = _forward(source, weights, h_0, c_0, masks, between, mode, layers, trained)
    return results_of(kind, run(kind, tensors, lengths))


def results_of(
    kind: Kind, found: dict[tuple[str, int], Tensor]
) -> tuple[Tensor, Tensor, Optional, list[Tensor]]:
    """Return the results of a forward call as `compute_network` does."""
    layers, trained = kind.layers, kind.trained
    kept = [found["output", layer] for layer in keeps_outputs(layers, trained)]
    kept += [found["z_state", layer] for layer in range(trained, layers)]
    if kind.cell == "lstm":
        kept += [found["cell_output", layer] for layer in range(trained, layers)]
    return found["output", layers - 1], found["last_state", ALL], found.get(("last_cell", ALL)), kept


def _compute_shapes(
    source: Tensor,
    weights: Sequence[Tensor],
    _h_0: Optional,
    _c_0: Optional,
    _masks: Sequence[Tensor],
    _between: Sequence[Tensor],
    lengths: Optional,
    mode: str,
    layers: int,
    trained: int,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    (gates, H), D = weights[1].shape, _directions(weights, mode)
    *rows, _ = source.shape  # T and N, or the sum of the lengths
    N = rows[-1] if len(rows) == 2 else lengths.shape[0]  # type: ignore[union-attr]
    lstm = torch_mode(mode) == "LSTM"
    widths = [D * H for _ in keeps_outputs(layers, trained)]
    widths += [gates] * (layers - trained)
    widths += [D * H] * (layers - trained) if lstm else []
    state = layers * D, N, H
    return (
        source.new_empty(*rows, D * H),
        source.new_empty(state),
        source.new_empty(state if lstm else 0),
        [source.new_empty(*rows, width) for width in widths],
    )


@unseen_by_dynamo
def compute_network_backward(
    d_output: Optional,
    d_h_n: Optional,
    d_c_n: Optional,
    output: Optional,
    kept: Sequence[Tensor],
    source: Tensor,
    weights: Sequence[Tensor],
    h_0: Optional,
    c_0: Optional,
    masks: Sequence[Tensor],
    between: Sequence[Tensor],
    lengths: Optional,
    mode: str,
    layers: int,
    trained: int,
) -> Gradients:
    """Return the gradients. Only GRUs need the output, of the last layer."""
    if lengths is not None and source.dim() == 2 and not _stays_packed(source, masks):
        padding = _Padding(lengths, source.device)
        up = None if d_output is None else padding.pad(d_output)
        last = None if output is None else padding.pad(output)
        sequences = padding.pad_all(kept), padding.pad(source)
        given = up, d_h_n, d_c_n, last, *sequences, weights, h_0, c_0, masks, padding.pad_all(between)
        d_source, *others = compute_network_backward(*given, lengths, mode, layers, trained)
        return None if d_source is None else padding.pack(d_source), *others  # type: ignore[return-value]
    keep_until_read(source, *weights, h_0, c_0, *masks, *between)
    lstm, gru = torch_mode(mode) == "LSTM", torch_mode(mode) == "GRU"
    upstream = d_output, d_h_n, d_c_n if lstm else None
    above = tuple(each is not None for each in upstream)
    kind, tensors = _forward(source, weights, h_0, c_0, masks, between, mode, layers, trained, above)  # type: ignore[arg-type]
    tensors += [each for each in upstream if each is not None]
    tensors += kept
    if gru:
        assert output is not None  # noqa: S101
        tensors.append(output)
    found = run(kind, tensors, lengths)
    each = len(weights) // layers
    names = [(name, layer) for layer in range(layers) for name in weights_of(each)]
    d_weights = [
        found[name].view(weight.shape) if name in found else None for name, weight in zip(names, weights, strict=True)
    ]
    return found.get(("source", 0)), d_weights, found.get(("init_state", ALL)), found.get(("init_cell", ALL))


def _compute_backward_shapes(*given: Any) -> tuple[Any, ...]:
    source, weights, h_0, c_0, *_, layers, trained = given[5:]  # as `compute_network_backward` takes them
    frozen = trained * (len(weights) // layers)

    def like(tensor: Optional) -> Tensor:
        return source.new_empty(0 if tensor is None else tensor.shape)  # type: ignore[no-any-return]

    d_weights = [like(each if number >= frozen else None) for number, each in enumerate(weights)]
    return like(None if trained else source), d_weights, like(h_0), like(c_0)


def _stays_packed(source: Tensor, masks: Sequence[Tensor]) -> bool:
    """Return whether the device computes packed sequences as they are."""
    return source.is_cpu and not masks and resolve(None, "[vkrnn.torch]").backend == "native"


class _Padding:
    """Where packed rows are in padded sequences."""

    def __init__(self, lengths: Tensor, device: torch.device) -> None:
        numbers = lengths.cpu().numpy()
        live = np.arange(numbers[0])[:, np.newaxis] < numbers
        self._shape = live.shape
        self._rows = on_device(torch.from_numpy(np.flatnonzero(live)), device)

    def pad(self, packed: Tensor) -> Tensor:
        T, N = self._shape
        padded = packed.new_zeros(T * N, packed.shape[1])
        return padded.index_copy_(0, self._rows, packed).view(T, N, -1)

    def pad_all(self, packed: Sequence[Tensor]) -> list[Tensor]:
        return [self.pad(each) for each in packed]

    def pack(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, self._rows)


def _without_none(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with empty tensors in place of None, which an operator cannot return."""

    @unseen_by_dynamo
    def operator(*given: Any) -> Any:
        source = given[0] if isinstance(given[0], Tensor) else next(each for each in given[4][:1])

        def filled(found: Any) -> Any:
            if isinstance(found, (list, tuple)):
                return [filled(each) for each in found]
            return source.new_empty(0) if found is None else found

        return tuple(filled(each) for each in compute(*given))

    return operator


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
    "str mode, int layers, int trained"
)
network = register(
    f"vkrnn::network({_NETWORK}) -> (Tensor, Tensor, Tensor, Tensor[])", _without_none(compute_network), _compute_shapes
)
network_backward = register(
    f"vkrnn::network_backward(Tensor? d_output, Tensor? d_h_n, Tensor? d_c_n, Tensor? output, Tensor[] kept, {_NETWORK}) "
    "-> (Tensor, Tensor[], Tensor, Tensor)",
    _without_none(compute_network_backward),
    _compute_backward_shapes,
)
