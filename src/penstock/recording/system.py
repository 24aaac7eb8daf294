"""Sample the host while a job runs: block devices, network, memory, CPUs, accelerators.

The launcher samples each second beside the job, and the samples are read back for the tables.
Knows no log.

RUN/HOST.PID.system holds a line of JSON per sample (docs/FORMAT.md).  Counters are the kernel's own
and grow since boot: a late sample loses nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import LogError
from penstock.recording.kernel_clock import monotonic_ns
from penstock.recording.machine import group_moved, group_moved_v1, nfs_mounts, own_group
from penstock.safe import bounded, checksums, drafts

__all__ = ["GAUGES", "SUFFIX", "Sample", "Sampler", "check_head", "read_system"]

SUFFIX = ".system"
FORMAT = 2  # format 2 added a checksum to each line
SECTOR_BYTES = 512  # unit of the kernel's counters, for every device
# The quantities of each kind, in the order of a line.  Quantities in GAUGES are levels; all others
# grow.
QUANTITIES = {
    "disk": ("reads", "read_bytes", "writes", "written_bytes", "busy_ms"),
    "stacked disk": ("reads", "read_bytes", "writes", "written_bytes", "busy_ms"),
    "network": ("received_bytes", "sent_bytes"),
    "memory": ("total_bytes", "available_bytes", "cached_bytes", "dirty_bytes"),
    "processors": ("busy_s", "iowait_s", "idle_s"),
    "nfs": ("read_bytes", "written_bytes", "reads", "writes", "sent_again", "reads_ms"),
    "group": ("read_bytes", "written_bytes", "reads", "writes"),
    "job": ("read_bytes", "written_bytes", "cancelled_bytes"),
    "accelerator": ("busy_share", "memory_share", "processes"),
    # A process that has ended, with a single sample: see penstock.recording.endings.
    "process": ("signal", "silent_s", "rss_bytes", "shm_used_bytes", "shm_bytes", "oom_kills"),
}
GAUGES = ("memory", "accelerator", "process")
NVML_INSUFFICIENT_SIZE = 7
MOST_DEVICES = 64  # a storage server has hundreds of devices; a job's data is on few
MOST_LINE_BYTES = 1 << 20  # a host with 1,000 NFS mounts has lines of 100 kB


class Sampler:
    """Writes samples to the run folder.  The constructor raises OSError.

    is_apart: the job is no child of this process, so the job's I/O is not known.  is_of_host:
    sample the host too, not only the program of this launcher.
    """

    def __init__(self, folder: Path, is_apart: bool = False, is_of_host: bool = True) -> None:
        self._is_apart = is_apart
        host = socket.gethostname().replace("/", "_")
        self._file = drafts.create_in_run(folder / f"{host}.{os.getpid()}{SUFFIX}")
        self._accelerators = _Accelerators() if is_of_host else None
        self._groups = own_group(), own_group("blkio")
        boot_id = _text("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
        self._write({"format": FORMAT, "boot_id": boot_id, "host": host})

    def sample(self, ended: Mapping[str, Sequence[float | None]] | None = None) -> None:
        """Write one line.  Raises OSError: the disk is full.

        ended: processes gone since the last sample, by pid.
        """
        line: dict[str, Any] = {"ns": monotonic_ns()} | ({"process": ended} if ended else {})
        if self._accelerators is None:
            self._write(line | {"job": {"": _job()}})
            return
        line |= _disks() | {"network": _networks(), "memory": {"": _memory()}}
        line |= {"nfs": nfs_mounts(_text("/proc/self/mountstats"))}
        line |= {"group": _group(*self._groups)}
        line |= {"processors": {"": _processors()}, "job": {} if self._is_apart else {"": _job()}}
        line["accelerator"] = self._accelerators.sample()
        self._write(line)

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode()
        self._file.write(checksums.line(text) + b"\n")


@dataclass(frozen=True, slots=True)
class Sample:
    """A number of a sample: kind, device, quantity, time (ns of CLOCK_MONOTONIC), value."""

    ns: int
    kind: str
    device: str
    quantity: str
    value: float


def read_system(path: Path) -> tuple[str, str, list[Sample]]:
    """Return boot_id, host and samples of a file.

    A cut last line is skipped; in format 1, without checksums, any line without valid JSON is
    skipped too.  Raises LogError: the file is missing, has no samples of penstock, is damaged, or
    has a newer format.
    """
    boot_id, host = check_head(path)
    samples: list[Sample] = []
    try:
        with bounded.opened(path) as file:
            has_sums = _has_sum(file.readline(MOST_LINE_BYTES))
            number = 1
            while line := file.readline(MOST_LINE_BYTES):
                number += 1
                if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
                    raise LogError(
                        f"{path}: line {number} is longer than {MOST_LINE_BYTES:,} bytes: no "
                        "samples of penstock"
                    )
                if has_sums and not _is_sound(line):
                    raise LogError(
                        f"{path}: line {number} is damaged: it differs from its checksum; copy the "
                        "file again or remove it"
                    )
                samples += _samples(_line(line))
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    return boot_id, host, samples


def _has_sum(line: bytes) -> bool:
    """Return True if the first line is of a file with checksums.

    The format alone or the checksum alone is enough, so a damaged line is recognised too.
    """
    return b'"crc32"' in line or _line(line).get("format") == FORMAT


def _is_sound(line: bytes) -> bool:
    """Return True if a line has a correct checksum, or is the last line and cut."""
    if line.endswith(b"\n") or checksums.line_has_sum(line):
        return checksums.line_is_sound(line.rstrip(b"\n"))
    # A line with a letter after the checksum is not cut: damage replaced the line feed.
    return len(line) < MOST_LINE_BYTES and not checksums.line_has_sum(line[:-1])


def check_head(path: Path) -> tuple[str, str]:
    """Return the boot and the host of a file's samples.  Raises LogError as read_system does."""
    try:
        with bounded.opened(path) as file:
            first = file.readline(MOST_LINE_BYTES)
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    head = _line(first)
    if type(head.get("format")) is not int:
        raise LogError(f"{path}: no samples of penstock")
    if _has_sum(first) and not checksums.line_is_sound(first.rstrip(b"\n")):
        raise LogError(f"{path}: line 1 is damaged: it differs from its checksum; copy it again")
    if head["format"] > FORMAT:
        raise LogError(
            f"{path}: written by format {head['format']}, newest known here is {FORMAT}; "
            "upgrade penstock to read it"
        )
    return str(head.get("boot_id", "")), str(head.get("host", ""))[:64]


