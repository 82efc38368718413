"""vkrnn.torch.convert and revert: they replace the modules of a model in place, and the model trains as before."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from comparison import scaled_error
from oracles import require
from tolerances import FLOAT32

torch = require("torch")
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

import vkrnn.torch as ours  # noqa: E402
from torch_modules import SMALL  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_seed")


class Model(torch.nn.Module):  # type: ignore[misc]
    """A model with three kinds of layers, one of them used twice."""

    def __init__(self) -> None:
        """Create the layers."""
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 4, 2, batch_first=True)
        self.inner = torch.nn.ModuleList([torch.nn.GRU(4, 4), torch.nn.Linear(4, 4), torch.nn.RNN(4, 4)])
        self.again = self.inner[0]

    def forward(self, x: Any) -> Any:
        """Run the layers."""
        x, _ = self.lstm(x)
        for layer in (*self.inner, self.again):
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def test_convert_and_back() -> None:
    """A model is converted in place and back, and its parameters stay the same objects."""
    model = Model()
    x, names = torch.rand(2, 5, 3), dict(model.named_parameters())
    wanted = model(x).detach().numpy()
    assert ours.convert(model) is model
    assert [type(model.lstm), type(model.inner[0]), type(model.inner[2])] == [ours.LSTM, ours.GRU, ours.RNN]
    assert model.again is model.inner[0]
    assert all(parameter is names[name] for name, parameter in model.named_parameters())
    assert scaled_error(model(x).detach().numpy(), wanted) < FLOAT32
    assert ours.revert(model) is model
    assert [type(model.lstm), type(model.inner[0]), type(model.inner[2])] == [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]
    assert np.array_equal(model(x).detach().numpy(), wanted)


class Mine(torch.nn.LSTM):  # type: ignore[misc]
    """A user's LSTM."""

    def forward(self, x: Any, hx: Any = None) -> Any:
        """Double the output."""
        output, last = super().forward(x, hx)
        return 2 * output, last


class Older(Mine):
    """A subclass of a subclass, which says how it is drawn."""

    def reset_parameters(self) -> None:
        """Draw small parameters."""
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.1, 0.1)


class MyCell(torch.nn.GRUCell):  # type: ignore[misc]
    """A user's cell."""


@pytest.mark.parametrize("kind", [Mine, Older])
def test_subclasses(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a subclass overrides stays, and what it calls of PyTorch's class is computed by vkrnn."""
    torch.manual_seed(2)
    theirs, x = kind(3, 4, bidirectional=True), torch.rand(5, 2, 3)
    mine = ours.convert(copy.deepcopy(theirs))
    calls: list[Any] = []
    compute = ours.LSTM._compute
    monkeypatch.setattr(ours.LSTM, "_compute", lambda *given: calls.append(given) or compute(*given))
    torch.testing.assert_close(mine(x), theirs(x))
    assert calls
    assert isinstance(mine, kind)
    assert isinstance(mine, ours.LSTM)
    assert type(mine).__name__ == kind.__name__
    for again in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert type(again) is type(mine)
        assert torch.equal(again(x)[0], mine(x)[0])
    mine.reset_parameters()
    assert (mine.weight_hh_l0.abs().max() <= 0.1) == (kind is Older)
    compiled = torch.compile(mine, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), mine(x))
    torch._dynamo.reset()
    assert type(ours.convert(mine)) is type(mine)
    calls.clear()
    assert type(ours.revert(mine)) is kind
    mine(x)
    assert not calls


def test_parametrized_subclasses() -> None:
    """Parametrizations of a subclass and a user's cells are converted, too."""
    theirs, x = parametrizations.weight_norm(Mine(3, 4), "weight_hh_l0"), torch.rand(5, 2, 3)
    model = torch.nn.ModuleList([copy.deepcopy(theirs), MyCell(3, 4)])
    assert ours.convert(model) is model
    assert isinstance(model[0], ours.LSTM)
    assert isinstance(model[1], ours.GRUCell)
    assert isinstance(model[1], MyCell)
    torch.testing.assert_close(model[0](x), theirs(x))
    ours.revert(model)
    assert not isinstance(model[0], ours.LSTM)
    assert type(model[1]) is MyCell
    torch.testing.assert_close(model[0](x), theirs(x))


def test_subclasses_of_vkrnns_modules() -> None:
    """`revert` leaves them alone, and a warning names them."""

    class Fast(ours.GRU):
        """A GRU of vkrnn's."""

    model = torch.nn.ModuleDict({"a": Fast(3, 4), "b": ours.GRU(3, 4)})
    expected = "[vkrnn.torch.revert] left to vkrnn, because they are subclasses of its modules: Fast at 'a'"
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$") as shown:
        ours.revert(model)
    assert shown[0].filename == __file__
    assert type(model["a"]) is Fast
    assert type(model["b"]) is torch.nn.GRU


class Halved(torch.nn.Module):  # type: ignore[misc]
    """A parametrization."""

    def forward(self, weight: Any) -> Any:
        """Halve the weight."""
        return weight / 2


def halved_twice(module: Any) -> Any:
    """Parametrize all weights of the first layer, and one of them by two."""
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0"):
        parametrize.register_parametrization(module, name, Halved())
    return module


PARAMETRIZED = {
    "weight_norm": lambda module: parametrizations.weight_norm(module, "weight_hh_l0"),
    "spectral_norm": lambda module: parametrizations.spectral_norm(module, "weight_ih_l1"),
    "orthogonal": lambda module: parametrizations.orthogonal(module, "weight_hh_l1"),
    "several": halved_twice,
}
BY_HOOKS = {
    "weight_norm": lambda module: torch.nn.utils.weight_norm(module, "weight_hh_l0"),
    "spectral_norm": lambda module: torch.nn.utils.spectral_norm(module, "weight_ih_l1"),
}
X = torch.linspace(-1, 1, 5 * 2 * 3).reshape(5, 2, 3)
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])


