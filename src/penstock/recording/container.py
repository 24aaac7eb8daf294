"""Start the program in a container with the recorder, and translate paths inside to paths outside.

Knows container programs' options and the kernel's mount tables; starts nothing, reads no log.

RUN/container holds the view from inside, written by native/container/enter.c, or by `penstock run`
when running inside a container: lines of "KEY VALUE", an empty line, then /proc/self/mountinfo.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import RunError
from penstock.installed import FOLDER
from penstock.safe import bounded, drafts

__all__ = [
    "NAME",
    "Container",
    "Inside",
    "Mounts",
    "describe",
    "host_mounts",
    "host_path",
    "own_mounts",
    "read_inside",
    "seems_inside",
]

NAME = "container"
FORMAT = "penstock container 1"
MOST_BYTES = 16 << 20  # a host with ten thousand mounts has 2 MB of mountinfo
# Mount points inside, and the folder outside for each; None: the folder belongs to the container
# alone (image, tmpfs).
Mounts = Mapping[str, str | None]

# Container programs, and the commands of each program for starting a container.
COMMANDS = {
    "apptainer": ("exec", "run"),
    "singularity": ("exec", "run"),
    "docker": ("run",),
    "podman": ("run",),
    "nerdctl": ("run",),
    "bwrap": (),
}
# With these programs, processes in the container are not our children: a daemon starts the
# processes, or the container has separate process numbers, and the kernel's samples cannot be
# matched.
APART = ("docker", "podman", "nerdctl")


@dataclass(frozen=True, slots=True)
class Container:
    """The words that start a program in a container, including the image.

    program: the container program's name.  at: the position for options with folders.
    """

    words: tuple[str, ...]
    program: str
    at: int

    @classmethod
    def parse(cls, text: str) -> Container:
        """Parse the value of --container.

        Raises RunError: no container program, or an option that joins a running container.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise RunError(f"--container {text!r}: {error}; close what was opened") from error
        names = [os.path.basename(word) for word in words]  # noqa: PTH119 - a word, no path
        first = next((i for i, name in enumerate(names) if name in COMMANDS), None)
        if first is None:
            listed = ", ".join(COMMANDS)
            raise RunError(f"--container {text!r}: names none of {listed}; begin with one of them")
        program = names[first]
        if program == "bwrap":  # bwrap's options are followed by the program alone
            return cls(tuple(words), program, len(words) - (words[-1] == "--"))
        commands = COMMANDS[program]
        at = next((i for i in range(first + 1, len(words)) if words[i] in commands), None)
        if at is None or at + 1 == len(words):
            wanted = f"{program} {commands[0]} [OPTIONS] IMAGE"
            raise RunError(
                f"--container {text!r}: a container is started with the recorder in it, one that "
                f"runs takes no folder any more; write '{wanted}'"
            )
        return cls(tuple(words), program, at + 1)

    @property
    def is_apart(self) -> bool:
        """Return True if the kernel does not count the program as our descendant."""
        return self.program in APART

    def command(
        self,
        program: Sequence[str],
        folder: Path,
        library: Path,
        settings: Mapping[str, str],
    ) -> list[str]:
        """Return the words that start `program` inside with the recorder.

        The recorder and the run folder are bound at the same paths inside.  Raises RunError: the
        container program cannot express a path.
        """
        package = Path(FOLDER)
        binds = [(package, False), (folder, True)]
        if library.parent != package:
            binds.insert(1, (library, False))
        options = [word for path, is_ours in binds for word in self._bind(path, is_ours)]
        enter = package / "enter"
        if not enter.is_file():
            raise RunError(f"{enter}: not there; build it with `make native` or reinstall penstock")
        pairs = [f"{name}={value}" for name, value in settings.items()]
        started = [str(enter), str(folder), str(library), *pairs, "--", *program]
        return [*self.words[: self.at], *options, *self.words[self.at :], *started]

    def _bind(self, path: Path, may_write: bool) -> list[str]:
        place = str(path)
        if self.program == "bwrap":
            return ["--bind" if may_write else "--ro-bind", place, place]
        if re.search(r"[:,\s]", place):
            raise RunError(
                f"{place}: {self.program} takes no path with a colon, comma or space; "
                "choose another with --output"
            )
        option = "--bind" if self.program in ("apptainer", "singularity") else "--volume"
        return [option, f"{place}:{place}" + ("" if may_write else ":ro")]


