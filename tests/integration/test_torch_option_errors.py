"""What the modules of vkrnn.torch refuse: wrong options, and handing options to PyTorch that it does not have."""

from __future__ import annotations

from typing import Any

import pytest

from oracles import require

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from torch_modules import LIVELY, H, I, lively  # noqa: E402

# PyTorch's own affairs.
pytestmark = pytest.mark.filterwarnings("ignore")
T, N = 4, 3
every_kind = pytest.mark.parametrize("kind", LIVELY)


def refusal(kind: type[Exception], call: Any) -> str:
    """Return the message of an error."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


FIRST = {
    "LSTM": "peephole: torch.nn.LSTM supports only False, got True",
    "GRU": "reset_after: torch.nn.GRU supports only True, got False",
    "RNN": "activation: torch.nn.RNN supports only 'tanh', got 'sigmoid'",
}


@every_kind
def test_what_torch_cannot_do(kind: str) -> None:
    """`revert` and torch.jit.script refuse what PyTorch's module would leave out."""
    module = lively(kind)
    model = torch.nn.ModuleList([getattr(ours, kind)(I, H), module])
    assert refusal(NotImplementedError, lambda: ours.revert(model)) == f"[vkrnn.torch.revert] {FIRST[kind]}"
    assert type(model[0]) is getattr(ours, kind)
    scripted = f"[vkrnn.torch.{kind}] torch.jit.script: {FIRST[kind]}"
    assert refusal(NotImplementedError, lambda: torch.jit.script(module)) == scripted
    for name in ("recurrent_dropout", "weight_dropout"):
        drops = getattr(ours, kind)(I, H, **{name: 0.5})
        only = f"{name}: torch.nn.{kind} supports only 0.0, got 0.5"
        assert refusal(NotImplementedError, lambda: ours.revert(drops)) == f"[vkrnn.torch.revert] {only}"  # noqa: B023
        assert refusal(NotImplementedError, lambda: torch.jit.script(drops)).endswith(only)  # noqa: B023
        x = torch.rand(T, N, I)
        torch.testing.assert_close(torch.jit.script(torch.nn.Sequential(drops.eval()))(x), drops(x))


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (
            "LSTM",
            {"input_gate_activation": "tahn"},
            ValueError,
            "[vkrnn.torch.LSTM] input_gate_activation: expected one of 'none', 'relu', 'tanh', 'sigmoid', "
            "'hard_sigmoid' (or its number 0..4), got 'tahn'",
        ),
        (
            "GRU",
            {"update_gate_activation": None},
            TypeError,
            "[vkrnn.torch.GRU] update_gate_activation: expected an Activation, its name or its number, got None "
            "(NoneType)",
        ),
        ("GRU", {"reset_after": "no"}, TypeError, "[vkrnn.torch.GRU] reset_after: expected a bool, got 'no' (str)"),
        (
            "RNN",
            {"activation": 7},
            ValueError,
            "[vkrnn.torch.RNN] activation: expected one of 'none', 'relu', 'tanh', 'sigmoid', 'hard_sigmoid' (or its "
            "number 0..4), got 7",
        ),
        (
            "LSTM",
            {"clip": -1},
            ValueError,
            "[vkrnn.torch.LSTM] clip: expected 0 (no clipping) or a positive threshold, got -1.0",
        ),
        ("LSTM", {"peephole": 1}, TypeError, "[vkrnn.torch.LSTM] peephole: expected a bool, got 1 (int)"),
        (
            "LSTM",
            {"recurrent_dropout": 1.5},
            ValueError,
            "[vkrnn.torch.LSTM] recurrent_dropout: expected a number from 0 to 1, got 1.5",
        ),
        (
            "RNN",
            {"recurrent_dropout": float("nan")},
            ValueError,
            "[vkrnn.torch.RNN] recurrent_dropout: expected a number from 0 to 1, got nan",
        ),
        (
            "GRU",
            {"recurrent_dropout": True},
            TypeError,
            "[vkrnn.torch.GRU] recurrent_dropout: expected a number, got True (bool)",
        ),
        ("GRU", {"peephole": True}, TypeError, "GRU.__init__() got an unexpected keyword argument 'peephole'"),
        ("RNN", {"reset_after": True}, TypeError, "RNN.__init__() got an unexpected keyword argument 'reset_after'"),
    ],
)
def test_mistakes(kind: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Wrong options are refused by the constructor, with what was expected and what came."""
    assert refusal(error, lambda: getattr(ours, kind)(I, H, **options)) == message


@pytest.mark.parametrize("name", ["LSTM", "GRUCell"])
def test_backend_is_checked_when_it_is_set(name: str) -> None:
    """A wrong one is refused like the constructor's argument and leaves the module as it was."""
    own = getattr(ours, name)(I, H, backend="vkrnn")
    converted = ours.convert(torch.nn.Sequential(getattr(torch.nn, name)(I, H)), backend="vkrnn")[0]
    for module in (own, converted):
        message = refusal(ValueError, lambda module=module: setattr(module, "backend", "wrong"))
        assert message == f"[vkrnn.torch.{name}] backend: expected 'auto', 'vkrnn' or 'torch', got 'wrong'"
        message = refusal(TypeError, lambda module=module: setattr(module, "backend", None))
        assert message == f"[vkrnn.torch.{name}] backend: expected a str, got None (NoneType)"
        assert module.backend == "vkrnn"
        module.backend = "torch"
        assert module.backend == "torch"
