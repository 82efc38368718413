"""vkrnn.torch.LSTMCell, GRUCell and RNNCell against PyTorch's cells and against the modules."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from typing import Any

import pytest

from oracles import require
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import vkrnn  # noqa: E402
import vkrnn.torch as ours  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("torch_seed"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
N, I, H = 3, 2, 5
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "LSTM": [
        {"peephole": True, "output_peephole_new_cell": True, "clip": 0.5},
        {"input_gate_activation": "hard_sigmoid", "activation": "relu", "bias": False},
        {"heads": 2, "input_heads": 2, "gradient_clip": 0.1},
    ],
    "GRU": [{"reset_after": False, "flip_z": True}, {"heads": 2, "update_gate_activation": "hard_sigmoid"}],
    "RNN": [{"activation": "sigmoid", "clip": 0.5}, {"heads": 2, "nonlinearity": "relu"}],
}
every_option = pytest.mark.parametrize(
    ("kind", "options"), [(kind, each) for kind, many in OPTIONS.items() for each in many]
)


def drawn(*shape: int) -> Any:
    """Return a tensor that requires gradients."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def states_of(kind: str, rows: tuple[int, ...] = (N,), units: int = H) -> list[Any]:
    return [drawn(*rows, units) for _ in range(2 if kind == "LSTM" else 1)]


def as_hx(kind: str, states: list[Any]) -> Any:
    return tuple(states) if kind == "LSTM" else states[0]


def results_of(cell: Any, x: Any, hx: Any, inputs: list[Any]) -> list[Any]:
    """Return the next states, and the gradients of the inputs and parameters."""
    found = cell(x, hx)
    found = list(found) if isinstance(found, tuple) else [found]
    total = sum((number + each.cos()).square().sum() for number, each in enumerate(found))
    return [*found, *torch.autograd.grad(total, [*inputs, *cell.parameters()])]


def agree(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TORCH_IN_FLOAT64)


@every_kind
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(N,), (), (1,)])
@pytest.mark.parametrize("backend", ["auto", "vkrnn", "torch"])
def test_as_torch(kind: str, rows: tuple[int, ...], backend: Any, *, bias: bool) -> None:
    """A converted cell gives PyTorch's states and gradients, the first time and when the call is repeated."""
    theirs = getattr(torch.nn, f"{kind}Cell")(I, H, bias=bias, dtype=torch.float64)
    cell = ours.convert(copy.deepcopy(theirs), backend=backend)
    assert type(cell) is getattr(ours, f"{kind}Cell")
    for _ in range(3):
        x, states = drawn(*rows, I), states_of(kind, rows)
        hx = as_hx(kind, states)
        agree(results_of(cell, x, hx, [x, *states]), results_of(theirs, x, hx, [x, *states]))
        agree(results_of(cell, x, None, [x]), results_of(theirs, x, None, [x]))
        with torch.no_grad():
            found, wanted = ([one(x, hx), one(x)] for one in (cell, theirs))
        torch.testing.assert_close(found, wanted, rtol=0, atol=TORCH_IN_FLOAT64)
    assert type(ours.revert(cell)) is getattr(torch.nn, f"{kind}Cell")


def module_like(kind: str, cell: Any, options: dict[str, Any]) -> Any:
    """Return a module for sequences with the cell's parameters."""
    module = getattr(ours, kind)(cell.input_size, cell.hidden_size, dtype=torch.float64, **options)
    module.load_state_dict({f"{name}_l0": each for name, each in cell.state_dict().items()})
    return module


