"""The modules of single steps: `LSTMCell`, `GRUCell` and `RNNCell`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from vkrnn.convert._torch_layout import descriptor as descriptor_of
from vkrnn.convert._torch_layout import options_beyond_torch
from vkrnn.descriptors import ActivationLike
from vkrnn.torch._choice import Backend, HasBackend, checked_backend
from vkrnn.torch._classes import scriptable
from vkrnn.torch._heads import require_divisors
from vkrnn.torch._starts import Starts
from vkrnn.torch._steps import Steps, step
from vkrnn.torch._tracing import is_recorded_by_torch, record_in_fx, unseen_by_dynamo

__all__ = ["Cell", "GRUCell", "LSTMCell", "RNNCell"]

_DEVICES = ("cpu", "cuda", "meta")
# PyTorch is faster in these calls, by bench.torch_cells on one thread of an x86-64 CPU: those of an RNN with gradients
# that have fewer rows, and those of one row that have more elements of weights, which vkrnn packs.
_RNN_ROWS_WITH_GRADIENTS = 8
_LARGE = {"LSTM": 140_000, "GRU": 140_000, "RNN": 90_000}


class Cell(HasBackend, Starts, torch.nn.RNNCellBase):
    """The base of the three modules."""

    # `convert` changes a module's class and calls no constructor. These are the values of a cell without options.
    _options: str = ""  # as text, which follows the mode: see `vkrnn.convert._torch_layout`
    kind: str  # LSTM, GRU or RNN

    @property
    def mode(self) -> str:
        """The mode of PyTorch's module for sequences."""
        return self.kind

    @property
    def mode_with_options(self) -> str:
        """The mode, as the operators take it."""
        return self.mode + self._options

    @property
    def descriptor(self) -> Any:
        """The options of the cell, as the functions of vkrnn take them."""
        return descriptor_of(self.mode_with_options, bidirectional=False)

    def _take_options(self, backend: Any, options: dict[str, Any]) -> None:
        """Check and set the options. `options` has those of the descriptor."""
        where, torchs = f"[vkrnn.torch.{self.kind}Cell]", self.descriptor
        if checked_backend(backend, where) != self.backend:
            self.backend = backend
        try:
            chosen = replace(torchs, **options)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace(f"[{type(torchs).__name__}]", where)) from None
        for name, (_, own) in options_beyond_torch(self.mode, chosen).items():
            self._options += f" {name}={own}"
        require_divisors(where, chosen, self.hidden_size, {"input_size": self.input_size})
        for name, count in (("weight_ih", chosen.input_heads), ("weight_hh", chosen.heads)):
            if count > 1:
                weight = getattr(self, name)
                setattr(self, name, torch.nn.Parameter(weight.new_empty(weight.shape[0], weight.shape[1] // count)))
        if chosen.heads * chosen.input_heads > 1:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters as PyTorch does for a cell with as many units as a head has."""
        if not self._options:  # the descriptor may not be known yet
            super().reset_parameters()
        else:
            limit = (self.hidden_size / self.descriptor.heads) ** -0.5
            for parameter in self.parameters():
                torch.nn.init.uniform_(parameter, -limit, limit)
        self._set_starts()

    def weights(self) -> list[Tensor]:
        """Return the matrices, and the biases and the peephole if there are any."""
        found = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, getattr(self, "peephole", None)
        return [each for each in found if each is not None]

    def _beyond_torch(self) -> dict[str, tuple[Any, Any]]:
        """Return the options that PyTorch's cell lacks: what PyTorch's cell does, and what this one does."""
        has_peephole = getattr(self, "peephole", None) is not None
        found: dict[str, tuple[Any, Any]] = {"peephole": (False, True)} if has_peephole else {}
        return found | options_beyond_torch(self.mode, self.descriptor)

    def require_torchs_options(self, where: str, **_: bool) -> None:
        """Raise NotImplementedError if the cell has options that PyTorch's cell lacks."""
        for name, (only, own) in self._beyond_torch().items():
            raise NotImplementedError(f"{where} {name}: torch.nn.{self.kind}Cell supports only {only!r}, got {own!r}")

    def forward(self, input: Any, hx: Any = None, *, mask: Tensor | None = None) -> Any:  # noqa: A002 - torch's name
        """Return the next state: h, and for an LSTM (h, c). Arguments, results and errors are those of PyTorch's cell.

        `mask`, which PyTorch's cell lacks, multiplies the state where it enters the recurrent product: [N, H] or [H],
        without a gradient. It is recurrent dropout if it is the same for all steps.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._compute(input, hx, mask)
        return self._compute_unseen(input, hx, mask)

    @unseen_by_dynamo
    def _compute_unseen(self, input: Any, hx: Any, mask: Tensor | None) -> Any:  # noqa: A002
        steps = None if mask is not None else self.__dict__.get("_steps")
        if steps is not None:
            results = steps.call(self, input, hx)
            if results is not None:
                return results
        if isinstance(input, torch.fx.Proxy):
            return record_in_fx(self, input, hx, None if mask is None else {"mask": mask})
        if is_recorded_by_torch() and mask is None and not self._beyond_torch():
            return super().forward(input, hx)
        if mask is None and self._suits_torch(input):
            self._own_steps().leave(input, hx)
            return super().forward(input, hx)
        results = self._compute(input, hx, mask)
        if mask is None:
            self._own_steps().keep(self, input, hx)
        return results

    def _own_steps(self) -> Steps:
        """Return the kept calls, which the first call makes."""
        steps: Steps = self.__dict__.setdefault("_steps", Steps())
        return steps

    def needs_vkrnn(self) -> bool:
        """Return whether the cell has options that PyTorch's cell lacks, or the user wants vkrnn."""
        if self.backend == "vkrnn" or self._options:
            return True
        # A parametrized one is a property. The module's own look-up of what is not there takes a microsecond.
        return self._parameters.get("peephole") is not None or hasattr(type(self), "peephole")

    def compute_by_torch(self, input: Any, hx: Any) -> Any:  # noqa: A002
        """Do what PyTorch's cell does."""
        return super().forward(input, hx)

    def _suits_torch(self, input: Any) -> bool:  # noqa: A002
        """Return whether PyTorch computes a call faster, as measured on the CPU, or is to compute it."""
        if type(input) is not Tensor or self.needs_vkrnn() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return False
        if self.backend == "torch":
            return True
        if not input.is_cpu or input.dim() != 2 or torch.is_autocast_enabled("cpu"):
            return False
        rows = len(input)
        if self.kind == "RNN" and rows < _RNN_ROWS_WITH_GRADIENTS and torch.is_grad_enabled():
            return True
        return rows == 1 and self.weight_ih.numel() + self.weight_hh.numel() > _LARGE[self.kind]

    def _compute(self, input: Any, hx: Any, mask: Tensor | None) -> Any:  # noqa: A002
        """Compute any call."""
        if isinstance(hx, list):
            hx = tuple(hx)
        states = () if hx is None else hx if self.kind == "LSTM" else (hx,)
        self._check(input, states)
        if not input.is_meta and torch.is_autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype("cuda") if input.is_cuda else self.weight_hh.dtype
            input, states = input.to(dtype), tuple(each.to(dtype) for each in states)  # noqa: A001
        weights = [each if each.dtype is input.dtype else each.to(input.dtype) for each in self.weights()]
        is_row = input.dim() == 1
        if is_row:
            input, *states, mask = (each if each is None else each.unsqueeze(0) for each in (input, *states, mask))  # noqa: A001
        found = step(self.mode_with_options, input, weights, states, mask)
        if not is_row:
            return found
        return tuple(each.squeeze(0) for each in found) if self.kind == "LSTM" else found.squeeze(0)

    def _check(self, input: Any, states: Any) -> None:  # noqa: A002
        """Raise the errors of PyTorch's cell, and refuse tensors on other devices."""
        name = f"{self.kind}Cell"
        for what, tensor in (("input", input), *(("hx", state) for state in states)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"[vkrnn.torch.{name}] {what}: expected a torch.Tensor, got {type(tensor).__name__}")
            if tensor.device.type not in _DEVICES:
                raise NotImplementedError(
                    f"[vkrnn.torch.{name}] {what}: expected a tensor on the CPU or a CUDA device, "
                    f"got one on {tensor.device}; vkrnn shares no memory with other devices of torch"
                )
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if states and len(states) != 1 + (self.kind == "LSTM"):
            raise RuntimeError(f"[vkrnn.torch.{name}] hx: expected (h, c), got {len(states)} tensors")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {input.shape[-1]} expected {self.input_size}")
        wanted = (*input.shape[:-1], self.hidden_size)
        for number, state in enumerate(states):
            if state.shape != wanted:
                raise RuntimeError(
                    f"[vkrnn.torch.{name}] hx[{number}]: expected shape {list(wanted)}, got {list(state.shape)}"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, which have no kept calls."""
        state = getattr(super(), "__getstate__", lambda: self.__dict__)()
        return {name: value for name, value in state.items() if name != "_steps"}

    def _get_name(self) -> str:
        kind = type(self)
        own = kind.__bases__[0] if is_parametrized(self) else kind
        return f"vkrnn.torch.{kind.__name__}" if own.__module__ == "vkrnn.torch" else kind.__name__

    def extra_repr(self) -> str:
        """Return the arguments of the constructor that differ from the defaults."""
        own = {name: own for name, (_, own) in self._beyond_torch().items()} | self._starts
        options = [f"{name}={value!r}" for name, value in own.items()]
        return ", ".join([super().extra_repr(), *options])

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """Return what torch.jit.script compiles."""
        return scriptable(self, f"[vkrnn.torch.{self.kind}Cell] torch.jit.script:")


class LSTMCell(Cell, torch.nn.LSTMCell):
    """``torch.nn.LSTMCell``, computed by vkrnn, with the options of `vkrnn.lstm`.

    Parameters
    ----------
    input_size, hidden_size, bias, device, dtype
        As in ``torch.nn.LSTMCell``.
    peephole : bool, default False
        Let all gates read the cell state. The cell gets a parameter ``peephole``, [4H], with gates in PyTorch's order
        i, f, g, o.
    forget_bias : float, optional
        As in `LSTM`.
    input_gate_activation, forget_gate_activation, cell_gate_activation, output_gate_activation, activation, \
output_peephole_new_cell, hard_sigmoid_alpha, hard_sigmoid_beta, clip, gradient_clip, heads, input_heads
        As in `LSTM`.
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        What computes calls that PyTorch's cell can do, too. ``auto`` is vkrnn, except for kinds of calls on the CPU for
        which PyTorch was faster when both were measured: those with one row of large weights, and those of an RNN with
        gradients and few rows.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> import torch
    >>> cell = LSTMCell(3, 16, peephole=True)
    >>> cell
    vkrnn.torch.LSTMCell(3, 16, peephole=True)
    >>> h, c = cell(torch.zeros(2, 3))
    >>> h, c = cell(torch.zeros(2, 3), (h, c))
    >>> h.shape
    torch.Size([2, 16])
    """

    __module__ = "vkrnn.torch"
    kind = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        peephole: bool = False,
        forget_bias: float | None = None,
        input_gate_activation: ActivationLike = "sigmoid",
        forget_gate_activation: ActivationLike = "sigmoid",
        cell_gate_activation: ActivationLike = "tanh",
        output_gate_activation: ActivationLike = "sigmoid",
        activation: ActivationLike = "tanh",
        output_peephole_new_cell: bool = False,
        hard_sigmoid_alpha: float = 0.2,
        hard_sigmoid_beta: float = 0.5,
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self._take_options(
            backend,
            {
                "input_gate_activation": input_gate_activation,
                "forget_gate_activation": forget_gate_activation,
                "cell_gate_activation": cell_gate_activation,
                "output_gate_activation": output_gate_activation,
                "activation": activation,
                "output_peephole_new_cell": output_peephole_new_cell,
                "hard_sigmoid_alpha": hard_sigmoid_alpha,
                "hard_sigmoid_beta": hard_sigmoid_beta,
                "clip": clip,
                "gradient_clip": gradient_clip,
                "heads": heads,
                "input_heads": input_heads,
            },
        )
        if not isinstance(peephole, bool):
            raise TypeError(
                f"[vkrnn.torch.LSTMCell] peephole: expected a bool, got {peephole!r} ({type(peephole).__name__})"
            )
        if peephole:
            limit, weight = self.hidden_size**-0.5, self.weight_hh.new_empty(4 * self.hidden_size)
            self.peephole = torch.nn.Parameter(torch.nn.init.uniform_(weight, -limit, limit))
        self._take_forget_bias("[vkrnn.torch.LSTMCell]", forget_bias)


class GRUCell(Cell, torch.nn.GRUCell):
    """``torch.nn.GRUCell``, computed by vkrnn, with the options of `vkrnn.gru`.

    Parameters
    ----------
    input_size, hidden_size, bias, device, dtype
        As in ``torch.nn.GRUCell``.
    reset_after, flip_z, update_gate_activation, reset_gate_activation, output_gate_activation, hard_sigmoid_alpha, \
hard_sigmoid_beta, clip, gradient_clip, heads, input_heads
        As in `GRU`.
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        As in `LSTMCell`.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> GRUCell(3, 16, reset_after=False)
    vkrnn.torch.GRUCell(3, 16, reset_after=False)
    """

    __module__ = "vkrnn.torch"
    kind = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        flip_z: bool = False,
        update_gate_activation: ActivationLike = "sigmoid",
        reset_gate_activation: ActivationLike = "sigmoid",
        output_gate_activation: ActivationLike = "tanh",
        hard_sigmoid_alpha: float = 0.2,
        hard_sigmoid_beta: float = 0.5,
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self._take_options(
            backend,
            {
                "reset_after": reset_after,
                "flip_z": flip_z,
                "update_gate_activation": update_gate_activation,
                "reset_gate_activation": reset_gate_activation,
                "output_gate_activation": output_gate_activation,
                "hard_sigmoid_alpha": hard_sigmoid_alpha,
                "hard_sigmoid_beta": hard_sigmoid_beta,
                "clip": clip,
                "gradient_clip": gradient_clip,
                "heads": heads,
                "input_heads": input_heads,
            },
        )


class RNNCell(Cell, torch.nn.RNNCell):
    """``torch.nn.RNNCell``, computed by vkrnn, with the options of `vkrnn.single_gate_rnn`.

    Parameters
    ----------
    input_size, hidden_size, bias, nonlinearity, device, dtype
        As in ``torch.nn.RNNCell``.
    activation, hard_sigmoid_alpha, hard_sigmoid_beta, clip, gradient_clip, heads, input_heads
        As in `RNN`.
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        As in `LSTMCell`.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> RNNCell(3, 16, activation="sigmoid")
    vkrnn.torch.RNNCell(3, 16, activation='sigmoid')
    """

    __module__ = "vkrnn.torch"
    kind = "RNN"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        activation: ActivationLike | None = None,
        hard_sigmoid_alpha: float = 0.2,
        hard_sigmoid_beta: float = 0.5,
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, nonlinearity, device, dtype)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"[vkrnn.torch.RNNCell] nonlinearity: expected 'tanh' or 'relu', got {nonlinearity!r}")
        self._take_options(
            backend,
            {
                "activation": nonlinearity if activation is None else activation,
                "hard_sigmoid_alpha": hard_sigmoid_alpha,
                "hard_sigmoid_beta": hard_sigmoid_beta,
                "clip": clip,
                "gradient_clip": gradient_clip,
                "heads": heads,
                "input_heads": input_heads,
            },
        )

    @property
    def mode(self) -> str:
        """The mode of PyTorch's module for sequences."""
        return f"RNN_{self.nonlinearity.upper()}"
