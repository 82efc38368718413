"""Zoneout and leaks in PyTorch's modules and functions, against PyTorch's cells in a loop."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import vkrnn

torch = pytest.importorskip("torch")
pytest.importorskip("vkrnn.torch")

from torch.nn.utils.rnn import (  # noqa: E402 - after importorskip
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
)

import vkrnn.torch  # noqa: E402
from tolerances import TORCH_IN_FLOAT64  # noqa: E402

T, N, I, H = 6, 3, 5, 4
MODULES = ("LSTM", "GRU", "RNN")
CHANCES: dict[str, dict[str, float]] = {"LSTM": {"zoneout": 0.4, "zoneout_cell": 0.25}}
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CLOSE = {"rtol": 0, "atol": TORCH_IN_FLOAT64}


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def step(mode: str, x: Any, h: Any, c: Any, weights: Any) -> tuple[Any, Any]:
    """Return h and c after a step of PyTorch's cell."""
    if mode == "LSTM":
        return torch._VF.lstm_cell(x, (h, c), *weights)
    function = {"GRU": torch._VF.gru_cell, "RNN_TANH": torch._VF.rnn_tanh_cell}[mode]
    return function(x, h, *weights), c


def blended(part: Any, new: Any, old: Any) -> Any:
    return new if part is None else part * new + (1 - part) * old


def cell_by_cell(module: Any, x: Any, masks: list[Any], cell_masks: list[Any], lengths: list[int]) -> Any:
    """Return the output of a module, whose steps are blended by masks [T, N, D H] or [D H] of each layer."""
    below = x
    for layer in range(module.num_layers):
        halves = []
        for d, suffix in enumerate(("", "_reverse")[: 1 + module.bidirectional]):
            weights = [getattr(module, f"{name}_l{layer}{suffix}") for name in WEIGHTS]
            of_h, of_c = (
                parts[layer].expand(len(x), x.shape[1], -1)[..., d * H : (d + 1) * H] if parts else None
                for parts in (masks, cell_masks)
            )
            rows = []
            for n, length in enumerate(lengths):
                h, c = (below.new_zeros(1, H) for _ in range(2))
                outputs: list[Any] = [None] * length
                for t in reversed(range(length)) if d else range(length):
                    new_h, new_c = step(module.mode, below[t, n][None], h, c, weights)
                    h = blended(None if of_h is None else of_h[t, n], new_h, h)
                    c = blended(None if of_c is None else of_c[t, n], new_c, c)
                    outputs[t] = h[0]
                rows.append(torch.stack([*outputs, *[below.new_zeros(H)] * (len(x) - length)]))
            halves.append(torch.stack(rows, 1))
        below = torch.cat(halves, -1)
    return below


def recorded(module: Any) -> dict[float, list[Any]]:
    """Return a dict that gets the masks that a call of the module draws, by their chance."""
    found: dict[float, list[Any]] = {}
    draws = module._zoneout_masks

    def draw(source: Any, chance: float) -> list[Any]:
        found[chance] = draws(source, chance)
        masks: list[Any] = found[chance]
        return masks

    module._zoneout_masks = draw
    return found


