"""vkrnn.jax on a CUDA device: compiled programs and single calls, against the CPU."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

import vkrnn
from cases import CELLS, DESCRIPTORS, GATES
from jax_ways import require_ffi
from targets import require_cuda_device
from vkrnn.precision import Precision

jax = pytest.importorskip("jax")
try:
    (GPU, *_) = jax.devices("cuda")
except RuntimeError as problem:
    pytest.skip(f"JAX has no GPU: {problem}", allow_module_level=True)
require_ffi()
require_cuda_device()
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import vkrnn.jax as ours  # noqa: E402
from vkrnn.jax import _host  # noqa: E402

T, N, I, H = 9, 5, 7, 12
DTYPES = {"float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}
every_cell = pytest.mark.parametrize("cell", GATES)
CPU = vkrnn.Device("cpu (")


@pytest.fixture
def _no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a call runs on the host."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a call has run in Python on the host")

    monkeypatch.setattr(_host, "run", refuse)


def draw(cell: str, *, D: int = 1, options: bool = False, rows: int = N) -> dict[str, Any]:
    """Return the arrays of a call, with every argument of the cell if `options`."""
    rng = np.random.default_rng(3)
    G = GATES[cell]

    def array(*shape: int) -> Any:
        return (0.4 * rng.standard_normal(shape)).astype(np.float32)

    given = {
        "source": array(T, rows, I),
        "recurrent_weight": array(*((G * H, H) if D == 1 else (D, G * H, H))),
        "input_weight": array(D * G * H, I),
    }
    if options:
        given |= {"bias": array(D * G * H), "init_state": array(rows, D * H), "mask": abs(array(1, rows, D * H))}
        given |= {f"init_{name}": array(rows, D * H) for name in CELLS[cell]}
        if cell == "lstm":
            given["peephole"] = array(D * 4 * H)
        if cell == "gru":
            given["secondary_bias"] = array(D * H)
    return given


def descriptor_of(cell: str, *, bidirectional: bool = False) -> Any:
    """Return a descriptor with which each argument has a meaning."""
    more: dict[str, dict[str, Any]] = {"gru": {"reset_after": True}, "single_gate_rnn": {"activation": "tanh"}}
    return DESCRIPTORS[cell](bidirectional=bidirectional, **more.get(cell, {"produce_cell": True}))


def loss_of(cell: str, **options: Any) -> Any:
    """Return a number that depends on the outputs, and of an LSTM on all cells."""

    def loss(own: dict[str, Any], fixed: dict[str, Any]) -> Any:
        found = getattr(ours, cell)(**own, **fixed, **options)
        total = (found.output.astype(jnp.float32) ** 2).sum()
        if cell == "lstm":
            total += found.cell_output.astype(jnp.float32).sum()
        return total

    return loss


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is differentiated, and the rest."""
    fixed = {"mask", "lengths"}
    return {n: a for n, a in given.items() if n not in fixed}, {n: a for n, a in given.items() if n in fixed}


