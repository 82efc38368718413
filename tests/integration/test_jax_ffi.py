"""vkrnn.jax through XLA's foreign function interface: compiled programs without Python, jax.export, attributes."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CELLS, DESCRIPTORS, GATES
from jax_ways import require_ffi
from oracles import require

jax = require("jax")
require_ffi()
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import vkrnn.jax as ours  # noqa: E402
from vkrnn.jax import _host  # noqa: E402

T, N, I, H = 5, 3, 7, 4
ALLOWED = [export.DisabledSafetyCheck.custom_call("vkrnn")]
every_cell = pytest.mark.parametrize("cell", GATES)


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with vkrnn.Device("cpu ("):  # others are called back
        yield


def draw(cell: str, *, seed: int = 0, rows: int = N, steps: int = T) -> dict[str, Any]:
    """Return the arrays of a call with a bias and lengths."""
    rng = np.random.default_rng(seed)
    G = GATES[cell]
    arrays = {
        "source": rng.standard_normal((steps, rows, I)),
        "recurrent_weight": rng.standard_normal((G * H, H)),
        "input_weight": rng.standard_normal((G * H, I)),
        "bias": rng.standard_normal(G * H),
    }
    lengths = np.arange(rows, dtype=np.int32) % steps + 1
    return {name: array.astype(np.float32) for name, array in arrays.items()} | {"lengths": lengths}


def function_of(cell: str, **options: Any) -> Any:
    """Return the output of a call with arrays by name."""
    return lambda given: getattr(ours, cell)(**given, **options).output


def loss_of(cell: str, **options: Any) -> Any:
    """Return a number of all weights and rows."""
    function = function_of(cell, **options)
    return lambda own, given: (function({**given, **own}) ** 2).sum()


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is differentiated, and the rest."""
    return {n: a for n, a in given.items() if n != "lengths"}, {"lengths": given["lengths"]}


