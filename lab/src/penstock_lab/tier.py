"""Slow storage for a fast machine: a folder seen through a tier of a stated speed.

Knows FUSE (the program beside this file, compiled at the first need) and control groups
(`penstock_lab.groups`).  Every change is written down first, in the user's state folder, so that
the change can be undone after any end of its maker.  A tier's speed is measured before the claim.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from penstock.errors import MissingDependency, TierError
from penstock.places import tiers
from penstock.safe import drafts
from penstock.words import show
from penstock_lab import groups, rates
from penstock_lab.groups import Group

__all__ = [
    "Requests",
    "SlowTier",
    "Speed",
    "build",
    "capped",
    "made",
    "make",
    "remove",
    "requests_of",
    "slow",
    "verify",
]

AnyPath = str | os.PathLike[str]

PLACE = "penstock-tier-"  # begin of a temporary tier's folder name
MOUNTED_WITHIN_S = 20.0
ENDED_WITHIN_S = 10.0  # requests in flight end first: a second of requests may be under way

# The counters of slowfs.c: eight numbers, then two histograms by powers of two.
N_NUMBERS, N_SIZES = 8, 32

NEEDS = (
    "a slow tier is a FUSE file system, compiled here: needs a C compiler, pkg-config and libfuse3 "
    "(Debian, Ubuntu: apt install gcc pkg-config libfuse3-dev fuse3)"
)


@dataclass(frozen=True, slots=True)
class Speed:
    """The most that a tier gives; None: not limited.

    bandwidth_bps and requests_hz: of all users together, reads and writes.  stream_bps: of a
    request.  latency_s: of each read and write, ± jitter (a share of the latency).  metadata_s: of
    each open, stat, listing and so on.  slots: requests served at once.  seek_s: of a request that
    does not continue the earlier request, and of all requests behind: a single head.  targets:
    storage servers side by side, each with the bandwidth and rate; pieces of a file, of
    stripe_bytes, lie on the servers in turn.  metadata_hz: opens, stats and so on a second, of all
    users.
    """

    bandwidth_bps: float | None = None
    requests_hz: float | None = None
    latency_s: float = 0.0
    jitter: float = 0.0
    stream_bps: float | None = None
    metadata_s: float = 0.0
    slots: int = 64
    seek_s: float = 0.0
    targets: int = 1
    stripe_bytes: int = 1 << 20
    metadata_hz: float | None = None

    def words(self) -> str:
        parts = [
            show(self.bandwidth_bps, "B/s") if self.bandwidth_bps else "",
            f"{self.requests_hz:,.0f} requests/s" if self.requests_hz else "",
            f"{show(self.latency_s, 's')} latency" if self.latency_s else "",
            f"± {self.jitter:.0%}" if self.latency_s and self.jitter else "",
            f"{show(self.stream_bps, 'B/s')} a stream" if self.stream_bps else "",
            f"{show(self.metadata_s, 's')} an open" if self.metadata_s else "",
            f"{show(self.seek_s, 's')} a jump" if self.seek_s else "",
            f"{self.targets} servers of that speed" if self.targets > 1 else "",
            f"{self.metadata_hz:,.0f} opens/s" if self.metadata_hz else "",
        ]
        return ", ".join(filter(None, parts)).replace(", ±", " ±") or "no limit"


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests to a tier since its creation, or (as a difference) between two looks.

    read_sizes, written_sizes: number of requests by size, rounded up to a power of two.
    most_in_flight: since the tier's creation, in a difference too.
    """

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    opens: int
    metadata: int
    most_in_flight: int
    read_sizes: dict[int, int]
    written_sizes: dict[int, int]

    def __sub__(self, before: Requests) -> Requests:
        return Requests(
            self.reads - before.reads,
            self.read_bytes - before.read_bytes,
            self.writes - before.writes,
            self.written_bytes - before.written_bytes,
            self.opens - before.opens,
            self.metadata - before.metadata,
            self.most_in_flight,
            _less(self.read_sizes, before.read_sizes),
            _less(self.written_sizes, before.written_sizes),
        )


