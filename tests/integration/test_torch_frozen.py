"""`vkrnn.torch.frozen`: the promise that parameters do not change, and what ends it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from oracles import require

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from kept_modules import a_module, assert_same, plain, warm  # noqa: E402
from torch_modules import initial  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_seed", "no_gradients")


def _is_frozen(module: Any) -> bool:
    """Return whether a module does not notice a change of a parameter in place."""
    x = torch.rand(3, 1, 24)
    before = warm(module, x)
    module.weight_hh_l0.mul_(2)
    unnoticed = torch.equal(module(x)[0], before[0])
    module.weight_hh_l0.mul_(0.5)
    return unnoticed


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}])
def test_same_bits(kind: str, dtype: str, options: dict[str, Any], runs: list[Any]) -> None:
    """Weights are packed by the first call."""
    real = getattr(torch, dtype)
    module = ours.frozen(a_module(kind, **options).to(real))
    for T, N in ((1, 1), (5, 3)):
        x = torch.rand((N, T, 24) if module.batch_first else (T, N, 24)).to(real)
        for hx in (None, initial(module, N, real)):
            runs.clear()
            assert_same(module(x, hx), plain(module, x, hx))
            assert len(runs) == 1
            assert_same(module(x, hx), plain(module, x, hx))


def test_models() -> None:
    """All of vkrnn's modules in a model are frozen, and the model is returned."""
    model = torch.nn.Sequential(torch.nn.LSTM(24, 40), torch.nn.Linear(40, 3), ours.GRU(24, 40))
    assert ours.convert(model) is model
    assert not _is_frozen(model[0])
    assert ours.frozen(model) is model
    assert _is_frozen(model[0])
    assert _is_frozen(model[2])
    assert ours.frozen(model, mode=False) is model
    assert not _is_frozen(model[0])
    assert not _is_frozen(model[2])


def test_convert_and_revert() -> None:
    """`convert` can freeze a model, and `revert` ends the promise."""
    model = ours.convert(torch.nn.ModuleList([torch.nn.LSTM(24, 40)]), frozen=True)
    assert _is_frozen(model[0])
    ours.convert(model)
    assert _is_frozen(model[0])
    module = ours.convert(ours.revert(model))[0]
    assert not _is_frozen(module)


@pytest.mark.parametrize("size", [40, 400])
def test_unfrozen(size: int) -> None:
    """After the promise, changes are noticed, also those that were made before."""
    module, x = ours.frozen(a_module("LSTM", size, size)), torch.rand(1, 1, size)
    hx = initial(module, 1, torch.float32)
    warm(module, x, hx)
    module.weight_hh_l0.data[5, 6] += 3
    assert not torch.equal(module(x, hx)[0], plain(module, x, hx)[0])
    ours.frozen(module, mode=False)
    assert_same(module(x, hx), plain(module, x, hx))
    warm(module, x, hx)
    module.weight_hh_l0.data[5, 6] += 3
    assert_same(module(x, hx), plain(module, x, hx))


def test_train_and_eval() -> None:
    """`train` ends the promise, `eval` does not."""
    module = ours.frozen(a_module("GRU"))
    assert _is_frozen(module.eval())
    assert not _is_frozen(module.train())
    assert not _is_frozen(module.eval())


def _replace(module: Any) -> None:
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0 + 1)


def _with_gradients(module: Any) -> None:
    with torch.enable_grad():
        module(torch.rand(3, 1, 24))[0].sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()


NOTICED: dict[str, Callable[[Any], object]] = {
    "load_state_dict": lambda module: module.load_state_dict(a_module("LSTM").state_dict()),
    "load_state_dict of a model": lambda module: torch.nn.ModuleList([module]).load_state_dict(
        torch.nn.ModuleList([a_module("LSTM")]).state_dict()
    ),
    "another parameter": _replace,
    "eval": lambda module: (module.weight_hh_l0.mul_(2), module.eval()),
    "a step of an optimizer": _with_gradients,
    "parametrized": lambda module: torch.nn.utils.parametrizations.spectral_norm(module, "bias_hh_l0", dim=0),
}


@pytest.mark.parametrize("change", NOTICED)
def test_noticed(change: str) -> None:
    """These changes are noticed in spite of the promise, which goes on."""
    module, x = ours.frozen(a_module("LSTM")), torch.rand(3, 1, 24)
    before = warm(module, x)
    NOTICED[change](module)
    got = module(x)
    assert not torch.equal(got[0], before[0])
    assert_same(got, plain(module, x))
    if change != "parametrized":
        assert _is_frozen(module)


def test_another_dtype() -> None:
    """`to` converts the parameters, and the promise goes on."""
    module, x = ours.frozen(a_module("GRU")), torch.rand(3, 1, 24)
    warm(module, x)
    module.double()
    assert_same(warm(module, x.double()), plain(module, x.double()))
    module.float()
    assert _is_frozen(module)


def test_functional_call() -> None:
    """It replaces the parameters for one call."""
    module, x = ours.frozen(a_module("GRU")), torch.rand(3, 1, 24)
    before = warm(module, x)
    doubled = {name: 2 * parameter for name, parameter in module.named_parameters()}
    assert not torch.equal(torch.func.functional_call(module, doubled, (x,))[0], before[0])
    assert_same(module(x), before)


def test_gradients() -> None:
    """Calls with gradients compute with the parameters as they are."""
    module, x = ours.frozen(a_module("LSTM")), torch.rand(3, 1, 24)
    warm(module, x)
    module.weight_hh_l0.mul_(2)
    with torch.enable_grad():
        assert_same(module(x), copy.deepcopy(module)(x))


def test_copies() -> None:
    """Copies, pickles and files are not frozen."""
    module = ours.frozen(a_module("LSTM"))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)]
    assert not any(map(_is_frozen, copies))
    assert _is_frozen(module)


def test_no_module() -> None:
    with pytest.raises(TypeError) as error:
        ours.frozen([a_module("LSTM")])
    assert str(error.value) == "[vkrnn.torch.frozen] model: expected a torch.nn.Module, got list"
