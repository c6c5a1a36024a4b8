from headway.observe.stats import EngineStats
from headway.server.readiness import STALL_S, ProgressProbe


def busy(num_steps: int) -> EngineStats:
    return EngineStats(num_steps=num_steps, num_running=1, num_waiting=2)


def test_an_idle_engine_is_ready_for_ever() -> None:
    probe = ProgressProbe()
    assert all(probe.fault(EngineStats(num_steps=7), now) is None for now in (0.0, 1e6, 2e6))


def test_work_without_steps_is_a_stall_after_a_while() -> None:
    probe = ProgressProbe()
    assert probe.fault(busy(7), 100.0) is None
    assert probe.fault(busy(7), 99.9 + STALL_S) is None
    fault = probe.fault(busy(7), 100.0 + STALL_S)
    assert fault is not None and "1 requests running" in fault and "2 waiting" in fault


def test_a_step_or_an_idle_moment_starts_the_count_again() -> None:
    for between in (busy(8), EngineStats(num_steps=7)):
        probe = ProgressProbe()
        assert probe.fault(busy(7), 0.0) is None
        assert probe.fault(between, STALL_S - 1) is None
        assert probe.fault(busy(between.num_steps), STALL_S) is None


def test_long_idleness_is_not_held_against_the_first_work() -> None:
    probe = ProgressProbe()
    assert probe.fault(EngineStats(num_steps=7), 0.0) is None
    assert probe.fault(busy(7), 1e6) is None


def test_a_dead_engine_says_why() -> None:
    fault = ProgressProbe().fault(EngineStats(fault="out of memory"), 0.0)
    assert fault is not None and "out of memory" in fault
