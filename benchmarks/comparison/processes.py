"""Engines as processes that are stopped while it is not their turn, so that whatever they do when idle costs nobody."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ARMS = Path(__file__).resolve().parents[1] / "arms"
START_LIMIT_S, ANSWER_LIMIT_S, END_LIMIT_S = 900.0, 1800.0, 30.0
# OPENBLAS_* may be set for another library's sake; no engine computes with it.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}


class EngineFailed(Exception):
    """An engine that does not run here, with the reason in one line."""


class EngineProcess:
    """A process group of its own; its output goes to ``log``."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str], **pipes: Any) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as file:
            options = {"stdin": subprocess.DEVNULL, "stdout": file, **pipes}
            self._process = subprocess.Popen(
                command, stderr=file, text=True, env=environment, start_new_session=True, **options
            )

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Asks it to end, and ends it."""
        self.resume()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)
        self._signal(signal.SIGKILL)  # children of its own, too
        self._process.wait()

    def failure(self, what: str = "") -> EngineFailed:
        """Ends the process. The reason is ``what`` or how it ended, and the last line of its log."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        status = self._process.poll()
        ended = what or f"ended with {signal.Signals(-status).name if status and status < 0 else f'status {status}'}"
        self.close()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return EngineFailed(f"{ended}: {lines[-1].strip()[:200]}" if lines else ended)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class ArmProcess(EngineProcess):
    """One of ``arms/run_*.py`` in its engine's own Python. Running from the start until its first answer, then only
    while it has a question."""

    def __init__(self, script: str, python: Path, arguments: Sequence[str], log: Path) -> None:
        command = [str(python), str(ARMS / script), *arguments]
        super().__init__(command, log, ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._read(START_LIMIT_S)
        except BaseException:
            self.close()
            raise

    def ask(self, question: Any) -> Any:
        """EngineFailed when it dies or takes longer than any answer should."""
        assert self._process.stdin is not None
        self.resume()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None
        answer = self._read(ANSWER_LIMIT_S)
        self.pause()
        return answer

    def _read(self, limit_s: float) -> Any:
        assert self._process.stdout is not None
        timer = threading.Timer(limit_s, self._signal, (signal.SIGKILL,))
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
        if not line:
            raise self.failure(f"no answer within {limit_s:g} s" if is_late else "")
        return json.loads(line)


class ServerProcess(EngineProcess):
    """A server on ``port`` of this machine, ready once ``health`` answers."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], port: int, health: str, log: Path
    ) -> None:
        super().__init__(command, log, {**ENVIRONMENT, **environment})
        self.url = f"http://127.0.0.1:{port}"
        try:
            self._wait(self.url + health)
        except BaseException:
            self.close()
            raise

    def _wait(self, url: str) -> None:
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            if self.has_ended:
                raise self.failure()
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except OSError:
                time.sleep(0.1)
        raise self.failure(f"not ready within {START_LIMIT_S:g} s")