@every_cell
def test_no_python_runs(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled program runs no Python in forward calls, gradients, vmap and scan."""
    given = draw(cell)
    function, loss = function_of(cell), loss_of(cell)
    wanted = function(given)
    wanted_gradients = jax.grad(loss)(*split(given))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a compiled program has called back into Python")

    monkeypatch.setattr(_host, "run", refuse)
    assert np.array_equal(jax.jit(function)(given), wanted)
    found = jax.jit(jax.grad(loss))(*split(given))
    assert all(np.array_equal(found[name], array) for name, array in wanted_gradients.items())
    many = {name: np.stack([array, array]) for name, array in given.items()}
    for mapped in (jax.vmap(function), lambda many: jax.lax.map(function, many)):
        assert np.array_equal(jax.jit(mapped)(many), np.stack([wanted, wanted]))
    with pytest.raises(AssertionError):  # outside of jit it would
        function(given)


@every_cell
def test_scan_over_steps(cell: str) -> None:
    """Steps with the carried state, in a loop of XLA's, are the whole."""
    given = draw(cell)
    del given["lengths"]
    descriptor = DESCRIPTORS[cell](produce_cell=True) if CELLS[cell] else None
    wanted = getattr(ours, cell)(**given, descriptor=descriptor)

    def step(states: Any, row: Any) -> Any:
        results = getattr(ours, cell)(**(given | {"source": row[jnp.newaxis]}), **states, descriptor=descriptor)
        found = {f"init_{name}": getattr(results, f"{name}_output")[0] for name in CELLS[cell]}
        return found | {"init_state": results.output[0]}, results.output[0]

    zeros = {f"init_{name}": jnp.zeros((N, H)) for name in ("state", *CELLS[cell])}
    _, output = jax.jit(lambda source: jax.lax.scan(step, zeros, source))(given["source"])
    assert np.array_equal(output, wanted.output)


OPTIONS: dict[str, dict[str, Any]] = {
    "single_gate_rnn": {
        "activation": "hard_sigmoid",
        "hard_sigmoid_alpha": 0.3,
        "hard_sigmoid_beta": 0.1,
        "reverse": True,
    },
    "lstm": {"forget_gate_last": True, "cell_gate_activation": "relu", "clip": 0.7},
    "gru": {"reset_after": True, "flip_z": True, "reset_gate_first": True, "output_gate_activation": "none"},
    "slstm": {"forget_gate": "exponential", "clip": 0.7},
}


@every_cell
def test_options_reach_the_handler(cell: str) -> None:
    """Flags, activations and numbers."""
    given = draw(cell)
    descriptor = DESCRIPTORS[cell](**OPTIONS[cell])
    wanted = getattr(vkrnn, cell)(**given, descriptor=descriptor).output
    assert np.array_equal(jax.jit(function_of(cell, descriptor=descriptor))(given), wanted)
    assert not np.array_equal(jax.jit(function_of(cell))(given), wanted)


@every_cell
def test_export(cell: str, tmp_path: Path) -> None:
    """A program with its derivative is read and run in another process."""
    given = draw(cell)
    loss = jax.jit(loss_of(cell))
    path = tmp_path / "program"
    program = export.export(loss, disabled_checks=ALLOWED)(*split(given))
    path.write_bytes(program.serialize(vjp_order=1))
    np.savez(tmp_path / "given.npz", **given)
    text = (
        "import sys, jax, numpy as np, vkrnn.jax; from jax import export\n"
        "program = export.deserialize(bytearray(open(sys.argv[1] + '/program', 'rb').read()))\n"
        "given = dict(np.load(sys.argv[1] + '/given.npz')); lengths = {'lengths': given.pop('lengths')}\n"
        "value, gradient = jax.value_and_grad(program.call)(given, lengths)\n"
        "np.savez(sys.argv[1] + '/found.npz', value=value, **gradient)"
    )
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    value, gradient = jax.value_and_grad(loss)(*split(given))
    assert np.array_equal(found["value"], value)
    assert all(np.array_equal(found[name], array) for name, array in gradient.items())


@every_cell
def test_export_with_symbolic_sizes(cell: str) -> None:
    """Of time, batch and input features: each size of a call is checked when the program runs."""
    steps, rows, inputs = export.symbolic_shape("steps, rows, inputs")
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in draw(cell).items()} | {
        "source": jax.ShapeDtypeStruct((steps, rows, inputs), np.float32),
        "input_weight": jax.ShapeDtypeStruct((GATES[cell] * H, inputs), np.float32),
        "lengths": jax.ShapeDtypeStruct((rows,), np.int32),
    }
    exported = export.export(jax.jit(jax.value_and_grad(loss_of(cell))), disabled_checks=ALLOWED)(*split(like))
    program = export.deserialize(exported.serialize())
    for seed, (many, long) in enumerate(itertools.product((1, 4), (2, 6))):
        given = draw(cell, seed=seed, rows=many, steps=long)
        value, gradient = jax.value_and_grad(loss_of(cell))(*split(given))
        found, gradients = program.call(*split(given))
        np.testing.assert_allclose(found, value, rtol=1e-6)  # XLA sums in an order of its own
        assert all(np.array_equal(gradients[name], array) for name, array in gradient.items())


def test_a_symbolic_size_that_does_not_fit() -> None:
    """The message names the size as the user did."""
    shape = export.symbolic_shape("steps, rows")
    with pytest.raises(ValueError) as caught:
        jax.eval_shape(
            function_of("lstm"),
            {
                "source": jax.ShapeDtypeStruct((*shape, 16), np.float32),
                "recurrent_weight": jax.ShapeDtypeStruct((16, 4), np.float32),
                "init_state": jax.ShapeDtypeStruct((shape[0], 4), np.float32),
            },
        )
    assert str(caught.value) == (
        "[lstm] init_state: expected shape [N, H] = [rows, 4] or [1, N, H] = [1, rows, 4], got [steps, 4] "
        "(N = rows from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)"
    )


