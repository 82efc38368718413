"""Packed weights that modules keep: the same bits and errors as without them, and when modules drop them."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from kept_modules import a_module, assert_same, plain, tensors, warm  # noqa: E402
from torch_modules import initial  # noqa: E402

KINDS = ("LSTM", "GRU", "RNN")
every_kind = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.usefixtures("torch_seed", "no_gradients")


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 3},
        {"bidirectional": True, "num_layers": 2},
        {"batch_first": True, "bias": False},
        {"bidirectional": True},
    ],
)
def test_same_bits(kind: str, options: dict[str, Any], dtype: str, runs: list[Any]) -> None:
    """For one step and many, one row and many, with and without initial states."""
    real = getattr(torch, dtype)
    module = a_module(kind, **options).to(real)
    for T, N in itertools.product((1, 5, 70), (1, 3)):
        x = torch.rand((N, T, 24) if module.batch_first else (T, N, 24)).to(real)
        for hx in (None, initial(module, N, real)):
            warm(module, x, hx)
            runs.clear()
            got = module(x, hx)
            assert len(runs) == 1
            assert_same(got, plain(module, x, hx))
            with torch.enable_grad():
                assert_same(got, copy.deepcopy(module)(x, hx))


@every_kind
@pytest.mark.parametrize("threads", [1, 2])
def test_same_bits_of_long_steps(kind: str, threads: int, runs: list[Any]) -> None:
    """A single step with much work runs in a way of its own. The number of threads may change between two steps."""
    module, x = a_module(kind, 720, 720), torch.rand(3, 1, 1, 720)
    hx = initial(module, 1, torch.float32)
    warm(module, x[0], hx)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for step in x:
            runs.clear()
            got = module(step, hx)
            assert len(runs) == 1
            assert_same(got, plain(module, step, hx))
            hx = got[1]
    finally:
        torch.set_num_threads(before)


def test_inputs_without_a_batch_and_views(runs: list[Any]) -> None:
    """Such inputs use kept weights, too."""
    module = a_module("LSTM")
    warm(module, torch.rand(5, 2, 24))
    for x in (torch.rand(5, 24), torch.rand(2, 5, 24).transpose(0, 1), torch.rand(5, 2, 48)[..., ::2]):
        runs.clear()
        got = module(x)
        assert len(runs) == 1
        assert_same(got, plain(module, x))


def test_weights_are_packed_once(runs: list[Any]) -> None:
    """They are packed again only after a change."""
    module, x = a_module("LSTM"), torch.rand(1, 1, 24)
    for _ in range(5):
        module(x)
    assert len(runs) == 4
    assert len(set(map(id, runs))) == 1


@pytest.mark.parametrize("end", ["train", "eval", "gradients"])
def test_dropped(end: str, runs: list[Any]) -> None:
    """A change of mode and calls that record gradients drop the packed weights."""
    module, x = a_module("LSTM"), torch.rand(3, 1, 24)
    warm(module, x)
    if end == "gradients":
        with torch.enable_grad():
            module(x)
    else:
        getattr(module, end)()
    runs.clear()
    module(x)
    assert not runs


def test_dropout(runs: list[Any]) -> None:
    """With dropout between layers, the layers run one after the other."""
    module, x = a_module("LSTM", num_layers=2, dropout=0.5), torch.rand(3, 1, 24)
    warm(module, x)
    assert not runs
    warm(module.eval(), x)
    assert len(runs) == 2
    runs.clear()
    module.training = True
    module(x)
    assert not runs


def test_frozen_parameters(runs: list[Any]) -> None:
    """Without no_grad, weights are kept unless the input requires gradients."""
    module, x = a_module("GRU").requires_grad_(requires_grad=False), torch.rand(3, 1, 24)
    with torch.enable_grad():
        assert_same(warm(module, x), plain(module, x))
        assert len(runs) == 2
        output, _ = module(x.requires_grad_())
        assert output.requires_grad
    assert len(runs) == 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_results(mode: Any, runs: list[Any]) -> None:
    """Results are the same kind of tensors as without kept weights, and can be changed."""
    module, x = a_module("LSTM"), torch.rand(3, 1, 24)
    with mode():
        first = tensors(module(x))
        kept = tensors(warm(module, x))
        assert len(runs) == 3
        for one, other in zip(first, kept, strict=True):
            for what in ("requires_grad", "is_leaf", "layout", "device", "shape"):
                assert getattr(one, what) == getattr(other, what)
            assert one.is_inference() == other.is_inference()
            assert one.stride() == other.stride()
        wanted = [tensor.clone() for tensor in kept]
        module(torch.rand(3, 1, 24))
        assert all(map(torch.equal, kept, wanted))


@every_kind
def test_errors(kind: str) -> None:
    """The errors are those of a module that keeps no weights."""
    module, x = a_module(kind), torch.rand(3, 2, 24)
    hx = initial(module, 2, torch.float32)
    short = initial(module, 1, torch.float32)
    warm(module, x, hx)
    one = tensors((x, hx))[1]  # an LSTM wants two
    for given in (
        (x.double(),),
        (x[..., 1:],),
        (x[0, 0],),
        (x[:0],),
        (x.numpy(),),
        (x, short),
        (x, x),
        (x, [hx]),
        (x, (hx, hx, hx)),
        (x, [one]),
        (x, (one,)),
        (x.to("meta"), hx),
    ):
        found = []
        for each in (module, copy.deepcopy(module)):
            with pytest.raises(Exception) as error:
                each(*given)
            found.append((error.type, str(error.value)))
        assert found[0] == found[1]
        assert_same(module(x, hx), plain(module, x, hx))


def test_threads() -> None:
    """Several threads use one module while one of them changes it."""
    module = a_module("LSTM", num_layers=2)
    given = [torch.rand(4, 1, 24) for _ in range(4)]
    wanted = [plain(module, x) for x in given]
    warm(module, given[0])
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(200):
                output, _ = module(given[number])
                if not torch.equal(output, wanted[number][0]):
                    wrong.append(number)
                if number == 0:
                    module.weight_hh_l0.mul_(1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copies_have_no_packed_weights() -> None:
    """Copies, pickles, files and state_dicts have none, and `revert` drops them."""
    module, x = a_module("LSTM"), torch.rand(3, 1, 24)
    results = warm(module, x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = [copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    copies.append(torch.load(file, weights_only=False))
    for each in copies:
        assert "_kept" not in vars(each)
        assert_same(warm(each, x), results)
    assert list(module.state_dict()) == list(torch.nn.LSTM(24, 40).state_dict())
    assert "_kept" in vars(module)
    assert "_kept" not in vars(ours.revert(module))


@pytest.mark.filterwarnings("ignore")
def test_transforms_and_tracers_see_the_operator() -> None:
    """Calls under transforms, modes and tracers do not use kept weights."""
    module, x = a_module("GRU"), torch.rand(3, 1, 24)
    wanted = warm(module, x)
    many = torch.vmap(module, in_dims=0)(torch.stack([x, x]))
    np.testing.assert_allclose(many[0][1], wanted[0], atol=1e-6)
    for pre_dispatch in (False, True):
        make_fx = functools.partial(torch.fx.experimental.proxy_tensor.make_fx, pre_dispatch=pre_dispatch)
        graph = make_fx(lambda given: module(given)[0])(x)
        assert "vkrnn.network" in graph.code
        assert torch.equal(graph(x), wanted[0])
    traced = torch.jit.trace(module, (x,), check_trace=False)
    np.testing.assert_allclose(traced(2 * x)[0], module(2 * x)[0], atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        output, _ = module(torch.autograd.forward_ad.make_dual(x, x))
        assert torch.autograd.forward_ad.unpack_dual(output).tangent is not None


def test_devices(runs: list[Any]) -> None:
    """Each device has its own packed weights."""
    module, x = a_module("LSTM"), torch.rand(3, 1, 24)
    device = vkrnn.Device("cpu (")
    with device:
        on_the_cpu = plain(module, x)
    wanted = warm(module, x)
    runs.clear()
    with device:
        assert_same(warm(module, x), on_the_cpu)
        assert [each.device for each in runs] == [device] * 2
    runs.clear()
    assert_same(warm(module, x), wanted)
    assert device not in [each.device for each in runs]
    with device:
        warm(module, x)
        device.close()
        with pytest.raises(vkrnn.DeviceError, match=r"\[lstm\] the device is closed"):
            module(x)


FORKED = """
import os, sys
sys.path.insert(0, {support!r})
import torch, vkrnn.torch
from forked_child import end_of
torch.set_grad_enabled(False)
module, x = vkrnn.torch.LSTM(24, 40), torch.rand(3, 1, 24)
results = [module(x)[0] for _ in range(3)]
child = os.fork()
if child == 0:
    results += [module(x)[0] for _ in range(3)]
    os._exit(not all(torch.equal(each, results[0]) for each in results))
assert end_of(child) == 0
assert torch.equal(module(x)[0], results[0])
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no os.fork on this system")
def test_a_forked_child() -> None:
    """A forked child can use packed weights, too, on the CPU: drivers of GPUs need not work there."""
    support = str(Path(__file__).parents[1] / "support")
    environment = os.environ | {"VKRNN_DEVICE": "cpu ("}
    subprocess.run([sys.executable, "-c", FORKED.format(support=support)], env=environment, check=True)
