"""What the modules have in common: the forward pass."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from vkrnn._base.generics import Self
from vkrnn._interop.torch_tensors import to_array, to_tensor
from vkrnn._ops.prepared import Prepared
from vkrnn.torch._autocast import autocast_dtype, in_dtype
from vkrnn.torch._autograd import Form, apply_network, with_trained
from vkrnn.torch._choice import choose
from vkrnn.torch._classes import scriptable
from vkrnn.torch._kept import Kept
from vkrnn.torch._network import Inputs, compute_network, network
from vkrnn.torch._onnx import require_peephole
from vkrnn.torch._options import Options
from vkrnn.torch._projection import run_projected
from vkrnn.torch._repeated import RepeatedCalls
from vkrnn.torch._threads import pytorch_threads
from vkrnn.torch._tracing import is_plain, is_recorded_by_torch, record_in_fx, unseen_by_dynamo

__all__ = ["Recurrent"]

_DEVICES = ("cpu", "cuda", "meta")
_RESETS = ("reset", "reset_state", "reset_cell")
_NO_RESETS = (None, None, None)


class Recurrent(Options):
    """The base of the three modules."""

    def forward(
        self,
        input: Any,  # noqa: A002 - torch's name
        hx: Any = None,
        reset: Any = None,  # not by keyword alone, because torch.onnx's older exporter passes all defaults by position
        reset_state: Any = None,
        reset_cell: Any = None,
    ) -> Any:
        """Return output and last states. Arguments, results and errors are those of PyTorch's module.

        All layers have the `reset`, which PyTorch's module lacks: [T, N], [T, N, 1] or [T, N, D H], [N, T, ...] with
        ``batch_first``, and a PackedSequence of these for one. A call with it is never PyTorch's. Resets start from
        `reset_state` and, in an LSTM, `reset_cell`, [L D, N, H], or from zeros. See `vkrnn.lstm`.
        """
        if hx is None and self.learn_initial_state and isinstance(input, (Tensor, PackedSequence)):
            states = self._learnt_states(input)
            hx = states if self.mode == "LSTM" else states[0]
        if reset is not None or reset_state is not None or reset_cell is not None:
            return self._compute_with_resets(input, hx, (reset, reset_state, reset_cell))
        if torch.compiler.is_dynamo_compiling():  # the module becomes part of a compiled graph
            if self.backend == "torch" and input.is_cuda and not self._needs_vkrnn():
                return super().forward(input, hx)
            return self._compute(input, hx)
        return self._compute_unseen(input, hx)

    def _compute_with_resets(self, input: Any, hx: Any, resets: Any) -> Any:  # noqa: A002
        where = f"[vkrnn.torch.{self._name}]"
        if isinstance(input, torch.fx.Proxy):
            return record_in_fx(self, input, hx, dict(zip(_RESETS, resets, strict=True)))
        self._require_tensors(input, hx)
        if self.proj_size:
            raise NotImplementedError(f"{where} reset: not with proj_size, got {self.proj_size}")
        if resets[0] is None:
            name = next(name for name, each in zip(_RESETS, resets, strict=True) if each is not None)
            raise ValueError(f"{where} {name}: expected a reset beside it, got none")
        if resets[2] is not None and self.mode != "LSTM":
            raise TypeError(f"{where} reset_cell: expected None, because only an LSTM has cells")
        for name, each in zip(_RESETS, resets, strict=True):
            wanted = PackedSequence if name == "reset" and isinstance(input, PackedSequence) else Tensor
            if each is not None and not isinstance(each, wanted):
                article = "a PackedSequence, as the input is one" if wanted is PackedSequence else "a torch.Tensor"
                self._refuse_type(f"{name}: expected {article}", each)
        return self._compute(input, hx, resets)

    @unseen_by_dynamo
    def _compute_unseen(self, input: Any, hx: Any) -> Any:  # noqa: A002
        kept = self.__dict__.get("_kept")
        results = None if kept is None else kept.call(self, input, hx)
        if results is not None:
            return results
        if type(input) is not Tensor or torch._C._is_tracing():  # noqa: SLF001 - torch.jit.is_tracing takes longer
            if isinstance(input, torch.fx.Proxy):
                return record_in_fx(self, input, hx)
            if is_recorded_by_torch():
                is_onnx = torch.onnx.is_in_onnx_export()
                if not (self._needs_vkrnn() or (is_onnx and self.proj_size)):
                    return super().forward(input, hx)
                if is_onnx and self.peephole:
                    require_peephole(self)
        self._require_tensors(input, hx)
        if (input.data if isinstance(input, PackedSequence) else input).is_cuda:
            return self._compute_on_cuda(input, hx)
        return self._compute(input, hx)

    def _require_tensors(self, input: Any, hx: Any) -> None:  # noqa: A002
        if not isinstance(input, (Tensor, PackedSequence)):
            self._refuse_type("input: expected a torch.Tensor or a PackedSequence", input)
        for state in hx if isinstance(hx, (tuple, list)) else (hx,):
            if not isinstance(state, Tensor) and hx is not None:
                self._refuse_type("hx: expected a torch.Tensor", state)

    def _refuse_type(self, expected: str, got: object) -> NoReturn:
        raise TypeError(f"[vkrnn.torch.{self._name}] {expected}, got {type(got).__name__}")

    def _compute_on_cuda(self, input: Any, hx: Any) -> Any:  # noqa: A002
        ways = {"vkrnn": self._compute_by_vkrnn, "torch": self._compute_by_torch}
        way: str = self.backend
        if self._needs_vkrnn():
            way = "vkrnn"
        elif way == "auto":
            way = choose(self, input, hx, ways)
        results = ways[way](input, hx)
        RepeatedCalls.settle(self, input, hx, way)
        return results

    def _compute_by_vkrnn(self, input: Any, hx: Any) -> Any:  # noqa: A002
        """Compute a call on a CUDA device. Keep it, so that the next call like it takes the host less time."""
        kept = self.__dict__.get("_kept")
        results = kept.call(self, input, hx) if isinstance(kept, RepeatedCalls) else None
        if results is None:
            results = self._compute(input, hx)
            RepeatedCalls.keep(self, input, hx, "vkrnn")
        return results

    def _compute_by_torch(self, input: Any, hx: Any) -> Any:  # noqa: A002
        return super().forward(input, hx)

    def _needs_vkrnn(self) -> bool:
        """Return whether the module has options that PyTorch's module lacks."""
        in_training = self.training and (self.recurrent_dropout or self.weight_dropout)
        return any(map(bool, (self.peephole, self._options, in_training, self.zoneout, self.zoneout_cell)))

    def _compute(self, input: Any, hx: Any, resets: Any = _NO_RESETS) -> Any:  # noqa: A002
        if isinstance(hx, list) and self.mode == "LSTM":
            hx = tuple(hx)
        if (dtype := autocast_dtype(input, self)) is not None:
            input, hx = input.to(dtype), self._each(hx, lambda state: state.to(dtype))  # noqa: A001
            resets = [in_dtype(each, dtype) for each in resets]
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, resets)
        if input.dim() not in (2, 3):
            raise ValueError(f"{self._name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched, batch_axis = input.dim() == 3, 0 if self.batch_first else 1
        if hx is not None:
            self._check_axes(hx, batched=batched)
        if not batched:
            input = input.unsqueeze(batch_axis)  # noqa: A001
            hx = self._each(hx, lambda state: state.unsqueeze(1))
        self._check(input, hx, None)
        if input.numel() == 0:  # without steps PyTorch raises an error, without rows there is nothing to compute
            output, last = super().forward(input, hx)
        else:
            source = input.transpose(0, 1).contiguous() if self.batch_first else input
            output, last = self._run(source, hx, None, self._in_order(resets, batched=batched))
            if self.batch_first:
                output = output.transpose(0, 1)
        if batched:
            return output, last
        return output.squeeze(batch_axis), self._each(last, lambda state: state.squeeze(1))

    def _in_order(self, resets: Any, *, batched: bool) -> Any:
        """Return the arguments of resets with the axes in the order T, N and L D, N."""
        reset, *starts = resets
        if reset is None:
            return resets
        if not batched:
            return reset.unsqueeze(1), *(each if each is None else each.unsqueeze(1) for each in starts)
        if self.batch_first and reset.dim() > 1:
            reset = reset.transpose(0, 1)
        return reset, *starts

    def _forward_packed(self, packed: PackedSequence, hx: Any, resets: Any) -> tuple[PackedSequence, Any]:
        """Compute packed sequences without padding them."""
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        self._check(data, hx, batch_sizes)
        reset, *starts = resets
        if reset is not None:
            if not torch.equal(reset.batch_sizes, batch_sizes) or not _equal(reset.sorted_indices, sorted_indices):
                raise ValueError(f"[vkrnn.torch.{self._name}] reset: expected the input's lengths in its order")
            reset = reset.data
        if data.is_meta:  # the order of the sequences is unknown
            return super().forward(packed, hx)  # type: ignore[no-any-return]
        if sorted_indices is not None:
            hx = self._each(hx, lambda state: state.index_select(1, sorted_indices))
            starts = [each if each is None else each.index_select(1, sorted_indices) for each in starts]
        output, last = self._run(data, hx, _lengths(batch_sizes), (reset, *starts))
        if unsorted_indices is not None:
            last = self._each(last, lambda state: state.index_select(1, unsorted_indices))
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), last

    def _run(self, source: Tensor, hx: Any, lengths: Tensor | None, resets: Any = _NO_RESETS) -> tuple[Tensor, Any]:
        """Run all layers over the source, [T, N, I] or packed. Return the output in that form, and the last states."""
        h_0, c_0 = hx if isinstance(hx, tuple) else (hx, None)
        # Dynamo compiles the operator below. It cannot trace the checks for the faster ways.
        traced = torch.compiler.is_dynamo_compiling()
        if not traced and source.is_cpu:
            given = [source, h_0, c_0, *resets, *self._parameters.values()]
            if is_plain(given) and not _takes_gradients(given):
                prepared = self._prepared() if lengths is None and resets[0] is None else None
                if prepared is not None:
                    return self._run_prepared(prepared, source, h_0, c_0)
            else:
                self._forget()
        elif not traced and isinstance(self.__dict__.get("_kept"), Kept):
            self._forget()
        if self.proj_size:
            return run_projected(self, source, h_0, c_0, lengths)
        # Within torch.autocast, or of another type than the other parameters.
        weights = [
            each if each.dtype is source.dtype else each.to(source.dtype) for each in self._weights_of_all_layers()
        ]
        masks, between = self._masks(source, source.shape[1] if lengths is None else lengths.shape[0])
        mode = self.mode + self._options
        zoneout = self._zoneout_masks(source, self.zoneout), self._zoneout_masks(source, self.zoneout_cell)
        of_steps = *resets, zoneout[0] or None, zoneout[1] or None
        inputs = Inputs(source, weights, h_0, c_0, masks, between, lengths, mode, self.num_layers, 0, *of_steps)
        output, last = self._run_network(inputs)
        return output, last if self.mode == "LSTM" else last[0]

    def _run_network(self, inputs: Inputs) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output and the last states of a network."""
        inputs = with_trained(inputs)
        last: Any
        if torch.compiler.is_dynamo_compiling():
            output, *last, _ = network(*inputs)
            return output, tuple(last)
        form, tensors = Form.of(inputs)
        if not is_plain(tensors):
            output, *last, _ = network(*inputs)
        elif form.trained < form.layers:
            output, *last = apply_network(form, None, *tensors)[:3]
        else:
            output, *last, _ = compute_network(inputs)
        return output, tuple(last)

    def _prepared(self) -> Prepared | None:
        """Return the layers with packed weights from the second call on in which the parameters are the same.

        A frozen module has them from the first call on.
        """
        kept = self.__dict__.get("_kept")
        found: Prepared | None = kept.prepared(self) if isinstance(kept, Kept) else None
        if found is None:
            kept = self.__dict__["_kept"] = Kept(self) if Kept.is_possible(self) else None
            if kept is not None and self._frozen:
                found = kept.prepared(self)
        return found

    def _run_prepared(
        self, prepared: Prepared, source: Tensor, h_0: Tensor | None, c_0: Tensor | None
    ) -> tuple[Tensor, Any]:
        given = [None if tensor is None else to_array(tensor) for tensor in (h_0, c_0)]
        with pytorch_threads:
            output, *last = map(to_tensor, prepared.run(to_array(source), *given))
        return output, tuple(last) if self.mode == "LSTM" else last[0]

    def _forget(self) -> None:
        """Drop packed weights and kept calls."""
        self.__dict__.pop("_kept", None)

    def set_frozen(self, mode: bool) -> None:  # noqa: FBT001 - as `train`
        """Take the user's word that the parameters do not change, or give it back; see `vkrnn.torch.frozen`."""
        self._forget()
        self.__dict__.pop("_frozen", None)
        if mode:
            self.__dict__["_frozen"] = True

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """Set the mode; packed weights and kept calls are dropped. A module in training is not frozen."""
        self.set_frozen(self._frozen and not mode)
        super().train(mode)
        return self

    def _load_from_state_dict(self, *given: Any, **options: Any) -> None:
        super()._load_from_state_dict(*given, **options)
        self._forget()

    def _apply(self, *given: Any, **options: Any) -> Self:  # moves and converts the parameters
        super()._apply(*given, **options)
        self._forget()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, which are not frozen and have no packed weights and kept calls."""
        state = getattr(super(), "__getstate__", lambda: self.__dict__)()
        return {name: value for name, value in state.items() if name not in {"_kept", "_frozen"}}

    def _masks(self, source: Tensor, rows: int) -> tuple[list[Tensor], list[Tensor]]:
        """Draw the dropout of a call, of zeros and 1 / (1 - p), in the order of PyTorch's layers.

        Return the masks of the recurrent products, one for all steps of a layer, and those between layers.
        """
        masks: list[Tensor] = []
        between: list[Tensor] = []
        if not self.training:
            return masks, between
        width = (1 + self.bidirectional) * self.hidden_size
        for number in range(self.num_layers):
            if self.recurrent_dropout:
                masks.append(self._mask(source, rows))
            if self.dropout and number + 1 < self.num_layers:
                ones = source.new_ones(*source.shape[:-1], width)
                between.append(torch.nn.functional.dropout(ones, self.dropout))
        return masks, between

    def _mask(self, source: Tensor, rows: int) -> Tensor:
        """Draw the recurrent dropout of a layer."""
        ones = source.new_ones(1, rows, (1 + self.bidirectional) * self.hidden_size)
        return torch.nn.functional.dropout(ones, self.recurrent_dropout)

    def _zoneout_masks(self, source: Tensor, chance: float) -> list[Tensor]:
        """Return the zoneout masks of all layers: drawn in training, otherwise their mean, the same in all steps."""
        if not chance:
            return []
        width = (1 + self.bidirectional) * self.hidden_size
        if not self.training:
            return [source.new_full((width,), 1 - chance) for _ in range(self.num_layers)]
        sizes = *source.shape[:-1], width
        return [source.new_empty(sizes).bernoulli_(1 - chance) for _ in range(self.num_layers)]

    def _weight(self, name: str) -> Tensor:
        """Return a parameter, computed if the module is parametrized. The dict is four times as fast as getattr."""
        found = None if torch.compiler.is_dynamo_compiling() else self._parameters.get(name)
        weight: Tensor = getattr(self, name) if found is None else found
        return weight

    def _weights_of_all_layers(self) -> list[Tensor]:
        """Return the weights of all layers, as `vkrnn::network` takes them."""
        return [weight for number in range(self.num_layers) for weight in self._weights(number) if weight is not None]

    def _weights(self, number: int) -> list[Tensor | None]:
        """Return a layer's matrices, biases and peepholes, each with the rows of both directions."""
        biases = ("bias_ih", "bias_hh") if self.bias else ()
        names = ("weight_ih", "weight_hh", *biases, *(("peephole",) if self.peephole else ()))
        weights: list[Any] = [self._rows(name, number) for name in names]
        if self.weight_dropout and self.training:
            weights[1] = torch.nn.functional.dropout(weights[1], self.weight_dropout)
        if not biases:
            weights[2:2] = [None, None]
        return weights if self.peephole else [*weights, None]

    def _rows(self, name: str, number: int) -> Tensor:
        """Return a weight of a layer, with the rows of both directions."""
        forward = self._weight(f"{name}_l{number}")
        return torch.cat([forward, self._weight(f"{name}_l{number}_reverse")]) if self.bidirectional else forward

    def _check(self, data: Tensor, hx: Any, batch_sizes: Tensor | None) -> None:
        """Raise the errors of PyTorch's module, and refuse tensors on other devices."""
        self.check_input(data, batch_sizes)
        states = hx if isinstance(hx, tuple) else (hx,)
        if hx is not None:
            self.check_forward_args(data, hx, batch_sizes)
            if len(states) > 2:
                raise RuntimeError("lstm expects two hidden states")
        device = data.device
        if device.type not in _DEVICES:
            self._refuse_device("input", device)
        given = [("weight", self._weight("weight_hh_l0"))]
        given += [("hx", state) for state in states if state is not None]
        for what, tensor in given:
            if tensor.device != device:
                if tensor.device.type not in _DEVICES:
                    self._refuse_device(what, tensor.device)
                named = "parameter" if what == "weight" else "hidden"
                raise RuntimeError(
                    f"Input and {named} tensors are not at the same device, found input tensor at {device} and "
                    f"{named} tensor at {tensor.device}"
                )
            if tensor.dtype == data.dtype:
                continue
            converted = what == "weight" and device.type == "cuda" and torch.is_autocast_enabled("cuda")
            if not converted:
                raise RuntimeError(
                    f"[vkrnn.torch.{self._name}] {what}: expected dtype {data.dtype}, the input's, got {tensor.dtype}"
                )

    def _refuse_device(self, what: str, device: torch.device) -> NoReturn:
        raise NotImplementedError(
            f"[vkrnn.torch.{self._name}] {what}: expected a tensor on the CPU or a CUDA device, "
            f"got one on {device}; vkrnn shares no memory with other devices of torch"
        )

    def _check_axes(self, hx: Any, *, batched: bool) -> None:
        wanted, text = (3, "For batched 3-D input") if batched else (2, "For unbatched 2-D input")
        if isinstance(hx, tuple) and self.mode == "LSTM":
            if any(state.dim() != wanted for state in hx):
                axes = ", ".join(f"{state.dim()}-D" for state in hx)
                raise RuntimeError(f"{text}, hx and cx should also be {wanted}-D but got ({axes}) tensors")
        elif hx.dim() != wanted:
            raise RuntimeError(f"{text}, hx should also be {wanted}-D but got {hx.dim()}-D tensor")

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """Return what torch.jit.script compiles."""
        return scriptable(self, f"[vkrnn.torch.{self._name}] torch.jit.script:")

    def _warn_of_quantization(self, _config: Any) -> None:
        warnings.warn(
            f"[vkrnn.torch.{self._name}] quantization: PyTorch leaves this module in floating point; call "
            "vkrnn.torch.revert(model) before it quantizes the model",
            stacklevel=2,
        )

    qconfig = property(fset=_warn_of_quantization, doc="PyTorch sets this on all modules of a model that it quantizes.")

    @property
    def _name(self) -> str:
        return str(self.mode).split("_")[0]

    @staticmethod
    def _each(states: Any, function: Any) -> Any:
        """Apply a function to h, or to h and c."""
        if isinstance(states, tuple):
            return tuple(map(function, states))
        return None if states is None else function(states)


def _takes_gradients(tensors: list[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _equal(order: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two orders of a PackedSequence's rows are the same."""
    return order is other or (order is not None and other is not None and torch.equal(order, other))


def _lengths(batch_sizes: Tensor) -> Tensor:
    """Return the lengths of a packed sequence's rows, longest first."""
    rows = torch.arange(int(batch_sizes[0]), device=batch_sizes.device)
    return len(batch_sizes) - torch.searchsorted(batch_sizes.flip(0), rows, right=True)
