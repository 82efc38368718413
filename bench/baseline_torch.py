"""PyTorch's nn.RNN, nn.LSTM and nn.GRU with the same weights: on the CPU, or through cuDNN in strict float32."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .common import DEVICE, HOST_CALL, THREADS, Contender, cpu_name
from .problems import Arrays


def find_torch() -> ModuleType | None:
    """Return PyTorch, or nothing where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def on_torch(torch: Any, arrays: Arrays, *, cuda: bool, gradients: bool, threads: int = THREADS) -> Contender:
    """Return PyTorch as a contender. Tensors are resident; on CUDA the time is that between two events."""
    torch.set_num_threads(threads)
    # Otherwise products are rounded to 10 bits of mantissa.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    where = torch.device("cuda" if cuda else "cpu")
    module = _module(torch, arrays).to(where)
    source = torch.from_numpy(arrays.given["source"]).to(where).requires_grad_(gradients)
    upstream = torch.from_numpy(arrays.source_gradient).to(where)

    def work() -> list[Any]:
        with torch.set_grad_enabled(gradients):
            output = module(source)[0]
        if not gradients:
            return [output]
        return [output.detach(), *torch.autograd.grad(output, [source, *module.parameters()], upstream)]

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        output, *back = (tensor.cpu().numpy() for tensor in work())
        if not gradients:
            return {"output": output}
        d_source, d_weight_ih, d_weight_hh, d_bias_ih, d_bias_hh = back
        named = {"source": d_source, "recurrent_weight": d_weight_hh, "input_weight": d_weight_ih, "bias": d_bias_ih}
        if arrays.cell == "gru":
            named["secondary_bias"] = d_bias_hh[2 * arrays.sizes.H :]
        return {"output": output} | {f"gradient of {name}": array for name, array in named.items()}

    if cuda:
        name, libraries = torch.cuda.get_device_name(), f"cuDNN {torch.backends.cudnn.version()}"
    else:
        name, libraries = cpu_name(), f"{threads} threads"
        if "ONEDNN_MAX_CPU_ISA" in os.environ:
            libraries += f", ONEDNN_MAX_CPU_ISA={os.environ['ONEDNN_MAX_CPU_ISA']}"
    run = _between_events(torch, work) if cuda else _on_the_clock(work)
    return Contender("torch", name, f"torch {torch.__version__}, {libraries}", run, answer)


def _module(torch: Any, arrays: Arrays) -> Any:
    classes = {"single_gate_rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    module = classes[arrays.cell](arrays.sizes.I, arrays.sizes.H)
    bias_hh = np.zeros_like(arrays.given["bias"])
    if arrays.cell == "gru":
        bias_hh[2 * arrays.sizes.H :] = arrays.given["secondary_bias"]
    weights = (*(arrays.given[name] for name in ("input_weight", "recurrent_weight", "bias")), bias_hh)
    with torch.no_grad():
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))
    return module


def _on_the_clock(work: Callable[[], object]) -> Callable[[], Mapping[str, float]]:
    def run() -> dict[str, float]:
        start = time.perf_counter()
        work()
        return {HOST_CALL: time.perf_counter() - start}

    return run


def _between_events(torch: Any, work: Callable[[], object]) -> Callable[[], Mapping[str, float]]:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> dict[str, float]:
        first.record()
        work()
        last.record()
        last.synchronize()
        return {DEVICE: first.elapsed_time(last) * 1e-3}

    return run
