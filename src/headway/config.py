"""Settings: frozen, small, one dataclass a part. TOML and flags resolve to them once, at the entry point.

Each class is given the part it needs and never the whole. Facts that are measured rather than chosen (the number of KV
blocks) travel in ``core.executor.ExecutorInfo``.
"""

import math
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_batch_tokens: int = 512  # tokens computed in one step, prefill chunks and decodes together
    max_batch_rows: int = 64  # requests in one step
    max_in_flight: int = 1  # steps submitted before the first has returned
    policy: str = "fair"  # fair: classes and tenants' shares; fcfs: order of arrival
    min_prefill_tokens: int = 16  # a step computes so many of a prompt even where that is later than an objective asks


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """What every request asks of time, in milliseconds. 0: nothing."""

    ttft_ms: float = 500.0  # from arrival to the first token
    tpot_ms: float = 50.0  # for each token after the first
    deadlines: str = "shadow"  # on: what is predicted to miss its deadline is refused; shadow: only counted; off


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """How much of the KV pool is kept for what runs to grow into, when another request might begin."""

    reserve: str = "predicted"  # predicted: from each tenant's answers; all: its max_tokens; none: a block each
    watermark: float = 0.01  # of the pool, beyond that


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """A ``[[class]]``: how urgent requests are. interactive, standard and background are there without any."""

    name: str = ""
    priority: int = 1  # 0 goes first
    max_wait_s: float = 30.0  # the longest that it is passed over for higher ones
    ttft_ms: float | None = None  # None: ``objective.ttft_ms``
    tpot_ms: float | None = None  # None: ``objective.tpot_ms``
    deadline_ms: float = 0.0  # the first token is of no use later than this after arrival; 0: always of use


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """A ``[[tenant]]``: what requests that name it get. ``*`` is every tenant without an entry. Limits: 0 is none."""

    name: str = ""
    weight: float = 1.0  # its share beside other tenants of the same class
    request_class: str = field(default="standard", metadata={"key": "class"})
    max_requests: int = 0  # that have not ended
    max_tokens_in_flight: int = 0  # prompts and expected answers of these
    max_tokens_per_minute: int = 0  # prompts and answers
    max_kv_share: float = 1.0  # of the KV pool, for its requests that run


@dataclass(frozen=True, slots=True)
class CacheConfig:
    block_size: int = 16  # tokens in a KV block
    memory_bytes: int = 1 << 30  # KV pool
    dtype: str = "bf16"  # bf16 or f32
    prefix_cache: bool = True  # keep computed blocks, and give them to requests that begin with the same tokens
    disk_bytes: int = 0  # for blocks that the pool has no more room for; 0: these are dropped
    disk_dir: str = ""  # where the file for them is; empty: in ``model.cache_dir``


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    backend: str = "native"  # native or reference
    threads: int = 0  # 0: as many as there are usable cores
    pin_threads: bool = False  # each to a core of its own: for a machine, or a set of cores, that no other program uses
    isa: str = "auto"  # auto, amx, avx512, avx2 or portable
    wide_weights_bytes: int = -1  # most memory for 4-bit weights in a second, faster form; -1: an eighth of it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    name: str = "smollm2-135m"
    max_context: int = 0  # 0: what the model was trained for, or what the KV pool holds if that is less
    cache_dir: str = ""  # empty: the platform's cache folder
    accept_licence: bool = False
    packed_cache_bytes: int = 20 << 30  # packed weights kept for the next start, of all models; 0: none


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Bounds on what one HTTP request may ask for; over a bound is 400 with the numbers."""

    max_n: int = 16
    max_prompts: int = 64
    max_choices: int = 128  # prompts times n
    max_logprobs: int = 20
    max_stops: int = 16
    max_stop_chars: int = 256
    max_logit_bias: int = 1024
    max_body_bytes: int = 8 << 20  # a million tokens of text fit
    max_messages: int = 4096
    max_waiting_requests: int = 1024
    max_waiting_tokens: int = 0  # in the prompts of waiting requests; 0: no limit


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets for a field it leaves out. None: the model's own default, or the neutral value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    keep_alive_s: float = 120.0  # longer than common proxies' 60 to 90 s, so that they close first
    drain_s: float = 30.0  # how long SIGTERM waits for what runs
    send_buffer_bytes: int = 1 << 20  # unread output held for a slow client before its stream is aborted
    state_dir: str = ""  # what outlives a restart: responses, files, batches; empty: the platform's folder for state
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that the engine's core decides by, put together from the parts above. 0: no limit."""

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    prefix_cache: bool = True
    deadlines: str = "shadow"
    max_waiting_requests: int = 0
    max_waiting_tokens: int = 0
    tenants: tuple[TenantConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    classes: tuple[ClassConfig, ...] = field(default=(), metadata={"key": "class"})
    tenants: tuple[TenantConfig, ...] = field(default=(), metadata={"key": "tenant"})
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def for_engine(self) -> EngineConfig:
        limits = self.server.limits
        return EngineConfig(
            scheduler=self.scheduler,
            memory=self.memory,
            prefix_cache=self.cache.prefix_cache,
            deadlines=self.objective.deadlines,
            max_waiting_requests=limits.max_waiting_requests,
            max_waiting_tokens=limits.max_waiting_tokens,
            tenants=self.tenants,
        )


def load_config(path: Path | None = None, overrides: dict[str, Any] | None = None) -> Config:
    """Defaults, then the TOML file, then ``overrides`` (dotted names such as ``scheduler.max_batch_rows``)."""
    config = Config()
    if path is not None:
        try:
            table = tomllib.loads(path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the configuration {path}: {error}") from error
        config = _merge(config, table, "")
    for name, value in (overrides or {}).items():
        table = {}
        leaf = table
        *parents, last = name.split(".")
        for parent in parents:
            leaf = leaf.setdefault(parent, {})
        leaf[last] = value
        config = _merge(config, table, "")
    return config


def _merge(part: Any, table: dict[str, Any], prefix: str) -> Any:
    known = {f.metadata.get("key", f.name): f for f in fields(part)}
    changes: dict[str, Any] = {}
    for key, value in table.items():
        name = prefix + key
        if key not in known:
            raise ConfigError(f"unknown setting {name!r}; known here: {', '.join(sorted(known))}")
        found = known[key]
        current = getattr(part, found.name)
        if is_dataclass(current):
            if not isinstance(value, dict):
                raise ConfigError(f"{name} is a group of settings, not a value")
            changes[found.name] = _merge(current, value, name + ".")
        elif get_origin(found.type) is tuple:
            changes[found.name] = _tables(name, value, get_args(found.type)[0])
        else:
            changes[found.name] = _coerce(name, value, found.type)
    return replace(part, **changes)


def _tables(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ConfigError(f"{name} is a list of groups of settings: write [[{name}]] above each")
    return tuple(_merge(kind(), table, name + ".") for table in value)


def _coerce(name: str, value: Any, declared: Any) -> Any:
    """``value`` as the declared type: one of bool, int, float, str, or one of these ``| None`` (TOML has no null).

    No setting has a meaning below 0, nor as inf or nan, which TOML can write.
    """
    kind = next(k for k in (get_args(declared) or (declared,)) if k is not NoneType)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{name} must be {kind.__name__}, not {value!r}")
    if kind in (int, float) and not 0 <= value < math.inf:
        raise ConfigError(f"{name} must be a finite number, 0 or above, not {value!r}")
    return value
