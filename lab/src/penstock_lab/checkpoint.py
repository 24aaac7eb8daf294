"""The cost of checkpoints for a training: none, to each tier, through a fast tier in two ways.

The study of Chien et al. 2018, on anyone's storage.  Knows ways to save (WAYS), runs of a training
with a state of AlexNet's shapes, and the results of a run.  Each run is a separate process; a
sampler beside the run looks at the disk, the tier and the CPUs once a second.  Results are kept one
by one: after an interruption, the same command continues.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import SaveError, TierError
from penstock.places import tiers
from penstock.safe.harmless import cell
from penstock.words import show
from penstock_lab import places
from penstock_lab import tier as slow_tiers
from penstock_lab.folders import WORK, refuse_without_room, scratch, work_in
from penstock_lab.groups import device_of
from penstock_lab.storage import OF_CEILING
from penstock_lab.study import KeptRuns, Measure, Point, host_of, machine_table, pyplot, write_texts
from penstock_lab.tier import SlowTier

__all__ = [
    "ALEXNET",
    "MEASURES",
    "NEEDS",
    "SAVERS",
    "STATE_BYTES",
    "WAYS",
    "CheckpointRun",
    "CheckpointSettings",
    "Summary",
    "is_one_device",
    "least_of",
    "markdown_of",
    "measure",
    "needed_bytes",
    "picture_of",
    "read_results",
    "summaries_of",
    "write_results",
    "written_bytes",
]

PhaseProgress = Callable[[str, float], None]

NEEDS = {"torch": "saving states"}  # see needs.look_for
WAYS = {
    "none": "no checkpoint",
    "slow": "torch.save and fsync, straight to the slow tier",
    "fast": "torch.save and fsync to the fast tier, where it stays",
    "drain": "torch.save and fsync to the fast tier, `penstock save drain` beside it: the paper's "
    "burst buffer, for a program that is not changed",
    "checkpointer": "`penstock.save.Checkpointer`: a snapshot in memory blocks, other processes "
    "write and drain",
}

# AlexNet's parameters (61.1 million); Adam keeps two moments of each.
ALEXNET = (
    (64, 3, 11, 11), (64,), (192, 64, 5, 5), (192,), (384, 192, 3, 3), (384,), (256, 384, 3, 3),
    (256,), (256, 256, 3, 3), (256,), (4096, 9216), (4096,), (4096, 4096), (4096,), (1000, 4096),
    (1000,),
)  # fmt: skip
STATE_BYTES = 4 * 3 * 61_100_840

# How much slower the slow tier is.  A fast SSD and a hard disk differ so; the paper's own disks are
# in its figures, and not quoted here.
RATIO = 3.85
N_STEPS, EVERY = 100, 20
COMPUTE_S = 0.2
SAMPLE_S = 1.0
DURABLE_WITHIN_S = 600.0
MULTIPLY = 256  # rows of the matrices of a step's product: 1 to 2 ms


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The settings of a study.  scale: of the state's bytes.  compute_s: of a step, on one thread;
    is_asleep: a step sleeps instead, like a CPU beside an accelerator.  slow_bps: of the imitated
    slow tier; 0: a given tier."""

    ways: tuple[str, ...] = tuple(WAYS)
    n_steps: int = N_STEPS
    every: int = EVERY
    compute_s: float = COMPUTE_S
    is_asleep: bool = False
    scale: float = 1.0
    repeats: int = 3
    ratio: float = RATIO
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A save.  begin_s: from the loop's begin; block_s: the loop could not go on; durable_s: from
    the save's begin until the last tier of the way has the save."""

    step: int
    begin_s: float
    block_s: float
    durable_s: float


@dataclass(frozen=True, slots=True)
class SecondSample:
    """A second.  at_s: the end, from the loop's begin.  disk_bps: written to the disk of the fast
    tier; slow_bps: to the slow tier, 0 without a count; busy: CPUs, 1 is one CPU."""

    at_s: float
    disk_bps: float
    slow_bps: float
    busy: float


