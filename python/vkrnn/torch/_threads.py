"""PyTorch's OpenMP threads, on which the modules' calls run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from vkrnn import _core

__all__ = ["pytorch_threads"]


def _find() -> contextlib.AbstractContextManager[Any]:
    try:
        return _core.OpenMP(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except _core.DeviceError:  # PyTorch has no OpenMP, or another interface to it
        return contextlib.nullcontext()


# Within this context, calls of this thread on the CPU device run on PyTorch's threads. These spin for milliseconds
# after each operation of PyTorch, and would compete with threads of vkrnn's own.
pytorch_threads = _find()
