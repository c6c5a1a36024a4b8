"""``headway bench``: throughput and latency of an engine in this process, goodput of any OpenAI-compatible server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.bench_serve import serve
from headway.cli.measured import JsonFile, show
from headway.cli.options import ENGINE_SETTINGS, configured
from headway.cli.terminal import messages
from headway.config import Config

if TYPE_CHECKING:
    from headway.bench.offline import RunTimes, Work

app = typer.Typer(help="Measure an engine, or any OpenAI-compatible server.", no_args_is_help=True)
app.command()(serve)

Prompts = Annotated[list[int] | None, typer.Option("--prompt", help="Prompt tokens. Repeatable.", show_default=False)]
Outputs = Annotated[list[int] | None, typer.Option("--output", help="Answer tokens. Repeatable.", show_default=False)]
Batches = Annotated[list[int] | None, typer.Option("--batch", help="Requests at once. Repeatable.", show_default=False)]
NumRounds = Annotated[int, typer.Option("--rounds", min=1, help="Times each work is run and counted.")]


@app.command()
@configured(*ENGINE_SETTINGS)
def throughput(
    prompt: Prompts = None,
    output: Outputs = None,
    batch: Batches = None,
    rounds: NumRounds = 5,
    json_file: JsonFile = None,
    *,
    config: Config,
) -> None:
    """Prefill and decode speed of a model, through the scheduler, in this process."""
    from headway.bench.offline import THROUGHPUT_WORKS
    from headway.bench.report import throughput_json, throughput_table

    works = combinations(batch, prompt, output) or list(THROUGHPUT_WORKS)
    facts, measured = run_offline(config, works, rounds)
    show(throughput_table(measured), facts | {"works": throughput_json(measured)}, json_file)


@app.command()
@configured(*ENGINE_SETTINGS)
def latency(
    prompt: Prompts = None,
    output: Outputs = None,
    rounds: NumRounds = 5,
    json_file: JsonFile = None,
    *,
    config: Config,
) -> None:
    """Time to the first token and between tokens, one request at a time, in this process."""
    from headway.bench.offline import LATENCY_WORKS
    from headway.bench.report import latency_json, latency_table

    works = combinations(None, prompt, output) or list(LATENCY_WORKS)
    facts, measured = run_offline(config, works, rounds)
    show(latency_table(measured), facts | {"works": latency_json(measured)}, json_file)


def combinations(
    batches: list[int] | None, prompts: list[int] | None, outputs: list[int] | None
) -> "list[Work] | None":
    """Every combination of what was given; None when nothing was."""
    from headway.bench.offline import Work

    if not (batches or prompts or outputs):
        return None
    return [Work(b, p, o) for b in batches or [1] for p in prompts or [256] for o in outputs or [64]]


def run_offline(
    config: Config, works: "Sequence[Work]", num_rounds: int
) -> "tuple[dict[str, Any], list[list[RunTimes]]]":
    """Facts about what was measured, and the rounds of each work."""
    from rich.progress import Progress

    from headway.bench.offline import OfflineEngine
    from headway.bench.report import engine_facts, machine
    from headway.cli.loading import loaded_parts

    parts = loaded_parts(config)
    engine = OfflineEngine(parts.executor, config.scheduler)
    measured = []
    with Progress(console=messages(), transient=True) as bars:
        task = bars.add_task("", total=len(works) * num_rounds)
        for work in works:
            bars.update(task, description=str(work))
            rounds = []
            for run in engine.rounds(work, num_rounds):
                rounds.append(run)
                bars.advance(task)
            measured.append(rounds)
    return machine() | engine_facts(parts.card, parts.report), measured
