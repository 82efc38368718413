"""PyTorch's nn.RNN, nn.LSTM and nn.GRU with the same weights: on the CPU, or through cuDNN on a GPU."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .common import HOST_CALL, THREADS, Contender, cpu_name, timed
from .problems import Arrays, gradient_name


def find_torch() -> ModuleType | None:
    """Return PyTorch, or nothing where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def require_torch(program: str) -> Any:
    """Return PyTorch, or end a benchmark that compares with nothing else."""
    torch = find_torch()
    if torch is None:
        raise SystemExit(f"{program} needs PyTorch")
    return torch


def least_times(
    torch: Any,
    ways: Mapping[str, Callable[[], list[Any]]],
    near: float,
    rounds: int,
    calls: int = 1,
    *,
    device: str,
    enqueued: bool = False,
) -> dict[str, float]:
    """Return the least seconds of a call in each way, in turns of some calls after a round that does not count.

    Exits if the results of a way differ from those of the first. If `enqueued`, the host's time counts alone.
    """
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    expected = next(iter(ways.values()))()
    for name, way in ways.items():
        # A gradient may be zeros, as that of recurrent weights where every step resets.
        pairs = [(float((a - b).abs().max()), float(b.abs().max())) for a, b in zip(way(), expected, strict=True)]
        errors = [apart / (largest or 1.0) for apart, largest in pairs]
        if not all(error < near for error in errors):
            first = next(iter(ways))
            raise SystemExit(f"{name} differs from {first} by {max(errors):.1e} of the largest value")
    times = dict.fromkeys(ways, float("inf"))
    for round_, (name, way) in itertools.product(range(rounds + 1), ways.items()):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            way()
        if not enqueued:
            wait()
        if round_:
            times[name] = min(times[name], (time.perf_counter() - start) / calls)
    return times


class TorchCell:
    """A cell or a stack as a PyTorch module with its weights, input and initial states on the CPU or a GPU."""

    def __init__(self, torch: Any, arrays: Arrays, where: str, dtype: str = "float32", *, gradients: bool) -> None:
        """Copy everything there."""
        self._torch, self._arrays, self.gradients = torch, arrays, gradients
        self._layers = 1 + len(arrays.above)
        self._to = {"device": torch.device(where), "dtype": getattr(torch, dtype)}
        self.module = _module(torch, arrays).to(**self._to).train(gradients)
        self.source = self.tensor(arrays.given["source"]).requires_grad_(gradients)
        self.upstream = self.tensor(arrays.source_gradient)
        names = [name for name in ("init_state", "init_cell") if name in arrays.given]
        self.states = [self.tensor(arrays.given[name][None]).requires_grad_(gradients) for name in names]

    def tensor(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy that is there."""
        wide = (
            array if array.dtype == np.float32 else array.astype(np.float32)
        )  # torch does not accept NumPy's bfloat16
        return self._torch.from_numpy(wide).to(**self._to)

    def work(self) -> list[Any]:
        """Return the output and, if wanted, the gradients of the input, the weights, the biases, the states."""
        states = (tuple(self.states) if len(self.states) > 1 else self.states[0],) if self.states else ()
        if not self.gradients:
            with self._torch.no_grad():
                return [self.module(self.source, *states)[0]]
        output = self.module(self.source, *states)[0]
        wanted = [self.source, *self.module.parameters(), *self.states]
        return [output.detach(), *self._torch.autograd.grad(output, wanted, self.upstream)]

    def answer(self) -> dict[str, npt.NDArray[Any]]:
        """Do the work once and return its results by vkrnn's names."""
        tensors = (tensor.float() if tensor.dtype.itemsize == 2 else tensor for tensor in self.work())
        output, *back = (tensor.cpu().numpy() for tensor in tensors)
        if not self.gradients:
            return {"output": output}
        d_source, d_weights, d_states = back[0], back[1 : 1 + 4 * self._layers], back[1 + 4 * self._layers :]
        found = {"output": output, gradient_name("source"): d_source}
        for layer in range(self._layers):
            d_weight_ih, d_weight_hh, d_bias_ih, d_bias_hh = d_weights[4 * layer : 4 * layer + 4]
            named = {"recurrent_weight": d_weight_hh, "input_weight": d_weight_ih, "bias": d_bias_ih}
            if self._arrays.cell == "gru":
                named["secondary_bias"] = d_bias_hh[2 * self._arrays.sizes.H :]
            found |= {gradient_name(name, layer): array for name, array in named.items()}
        states = zip(("init_state", "init_cell"), d_states, strict=False)
        return found | {gradient_name(name): state[0] for name, state in states}


def on_torch(torch: Any, arrays: Arrays, *, gradients: bool) -> Contender:
    """Return PyTorch on the CPU as a contender."""
    torch.set_num_threads(THREADS)
    cell = TorchCell(torch, arrays, "cpu", gradients=gradients)
    libraries = f"{THREADS} threads"
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        libraries += f", ONEDNN_MAX_CPU_ISA={os.environ['ONEDNN_MAX_CPU_ISA']}"
    driver = f"torch {torch.__version__}, {libraries}"
    return Contender("torch", cpu_name(), driver, lambda: {HOST_CALL: timed(cell.work)}, cell.answer)


def _module(torch: Any, arrays: Arrays) -> Any:
    classes = {"single_gate_rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    module = classes[arrays.cell](arrays.sizes.I, arrays.sizes.H, 1 + len(arrays.above))
    weights = []
    for given in (arrays.given, *arrays.above):
        bias_hh = np.zeros_like(given["bias"])
        if arrays.cell == "gru":
            bias_hh[2 * arrays.sizes.H :] = given["secondary_bias"]
        weights += [*(given[name] for name in ("input_weight", "recurrent_weight", "bias")), bias_hh]
    with torch.no_grad():
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight.astype(np.float32)))
    return module
