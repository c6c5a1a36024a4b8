"""Prometheus series under ``headway_``. Two sources, never mixed in one series.

The engine's counts are read at scrape time from one ``EngineStats``, so that within a scrape admitted = finished +
running + waiting. Times and tokens are recorded as answers are delivered, with times as arguments.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headway.observe.histogram import HistogramCounts
from headway.observe.stats import E2E_BUCKETS, ITL_BUCKETS, TTFT_BUCKETS, EngineStats

Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


class Metrics:
    """One registry for one served model."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self.registry.register(_EngineCollector(model, stats))
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", TTFT_BUCKETS)
        self._itl = self._histogram("inter_token_latency_seconds", "Between two deliveries of tokens.", ITL_BUCKETS)
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "Mean time per token after the first, by answer.", ITL_BUCKETS
        )
        self._e2e = self._histogram("e2e_request_seconds", "From arrival to the last token.", E2E_BUCKETS)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended sequences.")
        self._generated_tokens = self._counter("generated_tokens", "Generated tokens of ended sequences.")
        self._refused = Counter(
            "headway_requests_refused", "HTTP requests refused, by code.", ["model", "reason"], registry=self.registry
        )

    def refused(self, reason: str) -> None:
        self._refused.labels(self._model, reason).inc()

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def token_gap(self, seconds: float) -> None:
        self._itl.observe(seconds)

    def ended(self, prompt_tokens: int, completion_tokens: int, e2e_s: float, ttft_s: float | None) -> None:
        """A sequence reached its last token or was cut; ``ttft_s`` is None when it had no token."""
        self._prompt_tokens.inc(prompt_tokens)
        self._generated_tokens.inc(completion_tokens)
        self._e2e.observe(e2e_s)
        if ttft_s is not None and completion_tokens > 1:
            self._tpot.observe((e2e_s - ttft_s) / (completion_tokens - 1))

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"headway_{name}", documentation, ["model"], registry=self.registry, buckets=buckets)
        return histogram.labels(self._model)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"headway_{name}", documentation, ["model"], registry=self.registry).labels(self._model)


class _EngineCollector(Collector):
    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self._model = model
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield self._family(GaugeMetricFamily, "requests_running", "Sequences in the running batch.", stats.num_running)
        yield self._family(GaugeMetricFamily, "requests_waiting", "Sequences in the queue.", stats.num_waiting)
        yield self._family(CounterMetricFamily, "requests_admitted", "Sequences admitted.", stats.num_admitted)
        yield self._family(CounterMetricFamily, "preemptions", "Sequences that lost blocks.", stats.num_preemptions)
        yield self._family(CounterMetricFamily, "steps", "Engine steps.", stats.num_steps)
        yield self._by_label(CounterMetricFamily, "requests_finished", "Sequences ended.", "reason", stats.finished)
        yield self._by_label(GaugeMetricFamily, "kv_blocks", "KV blocks.", "state", stats.kv_blocks)
        if stats.step_time_error is not None and stats.step_time_bias is not None:
            error, bias = "Of the last steps' predicted time.", "The same with its sign: above 0 for slower steps."
            yield self._family(GaugeMetricFamily, "step_time_relative_error", error, stats.step_time_error)
            yield self._family(GaugeMetricFamily, "step_time_relative_bias", bias, stats.step_time_bias)
        if stats.ttft_error is not None and stats.ttft_bias is not None:
            error, bias = "Of the last first tokens' predicted time.", "The same with its sign: above 0 for later ones."
            yield self._family(GaugeMetricFamily, "ttft_relative_error", error, stats.ttft_error)
            yield self._family(GaugeMetricFamily, "ttft_relative_bias", bias, stats.ttft_bias)
        yield self._deadlines(stats.deadline_outcomes)
        cached = {"hit": stats.num_cached_tokens, "miss": stats.num_prompt_tokens - stats.num_cached_tokens}
        found = "Prompt tokens found in the prefix cache, and computed."
        yield self._by_label(CounterMetricFamily, "prefix_cache_tokens", found, "result", cached)
        yield self._family(CounterMetricFamily, "kv_evictions", "Cached KV blocks given up.", stats.num_evictions)
        moved = "KV blocks to be saved to disk and loaded from it, and those of both that failed."
        yield self._by_label(CounterMetricFamily, "kv_disk_transfers", moved, "kind", stats.disk_transfers)
        if stats.queue_seconds is not None:
            yield self._histogram("queue_seconds", "From admission to the first step.", stats.queue_seconds)
        if stats.step_seconds is not None:
            yield self._histogram("step_seconds", "What the device spent on a step.", stats.step_seconds)

    def _histogram(self, name: str, documentation: str, counts: HistogramCounts) -> Metric:
        family = HistogramMetricFamily(f"headway_{name}", documentation, labels=["model"])
        bounds = [*map(floatToGoString, counts.bounds), "+Inf"]
        family.add_metric([self._model], list(zip(bounds, accumulate(counts.counts), strict=True)), counts.total)
        return family

    def _deadlines(self, outcomes: Mapping[tuple[bool, bool], int]) -> Metric:
        """Whether first tokens were in time for their deadline, by what was expected. A false refusal, had it been one,
        is expected late and in time."""
        labels = ["model", "expected", "actual"]
        family = CounterMetricFamily("headway_deadlines", "First tokens with a deadline.", labels=labels)
        for expected in (False, True):
            for actual in (False, True):
                names = ["late" if is_late else "in_time" for is_late in (expected, actual)]
                family.add_metric([self._model, *names], outcomes.get((expected, actual), 0))
        return family

    def _by_label(self, kind: Kind, name: str, documentation: str, label: str, values: Mapping[str, int]) -> Metric:
        family = kind(f"headway_{name}", documentation, labels=["model", label])
        for value, count in values.items():
            family.add_metric([self._model, value], count)
        return family

    def _family(self, kind: Kind, name: str, documentation: str, value: float) -> Metric:
        family = kind(f"headway_{name}", documentation, labels=["model"])
        family.add_metric([self._model], value)
        return family
