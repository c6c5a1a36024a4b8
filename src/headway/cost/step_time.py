"""Seconds of a step from its shape: started from a few measured steps, corrected by every step that follows."""

from collections.abc import Sequence

from headway.core.step_time import StepShape

# Between these numbers of tokens in a step, one more costs the same. The first tokens are all but free, since the
# weights are read once for all of them; then products cost more and more of the time.
KNOTS = (1, 4, 16, 64, 256)

FIT_ROUNDS = 400
LEARNING_RATE = 0.1
MOST_SURPRISE = 0.5  # one step that took ten times as long says little about the next
ERROR_MEMORY = 0.02  # the weight of the last step in the mean error


class StepTimeModel:
    """seconds = sum of cost * feature, every cost at least 0: so more work never takes less time.

        features   1 for the step, tokens up to each knot and beyond the last, requests, samples, attended, context

    ``observe`` shares a step's surprise out to the costs by the part each had in the prediction (a normalised
    exponentiated gradient): costs stay positive, and none needs a scale of its own. Thread-confined.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        """``costs`` in seconds for one of each feature, in the order above."""
        if len(costs) != NUM_FEATURES or min(costs) < 0:
            raise ValueError(f"a step-time model has {NUM_FEATURES} costs, none below 0")
        self._costs = list(costs)
        self.mean_error = 0.0  # of the absolute value of (measured - predicted) / measured, lately
        self.mean_bias = 0.0  # the same, signed: above 0 when steps take longer than predicted
        self.num_observed = 0

    @classmethod
    def fitted(cls, measured: Sequence[tuple[StepShape, float]]) -> "StepTimeModel":
        """The model nearest to these steps, by squared relative error (coordinate descent, costs at least 0).

        A feature that no step had, or that explains nothing, gets a small cost, to be corrected later. ValueError when
        there is no step.
        """
        if not measured:
            raise ValueError("a step-time model needs at least one measured step")
        rows = [[value / seconds for value in features(shape)] for shape, seconds in measured]
        costs = _nearest(rows)
        fastest = min(seconds for _, seconds in measured)
        largest = [max(features(shape)[j] for shape, _ in measured) for j in range(NUM_FEATURES)]
        floors = [1e-3 * fastest / value if value else 0.0 for value in largest]
        return cls(_with_unseen([max(cost, floor) for cost, floor in zip(costs, floors, strict=True)], largest))

    def seconds(self, shape: StepShape) -> float:
        return sum(map(float.__mul__, self._costs, features(shape)))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Nothing is learned from a step that took no time, as in a test."""
        if seconds <= 0:
            return
        parts = list(map(float.__mul__, self._costs, features(shape)))
        predicted = sum(parts)
        self._remember((seconds - predicted) / seconds)
        if predicted <= 0:
            return
        surprise = max(-MOST_SURPRISE, min(MOST_SURPRISE, (seconds - predicted) / predicted))
        step = LEARNING_RATE * surprise * predicted / sum(part * part for part in parts)
        self._costs = [cost * max(0.5, 1 + step * part) for cost, part in zip(self._costs, parts, strict=True)]

    def _remember(self, error: float) -> None:
        self.num_observed += 1
        weight = max(ERROR_MEMORY, 1 / self.num_observed)
        self.mean_error += weight * (abs(error) - self.mean_error)
        self.mean_bias += weight * (error - self.mean_bias)


def features(shape: StepShape) -> tuple[float, ...]:
    tokens = shape.num_tokens
    return (
        1.0,
        *(float(max(0, min(tokens, upper) - lower)) for lower, upper in _SPANS),
        float(shape.num_requests),
        float(shape.num_samples),
        float(shape.num_attended),
        float(shape.num_context),
    )


_SPANS = tuple(zip(KNOTS, (*KNOTS[1:], 1 << 62), strict=True))
NUM_FEATURES = 1 + len(_SPANS) + 4


def _nearest(rows: Sequence[Sequence[float]]) -> list[float]:
    """Costs >= 0 for which ``rows @ costs`` is nearest to 1."""
    costs = [0.0] * NUM_FEATURES
    left = [1.0] * len(rows)
    for _ in range(FIT_ROUNDS):
        for j in range(NUM_FEATURES):
            column = [row[j] for row in rows]
            square = sum(value * value for value in column)
            if square == 0:
                continue
            change = max(-costs[j], sum(value * rest for value, rest in zip(column, left, strict=True)) / square)
            costs[j] += change
            left = [rest - change * value for rest, value in zip(left, column, strict=True)]
    return costs


def _with_unseen(costs: list[float], largest: Sequence[float]) -> list[float]:
    """Spans of tokens that no step reached cost what the span before them does."""
    for j in range(2, 1 + len(_SPANS)):
        if largest[j] == 0:
            costs[j] = costs[j - 1]
    return costs
