"""The engine for scripts: prompts in, whole answers out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from queue import SimpleQueue
from typing import Any

from headway.config import Config, EngineConfig, SamplingDefaults, load_config
from headway.core.batch import RequestOutput
from headway.core.engine_core import EngineCore
from headway.core.request import FinishReason, SamplingParams
from headway.engine.admit import admit, new_core_request
from headway.engine.engine_loop import EngineLoop
from headway.engine.generation import GenerationRequest, GenerationResult, OutputDelta
from headway.engine.output_processor import OutputProcessor
from headway.engine.parts import EngineParts
from headway.engine.sampling_defaults import effective_sampling
from headway.errors import ConfigError, EngineStopped, InvalidRequest, RequestRefused

Prompt = str | Sequence[int]
Message = dict[str, Any]


class LLM:
    """A loaded model and its engine, in this process.

        llm = LLM("smollm2-135m", threads=2)
        [answer] = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=50))
        print(answer.text)

    ``model`` is a catalogue name, a path or ``hf:org/name``; ``settings`` are any of ``headway.config`` by name.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        from headway.engine.build import build_engine

        overrides = _dotted(settings)
        if model is not None:
            overrides["model.name"] = model
        config = load_config(overrides=overrides)
        own = EngineConfig(config.scheduler, config.memory, config.cache.prefix_cache)  # its queue is the caller's list
        self._open(build_engine(config), own)

    @classmethod
    def from_parts(cls, parts: EngineParts, config: EngineConfig | None = None) -> "LLM":
        """Over a model that is loaded already."""
        llm = cls.__new__(cls)
        llm._open(parts, config)
        return llm

    def _open(self, parts: EngineParts, config: EngineConfig | None) -> None:
        self._parts = parts
        self._engine = EngineLoop(EngineCore(parts.executor, config))
        self._engine.start()

    def close(self) -> None:
        """Stops the engine. Needed only where the program goes on without it."""
        self._engine.stop()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: Sequence[str] = (),
        progress: bool = False,
    ) -> list[GenerationResult]:
        """One answer for each prompt, in order; text is tokenised as the model expects, token ids are used as they are.

        ``sampling_params`` is one for all, one each, or None for the model's own defaults. Raises InvalidRequest or
        RequestRefused if any prompt cannot be taken, before any is answered. An answer that fails while it runs has
        ``finish_reason`` ERROR and an ``error``; the others are not affected.
        """
        token_ids = [self._token_ids(prompt) for prompt in _as_prompts(prompts)]
        return self._answers(token_ids, sampling_params, stop, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: Sequence[str] = (),
        progress: bool = False,
    ) -> list[GenerationResult]:
        """Like ``generate``, for one conversation or several. Raises TemplateError if the chat template refuses one."""
        template = self._parts.chat_template
        if template is None:
            message = f"{self._parts.card.name} has no chat template: use generate()."
            raise InvalidRequest(message, code="no_chat_template")
        prompts = [tuple(template.prompt_ids(conversation)) for conversation in _as_conversations(messages)]
        return self._answers(prompts, sampling_params, stop, progress)

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self._parts.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)

    def _answers(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        stop: Sequence[str],
        progress: bool,
    ) -> list[GenerationResult]:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        params = self._one_each(sampling_params, len(prompts))
        vocab_size = self._parts.executor.info.vocab_size
        requests = [
            admit(GenerationRequest(prompt, sampling, stops), vocab_size)
            for prompt, sampling in zip(prompts, params, strict=True)
        ]
        answers = [_Answer(request, OutputProcessor(request, self._parts.tokenizer)) for request in requests]
        with _progress_bar(len(answers), progress) as advance:
            self._run(answers, advance)
        return [answer.result() for answer in answers]

    def _one_each(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if sampling_params is None:
            defaults = effective_sampling({}, SamplingDefaults(), self._parts.generation_defaults)
            sampling_params = SamplingParams(**defaults)
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * count
        if len(sampling_params) != count:
            message = f"{count} prompts but {len(sampling_params)} sampling_params: give one for all, or one each."
            raise InvalidRequest(message, param="sampling_params")
        return sampling_params

    def _run(self, answers: Sequence["_Answer"], advance: Callable[[], None]) -> None:
        """Submits all and takes outputs until each answer has ended; whatever goes wrong, nothing is left running."""
        arrived: SimpleQueue[tuple[_Answer, RequestOutput | EngineStopped]] = SimpleQueue()
        request_ids: list[str] = []
        try:
            admissions = []
            for answer in answers:
                core_request = new_core_request(answer.request, self._parts.eos_token_ids)
                request_ids.append(core_request.request_id)
                admissions.append(self._engine.submit(core_request, partial(_put, arrived, answer)))
            for admission in admissions:
                if (refusal := admission.result().refusal) is not None:
                    raise RequestRefused(refusal)
            num_left = len(answers)
            while num_left:
                answer, output = arrived.get()
                if isinstance(output, EngineStopped):
                    raise output
                if answer.take(output):
                    num_left -= 1
                    advance()
                    if output.finish_reason is None:  # a stop string, which the core cannot see
                        self._engine.abort(output.request_id, FinishReason.STOP)
        finally:
            for request_id in request_ids:
                self._engine.abort(request_id)


class _Answer:
    """One answer while it grows."""

    def __init__(self, request: GenerationRequest, processor: OutputProcessor) -> None:
        self.request = request
        self._processor = processor
        self._deltas: list[OutputDelta] = []
        self._error: str | None = None
        self._ended = False

    def take(self, output: RequestOutput) -> bool:
        """Whether this output was its last; what comes after that is dropped."""
        if self._ended:
            return False
        delta = self._processor.process(output)
        self._deltas.append(delta)
        self._error = output.error
        self._ended = delta.finish_reason is not None
        return self._ended

    def result(self) -> GenerationResult:
        last = self._deltas[-1]
        assert last.finish_reason is not None
        return GenerationResult(
            prompt_token_ids=self.request.prompt_token_ids,
            text="".join(delta.text for delta in self._deltas),
            token_ids=tuple(token_id for delta in self._deltas for token_id in delta.token_ids),
            tokens=tuple(token for delta in self._deltas for token in delta.tokens),
            usage=last.usage,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            error=self._error,
        )


def _put(arrived: "SimpleQueue[Any]", answer: _Answer, output: RequestOutput | EngineStopped) -> None:
    arrived.put((answer, output))


def _as_prompts(prompts: Any) -> Sequence[Prompt]:
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if is_one else prompts


def _as_conversations(messages: Any) -> list[list[Message]]:
    is_one = len(messages) > 0 and isinstance(messages[0], Mapping)
    return [list(conversation) for conversation in ([messages] if is_one else messages)]


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``threads=2`` as ``runtime.threads``: the names are unique among the parts an engine has."""
    parts = ("model", "scheduler", "memory", "cache", "runtime")
    paths = {field.name: f"{part}.{field.name}" for part in parts for field in fields(getattr(Config(), part))}
    for name in settings:
        if name not in paths:
            raise ConfigError(f"unknown setting {name!r}; known here: {', '.join(sorted(paths))}")
    return {paths[name]: value for name, value in settings.items()}


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    if not shown:
        yield lambda: None
        return
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn()) as bar:
        task = bar.add_task("Generating", total=total)
        yield lambda: bar.advance(task)
