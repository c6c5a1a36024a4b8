"""An engine without a model: bytes are tokens, and what it answers and how it fails is set by the test."""

import asyncio
import codecs
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headway.core.admission import Refusal, RefusalReason
from headway.core.request import FinishReason
from headway.engine.admit import admit
from headway.engine.generation import GenerationRequest, ModelCard, OutputDelta, TokenText, Usage
from headway.errors import RequestRefused, TemplateError
from headway.observe.stats import EngineStats

BOS, EOS, VOCAB_SIZE = 256, 257, 258
CONTEXT = 512
ANSWER = "Hello, wörld! 🦙"


class FakeTokenizer:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return ([BOS] if add_special_tokens else []) + list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<s>"

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        shown = {BOS: b"<s>", EOS: b"</s>"} if not skip_special_tokens else {}
        return b"".join(shown.get(i, b"") if i >= 256 else bytes([i]) for i in token_ids).decode(errors="replace")


class FakeChatTemplate:
    def prompt_ids(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise TemplateError("Conversation must start with a user message", param="messages")
        text = "".join(f"[{m['role']}]{m.get('content', '')}\n" for m in messages)
        text = text[:-1] if continue_final_message else text
        return FakeTokenizer().encode(text + "[assistant]" * add_generation_prompt)


class FakeStream:
    """Counts as running from ``submit`` until its last delta was taken or ``cancel``."""

    def __init__(self, engine: "FakeEngine", request: GenerationRequest) -> None:
        self._engine = engine
        self._request = request
        self._cancelled = False
        self.finish_reason: FinishReason | None = None

    def cancel(self) -> None:
        self._cancelled = True
        self._end(FinishReason.ABORT)

    def _end(self, reason: FinishReason) -> None:
        if self.finish_reason is None:
            self.finish_reason = reason
            self._engine.running.remove(self)
            self._engine.finished[reason.value] += 1

    async def __aiter__(self) -> AsyncIterator[OutputDelta]:
        request, engine = self._request, self._engine
        answer = list(engine.answer_to(request).encode())
        room = CONTEXT - len(request.prompt_token_ids)
        allowed = request.sampling.max_tokens or room
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for count, token in enumerate(answer, start=1):
            await engine.step(count)
            usage = Usage(len(request.prompt_token_ids), count, engine.cached_tokens)
            if self._cancelled:
                yield OutputDelta("", (), (), usage, FinishReason.ABORT)
                return
            reason = FinishReason.STOP if count == len(answer) else None
            reason = FinishReason.LENGTH if count == allowed and reason is None else reason
            text = decoder.decode(bytes([token]), final=reason is not None)
            if reason is not None:
                self._end(reason)
            yield OutputDelta(text, (token,), self._tokens(token), usage, reason)
            if reason is not None:
                return

    def _tokens(self, token: int) -> tuple[TokenText, ...]:
        num_top = self._request.sampling.logprobs
        if num_top is None:
            return ()

        def entry(value: int, logprob: float, top: tuple[TokenText, ...] = ()) -> TokenText:
            data = bytes([value])
            return TokenText(value, data.decode(errors="replace"), data, logprob, top)

        top = tuple(entry((token + i) % 128, -0.5 if i == 0 else -9999.0) for i in range(num_top))
        return (entry(token, -0.5, top),)


class FakeEngine:
    """``failure`` is raised before token ``fail_at`` (1: the first). A token takes ``pace_s``."""

    def __init__(self, name: str = "fake") -> None:
        self.card = ModelCard(name, "fake", "Q8", "r1", "ab" * 32, CONTEXT, VOCAB_SIZE, 1000)
        self.tokenizer = FakeTokenizer()
        self.chat_template: FakeChatTemplate | None = FakeChatTemplate()
        self.generation_defaults: dict[str, float] = {}
        self.requests: list[GenerationRequest] = []
        self.running: list[FakeStream] = []
        self.finished: Counter[str] = Counter()
        self.num_steps = 0
        self.answer = ANSWER
        self.cached_tokens = 0
        self.pace_s = 0.0
        self.refusal: Refusal | None = None
        self.max_running: int | None = None  # beyond, the queue is full
        self.failure: Exception | None = None
        self.fail_at = 1
        self.fault: str | None = None

    def answer_to(self, request: GenerationRequest) -> str:
        """The same for all, but choices with a seed differ by it."""
        return self.answer if request.sampling.seed is None else f"{self.answer} #{request.sampling.seed}"

    async def step(self, count: int) -> None:
        await asyncio.sleep(self.pace_s)
        self.num_steps += 1
        if self.failure is not None and count == self.fail_at:
            raise self.failure

    async def submit(self, request: GenerationRequest) -> FakeStream:
        self.requests.append(request)
        admit(request, VOCAB_SIZE)
        if self.refusal is not None:
            raise RequestRefused(self.refusal)
        if self.max_running is not None and len(self.running) >= self.max_running:
            raise RequestRefused(refusal(RefusalReason.QUEUE_FULL, "max_running", self.max_running, "Full."))
        needed = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1)
        if needed > CONTEXT:
            message = f"The prompt and max_tokens make {needed} tokens, but the context holds {CONTEXT}."
            raise RequestRefused(refusal(RefusalReason.TOO_LONG, "model.max_context", CONTEXT, message))
        stream = FakeStream(self, request)
        self.running.append(stream)
        return stream

    def stats(self) -> EngineStats:
        return EngineStats(
            num_steps=self.num_steps,
            num_running=len(self.running),
            num_admitted=len(self.running) + self.finished.total(),
            finished=dict(self.finished),
            kv_blocks={"used": len(self.running), "cached": 0, "free": 32 - len(self.running)},
            fault=self.fault,
        )


def refusal(
    reason: RefusalReason, setting: str, limit: int, message: str, retry_after_s: float | None = None
) -> Refusal:
    return Refusal(reason, setting, limit, message, 600, 38, 10, 32, retry_after_s=retry_after_s)
