"""vkrnn.jax in JAX's runtime: compilations, empty vmaps, devices, threads, process exit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import vkrnn
from jax_ways import both_ways, require_ffi
from oracles import require
from scale import HANGS_AFTER

jax = require("jax")
import jax.numpy as jnp  # noqa: E402

import vkrnn.jax as ours  # noqa: E402


def test_calls_outside_of_jit_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A compiled program would stay in JAX's caches."""
    source, weight, many = jnp.ones((3, 2, 4)), jnp.ones((4, 1)), jnp.ones((2, 3, 2, 4))

    def output(source: Any) -> Any:
        return ours.lstm(source, weight).output

    def everything() -> None:
        output(source)
        jax.vmap(output)(many)
        jax.vjp(output, source)[1](source[..., :1])

    everything()  # compiles JAX's own operations
    caplog.clear()
    with jax.log_compiles():
        everything()
        assert not caplog.messages
        jax.jit(output)(source)
    assert any(message.startswith("Compiling") for message in caplog.messages)


@pytest.mark.parametrize("way", ["output", "gradient"])
def test_vmap_over_no_examples(way: str) -> None:
    """Results are empty."""
    weight = jnp.ones((4, 1))
    function = {
        "output": lambda source: ours.lstm(source, weight).output,
        "gradient": jax.grad(lambda source: ours.lstm(source, weight).output.sum()),
    }[way]
    for mapped in (jax.vmap(function), jax.jit(jax.vmap(function))):
        assert mapped(jnp.ones((0, 3, 2, 4))).shape == (0, 3, 2, 1 if way == "output" else 4)


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_debugging(number: str) -> None:
    """JAX's options that look for non-finite numbers work outside of jit, too."""
    source, weight = jnp.full((3, 1, 2), 3e38), jnp.eye(2)  # the second step overflows, the third multiplies by 0
    linear = vkrnn.SingleGateRNNDescriptor(activation="none")
    jax.config.update(f"jax_debug_{number}s", True)  # noqa: FBT003
    try:
        with pytest.raises(FloatingPointError) as caught:
            ours.single_gate_rnn(source, weight, descriptor=linear)
    finally:
        jax.config.update(f"jax_debug_{number}s", False)  # noqa: FBT003
    assert str(caught.value) == f"[vkrnn.jax.single_gate_rnn] invalid value ({number}) encountered"


def test_device() -> None:
    """A call runs on the named device, or on the default device at the time of tracing."""

    def call(**more: Any) -> Any:
        return ours.lstm(jnp.ones((3, 2, 4)), jnp.ones((4, 1)), **more)

    cpu = vkrnn.Device("cpu (")
    with vkrnn.Device("cpu (") as other:
        before = other.statistics()["calls"]
        traced = jax.jit(call).lower().compile()
        call(device=cpu)
        assert other.statistics()["calls"] == before
        assert cpu.statistics()["calls"] == 1
    jax.block_until_ready(traced())
    assert other.statistics()["calls"] == before + 1


@both_ways
def test_the_slower_way_warns_once(way: str, tmp_path: Path) -> None:
    """The warning names the line that compiles the first such program. Calls outside of jit do not warn."""
    if way == "ffi":
        require_ffi()
    program = tmp_path / "program.py"
    program.write_text(
        ("import vkrnn._core; vkrnn._core.xla_handler = lambda: None\n" if way == "callback" else "\n")
        + "import jax, numpy as np, vkrnn.jax\n"
        "def output(source): return vkrnn.jax.single_gate_rnn(source, np.ones((2, 2), np.float32)).output\n"
        "with vkrnn.Device('cpu ('):\n"
        "    output(np.ones((3, 1, 2), np.float32))\n"
        "    jax.jit(output)(np.ones((3, 1, 2), np.float32))\n"
        "    jax.jit(output)(np.ones((4, 1, 2), np.float32))\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    warned = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert warned == [
        f"{program}:6: RuntimeWarning: [vkrnn.jax] compiled programs call back into Python, which takes longer: vkrnn "
        "was built without XLA's headers; docs/jax.md says how to build vkrnn so that they call it directly"
    ] * (way == "callback")


