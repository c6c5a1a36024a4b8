"""The process in which chat templates run: started by ``template_process``, it can be killed at any moment.

Reads one JSON object a line from standard input and writes one a line to standard output. The first holds ``source``
and the limits, and is answered by ``variables``, the names that the template reads; each later one holds the
template's variables and is answered by ``text``. An ``error`` may take either place.
"""

import json
import re
import resource
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_PLACE = re.compile(r"\s*\n\s*")


class _Absent(str):
    """Null content: an empty text that also passes for none, so that templates written for either accept it."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other is None or other == ""

    def __ne__(self, other: object) -> bool:
        return not self == other


class _GenerationBlock(Extension):
    """``{% generation %}`` marks what a model is trained on; rendering shows its body as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As ``transformers`` has it: no HTML escapes, other scripts as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> ImmutableSandboxedEnvironment:
    """The sandbox with what ``transformers`` gives to chat templates. jinja2 itself bounds ``range`` to 100 000
    items.
    """
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    env.filters["tojson"] = _to_json
    env.tests["none"] = lambda value: value is None or isinstance(value, _Absent)
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return env


class _Template:
    def __init__(self, source: str, max_output_chars: int, max_time_s: float) -> None:
        env = environment()
        self.variables = sorted(meta.find_undeclared_variables(env.parse(source)))
        self._template = env.from_string(source)
        self._max_output_chars = max_output_chars
        self._max_time_s = max_time_s

    def render(self, variables: dict[str, Any]) -> str:
        for message in variables.get("messages", ()):
            if message.get("content") is None:
                message["content"] = _Absent()
        signal.setitimer(signal.ITIMER_REAL, self._max_time_s)  # ends the process, should its parent have died
        try:
            return "".join(self._bounded(self._template.generate(variables)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _bounded(self, pieces: Iterator[str]) -> Iterator[str]:
        room = self._max_output_chars
        for piece in pieces:
            room -= len(piece)
            if room < 0:
                raise jinja2.TemplateError(f"its output is longer than {self._max_output_chars} characters")
            yield piece


def _describe(error: BaseException) -> str:
    """One line for the caller; jinja2's own syntax errors keep their line number."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.message} (line {error.lineno})"
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    return _PLACE.sub(" ", str(error)) or type(error).__name__


def main() -> None:
    template: _Template | None = None
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            asked = json.loads(line)
            if template is None:
                limit = asked["max_memory_bytes"]
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                template = _Template(asked["source"], asked["max_output_chars"], asked["max_time_s"])
                answer = {"variables": template.variables}
            else:
                answer = {"text": template.render(asked)}
        except Exception as error:  # whatever a template does wrong is its caller's answer
            answer = {"error": _describe(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
