"""Headway against llama.cpp on the same GGUF file, interleaved, with a calibration of the machine beside each pair.

    python benchmarks/against_llama_cpp.py [MODEL] [--rounds 5] [--threads 2] [--peer-python PYTHON]

MODEL is a catalogue name or a GGUF file. Without --peer-python, llama-cpp-python is built in an environment of its own
(some minutes, once). Each engine is a process that lives throughout and sleeps while the other works. Headway's figures
go through its scheduler and sampler; llama.cpp's are its plain batches, without sampling. Prints a table and writes
benchmarks/results/llama-cpp.json. Leave the machine alone while it runs.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
# One cannot be had everywhere: a build for "native" has been seen to die of an instruction the machine does not allow.
PEER_BUILDS = (
    "-DGGML_NATIVE=ON",
    "-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON "
    "-DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON",
)


@dataclass(frozen=True)
class Work:
    """``batch`` sequences of ``prompt`` random tokens each, then ``output`` tokens of each."""

    name: str
    batch: int
    prompt: int
    output: int
    phase: str  # which part is reported: prefill, decode or total

    def tokens_per_s(self, prefill_s: float, decode_s: float, num_decoded: int) -> float:
        prompts = self.batch * self.prompt
        if self.phase == "prefill":
            return prompts / prefill_s
        if self.phase == "decode":
            return num_decoded / decode_s
        return (prompts + self.batch * self.output) / (prefill_s + decode_s)


WORKS = (
    Work("prefill 512", 1, 512, 0, "prefill"),
    Work("decode b=1", 1, 32, 96, "decode"),
    Work("decode b=8", 8, 32, 48, "decode"),
    Work("decode b=32", 32, 32, 32, "decode"),
    Work("32 x (256 in + 64 out)", 32, 256, 64, "total"),
)
# Seconds until every sequence has its first token, seconds from then on, and the tokens computed in the latter.
Run = Callable[[Work], tuple[float, float, int]]


# -- the two engines: each in a process of its own ---------------------------------------------------------------------


def headway_arm(model: str, threads: int) -> tuple[Run, Callable[[], dict[str, Any]]]:
    from headway import __version__
    from headway.bench.offline import OfflineEngine
    from headway.bench.offline import Work as OfflineWork
    from headway.config import load_config
    from headway.ops.native import NativeBackend
    from headway.worker.load import load_model

    config = load_config(overrides={"model.name": model, "runtime.threads": threads})
    loaded = load_model(config)
    engine = OfflineEngine(loaded.make_executor(), config.scheduler)
    calibrating = NativeBackend(threads)

    def run(work: Work) -> tuple[float, float, int]:
        # One token more: the first comes with the prompt, and the peer is timed over the others.
        times = engine.run(OfflineWork(work.batch, work.prompt, work.output + 1))
        return times.prefill_s, times.decode_s, times.num_decoded

    def describe() -> dict[str, Any]:
        calibration = calibrating.calibrate()
        return {
            "version": __version__,
            "kernels": loaded.backend.isa,
            "read_gb_per_s": calibration.read_bytes_per_s / 1e9,
            "int8_gop_per_s": calibration.int8_ops_per_s / 1e9,
        }

    return run, describe


def llama_cpp_arm(model: str, threads: int) -> tuple[Run, Callable[[], dict[str, Any]]]:
    import llama_cpp as llama

    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 16384, 2048, 512, 64
    params.n_threads = params.n_threads_batch = threads
    params.kv_unified = True
    context = llama.llama_init_from_model(loaded, params)
    batch = llama.llama_batch_init(2048, 0, 1)

    def decode(rows: list[tuple[int, int, bool]]) -> None:
        """Rows of (sequence, position, whether its logits are wanted), with random tokens."""
        batch.n_tokens = len(rows)
        for i, (sequence, position, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = random.randrange(100, 40000), position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wanted
        assert llama.llama_decode(context, batch) == 0

    def run(work: Work) -> tuple[float, float, int]:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        started = time.perf_counter()
        for sequence in range(work.batch):
            decode([(sequence, i, i == work.prompt - 1) for i in range(work.prompt)])
        llama.llama_synchronize(context)
        prefilled = time.perf_counter()
        for i in range(work.output):
            decode([(sequence, work.prompt + i, True) for sequence in range(work.batch)])
        llama.llama_synchronize(context)
        return prefilled - started, time.perf_counter() - prefilled, work.batch * work.output

    def describe() -> dict[str, Any]:
        return {"version": llama.__version__, "system": llama.llama_print_system_info().decode()}

    return run, describe


ARMS = {"headway": headway_arm, "llama.cpp": llama_cpp_arm}


def serve_arm(name: str, model: str, threads: int) -> None:
    """Answers a line with the index of a work by its seconds, and ``describe`` by facts, as JSON lines."""
    answers, sys.stdout = sys.stdout, sys.stderr
    run, describe = ARMS[name](model, threads)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        result = describe() if line.strip() == "describe" else run(WORKS[int(line)])
        print(json.dumps(result), file=answers, flush=True)


class Arm:
    def __init__(self, python: str, name: str, model: str, threads: int) -> None:
        self.name = name
        command = [python, __file__, model, "--threads", str(threads), "--arm", name]
        # OPENBLAS_* may be set for another library's sake; neither engine computes with it.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._expect("ready")

    def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return json.loads(self._expect())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _expect(self, text: str | None = None) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (text is not None and line != text):
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return line


# -- the comparison ----------------------------------------------------------------------------------------------------


def peer_arm(model: str, threads: int) -> Arm:
    """llama.cpp in an environment of its own, by the first of ``PEER_BUILDS`` that works on this machine."""
    home = Path.home() / ".cache" / "headway" / "peers"
    for i, build in enumerate(PEER_BUILDS):
        python = home / f"llama-cpp-{i}" / "bin" / "python"
        if not (python.parent / "built").exists():
            print(f"building llama-cpp-python with {build} (minutes) ...", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "llama-cpp-python"]
            subprocess.run(command, check=True, env={**os.environ, "CMAKE_ARGS": build})
            (python.parent / "built").touch()
        try:
            return tried(Arm(str(python), "llama.cpp", model, threads))
        except (RuntimeError, OSError) as error:
            print(f"llama.cpp built with {build} does not run here: {error}", file=sys.stderr)
    raise SystemExit("no build of llama.cpp runs here: give one with --peer-python")


def tried(arm: Arm) -> Arm:
    arm.ask("0")
    return arm


def compare(ours: Arm, peer: Arm, rounds: int) -> Iterator[dict[str, Any]]:
    """For each work: tokens a second of both in every round, which of them goes first alternating."""
    for index, work in enumerate(WORKS):
        for arm in (ours, peer):
            arm.ask(str(index))  # not counted
        speeds: dict[str, list[float]] = {ours.name: [], peer.name: []}
        calibrations = []
        for i in range(rounds):
            calibrations.append({k: v for k, v in ours.ask("describe").items() if k.endswith("_per_s")})
            for arm in (ours, peer) if i % 2 else (peer, ours):
                speeds[arm.name].append(work.tokens_per_s(*arm.ask(str(index))))
        ratios = [a / b for a, b in zip(speeds[ours.name], speeds[peer.name], strict=True)]
        yield {"work": work.name, "tokens_per_s": speeds, "ratios": ratios, "calibrations": calibrations}
        print(row(work.name, speeds, ratios), flush=True)


def row(name: str, speeds: dict[str, list[float]], ratios: list[float]) -> str:
    cells = [f"{statistics.median(v):.0f} ({min(v):.0f}-{max(v):.0f})" for v in speeds.values()]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    return f"| {name} | {' | '.join(cells)} | {ratio} |"


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peer-python", help="a Python that has llama_cpp")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm:
        return serve_arm(args.arm, args.model, args.threads)

    from headway.config import ModelConfig
    from headway.model.resolve import resolve_model

    model = str(resolve_model(args.model, ModelConfig()).path)
    ours = Arm(sys.executable, "headway", model, args.threads)
    python = args.peer_python
    peer = tried(Arm(python, "llama.cpp", model, args.threads)) if python else peer_arm(model, args.threads)
    print("| tokens a second, median (min-max) | Headway | llama.cpp | ratio of pairs |\n|---|---|---|---|")
    result = {
        "model": Path(model).name,
        "threads": args.threads,
        "machine": {"processor": processor(), "system": platform.platform()},
        "headway": ours.ask("describe"),
        "llama.cpp": peer.ask("describe"),
        "works": list(compare(ours, peer, args.rounds)),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "llama-cpp.json").write_text(json.dumps(result, indent=1) + "\n")
    ours.close()
    peer.close()


if __name__ == "__main__":
    main()