def test_the_process_ends_during_calls() -> None:
    """It waits for the calls, because JAX's threads need the interpreter."""
    program = (
        "import jax, numpy as np, vkrnn.jax; call = jax.jit(lambda *given: vkrnn.jax.lstm(*given).output);"
        "source, weight = np.ones((200, 64, 512), np.float32), np.zeros((512, 128), np.float32);"
        "call(source[:2], weight).block_until_ready(); results = [call(source, weight + i) for i in range(5)]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANGS_AFTER
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs os.sched_setaffinity")
@both_ways
def test_calls_in_flight_on_one_processor(way: str) -> None:
    """Calls finish if XLA has one thread only, because they need no second one."""
    run_program(
        """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import jax, numpy as np, vkrnn.jax
        def loss(source, weight): return (vkrnn.jax.single_gate_rnn(source, weight).output ** 2).sum()
        call = jax.jit(jax.value_and_grad(loss))
        source, weight = np.ones((60, 32, 128), np.float32), np.zeros((128, 128), np.float32)
        jax.block_until_ready([call(source, weight + i) for i in range(10)])
    """,
        way,
    )


@both_ways
def test_several_devices_of_jax(way: str) -> None:
    """Sharded arguments are gathered; under shard_map each device computes its share."""
    run_program(
        """
        import jax, numpy as np, vkrnn.jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        def output(source, weight): return vkrnn.jax.single_gate_rnn(source, weight).output
        def square(source, weight): return (output(source, weight) ** 2).sum()
        source, weight = np.ones((3, 4, 2), np.float32), np.eye(2, dtype=np.float32)
        source += np.arange(4, dtype=np.float32)[:, np.newaxis]
        gradient = jax.grad(square, argnums=(0, 1))
        wanted = output(source, weight), *gradient(source, weight)
        def same(found, wanted): np.testing.assert_allclose(found, wanted, rtol=1e-6)

        mesh, rows = Mesh(np.array(jax.devices()), ("d",)), P(None, "d")
        shards = jax.device_put(source, NamedSharding(mesh, rows))
        for call, derivative in ((output, gradient), (jax.jit(output), jax.jit(gradient))):
            for found, value in zip((call(shards, weight), *derivative(shards, weight)), wanted, strict=True):
                same(found + shards.sum() - shards.sum(), value)  # can be computed with
        second = jax.devices()[1]
        assert output(jax.device_put(source, second), weight).devices() == {second}

        for out in (rows, P()):
            found = jax.jit(output, out_shardings=NamedSharding(mesh, out))(shards, weight)
            assert found.sharding == NamedSharding(mesh, out)
            same(found, wanted[0])
        halves = np.stack([source[:, :2], source[:, 2:]])
        same(np.concatenate(jax.pmap(output, in_axes=(0, None))(halves, weight), axis=1), wanted[0])

        if hasattr(jax, "shard_map") and hasattr(jax.lax, "pcast"):
            def divided(function, out_specs):
                return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(rows, P()), out_specs=out_specs))
            same(divided(output, rows)(shards, weight), wanted[0])
            for found, value in zip(divided(gradient, (rows, P()))(shards, weight), wanted[1:], strict=True):
                same(found, value)
            try:
                divided(output, P())(shards, weight)  # differs from device to device
            except ValueError:
                pass
            else:
                raise AssertionError("a sharded result was taken for a replicated one")
    """,
        way,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )


def run_program(text: str, way: str, **environment: str) -> None:
    """Run a program in its own process, which must end without an error. `way` is how calls under jit are made."""
    if way == "ffi":
        require_ffi()
    absent = "import vkrnn._core; vkrnn._core.xla_handler = lambda: None\n"
    done = subprocess.run(
        [sys.executable, "-c", ("" if way == "ffi" else absent) + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
