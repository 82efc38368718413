"""Resets in PyTorch's modules and functions, against loops over steps as reinforcement learning libraries have them."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import vkrnn
from resets import KINDS

torch = pytest.importorskip("torch")
pytest.importorskip("vkrnn.torch")

from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence  # noqa: E402 - after importorskip

import vkrnn.torch  # noqa: E402
from tolerances import TORCH_IN_FLOAT64  # noqa: E402

T, N, I, H = 6, 3, 5, 4
MODULES = ("LSTM", "GRU", "RNN")


def drawn(*shape: int, gradients: bool = True) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=gradients)


def drawn_reset(kind: str, width: int = H) -> Any:
    if kind == "bool":
        return torch.rand(T, N) < 0.4
    shape = {"rows": (T, N), "rows with an axis": (T, N, 1), "units": (T, N, width)}[kind]
    return torch.rand(shape, dtype=torch.float64, requires_grad=True)


def as_factors(reset: Any) -> Any:
    """Return a reset as factors [T, N, 1] or [T, N, H]."""
    factors = 1 - reset.double() if reset.dtype == torch.bool else reset
    return factors if factors.dim() == 3 else factors[..., None]


def cell_by_cell(module: Any, x: Any, reset: Any, states: Any, starts: Any) -> tuple[Any, list[Any]]:
    """Run PyTorch's cells step by step. `states` and `starts` have h, and c of an LSTM, for each layer."""
    functions = {"LSTM": torch._VF.lstm_cell, "GRU": torch._VF.gru_cell, "RNN_TANH": torch._VF.rnn_tanh_cell}
    outputs = []
    for features, factor in zip(x, as_factors(reset), strict=True):
        below = features
        for layer in range(module.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [getattr(module, f"{name}_l{layer}") for name in names]
            now = [factor * s[layer] + (1 - factor) * start[layer] for s, start in zip(states, starts, strict=True)]
            if module.mode == "LSTM":
                after = functions[module.mode](below, now, *weights)
            else:
                after = (functions[module.mode](below, *now, *weights),)
            states = [[*s[:layer], new, *s[layer + 1 :]] for s, new in zip(map(list, states), after, strict=True)]
            below = after[0]
        outputs.append(below)
    return torch.stack(outputs), [torch.stack(s) for s in states]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_modules(name: str, layers: int, kind: str, *, batch_first: bool) -> None:
    """Outputs, last states and all gradients are those of PyTorch's cells in a loop."""
    torch.manual_seed(0)
    module = getattr(vkrnn.torch, name)(I, H, layers, batch_first=batch_first, dtype=torch.float64)
    count = 2 if name == "LSTM" else 1
    x, reset = drawn(T, N, I), drawn_reset(kind)
    states, starts = ([drawn(layers, N, H) for _ in range(count)] for _ in range(2))

    def turned(array: Any) -> Any:
        return array.transpose(0, 1) if batch_first else array

    def call() -> tuple[Any, Any]:
        hx = tuple(states) if count == 2 else states[0]
        given = dict(zip(("reset_state", "reset_cell"), starts, strict=False))
        output, last = module(turned(x), hx, reset=turned(reset), **given)
        return turned(output), last if count == 2 else (last,)

    output, last = call()
    wanted, ends = cell_by_cell(module, x, reset, states, starts)
    leaves = [x, *states, *starts, *module.parameters(), *([reset] if kind != "bool" else [])]
    pairs = [(output, wanted), *zip(last, ends, strict=True)]
    upstream = torch.randn_like(output)
    found, right = (
        torch.autograd.grad((all_of[0] * upstream).sum() + sum(each.square().sum() for each in all_of[1:]), leaves)
        for all_of in zip(*pairs, strict=True)
    )
    for one, other in [*pairs, *zip(found, right, strict=True)]:
        assert (one - other).abs().max() <= TORCH_IN_FLOAT64 * (1 + other.abs().max())
    with torch.no_grad():
        assert torch.equal(call()[0], output)


def over_episodes(module: Any, x: Any, states: Any, episode_starts: Any) -> Any:
    """Do what stable-baselines3 and CleanRL do: a call for each step, on states that are zeroed first."""
    outputs = []
    for features, start in zip(x, episode_starts, strict=True):
        states = tuple((1.0 - start).view(1, -1, 1) * state for state in states)
        output, states = module(features[None], states)
        outputs.append(output)
    return torch.cat(outputs), states


def over_trajectories(module: Any, x: Any, is_init: Any) -> Any:
    """Do what TorchRL does: a call for each part of a row [N, T] between the steps in `is_init`, from zeros."""
    rows = []
    for row, marks in zip(x, is_init[..., 0], strict=True):
        edges = sorted({0, len(row), *torch.nonzero(marks)[:, 0].tolist()})
        parts = [module(row[None, first:end])[0][0] for first, end in itertools.pairwise(edges)]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def test_the_loops_of_libraries() -> None:
    """One call with a reset computes stable-baselines3's `episode_starts`, CleanRL's `done` and TorchRL's `is_init`."""
    torch.manual_seed(1)
    ours = vkrnn.torch.LSTM(I, H, 2, dtype=torch.float64)
    theirs = torch.nn.LSTM(I, H, 2, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    x, states = drawn(T, N, I), (drawn(2, N, H), drawn(2, N, H))
    starts = (torch.rand(T, N) < 0.4).double()
    for reset in (starts.bool(), 1 - starts):
        output, last = ours(x, states, reset=reset)
        wanted, ends = over_episodes(theirs, x, states, starts)
        for one, other in zip((output, *last), (wanted, *ends), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=TORCH_IN_FLOAT64)
    ours.batch_first = theirs.batch_first = True
    rows, is_init = drawn(N, T, I), torch.rand(N, T, 1) < 0.4
    torch.testing.assert_close(
        ours(rows, reset=is_init)[0], over_trajectories(theirs, rows, is_init), rtol=0, atol=TORCH_IN_FLOAT64
    )


@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_documents(*, bidirectional: bool) -> None:
    """`document_starts` separates documents, and in both directions a call equals one for each document."""
    module = vkrnn.torch.GRU(I, H, 2, bidirectional=bidirectional, dtype=torch.float64)
    lengths = [3, 1, 0, 4]
    cu_seqlens = np.cumsum([0, *lengths])
    x = drawn(sum(lengths), 1, I)
    reset = torch.from_numpy(vkrnn.convert.document_starts(cu_seqlens))
    found, _ = module(x, reset=reset)
    wanted = torch.cat([module(part)[0] for part in x.split(lengths) if len(part)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=TORCH_IN_FLOAT64)


def test_document_starts() -> None:
    """Empty documents begin where the next one does, and what follows the last one begins anew."""
    assert np.flatnonzero(vkrnn.convert.document_starts([0, 2, 2, 4], 6)).tolist() == [0, 2, 4]
    assert vkrnn.convert.document_starts(np.array([0, 0], np.int32)).shape == (0, 1)
    where = "[vkrnn.convert.document_starts]"
    for given, error, message in (
        (([0.0, 1.0],), TypeError, "cu_seqlens: expected an array of integers [documents + 1], got float64 [2]"),
        (([1, 2],), ValueError, "cu_seqlens: expected numbers from 0 on that do not decrease, got [1, 2]"),
        (([0, 2, 1],), ValueError, "cu_seqlens: expected numbers from 0 on that do not decrease, got [0, 2, 1]"),
        (([0, 3], 2), ValueError, "steps: expected at least 3, got 2"),
    ):
        with pytest.raises(error, match=f"^{re.escape(f'{where} {message}')}$"):
            vkrnn.convert.document_starts(*given)


@pytest.mark.parametrize("recurrent_dropout", [0.0, 0.5])  # with masks, packed sequences are padded
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", [*MODULES, "SLSTM"])
def test_packed_sequences(name: str, recurrent_dropout: float, *, bidirectional: bool) -> None:
    """A packed reset belongs to packed sequences: each row is as in a call of its own, and so is its gradient."""
    module = getattr(vkrnn.torch, name)(
        I, H, 2, bidirectional=bidirectional, recurrent_dropout=recurrent_dropout, dtype=torch.float64
    )
    lengths = [4, 6, 1]
    rows = [drawn(length, I, gradients=False) for length in lengths]
    resets = [torch.rand(length, dtype=torch.float64) for length in lengths]
    starts = drawn(2 * (1 + bidirectional), len(lengths), H)
    packed = pack_sequence(resets, enforce_sorted=False)
    packed = PackedSequence(packed.data.requires_grad_(), *packed[1:])
    torch.manual_seed(2)
    output, _ = module(pack_sequence(rows, enforce_sorted=False), reset=packed, reset_state=starts)
    (gradient,) = torch.autograd.grad(output.data.square().sum(), packed.data)
    if recurrent_dropout:  # its masks are drawn for the batch as a whole
        assert gradient.shape == packed.data.shape
        assert gradient.abs().sum() > 0
        return
    padded, _ = pad_packed_sequence(output)
    gradients, _ = pad_packed_sequence(PackedSequence(gradient, *packed[1:]))
    for n, length in enumerate(lengths):
        reset = resets[n][:, None].clone().requires_grad_()
        alone, _ = module(rows[n][:, None], reset=reset, reset_state=starts[:, n : n + 1].contiguous())
        torch.testing.assert_close(padded[:length, n], alone[:, 0], rtol=0, atol=TORCH_IN_FLOAT64)
        (own,) = torch.autograd.grad(alone.square().sum(), reset)
        torch.testing.assert_close(gradients[:length, n], own[:, 0], rtol=0, atol=TORCH_IN_FLOAT64)


@pytest.mark.parametrize("name", ["LSTM", "SLSTM"])
def test_one_sequence(name: str) -> None:
    """Without the batch axis, a reset is [T], and its start [L D, H]."""
    module, x = getattr(vkrnn.torch, name)(I, H, 2, dtype=torch.float64), drawn(T, I)
    reset, start = torch.rand(T) < 0.5, drawn(2, H)
    found, _ = module(x, reset=reset, reset_state=start)
    wanted, _ = module(x[:, None], reset=reset[:, None], reset_state=start[:, None])
    assert torch.equal(found, wanted[:, 0])


@pytest.mark.parametrize("kind", ["bool", "rows with an axis", "units"])
@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru", "slstm"])
def test_functions(cell: str, kind: str) -> None:
    """Gradients of the functions are derivatives, in both directions; torch.vmap maps resets, too."""
    gates = {"single_gate_rnn": 1, "lstm": 4, "gru": 3, "slstm": 4}[cell]
    given = {
        "source": drawn(T, N, I),
        "recurrent_weight": drawn(2, gates * H, H),
        "input_weight": drawn(2 * gates * H, I),
        "reset": drawn_reset(kind, 2 * H),
        "reset_state": drawn(T, N, 2 * H),
    }
    if gates == 4:
        given["reset_cell"] = drawn(N, 2 * H)
    kinds = {"single_gate_rnn": "SingleGateRNN", "lstm": "LSTM", "gru": "GRU", "slstm": "SLSTM"}
    options = {"activation": "tanh"} if gates == 1 else {}
    descriptor = getattr(vkrnn, f"{kinds[cell]}Descriptor")(bidirectional=True, **options)

    def output(*tensors: Any) -> Any:
        named = dict(zip(given, tensors, strict=True))
        return getattr(vkrnn.torch, cell)(**named, descriptor=descriptor).output

    assert torch.autograd.gradcheck(output, tuple(given.values()), fast_mode=True)
    many = torch.vmap(output)(*(torch.stack([each, each]) for each in given.values()))
    torch.testing.assert_close(many[1], output(*given.values()), rtol=0, atol=TORCH_IN_FLOAT64)


def test_compiled_exported_and_mapped() -> None:
    """torch.compile, torch.export, torch.vmap and torch.func.jacrev see a reset as any other argument."""
    module = vkrnn.torch.LSTM(I, H, 2, dtype=torch.float64)
    x, reset = drawn(T, N, I), torch.rand(T, N) < 0.3
    wanted, _ = module(x, reset=reset)

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = module

        def forward(self, x: Any, reset: Any) -> Any:
            return self.lstm(x, reset=reset)[0]

    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, reset), wanted)
    found, right = (torch.autograd.grad(each.square().sum(), x) for each in (compiled(x, reset), wanted))
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(torch.export.export(Model(), (x, reset)).module()(x, reset), wanted)
    many = torch.vmap(Model())(torch.stack([x, x]), torch.stack([reset, ~reset]))
    torch.testing.assert_close(many[0], wanted)
    factors = torch.rand(T, N, dtype=torch.float64)
    assert torch.func.jacrev(lambda r: module(x, reset=r)[0].sum((1, 2)))(factors).shape == (T, T, N)
    recorded = torch.fx.symbolic_trace(Model())
    torch.testing.assert_close(recorded(x, reset), wanted)


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("GRU", {"reset_state": torch.zeros(1, N, H)}, ValueError, "reset_state: expected a reset beside it, got none"),
    (
        "GRU",
        {"reset": torch.ones(T, N), "reset_cell": torch.zeros(1, N, H)},
        TypeError,
        "reset_cell: expected None, because only an LSTM has cells",
    ),
    ("LSTM", {"reset": [True]}, TypeError, "reset: expected a torch.Tensor, got list"),
]


