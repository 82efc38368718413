"""Plans: which steps run once, which run per time step, and which calls share a plan."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CELLS, GATES, OPTIONAL, Case, gradient_inputs, inputs
from comparison import assert_close
from plans import PORTABLE, dispatches, full, plan, portable_device
from resident import opened

TILE = 64  # tile size of gemm_tiled


def labelled(steps: list[Any], label: str) -> list[Any]:
    """Return the dispatches that have this label."""
    return [step for step in steps if step["label"] == label]


def names(steps: list[Any]) -> list[str]:
    """Return the labels of all dispatches except the second passes of sums."""
    return [step["label"] for step in steps if ": add " not in step["label"]]


DIRECTIONS: list[dict[str, bool]] = [{}, {"reverse": True}, {"bidirectional": True}]
SIZES = (50, 6, 7, 40)

every_cell = pytest.mark.parametrize("cell", GATES)
every_direction = pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda options: next(iter(options), "forward"))
both_passes = pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])


@every_cell
@every_direction
@both_passes
def test_one_loop_over_all_steps(
    cell: str, direction: dict[str, bool], portable: vkrnn.Device, *, gradients: bool
) -> None:
    """Each call has one loop over T with one dispatch per step, or two if a GRU resets before the product."""
    for options in ({}, {"reset_after": True}) if cell == "gru" else ({},):
        case = full(cell, SIZES, {**direction, **options})
        planned = plan(case, portable, gradients=gradients)
        loops = [step for step in planned.steps if step["kind"] == "loop"]
        assert [loop["count"] for loop in loops] == [case.T]
        before, body, after = dispatches(planned)
        assert len(body) == (2 if cell == "gru" and not options else 1)
        assert planned.dispatches == len(before) + case.T * len(body) + len(after)
        # Only the loop grows with time, except that longer sums take a second pass.
        longer = dispatches(plan(replace(case, T=2 * case.T), portable, gradients=gradients))
        assert [names(part) for part in longer] == [names(part) for part in (before, body, after)]


@every_cell
@every_direction
@both_passes
def test_both_directions_in_the_same_dispatches(
    cell: str, direction: dict[str, bool], portable: vkrnn.Device, *, gradients: bool
) -> None:
    """The z of the workgroups is the direction. A reversed call has the dispatches of a forward call."""
    case = full(cell, SIZES, direction)
    _, body, _ = dispatches(plan(case, portable, gradients=gradients))
    assert {step["groups"][2] for step in body} == {case.D}
    _, forward, _ = dispatches(plan(replace(case, options={}), portable, gradients=gradients))
    assert [step["groups"][:2] for step in body] == [step["groups"][:2] for step in forward]
    assert [(step["shader"], step["constants"]) for step in body] == [
        (step["shader"], step["constants"]) for step in forward
    ]


@every_cell
@every_direction
def test_the_projection_is_one_product_over_all_rows(
    cell: str, direction: dict[str, bool], portable: vkrnn.Device
) -> None:
    """It precedes the loop, covers both directions, and is absent without an input weight."""
    case = full(cell, SIZES, direction)
    before, _, after = dispatches(plan(case, portable))
    joins = ["join initial cells"] * 3 if cell == "slstm" else []
    assert [step["label"] for step in before] == [*joins, "project"]
    assert not after
    *_, project = before
    assert project["shader"] == "gemm_tiled"
    tiles = ceil(case.T * case.N / TILE) * ceil(case.D * case.G * case.H / TILE)
    assert prod(project["groups"]) == tiles
    bare = replace(case, I=case.D * case.G * case.H, present=case.present - {"input_weight"})
    assert [step["label"] for step in dispatches(plan(bare, portable))[0]] == joins


@every_cell
@every_direction
def test_sums_over_all_steps_are_formed_once(cell: str, direction: dict[str, bool], portable: vkrnn.Device) -> None:
    """After the loop, each weight's gradient is one product and each vector's one reduction, for both directions."""
    case = full(cell, SIZES, {**direction, **({"reset_after": True} if cell == "gru" else {})})
    planned = plan(case, portable, gradients=True)
    before, body, after = dispatches(planned)
    products = ["source", "input_weight", "recurrent_weight"]
    vectors = ["bias", *({"lstm": ["peephole"], "gru": ["secondary_bias"]}.get(cell, []))]
    for name in products + vectors:
        (made,) = labelled(after, f"gradient of {name}")
        assert made["shader"] == ("reduce" if name in vectors else "gemm_tiled")
        assert not labelled(body, made["label"])
        assert not labelled(before, made["label"])
    (source,) = labelled(after, "gradient of source")
    assert prod(source["groups"]) == ceil(case.T * case.N / TILE) * ceil(case.I / TILE)
    (recurrent,) = labelled(after, "gradient of recurrent_weight")
    tiles = ceil(case.G * case.H / TILE) * ceil(case.H / TILE)
    assert recurrent["groups"] == (tiles, 1, case.D)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
def test_gru_with_the_reset_before_has_a_product_for_each_operand(
    portable: vkrnn.Device, *, bidirectional: bool
) -> None:
    """The candidate's weights multiply r * h and the others h, so there are at most two products per direction."""
    case = full("gru", SIZES, {"bidirectional": bidirectional})
    _, _, after = dispatches(plan(case, portable, gradients=True))
    made = labelled(after, "gradient of recurrent_weight")
    assert {step["shader"] for step in made} == {"gemm_tiled"}
    assert len(made) <= 2 * case.D
    # The gradient of an unused argument is cleared, without a dispatch.
    planned = plan(case, portable, gradients=True)
    assert {"kind": "clear", "buffer": "gradient of secondary_bias"} in planned.steps
    assert not labelled(after, "gradient of secondary_bias")


