"""A short slice of the fuzzing of every reader; and every argument of a command that names a file
has its readers among the targets.  Hours: make fuzz."""

import os
import pickle
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fuzz.__main__ import fuzz, tried_once
from fuzz.mutation import inside_zlib, plain
from fuzz.targets import READ_BY, TARGETS, Target
from fuzz.watching import Harm, watched
from penstock.cli import cli

NAMES = sorted(TARGETS)
FEW = 25  # inputs of a target that takes a process or an engine for each


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_reads_sound_files_and_refuses_or_reads_others(name: str) -> None:
    """Each time other bytes: a failure says which seed, and keeps the input in the message."""
    target = TARGETS[name]
    seed = random.SystemRandom().randrange(1 << 32)
    done = fuzz(target, 2.0, seed, FEW if target.is_slow else 2000)
    assert not done.findings, f"seed {seed}: {done.findings!r:.3000}"


def _files_of(command: click.Command, path: str = "") -> Iterator[tuple[str, str]]:
    """(command, argument) of all that name something to read."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from _files_of(below, f"{path} {name}".strip())
        return
    for parameter in command.params:
        kind = type(parameter.type).__name__
        if getattr(parameter.type, "exists", False) or (
            parameter.param_type_name == "argument" and kind not in ("Choice", "IntRange")
        ):
            yield path, str(parameter.name)


def test_every_argument_that_names_a_file_has_its_readers_among_the_targets() -> None:
    known = {(command, name) for command, names in READ_BY.items() for name in names}
    assert set(_files_of(cli)) == known
    for names in READ_BY.values():
        for targets in names.values():
            assert set(targets.split()) <= TARGETS.keys() | {"-"}
    named = {one for names in READ_BY.values() for each in names.values() for one in each.split()}
    assert named - {"-"} == TARGETS.keys()


# What watches the readers


def target_of(read: object) -> Target:
    return Target("a", "a", lambda _: [b"abc"], read, (ValueError,))  # type: ignore[arg-type]


def unpickle(path: Path) -> None:
    pickle.loads(pickle.dumps(Path("a")))


def write_outside(path: Path) -> None:
    with open(path.parent.parent / "written-by-a-reader", "w"):
        pass


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda path: {}["a"], "KeyError"),
        (unpickle, "unpickled"),
        (write_outside, "written-by-a-reader"),
    ],
)
def test_what_a_reader_may_not_do_is_seen(read: object, said: str) -> None:
    assert said in tried_once(target_of(read), b"abc")
    Path(tempfile.gettempdir(), "written-by-a-reader").unlink(missing_ok=True)


def _never_ending(place: Path) -> None:
    with watched(place):
        while True:
            pass


def test_a_reader_that_does_not_end_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fuzz.watching.MOST_CPU_S", 0.2)
    with pytest.raises(Harm, match="of a CPU"):
        _never_ending(tmp_path)


def test_a_reader_that_takes_much_memory_is_seen(tmp_path: Path) -> None:
    """In a process of its own: the most memory of this one may be larger already."""
    code = (
        "from pathlib import Path\nfrom fuzz.watching import watched\n"
        "with watched(Path('.')):\n    bytearray(b'a') * 400_000_000\n"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-c", code], environ)
    assert done == 1


def test_the_library_of_darshan_is_passed_by_changes_inside_its_compressed_parts() -> None:
    import zlib

    from fuzz.targets import _darshan_logs

    (log, *_) = _darshan_logs(Path())
    draws, inside = random.Random(1), 0
    for _ in range(50):
        changed = inside_zlib(draws, log)
        at = changed.find(b"\x78\x01")
        if at > 0:
            unpacking = zlib.decompressobj()
            unpacking.decompress(changed[at:])
            inside += unpacking.eof
    assert inside > 20
    assert plain(random.Random(1), log) == plain(random.Random(1), log)