@dataclass(frozen=True, slots=True)
class CheckpointRun:
    """A run.  total_s: of the loop, steps_s: of the steps alone.  loaded_step: the step that
    torch.load alone reads from the newest checkpoint; size_bytes: of a checkpoint."""

    way: str
    repeat: int
    total_s: float
    steps_s: float
    size_bytes: int
    loaded_step: int
    saves: tuple[Saved, ...]
    trace: tuple[SecondSample, ...]

    @property
    def block_s(self) -> float:
        return sum(save.block_s for save in self.saves)

    @property
    def durable_at_s(self) -> float:
        return max((save.begin_s + save.durable_s for save in self.saves), default=0.0)


# --- the training, in a separate process ----------------------------------------------------------


def _train(job: dict[str, Any]) -> dict[str, Any]:
    """Run the loop; every save's state has its step."""
    import torch

    torch.set_num_threads(1)
    shapes = [(max(1, round(s[0] * job["scale"])), *s[1:]) for s in ALEXNET]
    state = {
        name: {f"{number}": torch.rand(shape) for number, shape in enumerate(shapes)}
        for name in ("model", "exp_avg", "exp_avg_sq")
    } | {"step": torch.zeros(1, dtype=torch.int64)}
    matrix = _matrix(torch)

    def compute() -> None:
        if job["n_products"] < 0:
            time.sleep(job["compute_s"])
        product = matrix
        for _ in range(job["n_products"]):
            product = product @ matrix

    with SAVERS[job["way"]](Path(job["fast"]), Path(job["slow"])) as saver:
        for _ in range(3):
            compute()
        begin_s, begin_unix_s = time.perf_counter(), time.time()
        begun, steps_s = [], 0.0
        for step in range(1, job["n_steps"] + 1):
            step_s = time.perf_counter()
            compute()
            state["step"].fill_(step)
            ended_s = time.perf_counter()
            steps_s += ended_s - step_s
            if step % job["every"] == 0 and job["way"] != "none":
                saver.save(step, state)
                begun.append((step, ended_s, time.perf_counter() - ended_s))
        total_s = time.perf_counter() - begin_s
        saver.wait([step for step, _, _ in begun])
    saves = [
        Saved(step, at_s - begin_s, block_s, saver.durable[step] - at_s)
        for step, at_s, block_s in begun
    ]
    loaded_step, size_bytes = _read_back(Path(saver.last), torch) if begun else (0, 0)
    return {
        "total_s": total_s, "steps_s": steps_s, "begin_unix_s": begin_unix_s,
        "saves": [asdict(save) for save in saves], "loaded_step": loaded_step,
        "size_bytes": size_bytes,
    }  # fmt: skip


def _read_back(place: Path, torch: Any) -> tuple[int, int]:
    """Return the newest checkpoint's step, by torch.load alone, and its bytes."""
    path = place / "state.pt" if place.is_dir() else place
    return int(torch.load(path, weights_only=True)["step"]), path.stat().st_size


