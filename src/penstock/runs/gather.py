"""Join the run folders of a job's nodes, each with some of the ranks, to one run folder.  Knows the
files of a run and a log's header; knows no event, no table, no screen.

The new folder is built beside the final name and renamed at the end.  An interrupted gathering
keeps the copied files, and a repeated call continues.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import LogError, RunError
from penstock.log.header import Header, looks_like_log, read_header
from penstock.log.texts import LOG_SUFFIXES, is_log_name
from penstock.safe import bounded, checksums, drafts

__all__ = ["Gathered", "gather"]

Progress = Callable[[int, int], None]

# File names of the recorder and of `penstock run`; a file with another name is foreign.
_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_NAMES = re.compile(rf"{_HOST}\.\d{{1,10}}(\.\d{{1,10}}\.(events|log)|\.faults|\.system)")
_FACTS = re.compile(r"run(-[A-Za-z0-9.-]{1,80})?\.json")
_MOST_FACTS_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_DRAFT = "-gathering"
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Gathered:
    """The result of a gathering.

    logs, n_bytes: in the new folder.  copied: the number of files copied now; an interrupted call
    had copied the other files.  left_out: files that are not part of a run, with the reason.  size:
    the number of ranks of the job; 0: no launcher reported the number.  ranks: the number of
    present ranks.  missing: the missing ranks.  growing: the number of logs of processes that had
    not ended, or that may not have ended.
    """

    folder: Path
    logs: int
    n_bytes: int
    copied: int
    left_out: dict[str, str]
    size: int
    ranks: int
    missing: tuple[int, ...]
    growing: int


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a source, with the file's name in the new folder."""

    path: Path
    name: str
    size: int
    mtime_ns: int
    header: Header | None


def gather(
    folders: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    progress: Progress | None = None,
    is_for_group: bool = False,
) -> Gathered:
    """Join the run folders of a job's nodes to one run folder.

    Sources are only read; links in sources are not followed.  progress: is called with (done,
    total) bytes.  is_for_group: the group may read the new folder.  Raises RunError: a source is no
    folder or has no log, the sources are of different jobs, two sources have one rank, the target
    exists, no room; LogError: a log of a newer format.
    """
    sources = _distinct(folders)
    target = Path(target).expanduser().absolute()
    if os.path.lexists(target):
        raise RunError(f"{target}: is there already; gather into a new folder")
    left_out: dict[str, str] = {}
    file_lists = [_files_of(source, left_out) for source in sources]
    _check_jobs(sources)
    size, ranks = _check_ranks(sources, file_lists)
    files = _named_apart(file_lists)
    draft = target.with_name(target.name + _DRAFT)
    try:
        drafts.run_folder(draft, is_for_group)
        with drafts.held_folder(draft, is_private=False) as held:  # also of an earlier call
            copied = _copy_all(files, Path(held), progress)
            _write_facts(Path(held), sources, left_out)
            if not draft.samefile(held):
                raise RunError(f"{draft}: another program has put another folder in its place")
            draft.rename(target)
        _sync(target.parent)
    except OSError as error:
        where = re.sub(r"^/proc/self/fd/\d+", lambda _: str(draft), str(error.filename or draft))
        raise RunError(f"{where}: {error.strerror}; the same command goes on from here") from error
    headers = [file.header for file in files if file.header]
    return Gathered(
        target,
        len(headers),
        sum(file.size for file in files),
        copied,
        left_out,
        size,
        len(ranks),
        tuple(number for number in range(min(size, _MOST_RANKS)) if number not in ranks),
        sum(header.state == "running" for header in headers),
    )


# --- the files of the sources --------------------------------------------------------------------