def test_export_for_another_device() -> None:
    """It is refused by name: the program would call back into this process."""
    others = [device for device in vkrnn.devices() if device.backend != "native"]
    if not others:
        pytest.skip("the CPU is the only device")
    given = draw("lstm")
    with pytest.raises(NotImplementedError) as caught:
        export.export(jax.jit(function_of("lstm", device=others[0])), disabled_checks=ALLOWED)(given)
    assert str(caught.value) == (
        "[vkrnn.jax.lstm] jax.export: a program that calls vkrnn cannot be exported, because the call runs in Python "
        f"on the host (its device is {others[0].name})"
    )


def test_exported_programs_do_not_depend_on_the_default_device() -> None:
    """They run where their arrays are."""
    given = draw("lstm")
    wanted = function_of("lstm")(given)
    for device in vkrnn.devices():
        for platforms in (("cpu",), ("cuda",), ("cpu", "cuda")):
            with device:
                function = jax.jit(function_of("lstm"))
                exported = export.export(function, platforms=platforms, disabled_checks=ALLOWED)(given)
            assert exported.platforms == platforms
            if "cpu" in platforms:
                assert np.array_equal(export.deserialize(exported.serialize()).call(given), wanted)


def test_a_program_keeps_its_device() -> None:
    """A program keeps its device after all other references are gone. If the device is closed, the error says so."""
    given = draw("lstm")
    device, closed = vkrnn.Device("cpu ("), vkrnn.Device("cpu (")
    program, other = (jax.jit(function_of("lstm", device=each)).lower(given).compile() for each in (device, closed))
    wanted = program(given)
    assert (device.statistics()["calls"], closed.statistics()["calls"]) == (1, 0)
    del device
    gc.collect()
    assert np.array_equal(program(given), wanted)
    closed.close()
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(other(given))
    assert "FAILED_PRECONDITION: [lstm] the device is closed; open a new vkrnn.Device" in str(caught.value)
    assert np.array_equal(program(given), wanted)


