"""What a newcomer meets: the time to install, the size on disk, the time to import, to be ready, to the first token.

    python benchmarks/startup.py [--large MODEL]

Installs this checkout into a new virtual environment, starts `headway serve` there with the default model (pulled first
if it is not cached), asks one question, and stops it; with packed weights from the cache, and without. MODEL, of about
a billion parameters in 4 bits, is started likewise. Prints a table and writes benchmarks/results/startup.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIMITS = {
    "install_s": 120,
    "installed_mb": 200,
    "import_s": 0.2,
    "ready_s": 3.0,
    "start_to_first_token_s": 1.5,
    "large_start_to_first_token_s": 3.0,
}
NOT_PACKED = ("--set", "model.packed_cache_bytes=0")
QUESTION = "What is gravity? Answer in one sentence."


def seconds_of(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def installed_bytes(folder: Path) -> int:
    """Of everything pip put there, and not of pip itself."""
    own = [path for path in folder.iterdir() if not path.name.startswith(("pip", "setuptools", "_distutils_hack"))]
    return sum(f.stat().st_size for path in own for f in ([path] if path.is_file() else path.rglob("*")) if f.is_file())


def import_seconds(python: Path) -> float:
    program = "import time; t = time.perf_counter(); import headway; print(time.perf_counter() - t)"
    runs = [subprocess.run([python, "-c", program], check=True, capture_output=True, text=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


def ask(url: str, model: str) -> dict[str, Any]:
    """The streamed answer to one question, and the seconds until its first token."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 60, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started, first, text = time.perf_counter(), 0.0, ""
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                first = first or (time.perf_counter() - started if delta else 0.0)
                text += delta
    return {"first_token_s": first, "answer": text}


def serve_and_ask(headway: Path, model: str, *options: str) -> dict[str, Any]:
    started = time.perf_counter()
    server = subprocess.Popen([headway, "serve", model, "--port", "0", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(line.split()[1] for line in server.stdout if line.startswith("URL"))
        while True:
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=5).close()
                break
            except OSError:
                time.sleep(0.01)
        ready_s = time.perf_counter() - started
        answer = ask(url, model)
        return {"ready_s": ready_s, **answer, "start_to_first_token_s": ready_s + answer["first_token_s"]}
    finally:
        server.terminate()
        server.wait(timeout=60)


def starts(headway: Path, model: str, prefix: str = "") -> dict[str, Any]:
    """Medians of three starts each, after one that has packed the weights and warmed the page cache."""
    answer = serve_and_ask(headway, model)["answer"]
    runs = [(serve_and_ask(headway, model), serve_and_ask(headway, model, *NOT_PACKED)) for _ in range(3)]
    times = ("ready_s", "first_token_s", "start_to_first_token_s")
    found = {prefix + key: statistics.median(run[key] for run, _ in runs) for key in times}
    found |= {f"{prefix}not_packed_{key}": statistics.median(run[key] for _, run in runs) for key in times}
    return found | {f"{prefix}answer": answer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", metavar="MODEL", help="a second model to start, of about a billion parameters")
    large = parser.parse_args().large
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        result: dict[str, Any] = {"install_s": seconds_of([str(python), "-m", "pip", "install", "-q", str(ROOT)])}
        [site_packages] = (Path(folder) / "lib").glob("python*/site-packages")
        result["installed_mb"] = installed_bytes(site_packages) / 1e6
        result["import_s"] = import_seconds(python)
        subprocess.run([python.parent / "headway", "models", "pull", "smollm2-135m"], check=True)
        result |= starts(python.parent / "headway", "smollm2-135m")
        if large:
            result |= starts(python.parent / "headway", large, "large_")
    for name, value in result.items():
        limit = f"  (at most {LIMITS[name]})" if name in LIMITS else ""
        print(f"{name:40} {value if isinstance(value, str) else format(value, '.2f')}{limit}")
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    (RESULTS / "startup.json").write_text(json.dumps(result | {"machine": machine}, indent=1) + "\n")


if __name__ == "__main__":
    main()