@every_option
def test_options(kind: str, options: dict[str, Any]) -> None:
    """Steps of a cell with options are those of the module, with the same gradients."""
    T, units, features = 3, 6, 4
    cell = getattr(ours, f"{kind}Cell")(features, units, dtype=torch.float64, **options)
    module = module_like(kind, cell, options)
    x, states = drawn(T, N, features), states_of(kind, units=units)
    hx, rows = as_hx(kind, states), []
    for _ in range(2):
        hx, rows = as_hx(kind, states), []
        for each in x:
            hx = cell(each, hx)
            rows.append(hx[0] if kind == "LSTM" else hx)
        stacked = torch.stack(rows)
        found = [stacked, *torch.autograd.grad(stacked.cos().sum(), [x, *states, *cell.parameters()])]
        given = as_hx(kind, [each.unsqueeze(0) for each in states])
        output, _ = module(x, given)
        parameters = dict(module.named_parameters())
        own = [parameters[f"{name}_l0"] for name, _ in cell.named_parameters()]
        agree(found, [output, *torch.autograd.grad(output.cos().sum(), [x, *states, *own])])
    assert copy.deepcopy(cell).descriptor == cell.descriptor == pickle.loads(pickle.dumps(cell)).descriptor


@every_option
def test_gradients(kind: str, options: dict[str, Any]) -> None:
    """Gradients are those of finite differences, also if the state is one tensor twice."""
    cell = getattr(ours, f"{kind}Cell")(4, 6, dtype=torch.float64, **{**options, "gradient_clip": None})
    x, state = drawn(N, 4), drawn(N, 6)

    def function(x: Any, state: Any, *_: Any) -> Any:
        return cell(x, (state, state) if kind == "LSTM" else state)

    assert torch.autograd.gradcheck(function, (x, state, *cell.parameters()))


@every_kind
def test_mask(kind: str) -> None:
    """The mask multiplies the state in the recurrent product, as the mask of the functions does."""
    cell = getattr(ours, f"{kind}Cell")(I, H, dtype=torch.float64)
    x, states = drawn(N, I), states_of(kind)
    mask = torch.bernoulli(torch.full((N, H), 0.5, dtype=torch.float64)) * 2
    found = cell(x, as_hx(kind, states), mask=mask)
    names = "init_state", "init_cell"
    function = {"LSTM": ours.lstm, "GRU": ours.gru, "RNN": ours.single_gate_rnn}[kind]
    bias, more = cell.bias_ih + cell.bias_hh, {}
    if kind == "GRU":
        bias = torch.cat([bias[: 2 * H], cell.bias_ih[2 * H :]])
        more["secondary_bias"] = cell.bias_hh[2 * H :]
    wanted = function(
        x.unsqueeze(0),
        cell.weight_hh,
        input_weight=cell.weight_ih,
        bias=bias,
        mask=mask.unsqueeze(0),
        descriptor=cell.descriptor,
        **dict(zip(names, states, strict=False)),
        **more,
    )
    agree([found[0] if kind == "LSTM" else found], [wanted.output[0]])


@every_kind
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(kind: str, backend: str) -> None:
    cell = getattr(ours, f"{kind}Cell")(I, H, dtype=torch.float64)
    x, states = drawn(N, I), states_of(kind)
    hx = as_hx(kind, states)
    compiled = torch.compile(cell, fullgraph=True, backend=backend)
    agree(results_of(compiled, x, hx, [x, *states]), results_of(cell, x, hx, [x, *states]))
    torch._dynamo.reset()


@every_kind
def test_transforms(kind: str) -> None:
    """Vmap, export, fx and jit.trace take a cell."""
    cell = getattr(ours, f"{kind}Cell")(I, H, dtype=torch.float64)
    many, states = drawn(4, N, I).detach(), [each.detach() for each in states_of(kind)]
    hx = as_hx(kind, states)
    for _ in range(2):
        wanted = [cell(x, hx) for x in many]
        found = torch.vmap(lambda x: cell(x, hx))(many)
        for number, each in enumerate(wanted):
            own = tuple(one[number] for one in found) if kind == "LSTM" else found[number]
            torch.testing.assert_close(own, each, rtol=0, atol=TORCH_IN_FLOAT64)
    program = torch.export.export(cell, (many[0], hx)).module()
    traced = torch.jit.trace(cell, (many[0], hx))
    with torch.no_grad():  # after a call that is kept
        wanted_h = [cell(each, hx) for each in many[:3]][2]
        made = make_fx(lambda x: cell(x, hx))(many[0])
        torch.testing.assert_close(made(many[2]), wanted_h, rtol=0, atol=TORCH_IN_FLOAT64)
    recorded = torch.fx.symbolic_trace(torch.nn.Sequential(cell))
    for one, given in ((program, (many[0], hx)), (traced, (many[0], hx))):
        torch.testing.assert_close(one(*given), wanted[0], rtol=0, atol=TORCH_IN_FLOAT64)
    torch.testing.assert_close(recorded(many[0]), cell(many[0]), rtol=0, atol=TORCH_IN_FLOAT64)


