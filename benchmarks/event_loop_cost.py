"""What streaming a token costs the event loop, and the engine's thread between two steps.

    python benchmarks/event_loop_cost.py

The real server and engine over a device that computes nothing: a step sleeps for as long as a model would compute, and
then every request has a token. Clients in another process read all streams at once. Prints the processor time of either
thread by token, once all streams run, and writes benchmarks/results/event-loop-cost.json.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from headway import __version__
from headway.config import EngineConfig, SchedulerConfig, ServerConfig
from headway.core.batch import SampledToken, ScheduledBatch, StepResult
from headway.core.executor import ExecutorInfo
from headway.engine.async_engine import AsyncEngine
from headway.engine.generation import ModelCard, StartupReport
from headway.engine.parts import EngineParts
from headway.server.app import create_app
from headway.server.serve import bind, serve

RESULT = Path(__file__).parent / "results" / "event-loop-cost.json"
SENTENCE = "the time between one train and the next on the same track is called headway"
WORDS = [f" {word}".encode() for word in SENTENCE.split()]
NUM_PROMPT_TOKENS = 32
WARM_UP = 32  # tokens of each stream that are not counted
LIMIT_US = 50.0
BODY = {"messages": [{"role": "user", "content": "Go"}], "stream": True, "ignore_eos": True}


class Vocabulary:
    """A tokenizer of a few words, as quick at giving a token's bytes as a real one."""

    strips_space = False
    token_bytes = staticmethod(WORDS.__getitem__)
    is_special = staticmethod(frozenset[int]().__contains__)


class Template:
    def prompt_ids(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return [0] * NUM_PROMPT_TOKENS


@dataclass(frozen=True)
class FinishedStep:
    step_result: StepResult

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self.step_result


class SleepingDevice:
    """Every step takes ``step_s``, without the interpreter lock, as a native step does."""

    def __init__(self, num_streams: int, max_context: int, step_s: float) -> None:
        self.info = ExecutorInfo(num_streams * max_context, 16, max_context, 4096, num_streams, len(WORDS))
        self.num_tokens = 0
        self._step_s = step_s

    def submit(self, batch: ScheduledBatch) -> FinishedStep:
        time.sleep(self._step_s)
        word = batch.step_id % len(WORDS)
        sampled = tuple(SampledToken(row.request_id, word) for row in batch.rows if row.samples)
        self.num_tokens += len(sampled)
        return FinishedStep(StepResult(batch.step_id, sampled, self._step_s))


def parts(device: SleepingDevice) -> EngineParts:
    context = device.info.max_context
    return EngineParts(
        executor=device,
        tokenizer=Vocabulary(),  # type: ignore[arg-type]
        chat_template=Template(),  # type: ignore[arg-type]
        card=ModelCard("none", "none", "none", "", "", context, len(WORDS), 0),
        eos_token_ids=frozenset(),
        generation_defaults={},
        report=StartupReport(0, 0, 0, device.info.num_blocks, 16, context, 1, 1, False, "none", 0.0),
    )


@contextmanager
def serving(device: SleepingDevice) -> Iterator[tuple[int, dict[str, threading.Thread]]]:
    """The port, and the two threads to be measured."""
    engine = AsyncEngine(parts(device), EngineConfig(SchedulerConfig(max_batch_rows=device.info.max_batch_rows)))
    config = ServerConfig(port=0)
    listener, app = bind(config), create_app(engine, config)
    listener.listen(device.info.max_batch_rows)
    loop = threading.Thread(target=serve, args=(app, listener, config))
    loop.start()
    try:
        [own] = [thread for thread in threading.enumerate() if thread.name == "headway-engine"]
        yield listener.getsockname()[1], {"event_loop_us": loop, "engine_us": own}
    finally:
        app.state.gate.close()
        loop.join()
        engine.stop()


def processor_seconds(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


async def read_stream(port: int, max_tokens: int) -> int:
    """The events of one answer."""
    body = json.dumps(BODY | {"max_tokens": max_tokens}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer, answer[:500]
    return answer.count(b"data: {")


def read_streams(port: int, num_streams: int, max_tokens: int) -> None:
    async def read_all() -> list[int]:
        return await asyncio.gather(*(read_stream(port, max_tokens) for _ in range(num_streams)))

    # A role, the tokens, a finish reason; fewer where the loop was so late that tokens were told together.
    assert sum(asyncio.run(read_all())) >= num_streams * max_tokens


def wait_for(device: SleepingDevice, num_tokens: int, clients: BaseProcess) -> int:
    """How many tokens there are once there are ``num_tokens``."""
    while device.num_tokens < num_tokens:
        time.sleep(0.002)
        assert clients.is_alive(), "the clients did not get what they asked for"
    return device.num_tokens


def measure(num_streams: int, num_tokens: int, step_s: float) -> dict[str, float]:
    """Microseconds of processor time by token, of the event loop and of the engine's thread."""
    max_tokens = WARM_UP + num_tokens + 8
    device = SleepingDevice(num_streams, NUM_PROMPT_TOKENS + max_tokens, step_s)
    with serving(device) as (port, threads):
        arguments = (port, num_streams, max_tokens)
        clients = multiprocessing.get_context("spawn").Process(target=read_streams, args=arguments)
        clients.start()
        first = wait_for(device, num_streams * WARM_UP, clients)
        before = {name: processor_seconds(thread) for name, thread in threads.items()}
        last = wait_for(device, num_streams * (WARM_UP + num_tokens), clients)
        spent = {name: processor_seconds(thread) - before[name] for name, thread in threads.items()}
        clients.join()
    assert clients.exitcode == 0, "the clients did not get what they asked for"
    return {name: seconds / (last - first) * 1e6 for name, seconds in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="streams at once")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each stream that are counted")
    parser.add_argument("--step-ms", type=float, default=20.0, help="how long a step takes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    print(f"microseconds of processor time by token, median (least-most); limit of the event loop: {LIMIT_US:g}")
    print(f"{'streams':>8} {'event loop':>22} {'engine':>22}")
    for num_streams in options.streams:
        rounds = [measure(num_streams, options.tokens, options.step_ms / 1e3) for _ in range(options.rounds)]
        figures = {name: [round(one[name], 2) for one in rounds] for name in rounds[0]}
        rows.append({"streams": num_streams} | figures)
        print(f"{num_streams:>8} {shown(figures['event_loop_us']):>22} {shown(figures['engine_us']):>22}")
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "headway": __version__,
    }
    settings = {"tokens": options.tokens, "step_ms": options.step_ms, "limit_us": LIMIT_US}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine} | settings | {"rows": rows}, indent=1) + "\n")


def shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


if __name__ == "__main__":
    main()
