"""Calls of PyTorch modules run on PyTorch's threads. One process reports for all tests: importing PyTorch is slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from oracles import require
from scale import HANGS_AFTER

require("torch")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc"),
    pytest.mark.xdist_group("torch threads"),
]

PROGRAM = """
import json, os, torch, vkrnn, vkrnn.torch

lstm = vkrnn.torch.LSTM(64, 64)
[layer] = vkrnn.convert.from_torch(lstm)
source = torch.randn(50, 16, 64, requires_grad=True)
more = {}

def count(name, call):
    before = len(os.listdir("/proc/self/task"))
    call()
    more[name] = len(os.listdir("/proc/self/task")) - before

def step():
    lstm(source)[0].sum().backward()

vkrnn.devices()  # drivers may start threads, and PyTorch starts one per GPU
torch.ones(1, requires_grad=True).sum().backward()
torch.set_num_threads(1)
count("module, one thread", step)
torch.set_num_threads(2)
torch.randn(2000, 2000).exp().sum()
count("module", step)
count("arrays", lambda: layer(source.detach()))
same_bits = bool((lstm(source)[0].detach().numpy() == layer(source.detach()).output).all())
child = os.fork()
if child == 0:
    with torch.no_grad():
        lstm(source)
    os._exit(0)
print(json.dumps({"more": more, "same bits": same_bits, "child": os.waitpid(child, 0)[1]}))
"""


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    environment = os.environ | {"VKRNN_DEVICE": "cpu (", "VKRNN_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, timeout=HANGS_AFTER, check=True, capture_output=True, text=True)
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_only_calls_on_arrays_start_threads(report: dict[str, object]) -> None:
    processors = len(os.sched_getaffinity(0))
    assert report["more"] == {"module, one thread": 0, "module": 0, "arrays": min(2, processors) - 1}


def test_bits_are_the_same_on_both_kinds_of_threads(report: dict[str, object]) -> None:
    assert report["same bits"]


def test_a_forked_child_runs_modules(report: dict[str, object]) -> None:
    """Modules work in a forked child, which does not have PyTorch's threads."""
    assert report["child"] == 0
