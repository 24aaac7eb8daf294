"""GPU direct storage: calls to libcufile, with a library that stands for NVIDIA's."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