class _Plain:
    """torch.save and fsync to one folder.  durable: perf_counter() of each step's last tier."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.durable: dict[int, float] = {}
        self.last = ""

    def path_of(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}.pt"

    def save(self, step: int, state: dict[str, Any]) -> None:
        import torch

        path = self.path_of(step)
        with path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        from penstock.places.stores import fsync_folder

        fsync_folder(self._folder)
        self.last = str(path)
        self.durable[step] = time.perf_counter()

    def wait(self, steps: Sequence[int]) -> None:
        """Do nothing: the file was durable when save() returned."""


class _Drained(_Plain):
    """A plain save to the fast tier, with a drain beside."""

    def __init__(self, fast: Path, slow: Path) -> None:
        super().__init__(fast)
        self._slow = slow
        self._over = threading.Event()
        self._wanted: list[int] = []
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Drained:
        from penstock.save.drain.beside import Drain
        from penstock.save.drain.retention import Keep

        self._drain = Drain(self._folder, self._slow, keep=Keep(fast=1, foreign=True))
        self._drain.start()
        while self._drain.is_alive() and self._drain.status() is None:
            time.sleep(0.05)
        self._looking.start()
        return self

    def save(self, step: int, state: dict[str, Any]) -> None:
        super().save(step, state)
        del self.durable[step]
        self._wanted.append(step)

    def _look(self) -> None:
        """The manifest comes last, after the copy was read back."""
        while not self._over.wait(0.1):
            for step in [
                wanted_step for wanted_step in self._wanted if wanted_step not in self.durable
            ]:
                if (self._slow / f"{self.path_of(step).name}.penstock.json").exists():
                    self.durable[step] = time.perf_counter()

    def wait(self, steps: Sequence[int]) -> None:
        _until(lambda: set(steps) <= set(self.durable), self._drain.is_alive)
        self.last = str(self._slow / self.path_of(max(steps)).name) if steps else ""

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._drain.stop()


def _until(is_so: Callable[[], bool], is_alive: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DURABLE_WITHIN_S
    while not is_so():
        if not is_alive() or time.monotonic() > end_s:
            raise SaveError(f"not on the slow tier after {DURABLE_WITHIN_S:.0f} s, or never")
        time.sleep(0.05)


class _Checkpointed:
    """Through a snapshot, a writer and a drain."""

    def __init__(self, fast: Path, slow: Path) -> None:
        from penstock.save.drain.retention import Keep
        from penstock.save.training.checkpointer import Checkpointer

        self._ckpt = Checkpointer(fast, slow, keep=Keep(fast=1))
        self._handles: dict[int, Any] = {}
        self.durable: dict[int, float] = {}
        self.last = ""

    def save(self, step: int, state: dict[str, Any]) -> None:
        handle = self._handles[step] = self._ckpt.save(step, state)

        def note(future: Any) -> None:
            self.durable[step] = time.perf_counter()

        handle.durable.add_done_callback(note)

    def wait(self, steps: Sequence[int]) -> None:
        for step in steps:
            self.last = self._handles[step].durable.result(DURABLE_WITHIN_S) or ""

    def __enter__(self) -> _Checkpointed:
        return self

    def __exit__(self, *error: object) -> None:
        self._ckpt.close()


@contextmanager
def _plainly(folder: Path) -> Iterator[_Plain]:
    yield _Plain(folder)


SAVERS: dict[str, Callable[[Path, Path], Any]] = {
    "none": lambda fast, slow: _plainly(fast),
    "slow": lambda fast, slow: _plainly(slow),
    "fast": lambda fast, slow: _plainly(fast),
    "drain": _Drained,
    "checkpointer": _Checkpointed,
}


def _matrix(torch: Any) -> Any:
    """Return a matrix whose rows sum to 1: its powers do not shrink.  Almost zero numbers take a
    CPU fifty times as long, and made a step of 200 ms last 1.4 s."""
    matrix = torch.rand(MULTIPLY, MULTIPLY)
    return matrix / matrix.sum(dim=1, keepdim=True)


def _products_in(seconds: float) -> int:
    """Return how many products of matrices a thread makes in the time, undisturbed."""
    import torch

    torch.set_num_threads(1)
    matrix = _matrix(torch)
    product, times = matrix, []
    for _ in range(200):
        begin_s = time.perf_counter()
        product = product @ matrix
        times.append(time.perf_counter() - begin_s)
    return max(1, round(seconds / median(times)))


def _main() -> None:
    job = json.loads(sys.stdin.read())
    answer = {"n": _products_in(job["seconds"])} if "seconds" in job else _train(job)
    print(json.dumps(answer))


def written_bytes(settings: CheckpointSettings) -> float:
    """Return the bytes written by all runs of the settings together, mostly removed again."""
    saves = settings.n_steps // settings.every * settings.repeats * (len(settings.ways) + 1)
    return saves * settings.scale * STATE_BYTES


def needed_bytes(settings: CheckpointSettings, folder: Path, slow: Path | None) -> float:
    """Return the most room of a run on FOLDER's device, for the tiers there: both, except where the
    slow tier is given and lies on another device."""
    both = slow is None or is_one_device(folder, slow)
    return (1 + both) * _tier_bytes(settings)


def _tier_bytes(settings: CheckpointSettings) -> float:
    saves = settings.n_steps // settings.every + 1
    return 1.2 * saves * settings.scale * STATE_BYTES


# --- all runs -------------------------------------------------------------------------------------


def measure(
    folder: Path,
    settings: CheckpointSettings,
    slow: Path | None = None,
    progress: PhaseProgress | None = None,
) -> list[CheckpointRun]:
    """Make every run missing in FOLDER.  slow: a folder on the slow tier; None: a tier is made,
    `ratio` times slower than FOLDER.

    Raises TierError: no room, FOLDER holds runs of other settings, a run ended early.
    """
    _refuse(settings)
    refuse_without_room(folder, needed_bytes(settings, folder, slow))
    if slow and not is_one_device(folder, slow):
        refuse_without_room(slow, _tier_bytes(settings))
    mark = {**asdict(replace(settings, ways=(), repeats=0)), "slow": str(slow or "")}
    kept = KeptRuns(folder, {"study": "checkpoint", "seed": mark.pop("seed"), "mark": mark})
    facts = _facts(kept, settings, slow)
    kept_runs = {(run.way, run.repeat): run for run in read_results(folder)}
    wanted = [
        (way, repeat) for repeat in range(settings.repeats) for way in _mixed(settings, repeat)
    ]
    left = [key for key in wanted if key not in kept_runs]
    if not left:
        return [kept_runs[key] for key in wanted]
    with ExitStack() as stack:
        work, tier = stack.enter_context(work_in(folder)), None
        if slow is None:
            (work / "slow").mkdir()
            tier = stack.enter_context(slow_tiers.slow(work / "slow", bandwidth=facts["slow_bps"]))
            place = Path(tier.path)
        else:  # the user's, with files of theirs
            place = stack.enter_context(scratch(slow / f"{WORK}-slow"))
        for number, (way, repeat) in enumerate(left):
            if progress:
                progress(f"{way}, {repeat + 1} of {settings.repeats}", number / len(left))
            run = _run(way, repeat, settings, work / "fast", place / "saves", tier, facts)
            kept_runs[way, repeat] = run
            kept.add(asdict(run))
    return [kept_runs[key] for key in wanted]


def _refuse(settings: CheckpointSettings) -> None:
    for way in settings.ways:
        if way not in WAYS:
            raise TierError(f"{way}: no such way; there are: {', '.join(WAYS)}")
    if settings.n_steps < settings.every:
        raise TierError(f"{settings.n_steps} steps, a save every {settings.every}: there is none")


def _mixed(settings: CheckpointSettings, repeat: int) -> list[str]:
    """Return the ways in another order each time: a slower machine slows down all ways."""
    ways = list(settings.ways)
    random.Random(settings.seed - 1 + repeat).shuffle(ways)  # 1: as before there were seeds
    return ways


def is_one_device(folder: Path, slow: Path | None) -> bool:
    """Return whether both tiers are one file system: then neither is faster."""
    whole = folder.absolute()
    there = next(place for place in (whole, *whole.parents) if place.exists())
    return slow is not None and tiers.device_of(there) == tiers.device_of(slow)


def _facts(kept: KeptRuns, settings: CheckpointSettings, slow: Path | None) -> dict[str, Any]:
    """Of all runs of a folder: measured before the first, the same for the others."""
    folder = kept.folder
    if "n_products" in kept.settings:
        return kept.settings
    # Never more than the folder can give beside the copying of a FUSE tier.
    fast_bps = max(ceiling.bandwidth_bps for ceiling in tiers.write_ceiling(folder, 1.0))
    facts = {
        "fast_bps": fast_bps,
        "slow_bps": fast_bps / settings.ratio,
        "is_one_device": is_one_device(folder, slow),
        "n_products": -1 if settings.is_asleep else _asked({"seconds": settings.compute_s})["n"],
    }
    kept.add_settings(facts)
    return kept.settings


def _asked(job: dict[str, Any]) -> dict[str, Any]:
    """Run this module as a separate program and return its answer.  Raises TierError."""
    program = subprocess.Popen(
        [sys.executable, "-m", "penstock_lab.checkpoint"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | places.OUR_PATH, start_new_session=True,
    )  # fmt: skip
    try:
        answer, complaint = program.communicate(json.dumps(job))
    finally:
        places.ended(program)
    try:
        result: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        said = complaint.strip().splitlines()
        why = said[-1] if said else f"status {program.returncode}"
        raise TierError(f"{job.get('way', 'calibration')}: the run ended early: {why}") from None
    return result


def _run(
    way: str,
    repeat: int,
    settings: CheckpointSettings,
    fast: Path,
    slow: Path,
    tier: SlowTier | None,
    facts: dict[str, Any],
) -> CheckpointRun:
    for place in (fast, slow):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    tiers.sync(fast)  # data left in memory by earlier runs does not count
    job = asdict(settings) | {
        "way": way, "fast": str(fast), "slow": str(slow), "n_products": facts["n_products"],
    }  # fmt: skip
    try:
        with _Sampler(fast, tier) as sampler:
            result = _asked(job)
    finally:
        for place in (fast, slow):
            shutil.rmtree(place, ignore_errors=True)
    begin_unix_s = result.pop("begin_unix_s")
    saves = tuple(Saved(**save) for save in result.pop("saves"))
    run = CheckpointRun(way, repeat, saves=saves, trace=sampler.samples(begin_unix_s), **result)
    wanted = settings.n_steps // settings.every * settings.every if way != "none" else 0
    if run.loaded_step != wanted:
        raise TierError(f"{way}: read back step {run.loaded_step}, not {wanted}")
    return run


class _Sampler:
    """Looks once a second, and at the end of the block: every write is in a sample, however short
    the block."""

    def __init__(self, fast: Path, tier: SlowTier | None) -> None:
        self._tier, self._disk = tier, Path()
        with suppress(TierError):
            self._disk = Path(f"/sys/dev/block/{device_of(str(fast))}/stat")
        self._rows: list[tuple[float, float, float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        is_over = False
        while True:
            row = (time.time(), self._written(), self._to_slow(), _busy_s())
            # The last sample may come right after another: rates over no time are undefined.
            if is_over and len(self._rows) > 1 and row[0] - self._rows[-1][0] < SAMPLE_S / 4:
                self._rows.pop()
            self._rows.append(row)
            if is_over:
                return
            is_over = self._over.wait(SAMPLE_S)

    def _written(self) -> float:
        try:
            return 512.0 * int(self._disk.read_text().split()[6])
        except (OSError, IndexError, ValueError):
            return 0.0  # overlay, NFS: nobody counts

    def _to_slow(self) -> float:
        return float(self._tier.requests().written_bytes) if self._tier is not None else 0.0

    def samples(self, begin_unix_s: float) -> tuple[SecondSample, ...]:
        samples = []
        for before, after in zip(self._rows, self._rows[1:], strict=False):
            over_s = max(after[0] - before[0], 1e-9)
            disk, slow, busy = ((after[n] - before[n]) / over_s for n in (1, 2, 3))
            samples.append(SecondSample(after[0] - begin_unix_s, disk, slow, busy))
        return tuple(sample for sample in samples if sample.at_s > 0)


def _busy_s() -> float:
    """Return the busy seconds of all CPUs so far."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    numbers = [int(word) for word in words[:8]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def read_results(folder: Path) -> list[CheckpointRun]:
    """Return the runs in a folder; a truncated last line is skipped."""
    runs = []
    try:
        lines = (folder / "runs.jsonl").read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            value = json.loads(line)
            value["saves"] = tuple(Saved(**save) for save in value["saves"])
            value["trace"] = tuple(SecondSample(**sample) for sample in value["trace"])
            runs.append(CheckpointRun(**value))
    return runs


