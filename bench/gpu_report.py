"""The report of `bench.gpu`: tables, geometric means, worst rows, and which bars were reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import geometric_mean

from .common import DEVICE, HOST_CALL, RESIDENT_BATCH, Record, table, verdict

# Names of implementations. Other variants of vkrnn are PLAIN, a comma and a label.
PLAIN = "vkrnn"
OPTIONS = "vkrnn, options"
BIDIRECTIONAL = "vkrnn, bidirectional"
MODULE = "vkrnn, module"
MODULE_TF32 = "vkrnn, module in TF32"
TORCH = "torch"
STRICT = "torch, strict float32"

# Torch's time / vkrnn's: geometric mean over all rows, and worst row.
BARS = {"float32": (2.0, 1.0), "tf32": (2.3, 1.0), "float16": (1.2, 0.9), "bfloat16": (3.0, 1.0)}
FORCED_BAR = (0.8, 0.5)  # float32 with forced strategies on wide rows
TRANSFERS_BAR = 1.0
COST_BARS = {OPTIONS: 1.15, BIDIRECTIONAL: 1.3}  # time / time of the plain call


@dataclass(frozen=True)
class GpuRecord(Record):
    """A measurement on a GPU. `error` is the worst of `errors`."""

    dtype: str
    seconds_a_step: float
    calls: int  # in the last batch
    strategy: Sequence[Mapping[str, str | int]]  # vkrnn's, for the forward call and then for the gradients
    errors: Mapping[str, float]  # output, gradients: first steps; whole: all results and steps
    allowed: Mapping[str, float]  # limits of the errors; empty if results only have to be finite
    correct: bool
    float32: str = "ieee"  # tf32 if vkrnn rounded operands of products


@dataclass(frozen=True)
class Row:
    """An operation on a workload, whose implementations take turns."""

    op: str
    workload: str
    dtype: str
    calls: Mapping[str, GpuRecord]
    device: Mapping[str, GpuRecord]

    def ratio(self, name: str) -> float | None:
        """Return torch's time / vkrnn's of this name, or the time with options / the plain call's."""
        over, under = (name, PLAIN) if name in COST_BARS else (TORCH, name)
        if not {over, under} <= self.calls.keys():
            return None
        return self.calls[over].median / self.calls[under].median

    @property
    def wide(self) -> bool:
        """Whether the bars for vkrnn without matrix units apply to this row."""
        sizes = {word[0]: int(word[2:]) for word in self.workload.split()}
        return sizes["N"] >= 32 and sizes["H"] >= 512

    @property
    def name(self) -> str:
        """Return the row's name in the table."""
        return f"{self.op}, {','.join(word[2:] for word in self.workload.split() if word[0] in 'TNH')}"


Ratios = Mapping[str, Mapping[str, float]]  # by implementation and row


def rows_of(records: Sequence[GpuRecord]) -> list[Row]:
    """Return the rows of records, in their order."""
    keys = dict.fromkeys((record.op, record.workload, record.dtype) for record in records)

    def row(op: str, workload: str, dtype: str) -> Row:
        own = [record for record in records if (record.op, record.workload, record.dtype) == (op, workload, dtype)]
        calls = {record.implementation: record for record in own if record.measure in (RESIDENT_BATCH, HOST_CALL)}
        return Row(op, workload, dtype, calls, {r.implementation: r for r in own if r.measure == DEVICE})

    return [row(*key) for key in keys]


def names_of(rows: Sequence[Row], *, ours: bool) -> list[str]:
    """Return the names of vkrnn's variants in the rows, or those of the other implementations."""
    names = dict.fromkeys(name for row in rows for name in row.calls)
    return [name for name in names if name.startswith(PLAIN) is ours]


def ratios_of(rows: Sequence[Row], *, ops: Sequence[str] = (), wide: bool = False) -> dict[str, dict[str, float]]:
    """Return the ratios by name and row, of some operations or all, of all rows or of the wide ones."""
    chosen = [row for row in rows if (not ops or row.op in ops) and (row.wide or not wide)]
    found = {
        name: {row.name: ratio for row in chosen if (ratio := row.ratio(name)) is not None}
        for name in names_of(rows, ours=True)
    }
    return {name: ratios for name, ratios in found.items() if ratios}


def rounding_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of vkrnn's variants that rounded operands of float32 products in any row."""
    names = names_of(rows, ours=True)
    return [n for n in names if any(n in row.calls and row.calls[n].float32 == "tf32" for row in rows)]


def strategy_text(record: GpuRecord) -> str:
    """Return the strategies, without their tuning parameters."""
    texts = (
        "/".join(str(chosen[part]) for part in ("schedule", "gemm") if part in chosen) for chosen in record.strategy
    )
    return "; ".join(dict.fromkeys(texts))


