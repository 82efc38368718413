"""Layers of the C++ core and of the Python package.

A file includes headers, and a module imports modules, of its own layer and of lower ones only.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CPP = Path(__file__).resolve().parents[2] / "cpp"

# Every folder of cpp/src from the bottom up, with the other folders whose headers it may include, besides the public
# ones and those of base. "abi" are the headers shared with the shaders, and "" is cpp/src itself.
MAY_INCLUDE: dict[str, set[str]] = {
    "vkrnn": set(),
    "base": set(),
    "model": set(),
    "plan": {"abi"},
    "plan/gpu": {"abi", "plan"},
    "plan/portable": {"abi", "plan", "plan/gpu"},
    "plan/*": {"abi", "plan", "plan/gpu", "plan/portable"},
    "run": {"plan"},
    "cpu/threads": set(),
    "cpu/work": {"plan", "cpu/threads"},
    "cpu/kernels": {"abi", "plan", "cpu/threads", "cpu/work"},
    "cpu/memory": {"run"},
    "cpu/run": {"plan", "run", "cpu/threads", "cpu/work", "cpu/memory"},
    "cuda/libraries": set(),
    "cuda/memory": {"run", "cuda/libraries"},
    "cuda/kernels": {"plan", "run", "cuda/libraries"},
    "cuda/run": {"abi", "plan", "run", "cuda/libraries", "cuda/memory", "cuda/kernels"},
    "vk/device": {"run"},
    "vk/memory": {"run", "vk/device"},
    "vk/pipelines": {"vk/device"},
    "vk/commands": {"run", "vk/device", "vk/memory", "vk/pipelines"},
    "vk/run": {"plan", "run", "vk/device", "vk/memory", "vk/pipelines", "vk/commands"},
    "vk": {"vk/run"},
    "network": {"run"},
    "": {"cpu/run", "cuda/run", "vk/run"},
}

# Exceptions from the table, with their reasons.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("plan/split/split_loop.h", "plan/cublas/cublas_products.h"): "its steps have products of that strategy",
}
REGISTRY = re.compile(r"plan/(registry|cost_table)\.(h|cpp)")  # the only files that know every strategy


def folder_of(path: str) -> str:
    """Return the table's key for the folder of a file, such as ``plan/portable``."""
    return path.rpartition("/")[0]


def find_header(name: str, folder: Path) -> str | None:
    """Return the path of an included header, or None if it is not the project's."""
    shaders = CPP.parent / "shaders"
    roots = {"": CPP / "src", "vkrnn/": CPP / "include/vkrnn", "abi/": shaders}
    for path in (folder / name, CPP / "src" / name, CPP / "include" / name, shaders / name):
        for prefix, root in roots.items():
            if path.is_file() and path.resolve().is_relative_to(root):
                return prefix + (path.name if prefix == "abi/" else path.resolve().relative_to(root).as_posix())
    return None


def list_includes() -> list[tuple[str, str]]:
    """Return all includes in ``cpp/src`` and ``cpp/include`` as pairs of paths."""
    found = []
    for root, prefix in ((CPP / "src", ""), (CPP / "include/vkrnn", "vkrnn/")):
        for path in sorted(root.rglob("*")):
            if path.suffix in {".h", ".cpp"}:
                names = re.findall(r'^\s*#\s*include "(.+?)"', path.read_text(), re.MULTILINE)
                headers = [find_header(name, path.parent) for name in names]
                found += [(prefix + path.relative_to(root).as_posix(), header) for header in headers if header]
    return found


def is_allowed(includer: str, included: str) -> bool:
    """Return whether the table allows one file to include the other."""
    here, there = folder_of(includer), folder_of(included)
    if here == there or (REGISTRY.fullmatch(includer) and there.startswith("plan/")):
        return True
    allowed = MAY_INCLUDE.get(here) or MAY_INCLUDE.get(re.sub(r"^plan/.*", "plan/*", here))
    assert allowed is not None or here in MAY_INCLUDE, f"{includer}: its folder is missing in the table"
    return there in (allowed or set()) or there == "vkrnn" or (there == "base" and here != "vkrnn")


def test_includes_point_down_the_layers() -> None:
    """No file includes a header of a higher layer, and every exception is still used."""
    includes = list_includes()
    assert len(includes) > 100
    forbidden = {pair for pair in includes if not is_allowed(*pair)}
    assert forbidden == set(EXCEPTIONS)


