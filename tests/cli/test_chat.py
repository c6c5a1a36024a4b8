"""The conversation as a person has it: in a terminal of its own."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
CTRL_C, CTRL_D = b"\x03", b"\x04"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        script = Path(__file__).with_name("chat_fake.py")
        environment = {**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(slave)
        self._text = ""

    def send(self, data: str | bytes) -> None:
        os.write(self._master, data if isinstance(data, bytes) else data.encode())

    def expect(self, pattern: str, timeout_s: float = 20) -> str:
        """Reads until ``pattern`` shows; returns what came before it and forgets both."""
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self._text)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._master], [], [], left)[0], f"no {pattern!r} in {self._text!r}"
            try:
                self._text += ESCAPES.sub("", os.read(self._master, 65536).decode(errors="replace"))
            except OSError:  # the other end is closed
                raise AssertionError(f"ended before {pattern!r}: {self._text!r}") from None
        before, self._text = self._text[: found.start()], self._text[found.end() :]
        return before

    def interrupt_until(self, pattern: str) -> None:
        """Ctrl-C, again where it came between readline's prompt and its wait: Python then sees it with the next key."""
        for _ in range(20):
            self.send(CTRL_C)
            with suppress(AssertionError):
                self.expect(pattern, timeout_s=1)
                return
        raise AssertionError(f"no {pattern!r}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def take_terminal() -> None:
    """Makes the terminal the child's own, so that Ctrl-C reaches it as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    terminal.expect("> ")
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.send("tell me\r")
    terminal.expect("word word")
    terminal.send(CTRL_C)
    terminal.expect(r"\(stopped\)")
    terminal.expect("> ")
    terminal.send("quick one\r")
    terminal.expect(r"<\d+\|quick one>")
    terminal.expect("> ")
    terminal.interrupt_until("Ctrl-D or /exit")
    terminal.expect("> ")
    terminal.send(CTRL_D)
    assert terminal.process.wait(timeout=10) == 0


def test_commands_and_pasted_lines(terminal: Terminal) -> None:
    terminal.send("quick\r")
    terminal.expect(r"<23\|quick>")
    terminal.expect("> ")
    terminal.send("quick\r")
    terminal.expect(r"<\d\d\|quick>")  # longer: the first turn is part of it
    terminal.send("/reset\r")
    terminal.expect("new conversation")
    terminal.send("/help\r")
    terminal.expect("/reset")
    terminal.send("/nonsense\r")
    terminal.expect("no command")
    terminal.send("first quick line\rsecond line\r")
    terminal.expect(r"<\d+\|first quick line\|second line>")
    terminal.expect("> ")
    terminal.send("/exit\r")
    assert terminal.process.wait(timeout=10) == 0
