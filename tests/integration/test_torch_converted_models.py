"""vkrnn.torch.convert and revert: they replace the modules of a model in place, and the model trains as before."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from comparison import scaled_error
from oracles import require
from tolerances import FLOAT32

torch = require("torch")
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


def test_convert_leaves_other_classes_alone() -> None:
    """A subclass may compute something else."""

    class Mine(torch.nn.LSTM):  # type: ignore[misc]
        """Another LSTM."""

    assert type(ours.convert(Mine(3, 4))) is Mine
    assert type(ours.convert(torch.nn.LSTMCell(3, 4))) is torch.nn.LSTMCell


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


def test_projections_are_refused() -> None:
    """The constructor refuses them, and so does `convert` before it changes anything."""
    text = "proj_size: expected 0, vkrnn has no projections; got 2"
    with pytest.raises(NotImplementedError, match=re.escape(f"[vkrnn.torch.LSTM] {text}")):
        ours.LSTM(3, 4, proj_size=2)
    model = torch.nn.ModuleList([torch.nn.GRU(3, 4), torch.nn.LSTM(3, 4, proj_size=2)])
    with pytest.raises(NotImplementedError, match=re.escape(f"[vkrnn.torch.convert] {text}")):
        ours.convert(model)
    assert type(model[0]) is torch.nn.GRU