def _less(sizes: dict[int, int], before: dict[int, int]) -> dict[int, int]:
    left = {size: number - before.get(size, 0) for size, number in sizes.items()}
    return {size: number for size, number in left.items() if number}


@dataclass(frozen=True, slots=True)
class SlowTier:
    """A made tier.  path: the slow view of the folder's files.

    kind: fuse, or cgroup: then path is the folder itself, and only programs in the group are slow.
    pid, start_ticks, boot: the process that serves or made the tier.  stats: the tier's counters.
    measured: the result of `verify`.  is_mount_ours: path was made for the tier and goes with it.
    """

    name: str
    kind: str
    folder: str
    path: str
    speed: Speed
    memory_bytes: int | None
    pid: int
    start_ticks: int
    boot: str
    stats: str
    group: Group | None
    measured: str = ""
    is_temporary: bool = False
    is_mount_ours: bool = False

    def requests(self) -> Requests:
        """Return the requests so far.  Raises TierError."""
        return requests_of(self)

    def is_alive(self) -> bool:
        """Return whether the tier still works."""
        if self.boot != _boot():
            return False
        if self.group is not None and not self.group.is_there():
            return False
        return self.kind != "fuse" or (
            _start_ticks(self.pid) == self.start_ticks and _is_mounted(self.path)
        )


# --- the FUSE program ----------------------------------------------------------------------------


