"""Describe the host's offer to a job: CPUs, memory, mounts and the devices beneath.

Reads /proc and /sys; starts nothing except `lfs` for a job on Lustre.
"""

from __future__ import annotations

import functools
import os
import re

# As in recorder.py: a self-recording job imports this file, and pathlib is slow to import.
# ruff: noqa: PTH110, PTH112, PTH116, PTH119, PTH120

__all__ = [
    "cpu_quota",
    "cpus",
    "facts",
    "flash",
    "group_moved",
    "group_moved_v1",
    "limits_of",
    "limits_of_v1",
    "nfs_mounts",
    "own_group",
    "striping",
    "throttled",
]

# File systems without user files: the kernel's own views.
VIRTUAL = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs",
    "securityfs", "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip
MOST_MOUNTS = 200  # a container host has thousands; a job's files are on few
SYS, GROUPS = "/sys", "/sys/fs/cgroup"
# Clouds' names for network volumes shown as NVMe.
VOLUMES = ("Amazon Elastic Block Store", "nvme_card-pd", "MSFT NVMe Accelerator")
# A smaller volume has no room for a data set: a boot partition, a small image.
LEAST_FREE_BYTES = 10 << 30


def facts(may_start: bool = False) -> list[tuple[str, str]]:
    """Return notes as (key, value): cpus, cpu quota, memory_bytes, mount, beneath, flash.

    mount: a note per file system, "MOUNT POINT<tab>TYPE<tab>SOURCE".  beneath: the mount's device,
    in words.  flash: file systems on NVMe of this node, "MOUNT POINT<tab>DEVICE<tab>FREE BYTES".
    Unreadable facts are missing.  may_start: `lfs` may be run for Lustre's striping; starting a
    program is not allowed in a job.
    """
    pairs = [("cpus", str(len(os.sched_getaffinity(0))))]
    quota = _own_quota()
    if quota is not None:
        pairs.append(("cpu quota", f"{quota[0]:g}"))
    memory_bytes = _memory_bytes()
    if memory_bytes:
        pairs.append(("memory_bytes", str(memory_bytes)))
    mounts = _mounts()[:MOST_MOUNTS]
    pairs += [("mount", "\t".join(mount[:3])) for mount in mounts]
    limits = _limits()
    for place, kind, source, numbers in mounts:
        words = _device(numbers) if source.startswith("/") else ""
        if kind == "lustre" and may_start:
            words = _striped(place)
        remark = ", ".join(filter(None, (words, limits.get(_whole(numbers)))))
        if remark:
            pairs.append(("beneath", f"{place}\t{remark}"))
    return pairs + [("flash", "\t".join(map(str, row))) for row in flash(mounts)]


def flash(mounts: list[tuple[str, str, str, str]] | None = None) -> list[tuple[str, str, int]]:
    """Return (mount point, device, free bytes) of file systems on local NVMe, most room first.

    Only file systems with room for copies count.  mounts: the result of _mounts().
    """
    devices: dict[str, tuple[str, str, int]] = {}
    for place, _, source, numbers in sorted(_mounts() if mounts is None else mounts):
        name = _whole_name(numbers) if source.startswith("/dev/") else ""
        if numbers in devices or not name or not _is_local_flash(name) or not os.path.isdir(place):
            continue
        try:
            space = os.statvfs(place)
        except OSError:
            continue
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes >= LEAST_FREE_BYTES and not space.f_flag & os.ST_RDONLY:
            devices[numbers] = place, name, free_bytes
    return sorted(devices.values(), key=lambda device: -device[2])


def _is_local_flash(name: str, depth: int = 8) -> bool:
    """Return True if a device is NVMe in this host, or RAID or LVM over nothing but local NVMe."""
    made_of = _entries(f"{SYS}/block/{name}/slaves")
    if made_of:
        wholes = [_whole_of(f"{SYS}/class/block/{part}") for part in made_of]
        return depth > 0 and all(disk and _is_local_flash(disk, depth - 1) for disk in wholes)
    if not name.startswith("nvme"):
        return False
    controller = f"{SYS}/block/{name}/device"
    # A device with several paths has a controller for each path beneath.
    paths = [controller, *(f"{controller}/{entry}" for entry in _entries(controller))]
    ways = {_text(f"{path}/transport").strip() for path in paths} - {""}
    model = _text(f"{controller}/model")
    return ways == {"pcie"} and not any(volume in model for volume in VOLUMES)


def _device(numbers: str) -> str:
    """Describe a mount's block device: name, rotating or not, read-ahead, scheduler, queue."""
    name = _whole_name(numbers)
    if not name:
        return ""
    queue = f"{SYS}/block/{name}/queue"
    turns = {"0": "no seeks", "1": "may seek"}  # virtual disks do not report whether they seek
    chosen = re.search(r"\[(\S+)\]", _text(f"{queue}/scheduler"))
    words = [name, turns.get(_text(f"{queue}/rotational").strip(), "")]
    for label, file in (("read-ahead", "read_ahead_kb"), ("queue", "nr_requests")):
        value = _text(f"{queue}/{file}").strip()
        if value.isdigit():
            words.append(f"{label} {value}" + (" KiB" if file.endswith("kb") else ""))
    return ", ".join(filter(None, [*words, chosen[1] if chosen else ""]))


