"""What a person reads and what a program reads: tables and JSON values."""

import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from headway import __version__
from headway.bench.measures import STRICT_ATTAINMENT, Goodput, Objectives, RunSummary, Spread, goodput, spread
from headway.bench.offline import RunTimes
from headway.engine.generation import ModelCard, StartupReport

Rounds = Sequence[RunTimes]  # of one work


def machine() -> dict[str, Any]:
    return {
        "headway": __version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def engine_facts(card: ModelCard, report: StartupReport) -> dict[str, Any]:
    return {
        "model": card.name,
        "quantisation": card.quantisation,
        "digest": card.digest,
        "threads": report.threads,
        "kernels": report.isa,
    }


# -- throughput and latency --


def throughput_table(works: Sequence[Rounds]) -> Table:
    table = _table(f"tokens a second, median (min-max) of {len(works[0])} rounds", "work", "prefill", "decode", "all")
    for rounds in works:
        figures = throughput_figures(rounds)
        table.add_row(str(rounds[0].work), *(_median_range(figures[name], "{:.0f}") for name in figures))
    return table


def throughput_figures(rounds: Rounds) -> dict[str, list[float]]:
    return {
        "prefill_tokens_per_s": [run.prefill_tokens_per_s for run in rounds],
        "decode_tokens_per_s": [speed for run in rounds if (speed := run.decode_tokens_per_s) is not None],
        "total_tokens_per_s": [run.total_tokens_per_s for run in rounds],
    }


def throughput_json(works: Sequence[Rounds]) -> list[dict[str, Any]]:
    return [asdict(rounds[0].work) | throughput_figures(rounds) for rounds in works]


def latency_table(works: Sequence[Rounds]) -> Table:
    title = f"one request at a time, milliseconds, {len(works[0])} rounds"
    table = _table(title, "work", "TTFT, median (min-max)", *(f"token {name}" for name in SPREAD_NAMES))
    for rounds in works:
        first_ms = [run.prefill_s * 1e3 for run in rounds]
        tokens = spread([gap for run in rounds for gap in run.gaps_s])
        table.add_row(str(rounds[0].work), _median_range(first_ms, "{:.1f}"), *_spread_cells(tokens))
    return table


def latency_json(works: Sequence[Rounds]) -> list[dict[str, Any]]:
    return [
        asdict(rounds[0].work)
        | {
            "ttft_s": [run.prefill_s for run in rounds],
            "token_s": _finite(asdict(spread([gap for run in rounds for gap in run.gaps_s]))),
        }
        for rounds in works
    ]


# -- serve --


def serve_table(runs: Sequence[RunSummary], objectives: Objectives) -> Table:
    """A column for each rate: many figures, few rates."""
    title = f"TTFT <= {objectives.ttft_s * 1e3:g} ms and TPOT <= {objectives.tpot_s * 1e3:g} ms"
    table = _table(title, "requests a second", *(f"{run.rate:g}" for run in runs))
    for name, cell in SERVE_ROWS.items():
        table.add_row(name, *(f"[red]{cell(run)}[/]" if run.void else cell(run) for run in runs))
    return table


def _percentiles(values: Spread) -> str:
    return f"{_ms(values.p50)} / {_ms(values.p90)} / {_ms(values.p99)}"


SERVE_ROWS: dict[str, Callable[[RunSummary], str]] = {
    "whole answers": lambda run: f"{run.num_ok} of {run.num_requests}",
    "attainment": lambda run: "VOID" if run.void else f"{run.attainment:.1%}",
    "TTFT p50 / p90 / p99, ms": lambda run: _percentiles(run.ttft),
    "TPOT p50 / p90 / p99, ms": lambda run: _percentiles(run.tpot),
    "ITL p50 / p90 / p99, ms": lambda run: _percentiles(run.itl),
    "worst gap, ms": lambda run: _ms(run.itl.max),
    "answers a second": lambda run: f"{run.request_rate:.2f}",
    "output tokens a second": lambda run: f"{run.output_tokens_per_s:.0f}",
    "client: send lag p99, ms": lambda run: _ms(run.lag.send.p99),
    "client: loop lag p99, ms": lambda run: _ms(run.lag.loop.p99),
}


def serve_remarks(runs: Sequence[RunSummary]) -> list[str]:
    """What the table does not show: goodput, failures, lengths that were not as asked, and why a run is void."""
    remarks = [
        f"goodput (attainment >= 90 %): {_rate(goodput(runs))}; at >= 99 %: {_rate(goodput(runs, STRICT_ATTAINMENT))}"
    ]
    for run in runs:
        at = f"at {run.rate:g}/s"
        remarks += [f"{at}: {count} failed: {kind}" for kind, count in run.errors.items()]
        for what, ratio in (("prompts", run.input_tokens_ratio), ("answers", run.output_tokens_ratio)):
            if ratio is not None and abs(ratio - 1) > 0.1:
                remarks.append(f"{at}: {what} were {ratio:.2f} times as long as asked, by the server's count")
    return remarks


def void_remarks(runs: Sequence[RunSummary]) -> list[str]:
    return [f"VOID at {run.rate:g}/s, says nothing of the server: {reason}" for run in runs for reason in run.void]


def serve_json(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Seconds and tokens throughout; null for what could not be measured."""
    strict = goodput(runs, STRICT_ATTAINMENT)
    found = goodput(runs)
    return {
        "goodput": None if found is None else asdict(found),
        "goodput_99": None if strict is None else asdict(strict),
        "runs": [_finite(asdict(run)) for run in runs],
    }


def _rate(found: Goodput | None) -> str:
    if found is None:
        return "unknown, every run is void"
    if found.rate == 0:
        return "none of the rates tried"
    return f"{found.rate:g} requests a second" + (" or more (the highest rate tried)" if found.is_lower_bound else "")


# -- cells --

SPREAD_NAMES = ("p50", "p90", "p99", "max")


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _spread_cells(values: Spread) -> list[str]:
    return [_ms(getattr(values, name)) for name in SPREAD_NAMES]


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.1f}"


def _median_range(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    median, low, high = (form.format(v) for v in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low}-{high})"


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
