"""First calls on lavapipe with a device for each processor: they need not wait until all have compiled the kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vkrnn

# Prints, by call, how many calls helpers have had a part in and a hash of the answers.
PROGRAM = """
import hashlib, json, sys, time
import numpy as np, vkrnn

steps = json.loads(sys.argv[1])
device, rng, seen = vkrnn.Device(), np.random.default_rng(0), []

def call(T, N, H, gradients):
    source = rng.standard_normal((T, N, H), np.float32)
    weight = rng.standard_normal((4 * H, H), np.float32) / H
    def work():
        arrays = vkrnn.lstm(source, weight, input_weight=weight, descriptor=vkrnn.LSTMDescriptor(training=True),
                            device=device)
        if gradients:
            arrays += vkrnn.lstm_gradients(source, weight, np.ones_like(arrays[0]), arrays[2], arrays[1],
                                           input_weight=weight, device=device)
        digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
        seen.append([device.statistics()["helped"], digest])
    return work

for step in steps:
    work = call(*step["call"])
    work()
    helped = seen[-1][0]
    deadline = time.monotonic() + 60
    while step["until_helped"] and seen[-1][0] == helped and time.monotonic() < deadline:
        work()
    seen.append(None)
device.close()
print(json.dumps(seen))
"""
SMALL, LARGE = [9, 8, 64], [70, 64, 512]  # the latter takes long enough for helpers to be worth waiting for


def run(folder: Path, *steps: dict[str, Any], **environment: str) -> list[list[Any]]:
    """Return what the program printed, a list for each step, in a process of its own with caches in the folder."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("LP_NUM_THREADS", "VKRNN_WAIT_FOR_HELPERS")
    }
    caches = {"VKRNN_CACHE_DIR": str(folder), "MESA_SHADER_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM, json.dumps(steps)]
    done = subprocess.run(command, env=inherited | caches | environment, capture_output=True, text=True, check=True)
    groups: list[list[Any]] = [[]]
    for item in json.loads(done.stdout):
        if item is None:
            groups.append([])
        else:
            groups[-1].append(item)
    return groups[:-1]


def step(sizes: list[int], *, gradients: bool = False, until_helped: bool = False) -> dict[str, Any]:
    """Return a step of the program: calls until helpers took part in one, or one call."""
    return {"call": [*sizes, gradients], "until_helped": until_helped}


@pytest.fixture(autouse=True)
def _helpers() -> None:
    profile = vkrnn.default_device().profile
    if profile.driver != "llvmpipe" or vkrnn.default_device().flavour.gemm not in ("broadcast", "loops"):
        pytest.skip("the device has no helpers")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")


def test_helpers_follow(tmp_path: Path) -> None:
    """The first call is without them, later ones with them, and all answers are the same, with caches and without."""
    for _ in range(2):
        forward, gradients = run(
            tmp_path, step(SMALL, until_helped=True), step(SMALL, gradients=True, until_helped=True)
        )
        for seen in (forward, gradients):
            assert len({digest for _, digest in seen}) == 1
        counts = [helped for helped, _ in (*forward, *gradients)]
        assert counts[0] == 0
        assert forward[-1][0] == 1
        # A first call of gradients has kernels to wait for again, but for the forward call before it.
        assert gradients[0][0] - forward[-1][0] <= 1
        assert gradients[-1][0] > gradients[0][0]


def test_calls_one_after_the_other(tmp_path: Path) -> None:
    """Whose first calls come while helpers are busy with another's kernels; and closing the device then."""
    sizes = [[9, 8, 64], [9, 8, 96], [9, 1, 64], [9, 16, 128]]
    alone = [run(tmp_path, step(size, gradients=True), VKRNN_WAIT_FOR_HELPERS="1")[0][0] for size in sizes[:1]]
    groups = run(tmp_path, *(step(size, gradients=True) for size in sizes), step(sizes[-1], until_helped=True))
    assert alone[0][0] > 0
    assert groups[0][0][1] == alone[0][1]
    assert groups[-1][-1][0] > 0


def test_large_calls_wait_for_them(tmp_path: Path) -> None:
    """Because they take longer without them than the helpers' kernels to compile; small ones wait if told to."""
    assert run(tmp_path, step(LARGE))[0][0][0] == 1
    assert run(tmp_path, step(SMALL), VKRNN_WAIT_FOR_HELPERS="1")[0][0][0] == 1
