"""From token ids to what the caller reads: text, stop strings, log probabilities, usage."""

from headway.core.batch import RequestOutput, TokenLogprobs
from headway.core.request import FinishReason
from headway.engine.detokenizer import Detokenizer
from headway.engine.generation import GenerationRequest, OutputDelta, TokenText, Usage
from headway.engine.stop_matcher import StopMatcher
from headway.engine.tokenizer import Tokenizer


class OutputProcessor:
    """One request's outputs, in order, become its deltas. Knows nothing of threads.

    A stop string that completes in the text ends the answer here, before the core knows: ``finish_reason`` is set while
    the output's own is None, and the caller must abort the request. Text of the first ``min_tokens`` tokens is not
    searched for stop strings.
    """

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=request.skip_special_tokens,
            prompt_token_ids=request.prompt_token_ids,
        )
        self._stops = StopMatcher(request.stop, request.include_stop)
        self._num_tokens = 0

    def process(self, output: RequestOutput) -> OutputDelta:
        """The delta for one output of a request that has not ended yet. Tokens after a stop string are dropped."""
        text = ""
        tokens: list[TokenText] = []
        num_tokens_before = self._num_tokens
        for index, token_id in enumerate(output.new_token_ids):
            self._num_tokens += 1
            if self._ends_silently(output, index):
                break
            text += self._push(token_id)
            if output.logprobs:
                tokens.append(self._token_text(token_id, output.logprobs[index]))
            if self._stops.matched is not None:
                break
        if output.finish_reason is not None:
            text += self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        token_ids = output.new_token_ids[: self._num_tokens - num_tokens_before]
        finish_reason, stop_reason = self._end(output)
        usage = Usage(len(self._request.prompt_token_ids), self._num_tokens, output.num_cached_tokens)
        return OutputDelta(text, token_ids, tuple(tokens), usage, finish_reason, stop_reason)

    def _ends_silently(self, output: RequestOutput, index: int) -> bool:
        """Whether this token is the one that ended the request and is to be left out of the text."""
        is_last = index == len(output.new_token_ids) - 1
        return is_last and output.stop_token_id is not None and not self._request.include_stop

    def _push(self, token_id: int) -> str:
        text = self._detokenizer.push(token_id)
        return text if self._num_tokens <= self._request.sampling.min_tokens else self._stops.push(text)

    def _end(self, output: RequestOutput) -> tuple[FinishReason | None, str | int | None]:
        if self._stops.matched is not None:
            return FinishReason.STOP, self._stops.matched
        asked_for = output.stop_token_id in self._request.sampling.stop_token_ids
        return output.finish_reason, output.stop_token_id if asked_for else None

    def _token_text(self, token_id: int, logprobs: TokenLogprobs) -> TokenText:
        added = self._detokenizer.last_bytes
        readable = added or self._tokenizer.token_bytes(token_id)
        top = tuple(self._alternative(top_id, logprob) for top_id, logprob in logprobs.top)
        return TokenText(token_id, readable.decode(errors="replace"), added, logprobs.logprob, top)

    def _alternative(self, token_id: int, logprob: float) -> TokenText:
        data = self._tokenizer.token_bytes(token_id)
        return TokenText(token_id, data.decode(errors="replace"), data, logprob)
