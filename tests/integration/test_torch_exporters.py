"""Options of the modules in traces of torch.jit and in ONNX's models."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest

from comparison import scaled_error
from oracles import require
from tolerances import FLOAT32

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from torch_modules import LIVELY, H, I, lively, states  # noqa: E402

# Warnings of PyTorch.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
T, N = 4, 3
every_kind = pytest.mark.parametrize("kind", LIVELY)
SAME_GATES = {f"{gate}_gate_activation": "hard_sigmoid" for gate in ("input", "forget", "output")}
EXPORTED: dict[str, Any] = {
    "LSTM": lambda: ours.LSTM(
        I, H, 2, bidirectional=True, clip=0.3, cell_gate_activation="relu", activation="none", **SAME_GATES
    ),
    "hard_sigmoid": lambda: ours.LSTM(I, H, hard_sigmoid_alpha=0.3, hard_sigmoid_beta=0.4, **SAME_GATES),
    "plain": lambda: ours.LSTM(I, H, 2, bidirectional=True),
    "GRU": lambda: ours.GRU(I, H, 2, reset_after=False, bidirectional=True),
    "RNN": lambda: ours.RNN(I, H, activation="sigmoid", bias=False),
    "projection": lambda: ours.LSTM(I, H, 2, proj_size=2, bidirectional=True),
    "learnt": lambda: ours.GRU(I, H, 2, learn_initial_state=True),
}


class Model(torch.nn.Module):  # type: ignore[misc]
    """A recurrent module, from states that a linear one makes of the first step."""

    def __init__(self, module: Any, *, with_states: bool) -> None:
        """Keep the module, and draw parameters that begin as zeros."""
        super().__init__()
        self.recurrent, self.with_states = module, with_states
        layers = module.num_layers * (1 + module.bidirectional)
        self.layers, self.widths = layers, (module.hidden_size,) * (1 + (module.mode == "LSTM"))
        self.first = torch.nn.Linear(I, layers * module.hidden_size)
        for name, parameter in self.named_parameters():
            if "init_" in name:
                torch.nn.init.uniform_(parameter)

    def forward(self, x: Any) -> Any:
        """Return the output and the last states."""
        hx: Any = None
        if self.with_states:
            state = self.first(x[0]).unflatten(-1, (self.layers, -1)).transpose(0, 1)
            hx = (state, -state) if len(self.widths) == 2 else state
        output, last = self.recurrent(x, hx)
        return output, *states(last)


def exported(model: Any, way: str) -> bytes:
    """Return a model as ONNX's bytes, for any number of steps."""
    require("onnxscript")
    written, x = io.BytesIO(), torch.rand(T, N, I)
    if way == "TorchScript":
        torch.onnx.export(model, (x,), written, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "T"}})
        return written.getvalue()
    shapes = ({0: torch.export.Dim("T", min=2, max=99)},)
    if way == "program":
        given, options = torch.export.export(model, (x,), dynamic_shapes=shapes), {}
    else:
        given, options = model, {"dynamic_shapes": shapes}
    torch.onnx.export(given, (x,), written, dynamo=True, verbose=False, **options)
    return written.getvalue()


