"""What modules start from: the forget gates' bias in training, and learnt states in a call."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from vkrnn.results import STATES

__all__ = ["Starts", "require_chances"]


class Starts(torch.nn.Module):
    """The options `forget_bias` and `learn_initial_state` of a module."""

    # `convert` changes a module's class and calls no constructor. These are the values of a module without options.
    forget_bias: float | None = None
    learn_initial_state: bool = False

    def _take_forget_bias(self, where: str, forget_bias: Any) -> None:
        """Check and set the option. The forget gate is the second one in all biases."""
        if forget_bias is None:
            return
        _require_number(where, "forget_bias", forget_bias)
        if not math.isfinite(forget_bias):
            raise ValueError(f"{where} forget_bias: expected a finite number, got {forget_bias!r}")
        if not self.bias:
            raise ValueError(f"{where} forget_bias: expected a module with biases, got bias=False")
        self.forget_bias = float(forget_bias)
        self._set_starts()

    def _take_initial_states(self, where: str, learn_initial_state: object, widths: Sequence[int]) -> None:
        """Check and set the option. `widths` are those of the states, for each of which there is a parameter."""
        if not isinstance(learn_initial_state, bool):
            kind = type(learn_initial_state).__name__
            raise TypeError(f"{where} learn_initial_state: expected a bool, got {learn_initial_state!r} ({kind})")
        if not learn_initial_state:
            return
        self.learn_initial_state = True
        like: Any = self.weight_hh_l0
        layers: Any = self.num_layers * (1 + self.bidirectional)
        for state, width in zip(STATES, widths, strict=False):
            self.register_parameter(state.initial, torch.nn.Parameter(like.new_zeros(layers, 1, width)))

    def _set_starts(self) -> None:
        """Give the forget gates their bias, and zeros to the learnt states. `reset_parameters` ends with this."""
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                if name.startswith("init_"):
                    parameter.zero_()
                elif name.startswith("bias") and self.forget_bias is not None:
                    added = name.startswith("bias_hh")  # the second of PyTorch's two biases
                    parameter.view(4, -1)[1].fill_(0.0 if added else self.forget_bias)

    @property
    def _starts(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        found: dict[str, Any] = {} if self.forget_bias is None else {"forget_bias": self.forget_bias}
        return found | ({"learn_initial_state": True} if self.learn_initial_state else {})

    def require_given_states(self, where: str) -> None:
        """Raise NotImplementedError if the module has learnt states, which PyTorch's module lacks."""
        if self.learn_initial_state:
            raise NotImplementedError(f"{where} learn_initial_state: PyTorch supports only False, got True")

    def _learnt_states(self, given: Any) -> tuple[Tensor, ...]:
        """Return the states to start from, for all rows of an input: a tensor or a PackedSequence."""
        states: list[Tensor] = [getattr(self, each.initial) for each in STATES if hasattr(self, each.initial)]
        if isinstance(given, PackedSequence):
            rows = int(given.batch_sizes[0])
        elif given.dim() == 3:
            rows = given.shape[0 if self.batch_first else 1]
        else:
            return tuple(each.squeeze(1) for each in states)
        return tuple(each.repeat(1, rows, 1) for each in states)


def require_chances(where: str, **chances: Any) -> None:
    """Raise TypeError or ValueError unless these are probabilities."""
    for name, chance in chances.items():
        _require_number(where, name, chance)
        if not 0 <= chance <= 1:
            raise ValueError(f"{where} {name}: expected a number from 0 to 1, got {chance!r}")


def _require_number(where: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where} {name}: expected a number, got {value!r} ({type(value).__name__})")
