"""Recorded results as Markdown, and as a part of the README."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.engines import HEADWAY, TITLES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- peers: written by benchmarks/peers.py --readme -->", "<!-- peers: end -->"
NOT_RECORDED = "No comparison is recorded for this version: `python benchmarks/peers.py` takes one."

Json = Mapping[str, Any]


# -- offline: works by engines --


def work_table(result: Json) -> str:
    """A row for each work, a column for each engine, and how many times as fast Headway is as the best peer."""
    engines = [engine for engine in TITLES if any(_figures(work, engine) for work in result["works"])]
    lines = [
        _row("", *(TITLES[engine] for engine in engines), "Headway / best peer"),
        _row(*["---"] * (len(engines) + 2)),
    ]
    for work in result["works"]:
        name = f"{work['work']}, {'seconds' if work['unit'] == 's' else 'tokens a second'}"
        cells = [_engine_cell(work, engine) for engine in engines]
        lines.append(_row(name, *cells, _spread(ratios(work), "{:.2f}")))
    return "\n".join(lines)


def ratios(work: Json) -> list[float]:
    """Of each round: Headway's speed over that of the fastest peer, whichever its format."""
    found = []
    for figures in (number["figures"] for number in work["rounds"]):
        speeds = {arm: 1 / value if work["unit"] == "s" else value for arm, value in figures.items()}
        ours = [speed for arm, speed in speeds.items() if engine_of(arm) == HEADWAY]
        peers = [speed for arm, speed in speeds.items() if engine_of(arm) != HEADWAY]
        if ours and peers:
            found.append(max(ours) / max(peers))
    return found


def engine_of(arm: str) -> str:
    return arm.rpartition(" ")[0]


def _engine_cell(work: Json, engine: str) -> str:
    """The format with the best median, and its figures."""
    figures = _figures(work, engine)
    if not figures:
        return "-"
    choose = min if work["unit"] == "s" else max
    best = choose(figures, key=lambda arm: statistics.median(figures[arm]))
    return f"{_spread(figures[best], '{:.2f}' if work['unit'] == 's' else '{:,.0f}')} {best.rpartition(' ')[2]}"


def _figures(work: Json, engine: str) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {}
    for number in work["rounds"]:
        for arm, value in number["figures"].items():
            if engine_of(arm) == engine:
                figures.setdefault(arm, []).append(value)
    return figures


# -- through HTTP: servers by goodput --


def goodput_table(result: Json) -> str:
    """A row for each server: the highest rate that met the objectives, and how many times that Headway reached."""
    goodputs = {
        arm: [number["goodput"][arm] for number in result["rounds"] if arm in number["goodput"]]
        for arm in result["servers"]
    }
    ours = next((arm for arm in goodputs if engine_of(arm) == HEADWAY), None)
    lines = [_row("", "goodput, requests a second", "Headway / this"), _row(*["---"] * 3)]
    for arm, rates in goodputs.items():
        engine, _, format = arm.rpartition(" ")
        pairs = zip(goodputs[ours], rates, strict=False) if ours and ours != arm else ()
        lines.append(
            _row(
                f"{TITLES[engine]} {format}", _spread(rates, "{:g}"), _spread([a / b for a, b in pairs if b], "{:.2f}")
            )
        )
    return "\n".join(lines)


# -- the README --


def readme_section(results: Path = RESULTS) -> str:
    """What stands between the two marks, from the results recorded there."""
    parts = [
        _offline_part(path, json.loads(path.read_text())) for path in sorted(results.glob("peers-*.json"), reverse=True)
    ]
    parts += [
        _http_part(path, json.loads(path.read_text())) for path in sorted(results.glob("http-*.json"), reverse=True)
    ]
    return "\n\n".join(parts or [NOT_RECORDED])


def _offline_part(path: Path, result: Json) -> str:
    rounds = max(len(work["rounds"]) for work in result["works"])
    heading = f"{_model(result)}, {_machine(result)}: median (min-max) of {rounds} rounds"
    return _part(
        f"{heading}, and the format each engine is fastest in ([recorded run]({_link(path)})).",
        work_table(result),
        result,
    )


def _http_part(path: Path, result: Json) -> str:
    objectives, plan = result["objectives"], result["plan"]
    heading = (
        f"{_model(result)} through HTTP, {_machine(result)}: Poisson arrivals, about {plan['input_tokens']} tokens in "
        f"and {plan['output_tokens']} out, {result['attainment']:.0%} of requests with TTFT <= "
        f"{objectives['ttft_s'] * 1e3:.0f} ms and TPOT <= {objectives['tpot_s'] * 1e3:.0f} ms"
    )
    return _part(f"{heading} ([recorded run]({_link(path)})).", goodput_table(result), result)


def _part(heading: str, table: str, result: Json) -> str:
    missing = [f"Did not run: {what} ({reason})." for what, reason in result["did_not_run"].items()]
    return "\n\n".join([heading, table, *missing])


def _model(result: Json) -> str:
    model = result["model"]
    return f"**{model['name']}** ({model['num_parameters'] / 1e9:.2f} B parameters, {model['format']})"


def _machine(result: Json) -> str:
    return f"{result['threads']} threads of {result['machine']['processor']}"


def _link(path: Path) -> str:
    return f"benchmarks/results/{path.name}"


def update_readme(readme: Path = README, results: Path = RESULTS) -> None:
    text = readme.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{readme} lacks the lines {BEGIN} and {END}")
    readme.write_text(f"{before}{BEGIN}\n{readme_section(results)}\n{END}{after}")


# -- cells --


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    return f"{form.format(statistics.median(values))} ({form.format(min(values))}-{form.format(max(values))})"
