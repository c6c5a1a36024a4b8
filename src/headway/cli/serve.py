"""``headway serve``: the OpenAI-compatible server."""

import json
import shlex
from bisect import bisect_right
from typing import Any

from rich.text import Text

from headway.cli.options import ENGINE_SETTINGS, SERVER_SETTINGS, configured
from headway.cli.terminal import output
from headway.config import Config, ObjectiveConfig
from headway.core.step_time import StepShape, StepTimes
from headway.engine.generation import ModelCard, StartupReport
from headway.model.progress import format_bytes


@configured(*SERVER_SETTINGS, *ENGINE_SETTINGS)
def serve(*, config: Config) -> None:
    """Serve a model over HTTP, as OpenAI does. Ctrl-C lets what runs finish."""
    from headway.cli.loading import running_engine
    from headway.server.app import create_app
    from headway.server.serve import bind
    from headway.server.serve import serve as serve_app

    listener = bind(config.server)
    with running_engine(config, holds_objective=True) as running:
        app = create_app(running.engine, config.server)
        listener.listen()  # whoever pastes the line below at once waits for the server instead of being refused
        url = server_url(listener.getsockname())
        assert running.step_times is not None
        max_requests, max_context = config.scheduler.max_batch_rows, running.report.max_context
        objective = objective_fact(config.objective, running.step_times, max_requests, max_context)
        print_start(running.engine.card, running.report, objective, url, running.engine.chat_template is not None)
        serve_app(app, listener, config.server)


def server_url(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def print_start(card: ModelCard, report: StartupReport, objective: str, url: str, has_chat: bool) -> None:
    console = output()
    for label, value in start_facts(card, report, objective, url):
        console.print(Text.assemble((f"{label:<11}", "bold"), value), highlight=False, soft_wrap=True)
    console.print(curl_line(card.name, url, has_chat), highlight=False, markup=False, soft_wrap=True)


def start_facts(card: ModelCard, report: StartupReport, objective: str, url: str) -> list[tuple[str, str]]:
    blocks = f"{report.num_blocks} blocks of {report.block_size} = {report.num_blocks * report.block_size} tokens"
    if report.num_disk_slots:
        blocks += f", and {report.num_disk_slots} blocks on disk"
    return [
        ("model", f"{card.name} ({card.family}, {card.num_parameters / 1e6:.0f}M parameters), {card.quantisation}"),
        ("weights", format_bytes(report.weights_bytes)),
        ("workspace", format_bytes(report.workspace_bytes)),
        ("KV pool", f"{format_bytes(report.kv_bytes)} = {blocks}"),
        ("context", f"{report.max_context} tokens"),
        ("threads", threads_fact(report)),
        ("objective", objective),
        ("ready in", f"{report.load_s:.1f} s"),
        ("URL", url),
    ]


def objective_fact(objective: ObjectiveConfig, times: StepTimes, max_requests: int, max_context: int) -> str:
    """What is asked, and what is predicted: steps at a context of 256 tokens, and the longest prompt in time."""
    alone, full = (1e3 * times.seconds(StepShape.of_decodes(n, 256)) for n in (1, max_requests))
    steps = f"a step takes {alone:.1f} ms for one request, {full:.1f} ms for {max_requests} (predicted)"
    if not objective.tpot_ms:
        token = f"none for tokens; {steps}"
    elif alone > objective.tpot_ms:
        token = f"{objective.tpot_ms:g} ms a token cannot be held, at best {alone:.1f} ms: {steps}"
    else:
        token = f"{objective.tpot_ms:g} ms a token; {steps}"
    return f"{token}; {first_token_fact(objective.ttft_ms, times, max_context)}"


def first_token_fact(ttft_ms: float, times: StepTimes, max_context: int) -> str:
    if not ttft_ms:
        return "none for the first token"
    longest = bisect_right(
        range(1, max_context + 1), ttft_ms, key=lambda n: 1e3 * times.seconds(StepShape().plus(0, n, True))
    )
    if longest == max_context:
        return f"first token within {ttft_ms:g} ms"
    return f"first token within {ttft_ms:g} ms for prompts up to {longest} tokens, alone (predicted)"


def threads_fact(report: StartupReport) -> str:
    cores = f"{report.cores} core{'s' if report.cores > 1 else ''}"
    placed = "each on a core of its own" if report.is_pinned else f"on {cores}"
    return f"{report.threads} {placed}, {report.isa} kernels"


def curl_line(model: str, url: str, has_chat: bool) -> str:
    """A command that answers when it is pasted."""
    question = "What is a headway?"
    path, body = (
        ("chat/completions", {"model": model, "messages": [{"role": "user", "content": question}]})
        if has_chat
        else ("completions", {"model": model, "prompt": "The train leaves", "max_tokens": 50})
    )
    return f"curl {url}/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