def build(folder: Path | None = None) -> Path:
    """Return the compiled slowfs, made once for each source and kept in the user's cache folder.

    Raises MissingDependency: no compiler, no libfuse3; TierError: the source cannot be compiled or
    written.
    """
    import hashlib

    source = Path(__file__).with_name("slowfs.c")
    flags = _fuse_flags()
    mark = hashlib.sha256(source.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    folder = folder or _user_folder("XDG_CACHE_HOME", ".cache")
    program = folder / f"slowfs-{mark}"
    if program.exists():
        return program
    compiler = os.environ.get("CC", "cc").split()
    draft = folder / f".slowfs-{os.getpid()}"
    command = [*compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [*command, str(source), "-o", str(draft), *flags],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise TierError(f"{source}: cannot be compiled by {compiler[0]}: {said}")
        draft.replace(program)
    except FileNotFoundError as error:
        raise MissingDependency(f"{NEEDS}; {compiler[0]}: not found") from error
    except OSError as error:
        raise TierError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return program


def _fuse_flags() -> list[str]:
    """Return the flags for the installed libfuse3; 3.12 has the number of threads."""
    flags = _ended(["pkg-config", "--cflags", "--libs", "fuse3"], NEEDS).split()
    version = _ended(["pkg-config", "--modversion", "fuse3"], NEEDS).split(".")
    is_312 = [int(part) for part in version[:2]] >= [3, 12]
    return [f"-DFUSE_USE_VERSION={312 if is_312 else 31}", *flags]


def _ended(command: Sequence[str], needs: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise MissingDependency(f"{needs}; {command[0]}: {error.strerror}") from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["failed"])[0]
        raise MissingDependency(f"{needs}; {command[0]}: {why}")
    return done.stdout


def _serve(
    folder: str, path: str, stats: Path, speed: Speed, is_watching: bool, lines: str = ""
) -> subprocess.Popen[bytes]:
    """Start slowfs and wait for the mount.  lines: see `slow`.  Raises TierError with slowfs'
    words."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise TierError(
            "/dev/fuse: not there or not for this user; a slow tier needs it (modprobe fuse; in a "
            "container: --device /dev/fuse --cap-add SYS_ADMIN)"
        )
    settings = {
        "latency_us": speed.latency_s * 1e6,
        "jitter": speed.jitter,
        "bandwidth_bps": speed.bandwidth_bps or 0,
        "stream_bps": speed.stream_bps or 0,
        "requests_hz": speed.requests_hz or 0,
        "metadata_us": speed.metadata_s * 1e6,
        "seek_us": speed.seek_s * 1e6,
        "slots": speed.slots,
        "targets": speed.targets,
        "stripe_bytes": speed.stripe_bytes,
        "metadata_hz": speed.metadata_hz or 0,
        "allow_other": int(os.geteuid() == 0),
        "watch": int(is_watching),
    }
    # Digits, not exponents: strtod of the C side reads both, people read digits.
    words = [f"{name}={value:.6f}" for name, value in settings.items()]
    words += [f"lines={lines}"] if lines else []
    server = subprocess.Popen(
        [build(), folder, path, str(stats), *words],
        stdin=subprocess.PIPE if is_watching else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this program, which ends the server at the end
    )
    try:
        why = _not_mounted(server)
    except BaseException:
        _end(server.pid, path)
        server.wait()
        raise
    if why:
        _end(server.pid, path)
        server.wait()
        raise TierError(f"{path}: no slow tier can be mounted: {why}")
    return server


def _not_mounted(server: subprocess.Popen[bytes]) -> str:
    """Return why slowfs is not mounted; nothing: mounted."""
    import select

    assert server.stdout
    assert server.stderr
    if not select.select([server.stdout], [], [], MOUNTED_WITHIN_S)[0]:
        return f"not within {MOUNTED_WITHIN_S:.0f} s"
    if server.stdout.readline() == b"mounted\n":
        return ""
    server.kill()
    said = server.stderr.read().decode(errors="replace").strip().splitlines()
    return said[-1] if said else "it ended"


# --- tiers for as long as a block runs -----------------------------------------------------------


@contextmanager
def slow(
    folder: AnyPath,
    *,
    bandwidth: float | None = None,
    iops: float | None = None,
    latency_s: float = 0.0,
    jitter: float = 0.0,
    stream: float | None = None,
    metadata_s: float | None = None,
    slots: int = 64,
    seek_s: float = 0.0,
    targets: int = 1,
    metadata_hz: float | None = None,
    at: AnyPath | None = None,
    lines: AnyPath = "",
) -> Iterator[SlowTier]:
    """Provide the folder as a slow tier, while the block runs: `with slow(folder, ...) as tier`,
    then `tier.path` is the slow view of the files, and `tier.requests()` the requests.

    bandwidth and stream: bytes per second.  iops: reads and writes per second.  metadata_s:
    default: the latency.  seek_s, targets, metadata_hz: see Speed.  at: an empty folder to mount
    on, or the folder itself; else a temporary folder.  Reads and writes go through to the folder,
    whose page cache is left alone: warm files make the tier independent of the disk.  A change made
    past the tier is seen within a minute.  lines: a new file; tiers with a common file share the
    bandwidth, the rates and the head.  Raises MissingDependency, TierError.
    """
    import tempfile

    speed = Speed(
        bandwidth, iops, latency_s, jitter, stream,
        latency_s if metadata_s is None else metadata_s, slots, seek_s, targets,
        metadata_hz=metadata_hz,
    )  # fmt: skip
    real_folder = _folder(folder)
    _checked(speed)
    _sweep()
    place = Path(tempfile.mkdtemp(prefix=PLACE))
    server: subprocess.Popen[bytes] | None = None
    note: Path | None = None
    mount = str(place / "tier")
    try:
        if at is not None:
            mount = _mount_of(real_folder, place.name, at)
        if at is None:
            Path(mount).mkdir()
        server = _serve(real_folder, mount, place / "stats", speed, True, os.fspath(lines))
        tier = SlowTier(
            place.name, "fuse", real_folder, mount, speed, None, server.pid,
            _start_ticks(server.pid), _boot(), str(place / "stats"), None, is_temporary=True,
        )  # fmt: skip
        note = _write(tier)
        yield tier
    finally:
        if server is not None:
            _end(server.pid, mount)
            server.wait()
        if note is not None:
            note.unlink(missing_ok=True)
        if not _is_mounted(mount):  # else a file of the folder would be next
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def capped(
    folder: AnyPath,
    *,
    bandwidth: float | None = None,
    iops: float | None = None,
    memory_bytes: int | None = None,
) -> Iterator[Group]:
    """Provide a control group whose processes use the disk below the folder at most so fast, and
    have at most so much memory, page cache included: `with capped(...) as group`, then
    `group.add(pid)`.

    At the end the processes go back to the group of this process.  Raises TierError: no rights, no
    such controller, no separate disk below the folder.
    """
    groups.sweep()
    group = groups.make(
        groups.own_name(),
        _folder(folder) if bandwidth or iops else None,
        bandwidth,
        iops,
        memory_bytes,
    )
    try:
        yield group
    finally:
        group.remove()


# --- permanent tiers ------------------------------------------------------------------------------


def make(
    name: str,
    folder: AnyPath,
    speed: Speed,
    *,
    kind: str = "fuse",
    at: AnyPath | None = None,
    memory_bytes: int | None = None,
    is_verified: bool = True,
    progress: Any = None,
) -> SlowTier:
    """Make a tier that stays until `remove(name)`, and measure the tier against its claim.

    kind: fuse, or cgroup: exact limits of the disk below the folder, for programs in the group.
    at: the mount, else beside the folder, as FOLDER-NAME.  Raises TierError (and leaves nothing):
    the name is taken, no rights, or the tier does not keep its speed; MissingDependency.
    """
    _checked(speed, name)
    if kind == "cgroup":
        _limited(speed, at)
    _sweep()
    if _note(name).exists():
        raise TierError(f"{name}: there is such a tier; penstock bench tier remove {name}")
    real_folder = _folder(folder)
    path = _mount_of(real_folder, name, at) if kind == "fuse" else real_folder
    tier = SlowTier(
        name, kind, real_folder, path, speed, memory_bytes, os.getpid(), _start_ticks(os.getpid()),
        _boot(), "", None, is_mount_ours=not os.path.lexists(path),
    )  # fmt: skip
    _write(tier)  # before any change: written changes can be undone
    try:
        if kind == "fuse":
            tier = _mounted(tier)
        if kind == "cgroup" or memory_bytes:
            disk = real_folder if kind == "cgroup" else None
            limits = (speed.bandwidth_bps, speed.requests_hz) if disk else (None, None)
            tier = replace(tier, group=groups.make(f"penstock-{name}", disk, *limits, memory_bytes))
        _write(tier)
        if is_verified:
            tier = replace(tier, measured=verify(tier, progress))
            _write(tier)
    except BaseException:
        _undo(tier)
        raise
    return tier


def _limited(speed: Speed, at: AnyPath | None) -> None:
    """Check the speed.  Raises TierError: a control group cannot provide the speed."""
    has = {
        "a latency": speed.latency_s,
        "jitter": speed.jitter,
        "a bandwidth of one request": speed.stream_bps,
        "a time of an open": speed.metadata_s,
        "slots": speed.slots != Speed().slots,
        "jumps of a head": speed.seek_s,
        "servers side by side": speed.targets > 1,
        "a rate of opens": speed.metadata_hz,
        "a place of its own (--at)": at,
    }
    wrong = [what for what, value in has.items() if value]
    if wrong:
        raise TierError(
            f"a control group limits bandwidth, requests, memory; {', '.join(wrong)}: leave that "
            "out, or make the tier by fuse"
        )


def _mount_of(folder: str, name: str, at: AnyPath | None) -> str:
    """Return the mount of a folder's tier.  Raises TierError: the tier would be seen through
    itself."""
    mount = str(Path(at).absolute()) if at else f"{folder}-{name}"
    if folder == "/":
        raise TierError("/: a tier of all there is would be seen through itself; name a folder")
    if Path(folder) in Path(os.path.realpath(mount)).parents:
        raise TierError(f"{mount}: lies in {folder} and would be seen through itself; --at FOLDER")
    return mount


def _mounted(tier: SlowTier) -> SlowTier:
    mount = Path(tier.path)
    try:
        mount.mkdir(exist_ok=True)
        if str(mount) != tier.folder and any(mount.iterdir()):
            raise TierError(f"{mount}: not empty; --at FOLDER says where else to mount it")
    except OSError as error:
        raise TierError(f"{mount}: cannot be mounted on: {error.strerror}; --at FOLDER") from error
    stats = _note(tier.name).with_suffix(".stats")
    server = _serve(tier.folder, tier.path, stats, tier.speed, is_watching=False)
    return replace(tier, pid=server.pid, start_ticks=_start_ticks(server.pid), stats=str(stats))


def made() -> list[SlowTier]:
    """Return the tiers made and not removed, by name.  A damaged note is skipped."""
    return [tier for tier in _noted() if not tier.is_temporary]


def tier_of(name: str) -> SlowTier:
    """Return the tier with the name.  Raises TierError."""
    by_name = {tier.name: tier for tier in made()}
    if name not in by_name:
        names = ", ".join(by_name) or "none"
        raise TierError(f"{name}: no such tier; there are: {names}")
    return by_name[name]


def remove(*names: str) -> None:
    """Undo tiers, also partial tiers and damaged notes.  Raises TierError, after trying all: no
    such tier, or still in use."""
    wrong = []
    for name in names:
        try:
            if name in _damaged():
                _undo_damaged(name)
            else:
                _undo(tier_of(name))
        except TierError as error:
            wrong.append(str(error))
    if wrong:
        raise TierError("; ".join(wrong))


def _damaged() -> set[str]:
    """Return the names of unreadable notes."""
    notes = {path.stem for path in _note("x").parent.glob("*.json")}
    return notes - {tier.name for tier in _noted()}


def _undo_damaged(name: str) -> None:
    """End the server with the tier's counters, and forget the note.  Raises TierError: still
    mounted."""
    stats = _note(name).with_suffix(".stats")
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[3:4] == [os.fsencode(stats)] and b"slowfs" in words[0]:
            path = os.fsdecode(words[2])
            _end(pid, path)
            if _is_mounted(path):
                raise TierError(f"{path}: cannot be unmounted: not the user who mounted it?")
    stats.unlink(missing_ok=True)
    _note(name).unlink(missing_ok=True)


def requests_of(tier: SlowTier) -> Requests:
    """Return the requests to a FUSE tier so far.  Raises TierError."""
    from array import array

    numbers = array("Q")
    try:
        numbers.frombytes(Path(tier.stats).read_bytes())
    except (OSError, ValueError):
        numbers = array("Q")
    if len(numbers) < N_NUMBERS + 2 * N_SIZES:
        raise TierError(f"{tier.name}: its counters are not there; only FUSE tiers count requests")
    reads, read, writes, written, opens, metadata, _, most = numbers[:N_NUMBERS]
    sizes = [
        {
            1 << place: number
            for place, number in enumerate(numbers[start : start + N_SIZES])
            if number
        }
        for start in (N_NUMBERS, N_NUMBERS + N_SIZES)
    ]
    return Requests(reads, read, writes, written, opens, metadata, most, *sizes)


def _undo(tier: SlowTier) -> None:
    if tier.kind == "fuse" and tier.boot == _boot():
        serves = tier.start_ticks == _start_ticks(tier.pid) and tier.stats
        _end(tier.pid if serves and tier.pid != os.getpid() else 0, tier.path)
        if _is_mounted(tier.path):
            raise TierError(f"{tier.path}: cannot be unmounted: not the user who mounted it?")
        if tier.is_mount_ours:
            with suppress(OSError):  # somebody put files there
                Path(tier.path).rmdir()
    if tier.group is not None and tier.boot == _boot():
        tier.group.remove()
    if tier.is_temporary and Path(tier.stats).parent.name.startswith(PLACE):
        shutil.rmtree(Path(tier.stats).parent, ignore_errors=True)
    else:
        _note(tier.name).with_suffix(".stats").unlink(missing_ok=True)
    _note(tier.name).unlink(missing_ok=True)


def _sweep() -> None:
    """Undo temporary tiers left by killed programs."""
    for tier in _noted():
        if tier.is_temporary and _start_ticks(tier.pid) != tier.start_ticks:
            with suppress(TierError):
                _undo(tier)


def _end(pid: int, path: str) -> None:
    """End the server (0: none) and remove its mount."""
    if pid:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + ENDED_WITHIN_S
        while _is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        if _is_running(pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    for _ in range(3):  # two makers may mount twice at a place
        if not _is_mounted(path):
            return
        _unmount(path)


def _unmount(path: str) -> None:
    import ctypes

    lazily = 2  # MNT_DETACH: also with users inside
    if ctypes.CDLL(None).umount2(os.fsencode(path), lazily):
        for program in ("fusermount3", "fusermount"):
            if shutil.which(program):
                subprocess.run([program, "-u", "-z", path], capture_output=True)
                return


def _is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    state = _stat(pid)
    return bool(state) and state[0] not in ("Z", "X")


def _start_ticks(pid: int) -> int:
    """Return when a process began, in ticks since boot: with the pid, a unique name.  -1: not
    there."""
    state = _stat(pid)
    return int(state[19]) if len(state) > 19 and state[0] not in ("Z", "X") else -1


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: field 3 of proc(5) is [0], the start time (22) is [19]."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _is_mounted(path: str) -> bool:
    """Return whether a slowfs is mounted there, alive or not: a dead slowfs answers no stat."""
    wanted = os.path.realpath(path)
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        places, facts = before.split(), after.split()
        if len(places) > 4 and facts[:1] == ["fuse.slowfs"]:
            point = tiers._unescaped(os.fsencode(places[4]))
            if os.fsdecode(point) in (path, wanted):
                return True
    return False


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# --- notes ---------------------------------------------------------------------------------------


def _user_folder(variable: str, default: str) -> Path:
    """Return penstock's folder of the user by the XDG rules."""
    base = os.environ.get(variable, "")
    root = Path(base) if base.startswith("/") else Path.home() / default
    return root / "penstock"


def _note(name: str) -> Path:
    return _user_folder("XDG_STATE_HOME", ".local/state") / "tiers" / f"{name}.json"


def _write(tier: SlowTier) -> Path:
    path = _note(tier.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drafts.write(path, json.dumps(asdict(tier), indent=1))
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _noted() -> list[SlowTier]:
    noted = []
    for path in sorted(_note("x").parent.glob("*.json")):
        try:
            noted.append(_tier_from(json.loads(path.read_bytes()), path.stem))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return noted


def _tier_from(value: Any, name: str) -> SlowTier:
    """Return a tier from its note; an unexpected note raises ValueError, TypeError or KeyError."""
    field_names = {field.name for field in fields(SlowTier)}
    if isinstance(value, dict):  # an older note without the field: an existing mount stays
        value = {"is_mount_ours": False} | value
    if not isinstance(value, dict) or set(value) != field_names or value["name"] != name:
        raise ValueError(name)
    for key in ("kind", "folder", "path", "boot", "stats", "measured"):
        if not isinstance(value[key], str):
            raise ValueError(key)
    for key in ("pid", "start_ticks"):
        if not isinstance(value[key], int):
            raise ValueError(key)
    group, speed = value["group"], Speed(**value["speed"])
    if not all(isinstance(number, int | float | None) for number in asdict(speed).values()):
        raise ValueError("speed")
    return SlowTier(**value | {"speed": speed, "group": groups.from_json(group) if group else None})


def _folder(folder: AnyPath) -> str:
    real_path = os.path.realpath(folder)
    if not Path(real_path).is_dir():
        raise TierError(f"{os.fspath(folder)}: no such folder; name one that holds the files")
    return real_path


def _checked(speed: Speed, name: str = "tier") -> None:
    """Check a tier.  Raises TierError: an impossible tier."""
    import re

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise TierError(f"{name!r}: no name for a tier; use letters, digits, '.', '_' and '-'")
    most_s = 60.0  # more is a typing error, and would hold every program with a look
    for seconds in (speed.latency_s, speed.metadata_s, speed.seek_s):
        if not 0 <= seconds <= most_s:
            raise TierError(f"a latency of {seconds:g} s: between 0 and {most_s:.0f} s")
    if not 0 <= speed.jitter <= 1:
        raise TierError(f"a jitter of {speed.jitter:g}: a share of the latency, 0 to 1")
    if not 1 <= speed.slots <= 4096:
        raise TierError(f"{speed.slots} slots: 1 to 4096 requests at once")
    if not 1 <= speed.targets <= 256 or speed.stripe_bytes < 1:
        raise TierError(f"{speed.targets} servers: 1 to 256, with stripes of 1 byte at least")
    limits = (speed.bandwidth_bps, speed.requests_hz, speed.stream_bps, speed.metadata_hz)
    for value in limits:
        if value is not None and not 1 <= value <= 1e12:
            raise TierError(f"a limit of {value:g} a second: 1 to 1e12, or none")


# --- a check of the claim -------------------------------------------------------------------------


def verify(tier: SlowTier, progress: Any = None) -> str:
    """Measure each limit of a tier separately and describe the results.

    Reads a file, made below the tier's folder and removed.  Raises TierError: a limit is not kept
    within rates.TOLERANCE, with the measurements.
    """
    checks = list(
        rates.checks(tier.speed.bandwidth_bps, tier.speed.requests_hz, tier.speed.latency_s)
    )
    if not checks:
        return "nothing to keep"
    said = []
    with _made_file(Path(tier.folder), rates.FILE_BYTES) as file:
        seen = Path(tier.path) / file.name
        for step, check in enumerate(checks):
            if progress:
                progress(f"measuring {check.what}", step / len(checks))
            join = tier.group if tier.kind == "cgroup" else None
            limit = rates.kept(check, seen, join)
            if not limit.is_kept:
                raise TierError(
                    f"{tier.name}: {limit.words}; this machine cannot keep it, so there is no such "
                    "tier: ask for another limit, or look whether the machine is busy"
                )
            said.append(limit.words)
    return "; ".join(said)


@contextmanager
def _made_file(folder: Path, size: int) -> Iterator[Path]:
    path = folder / f".penstock-tier-{os.getpid()}"
    if tiers.free_bytes(folder) < 2 * size:
        raise TierError(
            f"{folder}: measuring needs {2 * size >> 20} MiB free; --unverified does not"
        )
    try:
        data = os.urandom(1 << 20)
        with open(path, "xb", buffering=0) as file:
            for _ in range(-(-size >> 20)):
                file.write(data)
            os.fsync(file.fileno())
        yield path
    except OSError as error:
        raise TierError(f"{path}: {error.strerror}; measuring makes a file there") from error
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def run_in(tier: SlowTier, command: Sequence[str]) -> int:
    """Run a command in the tier's control group and return the status, as a shell does."""
    if tier.group is None:
        raise TierError(
            f"{tier.name}: a FUSE tier needs no group: run the command and use {tier.path}"
        )
    try:
        with subprocess.Popen(tier.group.wrapped(command), stdin=None) as child:
            while True:
                try:
                    status = child.wait()
                    break
                except KeyboardInterrupt:  # the terminal has told the program too
                    continue
    except OSError as error:
        raise TierError(f"{command[0]}: cannot be started: {error.strerror}") from error
    return status if status >= 0 else 128 - status
