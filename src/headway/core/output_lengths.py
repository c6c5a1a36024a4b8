"""How long answers are, by tenant: learned from those that ended, to predict those that have not."""

from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate

# Longest answer of each bucket: two buckets an octave.
BOUNDS = tuple(sorted({1, *(1 << k for k in range(1, 21)), *(3 << k for k in range(20))}))
EXPECTED_AT_FIRST = 256  # tokens, before anything is known
FEWEST = 4  # answers of a tenant, before they say more about the next than all tenants' do
FORGETTING = 0.98  # the weight of an answer once another of its tenant has ended
MAX_TENANTS = 1024  # histories kept; the longest unused is forgotten


class OutputLengths:
    """A histogram a tenant, recent answers weighing most, and one of all tenants for those with few answers."""

    def __init__(self) -> None:
        self._of_all = _History()
        self._of_tenant: OrderedDict[str, _History] = OrderedDict()

    def record(self, tenant: str, num_tokens: int) -> None:
        """An answer of so many tokens has ended by itself."""
        self._of_all.add(num_tokens)
        self._of_tenant.setdefault(tenant, _History()).add(num_tokens)
        self._of_tenant.move_to_end(tenant)
        if len(self._of_tenant) > MAX_TENANTS:
            self._of_tenant.popitem(last=False)

    def remaining(self, tenant: str, num_made: int, max_tokens: int) -> int:
        """Tokens that an answer is expected to have still, after ``num_made``: from 1 to what ``max_tokens`` leaves."""
        history = self._of_tenant.get(tenant)
        if history is None or history.num_answers < FEWEST:
            history = self._of_all
        return max(1, min(history.expected(num_made) - num_made, max_tokens - num_made))


class _History:
    def __init__(self) -> None:
        self.num_answers = 0
        self._weights = [0.0] * len(BOUNDS)
        self._tokens = [0.0] * len(BOUNDS)  # weight times length
        self._means: list[float] | None = None  # of this bucket and all longer ones; None: to be worked out

    def add(self, num_tokens: int) -> None:
        bucket = min(bisect_left(BOUNDS, num_tokens), len(BOUNDS) - 1)
        self._weights = [FORGETTING * weight for weight in self._weights]
        self._tokens = [FORGETTING * tokens for tokens in self._tokens]
        self._weights[bucket] += 1
        self._tokens[bucket] += num_tokens
        self.num_answers += 1
        self._means = None

    def expected(self, num_made: int) -> int:
        """The mean length of those answers that are longer than ``num_made``; half as much again where none was."""
        if not self.num_answers:
            return max(EXPECTED_AT_FIRST, num_made + num_made // 2)
        if self._means is None:
            self._means = self._mean_of_the_longer()
        bucket = bisect_left(BOUNDS, num_made + 1)
        mean = self._means[bucket] if bucket < len(BOUNDS) else 0.0
        return max(round(mean), num_made + num_made // 2 if mean <= num_made else 0)

    def _mean_of_the_longer(self) -> list[float]:
        weights, tokens = (list(accumulate(reversed(values)))[::-1] for values in (self._weights, self._tokens))
        return [total / weight if weight > 1e-6 else 0.0 for total, weight in zip(tokens, weights, strict=True)]
