"""The recurrent operations for benchmarks: arrays, right answers, and vkrnn as a contender."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn import reference

from .common import DEVICE, HOST_CALL, Contender, Problem, Sizes

GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}

WEIGHTS_THERE = "vkrnn, weights there"  # vkrnn with weights that stay on the device

# The variants that PyTorch's nn.LSTM, nn.GRU and nn.RNN compute.
DESCRIPTORS: dict[str, Callable[..., Any]] = {
    "single_gate_rnn": lambda **flags: vkrnn.SingleGateRNNDescriptor(**{"activation": "tanh"} | flags),
    "lstm": vkrnn.LSTMDescriptor,
    "gru": lambda **flags: vkrnn.GRUDescriptor(reset_after=True, reset_gate_first=True, **flags),
}

# Further arguments of the gradients, each with the forward result that is passed.
TAKEN = {
    "single_gate_rnn": {"z_state": "z_state"},
    "lstm": {"z_state": "z_state", "cell_output_fwd": "cell_output"},
    "gru": {"z_state": "z_state", "output_fwd": "output"},
}


# The gates that `Arrays.with_options` gives another activation.
SIGMOID_GATES = {
    "single_gate_rnn": ("activation",),
    "lstm": ("input_gate_activation", "forget_gate_activation", "output_gate_activation"),
    "gru": ("update_gate_activation", "reset_gate_activation"),
}


@cache
def descriptor(cell: str, *, training: bool = False, **flags: Any) -> Any:
    """Return a descriptor, made only once as in a program."""
    return DESCRIPTORS[cell](training=training, **flags)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name; ml_dtypes has bfloat16."""
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Arrays:
    """The arguments of one cell or of a stack, initialized as in PyTorch's modules, and the gradient of the output."""

    cell: str
    sizes: Sizes
    given: Mapping[str, Any]  # NumPy or device arrays
    source_gradient: Any
    flags: Mapping[str, Any] = field(default_factory=dict)  # options of the descriptor
    above: Sequence[Mapping[str, Any]] = ()  # the weights of the layers above the first

    @staticmethod
    def draw(
        cell: str, sizes: Sizes, *, dtype: str = "float32", states: bool = False, bidirectional: bool = False
    ) -> Arrays:
        """Draw reproducible arrays, with initial states on request."""
        rng = np.random.default_rng([sizes.T, sizes.N, sizes.I, sizes.H])
        both = (2,) if bidirectional else ()
        hidden, gated, bound = (1 + bidirectional) * sizes.H, GATES[cell] * sizes.H, sizes.H**-0.5
        wanted = dtype_of(dtype)

        def weight(*shape: int) -> npt.NDArray[Any]:
            return rng.uniform(-bound, bound, shape).astype(np.float32).astype(wanted, copy=False)

        def normal(*shape: int) -> npt.NDArray[Any]:
            return rng.standard_normal(shape, np.float32).astype(wanted, copy=False)

        def weights(inputs: int) -> dict[str, npt.NDArray[Any]]:
            drawn = {
                "recurrent_weight": weight(*both, gated, sizes.H),
                "input_weight": weight((1 + bidirectional) * gated, inputs),
                "bias": weight((1 + bidirectional) * gated),
            }
            return drawn | ({"secondary_bias": weight(hidden)} if cell == "gru" else {})

        given = {"source": normal(sizes.T, sizes.N, sizes.I)} | weights(sizes.I)
        source_gradient = normal(sizes.T, sizes.N, hidden)
        if states:
            given |= {name: normal(sizes.N, hidden) for name in ("init_state", "init_cell")[: 1 + (cell == "lstm")]}
        above = [weights(hidden) for _ in range(1, sizes.layers)]
        return Arrays(cell, sizes, given, source_gradient, {"bidirectional": True} if bidirectional else {}, above)

    def with_options(self) -> Arrays:
        """Return these arrays with a mask, lengths, hard sigmoids and, for the LSTM, a peephole."""
        rng = np.random.default_rng(self.sizes.T)
        dtype, T, N = self.source_gradient.dtype, self.sizes.T, self.sizes.N
        more = {
            "mask": (rng.random(self.source_gradient.shape, np.float32) < 0.8).astype(dtype),
            "lengths": np.maximum(rng.integers(1, T + 1, N), np.where(np.arange(N) == 0, T, 1)),
        }
        if self.cell == "lstm":
            more["peephole"] = rng.uniform(-0.1, 0.1, len(self.given["bias"])).astype(dtype)
        flags = dict.fromkeys(SIGMOID_GATES[self.cell], "hard_sigmoid")
        return replace(self, given={**self.given, **more}, flags={**self.flags, **flags})

    def first(self, steps: int) -> Arrays:
        """Return these arrays, cut to this many steps."""
        steps = min(steps, self.sizes.T)
        cut = {name: self.given[name][:steps] for name in ("source", "mask") if name in self.given}
        if "lengths" in self.given:
            cut["lengths"] = np.minimum(self.given["lengths"], steps)
        sizes = replace(self.sizes, T=steps)
        return replace(self, sizes=sizes, given={**self.given, **cut}, source_gradient=self.source_gradient[:steps])

    def on(self, device: vkrnn.Device) -> Arrays:
        """Return these arrays, copied to the device, except for lengths."""
        there = self.with_weights_on(device)
        given = {**there.given, "source": vkrnn.asarray(self.given["source"], device=device)}
        return replace(self, given=given, source_gradient=vkrnn.asarray(self.source_gradient, device=device))

    def with_weights_on(self, device: vkrnn.Device) -> Arrays:
        """Return these arrays, with all but the source and the gradient of the output copied to the device."""

        def there(given: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: array if name in ("source", "lengths") else vkrnn.asarray(array, device=device)
                for name, array in given.items()
            }

        return replace(self, given=there(self.given), above=list(map(there, self.above)))

    def descriptor(self, *, training: bool = False) -> Any:
        """Return the descriptor."""
        return descriptor(self.cell, training=training, **self.flags)

    def forward(self, module: Any, *, training: bool = False, **options: Any) -> vkrnn.Results:
        """Call the cell's function of `module`, which is `vkrnn` or `vkrnn.reference`."""
        function = getattr(module, self.cell)
        results: vkrnn.Results = function(**self.given, descriptor=self.descriptor(training=training), **options)
        return results

    def gradients(self, module: Any, forward: vkrnn.Results, **options: Any) -> vkrnn.Results:
        """Call the cell's gradients of `module` with what its forward call returned."""
        results: vkrnn.Results = getattr(module, f"{self.cell}_gradients")(
            **self.given,
            source_gradient=self.source_gradient,
            **{name: getattr(forward, result) for name, result in TAKEN[self.cell].items()},
            descriptor=self.descriptor(),
            **options,
        )
        return results

    def layers(self) -> Iterator[Arrays]:
        """Yield each layer as arrays of one cell. Sources above the first layer have the shape alone."""
        yield replace(self, above=())
        for weights in self.above:
            yield replace(self, given={"source": np.empty_like(self.source_gradient), **weights}, above=())

    def network(self, device: vkrnn.Device, *, frozen: bool = False) -> vkrnn.Network:
        """Return a stack as a network."""
        given = ({name: array for name, array in layer.given.items() if name != "source"} for layer in self.layers())
        return vkrnn.network([(self.cell, each, self.descriptor()) for each in given], device=device, frozen=frozen)

    def answer(self, module: Any, *, gradients: bool, **options: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the output, and the gradients if wanted, by name. Before gradients, it is a training call.

        A stack is computed one layer after the other.
        """
        calls: list[tuple[Arrays, Any]] = []
        for layer in self.layers():
            fed = replace(layer, given={**layer.given, "source": calls[-1][1].output}) if calls else layer
            calls.append((fed, fed.forward(module, training=gradients, **options)))
        found, above = {"output": calls[-1][1].output}, self.source_gradient
        for number, (layer, forward) in reversed([*enumerate(calls)] if gradients else []):
            back = replace(layer, source_gradient=above).gradients(module, forward, **options)
            above = back.source
            found |= named_gradients(back, number)
        return {name: np.asarray(array) for name, array in found.items()}

    def problem(self, device: vkrnn.Device, contenders: Sequence[Contender], *, gradients: bool) -> Problem:
        """Return the forward call, with or without the gradients, as a problem for these contenders."""
        moved, flops = self.cost(device, gradients=gradients)
        return Problem(
            op=f"{self.cell} + gradients" if gradients else self.cell,
            workload=str(self.sizes),
            bytes=moved,
            flops=flops,
            ideal=self.answer(reference, gradients=gradients) if contenders else {},
            contenders=contenders,
        )

    def cost(self, device: vkrnn.Device, *, gradients: bool) -> tuple[int, float]:
        """Return the bytes of arguments and results, and the flops of the matrix products."""
        given = [array for each in (self.given, *self.above) for array in each.values()]
        moved = sum(array.nbytes for array in given) + self.source_gradient.nbytes
        plans = [plan for layer in self.layers() for plan in layer.plans(device, gradients=gradients)]
        return moved * (1 + gradients), sum(plan.flops for plan in plans)

    def plans(self, device: vkrnn.Device, *, gradients: bool) -> list[vkrnn.Plan]:
        """Return the plan of a cell's forward call and, if wanted, that of the gradients."""
        given = {**self.given, "device": device}
        forward = vkrnn.plan(getattr(vkrnn, self.cell), **given, descriptor=self.descriptor(training=gradients))
        if not gradients:
            return [forward]
        state = np.empty(self.source_gradient.shape, self.source_gradient.dtype)
        z_state = np.empty((*state.shape[:2], GATES[self.cell] * state.shape[2]), state.dtype)
        back = vkrnn.plan(
            getattr(vkrnn, f"{self.cell}_gradients"),
            **given,
            source_gradient=state,
            **{name: z_state if result == "z_state" else state for name, result in TAKEN[self.cell].items()},
            descriptor=self.descriptor(),
        )
        return [forward, back]


def named_gradients(results: vkrnn.Results, layer: int = 0) -> dict[str, Any]:
    """Return gradients by names that collide neither with those of the forward results nor with other layers'."""
    named = results._asdict().items()
    return {gradient_name(name, layer): array for name, array in named if not (layer and name == "source")}


def gradient_name(argument: str, layer: int = 0) -> str:
    """Return the name of the gradient of a layer's argument."""
    return f"gradient of {argument}{f' of layer {layer}' if layer else ''}"


def on_vkrnn(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    """Return vkrnn on this device: a function's call, or for a stack a network's."""
    return _contender("vkrnn", arrays, device, gradients=gradients)


def on_vkrnn_with_weights_there(arrays: Arrays, device: vkrnn.Device) -> Contender:
    """Return vkrnn's forward call with weights that stay on the device from call to call, or a frozen network's."""
    return _contender(WEIGHTS_THERE, arrays.with_weights_on(device), device, gradients=False)


def _calls(
    arrays: Arrays, device: vkrnn.Device, *, training: bool, frozen: bool
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return the forward call, and that of the gradients with its result; a stack's are a network's."""
    if arrays.above:
        network = arrays.network(device, frozen=frozen)
        forward: Callable[[], Any] = partial(network.forward, arrays.given["source"], training=training)
        return forward, lambda result: network.gradients(result, arrays.source_gradient)
    forward = partial(arrays.forward, vkrnn, training=training, device=device)
    return forward, partial(arrays.gradients, vkrnn, device=device)


def _contender(name: str, arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    forward, back = _calls(arrays, device, training=gradients, frozen=name == WEIGHTS_THERE)

    def run() -> dict[str, float]:
        totals = {HOST_CALL: 0.0, DEVICE: 0.0}

        def call(work: Callable[[], Any], awaited: str) -> Any:
            start = time.perf_counter()
            results = work()
            if isinstance(array := getattr(results, awaited), vkrnn.Array):
                array.numpy()
            totals[HOST_CALL] += time.perf_counter() - start
            totals[DEVICE] += device.statistics()["last_device_seconds"]
            return results

        result = call(forward, "output")
        if gradients:
            call(lambda: back(result), "source")
        return totals

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        result = forward()
        found = {"output": result.output}
        if gradients:
            gradient = back(result)
            found |= {gradient_name("source"): gradient.source}
            for number, layer in enumerate(gradient.layers if arrays.above else [gradient]):
                found |= named_gradients(layer, number)
        return {name: np.asarray(array) for name, array in found.items()}

    return Contender(name, device.name, device.driver_version, run, answer)
