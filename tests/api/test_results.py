"""The result tuple: order, names, messages about absent results, copies."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn.results import Results

OUTPUT, CELL = np.arange(60.0).reshape(5, 3, 4), np.ones((5, 3, 4), np.float32)
REASON = "the descriptor has training=False"


@pytest.fixture(name="results")
def _results() -> Results:
    return Results("lstm", ["output", "cell_output"], [OUTPUT, CELL], {"z_state": REASON})


def test_it_equals_a_tuple(results: Results) -> None:
    output, cell = results
    assert output is OUTPUT
    assert cell is CELL
    assert isinstance(results, tuple)
    assert len(results) == 2
    assert results[-1] is CELL
    assert type(results[:1]) is tuple


def test_names_find_the_arrays(results: Results) -> None:
    assert results.output is OUTPUT
    assert results.cell_output is CELL
    assert results._fields == ("output", "cell_output")
    assert list(results._asdict()) == ["output", "cell_output"]
    assert results._asdict()["cell_output"] is CELL
    assert {"output", "cell_output", "count"} <= set(dir(results))
    assert "z_state" not in dir(results)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("z_state", f"lstm returned no 'z_state': {REASON}"),
        ("cell", "lstm has no result 'cell'; it returned 'output', 'cell_output', and left out 'z_state'"),
    ],
)
def test_message_about_an_absent_result(results: Results, name: str, message: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(results, name)
    assert str(caught.value) == message
    assert caught.value.name == name
    assert not hasattr(results, name)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = Results("gru", ["output"], [OUTPUT]).z
    assert str(caught.value) == "gru has no result 'z'; it returned 'output'"


def test_a_missing_position() -> None:
    """The message says what there is."""
    with pytest.raises(IndexError) as caught:
        Results("lstm", ["output"], [np.ones(1)], {"z_state": "no training"})[1]
    message = "lstm returned 'output', and left out 'z_state': expected a position below 1, got 1"
    assert str(caught.value) == message


def test_repr_shows_shapes_and_no_numbers(results: Results) -> None:
    assert repr(results) == "Results(lstm: output [5, 3, 4] float64, cell_output [5, 3, 4] float32)"
    assert repr(Results("gru", ["output"], ["something"])) == "Results(gru: output str)"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_keep_everything(results: Results, again: Callable[[Any], Any]) -> None:
    other = again(results)
    assert type(other) is Results
    assert repr(other) == repr(results)
    np.testing.assert_array_equal(other.output, OUTPUT)
    with pytest.raises(AttributeError, match=f"lstm returned no 'z_state': {REASON}"):
        _ = other.z_state


def test_a_shallow_copy_shares_the_arrays_and_a_deep_one_does_not(results: Results) -> None:
    assert copy.copy(results).output is OUTPUT
    assert copy.deepcopy(results).output is not OUTPUT


def test_it_is_read_only(results: Results) -> None:
    with pytest.raises(AttributeError, match="the results of lstm are read-only: cannot set 'output'"):
        results.output = CELL
    with pytest.raises(AttributeError, match="the results of lstm are read-only: cannot delete 'output'"):
        del results.output


@pytest.mark.parametrize(
    ("names", "arrays", "reasons", "message"),
    [
        (["output"], [], {}, "[lstm] results: expected a name for each array, got 1 names for 0 arrays"),
        (
            ["output"],
            itertools.repeat(1),
            {},
            "[lstm] results: expected a name for each array, got 1 names for more arrays",
        ),
        (["a", "a"], [1, 2], {}, "[lstm] results: expected different names, got ['a', 'a']"),
        (["a"], [1], {"a": "no"}, "[lstm] results: expected different names, got ['a', 'a']"),
    ],
)
def test_names_and_arrays_must_fit(
    names: list[str], arrays: Iterable[Any], reasons: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match="results") as caught:
        Results("lstm", names, arrays, reasons)
    assert str(caught.value) == message


def test_names_must_be_strings() -> None:
    """The first name that is not a string is refused, however many follow."""
    with pytest.raises(TypeError, match=r"^\[lstm\] results: expected names, got ndarray$"):
        Results("lstm", np.broadcast_to(np.float32(0), (2**40, 2**20)), [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("resident", [False, True], ids=["NumPy", "device"])
@pytest.mark.parametrize("lengths", [None, [4, 1, 5]], ids=["whole", "lengths"])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"bidirectional": True}], ids=str)
def test_last_states_are_attributes(options: dict[str, bool], lengths: Any, resident: bool) -> None:  # noqa: FBT001
    """They are those of a network, and no members of the tuple."""
    rng, D = np.random.default_rng(2), 1 + options.get("bidirectional", False)
    source = rng.standard_normal((5, 3, 4), np.float32)
    weights = {
        "input_weight": rng.standard_normal((8 * D, 4), np.float32),
        "recurrent_weight": rng.standard_normal((8, 2) if D == 1 else (2, 8, 2), np.float32),
    }
    ends = None if lengths is None else np.array(lengths)
    descriptor = vkrnn.LSTMDescriptor(produce_cell=True, **options)
    given = vkrnn.asarray(source, device="cpu (") if resident else source
    result = vkrnn.lstm(given, **weights, lengths=ends, descriptor=descriptor, device="cpu (")
    wanted = vkrnn.network(("lstm", weights, descriptor), device="cpu (").forward(source, lengths=ends)
    assert len(result) == 2
    for found, right in ((result.last_state, wanted.last_state[0]), (result.last_cell, wanted.last_cell[0])):
        assert type(found) is type(result.output)
        np.testing.assert_array_equal(found.numpy() if resident else found, right)


def test_absent_last_states_say_why() -> None:
    """Cells that were not asked for have no last ones, nor has a copy lost them."""
    source, weight = np.ones((3, 1, 8), np.float32), np.ones((8, 2), np.float32)
    result = vkrnn.lstm(source, weight)
    np.testing.assert_array_equal(copy.deepcopy(result).last_state, result.output[-1])
    with pytest.raises(AttributeError) as caught:
        _ = result.last_cell
    assert str(caught.value) == (
        "lstm returned no 'last_cell': the descriptor has produce_cell=False and training=False"
    )
    with pytest.raises(AttributeError, match="gru has no result 'last_cell'"):
        _ = vkrnn.gru(source[..., :6], weight[:6]).last_cell
