"""The module `SLSTM`, which PyTorch does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from vkrnn.descriptors import SLSTMDescriptor
from vkrnn.results import STATES
from vkrnn.torch._autocast import autocast_dtype, in_dtype
from vkrnn.torch._functions import slstm
from vkrnn.torch._heads import require_divisors
from vkrnn.torch._operations import RESETS
from vkrnn.torch._starts import Starts, require_chances
from vkrnn.torch._tracing import record_in_fx

__all__ = ["SLSTM"]

_WHERE = "[vkrnn.torch.SLSTM]"


class SLSTM(Starts):
    """An sLSTM of xLSTM, computed by vkrnn, with the arguments and results of ``torch.nn.LSTM``.

    The state has four tensors, ``(h, c, n, m)``: the hidden state, the cell, the normalizer and the stabilizer. Each is
    [L D, N, H] for L layers and D directions. `vkrnn.slstm` has the equations.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype
        As in ``torch.nn.LSTM``. There is one bias for each layer and direction, ``bias_l0``, [4H]. The gates are in the
        order i, f, z, o.
    recurrent_dropout : float, default 0.0
        As in `LSTM`.
    weight_dropout : float, default 0.0
        As in `LSTM`.
    forget_bias : float, optional
        As in `LSTM`. There is one bias.
    learn_initial_state : bool, default False
        As in `LSTM`, with parameters ``init_state``, ``init_cell``, ``init_normalizer`` and ``init_stabilizer``.
    zoneout : float, default 0.0
        As in `LSTM`. The cell has no zoneout: see `vkrnn.slstm`.
    forget_gate : {"sigmoid", "exponential"}, default "sigmoid"
        As in `vkrnn.SLSTMDescriptor`.
    clip : float, default 0.0
        As in `vkrnn.SLSTMDescriptor`.
    gradient_clip : float, optional
        As in `vkrnn.SLSTMDescriptor`.
    heads, input_heads : int, default 1, 1
        As in `LSTM`.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> import torch
    >>> module = SLSTM(3, 16, forget_gate="exponential")
    >>> module
    vkrnn.torch.SLSTM(3, 16, forget_gate='exponential')
    >>> output, (h, c, n, m) = module(torch.zeros(5, 1, 3))
    >>> output.shape, n.shape
    (torch.Size([5, 1, 16]), torch.Size([1, 1, 16]))
    """

    __module__ = "vkrnn.torch"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,  # noqa: FBT001, FBT002 - as in PyTorch's modules
        batch_first: bool = False,  # noqa: FBT001, FBT002
        dropout: float = 0.0,
        bidirectional: bool = False,  # noqa: FBT001, FBT002
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        forget_bias: float | None = None,
        learn_initial_state: bool = False,
        zoneout: float = 0.0,
        forget_gate: Any = "sigmoid",
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
    ) -> None:
        super().__init__()
        _check_sizes(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        chances = {"recurrent_dropout": recurrent_dropout, "weight_dropout": weight_dropout, "zoneout": zoneout}
        require_chances(_WHERE, dropout=dropout, **chances)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bool(bias), bool(batch_first)
        self.dropout, self.recurrent_dropout = float(dropout), float(recurrent_dropout)
        self.weight_dropout, self.zoneout = float(weight_dropout), float(zoneout)
        try:
            self.descriptor = SLSTMDescriptor(
                bidirectional=bool(bidirectional),
                produce_cell=True,
                forget_gate=forget_gate,
                clip=clip,
                gradient_clip=gradient_clip,
                heads=heads,
                input_heads=input_heads,
            )
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("[SLSTMDescriptor]", _WHERE)) from None
        require_divisors(_WHERE, self.descriptor, hidden_size, {"input_size": input_size})
        for name, shape in self._shapes():
            weight = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(weight))
        self.reset_parameters()
        self._take_forget_bias(_WHERE, forget_bias)
        self._take_initial_states(_WHERE, learn_initial_state, (hidden_size,) * len(STATES))

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of the parameters."""
        D, H = 1 + self.bidirectional, self.hidden_size
        for number in range(self.num_layers):
            for suffix in ("", "_reverse")[:D]:
                features = D * H if number else self.input_size
                yield f"weight_ih_l{number}{suffix}", (4 * H, features // self.descriptor.input_heads)
                yield f"weight_hh_l{number}{suffix}", (4 * H, H // self.descriptor.heads)
                if self.bias:
                    yield f"bias_l{number}{suffix}", (4 * H,)

    @property
    def bidirectional(self) -> bool:
        """Whether there are two directions."""
        return self.descriptor.bidirectional

    def reset_parameters(self) -> None:
        """Draw the parameters as PyTorch's modules draw theirs, for as many units as a head has."""
        limit = (self.hidden_size // self.descriptor.heads) ** -0.5
        for weight in self.parameters():
            torch.nn.init.uniform_(weight, -limit, limit)
        self._set_starts()

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which would need a module of PyTorch's in the place of this one."""
        raise NotImplementedError(
            f"{_WHERE} torch.jit.script: PyTorch has no sLSTM; use torch.jit.trace under torch.no_grad()"
        )

    def _get_name(self) -> str:
        kind = type(self)
        return f"vkrnn.torch.{kind.__name__}" if kind.__module__ == "vkrnn.torch" else kind.__name__

    def extra_repr(self) -> str:
        """Return the arguments of the constructor that differ from the defaults."""
        defaults: dict[str, Any] = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        defaults |= {"bidirectional": False, "recurrent_dropout": 0.0, "weight_dropout": 0.0, "zoneout": 0.0}
        own = {name: getattr(self, name) for name in defaults}
        for name in ("forget_gate", "clip", "gradient_clip", "heads", "input_heads"):
            own[name], defaults[name] = getattr(self.descriptor, name), getattr(SLSTMDescriptor, name)
        own = {name: value for name, value in own.items() if value != defaults[name]} | self._starts
        shown = [f"{name}={value!r}" for name, value in own.items()]
        return ", ".join([str(self.input_size), str(self.hidden_size), *shown])

    def forward(
        self,
        input: Any,  # noqa: A002 - PyTorch's name
        hx: Any = None,
        reset: Any = None,  # not by keyword alone, because torch.onnx's older exporter passes all defaults by position
        reset_state: Any = None,
        reset_cell: Any = None,
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output and the last states, which are zeros at first if `hx` is not given.

        All layers have the `reset`: [T, N], [T, N, 1] or [T, N, D H], [N, T, ...] with ``batch_first``, and a
        PackedSequence of these for one. Resets start from `reset_state` and `reset_cell`, [L D, N, H], or from zeros.
        See `vkrnn.slstm`.

        Raises
        ------
        TypeError
            If the input or the `reset` is no tensor and no PackedSequence, only one of them is a PackedSequence, or
            `hx` is no tuple of four tensors.
        ValueError
            If a shape is wrong, or the lengths of two PackedSequences differ.
        NotImplementedError
            For tensors on other devices than the CPU and CUDA devices.
        """
        resets = dict(zip(RESETS, (reset, reset_state, reset_cell), strict=True))
        if isinstance(input, torch.fx.Proxy):
            given = {name: each for name, each in resets.items() if each is not None}
            recorded: Any = record_in_fx(self, input, hx, given)
            return recorded  # type: ignore[no-any-return]
        if not isinstance(input, (Tensor, PackedSequence)):
            raise TypeError(f"{_WHERE} input: expected a torch.Tensor or a PackedSequence, got {type(input).__name__}")
        self._check_resets(resets, input)
        if hx is None and self.learn_initial_state:
            hx = self._learnt_states(input)
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, resets)
        if input.dim() not in (2, 3):
            raise ValueError(f"{_WHERE} input: expected 2 or 3 axes, got {input.dim()}")
        batched = input.dim() == 3
        states = self._states(hx, axes=3 if batched else 2)
        source = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            source = source.transpose(0, 1)
            if reset is not None and reset.dim() > 1:
                resets["reset"] = reset.transpose(0, 1)
        if not batched:
            states = states and [state.unsqueeze(1) for state in states]
            resets = {name: each if each is None else each.unsqueeze(1) for name, each in resets.items()}
        output, last = self._run(source, states, None, resets)
        if not batched:
            return output.squeeze(1), tuple(state.squeeze(1) for state in last)
        return output.transpose(0, 1) if self.batch_first else output, last

    def _check_resets(self, resets: dict[str, Any], input: Any) -> None:  # noqa: A002
        packed = isinstance(input, PackedSequence)
        for name, each in resets.items():
            wanted = PackedSequence if name == "reset" and packed else Tensor
            if each is not None and not isinstance(each, wanted):
                article = "a PackedSequence, as the input is one" if wanted is PackedSequence else "a torch.Tensor"
                raise TypeError(f"{_WHERE} {name}: expected {article}, got {type(each).__name__}")
            if each is not None and name != "reset":
                self._check_state(each, name, axes=3 if packed else input.dim())

    def _forward_packed(
        self, packed: PackedSequence, hx: Any, resets: dict[str, Any]
    ) -> tuple[PackedSequence, tuple[Tensor, ...]]:
        source, lengths = pad_packed_sequence(packed)  # in the order of the caller's rows, as the states are
        if resets["reset"] is not None:
            resets["reset"], own = pad_packed_sequence(resets["reset"])
            if not torch.equal(own, lengths):
                raise ValueError(f"{_WHERE} reset: expected the input's lengths in its order")
        output, last = self._run(source, self._states(hx, axes=3), lengths, resets)
        return pack_padded_sequence(output, lengths, enforce_sorted=packed.sorted_indices is None), last

    def _states(self, hx: Any, *, axes: int) -> list[Tensor] | None:
        if hx is None:
            return None
        if not isinstance(hx, (tuple, list)) or not all(isinstance(state, Tensor) for state in hx):
            raise TypeError(f"{_WHERE} hx: expected a tuple of tensors (h, c, n, m), got {type(hx).__name__}")
        if len(hx) != len(STATES):
            raise ValueError(f"{_WHERE} hx: expected 4 tensors (h, c, n, m), got {len(hx)}")
        for state in hx:
            self._check_state(state, "hx", axes=axes)
        return list(hx)

    def _check_state(self, state: Tensor, name: str, *, axes: int) -> None:
        layers = self.num_layers * (1 + self.bidirectional)
        if state.dim() != axes or state.shape[0] != layers or state.shape[-1] != self.hidden_size:
            wanted = "[L D, N, H]" if axes == 3 else "[L D, H]"
            sizes = f"L D = {layers} and H = {self.hidden_size}"
            raise ValueError(f"{_WHERE} {name}: expected shape {wanted} with {sizes}, got {list(state.shape)}")

    def _run(
        self, source: Tensor, states: list[Tensor] | None, lengths: Tensor | None, resets: dict[str, Any]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all layers over the source, [T, N, I], and return the output and the last states."""
        D, N = 1 + self.bidirectional, source.shape[1]
        named = {} if states is None else {state.initial: each for state, each in zip(STATES, states, strict=True)}
        named |= {name: resets[name] for name in RESETS[1:] if resets[name] is not None}
        last: list[list[Tensor]] = [[] for _ in STATES]
        dtype = autocast_dtype(source, self)
        output = source = in_dtype(source, dtype)
        for number in range(self.num_layers):
            if number > 0:
                output = torch.nn.functional.dropout(output, self.dropout, self.training)
            given: dict[str, Any] = {"lengths": lengths, "reset": in_dtype(resets["reset"], dtype)}
            for name, tensor in named.items():
                own = in_dtype(tensor[number * D : (number + 1) * D], dtype)
                given[name] = own.transpose(0, 1).reshape(N, D * self.hidden_size)
            if self.recurrent_dropout and self.training:
                ones = source.new_ones(1, N, D * self.hidden_size)
                given["mask"] = torch.nn.functional.dropout(ones, self.recurrent_dropout)
            if self.zoneout:
                width, keeps_new = D * self.hidden_size, 1 - self.zoneout
                given["zoneout_mask"] = (
                    source.new_empty(*source.shape[:2], width).bernoulli_(keeps_new)
                    if self.training
                    else source.new_full((width,), keeps_new)
                )
            found = slstm(
                output,
                in_dtype(self._weight("weight_hh", number), dtype),
                input_weight=in_dtype(self._weight("weight_ih", number), dtype),
                bias=in_dtype(self._weight("bias", number), dtype) if self.bias else None,
                descriptor=self.descriptor,
                **given,
            )
            for state, rows in zip(STATES, last, strict=True):
                rows.extend(self._last_rows(getattr(found, state.sequence), lengths))
            output = found.output
        return output, tuple(torch.stack(rows) for rows in last)

    def _weight(self, name: str, number: int) -> Tensor:
        weight: Tensor = getattr(self, f"{name}_l{number}")
        if self.bidirectional:
            both = weight, getattr(self, f"{name}_l{number}_reverse")
            weight = torch.stack(both) if name == "weight_hh" else torch.cat(both)
        drops = name == "weight_hh" and self.weight_dropout
        return torch.nn.functional.dropout(weight, self.weight_dropout, self.training) if drops else weight

    def _last_rows(self, sequence: Tensor, lengths: Tensor | None) -> list[Tensor]:
        """Return the rows of a sequence, [T, N, D H], after the last step of each direction."""
        H = self.hidden_size
        if lengths is None:
            ends = sequence[-1, :, :H]
        else:
            steps = (lengths - 1).to(sequence.device)
            ends = sequence[steps, torch.arange(len(lengths), device=sequence.device), :H]
        return [ends, sequence[0, :, H:]] if self.bidirectional else [ends]


def _check_sizes(**sizes: object) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{_WHERE} {name}: expected an int, got {size!r} ({type(size).__name__})")
        if size < 1:
            raise ValueError(f"{_WHERE} {name}: expected at least 1, got {size}")
