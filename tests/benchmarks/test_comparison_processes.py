"""Arms as processes: they answer, sleep in between, and say why they ended."""

import re
import sys
import time
from pathlib import Path

import pytest

from comparison.processes import ArmProcess, EngineFailed

ARM = """
import os, signal, sys
sys.path.insert(0, {arms!r})
import protocol

def load(model, threads):
    os.write(1, b"a library prints\\n")
    if model == "broken":
        raise ValueError("no such model")

    def measure(batch, prompt, output):
        if batch == 666:
            os.kill(os.getpid(), signal.SIGILL)
        return protocol.timings([[0.5, 1.0], [0.75, 1.25, 2.0]])

    return measure, lambda: {{"version": model, "threads": threads}}

protocol.serve(load)
"""
ARMS = Path(__file__).parents[2] / "benchmarks" / "arms"


def arm(tmp_path: Path, model: str = "m") -> ArmProcess:
    script = tmp_path / "arm.py"
    script.write_text(ARM.format(arms=str(ARMS)))
    return ArmProcess(str(script), Path(sys.executable), [model, "2"], tmp_path / "arm.log")


def work(batch: int) -> dict[str, int]:
    return {"batch": batch, "prompt": 1, "output": 3}


def test_an_arm_answers_whatever_its_libraries_print(tmp_path: Path) -> None:
    process = arm(tmp_path)
    assert process.ask("facts") == {"version": "m", "threads": 2}
    assert process.ask(work(2)) == {"prefill_s": 0.75, "decode_s": 1.25, "num_decoded": 3}
    process.close()
    assert process.has_ended
    assert "a library prints" in (tmp_path / "arm.log").read_text()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_it_is_stopped_between_questions(tmp_path: Path) -> None:
    process = arm(tmp_path)
    process.ask("facts")
    status = Path(f"/proc/{process._process.pid}/status")
    try:
        for _ in range(500):  # a signal takes a moment
            is_stopped = bool(re.search(r"^State:\s+T", status.read_text(), re.MULTILINE))
            if is_stopped:
                break
            time.sleep(0.01)
    finally:
        process.close()
    assert is_stopped


def test_one_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="status 1: ValueError: no such model"):
        arm(tmp_path, "broken")


def test_one_that_is_killed_names_the_signal(tmp_path: Path) -> None:
    process = arm(tmp_path)
    with pytest.raises(EngineFailed, match="SIGILL"):
        process.ask(work(666))
    assert process.has_ended
    with pytest.raises(EngineFailed):
        process.ask(work(1))
