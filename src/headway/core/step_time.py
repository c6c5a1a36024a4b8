"""How long a step takes: its shape, and what the core asks of whoever predicts it."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from headway.core.batch import ScheduledRow


class StepShape(NamedTuple):
    """All of a step that its time depends on."""

    num_tokens: int = 0  # computed, of all requests
    num_requests: int = 0
    num_samples: int = 0  # tokens sampled
    num_attended: int = 0  # pairs of a computed token and a token that it attends to
    num_context: int = 0  # tokens whose keys and values are read, once for each request

    @classmethod
    def of(cls, rows: Iterable[ScheduledRow]) -> "StepShape":
        """In one pass, without a shape for each row: this is done after every step."""
        num_tokens = num_requests = num_samples = num_attended = num_context = 0
        for _, start, count, _, samples in rows:
            end = start + count
            num_tokens += count
            num_requests += 1
            num_samples += samples
            num_attended += end if count == 1 else (end * (end + 1) - start * (start + 1)) // 2
            num_context += end
        return cls(num_tokens, num_requests, num_samples, num_attended, num_context)

    @classmethod
    def of_decodes(cls, num_requests: int, context: int) -> "StepShape":
        """A token for each of so many requests, the last of ``context`` each."""
        return cls(num_requests, num_requests, num_requests, num_requests * context, num_requests * context)

    def plus(self, start: int, num_tokens: int, samples: bool) -> "StepShape":
        """With positions ``start .. start + num_tokens - 1`` of one more request."""
        end = start + num_tokens
        return StepShape(
            self.num_tokens + num_tokens,
            self.num_requests + 1,
            self.num_samples + samples,
            self.num_attended + (end * (end + 1) - start * (start + 1)) // 2,
            self.num_context + end,
        )


class StepTimes(Protocol):
    """A model of step times that learns from those that are measured. Never falls when a field of the shape grows.

    ``mean_error`` and ``mean_bias`` are of (measured - predicted) / measured over the last steps, without its sign and
    with it.
    """

    mean_error: float
    mean_bias: float

    def seconds(self, shape: StepShape) -> float: ...

    def observe(self, shape: StepShape, seconds: float) -> None:
        """What a step of this shape took."""
