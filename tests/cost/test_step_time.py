"""The step-time model: fits what was measured, never falls, learns."""

import math
import random

import pytest

from headway.core.step_time import StepShape
from headway.cost.step_time import NUM_FEATURES, StepTimeModel, features

TRUE_COSTS = (2e-3, 3e-4, 1e-4, 1.5e-4, 1.2e-4, 1.3e-4, 2e-5, 1e-5, 2e-8, 5e-8)


def true_seconds(shape: StepShape) -> float:
    return sum(cost * value for cost, value in zip(TRUE_COSTS, features(shape), strict=True))


def prompt(start: int, num_tokens: int) -> StepShape:
    return StepShape().plus(start, num_tokens, True)


PROBES = [
    *(StepShape.of_decodes(n, context) for n in (1, 4, 16, 64) for context in (16, 500)),
    *(prompt(start, n) for start, n in ((0, 16), (0, 64), (1000, 64), (0, 256), (0, 512))),
]


def fitted() -> StepTimeModel:
    return StepTimeModel.fitted([(shape, true_seconds(shape)) for shape in PROBES])


def random_shape(rng: random.Random) -> StepShape:
    shape = StepShape()
    for _ in range(rng.randint(1, 40)):
        shape = shape.plus(rng.randint(0, 900), 1, True)
    return shape.plus(rng.randint(0, 900), rng.randint(1, 400), False) if rng.random() < 0.5 else shape


def test_a_fit_predicts_the_probes_and_the_steps_between_them():
    model = fitted()
    for shape in PROBES:
        assert model.seconds(shape) == pytest.approx(true_seconds(shape), rel=0.05)
    rng = random.Random(1)
    for _ in range(200):
        shape = random_shape(rng)
        assert model.seconds(shape) == pytest.approx(true_seconds(shape), rel=0.15), shape


def test_more_of_anything_never_takes_less_time():
    rng, model = random.Random(2), fitted()
    for round_ in range(300):
        shape = random_shape(rng)
        more = shape._replace(**{rng.choice(StepShape._fields): max(shape) + rng.randint(1, 50)})
        assert model.seconds(more) >= model.seconds(shape), (round_, shape, more)
        model.observe(shape, true_seconds(shape) * rng.uniform(0.2, 5))


def test_it_follows_a_machine_that_becomes_slower():
    rng, model = random.Random(3), fitted()
    for _ in range(400):
        shape = random_shape(rng)
        model.observe(shape, 1.4 * true_seconds(shape))
    assert model.mean_error < 0.1
    for _ in range(50):
        shape = random_shape(rng)
        assert model.seconds(shape) == pytest.approx(1.4 * true_seconds(shape), rel=0.2), shape


def test_its_error_is_known_with_its_sign():
    model = fitted()
    shape = StepShape.of_decodes(8, 100)
    model.observe(shape, 2 * model.seconds(shape))
    assert (model.mean_error, model.mean_bias, model.num_observed) == (0.5, 0.5, 1)


def test_one_wild_step_changes_little_and_none_spoils_the_model():
    model, shape = fitted(), StepShape.of_decodes(8, 100)
    before = model.seconds(shape)
    model.observe(shape, 1000 * before)
    assert model.seconds(shape) < 1.1 * before
    model.observe(shape, 0.0)
    assert math.isfinite(model.seconds(shape)) and model.num_observed == 1


def test_a_few_probes_are_enough_to_begin_with():
    model = StepTimeModel.fitted([(StepShape.of_decodes(1, 1), 0.2)])
    assert model.seconds(StepShape.of_decodes(1, 1)) == pytest.approx(0.2, rel=0.05)
    assert model.seconds(prompt(0, 500)) > model.seconds(prompt(0, 1))
    with pytest.raises(ValueError, match="at least one"):
        StepTimeModel.fitted([])


@pytest.mark.parametrize("costs", [[1.0] * (NUM_FEATURES - 1), [*[1.0] * (NUM_FEATURES - 1), -1.0]])
def test_costs_are_checked(costs):
    with pytest.raises(ValueError, match="none below 0"):
        StepTimeModel(costs)
