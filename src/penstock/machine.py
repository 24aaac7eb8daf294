"""What this host offers a job: processors, memory, mounts and what lies beneath them.  Reads /proc
and /sys; starts nothing, but `lfs` for a job that begins on Lustre."""

from __future__ import annotations

import os
import re

# As in recorder.py: a job that records itself imports this, and pathlib is slow to import.
# ruff: noqa: PTH110, PTH112, PTH119, PTH120

__all__ = ["facts", "group_moved", "limits_of", "nfs_mounts", "own_group", "striping"]

# File systems without files of anyone's: what the kernel shows of itself.
VIRTUAL = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs",
    "securityfs", "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip
MOST_MOUNTS = 200  # a container host has thousands; the job's files lie on few


def facts(may_start: bool = False) -> list[tuple[str, str]]:
    """(key, value) for notes: cpus, memory_bytes, one mount for each file system, as
    "MOUNT POINT<tab>TYPE<tab>SOURCE", and beneath: what is known of its device, in words.  What
    cannot be read is left out.  may_start: `lfs` may be run for Lustre's striping: not in a job."""
    known = [("cpus", str(len(os.sched_getaffinity(0))))]
    memory_bytes = _memory_bytes()
    if memory_bytes:
        known.append(("memory_bytes", str(memory_bytes)))
    mounts = _mounts()[:MOST_MOUNTS]
    known += [("mount", "\t".join(mount[:3])) for mount in mounts]
    limits = _limits()
    for place, kind, source, numbers in mounts:
        words = _device(numbers) if source.startswith("/") else ""
        if kind == "lustre" and may_start:
            words = _striped(place)
        told = ", ".join(filter(None, (words, limits.get(_whole(numbers)))))
        if told:
            known.append(("beneath", f"{place}\t{told}"))
    return known


def _device(numbers: str) -> str:
    """Of a mount's block device: name, whether it turns, read-ahead, scheduler, queue."""
    name = _whole_name(numbers)
    if not name:
        return ""
    queue = f"/sys/block/{name}/queue"
    turns = {"0": "no seeks", "1": "turns, or does not say"}
    chosen = re.search(r"\[(\S+)\]", _text(f"{queue}/scheduler"))
    words = [name, turns.get(_text(f"{queue}/rotational").strip(), "")]
    for label, file in (("read-ahead", "read_ahead_kb"), ("queue", "nr_requests")):
        value = _text(f"{queue}/{file}").strip()
        if value.isdigit():
            words.append(f"{label} {value}" + (" KiB" if file.endswith("kb") else ""))
    return ", ".join(filter(None, [*words, chosen[1] if chosen else ""]))


def _whole_name(numbers: str) -> str:
    """The device of a partition, or the device itself; "" where there is none."""
    folder = os.path.realpath(f"/sys/dev/block/{numbers}")
    if not folder.startswith("/sys/devices/"):
        return ""
    if os.path.exists(f"{folder}/partition"):
        folder = os.path.dirname(folder)
    return os.path.basename(folder)


def _whole(numbers: str) -> str:
    """The numbers that a control group's limits name: those of the whole device."""
    name = _whole_name(numbers)
    return _text(f"/sys/block/{name}/dev").strip() if name else ""


def own_group() -> str:
    """The folder of this process' control group (version 2); "" where there is none."""
    group = re.search(r"^0::(/.*)$", _text("/proc/self/cgroup"), re.MULTILINE)
    folder = f"/sys/fs/cgroup{group[1].rstrip('/')}" if group else ""
    return folder if folder and os.path.isdir(folder) else ""


def group_moved(text: str) -> dict[str, list[float]]:
    """io.stat: by device numbers, bytes read and written and how many requests each."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        numbers, _, rest = line.partition(" ")
        known = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        values = [known.get(name, "") for name in ("rbytes", "wbytes", "rios", "wios")]
        if all(value.isdigit() for value in values):
            found[numbers] = [int(value) for value in values]
    return found


def _limits() -> dict[str, str]:
    """By device numbers, what io.max of the control group allows."""
    return limits_of(_text(f"{own_group()}/io.max"))


def limits_of(text: str) -> dict[str, str]:
    """io.max: `MAJOR:MINOR rbps=N wbps=N riops=N wiops=N`, each number or max."""
    found = {}
    for line in text.splitlines():
        numbers, _, rest = line.partition(" ")
        limits = [word for word in rest.split() if word.partition("=")[2].isdigit()]
        if limits:
            found[numbers] = "limited by its control group to " + " ".join(limits)
    return found


def _striped(place: str) -> str:
    """Lustre's striping of new files at a mount, by its own program."""
    import shutil
    import subprocess

    if not shutil.which("lfs"):
        return ""
    try:
        said = subprocess.run(
            ["lfs", "getstripe", "-d", place],
            capture_output=True,
            text=True,
            timeout=5,
            errors="backslashreplace",
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return striping(said)


def striping(text: str) -> str:
    """What `lfs getstripe -d` says of a folder, in words; of composite layouts the last part, which
    is that of the largest files.  "" where it says nothing."""
    counts = re.findall(r"stripe_count:\s+(-?\d+)", text)
    sizes = re.findall(r"stripe_size:\s+(\d+)", text)
    pools = re.findall(r"\bpool:\s+(\S+)", text)
    if not counts or not sizes:
        return ""
    over = "all" if counts[-1] == "-1" else counts[-1]
    words = f"striped over {over} targets by {int(sizes[-1]) / 2**20:g} MiB"
    return f"{words}, pool {pools[-1]}" if pools else words


def nfs_mounts(text: str) -> dict[str, list[float]]:
    """By mount point, of /proc/self/mountstats: bytes read from and written to the server, READ and
    WRITE requests, transmissions beyond one each, and ms from request to answer of all reads."""
    found: dict[str, list[float]] = {}
    for part in re.split(r"^(?=device )", text, flags=re.MULTILINE):
        head = re.match(r"device \S+ mounted on (.+) with fstype nfs4?\b", part)
        if not head:
            continue
        moved = re.search(r"^\s*bytes:((?: \d+|\t\d+)+)$", part, re.MULTILINE)
        read = re.search(r"^\s*READ:((?: \d+)+)", part, re.MULTILINE)
        write = re.search(r"^\s*WRITE:((?: \d+)+)", part, re.MULTILINE)
        columns = [list(map(int, one[1].split())) if one else [] for one in (moved, read, write)]
        if len(columns[0]) < 6 or len(columns[1]) < 8 or len(columns[2]) < 8:
            continue
        of, reads, writes = columns
        again = reads[1] - reads[0] + writes[1] - writes[0]
        found[_unescaped(head[1])] = [of[4], of[5], reads[0], writes[0], max(0, again), reads[6]]
    return found


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


def _mounts() -> list[tuple[str, str, str, str]]:
    """(mount point, type, source, device numbers); of two at one place the later hides the
    earlier."""
    mounts = {}
    for line in _text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or len(after.split()) < 2:
            continue
        kind, source = after.split()[:2]
        if kind not in VIRTUAL:
            place = _unescaped(before.split()[4])
            mounts[place] = (place, kind, _unescaped(source), before.split()[2])
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
