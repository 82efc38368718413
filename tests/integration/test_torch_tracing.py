"""vkrnn.torch under PyTorch's compiler, tracers, exporters and quantization: each works or says what to do."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from comparison import scaled_error
from oracles import require
from tolerances import FLOAT32

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402

# Warnings of PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore")
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
T, N, I, H = 4, 3, 2, 5


class Model(torch.nn.Module):  # type: ignore[misc]
    """A recurrent module followed by a linear one."""

    def __init__(self, kind: str, **options: Any) -> None:
        """Create the modules."""
        super().__init__()
        self.recurrent = getattr(torch.nn, kind)(I, H, **options)
        self.head = torch.nn.Linear(H * (1 + self.recurrent.bidirectional), 2)

    def forward(self, x: Any) -> Any:
        """Run the modules."""
        return self.head(self.recurrent(x)[0])


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    """Reset the compiler after the test, so that it forgets which functions it skipped."""
    yield
    torch._dynamo.reset()


def _operators(graph: Any) -> list[str]:
    """Return the names of the operators of vkrnn in a graph."""
    return [str(node.target) for node in graph.graph.nodes if str(node.target).startswith("vkrnn.")]


@every_kind
@pytest.mark.usefixtures("_fresh_dynamo")
def test_compile(kind: str) -> None:
    """A whole model compiles with no flag set; its recurrent network is one operator."""
    model, x, graphs = ours.convert(Model(kind, num_layers=3, bidirectional=True)), torch.rand(T, N, I), []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    assert not torch._dynamo.config.allow_rnn
    assert torch.equal(torch.compile(model, backend=backend, fullgraph=True)(x), model(x))
    assert [_operators(graph) for graph in graphs] == [["vkrnn.network.default"]]
    assert not torch._dynamo.config.allow_rnn


@every_kind
@pytest.mark.usefixtures("_fresh_dynamo")
def test_compile_leaves_torch_alone(kind: str) -> None:
    """The compiler still refuses PyTorch's own modules."""
    compiled = torch.compile(Model(kind), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="RNN, GRU,"):
        compiled(torch.rand(T, N, I))


@pytest.mark.usefixtures("_fresh_dynamo")
def test_compile_keeps_the_class() -> None:
    """Code that asks for PyTorch's class gets the same answer from the compiler as without it."""
    module, x = ours.LSTM(I, H), torch.rand(T, N, I)

    def run(x: Any) -> Any:
        output, last = module(x)
        return output if not isinstance(module, torch.nn.LSTM) else last[1]

    assert torch.equal(torch.compile(run, backend="eager", fullgraph=True)(x), run(x))
    assert run(x).shape == (1, N, H)


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compile_packed(*, fullgraph: bool) -> None:
    """A compiled model takes packed sequences, without a break."""
    module = ours.GRU(I, H)
    packed = torch.nn.utils.rnn.pack_sequence([torch.rand(T, I), torch.rand(T - 1, I)])
    compiled = torch.compile(lambda given: module(given)[0].data + 1, backend="eager", fullgraph=fullgraph)
    found = compiled(packed)
    assert torch.equal(found, module(packed)[0].data + 1)


@pytest.mark.parametrize("first", ["torch._dynamo", "vkrnn.torch"])
def test_compile_after_import(first: str) -> None:
    """It does not matter whether the compiler or vkrnn is imported first. vkrnn does not import the compiler."""
    program = f"""
import sys
import torch, {first}, vkrnn.torch
assert ("torch._dynamo" in sys.modules) == ({first!r} == "torch._dynamo")
module, x = vkrnn.torch.LSTM(2, 3), torch.rand(4, 1, 2)
assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(x)[0], module(x)[0])
assert len([each for each in sys.meta_path if type(each).__module__.startswith("vkrnn")]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@every_kind
def test_jit_trace(kind: str) -> None:
    """The trace has PyTorch's operators, so it works without vkrnn."""
    model, other = ours.convert(Model(kind)), torch.rand(T + 2, N + 1, I)
    written = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, (torch.rand(T, N, I),)), written)
    written.seek(0)
    loaded = torch.jit.load(written)
    assert scaled_error(loaded(other).detach().numpy(), model(other).detach().numpy()) < FLOAT32
    assert "vkrnn::" not in str(loaded.inlined_graph)


@every_kind
def test_jit_script(kind: str) -> None:
    """The scripted model has PyTorch's module on the same parameters. PyTorch puts it into the model, too."""
    model = ours.convert(torch.nn.Sequential(getattr(torch.nn, kind)(I, H)))
    module, x = model[0], torch.rand(T, N, I)
    expected = (
        f"[vkrnn.torch.{kind}] torch.jit.script: a model that contains this module now has PyTorch's in its place, as "
        "the scripted one has; call vkrnn.torch.convert(model) again"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$"):
        scripted = torch.jit.script(model)
    torch.testing.assert_close(scripted(x), module(x))
    assert type(model[0]) is getattr(torch.nn, kind)
    assert type(module) is getattr(ours, kind)
    assert model[0].weight_hh_l0 is module.weight_hh_l0
    assert type(ours.convert(model)[0]) is getattr(ours, kind)
    cell = getattr(ours, f"{kind}Cell")(I, H)
    torch.testing.assert_close(torch.jit.script(cell)(x[0]), cell(x[0]))
    assert type(cell) is getattr(ours, f"{kind}Cell")


@every_kind
def test_fx(kind: str) -> None:
    """As with PyTorch's modules, torch.fx records a module as one call and cannot trace it alone."""
    model, x = ours.convert(Model(kind)), torch.rand(T, N, I)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["recurrent", "head"]
    assert torch.equal(traced(x), model(x))
    alone = f"[vkrnn.torch.{kind}] torch.fx: expected a model that contains the module, got the module itself"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(alone)}$"):
        torch.fx.symbolic_trace(model.recurrent)


@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx(*, dynamo: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A model exported to ONNX contains ONNX's operators."""
    onnx = require("onnx")
    require("onnxscript")
    caplog.set_level(logging.CRITICAL)
    written = io.BytesIO()
    torch.onnx.export(ours.convert(Model("GRU")), (torch.rand(T, N, I),), written, dynamo=dynamo, verbose=False)
    nodes = onnx.load_from_string(written.getvalue()).graph.node
    assert "GRU" in {node.op_type for node in nodes}
    assert {node.domain for node in nodes} == {""}


@every_kind
def test_quantization(kind: str) -> None:
    """Quantization leaves a module unchanged, with a warning that says what to do."""
    model, x = ours.convert(Model(kind)), torch.rand(T, N, I)
    expected = (
        f"[vkrnn.torch.{kind}] quantization: PyTorch leaves this module in floating point; call "
        "vkrnn.torch.revert(model) before it quantizes the model"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$"):
        quantized = torch.ao.quantization.quantize_dynamic(model)
    assert type(quantized.recurrent) is getattr(ours, kind)
    assert quantized(x).shape == (T, N, 2)
