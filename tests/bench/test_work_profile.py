from itertools import count

import pytest
from rich.console import Console

from fakes import FakeExecutor, make_info
from headway.bench.offline import OfflineEngine, Work
from headway.bench.work_profile import LEGEND, WorkProfile, profile_json, profile_table, profile_work, roofline
from headway.config import SchedulerConfig
from profile_fakes import QKV, FakeProfiler, Limits, Op

DOWN = Op("down", 60, 0.1, 200_000_000, 60_000_000_000, 60_000_000_000)
ATTENTION = Op("attention", 60, 0.05, 100_000_000, 1_000_000_000)
EMBED = Op("embed", 2, 0.05, 4_000_000)
PROFILE = WorkProfile(Work(1, 32, 2), 2, 0.5, [EMBED, QKV, ATTENTION, DOWN], Limits())


def test_limits_reached_are_rates_over_measured_rates() -> None:
    reached = roofline(QKV, Limits())
    assert (reached.of_read, reached.of_int8, reached.nearer) == (pytest.approx(0.5), pytest.approx(0.25), "read")
    reached = roofline(DOWN, Limits())
    assert (reached.of_read, reached.of_int8, reached.nearer) == (pytest.approx(0.1), pytest.approx(0.6), "int8")
    assert roofline(Op("head", 0, 0.0, 0), Limits()).of_read == 0


def test_what_no_operation_accounts_for_is_left_of_the_wall_time() -> None:
    assert PROFILE.rest_s == pytest.approx(0.1)


def test_only_the_profiled_rounds_are_between_start_and_stop() -> None:
    seconds = count()
    executor = FakeExecutor(make_info())
    engine = OfflineEngine(executor, SchedulerConfig(), clock=lambda: float(next(seconds)))
    engine.run(Work(1, 8, 3))
    profiler = FakeProfiler(executor)
    profile = profile_work(engine, Work(1, 8, 3), 2, profiler)
    assert profiler.steps_at == [3, 9] and profile.rounds == 2
    assert profile.wall_s == pytest.approx(sum(engine.run(Work(1, 8, 3)).total_s for _ in range(2)))


def test_the_table_is_of_one_round_and_fits_a_terminal() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(profile_table(PROFILE), LEGEND)
    lines = captured.get().splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert cells["qkv"] == ["30", "100.00", "40.0%", "1000", "10", "50%", "25", "250", "25%", "read"]
    assert cells["down"][-2:] == ["60%", "int8"]
    assert cells["attention"][-2:] == ["20", "read"]  # its operands are no int8
    assert cells["embed"][-1] == "0%"
    assert cells["scheduler,"] == ["Python", "50.00", "20.0%"]
    assert "a round of 250.0 ms" in lines[0] and any("10.0 from memory" in line for line in lines)
    assert len(lines) == 14, "nothing is wrapped"


def test_json_has_sums_of_all_rounds() -> None:
    value = profile_json(PROFILE)
    assert value["rounds"] == 2 and value["wall_s"] == 0.5 and value["rest_s"] == pytest.approx(0.1)
    assert value["operations"][1]["label"] == "qkv" and value["operations"][1]["seconds"] == 0.2
    assert value["operations"][1]["of_read"] == pytest.approx(0.5)
    assert value["limits"]["int8_ops_per_s"] == 1e12
