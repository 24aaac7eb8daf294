"""Penstock's own files in a recorded job: they are of class penstock, and no data of the job."""

import io
import os
import sys
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.compare import compare
from penstock.explain.measures import Measures, measure
from penstock.explain.report import Report, report_of
from penstock.runs.run import Run

RECORDS, RECORD_BYTES = 1200, 2000  # as many as are worth an index that is kept

# Each record in a step of its own: by tarfile, by C's stdio, or by feed with an index in a folder
# or beside the data.
TRAINING = """
    import os, sys, tarfile
    import penstock

    def plain():
        with tarfile.open(sys.argv[1]) as archive:
            places = [(member.offset_data, member.size) for member in archive]
        descriptor = os.open(sys.argv[1], os.O_RDONLY)
        for offset, size in places:
            yield os.pread(descriptor, size, offset)

    def stdio():
        import numpy
        block = -(-os.stat(sys.argv[1]).st_size // 1200)
        with open(sys.argv[1], "rb", buffering=0) as file:
            for _ in range(1200):
                yield numpy.fromfile(file, "u1", block)  # fread

    def fed(cache):
        from penstock.feed import Feed, open_index
        with Feed(open_index(sys.argv[1], cache=cache), 1) as feed:
            yield from feed

    how = os.environ["HOW"]
    for record in {"plain": plain, "stdio": stdio}.get(how, lambda: fed(how))():
        with penstock.step():
            bytes(record[0] if how not in ("plain", "stdio") else record)
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "set.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for number in range(RECORDS):
            member = tarfile.TarInfo(f"{number:05d}.bin")
            member.size = RECORD_BYTES
            tar.addfile(member, io.BytesIO(bytes([number % 251]) * RECORD_BYTES))
    return path


@pytest.fixture
def trained(
    recorded_command: Callable[..., Any], archive: Path, tmp_path: Path
) -> Callable[[str], Run]:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(TRAINING))

    def train(how: str) -> Run:
        environment = {"HOW": how, "XDG_CACHE_HOME": str(tmp_path / "home-cache")}
        run: Run = recorded_command([sys.executable, program, archive], environment=environment)
        return run

    return train


def reported(run: Run, measures: Measures | None = None) -> Report:
    return report_of(measures or measure(run), run.folder.name)


def read_of(run: Run, name: str) -> int:
    [(n_bytes,)] = run.sql(
        "SELECT coalesce(sum(moved_bytes), 0)::BIGINT FROM events "
        "WHERE op_group = 'read' AND ends_with(path, ?)",
        [name],
    )
    return int(n_bytes)


def files_of(run: Run, path_class: str) -> set[str]:
    rows = run.sql("SELECT path FROM files WHERE path_class = ? AND kind = 'regular'", [path_class])
    return {str(path) for (path,) in rows}


@pytest.mark.parametrize("place", ["indexes", "beside"])
def test_the_index_of_feed_is_no_data_and_bytes_are_compared_with_a_run_before_it(
    trained: Callable[[str], Run], archive: Path, place: str
) -> None:
    before = trained("plain")
    report_before = reported(before)
    for run in (trained(place), trained(place)):  # the index is made, and found
        assert files_of(run, "data") == {str(archive)}
        [(of_index,)] = run.sql("SELECT count(*) FROM files WHERE path_class = 'penstock'")
        assert of_index
        assert not [path for path in files_of(run, "output") if "index" in path or ".idx" in path]
        seen = measure(run)
        assert seen.reading.files == 1
        assert seen.reading.read_bytes == read_of(run, "set.tar")
        assert {row.files for row in seen.sharing} <= {1}
        assert {row.path for row in seen.files if row.path_class == "data"} == {str(archive)}
        made = compare([report_before], [reported(run, seen)])
        # The loop without Feed reads by itself: its wait has only bounds.
        assert all("no loader that Penstock knows" in doubt for doubt in made.doubts)
        delta = made.delta("read_bytes")
        assert (delta.a, delta.b) == (read_of(before, "set.tar"), read_of(run, "set.tar"))
        assert delta.change in ("same", "changed")
        assert made.delta("files").change == "same"
    own = [row for row in seen.classes if row.path_class == "penstock"]
    assert [row.layer for row in own] == ["posix"]
    assert own[0].read_bytes > 10 * RECORDS  # found again, it is read: as its own class
    assert own[0].files == 1


def test_bytes_of_stdio_are_compared_with_those_of_feed(
    trained: Callable[[str], Run], archive: Path
) -> None:
    before, after = trained("stdio"), trained("indexes")
    delta = compare([reported(before)], [reported(after)]).delta("read_bytes")
    assert delta.a == archive.stat().st_size
    assert delta.b == read_of(after, "set.tar")


def test_manifests_of_checkpoints_are_no_output_of_the_job(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    run = recorded(
        """
        import sys, numpy
        from penstock.save import Checkpointer
        with Checkpointer(sys.argv[1]) as checkpointer:
            checkpointer.save(1, {"w": numpy.zeros(1 << 16)}).local.result()
        """,
        args=[tmp_path / "saved"],
    )
    written = files_of(run, "output")
    assert written
    assert not [path for path in written if "penstock" in Path(path).name or "/.penstock/" in path]
    assert [path for path in files_of(run, "penstock") if "penstock-manifest.json" in path]


def test_the_runs_own_folder_and_a_tiers_marks_are_no_data(
    recorded: Callable[..., Any], tmp_path: Path, archive: Path
) -> None:
    run = recorded(
        """
        import os, pathlib, subprocess, sys
        own = max(pathlib.Path(sys.argv[2]).glob("run-*"))
        for path in own.rglob("*"):
            path.is_file() and path.read_bytes()
        penstock = [sys.executable, "-m", "penstock"]
        os.mkdir(sys.argv[3])
        for words in (["tiers", "add", "fast", sys.argv[3], "--no-measure"],
                      ["stage", "copy", os.path.dirname(sys.argv[1]), "--to", "fast"]):
            subprocess.run([*penstock, *words], check=True)
        pathlib.Path(sys.argv[1]).read_bytes()
        """,
        args=[archive, tmp_path, tmp_path / "fast"],
        environment={"PENSTOCK_TIERS": str(tmp_path / "home" / "penstock" / "tiers.json")},
    )
    own = files_of(run, "penstock")
    names = {os.path.relpath(path, tmp_path) for path in own}
    assert {"run-0/run.json", "run-0/control", "fast/.penstock/manifest.jsonl"} <= names
    assert not [path for path in files_of(run, "data") if path != str(archive)]
    assert not [name for name in files_of(run, "output") if "/.penstock" in name]
