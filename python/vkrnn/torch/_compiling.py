"""What lets torch.compile take the modules. Importing this module prepares it.

torch._dynamo refuses every instance of PyTorch's LSTM, GRU and RNN, unless its flag `allow_rnn` is set, which also
changes how PyTorch's own modules are compiled. Ours are one operator each, so the flag is set while the compiler looks
at one of them. If a later PyTorch has no such function or flag, its compiler is left as it is.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from vkrnn.torch._recurrent import Recurrent

__all__: list[str] = []

_BUILDER = "torch._dynamo.variables.builder"


def _allow_modules(builder: Any) -> None:
    """Set `allow_rnn` while the compiler's `wrap_module` decides about one of our modules."""
    config, kind = builder.config, getattr(builder, "VariableBuilder", None)
    wrap_module = getattr(kind, "wrap_module", None)
    if kind is None or wrap_module is None or not hasattr(config, "allow_rnn"):
        return

    @functools.wraps(wrap_module)
    def wrapped(self: Any, value: Any) -> Any:
        if not isinstance(value, Recurrent):
            return wrap_module(self, value)
        with config.patch(allow_rnn=True):
            return wrap_module(self, value)

    kind.wrap_module = wrapped


class _WhenImported(MetaPathFinder):
    """Calls `_allow_modules` once the compiler is imported. Importing it here would take a second or more."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return a spec whose loader calls `_allow_modules`, if `name` is the compiler's module."""
        if name != _BUILDER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_allow(module: Any) -> None:
                execute(module)
                _allow_modules(module)

            spec.loader.exec_module = execute_and_allow  # type: ignore[method-assign]
        return spec


if _BUILDER in sys.modules:
    _allow_modules(sys.modules[_BUILDER])
else:
    sys.meta_path.insert(0, _WhenImported())
