"""Networks: several recurrent layers in one call, forward and gradients."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt

from vkrnn import _core
from vkrnn._interop.foreign import as_numpy_integers
from vkrnn._ops.cuda import as_operand
from vkrnn._ops.layer import Layer, swapped
from vkrnn.arrays import Array as DeviceArray
from vkrnn.convert._given_layers import STATES as INITIAL
from vkrnn.convert._given_layers import as_tuples, flat_layers, with_arrays
from vkrnn.devices import Device, DeviceLike, resolve
from vkrnn.results import STATES, Gradients, GRUGradients, LSTMGradients, SLSTMGradients
from vkrnn.streams import Stream, stream

__all__ = ["Network", "NetworkGradients", "NetworkResult", "network"]

Array: TypeAlias = npt.NDArray[Any] | DeviceArray

_GRADIENTS: dict[str, Any] = {"lstm": LSTMGradients, "gru": GRUGradients, "slstm": SLSTMGradients}
_PREFIX = "[network]"
_OF_STEPS = ("reset_state", "reset_cell", "zoneout_mask", "zoneout_cell_mask")  # with an entry for each layer
_AXES = {"reset": (2, 3)}  # of sequences that need not have three


@dataclass(frozen=True, eq=False, repr=False)
class NetworkResult:
    """The results of `Network.forward`.

    Attributes
    ----------
    output : array [T, N, D H]
        Of the last layer.
    last_state : tuple of array
        The states [N, D H] of each layer after the last step of each direction and batch row. Given as `init_state`,
        they continue the sequence.
    last_cell, last_normalizer, last_stabilizer : tuple of array or None
        The same of the cell states; None for layers without such a state.
    training_state : object or None
        What `Network.gradients` needs. It can be used more than once. None if `training` was not set.
    """

    output: Any
    last_state: tuple[Any, ...]
    last_cell: tuple[Any, ...]
    last_normalizer: tuple[Any, ...]
    last_stabilizer: tuple[Any, ...]
    training_state: _core.NetworkForward | None

    def __repr__(self) -> str:
        """Return shapes, never the numbers."""
        trained = "" if self.training_state is None else ", with its training state"
        output = f"output {list(self.output.shape)} {self.output.dtype}"
        return f"NetworkResult({output}, {len(self.last_state)} layers{trained})"


@dataclass(frozen=True, eq=False, repr=False)
class NetworkGradients:
    """The results of `Network.gradients`.

    Attributes
    ----------
    source : array [T, N, I]
    layers : tuple of Results
        For each layer, the gradients of its arguments by name, in the order of the function's gradients.
    """

    source: Any
    layers: tuple[Gradients[Any] | SLSTMGradients[Any], ...]

    def __repr__(self) -> str:
        """Return shapes, never the numbers."""
        return f"NetworkGradients(source {list(self.source.shape)} {self.source.dtype}, {len(self.layers)} layers)"


class Network:
    """Recurrent layers, each fed by the one below, that run in one call; `network` makes one. Thread-safe.

    Attributes
    ----------
    layers : tuple of Layer
        First to last.
    device : Device
    """

    layers: tuple[Layer, ...]
    device: Device
    _network: _core.Network
    _frozen: bool
    _batch_first: bool

    def __init__(self) -> None:
        raise TypeError(f"{_PREFIX} a Network has no constructor; call vkrnn.network")

    @classmethod
    def _of(cls, layers: Sequence[Layer], device: Device, *, frozen: bool) -> Network:
        """Return a network of checked layers."""
        self = cls.__new__(cls)
        self.layers, self.device = tuple(layers), device
        self._network = _core.Network(device._open(_PREFIX), as_tuples(layers))
        self._frozen = frozen
        self._batch_first = layers[0].batch_first
        return self

    def forward(
        self,
        source: Any,
        *,
        init_state: Sequence[Any] | None = None,
        init_cell: Sequence[Any] | None = None,
        init_normalizer: Sequence[Any] | None = None,
        init_stabilizer: Sequence[Any] | None = None,
        mask: Sequence[Any] | None = None,
        between: Sequence[Any] | None = None,
        lengths: Any = None,
        reset: Any = None,
        training: bool = False,
        reset_state: Sequence[Any] | None = None,
        reset_cell: Sequence[Any] | None = None,
        zoneout_mask: Sequence[Any] | None = None,
        zoneout_cell_mask: Sequence[Any] | None = None,
    ) -> NetworkResult:
        """Run all layers.

        If the first layer has ``batch_first``, all sequences have the batch axis first, here and in `gradients`: the
        source is [N, T, I], and the output [N, T, D H].

        Parameters
        ----------
        source : array [T, N, I]
            Input of the first layer.
        init_state, init_cell, init_normalizer, init_stabilizer : sequence of array [N, D H], optional
            Initial states, an entry for each layer; None in it means zeros.
        mask : sequence of array, optional
            The masks of the recurrent products, an entry for each layer, as the function's argument `mask`; None in it
            means ones.
        between : sequence of array [T, N, D H], optional
            ``between[l]`` multiplies the output of layer l before layer l + 1 reads it, as dropout does. It must be
            scaled already.
        lengths : array of integers [N], optional
            The number of steps of each batch row.
        reset : array [T, N], [T, N, 1] or [T, N, D H], optional
            Where all layers start anew, as the functions' argument `reset`.
        training : bool, default False
            Whether the result can be given to `gradients`.
        reset_state, reset_cell : sequence of array [N, D H] or [T, N, D H], optional
            The states that resets start from, an entry for each layer; None in it means zeros.
        zoneout_mask, zoneout_cell_mask : sequence of array [T, N, D H] or [D H], optional
            The new states' parts, an entry for each layer, as the functions' arguments; None in it means ones. A layer
            may have one of [D H] among its weights instead, or a `leak`.

        Returns
        -------
        NetworkResult

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit; the message names it and the layer.
        MemoryError, DeviceError
            As a call of a function.
        """
        states = init_state, init_cell, init_normalizer, init_stabilizer
        steps = reset_state, reset_cell, zoneout_mask, zoneout_cell_mask
        call = self._forward_call(source, *states, mask, between, lengths, reset, training, *steps)
        self._refresh()
        made = self._network.forward(*call)
        count = len(self.layers)
        last = {
            state.last: tuple(_shown(made.result(number, state.last)) for number in range(count)) for state in STATES
        }
        output = self._shown_sequence(made.result(count - 1, "output"))
        return NetworkResult(output, **last, training_state=made if training else None)

    def _forward_call(self, source: Any, *rest: Any) -> tuple[Any, ...]:
        """Return what the core's network takes for a forward call. `rest` are the other arguments of `forward`."""
        count = len(_OF_STEPS)
        *states, mask, between, lengths, reset, training = rest[:-count]
        given: list[dict[str, Any]] = [{} for _ in self.layers]
        given[0]["source"] = self._sequence(source, "source")
        if lengths is not None:
            given[0]["lengths"] = as_numpy_integers(lengths, f"{_PREFIX} lengths:")
        if reset is not None:
            given[0]["reset"] = self._sequence(reset, "reset")
        for number, layer in enumerate(self.layers):
            given[number].update({name: layer.arguments[name] for name in INITIAL if name in layer.arguments})
        for name, values in zip((*INITIAL, "mask", *_OF_STEPS), (*states, mask, *rest[-count:]), strict=True):
            self._take(given, name, values)
        masks = [None if each is None else self._sequence(each, "between") for each in self._each("between", between)]
        return given, masks, bool(training), self.device, self.device._rounds()

    def gradients(
        self,
        result: NetworkResult,
        source_gradient: Any = None,
        *,
        state_gradient: Sequence[Any] | None = None,
        cell_gradient: Sequence[Any] | None = None,
        normalizer_gradient: Sequence[Any] | None = None,
        stabilizer_gradient: Sequence[Any] | None = None,
    ) -> NetworkGradients:
        """Return the gradients with respect to the source, the weights and the initial states.

        Parameters
        ----------
        result : NetworkResult
            Of `forward` with ``training=True``.
        source_gradient : array [T, N, D H], optional
            Gradient with respect to the output; zeros if not given.
        state_gradient, cell_gradient, normalizer_gradient, stabilizer_gradient : sequence of array [N, D H], optional
            Gradients with respect to `last_state`, `last_cell`, `last_normalizer` and `last_stabilizer`, an entry for
            each layer; None in it means zeros. An entry of all but `state_gradient` may be [T, N, D H], with respect to
            the states of all steps.

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit, or if `result` has no training state.
        MemoryError, DeviceError
            As a call of a function.
        """
        states = state_gradient, cell_gradient, normalizer_gradient, stabilizer_gradient
        call = self._gradients_call(result, source_gradient, *states)
        self._refresh()
        found = self._network.gradients(*call)
        source = self._shown_sequence(found[0]["source"])
        layers = []
        for layer, gradients in zip(self.layers, found, strict=True):
            name = layer.function.__name__
            gradients.pop("source", None)
            shown = [
                self._shown_sequence(each, key) if key.startswith("reset") else _shown(each)
                for key, each in gradients.items()
            ]
            kind = _GRADIENTS.get(name, Gradients)
            reasons = {"source": "the gradient of the network's source is its attribute source"}
            layers.append(
                kind._of(f"{name}_gradients", tuple(gradients), shown, reasons)  # noqa: SLF001
            )
        return NetworkGradients(source, tuple(layers))

    def _gradients_call(self, result: Any, source_gradient: Any, *states: Any) -> tuple[Any, ...]:
        """Return what the core's network takes for a gradient call."""
        if not isinstance(result, NetworkResult):
            raise TypeError(f"{_PREFIX} result: expected a NetworkResult, got {type(result).__name__}")
        if result.training_state is None:
            raise ValueError(f"{_PREFIX} result: expected one of forward with training=True, got training=False")
        given: list[dict[str, Any]] = [{} for _ in self.layers]
        for state, values in zip(STATES, states, strict=True):
            self._take(given, state.gradient, values)
        above = None if source_gradient is None else self._sequence(source_gradient, "source_gradient")
        return result.training_state, above, given

    def _plan(self, name: str, args: Any, kwargs: Any) -> _core.Plan:
        """Return the plan of a call of `forward` or `gradients`, by its name."""
        method = getattr(type(self), name)
        bound = inspect.signature(method).bind(self, *args, **kwargs)
        bound.apply_defaults()
        values = list(bound.arguments.values())[1:]
        if name == "forward":
            return self._network.plan_forward(*self._forward_call(*values))
        return self._network.plan_gradients(*self._gradients_call(*values))

    def stream(self, batch: int = 1) -> Stream:
        """Return a `Stream` of the same layers, with copies of the weights; see `vkrnn.stream`."""
        return stream(list(self.layers), batch=batch, device=self.device)

    def __repr__(self) -> str:
        """Show the layers and the device."""
        shown = " -> ".join(f"{each.function.__name__} {each.hidden_size}" for each in self.layers)
        options = (", batch_first" if self._batch_first else "") + (", frozen" if self._frozen else "")
        return f"<vkrnn.Network: {shown}, on {self.device.name}{options}>"

    def _each(self, name: str, values: Sequence[Any] | None) -> Sequence[Any]:
        """Return an argument that has an entry for each layer."""
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)):
            raise TypeError(
                f"{_PREFIX} {name}: expected a list with an entry for each layer, got {type(values).__name__}"
            )
        most, least = len(self.layers), len(self.layers) - (name == "between")
        if not least <= len(values) <= most:
            raise ValueError(f"{_PREFIX} {name}: expected {least} entries, one for each layer, got {len(values)}")
        return values

    def _take(self, given: list[dict[str, Any]], name: str, values: Sequence[Any] | None) -> None:
        for number, value in enumerate(self._each(name, values)):
            if value is not None:
                operand = self._sequence if name in ("mask", *_OF_STEPS) else self._operand
                given[number][name] = operand(value, f"{name}[{number}]")

    def _operand(self, value: Any, name: str) -> Any:
        return as_operand(value, f"{_PREFIX} {name}:", self.device)

    def _sequence(self, value: Any, name: str) -> Any:
        operand = self._operand(value, name)
        return swapped(operand, _PREFIX, _AXES.get(name, (3,))) if self._batch_first else operand

    def _shown_sequence(self, array: Any, name: str = "output") -> Any:
        return swapped(_shown(array), _PREFIX, _AXES.get(name, (3,))) if self._batch_first else _shown(array)

    def _refresh(self) -> None:
        """Bring the device's weights up to date with the layers' arrays."""
        if not self._frozen:
            self._network.refresh()


