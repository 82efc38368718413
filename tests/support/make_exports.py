"""Writes the programs and pickles that tests/integration/test_exports.py loads. It is run with an old vkrnn.

The files in tests/data were written by vkrnn of commit 5f1cefc, before networks: `python tests/support/make_exports.py
tests/data` with PyTorch 2.13 and JAX 0.10. Each has the versions, and for each program its bytes, inputs and results.
"""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import torch
from torch.export.experimental import _export_forward_backward

import vkrnn
import vkrnn.jax
import vkrnn.mpsgraph
import vkrnn.torch

T, N, I, H = 3, 2, 3, 4
LENGTHS = (3, 2)
FUNCTIONS = {"LSTM": "lstm", "GRU": "gru", "RNN": "single_gate_rnn"}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "LSTM": {"peephole": True, "output_peephole_new_cell": True, "input_gate_activation": "hard_sigmoid", "clip": 0.9},
    "GRU": {"reset_after": False, "flip_z": True, "reset_gate_activation": "hard_sigmoid", "clip": 0.9},
    "RNN": {"activation": "sigmoid", "clip": 0.9},
}
DESCRIPTORS = {
    "LSTM": vkrnn.LSTMDescriptor(bidirectional=True, training=True, forget_gate_last=True, clip=0.8),
    "GRU": vkrnn.GRUDescriptor(bidirectional=True, training=True, reset_after=True),
    "RNN": vkrnn.SingleGateRNNDescriptor(bidirectional=True, training=True, activation="tanh"),
}


def arguments(kind: str, dtype: Any) -> dict[str, Any]:
    """Return every argument of the function but the lengths."""
    rng, G = np.random.default_rng(5), GATES[kind]
    own = {"LSTM": {"init_cell": (N, 2 * H), "peephole": (2, G * H)}, "GRU": {"secondary_bias": (2 * H,)}}
    shapes = {
        "source": (T, N, I),
        "recurrent_weight": (2, G * H, H),
        "input_weight": (2 * G * H, I),
        "bias": (2 * G * H,),
        "init_state": (N, 2 * H),
        "mask": (T, N, 2 * H),
        **own.get(kind, {}),
    }
    return {name: rng.uniform(-1, 1, shape).astype(dtype) for name, shape in shapes.items()}


def squares(results: Any, lengths: Any, where: Any) -> Any:
    """Return a number of an output and of the cells after each direction's last step, the only ones with gradients."""
    found = (results.output**2).sum()
    if hasattr(results, "cell_output"):
        cells = results.cell_output
        found = found + (cells[lengths - 1, where.arange(N), :H] ** 2).sum() + (cells[0, :, H:] ** 2).sum()
    return found