# --- the view from inside ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inside:
    """The view from inside a container.

    boot_id: of the kernel.  processes, mounts: the name spaces.  why_not: why nothing is recorded
    inside, or "".  table: the mountinfo.
    """

    boot_id: str
    processes: str
    mounts: str
    why_not: str
    table: str

    @property
    def has_our_processes(self) -> bool:
        """Return True if process numbers inside are the process numbers here."""
        return not self.processes or self.processes == _link("/proc/self/ns/pid")


def sum_of(folder: Path) -> str:
    """Return the checksum of RUN/container, or "" without a readable file."""
    with contextlib.suppress(OSError, ValueError):
        return f"{zlib.crc32(bounded.read(folder / NAME, MOST_BYTES)):08x}"
    return ""


def read_inside(folder: Path) -> Inside | None:
    """Return the content of RUN/container; None: missing, not readable, or of another format."""
    try:
        data = bounded.read(folder / NAME, MOST_BYTES)
        text = data.decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return None
    head, _, table = text.partition("\n\n")
    first, *lines = head.split("\n")
    if first != FORMAT:
        return None
    facts = dict(line.partition(" ")[::2] for line in lines)
    return Inside(
        facts.get("boot", ""),
        facts.get("processes", ""),
        facts.get("mounts", ""),
        facts.get("not recorded", ""),
        table,
    )


def seems_inside() -> bool:
    """Return True if this process runs in a container, by the usual container programs' marks."""
    marks = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
    names = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "KUBERNETES_SERVICE_HOST")
    return any(Path(mark).exists() for mark in marks) or any(name in os.environ for name in names)


def describe(folder: Path) -> None:
    """Write RUN/container with the view of this process; ignore a failed write."""
    head = {
        "boot": _text("/proc/sys/kernel/random/boot_id").strip(),
        "processes": _link("/proc/self/ns/pid"),
        "mounts": _link("/proc/self/ns/mnt"),
        "not recorded": "",
    }
    lines = [FORMAT, *(f"{key} {value}" for key, value in head.items()), "", own_mounts()]
    with contextlib.suppress(OSError):
        text = "\n".join(lines).encode(errors="surrogateescape")
        drafts.write_in_run(folder / NAME, text)


# --- paths ---------------------------------------------------------------------------------------


def own_mounts() -> str:
    """Return the mount table of this process."""
    return _text("/proc/self/mountinfo")


def host_mounts(inside: Inside, outside: str) -> dict[str, str | None]:
    """Return the folder outside for each mount point inside a container.

    outside: the mount table of this process, under the same kernel.  Empty if the container and
    this process share their mounts, or if the kernels differ (device numbers then mean nothing).
    """
    boot_id = _text("/proc/sys/kernel/random/boot_id").strip()
    if inside.boot_id != boot_id or inside.mounts == _link("/proc/self/ns/mnt"):
        return {}
    places = [(device, root, place) for place, (device, root) in _mounts(outside).items()]
    mounts: dict[str, str | None] = {}
    for point, (device, root) in _mounts(inside.table).items():
        shown = [
            (len(whole), host_path({whole: place}, root))
            for number, whole, place in places
            if number == device and _is_below(root, whole)
        ]
        mounts[point] = max(shown)[1] if shown else None
    return mounts


def host_path(mounts: Mounts, path: str) -> str:
    """Return the path outside of a path inside.

    If the folder belongs to the container alone, return the path inside.
    """
    point = path
    while mounts and path.startswith("/"):
        if point in mounts:
            place = mounts[point]
            rest = path[len(point) :].lstrip("/")
            return path if place is None else f"{place.rstrip('/')}/{rest}".rstrip("/") or "/"
        if point == "/":
            break
        point = point.rpartition("/")[0] or "/"
    return path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mounts(table: str) -> dict[str, tuple[str, str]]:
    """Return device numbers and mounted folder by mount point.

    A later mount hides an earlier mount at the same point.
    """
    mounts = {}
    for line in table.split("\n"):
        words = line.split(" ")
        if len(words) >= 7 and "-" in words:
            mounts[_unescaped(words[4])] = (words[2], _unescaped(words[3]))
    return mounts


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