@pytest.mark.parametrize("form", ["time first", "batch first", "packed"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, form: str, *, training: bool, bidirectional: bool) -> None:
    """Outputs and all gradients are those of PyTorch's cells in a loop, with the masks that were drawn."""
    torch.manual_seed(0)
    chances = CHANCES.get(name, {"zoneout": 0.4})
    how = {"bidirectional": bidirectional, "batch_first": form == "batch first", "dtype": torch.float64}
    module = getattr(vkrnn.torch, name)(I, H, 2, **how, **chances).train(training)
    masks, x = recorded(module), drawn(T, N, I)
    lengths = [6, 4, 1] if form == "packed" else [T] * N
    if form == "packed":
        packed = pack_padded_sequence(x, torch.tensor(lengths))
        output, _ = pad_packed_sequence(module(packed)[0])
    else:
        turned = form == "batch first"
        output = module(x.transpose(0, 1) if turned else x)[0]
        output = output.transpose(0, 1) if turned else output
    upstream = torch.randn_like(output)
    parameters = [x, *module.parameters()]
    found = torch.autograd.grad((output * upstream).sum(), parameters)

    def padded(mask: Any) -> Any:
        if form != "packed" or mask.dim() == 1:
            return mask
        return pad_packed_sequence(PackedSequence(mask, packed.batch_sizes))[0]

    of_h = [padded(mask) for mask in masks[chances["zoneout"]]]
    of_c = [padded(mask) for mask in masks[chances.get("zoneout_cell", 0.0)]]
    for mask in masks[chances["zoneout"]]:
        assert set(mask.unique().tolist()) == ({0, 1} if training else {0.6})
    wanted = cell_by_cell(module, x, of_h, of_c, lengths)
    torch.testing.assert_close(output, wanted, **CLOSE)
    for one, other in zip(found, torch.autograd.grad((wanted * upstream).sum(), parameters), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("name", MODULES)
def test_without_gradients_and_as_other_layers(name: str) -> None:
    """Out of training, calls have the mean of the masks, and so do the layers that a module converts to."""
    torch.manual_seed(1)
    module = getattr(vkrnn.torch, name)(I, H, 2, **CHANCES.get(name, {"zoneout": 0.4})).eval()
    x = torch.randn(T, 1, I)
    with torch.no_grad():
        wanted = module(x)[0]
        for _ in range(3):
            torch.testing.assert_close(module(x)[0], wanted, rtol=0, atol=0)
    layers = vkrnn.convert.from_torch(module)
    found = x.numpy()
    for layer in layers:
        found = layer(found).output
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(vkrnn.stream(layers).step(x.numpy()), wanted, rtol=0, atol=1e-6)


def test_the_share_of_old_states() -> None:
    """A unit keeps its state with the chance given: here 10,000 draws, of which 5 standard deviations are 0.024."""
    torch.manual_seed(2)
    module = vkrnn.torch.RNN(1, 100, zoneout=0.35)
    (mask,) = module._zoneout_masks(torch.zeros(10, 10, 1), 0.35)
    assert abs(1 - mask.mean().item() - 0.35) < 0.024


def test_a_changed_output_is_computed_again() -> None:
    """Gradients need the output, which the caller may change in place, as that of PyTorch's modules."""
    for name in ("LSTM", "RNN"):
        module = getattr(vkrnn.torch, name)(I, H, zoneout=0.4, dtype=torch.float64)
        x, found = drawn(T, N, I), []
        for changes in (False, True):
            torch.manual_seed(3)
            output, _ = module(x)
            if changes:
                output.mul_(1)
                output.detach().zero_()
            found.append(torch.autograd.grad(output, [x, *module.parameters()], torch.ones_like(output)))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


def test_the_slstm() -> None:
    """Its module blends h alone."""
    torch.manual_seed(4)
    module = vkrnn.torch.SLSTM(I, H, 2, zoneout=0.4, dtype=torch.float64)
    assert "zoneout=0.4" in repr(module)
    x = drawn(T, N, I)
    module.eval()
    output, _ = module(x)
    found = torch.autograd.grad(output.sum(), [x, *module.parameters()])
    below = x
    for layer in range(2):
        part = torch.full((H,), 0.6, dtype=torch.float64)
        weights = [getattr(module, f"{name}_l{layer}") for name in ("weight_hh", "weight_ih", "bias")]
        below = vkrnn.torch.slstm(below, weights[0], input_weight=weights[1], bias=weights[2], zoneout_mask=part).output
    torch.testing.assert_close(output, below, **CLOSE)
    for one, other in zip(found, torch.autograd.grad(below.sum(), [x, *module.parameters()]), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    module.train()
    assert not torch.equal(module(x)[0], output)


CELLS = {"single_gate_rnn": ("RNN_TANH", 1), "lstm": ("LSTM", 4), "gru": ("GRU", 3)}
DESCRIPTORS = {
    "single_gate_rnn": vkrnn.SingleGateRNNDescriptor(activation="tanh"),
    "lstm": vkrnn.LSTMDescriptor(),
    "gru": vkrnn.GRUDescriptor(reset_gate_first=True, reset_after=True),
}


@pytest.mark.parametrize("kind", ["leak", "leak of units", "mask", "mask of units"])
@pytest.mark.parametrize("cell", CELLS)
def test_functions(cell: str, kind: str) -> None:
    """A leak that is learnt, and masks: outputs and gradients are those of PyTorch's cells in a loop."""
    torch.manual_seed(5)
    mode, gates = CELLS[cell]
    x, W, R, b, h_0 = drawn(T, N, I), drawn(gates * H, I), drawn(gates * H, H), drawn(gates * H), drawn(N, H)
    shape = {"leak": (), "leak of units": (H,), "mask": (T, N, H), "mask of units": (H,)}[kind]
    is_leak = kind.startswith("leak")
    part = torch.rand(shape, dtype=torch.float64, requires_grad=is_leak)
    given = {"leak" if is_leak else "zoneout_mask": part}
    call = {"input_weight": W, "bias": b, "init_state": h_0, "descriptor": DESCRIPTORS[cell]}
    output = getattr(vkrnn.torch, cell)(x, R, **call, **given).output
    h, c, rows = h_0, torch.zeros(N, H, dtype=torch.float64), []
    for t in range(T):
        new, c = step(mode, x[t], h, c, (W, R, b, torch.zeros_like(b)))
        h = blended(part[t] if part.dim() == 3 else part, new, h)
        rows.append(h)
    wanted = torch.stack(rows)
    torch.testing.assert_close(output, wanted, **CLOSE)
    learnt = [x, W, R, b, h_0, *([part] if is_leak else [])]
    upstream = torch.randn_like(output)
    pairs = (torch.autograd.grad((each * upstream).sum(), learnt) for each in (output, wanted))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_a_number_is_a_leak() -> None:
    x, R = torch.randn(T, N, H), torch.randn(H, H)
    one, other = (vkrnn.torch.single_gate_rnn(x, R, leak=leak).output for leak in (0.25, torch.tensor(0.25)))
    assert torch.equal(one, other)


def test_compiled_and_mapped() -> None:
    """torch.compile and torch.vmap give what plain calls give."""
    x, R, leak = torch.randn(2, T, N, H), torch.randn(H, H), torch.rand(2, H)

    def run(x: Any, leak: Any) -> Any:
        return vkrnn.torch.single_gate_rnn(x, R, leak=leak).output

    wanted = torch.stack([run(*each) for each in zip(x, leak, strict=True)])
    assert torch.equal(torch.vmap(run)(x, leak), wanted)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="eager")(x[0], leak[0]), wanted[0])
    module = vkrnn.torch.LSTM(H, H, 2, zoneout=0.5, zoneout_cell=0.5).eval()
    wanted = torch.stack([module(each)[0] for each in x])
    torch.testing.assert_close(torch.vmap(lambda each: module(each)[0])(x), wanted)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x[0])[0], wanted[0])


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("LSTM", {"zoneout": 1.5}, ValueError, "zoneout: expected a number from 0 to 1, got 1.5"),
    ("LSTM", {"zoneout_cell": "x"}, TypeError, "zoneout_cell: expected a number, got 'x' (str)"),
    ("GRU", {"zoneout": True}, TypeError, "zoneout: expected a number, got True (bool)"),
    ("SLSTM", {"zoneout": -1}, ValueError, "zoneout: expected a number from 0 to 1, got -1"),
]


@pytest.mark.parametrize(("name", "given", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_messages(name: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'[vkrnn.torch.{name}] {message}')}$"):
        getattr(vkrnn.torch, name)(I, H, **given)


def test_messages_of_functions() -> None:
    x, R = torch.randn(T, N, H), torch.randn(H, H)
    message = "[vkrnn.torch.single_gate_rnn] zoneout_mask: vkrnn computes no gradient with respect to it"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        vkrnn.torch.single_gate_rnn(x, R, zoneout_mask=torch.ones(T, N, H, requires_grad=True))
    message = "[single_gate_rnn] leak: expected no zoneout_mask beside it, got both"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        vkrnn.torch.single_gate_rnn(x, R, zoneout_mask=torch.ones(T, N, H), leak=0.5)
    message = "[vkrnn.torch.revert] zoneout: torch.nn.LSTM supports only 0.0, got 0.5"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        vkrnn.torch.revert(vkrnn.torch.LSTM(I, H, zoneout=0.5))
