"""What the engine is asked for and what it answers: the values between ``AsyncEngine`` or ``LLM`` and their callers."""

from dataclasses import dataclass, field

from headway.core.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What an answer's text holds beside plain text, and so how it is read (``output_parsing``). By default nothing.

    ``calls`` is the way in which the model writes tool calls (``output_parsing.formats``), empty where they are not
    looked for. ``has_thinking``: text in ``<think>`` at its beginning is thinking; ``is_thinking``: the prompt has
    opened it already.
    """

    calls: str = ""
    has_thinking: bool = False
    is_thinking: bool = False

    @property
    def is_plain(self) -> bool:
        return not (self.calls or self.has_thinking or self.is_thinking)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. ``stop`` strings end the text and are left out of it unless ``include_stop``.

    ``label`` is the client's name for it (shown, never used as a key). ``tenant`` is who is charged for it, and
    ``request_class`` how urgent it is: empty for the tenant's own. ``*_ms`` are objectives of its own, in milliseconds;
    None: those of its class (``core.request.Objective``). ``stop`` is looked for in the answer's plain text alone.
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
    answer_format: AnswerFormat = AnswerFormat()


@dataclass(frozen=True, slots=True)
class Usage:
    """``reasoning_tokens`` are those of ``completion_tokens`` that were thinking, its marks included."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


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
class ToolCallDelta:
    """A piece of call ``index`` (from 0) of one answer. The first has its ``id`` and ``name``; later ones neither.

    ``arguments`` of all its pieces, joined, are the JSON text that the model wrote.
    """

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole tool call; ``arguments`` is JSON text as the model wrote it, so it may be cut off or wrong."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """A piece of one answer. The concatenated ``text`` of all deltas is the whole answer, exactly; what the request's
    ``answer_format`` makes of it beside plain text comes as ``reasoning`` and ``tool_calls`` instead.

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
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


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
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


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