def _whole_name(numbers: str) -> str:
    """Return the device of a partition, or the device itself; "" without a device."""
    return _whole_of(f"{SYS}/dev/block/{numbers}")


def _whole_of(link: str) -> str:
    folder = os.path.realpath(link)
    if not folder.startswith(f"{SYS}/devices/"):
        return ""
    if os.path.exists(f"{folder}/partition"):
        folder = os.path.dirname(folder)
    return os.path.basename(folder)


def _whole(numbers: str) -> str:
    """Return the numbers of the whole device, as used in control groups' limits."""
    name = _whole_name(numbers)
    return _text(f"{SYS}/block/{name}/dev").strip() if name else ""


def own_group(controller: str = "") -> str:
    """Return the folder of the process's control group, or "".

    The group is of version 2, or of version 1 with a controller.
    """
    return next(iter(_groups(controller)), "")


def _groups(controller: str = "") -> list[str]:
    """Return the folders of this process's control group and all parent groups."""
    kind = rf"[1-9]\d*:(?:[\w,]+,)?{controller}(?:,[\w,]+)?" if controller else "0:"
    match = re.search(rf"^{kind}:(/.*)$", _text("/proc/self/cgroup"), re.MULTILINE)
    top = f"{GROUPS}/{controller}".rstrip("/")
    folders = []
    group = match[1].rstrip("/") if match else None
    while group is not None:
        folders.append(f"{top}{group}")
        group = group.rpartition("/")[0] if group else None
    return [folder for folder in folders if os.path.isdir(folder)]


def group_moved(text: str) -> dict[str, list[float]]:
    """Return from io.stat, by device numbers: bytes read and written, and requests for each."""
    moved: dict[str, list[float]] = {}
    for line in text.splitlines():
        numbers, _, rest = line.partition(" ")
        counters = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        values = [counters.get(name, "") for name in ("rbytes", "wbytes", "rios", "wios")]
        if all(value.isdigit() for value in values):
            moved[numbers] = [int(value) for value in values]
    return moved


def group_moved_v1(moved: str, requests: str) -> dict[str, list[float]]:
    """Return the numbers of group_moved from version 1 files.

    The files are blkio.throttle.io_service_bytes and .io_serviced.
    """
    by_device: dict[str, dict[str, int]] = {}
    for text, names in ((moved, ("rbytes", "wbytes")), (requests, ("rios", "wios"))):
        for numbers, way, value in re.findall(r"^(\S+) (Read|Write) (\d+)$", text, re.MULTILINE):
            by_device.setdefault(numbers, {})[names[way == "Write"]] = int(value)
    wanted = ("rbytes", "wbytes", "rios", "wios")
    return {
        numbers: [counters[name] for name in wanted]
        for numbers, counters in by_device.items()
        if counters.keys() >= set(wanted)
    }


def _limits() -> dict[str, str]:
    """Return the control group's limits by device numbers."""
    folder, blkio = own_group(), own_group("blkio")
    if limits := limits_of(_text(f"{folder}/io.max") if folder else ""):
        return limits
    names = {"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"}
    return limits_of_v1(
        {
            name: _text(f"{blkio}/blkio.throttle.{file}_device")
            for name, file in names.items()
            if blkio
        }
    )


def limits_of_v1(texts: dict[str, str]) -> dict[str, str]:
    """Return limits as limits_of, from version 1 files with lines `MAJOR:MINOR N`."""
    lines: dict[str, str] = {}
    for name, text in texts.items():
        for numbers, value in re.findall(r"^(\S+) (\d+)$", text, re.MULTILINE):
            lines[numbers] = f"{lines.get(numbers, numbers)} {name}={value}"
    return limits_of("\n".join(lines.values()))


def limits_of(text: str) -> dict[str, str]:
    """Parse io.max: `MAJOR:MINOR rbps=N wbps=N riops=N wiops=N`, each number or max."""
    limits_by = {}
    for line in text.splitlines():
        numbers, _, rest = line.partition(" ")
        limits = [word for word in rest.split() if word.partition("=")[2].isdigit()]
        if limits:
            limits_by[numbers] = "limited by its control group to " + " ".join(limits)
    return limits_by


def _striped(place: str) -> str:
    """Return Lustre's striping of new files at a mount, from `lfs`."""
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
    """Put the output of `lfs getstripe -d` in words, or return "".

    Of a composite layout the last part counts, which applies to the largest files.
    """
    counts = re.findall(r"stripe_count:\s+(-?\d+)", text)
    sizes = re.findall(r"stripe_size:\s+(\d+)", text)
    pools = re.findall(r"\bpool:\s+(\S+)", text)
    if not counts or not sizes:
        return ""
    over = "all" if counts[-1] == "-1" else counts[-1]
    words = f"striped over {over} targets by {int(sizes[-1]) / 2**20:g} MiB"
    return f"{words}, pool {pools[-1]}" if pools else words


