"""Which cores this process may compute on, and which of them threads are pinned to."""

import os
from collections.abc import Sequence
from pathlib import Path

from headway.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Cores this process may keep busy: those in its affinity mask (cpusets included), or the share of them that its
    control group grants where that is less; at least one. In a container they are fewer than the machine's."""
    return max(1, int(min(len(allowed_cpus()), granted_cores())))


def allowed_cpus() -> list[int]:
    """The processors in this thread's affinity mask, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def granted_cores(root: Path = CGROUP, own: Path = OWN_CGROUP) -> float:
    """The least CPU quota of this process's control group and those around it, in cores; infinite without any.

    Beyond it all threads of a step are stopped at once, for tens of milliseconds.
    """
    quotas = [float("inf")]
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root  # version 1 has a tree for each set of controllers
        group = base / path.strip("/")
        quotas += [
            quota for folder in (group, *group.parents) if folder.is_relative_to(base) and (quota := _quota(folder))
        ]
    return min(quotas)


def _quota(group: Path) -> float | None:
    """``cpu.max`` is "quota period" or "max period" (version 2); version 1 has a file for each, and -1 for none."""
    names = ("cpu.max",) if (group / "cpu.max").exists() else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        words = " ".join((group / name).read_text() for name in names).split()
    except OSError:
        return None
    quota, period = words
    return None if quota in ("max", "-1") else int(quota) / int(period)


def pinned_cpus(num_threads: int, topology: Path = TOPOLOGY) -> Sequence[int]:
    """A processor for each thread, of those this process may use: one of each core before any core's second.

    ConfigError where there are not enough, or where threads cannot be pinned.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("runtime.pin_threads works on Linux only: leave it false on this system")
    cpus = allowed_cpus()
    if num_threads > len(cpus):
        raise ConfigError(
            f"runtime.pin_threads needs a core for each thread, but runtime.threads is {num_threads} and this process "
            f"may use {len(cpus)}: lower runtime.threads, or leave pin_threads false"
        )
    return sorted(cpus, key=lambda cpu: (_place_in_core(cpu, cpus, topology), cpu))[:num_threads]


def _place_in_core(cpu: int, cpus: Sequence[int], topology: Path) -> int:
    """0 for the first of ``cpus`` that is a hardware thread of its core, 1 for the second."""
    siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return [other for other in _cpu_list(siblings.read_text()) if other in cpus].index(cpu)
    except (OSError, ValueError):
        return 0


def _cpu_list(text: str) -> list[int]:
    """``0,64`` or ``0-1``."""
    ranges = [part.split("-") for part in text.strip().split(",")]
    return [cpu for bounds in ranges for cpu in range(int(bounds[0]), int(bounds[-1]) + 1)]
