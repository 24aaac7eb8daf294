"""Import another tool's files as a run; the contents show the tool.  Knows no format."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import RunError
from penstock.interop import darshan_logs, dftracer
from penstock.safe import bounded

__all__ = ["import_foreign"]

_HEAD_BYTES = 1 << 16
# Tool, a test for the tool's files, and an import of the files.
_TOOLS = (
    ("Darshan", darshan_logs.looks_like_darshan, darshan_logs.import_logs),
    ("DFTracer", dftracer.looks_like_dftracer, dftracer.import_traces),
)


def import_foreign(
    sources: Sequence[Path],
    folder: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make a run folder of files of a single tool and job.

    From a folder, take the files of known tools.  progress: is called with (done, total).  Raises
    RunError: files of no tool or of several tools, damaged files, a folder with files;
    MissingDependency.
    """
    by_tool: dict[str, list[Path]] = {}
    for source in sources:
        for path in _files(source):
            tool = _tool(path)
            if tool:
                by_tool.setdefault(tool, []).append(path)
            elif not source.is_dir():
                kinds = "a log of Darshan nor a trace of DFTracer"
                raise RunError(f"{path}: is neither {kinds}; nothing to import")
    if not by_tool:
        raise RunError(f"{sources[0]}: no log of Darshan and no trace of DFTracer in it")
    if len(by_tool) > 1:
        raise RunError(
            f"files of {' and '.join(sorted(by_tool))}; import those of one tool at a time"
        )
    ((tool, paths),) = by_tool.items()
    (make,) = (make for name, _, make in _TOOLS if name == tool)
    return make(paths, folder, progress)


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    try:
        return sorted(path for path in source.iterdir() if path.is_file())
    except OSError as error:
        raise RunError(f"{source}: cannot be read: {error.strerror}") from error


def _tool(path: Path) -> str | None:
    try:
        with bounded.opened(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    if not head and path.name.endswith(dftracer.SUFFIXES):
        return "DFTracer"  # of a forked child that ended before writing
    return next((name for name, is_its, _ in _TOOLS if is_its(head)), None)
