"""The recurrent operations for benchmarks: arrays, right answers, and vkrnn as a contender."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


@functools.cache
def descriptor(cell: str, *, training: bool = False, **flags: Any) -> Any:
    """Return a descriptor, made only once as in a program."""
    return DESCRIPTORS[cell](training=training, **flags)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name; ml_dtypes has bfloat16."""
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Arrays:
    """The arguments of one cell, initialized as in PyTorch's modules, and the gradient of the output."""

    cell: str
    sizes: Sizes
    given: Mapping[str, Any]  # NumPy or device arrays
    source_gradient: Any
    flags: Mapping[str, Any] = field(default_factory=dict)  # options of the descriptor

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

        given = {
            "source": normal(sizes.T, sizes.N, sizes.I),
            "recurrent_weight": weight(*both, gated, sizes.H),
            "input_weight": weight((1 + bidirectional) * gated, sizes.I),
            "bias": weight((1 + bidirectional) * gated),
        }
        if cell == "gru":
            given["secondary_bias"] = weight(hidden)
        source_gradient = normal(sizes.T, sizes.N, hidden)
        if states:
            given |= {name: normal(sizes.N, hidden) for name in ("init_state", "init_cell")[: 1 + (cell == "lstm")]}
        return Arrays(cell, sizes, given, source_gradient, {"bidirectional": True} if bidirectional else {})

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
        given = {
            name: array if name in ("source", "lengths") else vkrnn.asarray(array, device=device)
            for name, array in self.given.items()
        }
        return replace(self, given=given)

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

    def answer(self, module: Any, *, gradients: bool, **options: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the output, and the gradients if wanted, by name. Before gradients, it is a training call."""
        forward = self.forward(module, training=gradients, **options)
        back = named_gradients(self.gradients(module, forward, **options)) if gradients else {}
        return {name: np.asarray(array) for name, array in ({"output": forward.output} | back).items()}

    def problem(self, device: vkrnn.Device, contenders: Sequence[Contender], *, gradients: bool) -> Problem:
        """Return the forward call, with or without the gradients, as a problem for these contenders."""
        moved, flops = self.cost(device, gradients=gradients)
        return Problem(
            op=f"{self.cell} + gradients" if gradients else self.cell,
            workload=str(self.sizes),
            bytes=moved,
            flops=flops,
            ideal=self.answer(reference, gradients=gradients),
            contenders=contenders,
        )

    def cost(self, device: vkrnn.Device, *, gradients: bool) -> tuple[int, float]:
        """Return the bytes of arguments and results, and the flops of the matrix products."""
        moved = sum(array.nbytes for array in self.given.values()) + self.source_gradient.nbytes
        return moved * (1 + gradients), sum(plan.flops for plan in self.plans(device, gradients=gradients))

    def plans(self, device: vkrnn.Device, *, gradients: bool) -> list[vkrnn.Plan]:
        """Return the plan of the forward call and, if wanted, that of the gradients."""
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


def named_gradients(results: vkrnn.Results) -> dict[str, Any]:
    """Return gradients by names that do not collide with those of the forward results."""
    return {f"gradient of {name}": array for name, array in results._asdict().items()}


def on_vkrnn(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    """Return vkrnn on this device."""
    return _contender("vkrnn", arrays, device, gradients=gradients)


def on_vkrnn_with_weights_there(arrays: Arrays, device: vkrnn.Device) -> Contender:
    """Return vkrnn's forward call with weights that stay on the device from call to call."""
    return _contender(WEIGHTS_THERE, arrays.with_weights_on(device), device, gradients=False)


def _contender(name: str, arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    def run() -> dict[str, float]:
        totals = {HOST_CALL: 0.0, DEVICE: 0.0}

        def call(work: Callable[[], vkrnn.Results]) -> vkrnn.Results:
            start = time.perf_counter()
            results = work()
            if isinstance(results[0], vkrnn.Array):
                results[0].numpy()
            totals[HOST_CALL] += time.perf_counter() - start
            totals[DEVICE] += device.statistics()["last_device_seconds"]
            return results

        forward = call(lambda: arrays.forward(vkrnn, training=gradients, device=device))
        if gradients:
            call(lambda: arrays.gradients(vkrnn, forward, device=device))
        return totals

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        return arrays.answer(vkrnn, gradients=gradients, device=device)

    return Contender(name, device.name, device.driver_version, run, answer)