# --- the presentation -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Summary:
    """The repeats of a way: medians, and the spread of total_s.  overhead_s: over no checkpoint,
    each repeat beside its quiet repeat; None without quiet repeats.  gain: the overhead of saving
    straight to the slow tier / the way's overhead; None for an overhead within the noise.  steps_s:
    of the loop, without the saves.  of_ceiling: the least time of the tier as a share of a save's
    block; None where the least time is not known, or the save blocks for memory."""

    way: str
    repeats: int
    total_s: float
    least_s: float
    most_s: float
    overhead_s: float | None
    block_s: float
    save_s: float
    durable_at_s: float
    gain: float | None
    steps_s: float
    of_ceiling: float | None = None


def least_of(folder: Path) -> dict[str, float]:
    """Return the least seconds of a save, by way: at the ceiling of the tier for which the save
    blocks.  Empty: not known for these runs."""
    try:
        facts = json.loads((folder / "settings.json").read_bytes())
    except FileNotFoundError:
        return {}
    state_bytes = facts["mark"]["scale"] * STATE_BYTES
    ceilings = dict.fromkeys(("fast", "drain"), facts["fast_bps"])
    ceilings |= {} if facts["mark"]["slow"] else {"slow": facts["slow_bps"]}
    return {way: state_bytes / bps for way, bps in ceilings.items()}


