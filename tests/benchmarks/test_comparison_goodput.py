"""Which servers run at which rates, with runs that are made up."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from comparison.goodput import GoodputComparison, LoadPlan
from headway.bench.measures import Objectives, RequestRecord, summarise
from headway.bench.sweep import Judgement
from headway.errors import BenchError

OBJECTIVES = Objectives(0.5, 0.05)


@dataclass(frozen=True)
class FakeArm:
    """Keeps up with ``capacity`` requests a second."""

    engine: str
    format: str
    capacity: float

    def __str__(self) -> str:
        return f"{self.engine} {self.format}"


@dataclass
class FakeServer:
    arm: FakeArm
    log: list[str]
    url: str = "http://127.0.0.1:1"
    has_ended: bool = False
    is_running: bool = field(default=False)

    def resume(self) -> None:
        self.is_running = True

    def pause(self) -> None:
        self.is_running = False

    def close(self) -> None:
        self.log.append(f"{self.arm} closed")


class FakeBench:
    def __init__(self, server: FakeServer, rate: float) -> None:
        self._server, self._rate = server, rate

    async def run(self, model: str | None, progress_for: Any) -> tuple[str, list[Any]]:
        assert self._server.is_running
        arm = self._server.arm
        self._server.log.append(f"{arm} {self._rate:g}")
        if arm.capacity < 0:
            raise BenchError("it answers nothing")
        ttft_s = 0.1 if self._rate <= arm.capacity else 5.0
        record = RequestRecord(0.0, 1, 2, sent_s=0.0, event_s=[ttft_s, ttft_s + 0.01], end_s=ttft_s + 0.01)
        record.num_output_tokens = 2
        return "m", [summarise(self._rate, [record], [], 1.0, OBJECTIVES, 0.025)]


@pytest.fixture
def log() -> list[str]:
    return []


def comparison(monkeypatch: pytest.MonkeyPatch, log: list[str], *arms: FakeArm) -> GoodputComparison:
    servers: dict[Any, Any] = {arm: FakeServer(arm, log, url=f"http://127.0.0.1/{arm}") for arm in arms}
    by_url = {server.url: server for server in servers.values()}
    monkeypatch.setattr(LoadPlan, "bench", lambda self, url, rate, seed: FakeBench(by_url[url], rate))
    plan = LoadPlan([1.0, 2.0, 3.0, 4.0, 5.0], 10.0, 8, 2, 0.0, Judgement.of(OBJECTIVES, None), 5.0)
    return GoodputComparison(servers, plan, lambda text: None, lambda text: None, {})


def test_a_server_is_done_after_two_misses_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    compared = comparison(monkeypatch, log, FakeArm("headway", "Q4_1", 4), FakeArm("vllm", "bf16", 1))
    found = compared.run(7)
    assert found.goodput("headway Q4_1") == 4 and found.goodput("vllm bf16") == 1
    assert [line for line in log if line.startswith("vllm")] == ["vllm bf16 1", "vllm bf16 2", "vllm bf16 3"]
    assert [line for line in log if line.startswith("headway")][-1] == "headway Q4_1 5"


def test_the_order_rotates_from_rate_to_rate(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    compared = comparison(monkeypatch, log, FakeArm("headway", "Q4_1", 9), FakeArm("vllm", "bf16", 9))
    compared.run(7)
    assert log[:4] == ["headway Q4_1 1", "vllm bf16 1", "vllm bf16 2", "headway Q4_1 2"]


def test_formats_far_behind_are_not_measured_again(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    slow, fast = FakeArm("llama.cpp", "Q4_1", 1), FakeArm("llama.cpp", "Q8_0", 3)
    compared = comparison(monkeypatch, log, FakeArm("headway", "Q4_1", 1), slow, fast)
    compared.run(7)
    assert "llama.cpp Q4_1 closed" in log
    assert [str(arm) for arm in compared.servers] == ["headway Q4_1", "llama.cpp Q8_0"]


def test_a_server_that_fails_is_noted_and_ended(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    compared = comparison(monkeypatch, log, FakeArm("vllm", "bf16", -1), FakeArm("headway", "Q4_1", 9))
    found = compared.run(7)
    assert compared.did_not_run == {"vllm bf16": "it answers nothing"}
    assert "vllm bf16 closed" in log
    assert list(found.runs) == ["headway Q4_1"] and found.goodput("headway Q4_1") == 5


def test_between_turns_no_server_runs(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    compared = comparison(monkeypatch, log, FakeArm("headway", "Q4_1", 9), FakeArm("vllm", "bf16", 9))
    compared.run(7)
    assert not any(server.is_running for server in compared.servers.values())  # type: ignore[attr-defined]