def assert_close(found: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    """Compare arrays by name, relative to the largest value of each."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        one, other = np.asarray(found[name], np.float64), np.asarray(array, np.float64)
        error = abs(one - other).max() / max(abs(other).max(), 1e-3)
        assert error <= tolerance, f"{name}: {error:.2e}"


@pytest.mark.usefixtures("_no_python")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("with_lengths", [False, True])
@every_cell
def test_a_program_computes_on_the_gpu(
    cell: str,
    with_lengths: bool,  # noqa: FBT001
    D: int,
    dtype: str,
) -> None:
    """Outputs and all gradients with every option are those of the CPU, and no Python runs."""
    given = {name: array.astype(jnp.dtype(dtype)) for name, array in draw(cell, D=D, options=True).items()}
    if with_lengths:
        given["lengths"] = np.arange(N, dtype=np.int32) + 2
    descriptor = descriptor_of(cell, bidirectional=D == 2)
    own, fixed = split(jax.device_put(given, GPU))
    compiled = jax.jit(jax.value_and_grad(loss_of(cell, descriptor=descriptor)))
    value, gradients = compiled(own, fixed)
    assert {device.platform for array in gradients.values() for device in array.devices()} == {"gpu"}
    with CPU:
        there = {name: np.asarray(array, np.float32) for name, array in given.items() if name != "lengths"}
        if with_lengths:
            there["lengths"] = given["lengths"]
        wanted, wanted_gradients = jax.jit(jax.value_and_grad(loss_of(cell, descriptor=descriptor)))(*split(there))
    assert_close({"value": value} | gradients, {"value": wanted} | wanted_gradients, DTYPES[dtype])


@pytest.mark.usefixtures("_no_python")
@every_cell
def test_single_calls_stay_on_the_gpu(cell: str) -> None:
    """Outside of jit, too."""
    given = jax.device_put(draw(cell), GPU)
    descriptor = descriptor_of(cell)
    output = getattr(ours, cell)(**given, descriptor=descriptor).output
    assert {device.platform for device in output.devices()} == {"gpu"}
    wanted = jax.jit(lambda given: getattr(ours, cell)(**given, descriptor=descriptor).output)(given)
    assert np.array_equal(output, wanted)


@pytest.mark.usefixtures("_no_python")
@every_cell
def test_vmap_and_scan(cell: str) -> None:
    """Examples of a vmap, and XLA's loop around a call, are single calls."""
    given = jax.device_put(draw(cell), GPU)
    descriptor = descriptor_of(cell)

    def output(given: dict[str, Any]) -> Any:
        return getattr(ours, cell)(**given, descriptor=descriptor).output

    wanted = np.asarray(jax.jit(output)(given))
    many = {name: jnp.stack([array, array]) for name, array in given.items()}
    for mapped in (jax.vmap(output), lambda many: jax.lax.map(output, many)):
        assert_close({"output": jax.jit(mapped)(many)}, {"output": np.stack([wanted, wanted])}, 1e-6)


@every_cell
def test_work_before_and_after_is_in_order(cell: str) -> None:
    """XLA's own kernels write what a call reads, and read what it writes, in many turns."""
    given = jax.device_put(draw(cell), GPU)
    weight = jnp.ones((H, I), jnp.float32) / H

    def in_turns(given: dict[str, Any], source: Any) -> Any:
        for _ in range(20):
            output = getattr(ours, cell)(**given | {"source": source}).output
            source = jnp.tanh(jnp.matmul(output, weight, precision="highest"))
        return source

    turns = jax.jit(in_turns)
    wanted = np.asarray(given["source"])
    for _ in range(20):
        with CPU:
            output = getattr(vkrnn, cell)(**{n: np.asarray(a) for n, a in given.items()} | {"source": wanted}).output
        wanted = np.tanh(output @ np.asarray(weight))
    busy = jax.device_put(jax.random.normal(jax.random.key(0), (2048, 2048)), GPU)
    jax.block_until_ready(turns(given, given["source"]))
    for _ in range(5):
        busy = busy @ busy / 2048
        assert_close({"output": turns(given, given["source"])}, {"output": wanted}, 1e-4)


@pytest.mark.usefixtures("_no_python")
def test_a_named_cuda_device() -> None:
    """Its strategies are used."""
    given = jax.device_put(draw("lstm"), GPU)
    with vkrnn.Device("cuda:0 ", schedule="steps") as device:
        found = jax.jit(lambda given: ours.lstm(**given, device=device).output)(given)
        assert device.statistics()["calls"] == 1
    assert_close({"output": found}, {"output": ours.lstm(**given).output}, 1e-5)


def test_a_named_cpu_device() -> None:
    """Arrays on the GPU go to the host and back."""
    given = jax.device_put(draw("gru"), GPU)
    found = jax.jit(lambda given: ours.gru(**given, device=CPU).output)(given)
    assert {device.platform for device in found.devices()} == {"gpu"}
    assert_close({"output": found}, {"output": ours.gru(**given).output}, 1e-5)


@pytest.mark.usefixtures("_no_python")
def test_precision_is_that_of_the_trace() -> None:
    """TF32 products have the error of ten bits of mantissa, others of float32."""
    rng = np.random.default_rng(5)
    given = {
        "source": rng.standard_normal((4, 64, 512)).astype(np.float32),
        "recurrent_weight": (rng.standard_normal((2048, 512)) / 22).astype(np.float32),
        "input_weight": (rng.standard_normal((2048, 512)) / 22).astype(np.float32),
    }
    exact: dict[str, Any] = {name: array.astype(np.float64) for name, array in given.items()}
    wanted = vkrnn.reference.lstm(**exact).output
    there = jax.device_put(given, GPU)
    errors = {}
    for precision in get_args(Precision):
        with vkrnn.fp32_precision(precision):
            compiled = jax.jit(lambda given: ours.lstm(**given).output).lower(there).compile()
        errors[precision] = abs(np.asarray(compiled(there)) - wanted).max()
    assert errors["ieee"] < 1e-5
    assert 5e-5 < errors["tf32"] < 5e-3


@every_cell
def test_export(cell: str) -> None:
    """A program for CUDA devices, alone or among others, is read again and run."""
    given = jax.device_put(draw(cell), GPU)
    function = jax.jit(lambda given: getattr(ours, cell)(**given).output)
    allowed = [export.DisabledSafetyCheck.custom_call("vkrnn")]
    for platforms in (["cuda"], ["cpu", "cuda"]):
        exported = export.export(function, platforms=platforms, disabled_checks=allowed)(given)
        program = export.deserialize(exported.serialize())
        assert np.array_equal(program.call(given), function(given))


def test_an_empty_batch() -> None:
    """The output is empty, and the gradients of the weights are zeros."""
    own, fixed = split(jax.device_put(draw("lstm", rows=0), GPU))
    gradients = jax.jit(jax.grad(loss_of("lstm", descriptor=vkrnn.LSTMDescriptor(produce_cell=True))))(own, fixed)
    assert gradients["source"].shape == (T, 0, I)
    assert not np.asarray(gradients["input_weight"]).any()
