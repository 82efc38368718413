"""Compile the kernels as CUDA C++ with NVRTC, which needs no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from functools import cache
from pathlib import Path

SHADERS = Path(__file__).resolve().parents[2] / "shaders"
ARCHITECTURE = "sm_90"


@cache
def find_path() -> str | None:
    """Return a path or name with which other processes can load NVRTC. None if it is not installed.

    This process can load any NVRTC by name that it already has, so names are tried last.
    """
    named = [path] if (path := os.environ.get("VKRNN_NVRTC")) else []
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    packaged = sorted(str(path) for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*[0-9]"))
    toolkit = sorted(str(path) for path in Path("/usr/local/cuda/lib64").glob("libnvrtc.so.*[0-9]"))
    for name in [*named, *packaged, *toolkit, "libnvrtc.so.13", "libnvrtc.so.12"]:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


def find() -> ctypes.CDLL | None:
    """Return NVRTC, opened; None if it is not installed. Not every NVRTC finds its part "builtins" beside itself."""
    path = find_path()
    if path is None:
        return None
    for part in Path(path).parent.glob("libnvrtc-builtins.so*") if "/" in path else ():
        ctypes.CDLL(str(part))
    return ctypes.CDLL(path)


def kernels() -> list[tuple[str, str, str]]:
    """List the kernels of the tree as (name, file, cell); the cell is empty for kernels that know none."""
    cells = sorted(path.stem for path in (SHADERS / "cells").glob("*.glsl"))
    found = [(path.stem, path.relative_to(SHADERS).as_posix(), "") for path in sorted(SHADERS.glob("*/*.comp"))]
    for path in sorted(SHADERS.glob("*/drivers/*.glsl")):
        found += [(f"{cell}_{path.stem}", path.relative_to(SHADERS).as_posix(), cell) for cell in cells]
    return found


def compile_kernel(
    file: str, cell: str, *, kind: str = "", constants: tuple[int, ...] = (), options: tuple[str, ...] = ()
) -> tuple[bytes, str]:
    """Compile a kernel with these specialization constants. Return its cubin, empty after an error, and the log.

    `kind` is empty, VKRNN_FLOAT64 or VKRNN_16BIT.
    """
    library = find()
    assert library is not None
    source = f'#include "cuda/glsl.cuh"\nstruct Kernel {{\n#include "{file}"\n}};\n#include "cuda/entry.cuh"\n'
    chosen = f'#ifndef VKRNN_CHOSEN_CELL\n#define VKRNN_CHOSEN_CELL\n#include "cells/{cell}.glsl"\n#endif\n'
    program = ctypes.c_void_p()
    headers, names = (ctypes.c_char_p * 1)(chosen.encode()), (ctypes.c_char_p * 1)(b"chosen_cell.glsl")
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 1, headers, names)
    assert created == 0
    all_options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++20", "--prec-div=false"]
    all_options += [f"--include-path={SHADERS}", "--define-macro=VKRNN_KERNEL=kernel", *options]
    all_options += [f"--define-macro=VKRNN_CONSTANTS={','.join(map(str, constants))}"] if constants else []
    all_options += [f"--define-macro={kind}"] if kind else []
    given = (ctypes.c_char_p * len(all_options))(*(option.encode() for option in all_options))
    failed = library.nvrtcCompileProgram(program, len(all_options), given)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    cubin = b""
    if not failed:
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        cubin = code.raw
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin, log.value.decode()
