"""The recurrent operations as benchmarks see them: arrays, the right answer, and vkrnn as a contender."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn import reference

from .common import DEVICE, HOST_CALL, SUBMIT, Contender, Floats, Problem, Sizes

GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}

WEIGHTS_THERE = "vkrnn, weights there"  # vkrnn with weights that stay on the device

# The variants that PyTorch's nn.LSTM, nn.GRU and nn.RNN compute.
DESCRIPTORS: dict[str, Callable[..., Any]] = {
    "single_gate_rnn": lambda **flags: vkrnn.SingleGateRNNDescriptor(activation="tanh", **flags),
    "lstm": vkrnn.LSTMDescriptor,
    "gru": lambda **flags: vkrnn.GRUDescriptor(reset_after=True, reset_gate_first=True, **flags),
}

# What the gradients take besides the forward call's arguments: parameter, and the forward result that goes there.
TAKEN = {
    "single_gate_rnn": {"z_state": "z_state"},
    "lstm": {"z_state": "z_state", "cell_output_fwd": "cell_output"},
    "gru": {"z_state": "z_state", "output_fwd": "output"},
}


@functools.cache
def descriptor(cell: str, *, training: bool = False) -> Any:
    """Return a descriptor, made once as in a program."""
    return DESCRIPTORS[cell](training=training)


@dataclass(frozen=True)
class Arrays:
    """The arguments of one cell, drawn as PyTorch initializes its modules, and the gradient of the output."""

    cell: str
    sizes: Sizes
    given: Mapping[str, Any]  # NumPy arrays, or arrays on a device
    source_gradient: Any

    @staticmethod
    def draw(cell: str, sizes: Sizes) -> Arrays:
        """Draw them; the same ones every time."""
        rng = np.random.default_rng([sizes.T, sizes.N, sizes.I, sizes.H])
        gated, bound = GATES[cell] * sizes.H, sizes.H**-0.5

        def weight(*shape: int) -> Floats:
            return rng.uniform(-bound, bound, shape).astype(np.float32)

        given = {
            "source": rng.standard_normal((sizes.T, sizes.N, sizes.I), np.float32),
            "recurrent_weight": weight(gated, sizes.H),
            "input_weight": weight(gated, sizes.I),
            "bias": weight(gated),
        }
        if cell == "gru":
            given["secondary_bias"] = weight(sizes.H)
        return Arrays(cell, sizes, given, rng.standard_normal((sizes.T, sizes.N, sizes.H), np.float32))

    def on(self, device: vkrnn.Device) -> Arrays:
        """Return the same, copied to the device."""
        given = {name: vkrnn.asarray(array, device=device) for name, array in self.given.items()}
        return Arrays(self.cell, self.sizes, given, vkrnn.asarray(self.source_gradient, device=device))

    def with_weights_on(self, device: vkrnn.Device) -> Arrays:
        """Return the same, all but the source copied to the device."""
        on_device = self.on(device)
        return Arrays(
            self.cell, self.sizes, {**on_device.given, "source": self.given["source"]}, on_device.source_gradient
        )

    def forward(self, module: Any, *, training: bool = False, **options: Any) -> vkrnn.Results:
        """Call the cell's function of `module`, which is `vkrnn` or `vkrnn.reference`."""
        function = getattr(module, self.cell)
        results: vkrnn.Results = function(**self.given, descriptor=descriptor(self.cell, training=training), **options)
        return results

    def gradients(self, module: Any, forward: vkrnn.Results, **options: Any) -> vkrnn.Results:
        """Call the cell's gradients of `module` with what its forward call returned."""
        results: vkrnn.Results = getattr(module, f"{self.cell}_gradients")(
            **self.given,
            source_gradient=self.source_gradient,
            **{name: getattr(forward, result) for name, result in TAKEN[self.cell].items()},
            descriptor=descriptor(self.cell),
            **options,
        )
        return results

    def answer(self, module: Any, *, gradients: bool, **options: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the output, and the gradients if wanted, by name. A call before gradients is a training one."""
        forward = self.forward(module, training=gradients, **options)
        back = named_gradients(self.gradients(module, forward, **options)) if gradients else {}
        return {"output": np.asarray(forward.output), **back}

    def problem(self, device: vkrnn.Device, contenders: Sequence[Contender], *, gradients: bool) -> Problem:
        """Return the forward call, or that and the gradients, as a problem for those contenders."""
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
        """Return the bytes that go in and out, and the flops of the matrix products."""
        spare = np.zeros((self.sizes.T, self.sizes.N, self.sizes.H), np.float32)
        moved = sum(array.nbytes for array in self.given.values())
        plan = vkrnn.plan(getattr(vkrnn, self.cell), **self.given, descriptor=descriptor(self.cell), device=device)
        flops = plan.flops
        if not gradients:
            return moved + spare.nbytes, flops
        z_state = np.zeros((*spare.shape[:2], GATES[self.cell] * self.sizes.H), np.float32)
        kept = {name: z_state if result == "z_state" else spare for name, result in TAKEN[self.cell].items()}
        back = vkrnn.plan(
            getattr(vkrnn, f"{self.cell}_gradients"),
            **self.given,
            source_gradient=spare,
            **kept,
            descriptor=descriptor(self.cell),
            device=device,
        )
        return 2 * moved + 2 * spare.nbytes, flops + back.flops


def named_gradients(results: vkrnn.Results) -> dict[str, Any]:
    """Return gradients by names that do not collide with those of the forward results."""
    return {f"gradient of {name}": array for name, array in results._asdict().items()}


def on_vkrnn(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    """Return vkrnn on that device."""
    return _contender("vkrnn", arrays, device, gradients=gradients)


def on_vkrnn_with_weights_there(arrays: Arrays, device: vkrnn.Device) -> Contender:
    """Return vkrnn's forward call with weights that stay on the device from call to call."""
    return _contender(WEIGHTS_THERE, arrays.with_weights_on(device), device, gradients=False)


def _contender(name: str, arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    def run() -> dict[str, float]:
        totals = {HOST_CALL: 0.0, SUBMIT: 0.0, DEVICE: 0.0}

        def call(work: Callable[[], vkrnn.Results]) -> vkrnn.Results:
            start = time.perf_counter()
            results = work()
            if isinstance(results[0], vkrnn.Array):
                results[0].numpy()
            totals[HOST_CALL] += time.perf_counter() - start
            counted = device.statistics()
            totals[SUBMIT] += counted["last_host_seconds"]
            totals[DEVICE] += counted["last_device_seconds"]
            return results

        forward = call(lambda: arrays.forward(vkrnn, training=gradients, device=device))
        if gradients:
            call(lambda: arrays.gradients(vkrnn, forward, device=device))
        return totals

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        return arrays.answer(vkrnn, gradients=gradients, device=device)

    return Contender(name, device.name, device.driver_version, run, answer)
