"""`penstock run --burst-buffer`: checkpoints that go to a fast tier first, and from there home.

What a program sees of it, what lies where, and what is left after kills and on full disks.
"""

import errno
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from burstkills import AT_ONCE, SIZE, Saves
from bursts import is_drained_before, make_old
from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, draft_of
from penstock.recording import launch
from penstock.save.burst.drain import BurstDrain, finish
from penstock.save.burst.file import HOME, LINK, NEW, TORN, BurstFile, entries, is_torn
from penstock.save.burst.home import Burst
from penstock.save.burst.mend import mend
from penstock.save.burst.tier import PATTERNS, prepare
from penstock.save.commit import exchange
from penstock.save.drain.working import DrainSettings, read_status
from penstock.save.overwritten.earlier import WAS
from penstock.save.overwritten.putback import MARK, TWO_SAVES


@pytest.fixture
def fast(fast: Path) -> Path:
    prepare(fast)
    return fast


def variables(fast: Path, *patterns: str) -> dict[str, str]:
    """What brings a recorded program's files to the tier; no drain with it."""
    return {
        "PENSTOCK_BURST": str(fast / "burst"),
        "PENSTOCK_BURST_PATTERNS": ":".join(patterns or PATTERNS),
    }


@pytest.fixture
def burst(recorded: Callable[..., Any], fast: Path) -> Callable[..., Any]:
    """Runs Python source; nothing drains what it leaves."""

    def run(source: str, *patterns: str, **options: Any) -> Any:
        return recorded(source, environment=variables(fast, *patterns), **options)

    return run


def on_tier(fast: Path) -> list[str]:
    """Names on the tier, as the program gave them."""
    return sorted(path.name[25:] for path in (fast / "burst/data").iterdir())


def names(folder: Path) -> list[str]:
    """Without the list of what was put back."""
    return sorted(path.name for path in folder.rglob("*") if path.name != MARK)


def drained(fast: Path, settings: DrainSettings = AT_ONCE) -> list[str]:
    """What could not be drained."""
    return finish(fast, settings)[1]


# What the program sees


