"""Files and folders that Penstock makes: whole or not at all, private, and nothing is followed."""

import ast
import gc
import mmap
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.safe import drafts

SOURCE = Path(drafts.__file__).parents[1]
PENSTOCK = Path(sys.executable).with_name("penstock")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file that a link leads to."""
    path = tmp_path / "victim"
    path.write_text("important")
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_link_at_the_name_is_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "run.json").symlink_to(victim)
    drafts.write(tmp_path / "run.json", "ours")
    assert (tmp_path / "run.json").read_text() == "ours"
    assert not (tmp_path / "run.json").is_symlink()
    assert victim.read_text() == "important"


def test_a_new_file_is_not_made_through_a_link(tmp_path: Path, victim: Path) -> None:
    for target in (victim, tmp_path / "nothing yet"):
        (tmp_path / "control").unlink(missing_ok=True)
        (tmp_path / "control").symlink_to(target)
        with pytest.raises(FileExistsError):
            drafts.create(tmp_path / "control")
        with pytest.raises(FileExistsError):
            drafts.write(tmp_path / "control", "x", is_new=True)
    assert victim.read_text() == "important"
    assert not (tmp_path / "nothing yet").exists()


def test_an_error_leaves_what_was_there_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")

    def stopped_half_way() -> None:
        with drafts.draft(tmp_path / "a") as file:
            file.write(b"half")
            raise ZeroDivisionError

    def stopped_half_way_by_name() -> None:
        with drafts.by_name(tmp_path / "a") as name:
            Path(name).write_bytes(b"half")
            raise ZeroDivisionError

    for stopped in (stopped_half_way, stopped_half_way_by_name):
        with pytest.raises(ZeroDivisionError):
            stopped()
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert (tmp_path / "a").read_text() == "before"


def test_a_draft_is_private_until_it_is_whole(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with drafts.draft(tmp_path / "a") as file:
            (made,) = tmp_path.iterdir()
            assert mode(made) == 0o600
            assert made.name != "a"
            file.write(b"x")
        assert mode(tmp_path / "a") == 0o644
        with drafts.by_name(tmp_path / "b") as name:
            Path(name).write_bytes(b"y")
        assert mode(tmp_path / "b") == 0o644
    finally:
        os.umask(before)


def test_a_library_that_writes_by_name_is_led_nowhere_else(tmp_path: Path, victim: Path) -> None:
    """Somebody renames the folder of the draft, and puts a link to another one in its place."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").symlink_to(victim)
    with drafts.by_name(folder / "a") as name:
        (made,) = folder.iterdir()
        made.rename(folder / "moved")
        made.symlink_to(tmp_path / "elsewhere")
        Path(name).write_text("ours")
    assert (folder / "a").read_text() == "ours"
    assert victim.read_text() == "important"


@pytest.mark.parametrize(
    ("folder_mode", "expected"), [(0o700, 0o600), (0o750, 0o640), (0o2775, 0o644), (0o777, 0o644)]
)
def test_a_runs_file_is_read_by_those_who_read_the_folder_and_written_by_its_owner(
    folder_mode: int, expected: int, tmp_path: Path
) -> None:
    before = os.umask(0o002)
    try:
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(folder_mode)
        drafts.write_in_run(tmp_path / "run" / "run.json", "{}")
        drafts.create_in_run(tmp_path / "run" / "control").close()
        assert mode(tmp_path / "run" / "run.json") == expected
        assert mode(tmp_path / "run" / "control") == expected
    finally:
        os.umask(before)


@pytest.mark.parametrize("words", [[], ["--group"]])
def test_a_runs_folder_is_private_unless_the_group_may_read_it(
    words: list[str], tmp_path: Path
) -> None:
    subprocess.run(
        [PENSTOCK, "run", "-q", *words, "-o", "run", "sh", "-c", "cat /etc/hostname > out"],
        cwd=tmp_path,
        umask=0o002,
        check=True,
        capture_output=True,
    )
    folder, more = tmp_path / "run", 0o040 if words else 0
    assert mode(folder) == (0o750 if words else 0o700)
    names = {path.name.rpartition(".")[2] for path in folder.iterdir()}
    assert names >= {"json", "control", "system"}
    assert {mode(path) for path in folder.iterdir()} == {0o600 | more}
    assert any(path.stat().st_size > 4096 for path in folder.glob("*.events"))


