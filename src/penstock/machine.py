"""What this host offers a job: processors, memory, mounts.  Reads /proc and starts nothing."""

from __future__ import annotations

import os
import re

__all__ = ["facts"]

# File systems without files of anyone's: what the kernel shows of itself.
VIRTUAL = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs",
    "securityfs", "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip
MOST_MOUNTS = 200  # a container host has thousands; the job's files lie on few


def facts() -> list[tuple[str, str]]:
    """(key, value) for notes: cpus, memory_bytes, and one mount for each file system, as
    "MOUNT POINT<tab>TYPE<tab>SOURCE".  What cannot be read is left out."""
    known = [("cpus", str(len(os.sched_getaffinity(0))))]
    memory_bytes = _memory_bytes()
    if memory_bytes:
        known.append(("memory_bytes", str(memory_bytes)))
    return known + [("mount", "\t".join(mount)) for mount in _mounts()[:MOST_MOUNTS]]


def _memory_bytes() -> int | None:
    """Of the host, or of this process' control group where that is less."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    total = int(found[1]) * 1024 if found else None
    group = re.search(r"^0::(/.*)$", _text("/proc/self/cgroup"), re.MULTILINE)
    folder = group[1].rstrip("/") if group else ""
    while True:
        limit = _text(f"/sys/fs/cgroup{folder}/memory.max").strip()
        if limit.isdigit():
            total = min(total or int(limit), int(limit))
        if not folder:
            return total
        folder = folder.rpartition("/")[0]


def _mounts() -> list[tuple[str, str, str]]:
    """(mount point, type, source); of two at one place the later hides the earlier."""
    mounts = {}
    for line in _text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or len(after.split()) < 2:
            continue
        kind, source = after.split()[:2]
        if kind not in VIRTUAL:
            place = _unescaped(before.split()[4])
            mounts[place] = (place, kind, _unescaped(source))
    return list(mounts.values())


def _unescaped(text: str) -> str:
    r"""The kernel writes a space as \040; a tab stays so, since it divides what we write."""
    plain = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)
    return plain.replace("\t", "\\011").replace("\n", "\\012")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""
