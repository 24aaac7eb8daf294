"""A program in a container is recorded as one outside, by the same paths; what cannot be recorded
there runs as if nobody had asked.

The containers are bubblewrap's and runc's: the kernel's name spaces and mounts, as Apptainer,
Docker and Podman make them.  Their own command lines are compared with what is documented.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import PENSTOCK
from penstock.errors import RunError
from penstock.recording import container
from penstock.recording.container import Container, Inside, host_mounts, host_path
from penstock.runs.run import open_run

PACKAGE = Path(penstock.__file__).parent
LIBRARY = PACKAGE / "librec.so"
READS = 10
# Ten reads of 4096 bytes of the file that is named, and what came of them.
PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[4096];
    long sum = 0;
    int fd = open(argv[1], O_RDONLY), n;

    for (n = 0; n < 10; n++)
        sum += read(fd, block, sizeof block);
    close(fd);
    printf("%ld bytes, %s\n", sum, getenv("LD_PRELOAD") ? "preloaded" : "plain");
    return argc > 2 ? atoi(argv[2]) : 0;
}
"""


def _why_no_containers() -> str:
    if not shutil.which("bwrap"):
        return "no bwrap: make setup-system"
    tried = subprocess.run(
        ["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "true"], capture_output=True, text=True
    )
    return f"no containers here: {tried.stderr.strip()}" if tried.returncode else ""


WHY_NO_CONTAINERS = _why_no_containers()
needs_bwrap = pytest.mark.skipif(bool(WHY_NO_CONTAINERS), reason=WHY_NO_CONTAINERS)
Boxed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of the host with one file of 40 KiB; it is /data inside."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(READS * 4096))
    return folder


@pytest.fixture
def boxed(tmp_path: Path) -> Boxed:
    """`penstock run --container` into tmp_path/run."""

    def run(
        box: str, *command: str | Path, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PENSTOCK, "run", "-q", "-o", tmp_path / "run", "--container", box, *command],
            capture_output=True,
            text=True,
            timeout=240,
            env=os.environ | (environment or {}),
        )

    return run


