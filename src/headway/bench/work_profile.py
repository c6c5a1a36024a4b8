"""Where the time of a work goes: each kind of operation against what the machine can do."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from headway.bench.offline import OfflineEngine, Work
from headway.engine.profile import MachineLimits, OpProfile, Profiler

REST = "scheduler, Python"
LEGEND = """\
Measured: calls, ms, and the limits right after. Computed from shapes: MB, the least to read; Gop,
a multiply-add being two. The read limit is that of as many bytes as the weights have, which a cache
may hold. The last line is what is left of the round."""


@dataclass(frozen=True, slots=True)
class WorkProfile:
    """``rounds`` runs of a work, from adding the requests to their last tokens: ``wall_s`` in all."""

    work: Work
    rounds: int
    wall_s: float
    operations: Sequence[OpProfile]
    limits: MachineLimits

    @property
    def rest_s(self) -> float:
        """What no operation accounts for, the scheduler and all other Python: computed by subtraction."""
        return self.wall_s - sum(op.seconds for op in self.operations)


@dataclass(frozen=True, slots=True)
class Roofline:
    """What share of two limits was reached: reading the bytes, and multiplying the int8 operands."""

    of_read: float
    of_int8: float

    @property
    def nearer(self) -> str:
        """The limit that bounds the work on this machine, however well it is done."""
        return "read" if self.of_read >= self.of_int8 else "int8"


def roofline(op: OpProfile, limits: MachineLimits) -> Roofline:
    if op.seconds <= 0:
        return Roofline(0.0, 0.0)
    return Roofline(
        op.bytes_read / op.seconds / limits.footprint_bytes_per_s,
        op.int8_operations / op.seconds / limits.int8_ops_per_s,
    )


def profile_work(engine: OfflineEngine, work: Work, rounds: int, profiler: Profiler) -> WorkProfile:
    """Runs the work ``rounds`` times with each operation timed, which slows it a little; then measures the limits."""
    profiler.start()
    runs = [engine.run(work) for _ in range(rounds)]
    operations = profiler.stop()
    return WorkProfile(work, rounds, sum(run.total_s for run in runs), operations, profiler.calibrate())


# -- what a person reads, and what a program reads --


def profile_table(profile: WorkProfile) -> Table:
    """One round: its operations and what is left of it."""
    table = Table(
        title=f"{profile.work}: a round of {profile.wall_s / profile.rounds * 1e3:.1f} ms, by operation",
        title_justify="left",
        caption=_caption(profile.limits),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("operation")
    for column in ("calls", "ms", "share", "MB", "GB/s", "of read", "Gop", "Gop/s", "of int8", "nearer"):
        table.add_column(column, justify="right")
    for op in profile.operations:
        table.add_row(op.label, f"{op.calls / profile.rounds:.0f}", *_op_cells(op, profile))
    table.add_row(REST, "", *_time_cells(profile.rest_s, profile))
    return table


def profile_json(profile: WorkProfile) -> dict[str, Any]:
    """Sums over all rounds, in seconds, bytes and operations."""
    return {
        "rounds": profile.rounds,
        "wall_s": profile.wall_s,
        "rest_s": profile.rest_s,
        "operations": [_op_json(op, profile.limits) for op in profile.operations],
        "limits": {name: getattr(profile.limits, name) for name in LIMITS},
    }


LIMITS = ("read_bytes_per_s", "footprint_bytes_per_s", "int8_ops_per_s")
FIGURES = ("label", "calls", "seconds", "bytes_read", "operations", "int8_operations")


def _op_json(op: OpProfile, limits: MachineLimits) -> dict[str, Any]:
    return {name: getattr(op, name) for name in FIGURES} | asdict(roofline(op, limits))


def _op_cells(op: OpProfile, profile: WorkProfile) -> list[str]:
    reached = roofline(op, profile.limits)
    megabytes, giga_ops = op.bytes_read / profile.rounds / 1e6, op.operations / profile.rounds / 1e9
    cells = [
        *_time_cells(op.seconds, profile),
        _number(megabytes),
        _number(_rate(op.bytes_read, op.seconds) / 1e9),
        f"{reached.of_read:.0%}",
    ]
    if not op.operations:
        return [*cells, "", "", "", ""]
    cells += [_number(giga_ops), _number(_rate(op.operations, op.seconds) / 1e9)]
    return [*cells, f"{reached.of_int8:.0%}" if op.int8_operations else "", reached.nearer]


def _time_cells(seconds: float, profile: WorkProfile) -> list[str]:
    return [f"{seconds / profile.rounds * 1e3:.2f}", f"{seconds / profile.wall_s:.1%}"]


def _rate(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _number(value: float) -> str:
    """Three digits, or all of the whole part."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _caption(limits: MachineLimits) -> str:
    read, memory, int8 = limits.footprint_bytes_per_s, limits.read_bytes_per_s, limits.int8_ops_per_s
    return f"limits: read {read / 1e9:.1f} GB/s ({memory / 1e9:.1f} from memory), int8 {int8 / 1e9:.0f} Gop/s"
