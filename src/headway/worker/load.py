"""From settings to a device that is ready to run: finds the model, lays out memory, loads weights, compiles."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headway.config import CacheConfig, Config, ModelConfig, RuntimeConfig, SchedulerConfig
from headway.core.executor import ExecutorInfo
from headway.errors import ConfigError, ModelError
from headway.model.architecture import Architecture, ModelWeights
from headway.model.catalogue import catalogue
from headway.model.checkpoint import Checkpoint, open_checkpoint
from headway.model.decoder import Decoder
from headway.model.licences import AskLicence
from headway.model.packed_folder import PackedFolder
from headway.model.progress import Progress, silent
from headway.model.resolve import ResolvedModel, find_model, resolve_model
from headway.model.store import ModelStore
from headway.ops.contract import Backend, Bytes, KVLayout, StepLimits, StepProgram
from headway.worker.cores import pinned_cpus, usable_cores
from headway.worker.local_executor import LocalExecutor
from headway.worker.model_runner import ModelRunner
from headway.worker.profiler import StepProfiler
from headway.worker.sampler import Sampler

if TYPE_CHECKING:
    from headway.worker.block_file import BlockFile

# Beyond anything sensible: these only keep a slip of the keyboard from asking for all memory or a million threads.
MAX_BATCH_TOKENS, MAX_BATCH_ROWS, MAX_THREADS = 1 << 20, 1 << 16, 1024


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the KV pool holds: every one of ``num_layers`` has blocks of the same ``layout``."""

    layout: KVLayout
    num_layers: int
    info: ExecutorInfo

    @property
    def kv_bytes(self) -> int:
        return self.num_layers * self.layout.num_blocks * self.layout.bytes_per_block


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on a device. ``checkpoint`` still holds what the engine interprets: tokenizer files, defaults.
    ``block_file`` has the slots of ``memory.info.num_disk_slots``; None where there are none."""

    resolved: ResolvedModel
    checkpoint: Checkpoint
    memory: MemoryPlan
    backend: Backend
    program: StepProgram
    block_file: "BlockFile | None" = None

    @property
    def generation_defaults(self) -> dict[str, float | int]:
        """What the model's makers recommend for sampling: by its files, else by the catalogue."""
        entry = catalogue().get(self.resolved.name)
        return (entry.generation_defaults if entry else {}) | self.checkpoint.generation_defaults

    def make_executor(self, textless_ids: Iterable[int] = ()) -> LocalExecutor:
        """``textless_ids`` are never sampled: rows of the embedding table that stand for no token."""
        runner = ModelRunner(self.program, Sampler(self.backend, textless_ids), self.memory.info)
        return LocalExecutor(runner, self.memory.info, self.block_file)

    def make_profiler(self, executor: LocalExecutor) -> StepProfiler | None:
        """Of an executor made here; None where the backend cannot tell its operations apart."""
        from headway.ops.native import NativeBackend, NativeProgram  # as in make_backend: only where it is used

        if not (isinstance(self.backend, NativeBackend) and isinstance(self.program, NativeProgram)):
            return None
        return StepProfiler(self.backend, self.program, executor.runner)