def test_lines_are_added_to_a_file_of_our_own_only(tmp_path: Path, victim: Path) -> None:
    for text in (b"a", b"b"):
        with drafts.append(tmp_path / "drain.log") as file:
            file.write(text)
    assert (tmp_path / "drain.log").read_bytes() == b"ab"
    assert mode(tmp_path / "drain.log") == 0o600
    (tmp_path / "link").symlink_to(victim)
    os.link(victim, tmp_path / "name")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "name", "fifo"):
        with pytest.raises(OSError, match=r"symbolic links|our own|No such device"):
            drafts.append(tmp_path / name)
    assert victim.read_text() == "important"


def test_what_an_upload_writes_goes_to_the_draft_that_it_opened(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts a link in the place of a draft as soon as it is there."""
    from penstock.places.stores import LocalStore

    opened, links = os.open, []

    def swapped(path: Any, flags: int, *more: Any, **words: Any) -> int:
        descriptor = opened(path, flags, *more, **words)
        if flags & os.O_CREAT and "model.pt" in os.fspath(path):
            Path(path).rename(tmp_path / "moved")
            Path(path).symlink_to(victim)
            links.append(path)
        return descriptor

    store = LocalStore(tmp_path / "store")
    monkeypatch.setattr(os, "open", swapped)
    upload = store.upload("model.pt", 256 << 20)
    upload.write(0, memoryview(mmap.mmap(-1, 1 << 20)))
    upload.close()
    assert links
    assert victim.read_text() == "important"
    assert (tmp_path / "moved").stat().st_size >= 1 << 20


def test_a_private_folder_that_is_anothers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    drafts.own_folder(tmp_path / "real")
    with pytest.raises(NotADirectoryError):
        drafts.own_folder(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", 65534, 65534)
        with pytest.raises(PermissionError):
            drafts.own_folder(tmp_path / "real")


# --- root ----------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@needs_root
def test_root_that_acts_as_a_user_has_no_right_of_roots_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir(mode=0o755)
    (ours / "file").write_text("root's")
    gc.collect()  # what other tests have left is root's, and is removed as root
    with drafts.acting_user(65534, 65534):
        assert drafts.acting_uid() == 65534
        drafts.run_folder(theirs)
        drafts.write(theirs / "a", "x")
        for attempt in (
            lambda: drafts.write(ours / "new", "x"),
            lambda: (ours / "file").write_text("x"),
            lambda: os.chown(ours / "file", 65534, 65534),
            lambda: (ours / "file").chmod(0o666),
        ):
            with pytest.raises(PermissionError):
                attempt()
    assert theirs.stat().st_uid == (theirs / "a").stat().st_uid == 65534
    assert drafts.acting_uid() == 0
    drafts.write(ours / "new", "root again")


@needs_root
def test_root_keeps_no_tables_in_another_users_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [PENSTOCK, "run", "-q", "-o", "run", "cat", "/etc/hostname"], cwd=tmp_path, check=True
    )
    assert done.returncode == 0
    for path in [tmp_path / "run", *(tmp_path / "run").iterdir()]:
        os.chown(path, 65534, 65534)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    subprocess.run([PENSTOCK, "report", "run"], cwd=tmp_path, check=True, capture_output=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


@needs_root
def test_root_asks_a_users_run_through_no_link(tmp_path: Path, victim: Path) -> None:
    from penstock.errors import RunError
    from penstock.recording import control

    victim.write_bytes(bytes(8192))
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, 65534, 65534)
    (run / "control").symlink_to(victim)
    with pytest.raises(RunError):
        control.ask(run, control.PAUSE)
    (run / "control").unlink()
    os.link(victim, run / "control")  # what a user can do where links are not protected
    with pytest.raises(RunError):
        control.ask(run, control.PAUSE)
    assert victim.read_bytes() == bytes(8192)


# Runs as another user: does I/O, and plants links in the run's folder as soon as it is there.
PLANTS = r"""
use POSIX;
my ($folder, $victim) = @ARGV;
$| = 1; print "$$\n";
while (-e "$folder.go on") {
    open(my $file, "<", "/etc/hostname"); close($file);
    for my $name ("zz", "run.json.new", ".run.json.new", "ceilings.json") {
        symlink($victim, "$folder/$name");
    }
    select(undef, undef, undef, 0.001);
}
"""


@needs_root
@pytest.mark.skipif(not Path("/usr/bin/perl").exists(), reason="needs perl in a public place")
def test_root_that_joins_a_users_process_touches_no_file_of_roots(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # other users can come here, not to tmp_path
        place, secret = Path(name), tmp_path / "victim"
        place.chmod(0o777)
        secret.write_text("ROOT ONLY")
        secret.chmod(0o600)
        (place / "run.go on").touch()
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/perl"]
        with subprocess.Popen(
            [*words, "-e", PLANTS, place / "run", secret], stdout=subprocess.PIPE, text=True
        ) as theirs:
            assert theirs.stdout
            pid = int(theirs.stdout.readline())
            joined = subprocess.run(
                [PENSTOCK, "attach", str(pid), "--for", "1s", "-o", place / "run"],
                capture_output=True,
                text=True,
            )
            (place / "run.go on").unlink()
        assert joined.returncode == 0, joined.stderr
        assert f"process {pid} is recorded into" in joined.stderr
        assert any(path.stat().st_size > 4096 for path in (place / "run").glob("*.events"))
        assert (place / "run" / "zz").is_symlink()
        assert {path.lstat().st_uid for path in (place / "run").iterdir()} == {65534}
        status = secret.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)
        assert secret.read_text() == "ROOT ONLY"


# --- nobody else writes by itself ----------------------------------------------------------------

# What writes a file by a name of its own, and why nobody else can be there.
OTHERS = {
    "save": "a checkpoint's folder is its training's, commit.py has its own protocol",
    "places/stores": "a checkpoint's or a copy's draft, in a store of the user's own",
    "stage/part": "parts of copies, in a tier's own folder (drafts.own_folder)",
    "stage/manifest": "locks and the manifest, in a tier's own folder (drafts.own_folder)",
    "places/registry": "the user's own configuration; what is measured lies in a temporary folder",
    "feed/share": "nameless shared memory",
    "stage/ranks": "an empty file of a random name in a tier's own folder",
    "explain/reduce": "links in a temporary folder",
    "explain/fleet": "one file in a temporary folder",
    "trial": "a picture that was asked for, and data in a folder made for it",
    "safe/drafts": "it is the place",
}
WRITERS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "link", "savefig"}
BY_NAME = "draft"  # the name that drafts.by_name gave

TEMPORARY = {"mktemp"}


def _writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        words = [*node.args, *(keyword.value for keyword in node.keywords)]
        text = [word.value for word in words if isinstance(word, ast.Constant)]
        if ast.unparse(node).startswith(("open(os.devnull", "gzip.open(stream")):
            continue  # the latter: into what drafts.draft gave
        if any(keyword.arg == "fileobj" for keyword in node.keywords):
            continue
        if name == "savefig" and ast.unparse(node.args[0]) == BY_NAME:
            continue
        if name in WRITERS | TEMPORARY and isinstance(function, ast.Attribute):
            yield node.lineno, name
        elif name in ("open", "fdopen", "GzipFile") and any(
            isinstance(word, str) and set(word) <= set("rwxabt+") and set(word) & set("wxa")
            for word in text
        ):
            yield node.lineno, f"{name} to write"
        elif "O_CREAT" in ast.unparse(node) and name == "open":
            yield node.lineno, "O_CREAT"


def test_no_other_place_opens_a_file_to_write_by_a_name_that_others_can_guess() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        if any(name == other or name.startswith(f"{other}/") for other in OTHERS):
            continue
        found += [f"{name}:{line}: {how}" for line, how in _writes(ast.parse(path.read_text()))]
    assert "\n".join(found) == ""


def test_a_link_in_the_place_of_a_tiers_notes_is_not_followed(tmp_path: Path) -> None:
    elsewhere, fast = tmp_path / "elsewhere", tmp_path / "fast"
    elsewhere.mkdir()
    (fast / "step_1").mkdir(parents=True)
    (fast / "step_1" / "model.bin").write_bytes(b"x" * 100)
    (fast / ".penstock").symlink_to(elsewhere)
    for words in (["drain", fast, tmp_path / "slow"], ["recover", fast, tmp_path / "slow"]):
        done = subprocess.run(
            [PENSTOCK, "save", *words], capture_output=True, text=True, timeout=120
        )
        assert done.returncode, done.stdout
        assert ".penstock: a link" in done.stderr
        assert list(elsewhere.iterdir()) == []


def test_a_lock_that_is_another_file_is_not_written(tmp_path: Path) -> None:
    from penstock.errors import TierError
    from penstock.save.commit import claim

    (tmp_path / "tier" / ".penstock").mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", tmp_path / "tier" / ".penstock" / "drain.lock")
    with pytest.raises(TierError, match=r"no file of Penstock's own"):
        claim(tmp_path / "tier", "drain")
    assert (tmp_path / "mine").read_text() == "mine"
