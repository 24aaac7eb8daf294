"""Replace the paths, hosts, users, tiers and programs of a report by pseudonyms, for strangers.

The module knows only the Report.  A name has one pseudonym everywhere.  A path keeps the depth, the
public parts (/usr/lib) and the endings of files: the report stays readable.  Numbers stay.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable
from typing import Any

from penstock.explain.report.shape import Report, to_json
from penstock.explain.report.sound import from_json

__all__ = ["RUN", "anonymous"]

RUN = "RUN"  # replaces the folder's name in an anonymous report
# Names of folders on every machine.
PUBLIC = frozenset(
    re.findall(
        r"\S+",
        "usr lib lib64 lib32 local bin sbin etc tmp var opt home root Users dev shm proc self sys"
        " fs cgroup mnt media run srv nfs site-packages dist-packages __pycache__ lib-dynload RUN"
        " x86_64-linux-gnu aarch64-linux-gnu stdout stderr . ..",
    )
)
PROGRAMS = frozenset(
    re.findall(r"\S+", "python python3 bash sh env torchrun mpirun mpiexec srun deepspeed penstock")
)
PACKAGES = frozenset(sys.stdlib_module_names) | frozenset(
    re.findall(
        r"\S+",
        "torch torchvision torchaudio numpy pandas PIL tensorflow keras jax flax lightning"
        " pytorch_lightning transformers datasets webdataset lmdb h5py pyarrow duckdb penstock cv2"
        " scipy sklearn triton accelerate deepspeed safetensors orbax grain tqdm yaml main",
    )
)
ENDINGS = re.compile(
    r"((?:\.(?:py|pyc|so|tar|gz|tgz|zst|xz|bz2|zip|npy|npz|lmdb|mdb|tfrecords?|jpe?g|png|webp|gif"
    r"|tiff?|bmp|ppm|pt|pth|ckpt|safetensors|h5|hdf5|parquet|arrow|jsonl?|csv|tsv|txt|bin|idx|log"
    r"|ya?ml|toml|pkl|pickle|wav|flac|mp3|mp4|nii|dcm|mat|zarr|db|sqlite|index|data|metadata"
    r"|distcp|keras|tmp|part|cfg|ini|sh))+)$",
    re.IGNORECASE,
)
USERS = re.compile(r"/(?:home|Users)/([^/]+)")
IN_TEXT = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s'\",;()]*[^\s'\",;().:])?")
VERSIONED = re.compile(r"python3(\.\d+)?")
NAMED = {
    "tier": "tier",
    "host": "host",
    "function": "function",
    "called": "function",
}  # columns of names
KEYS = frozenset(("key", "unit", "state", "kind", "level", "bound", "rule", "group", "report"))


def anonymous(report: Report) -> Report:
    """Return the report without the user's paths, hosts, users, tiers, programs and packages.

    The report must have RUN as the run's name.
    """
    return _Names(report).replaced(report)


class _Names:
    """Pseudonyms by name.  Whole known names are replaced first, to find paths with spaces inside a
    text."""

    def __init__(self, report: Report) -> None:
        self._parts: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._order: list[str] = []
        texts = [report.folder]
        for host in filter(None, report.host.split(", ")):
            self._word(host, "host")
        for table in report.tables:
            for n, column in enumerate(table.columns):
                cells = [str(row[n]) for row in table.rows if row[n] not in (None, "")]
                if column.unit == "path":
                    texts += cells
                    if table.key == "fetch_lines":  # findings have the files' names alone
                        self._files(cells)
                elif column.key in NAMED:
                    for cell in cells:
                        self._word(cell, NAMED[column.key])
                elif column.key == "command":
                    for cell in cells:
                        self._command(cell)
        self._command(report.command)
        for text in texts:
            for user in USERS.findall(text):
                self._word(user, "user")
        for text in texts:
            if text:
                self._path(text)

    def replaced(self, report: Report) -> Report:
        plain = self._walked(json.loads(to_json(report)))
        for table in plain["tables"]:
            for row in table["rows"]:
                for n, column in enumerate(table["columns"]):
                    if column["key"] in ("package", "importer") and isinstance(row[n], str):
                        row[n] = self._package(row[n])
        return from_json(json.dumps(plain))

    def _walked(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v if k in KEYS else self._walked(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._walked(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        """Replace known paths, then other texts that look like paths, then single names."""
        held: list[str] = []

        def hold(name: str) -> str:  # protects a pseudonym from a second replacement
            held.append(name)
            return f"\0{len(held) - 1}\0"

        for path in self._sorted_paths():
            if path in text:
                pattern = re.compile(rf"(?<![\w/.-]){re.escape(path)}(?![\w-])")
                text = pattern.sub(hold(self._paths[path]), text)
        text = IN_TEXT.sub(lambda match: hold(self._path(match[0])), text)
        for word, name in self._words.items():
            if word in text:
                pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
                text = pattern.sub(hold(name), text)
        return re.sub(r"\0(\d+)\0", lambda match: held[int(match[1])], text)

    def _sorted_paths(self) -> list[str]:
        if len(self._order) != len(self._paths):
            self._order = sorted(self._paths, key=len, reverse=True)
        return self._order

    def _path(self, path: str) -> str:
        if path not in self._paths and path.strip("/"):
            self._paths[path] = "/".join(map(self._part, path.split("/")))
        return self._paths.get(path, path)

    def _part(self, part: str) -> str:
        if not part or part in PUBLIC or part == "~" or VERSIONED.fullmatch(part):
            return part
        if part in self._words:
            return self._words[part]
        if part not in self._parts:
            ending = ENDINGS.search(part)
            self._parts[part] = self._next("f" if ending else "d") + (ending[1] if ending else "")
        return self._parts[part]

    def _word(self, word: str, kind: str) -> str:
        return self._words.setdefault(word, self._next(kind))

    def _next(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}{self._counts[kind]}"

    def _package(self, name: str) -> str:
        return name if name.partition(".")[0] in PACKAGES else self._word(name, "package")

    def _files(self, paths: Iterable[str]) -> None:
        """Give the last parts of paths a pseudonym outside of paths, too."""
        for path in paths:
            base = path.rpartition("/")[2]
            if base and base not in PUBLIC:
                self._words.setdefault(base, self._part(base))

    def _command(self, command: str) -> None:
        """Replace the words of a command; common programs, options and numbers stay."""
        try:
            words = shlex.split(command)
        except ValueError:
            words = command.split()
        for word in words:
            name, _, value = word.partition("=")
            value = value if name.startswith("-") and value else word
            if value.startswith("-") or re.fullmatch(r"[\d.,eE+-]*|…", value):
                continue
            base = value.rpartition("/")[2]
            if "/" in value:
                self._path(value)
            if base and base not in PROGRAMS and base not in PUBLIC:
                self._words.setdefault(base, self._part(base))
                if "/" not in value:
                    self._words.setdefault(value, self._part(value))
