"""Calls by addresses, as vkrnn.torch makes them, on the driver without a GPU of tests/support/cuda_driver.c."""

from __future__ import annotations

from ast import literal_eval

import pytest

from tests.support.fake_cuda import environment, needs_compiler, needs_nvrtc, run

pytestmark = [*needs_compiler, needs_nvrtc]

# Arguments and results that kernels cannot access, because their addresses are not aligned, are copied within the
# call's temporary memory: there is one copy after the other, of arguments and then of results, in the plan's order.
PROGRAM = """
import numpy as np, vkrnn
from vkrnn import _core
T, N, I, H = 5, 3, 7, 4
device = vkrnn.Device("cuda:0")
cells = {
    "single_gate_rnn": (1, vkrnn.SingleGateRNNDescriptor(training=True)),
    "lstm": (4, vkrnn.LSTMDescriptor(training=True, produce_cell=True)),
    "gru": (3, vkrnn.GRUDescriptor(training=True, reset_after=True)),
}

def aligned(count):
    return (count + 255) // 256 * 256

def misaligned(shape):
    count = int(np.prod(shape))
    memory = np.zeros(count + 8, np.float32)
    first = 1 + -(memory.ctypes.data // 4) % 4
    return memory[first : first + count].reshape(shape)

for cell, (G, descriptor) in cells.items():
    forward = {
        "source": (T, N, I), "recurrent_weight": (G * H, H), "input_weight": (G * H, I), "bias": (G * H,),
        "init_state": (N, H), "mask": (1, N, H),
        **{"lstm": {"init_cell": (N, H), "peephole": (4 * H,)}, "gru": {"secondary_bias": (H,)}}.get(cell, {}),
    }
    kept = {"lstm": {"cell_output_fwd": (T, N, H), "cell_gradient": (N, H)}, "gru": {"output_fwd": (T, N, H)}}
    backward = forward | kept.get(cell, {})
    backward |= {"source_gradient": (T, N, H), "state_gradient": (N, H), "z_state": (T, N, G * H)}
    for name, shapes in ((cell, forward), (cell + "_gradients", backward)):
        arrays = {key: misaligned(shapes[key]) for key in reversed(shapes)}
        for number, array in enumerate(arrays.values()):
            array[...] = number + 1
        call = _core.TensorCall(
            device._open(), cell, descriptor, layers=1, gradients=name != cell, trained=1, lengths=None, packed=False,
            torch_layout=False, tf32=False,
            operands=[(key, 0, "float32", array.shape) for key, array in arrays.items()],
        )
        results = {key: misaligned(shape) for key, _, shape in call.results}
        copied = []
        def allocate(count):
            memory = np.zeros(count // 4 + 64, np.float32)
            first = -(memory.ctypes.data // 4) % 64
            copied.append(memory[first : first + count // 4])
            copied[0][...] = np.arange(count // 4)
            return copied[0].ctypes.data
        addresses = [[array.ctypes.data for array in those.values()] for those in (arrays, results)]
        call.run(*addresses, 1, 0, 0, allocate)
        plan = vkrnn.plan(getattr(vkrnn, name), **arrays, descriptor=descriptor, device=device)
        where = {"input": [], "result": []}
        for key, role, count in plan.buffers:
            where.get(role, []).append((key, count))
        at = copied[0].size - sum(aligned(count) // 4 for each in where.values() for _, count in each)
        wrong = []
        for key, count in where["input"]:
            if set(copied[0][at : at + count // 4]) != set(arrays[key].flat):
                wrong.append(key)
            at += aligned(count) // 4
        for (key, count), (of, array) in zip(where["result"], results.items(), strict=True):
            if key.removeprefix("gradient of ") != of or list(array.flat) != list(range(at, at + count // 4)):
                wrong.append(key)
            at += aligned(count) // 4
        print((name, len(where["input"]) == len(arrays), wrong))
"""


@pytest.fixture(name="fake", scope="module")
def _fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the driver and return the environment of programs that use it."""
    return environment(tmp_path_factory.mktemp("cuda"))


def test_each_address_is_that_of_its_argument(fake: dict[str, str]) -> None:
    """Whatever the order in which arguments are given, and for all results."""
    found = [literal_eval(line) for line in run(PROGRAM, fake).splitlines()]
    cells = ("single_gate_rnn", "lstm", "gru")
    assert found == [(name, True, []) for cell in cells for name in (cell, f"{cell}_gradients")]
