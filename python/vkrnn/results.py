"""The named tuples that the operations return.

Type checkers know the names that each operation's results can have, and the type of the arrays: ``LSTMOutputs`` holds
NumPy arrays, ``LSTMOutputs[vkrnn.Array]`` arrays on a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from vkrnn import _core
from vkrnn._base.generics import A, Self
from vkrnn.arrays import Array, asarray

__all__ = [
    "GRUGradients",
    "Gradients",
    "LSTMGradients",
    "LSTMOutputs",
    "Outputs",
    "Results",
    "SLSTMGradients",
    "SLSTMOutputs",
]


class State(NamedTuple):
    """The names of a state's tensors."""

    initial: str
    gradient: str  # of the last step or of all, from above
    forward: str  # the sequence, as the gradients take it
    sequence: str
    last: str


STATES = tuple(State(*names) for names in _core.state_tensors)
"""The states of all cells, h first."""

_LAST = {state.last: state for state in STATES}  # attributes of forward results


def _checked(function: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"[{function}] results: expected names, got {type(name).__name__}")
        yield name


class Ends(NamedTuple):
    """What decides where the sequences of a call end.

    Results have a plain tuple of these, because every forward call makes one.
    """

    descriptor: Any
    lengths: Any
    init_state: Any
    init_cell: Any
    batch_first: bool = False  # of the results
    init_normalizer: Any = None
    init_stabilizer: Any = None


class Results(tuple[A, ...]):  # noqa: SLOT001 - a tuple cannot have slots of its own
    """The results of one call: a tuple in the documented order, with names.

    What was not asked for is left out, and so is the gradient of an argument that was not given. The later results move
    up, as in MPSGraph. Read results by name, as in ``lstm_gradients(...).bias``, so that the position does not matter.

    Parameters
    ----------
    function : str
        Name of the operation that returned this, for messages.
    names : iterable of str
        Names of the results, in order.
    arrays : iterable
        The results, one for each name.
    reasons : mapping of str to str, optional
        Why a result is absent, by its name.

    Raises
    ------
    TypeError
        If a name is no string.
    ValueError
        If `names` and `arrays` differ in length, if a name occurs twice, or if a name is both present and absent.

    Examples
    --------
    >>> import numpy as np
    >>> r = Results("gru", ["output"], [np.ones((5, 3, 4))], {"z_state": "the descriptor has training=False"})
    >>> r
    Results(gru: output [5, 3, 4] float64)
    >>> (output,) = r
    >>> r.output is output
    True
    >>> r.z_state
    Traceback (most recent call last):
        ...
    AttributeError: gru returned no 'z_state': the descriptor has training=False
    """

    _function: str
    _fields: tuple[str, ...]
    _reasons: Mapping[str, str]
    _ends: Any = None  # of a forward call: `Ends`

    def __new__(
        cls, function: str, names: Iterable[str], arrays: Iterable[A], reasons: Mapping[str, str] | None = None
    ) -> Self:
        """Pair the names with the arrays."""
        fields, absent = tuple(_checked(function, names)), dict(reasons or {})
        gathered = list(islice(arrays, len(fields) + 1))  # an iterable may have no end; torch.compile wants no iterator
        self = super().__new__(cls, gathered)
        if len(fields) != len(self):
            many = "more" if len(self) > len(fields) else len(self)
            raise ValueError(
                f"[{function}] results: expected a name for each array, got {len(fields)} names for {many} arrays"
            )
        if len({*fields, *absent}) != len(fields) + len(absent):
            raise ValueError(f"[{function}] results: expected different names, got {[*fields, *absent]}")
        # Not an update of __dict__, which torch.compile of PyTorch 2.11 cannot trace.
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_reasons", absent)
        return self

    @classmethod
    def _of(
        cls, function: str, names: tuple[str, ...], arrays: Iterable[A], reasons: Mapping[str, str], ends: Any = None
    ) -> Self:
        """Return the same without the checks, which take longer than the rest, for results of the core."""
        self = super().__new__(cls, arrays)
        self.__dict__.update(_function=function, _fields=names, _reasons=reasons, _ends=ends)
        return self

    if not TYPE_CHECKING:  # type checkers find the names in the classes below, and no others

        def __getitem__(self, index: Any) -> Any:
            """Return the result at that position, or raise an IndexError that says which there are."""
            try:
                return super().__getitem__(index)
            except IndexError:
                returned = f"{self._function} returned {_listed(self._fields)}{self._left_out()}"
                raise IndexError(f"{returned}: expected a position below {len(self)}, got {index}") from None

        def __getattr__(self, name: str) -> Any:
            """Return the result of that name, or raise an AttributeError that says why it is absent."""
            if name in self._fields:
                return self[self._fields.index(name)]
            if self._ends is not None and name in _LAST:
                of = _LAST[name].sequence
                if of in self._fields:
                    return last_rows(self[self._fields.index(of)], self._ends, _LAST[name].initial)
                if of in self._reasons:
                    raise AttributeError(
                        f"{self._function} returned no '{name}': {self._reasons[of]}", name=name, obj=self
                    )
            if name in self._reasons:
                message = f"{self._function} returned no '{name}': {self._reasons[name]}"
            else:
                message = f"{self._function} has no result '{name}'; it returned {_listed(self._fields)}"
                message += self._left_out()
            raise AttributeError(message, name=name, obj=self)

        def __setattr__(self, name: str, value: object) -> NoReturn:
            """Raise an AttributeError: a tuple does not change."""
            raise AttributeError(
                f"the results of {self._function} are read-only: cannot set '{name}'", name=name, obj=self
            )

        def __delattr__(self, name: str) -> NoReturn:
            """Raise an AttributeError: a tuple does not change."""
            raise AttributeError(f"the results of {self._function} are read-only: cannot delete '{name}'")

    def _left_out(self) -> str:
        return f", and left out {_listed(self._reasons)}" if self._reasons else ""

    def __dir__(self) -> list[str]:
        """Return the names of attributes and results, for completion."""
        return sorted({*super().__dir__(), *self._fields})

    def __repr__(self) -> str:
        """Return names, shapes and dtypes, never the numbers."""
        shown = ", ".join(f"{name} {_summary(array)}" for name, array in zip(self._fields, self, strict=True))
        return f"Results({self._function}: {shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copy and pickle rebuild the results from."""
        made = type(self), (self._function, self._fields, tuple(self), self._reasons)
        return made if self._ends is None else (*made, {"_ends": self._ends})

    def _asdict(self) -> dict[str, A]:
        """Return a dict from names to arrays, in order."""
        return dict(zip(self._fields, self, strict=True))


