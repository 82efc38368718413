"""Flavours of the products and of the time loop: whatever the device's own flavour is, all give the same answers.

The table's cases are taken to sizes at which llvmpipe's flavours pack, tile and split, since smaller ones do not reach
them: panels of two vectors, blocks of k of 32 to 64, tiles of 8 rows.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
import vkrnn.reference
from cases import CASES, GATES, OPTIONAL, UPSTREAM, Case, gradient_inputs, inputs
from comparison import assert_close, scaled_error
from tolerances import FLOAT32, FLOAT32_RATIO

# T, N, I, H: one row; rows and steps beyond a table of 8; odd sizes around aligned ones.
SIZES = ((3, 1, 40, 64), (11, 12, 35, 32), (2, 70, 33, 96), (9, 2, 64, 128))


def widened(case: Case, sizes: tuple[int, int, int, int]) -> Case:
    """Return the case at other sizes."""
    T, N, I, H = sizes
    if "input_weight" not in case.present:
        I = case.D * case.G * H
    return replace(case, T=T, N=N, I=I, H=H)


# Of each cell: the GRU takes a step in one phase or in two.
VARIANTS: dict[str, tuple[dict[str, bool], ...]] = {cell: ({},) for cell in GATES}
VARIANTS["gru"] = ({"reset_after": True}, {})


def complete(cell: str, sizes: tuple[int, int, int, int], options: dict[str, bool], *, reverse: bool) -> Case:
    """Return a case with every argument but the mask, with which these flavours have no step kernels."""
    present = frozenset((*OPTIONAL[cell], *UPSTREAM[cell])) - {"mask"}
    return Case(cell, *sizes, options | {"reverse": reverse}, present)


def selected() -> Iterator[Case]:
    """Yield each combination of options of the table once, the sizes in turn."""
    seen = set()
    for case in CASES:
        if case.tags or case.values != "modest" or case.seed != 0 or case.mask_shape is not None:
            continue
        key = (case.cell, tuple(sorted(case.options.items())), case.present, case.lenient)
        if key not in seen:
            seen.add(key)
            yield widened(case, SIZES[len(seen) % len(SIZES)])
    for cell in GATES:
        for options in VARIANTS[cell]:
            for sizes in SIZES:
                for reverse in (False, True):
                    yield complete(cell, sizes, options, reverse=reverse)


def results(case: Case, device: vkrnn.Device | None, **more: Any) -> dict[str, Any]:
    """Return the results of a training call and of its gradients; of the reference, where there is no device."""
    arrays: dict[str, Any] = {**inputs(case), **more}
    module, where = (vkrnn.reference, {}) if device is None else (vkrnn, {"device": device})
    forward = getattr(module, case.cell)(**arrays, descriptor=case.descriptor(training=True), **where)
    back = getattr(module, f"{case.cell}_gradients")(
        **arrays, **gradient_inputs(case, forward), descriptor=case.descriptor(), **where
    )
    return {**forward._asdict(), **{f"gradient of {name}": array for name, array in back._asdict().items()}}


def assert_right(case: Case, devices: tuple[vkrnn.Device, vkrnn.Device], **more: Any) -> None:
    """Fail unless the first device's results are right.

    With some activations states of this size grow from step to step, and errors with them: where the portable flavour,
    the second device's, misses the fixed tolerance, twice its error is allowed.
    """
    wanted = results(case, None, **more)
    portable = {name: scaled_error(array, wanted[name]) for name, array in results(case, devices[1], **more).items()}
    allowed = {name: FLOAT32 if error <= FLOAT32 else FLOAT32_RATIO * error for name, error in portable.items()}
    assert_close(results(case, devices[0], **more), wanted, allowed)


def device_of(gemm: str) -> vkrnn.Device:
    """Return a device with the flavour; skip where it is not for the device."""
    try:
        return vkrnn.Device(vkrnn.default_device().index, gemm=gemm)
    except ValueError:
        pytest.skip("the flavour is for some releases of llvmpipe")


def skip_slow(gemm: str) -> None:
    """Skip where compiling the flavour's kernels takes a minute: loops, in releases that they are not written for."""
    if gemm == "loops" != vkrnn.default_device().flavour.gemm:
        pytest.skip("this release takes a minute to compile it")


@pytest.fixture(name="gemm", scope="module", params=["broadcast", "loops"])
def _gemm(request: pytest.FixtureRequest) -> str:
    device_of(request.param).close()
    return str(request.param)


