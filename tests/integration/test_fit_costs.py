"""`bench.fit_costs`: it reads the table of costs, finds costs again from times, and runs on any Vulkan device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tqdm")

import vkrnn
from bench.fit_costs import SOURCE, Model, Source, Time, fit, number
from vkrnn import _core

ROOT = Path(__file__).parents[2]
GPU = next((device for device in vkrnn.devices() if device.backend == "vulkan"), None)


def test_the_table_is_read_with_names_and_limits() -> None:
    """All costs of the core in their order; with the same numbers it is the text that was read."""
    source = Source()
    values = _core.cost_values(vkrnn.devices()[0].profile)
    assert len(source.names) == len(set(source.names)) == len(values) == source.limits.size
    assert {"tiles.step", "persistent.backward.more_block", "products.matrix_call"} < set(source.names)
    limits = [name for name, limit in zip(source.names, source.limits, strict=True) if limit]
    # Those of lanes are set by hand, because the fit knows single calls only.
    assert {name for name in source.names if name.startswith("lanes.")} < set(limits)
    assert [name for name in limits if not name.startswith("lanes.")] == [
        "slices.most_held",
        "matrices.l2_bytes",
        "persistent.forward.free_sums",
        "persistent.backward.register_blocks",
        "persistent.most_gainful_blocks",
        "persistent.most_tagged_blocks",
        "persistent.most_tagged_products",
        "persistent.most_rounded_tagged_products",
        "products.least_matrix_flops",
    ]
    tiles = np.array(values)[[name.startswith("tiles.") for name in source.names]]
    assert ".tiles = {{.step = {}, .group = {}, .backward = {}, .flops_per_us = {}, .bytes_per_us = {}}}".format(
        *map(number, tiles)
    ) in " ".join(SOURCE.read_text().split())
    changed = source.with_values(np.arange(len(values)) + 0.5)
    assert changed.startswith(".costs = {.steps = {.dispatch = 0.5, .flops_per_us = 1.5, .weight_bytes_per_us = 2.5},")
    assert changed.count("{") == changed.count("}")


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.8e7, "4.8e7"), (0.0018, "0.0018"), (250, "250"), (31234, "3.123e4"), (1.23456e-5, "1.235e-5")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    """As they stand in the table."""
    assert number(value) == text


def test_costs_are_found_again() -> None:
    """The fit finds the costs behind exact times. Each group has its own constant, and one cost has no effect."""
    rng = np.random.default_rng(0)
    true = np.array([3.0, 0.2, 7.0])
    times = []
    for group in range(6):
        for a, b in rng.uniform(1, 10, (5, 2)).tolist():
            around = 40.0 * group

            def estimate(costs: object, a: float = a, b: float = b) -> tuple[float, float]:
                first, second, _ = np.asarray(costs)
                return a * first + a * b * second, 0.0

            times.append(Time(f"call {group}", "schedule", {}, estimate(true)[0] + around, estimate))
    model, start = Model(times), np.array([1.0, 1.0, 7.0])
    fitted = fit(model, start, np.array([0, 1, 2]))
    np.testing.assert_allclose(fitted, true, rtol=0.05)
    assert fitted[2] == pytest.approx(7.0)
    assert "choices 0.0% slower" in model.summary(fitted)
    assert np.linalg.norm(model.errors(fitted)) < 0.01 * np.linalg.norm(model.errors(start))


@pytest.mark.full
@pytest.mark.skipif(GPU is None, reason="there is no Vulkan device")
def test_it_runs_on_any_vulkan_device(tmp_path: Path) -> None:
    """It times strategies of both parts, and prints a table with as many costs as there are."""
    assert GPU is not None
    output = tmp_path / "times.jsonl"
    command = [sys.executable, "-m", "bench.fit_costs", "--smoke", "--cells", "lstm", "--device", str(GPU.index)]
    done = subprocess.run([*command, "--output", output], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    times = [json.loads(line) for line in output.read_text().splitlines()]
    assert {time["part"] for time in times} == {"schedule", "gemm"}
    assert all(time["microseconds"] > 0 for time in times)
    assert {time["strategy"]["schedule"] for time in times} >= {"steps", "tiles", "slices"}
    table = done.stdout[done.stdout.index(".costs = {") :]
    assert table.count(" = ") == Source().text.count(" = ")
    assert f"// {len(times)} times of 6 calls on {GPU.name}" in done.stdout


def test_a_cpu_has_nothing_to_fit() -> None:
    """It says so."""
    command = [sys.executable, "-m", "bench.fit_costs", "--smoke", "--device", "cpu ("]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has one strategy, so there is nothing to fit" in done.stderr