def two_of(kind: str, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return two parametrized modules of PyTorch with the same state. Spectral norms change with each training step."""
    one, other = (make(getattr(torch.nn, kind)(3, 4, 2)).eval() for _ in range(2))
    other.load_state_dict(one.state_dict())
    return one, other


def agree(got: Any, wanted: Any) -> None:
    """Compare outputs and gradients, and outputs of later calls without gradients, which must not use old weights."""
    found = []
    for module in (got, wanted):
        output, _ = module(X)
        gradients = torch.autograd.grad(output.square().sum(), list(module.parameters()))
        found.append([output.detach().numpy(), *(each.numpy() for each in gradients)])
        with torch.no_grad():
            found[-1] += [module(X)[0].numpy() for _ in range(3)]
    for one, other in zip(*found, strict=True):
        assert scaled_error(one, other) < FLOAT32


@every_kind
@pytest.mark.parametrize("way", PARAMETRIZED)
def test_parametrized_modules(kind: str, way: str) -> None:
    """Conversion keeps parametrizations, values, gradients and copies, and can be undone."""
    theirs, mine = two_of(kind, PARAMETRIZED[way])
    other, before, shown, parameters = copy.deepcopy(mine), type(mine), repr(mine), dict(mine.named_parameters())
    ours.convert(torch.nn.Sequential(mine))
    assert isinstance(mine, getattr(ours, kind))
    assert (repr(mine), type(mine).__name__, type(other)) == (f"vkrnn.torch.{shown}", before.__name__, before)
    assert [*map(id, dict(mine.named_parameters()).values())] == [*map(id, parameters.values())]
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    agree(mine, theirs)
    agree(other, theirs)
    agree(copy.deepcopy(mine), theirs)
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
        pickle.dumps(mine)
    first, second = vkrnn.convert.from_torch(mine)
    assert scaled_error(second(first(X.numpy()).output).output, theirs(X)[0].detach().numpy()) < FLOAT32
    ours.revert(mine)
    assert (type(mine).__name__, type(mine).__bases__) == (before.__name__, before.__bases__)
    agree(mine, theirs)


@every_kind
@pytest.mark.parametrize("way", PARAMETRIZED)
@pytest.mark.parametrize("reverts", [False, True])
def test_parametrizations_are_removed(kind: str, way: str, *, reverts: bool) -> None:
    """After a conversion, they can be removed as before. The class is then the one without parametrizations."""
    theirs, mine = two_of(kind, PARAMETRIZED[way])
    wanted = theirs(X)[0].detach().numpy()
    ours.convert(mine)
    if reverts:
        ours.revert(mine)
    for name in list(mine.parametrizations):
        parametrize.remove_parametrizations(mine, name)
    assert type(mine) is getattr(torch.nn if reverts else ours, kind)
    assert mine.state_dict().keys() == getattr(torch.nn, kind)(3, 4, 2).state_dict().keys()
    with torch.no_grad():
        for _ in range(3):
            assert scaled_error(mine(X)[0].numpy(), wanted) < FLOAT32


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm.*is deprecated:FutureWarning")
@every_kind
@pytest.mark.parametrize("way", BY_HOOKS)
def test_modules_parametrized_by_hooks(kind: str, way: str) -> None:
    """PyTorch's older functions change the weight before each call, and no class."""
    theirs, mine = two_of(kind, BY_HOOKS[way])
    assert type(ours.convert(mine)) is getattr(ours, kind)
    agree(mine, theirs)
    assert type(ours.revert(mine)) is getattr(torch.nn, kind)
    agree(mine, theirs)


def test_the_log_says_what_was_converted(caplog: pytest.LogCaptureFixture) -> None:
    """It has the number of modules."""
    model = torch.nn.ModuleDict({"a": Model(), "b": Mine(3, 4), "c": MyCell(3, 4), "d": ours.RNN(3, 4)})
    ours.convert(model)
    ours.convert(model["a"])
    converted = "[vkrnn.torch.convert] modules converted:"
    found = [message for message in caplog.messages if message.startswith(converted)]
    assert found == [f"{converted} 5", f"{converted} 0"]


def test_nothing_to_convert() -> None:
    """It is a warning, because a part of the model may be missing."""
    with pytest.warns(UserWarning, match=r"^\[vkrnn.torch.convert\] the model has no recurrent module or cell"):
        ours.convert(torch.nn.Linear(3, 4))


@pytest.mark.parametrize("function", [ours.convert, ours.revert])
def test_what_is_no_model(function: Any) -> None:
    """The message says what came."""
    for model, kind in ((Model().forward, "method"), (lambda x: x, "function"), ([torch.nn.GRU(3, 4)], "list")):
        wanted = f"[vkrnn.torch.{function.__name__}] model: expected a torch.nn.Module, got {kind}"
        with pytest.raises(TypeError, match=f"^{re.escape(wanted)}$"):
            function(model)


def test_training_with_an_optimizer() -> None:
    """An optimizer made before the conversion trains the model as it trains torch's."""
    losses = []
    x, y = torch.rand(7, 4, 3), torch.rand(7, 4, 4)
    for convert in (False, True):
        torch.manual_seed(5)
        model = torch.nn.LSTM(**SMALL)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if convert:
            ours.convert(model)
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x)[0] - y).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