@pytest.fixture(name="devices", scope="module")
def _devices(gemm: str) -> Iterator[tuple[vkrnn.Device, vkrnn.Device]]:
    pair = device_of(gemm), device_of("register")
    pair[0].open()
    assert pair[0].flavour.gemm == gemm, "the self-test fails"
    yield pair
    for device in pair:
        device.close()


# One of each cell whose kernels of any flavour are quickly compiled.
QUICK = {complete(cell, SIZES[2], VARIANTS[cell][0], reverse=True) for cell in GATES}


@pytest.mark.parametrize("case", dict.fromkeys(selected()), ids=lambda case: case.id)
def test_the_flavours_give_the_same_answers(case: Case, gemm: str, devices: tuple[vkrnn.Device, vkrnn.Device]) -> None:
    """Outputs and gradients of every combination of options are right."""
    if case not in QUICK:
        skip_slow(gemm)
    assert_right(case, devices)


@pytest.mark.parametrize("cell", GATES)
def test_the_flavours_are_planned(cell: str, gemm: str, devices: tuple[vkrnn.Device, vkrnn.Device]) -> None:
    """Large products and the steps have kernels of their own, and small products stay with the portable one."""
    suffix = {"broadcast": "", "loops": "_loops"}[gemm]
    sizes = ((9, 2, 64, 128), True), ((9, 2, 7, 5), False)
    for options, (size, found) in itertools.product(VARIANTS[cell], sizes):
        case = Case(cell, *size, options, frozenset({"input_weight", "bias"}))
        text = str(vkrnn.plan(getattr(vkrnn, cell), **inputs(case), descriptor=case.descriptor(), device=devices[0]))
        assert (f"gemm_broadcast{suffix}<" in text) is found
        assert (f"{cell}_broadcast_forward{suffix}<" in text) is found
        assert f"gemm {gemm}" in text


# Calls that these flavours have no step kernels for: the portable ones run, with products of the flavour in between.
# Units that fill no vector, rows that fill no tile, in all directions; masks of all shapes.
BETWEEN = (
    ((6, 9, 20, 40), {}, (6, 9, 40)),
    ((5, 1, 33, 100), {"reverse": True}, (1, 1, 100)),
    ((4, 16, 17, 64), {"bidirectional": True}, (4, 1, 1)),
    ((7, 6, 16, 48), {"bidirectional": True}, (6, 96)),
)