def summaries_of(
    runs: Sequence[CheckpointRun], least_s: Mapping[str, float] | None = None
) -> list[Summary]:
    """Return a summary of each way that was run, in the order of WAYS.  least_s: see least_of."""
    by_way = {way: [run for run in runs if run.way == way] for way in WAYS}
    quiet_s = {run.repeat: run.total_s for run in by_way["none"]}
    noise_s = (max(quiet_s.values()) - min(quiet_s.values())) / 2 if quiet_s else 0.0
    summaries = [
        _summary(way, repeats, quiet_s, (least_s or {}).get(way))
        for way, repeats in by_way.items()
        if repeats
    ]
    slow_s = next((row.overhead_s for row in summaries if row.way == "slow"), None)
    return [replace(row, gain=_gain(slow_s, row.overhead_s, noise_s)) for row in summaries]


def _summary(
    way: str, repeats: list[CheckpointRun], quiet_s: Mapping[int, float], least_s: float | None
) -> Summary:
    """Return the summary of a way without its gain.  quiet_s: by repeat, without checkpoints."""
    totals = [run.total_s for run in repeats]
    over = [run.total_s - quiet_s[run.repeat] for run in repeats if run.repeat in quiet_s]
    blocks = [save.block_s for run in repeats for save in run.saves]
    return Summary(
        way,
        len(repeats),
        median(totals),
        min(totals),
        max(totals),
        median(over) if over and way != "none" else None,
        median(run.block_s for run in repeats),
        median(blocks) if blocks else 0.0,
        median(run.durable_at_s for run in repeats),
        None,
        median(run.steps_s for run in repeats),
        least_s / median(blocks) if least_s and blocks else None,
    )