@pytest.mark.parametrize(("name", "given", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_messages(name: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    """Mistakes that the core does not see."""
    module = getattr(vkrnn.torch, name)(I, H)
    with pytest.raises(error, match=f"^{re.escape(f'[vkrnn.torch.{name}] {message}')}$"):
        module(torch.zeros(T, N, I), **given)


@pytest.mark.parametrize("name", ["LSTM", "SLSTM"])
def test_messages_of_packed_sequences(name: str) -> None:
    """A packed input needs a packed reset with its lengths, and no other input takes one."""
    module = getattr(vkrnn.torch, name)(I, H)
    packed = pack_sequence([torch.zeros(3, I), torch.zeros(2, I)])
    for reset, error, message in (
        (torch.ones(3, 2), TypeError, "reset: expected a PackedSequence, as the input is one, got Tensor"),
        (
            pack_sequence([torch.ones(3), torch.ones(1)]),
            ValueError,
            "reset: expected the input's lengths in its order",
        ),
    ):
        with pytest.raises(error, match=f"^{re.escape(f'[vkrnn.torch.{name}] {message}')}$"):
            module(packed, reset=reset)
    with pytest.raises(TypeError, match=r"reset: expected a torch.Tensor, got PackedSequence$"):
        module(torch.zeros(T, N, I), reset=pack_sequence([torch.ones(3), torch.ones(1)]))
    with pytest.raises(TypeError, match=r"^\[lstm 'layer 0'\] reset: expected dtype bool or float32 like source"):
        vkrnn.torch.LSTM(I, H, 2)(torch.zeros(T, N, I), reset=torch.ones(T, N, dtype=torch.float64))
