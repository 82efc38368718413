"""vkrnn.torch under PyTorch's compiler, tracers, exporters and quantization: each works or says what to do."""

from __future__ import annotations

import io
import logging
import re
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

    def __init__(self, kind: str) -> None:
        """Create the modules."""
        super().__init__()
        self.recurrent = getattr(torch.nn, kind)(I, H)
        self.head = torch.nn.Linear(H, 2)

    def forward(self, x: Any) -> Any:
        """Run the modules."""
        return self.head(self.recurrent(x)[0])


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    """Reset the compiler after the test, so that it forgets which functions it skipped."""
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_dynamo")
def test_dynamo_traces_only_forward() -> None:
    """Without `allow_rnn`, the compiler traces only what PyTorch's GRU has."""
    frames = []
    for convert in (False, True):
        model = Model("GRU")
        if convert:
            ours.convert(model)

        def run(x: Any, model: Any = model) -> Any:
            y = model(x + 1)
            y.sum().backward()
            return y.detach()

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        x = torch.rand(T, N, I)
        assert torch.equal(torch.compile(run, backend="eager")(x), run(x))
        frames.append(torch._dynamo.utils.counters["frames"]["total"])
    assert frames[1] <= frames[0] + 1


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
    """Scripting raises an error that says what to do, and leaves the model unchanged."""
    model = ours.convert(torch.nn.Sequential(getattr(torch.nn, kind)(I, H)))
    expected = (
        f"[vkrnn.torch.{kind}] torch.jit.script: TorchScript compiles PyTorch's own modules only; call "
        "vkrnn.torch.revert(model) before, or use torch.jit.trace"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(expected)}$"):
        torch.jit.script(model)
    assert type(model[0]) is getattr(ours, kind)
    assert torch.jit.script(ours.revert(model))(torch.rand(T, N, I))[0].shape == (T, N, H)


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
