"""CPU time that the recorder adds to possibly blocking calls: with and without blocking.

By CPU time of the process (getrusage), so that other programs on the machine hardly count.
"""

import subprocess
from pathlib import Path

from bars import Bar, Pairs, report, rounds, scratch

PAIRS = 31

# Nothing measurable: a nanosecond or two beside an atomic operation, a tenth of an idle system
# call.
NO_CALL_NS = 2
SHARE = 0.1
BLOCKED_NS = 1000

# name of the case in waits.c: (the calls, calls a round)
READY = {
    "semaphore": ("sem_post and sem_wait that take 16 ns", 1_000_000),
    "signal": ("pthread_cond_signal, nobody waits", 3_000_000),
    "mutex": ("pthread_mutex_lock and unlock, free", 2_000_000),
}
READY_IN_KERNEL = {
    "poll": ("poll of a pipe that is ready", 200_000),
    "select": ("select of a pipe that is ready", 200_000),
    "epoll": ("epoll_wait of a pipe that is ready", 300_000),
    "futex-wake": ("syscall(SYS_futex) that wakes nobody", 500_000),
    "futex-wait": ("syscall(SYS_futex) on a word that has changed", 500_000),
}
# Each case waits twice a call: a thread asks, the other thread answers.
BLOCKED = {
    "sleep": ("nanosleep of 60 µs, recorded", 1_500, 1),
    "semaphores": ("sem_wait that blocks, mostly shorter than what is recorded", 8_000, 2),
    "conditions": ("pthread_cond_wait that blocks, mostly shorter", 8_000, 2),
}


def main() -> list[Bar]:
    program = scratch("waits") / "waits"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-Wall", "-pthread", "-o", program, source, "-ldl"], check=True)
    bars = []
    for name, (what, calls) in READY.items():
        measured = rounds(program, name, calls, PAIRS)
        bars.append(_bar(what, f"≤ {NO_CALL_NS} ns", measured, measured.difference <= NO_CALL_NS))
    for name, (what, calls) in READY_IN_KERNEL.items():
        measured = rounds(program, name, calls, PAIRS)
        is_met = measured.ratio <= 1 + SHARE
        bars.append(_bar(what, f"≤ {SHARE:.0%}", measured, is_met))
    for name, (what, calls, n_waits) in BLOCKED.items():
        measured = rounds(program, name, calls, PAIRS)
        is_met = measured.difference / n_waits <= BLOCKED_NS
        bars.append(_bar(what, f"≤ {BLOCKED_NS} ns a wait", measured, is_met, n_waits))
    return bars


def _bar(what: str, limit: str, measured: Pairs, is_met: bool, n: int = 1) -> Bar:
    added, low, high = (ns / n for ns in (measured.difference, *measured.spread))
    return Bar(
        what=f"{what}: CPU time added",
        bar=limit,
        measured=f"{added:+.1f} ns ({low:.1f} to {high:.1f}), ×{measured.ratio:.3f}",
        is_met=is_met,
        command="python lab/benchmarks/waits.py",
    )


if __name__ == "__main__":
    report(main())