@every_cell
def test_result_buffers_are_the_results_of_the_call(cell: str, portable: vkrnn.Device) -> None:
    """They come in the order of the results, and absent results have none."""
    case = full(cell, SIZES, {})
    bare = replace(case, present=frozenset({"input_weight"}))
    for some in (case, bare):
        for gradients in (False, True):
            planned = plan(some, portable, gradients=gradients)
            names = [name for name, role, _ in planned.buffers if role == "result"]
            if gradients:
                order = ["source", "recurrent_weight", *OPTIONAL[cell]]
                wanted = [f"gradient of {n}" for n in order if n != "mask" and n in {*some.present, *order[:2]}]
            else:
                wanted = ["output"]
            assert names == wanted
    trained = plan(case, portable, training=True)
    outputs = ["output", *(f"{name}_output" for name in CELLS[cell]), "z_state"]
    assert [name for name, role, _ in trained.buffers if role == "result"] == outputs


def test_bytes_and_flops(portable: vkrnn.Device) -> None:
    """`bytes` is the sum over all buffers, none smaller than its tensor; `flops` counts the matrix products."""
    case = full("lstm", SIZES, {"bidirectional": True})
    planned = plan(case, portable, training=True)
    sizes = {name: size for name, _, size in planned.buffers}
    assert planned.bytes == sum(sizes.values())
    assert sizes["source"] == 4 * case.T * case.N * case.I
    assert sizes["z_state"] == 4 * case.T * case.N * 2 * 4 * case.H
    gates = case.D * case.G * case.H
    assert planned.flops == 2 * case.T * case.N * gates * (case.I + case.H)
    # Gradients: the recurrent product backwards, and three products for source, W and R.
    assert plan(case, portable, gradients=True).flops == 2 * case.T * case.N * gates * (2 * case.I + 2 * case.H)


@pytest.mark.parametrize("way", ["native", "mapped"])
def test_equal_specs_share_a_plan(way: str) -> None:
    """Changed numbers, labels or layouts reuse the plan. Another size, flag or mask pattern makes one."""
    with opened(way) as device:
        case = Case("lstm", 5, 3, 7, 4, present=frozenset({"input_weight", "mask"}), mask_shape=(5, 1, 4))
        arrays = inputs(case)

        def plans(**changes: Any) -> int | float:
            vkrnn.lstm(**{**arrays, **changes}, device=device)
            return device.statistics()["plans"]

        assert plans() == 1
        assert plans(source=arrays["source"] + 1) == 1
        assert plans(name="another") == 1
        assert plans(descriptor=vkrnn.LSTMDescriptor()) == 1
        assert plans(source=np.asfortranarray(arrays["source"])) == 1
        assert plans(mask=np.ones((1, 3, 4), np.float32)) == 2
        assert plans(descriptor=vkrnn.LSTMDescriptor(reverse=True)) == 3
        assert plans(source=arrays["source"][:4], mask=arrays["mask"][:4]) == 4
        assert plans(bias=np.zeros(16, np.float32)) == 5
        assert plans() == 5
        pipelines = device.statistics()["pipelines"]
        again = vkrnn.plan(vkrnn.lstm, **arrays, device=device)
        assert again == vkrnn.plan(vkrnn.lstm, **arrays, name="label", device=device)
        assert again != vkrnn.plan(vkrnn.lstm, **arrays, bias=np.zeros(16, np.float32), device=device)
        assert device.statistics()["plans"] == 5
        assert device.statistics()["pipelines"] == pipelines  # planning compiles no pipelines


def test_overrides_show_in_the_plan(portable: vkrnn.Device) -> None:
    """In the text, only the line of strategies and the steps change."""
    case = Case("gru", 5, 3, 7, 4, present=frozenset({"input_weight"}))
    first = plan(case, portable)
    assert first.strategy == {"schedule": "steps", **PORTABLE}
    for name, value in {"rows": 4, "workgroup": 64, "gemm": "register"}.items():
        other = portable_device(**{name: value})
        try:
            second = plan(case, other)
            assert second != first
            assert second.strategy == {**first.strategy, name: value}
            assert str(second).splitlines()[1] != str(first).splitlines()[1]
            assert second.buffers == first.buffers
        finally:
            other.close()
    same = portable_device()
    assert plan(case, same) == first
    same.close()


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("way", ["native", "mapped"])
def test_every_strategy_gives_the_same_answer(cell: str, way: str, portable: vkrnn.Device) -> None:
    """The portable strategies, the Vulkan device's defaults and the native CPU agree."""
    case = full(cell, (7, 5, 9, 11), {"bidirectional": True})
    arrays = inputs(case)
    with opened(way) as device, device:
        wanted = getattr(vkrnn, cell)(**arrays, descriptor=case.descriptor(training=True))
        above = gradient_inputs(case, wanted)
        wanted_gradients = getattr(vkrnn, f"{cell}_gradients")(**arrays, **above, descriptor=case.descriptor())
    got = getattr(vkrnn, cell)(**arrays, descriptor=case.descriptor(training=True), device=portable)
    gradients = getattr(vkrnn, f"{cell}_gradients")(**arrays, **above, descriptor=case.descriptor(), device=portable)
    assert_close(got._asdict(), wanted._asdict())
    assert_close(gradients._asdict(), wanted_gradients._asdict())