@every_kind
def test_meta_tensors(kind: str) -> None:
    """Results have shapes, as those of PyTorch's cells."""
    cell = getattr(ours, f"{kind}Cell")(I, H).to("meta")
    found = cell(torch.empty(N, I, device="meta"))
    for each in found if kind == "LSTM" else [found]:
        assert each.is_meta
        assert each.shape == (N, H)


def test_changes_are_seen() -> None:
    """A repeated call computes with the parameters and options of that moment."""
    cell, x = ours.GRUCell(I, H, backend="vkrnn"), torch.randn(N, I)
    with torch.no_grad():
        before = [cell(x) for _ in range(3)]
        cell.weight_ih.mul_(2)
        changed = cell(x)
        assert not torch.equal(changed, before[2])
        theirs = ours.revert(copy.deepcopy(cell))
        torch.testing.assert_close(changed, theirs(x))
    cell.weight_hh = torch.nn.Parameter(torch.zeros(3 * H, H))
    torch.testing.assert_close(cell(x), ours.revert(copy.deepcopy(cell))(x))


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3])
def test_changed_weights(kind: str, rows: int, dtype: str) -> None:
    """A step without gradients never uses packed weights that are out of date, however they were changed."""
    cell = getattr(ours, f"{kind}Cell")(I, H, dtype=getattr(torch, dtype), backend="vkrnn")
    x, states = (each.detach().to(cell.weight_ih.dtype) for each in (drawn(rows, I), drawn(2, rows, H)))
    hx, old = as_hx(kind, [*states]), cell.weight_hh.detach().clone()
    changes = (
        lambda: None,
        lambda: cell.weight_hh.zero_(),
        lambda: cell.weight_hh.copy_(old),
        lambda: setattr(cell.weight_ih, "data", torch.randn_like(cell.weight_ih)),
        lambda: setattr(cell, "weight_hh", torch.nn.Parameter(torch.randn_like(old))),
        lambda: cell.bias_ih.numpy().fill(1) if dtype != "bfloat16" else cell.bias_ih.fill_(1),
        lambda: setattr(cell.weight_hh, "data", torch.randn_like(old.T).T),  # not contiguous
    )
    near = {"rtol": 0, "atol": 0.05 if dtype == "bfloat16" else 1e-5}
    for mode, change in itertools.product((torch.no_grad, torch.inference_mode), changes):
        with torch.no_grad():
            change()
            theirs = ours.revert(copy.deepcopy(cell))
        with mode():
            found = [cell(x, hx) for _ in range(5)]
            wanted = theirs(x, hx)
        for each in found:
            torch.testing.assert_close(each, wanted, **near)


