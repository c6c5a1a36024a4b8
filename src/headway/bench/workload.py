"""What is asked of a server and when: arrivals, lengths and prompts, all functions of a seed."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from headway.errors import ConfigError

# Common nouns: about one token each in most tokenizers.
_NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense nation plan college "
    "interest death experience effect use class control field development role effort rate heart drug show leader "
    "light voice wife police mind price report decision son view relationship town road arm difference value building "
    "action season society tax director position player record paper space ground form event official matter center "
    "couple site project activity star table need court oil situation cost industry figure street image phone data "
    "picture practice piece land product doctor wall patient worker news test movie north love support technology"
)
WORDS = tuple(_NOUNS.split())
MIN_WORDS = 8  # so few words out of so many are never drawn twice
MAX_TIMES_MEAN = 4  # where the tail of the lengths is cut


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """``at_s`` counts from the start of the run."""

    at_s: float
    num_input_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths: their mean in tokens and the standard deviation of their logarithm; ``sigma`` 0 is fixed."""

    mean: int
    sigma: float

    def draw(self, rng: random.Random) -> int:
        if self.sigma == 0:
            return self.mean
        length = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return min(max(1, round(length)), MAX_TIMES_MEAN * self.mean)


def arrivals(count: int, cv: float, rng: random.Random) -> list[float]:
    """Moments from 0 on with gamma-distributed gaps of mean 1 and coefficient of variation ``cv``; 1 is Poisson."""
    gaps = (rng.gammavariate(1 / cv**2, cv**2) for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))


def plan_requests(
    rate: float, cv: float, duration_s: float, inputs: Lengths, outputs: Lengths, seed: str
) -> list[PlannedRequest]:
    """As many as ``rate`` makes of ``duration_s``, stretched to exactly that rate: short runs differ only in pattern.

    For ``cv`` 1 that is a Poisson process given its count. The same seed gives the same plan; lengths do not change
    with ``cv``, nor the pattern with the lengths.
    """
    count = round(rate * duration_s)
    if count < 2:
        raise ConfigError(f"{rate:g} a second makes less than two requests of {duration_s:g} s: run for longer")
    lengths = random.Random(f"{seed}/lengths")
    moments = arrivals(count, cv, random.Random(f"{seed}/arrivals"))
    return at_rate([PlannedRequest(at, inputs.draw(lengths), outputs.draw(lengths)) for at in moments], rate)


def at_rate(plan: Sequence[PlannedRequest], rate: float) -> list[PlannedRequest]:
    """The same requests, their moments stretched so that ``rate`` arrive a second on average."""
    factor = mean_rate(plan) / rate
    return [replace(request, at_s=request.at_s * factor) for request in plan]


def mean_rate(plan: Sequence[PlannedRequest]) -> float:
    """Gaps a second between the first and the last."""
    span_s = plan[-1].at_s - plan[0].at_s
    if span_s <= 0:
        raise ConfigError("the requests all arrive at one moment, which is no rate: at least two moments are needed")
    return (len(plan) - 1) / span_s


@dataclass(frozen=True, slots=True)
class TokenCount:
    """How a server counts a prompt of words: ``overhead + tokens_per_word * words``."""

    tokens_per_word: float = 1.0
    overhead: float = 0.0

    @classmethod
    def fitted(cls, few: tuple[int, int], many: tuple[int, int]) -> "TokenCount":
        """From two prompts' (words, tokens)."""
        slope = (many[1] - few[1]) / (many[0] - few[0])
        return cls(slope, few[1] - slope * few[0]) if slope > 0 else cls()

    def words(self, num_tokens: int) -> int:
        return max(MIN_WORDS, round((num_tokens - self.overhead) / self.tokens_per_word))


def random_words(count: int, rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=count))