@pytest.mark.parametrize(
    ("includer", "included"),
    [
        ("vk/device/timeline.h", "vk/memory/pool.h"),
        ("vk/memory/pool.cpp", "vk/commands/command_stream.h"),
        ("vk/commands/recorder.cpp", "vk/run/session.h"),
        ("vk/commands/recorder.cpp", "plan/builder.h"),
        ("plan/builder.cpp", "plan/gpu/shader_products.h"),
        ("plan/builder.cpp", "vk/device/physical_device.h"),
        ("plan/gpu/shader_loop.cpp", "plan/portable/step_loop.h"),
        ("run/prepacked_copies.h", "cpu/memory/cpu_memory.h"),
        ("cpu/run/cpu_device.cpp", "vk/run/vulkan_devices.h"),
        ("network/network.cpp", "cpu/run/cpu_device.h"),
        ("base/reports.h", "run/poll.h"),
        ("vkrnn/plan.h", "plan/builder.h"),
        ("vkrnn/plan.h", "base/leak.h"),
    ],
)
def test_includes_up_the_layers_are_found(includer: str, included: str) -> None:
    """The table forbids these includes."""
    assert not is_allowed(includer, included)


def test_the_extension_imports_nothing_of_its_package() -> None:
    """The package sets what the extension needs of it, so imports go one way."""
    for source in (CPP.parent / "python/bindings").iterdir():
        assert 'import("vkrnn' not in source.read_text(), source.name


def test_only_the_vulkan_layer_includes_vulkan() -> None:
    """Everything else compiles without the Vulkan headers."""
    vulkan = re.compile(r"#\s*include <vulkan/")
    found = [path for path in CPP.rglob("*") if path.suffix in {".h", ".cpp"} and vulkan.search(path.read_text())]
    assert found == [CPP / "src/vk/device/vulkan.h"]


# Static variables that functions make under a mutex that no fork leaves locked, or while the library is loaded.
MADE_SAFELY = {
    "base/fork_safe_mutex.cpp",
    "cuda/libraries/cublas.cpp",
    "cuda/libraries/driver.cpp",
    "cuda/libraries/nvrtc.cpp",
    "vk/device/context.cpp",
}


def test_no_thread_makes_a_static_variable_of_a_function() -> None:
    """A child that was forked meanwhile would wait for that thread for ever; base/lazy.h has what to use instead."""
    made = re.compile(r"^ +static (?!constexpr|constinit|thread_local)[^()\n]*( = |\w\{)", re.MULTILINE)
    found = {
        path.relative_to(CPP / "src").as_posix() for path in CPP.glob("src/**/*.*") if made.search(path.read_text())
    }
    assert found == MADE_SAFELY


PACKAGE = CPP.parent / "python/vkrnn"

# The modules and packages of python/vkrnn from the bottom up. "vkrnn" is its __init__.py.
LAYERS = (
    *("_core", "_base", "_interop", "precision", "descriptors", "_device", "devices", "arrays", "results", "_ops"),
    *("operations", "gradients", "reference", "checks", "convert", "streams", "networks", "plans", "mpsgraph", "onnx"),
    *("jax", "torch", "keras", "_cli", "vkrnn", "demo", "__main__"),
)


def name_of(path: Path) -> str:
    """Return a module's dotted name."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def list_imports() -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports."""
    paths = {name_of(path): path for path in PACKAGE.rglob("*.py")}
    known = {*paths, "vkrnn._core"}
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        found[module] = names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}: imports are absolute"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= inner if inner <= known else {*inner, str(node.module)}
        names &= known
    return found


def layer_of(module: str) -> int:
    """Return the position of a module's layer."""
    return LAYERS.index(module.split(".")[1] if "." in module else module)


def test_imports_point_down_the_layers() -> None:
    """No module imports a module of a higher layer, and no modules import each other in a circle."""
    imports = list_imports()
    assert {layer_of(module) for module in imports} == set(range(1, len(LAYERS)))
    pairs = [(module, imported) for module, each in imports.items() for imported in each]
    assert len(pairs) > 200
    assert [pair for pair in pairs if layer_of(pair[1]) > layer_of(pair[0])] == []
    TopologicalSorter(imports).prepare()  # raises an error that names a circle
