"""What the engine is asked for and what it answers: the values between ``AsyncEngine`` or ``LLM`` and their callers."""

from dataclasses import dataclass, field

from headway.core.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. ``stop`` strings end the text and are left out of it unless ``include_stop``.

    ``label`` is the client's name for it (shown, never used as a key). ``tenant`` is who is charged for it, and
    ``request_class`` how urgent it is: empty for the tenant's own. ``*_ms`` are objectives of its own, in milliseconds;
    None: those of its class (``core.request.Objective``).
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    label: str = ""
    tenant: str = ""
    request_class: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    deadline_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token of the answer; ``top`` holds the alternatives, most likely first.

    ``bytes`` are exactly what the token adds to the text: nothing, for a special token that is skipped.
    """

    token_id: int
    text: str  # readable; U+FFFD where the bytes are not whole characters
    bytes: bytes
    logprob: float
    top: tuple["TokenText", ...] = ()


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """A piece of one answer. The concatenated ``text`` of all deltas is the whole answer, exactly.

    ``token_ids`` are all that were generated, a token that ended the answer included. ``tokens`` holds those that are
    part of the text, with log probabilities, when these were asked for, else it is empty. The last delta, and only it,
    carries ``finish_reason``; ``stop_reason`` is then the stop string or the id in ``stop_token_ids`` that matched, if
    one did.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[TokenText, ...]
    usage: Usage
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A whole answer, as ``LLM`` returns it. ``error`` says what happened when ``finish_reason`` is ERROR."""

    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[TokenText, ...]
    usage: Usage
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StartupReport:
    """What loading came to. ``load_s`` counts from the settings to an engine that is ready."""

    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    num_blocks: int
    block_size: int  # tokens
    max_context: int  # tokens
    threads: int
    cores: int  # that this process may keep busy
    is_pinned: bool  # each thread has a core of its own
    isa: str  # the kernels in use: "avx512", "reference"
    load_s: float
    num_disk_slots: int = 0  # blocks that there is room for on disk


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The exact identity of what is served (law 5)."""

    name: str  # as the person named it: the id in the API
    family: str
    quantisation: str  # "Q4_1", "bf16"
    revision: str
    digest: str  # sha256 of the artefact that holds the weights
    max_context: int
    vocab_size: int
    num_parameters: int
