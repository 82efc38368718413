"""`vkrnn.torch.SLSTM`: the function over layers and directions, with torch's forms of inputs and states."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

import vkrnn
from oracles import require

torch = require("torch")
import vkrnn.torch  # noqa: E402
from vkrnn.torch import SLSTM  # noqa: E402

T, N, I, H = 6, 3, 5, 4
STATES = ("init_state", "init_cell", "init_normalizer", "init_stabilizer")
SEQUENCES = ("output", "cell_output", "normalizer_output", "stabilizer_output")


def module_of(**options: Any) -> Any:
    torch.manual_seed(1)
    return SLSTM(I, H, dtype=torch.float64, **options)


def source_of(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_layers_and_directions_are_calls_of_the_function() -> None:
    """Also with an option, without a bias, and from given states, which the results continue."""
    module = module_of(num_layers=2, bidirectional=True, bias=False, forget_gate="exponential", clip=0.75)
    start = source_of(4, 4, N, H)
    start[2] = 1 + start[2].abs()
    x = source_of(T, N, I)
    output, last = module(x, tuple(start))
    wanted, found_last = x, []
    for layer in range(2):
        weights = [
            [getattr(module, f"{name}_l{layer}{suffix}") for suffix in ("", "_reverse")]
            for name in ("weight_hh", "weight_ih")
        ]
        states = {
            name: torch.cat(list(state[2 * layer : 2 * layer + 2]), -1)
            for name, state in zip(STATES, start, strict=True)
        }
        descriptor = vkrnn.SLSTMDescriptor(bidirectional=True, produce_cell=True, forget_gate="exponential", clip=0.75)
        found = vkrnn.torch.slstm(
            wanted, torch.stack(weights[0]), input_weight=torch.cat(weights[1]), **states, descriptor=descriptor
        )
        wanted = found.output
        ends = [getattr(found, name) for name in SEQUENCES]
        found_last.append([part for end in ends for part in (end[-1, :, :H], end[0, :, H:])])
    assert torch.equal(output, wanted)
    for number, state in enumerate(last):
        own = [found_last[layer][2 * number + side] for layer in range(2) for side in range(2)]
        assert torch.equal(state, torch.stack(own))
    one = module_of(num_layers=2)
    whole, end = one(x)
    first, middle = one(x[:2])
    second, again = one(x[2:], middle)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=1e-13)
    for a, b in zip(end, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_heads() -> None:
    """They are blocks on the diagonals of the weights."""
    module, x = SLSTM(6, H, heads=2, input_heads=2, dtype=torch.float64), source_of(T, N, 6)
    dense = SLSTM(6, H, dtype=torch.float64)
    with torch.no_grad():
        dense.bias_l0.copy_(module.bias_l0)
        for name in ("weight_ih_l0", "weight_hh_l0"):
            blocks, whole = getattr(module, name), getattr(dense, name)
            whole.zero_()
            for head in range(2):
                columns = slice(head * blocks.shape[1], (head + 1) * blocks.shape[1])
                rows = whole.view(4, 2, H // 2, -1)[:, head]
                rows[..., columns] = blocks.view(4, 2, H // 2, -1)[:, head]
    torch.testing.assert_close(module(x)[0], dense(x)[0], rtol=0, atol=1e-13)


def test_forms_of_the_input() -> None:
    """Batch first, without a batch, and packed sequences in any order."""
    module, x = module_of(bidirectional=True), source_of(T, N, I)
    output, last = module(x)
    first = copy.deepcopy(module)
    first.batch_first = True
    assert torch.equal(first(x.transpose(0, 1))[0], output.transpose(0, 1))
    alone, state = module(x[:, 1])
    torch.testing.assert_close(alone, output[:, 1], rtol=0, atol=1e-13)
    torch.testing.assert_close(module(x[:, 1], state)[0], module(x[:, 1:2], [s[:, None] for s in state])[0][:, 0])
    lengths = [2, 6, 4]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    found, ends = module(packed)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(found)
    for row, length in enumerate(lengths):
        own, of_row = module(x[:length, row : row + 1])
        torch.testing.assert_close(padded[:length, row], own[:, 0], rtol=0, atol=1e-13)
        for a, b in zip(ends, of_row, strict=True):
            torch.testing.assert_close(a[:, row], b[:, 0], rtol=0, atol=1e-13)
    assert all(state.shape == (2, N, H) for state in last)


def test_training() -> None:
    """Gradients reach all parameters and states, and agree with finite differences; dropout is for training only."""
    module = module_of(num_layers=2, dropout=0.5, recurrent_dropout=0.5)
    x = source_of(3, 2, I)
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])
    module.train()
    assert not torch.equal(module(x)[0], module(x)[0])
    module.eval()
    names = [name for name, _ in module.named_parameters()]
    start = source_of(4, 2, 2, H)
    start[2] = 1 + start[2].abs()

    def results(*values: Any) -> Any:
        *weights, states = values
        output, last = torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x, tuple(states)))
        return output, *last

    given = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]
    assert torch.autograd.gradcheck(results, [*given, start.requires_grad_()])


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_compiles_into_one_graph() -> None:
    module, x = module_of(num_layers=2), source_of(T, N, I)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x)[0], module(x)[0])


def test_autocast() -> None:
    """Within torch.autocast, the module computes in its parameters' dtype, whatever dtype its arguments have."""
    module = SLSTM(I, H, num_layers=2, learn_initial_state=True)
    x, reset = source_of(T, N, I).bfloat16(), torch.rand(T, N).bfloat16()
    starts = source_of(2, N, H).bfloat16()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [6, 4, 2])
    with torch.autocast("cpu", torch.bfloat16):
        output, last = module(x, reset=reset, reset_state=starts)
        of_packed = module(packed)[0]
    wanted, wanted_last = module(x.float(), reset=reset.float(), reset_state=starts.float())
    assert torch.equal(output, wanted)
    assert all(torch.equal(one, other) for one, other in zip(last, wanted_last, strict=True))
    assert of_packed.data.dtype == torch.float32
    output.sum().backward()
    assert module.weight_hh_l1.grad.dtype == torch.float32
    with pytest.raises(TypeError, match="dtype"):
        module(x)


