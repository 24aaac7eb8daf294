"""The start-up in words: the parts, and the parts that a change would shorten.

Turns measures into parts and causes.  Knows no rule and no view; the numbers come from
queries/startup_*.sql and worker_starts.sql.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.explain.measures import Measures, StartupImport, StartupPlace, State
from penstock.explain.measures.network import by_phase
from penstock.words import count, per_cent, show

__all__ = ["LABELS", "STORAGE", "Cause", "causes", "largest", "mostly", "quality"]

# The parts of a start-up, by key in queries/startup_parts.sql.
LABELS = {
    "import": "imports",
    "listing": "opening, listing data (open, stat, list)",
    "reading": "reading data",
    "cache": "making files (cache)",
    "restore": "loading a checkpoint",
    "worker start": "worker start",
    "first batch": "first batch",
    "checkpoint": "saving a checkpoint",
    "other files": "other file calls",
    "network": "waiting for the network",
    "waiting": "waiting (blocked)",
    "cpu": "CPU (model, compiling)",
    "not scheduled": "not scheduled",
    "not observed": "not observed",
}
STORAGE = ("listing", "reading", "other files")
# Parts of less than 5 % of the start-up are not mentioned.
WORTH_TELLING = 0.05
# A program without training is described by the part with half of the program's life.
MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of the start-up that a change shortens.

    gain_s: the most seconds saved.  remedies: pairs of a word of findings.Remedy and a sentence.
    shown: the table with the part.
    """

    part: str
    gain_s: float
    evidence: tuple[str, ...]
    remedies: tuple[tuple[str, str], ...]
    shown: str = "startup"


def causes(measures: Measures) -> tuple[Cause, ...]:
    """Return every part that a change may shorten, largest gain first.

    Rule C4 judges loading a checkpoint.  Workers restarted with each later epoch count with the
    workers of the start-up.
    """
    causes_seen = (
        _listing(measures),
        _reading(measures),
        _cache(measures),
        _imports(measures),
        _workers(measures),
        _first_batch(measures),
    )
    return tuple(
        sorted((cause for cause in causes_seen if cause.gain_s > 0), key=lambda c: -c.gain_s)
    )


def largest(measures: Measures, but: str = "") -> str:
    """Return the largest parts in a line, as "imports 2.10 s, first batch 102 ms"; "" for none."""
    parts = [(part, s) for part, s in measures.startup_parts.items() if s]
    whole_s = sum(s for _, s in parts)
    shares = [
        f"{LABELS[part]} {show(s, 's')}"
        for part, s in sorted(parts, key=lambda item: (-item[1], item[0]))
        if s >= WORTH_TELLING * whole_s and part != but
    ]
    return ", ".join(shares[:4])


def mostly(measures: Measures) -> str:
    """Return the part with at least half of the life of a program without training, or "".

    The part is listing, reading or making files, the network, or imports.
    """
    parts = {part: s for part, s in measures.startup_parts.items() if s}
    whole_s = sum(parts.values())
    for part in ("listing", "reading", "cache", "network", "import"):
        if parts.get(part, 0.0) < MOSTLY * whole_s or not whole_s:
            continue
        share = per_cent(parts[part] / whole_s)
        if part == "import":
            slowest = _slowest(_imported(measures, "main"), 1)
            return f"{share} of its life are imports{f' ({slowest})' if slowest else ''}"
        place = _place(measures, part)
        where = f" in {place.path}" if place else ""
        return f"{share} of its life is {_DOING[part]}{where}"
    return ""


def quality(measures: Measures, part: str) -> tuple[State, str]:
    """Return the state of the seconds of a part, with the reason."""
    state, why = measures.events_state
    if measures.startup_parts.get(part) is None:
        return "not measured", "the CPU time of the start was not recorded"
    if part == "import" and not _imported(measures, "main") and state == "measured":
        return "incomplete", "imports were not marked: only files of programs and libraries count"
    if part in ("cpu", "not scheduled", "not observed") and state == "measured":
        return (
            "derived",
            "the CPU time and the delay of the whole start, less what calls may have used",
        )
    return state, why