class Outputs(Results[A]):
    """Results of `single_gate_rnn` and `gru`.

    Attributes
    ----------
    output : array
    z_state : array
        Present with the descriptor's ``training``.
    last_state : array, [N, D H]
        The state after the last step of each direction and batch row, never a member of the tuple. Given as
        `init_state`, it continues the sequence. Results of `vkrnn.torch`, `vkrnn.jax` and `vkrnn.reference` do not have
        it.
    """

    output: A
    z_state: A
    last_state: A


class LSTMOutputs(Outputs[A]):
    """Results of `lstm`.

    Attributes
    ----------
    output, z_state : array
        As in `Outputs`.
    cell_output : array
        Present with the descriptor's ``produce_cell`` or ``training``.
    last_cell : array, [N, D H]
        The cell states after the last step, like `last_state`; present if `cell_output` is.
    """

    cell_output: A
    last_cell: A


class SLSTMOutputs(LSTMOutputs[A]):
    """Results of `slstm`.

    Attributes
    ----------
    output, z_state, cell_output : array
        As in `LSTMOutputs`.
    normalizer_output, stabilizer_output : array
        Present if `cell_output` is.
    last_normalizer, last_stabilizer : array, [N, D H]
        The states after the last step, like `last_cell`.
    """

    normalizer_output: A
    stabilizer_output: A
    last_normalizer: A
    last_stabilizer: A


class Gradients(Results[A]):
    """Results of `single_gate_rnn_gradients`.

    Attributes
    ----------
    source, recurrent_weight : array
    input_weight, bias, init_state, reset_state, leak : array
        Present if the argument was given.
    reset : array
        Present if the argument was given, and is not of bool.
    """

    source: A
    recurrent_weight: A
    input_weight: A
    bias: A
    init_state: A
    reset: A
    reset_state: A
    leak: A


class LSTMGradients(Gradients[A]):
    """Results of `lstm_gradients`.

    Attributes
    ----------
    source, recurrent_weight, input_weight, bias, init_state, reset, reset_state, leak : array
        As in `Gradients`.
    peephole, init_cell, reset_cell : array
        Present if the argument was given.
    """

    peephole: A
    init_cell: A
    reset_cell: A


class SLSTMGradients(Gradients[A]):
    """Results of `slstm_gradients`.

    Attributes
    ----------
    source, recurrent_weight, input_weight, bias, init_state, reset, reset_state, leak : array
        As in `Gradients`.
    init_cell, init_normalizer, init_stabilizer, reset_cell : array
        Present if the argument was given.
    """

    init_cell: A
    init_normalizer: A
    init_stabilizer: A
    reset_cell: A


class GRUGradients(Gradients[A]):
    """Results of `gru_gradients`.

    Attributes
    ----------
    source, recurrent_weight, input_weight, bias, init_state, reset, reset_state, leak : array
        As in `Gradients`.
    secondary_bias : array
        Present if the argument was given.
    """

    secondary_bias: A


def last_rows(sequence: Any, ends: tuple[Any, ...], initial: str) -> Any:
    """Return a copy [N, D W] of the rows of a sequence [T, N, D W] after the last step of each direction.

    Batch rows of length 0 get the initial state of that name, or zeros.
    """
    if isinstance(sequence, Array):
        return asarray(last_rows(sequence.numpy(), ends, initial), device=sequence.device)
    found = Ends(*ends)
    first = getattr(found, initial)
    if found.batch_first:
        sequence = sequence.swapaxes(0, 1)
    T, N, width = sequence.shape
    lengths = np.full(N, T) if found.lengths is None else np.asarray(found.lengths)
    last: npt.NDArray[Any] = sequence[lengths.astype(np.int64) - 1, np.arange(N)]
    if getattr(found.descriptor, "bidirectional", False):
        last[:, width // 2 :] = sequence[0, :, width // 2 :]
    if first is not None:
        start = first.numpy() if isinstance(first, Array) else np.asarray(first)
        last[lengths == 0] = start.reshape(last.shape)[lengths == 0]
    else:
        last[lengths == 0] = 0
    return last


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


def _summary(array: Any) -> str:
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    return type(array).__name__ if shape is None else f"{list(shape)} {dtype}"
