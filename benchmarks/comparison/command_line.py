"""What both comparisons ask of the command line and say of the machine."""

import argparse
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from comparison.engines import PEERS
from comparison.models import ComparedModel
from headway.bench.report import machine


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--peers", type=peer_names, default=PEERS, help=f"of {','.join(PEERS)}; all")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument(
        "--python", type=named_python, action="append", default=[], metavar="PEER=PATH", help="a Python that has it"
    )
    return made


def peer_names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PEERS)}")
    return names


def named_python(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in PEERS or not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{text!r}: write one of {', '.join(PEERS)}, =, and a Python that exists")
    return name, Path(path).absolute()


def facts(model: ComparedModel, threads: int) -> dict[str, Any]:
    return {
        "command": recorded_command(),
        "model": {
            "name": model.name,
            "format": model.format,
            "num_parameters": model.num_parameters,
            "digest": model.digest,
        },
        "machine": machine(),
        "threads": threads,
    }


def recorded_command() -> str:
    """What this script was started with, for its record."""
    return " ".join(["python", *without_folders(sys.argv)])


def without_folders(arguments: Iterable[str]) -> list[str]:
    """As they are recorded: where a machine keeps its files says nothing of what ran."""
    return [Path(argument).name if Path(argument).is_absolute() else argument for argument in arguments]


def end_on_sigterm() -> None:
    """So that engines which are stopped at the moment are ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
