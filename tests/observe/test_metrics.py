from headway.observe.histogram import Histogram
from headway.observe.metrics import Metrics
from headway.observe.stats import ITL_BUCKETS, TTFT_BUCKETS, EngineStats


def series(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_engine_counts_come_from_one_snapshot() -> None:
    snapshots = iter(
        EngineStats(
            num_admitted=6 + i,
            num_running=2,
            num_waiting=1,
            finished={"stop": 2 + i, "abort": 1},
            kv_blocks={"used": 3, "free": 5},
            num_steps=9,
            num_preemptions=4,
        )
        for i in range(2)
    )
    metrics = Metrics("m", lambda: next(snapshots))
    for i in range(2):
        values = series(metrics)
        assert values['headway_requests_admitted_total{model="m"}'] == 6 + i
        finished = sum(value for name, value in values.items() if name.startswith("headway_requests_finished_total"))
        assert finished + 2 + 1 == 6 + i
    assert values['headway_requests_finished_total{model="m",reason="abort"}'] == 1
    assert values['headway_kv_blocks{model="m",state="free"}'] == 5
    assert values['headway_steps_total{model="m"}'] == 9
    assert values['headway_preemptions_total{model="m"}'] == 4


def test_transfers_to_disk_are_shown_where_there_is_that_tier() -> None:
    name = "headway_kv_disk_transfers_total"
    values = series(Metrics("m", lambda: EngineStats(disk_transfers={"save": 5, "load": 3, "failed": 1})))
    assert [values[f'{name}{{kind="{kind}",model="m"}}'] for kind in ("save", "load", "failed")] == [5, 3, 1]
    assert not any(key.startswith(name) for key in series(Metrics("m", EngineStats)))


def test_one_answer_is_in_each_series_once() -> None:
    metrics = Metrics("m", EngineStats)
    metrics.first_token(0.5)
    metrics.token_gap(0.25)
    metrics.token_gap(0.5)
    metrics.ended(prompt_tokens=10, completion_tokens=4, e2e_s=2.0, ttft_s=0.5)
    values = series(metrics)
    assert values['headway_time_to_first_token_seconds_sum{model="m"}'] == 0.5
    assert values['headway_inter_token_latency_seconds_count{model="m"}'] == 2
    assert values['headway_time_per_output_token_seconds_sum{model="m"}'] == 0.5
    assert values['headway_e2e_request_seconds_sum{model="m"}'] == 2.0
    assert values['headway_prompt_tokens_total{model="m"}'] == 10
    assert values['headway_generated_tokens_total{model="m"}'] == 4


def test_what_never_happened_is_never_observed() -> None:
    metrics = Metrics("m", EngineStats)
    metrics.ended(prompt_tokens=10, completion_tokens=0, e2e_s=2.0, ttft_s=None)
    metrics.ended(prompt_tokens=10, completion_tokens=1, e2e_s=2.0, ttft_s=2.0)
    values = series(metrics)
    assert values['headway_time_per_output_token_seconds_count{model="m"}'] == 0
    assert values['headway_time_to_first_token_seconds_count{model="m"}'] == 0


def test_bucket_bounds() -> None:
    text = Metrics("m", EngineStats).render().decode()
    for name, buckets in (("time_to_first_token", TTFT_BUCKETS), ("inter_token_latency", ITL_BUCKETS)):
        for bound in buckets:
            assert f'headway_{name}_seconds_bucket{{le="{float(bound)}",model="m"}}' in text


def test_the_engines_histograms_are_shown_cumulated() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    counts = histogram.snapshot()
    histogram.observe(0.05)
    assert counts.counts == (2, 1, 1)
    values = series(Metrics("m", lambda: EngineStats(step_seconds=counts)))
    name = "headway_step_seconds"
    buckets = [values[f'{name}_bucket{{le="{bound}",model="m"}}'] for bound in ("0.1", "1.0", "+Inf")]
    assert buckets == [2, 3, 4] and values[f'{name}_count{{model="m"}}'] == 4
    assert values[f'{name}_sum{{model="m"}}'] == 3.65


def test_registries_are_apart() -> None:
    first, second = Metrics("a", EngineStats), Metrics("b", EngineStats)
    first.refused("queue_full")
    assert 'headway_requests_refused_total{model="a",reason="queue_full"} 1.0' in first.render().decode()
    assert "queue_full" not in second.render().decode()
