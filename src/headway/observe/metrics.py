"""Prometheus series under ``headway_``. Two sources, never mixed in one series.

The engine's counts are read at scrape time from one ``EngineStats``, so that within a scrape admitted = finished +
running + waiting. Times and tokens are recorded as answers are delivered, with times as arguments.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.observe.stats import EngineStats

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics:
    """One registry for one served model."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model: str, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self.registry.register(_EngineCollector(model, stats))
        self.queue_seconds = self._histogram("queue_seconds", "From admission to the first step.", TTFT_BUCKETS)
        self.step_seconds = self._histogram("step_seconds", "Time of one engine step.", ITL_BUCKETS)
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
        finished = CounterMetricFamily(
            "headway_requests_finished", "Sequences ended, by reason.", labels=["model", "reason"]
        )
        for reason, count in stats.finished.items():
            finished.add_metric([self._model, reason], count)
        yield finished
        blocks = GaugeMetricFamily("headway_kv_blocks", "KV blocks by state.", labels=["model", "state"])
        for state, count in stats.kv_blocks.items():
            blocks.add_metric([self._model, state], count)
        yield blocks

    def _family(
        self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, documentation: str, value: float
    ) -> Metric:
        family = kind(f"headway_{name}", documentation, labels=["model"])
        family.add_metric([self._model], value)
        return family
