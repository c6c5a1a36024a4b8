"""The engines compared, and the formats each is tried in."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.environments import PEERS_HOME, find_python
from comparison.models import ComparedModel
from comparison.processes import ArmProcess, EngineFailed

HEADWAY = "headway"
TITLES = {HEADWAY: "Headway", "llama.cpp": "llama.cpp", "openvino": "OpenVINO GenAI", "vllm": "vLLM"}
PEERS = tuple(name for name in TITLES if name != HEADWAY)
SCRIPTS = {name: f"run_{name.replace('.', '_')}.py" for name in TITLES}

VARIANTS = {"openvino": ("", "f32")}  # faster for prompts, faster for few rows


def formats(engine: str, own: str) -> tuple[str, ...]:
    """Headway runs the model's ``own``; a peer also those it is known to be faster in."""
    if engine == HEADWAY:
        return (own,)
    return ("bf16",) if engine == "vllm" else tuple(dict.fromkeys((own, "Q4_0", "Q8_0")))


@dataclass(frozen=True)
class Arm:
    """An engine with a model in one format. ``model`` is what the engine loads; ``variant`` a setting to try, or ""."""

    engine: str
    format: str
    python: Path
    model: Path
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.engine} {self.format}" + (f"/{self.variant}" if self.variant else "")

    def start(self, threads: int) -> ArmProcess:
        arguments = [str(self.model), str(threads), *([self.variant] if self.variant else [])]
        return ArmProcess(SCRIPTS[self.engine], self.python, arguments, log_file(str(self)))


def log_file(name: str) -> Path:
    return PEERS_HOME / "logs" / f"{name.replace(' ', '-').replace('/', '-')}.log"


@dataclass
class ArmFinder:
    """Finds an engine's Python and files. What cannot be had is noted in ``did_not_run`` with the reason.

    ``pythons`` are environments made elsewhere, by engine.
    """

    model: ComparedModel
    pythons: Mapping[str, Path]
    threads: int
    did_not_run: dict[str, str]

    def arms(self, engines: Sequence[str]) -> Iterator[Arm]:
        for engine in engines:
            try:
                python = self._python(engine)
            except EngineFailed as error:
                self.did_not_run[engine] = str(error)
                continue
            for format in formats(engine, self.model.format):
                for variant in VARIANTS.get(engine, ("",)):
                    yield Arm(engine, format, python, self.model.in_format(format), variant)

    def _python(self, engine: str) -> Path:
        if engine == HEADWAY:
            return Path(sys.executable)
        if engine in self.pythons:
            return self.pythons[engine]

        def try_out(python: Path) -> None:
            format = formats(engine, self.model.format)[0]
            process = Arm(engine, format, python, self.model.in_format(format)).start(self.threads)
            try:
                process.ask({"batch": 1, "prompt": 32, "output": 2})
            finally:
                process.close()

        return find_python(engine, try_out)
