"""The options of the modules that PyTorch's modules do not have: their checks, parameters and text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn.utils.parametrize import is_parametrized

from vkrnn.convert._torch_layout import descriptor as descriptor_of
from vkrnn.convert._torch_layout import options_beyond_torch
from vkrnn.torch._choice import HasBackend, checked_backend
from vkrnn.torch._heads import require_divisors
from vkrnn.torch._projection import require_no_options
from vkrnn.torch._starts import Starts, require_chances

__all__ = ["Options"]


class Options(HasBackend, Starts, torch.nn.RNNBase):
    """The options of the three modules that PyTorch's modules do not have."""

    # `convert` changes a module's class and calls no constructor. These are the values of a module without options.
    peephole: bool = False
    recurrent_dropout: float = 0.0
    weight_dropout: float = 0.0
    zoneout: float = 0.0
    zoneout_cell: float = 0.0
    _options: str = ""  # the cell's options as text, which follows the mode: see `vkrnn.convert._torch_layout`
    _frozen: bool = False  # the user's word that the parameters do not change: see `vkrnn.torch.frozen`

    def _take_options(self, chances: dict[str, Any], backend: Any, options: dict[str, Any]) -> None:
        """Check and set the options. `chances` has recurrent dropout and zoneout, `options` those of the descriptor."""
        where = f"[vkrnn.torch.{self._name}]"
        if checked_backend(backend, where) != self.backend:
            self.backend = backend
        require_chances(where, **chances)
        torchs = self.descriptor
        try:
            chosen = replace(torchs, **options)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace(f"[{type(torchs).__name__}]", where)) from None
        if self.proj_size:
            require_no_options(where, {name: chances[name] for name in ("recurrent_dropout", "zoneout")})
            require_no_options(where, {name: options[name] > 1 for name in ("heads", "input_heads")})
        for name, chance in chances.items():
            if chance:
                setattr(self, name, float(chance))
        for name, (_, own) in options_beyond_torch(self.mode, chosen).items():
            self._options += f" {name}={own}"
        if chosen.heads * chosen.input_heads > 1:
            width = (1 + self.bidirectional) * self.hidden_size
            later = {"the width of a layer's output": width} if self.num_layers > 1 else {}
            require_divisors(where, chosen, self.hidden_size, {"input_size": self.input_size, **later})
            self._divide_weights(chosen.heads, chosen.input_heads)

    def _divide_weights(self, heads: int, input_heads: int) -> None:
        """Put the blocks of the heads in place of the matrices, and draw all parameters."""
        for name in self._flat_weights_names:
            parts = heads if name.startswith("weight_hh") else input_heads if name.startswith("weight_ih") else 1
            if parts > 1:
                weight = getattr(self, name)
                blocks = weight.new_empty(weight.shape[0], weight.shape[1] // parts)
                setattr(self, name, torch.nn.Parameter(blocks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters. A head's are drawn as PyTorch draws those of a module with H / heads units."""
        heads = self.descriptor.heads
        if heads == 1:
            super().reset_parameters()
        else:
            limit = (self.hidden_size / heads) ** -0.5
            for parameter in self.parameters():
                torch.nn.init.uniform_(parameter, -limit, limit)
        self._set_starts()

    @property
    def descriptor(self) -> Any:
        """The options of the cell, as the functions of vkrnn take them."""
        return descriptor_of(self.mode + self._options, bidirectional=bool(self.bidirectional))

    def _beyond_torch(self, *, training: bool) -> dict[str, tuple[Any, Any]]:
        """Return the options that PyTorch's module lacks: what PyTorch's module does, and what this one does.

        Without `training`, options that only matter in training are left out.
        """
        found: dict[str, tuple[Any, Any]] = {"peephole": (False, True)} if self.peephole else {}
        found |= options_beyond_torch(self.mode, self.descriptor)
        in_training = ("recurrent_dropout", "weight_dropout") if training else ()
        for name in (*in_training, "zoneout", "zoneout_cell"):
            if own := getattr(self, name):
                found[name] = 0.0, own
        return found

    def require_torchs_options(self, where: str, *, training: bool) -> None:
        """Raise NotImplementedError if the module has options that PyTorch's module lacks; see `_beyond_torch`."""
        for name, (only, own) in self._beyond_torch(training=training).items():
            raise NotImplementedError(f"{where} {name}: torch.nn.{self._name} supports only {only!r}, got {own!r}")

    def _get_name(self) -> str:
        """Return the name in reprs and in PyTorch's messages: with the package, to tell the module from PyTorch's."""
        kind = type(self)
        own = kind.__bases__[0] if is_parametrized(self) else kind
        return f"vkrnn.torch.{kind.__name__}" if own.__module__ == "vkrnn.torch" else kind.__name__

    def extra_repr(self) -> str:
        """Return the arguments of the constructor that differ from the defaults."""
        own = {name: own for name, (_, own) in self._beyond_torch(training=True).items()} | self._starts
        options = [f"{name}={value!r}" for name, value in own.items()]
        return ", ".join([super().extra_repr(), *options])

    def _add_peepholes(self) -> None:
        """Register the peepholes of all layers, drawn as PyTorch draws its parameters."""
        self.peephole = True
        limit = self.hidden_size**-0.5
        for name in self._weight_names():
            if name.startswith("peephole"):
                weight = self.weight_hh_l0.new_empty(4 * self.hidden_size)
                self.register_parameter(name, torch.nn.Parameter(torch.nn.init.uniform_(weight, -limit, limit)))

    def _weight_names(self) -> list[str]:
        """Return the names of all parameters."""
        names: list[str] = list(self._flat_weights_names)
        if self.peephole:
            names += [name.replace("weight_hh", "peephole") for name in names if name.startswith("weight_hh")]
        return names