@pytest.mark.parametrize("ends", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize(("sizes", "options", "mask_shape"), BETWEEN, ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_products_between_portable_steps(
    cell: str,
    sizes: tuple[int, int, int, int],
    options: dict[str, bool],
    mask_shape: tuple[int, ...],
    ends: bool,  # noqa: FBT001
    gemm: str,
    devices: tuple[vkrnn.Device, vkrnn.Device],
) -> None:
    """Outputs and gradients are right, with everything that a cell takes; the GRU in two phases and in one."""
    skip_slow(gemm)
    present = frozenset((*OPTIONAL[cell], *UPSTREAM[cell]))
    for variant in VARIANTS[cell]:
        case = Case(cell, *sizes, options | variant, present, mask_shape)
        more: dict[str, Any] = {}
        if ends:
            lengths = np.arange(case.N) % case.T + 1
            source = inputs(case)["source"].copy()
            source[np.arange(case.T)[:, None] >= lengths] = 1e30
            more = {"lengths": lengths, "source": source}
        text = str(
            vkrnn.plan(
                getattr(vkrnn, cell), **{**inputs(case), **more}, descriptor=case.descriptor(), device=devices[0]
            )
        )
        in_loop = text[text.index("  for k = ") :]
        assert "gemm_broadcast" in in_loop
        assert f"{cell}_forward<" in in_loop
        assert_right(case, devices, **more)


# Where a step's product splits unevenly, into more blocks of k than a workgroup has parts of the cell to run, or into
# more tiles of units than one dispatch has. The last is more steps than a command buffer takes.
TILES = ((2, 3, 16, 80), (3, 2, 16, 160), (2, 8, 16, 192), (2, 16, 16, 320))
# Where the product of a weight's gradient, which is as deep as there are rows of all steps, takes five or seven blocks.
DEPTHS = ((10, 64, 16, 32), (7, 64, 16, 32))
SPLITS = ((2, 4, 20, 48), *TILES, *DEPTHS, (3, 1, 64, 512), (300, 16, 16, 64))


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_products_that_split_oddly(
    cell: str, sizes: tuple[int, int, int, int], gemm: str, devices: tuple[vkrnn.Device, vkrnn.Device]
) -> None:
    """Outputs and gradients agree with the portable flavour's however the hidden units divide."""
    skip_slow(gemm)
    for options in VARIANTS[cell]:
        case = Case(cell, *sizes, options, frozenset({"input_weight", "bias"}))
        assert_close(results(case, devices[0]), results(case, devices[1]))


@pytest.mark.parametrize("direction", [{}, {"reverse": True}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_what_training_keeps_does_not_change_the_output(
    cell: str, direction: dict[str, bool], gemm: str, devices: tuple[vkrnn.Device, vkrnn.Device]
) -> None:
    """Without training the output has the same bits, whatever a step keeps for its second phase."""
    skip_slow(gemm)
    for options, T in itertools.product(VARIANTS[cell], (1, 6)):
        case = Case(cell, T, 3, 16, 64, options | direction, frozenset({"input_weight", "bias", "init_state"}))
        plain, kept = (
            getattr(vkrnn, cell)(**inputs(case), descriptor=case.descriptor(training=training), device=devices[0])
            for training in (False, True)
        )
        np.testing.assert_array_equal(plain.output, kept.output)


HELPED = """
import hashlib, sys, numpy as np, vkrnn
device = vkrnn.Device(gemm=sys.argv[1])
rng = np.random.default_rng(0)
source, weight = rng.standard_normal((5, 16, 64), np.float32), rng.standard_normal((256, 64), np.float32) / 8
descriptor = vkrnn.LSTMDescriptor(training=True)
forward = vkrnn.lstm(source, weight, input_weight=weight, descriptor=descriptor, device=device)
gradients = vkrnn.lstm_gradients(source, weight, np.ones_like(forward.output), forward.z_state, forward.cell_output,
                                 input_weight=weight, device=device)
print(device.flavour.gemm, hashlib.sha256(b"".join(a.tobytes() for a in (*forward, *gradients))).hexdigest())
"""


def test_helpers_change_no_bit(gemm: str) -> None:
    """A device with helpers computes what one with the driver's own threads, or none, does."""
    skip_slow(gemm)
    printed = set()
    for threads in (None, "0", "2"):
        environment = {name: value for name, value in os.environ.items() if name != "LP_NUM_THREADS"}
        environment |= {} if threads is None else {"LP_NUM_THREADS": threads}
        program = [sys.executable, "-c", HELPED, gemm]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
        printed.add(done.stdout)
    assert len(printed) == 1, printed
    assert printed.pop().startswith(f"{gemm} ")


def test_the_users_vector_width_stays() -> None:
    """Vectors are as wide as the processor's unless the environment says otherwise, and that stays as it is."""
    device_of("loops").close()
    program = """
import os, vkrnn
device = vkrnn.default_device()
print(device.name, "env", os.environ.get("LP_NATIVE_VECTOR_WIDTH"))
"""
    environment = {name: value for name, value in os.environ.items() if name != "LP_NATIVE_VECTOR_WIDTH"}

    def name(more: dict[str, str]) -> str:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=True).stdout

    assert "256 bits) env 256" in name({"LP_NATIVE_VECTOR_WIDTH": "256"})
    processor = set(Path("/proc/cpuinfo").read_text().split())
    wide = processor >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    assert ("512 bits" in name({})) == (wide and "Mesa 22.3." in vkrnn.default_device().driver_version)
    assert name({}).endswith("env None\n")


def test_a_device_that_fails_the_self_test_falls_back(gemm: str) -> None:
    """The flavour is asked for, the test fails, and calls run right in the portable flavour."""
    program = """
import sys, numpy as np, vkrnn
device = vkrnn.Device(gemm=sys.argv[1])
assert device.flavour.gemm == sys.argv[1]
R = np.full((64, 64), 0.01, np.float32)
x = np.ones((3, 2, 64), np.float32)
plan = lambda: str(vkrnn.plan(vkrnn.single_gate_rnn, x, R, device=device))
got = vkrnn.single_gate_rnn(x, R, device=device).output
assert device.flavour.gemm == "register", device.flavour
assert "gemm register" in plan() and "broadcast" not in plan()
np.testing.assert_allclose(got, vkrnn.reference.single_gate_rnn(x, R).output, rtol=1e-5)
"""
    environment = os.environ | {"VKRNN_FAIL_SELF_TEST": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, gemm], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