@every_kind
def test_without_exchange_interface(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch before 2.10 does not have the functions by which the core makes tensors."""
    monkeypatch.setattr("vkrnn.torch._steps._EXCHANGE", None)
    test_as_torch(kind, (N,), "vkrnn", bias=True)
    test_changed_weights(kind, 1, "float32")


@every_kind
def test_saved_tensors_hooks(kind: str) -> None:
    """Gradients of a repeated step are right if hooks restore saved tensors in another layout."""
    cell = getattr(ours, f"{kind}Cell")(I, H, dtype=torch.float64, backend="vkrnn")
    theirs = ours.revert(copy.deepcopy(cell))
    for _ in range(3):
        x, states = drawn(N, I), states_of(kind)
        hx = as_hx(kind, states)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda one: one.transpose(0, -1).contiguous(), lambda one: one.transpose(0, -1)
        ):
            found = results_of(cell, x, hx, [x, *states])
        agree(found, results_of(theirs, x, hx, [x, *states]))


@every_kind
def test_results_are_new(kind: str) -> None:
    """Results keep their numbers when later calls are made and the cell is gone, and may be changed."""
    cell = getattr(ours, f"{kind}Cell")(I, H, backend="vkrnn")
    x, states = torch.randn(4, 1, I), torch.randn(2, 1, H)
    hx = as_hx(kind, [*states])
    with torch.no_grad():
        found = [cell(each, hx) for each in x]
        wanted = [ours.revert(copy.deepcopy(cell))(each, hx) for each in x]
        del cell
        torch.testing.assert_close(found, wanted)
        last = found[-1][0] if kind == "LSTM" else found[-1]
        assert torch.equal(last.clone().add_(1), last.add_(1))


@pytest.mark.parametrize("backend", ["native", "vulkan", "cuda"])
def test_output_changed_in_place(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GRU's new state may be changed before the backward pass, as PyTorch's may."""
    found_device = next((str(each.index) for each in vkrnn.devices() if each.backend == backend), None)
    if found_device is None:
        pytest.skip(f"no {backend} device")
    monkeypatch.setenv("VKRNN_DEVICE", found_device)
    cell, x = ours.GRUCell(I, H, dtype=torch.float64, backend="vkrnn"), drawn(N, I)
    for _ in range(2):
        found = []
        for one in (cell, ours.revert(copy.deepcopy(cell))):
            h = one(x)
            h.mul_(2)
            found.append(torch.autograd.grad(h.sum(), [x, *one.parameters()]))
        agree(*map(list, found))


@every_kind
def test_errors(kind: str) -> None:
    """Mistakes are found with the shapes."""
    cell, name = getattr(ours, f"{kind}Cell")(I, H), f"{kind}Cell"
    x = torch.zeros(N, I)
    for given, hx, kind_of, message in (
        (x[0, 0], None, ValueError, f"{name}: Expected input to be 1D or 2D, got 0D instead"),
        (
            torch.zeros(40, I + 1),
            None,
            RuntimeError,
            f"input has inconsistent input_size: got {I + 1} expected {I}",
        ),
        (
            torch.zeros(40, I),
            as_hx(kind, [torch.zeros(40, H + 1)] * 2),
            RuntimeError,
            f"[vkrnn.torch.{name}] hx[0]: expected shape [40, {H}], got [40, {H + 1}]",
        ),
        ([1.0], None, TypeError, f"[vkrnn.torch.{name}] input: expected a torch.Tensor, got list"),
    ):
        with pytest.raises(kind_of, match=f"^{re.escape(message)}$"):
            cell(given, hx)
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.script: clip: "):
        torch.jit.script(getattr(ours, f"{kind}Cell")(I, H, clip=0.5))


def test_option_errors() -> None:
    for arguments, kind_of, message in (
        ({"heads": 2}, ValueError, "[vkrnn.torch.GRUCell] heads: expected a divisor of hidden_size = 5, got 2"),
        (
            {"clip": -1.0},
            ValueError,
            "[vkrnn.torch.GRUCell] clip: expected 0 (no clipping) or a positive threshold, got -1.0",
        ),
    ):
        with pytest.raises(kind_of) as raised:
            ours.GRUCell(I, H, **arguments)
        assert str(raised.value) == message
    cell = ours.LSTMCell(I, H, peephole=True)
    with pytest.raises(NotImplementedError) as refused:
        ours.revert(cell)
    assert str(refused.value) == "[vkrnn.torch.revert] peephole: torch.nn.LSTMCell supports only False, got True"