def _line(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _samples(line: dict[str, Any]) -> Iterator[Sample]:
    ns = line.get("ns")
    if type(ns) is not int or not 0 <= ns < 1 << 59:
        return
    for kind, names in QUANTITIES.items():
        devices = line.get(kind)
        for device, values in devices.items() if isinstance(devices, dict) else ():
            if not isinstance(values, list):
                continue
            for name, value in zip(names, values, strict=False):
                if type(value) in (int, float) and 0 <= value < 1e30:
                    yield Sample(ns, kind, str(device)[:64], name, float(value))


# --- the kernel's counters -----------------------------------------------------------------------


def _disks() -> dict[str, dict[str, list[float]]]:
    """Return the devices used since boot, by kind.

    The kinds are disk, and stacked disk (made of other devices).
    """
    disks: dict[str, dict[str, list[float]]] = {"disk": {}, "stacked disk": {}}
    for line in _text("/proc/diskstats").splitlines():
        words = line.split()
        if len(words) < 14 or not Path("/sys/block", words[2]).exists():
            continue  # a partition: counted with the whole device
        reads, read, writes, written, busy_ms = (int(words[n]) for n in (3, 5, 7, 9, 12))
        if not reads + writes or words[2].startswith(("ram", "zram")):
            continue
        is_stacked = words[2].startswith("loop") or _has_entries(f"/sys/block/{words[2]}/slaves")
        devices = disks["stacked disk" if is_stacked else "disk"]
        if len(devices) < MOST_DEVICES:
            devices[words[2]] = [
                reads, read * SECTOR_BYTES, writes, written * SECTOR_BYTES, busy_ms
            ]  # fmt: skip
    return disks


def _networks() -> dict[str, list[float]]:
    networks: dict[str, list[float]] = {}
    for line in _text("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) >= 9 and name.strip() != "lo" and len(networks) < MOST_DEVICES:
            networks[name.strip()] = [int(words[0]), int(words[8])]
    return networks


def _group(folder: str, blkio: str) -> dict[str, list[float]]:
    """Return the control group's I/O, from the control group version with I/O accounting."""
    if folder and (text := _text(f"{folder}/io.stat")):
        return group_moved(text)
    if not blkio:
        return {}
    throttle = f"{blkio}/blkio.throttle"
    return group_moved_v1(_text(f"{throttle}.io_service_bytes"), _text(f"{throttle}.io_serviced"))


def _memory() -> list[float]:
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE))
    wanted = ("MemTotal", "MemAvailable", "Cached", "Dirty")
    return [int(sizes.get(name, 0)) * 1024 for name in wanted]


def _processors() -> list[float]:
    """Return the seconds of all CPUs together: busy, waiting for I/O, idle."""
    words = _text("/proc/stat").partition("\n")[0].split()
    ticks = [int(word) for word in words[1:9]]
    if len(ticks) < 8:
        return []
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    each = os.sysconf("SC_CLK_TCK")
    return [(user + nice + system + irq + softirq + steal) / each, iowait / each, idle / each]


def _job() -> list[float]:
    """Return the I/O of the launcher and of all ended children, including the ended program."""
    counters = dict(re.findall(r"^(\w+): (\d+)$", _text("/proc/self/io"), re.MULTILINE))
    wanted = ("read_bytes", "write_bytes", "cancelled_write_bytes")
    return [int(counters[name]) for name in wanted if name in counters]


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Accelerators:
    """Accelerators by NVML, if the library exists; the driver installs NVML."""

    def __init__(self) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            count = ctypes.c_uint()
            if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
                return
            for index in range(min(count.value, MOST_DEVICES)):
                handle = ctypes.c_void_p()
                if not self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                    self._handles.append(handle)
        except (OSError, AttributeError):
            self._handles = []

    def sample(self) -> dict[str, list[float | None]]:
        """Return the load of each device.

        The load is the share of the time in which a kernel ran, the share of memory in use, and how
        many processes compute on the device (None: not known to NVML).
        """
        samples: dict[str, list[float | None]] = {}
        for index, handle in enumerate(self._handles):
            used, memory = _Utilization(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)):
                continue
            failed = self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            share = 0.0 if failed or not memory.total else memory.used / memory.total
            samples[str(index)] = [used.gpu / 100, share, self._processes(handle)]
        return samples

    def _processes(self, handle: ctypes.c_void_p) -> int | None:
        """Return how many processes compute on a device.

        Without room for the list of processes, NVML returns their number alone.
        """
        number = ctypes.c_uint(0)
        try:
            ask = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
        except AttributeError:  # drivers before 510 lack the function
            return None
        failed = ask(handle, ctypes.byref(number), None)
        return None if failed not in (0, NVML_INSUFFICIENT_SIZE) else number.value


def _has_entries(folder: str) -> bool:
    try:
        return bool(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""
