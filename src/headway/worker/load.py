"""From settings to a device that is ready to run: resolves the model, lays out memory, loads weights, compiles."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config import CacheConfig, Config, RuntimeConfig, SchedulerConfig
from headway.core.executor import ExecutorInfo
from headway.errors import ConfigError
from headway.model.architecture import Architecture
from headway.model.checkpoint import open_checkpoint
from headway.model.decoder import Decoder
from headway.model.licences import AskLicence
from headway.model.progress import Progress, bytes_under, silent
from headway.model.resolve import ResolvedModel, resolve_model
from headway.ops.contract import Backend, Handle, KVLayout, StepLimits
from headway.worker.local_executor import LocalExecutor
from headway.worker.model_runner import ModelRunner
from headway.worker.sampler import Sampler


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What was loaded, as facts; ``tokenizer_files`` and ``generation_defaults`` are for the engine to interpret."""

    resolved: ResolvedModel
    architecture: Architecture
    quantisation: str
    num_parameters: int
    tokenizer_files: Any
    generation_defaults: dict[str, Any]
    make_executor: Callable[[Iterable[int]], LocalExecutor]
    info: ExecutorInfo
    threads: int
    kernels: str
    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    seconds: float


def load_model(config: Config, progress: Progress = silent, ask_licence: AskLicence | None = None) -> LoadedModel:
    """Everything below the engine. ``make_executor`` takes the ids no token may have (rows of the table without text).

    Raises a ``ModelError`` for the model, ``ConfigError`` for a setting that cannot work on it.
    """
    started = time.perf_counter()
    resolved = resolve_model(config.model.name, config.model, progress, ask_licence)
    checkpoint = open_checkpoint(Path(resolved.path))
    architecture = checkpoint.architecture
    backend = make_backend(config.runtime)
    layouts, info = plan_memory(architecture, config.model.max_context, config.cache, config.scheduler)
    kv_layers = new_kv_layers(backend, layouts, config.cache)
    num_layers, size = len(architecture.layers), bytes_under(resolved.path)
    decoder = Decoder(
        architecture,
        checkpoint.weights(),
        backend,
        kv_layers,
        info.max_context,
        on_layer=lambda done, _: progress(f"loading {resolved.name}", size * done // num_layers, size),
    )
    limits = StepLimits(info.max_batch_tokens, info.max_batch_rows, info.max_context)
    program = backend.compile(decoder.forward, limits)

    def make_executor(textless_ids: Iterable[int]) -> LocalExecutor:
        runner = ModelRunner(program, Sampler(backend, textless_ids), info.max_context, info.block_size)
        return LocalExecutor(runner, info)

    return LoadedModel(
        resolved=resolved,
        architecture=architecture,
        quantisation=checkpoint.quantisation,
        num_parameters=checkpoint.num_parameters,
        tokenizer_files=checkpoint.tokenizer_source(),
        generation_defaults=checkpoint.generation_defaults,
        make_executor=make_executor,
        info=info,
        threads=getattr(backend, "threads", 1),
        kernels=getattr(backend, "isa", backend.name),
        weights_bytes=backend.weight_bytes(),
        workspace_bytes=getattr(program, "workspace_bytes", 0),
        kv_bytes=sum(layout.bytes_per_block * layout.num_blocks for layout in layouts),
        seconds=time.perf_counter() - started,
    )


def new_kv_layers(backend: Backend, layouts: list[KVLayout], cache: CacheConfig) -> list[Handle]:
    try:
        return [backend.new_kv_cache(layout) for layout in layouts]
    except MemoryError:
        message = f"cache.memory_bytes is {cache.memory_bytes}, more than this machine can give: lower it (--kv-memory)"
        raise ConfigError(message) from None


def make_backend(config: RuntimeConfig) -> Backend:
    if config.backend == "reference":
        from headway.ops.reference import ReferenceBackend

        return ReferenceBackend()
    if config.backend != "native":
        raise ConfigError(f"runtime.backend must be native or reference, not {config.backend!r}")
    from headway.ops.native import NativeBackend

    try:
        return NativeBackend(config.threads or usable_cores(), config.isa)
    except ValueError as error:
        raise ConfigError(f"runtime.isa: {error}") from error


def usable_cores() -> int:
    """Cores this process may run on, which in a container are fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def plan_memory(
    architecture: Architecture, max_context: int, cache: CacheConfig, scheduler: SchedulerConfig
) -> tuple[list[KVLayout], ExecutorInfo]:
    """How many KV blocks ``cache.memory_bytes`` buys, and the longest sequence they allow."""
    if cache.dtype not in ("bf16", "f32"):
        raise ConfigError(f"cache.dtype must be bf16 or f32, not {cache.dtype!r}")
    if cache.block_size < 16 or cache.block_size % 16:
        raise ConfigError(f"cache.block_size must be a multiple of 16, not {cache.block_size}")
    one_block = KVLayout(architecture.num_kv_heads, architecture.head_dim, 1, cache.block_size, cache.dtype)
    num_layers = len(architecture.layers)
    block_bytes = one_block.bytes_per_block * num_layers
    num_blocks = cache.memory_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"cache.memory_bytes is {cache.memory_bytes}, but a block of {cache.block_size} tokens needs {block_bytes}"
        )
    wanted = min(max_context or architecture.max_context, architecture.max_context)
    info = ExecutorInfo(
        num_blocks=num_blocks,
        block_size=cache.block_size,
        max_context=min(wanted, num_blocks * cache.block_size),
        max_batch_tokens=scheduler.max_batch_tokens,
        max_batch_rows=scheduler.max_batch_rows,
        vocab_size=architecture.vocab_size,
    )
    layout = KVLayout(architecture.num_kv_heads, architecture.head_dim, num_blocks, cache.block_size, cache.dtype)
    return [layout] * num_layers, info