def test_variables_are_those_of_the_latest_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler cannot read the environment itself while Python may change it."""
    given = draw("gru")
    wanted = function_of("gru")(given)
    monkeypatch.setenv("VKRNN_NUM_THREADS", "many")
    program = jax.jit(function_of("gru")).lower(given).compile()
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(program(given))
    assert "[gru] VKRNN_NUM_THREADS: expected a positive number, got 'many'" in str(caught.value)
    monkeypatch.setenv("VKRNN_NUM_THREADS", "1")
    assert np.array_equal(jax.jit(function_of("gru")).lower(given).compile()(given), wanted)
    assert np.array_equal(program(given), wanted)


RIGHT: dict[str, Any] = {
    "cell": "lstm",
    "gradients": np.bool_(False),  # noqa: FBT003
    "arguments": "source,recurrent_weight",
    "results": "output",
    "descriptor": {"reverse": np.bool_(True)},  # noqa: FBT003
    "device": np.int64(0),
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cell": "mgu"}, "[vkrnn.jax] there is no cell 'mgu'"),
        ({"cell": np.int64(1)}, "[vkrnn.jax] cell: "),
        ({"arguments": "source,weights"}, "[lstm] weights: unknown argument"),
        ({"arguments": "source,recurrent_weight,bias"}, "[lstm] bias: the operand is missing"),
        ({"arguments": "source"}, "[lstm] arguments: some operands have no name"),
        ({"arguments": "recurrent_weight,source"}, "[lstm] source: expected 3 axes [T, N, 4H], got [8, 2]"),
        ({"results": "z_state"}, "[lstm] output: the program has no result of the call's shape and dtype"),
        (
            {"descriptor": {"produce_cell": np.bool_(True)}},  # noqa: FBT003
            "[lstm] cell_output: the program has no result of the call's shape and dtype",
        ),
        ({"descriptor": {"zoneout": 0.1}}, "[vkrnn.jax] descriptor: the program has a property that this version"),
        ({"descriptor": {"activation": np.int64(9)}}, "[vkrnn.jax] activation: there is no such activation"),
        ({"descriptor": {"clip": np.float64(-1)}}, "[lstm] descriptor.clip: expected"),
        ({"descriptor": {"heads": np.int64(0)}}, "[lstm] descriptor.heads: expected 1 or more, got 0"),
        ({"descriptor": {"heads": 0.5}}, "[vkrnn.jax] heads: "),
        ({"device": np.int64(10**6)}, "[vkrnn.jax] the program's device is not one of this process"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_programs_of_other_versions(wrong: dict[str, Any], message: str) -> None:
    """An attribute that this handler does not understand is an error, never a wrong result."""
    source, weight = jnp.ones((3, 2, 8)), jnp.ones((8, 2))

    def call(attributes: dict[str, Any]) -> Any:
        kinds = [jax.ShapeDtypeStruct((3, 2, 2), np.float32)]
        return jax.jit(lambda *given: jax.ffi.ffi_call("vkrnn", kinds)(*given, **attributes))(source, weight)

    reverse = vkrnn.LSTMDescriptor(reverse=True)
    assert np.array_equal(call(RIGHT)[0], ours.lstm(source, weight, descriptor=reverse).output)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(call(RIGHT | wrong))
    assert message in str(caught.value)


def test_programs_with_gradients_of_cells() -> None:
    """Older programs have those of the last cells with a byte `other_cells`, and the oldest ones those of all."""
    given = draw("lstm")
    found = vkrnn.lstm(**given, descriptor=vkrnn.LSTMDescriptor(training=True))
    given |= {"z_state": found.z_state, "cell_output_fwd": found.cell_output}
    given["source_gradient"], every = np.random.default_rng(1).standard_normal((2, T, N, H)).astype(np.float32)
    last = every[given["lengths"] - 1, range(N)]
    attributes = RIGHT | {"gradients": np.bool_(True), "descriptor": {}}  # noqa: FBT003

    def call(**cells: Any) -> Any:
        wanted = vkrnn.lstm_gradients(**given, cell_gradient=cells["cell_gradient"])
        names = {"arguments": ",".join([*given, *cells]), "results": ",".join(wanted._fields)}
        kinds = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in wanted]
        program = jax.jit(lambda *arrays: jax.ffi.ffi_call("vkrnn", kinds)(*arrays, **(attributes | names)))
        return program(*given.values(), *cells.values()), wanted

    for cells in ({"cell_gradient": every}, {"cell_gradient": last, "other_cells": np.uint8(0)}):
        for one, other in zip(*call(**cells), strict=True):
            assert np.array_equal(one, other)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(call(cell_gradient=last, other_cells=np.uint8(1))[0])
    assert str(caught.value).splitlines()[0] == (
        "UNIMPLEMENTED: [lstm_gradients] cell_gradient: this program was made by an older vkrnn, which has gradients "
        "of the cells after each direction's last step only"
    )


REFUSED = "invalid literal for int() with base 10: 'new'"  # an error like XLA's, for a handler that is too new


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("vkrnn._core.xla_handler = lambda: None", "vkrnn was built without XLA's headers"),
        ("sys.modules['jax.ffi'] = None", f"JAX {jax.__version__}: import of jax.ffi halted; None in sys.modules"),
        ("jax.ffi.register_ffi_target = lambda *_, **__: int('new')", f"JAX {jax.__version__}: {REFUSED}"),
    ],
    ids=["handler", "jax.ffi", "consent of XLA's"],
)
def test_without(missing: str, problem: str) -> None:
    """Programs call back into Python, and both the log and `ffi_problem` say why."""
    program = (
        "import logging, sys, jax, jax.numpy as jnp, vkrnn._core\n"
        "logging.basicConfig(level='WARNING', format='%(message)s', stream=sys.stdout)\n"
        "logging.getLogger('vkrnn').setLevel('INFO')\n"
        f"{missing}\n"
        "import vkrnn.jax; logging.disable(); print(vkrnn.jax.ffi_problem())\n"
        "print(jax.jit(vkrnn.jax.lstm)(jnp.ones((3, 2, 8)), jnp.ones((8, 2))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"programs of JAX call back into Python: {problem}",
        problem,
        "Results(lstm: output [3, 2, 2] float32)",
    ], done.stderr
