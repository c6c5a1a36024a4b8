"""From a client's request to the sequences it asks for. Limits of one request are held here; values in the engine."""

import asyncio
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headway.config import LimitsConfig, SamplingDefaults
from headway.core.request import SamplingParams
from headway.engine.admit import SEED_BITS, admit
from headway.engine.generation import GenerationRequest
from headway.engine.sampling_defaults import NEUTRAL, effective_sampling
from headway.errors import ConfigError, InvalidRequest, PromptTooLong
from headway.server.body import off_loop
from headway.server.engine_contract import ServedEngine
from headway.server.errors import ApiError
from headway.server.protocol import ChatMessage, ChatRequest, CompletionRequest, SamplingFields


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request asks of the engine. Sequence ``p * n + i`` is choice i of prompt p.

    ``echo`` holds the text to put before each prompt's answers, empty when none was asked for.
    """

    sequences: tuple[GenerationRequest, ...]
    n: int
    stream: bool
    include_usage: bool
    echo: tuple[str, ...] = ()

    def of(self, tenant: str, request_class: str) -> "Job":
        return replace(
            self,
            sequences=tuple(replace(one, tenant=tenant, request_class=request_class) for one in self.sequences),
        )


@dataclass(frozen=True, slots=True)
class Intake:
    """Turns requests into jobs for one engine under one set of limits."""

    engine: ServedEngine
    limits: LimitsConfig
    defaults: SamplingDefaults
    max_prompt_chars: int  # longer text has more tokens than the context holds, whatever it says

    @classmethod
    def over(cls, engine: ServedEngine, limits: LimitsConfig, defaults: SamplingDefaults) -> "Intake":
        """Raises ConfigError where no request could be served with the sampling that it gets by default."""
        sampling = SamplingParams(**effective_sampling({}, defaults, engine.generation_defaults))
        try:
            admit(GenerationRequest((0,), sampling), engine.card.vocab_size)
        except InvalidRequest as error:
            raise ConfigError(f"the default sampling cannot be used (settings server.sampling): {error}") from error
        longest_token = max(len(engine.tokenizer.token_bytes(i)) for i in range(engine.card.vocab_size))
        return cls(engine, limits, defaults, engine.card.max_context * longest_token)

    async def chat_job(self, body: ChatRequest, label: str) -> Job:
        self.check_model(body.model)
        sampling = self._sampling(body, _chat_max_tokens(body), self._chat_logprobs(body))
        prompt = await self.chat_prompt(body.messages, body.add_generation_prompt, body.continue_final_message)
        return self._job(body, [prompt], sampling, label)

    async def completion_job(self, body: CompletionRequest, label: str) -> Job:
        self.check_model(body.model)
        if body.echo and body.logprobs is not None:
            raise _unsupported("echo together with logprobs is not supported: leave one out.", "echo")
        sampling = self._sampling(body, body.max_tokens, self._bounded("logprobs", body.logprobs, "max_logprobs"))
        given = parse_prompts(body.prompt)
        self._bounded("prompt", len(given), "max_prompts", "prompts")
        prompts = [await self._prompt_ids(prompt) for prompt in given]
        job = self._job(body, prompts, sampling, label)
        return replace(job, echo=tuple(self._text(prompt) for prompt in given)) if body.echo else job

    async def chat_prompt(
        self, messages: list[ChatMessage], add_generation_prompt: bool | None, continue_final_message: bool
    ) -> list[int]:
        """Token ids of the rendered chat template. By default an answer is opened unless the last message goes on."""
        if not messages:
            raise InvalidRequest("messages is empty: send at least one message.", param="messages")
        template = self.engine.chat_template
        if template is None:
            message = f"{self.engine.card.name} has no chat template: use /v1/completions."
            raise InvalidRequest(message, param="messages", code="no_chat_template")
        if add_generation_prompt and continue_final_message:
            message = "add_generation_prompt and continue_final_message exclude each other: send one of them."
            raise InvalidRequest(message, param="continue_final_message")
        opens = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        self._check_length(sum(message.num_chars for message in messages), "messages")
        rows = [message.as_template_input() for message in messages]
        return await asyncio.to_thread(
            template.prompt_ids, rows, add_generation_prompt=opens, continue_final_message=continue_final_message
        )

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self._check_length(len(text), "prompt")
        encode = partial(self.engine.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await off_loop(len(text), encode)

    def _check_length(self, num_chars: int, param: str) -> None:
        """Refuses at once what would take long to tokenise only to be refused then."""
        if num_chars > self.max_prompt_chars:
            context = self.engine.card.max_context
            message = (
                f"The prompt has {num_chars} characters, and {context} tokens of context hold at most "
                f"{self.max_prompt_chars}: shorten it, or raise model.max_context."
            )
            raise PromptTooLong(message, param=param)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        vocab_size = self.engine.card.vocab_size
        wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if wrong is not None:
            message = f"tokens holds {wrong}; token ids of this model are 0 to {vocab_size - 1}."
            raise InvalidRequest(message, param="tokens")
        decode = partial(self.engine.tokenizer.decode, tokens, skip_special_tokens=skip_special_tokens)
        return await off_loop(len(tokens), decode)

    def check_model(self, asked: str | None) -> None:
        """Law 5: a request for another model is never answered by this one."""
        served = self.engine.card.name
        if asked is not None and asked != served:
            message = f"The model {asked[:80]!r} is not served here; this server serves {served!r}."
            raise ApiError(404, message, code="model_not_found", param="model")

    def _job(self, body: SamplingFields, prompts: list[list[int]], sampling: SamplingParams, label: str) -> Job:
        n = self._bounded("n", body.n, "max_n", low=1)
        self._bounded("n", len(prompts) * n, "max_choices", "choices (prompts times n)")
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
        stop = self._stop(body.stop)
        sequences = tuple(
            GenerationRequest(
                prompt_token_ids=tuple(prompt),
                sampling=_for_choice(sampling, choice),
                stop=stop,
                include_stop=body.include_stop_str_in_output,
                skip_special_tokens=body.skip_special_tokens,
                label=label,
                ttft_ms=body.ttft_ms,
                tpot_ms=body.tpot_ms,
                deadline_ms=body.deadline_ms,
            )
            for prompt in prompts
            for choice in range(n)
        )
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return Job(sequences, n, body.stream, include_usage)

    def _sampling(self, body: SamplingFields, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        asked = {name: getattr(body, name) for name in NEUTRAL}
        return SamplingParams(
            **effective_sampling(asked, self.defaults, self.engine.generation_defaults),
            max_tokens=max_tokens,
            seed=body.seed,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=self._logit_bias(body.logit_bias),
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop_token_ids=self._stop_token_ids(body.stop_token_ids),
            logprobs=logprobs,
        )

    def _chat_logprobs(self, body: ChatRequest) -> int | None:
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if not body.logprobs:
            return None
        return self._bounded("top_logprobs", body.top_logprobs or 0, "max_logprobs")

    def _logit_bias(self, bias: Any) -> tuple[tuple[int, float], ...]:
        if bias is None:
            return ()
        if not isinstance(bias, dict):
            raise InvalidRequest("logit_bias must be an object of token ids and numbers.", param="logit_bias")
        self._bounded("logit_bias", len(bias), "max_logit_bias", "entries")
        return tuple((_token_id(key), _finite(key, value)) for key, value in bias.items())

    def _stop(self, stop: Any) -> tuple[str, ...]:
        stops = [stop] if isinstance(stop, str) else stop or []
        if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
            raise InvalidRequest("stop must be a string or a list of strings, none of them empty.", param="stop")
        self._bounded("stop", len(stops), "max_stops", "strings")
        self._bounded("stop", max(map(len, stops), default=0), "max_stop_chars", "characters")
        return tuple(stops)

    def _stop_token_ids(self, token_ids: list[int]) -> tuple[int, ...]:
        self._bounded("stop_token_ids", len(token_ids), "max_stops", "ids")
        return tuple(token_ids)

    def _bounded(self, param: str, value: Any, setting: str, unit: str = "", low: int = 0) -> Any:
        """``value`` (None passes) unless it is below ``low`` or over the limit of that name."""
        limit = getattr(self.limits, setting)
        if value is not None and value < low:
            raise InvalidRequest(f"{param} is {value}: ask for at least {low}.", param=param)
        if value is not None and value > limit:
            amount = f"{value} {unit}".strip()
            message = f"{param}: {amount} asked for, at most {limit} accepted (server.limits.{setting})."
            raise InvalidRequest(message, param=param, code="limit_exceeded")
        return value

    async def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        return await self.encode(prompt) if isinstance(prompt, str) else prompt

    def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self.engine.tokenizer.decode(prompt)


def parse_prompts(prompt: Any) -> list[str | list[int]]:
    """A prompt in any of its four forms as a list of prompts; an empty one is an error."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _is_id(prompt[0])):
        prompt = [prompt]
    if not isinstance(prompt, list) or not all(_is_prompt(one) for one in prompt):
        message = "prompt must be a string, a list of strings, a list of token ids, or a list of such lists."
        raise InvalidRequest(message, param="prompt")
    if not prompt or not all(prompt):
        raise InvalidRequest("prompt is empty: send at least one token or character.", param="prompt")
    return prompt


def _is_id(value: Any) -> bool:
    return type(value) is int


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_id, value)))


def _chat_max_tokens(body: ChatRequest) -> int | None:
    given = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(given) > 1:
        message = "max_tokens and max_completion_tokens differ: send one of them."
        raise InvalidRequest(message, param="max_completion_tokens")
    return given.pop() if given else None


def _for_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Choices of one prompt differ and can be repeated: choice i draws with seed + i, modulo the range of seeds."""
    if sampling.seed is None or choice == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % (1 << SEED_BITS))


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise InvalidRequest(f"logit_bias: {key[:40]!r} is not a token id.", param="logit_bias")
    return int(key)


def _finite(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"logit_bias: the bias of token {key} must be a finite number.", param="logit_bias")
    return float(value)


def _unsupported(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="unsupported_parameter")