@pytest.mark.parametrize("way", ["TorchScript", "model", "program"])
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("with_states", [False, True])
def test_onnx(name: str, way: str, *, with_states: bool, caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime computes what the module does, for another number of steps, with ONNX's own nodes."""
    onnx, onnxruntime = require("onnx"), require("onnxruntime")
    if name in ("projection", "learnt") and with_states:
        pytest.skip("states of another width, or of its own")
    caplog.set_level(logging.CRITICAL)
    model = Model(EXPORTED[name](), with_states=with_states).eval()
    written = exported(model, way)
    nodes = onnx.load_from_string(written).graph.node
    assert {node.domain for node in nodes} == {""}
    assert model.recurrent.mode.split("_")[0] in {node.op_type for node in nodes}
    x = torch.rand(T + 3, N, I)
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for one, other in zip(found, model(x), strict=True):
        assert scaled_error(one, other.detach().numpy()) < FLOAT32


@pytest.mark.parametrize("way", ["TorchScript", "model", "program"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_onnx_of_a_module(kind: str, way: str) -> None:
    """A module can be the whole model."""
    onnxruntime = require("onnxruntime")
    module = getattr(ours, kind)(I, H).eval()
    session = onnxruntime.InferenceSession(exported(module, way), providers=["CPUExecutionProvider"])
    x = torch.rand(T + 3, N, I)
    output, *_ = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert scaled_error(output, module(x)[0].detach().numpy()) < FLOAT32


@pytest.mark.parametrize("bias", [True, False])
def test_onnx_peephole(*, bias: bool) -> None:
    """TorchScript's exporter writes peepholes that ONNX has, and says which it lacks."""
    onnxruntime = require("onnxruntime")
    model = Model(ours.LSTM(I, H, peephole=True, bidirectional=True), with_states=False).eval()
    message = "[vkrnn.torch] torch.onnx.export: peephole: ONNX"
    with pytest.raises(NotImplementedError) as refused:
        exported(model, "TorchScript")
    assert str(refused.value) == f"{message}'s output gate reads c[t]: set output_peephole_new_cell=True"
    module = ours.LSTM(I, H, bias=bias, peephole=True, bidirectional=True, output_peephole_new_cell=True)
    model = Model(module, with_states=False).eval()
    with pytest.raises(NotImplementedError) as refused:
        exported(model, "TorchScript")
    assert str(refused.value) == f"{message} has none for gate g: set peephole_l0[2H:3H] to zeros"
    with torch.no_grad():
        for peephole in (module.peephole_l0, module.peephole_l0_reverse):
            peephole[2 * H : 3 * H] = 0
    session = onnxruntime.InferenceSession(exported(model, "TorchScript"), providers=["CPUExecutionProvider"])
    x = torch.rand(T, N, I)
    for one, other in zip(session.run(None, {"x": x.numpy()}), model(x), strict=True):
        assert scaled_error(one, other.detach().numpy()) < FLOAT32
    for way in ("model", "program"):
        with pytest.raises(Exception, match="peephole: its numbers are not known to this exporter: use dynamo=False"):
            exported(model, way)


@pytest.mark.parametrize("way", ["TorchScript", "model"])
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("GRU", {"flip_z": True}, "flip_z: ONNX's GRU has no such option"),
        ("GRU", {"heads": 5}, "heads: ONNX's GRU has no heads"),
        ("RNN", {"zoneout": 0.5}, "zoneout: ONNX's nodes have nothing for it"),
        (
            "LSTM",
            {"forget_gate_activation": "tanh"},
            "forget_gate_activation: ONNX's LSTM has one function for this gate and input_gate_activation",
        ),
    ],
)
def test_what_onnx_lacks(kind: str, options: dict[str, Any], message: str, way: str) -> None:
    """An option that ONNX lacks is named."""
    model = Model(getattr(ours, kind)(I, H, **options), with_states=False).eval()
    with pytest.raises(Exception, match=f"torch.onnx.export: {message}"):
        exported(model, way)


class Function(torch.nn.Module):  # type: ignore[misc]
    """A model that calls a function instead of a module."""

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return ours.lstm(x, None, input_weight=torch.ones(4 * H, I)).output


@pytest.mark.parametrize("way", ["TorchScript", "model", "program"])
@pytest.mark.parametrize(
    ("cell", "model"),
    [
        ("slstm", lambda: ours.SLSTM(I, H)),
        ("slstm", lambda: torch.nn.Sequential(ours.SLSTM(I, H))),
        ("lstm", Function),
    ],
    ids=["module", "model", "function"],
)
def test_what_is_no_node_of_onnx(cell: str, model: Any, way: str) -> None:
    """An sLSTM and functions are refused by name."""
    with pytest.raises(Exception, match=f"torch.onnx.export: {cell}: only LSTM, GRU and RNN modules and cells can be"):
        exported(model().eval(), way)


def weights_of(module: Any) -> list[Any]:
    """Return the parameters in the order of their names."""
    return [parameter for _, parameter in sorted(module.named_parameters())]


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_jit_trace(kind: str, *, training: bool) -> None:
    """A trace of a module with options has vkrnn's operator, with gradients; it can be saved and loaded."""
    module = lively(kind, 2, bidirectional=True).train(training)
    traced, x = torch.jit.trace(module, (torch.rand(T, N, I),)), torch.rand(T + 2, N + 1, I)
    written = io.BytesIO()
    torch.jit.save(traced, written)
    written.seek(0)
    for each in (traced, torch.jit.load(written)):
        torch.testing.assert_close(each(x), module(x))
        assert "vkrnn::network" in str(each.inlined_graph)
        gradients = [torch.autograd.grad(one(x)[0].sum(), weights_of(one)) for one in (each, module)]
        torch.testing.assert_close(*gradients)


class Called(torch.nn.Module):  # type: ignore[misc]
    """A module whose second argument is one of the keyword arguments of another."""

    def __init__(self, module: Any, name: str) -> None:
        """Keep the module."""
        super().__init__()
        self.module, self.name = module, name

    def forward(self, x: Any, given: Any) -> Any:
        """Call the module."""
        return self.module(x, **{self.name: given})


@every_kind
def test_jit_trace_of_resets_and_cells(kind: str) -> None:
    """So have traces of calls with a reset, and of cells with options or a mask."""
    module, x, reset = getattr(ours, kind)(I, H), torch.rand(T, N, I), torch.rand(T, N) < 0.5
    traced = torch.jit.trace(Called(module, "reset"), (x, reset))
    torch.testing.assert_close(traced(x, ~reset), module(x, reset=~reset))
    cell, mask = getattr(ours, f"{kind}Cell")(I, H, clip=0.5), torch.rand(N, H)
    traced = torch.jit.trace(Called(cell, "mask"), (x[0], mask))
    torch.testing.assert_close(traced(x[1], 1 - mask), cell(x[1], mask=1 - mask))