def _gain(slow_s: float | None, mine_s: float | None, noise_s: float) -> float | None:
    """Return the gain, limited by the noise: an overhead below the noise counts as the noise."""
    if slow_s is None or mine_s is None:
        return None
    least_s = max(mine_s, noise_s)
    return slow_s / least_s if least_s > 0 else None


def machine_of(folder: Path) -> dict[str, Any]:
    """Describe the machine of the figures, without its name."""
    from importlib import metadata

    facts = json.loads((folder / "settings.json").read_bytes())
    tier = f"a FUSE tier of {show(facts['slow_bps'], 'B')}/s"
    return {
        **host_of(folder),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": metadata.version("torch").partition("+")[0],
        "file_system": tiers.mount_of(folder).kind,
        "fast tier, written": f"{show(facts['fast_bps'], 'B')}/s",
        "slow tier": _given(facts) if facts["mark"]["slow"] else tier,
        "steps": facts["mark"]["n_steps"],
        "a save every": facts["mark"]["every"],
        "a step": f"{facts['mark']['compute_s'] * 1e3:.0f} ms "
        + ("asleep" if facts["mark"]["is_asleep"] else "of one thread"),
        "state": show(facts["mark"]["scale"] * STATE_BYTES, "B"),
    }


def _given(facts: dict[str, Any]) -> str:
    same = facts.get("is_one_device")
    return "given, on the device of the fast one: no slower than it" if same else "given"