def network(layers: Any, *, device: DeviceLike | None = None, frozen: bool = False) -> Network:
    """Return a `Network` that runs recurrent layers, each fed by the one below, in one call.

    Parameters
    ----------
    layers : Layer, or a sequence of layers
        First to last; what `vkrnn.convert.from_torch`, `from_keras` and `from_onnx` return. A layer may also be a
        tuple of the arguments of a call: ``("lstm", weights)`` or ``("lstm", weights, descriptor)``, where `weights`
        maps names such as ``recurrent_weight`` to arrays. The network keeps references to the arrays.
    device : Device or int or str, optional
        As for the functions.
    frozen : bool, default False
        The caller's word that the weights do not change. Otherwise each call compares a hash of 128 bits over their
        bytes, and uses their current numbers; an optimizer may write them in place.

    Raises
    ------
    TypeError, ValueError
        If the layers do not fit a call or each other.
    NotImplementedError
        If weights are in a device's memory, and are not frozen.
    MemoryError, DeviceError
        As a call.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> draw = np.random.default_rng(0).standard_normal
    >>> def layer(I, H):
    ...     W, R = draw((8 * H, I), np.float32), draw((2, 4 * H, H), np.float32)
    ...     return "lstm", {"input_weight": W, "recurrent_weight": R}, vkrnn.LSTMDescriptor(bidirectional=True)
    >>> net = vkrnn.network([layer(3, 4), layer(8, 5)])
    >>> result = net.forward(np.ones((6, 2, 3), np.float32), training=True)
    >>> result.output.shape, [state.shape for state in result.last_state]
    ((6, 2, 10), [(2, 8), (2, 10)])
    >>> net.gradients(result, np.ones((6, 2, 10), np.float32)).layers[0].input_weight.shape
    (32, 3)
    """
    given = list(flat_layers(layers, "network"))
    if not frozen and any(isinstance(value, DeviceArray) for layer in given for value in layer.arguments.values()):
        raise NotImplementedError(
            f"{_PREFIX} layers: weights in a device's memory are copied once, so changes of them would not be noticed; "
            "expected NumPy arrays, or frozen=True"
        )
    made = [with_arrays(layer, number, None, "network") for number, layer in enumerate(given)]
    if not made:
        raise ValueError(f"{_PREFIX} layers: expected at least one, got none")
    return Network._of(made, resolve(device, _PREFIX), frozen=bool(frozen))  # noqa: SLF001


def _shown(array: Any) -> Any:
    """Return a result of the core as users see it."""
    if isinstance(array, _core.Array) and not isinstance(array, DeviceArray):
        return DeviceArray(array)
    return array
