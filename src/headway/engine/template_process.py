"""Runs one chat template in a process of its own, so that no template can hold up or bring down the server."""

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import EngineError, InvalidRequest, TemplateError

_WORKER = Path(__file__).with_name("template_worker.py")  # needs jinja2 only, so it starts without our imports


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    time_s: float = 2.0
    max_source_chars: int = 1 << 20
    max_output_chars: int = 16 << 20
    max_memory_bytes: int = 1 << 30  # address space of the process
    start_s: float = 20.0  # for the process to start, on a busy machine


class TemplateProcess:
    """A warm worker process for ``source``: started at the first use, killed and replaced when a render takes too long.

    May be used from several threads; renders happen one at a time. ``close`` (or the garbage collector, or the end of
    the parent) ends the process.
    """

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        self._source = source
        self._limits = limits
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def variables(self) -> frozenset[str]:
        """Names that the template reads and does not set itself. Raises TemplateError for a template that does not
        parse.
        """
        with self._lock:
            return self._started().variables

    def render(self, variables: dict[str, Any]) -> str:
        """Raises TemplateError with the template's own message, or when a limit is reached, and InvalidRequest for
        ``variables`` that are not JSON.
        """
        question = _line(variables)
        with self._lock:
            try:
                answer = self._started().ask(question, self._limits.time_s)
            except _WorkerLost as lost:
                self._drop()
                raise TemplateError(f"the chat template was stopped: {lost}.", param="messages") from None
        if "error" in answer:
            raise TemplateError(f"the chat template refused the messages: {answer['error']}.", param="messages")
        return answer["text"]

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _started(self) -> "_Worker":
        if self._worker is not None and not self._worker.is_alive():
            self._drop()
        if self._worker is None:
            self._worker = _start(self._source, self._limits)
        return self._worker

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _WorkerLost(Exception):
    """The process died or had to be killed; the message says why."""


class _Worker:
    """The process and its two pipes, with a deadline on every exchange."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self.variables: frozenset[str] = frozenset()
        self.kill = weakref.finalize(self, _end, self._process)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: bytes, time_s: float) -> dict[str, Any]:
        """Raises _WorkerLost when no whole answer came within ``time_s``."""
        deadline = time.monotonic() + time_s
        try:
            self._send(question, deadline, time_s)
            return json.loads(self._receive(deadline, time_s))
        except OSError as error:
            raise _WorkerLost(f"its process ended ({error.strerror})") from None

    def _send(self, data: bytes, deadline: float, time_s: float) -> None:
        view = memoryview(data)
        while view:
            _wait(self._stdin.fileno(), select.POLLOUT, deadline, time_s)
            view = view[os.write(self._stdin.fileno(), view) :]

    def _receive(self, deadline: float, time_s: float) -> bytes:
        pieces: list[bytes] = []
        while not (pieces and pieces[-1].endswith(b"\n")):
            _wait(self._stdout.fileno(), select.POLLIN, deadline, time_s)
            pieces.append(os.read(self._stdout.fileno(), 1 << 16))
            if not pieces[-1]:
                raise _WorkerLost("its process ended")
        return b"".join(pieces)


def _line(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the messages cannot be given to the chat template: {error}."
        raise InvalidRequest(message, param="messages") from None


def _wait(file: int, event: int, deadline: float, time_s: float) -> None:
    poll = select.poll()
    poll.register(file, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _WorkerLost(f"it took longer than {time_s:g} s")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _start(source: str, limits: TemplateLimits) -> _Worker:
    if len(source) > limits.max_source_chars:
        message = f"the chat template has {len(source)} characters; at most {limits.max_source_chars} are accepted."
        raise TemplateError(message, param="messages")
    worker = _Worker()
    first = {
        "source": source,
        "max_output_chars": limits.max_output_chars,
        "max_memory_bytes": limits.max_memory_bytes,
        "max_time_s": limits.time_s + 1,  # we are first
    }
    try:
        answer = worker.ask(_line(first), limits.start_s)
    except _WorkerLost as lost:
        worker.kill()
        raise EngineError(f"the process for chat templates could not start: {lost}.") from None
    if "error" in answer:
        worker.kill()
        raise TemplateError(f"the model's chat template is broken: {answer['error']}.", param="messages")
    worker.variables = frozenset(answer["variables"])
    return worker