_DOING = {
    "listing": "opening or listing data files",
    "reading": "reading data",
    "cache": "making files",
    "network": "waiting for the network",
}


def _s(measures: Measures, part: str) -> float:
    return measures.startup_parts.get(part) or 0.0


def _place(measures: Measures, part: str) -> StartupPlace | None:
    return next((row for row in measures.startup_places if row.part == part), None)


def _of_startup(measures: Measures, s: float) -> str:
    """Return the seconds, and the seconds of the whole start-up, in words."""
    whole_s = measures.training.startup_s
    return f"{show(s, 's')} of {show(whole_s, 's')} of start-up" if whole_s else show(s, "s")


def _listing(measures: Measures) -> Cause:
    s, place = _s(measures, "listing"), _place(measures, "listing")
    is_read = place is not None and _are_read(measures, place)
    doing = "opening data files" if is_read else "listing data"
    evidence = [f"{doing} takes {_of_startup(measures, s)}"]
    if place and place.calls:
        files = f" on {count(place.files, 'file')}" if place.files else ""
        evidence.append(
            f"{count(place.calls, 'call')} (open, stat, list){files} in {place.path}, "
            f"{show(place.time_s / place.calls, 's')} each"
        )
    says = "keep the list of files (an index, a manifest) instead of making it at each start"
    pack = "pack the files into few large ones (LMDB, tar, TFRecord): one open for all of them"
    remedies = (("code", pack),) if is_read else (("code", says), ("code", pack))
    return Cause("listing", s, tuple(evidence), remedies)


def _are_read(measures: Measures, place: StartupPlace) -> bool:
    """Return True if most files of the place were read: a list of files saves no open."""
    return any(
        row.part == "reading" and row.path == place.path and row.files >= 0.5 * max(1, place.files)
        for row in measures.startup_places
    )


def _reading(measures: Measures) -> Cause:
    s, place = _s(measures, "reading"), _place(measures, "reading")
    evidence = [f"reading data before the first batch takes {_of_startup(measures, s)}"]
    if place:
        evidence.append(f"{show(place.read_bytes, 'B')} in {place.path}, {show(place.time_s, 's')}")
    says = "read it when it is needed, in the workers"
    if place is None or place.read_bytes:  # else mapped already
        says += '; map an array instead of loading it: np.load(path, mmap_mode="r")'
    return Cause("reading", s, tuple(evidence), (("code", says),))


def _cache(measures: Measures) -> Cause:
    s, place = _s(measures, "cache"), _place(measures, "cache")
    evidence = [f"making files before the training takes {_of_startup(measures, s)}"]
    if place:
        evidence.append(
            f"{show(place.written_bytes, 'B')}, {count(place.files, 'file')} in {place.path}"
        )
    says = (
        "keep the folder between runs (HF_HOME and HF_DATASETS_CACHE for Hugging Face), or make "
        "the files once, before the job"
    )
    return Cause("cache", s, tuple(evidence), (("job", says),))


def _imported(measures: Measures, importer: str) -> list[StartupImport]:
    return [row for row in measures.startup_imports if row.importer == importer]


def _slowest(rows: Sequence[StartupImport], n: int = 3) -> str:
    """Return the slowest packages, a mean over the importing processes."""
    each = sorted(((row.import_s / row.processes, row.package) for row in rows), reverse=True)
    shown = [f"{package} {show(s, 's')}" for s, package in each if s >= 0.1 * each[0][0]]
    return ", ".join(shown[:n])


