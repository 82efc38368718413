"""The functions `from_torch` and `to_torch` of `vkrnn.convert`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vkrnn import operations
from vkrnn._base.packages import import_package
from vkrnn._ops.calls import BoundCall
from vkrnn._ops.layer import Layer
from vkrnn.convert._torch_layout import FORWARD, descriptor, from_torch_layout
from vkrnn.descriptors import Activation
from vkrnn.results import Outputs

__all__ = ["from_torch", "to_torch"]

Array = npt.NDArray[Any]

_FORWARDS = ("torch.nn.modules.rnn", "vkrnn.torch._recurrent")  # modules whose `forward` is known
_MATRICES = ("weight_ih", "weight_hh")
_BIASES = ("bias_ih", "bias_hh")
_CLASSES: Mapping[Callable[..., Outputs[Any]], str] = {
    operations.lstm: "LSTM",
    operations.gru: "GRU",
    operations.single_gate_rnn: "RNN",
}
_WEIGHTS = {"recurrent_weight", "input_weight", "bias", "secondary_bias", "peephole"}
# Options of a call, or of the order of the gates in memory. Modules of torch and of vkrnn have no such options.
_OF_CALLS = {"reverse", "bidirectional", "training", "produce_cell", "forget_gate_last", "reset_gate_first"}
# Options that have no effect without another one.
_DEPENDENT = {"output_peephole_new_cell", "hard_sigmoid_alpha", "hard_sigmoid_beta"}
_SUFFIXES = ("", "_reverse")


def from_torch(module: Any) -> list[Layer]:
    """Return the layers of a ``torch.nn.LSTM``, ``GRU`` or ``RNN``, first to last, with copies of its weights.

    The output of a layer is the source of the next one. Layers of a ``batch_first`` module take sources [N, T, I].
    Dropout between layers is left to you. Options of vkrnn's modules are those of the layers.

    Parameters
    ----------
    module : torch.nn.RNNBase
        On any device, of float32, float64, float16 or bfloat16.

    Raises
    ------
    TypeError
        If it is another module, or a subclass with a ``forward`` of its own.
    NotImplementedError
        If it has a ``proj_size`` or learnt initial states.

    Examples
    --------
    >>> import numpy as np, torch, vkrnn  # doctest: +SKIP
    >>> (layer,) = vkrnn.convert.from_torch(torch.nn.LSTM(3, 16))  # doctest: +SKIP
    >>> layer(np.ones((5, 1, 3), np.float32))  # doctest: +SKIP
    Results(lstm: output [5, 1, 16] float32)
    """
    torch = import_package("torch", "[from_torch]")
    from vkrnn._interop.torch_tensors import to_array  # noqa: PLC0415 - needs torch

    if not isinstance(module, torch.nn.RNNBase):
        raise TypeError(f"[from_torch] module: expected a torch.nn.LSTM, GRU or RNN, got {type(module).__name__}")
    owner = next(base for base in type(module).__mro__ if "forward" in vars(base))
    if owner.__module__ not in _FORWARDS:
        raise TypeError(
            f"[from_torch] module: expected a torch.nn.LSTM, GRU or RNN, got {type(module).__name__}, a subclass with "
            "a forward of its own"
        )
    if module.proj_size:
        raise NotImplementedError(f"[from_torch] proj_size: expected 0, got {module.proj_size}")
    if getattr(module, "learn_initial_state", False):
        raise NotImplementedError(
            "[from_torch] learn_initial_state: expected False, got True; pass states in each call"
        )
    suffixes = _SUFFIXES[: 1 + module.bidirectional]

    def weight(name: str, number: int) -> Array:
        return np.concatenate([to_array(getattr(module, f"{name}_l{number}{end}").detach().cpu()) for end in suffixes])

    ours = owner.__module__ == _FORWARDS[1]
    how = module.descriptor if ours else descriptor(module.mode, bidirectional=bool(module.bidirectional))
    layers = []
    for number in range(module.num_layers):
        weight_ih, weight_hh = (weight(name, number) for name in _MATRICES)
        bias_ih, bias_hh = (weight(name, number) if module.bias else None for name in _BIASES)
        peephole = weight("peephole", number) if ours and module.peephole else None
        arguments = from_torch_layout((weight_ih, weight_hh, bias_ih, bias_hh, peephole), how)
        for name, chance in (
            (("zoneout_mask", module.zoneout), ("zoneout_cell_mask", module.zoneout_cell)) if ours else ()
        ):
            if chance:  # as the module computes it out of training
                width = len(suffixes) * module.hidden_size
                arguments[name] = np.full(width, 1 - chance, weight_hh.dtype)
        dropout = module.recurrent_dropout if ours else 0.0
        layers.append(Layer(FORWARD[module.mode], arguments, how, dropout, bool(module.batch_first)))
    return layers


def to_torch(layers: Layer | Sequence[Layer]) -> Any:
    """Return a ``torch.nn.LSTM``, ``GRU`` or ``RNN`` that computes what the layers do, one after the other.

    If PyTorch lacks an option of the layers, it is the ``vkrnn.torch.LSTM``, ``GRU`` or ``RNN`` that has it.
    Gates are reordered as in PyTorch. The second bias is zeros, except for the candidate of a GRU with ``reset_after``.

    Parameters
    ----------
    layers : Layer or sequence of Layer
        From `from_torch` or anywhere else.

    Raises
    ------
    TypeError
        If something else is given.
    ValueError
        If there is no layer, if a weight has a wrong shape, if layers differ in more than their weights, or if a layer
        does not take the output of the one before.
    NotImplementedError
        If neither has an equivalent: reverse order in one direction, no input weight. The message names it.
    """
    every: list[Layer] = list(layers) if isinstance(layers, (list, tuple)) else [cast("Layer", layers)]
    for layer in every:
        if not isinstance(layer, Layer):
            raise TypeError(f"[to_torch] layers: expected a Layer or a sequence of them, got {type(layer).__name__}")
    torch = import_package("torch", "[to_torch]")
    from vkrnn._interop.torch_tensors import to_tensor  # noqa: PLC0415 - needs torch

    if not every:
        raise ValueError("[to_torch] layers: expected at least one, got none")
    first = every[0]
    D = 1 + first.descriptor.bidirectional
    for number, layer in enumerate(every):
        _check_layer(number, layer, first, D)
    recurrent, name = first.arguments["recurrent_weight"], _CLASSES[first.function]
    options = _module_options(every)
    owner = importlib.import_module("vkrnn.torch") if options else torch.nn
    if name == "RNN" and first.descriptor.activation == Activation.RELU:
        options["nonlinearity"] = "relu"
    module = getattr(owner, name)(
        first.arguments["input_weight"].shape[-1] * first.descriptor.input_heads,
        first.hidden_size,
        len(every),
        bias=any(bias in layer.arguments for layer in every for bias in ("bias", "secondary_bias")),
        batch_first=first.batch_first,
        bidirectional=D == 2,
        dtype=getattr(torch, recurrent.dtype.name),
        **options,
    )
    with torch.no_grad():
        for number, layer in enumerate(every):
            for weight, array in _torch_weights(layer, name, bias=module.bias, peephole="peephole" in options).items():
                for suffix, half in zip(_SUFFIXES[:D], np.split(array, D), strict=True):
                    getattr(module, f"{weight}_l{number}{suffix}").copy_(to_tensor(np.ascontiguousarray(half)))
    return module


def _module_options(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the options that vkrnn's module needs and PyTorch's lacks, or none if PyTorch's computes the same."""
    first, given = layers[0], layers[0].descriptor
    name = _CLASSES[first.function]
    if given.reverse and not given.bidirectional:
        raise NotImplementedError(f"[to_torch] reverse: torch.nn.{name} supports only False, got True")
    mode = name if name != "RNN" else "RNN_RELU" if given.activation == Activation.RELU else "RNN_TANH"
    torchs = descriptor(mode, bidirectional=given.bidirectional)
    own = {field.name: getattr(given, field.name) for field in fields(given) if field.name not in _OF_CALLS}
    peephole = any("peephole" in layer.arguments for layer in layers)
    differs = any(value != getattr(torchs, option) for option, value in own.items() if option not in _DEPENDENT)
    if not (differs or peephole or first.recurrent_dropout):
        return {}
    return own | {"recurrent_dropout": first.recurrent_dropout} | ({"peephole": True} if peephole else {})


