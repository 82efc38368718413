"""Programs and pickles of an older vkrnn still load, and give the numbers that they gave then.

tests/support/make_exports.py wrote them, and says with which versions.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require
from tolerances import DTYPES, SAME_IN_FLOAT64

DATA = Path(__file__).parent.parent / "data"
KINDS = ("LSTM", "GRU", "RNN")
every_program = pytest.mark.parametrize("name", [f"{kind}{more}" for kind in KINDS for more in ("", " with gradients")])


def written(file: str) -> Any:
    with np.load(DATA / f"exports_{file}.npz") as kept:
        return dict(kept)


def require_version(module: Any, kept: Any) -> None:
    """Skip the test with a library older than the one that wrote the programs, which need not read them."""
    ours, theirs = (tuple(map(int, str(each).split("+")[0].split(".")[:2])) for each in (module.__version__, kept))
    if ours < theirs:
        pytest.skip(f"{module.__name__} {kept} wrote the programs, this is {module.__version__}")


def assert_as_written(kept: Any, name: str, found: Any, tolerance: float) -> None:
    """Compare results with what they were. Another processor sums in another order, so the bits may differ."""
    wanted = [kept[key] for key in kept if key.startswith(f"{name}: ") and key[len(name) + 2 :].isdigit()]
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() <= tolerance * max(1, np.abs(other).max())


@every_program
@pytest.mark.filterwarnings("ignore")  # PyTorch's own affairs
def test_torch_programs(name: str) -> None:
    """Programs of modules and functions, of the forward pass and of both."""
    torch = require("torch")
    import vkrnn.torch  # noqa: PLC0415 - registers the operators

    kept = written("torch")
    require_version(torch, kept["version"])
    program = torch.export.load(io.BytesIO(kept[f"{name}: program"].tobytes()))
    inputs = *program.parameters(), torch.from_numpy(kept[f"{name}: source"]), torch.from_numpy(kept["lengths"])
    with vkrnn.Device("cpu ("):
        found = torch.fx.Interpreter(program.graph_module).run(*inputs)
    assert_as_written(kept, name, [each.detach().numpy() for each in found], SAME_IN_FLOAT64)
    operators = {str(node.target) for node in program.graph.nodes if "vkrnn" in str(node.target)}
    backward = {"vkrnn.layer_backward.default", "vkrnn.operation_backward.default"} if "with" in name else set()
    assert operators == {"vkrnn.layer.default", "vkrnn.operation.default"} | backward


@every_program
def test_jax_programs(name: str) -> None:
    """Programs of functions, and of their gradients."""
    jax = require("jax")
    from jax_ways import require_ffi  # noqa: PLC0415

    require_ffi()
    from jax import export  # noqa: PLC0415

    import vkrnn.jax  # noqa: F401, PLC0415 - registers the handlers

    kept = written("jax")
    require_version(jax, kept["version"])
    program = export.deserialize(bytearray(kept[f"{name}: program"].tobytes()))
    start = f"{name}: given "
    given = {key[len(start) :]: kept[key] for key in kept if key.startswith(start)}
    found = jax.tree.leaves(program.call(given, kept[f"{name}: mask"], kept["lengths"]))
    assert_as_written(kept, name, [np.asarray(each) for each in found], DTYPES["float32"])


def test_pickles() -> None:
    """Descriptors, results and layers."""
    kept = written("pickles")
    names = [key.removesuffix(": pickle") for key in kept if key.endswith(": pickle")]
    assert len(names) == 2 + 3 * len(KINDS)
    require("torch")  # which some have tensors of
    for name in names:
        assert repr(pickle.loads(kept[f"{name}: pickle"].tobytes())) == kept[f"{name}: repr"].item()


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_modules(kind: str) -> None:
    """Modules compute the same, and take the parameters of others."""
    torch = require("torch")
    kept = written("pickles")
    name = f"{kind} module"
    module = torch.load(io.BytesIO(kept[f"{name}: torch"].tobytes()), weights_only=False)
    assert f"{kind}({module.extra_repr()})" == kept[f"{name}: repr"].item()
    assert f"{type(module).__module__}.{type(module).__name__}" == f"vkrnn.torch.{kind}"
    state = torch.load(io.BytesIO(kept[f"{kind} state: torch"].tobytes()), weights_only=True)
    source = torch.from_numpy(kept[f"{name}: source"])
    for parameters in (module.state_dict(), state):
        module.load_state_dict(parameters)
        with vkrnn.Device("cpu ("):
            output = module(source)[0].detach().numpy()
        wanted = kept[f"{name}: output"]
        assert np.abs(output - wanted).max() <= SAME_IN_FLOAT64 * np.abs(wanted).max()
