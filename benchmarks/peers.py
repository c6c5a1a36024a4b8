"""Headway beside llama.cpp, OpenVINO GenAI and vLLM, in turns, with a calibration of the machine before each run.

    python benchmarks/peers.py [--models smollm2-135m,random-llama-1b] [--peers llama.cpp,openvino,vllm] [--rounds 5]
    python benchmarks/peers.py --readme        # only writes the README's tables from the recorded results
    python benchmarks/peers.py --quick         # small works, one round, nothing recorded: does everything run?

Each peer is installed on first use, in an environment of its own under ~/.cache/headway/peers, and is driven at its
best settings (``arms/``) in each format it may be fastest in. An engine is a process that is stopped
(SIGSTOP) while others work. One run of every format, alone, is the heat: formats far behind their engine's best are not
measured again. Prints a table and writes benchmarks/results/peers-MODEL.json. Leave the machine alone meanwhile.
"""

import json
from typing import Any

from rich.console import Console

from comparison.command_line import end_on_sigterm, facts, parser
from comparison.engines import HEADWAY, ArmFinder
from comparison.models import DEFAULT_MODEL, RANDOM_MODEL, compared_model
from comparison.rounds import QUICK_WORKS, WORKS, Comparison
from comparison.tables import RESULTS, update_readme, work_table
from headway.ops.native import NativeBackend

console = Console(stderr=True)


class Calibration:
    """The machine's limits, measured by this process, which otherwise only waits."""

    def __init__(self, threads: int) -> None:
        self._backend = NativeBackend(threads)

    def __call__(self) -> dict[str, float]:
        found = self._backend.calibrate()
        return {"read_gb_per_s": found.read_bytes_per_s / 1e9, "int8_gop_per_s": found.int8_ops_per_s / 1e9}


def compare(name: str, args: Any) -> dict[str, Any]:
    """What was measured, which is recorded after each work: a run that is stopped leaves what it has."""
    model = compared_model(name)
    did_not_run: dict[str, str] = {}
    arms = list(ArmFinder(model, dict(args.python), args.threads, did_not_run).arms([HEADWAY, *args.peers]))
    with console.status("") as status:
        comparison = Comparison(
            arms,
            args.threads,
            args.rounds,
            Calibration(args.threads),
            lambda what: status.update(f"{name}: {what}"),
            did_not_run,
        )
        result = facts(model, args.threads) | {"engines": comparison.facts, "did_not_run": did_not_run, "works": []}
        try:
            for work in comparison.measure(QUICK_WORKS if args.quick else WORKS):
                result["works"].append(work)
                console.print(work_table({"works": [work]}), markup=False, highlight=False, soft_wrap=True)
                if not args.quick:
                    record(result)
        finally:
            comparison.close()
    return result


def record(result: dict[str, Any]) -> None:
    (RESULTS / f"peers-{result['model']['name']}.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", default=f"{DEFAULT_MODEL},{RANDOM_MODEL}", help="catalogue names or GGUF files")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--readme", action="store_true")
    args = options.parse_args()
    if args.readme:
        return update_readme()
    if args.quick:
        args.rounds = 1
    end_on_sigterm()
    for name in args.models.split(","):
        result = compare(name, args)
        print(work_table(result))
        for what, reason in result["did_not_run"].items():
            console.print(f"{what} did not run: {reason}", style="red", markup=False)


if __name__ == "__main__":
    main()