def test_a_program_finds_what_it_wrote_by_every_call(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    run = burst("""
        import os, pathlib, shutil, stat, tempfile
        def put(path, data, mode="wb"):
            with open(path, mode) as file:
                file.write(data)
        os.umask(0o027)
        put("a.pt", b"one")
        assert open("a.pt", "rb").read() == b"one" and os.path.getsize("a.pt") == 3
        assert os.path.isfile("a.pt") and os.listdir() == ["a.pt"]
        assert stat.S_IMODE(os.stat("a.pt").st_mode) == 0o640
        put("a.pt", b"second")
        assert open("a.pt", "rb").read() == b"second"
        put("a.pt", b" and more", "ab")
        with open("a.pt", "r+b") as file:
            file.write(b"S")
        assert open("a.pt", "rb").read() == b"Second and more"
        os.mkdir("checkpoint-5")
        put("checkpoint-5/config.json", b"{}")
        put("checkpoint-5/model.safetensors", b"weights")
        os.rename("checkpoint-5", "checkpoint-6")
        put("b.pt.tmp", b"b"); os.replace("b.pt.tmp", "b.pt")
        put("gone.pt", b"x"); os.remove("gone.pt")
        try:
            put("a.pt", b"", "xb")
        except FileExistsError as error:
            print(error)
        else:
            raise SystemExit("an exclusive open of what is there")
        folder = os.open("checkpoint-6", os.O_RDONLY)
        os.close(os.open("d.pt", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=folder))
        os.chdir("checkpoint-6")
        put("../e.ckpt", b"e"); put("f.bin", b"f"); put(pathlib.Path("f.bin"), b"ff")
        shutil.copyfile("f.bin", "g.bin")
        put("notes.txt", b"in a folder of checkpoints")
        os.chdir("..")
        put("plain.txt", b"plain")
        shutil.rmtree(tempfile.mkdtemp(dir=".", prefix="checkpoint-"))
    """)
    made = ["a.pt", "a.pt", "b.pt.tmp", "config.json", "d.pt", "e.ckpt", "f.bin", "f.bin"]
    made += ["model.safetensors"]
    # chdir hides the folder's name: f.bin and g.bin go by their own, notes.txt by none.
    assert on_tier(fast) == sorted([*made, "g.bin"])
    rows = dict(run.sql("select path, served_from from files where path like '%.pt'"))
    assert rows[str(work / "a.pt")] == str(fast / "burst")
    assert drained(fast) == []
    found = {
        os.fspath(path.relative_to(work)): path.read_bytes()
        for path in work.rglob("*")
        if path.is_file()
    }
    assert found == {
        "a.pt": b"Second and more",
        "b.pt": b"b",
        "e.ckpt": b"e",
        "plain.txt": b"plain",
        "checkpoint-6/config.json": b"{}",
        "checkpoint-6/model.safetensors": b"weights",
        "checkpoint-6/d.pt": b"",
        "checkpoint-6/f.bin": b"ff",
        "checkpoint-6/g.bin": b"ff",
        "checkpoint-6/notes.txt": b"in a folder of checkpoints",
    }
    assert not [path for path in work.rglob("*") if path.is_symlink()]
    assert on_tier(fast) == [] == names(fast / "burst/home")


def test_a_folder_may_be_copied_while_its_files_come_home(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    burst(
        """
        import os, shutil, subprocess, sys
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        def drain(folder, names):
            words = [sys.executable, "-m", "penstock", "save", "drain", sys.argv[1]]
            subprocess.run(words, env=plain)
            assert not os.listdir(sys.argv[1] + "/burst/data")
            return []
        for is_link in (False, True):
            os.mkdir("step")
            with open("step/a.pt", "wb") as file:
                file.write(b"a")
            shutil.copytree("step", f"copy-{is_link}", symlinks=is_link, ignore=drain)
            assert open(f"copy-{is_link}/a.pt", "rb").read() == b"a"
            shutil.rmtree("step")
        """,
        args=[fast],
    )
    assert drained(fast) == []
    assert [path.read_bytes() for path in sorted(work.rglob("*.pt"))] == [b"a", b"a"]
    assert not [path for path in work.rglob("*") if path.is_symlink()]


def test_a_program_sees_no_link_of_ours(
    recorded: Callable[..., Any], fast: Path, work: Path, tmp_path: Path
) -> None:
    """What it asks is answered as without the burst buffer; its own links stay links."""
    source = """
        import ctypes, os, pathlib, subprocess, sys
        path = pathlib.Path("a.pt")
        path.write_bytes(b"first")
        path.write_bytes(b"bytes")
        os.symlink("a.pt", "own.pt")
        libc = ctypes.CDLL(None, use_errno=True)
        libc.realpath.restype = libc.canonicalize_file_name.restype = ctypes.c_char_p
        room = ctypes.create_string_buffer(4096)

        def said(*call):
            try:
                told = call[0](*call[1:])
            except OSError as error:
                told = type(error).__name__, error.errno
            return told

        for name in (path, "own.pt"):
            print(said(os.readlink, name), os.path.islink(name), os.lstat(name).st_size)
            print(said(os.open, name, os.O_RDWR | os.O_NOFOLLOW) != ("OSError", 40))
            print(said(os.open, name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
            print(pathlib.Path(name).resolve() == path.absolute())
            print(libc.realpath(bytes(pathlib.Path(name)), None), libc.realpath(b"a.pt", room))
            print(libc.canonicalize_file_name(b"./own.pt"), room.value)
            for number in sys.argv[1:]:  # readlink and lstat as numbers
                print(libc.syscall(int(number), bytes(pathlib.Path(name)), room, 4096))
        os.utime(path, (1, 2), follow_symlinks=False)
        print(os.stat(path).st_mtime, os.stat("own.pt").st_mtime)
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        os.write(fd, b"more bytes")
        of_fd = f"/proc/self/fd/{fd}"
        print(os.path.islink(of_fd), len(said(os.readlink, of_fd)) > 2)
        for one in sorted(os.scandir(), key=lambda one: one.name):
            print(one.name, one.is_symlink(), one.is_file(follow_symlinks=False))
        print(subprocess.check_output(
            "find . -type l; stat -c %F,%s a.pt own.pt; ls -F; cp -a a.pt own.pt b/; ls -F b; "
            "tar c a.pt | tar x -C b -O; realpath a.pt; test -L a.pt || echo none",
            shell=True, text=True))
        os.remove(path)
        print(said(os.lstat, path), said(os.readlink, path), os.path.islink("own.pt"))
    """
    numbers = ("89", "6") if os.uname().machine == "x86_64" else ()
    heard = []
    for environment in ({}, variables(fast)):
        (work / "b").mkdir()
        said = tmp_path / f"said-{len(heard)}"
        out = f"import sys; sys.stdout = open({os.fspath(said)!r}, 'w')\n"
        recorded(out + textwrap.dedent(source), args=numbers, environment=environment)
        heard.append(said.read_text().splitlines())
        assert (work / "b/a.pt").is_symlink() == bool(environment)
        shutil.rmtree(work / "b")
        (work / "own.pt").unlink()
    assert heard[0] == heard[1]
    assert "more bytes" in "".join(heard[0])


@pytest.mark.slow
def test_a_program_sees_no_link_while_its_files_come_home(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    program = """
        import os, time
        end_s, asked = time.monotonic() + 20, 0
        for step in range(1000):
            if time.monotonic() > end_s:
                break
            with open(name := f"{step % 7}.pt", "wb") as file:
                file.write(b"x" * 1000)
            until_s = time.monotonic() + 0.15
            while time.monotonic() < until_s:
                try:
                    raise SystemExit("a link to " + os.readlink(name))
                except OSError as error:
                    assert error.errno == 22, error
                assert os.lstat(name).st_size == 1000
                assert os.path.realpath(name) == os.path.abspath(name)
                os.close(os.open(name, os.O_RDONLY | os.O_NOFOLLOW))
                asked += 1
        print(asked)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    run = ["run", "-q", "-o", tmp_path / "run", "--burst-buffer", fast, "--"]
    said = penstock(*run, sys.executable, tmp_path / "program.py", cwd=work).stdout
    assert int(said) > 10_000
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_answers_are_those_of_a_file_while_links_come_and_go(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    """A process writes, the drain drains, another one asks at any moment of that."""
    is_over = threading.Event()

    def drain() -> None:
        while not is_over.wait(0.001):
            with suppress(TierError):
                drained(fast)

    drainer = threading.Thread(target=drain)
    drainer.start()
    try:
        burst("""
            import ctypes, os, time
            here = os.path.realpath(".").encode()
            libc = ctypes.CDLL(None, use_errno=True)
            libc.realpath.restype = ctypes.c_char_p
            names = ("new.pt", "aside.pt", "removed.pt")
            def write():
                for name in names:
                    with open(name + ".tmp" * (name == "aside.pt"), "wb") as file:
                        file.write(b"x")
                os.replace("aside.pt.tmp", "aside.pt")
                os.remove("removed.pt")
            def said(call, *words):
                try:
                    return call(*words)
                except OSError as error:
                    return error.errno
            def opened(name):
                os.close(os.open(name, os.O_RDONLY | os.O_NOFOLLOW))
            write()
            if not (child := os.fork()):
                while True:
                    write()
                    time.sleep(0.005)
            answers = set()
            end_s = time.monotonic() + 3
            while time.monotonic() < end_s:
                for name in names:
                    lost = name == "removed.pt"
                    path = libc.realpath(name.encode(), None)
                    answers.add((lost, "realpath", path and path == here + b"/" + name.encode()))
                    answers.add((lost, "islink", os.path.islink(name)))
                    answers.add((lost, "readlink", said(os.readlink, name)))
                    answers.add((lost, "open", said(opened, name)))
            os.kill(child, 9)
            os.waitpid(child, 0)
            gone = {("realpath", None), ("readlink", 2), ("open", 2)}
            answers -= {(True, *answer) for answer in gone}
            assert {answer[1:] for answer in answers} == {
                ("realpath", True), ("islink", False), ("readlink", 22), ("open", None)
            }, answers
        """)
    finally:
        is_over.set()
        drainer.join()


def test_what_a_program_writes_whose_environment_was_cleaned_is_its_runs(
    recorded: Callable[..., Any], fast: Path, work: Path
) -> None:
    environment = {**variables(fast), "PENSTOCK_BURST_RUN": "00c0de"}
    recorded(
        "import subprocess; subprocess.run(['touch', 'a.pt'], env={}, check=True)",
        environment=environment,
    )
    assert [one.owner for one in entries(fast)] == ["00c0de"]


def test_our_own_commands_inside_a_run_see_its_links(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    """As a job's script calls them, and as a run has them that another run starts."""
    burst(
        """
        import os, subprocess, sys
        def penstock(*words):
            subprocess.run([sys.executable, "-m", "penstock", *words], check=True)
            assert not os.listdir(sys.argv[1] + "/burst/data")
        for name, words in (
            ("a.pt", ["save", "drain", sys.argv[1]]),
            ("b.pt", ["save", "recover", sys.argv[1]]),
            ("c.pt", ["run", "-q", "-o", "inner", "--burst-buffer", sys.argv[1], "touch", "d.pt"]),
        ):
            with open(name, "wb") as file:
                file.write(b"x")
            penstock(*words)
        """,
        args=(fast,),
    )
    assert [path.name for path in sorted(work.glob("*.pt")) if path.is_symlink()] == []
    assert len(list(work.glob("*.pt"))) == 4


def test_what_the_save_engine_writes_goes_where_it_says(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    """It tells that a checkpoint is durable, and removes the fast copy: both would be wrong."""
    burst("""
        import numpy as np
        from penstock.save import Checkpointer
        with Checkpointer("near", "far") as checkpoints:
            checkpoints.save(1, {"w": np.ones(1000)})
        with open("a.pt", "wb") as file:
            file.write(b"a")
    """)
    assert on_tier(fast) == ["a.pt"]
    assert [path.name for path in work.rglob("*") if path.is_symlink()] == ["a.pt"]
    assert len(list(work.glob("far/step-00000001/*"))) > 1


@pytest.mark.parametrize("name", ["a.pt", "renamed"])
@pytest.mark.parametrize("how", ['open(path, "ab")', "os.fdopen(os.open(path, 66), 'wb')"])
def test_what_is_made_anew_where_a_lost_file_s_link_lies_comes_home(
    burst: Callable[..., Any], fast: Path, work: Path, how: str, name: str
) -> None:
    """Through the link: without emptying, and under a name that fits no pattern any more."""
    burst(
        f"""
        import os, sys
        path = {name!r}
        with open("a.pt", "wb") as file:
            file.write(b"lost")
        os.rename("a.pt", path)
        for folder in ("/data", "/home"):
            for there in os.scandir(sys.argv[1] + folder):
                os.remove(there)
        with {how} as file:
            file.write(b"anew")
        """,
        args=[fast / "burst"],
    )
    assert drained(fast) == []
    assert names(work) == [name]
    assert not (work / name).is_symlink()
    assert (work / name).read_bytes() == b"anew"
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_what_is_not_to_be_redirected_is_not(
    burst: Callable[..., Any], fast: Path, work: Path, tmp_path: Path
) -> None:
    (work / "real.txt").write_bytes(b"before")
    (work / "own.pt").symlink_to("real.txt")
    (work / "two.pt").write_bytes(b"before")
    (work / "names.pt").hardlink_to(work / "two.pt")
    (work / "old.pt").write_bytes(b"old")
    burst(
        f"""
        import os
        for path in ("own.pt", "two.pt"):
            with open(path, "wb") as file:
                file.write(b"after")
        assert open("names.pt", "rb").read() == b"after"
        assert os.readlink("own.pt") == "real.txt"
        with open("old.pt", "ab") as file:
            file.write(b" and new")
        with open("readme.md", "w") as file:
            file.write("text")
        open({str(fast)!r} + "/inside.pt", "wb").close()
        for path in ("no/such.pt", "/proc/x.pt", "readme.md/x.pt", "x" * 300 + ".pt"):
            try:
                open(path, "wb")
            except OSError as error:
                print(error.errno)
            else:
                raise SystemExit(path)
        """
    )
    assert on_tier(fast) == []
    assert (work / "old.pt").read_bytes() == b"old and new"
    assert (work / "real.txt").read_bytes() == b"after"


def test_a_file_that_is_overwritten_stays_what_it_was_until_the_new_one_is_there(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    (work / "last.pt").write_bytes(b"durable")
    (work / "last.pt").chmod(0o604)
    (work / "best.pt").write_bytes(b"durable too")
    burst("""
        import os
        open("last.pt", "wb").write(b"new")
        open("best.pt.tmp", "wb").write(b"better")
        os.replace("best.pt.tmp", "best.pt")
        os.chmod("best.pt", 0o640)
        open("best.pt", "wb").write(b"better")  # before it is home
        open("third.pt", "wb").write(b"3")
        os.replace("third.pt", "third-moved.pt")
    """)
    assert (work / f".last.pt{WAS}").read_bytes() == b"durable"
    assert stat.S_IMODE((work / "best.pt").stat().st_mode) == 0o640
    assert (work / f".best.pt{WAS}").read_bytes() == b"durable too"
    written_ns = (work / "last.pt").stat().st_mtime_ns
    assert drained(fast) == []
    assert names(work) == ["best.pt", "last.pt", "third-moved.pt"]
    assert (work / "best.pt").read_bytes() == b"better"
    status = (work / "last.pt").lstat()
    assert stat.S_ISREG(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o604
    assert status.st_mtime_ns == written_ns


def test_a_file_that_replaces_another_one_leaves_what_was_at_that_path(
    burst: Callable[..., Any], work: Path
) -> None:
    (work / "a.pt").write_bytes(b"a")
    (work / "b.pt").write_bytes(b"b")
    burst("""
        import os
        for name in ("a.pt", "b.pt"):
            with open(name, "wb") as file:
                file.write(b"new")
        os.rename("a.pt", "b.pt")
    """)
    assert names(work) == [f".b.pt{WAS}", "b.pt"]
    assert (work / f".b.pt{WAS}").read_bytes() == b"b"


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_is_replaced_where_a_file_can_have_no_second_name_is_put_aside(
    fast: Path, work: Path, tmp_path: Path, is_refused: bool
) -> None:
    """And comes back where the rename is refused after all."""
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace cannot trace here")
    environ = _environment(tmp_path / "run", fast)
    (work / "a.pt").write_bytes(b"old")
    source = """
        import os
        with open("a.pt.tmp", "wb") as file:
            file.write(b"new")
        try:
            os.rename("a.pt.tmp", "a.pt")
        except OSError:
            pass
    """
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=linkat:error=EPERM"]
    command += ["-E", f"LD_PRELOAD={environ.pop('LD_PRELOAD')}"]
    if is_refused:
        command += ["-e", "inject=rename:error=EIO"]
    words = ["-c", textwrap.dedent(source)]
    subprocess.run([*command, sys.executable, *words], env=environ, cwd=work, check=True)
    if is_refused:
        assert (work / "a.pt").read_bytes() == b"old"
        assert names(work) == ["a.pt", "a.pt.tmp"]
    else:
        assert (work / f".a.pt{WAS}").read_bytes() == b"old"
        assert drained(fast) == []
        assert names(work) == ["a.pt"]
        assert (work / "a.pt").read_bytes() == b"new"


def test_a_lost_fast_tier_leaves_what_was_durable_before(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    (work / "last.pt").write_bytes(b"durable")
    burst('open("last.pt", "wb").write(b"new"); open("fresh.pt", "wb").write(b"x")')
    for path in (fast / "burst/data").iterdir():
        path.unlink()
    mended = {(one.place.name, one.is_back) for one in mend(work, fast)}
    assert mended == {("last.pt", True), ("fresh.pt", False)}
    assert names(work) == ["last.pt"]
    assert (work / "last.pt").read_bytes() == b"durable"


def test_a_tier_that_is_gone_with_its_folder_is_recovered_from_by_its_name(
    fast: Path, work: Path
) -> None:
    (work / "a.safetensors").write_bytes(_safetensors(1))
    for way_out in ("gone", "empty"):
        _made(fast, work / "a.safetensors", _safetensors(2))
        _made(fast, work / "b.safetensors", _safetensors(2))
        shutil.rmtree(fast)
        if way_out == "empty":
            fast.mkdir()
        told = penstock("save", "recover", fast, work)
        assert told.stdout == f"{work / 'a.safetensors'}\n"
        assert "a.safetensors: was on the fast tier only, and is lost" in told.stderr
        assert names(work) == ["a.safetensors"]
        assert (work / "a.safetensors").read_bytes() == _safetensors(1)
        fast.mkdir(exist_ok=True)
        prepare(fast)
    shutil.rmtree(fast)
    assert "no link of a burst buffer" in penstock("save", "recover", fast, work, status=2).stderr


def test_a_lost_tier_is_recovered_from_in_a_folder_of_any_size(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = work / "1/2/3/4/5/6/7"
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"{number}.txt").touch()
    _made(fast, folder / "a.pt", b"a")
    shutil.rmtree(fast / "burst")
    monkeypatch.setattr("penstock.save.burst.mend.MOST_SEARCHED", 10)
    assert mend(work, fast) == [(folder / "a.pt", False, None)]


def test_what_a_lost_tier_s_drain_had_begun_goes_and_what_another_s_has_begun_stays(
    fast: Path, work: Path
) -> None:
    lost, other = 0xAAAAAA << 8, 0xBBBBBB << 8
    older = _made(fast, work / "last.pt", b"older", lost)
    _made(fast, work / "last.pt", b"newer", lost)
    its = f".{older.name}{NEW}", f"..{older.name}{NEW}.penstock-part"
    others = f".{time.time_ns():016x}{other:08x}-last.pt{NEW}"
    for name in (*its, others):
        (work / name).write_bytes(b"half")
    shutil.rmtree(fast)
    assert mend(work, fast) == [(work / "last.pt", False, None)]
    assert names(work) == [others]


def test_a_recovery_says_what_it_has_brought_home_and_what_it_has_not(
    fast: Path, work: Path
) -> None:
    _made(fast, work / "a.safetensors", _safetensors(2))
    torn = _made(fast, work / "b.safetensors", _safetensors(2)[:-1])
    os.utime(torn, (0, 0))
    told = penstock("save", "recover", fast).stderr
    assert f"1 drained, {len(_safetensors(2)) / 1e6:,.1f} MB" in told
    assert f"{work / 'b.safetensors'}: not whole; what it was before is there again" in told


def test_links_to_the_tier_of_a_job_before_are_told_of_with_what_brings_them_home(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    prepare(tmp_path / "mine")
    (work / "last.safetensors").write_bytes(_safetensors(1))
    for name in ("last", "step-2"):
        _made(fast, work / f"{name}.safetensors", _safetensors(2), 0xAAAAAA << 8)
    told = (
        f"{work / 'last.safetensors'} and 1 more: on the fast tier {fast} of a job before: where "
        f"that job has ended, `penstock save recover {fast} {work}` brings home what is there"
    )
    shutil.rmtree(fast)  # with its node
    (tmp_path / "new").mkdir()
    found = penstock("save", "recover", tmp_path / "new", work, status=1)
    assert told in found.stderr
    assert "begin anew" not in found.stderr
    _made(tmp_path / "mine", work / "step-3.safetensors", _safetensors(3), 0xBBBBBB << 8)
    status, failed = finish(tmp_path / "mine", AT_ONCE)
    assert (failed, status.drained) == ([], 1)
    assert told in status.warning
    with Burst(tmp_path / "mine", AT_ONCE, owner="aaaaaa") as drain:  # on another node
        _made(tmp_path / "mine", work / "step-5.safetensors", _safetensors(5), 0xAAAAAA << 8)
        assert drain.once() == []
    assert "of a job before" not in drain.status.warning
    fast.mkdir()  # another node's, where this one's disk has the same name
    words = ("run", "-q", "-o", tmp_path / "run", "--burst-buffer", fast, "true")
    begun = penstock(*words, cwd=work)
    assert told.replace("a job before", "another node") in begun.stderr
    again = penstock("save", "recover", fast, work)
    assert again.stdout == f"{work / 'step-5.safetensors'}\n"
    assert (work / "last.safetensors").read_bytes() == _safetensors(1)


def test_every_way_to_write_a_file_arrives(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], fast: Path, work: Path
) -> None:
    size = 300_001
    run = recorded_command(
        [workload("burst_files"), str(size)], environment=variables(fast, "*.pt")
    )
    assert len(on_tier(fast)) == 16  # one was written anew: what it was stays until it is home
    _assert_written(work, size)
    # Counted by hand: each of write's calls is one, of PIECE bytes but the last.
    [(calls, written)] = run.sql(
        "select count(*), sum(moved_bytes) from events"
        f" where path = '{work}/write.pt' and op = 'write' and served_from is not null"
    )
    assert (calls, written) == (6, size)
    assert drained(fast) == []
    assert not any(path.is_symlink() for path in work.iterdir())
    _assert_written(work, size)


def _pattern(size: int) -> bytes:
    """As tests/workloads/burst_files.c has it."""
    import numpy as np

    at = np.arange(size, dtype=np.uint32)
    return ((at * np.uint32(2654435761)) >> np.uint32(13)).astype(np.uint8).tobytes()


STREAMED = {"unlocked.pt", "fprintf.pt", "fopen-a.pt"}


def _assert_written(folder: Path, size: int) -> None:
    wanted = _pattern(size)
    assert {path.name for path in folder.glob("*.pt")} == {
        *("write.pt", "pwrite.pt", "writev.pt", "fwrite.pt", "large-buffer.pt", "unbuffered.pt"),
        *("putc.pt", "freopen.pt", "mmap.pt", "fallocate.pt", "append.pt", "sendfile.pt"),
        *STREAMED,
    }
    for path in folder.glob("*.pt"):
        assert path.read_bytes() == wanted, path


# What it leaves


def _left(folder: Path) -> list[str]:
    """A line a name: what it is, its mode, its bytes in short (pytest compares by letters)."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            what = os.fspath(path.readlink())
        else:
            what = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""
        found.append(f"{path.relative_to(folder)} {path.lstat().st_mode:o} {what}")
    return found


@pytest.mark.parametrize("seed", [1, 3, 4, 20])
def test_whatever_a_program_does_with_names_comes_out_as_without_us(
    tmp_path: Path, seed: int
) -> None:
    """What each step says, and what is there in the end, but for the mark of a folder in which the
    program ended between two files that it writes again and again."""
    program = Path(__file__).parent / "workloads" / "any_names.py"
    found = []
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        for how in ("plain", "burst"):
            work, other, fast = (top / how for top in (tmp_path, disk, tmp_path / "fast"))
            for folder in (work, other, fast):
                folder.mkdir(parents=True)
            words: list[Any] = [sys.executable, program, seed, 200, other]
            if how == "burst":
                run = ["run", "-q", "-o", tmp_path / "run", "--burst-buffer", fast, "--", *words]
                said = penstock(*run, cwd=work).stdout
                assert names(fast / "burst") == ["data", "draft", "home"]
            else:
                said = subprocess.check_output(list(map(str, words)), cwd=work, text=True)
            said = said.replace(os.fspath(other), "other")
            left = [*_left(work), "other:", *_left(other)]
            found.append([*said.splitlines(), *(line for line in left if TWO_SAVES not in line)])
    assert found[0] == found[1]


# Full, missing, read-only


@contextmanager
def small_disk(folder: Path, size_bytes: int, *options: str) -> Iterator[Path]:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size_bytes}", *options)), "tmpfs"]
    if subprocess.run([*words, folder], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("room", [0, 96 << 10, 2 << 20])
def test_a_full_fast_tier_is_nothing_that_the_program_sees(
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    tmp_path: Path,
    work: Path,
    room: int,
) -> None:
    size = 1_500_001
    with small_disk(tmp_path / "small", max(room, 64 << 10)) as disk:
        prepare(disk)
        if not room:
            with suppress(OSError):
                (disk / "filler").write_bytes(bytes(1 << 20))
        recorded_command([workload("burst_files"), str(size)], environment=variables(disk, "*.pt"))
        assert any(path.is_symlink() for path in work.iterdir()) == (room > size)
        _assert_written(work, size)
        assert drained(disk) == []
        assert names(disk / "burst") == ["data", "draft", "home"]
    _assert_written(work, size)
    assert not any(path.name.startswith(".") for path in work.iterdir())
    assert stat.S_IMODE((work / "append.pt").stat().st_mode) == 0o600


def test_a_stream_moves_from_a_fast_tier_that_becomes_full_late(
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    tmp_path: Path,
    work: Path,
) -> None:
    """It had room, reserved by what its calls say that they write, and some do not say it."""
    size = 12_000_001
    with small_disk(tmp_path / "small", 11 << 20) as disk:
        prepare(disk)
        command = [workload("burst_files"), str(size), "streams"]
        recorded_command(command, environment=variables(disk, "*.pt"))
        assert {path.name for path in work.iterdir()} == STREAMED
        for path in work.iterdir():
            assert not path.is_symlink()
            assert path.read_bytes() == _pattern(size)
        assert drained(disk) == []


def test_a_full_fast_tier_keeps_what_was_overwritten_until_the_new_one_is_whole(
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    tmp_path: Path,
    work: Path,
) -> None:
    (work / "write.pt").write_bytes(b"before")
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        prepare(disk)
        recorded_command(
            [workload("burst_files"), "2000000"], environment=variables(disk, "write.pt")
        )
        assert (work / f".write.pt{WAS}").read_bytes() == b"before"
        assert drained(disk) == []
    assert not (work / f".write.pt{WAS}").exists()
    _assert_written(work, 2_000_000)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_file_that_is_not_home_comes_back_where_the_next_moves_from_a_full_tier_and_is_torn(
    recorded: Callable[..., Any], tmp_path: Path, work: Path, is_whole: bool
) -> None:
    first, second = _safetensors(1), _safetensors(2, 2_000_000)
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        prepare(disk)
        (tmp_path / "first").write_bytes(first)
        (tmp_path / "second").write_bytes(second if is_whole else second[:-100_000])
        recorded(
            """
            import os, sys
            for path in sys.argv[1:]:
                data = open(path, "rb").read()
                fd = os.open("a.safetensors", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o640)
                while data:
                    data = data[os.write(fd, data):]
            os._exit(0)  # it is not closed
            """,
            environment=variables(disk, "*.safetensors"),
            args=[tmp_path / "first", tmp_path / "second"],
        )
        make_old(disk)
        assert drained(disk) == []
        assert names(disk / "burst") == ["data", "draft", "home"]
    assert (work / "a.safetensors").read_bytes() == (second if is_whole else first)
    assert stat.S_IMODE((work / "a.safetensors").stat().st_mode) == 0o640
    assert names(work) == ["a.safetensors", "a.safetensors.torn"][: 2 - is_whole]


def test_a_file_that_is_not_home_stays_whole_where_a_full_tier_has_no_room_for_the_next(
    recorded: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    with small_disk(tmp_path / "small", 1 << 20, "nr_inodes=12") as disk:
        prepare(disk)
        recorded(
            """
            import os, sys
            with open("a.pt", "wb") as file:
                file.write(b"first")
            turn = 0
            try:
                while True:
                    open(f"{sys.argv[1]}/filler-{turn}", "x").close()
                    turn += 1
            except OSError:
                pass
            with open("a.pt", "wb") as file:
                file.write(b"second")
                with open(".a.pt.penstock-was", "rb") as was:
                    assert was.read() == b"first"
            """,
            environment=variables(disk, "*.pt"),
            args=[disk],
        )
        for filler in disk.glob("filler-*"):
            filler.unlink()
        assert drained(disk) == []
    assert names(work) == ["a.pt"]
    assert (work / "a.pt").read_bytes() == b"second"


def test_a_mode_is_none_of_the_mask_s_where_a_file_is_moved_or_gets_bytes_of_its_own(
    recorded: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        prepare(disk)
        recorded(
            """
            import os
            os.umask(0)
            open("b.pt", "wb").close()
            os.link("b.pt", "c.pt")
            with open("a.pt", "wb") as file:
                os.umask(0o077)
                with open("c.pt", "ab") as second:
                    second.write(b"c")
                file.write(bytes(2_000_000))
            """,
            environment=variables(disk, "*.pt"),
        )
        assert drained(disk) == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in work.iterdir()} == {0o666}


def test_a_file_moves_from_a_full_fast_tier_though_the_drain_has_a_copy_of_it(
    recorded: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    """The copy is read back before it takes the path."""
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        prepare(disk)
        recorded(
            """
            import os, sys
            with open("a.pt", "wb") as file:
                file.write(b"a" * 1000)
            (name,) = os.listdir(sys.argv[1])
            with open(f".{name}.penstock-new", "wb") as file:
                file.write(b"a" * 1000)
            with open("a.pt", "ab") as file:
                file.write(b"b" * 2_000_000)
            os.remove(f".{name}.penstock-new")  # as the drain does then
            """,
            environment=variables(disk, "*.pt"),
            args=[disk / "burst/data"],
        )
        assert drained(disk) == []
    assert (work / "a.pt").read_bytes() == b"a" * 1000 + b"b" * 2_000_000
    assert names(work) == ["a.pt"]


@pytest.mark.parametrize("others", ["threads", "child", "map"])
def test_a_file_that_others_write_to_loses_nothing_as_the_fast_tier_is_full(
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    tmp_path: Path,
    work: Path,
    others: str,
) -> None:
    """Threads go on where the file is; for another process, or by memory, it stays where it is."""
    size = 3_000_001
    with small_disk(tmp_path / "small", 1 << 20) as disk:
        prepare(disk)
        recorded_command(
            [workload("burst_moves"), others, str(size)], environment=variables(disk, "*.pt")
        )
        assert (work / "a.pt").is_symlink() == (others != "threads")
        assert drained(disk) == []
    written = (work / "a.pt").read_bytes()
    assert written == _pattern(size)[: len(written)]
    assert len(written) == size if others == "threads" else 500_000 < len(written) < size
    assert names(work) == ["a.pt"]


def test_a_slow_tier_that_is_full_too_is_told_as_ever_and_leaves_nothing(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", 1 << 20) as disk, small_disk(tmp_path / "slow", 1 << 20):
        prepare(disk)
        (tmp_path / "slow/old.pt").write_bytes(b"old")
        recorded(
            f"""
            import errno, os
            os.chdir({str(tmp_path / "slow")!r})
            try:
                with open("new.pt", "wb", buffering=0) as file:
                    while True:
                        file.write(bytes(300_000))
            except OSError as error:
                assert error.errno == errno.ENOSPC
            os.remove("new.pt")
            assert os.listdir() == ["old.pt"]
            """,
            environment=variables(disk, "*.pt"),
        )
        assert drained(disk) == []
        assert names(tmp_path / "slow") == ["old.pt"]


def test_a_drain_onto_a_full_disk_leaves_the_old_ones_and_tries_again(
    burst: Callable[..., Any], fast: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "slow", 1 << 20) as slow:
        (slow / "old.pt").write_bytes(bytes(500_000))
        burst(f'open({str(slow)!r} + "/new.pt", "wb").write(bytes(800_000))')
        [told] = drained(fast, DrainSettings(settle_s=0.0, tries=1))
        assert "new.pt" in told
        assert "no room" in told
        assert names(slow) == ["new.pt", "old.pt"]
        (slow / "old.pt").unlink()
        assert drained(fast) == []
        assert (slow / "new.pt").read_bytes() == bytes(800_000)
        assert not (slow / "new.pt").is_symlink()


def penstock(*words: Any, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, **options)
    assert ended.returncode == status, ended.stderr
    return ended


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_folder_may_be_removed_in_which_the_drain_has_begun_meanwhile(
    burst: Callable[..., Any], work: Path, is_remote: bool
) -> None:
    burst(f"""
        import errno, os
        ours = "c/.1-a.pt.penstock-new.penstock-part"
        os.mkdir("c")
        with open("c/a.pt", "wb") as file:
            file.write(b"a")
        open(ours, "w").close()
        assert os.listdir("c") == ["a.pt"]
        here = os.open(".", os.O_RDONLY)
        words = {{"dir_fd": here}} if {is_remote} else {{}}
        try:
            os.rmdir("c", **words)
        except OSError as error:
            assert error.errno == errno.ENOTEMPTY and os.path.exists(ours), error
        else:
            raise SystemExit("a folder with a checkpoint was removed")
        os.remove("c/a.pt")
        os.rmdir("c", **words)
    """)
    assert names(work) == []


def test_a_folder_may_be_replaced_in_which_nothing_is_left_but_a_draft_of_ours(
    burst: Callable[..., Any], work: Path
) -> None:
    burst("""
        import os
        for name in ("new", "old", "full"):
            os.mkdir(name)
        open("new/b.txt", "x").close()
        open("full/c.txt", "x").close()
        open("old/.a.pt.penstock-new", "x").close()
        try:
            os.rename("new", "full")
        except OSError as error:
            print(error.errno)
        else:
            raise SystemExit("replaced")
        os.rename("new", "old")
    """)
    assert names(work) == ["b.txt", "c.txt", "full", "old"]


def test_an_open_that_the_tier_refuses_leaves_nothing_there(
    recorded: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    """A file system without O_DIRECT makes the file, and says then that it cannot open it."""
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "none", disk], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: needs root")
    try:
        prepare(disk)
        recorded(
            """
            import os
            os.close(os.open("a.pt", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
            """,
            environment=variables(disk, "*.pt"),
        )
        assert names(disk / "burst") == ["data", "draft", "home"]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert not (work / "a.pt").is_symlink()


def test_tiers_that_cannot_be_are_refused_in_a_sentence_and_nothing_is_run(
    tmp_path: Path, work: Path
) -> None:
    ran = work / "ran"
    program = ["--", "touch", ran]

    def said(*words: Any) -> str:
        ended = penstock("run", "-q", *words, *program, status=2, cwd=work)
        assert not ran.exists()
        return ended.stderr

    assert "no such folder" in said("--burst-buffer", tmp_path / "none")
    assert "write a folder as ./never-added" in said("--burst-buffer", "never-added")
    (work / "fast").mkdir()
    assert "the folder of this name here is ./fast" in said("--burst-buffer", "fast")
    assert "--burst-buffer TIER" in said("--burst-pattern", "*.npy")
    assert "--burst-pattern is" in said("--burst-buffer", tmp_path, "--burst-pattern", "*")
    with small_disk(tmp_path / "read-only", 1 << 20, "ro") as disk:
        assert "cannot be written: Read-only file system" in said("--burst-buffer", disk)
    with pytest.raises(TierError, match=r"penstock run --burst-buffer"):
        entries(tmp_path)


def test_one_device_is_said_by_the_command_and_by_the_drain(tmp_path: Path, work: Path) -> None:
    (tmp_path / "fast").mkdir()
    program = "open('a.pt', 'wb').write(b'weights')"
    ended = penstock(
        "run", "-q", "--burst-buffer", tmp_path / "fast", sys.executable, "-c", program, cwd=work
    )
    assert "gain nothing" in ended.stderr
    assert "one device" in ended.stderr
    assert (work / "a.pt").read_bytes() == b"weights"
    assert not (work / "a.pt").is_symlink()


def test_a_drain_that_ends_too_early_is_told_by_the_status(tmp_path: Path, work: Path) -> None:
    fast = tmp_path / "fast"
    fast.mkdir()
    program = f"""
import json, os, pathlib, signal, time
status = pathlib.Path({str(fast)!r}, ".penstock/drain.json")
with open("a.pt", "wb") as file:  # open: nobody drains it
    file.write(b"weights")
    while not status.exists() or not json.loads(status.read_text())["pid"]:
        time.sleep(0.01)
    os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
"""
    words = ["run", "-q", "-o", tmp_path / "run", "--burst-buffer", fast, sys.executable, "-c"]
    ended = penstock(*words, program, status=1, cwd=work)
    assert "not all checkpoints were drained" in ended.stderr
    penstock("save", "recover", fast)
    assert (work / "a.pt").read_bytes() == b"weights"
    words[3] = tmp_path / "again"
    (fast / ".penstock" / "drain.json").unlink()
    penstock(*words, program + "raise SystemExit(7)", status=7, cwd=work)


def test_a_tier_that_goes_away_takes_no_program_with_it(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    burst(f"""
        import shutil
        open("first.pt", "wb").write(b"first")
        shutil.rmtree({str(fast / "burst")!r})
        open("second.pt", "wb").write(b"second")
        assert open("second.pt", "rb").read() == b"second"
    """)
    assert (work / "second.pt").read_bytes() == b"second"


# The drain


def test_a_file_that_is_being_written_is_left_alone(fast: Path, work: Path) -> None:
    one = _made(fast, work / "a.pt", b"begun")
    with one.open("ab") as file, Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        assert (work / "a.pt").is_symlink()
        file.write(b" and ended")
        file.flush()
        os.fsync(file.fileno())
        file.close()
        assert drain._round() == {}
        assert not (work / "a.pt").is_symlink()
    assert (work / "a.pt").read_bytes() == b"begun and ended"
    assert on_tier(fast) == []


def _made(fast: Path, home: Path, data: bytes, turn: int = 0, back_s: int = 0) -> Path:
    """As native/burst.c makes a file.  back_s: by a clock that was set back so far."""
    name = f"{time.time_ns() - back_s * 10**9:016x}{turn:08x}-{home.name}"
    (fast / "burst/home" / name).symlink_to(home)
    path = fast / "burst/data" / name
    path.write_bytes(data)
    if home.is_symlink():
        way = fast / "burst/home" / home.readlink().name
        way.replace(way.with_name(way.name + HOME))
        home.unlink()
    elif home.exists():
        home.rename(home.with_name(f".{home.name}{WAS}"))
    home.symlink_to(path)
    return path


def test_a_file_that_changes_while_it_is_copied_is_copied_again(fast: Path, work: Path) -> None:
    one = _made(fast, work / "a.pt", b"a" * 1000)
    with Burst(fast, AT_ONCE) as drain:
        copy = drain._copy

        def disturbed(*words: Any) -> Path:
            found = copy(*words)
            one.write_bytes(b"b" * 1000)
            return found

        drain._copy = disturbed  # type: ignore[method-assign]
        [told] = drain._round().values()
        assert "is being written again" in told
        assert (work / "a.pt").is_symlink()
        drain._copy = copy  # type: ignore[method-assign]
        assert drain.once() == []
    assert (work / "a.pt").read_bytes() == b"b" * 1000
    assert names(work) == ["a.pt"]


def test_who_opened_a_file_as_it_was_put_home_finds_there_what_he_writes(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.burst import file as burstfile

    home = work / "a.pt"
    data = _made(fast, home, b"first" * 100)
    program = """
        import sys
        for text in (b"second", b"third"):
            with open(sys.argv[1], "r+b") as file:
                file.write(text)
            print(open(sys.argv[1], "rb").read(8))
    """
    real = burstfile._put
    writer: list[subprocess.Popen[str]] = []

    def late(new: Path, one: BurstFile) -> bool:
        if not writer:
            words = [sys.executable, "-c", textwrap.dedent(program), home]
            writer.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            waits = Path(f"/proc/{writer[0].pid}/wchan")
            end_s = time.monotonic() + 10
            while "lease" not in waits.read_text() and time.monotonic() < end_s:
                time.sleep(0.01)  # it has the file by its link, and waits for our lease
        return real(new, one)

    monkeypatch.setattr("penstock.save.burst.home._put", late)
    with Burst(fast, AT_ONCE) as drain:
        drain._round()
        said = writer[0].communicate(timeout=10)[0]
        drain._attempts.clear()
        assert drain.once() == []
    assert said.splitlines() == ["b'secondir'", "b'thirddir'"]
    assert home.read_bytes() == b"thirdd" + (b"first" * 100)[6:]
    assert not home.is_symlink()
    assert not data.exists()
    assert names(work) == ["a.pt"]


def test_who_writes_to_the_tier_after_the_file_was_put_home_gets_the_link_back(
    fast: Path, work: Path
) -> None:
    _made(fast, work / "a.pt", b"a")
    late = (work / "a.pt").open("r+b")
    fcntl.lockf(late, fcntl.LOCK_SH)
    with Burst(fast, AT_ONCE) as drain:
        late.close()
        drain._round()
        assert not (work / "a.pt").is_symlink()
        [one] = entries(fast)
        one.data.write_bytes(b"written late")  # through a path that was looked up before
        assert drain.once() == []
    assert (work / "a.pt").read_bytes() == b"written late"
    assert on_tier(fast) == []


@pytest.mark.parametrize("is_renamed", [False, True])
@pytest.mark.parametrize("is_watching", [False, True])
def test_what_is_written_to_as_the_last_file_comes_home_comes_home_too(
    fast: Path, work: Path, is_watching: bool, is_renamed: bool
) -> None:
    home, to = work / "a.pt", work / "b.pt"
    data = _made(fast, home, b"first")
    with Burst(fast, AT_ONCE) as drain:
        forget = drain._forget_was

        def late(one: BurstFile) -> None:
            forget(one)
            drain._forget_was = forget  # type: ignore[method-assign]
            data.write_bytes(b"second")
            if is_renamed:
                home.rename(to)

        drain._forget_was = late  # type: ignore[method-assign]
        assert (drain.watch(lambda: True) if is_watching else drain.once()) == []
    assert names(fast / "burst") == ["data", "draft", "home"]
    assert names(work) == ["b.pt" if is_renamed else "a.pt"]
    if not is_renamed:
        assert home.read_bytes() == b"second"
        assert not home.is_symlink()


def test_a_file_that_is_removed_where_it_came_home_does_not_come_back(
    fast: Path, work: Path
) -> None:
    data = _made(fast, work / "a.pt", b"a" * 1000)
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        (work / "a.pt").unlink()
        data.write_bytes(b"who had it open writes on")
        assert drain._round() == {}
    assert names(work) == []


def test_a_file_that_is_removed_or_replaced_while_it_is_copied_does_not_come_back(
    fast: Path, work: Path
) -> None:
    for how in ("removed", "replaced"):
        home = work / f"{how}.pt"
        _made(fast, home, b"old")
        with Burst(fast, AT_ONCE) as drain:
            copy = drain._copy

            def meanwhile(*words: Any, copy: Any = copy, home: Path = home, how: str = how) -> Path:
                found: Path = copy(*words)
                home.unlink()
                if how == "replaced":
                    home.write_bytes(b"another program's")
                return found

            drain._copy = meanwhile  # type: ignore[method-assign]
            drain._round()
        [left] = entries(fast)
        assert left.data.read_bytes() == b"old"
        left.data.unlink()
        (fast / "burst/home" / left.name).unlink()
    assert names(work) == ["replaced.pt"]
    assert (work / "replaced.pt").read_bytes() == b"another program's"


def test_a_newer_file_of_the_same_name_wins_and_the_older_is_what_was_there_before(
    fast: Path, work: Path
) -> None:
    _made(fast, work / "last.pt", b"first", 1)
    with Burst(fast, AT_ONCE) as drain:
        copy = drain._copy

        def overtaken(*words: Any) -> Path:
            found = copy(*words)
            drain._copy = copy  # type: ignore[method-assign]
            self.append(_made(fast, work / "last.pt", b"second", 2).open("ab"))
            return found

        self: list[Any] = []
        drain._copy = overtaken  # type: ignore[method-assign]
        drain._round()
        # The first is durable, as what there was before the second, which is not closed yet.
        assert (work / f".last.pt{WAS}").read_bytes() == b"first"
        assert (work / "last.pt").read_bytes() == b"second"
        self[0].close()
        assert drain.once() == []
    assert names(work) == ["last.pt"]
    assert (work / "last.pt").read_bytes() == b"second"
    assert on_tier(fast) == []


def _safetensors(number: int, size: int = 1000) -> bytes:
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes([number]) * size


def test_a_torn_file_never_gets_its_name_and_what_was_there_comes_back(
    fast: Path, work: Path
) -> None:
    whole = _safetensors(1)
    (work / "a.safetensors").write_bytes(whole)
    home = work / "a.safetensors"
    home.rename(work / f".a.safetensors{WAS}")
    _made(fast, home, _safetensors(2)[:500], 2)
    _made(fast, work / "b.safetensors", whole, 3)
    _made(fast, work / "b.safetensors", b"", 4)
    _made(fast, work / "fresh.safetensors", whole[:-1], 5)
    with Burst(fast, AT_ONCE) as drain:
        assert drain.once() == []
        assert len(drain.status.damaged) == 3
    assert (work / "a.safetensors").read_bytes() == whole
    assert (work / "b.safetensors").read_bytes() == whole
    assert names(work) == [
        *("a.safetensors", "a.safetensors.torn", "b.safetensors", "fresh.safetensors.torn"),
    ]
    assert (work / "fresh.safetensors.torn").read_bytes() == whole[:-1]
    assert on_tier(fast) == []


@pytest.mark.parametrize("meanwhile", ["renamed", "removed", "written anew"])
@pytest.mark.parametrize("earlier", ["none", "at home", "on the tier"])
@pytest.mark.parametrize("size", [0, 500])
def test_a_torn_file_may_change_its_name_while_it_is_waited_for(
    fast: Path, work: Path, meanwhile: str, earlier: str, size: int
) -> None:
    """Whether it is torn is known when it was left alone for a while: in that its path changes."""
    home, to = work / "a.safetensors", work / "b.safetensors"
    whole, newer = _safetensors(1), _safetensors(3)
    if earlier == "at home":
        home.write_bytes(whole)
    elif earlier == "on the tier":
        _made(fast, home, whole, 1)
    data = _made(fast, home, _safetensors(2)[:size], 2)
    with Burst(fast, AT_ONCE) as drain:
        asked = drain._torn

        def late(one: BurstFile) -> os.stat_result | None:
            torn = asked(one)
            drain._torn = asked  # type: ignore[method-assign]
            way = fast / "burst/home" / data.name
            if meanwhile == "renamed":  # and written anew, as by whoever keeps the last two
                home.rename(to)
                way.unlink()
                way.symlink_to(to)
            elif meanwhile == "removed":
                way.rename(way.with_name(way.name + HOME))
                home.unlink()
            if meanwhile != "removed":
                _made(fast, home, newer, 3)
            return torn

        drain._torn = late  # type: ignore[method-assign]
        drain.once()
    make_old(fast)
    drained(fast)
    assert not home.is_symlink()
    if meanwhile == "removed":
        assert not home.exists()
    else:
        assert home.read_bytes() == newer
    assert to.exists() == (meanwhile == "renamed" and not size)
    assert not to.is_symlink()


@pytest.mark.parametrize("earlier", ["none", "at home", "on the tier"])
def test_a_torn_file_that_is_written_to_after_all_is_none(
    fast: Path, work: Path, earlier: str
) -> None:
    home = work / "a.safetensors"
    if earlier == "at home":
        home.write_bytes(_safetensors(1))
    elif earlier == "on the tier":
        _made(fast, home, _safetensors(1), 1)
    whole = _safetensors(2)
    data = _made(fast, home, whole[:500], 2)
    with Burst(fast, AT_ONCE) as drain:
        older = drain._older

        def late(one: BurstFile) -> BurstFile | None:
            drain._older = older  # type: ignore[method-assign]
            with data.open("ab") as file:
                file.write(whole[500:])
            return older(one)

        drain._older = late  # type: ignore[method-assign]
        drain.once()
        assert not drain.status.damaged
    assert home.read_bytes() == whole
    assert names(work) == [home.name]
    assert on_tier(fast) == []


def test_a_file_stays_without_its_end_as_long_as_its_run_may_write_that(
    fast: Path, work: Path
) -> None:
    """The drain is the one beside a program, and the program ends when it is left."""
    run, home = 0xAAAAAA << 8, work / "a.safetensors"
    _made(fast, home, _safetensors(1), run)
    beside = BurstDrain(fast, owner="aaaaaa")

    def until(is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < end_s, beside.status()
            time.sleep(0.02)

    def half(number: int) -> Path:
        data = _made(fast, home, _safetensors(number)[:500], run + number)
        make_old(fast)
        return data

    try:
        data = half(2)
        beside.start(os.environ)
        until(lambda: "without its end" in (((said := beside.status()) and said.error) or ""))
        assert home.read_bytes() == _safetensors(2)[:500]
        data.write_bytes(_safetensors(2))
        until(lambda: not home.is_symlink())
        assert home.read_bytes() == _safetensors(2)
        home.rename(work / f".{home.name}{WAS}")
        half(3)
    finally:
        beside.leave()
    assert beside.wait(30) == 0
    assert home.read_bytes() == _safetensors(2)
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]
    assert [path.name for path in (fast / ".penstock").glob("running-*")] == []


@pytest.mark.parametrize("back_s", [0, 3600])
def test_a_clock_that_is_set_back_makes_no_newer_file_an_earlier_one(
    fast: Path, work: Path, back_s: int
) -> None:
    """It is set back before the last file, or the last but one."""
    home = work / "a.safetensors"
    _made(fast, home, _safetensors(1), 1)
    _made(fast, home, _safetensors(2), 2)
    _made(fast, home, _safetensors(3), 3, back_s=back_s)
    torn = _made(fast, home, _safetensors(4)[:500], 4, back_s=3600)
    make_old(fast)
    with torn.open("ab"), Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        assert len(on_tier(fast)) >= 2  # and what was there before it
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(3)
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_clock_that_is_set_back_while_a_file_is_copied_makes_that_no_newer_one(
    fast: Path, work: Path
) -> None:
    home = work / "a.safetensors"
    _made(fast, home, _safetensors(1), 1)
    with Burst(fast, AT_ONCE) as drain:
        copy = drain._copy

        def overtaken(*words: Any) -> Path:
            found = copy(*words)
            drain._copy = copy  # type: ignore[method-assign]
            _made(fast, home, _safetensors(2)[:500], 2, back_s=3600)
            return found

        drain._copy = overtaken  # type: ignore[method-assign]
        assert drain._round() == {}
    assert home.read_bytes() == _safetensors(1)
    assert drained(fast) == []
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]


def test_what_a_moved_file_replaces_stays_though_the_clock_was_set_back(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.burst import home as module

    home, real = work / "a.safetensors", module.fsync_folder
    _made(fast, home, _safetensors(1), 1)

    def late(folder: Path) -> None:
        if not home.is_symlink():
            monkeypatch.undo()
            _move(fast, home, _safetensors(2)[:500], 2, back_s=3600)
        real(folder)

    monkeypatch.setattr(module, "fsync_folder", late)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(1)
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]


def test_what_is_replaced_during_a_long_copy_leaves_the_tier_meanwhile(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.burst import home as module

    home, real = work / "a.safetensors", module.copy_file
    first = _made(fast, home, _safetensors(1), 1)
    with Burst(fast, AT_ONCE) as drain:

        def copied(*words: Any) -> Any:
            monkeypatch.undo()
            made = [_made(fast, home, _safetensors(number), number) for number in (2, 3, 4)]
            with made[-1].open("ab"):  # it is being written: the one before it may be needed
                drain._held()
                left = [path for path in made if path.exists()]
            assert (left, first.exists()) == (made[1:], True)
            return real(*words)

        monkeypatch.setattr(module, "copy_file", copied)
        assert drain.once() == []
    assert home.read_bytes() == _safetensors(4)
    assert names(work) == [home.name]
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_the_tier_is_listed_a_few_times_a_round_and_seldom_where_that_takes_long(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    now_s, cost_s, looks = 0.0, 0.0, 0

    def looked(*words: Any) -> list[BurstFile]:
        nonlocal now_s, looks
        now_s, looks = now_s + cost_s, looks + 1
        return entries(*words)

    for number in range(50):
        _made(fast, work / f"{number}.pt", b"x", number)
    monkeypatch.setattr("penstock.save.burst.home.entries", looked)
    with Burst(fast, AT_ONCE, clock=lambda: now_s) as drain:
        assert drain._round() == {}
        assert (drain.status.drained, looks < 6) == (50, True)
        cost_s = 1.0
        drain._round()
        done = looks
        assert drain._round() == {}
        assert looks == done
        late = _made(fast, work / "late.pt", b"x")
        assert drain.watch(lambda: True) == []  # a program that has ended waits for no look
        assert not late.exists()


@pytest.mark.parametrize("moment", ["while it is copied", "when it is home"])
def test_what_comes_back_for_a_torn_file_is_the_newest_that_was_closed(
    fast: Path, work: Path, moment: str
) -> None:
    """Three versions of one path; the program is killed in the third, at the worst moments."""
    home = work / "a.safetensors"
    _made(fast, home, _safetensors(1), 1)
    _made(fast, work / "other.safetensors", _safetensors(9, 2_000_000), 9)  # goes by itself

    def torn() -> None:
        _made(fast, home, _safetensors(3)[:500], 3)

    with Burst(fast, AT_ONCE) as drain:
        copy, forget = drain._copy, drain._forget_was

        def copied(one: BurstFile, before: os.stat_result) -> Path:
            found = copy(one, before)
            if one.home != home:  # the newest goes first, and the look round was before it
                _made(fast, home, _safetensors(2), 2)
            elif moment == "while it is copied":
                drain._copy = copy  # type: ignore[method-assign]
                torn()
            return found

        def forgotten(one: BurstFile) -> None:
            if one.home == home and moment == "when it is home":
                drain._forget_was = forget  # type: ignore[method-assign]
                torn()
            forget(one)

        drain._copy, drain._forget_was = copied, forgotten  # type: ignore[method-assign]
        assert drain.once() == []
        assert home.read_bytes() == _safetensors(2)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(2)
    assert names(work) == ["a.safetensors", "a.safetensors.torn", "other.safetensors"]
    assert on_tier(fast) == []


def test_what_a_torn_file_holds_for_which_there_is_no_room_stays_and_is_named(
    fast: Path, work: Path
) -> None:
    home = work / "a.safetensors"
    home.write_bytes(_safetensors(1))
    data = _made(fast, home, _safetensors(2)[:500])
    with Burst(fast, AT_ONCE) as drain:
        copy = drain._copy

        def full(*words: Any) -> Path:
            raise TierError("no room")

        drain._copy = full  # type: ignore[method-assign]
        drain._round()
        drain._copy = copy  # type: ignore[method-assign]
    assert home.read_bytes() == _safetensors(1)
    make_old(fast)
    [told] = drained(fast)
    assert str(data) in told
    assert data.read_bytes() == _safetensors(2)[:500]
    assert names(work) == [home.name]


def test_a_killed_drain_s_link_to_a_torn_file_is_none_of_the_program_s(
    fast: Path, work: Path
) -> None:
    """Where what was there before has come back, and that was not marked yet."""
    home = work / "a.safetensors"
    home.write_bytes(_safetensors(1))
    data = _made(fast, home, _safetensors(2)[:500])
    made_as = data.with_name(f"{data.name[:25]}b.safetensors")
    data.rename(made_as)
    (fast / "burst/home" / data.name).rename(fast / "burst/home" / made_as.name)
    was = home.with_name(f".{home.name}{WAS}")
    was.rename(home)
    was.symlink_to(made_as)
    make_old(fast)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(1)
    assert names(work) == [home.name]


def test_who_writes_to_the_tier_late_gets_no_link_where_another_file_is_by_now(
    fast: Path, work: Path
) -> None:
    home = work / "a.pt"
    data = _made(fast, home, b"old")
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        (work / "b.pt").write_bytes(b"newer")
        (work / "b.pt").replace(home)
        data.write_bytes(b"by who had it open")
        drain._round()
    assert home.read_bytes() == b"newer"


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("is_asked", [False, True])
def test_what_a_program_puts_at_a_path_to_which_something_comes_back_stays(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch, is_moved: bool, is_asked: bool
) -> None:
    """As it is written to late on the tier, or was torn; before the drain asks whether the path is
    as it was, or after that."""
    home = work / "a.safetensors"
    if is_moved:
        home.write_bytes(_safetensors(1))
        _move(fast, home, _safetensors(2)[:500])
    else:
        data = _made(fast, home, _safetensors(2))

    def newer() -> None:
        monkeypatch.undo()
        (work / "aside").write_bytes(_safetensors(3))
        (work / "aside").replace(home)

    def exchanged(new: Path, old: Path) -> None:
        newer()
        exchange(new, old)

    def linked(path: Path, target: Path) -> None:
        (os.link if is_moved else os.symlink)(target, path)
        if path.name.endswith((LINK, TORN)):
            newer()

    with Burst(fast, AT_ONCE) as drain:
        if not is_moved:
            drain._round()
            data.write_bytes(b"by who had it open")
        if is_asked:
            monkeypatch.setattr("penstock.save.burst.file.exchange", exchanged)
        else:
            monkeypatch.setattr(Path, "hardlink_to" if is_moved else "symlink_to", linked)
        drain._round()
        assert home.read_bytes() == _safetensors(3)
    make_old(fast)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(3)
    assert names(work) == [home.name]
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_file_that_is_renamed_onto_another_one_as_it_comes_home_leaves_nothing_of_that(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has found its link, and kept the other one, just before."""
    home, was = work / "a.pt", work / f".a.pt{WAS}"
    home.write_bytes(b"old")
    data = _made(fast, work / "a.pt.tmp", b"new")

    def exchanged(new: Path, old: Path) -> None:
        monkeypatch.undo()
        was.hardlink_to(home)
        exchange(new, old)

    monkeypatch.setattr("penstock.save.burst.file.exchange", exchanged)
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        (work / "a.pt.tmp").replace(home)
        (fast / "burst/home" / data.name).symlink_to(home)
        assert drain.once() == []
    assert home.read_bytes() == b"new"
    assert names(work) == ["a.pt"]
    assert names(fast / "burst") == ["data", "draft", "home"]


@pytest.mark.parametrize("is_home", [False, True])
def test_a_folder_whose_name_is_a_file_s_by_now_holds_up_no_other_file(
    fast: Path, work: Path, is_home: bool
) -> None:
    (work / "last.ckpt").mkdir()
    _made(fast, work / "last.ckpt/a.pt", b"old", 1)
    newer = _made(fast, work / "last.ckpt/a.pt", b"new", 2)
    with Burst(fast, AT_ONCE) as drain:
        if is_home:
            drain._round()
        else:
            newer.unlink()
            (fast / "burst/home" / newer.name).unlink()
        shutil.rmtree(work / "last.ckpt")
        (work / "last.ckpt").write_bytes(b"a file")
        make_old(fast)
        _made(fast, work / "b.pt", b"b")
        assert drain.once() == []
    assert (work / "b.pt").read_bytes() == b"b"
    assert names(work) == ["b.pt", "last.ckpt"]
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_file_that_nobody_may_read_holds_up_no_other_one(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = _made(fast, work / "a.pt", b"a")
    real = os.open

    def opened(path: Any, *words: Any, **more: Any) -> int:
        if str(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", opened)
    _made(fast, work / "b.pt", b"b")
    [told] = drained(fast, DrainSettings(settle_s=0.0, tries=1))
    assert "a.pt: Permission denied" in told or "cannot be read" in told, told
    assert (work / "b.pt").read_bytes() == b"b"
    assert not (work / "b.pt").is_symlink()
    assert (work / "a.pt").is_symlink()


def test_what_came_home_is_kept_until_what_replaced_it_there_is_whole(
    fast: Path, work: Path
) -> None:
    home = work / "a.safetensors"
    _made(fast, home, _safetensors(1), 1)
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        # A program that had found the link looks for no file to keep.
        home.unlink()
        _made(fast, home, _safetensors(2)[:500], 2)
        assert drain.once() == []
    assert home.read_bytes() == _safetensors(1)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(1)
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]
    assert on_tier(fast) == []


def test_what_was_replaced_stays_where_a_drain_ends_before_the_new_one_is_whole(
    fast: Path, work: Path
) -> None:
    older = _made(fast, work / "a.safetensors", _safetensors(1))
    newer = _made(fast, work / "a.safetensors", _safetensors(2)[:-1], 1)
    make_old(fast)
    with newer.open("ab"), Burst(fast, AT_ONCE) as drain:  # it is being written
        drain.watch(lambda: True, 0.0)
    assert older.exists()
    assert drained(fast) == []
    assert (work / "a.safetensors").read_bytes() == _safetensors(1)


def test_a_file_that_is_made_while_the_drain_looks_is_left_alone(fast: Path, work: Path) -> None:
    """The way home is there before the file."""
    data = _made(fast, work / "a.safetensors", _safetensors(1))
    whole, way = data.read_bytes(), fast / "burst/home" / data.name
    for path in (data, work / "a.safetensors"):
        path.unlink()
    with Burst(fast, AT_ONCE) as drain:
        assert drain.once() == []
        assert way.is_symlink()  # by a program that is making it, for all one knows
        os.utime(way, (0, 0), follow_symlinks=False)
        may_go = drain._may_go

        def made(*words: Any) -> bool:
            if not data.exists():
                data.write_bytes(whole)
                (work / "a.safetensors").symlink_to(data)
            return may_go(*words)

        drain._may_go = made  # type: ignore[method-assign]
        assert drain.once() == []
    assert not (work / "a.safetensors").is_symlink()
    assert (work / "a.safetensors").read_bytes() == whole


def test_a_program_that_is_quicker_twice_while_a_file_comes_home_keeps_its_newest(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = work / "a.safetensors"
    _made(fast, home, _safetensors(1), 1)
    left = [2, 3]

    def exchanged(new: Path, old: Path) -> None:
        if left[0] == 2:  # between the question and the exchange
            _made(fast, home, _safetensors(left.pop(0)), 2)
            exchange(new, old)
            # It finds a file, and keeps that; then comes the second exchange.
            was = home.with_name(f".{home.name}{WAS}")
            was.unlink(missing_ok=True)
            was.hardlink_to(home)
            home.unlink()
            _made(fast, home, _safetensors(left[0]), 3)
        else:
            exchange(new, old)

    monkeypatch.setattr("penstock.save.burst.file.exchange", exchanged)
    with Burst(fast, AT_ONCE) as drain:
        drain._round()
    assert home.read_bytes() == _safetensors(3)
    assert drained(fast) == []
    assert not home.is_symlink()
    assert home.read_bytes() == _safetensors(3)
    assert names(work) == ["a.safetensors"]


def test_what_a_program_writes_and_removes_while_an_older_one_comes_home_leaves_the_tier(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = work / "a.pt"
    _made(fast, home, b"first", 1)

    def exchanged(new: Path, old: Path) -> None:
        monkeypatch.undo()
        _made(fast, home, b"second", 2)
        exchange(new, old)
        home.unlink()  # which is a file to it, of which the tier hears nothing

    monkeypatch.setattr("penstock.save.burst.file.exchange", exchanged)
    drained(fast)
    make_old(fast)
    assert drained(fast) == []
    assert names(work) == []
    assert names(fast / "burst") == ["data", "draft", "home"]


@pytest.mark.parametrize("is_written_anew", [False, True])
def test_what_a_program_writes_and_renames_while_an_older_one_comes_home_gets_its_name(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch, is_written_anew: bool
) -> None:
    home = work / "a.pt"
    _made(fast, home, b"first", 1)

    def exchanged(new: Path, old: Path) -> None:
        monkeypatch.undo()
        _made(fast, home, b"second", 2)
        exchange(new, old)
        home.rename(work / "b.pt")  # which is the first file, and the second one to it
        if is_written_anew:
            _made(fast, home, b"third", 3)

    monkeypatch.setattr("penstock.save.burst.file.exchange", exchanged)
    drained(fast)
    make_old(fast)
    assert drained(fast) == []
    found = {path.name: path.read_bytes() for path in work.iterdir()}
    assert found == {"b.pt": b"second"} | ({"a.pt": b"third"} if is_written_anew else {})
    assert not any(path.is_symlink() for path in work.iterdir())
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_what_is_nowhere_to_be_found_while_an_older_one_comes_home_stays_and_is_named(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = work / "a.pt"
    _made(fast, home, b"first", 1)

    def exchanged(new: Path, old: Path) -> None:
        monkeypatch.undo()
        _made(fast, home, b"second", 2)
        exchange(new, old)
        (work / "b.pt").hardlink_to(home)  # a name that no descriptor tells of
        home.unlink()

    monkeypatch.setattr("penstock.save.burst.file.exchange", exchanged)
    drained(fast)
    make_old(fast)
    [told] = drained(fast)
    [left] = entries(fast)
    assert str(left.data) in told
    assert left.data.read_bytes() == b"second"


def test_a_file_that_is_removed_where_a_killed_drain_had_brought_it_leaves_the_tier(
    fast: Path, work: Path
) -> None:
    _made(fast, work / "a.safetensors", _safetensors(1))
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        drain._arrivals.gone.clear()  # as if it were killed: nobody remembers what is home
    (work / "a.safetensors").unlink()
    make_old(fast)
    assert drained(fast) == []
    assert names(work) == []
    assert on_tier(fast) == []
    assert names(fast / "burst") == ["data", "draft", "home"]


@pytest.mark.parametrize("earlier", ["none", "at home", "on the tier"])
@pytest.mark.parametrize("size", [0, 500])
def test_a_drain_that_gives_back_may_be_killed_before_any_of_its_steps(
    fast: Path, work: Path, earlier: str, size: int
) -> None:
    home, torn = work / "a.safetensors", work / "a.safetensors.torn"
    for step in range(1, 100):
        if earlier == "at home":
            home.write_bytes(_safetensors(1))
        elif earlier == "on the tier":
            _made(fast, home, _safetensors(1), 2 * step)
        _made(fast, home, _safetensors(2)[:size], 2 * step + 1)
        is_done = is_drained_before(fast, step)
        make_old(fast)
        assert drained(fast) == [], step
        assert names(fast / "burst") == ["data", "draft", "home"], step
        if earlier != "none":
            assert home.read_bytes() == _safetensors(1), step
        else:
            assert home.exists() == (not size), step
        torn.unlink(missing_ok=True)
        assert set(names(work)) <= {home.name}, step
        home.unlink(missing_ok=True)
        if is_done:
            break
    assert 3 < step < 99, step


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_drain_may_be_killed_before_any_of_its_steps(
    fast: Path, work: Path, is_first: bool, is_removed: bool
) -> None:
    home = work / "a.safetensors"
    for step in range(1, 100):
        if not is_first:
            home.write_bytes(_safetensors(2))
        _made(fast, home, _safetensors(1), step)
        is_done = is_drained_before(fast, step)
        is_gone = is_removed and not home.is_symlink()
        if is_gone:
            home.unlink()  # the file itself, of which the tier hears nothing
        make_old(fast)
        assert drained(fast) == [], step
        assert names(fast / "burst") == ["data", "draft", "home"], step
        assert names(work) == [home.name] * (not is_gone), step
        if not is_gone:
            assert home.read_bytes() == _safetensors(1), step
            home.unlink()
        if is_done:
            break
    assert 5 < step < 99, step


def _move(fast: Path, home: Path, data: bytes, turn: int = 0, back_s: int = 0) -> Path:
    """As native/burst.c does with a file for which the tier has no room: its way home."""
    name = f"{time.time_ns() - back_s * 10**9:016x}{turn:08x}-{home.name}"
    way = fast / "burst/home" / name
    way.symlink_to(home)
    if home.exists():
        home.with_name(f".{home.name}{WAS}").unlink(missing_ok=True)
        home.rename(home.with_name(f".{home.name}{WAS}"))
    home.write_bytes(data)
    os.utime(way, (0, 0), follow_symlinks=False)
    return way


@pytest.mark.parametrize("is_made_as", [False, True])
def test_what_a_file_replaces_that_moves_to_its_path_as_the_tier_is_full_stays_until_it_is_whole(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch, is_made_as: bool
) -> None:
    """It begins as another one has come home: at its path, or under the name that it had before."""
    from penstock.save.burst import home as module

    home = work / "a.safetensors"
    data = _made(fast, home, _safetensors(1), 1)
    if is_made_as:
        way = fast / "burst/home" / data.name
        home.rename(work / "b.safetensors")
        way.unlink()
        way.symlink_to(work / "b.safetensors")
        home.write_bytes(_safetensors(1))
    real = module.fsync_folder

    def late(folder: Path) -> None:
        if (work / ("b.safetensors" if is_made_as else home.name)).is_symlink():
            return real(folder)  # of the copy
        monkeypatch.undo()
        _move(fast, home, _safetensors(2)[:500], 2)
        return real(folder)

    monkeypatch.setattr(module, "fsync_folder", late)
    assert drained(fast) == []
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(1)
    assert (work / "a.safetensors.torn").read_bytes() == _safetensors(2)[:500]
    left = {"a.safetensors", "a.safetensors.torn"} | ({"b.safetensors"} if is_made_as else set())
    assert set(names(work)) == left
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_moved_file_that_the_program_goes_on_with_after_a_moment_is_none_that_is_torn(
    fast: Path, work: Path
) -> None:
    home = work / "a.safetensors"
    home.write_bytes(_safetensors(1))
    whole = _safetensors(2)
    _move(fast, home, whole[:500])
    with Burst(fast, DrainSettings(settle_s=60.0)) as drain:
        waited: list[float] = []

        def rest(seconds: float) -> None:
            if not waited:
                home.write_bytes(whole)
            waited.append(seconds)

        drain._rest = rest  # type: ignore[method-assign]
        drain._round()
        drain._attempts.clear()
        drain._round()
    assert waited[0] > 50
    assert home.read_bytes() == whole
    assert names(work) == [home.name]


def test_what_was_there_stays_where_a_moved_file_is_written_anew_while_it_is_synced(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = work / "a.safetensors"
    home.write_bytes(_safetensors(1))
    _move(fast, home, _safetensors(2), 2)
    real = os.fsync

    def late(descriptor: int) -> None:
        real(descriptor)
        if os.path.samestat(os.fstat(descriptor), home.stat()):
            monkeypatch.undo()
            home.with_name(f".{home.name}{WAS}").unlink()
            _made(fast, home, _safetensors(3)[:500], 3)

    monkeypatch.setattr(os, "fsync", late)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(2)
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_moved_file_may_be_renamed_and_leaves_nothing_of_what_was_there(
    fast: Path, work: Path
) -> None:
    (work / "a.pt").write_bytes(b"old")
    _move(fast, work / "a.pt", b"new")
    (work / "a.pt").rename(work / "b.pt")
    assert drained(fast) == []
    assert names(work) == ["b.pt"]


def test_a_program_that_is_killed_as_it_moves_a_file_leaves_what_was_there_before(
    fast: Path, work: Path
) -> None:
    home = work / "a.safetensors"
    home.write_bytes(_safetensors(1))
    data = _made(fast, home, _safetensors(2)[:500])
    way = fast / "burst/home" / data.name
    way.rename(way.with_name(way.name + HOME))
    home.unlink()
    home.write_bytes(_safetensors(2)[:500])
    make_old(fast)
    assert drained(fast) == []
    assert home.read_bytes() == _safetensors(1)
    assert names(work) == ["a.safetensors", "a.safetensors.torn"]
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_program_that_is_killed_as_it_keeps_what_it_overwrites_leaves_nothing(
    fast: Path, work: Path
) -> None:
    home = work / "a.safetensors"
    data = _made(fast, home, b"")
    home.unlink()
    home.write_bytes(_safetensors(1))
    home.with_name(f".{home.name}{WAS}").hardlink_to(home)
    make_old(fast)
    assert data.exists()
    assert drained(fast) == []
    assert home.stat().st_nlink == 1  # else the next one does not go to the tier
    assert names(work) == [home.name]
    assert names(fast / "burst") == ["data", "draft", "home"]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_program_that_is_killed_as_it_renames_leaves_nothing_on_the_tier(
    fast: Path, work: Path, is_removed: bool
) -> None:
    data = _made(fast, work / "a.pt", b"a")
    way = fast / "burst/home" / data.name
    way.with_name(f"{way.name}.penstock-link").symlink_to(work / "b.pt")
    if is_removed:  # by the next one
        for path in (work / "a.pt", data, way):
            path.unlink()
    assert drained(fast) == []
    assert names(work) == ([] if is_removed else ["a.pt"])
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_program_may_be_killed_at_any_call_of_a_removal(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace cannot trace here")
    home, is_gone = work / "a.safetensors", []
    for call in ("rename", "renameat", "renameat2", "unlink", "unlinkat"):
        for turn in range(1, 20):
            inject = f"{call}:signal=KILL:when={turn}"
            is_done = _removing(home, _environment(tmp_path / "run", fast), inject)
            is_gone.append(not home.is_symlink())
            make_old(fast)
            assert drained(fast) == [], (call, turn)
            assert names(fast / "burst") == ["data", "draft", "home"], (call, turn)
            assert names(work) == [home.name] * (not is_gone[-1]), (call, turn)
            home.unlink(missing_ok=True)
            if is_done:
                break
    assert {True, False} == set(is_gone)


def _removing(home: Path, environ: dict[str, str], inject: str, copy: str = "") -> bool:
    """A program writes a file, copies it and removes it; False: it was killed before that."""
    source = f"""
        import os, sys
        with open(sys.argv[1], "wb") as file:
            file.write(bytes.fromhex(sys.argv[2]))
        {copy}
        os.remove(sys.argv[1])
    """
    preloaded = f"LD_PRELOAD={environ.pop('LD_PRELOAD')}"  # of the program, not of strace
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-E", preloaded, "-e", f"inject={inject}"]
    words = ["-c", textwrap.dedent(source), home, _safetensors(1).hex()]
    return not subprocess.run([*command, sys.executable, *words], env=environ).returncode


def test_a_second_path_may_be_removed_without_its_file(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    burst("""
        import os
        with open("a.pt", "wb") as file:
            file.write(b"a")
        os.link("a.pt", "b.pt")
        os.remove("b.pt")
        assert open("a.pt", "rb").read() == b"a"
        os.mkdir("c"); os.rename("a.pt", "c/a.pt"); os.rename("c", "d"); os.remove("d/a.pt")
        with open("e.pt", "wb") as file:
            file.write(b"e")
        os.link("e.pt", "f.pt")
        os.remove("f.pt")
    """)
    assert not [name for name in names(fast / "burst/home") if "e.pt" in name and HOME in name]
    make_old(fast)
    assert drained(fast) == []
    assert names(work) == ["d", "e.pt"]
    assert (work / "e.pt").read_bytes() == b"e"
    assert names(fast / "burst") == ["data", "draft", "home"]


@pytest.mark.parametrize("is_home", [False, True])
def test_every_copy_of_a_file_is_a_file(
    burst: Callable[..., Any], fast: Path, work: Path, is_home: bool
) -> None:
    """Of one that makes links of links, and of one that makes a second path."""
    burst("""
        import os, shutil, subprocess
        def put(path):
            with open(path, "wb") as file:
                file.write(path.encode())
        for name in "abcde":
            os.mkdir(name)
            put(f"{name}/{name}.pt")
        shutil.copytree("a", "a2", symlinks=True)
        shutil.copytree("b", "b2", symlinks=True)
        shutil.rmtree("b")
        subprocess.run("cp -a c c2; cp -a c c3; rm -r c2/c.pt; mv c3/c.pt c4.pt", shell=True)
        os.link("d/d.pt", "d2.bin")
        os.link("e/e.pt", "e2.bin", src_dir_fd=os.open(".", os.O_RDONLY))
        os.remove("e/e.pt")
        try:
            os.link("d/d.pt", "a/a.pt")
        except FileExistsError:
            pass
    """)
    found = {"a/a.pt": "a", "a2/a.pt": "a", "b2/b.pt": "b", "c/c.pt": "c", "c4.pt": "c"}
    found |= {"d/d.pt": "d", "d2.bin": "d", "e2.bin": "e"}
    if is_home:  # one of two paths gets it before the drain ends
        with Burst(fast, AT_ONCE) as drain:
            drain._round()
    assert drained(fast) == []
    assert {
        os.fspath(path.relative_to(work)): path.read_text()[0]
        for path in work.rglob("*")
        if path.is_file() and not path.is_symlink()
    } == found
    assert names(fast / "burst") == ["data", "draft", "home"]


@pytest.mark.parametrize("why", ["a long name", "a full tier", "no such folder", "below the tier"])
def test_a_second_path_that_cannot_be_made_is_refused_and_costs_no_file(
    recorded: Callable[..., Any], tmp_path: Path, work: Path, why: str
) -> None:
    """A link to our link would lead to nothing as soon as one of the two is removed."""
    with small_disk(tmp_path / "small", 1 << 20, "nr_inodes=12") as disk:
        prepare(disk)
        to = {"a long name": "n" * 220 + ".pt", "no such folder": "no/b.pt"}.get(why, "b.pt")
        recorded(
            """
            import errno, os, sys
            to, tier, is_full, error = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]
            with open("a.pt", "wb") as file:
                file.write(b"a")
            turn = 0
            try:
                while is_full == "True":
                    open(f"{tier}/filler-{turn}", "x").close()
                    turn += 1
            except OSError as full:
                assert full.errno == errno.ENOSPC
            try:
                os.link("a.pt", to)
                os.remove(to)
            except OSError as refused:
                assert errno.errorcode[refused.errno] == error, refused
            else:
                raise SystemExit("a link was made")
            assert os.stat("a.pt").st_nlink == 1 and open("a.pt", "rb").read() == b"a"
            """,
            args=[
                *(disk / to if why == "below the tier" else to, disk, str(why == "a full tier")),
                "ENOENT" if why == "no such folder" else "EXDEV",
            ],
            environment=variables(disk, "*.pt"),
        )
        for filler in disk.glob("filler-*"):
            filler.unlink()
        assert drained(disk) == []
    assert names(work) == ["a.pt"]
    assert (work / "a.pt").read_bytes() == b"a"


def test_a_file_may_be_moved_over_another_one_from_another_file_system(
    burst: Callable[..., Any], fast: Path, work: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "other", 4 << 20) as other:
        burst(f"""
            import os, shutil
            def put(path, text):
                with open(path, "w") as file:
                    file.write(text)
            put("a.tmp", "before"); os.rename("a.tmp", "a.ckpt")
            put("kept.txt", "kept")
            os.link("kept.txt", "kept.ckpt")
            for text in ("first", "second"):
                put("{other}/new.ckpt", text)
                shutil.move("{other}/new.ckpt", "a.ckpt")
                assert open("a.ckpt").read() == text
                assert not os.path.lexists("{other}/new.ckpt")
            put("{other}/new.ckpt", "third")
            try:
                os.link("{other}/new.ckpt", "a.ckpt")
            except FileExistsError:
                shutil.move("{other}/new.ckpt", "b.ckpt")
        """)
        make_old(fast)
        assert drained(fast) == []
    assert names(work) == ["a.ckpt", "b.ckpt", "kept.ckpt", "kept.txt"]
    assert (work / "a.ckpt").read_text() == "second"
    assert (work / "b.ckpt").read_text() == "third"
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_program_may_be_killed_at_any_call_that_makes_a_second_path(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace cannot trace here")
    home, environ = work / "a.safetensors", _environment(tmp_path / "run", fast)
    moved = work / "b.safetensors"
    copy, seen = f"os.link(sys.argv[1], {str(moved)!r})", set()
    for call in ("symlinkat", "linkat", "renameat", "unlinkat"):
        for turn in range(1, 20):
            is_done = _removing(home, dict(environ), f"{call}:signal=KILL:when={turn}", copy)
            is_written = home.is_symlink() and home.read_bytes() != b""
            was_there = [path for path in (home, moved) if path.is_symlink()]
            make_old(fast)
            assert drained(fast) == [], (call, turn)
            assert names(fast / "burst") == ["data", "draft", "home"], (call, turn)
            for path in was_there:
                if is_written or path == moved:
                    assert path.read_bytes() == _safetensors(1), (call, turn)
                assert not path.is_symlink(), (call, turn)
            seen.add(tuple(was_there))
            for path in (home, moved):
                path.unlink(missing_ok=True)
            if is_done:
                break
    assert {(home,), (home, moved), (moved,)} <= seen


@pytest.mark.parametrize("removed", ["the path", "and the file"])
def test_what_a_killed_drain_wrote_goes_though_the_program_has_removed_the_file(
    fast: Path, work: Path, removed: str
) -> None:
    """In two steps, between which it may be killed."""
    data = _made(fast, work / "a.safetensors", _safetensors(1))
    with Burst(fast, AT_ONCE) as drain:
        (one,) = entries(fast)
        new = drain._copy(one, data.stat())
        draft_of(new).write_bytes(b"a part")
    (work / "a.safetensors").unlink()
    if removed == "and the file":  # as native/burst.c does it
        for path in (data, fast / "burst/home" / data.name):
            path.unlink()
    (fast / "burst/draft").mkdir(exist_ok=True)
    (fast / "burst/draft/odd").symlink_to(work / "kept")
    (work / "kept").touch()
    left = drained(fast)
    assert names(work) == ["kept"]
    if removed == "and the file":
        assert left == []
        assert names(fast / "burst") == ["data", "draft", "home"]
    else:
        assert "no path leads there" in left[0]
        assert on_tier(fast) == ["a.safetensors"]


def test_only_formats_that_tell_say_torn(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"x" * 1000)
    assert not is_torn(path, "a.pt")
    path.write_bytes(path.read_bytes()[:-5])
    assert is_torn(path, "a.pt")
    assert is_torn(path, "a.bin")
    for data in (b"\x80\x02old torch", b"PK", b"anything", b"{}"):
        path.write_bytes(data)
        assert not is_torn(path, "a.pt")
        assert not is_torn(path, "a.safetensors")
    path.write_bytes(b"")
    assert is_torn(path, "a.pt")
    assert not is_torn(path, "a.json")


@pytest.mark.parametrize("how", ["os.rename(a, b)", "os.rename(a, b, src_dir_fd=here)"])
def test_the_tier_knows_where_a_folder_goes_that_the_program_renames(
    burst: Callable[..., Any], fast: Path, work: Path, how: str
) -> None:
    burst(f"""
        import os
        os.makedirs("deep/tmp-5/inner"); os.mkdir("deep/tmp-55")
        for path in ("tmp-5/a.pt", "tmp-5/inner/b.pt", "tmp-55/c.pt"):
            open(f"deep/{{path}}", "wb").close()
        here = os.open(".", os.O_RDONLY)
        a, b = "deep/tmp-5", os.path.abspath("checkpoint-5")
        {how}
        os.rename("checkpoint-5", "deep/last")
    """)
    assert sorted(os.path.relpath(one.home, work) for one in entries(fast)) == [
        "deep/last/a.pt", "deep/last/inner/b.pt", "deep/tmp-55/c.pt",
    ]  # fmt: skip
    assert all(one.is_linked() for one in entries(fast))
    assert len(names(fast / "burst/home")) == 3


def test_links_that_were_renamed_behind_our_back_are_found(fast: Path, work: Path) -> None:
    (work / "tmp-5").mkdir()
    _made(fast, work / "tmp-5/a.pt", b"a")
    (work / "tmp-5").rename(work / "checkpoint-5")
    _made(fast, work / "b.pt", b"b")
    (work / "b.pt").rename(work / "c.pt")
    assert drained(fast) == []
    assert (work / "checkpoint-5/a.pt").read_bytes() == b"a"
    assert (work / "c.pt").read_bytes() == b"b"
    assert names(work) == ["a.pt", "c.pt", "checkpoint-5"]


def test_a_file_whose_link_is_nowhere_stays_and_is_named(fast: Path, work: Path) -> None:
    path = _made(fast, work / "a.pt", b"a")
    (work / "a.pt").unlink()
    [told] = drained(fast)
    assert str(path) in told
    assert "no path leads" in told
    assert path.read_bytes() == b"a"
    for command in ("drain", "recover"):
        said = penstock("save", command, fast, status=1).stderr
        assert str(path) in said and "for you to move or remove" in said, said  # noqa: PT018


def test_a_folder_that_is_renamed_and_made_anew_is_found_and_one_that_is_not_is_told(
    fast: Path, work: Path
) -> None:
    """As programs put aside the folder of their last checkpoint."""
    for number in (1, 2):
        (work / "last").mkdir()
        _made(fast, work / "last/a.pt", b"%d" % number)
        (work / "last").rename(work / f"old-{number}")
    (work / "last").mkdir()
    path = _made(fast, work / "last/a.pt", b"out of sight")
    (work / "last/a.pt").unlink()
    make_old(fast)
    with Burst(fast, AT_ONCE) as drain:
        (told,) = drain.watch(lambda: True)
    assert str(path) in told
    assert [(work / f"old-{number}/a.pt").read_bytes() for number in (1, 2)] == [b"1", b"2"]
    assert on_tier(fast) == ["a.pt"]


def test_a_file_that_goes_from_the_tier_while_the_drain_looks_ends_no_drain(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.burst import home as module

    data, real = _made(fast, work / "a.pt", b"a"), module.leased
    _made(fast, work / "b.pt", b"b")

    def gone(path: str | Path, settle_s: float) -> Any:
        if str(path) == str(data) and not (work / "a.pt").is_symlink():
            data.unlink(missing_ok=True)
        return real(path, settle_s)

    monkeypatch.setattr(module, "leased", gone)
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        drain._arrivals.forget_committed()
        monkeypatch.setattr(drain._refinding, "find_again", lambda *found: (work / "none").stat())
        with pytest.raises(TierError, match="none"):
            drain._round()
    assert [(work / name).read_bytes() for name in ("a.pt", "b.pt")] == [b"a", b"b"]


def test_a_folder_that_is_renamed_again_is_looked_for_again(fast: Path, work: Path) -> None:
    (work / "a").mkdir()
    path = _made(fast, work / "a/a.pt", b"a")
    with path.open("ab"), Burst(fast, AT_ONCE) as drain:
        for old, new in (("a", "b"), ("b", "c")):
            (work / old).rename(work / new)
            drain._round()
        assert drain.unclaimed() == []
    assert drained(fast) == []
    assert (work / "c/a.pt").read_bytes() == b"a"


def test_a_drain_by_hand_leaves_nothing_of_what_was_overwritten_a_moment_ago(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    (work / "durable.pt").write_bytes(b"before")
    burst("""
        import os
        def put(path, data):
            with open(path, "wb") as file:
                file.write(data)
        for name in ("renamed.pt", "durable.pt"):
            put(name, b"old"); put("other", b"new"); os.replace("other", name)
        put("anew.pt", b"old"); put("anew.pt", b"new")
        put("removed.pt", b"old"); put("removed.pt", b"new"); os.remove("removed.pt")
        put("moved.pt", b"old"); put("new.pt", b"new"); os.replace("new.pt", "moved.pt")
        put("kept.pt", b"kept"); os.replace("kept.pt", "kept.pt")
    """)
    assert drained(fast, DrainSettings(settle_s=0.0)) == []
    assert names(fast / "burst") == ["data", "draft", "home"]
    found = {path.name: path.read_text() for path in work.iterdir() if path.suffix == ".pt"}
    new = ("anew.pt", "durable.pt", "moved.pt", "renamed.pt")
    assert found == {**dict.fromkeys(new, "new"), "kept.pt": "kept"}
    assert not list(work.glob(".*")), names(work)


def test_a_file_that_another_program_moved_away_is_not_the_one_that_was_overwritten(
    fast: Path, work: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _made(fast, work / "last.pt", b"old")
    kept = tmp_path_factory.mktemp("kept") / "last.pt"  # where no link is looked for
    (work / "last.pt").rename(kept)
    _made(fast, work / "last.pt", b"new")
    make_old(fast)
    (told,) = drained(fast)
    assert "no path leads" in told and str(path) in told  # noqa: PT018
    assert kept.read_bytes() == b"old"
    assert (work / "last.pt").read_bytes() == b"new"


def test_a_program_that_removes_what_of_ours_has_gone_meanwhile_is_told_of_no_error(
    burst: Callable[..., Any], fast: Path
) -> None:
    """As shutil.rmtree does, that has listed the folder before."""
    burst("""
        import os
        for end in ("was", "link", "new", "new.penstock-part"):
            os.unlink(f".a.pt.penstock-{end}")
            os.unlink(f".a.pt.penstock-{end}", dir_fd=os.open(".", os.O_RDONLY))
        for name in ("a.pt", ".penstock-was", "a.penstock-was", ".a.pt.penstock-was/b"):
            try:
                os.unlink(name)
            except FileNotFoundError:
                continue
            raise SystemExit(name)
        os.mkdir("checkpoint-1")  # as who copies a folder copies what of ours is in it
        open("checkpoint-1/.a.pt.penstock-was", "wb").close()
    """)
    assert on_tier(fast) == []


def test_names_that_a_program_exchanges_keep_their_files(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    burst("""
        import ctypes, os
        os.mkdir("a"); os.mkdir("b")
        for name in ("a/1.pt", "b/2.pt"):
            with open(name, "wb") as file:
                file.write(name.encode())
        assert not ctypes.CDLL(None).renameat2(-100, b"a/1.pt", -100, b"b/2.pt", 2)
    """)
    make_old(fast)
    assert drained(fast) == []
    assert (work / "a/1.pt").read_bytes() == b"b/2.pt"
    assert (work / "b/2.pt").read_bytes() == b"a/1.pt"
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_copy_that_reads_back_wrong_is_not_put_home(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.burst import home as module

    _made(fast, work / "a.pt", b"a" * 5000)
    real = module.copy_file

    def damaging(source: Any, found: Any, dest: Any, name: str, trip: Any) -> Any:
        made = real(source, found, dest, name, trip)
        path = dest.path(name)
        path.write_bytes(b"b" + path.read_bytes()[1:])
        return made

    monkeypatch.setattr(module, "copy_file", damaging)
    [told] = drained(fast, DrainSettings(settle_s=0.0, tries=1))
    assert "reads back other bytes" in told
    assert (work / "a.pt").is_symlink()
    monkeypatch.undo()
    assert drained(fast) == []
    assert (work / "a.pt").read_bytes() == b"a" * 5000


@pytest.mark.parametrize("to", ["", "d"])
def test_a_folder_that_goes_as_the_drain_begins_to_copy_does_not_come_back(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    (work / "c").mkdir()
    data = _made(fast, work / "c/a.pt", b"a")
    upload = LocalStore.upload

    def late(store: LocalStore, *words: Any) -> Any:
        if to:
            (work / "c").rename(work / to)
        else:
            shutil.rmtree(work / "c")
            data.unlink()
        monkeypatch.undo()
        return upload(store, *words)

    monkeypatch.setattr(LocalStore, "upload", late)
    assert drained(fast) == []
    assert names(work) == (["a.pt", "d"] if to else [])
    assert not to or (work / "d/a.pt").read_bytes() == b"a"


@pytest.mark.parametrize("when", ["before the copy", "after the copy"])
@pytest.mark.parametrize("n_files", [1, 12])
def test_a_folder_that_is_renamed_while_a_file_is_copied_that_the_program_then_removes_is_clean(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch, when: str, n_files: int
) -> None:
    """The draft of the copy is then in the renamed folder; no link leads there."""
    (work / "c").mkdir()
    data = [_made(fast, work / f"c/{number}.pt", b"a") for number in range(n_files)]
    real, is_done = os.open, []

    def late(path: Any, *words: Any, **named: Any) -> int:
        is_draft = os.fsdecode(path).endswith((".penstock-new", ".penstock-part"))
        if when == "after the copy" or not is_draft or is_done:
            descriptor = real(path, *words, **named)
        if is_draft and not is_done and (work / "c").exists():
            is_done.append(True)
            (work / "c").rename(work / "d")
            for file in data:
                for place in (work / "d" / file.name[25:], file, fast / "burst/home" / file.name):
                    place.unlink()
            if when == "before the copy":
                descriptor = real(path, *words, **named)
        return descriptor

    monkeypatch.setattr(os, "open", late)
    assert drained(fast) == []
    assert is_done
    assert names(work / "d") == []


def test_a_file_that_is_renamed_while_it_is_copied_and_its_name_written_anew_is_not_lost(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.burst import home as module

    data = _made(fast, work / "a.pt", b"first", 1)
    real = module.copy_file

    def late(*words: Any) -> Any:
        monkeypatch.undo()
        (work / "a.pt").rename(work / "b.pt")
        way = fast / "burst/home" / data.name
        way.unlink()
        way.symlink_to(work / "b.pt")
        _made(fast, work / "a.pt", b"second", 2)
        return real(*words)

    monkeypatch.setattr(module, "copy_file", late)
    assert drained(fast) == []
    assert {path.name: path.read_bytes() for path in work.iterdir()} == {
        "a.pt": b"second",
        "b.pt": b"first",
    }
    assert names(fast / "burst") == ["data", "draft", "home"]


def test_a_file_system_that_cannot_exchange_names_is_served_too(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(new: Path, old: Path) -> None:
        raise OSError(errno.EINVAL, "no such call")

    monkeypatch.setattr("penstock.save.burst.file.exchange", cannot)
    _made(fast, work / "a.pt", b"a")
    assert drained(fast) == []
    assert (work / "a.pt").read_bytes() == b"a"
    assert names(work) == ["a.pt"]


def test_two_drains_of_one_tier_are_refused(fast: Path) -> None:
    with Burst(fast), pytest.raises(SaveError, match="another drain"), Burst(fast):
        pass


def test_what_it_says_of_itself(fast: Path, work: Path) -> None:
    _made(fast, work / "a.pt", b"a" * 100)
    with Burst(fast, AT_ONCE) as drain:
        drain._backlog(drain.backlog())
        assert drain.status.backlog == (str(work / "a.pt"),)
        assert drain.status.backlog_bytes == 100
        assert 0 <= drain.status.at_risk_s < 60
        drain.once()
    status = read_status(fast)
    assert status is not None
    assert (status.state, status.drained, status.drained_bytes) == ("ended", 1, 100)
    assert (status.backlog, status.at_risk_s) == ((), 0.0)


# Kills

KILLS = 120


def _environment(folder: Path, fast: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    found = launch.environment(folder, 1 << 20, os.environ)
    return {**found, **variables(fast)}


def _killed(program: Path, work: Path, environ: dict[str, str], first: int, s: float) -> list[str]:
    """What a program said that saved until it was killed."""
    child = subprocess.Popen(
        [program, str(SIZE), str(first)], cwd=work, env=environ, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        time.sleep(s)
    finally:
        child.kill()
    said = [line, *child.stdout]
    child.wait()
    return said


def test_kills_at_any_moment_tear_nothing_and_lose_nothing_that_was_closed(
    workload: Callable[..., Path], fast: Path, work: Path, tmp_path: Path
) -> None:
    program = workload("burst_loop")
    chance = random.Random(6)
    saves = Saves(fast, work)
    for trial in range(KILLS):
        environ = _environment(tmp_path / f"run-{trial % 8}", fast)
        said = _killed(program, work, environ, saves.first, chance.uniform(0, 0.008))
        if trial % 3:
            # Whoever reads before the drain has looked: whole, or torn as it would be without us.
            assert os.path.exists(work / "last.safetensors")
        saves.look(said)
    assert saves.torn, "no kill came in the middle of a save: the test tests nothing"
    time.sleep(1.1)
    saves.end()


def test_a_drain_that_is_killed_is_taken_up_and_leaves_nothing(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    chance = random.Random(7)
    for trial in range(60):
        number = trial % 200 + 1
        for name in ("last.safetensors", f"step-{trial}.safetensors"):
            _made(fast, work / name, _safetensors(number, 400_000), trial)
        child = os.fork()
        if not child:
            try:
                with Burst(fast, AT_ONCE) as drain:
                    drain.once()
            finally:
                os._exit(0)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for name in ("last.safetensors", f"step-{trial}.safetensors"):
            data = (work / name).read_bytes()
            assert data == _safetensors(number, 400_000), (trial, name)
    time.sleep(1.1)  # what came home before its drain was killed is kept for a second
    assert drained(fast) == []
    assert on_tier(fast) == []
    assert [name for name in names(work) if NEW in name or WAS in name] == []
    assert len(names(work)) == 61


# The report


def test_the_report_tells_what_went_to_the_tier_and_when_it_was_durable(
    recorded: Callable[..., Any], fast: Path, work: Path
) -> None:
    from penstock.explain.measures import measure

    run = recorded(
        """
        import glob, os, sys
        import penstock
        [mark] = glob.glob(sys.argv[1] + "/.penstock/running-*")
        os.close(os.open(mark, os.O_RDWR))  # as a drain does that asks whether the run lives
        for step in range(4):
            with penstock.step():
                pass
            with penstock.span("checkpoint"), open(f"checkpoint-{step % 3}.pt", "wb") as file:
                file.write(bytes(100_000))
        """,
        options=["--burst-buffer", str(fast)],
        args=[fast],
    )
    [row] = measure(run).burst
    assert row.tier == str(fast / "burst")
    assert (row.files, row.written_bytes) == (3, 400_000)
    # The first file was written again: it came home once, or twice.
    assert row.drained in (3, 4)
    assert row.drained_bytes == row.drained * 100_000
    assert row.durable_mean_s is not None
    assert 0 < row.durable_mean_s < 600
    assert (row.left_files, row.left_bytes, row.at_risk_s, row.paused_s) == (0, 0, 0.0, 0.0)
    [(spans,)] = run.sql("select count(*) from spans where name = 'drain'")
    assert 1 <= spans <= row.drained  # small files come home together
    # What the drain reads, of the tier and of the run's logs, is none of the job's data.
    read = "select path from files where path_class = 'data' and kind = 'regular'"
    assert [
        path for (path,) in run.sql(read) if str(fast) in path or path.endswith((".events", ".log"))
    ] == []
    assert all(
        (work / f"checkpoint-{number}.pt").read_bytes() == bytes(100_000) for number in range(3)
    )


def test_torch_numpy_and_safetensors_write_as_ever(
    recorded: Callable[..., Any], fast: Path, work: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    source = """
        import os, sys, torch, numpy as np
        from safetensors.torch import save_file, load_file
        state = {"w": torch.arange(50_000.)}
        if len(sys.argv) == 1:
            torch.save(state, "path.pt")
            with open("object.pt", "wb") as file:
                torch.save(state, file)
            torch.save(state, "aside.pt.tmp"); os.replace("aside.pt.tmp", "aside.pt")
            np.savez("arrays.npz", w=state["w"].numpy())
            save_file(state, "model.safetensors")
        for name in ("path.pt", "object.pt", "aside.pt"):
            assert torch.equal(torch.load(name)["w"], state["w"])
        assert np.load("arrays.npz")["w"].sum() == state["w"].numpy().sum()
        assert torch.equal(load_file("model.safetensors")["w"], state["w"])
    """
    recorded(source, environment=variables(fast))
    assert len(on_tier(fast)) == 5
    assert drained(fast) == []
    assert on_tier(fast) == []
    recorded(source, args=["again"])


# Two runs, one tier


def test_the_drain_of_a_second_run_waits_and_takes_over_when_the_first_ends(
    fast: Path, work: Path
) -> None:
    theirs = 0xBBBBBB << 8
    _made(fast, work / "b.pt", b"b", theirs)
    refused = f"{work / 'b.pt'}: another process drains {fast}, and has not brought it"
    with Burst(fast, AT_ONCE):
        with Burst(fast, AT_ONCE, owner="bbbbbb", is_patient=True) as second:
            assert second.watch(lambda: True, grace_s=0.0) == [refused]
        third = Burst(fast, AT_ONCE, owner="bbbbbb", is_patient=True)
        third.__enter__()
        assert (work / "b.pt").is_symlink()
    assert third.watch(lambda: True) == []
    third.__exit__()
    assert not (work / "b.pt").is_symlink()
    assert [path.name for path in (fast / ".penstock").glob("drained-*")] == []


def test_one_drain_brings_the_files_of_two_runs_and_ends_with_its_own(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "penstock.recording.recorder.note", lambda key, said: told.append(f"{key} {said}")
    )
    second = Burst(fast, AT_ONCE, owner="bbbbbb", is_patient=True)
    with Burst(fast, AT_ONCE, owner="aaaaaa", is_patient=True) as first:
        second.__enter__()
        _made(fast, work / "a.pt", b"a" * 10, 0xAAAAAA << 8)
        _made(fast, work / "b.pt", b"b" * 20, 0xBBBBBB << 8)
        assert first._round() == {}
        assert [one.split()[:2] for one in told] == [["drained", "10"]]
        assert second._awaited()  # until the first has told of it
        assert first._round() == {}
        assert second.watch(lambda: True) == []
        assert [one.split()[:2] for one in told] == [["drained", "10"], ["drained", "20"]]
        # What the second writes now is not waited for by the first one's run.
        late = _made(fast, work / "late.pt", b"late", 0xBBBBBB << 8)
        with late.open("ab"):
            assert first.watch(lambda: True) == []
        assert (work / "late.pt").is_symlink()
    second.__exit__()
    assert drained(fast) == []


def test_two_runs_at_once_on_one_tier_both_come_home_and_each_report_has_its_own(
    fast: Path, work: Path
) -> None:
    from penstock.explain.measures import measure
    from penstock.runs.run import open_run

    def started(name: str, source: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock", "run", "-q", "-o", name]
        command += ["--burst-buffer", str(fast), sys.executable, "-c", source]
        return subprocess.Popen(command, cwd=work, text=True, stderr=subprocess.PIPE)

    waits = """
import os, time
open("a.pt", "wb").write(b"a" * 1000)
while not os.path.exists("go"):
    time.sleep(0.02)
open("a2.pt", "wb").write(b"a" * 1000)
"""
    long = started("long", waits)
    while not (work / "a.pt").is_file() or (work / "a.pt").is_symlink():
        time.sleep(0.02)
        assert long.poll() is None
    short = started("short", 'for name in "bcd": open(name + ".pt", "wb").write(b"b" * 2000)')
    assert short.wait(60) == 0, short.communicate()
    assert long.poll() is None
    for name in "bcd":
        assert not (work / f"{name}.pt").is_symlink()
    (work / "go").touch()
    assert long.wait(60) == 0, long.communicate()
    assert not (work / "a2.pt").is_symlink()
    for name, counts in (("long", (2, 2000, 2, 2000, 0)), ("short", (3, 6000, 3, 6000, 0))):
        [row] = measure(open_run(work / name)).burst
        found = (row.files, row.written_bytes, row.drained, row.drained_bytes, row.left_files)
        assert found == counts, name
    for one in (long, short):
        one.communicate()


# Names


def test_names_as_long_as_the_file_system_takes_come_home(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    burst("""
        import os
        for n in (200, 201, 255):
            open("x" * (n - 3) + ".pt", "wb").write(b"new")
        open("short.pt", "wb").write(b"renamed")
        open("y" * 252 + ".pt", "wb").close()
        open("z.pt", "wb").write(b"renamed")
        os.rename("short.pt", "y" * 252 + ".pt")
        os.rename("z.pt", "z" * 220 + ".pt")
    """)
    # Longer ones go to their paths at once: the tier's name for them would be too long.
    assert [len(name) for name in on_tier(fast)] == [8, 200, 4]
    assert drained(fast) == []
    found = {path.name[0] + str(len(path.name)): path.read_bytes() for path in work.glob("*.pt")}
    assert found == {
        "x200": b"new", "x201": b"new", "x255": b"new", "y255": b"renamed", "z223": b"renamed"
    }  # fmt: skip
    assert not [path for path in work.iterdir() if path.is_symlink() or path.name[0] == "."]


def test_paths_as_long_as_the_file_system_takes_come_home(
    burst: Callable[..., Any], fast: Path, work: Path
) -> None:
    burst("""
        import os
        while len(os.getcwd()) < 4096 - 400:
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        for most in (4032, 4033, 4095):
            left = most - len(os.getcwd()) - 2
            folder = str(most).ljust(left // 2, "d")
            os.mkdir(folder)
            name = ".pt".rjust(left - len(folder), "x")
            open(os.path.join(folder, name), "wb").write(b"%d" % most)
    """)
    assert [(fast / "burst/data" / entry.name).read_bytes() for entry in entries(fast)] == [b"4032"]
    assert drained(fast) == []
    found = {path.read_bytes() for path in work.rglob("*.pt") if not path.is_symlink()}
    assert found == {b"4032", b"4033", b"4095"}
