"""``headway bench``: throughput and latency of an engine in this process, goodput of any OpenAI-compatible server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.bench_serve import serve
from headway.cli.measured import JsonFile, show
from headway.cli.options import ENGINE_SETTINGS, configured
from headway.cli.terminal import messages
from headway.config import Config
from headway.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from headway.bench.offline import RunTimes, Work
    from headway.bench.work_profile import WorkProfile

app = typer.Typer(help="Measure an engine, or any OpenAI-compatible server.", no_args_is_help=True)
app.command()(serve)

Prompts = Annotated[list[int] | None, typer.Option("--prompt", help="Prompt tokens. Repeatable.", show_default=False)]
Outputs = Annotated[list[int] | None, typer.Option("--output", help="Answer tokens. Repeatable.", show_default=False)]
Batches = Annotated[list[int] | None, typer.Option("--batch", help="Requests at once. Repeatable.", show_default=False)]
WithProfile = Annotated[bool, typer.Option("--profile", help="Run each work again, and show its time by operation.")]
NumRounds = Annotated[int, typer.Option("--rounds", min=1, help="Times each work is run and counted.")]


@app.command()
@configured(*ENGINE_SETTINGS)
def throughput(
    prompt: Prompts = None,
    output: Outputs = None,
    batch: Batches = None,
    rounds: NumRounds = 5,
    profile: WithProfile = False,
    json_file: JsonFile = None,
    *,
    config: Config,
) -> None:
    """Prefill and decode speed of a model, through the scheduler, in this process."""
    from headway.bench.offline import THROUGHPUT_WORKS
    from headway.bench.report import throughput_json, throughput_table

    works = combinations(batch, prompt, output) or list(THROUGHPUT_WORKS)
    outcome = run_offline(config, works, rounds, profile)
    show_offline(throughput_table(outcome.rounds), throughput_json(outcome.rounds), outcome, json_file)


@app.command()
@configured(*ENGINE_SETTINGS)
def latency(
    prompt: Prompts = None,
    output: Outputs = None,
    rounds: NumRounds = 5,
    profile: WithProfile = False,
    json_file: JsonFile = None,
    *,
    config: Config,
) -> None:
    """Time to the first token and between tokens, one request at a time, in this process."""
    from headway.bench.offline import LATENCY_WORKS
    from headway.bench.report import latency_json, latency_table

    works = combinations(None, prompt, output) or list(LATENCY_WORKS)
    outcome = run_offline(config, works, rounds, profile)
    show_offline(latency_table(outcome.rounds), latency_json(outcome.rounds), outcome, json_file)


def combinations(
    batches: list[int] | None, prompts: list[int] | None, outputs: list[int] | None
) -> "list[Work] | None":
    """Every combination of what was given; None when nothing was."""
    from headway.bench.offline import Work

    if not (batches or prompts or outputs):
        return None
    return [Work(b, p, o) for b in batches or [1] for p in prompts or [256] for o in outputs or [64]]


@dataclass(slots=True)
class Outcome:
    """What an engine came to: its ``rounds`` of each work, and where asked for a profile of each."""

    facts: dict[str, Any]
    rounds: "list[list[RunTimes]]" = field(default_factory=list)
    profiles: "list[WorkProfile]" = field(default_factory=list)


def run_offline(config: Config, works: "Sequence[Work]", num_rounds: int, with_profile: bool) -> Outcome:
    from rich.progress import Progress

    from headway.bench.offline import OfflineEngine
    from headway.bench.report import engine_facts, machine
    from headway.bench.work_profile import profile_work
    from headway.cli.loading import loaded_parts

    parts = loaded_parts(config)
    if with_profile and parts.profiler is None:
        raise ConfigError(f"--profile needs runtime.backend native: {config.runtime.backend} has no times by operation")
    engine = OfflineEngine(parts.executor, config.scheduler)
    outcome = Outcome(machine() | engine_facts(parts.card, parts.report))
    with Progress(console=messages(), transient=True) as bars:
        task = bars.add_task("", total=len(works) * num_rounds)
        for work in works:
            bars.update(task, description=str(work))
            outcome.rounds.append([])
            for run in engine.rounds(work, num_rounds):
                outcome.rounds[-1].append(run)
                bars.advance(task)
            if with_profile and parts.profiler is not None:
                outcome.profiles.append(profile_work(engine, work, num_rounds, parts.profiler))
    return outcome


def show_offline(table: "Table", works: list[dict[str, Any]], outcome: Outcome, json_file: JsonFile) -> None:
    from rich.console import Group, RenderableType

    from headway.bench.work_profile import LEGEND, profile_json, profile_table

    for work, profile in zip(works, outcome.profiles, strict=False):  # no profiles, or one for each work
        work["profile"] = profile_json(profile)
    profiles: list[RenderableType] = list(map(profile_table, outcome.profiles))
    legend = [LEGEND] if profiles else []
    show(Group(table, *profiles, *legend), outcome.facts | {"works": works}, json_file)
