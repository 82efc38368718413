"""Data-parallel training: two processes with half a batch each train like one with the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scale import HANGS_AFTER

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)


T, N, I, H = 7, 6, 5, 8
STEPS = 4

# Each process ends without taking gloo down, which in PyTorch 2.13 sometimes aborts a process whose work is done, with
# vkrnn and without. It waits until the other one needs it no longer.
PROGRAM = """
import os, pathlib, sys, time, torch
import vkrnn.torch
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
start = torch.load(f"{folder}/start.pt")
model = vkrnn.torch.convert(torch.nn.LSTM(5, 8, 2).double())
model.load_state_dict(start["state"])
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.5)
mine = start["x"][:, rank::2]
for _ in range(start["steps"]):
    optimizer.zero_grad()
    parallel(mine)[0].square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), f"{folder}/{rank}.pt")
pathlib.Path(folder, f"{rank} is done").touch()
while not pathlib.Path(folder, f"{1 - rank} is done").exists():
    time.sleep(0.01)
os._exit(0)
"""


def trained(model: Any, x: Any) -> dict[str, Any]:
    """Return the parameters after a few steps in this process."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x)[0].square().mean().backward()
        optimizer.step()
    state: dict[str, Any] = model.state_dict()
    return state


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Both end with the same parameters, those of PyTorch's own module on the whole batch."""
    torch.manual_seed(3)
    theirs = torch.nn.LSTM(I, H, 2).double()
    x = torch.randn(T, N, I, dtype=torch.float64)
    torch.save({"state": theirs.state_dict(), "x": x, "steps": STEPS}, tmp_path / "start.pt")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VKRNN_DEVICE": "cpu"}
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=HANGS_AFTER)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    wanted = trained(theirs, x)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, parameter in wanted.items():
            assert torch.allclose(found[name], parameter, rtol=1e-9, atol=1e-12), name