class Program(torch.nn.Module):
    """A layer, two bidirectional layers with options, and the function of a cell."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        of = getattr(vkrnn.torch, kind)
        self.plain = of(I, H, dtype=torch.float64)
        self.deep = of(H, H, 2, bidirectional=True, batch_first=True, dtype=torch.float64, **OPTIONS[kind])
        self.weights = torch.nn.ParameterDict(
            {name: torch.from_numpy(array) for name, array in arguments(kind, np.float64).items() if name != "source"}
        )
        self.weights["mask"].requires_grad_(requires_grad=False)

    def forward(self, source: Any, lengths: Any) -> Any:
        """Return the results of the modules, and those of the function."""
        hidden, first = self.plain(source)
        deep, last = self.deep(hidden.transpose(0, 1))
        states = [state for each in (first, last) for state in (each if isinstance(each, tuple) else (each,))]
        function = getattr(vkrnn.torch, FUNCTIONS[self.kind])
        results = function(source, **self.weights, lengths=lengths, descriptor=DESCRIPTORS[self.kind])
        return (hidden, deep, *states), results


class Loss(Program):
    """A number that depends on all of them."""

    def forward(self, source: Any, lengths: Any) -> Any:
        """Return the sum of squares."""
        own, results = super().forward(source, lengths)
        return sum(each.square().sum() for each in own) + squares(results, lengths, torch)


class Outputs(Program):
    """All results in a flat tuple."""

    def forward(self, source: Any, lengths: Any) -> Any:
        """Return them."""
        own, results = super().forward(source, lengths)
        return *own, *results


def torch_programs() -> dict[str, Any]:
    """Return forward programs, and programs of forward and backward pass together."""
    written = {"version": np.array(torch.__version__), "lengths": np.array(LENGTHS)}
    for kind in FUNCTIONS:
        source = torch.from_numpy(arguments(kind, np.float64)["source"])
        for name, module in ((kind, Outputs(kind)), (f"{kind} with gradients", Loss(kind))):
            exported = torch.export.export(module, (source, torch.tensor(LENGTHS)))
            if isinstance(module, Loss):
                exported = _export_forward_backward(exported)
            for node in exported.graph.nodes:
                node.meta = {what: value for what, value in node.meta.items() if what == "val"}  # no stack traces
            file = io.BytesIO()
            torch.export.save(exported, file)
            inputs = (*exported.parameters(), source, torch.tensor(LENGTHS))
            results = torch.fx.Interpreter(exported.graph_module).run(*inputs)
            written |= {f"{name}: source": source.numpy(), f"{name}: program": np.frombuffer(file.getvalue(), np.uint8)}
            written |= {f"{name}: {number}": result.detach().numpy() for number, result in enumerate(results)}
    return written


def jax_programs() -> dict[str, Any]:
    """Return programs of all results, and of a number with its gradients."""
    written = {"version": np.array(jax.__version__), "lengths": np.array(LENGTHS, np.int32)}
    for kind, function in FUNCTIONS.items():
        given = arguments(kind, np.float32)
        mask = given.pop("mask")

        def forward(given: Any, mask: Any, lengths: Any, kind: str = kind, function: str = function) -> Any:
            call = getattr(vkrnn.jax, function)
            return call(**given, mask=mask, lengths=lengths, descriptor=DESCRIPTORS[kind])

        def loss(given: Any, mask: Any, lengths: Any, forward: Any = forward) -> Any:
            return squares(forward(given, mask, lengths), lengths, jax.numpy)

        def outputs(*given: Any, forward: Any = forward) -> Any:
            return tuple(forward(*given))

        for name, program in ((kind, outputs), (f"{kind} with gradients", jax.value_and_grad(loss))):
            call = given, mask, written["lengths"]
            exported = jax.export.export(
                jax.jit(program),
                platforms=("cpu", "cuda"),
                disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("vkrnn")],
            )(*call)
            written |= {f"{name}: program": np.frombuffer(exported.serialize(), np.uint8), f"{name}: mask": mask}
            written |= {f"{name}: given {argument}": array for argument, array in given.items()}
            results = jax.tree.leaves(exported.call(*call))
            written |= {f"{name}: {number}": np.asarray(result) for number, result in enumerate(results)}
    return written


def pickles() -> dict[str, Any]:
    """Return pickles of what can be pickled, and what `repr` says of it; of modules also states and results."""
    source, written = arguments("RNN", np.float64)["source"], {}
    mpsgraph = vkrnn.mpsgraph.MPSGraphGRUDescriptor()
    mpsgraph.resetAfter = True
    kept: dict[str, Any] = {"activation": vkrnn.Activation.TANH, "MPSGraph's descriptor": mpsgraph}
    for kind, descriptor in DESCRIPTORS.items():
        results = getattr(vkrnn, FUNCTIONS[kind])(**arguments(kind, np.float64), descriptor=descriptor)
        module = getattr(vkrnn.torch, kind)(I, H, bidirectional=True, dtype=torch.float64, **OPTIONS[kind])
        kept |= {f"{kind} descriptor": descriptor, f"{kind} results": results}
        kept |= {f"{kind} layers": vkrnn.convert.from_torch(module)}
        for name, what in ((f"{kind} module", module), (f"{kind} state", module.state_dict())):
            file = io.BytesIO()
            torch.save(what, file)
            written[f"{name}: torch"] = np.frombuffer(file.getvalue(), np.uint8)
        written |= {f"{kind} module: repr": np.array(repr(module)), f"{kind} module: source": source}
        written |= {f"{kind} module: output": module(torch.from_numpy(source))[0].detach().numpy()}
    for name, what in kept.items():
        written |= {
            f"{name}: pickle": np.frombuffer(pickle.dumps(what), np.uint8),
            f"{name}: repr": np.array(repr(what)),
        }
    return written


if __name__ == "__main__":
    torch.manual_seed(0)
    with vkrnn.Device("cpu ("):
        for file, programs in (("torch", torch_programs), ("jax", jax_programs), ("pickles", pickles)):
            np.savez_compressed(Path(sys.argv[1]) / f"exports_{file}.npz", **programs())