def load_model(config: Config, progress: Progress = silent, ask_licence: AskLicence | None = None) -> LoadedModel:
    """Everything below the engine. ``progress`` is told of each file that is fetched and each layer that is loaded.

    Raises a ``ModelError`` for the model, ``ConfigError`` for a setting that cannot work on it.
    """
    resolved = resolve_model(config.model.name, config.model, progress, ask_licence)
    checkpoint = open_checkpoint(resolved.path)
    memory = plan_memory(checkpoint.architecture, config.model.max_context, config.cache, config.scheduler)
    backend = make_backend(config.runtime)
    kv_cache = backend.new_kv_cache(memory.layout, memory.num_layers)
    block_file = _open_block_file(config, partial(backend.kv_block, kv_cache))
    if block_file is not None:
        memory = replace(memory, info=replace(memory.info, num_disk_slots=block_file.num_slots))
    size = checkpoint.stored_bytes
    packed = _packed_weights(config.model, resolved, checkpoint, backend, progress)
    decoder = Decoder(
        checkpoint.architecture,
        packed or checkpoint.weights(),
        backend,
        kv_cache,
        memory.info.max_context,
        on_layer=None
        if packed
        else lambda done, total: progress(f"loading {resolved.name}", size * done // total, size),
    )
    program = backend.compile(decoder.forward, StepLimits(memory.info.max_batch_tokens, memory.info.max_batch_rows))
    return LoadedModel(resolved, checkpoint, memory, backend, program, block_file)


def _open_block_file(config: Config, memory: Callable[[int], list[Bytes]]) -> "BlockFile | None":
    """For evicted blocks; None where none are to be kept. ``memory``: of a block of the pool."""
    if not (config.cache.disk_bytes and config.cache.prefix_cache):
        return None
    from headway.worker.block_file import open_block_file

    return open_block_file(config.cache, ModelStore.at(config.model.cache_dir).root, memory)


def _packed_weights(
    config: ModelConfig, resolved: ResolvedModel, checkpoint: Checkpoint, backend: Backend, progress: Progress
) -> ModelWeights | None:
    """None where they come from the checkpoint itself."""
    if not (backend.packed_layout and config.packed_cache_bytes):
        return None
    from headway.worker.packed_weights import PackedWeights

    def is_current() -> bool:
        with suppress(ModelError):
            found = find_model(config.name, config)
            return found is not None and found.digest == resolved.digest
        return False

    folder = PackedFolder(ModelStore.at(config.cache_dir), config.packed_cache_bytes)
    weights = PackedWeights(folder, resolved, checkpoint, backend)
    return weights.load(progress, is_current)


def make_backend(config: RuntimeConfig) -> Backend:
    _require_within("runtime.threads", config.threads, 0, MAX_THREADS)
    if config.backend == "reference":
        from headway.ops.reference import ReferenceBackend

        return ReferenceBackend()
    if config.backend != "native":
        raise ConfigError(f"runtime.backend must be native or reference, not {config.backend!r}")
    from headway.ops.native import NativeBackend

    _require_within("runtime.wide_weights_bytes", config.wide_weights_bytes, -1, physical_memory())
    wide_weights_bytes = physical_memory() // 8 if config.wide_weights_bytes < 0 else config.wide_weights_bytes
    threads = config.threads or usable_cores()
    cpus = pinned_cpus(threads) if config.pin_threads else ()
    try:
        return NativeBackend(threads, config.isa, cpus=cpus, wide_weights_bytes=wide_weights_bytes)
    except ValueError as error:
        raise ConfigError(f"runtime.isa: {error}") from error


def physical_memory() -> int:
    """Bytes of memory in this machine; less may be free."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def plan_memory(
    architecture: Architecture, max_context: int, cache: CacheConfig, scheduler: SchedulerConfig
) -> MemoryPlan:
    """How many KV blocks ``cache.memory_bytes`` buys, and the longest sequence they allow."""
    _require_within("cache.memory_bytes", cache.memory_bytes, 1, physical_memory())
    _require_within("scheduler.max_batch_tokens", scheduler.max_batch_tokens, 1, MAX_BATCH_TOKENS)
    _require_within("scheduler.max_batch_rows", scheduler.max_batch_rows, 1, MAX_BATCH_ROWS)
    layout = _block_layout(architecture, cache)
    num_layers = len(architecture.layers)
    block_bytes = num_layers * layout.bytes_per_block
    num_blocks = cache.memory_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"cache.memory_bytes is {cache.memory_bytes}: raise it to at least {block_bytes}, which one block of "
            f"{cache.block_size} tokens needs"
        )
    info = ExecutorInfo(
        num_blocks=num_blocks,
        block_size=cache.block_size,
        max_context=min(
            max_context or architecture.max_context, architecture.max_context, num_blocks * cache.block_size
        ),
        max_batch_tokens=scheduler.max_batch_tokens,
        max_batch_rows=scheduler.max_batch_rows,
        vocab_size=architecture.vocab_size,
    )
    return MemoryPlan(replace(layout, num_blocks=num_blocks), num_layers, info)


def _require_within(setting: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{setting} is {value}: on this machine it can be {low} to {high}")


def _block_layout(architecture: Architecture, cache: CacheConfig) -> KVLayout:
    """Of one layer, with a single block."""
    if cache.dtype not in ("bf16", "f32"):
        raise ConfigError(f"cache.dtype must be bf16 or f32, not {cache.dtype!r}")
    if cache.block_size < 16 or cache.block_size % 16:
        raise ConfigError(f"cache.block_size must be a multiple of 16, not {cache.block_size}")
    return KVLayout(architecture.num_kv_heads, architecture.head_dim, 1, cache.block_size, cache.dtype)