def test_fx() -> None:
    """torch.fx records it as one call, with what is given."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = SLSTM(I, H)

        def forward(self, x: Any, starts: Any) -> Any:
            return self.recurrent(x)[0] + self.recurrent(x, reset=starts)[0]

    model, x, starts = Model(), torch.rand(T, N, I), torch.rand(T, N) < 0.3
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["recurrent"] * 2
    torch.testing.assert_close(traced(x, starts), model(x, starts))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_script_and_revert() -> None:
    """torch.jit.script refuses a model with the module. `revert` leaves the module alone, and says so."""
    model = torch.nn.ModuleDict({"a": SLSTM(I, H), "b": vkrnn.torch.GRU(I, H)})
    refused = "[vkrnn.torch.SLSTM] torch.jit.script: PyTorch has no sLSTM; use torch.jit.trace under torch.no_grad()"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(refused)}$"):
        torch.jit.script(model)
    expected = "[vkrnn.torch.revert] left to vkrnn, because PyTorch has no sLSTM: SLSTM at 'a'"
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$") as shown:
        vkrnn.torch.revert(model)
    assert shown[0].filename == __file__
    assert type(model["a"]) is SLSTM
    assert type(model["b"]) is torch.nn.GRU
    with torch.no_grad():
        torch.jit.trace(model["a"], (torch.zeros(T, N, I),))


def test_repr_and_state_dict() -> None:
    module = module_of(num_layers=2, bidirectional=True, clip=0.5)
    assert repr(module) == "vkrnn.torch.SLSTM(5, 4, num_layers=2, bidirectional=True, clip=0.5)"
    assert {name: tuple(value.shape) for name, value in module.state_dict().items() if "_l1" in name} == {
        f"{name}_l1{suffix}": shape
        for name, shape in (("weight_ih", (16, 8)), ("weight_hh", (16, 4)), ("bias", (16,)))
        for suffix in ("", "_reverse")
    }
    other = module_of(num_layers=2, bidirectional=True, clip=0.5)
    other.reset_parameters()
    other.load_state_dict(module.state_dict())
    x = source_of(T, N, I)
    assert torch.equal(other(x)[0], module(x)[0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_layers": 0}, ValueError, "num_layers: expected at least 1, got 0"),
        ({"num_layers": 1.5}, TypeError, "num_layers: expected an int, got 1.5 (float)"),
        ({"dropout": 2}, ValueError, "dropout: expected a number from 0 to 1, got 2"),
        ({"recurrent_dropout": "x"}, TypeError, "recurrent_dropout: expected a number, got 'x' (str)"),
        ({"forget_gate": "tanh"}, ValueError, "forget_gate: expected 'sigmoid' or 'exponential', got 'tanh'"),
        ({"heads": 3}, ValueError, "heads: expected a divisor of hidden_size = 4, got 3"),
        ({"input_heads": 2}, ValueError, "input_heads: expected a divisor of input_size = 5, got 2"),
        ({"clip": -1}, ValueError, "clip: expected 0 (no clipping) or a positive threshold, got -1.0"),
    ],
)
def test_errors_of_the_constructor(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'[vkrnn.torch.SLSTM] {message}')}$"):
        SLSTM(I, H, **options)


def test_errors_of_calls() -> None:
    module, x = SLSTM(I, H), torch.zeros(T, N, I)
    zero = torch.zeros(1, N, H)
    for given, error, message in (
        ((x.numpy(),), TypeError, "input: expected a torch.Tensor or a PackedSequence, got ndarray"),
        ((x[0, 0],), ValueError, "input: expected 2 or 3 axes, got 1"),
        ((x, zero), TypeError, "hx: expected a tuple of tensors (h, c, n, m), got Tensor"),
        ((x, (zero, zero)), ValueError, "hx: expected 4 tensors (h, c, n, m), got 2"),
        (
            (x, (zero, zero, zero, zero[:, :, :2])),
            ValueError,
            "hx: expected shape [L D, N, H] with L D = 1 and H = 4, got [1, 3, 2]",
        ),
        (
            (x[0], (zero,) * 4),
            ValueError,
            "hx: expected shape [L D, H] with L D = 1 and H = 4, got [1, 3, 4]",
        ),
    ):
        with pytest.raises(error, match=f"^{re.escape(f'[vkrnn.torch.SLSTM] {message}')}$"):
            module(*given)


def step_by_step(module: Any, x: Any, factors: Any, state: Any, starts: Any) -> tuple[Any, Any]:
    """Call the module for each step. `factors` are [T, N, 1] or [T, N, H]; `state` and `starts` have a list each."""
    outputs = []
    for features, factor in zip(x, factors, strict=True):
        h, c, n, m = state
        h, c = (factor * each + (1 - factor) * start for each, start in zip((h, c), starts, strict=True))
        output, state = module(features[None], (h, c, factor * n, torch.where(factor == 0, 0.0, m)))
        outputs.append(output)
    return torch.cat(outputs), state


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(T, N), (T, N, 1), (T, N, H)])
def test_resets_are_those_of_a_loop(shape: tuple[int, ...], *, batch_first: bool) -> None:
    """Outputs, last states and gradients, with zeros and ones among the factors."""
    module = module_of()
    x, reset = source_of(T, N, I).requires_grad_(), source_of(*shape).sigmoid()
    reset[1], reset[3:5] = 0, 1
    reset.requires_grad_()
    state, starts = source_of(4, 1, N, H), source_of(2, 1, N, H)
    state[2] = 1 + state[2].abs()
    for leaf in (state, starts):
        leaf.requires_grad_()
    wanted, ends = step_by_step(module, x, reset if len(shape) == 3 else reset[..., None], list(state), starts)
    module.batch_first = batch_first
    own, given = (each.transpose(0, 1) if batch_first else each for each in (x, reset))
    output, last = module(own, tuple(state), reset=given, reset_state=starts[0], reset_cell=starts[1])
    output = output.transpose(0, 1) if batch_first else output
    weigh = source_of(T, N, H)
    leaves = [x, reset, state, starts, *module.parameters()]
    found, right = (
        torch.autograd.grad((one * weigh).sum() + sum(each.square().sum() for each in others), leaves)
        for one, others in ((output, last), (wanted, ends))
    )
    pairs = [(output, wanted), *zip(last, ends, strict=True), *zip(found, right, strict=True)]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_documents_are_calls_of_their_own() -> None:
    """In both directions of all layers, with `document_starts`."""
    module, lengths = module_of(num_layers=2, bidirectional=True), [3, 1, 4]
    x = source_of(sum(lengths), 1, I)
    starts = vkrnn.convert.document_starts([0, *torch.tensor(lengths).cumsum(0).tolist()])
    found, _ = module(x, reset=torch.from_numpy(starts))
    wanted = torch.cat([module(part)[0] for part in x.split(lengths)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


def test_errors_of_resets() -> None:
    """The module's own, and one of the function."""
    module, x, reset = module_of(num_layers=2), source_of(T, N, I), torch.ones(T, N, dtype=torch.float64)
    wrong: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"reset": True}, TypeError, "[vkrnn.torch.SLSTM] reset: expected a torch.Tensor, got bool"),
        (
            {"reset": reset, "reset_cell": source_of(1, N, H)},
            ValueError,
            "[vkrnn.torch.SLSTM] reset_cell: expected shape [L D, N, H] with L D = 2 and H = 4, got [1, 3, 4]",
        ),
        (
            {"reset_state": source_of(2, N, H)},
            ValueError,
            "[slstm] reset_state: expected a reset beside it, got none",
        ),
    )
    for given, error, message in wrong:
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            module(x, **given)
