"""How much memory a call asks for before it runs: its plan's peak, without arrays that exist already."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jax_ways import require_ffi
from scale import HANGS_AFTER

PRELUDE = """
import pathlib, re, resource, numpy as np, vkrnn

device = vkrnn.Device("cpu (")
T, N, I, H = 20, 256, 2048, 64
shapes = {
    "source": (T, N, I), "recurrent_weight": (4 * H, H), "source_gradient": (T, N, H), "z_state": (T, N, 4 * H),
    "cell_output_fwd": (T, N, H), "input_weight": (4 * H, I), "bias": (4 * H,),
}
arrays = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
plan = vkrnn.plan(vkrnn.lstm_gradients, **arrays, device=device)

def bytes_of(plan, *roles):
    return sum(size for _, role, size in plan.buffers if role in roles)

def limited(needed, call):
    \"\"\"Make a call in a process that may allocate 48 MiB more. Print the bytes too many that it asks for.\"\"\"
    status = pathlib.Path("/proc/self/status").read_text()
    used = int(re.search(r"VmData:\\s*(\\d+) kB", status)[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + (48 << 20), used + (48 << 20)))
    try:
        call()
    except Exception as error:
        asked, _ = (int(found.replace(",", "")) for found in re.findall(r"\\(([\\d,]+) bytes\\)", str(error)))
        print(asked - needed)
"""
GRADIENTS = "plan.peak_bytes - bytes_of(plan, 'input', 'result')"
CALLS = {
    "arrays": f"""
given = {{name: vkrnn.asarray(array, device=device) for name, array in arrays.items()}}
limited({GRADIENTS} + bytes_of(plan, "result"), lambda: vkrnn.lstm_gradients(**given))
""",
    "NumPy": f"""
out = [np.zeros(shapes[name], np.float16) for name in ("source", "recurrent_weight", "input_weight", "bias")]
limited({GRADIENTS}, lambda: vkrnn.lstm_gradients(**arrays, device=device, out=out))
""",
    "a strided array": f"""
arrays["source_gradient"] = np.zeros((T, N, 2 * H), np.float16)[:, :, ::2]
needed = {GRADIENTS} + bytes_of(plan, "result") + arrays["source_gradient"].nbytes
limited(needed, lambda: vkrnn.lstm_gradients(**arrays, device=device))
""",
    "jax": f"""
import jax, vkrnn.jax

given = {{name: jax.numpy.asarray(arrays[name]) for name in ("source", "recurrent_weight", "input_weight", "bias")}}
with device:
    output, back = jax.vjp(lambda given: vkrnn.jax.lstm(**given).output, given)
    compiled = jax.jit(lambda back, gradient: back(gradient)).lower(back, output).compile()
limited({GRADIENTS}, lambda: jax.block_until_ready(compiled(back, output)))
""",
    "stream": """
H = 1280
arrays = {"recurrent_weight": np.zeros((4 * H, H), np.float32), "input_weight": np.zeros((4 * H, 512), np.float32)}
rows = {"source": np.zeros((1, 1, 512), np.float32)}
states = {name: np.zeros((1, H), np.float32) for name in ("init_state", "init_cell")}
plan = vkrnn.plan(vkrnn.lstm, **rows, **arrays, **states, device=device)
needed = plan.peak_bytes - rows["source"].nbytes - bytes_of(plan, "result")
vkrnn.stream([("lstm", {name: array[:8, :2] for name, array in arrays.items()}, None)], device=device)
limited(needed, lambda: vkrnn.stream([("lstm", arrays, None)], device=device))
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("way", CALLS)
def test_the_error_asks_for_what_the_call_allocates(way: str) -> None:
    """Buffers that share memory count once, and arrays that exist already do not count."""
    if way == "jax":
        require_ffi()
    program = PRELUDE + CALLS[way]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS_AFTER)
    assert done.stdout == "0\n", done.stderr