def _check_layer(number: int, layer: Layer, first: Layer, D: int) -> None:
    where = f"[to_torch] layer {number}:"
    given = layer.arguments
    others = sorted(given.keys() - _WEIGHTS)
    if others:
        raise NotImplementedError(f"{where} {others[0]}: torch's modules do not have this weight")
    for weight in ("input_weight", "recurrent_weight"):
        if given.get(weight) is None:
            raise NotImplementedError(
                f"{where} {weight}: expected an array, which torch's modules always have, got none"
            )
    features = given["input_weight"].shape[-1] * layer.descriptor.input_heads
    source = np.zeros((1, 1, features), given["input_weight"].dtype)
    call = {"source": source, **given, "descriptor": layer.descriptor, "name": f"layer {number}"}
    BoundCall.of(layer.function.__name__, call)  # checks shapes and dtypes
    if (layer.function, layer.descriptor) != (first.function, first.descriptor):
        raise ValueError(
            f"{where} expected {first.function.__name__} with {first.descriptor!r}, as layer 0, got "
            f"{layer.function.__name__} with {layer.descriptor!r}"
        )
    for option in ("recurrent_dropout", "batch_first"):
        wanted, got = getattr(first, option), getattr(layer, option)
        if got != wanted:
            raise ValueError(f"{where} {option}: expected {wanted}, as layer 0, got {got}")
    recurrent, like = given["recurrent_weight"], first.arguments["recurrent_weight"]
    if (recurrent.shape, recurrent.dtype) != (like.shape, like.dtype):
        raise ValueError(
            f"{where} recurrent_weight: expected {list(like.shape)} {like.dtype}, as layer 0, got "
            f"{list(recurrent.shape)} {recurrent.dtype}"
        )
    width = D * layer.hidden_size
    if number > 0 and features != width:
        columns, heads = given["input_weight"].shape[-1], layer.descriptor.input_heads
        raise ValueError(
            f"{where} input_weight: expected {width // heads} columns, the width of the output before it"
            f"{f' / {heads} input_heads' if heads > 1 else ''}, got {columns}"
        )


