"""The contenders of `bench.gpu`: vkrnn on device arrays or from NumPy arrays, and PyTorch with cuDNN."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import vkrnn

from .baseline_torch import TorchCell, find_torch
from .common import cpu_name
from .gpu_report import MODULE, MODULE_TF32, TORCH
from .problems import Arrays, named_gradients


@dataclass(frozen=True)
class Work:
    """A cell's work, ready for repeated calls."""

    call: Callable[[], object]  # enqueues it
    wait: Callable[[], None]
    answer: Callable[[], Mapping[str, Any]]
    device_seconds: Callable[[], float] | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """A row's contender with its arrays."""

    name: str
    device: str
    driver: str
    arrays: Arrays
    work: Callable[[Arrays, bool], Work]  # bool: with gradients
    own: vkrnn.Device | None = None


def on_vkrnn(name: str, arrays: Arrays, device: vkrnn.Device) -> Entry:
    """Return vkrnn on device arrays; results go to the same arrays every time."""

    def work(given: Arrays, gradients: bool) -> Work:  # noqa: FBT001
        there = given.on(device)
        forward = there.forward(vkrnn, training=gradients)
        back = there.gradients(vkrnn, forward) if gradients else None
        steps: list[Callable[[], object]] = [lambda: there.forward(vkrnn, training=gradients, out=forward)]
        if gradients:
            steps.append(lambda: there.gradients(vkrnn, forward, out=back))

        def call() -> None:
            for step in steps:
                step()

        def device_seconds() -> float:
            seconds = 0.0
            for step in steps:
                step()
                device.synchronize()
                seconds += device.statistics()["last_device_seconds"]
            return seconds

        def answer() -> Mapping[str, Any]:
            call()
            return {"output": forward.output} | (named_gradients(back) if back else {})

        return Work(call, device.synchronize, answer, device_seconds)

    return Entry(name, device.name, device.driver_version, arrays, work, device)


def on_vkrnn_from_numpy(name: str, arrays: Arrays, device: vkrnn.Device, *, weights_there: bool) -> Entry:
    """Return vkrnn on NumPy arrays, with weights that stay on the device or are uploaded by each call."""

    def work(given: Arrays, gradients: bool) -> Work:  # noqa: FBT001
        mixed = given.with_weights_on(device) if weights_there else given
        where = {} if weights_there else {"device": device}
        answer = lambda: mixed.answer(vkrnn, gradients=gradients, **where)  # noqa: E731
        return Work(answer, device.synchronize, answer)

    return Entry(name, device.name, device.driver_version, arrays, work, device)


class Torch:
    """PyTorch on CUDA, or on the CPU to try the script."""

    def __init__(self, module: Any, where: str) -> None:
        """Store the module and the device of its tensors."""
        self.module, self._where = module, where
        self.cuda = where == "cuda"

    def entry(self, name: str, arrays: Arrays, *, dtype: str, transfers: bool = False) -> Entry:
        """Return PyTorch, or its module converted to vkrnn's, as a contender: with resident tensors or pinned memory.

        The name says whether products in TF32 are allowed.
        """
        tf32 = name in (TORCH, MODULE_TF32)

        def work(given: Arrays, gradients: bool) -> Work:  # noqa: FBT001
            cell = TorchCell(self.module, given, self._where, dtype, gradients=gradients)
            if name in (MODULE, MODULE_TF32):
                importlib.import_module("vkrnn.torch").convert(cell.module)
            call = self._transferring(cell) if transfers else cell.work

            def answer() -> Mapping[str, Any]:
                self.allow_tf32(allowed=tf32)
                return cell.answer()

            def wait() -> None:  # a turn begins and ends with one
                self.allow_tf32(allowed=tf32)
                self.synchronize()

            return Work(call, wait, answer)

        versions = f"torch {self.module.__version__}, cuDNN {self.module.backends.cudnn.version()}"
        driver = f"{versions}, {'pinned' if transfers else 'resident'}"
        gpu = self.module.cuda.get_device_name() if self.cuda else cpu_name()
        return Entry(name, gpu, driver, arrays, work)

    def allow_tf32(self, *, allowed: bool) -> None:
        """Allow or forbid cuDNN to use TF32, its default."""
        self.module.backends.cudnn.allow_tf32 = allowed

    def synchronize(self) -> None:
        """Wait for all that was enqueued."""
        if self.cuda:
            self.module.cuda.synchronize()

    def _transferring(self, cell: TorchCell) -> Callable[[], object]:
        def pinned(tensor: Any) -> Any:
            return self.module.empty_like(tensor, device="cpu", pin_memory=self.cuda)

        taken = [cell.source, cell.upstream] if cell.gradients else [cell.source]
        inputs = [(tensor, pinned(tensor).copy_(tensor.detach())) for tensor in taken]
        outputs = [pinned(tensor.detach()) for tensor in cell.work()]

        def call() -> None:
            with self.module.no_grad():
                for tensor, there in inputs:
                    tensor.copy_(there, non_blocking=True)
            for there, tensor in zip(outputs, cell.work(), strict=True):
                there.copy_(tensor, non_blocking=True)
            self.synchronize()

        return call


def torch_there(where: str) -> Torch | str:
    """Return PyTorch, or a sentence that says why it is unavailable."""
    module = find_torch()
    if module is None:
        return "PyTorch is skipped: it is not installed."
    if where == "cuda" and not module.cuda.is_available():
        return f"PyTorch is skipped: torch {module.__version__} finds no CUDA device."
    return Torch(module, where)
