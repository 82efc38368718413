"""Checks the installed vkrnn without the rest of this tree, for ``.ci/packages`` and cibuildwheel.

On every device, all operations are compared with the float64 reference.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Check what was installed, its results and, on request, that PyTorch works in the same process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vulkan", choices=("there", "absent"), help="fail unless Vulkan's devices are")
    parser.add_argument("--torch", choices=("before", "after"), help="import PyTorch before or after vkrnn")
    parser.add_argument("--jax", action="store_true", help="call vkrnn in a compiled program of JAX")
    options = parser.parse_args()

    torch = importlib.import_module("torch") if options.torch == "before" else None
    import vkrnn
    from vkrnn.__main__ import main as command

    if options.torch == "after":
        torch = importlib.import_module("torch")

    package = Path(vkrnn.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not in {sys.prefix}"
    assert metadata.version("vkrnn") == vkrnn.__version__
    assert (package / "py.typed").exists()
    assert (package / "_core.pyi").exists()
    assert not package.with_name("vkrnn.libs").exists(), "the wheel bundles libraries"
    notices = {path.name for path in metadata.files("vkrnn") or () if "licenses" in path.parts}
    assert notices == {"LICENSE", "README.txt", "Apache-2.0.txt", "pybind11.txt", "xxHash.txt"}

    assert vkrnn._core.xla_handler() is not None, "the wheel has no handler for JAX's programs"

    [cpu] = [device for device in vkrnn.devices() if device.backend == "native"]
    assert cpu.driver_version != "scalar", "the CPU's kernels use no vectors"

    kinds = {device.backend != "native" for device in vkrnn.devices()}
    assert options.vulkan != "there" or True in kinds, "no Vulkan device was found"
    assert options.vulkan != "absent" or kinds == {False}, "a Vulkan device was found"
    assert command(["check"]) == 0
    if torch is not None:
        compare_with(torch)
    if options.jax:
        compile_a_program()


def compile_a_program() -> None:
    """Let a program of JAX call the handler, which XLA must accept."""
    import jax

    import vkrnn.jax

    source, weight = jax.numpy.ones((5, 3, 8)), jax.numpy.full((8, 2), 0.1)
    assert vkrnn.jax.ffi_problem() == ""
    assert (jax.jit(vkrnn.jax.lstm)(source, weight).output == vkrnn.jax.lstm(source, weight).output).all()


def compare_with(torch: Any) -> None:
    """Compare an LSTM with PyTorch's. Exceptions of each library must reach Python while the other is loaded."""
    import vkrnn
    import vkrnn.torch

    theirs = torch.nn.LSTM(7, 6)
    ours = vkrnn.torch.LSTM(7, 6)
    ours.load_state_dict(theirs.state_dict())
    source = torch.randn(5, 3, 7)
    results = []
    for module in (theirs, ours):
        output, _ = module(source)
        output.square().sum().backward()
        results.append((output, *(parameter.grad for parameter in module.parameters())))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-5)

    for error, call in (
        (RuntimeError, lambda: torch.ones(2) @ torch.ones(3)),
        (ValueError, lambda: vkrnn.lstm(np.ones((5, 3, 16), np.float32), np.ones((16, 5), np.float32))),
    ):
        try:
            call()
        except error:
            continue
        raise AssertionError(f"{error.__name__} was expected")


if __name__ == "__main__":
    main()