def _torch_weights(layer: Layer, name: str, *, bias: bool, peephole: bool) -> dict[str, Array]:
    """Return the weights by the module's names, with gates in torch's order and the rows of both directions."""
    given, R = layer.arguments, layer.arguments["recurrent_weight"]
    H = layer.hidden_size
    G = R.shape[-2] // H
    rows = R.size // R.shape[-1]
    order = list(range(G))
    if name == "LSTM" and layer.descriptor.forget_gate_last:  # i, z, f, o
        order = [0, 2, 1, 3]
    if name == "GRU" and not layer.descriptor.reset_gate_first:  # z, r, o
        order = [1, 0, 2]

    def ordered(array: Array, *columns: int) -> Array:
        return array.reshape(-1, G, H, *columns)[:, order].reshape(rows, *columns)

    def vector(argument: str) -> Array:
        return ordered(given[argument]) if argument in given else np.zeros(rows, R.dtype)

    input_weight = given["input_weight"]
    weights = {"weight_ih": ordered(input_weight, input_weight.shape[-1]), "weight_hh": ordered(R, R.shape[-1])}
    if bias:
        inside = np.zeros((rows // (G * H), G, H), R.dtype)
        if "secondary_bias" in given and layer.descriptor.reset_after:
            inside[:, 2] = given["secondary_bias"].reshape(-1, H)
        weights["bias_ih"] = vector("bias")
        weights["bias_hh"] = inside.reshape(rows)
    if peephole:
        weights["peephole"] = vector("peephole")
    return weights
