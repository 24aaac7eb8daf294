"""GPU direct storage: calls to libcufile, with a library that stands for NVIDIA's."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.explain.measures import measure
from penstock.explain.report import report_of


def test_calls_to_cufile_are_counted_once_with_their_file(
    workload: Callable[..., Path], recorded_command: Callable[..., Any], work: Path
) -> None:
    library = workload("libcufile_known", "-shared", "-fPIC")
    program = workload("cufile", str(library), f"-Wl,-rpath,{library.parent}")
    (work / "data").write_bytes(bytes(40960))
    run = recorded_command([program])
    assert run.sql(
        "SELECT op, regexp_extract(path, '[^/]*$'), offset_bytes, asked_bytes, moved_bytes, errno"
        " FROM events WHERE op_group IN ('read', 'write') AND path SIMILAR TO '.*/(data|out)'"
        " ORDER BY start_ns"
    ).fetchall() == [
        *[("cufile_read", "data", n * 4096, 4096, 4096, 0) for n in range(10)],
        ("cufile_read", "data", 40960, 4096, 0, 0),
        ("cufile_read", "data", 0, 4096, 0, errno.EIO),
        *[("cufile_write", "out", n * 1000, 1000, 1000, 0) for n in range(3)],
        ("cufile_read", "out", 0, 10, 0, errno.EBADF),
    ]
    # Of what goes on a stream or into a batch no end is told: counted, and no bytes are claimed.
    assert run.sql(
        "SELECT regexp_extract(path, '[^/]*$'), count(*), sum(moved_bytes), max(errno) FROM events"
        " WHERE op = 'cufile_submit' GROUP BY path ORDER BY path NULLS LAST"
    ).fetchall() == [("data", 2, 0, 0), ("out", 1, 0, 0), (None, 2, 0, errno.EIO)]
    assert measure(run).recording.unseen_calls == 5
    (gap,) = [gap for gap in report_of(measure(run)).gaps if "cuFile" in gap.why]
    assert (gap.what, gap.state) == ("5 calls", "not measured")