def compiled(path: Path, *flags: str, compiler: str = "cc") -> Path:
    """PROGRAM as an executable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [compiler, "-O1", "-x", "c", "-", "-o", path, *flags], input=PROGRAM, text=True, check=True
    )
    return path


def minimal_root(folder: Path, *programs: Path) -> Path:
    """A root with these programs, the libraries that they want and nothing else."""
    for name in ("data", "proc", "tmp", "bin"):
        (folder / name).mkdir(parents=True)
    for program in programs:
        needed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for word in needed.split():
            if word.startswith("/"):
                target = folder / word[1:]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
        shutil.copy(program, folder / "bin")
    return folder


def box_of(root: Path | str, data: Path, *options: str) -> str:
    places = f"--ro-bind {root} / --proc /proc --bind {data} /data"
    return f"bwrap {places} {' '.join(options)} --"


def reads_of(folder: Path) -> list[tuple[Any, ...]]:
    """(path, class, reads, bytes) of what was read of files called file."""
    with open_run(folder) as run:
        return run.sql(
            "SELECT path, path_class, count(*), sum(moved_bytes) FROM events"
            " WHERE op = 'read' AND path LIKE '%/file' GROUP BY ALL"
        ).fetchall()


# --- what is recorded inside ---------------------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize("options", ["", "--unshare-pid", "--unshare-all --hostname box"])
def test_reads_inside_are_counted_by_the_hosts_path(
    tmp_path: Path, data: Path, boxed: Boxed, options: str
) -> None:
    program = compiled(tmp_path / "program")
    # /data has to be there to be mounted on: as in every image that is made for it.
    root = minimal_root(tmp_path / "root", program)
    for path in (PACKAGE, tmp_path / "run"):
        (root / str(path)[1:]).mkdir(parents=True)
    finished = boxed(box_of(root, data, options), "/bin/program", "/data/file", "3")
    assert (finished.returncode, finished.stdout) == (3, "40960 bytes, preloaded\n")
    assert finished.stderr == ""
    rows = reads_of(tmp_path / "run")
    assert rows == [(f"{data}/file", "data", READS, READS * 4096)]
    with open_run(tmp_path / "run") as run:
        assert run.sql("SELECT state FROM processes").fetchall() == [("exited",)]
        # The image is a folder of the host here, so that its files have paths outside too.
        libc = run.sql("SELECT path FROM files WHERE path LIKE '%/libc.so.6'").fetchall()
    assert all(path.startswith(str(root)) for (path,) in libc)


@needs_bwrap
def test_a_killed_process_of_other_numbers_is_over(
    tmp_path: Path, data: Path, boxed: Boxed
) -> None:
    """Its number inside is that of a living process outside."""
    finished = boxed(
        f"bwrap --ro-bind / / --dev /dev --proc /proc --bind {tmp_path} {tmp_path} --unshare-pid",
        *("sh", "-c", f"sh -c 'cat {data}/file >/dev/null; kill -9 $$'; true"),
    )
    assert finished.returncode == 0
    with open_run(tmp_path / "run") as run:
        states = {state for (state,) in run.sql("SELECT state FROM processes").fetchall()}
        assert states == {"exited", "killed"}
        assert not run.is_running


@needs_bwrap
@pytest.mark.parametrize(
    ("options", "said"),
    [("--unshare-pid", "the container has process numbers of its own"), ("", None)],
)
def test_page_faults_count_where_process_numbers_are_the_hosts(
    tmp_path: Path, data: Path, boxed: Boxed, options: str, said: str | None
) -> None:
    box = f"bwrap --ro-bind / / --dev /dev --proc /proc --bind {tmp_path} {tmp_path} {options}"
    assert boxed(box, "cat", data / "file").returncode == 0
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    if said is not None:
        assert facts["page_faults"] == said
        assert not list((tmp_path / "run").glob("*.faults"))
    else:
        assert facts.get("page_faults") != "the container has process numbers of its own"


@needs_bwrap
def test_python_inside_has_its_steps_marked(tmp_path: Path, boxed: Boxed) -> None:
    """The package lies inside at its path, whether or not the image has one."""
    box = f"bwrap --ro-bind / / --dev /dev --proc /proc --bind {tmp_path} {tmp_path} --unshare-pid"
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import penstock\n"
        "for n in range(3):\n    with penstock.step(n): pass"
    )
    finished = boxed(box, shutil.which("python3") or "python3", "-c", program)
    assert (finished.returncode, finished.stderr) == (0, "")
    with open_run(tmp_path / "run") as run:
        assert run.sql("SELECT count(*) FROM spans WHERE kind = 'step'").fetchall() == [(3,)]


# --- the programs that people use, where they are ------------------------------------------------


@contextmanager
def image_of(engine: str, root: Path, place: Path, data: Path) -> Iterator[str]:
    """What stands behind --container to run in this root, with the data at /data."""
    if not shutil.which(engine):
        pytest.skip(f"no {engine} here")
    if engine in ("apptainer", "singularity"):
        words = [engine, "exec", "--bind", f"{data}:/data", str(root)]
        tried = subprocess.run([*words, "/bin/program", "/data/file"], capture_output=True)
        if tried.returncode:
            pytest.skip(f"{engine} starts nothing here: {tried.stderr[-300:].decode()}")
        yield " ".join(words)
        return
    state = tempfile.mkdtemp(prefix="pstk")  # of 50 characters at most
    own = ["--root", f"{place}/store", "--runroot", state, "--storage-driver", "vfs"]
    base, name = [engine, *(own if engine == "podman" else [])], f"penstock-test:{os.getpid()}"
    # Else podman asks for more than a root without all capabilities may have.
    limits = ("nofile=1024:1024", "nproc=1024:1024") if engine == "podman" else ()
    ours = [word for limit in limits for word in ("--ulimit", limit)]
    options = ["run", "--rm", "--network", "none", *ours, "-v", f"{data}:/data", name]
    tar = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    loaded = subprocess.run([*base, "import", "-", name], input=tar, capture_output=True)
    try:
        tried = subprocess.run([*base, *options, "/bin/program", "/data/file"], capture_output=True)
        if loaded.returncode or tried.returncode:
            said = (loaded.stderr if loaded.returncode else tried.stderr)[-300:].decode()
            pytest.skip(f"{engine} starts nothing here: {said}")
        yield " ".join([*base, *options])
    finally:
        if not loaded.returncode:
            subprocess.run([*base, "rmi", name], capture_output=True)
        shutil.rmtree(state, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["apptainer", "singularity", "docker", "podman"])
def test_what_a_container_of_each_engine_reads_has_the_hosts_path(
    engine: str, tmp_path: Path, data: Path, boxed: Boxed
) -> None:
    root = minimal_root(tmp_path / "root", compiled(tmp_path / "program"))
    with image_of(engine, root, tmp_path, data) as box:
        finished = boxed(box, "/bin/program", "/data/file", "3")
    assert (finished.returncode, finished.stdout) == (3, "40960 bytes, preloaded\n")
    assert finished.stderr == ""
    assert reads_of(tmp_path / "run") == [(f"{data}/file", "data", READS, READS * 4096)]
    with open_run(tmp_path / "run") as run:
        assert run.sql("SELECT state FROM processes").fetchall() == [("exited",)]


# --- where nothing can be recorded ---------------------------------------------------------------


def _unrecorded(
    boxed: Boxed, tmp_path: Path, data: Path, root: Path, **options: Any
) -> subprocess.CompletedProcess[str]:
    for path in (PACKAGE, tmp_path / "run", tmp_path / "library"):
        (root / str(path)[1:]).mkdir(parents=True, exist_ok=True)
    (root / str(tmp_path / "library" / "librec.so")[1:]).touch()
    finished = boxed(box_of(root, data), "/bin/program", "/data/file", "3", **options)
    assert finished.returncode == 3, finished.stderr
    assert finished.stdout == "40960 bytes, plain\n"
    assert not list((tmp_path / "run").glob("*.events"))
    return finished


@needs_bwrap
def test_a_static_program_without_any_libc_beside_it_runs_and_it_is_said(
    tmp_path: Path, data: Path, boxed: Boxed
) -> None:
    root = minimal_root(tmp_path / "root", compiled(tmp_path / "program", "-static"))
    finished = _unrecorded(boxed, tmp_path, data, root)
    assert "nothing is recorded in this container: there is no glibc" in finished.stderr


@needs_bwrap
@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc: make setup-system")
def test_a_program_of_musl_runs_and_it_is_said(tmp_path: Path, data: Path, boxed: Boxed) -> None:
    root = tmp_path / "root"
    program = compiled(tmp_path / "program", compiler="musl-gcc")
    minimal_root(root)
    shutil.copy(program, root / "bin")
    loader = next(Path("/lib").glob("ld-musl-*.so.1"))
    (root / "lib").mkdir()
    shutil.copy(loader, root / "lib")
    finished = _unrecorded(boxed, tmp_path, data, root)
    assert "nothing is recorded in this container: there is no glibc" in finished.stderr


@needs_bwrap
def test_an_older_glibc_runs_the_program_and_it_is_said(
    tmp_path: Path, data: Path, boxed: Boxed
) -> None:
    """The recorder of a newer one is stood in for by a library that wants GLIBC_9.9."""
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "map").write_text("GLIBC_9.9 { global: of_tomorrow; };")
    for source, output, flags in (
        ("int of_tomorrow(void) { return 0; }", newer / "libc.so.6",
         ["-nostdlib", "-Wl,-soname,libc.so.6", f"-Wl,--version-script={newer / 'map'}"]),
        ("int of_tomorrow(void); int penstock_state(void) { return of_tomorrow(); }",
         tmp_path / "library" / "librec.so", [str(newer / "libc.so.6"), "-nostdlib"]),
    ):  # fmt: skip
        output.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", output, *flags],
            input=source, text=True, check=True,
        )  # fmt: skip
    root = minimal_root(tmp_path / "root", compiled(tmp_path / "program"))
    library = str(tmp_path / "library" / "librec.so")
    finished = _unrecorded(boxed, tmp_path, data, root, environment={"PENSTOCK_LIBRARY": library})
    assert "its glibc is older than the one that the recorder was built with" in finished.stderr


def test_a_folder_that_is_not_there_inside_is_said_and_the_program_runs(tmp_path: Path) -> None:
    finished = subprocess.run(
        [PACKAGE / "enter", tmp_path / "none", LIBRARY, "PENSTOCK_RUN=x", "--", "sh", "-c",
         "echo ${PENSTOCK_RUN-unset}; exit 5"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (finished.returncode, finished.stdout) == (5, "unset\n")
    assert "the run's folder is not there" in finished.stderr


def test_a_program_that_is_not_there_ends_as_in_a_shell(tmp_path: Path) -> None:
    enter = [PACKAGE / "enter", tmp_path, LIBRARY, "--"]
    absent = subprocess.run([*enter, "no-such-program"], capture_output=True, text=True)
    assert absent.returncode == 127
    assert absent.stderr == "penstock: no-such-program: not found in the container\n"
    (tmp_path / "file").write_text("echo by the shell $1")
    assert subprocess.run([*enter, tmp_path / "file"], capture_output=True).returncode == 126
    (tmp_path / "file").chmod(0o755)
    script = subprocess.run([*enter, tmp_path / "file", "x"], capture_output=True, text=True)
    assert (script.returncode, script.stdout) == (0, "by the shell x\n")


# --- a run folder bound from outside -------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("runc"), reason="no runc: make setup-system")
def test_penstock_inside_writes_to_a_bound_folder_and_the_host_reads_it(
    tmp_path: Path, data: Path
) -> None:
    """As in Docker, Podman and Kubernetes: an image with Penstock in it, started by runc."""
    bundle, runs = tmp_path / "bundle", tmp_path / "runs"
    runs.mkdir()
    (bundle / "root").mkdir(parents=True)
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    command = "cat /data/file >/dev/null; echo done >/runs/out"
    spec["process"] |= {
        "terminal": False,
        "args": [str(PENSTOCK), "run", "-q", "-o", "/runs/run", "sh", "-c", command],
        "env": [f"PATH={os.environ['PATH']}", f"PYTHONPATH={PACKAGE.parent}",
                "KUBERNETES_SERVICE_HOST=10.0.0.1"],
    }  # fmt: skip
    spec["root"] = {"path": "root", "readonly": False}
    image = [p for p in Path("/").iterdir() if p.is_dir() and p.name not in ("proc", "sys", "dev")]
    spec["mounts"] += [
        {"destination": str(there), "source": str(here), "options": ["rbind", mode]}
        for there, here, mode in [
            *[(path, path, "ro") for path in image],
            ("/data", data, "ro"),
            ("/runs", runs, "rw"),
        ]
    ]
    (bundle / "config.json").write_text(json.dumps(spec))
    started = subprocess.run(
        ["runc", "run", f"penstock-{os.getpid()}"],
        cwd=bundle, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if started.returncode and "cgroup" in started.stderr:
        pytest.skip(f"runc starts nothing here: {started.stderr.strip()[-200:]}")
    assert started.returncode == 0, started.stderr
    with open_run(runs / "run") as run:
        paths = {path for (path,) in run.sql("SELECT path FROM files").fetchall()}
        assert not run.is_running
    assert f"{data}/file" in paths
    assert f"{runs}/out" in paths
    assert not any(path.startswith(("/data", "/runs")) for path in paths)


# --- paths ---------------------------------------------------------------------------------------

OUTSIDE = r"""
27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 0:50 / /mnt/nfs\040one rw - nfs server:/export rw
41 27 0:50 /deep /mnt/deep rw - nfs server:/export rw
"""
INSIDE = r"""
90 1 0:99 / / rw - overlay overlay rw
91 90 254:0 /home/me/data /data rw - ext4 /dev/vda rw
92 91 0:98 / /data/scratch rw - tmpfs tmpfs rw
93 90 0:50 /deep/er /far rw - nfs server:/export rw
94 90 254:0 /etc/hosts /etc/hosts rw - ext4 /dev/vda rw
95 90 0:50 /other /near rw - nfs server:/export rw
"""


def _mounts() -> dict[str, str | None]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return host_mounts(Inside(boot_id, "", "mnt:[1]", "", INSIDE), OUTSIDE)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("/data", "/home/me/data"),
        ("/data/a/b", "/home/me/data/a/b"),
        ("/data/scratch/x", "/data/scratch/x"),  # a tmpfs of its own
        ("/database", "/database"),  # of the image
        ("/far/x", "/mnt/deep/er/x"),  # of two mounts that show it, the closer
        ("/near/x", "/mnt/nfs one/other/x"),
        ("/etc/hosts", "/etc/hosts"),
        ("pipe:", "pipe:"),
        ("", ""),
        ("relative", "relative"),
    ],
)
def test_a_path_inside_is_that_of_its_mount_outside(inside: str, outside: str) -> None:
    assert host_path(_mounts(), inside) == outside


def test_the_table_of_another_boot_or_of_ourselves_says_nothing() -> None:
    assert host_mounts(Inside("another", "", "mnt:[1]", "", INSIDE), OUTSIDE) == {}
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own = str(Path("/proc/self/ns/mnt").readlink())
    assert host_mounts(Inside(boot_id, "", own, "", INSIDE), OUTSIDE) == {}


@pytest.mark.parametrize(
    "text", ["", "nonsense", "penstock container 2\n\n", "penstock container 1", "\udcff\x00\n\n"]
)
def test_a_damaged_description_is_none_or_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "container").write_text(text, errors="surrogateescape")
    seen = container.read_inside(tmp_path)
    assert seen is None or host_mounts(seen, OUTSIDE) == {}


# --- command lines -------------------------------------------------------------------------------

BOUND = f"{PACKAGE}:{PACKAGE}:ro"
STARTED = f"{PACKAGE}/enter /runs/a {LIBRARY} PENSTOCK_RUN=/runs/a -- python train.py"


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ("apptainer exec --nv img.sif",
         f"apptainer exec --bind {BOUND} --bind /runs/a:/runs/a --nv img.sif {STARTED}"),
        ("srun -n 2 singularity -d exec img.sif",
         f"srun -n 2 singularity -d exec --bind {BOUND} --bind /runs/a:/runs/a img.sif {STARTED}"),
        ("docker --context run2 run --rm -e A=run img",
         f"docker --context run2 run --volume {BOUND} --volume /runs/a:/runs/a --rm -e A=run img"
         f" {STARTED}"),
        ("/usr/bin/podman run img",
         f"/usr/bin/podman run --volume {BOUND} --volume /runs/a:/runs/a img {STARTED}"),
        ("bwrap --ro-bind / / --",
         f"bwrap --ro-bind / / --ro-bind {PACKAGE} {PACKAGE} --bind /runs/a /runs/a -- {STARTED}"),
    ],
)  # fmt: skip
def test_options_stand_where_each_program_reads_them(words: str, whole: str) -> None:
    box = Container.parse(words)
    settings = {"PENSTOCK_RUN": "/runs/a"}
    made = box.command(["python", "train.py"], Path("/runs/a"), LIBRARY, settings)
    assert " ".join(made) == whole


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chroot /image", "names none of apptainer"),
        ("docker exec name", "a container is started with the recorder in it"),
        ("apptainer exec", "a container is started with the recorder in it"),
        ("apptainer exec 'img", "No closing quotation"),
    ],
)
def test_words_that_start_no_container_are_refused(words: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        Container.parse(words)


def test_a_folder_that_cannot_be_named_lets_the_program_run_unrecorded(tmp_path: Path) -> None:
    stand_in = tmp_path / "docker"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    finished = subprocess.run(
        [PENSTOCK, "run", "-o", tmp_path / "a:b", "--container", f"{stand_in} run img", "true"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (finished.returncode, finished.stdout) == (0, "run img true\n")
    assert "takes no path with a colon, comma or space" in finished.stderr
    assert "the program runs unrecorded" in finished.stderr
    assert not (tmp_path / "a:b").exists()


def test_tiers_and_containers_are_not_mixed() -> None:
    finished = subprocess.run(
        [PENSTOCK, "run", "--container", "docker run img", "--staged", "fast", "true"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 2
    assert "--container goes without tiers" in finished.stderr
