"""What decides that a call of a module was measured before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import vkrnn

torch = pytest.importorskip("torch")

import vkrnn.torch as ours  # noqa: E402
from vkrnn.torch import _choice  # noqa: E402


def kind_of(module: Any, x: Any, hx: Any = None) -> Any:
    """Return the key by which the choice is remembered."""
    packed = isinstance(x, torch.nn.utils.rnn.PackedSequence)
    return _choice._kind(module, x, x.data if packed else x, hx)


def changed_by(change: Callable[[Any], Any]) -> bool:
    """Return whether a call is of another kind after a change of its module. The same call is always of one kind."""
    module, x = ours.GRU(3, 4), torch.ones(5, 2, 3)
    before = kind_of(module, x)
    assert kind_of(module, x) == before
    change(module)
    return bool(kind_of(module, x) != before)


def test_changes_of_a_module() -> None:
    """A module's mode and options, and whether it needs gradients, make its calls another kind."""
    assert changed_by(lambda module: module.eval())
    assert changed_by(lambda module: setattr(module, "dropout", 0.5))
    assert changed_by(lambda module: setattr(module, "batch_first", True))
    assert changed_by(lambda module: module.requires_grad_(False))  # noqa: FBT003 - torch's signature
    with torch.no_grad():
        assert not changed_by(lambda module: module.requires_grad_(False))  # noqa: FBT003
    assert not changed_by(lambda module: module.flatten_parameters())


def test_changes_of_arguments() -> None:
    """Another shape or dtype, other gradients, or other steps of a packed sequence make another kind of call."""
    module, x = ours.GRU(3, 4).requires_grad_(False), torch.ones(5, 2, 3)  # noqa: FBT003
    state = torch.zeros(1, 2, 4)
    packed = [
        torch.nn.utils.rnn.pack_padded_sequence(torch.ones(T, len(lengths), 3), torch.tensor(lengths))
        for T, lengths in ((6, [6, 4]), (10, [10]))
    ]
    others = [
        kind_of(module, torch.ones(5, 3, 3)),
        kind_of(module, x.double()),
        kind_of(module, x.clone().requires_grad_()),
        *(kind_of(module, each) for each in packed),
    ]
    assert kind_of(module, x, state.clone().requires_grad_()) == kind_of(module, x.clone().requires_grad_())
    assert kind_of(module, x, state) == kind_of(module, x)
    assert len({kind_of(module, x), *others}) == 1 + len(others)


def test_similar_sizes_share_a_choice() -> None:
    """All numbers of steps or rows between two powers of two share one choice."""
    module = ours.GRU(3, 4)
    steps = [kind_of(module, torch.ones(T, 2, 3)) for T in range(1, 1025)]
    assert len(set(steps)) == 11
    assert len(set(steps[4:8])) == 1 < len(set(steps[4:9]))
    assert kind_of(module, torch.ones(5, 5, 3)) == kind_of(module, torch.ones(5, 8, 3))


def test_the_number_of_choices_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest choice is dropped for a new one, and measured again when it is needed."""
    monkeypatch.setattr(_choice, "_chosen", {})
    monkeypatch.setattr(_choice, "_MOST", 3)
    monkeypatch.setattr(_choice, "_measured", lambda *_, **__: ("torch", {"torch": 1.0, "vkrnn": 2.0}, True))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    module = ours.GRU(3, 4)
    inputs = [torch.ones(2**power, 2, 3) for power in range(5)]
    kinds = [kind_of(module, x) for x in inputs]
    assert [_choice.choose(module, x, None, {}) for x in inputs] == ["torch"] * 5
    assert list(_choice._chosen) == kinds[2:]
    assert len(ours.choices()) == 3


def test_changes_of_settings() -> None:
    """Autocast, its type, and how float32 products are rounded count."""
    module, x = ours.GRU(3, 4), torch.ones(5, 2, 3)
    kinds = [kind_of(module, x)]
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)  # noqa: FBT003 - torch.autocast does nothing without a GPU
    try:
        for dtype in (torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cuda", dtype)
            kinds.append(kind_of(module, x))
    finally:
        torch.set_autocast_dtype("cuda", before)
        torch.set_autocast_enabled("cuda", False)  # noqa: FBT003
    assert len(set(kinds)) == 3
    with vkrnn.fp32_precision("ieee"):
        exact = kind_of(module, x)
    with vkrnn.fp32_precision("tf32"):
        assert kind_of(module, x) != exact
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert kind_of(module, x) == exact