def _imports(measures: Measures) -> Cause:
    """Return the cause of imports; the gain is the longest possible wait for files.

    The rest of the imports is CPU work.
    """
    rows = _imported(measures, "main")
    mains = max(1, measures.training.mains)
    s = _s(measures, "import")
    if not rows:  # no marks: an older recording, or no Python
        return Cause("import", 0.0, (), ())
    files_s = sum(min(row.calls_s, max(0.0, row.import_s - row.cpu_s)) for row in rows) / mains
    evidence = (
        f"imports take {_of_startup(measures, s)}, up to {show(files_s, 's')} of it in files of "
        "programs and libraries",
        f"slowest: {_slowest(rows)}",
    )
    says = (
        "keep the Python environment on a disk of this node, or in one file (a container image, "
        "squashfs): an import opens thousands of small files"
    )
    return Cause("import", files_s, evidence, (("job", says),), "startup_imports")


def _workers(measures: Measures) -> Cause:
    """Return the cause of starting workers at the start-up and later, with the workers' set-up."""
    again_s = measures.wait_s("loader start", "worker start", "pass end")
    s = _s(measures, "worker start") + again_s
    began = measures.worker_starts
    evidence = [f"starting and ending workers takes {show(s, 's')} of the step loop"]
    if again_s and s > again_s:
        evidence[0] += f", {show(again_s, 's')} of it after the first step"
    if began.workers:
        fresh = f", {began.fresh:,} as programs of their own (spawn)" if began.fresh else ""
        evidence.append(
            f"{count(began.workers, 'worker')} started, {began.again:,} after the first step{fresh}"
        )
    remedies = []
    passes = sum(bool(row.workers) for row in measures.epochs)
    if again_s >= 0.5 * s and passes > 1:  # a single epoch has no later use for workers
        remedies.append(("loader", "DataLoader(persistent_workers=True)"))
    if began.fresh and began.import_s >= WORTH_TELLING * s:
        slowest = _slowest(_imported(measures, "worker"))
        evidence.append(f"each imports anew for {show(began.import_s, 's')}: {slowest}")
        says = (
            'start workers from a process that has imported: multiprocessing_context="forkserver" '
            'with multiprocessing.set_forkserver_preload(["torch"]); fewer imports at the top of '
            "the program"
        )
        remedies.append(("loader", says))
    own_s = began.born_s - began.import_s
    if own_s >= WORTH_TELLING * s:
        evidence.append(f"each takes {show(own_s, 's')} to start, imports not counted")
    if began.setup_s >= WORTH_TELLING * s:
        evidence.append(
            f"each sets itself up for {show(began.setup_s, 's')}: worker_init_fn, the data set's "
            "iterator"
        )
        remedies.append(("code", "do less in worker_init_fn; open files at their first use"))
    if not remedies:
        remedies.append(("code", "fewer workers; a data set that pickles small"))
    return Cause("worker start", s, tuple(evidence), tuple(remedies), "epochs")


def _first_batch(measures: Measures) -> Cause:
    """Return the rest of the wait for the first batch; all of it for a run reduced by rank."""
    whole_s = measures.training.first_batch_s or 0.0
    s = _s(measures, "first batch") if measures.startup_parts else whole_s
    made = {
        part: of
        for part, of in measures.first_batch_parts.items()
        if part not in ("loader start", "worker start", "pass end")
    }
    made = by_phase(made, measures.first_batch_network)
    ordered = sorted(made.items(), key=lambda item: (-round(item[1], 6), item[0]))[:3]
    evidence = [f"first batch after {show(whole_s, 's')}"]
    if of := ", ".join(
        f"{part.replace('network ', 'network: ')} {show(part_s, 's')}"
        for part, part_s in ordered
        if part_s >= 0.05 * s
    ):
        evidence.append(f"of the first batch: {of}")
    endpoints = [row for row in measures.first_batch_network if row.is_remote]
    if endpoints and sum(row.s for row in endpoints) >= 0.5 * s:
        evidence.append(f"from remote storage: {max(endpoints, key=lambda row: row.s).endpoint}")
    says = "make the loader's iterator, iter(loader), before the model: its workers fetch meanwhile"
    return Cause("first batch", s, tuple(evidence), (("loader", says),), "epochs")
