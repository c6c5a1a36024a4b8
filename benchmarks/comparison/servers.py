"""How each engine is served over HTTP at its best settings here, with the OpenAI-compatible server that it ships."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from comparison.engines import HEADWAY, Arm, log_file
from comparison.processes import ServerProcess

NUM_SLOTS, SLOT_CONTEXT = 32, 1536  # the longest prompts and answers of the plan fit
MODEL_NAME = "model"


@dataclass(frozen=True)
class ServerCommand:
    """``environment`` is added to this process's."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    health: str


def server_command(arm: Arm, threads: int, port: int, llama_server: Path | None) -> ServerCommand:
    """``llama_server`` is only needed for llama.cpp."""
    if arm.engine == HEADWAY:
        arguments = [sys.executable, "-m", "headway", "serve", str(arm.model), "--threads", str(threads)]
        return ServerCommand((*arguments, "--port", str(port)), {}, "/ready")
    if arm.engine == "llama.cpp":
        return ServerCommand(llama_cpp_arguments(arm, threads, port, llama_server), {}, "/health")
    return ServerCommand(vllm_arguments(arm, port), vllm_environment(threads), "/health")


def llama_cpp_arguments(arm: Arm, threads: int, port: int, binary: Path | None) -> tuple[str, ...]:
    """Slots enough for all that is under way; no copies of old prompts in memory, since none comes again."""
    context = NUM_SLOTS * SLOT_CONTEXT
    options = f"-t {threads} -np {NUM_SLOTS} -c {context} -b 2048 -ub 512 --cache-ram 0 --no-ui --log-verbosity 1"
    return (str(binary), "-m", str(arm.model), "--host", "127.0.0.1", "--port", str(port), *options.split())


def vllm_arguments(arm: Arm, port: int) -> tuple[str, ...]:
    options = (
        "--dtype bfloat16 --max-model-len 2048 --max-num-seqs 64 --max-num-batched-tokens 2048 "
        "--no-enable-prefix-caching --distributed-executor-backend uni --disable-uvicorn-access-log"
    )
    # not ``vllm serve``, which looks for a package of another name than the build for CPUs has
    command = (str(arm.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(arm.model))
    return (*command, "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port), *options.split())


def vllm_environment(threads: int) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def start_server(arm: Arm, threads: int, llama_server: Path | None) -> tuple[ServerProcess, ServerCommand]:
    port = free_port()
    command = server_command(arm, threads, port, llama_server)
    log = log_file(f"{arm} server")
    return ServerProcess(command.arguments, command.environment, port, command.health, log), command


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