def markdown_of(
    runs: Sequence[CheckpointRun],
    machine: dict[str, Any],
    least_s: Mapping[str, float] | None = None,
) -> str:
    """Return the table of ways, and their description."""
    lines = [
        machine_table(machine),
        "",
        "| way | loop, s | spread | its steps, s | overhead, s | blocked, s | a save blocks, s | "
        "of the ceiling | last one on its tier after, s | slow's overhead / this |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for summary in summaries_of(runs, least_s):
        over = "–" if summary.overhead_s is None else f"{summary.overhead_s:.2f}"
        gain = "–" if summary.gain is None else f"{summary.gain:.1f}"
        lines.append(
            f"| {summary.way} | {summary.total_s:.2f} | "
            f"{summary.least_s:.2f}–{summary.most_s:.2f} | {summary.steps_s:.2f} | {over} | "
            f"{summary.block_s:.2f} | {summary.save_s:.3f} | {show(summary.of_ceiling, 'share')} | "
            + (f"{summary.durable_at_s:.1f}" if summary.durable_at_s else "–")
            + f" | {gain} |"
        )
    lines += ["", *[f"* `{way}`: {says}" for way, says in WAYS.items()]]
    return "\n".join(lines) + "\n"


def csv_of(runs: Sequence[CheckpointRun]) -> str:
    """Every save of every run."""
    text = io.StringIO()
    names = ["way", "repeat", "total_s", "steps_s", *[field.name for field in fields(Saved)]]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for run in runs:
        for save in run.saves or (None,):
            facts = list(asdict(save).values()) if save else [""] * len(fields(Saved))
            facts = [cell(fact) for fact in facts]
            writer.writerow([cell(run.way), run.repeat, run.total_s, run.steps_s, *facts])
    return text.getvalue()


# The fields of a way's summary for `penstock bench compare`.
MEASURES = (
    Measure("total_s", "loop", "s", -1),
    Measure("steps_s", "its steps", "s"),
    Measure("overhead_s", "overhead", "s", -1),
    Measure("block_s", "blocked", "s", -1),
    Measure("save_s", "a save blocks", "s", -1),
    Measure("durable_at_s", "last one on its tier after", "s", -1),
    Measure("gain", "slow's overhead / this", "x", 1),
    OF_CEILING,
)


def _point(summary: Summary) -> Point:
    none: dict[str, float | None] = {measure.key: None for measure in MEASURES}
    values = {measure.key: getattr(summary, measure.key) for measure in MEASURES}
    return Point(
        {"way": summary.way}, summary.repeats, values, none | {"total_s": summary.least_s},
        none | {"total_s": summary.most_s},
    )  # fmt: skip


def _settings(folder: Path) -> dict[str, Any]:
    """Return the common settings of a folder's runs; empty without runs."""
    try:
        kept_settings = json.loads((folder / "settings.json").read_bytes())
        return {**kept_settings["mark"], "seed": kept_settings.get("seed", 1)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_results(
    folder: Path, runs: Sequence[CheckpointRun], machine: dict[str, Any]
) -> list[Path]:
    """checkpoint.json, .csv, .md and, with matplotlib, .png.  Raises TierError."""
    value = {
        "study": "checkpoint",
        "scale": "",
        "settings": _settings(folder),
        "machine": machine,
        "factors": ["way"],
        "measures": [asdict(measure) for measure in MEASURES],
        "remarks": [],
        "points": [asdict(_point(summary)) for summary in summaries_of(runs, least_of(folder))],
        "runs": [asdict(run) for run in runs],
    }
    texts = {
        "checkpoint.json": json.dumps(value, indent=1),
        "checkpoint.csv": csv_of(runs),
        "checkpoint.md": markdown_of(runs, machine, least_of(folder)),
    }
    written = write_texts(folder, texts)
    picture_of(runs, folder / "checkpoint.png")
    return [*written, folder / "checkpoint.png"]


def picture_of(runs: Sequence[CheckpointRun], path: Path) -> None:
    """Plot left the time of each way, right the writes of a run of each, second by second.

    Raises MissingDependency.
    """
    plt = pyplot()
    summaries = summaries_of(runs)
    traced = [summary.way for summary in summaries if summary.way != "none"]
    figure = plt.figure(figsize=(11, 1.6 + 1.15 * max(3, len(traced))))
    grid = figure.add_gridspec(max(1, len(traced)), 2, width_ratios=(1, 1.6), hspace=0.35)
    _bars(figure.add_subplot(grid[:, 0]), summaries)
    first = None
    end_s = max((run.durable_at_s for run in runs), default=1.0)
    for number, way in enumerate(traced):
        axis = figure.add_subplot(grid[number, 1], sharex=first, sharey=first)
        first = first or axis
        run = next(run for run in runs if run.way == way)
        _trace(axis, run, is_last=number == len(traced) - 1)
        axis.set_xlim(0, 1.02 * max(end_s, max(each_run.total_s for each_run in runs)))
    if first is not None:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1.0)}
        first.legend(**place, frameon=False, fontsize=8, ncols=3)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _bars(axis: Any, summaries: Sequence[Summary]) -> None:
    names = [summary.way for summary in summaries]
    steps = [summary.total_s - summary.block_s for summary in summaries]
    axis.barh(names, steps, color="#b9c4cf", label="steps")
    axis.barh(names, [summary.block_s for summary in summaries], left=steps, color="#c8553d",
              label="blocked by saves")  # fmt: skip
    for number, summary in enumerate(summaries):
        axis.errorbar(
            summary.total_s, number,
            xerr=[[summary.total_s - summary.least_s], [summary.most_s - summary.total_s]],
            color="black", capsize=3, linewidth=1,
        )  # fmt: skip
    axis.invert_yaxis()
    axis.set(xlabel="seconds of the loop")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=2, fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _trace(axis: Any, run: CheckpointRun, is_last: bool) -> None:
    at = [sample.at_s for sample in run.trace]
    axis.fill_between(at, [s.disk_bps / 1e6 for s in run.trace], step="pre", color="#b9c4cf",
                      label="written to the disk")  # fmt: skip
    axis.step(at, [s.slow_bps / 1e6 for s in run.trace], where="pre", color="#2a6f97",
              label="to the slow tier")  # fmt: skip
    for number, save in enumerate(run.saves):
        axis.axvspan(save.begin_s, save.begin_s + max(save.block_s, 0.05), color="#c8553d",
                     alpha=0.5, linewidth=0, label="" if number else "blocked")  # fmt: skip
    axis.axvline(run.total_s, color="black", linewidth=0.8, linestyle=":")
    axis.set_ylabel(f"{run.way}\nMB/s", fontsize=8)
    axis.tick_params(labelsize=8, labelbottom=is_last)
    if is_last:
        axis.set_xlabel("seconds (dotted: the loop has ended)")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    _main()
