"""Which way imports point: the tree is walked and every import, at any depth, is held against the table."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGE = SRC / "headway"

CORE_VALUES = ("core.request", "core.batch", "core.executor")
COMMON = ("config", "errors", "__version__")  # anyone may


@dataclass(frozen=True)
class Rule:
    """What a package may import: parts of Headway besides itself, and, for the strict ones, which outside packages."""

    headway: tuple[str, ...]
    outside: tuple[str, ...] | None = None  # beside the standard library; None: anything
    never: tuple[str, ...] = ()

    def permits(self, outside: str) -> bool:
        return self.outside is None or outside in self.outside or outside in sys.stdlib_module_names


CORE_NEVER = ("time", "random", "os", "asyncio", "threading", "logging")

RULES = {
    "core": Rule((), outside=(), never=CORE_NEVER),
    "cost": Rule(("core",), outside=("numpy",)),
    "ops": Rule(("_native", "model"), outside=("numpy",)),
    "model": Rule(("_native", "ops")),
    "worker": Rule((*CORE_VALUES, "model", "ops", "_native")),
    "observe": Rule((*CORE_VALUES, "cost")),
    "engine": Rule(("core", "cost", "observe")),
    "bench": Rule(("engine", "core", "observe")),
    "server": Rule(("engine", *CORE_VALUES, "observe", "core.admission")),
    "router": Rule((*CORE_VALUES, "observe")),
    "sim": Rule(("core", "cost", "router", "observe")),
    "plan": Rule(("core", "cost", "router", "observe", "sim")),
    "lab": Rule(("core", "cost", "router", "observe", "sim", "plan")),
}

# The one place where the engine meets a device.
EXCEPTIONS = {"engine/build.py": ("worker", "model", "ops")}

FILES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute dotted names, ``from a import b`` as ``a.b``: b may be a module. TYPE_CHECKING blocks count."""
    package = path.relative_to(SRC).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package[: len(package) - node.level + 1]
                base = ".".join((*parents, base)).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


def violations(path: Path, modules: Iterator[str]) -> list[str]:
    relative = path.relative_to(PACKAGE)
    part = relative.parts[0]
    if len(relative.parts) == 1 or part not in RULES:
        return []
    rule = RULES[part]
    allowed = (part, *rule.headway, *COMMON, *EXCEPTIONS.get(relative.as_posix(), ()))
    found = []
    for module in modules:
        top, _, rest = module.partition(".")
        if top == "headway":
            found += [] if is_within(rest, allowed) else [module]
        elif is_within(module, rule.never) or not rule.permits(top):
            found.append(module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_the_allowed_way(path):
    assert violations(path, imported_modules(path)) == []


def test_every_package_has_a_rule():
    packages = {path.relative_to(PACKAGE).parts[0] for path in FILES if path.parent != PACKAGE}
    assert packages - set(RULES) <= {"cli", "fleet"}, "give the new package a line in RULES"


@pytest.mark.parametrize(
    ("file", "source", "forbidden"),
    [
        ("core/x.py", "import time", ["time"]),
        ("core/x.py", "from os import path", ["os.path"]),
        ("core/x.py", "def f():\n    import numpy as np", ["numpy"]),
        ("core/x.py", "if TYPE_CHECKING:\n    from headway.engine.llm import LLM", ["headway.engine.llm.LLM"]),
        ("core/x.py", "from ..engine import llm", ["headway.engine.llm"]),
        ("core/x.py", "from headway import engine", ["headway.engine"]),
        ("core/x.py", "from . import request\nfrom .batch import NewRequest\nimport heapq", []),
        ("worker/x.py", "from headway.core.scheduler import Scheduler", ["headway.core.scheduler.Scheduler"]),
        ("worker/x.py", "from headway.core.batch import NewRequest", []),
        (
            "engine/x.py",
            "from headway.worker.model_runner import ModelRunner",
            ["headway.worker.model_runner.ModelRunner"],
        ),
        ("engine/build.py", "from headway.worker.model_runner import ModelRunner", []),
        ("engine/x.py", "import headway.server.app", ["headway.server.app"]),
        ("ops/x.py", "from headway.core.request import Request", ["headway.core.request.Request"]),
        ("ops/x.py", "import torch", ["torch"]),
        ("server/x.py", "from headway.worker import model_runner", ["headway.worker.model_runner"]),
    ],
)
def test_the_walker_sees_what_it_must(tmp_path, monkeypatch, file, source, forbidden):
    monkeypatch.setattr(f"{__name__}.SRC", tmp_path)
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "headway")
    path = tmp_path / "headway" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(path, imported_modules(path)) == forbidden


def set_iterations(source: str) -> list[int]:
    """Lines of ``for`` loops and comprehensions that walk a set made on the spot (its order is not a decision)."""
    iterables = [
        node.iter
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
    ]
    return [iterable.lineno for iterable in iterables if makes_set(iterable)]


def makes_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("list", "tuple", "iter", "enumerate", "reversed"):
            return any(makes_set(argument) for argument in node.args)
        return node.func.id in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp)


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.name)
def test_core_never_walks_a_set(path):
    assert set_iterations(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("for x in {1, 2}:\n    pass", [1]),
        ("for x in set(y):\n    pass", [1]),
        ("z = [x for x in {y for y in w}]", [1]),
        ("for i, x in enumerate(frozenset(y)):\n    pass", [1]),
        ("for x in sorted(set(y)):\n    pass", []),
        ("for x in [1, 2]:\n    pass", []),
    ],
)
def test_set_iterations_are_seen(source, lines):
    assert set_iterations(source) == lines
