"""What the code never does, in any file: run data as code, or hand a string to a shell."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))

FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"})
FORBIDDEN_CALLS = frozenset(
    {"eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "yaml.load", "os.system", "os.popen"}
)
FORBIDDEN_ARGUMENTS = frozenset({"shell", "allow_pickle"})  # unless they are the literal False


def violations(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            if module.split(".")[0] in FORBIDDEN_MODULES or FORBIDDEN_CALLS.intersection(names):
                yield f"imports {', '.join(names)}"
        elif isinstance(node, ast.Call):
            if (name := dotted_name(node.func)) in FORBIDDEN_CALLS:
                yield f"calls {name}"
            yield from (
                f"passes {k.arg}" for k in node.keywords if k.arg in FORBIDDEN_ARGUMENTS and not is_false(k.value)
            )


def dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_runs_data_as_code(path: Path) -> None:
    assert list(violations(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import numpy, pickle as p",
        "from pickle import loads",
        "from torch import load",
        "def f():\n    import dill",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=flag)",
        "np.load(path, allow_pickle=True)",
        "os.system('ls')",
    ],
)
def test_the_rule_finds(code: str) -> None:
    assert list(violations(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["model.eval()", "np.load(path)", "np.load(path, allow_pickle=False)", "json.load(file)", "subprocess.run(['ls'])"],
)
def test_the_rule_permits(code: str) -> None:
    assert list(violations(ast.parse(code))) == []