def _distinct(folders: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return each folder once, even if given under several names."""
    seen: dict[tuple[int, int], Path] = {}
    for given in folders:
        path = Path(given).expanduser().absolute()
        try:
            status = path.stat()
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}; name the run folders of nodes") from error
        if not stat.S_ISDIR(status.st_mode):
            raise RunError(f"{path}: a file; a run is the folder that its logs lie in")
        seen.setdefault((status.st_dev, status.st_ino), path)
    return list(seen.values())


def _files_of(source: Path, left_out: dict[str, str]) -> list[_File]:
    """Return the files of a run folder; note skipped files with the ending of a log."""
    files = []
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not entry.name.endswith((*LOG_SUFFIXES, ".faults", ".system")):
                continue  # open_run makes the tables again; _write_facts writes all facts
            why, file = _file(source / entry.name)
            if file is not None:
                files.append(file)
            else:
                left_out[ascii(str(source / entry.name))[1:-1]] = why
    if not any(file.header for file in files):
        raise RunError(f"{source}: no log of penstock in it; name the run folders of nodes")
    return files


def _file(path: Path) -> tuple[str, _File | None]:
    """Return a file of a run, or why the file is not part of a run."""
    if not _NAMES.fullmatch(path.name):
        return "no name that the recorder gives", None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be opened: {error.strerror}", None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "no regular file", None
        page = os.pread(descriptor, 4096, 0)
    finally:
        os.close(descriptor)
    header = None
    if is_log_name(path.name):
        try:
            header = read_header(path)
        except LogError as error:
            if looks_like_log(page):
                raise
            return str(error), None
    return "", _File(path, path.name, status.st_size, status.st_mtime_ns, header)


def _facts_of(
    source: Path, left_out: dict[str, str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts of each `penstock run` by file name; damaged files are skipped and noted."""
    for path in sorted(source.glob("run*.json")):
        if not _FACTS.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        try:
            facts = bounded.json_of(path, _MOST_FACTS_BYTES)
        except (OSError, ValueError) as error:
            if left_out is not None:
                left_out[ascii(str(path))[1:-1]] = str(error)
            continue
        if isinstance(facts, dict):
            yield path.name, facts


# --- checks of the sources: a single job, and each rank once -------------------------------------


def _check_jobs(sources: Sequence[Path]) -> None:
    """Raise RunError if two sources name different jobs."""
    named: dict[str, Path] = {}
    for source in sources:
        for _, facts in _facts_of(source):
            if isinstance(facts.get("job"), str):
                named.setdefault(facts["job"], source)
    if len(named) > 1:
        (job, here), (other, there) = list(named.items())[:2]
        raise RunError(
            f"{here} is of job {ascii(job)[1:-1]} and {there} of {ascii(other)[1:-1]}: runs of "
            "different jobs are compared (`penstock compare`), not gathered"
        )


def _check_ranks(
    sources: Sequence[Path], file_lists: Sequence[Sequence[_File]]
) -> tuple[int, set[int]]:
    """Return the number of ranks of the job, and the present ranks.

    A launcher's own processes may count ranks of another, smaller group.  Raises RunError: a rank
    in two folders.
    """
    headers = [
        (source, file.header)
        for source, files in zip(sources, file_lists, strict=True)
        for file in files
        if file.header
    ]
    size = max((header.world_size or 0 for _, header in headers), default=0)
    ranks: dict[int, dict[Path, set[Any]]] = {}
    for source, header in headers:
        if header.rank is not None and header.world_size == size:
            ranks.setdefault(header.rank, {}).setdefault(source, set()).add(_identity(header))
    for rank, logs in ranks.items():
        (here, first), *others = logs.items()
        for there, other in others:
            if not first & other:  # a shared log means an earlier or later copy of the log
                raise RunError(
                    f"rank {rank} is in {here} and in {there}: of two runs of the job, or of two "
                    "jobs; gather the folders of one"
                )
    return size, set(ranks)


def _identity(header: Header) -> tuple[Any, ...]:
    """Return a key that is equal for all copies of a log, and different for different logs."""
    return header.boot_id, header.host, header.pid, header.start_ns, header.start_ticks


def _named_apart(file_lists: Sequence[Sequence[_File]]) -> list[_File]:
    """Return each file once: of the copies of a log, the largest.

    A log gets a new name if a log of another host has an equal name.
    """
    logs: dict[Any, _File] = {}
    for files in file_lists:
        for file in files:
            # Other files have no identity: files of equal name, size and time count as equal.
            key = _identity(file.header) if file.header else (file.name, file.size, file.mtime_ns)
            if key not in logs or file.size > logs[key].size:
                logs[key] = file
    taken: set[str] = set()
    named = []
    for file in logs.values():
        name, number = file.name, 1
        while name in taken:
            number += 1
            head, _, tail = file.name.partition(".")
            name = f"{head}-{number}.{tail}"
        taken.add(name)
        named.append(_File(file.path, name, file.size, file.mtime_ns, file.header))
    return named


# --- the new folder ------------------------------------------------------------------------------


def _copy_all(files: Sequence[_File], draft: Path, progress: Progress | None) -> int:
    """Copy the missing files; return how many were copied."""
    wanted = {file.name for file in files}
    for entry in list(os.scandir(draft)):  # of an earlier call with other folders
        if entry.name not in wanted and not entry.is_dir(follow_symlinks=False):
            Path(entry.path).unlink()
    total, done, copied = sum(file.size for file in files), 0, 0
    for file in files:
        if not _is_there(file, draft / file.name):
            _copy(file, draft / file.name)
            copied += 1
        done += file.size
        if progress:
            progress(done, total)
    return copied


def _is_there(file: _File, path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    # A copy gets the source's time when the copy is complete.
    same = (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)
    return same and stat.S_ISREG(status.st_mode)


def _copy(file: _File, path: Path) -> None:
    source = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with drafts.draft_in_run(path) as copy:
            left = file.size  # bytes appended later belong to the next gathering
            while left and (data := os.read(source, min(left, _COPY_BYTES))):
                copy.write(data)
                left -= len(data)
            if left:
                raise RunError(
                    f"{file.path}: became shorter meanwhile; gather again when it is at rest"
                )
            copy.flush()
            os.fsync(copy.fileno())
            os.utime(copy.fileno(), ns=(file.mtime_ns, file.mtime_ns))
    finally:
        os.close(source)


def _write_facts(draft: Path, sources: Sequence[Path], left_out: dict[str, str]) -> None:
    """Write the facts of each `penstock run` to a separate file, in the order of the folders."""
    for number, source in enumerate(sources):
        for name, facts in _facts_of(source, left_out):
            if number:
                name = f"run-node-{number + 1}{name.removeprefix('run')}"
            drafts.write_in_run(draft / name, checksums.sealed_json(facts, indent=1))
    run_facts = {"gathered": [str(source) for source in sources]}
    text = checksums.sealed_json(run_facts, indent=1)
    drafts.write_in_run(draft / "gathered.json", text)


def _sync(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot sync a folder
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
