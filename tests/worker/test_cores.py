"""Which cores are ours, on machines and in containers laid out as files."""

import math
import os

import pytest

from headway.config import RuntimeConfig
from headway.errors import ConfigError
from headway.worker import cores
from headway.worker.cores import granted_cores, pinned_cpus, usable_cores
from headway.worker.load import make_backend


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "250000 100000\n"}, 0.5),
        ("0::/a\n", {"b/cpu.max": "100000 100000\n"}, math.inf),  # another's
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "50000\n"},
            3.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ("1:cpu:/not/seen/here\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.0),
    ],
)
def test_a_quota_of_the_control_group_or_one_around_it_counts(own, files, cores, tmp_path):
    write(tmp_path, {"own": own})
    assert granted_cores(write(tmp_path / "tree", files | {"x": ""}), tmp_path / "own") == cores


def test_a_system_without_control_groups_grants_all(tmp_path):
    assert granted_cores(tmp_path, tmp_path / "none") == math.inf


@pytest.mark.parametrize(("quota", "threads"), [(math.inf, 8), (64.0, 8), (2.9, 2), (0.4, 1)])
def test_threads_are_no_more_than_mask_and_quota_allow(quota, threads, monkeypatch):
    monkeypatch.setattr(cores, "allowed_cpus", lambda: list(range(8)))
    monkeypatch.setattr(cores, "granted_cores", lambda: quota)
    assert usable_cores() == threads


def siblings(root, *groups):
    return write(root, {f"cpu{cpu}/topology/thread_siblings_list": group for group in groups for cpu in expand(group)})


def expand(group):
    low, _, high = group.partition("-")
    return range(int(low), int(high) + 1) if high else [int(cpu) for cpu in group.split(",")]


@pytest.mark.parametrize(
    ("groups", "allowed", "num_threads", "pinned"),
    [
        (["0,4", "1,5", "2,6", "3,7"], range(8), 5, [0, 1, 2, 3, 4]),
        (["0-1", "2-3", "4-5"], range(6), 4, [0, 2, 4, 1]),  # neighbours share a core
        (["0-1", "2-3", "4-5"], [1, 4, 5], 3, [1, 4, 5]),  # 1 is alone on its core here
        ([], [3, 9], 2, [3, 9]),  # nothing is known of the cores
        (["0,1"], [0], 1, [0]),
    ],
)
def test_every_core_is_used_before_any_is_used_twice(groups, allowed, num_threads, pinned, tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "allowed_cpus", lambda: list(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    assert list(pinned_cpus(num_threads, siblings(tmp_path, *groups))) == pinned


def test_more_threads_than_cores_cannot_be_pinned(monkeypatch):
    monkeypatch.setattr(cores, "allowed_cpus", lambda: [0, 1])
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    with pytest.raises(ConfigError, match=r"runtime\.threads is 3 and this process may use 2: lower"):
        make_backend(RuntimeConfig(threads=3, pin_threads=True))


def test_a_system_that_cannot_pin_says_so(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(ConfigError, match="Linux only: leave it false"):
        make_backend(RuntimeConfig(threads=1, pin_threads=True))