def times(rows: Sequence[Row]) -> list[str]:
    """Return the table: microseconds per step, ratios, worst errors, error / limit, strategies."""
    names = [*names_of(rows, ours=True), *names_of(rows, ours=False)]
    compared, rounding = list(ratios_of(rows)), rounding_names(rows)
    header = ["operation", "T,N,I=H", *names, *(f"ratio of {name}" for name in compared)]
    header += ["device", "error", "torch's", "error : allowed", "strategy"]
    header += [f"{what} of {name}" for name in rounding for what in ("error", "error : allowed", "strategy")]
    lines = []
    for row in rows:
        own, other = (row.calls.get(name) for name in (PLAIN, TORCH))
        steps = [f"{row.calls[n].seconds_a_step * 1e6:.2f}" if n in row.calls else "" for n in names]
        ratios = [f"{ratio:.2f}" if (ratio := row.ratio(name)) is not None else "" for name in compared]
        device = f"{row.device[PLAIN].seconds_a_step * 1e6:.2f}" if PLAIN in row.device else ""
        errors = [f"{record.error:.1e}" if record else "" for record in (own, other)]
        rest = [f"{share(own):.2f}", strategy_text(own)] if own else ["", ""]
        for record in (row.calls.get(name) for name in rounding):
            rest += [f"{record.error:.1e}", f"{share(record):.2f}", strategy_text(record)] if record else [""] * 3
        lines.append([*row.name.split(", "), *steps, *ratios, device, *errors, *rest])
    return table(header, lines)


def share(record: GpuRecord) -> float:
    """Return the worst ratio of error to limit."""
    return max((record.errors[name] / allowed for name, allowed in record.allowed.items()), default=0.0)


def means(rows: Sequence[Row]) -> list[str]:
    """Return a table of geometric means and worst rows, by operation and of all."""
    lines = []
    for op in [*dict.fromkeys(row.op for row in rows), "all"]:
        for name, ratios in ratios_of(rows, ops=() if op == "all" else (op,)).items():
            pick = max if name in COST_BARS else min
            where = pick(ratios, key=ratios.__getitem__)
            lines.append(
                [op, name, str(len(ratios)), f"{geometric_mean(ratios.values()):.2f}", f"{ratios[where]:.2f}", where]
            )
    return (
        table(["operation", "implementation", "rows", "geometric mean", "worst", "worst row"], lines) if lines else []
    )


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each bar that applies to these rows, and for each row below its bar."""
    dtype = rows[0].dtype
    transfers = any(record.measure == HOST_CALL for row in rows for record in row.calls.values())
    for name, ratios in ratios_of(rows).items():
        if name in COST_BARS:
            yield from below(f"{name} : plain", ratios, COST_BARS[name], at_least=False)
        elif transfers:
            yield from below(f"NumPy to NumPy, torch : {name}", ratios, TRANSFERS_BAR)
        elif name == PLAIN:
            mean, least = BARS[dtype]
            yield mean_verdict(f"torch : {name}", ratios, mean)
            yield from below(f"torch : {name}", ratios, least)
        elif name in rounding_names(rows):
            mean, least = BARS["tf32"]
            yield mean_verdict(f"torch : {name}", ratios, mean)
            yield from below(f"torch : {name}", ratios, least)
        elif dtype == "float32" and (wide := ratios_of(rows, wide=True).get(name)):
            mean, least = FORCED_BAR
            yield mean_verdict(f"torch : {name}, N >= 32 and H >= 512", wide, mean)
            yield from below(f"torch : {name}, N >= 32 and H >= 512", wide, least)


def mean_verdict(what: str, ratios: Mapping[str, float], wanted: float) -> str:
    """Return a line that compares the geometric mean with its bar."""
    return verdict(f"{what}, geometric mean", geometric_mean(ratios.values()), wanted, "times", at_least=True)


def below(what: str, ratios: Mapping[str, float], wanted: float, *, at_least: bool = True) -> Iterator[str]:
    """Yield a line for each row below the bar, or one for the worst row."""
    ordered = sorted(ratios.items(), key=lambda item: item[1], reverse=not at_least)
    short = [item for item in ordered if (item[1] < wanted if at_least else item[1] > wanted)]
    for name, ratio in short or ordered[:1]:
        yield verdict(f"{what}, {name}", ratio, wanted, "times", at_least=at_least)


def wrong(records: Sequence[GpuRecord]) -> list[str]:
    """Return a line for each answer whose errors are too large."""

    def errors(record: GpuRecord) -> str:
        texts = (
            f"{name} {error:.1e} (at most {record.allowed.get(name, inf):.1e})" for name, error in record.errors.items()
        )
        return ", ".join(texts)

    return [
        f"WRONG        {record.implementation}, {record.op} {record.workload} {record.dtype}: {errors(record)}"
        for record in records
        if not record.correct and record.measure != DEVICE
    ]


def report(records: Sequence[GpuRecord]) -> Iterator[str]:
    """Yield the tables and verdicts of each dtype, and which answers are wrong."""
    for dtype in dict.fromkeys(record.dtype for record in records):
        rows = rows_of([record for record in records if record.dtype == dtype])
        yield f"{dtype}: us a step, medians; ratios: torch's time : vkrnn's, that of options : the plain call's"
        yield from ("", *times(rows), "", *means(rows), "", *verdicts(rows), "")
    yield from wrong(records)