def nfs_mounts(text: str) -> dict[str, list[float]]:
    """Return counters of NFS mounts by mount point, from /proc/self/mountstats.

    The counters: bytes read from and written to the server, READ and WRITE requests, transmissions
    beyond the first of each request, and ms from request to answer of all reads.
    """
    mounts: dict[str, list[float]] = {}
    for part in re.split(r"^(?=device )", text, flags=re.MULTILINE):
        head = re.match(r"device \S+ mounted on (.+) with fstype nfs4?\b", part)
        if not head:
            continue
        moved = re.search(r"^\s*bytes:((?: \d+|\t\d+)+)$", part, re.MULTILINE)
        read = re.search(r"^\s*READ:((?: \d+)+)", part, re.MULTILINE)
        write = re.search(r"^\s*WRITE:((?: \d+)+)", part, re.MULTILINE)
        columns = [list(map(int, row[1].split())) if row else [] for row in (moved, read, write)]
        if len(columns[0]) < 6 or len(columns[1]) < 8 or len(columns[2]) < 8:
            continue
        of, reads, writes = columns
        again = reads[1] - reads[0] + writes[1] - writes[0]
        mounts[_unescaped(head[1])] = [of[4], of[5], reads[0], writes[0], max(0, again), reads[6]]
    return mounts


def cpus() -> str:
    """Return the CPUs of this process as "COUNT<tab>MASK<tab>QUOTA<tab>GROUP".

    MASK: the allowed CPUs as a hexadecimal mask.  QUOTA: the mean number of CPUs that control group
    GROUP may use.  Without a quota, QUOTA and GROUP are empty.
    """
    numbers = os.sched_getaffinity(0)
    quota, group = _own_quota() or ("", "")
    words = (len(numbers), f"{sum(1 << number for number in numbers):x}", quota, group)
    return "\t".join(str(word).replace("\t", " ") for word in words)


def cpu_quota() -> tuple[float, str] | None:
    """Return the mean number of CPUs allowed by the control group's quota, and the group's folder.

    Of the process's group and all parent groups the strictest counts.  None: no quota.
    """
    limits = []
    for folder in _groups():
        limit, _, period = _text(f"{folder}/cpu.max").strip().partition(" ")
        limits.append((limit, period, folder))
    for folder in _groups("cpu"):
        limit = _text(f"{folder}/cpu.cfs_quota_us").strip()
        limits.append((limit, _text(f"{folder}/cpu.cfs_period_us").strip(), folder))
    quotas = [
        (int(limit) / int(period), folder)
        for limit, period, folder in limits
        if limit.isdigit() and period.isdigit() and int(period)
    ]
    return min(quotas, default=None)


@functools.cache
def _own_quota() -> tuple[float, str] | None:
    """Return the quota, read once: each read of a file lets other threads run before a window."""
    return cpu_quota()


def throttled(group: str) -> tuple[int, float] | None:
    """Return how often the quota stopped a control group, and for how many seconds.

    The seconds are the sum over all CPUs of the group.  None: not known.
    """
    counters = dict(re.findall(r"^(\w+) (\d+)$", _text(f"{group}/cpu.stat"), re.MULTILINE))
    if "nr_throttled" not in counters:
        return None
    usec, ns = counters.get("throttled_usec"), counters.get("throttled_time")  # of versions 2 and 1
    seconds = int(usec) / 1e6 if usec else int(ns) / 1e9 if ns else 0.0
    return int(counters["nr_throttled"]), seconds


def _memory_bytes() -> int | None:
    """Return the memory of the host, or the limit of the control group if smaller."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    total = int(match[1]) * 1024 if match else None
    limits = [f"{folder}/memory.max" for folder in _groups()]
    limits += [f"{folder}/memory.limit_in_bytes" for folder in _groups("memory")]
    for path in limits:
        limit = _text(path).strip()
        if limit.isdigit():
            total = min(total or int(limit), int(limit))
    return total


def _mounts() -> list[tuple[str, str, str, str]]:
    """Return (mount point, type, source, device numbers) of each mount.

    A later mount hides an earlier mount at the same point.
    """
    mounts = {}
    for line in _text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or len(after.split()) < 2:
            continue
        kind, source = after.split()[:2]
        if kind not in VIRTUAL:
            place, of = _unescaped(before.split()[4]), _unescaped(source)
            mounts[place] = (place, kind, of, _numbers(before.split()[2], of))
    return list(mounts.values())


def _numbers(numbers: str, source: str) -> str:
    """Return a device's numbers.

    btrfs has numbers of its own, so the device of a btrfs mount is found by path.
    """
    if not numbers.startswith("0:") or not source.startswith("/dev/"):
        return numbers
    try:
        device = os.stat(source).st_rdev
    except OSError:
        return numbers
    return f"{os.major(device)}:{os.minor(device)}"


def _unescaped(text: str) -> str:
    r"""Replace \040 and similar codes of the kernel; a tab stays escaped, as our notes use tabs."""
    plain = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)
    return plain.replace("\t", "\\011").replace("\n", "\\012")


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""
