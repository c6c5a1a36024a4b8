"""``headway bench serve``: open-loop load on a server, judged by an objective."""

import asyncio
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.measured import JsonFile, show, write_file
from headway.cli.terminal import error_exit, messages

if TYPE_CHECKING:
    from headway.bench.measures import RunSummary
    from headway.bench.open_loop import OnProgress
    from headway.bench.sweep import RatedPlan, ServerBench

EXIT_VOID = 3
DEFAULT_RATES = (1.0, 2.0, 4.0, 8.0)
DEFAULT_DURATION_S = 30.0


def parse_rates(text: str) -> list[float]:
    """``1,2,4``: positive numbers, in ascending order."""
    try:
        rates = sorted({float(part) for part in text.split(",")})
    except ValueError:
        rates = []
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise typer.BadParameter(f"{text!r} is not a list of requests a second: write 1,2,4")
    return rates


Url = Annotated[str, typer.Argument(help="The server: http://127.0.0.1:8000", show_default=False)]
Rates = Annotated[
    Any, typer.Option("--rate", parser=parse_rates, metavar="R[,R...]", help="Requests a second; 1,2,4,8.")
]
Cv = Annotated[float, typer.Option("--cv", min=0.01, help="Variation of the gaps: 1 is Poisson, more is bursts.")]
Trace = Annotated[Path | None, typer.Option("--trace", help="Replay a CSV or JSONL file; --rate stretches it.")]
Duration = Annotated[
    float | None, typer.Option("--duration", min=0.1, help="Seconds of arrivals at each rate; 30, or the whole trace.")
]
Input = Annotated[int, typer.Option("--input", min=1, help="Mean prompt length in tokens.")]
Output = Annotated[int, typer.Option("--output", min=1, help="Mean answer length in tokens.")]
Sigma = Annotated[
    float, typer.Option("--spread", min=0, max=2, help="Sigma of the log-normal lengths; 0: all the same.")
]
TtftMs = Annotated[float, typer.Option("--ttft-ms", min=0.001, help="Objective: time to the first token.")]
TpotMs = Annotated[float, typer.Option("--tpot-ms", min=0.001, help="Objective: mean time of each later token.")]
Chat = Annotated[bool, typer.Option("--chat", help="Ask /v1/chat/completions, not /v1/completions.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Its name there; the first listed.")]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Ask for answers of full length (an extension).")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds a request may take.")]
MaxLagMs = Annotated[
    float | None, typer.Option("--max-lag-ms", min=0, help="How late the client may be; TTFT/10 or TPOT/2, the less.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Repeats moments, lengths and prompts.")]
AllowRemote = Annotated[bool, typer.Option("--allow-remote", help="The server may be another machine.")]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="HEADWAY_API_KEY", help="Sent as a bearer token.", show_default=False)
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw attainment by rate, as SVG.")]


def serve(
    url: Url,
    rate: Rates = None,
    cv: Cv = 1.0,
    trace: Trace = None,
    duration: Duration = None,
    input_tokens: Input = 256,
    output_tokens: Output = 64,
    sigma: Sigma = 0.5,
    ttft_ms: TtftMs = 500,
    tpot_ms: TpotMs = 50,
    chat: Chat = False,
    model: ModelName = None,
    ignore_eos: IgnoreEos = True,
    timeout: Timeout = 120,
    max_lag_ms: MaxLagMs = None,
    seed: Seed = None,
    allow_remote: AllowRemote = False,
    api_key: ApiKey = "",
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Open-loop load on any OpenAI-compatible server: latency, attainment and goodput at each rate.

    Requests leave when they are due, whatever the server does. A run whose client lagged is VOID: exit status 3.
    """
    from headway.bench.client import Server
    from headway.bench.measures import Objectives
    from headway.bench.sweep import Judgement, ServerBench, generated_plans, trace_plans
    from headway.bench.trace import read_trace
    from headway.bench.workload import Lengths

    seed = secrets.randbelow(1 << 32) if seed is None else seed
    with error_exit():
        server = Server.at(url, allow_remote, api_key)
        if trace is not None:
            plans = trace_plans(read_trace(trace), rate or (), duration, seed)
        else:
            lengths = Lengths(input_tokens, sigma), Lengths(output_tokens, sigma)
            plans = generated_plans(rate or DEFAULT_RATES, cv, duration or DEFAULT_DURATION_S, *lengths, seed)
        objectives = Objectives(ttft_ms / 1e3, tpot_ms / 1e3)
        judgement = Judgement.of(objectives, None if max_lag_ms is None else max_lag_ms / 1e3)
        bench = ServerBench(server, plans, judgement, timeout, is_chat=chat, ignore_eos=ignore_eos)
        with _progress() as progress_for:
            served, runs = asyncio.run(bench.run(model, progress_for))
        _report(bench, served, runs, seed, json_file, plot)
    if any(run.void for run in runs):
        raise typer.Exit(EXIT_VOID)


@contextmanager
def _progress() -> "Iterator[Any]":
    """A bar for each rate. It shares a processor with what is measured, so it is drawn twice a second and no more."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}: {task.completed} of {task.total} answered{task.fields[failed]}")
    columns = (text, BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages(), refresh_per_second=2, transient=True) as bars:

        def progress_for(plan: "RatedPlan") -> "OnProgress":
            task = bars.add_task(f"{plan.rate:g}/s", total=len(plan.requests), failed="")

            def update(progress: Any) -> None:
                failed = f", {progress.num_failed} failed" if progress.num_failed else ""
                bars.update(task, completed=progress.num_done, failed=failed)

            return update

        yield progress_for


def _report(
    bench: "ServerBench",
    model: str,
    runs: "list[RunSummary]",
    seed: int,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    from headway.bench.plot import attainment_svg
    from headway.bench.report import machine, serve_json, serve_remarks, serve_table, void_remarks

    objectives = bench.judgement.objectives
    facts = {"server": bench.server.address, "model": model, "seed": seed}
    limits = {"ttft_s": objectives.ttft_s, "tpot_s": objectives.tpot_s}
    value = {**facts, "client": machine(), "objectives": limits, **serve_json(runs)}
    show(serve_table(runs, objectives), value, json_file)
    console = messages()
    for line in (*serve_remarks(runs), f"seed {seed}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in void_remarks(runs):
        console.print(line, style="bold red", markup=False, highlight=False, soft_wrap=True)
    if plot is not None:
        write_file(plot, attainment_svg(runs, f"{model} at {bench.server.address}"))
