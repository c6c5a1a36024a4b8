"""Goodput of Headway's, llama.cpp's and vLLM's own servers under one open-loop load, in turns.

    python benchmarks/peers_http.py [--model smollm2-135m] [--peers llama.cpp,vllm] [--rounds 3] [--rates 1,2,3]

Needs what benchmarks/peers.py installs, and builds llama.cpp's server on first use (ten minutes and more, once).
OpenVINO GenAI comes without a server. All servers are up from the start and stopped (SIGSTOP) while it is not their
turn; the client of ``headway bench serve`` drives them from this process, on the same cores. Rates rise until a server
has missed the objectives at two of them. Prints a table and writes benchmarks/results/http-MODEL.json. Leave the
machine alone meanwhile.
"""

import argparse
import json
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from comparison.command_line import end_on_sigterm, facts, parser, without_folders
from comparison.engines import HEADWAY, Arm, ArmFinder
from comparison.environments import llama_server
from comparison.goodput import GoodputComparison, GoodputRound, LoadPlan
from comparison.models import DEFAULT_MODEL, compared_model
from comparison.processes import EngineFailed, ServerProcess
from comparison.servers import start_server
from comparison.tables import RESULTS, goodput_table
from headway.bench.measures import GOODPUT_ATTAINMENT, Objectives
from headway.bench.report import serve_json
from headway.bench.sweep import Judgement
from headway.cli.bench_serve import parse_rates

console = Console(stderr=True)
RATES = "0.25,0.5,1,1.5,2,2.5,3,4,5,6,7,8,10,12,14,16"
SERVED = ("llama.cpp", "vllm")


def options() -> argparse.Namespace:
    made = parser(__doc__)
    made.set_defaults(peers=SERVED)
    made.add_argument("--model", default=DEFAULT_MODEL)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--rates", type=parse_rates, default=parse_rates(RATES), help=f"requests a second; {RATES}")
    made.add_argument("--duration", type=float, default=30.0, help="seconds of arrivals at each rate")
    made.add_argument("--input", type=int, default=270, help="mean prompt tokens")
    made.add_argument("--output", type=int, default=80, help="mean answer tokens")
    made.add_argument("--ttft-ms", type=float, default=500)
    made.add_argument("--tpot-ms", type=float, default=50)
    made.add_argument("--max-lag-ms", type=float, default=None, help="how late the client may be, as in headway bench")
    made.add_argument("--llama-server", type=Path, help="a llama-server, rather than one built here")
    made.add_argument("--dry-run", action="store_true", help="record nothing")
    return made.parse_args()


def load_plan(args: argparse.Namespace) -> LoadPlan:
    objectives = Objectives(args.ttft_ms / 1e3, args.tpot_ms / 1e3)
    max_lag_s = None if args.max_lag_ms is None else args.max_lag_ms / 1e3
    return LoadPlan(
        args.rates, args.duration, args.input, args.output, 0.5, Judgement.of(objectives, max_lag_s), timeout_s=120
    )


def start_servers(
    arms: list[Arm], args: argparse.Namespace, did_not_run: dict[str, str], servers: dict[Arm, ServerProcess]
) -> dict[str, dict[str, Any]]:
    """Fills ``servers``; the command of each, by arm."""
    commands = {}
    for arm in arms:
        try:
            binary = None
            if arm.engine == "llama.cpp":
                binary = args.llama_server or llama_server(arm.python)
            show(f"starting {arm}")
            servers[arm], command = start_server(arm, args.threads, binary)
            servers[arm].pause()
            commands[str(arm)] = {
                "command": without_folders(command.arguments),
                "environment": dict(command.environment),
            }
        except (EngineFailed, OSError) as error:
            did_not_run[str(arm)] = str(error)
    return commands


def show(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def round_json(found: GoodputRound) -> dict[str, Any]:
    return {
        "seed": found.seed,
        "goodput": {server: found.goodput(server) for server in found.runs},
        "runs": {server: serve_json(runs) for server, runs in found.runs.items()},
    }


def compare(args: argparse.Namespace) -> dict[str, Any]:
    model = compared_model(args.model)
    did_not_run: dict[str, str] = {}
    arms = list(ArmFinder(model, dict(args.python), args.threads, did_not_run).arms([HEADWAY, *args.peers]))
    plan = load_plan(args)
    servers: dict[Arm, ServerProcess] = {}
    rounds = []
    try:
        commands = start_servers(arms, args, did_not_run, servers)
        with console.status("") as status:
            comparison = GoodputComparison(servers, plan, status.update, show, did_not_run)
            for number in range(args.rounds):
                found = comparison.run(secrets.randbelow(1 << 32))
                rounds.append(round_json(found))
                show(f"round {number + 1}: {rounds[-1]['goodput']}")
    finally:
        for process in servers.values():
            process.close()
    return facts(model, args.threads) | {
        "objectives": asdict(plan.judgement.objectives),
        "attainment": GOODPUT_ATTAINMENT,
        "plan": {
            "input_tokens": args.input,
            "output_tokens": args.output,
            "duration_s": args.duration,
            "rates": args.rates,
        },
        "servers": commands,
        "did_not_run": did_not_run,
        "rounds": rounds,
    }


def main() -> None:
    args = options()
    end_on_sigterm()
    result = compare(args)
    print(goodput_table(result))
    for what, reason in result["did_not_run"].items():
        console.print(f"{what} did not run: {reason}", style="red", markup=False)
    if not args.dry_run:
        path = RESULTS / f"http-{result['model']['name']}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
