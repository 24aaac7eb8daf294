"""Two hosts on one machine, for tests: network, names and processes of their own, one cable.

The cable is a veth pair; both see the same file system, as nodes of a cluster do.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["WHY_NO_HOSTS", "Host", "two_hosts"]


@dataclass(frozen=True)
class Host:
    """name: what its processes are told.  address: on the cable.  process: that holds it open."""

    name: str
    address: str
    process: int

    def command(self, words: Sequence[str | Path], sees_processes: bool = False) -> list[str]:
        """The same command, run there.  sees_processes: those outside, so that it can enter the
        other host, as by ssh."""
        own = ["-n", "-u"] if sees_processes else ["-n", "-u", "-p", "-m"]
        return ["nsenter", "-t", str(self.process), *own, "--", *map(str, words)]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts for as long as the block runs; the kernel takes cable and names back with them."""
    holders: list[subprocess.Popen[str]] = []
    try:
        found = []
        for number, name in enumerate(("node-a", "node-b")):
            # Ready when it has said so, and there until its standard input ends.
            holder = subprocess.Popen(
                ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child",
                 "sh", "-c", f"hostname {name} && ip link set lo up && echo ready && cat"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            holders.append(holder)
            assert holder.stdout
            assert holder.stderr
            if holder.stdout.readline() != "ready\n":
                raise OSError(holder.stderr.read().strip())
            inside = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0]
            found.append(Host(name, f"10.99.7.{number + 1}", int(inside)))
        ends = [f"pstk{os.getpid() % 10**6}{end}" for end in "ab"]
        _ip("link", "add", "name", ends[0], "type", "veth", "peer", "name", ends[1])
        for end, host in zip(ends, found, strict=True):
            _ip("link", "set", end, "netns", str(host.process), "name", "cable")
            for words in (
                ["address", "add", f"{host.address}/24", "dev", "cable"],
                ["link", "set", "cable", "up"],
            ):
                subprocess.run(host.command(["ip", *words]), check=True)
        yield found[0], found[1]
    finally:
        for holder in holders:
            holder.kill()  # and, with it, all that runs in its namespaces
            holder.communicate()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _why_not() -> str:
    for program in ("ip", "unshare", "nsenter"):
        if not shutil.which(program):
            return f"no {program} here"
    try:
        with two_hosts() as (one, other):
            ping = ["ip", "route", "get", other.address]
            subprocess.run(one.command(ping), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no namespaces may be made here: {error}"
    return ""


WHY_NO_HOSTS = _why_not()
