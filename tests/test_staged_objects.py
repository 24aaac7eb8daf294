"""Objects copied to a tier and served from there: against the log of the server that has them."""

import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures import PENSTOCK, kinds
from penstock_lab.objects import ObjectServer
from remote import s3_server

__all__ = ["s3_server"]

NUMBER = 6
BOTO3 = """
import boto3, sys
from botocore.config import Config
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
    aws_access_key_id="a", aws_secret_access_key="b",
    config=Config(s3={"addressing_style": "path"}))
def get(key):
    return s3.get_object(Bucket="data", Key=key)["Body"].read()
def part(key, first, last):
    return s3.get_object(Bucket="data", Key=key, Range=f"bytes={first}-{last}")["Body"].read()
"""
S3FS = """
import s3fs, sys
fs = s3fs.S3FileSystem(key="a", secret="b", endpoint_url=sys.argv[1],
    client_kwargs={"region_name": "us-east-1"})
def get(key):
    return fs.cat_file(f"data/{key}")
def part(key, first, last):
    return fs.cat_file(f"data/{key}", start=first, end=last + 1)
"""
REQUESTS = """
import requests, sys
session = requests.Session()
def get(key):
    return session.get(f"{sys.argv[1]}/data/{key}").content
def part(key, first, last):
    range = {"Range": f"bytes={first}-{last}"}
    return session.get(f"{sys.argv[1]}/data/{key}", headers=range, stream=True).raw.read()
"""
URLLIB3 = """
import sys, urllib3
pool = urllib3.PoolManager()
def get(key):
    return pool.request("GET", f"{sys.argv[1]}/data/{key}").data
def part(key, first, last):
    range = {"Range": f"bytes={first}-{last}"}
    return pool.request("GET", f"{sys.argv[1]}/data/{key}", headers=range).data
"""
FSSPEC = """
import fsspec, sys
fs = fsspec.filesystem("http")
def get(key):
    return fs.cat_file(f"{sys.argv[1]}/data/{key}")
def part(key, first, last):
    return fs.cat_file(f"{sys.argv[1]}/data/{key}", start=first, end=last + 1)
"""
CLIENTS = {
    "boto3": BOTO3, "s3fs": S3FS, "requests": REQUESTS, "urllib3": URLLIB3, "fsspec": FSSPEC
}  # fmt: skip
READING = """
import zlib
for key in range(6):
    print(key, zlib.crc32(get(f"{key}.bin")), flush=True)
for key in range(6):
    print(key, zlib.crc32(part(f"{key}.bin", 1000, 4999)), flush=True)
"""
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path, work: Path) -> Command:
    """Run penstock in the working folder, with tiers of its own."""
    ours = {"PENSTOCK_TIERS": str(tmp_path / "tiers.json")}
    ours |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}

    def run(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PENSTOCK, *words],
            cwd=work, env=os.environ | ours, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "served" / "data"
    folder.mkdir(parents=True)
    for number in range(NUMBER):
        content(folder / f"{number}.bin", number)
    return folder


def content(path: Path, number: int) -> None:
    path.write_bytes(bytes((number * 7 + at * at) % 251 for at in range(10_000)) * (1 + number))


@pytest.fixture
def server(bucket: Path) -> Iterator[ObjectServer]:
    with ObjectServer(bucket.parent, keep=True) as running:
        yield running


def fetched(server: ObjectServer) -> tuple[Counter[str], int]:
    """The statuses of the answers since the last look, and the bytes of their bodies."""
    found = Counter(server.counts.statuses), server.counts.bytes
    server.counts.statuses.clear()
    server.counts.bytes = 0
    return found


def stage(
    command: Command, tmp_path: Path, program: Path, *words: str, how: tuple[str, ...] = ()
) -> tuple[str, Path]:
    """Record a run and copy the fetched objects; return the program's output and the tier."""
    tier = tmp_path / "fast"
    tier.mkdir()
    command("tiers", "add", "fast", tier, "--no-measure")
    before = tmp_path / "run-before"
    said = command("run", "-q", "-o", before, sys.executable, program, *words).stdout
    command("stage", "objects", before, "--to", "fast", "-o", tmp_path / "objects.jsonl")
    done = command("stage", "copy", tmp_path / "objects.jsonl", "--to", "fast", *how)
    assert done.stdout.startswith(f"{NUMBER} files copied"), done.stdout + done.stderr
    return said, tier


def staged(command: Command, tmp_path: Path, program: Path, *words: str) -> tuple[str, str]:
    """Run a program with the tier; return its output and what Penstock said."""
    folder = tmp_path / f"run-after-{len(list(tmp_path.glob('run-*')))}"
    run = command("run", "-o", folder, "--staged", "fast", sys.executable, program, *words)
    return run.stdout, run.stderr


@pytest.mark.parametrize("client", kinds(CLIENTS, {"urllib3": "requests", "fsspec": "s3fs"}))
def test_a_staged_run_gets_no_object_again(
    client: str, command: Command, server: ObjectServer, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(CLIENTS[client] + READING)
    before, _ = stage(command, tmp_path, program, server.url)
    fetched(server)
    after, said = staged(command, tmp_path, program, server.url)
    assert after == before
    statuses, sent_bytes = fetched(server)
    assert sent_bytes == 0
    assert sum(statuses.values()) - statuses["304"] <= NUMBER  # HEADs of fsspec
    assert statuses["304"] <= NUMBER
    assert f"{2 * NUMBER} requests for objects answered from copies" in said


@pytest.mark.parametrize("how", [(), ("--frozen",)])
def test_a_changed_object_is_read_from_its_server_and_named(
    how: tuple[str, ...], command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(REQUESTS + READING)
    before, _ = stage(command, tmp_path, program, server.url, how=how)
    content(bucket / "3.bin", 33)
    fetched(server)
    after, said = staged(command, tmp_path, program, server.url)
    lines = set(before.splitlines()) ^ set(after.splitlines())
    assert {line.split()[0] for line in lines} == {"3"}
    statuses, sent_bytes = fetched(server)
    assert sent_bytes == (bucket / "3.bin").stat().st_size + 4000
    if how:  # asked before the program starts
        assert statuses == {"200": NUMBER + 1, "206": 1}
    else:
        assert statuses == {"200": 1, "206": 1, "304": NUMBER - 1}
    assert f"{server.url}/data/3.bin: changed" in said
    assert said.count(": changed or written") == 1
    assert f"{2 * NUMBER - 2} requests for objects answered from copies" in said


UNSURE = """
import requests, sys, zlib
url = f"{sys.argv[1]}/data/1.bin"
for query, headers in (
    ("?versionId=1", {}),
    ("", {"X-Other": "1"}),
    ("", {"Authorization": "Bearer a"}),
    ("", {"Cookie": "a=b"}),
    ("", {"If-None-Match": '"other"'}),
    ("", {"Cache-Control": "no-cache"}),
    ("", {"Range": "bytes=1000000-"}),
    ("", {"Range": "bytes=0-1,5-6"}),
    ("", {"Range": "lines=1-2"}),
):
    try:
        answer = requests.get(url + query, headers=headers)
    except requests.ConnectionError:  # this server knows no such range
        print(query, headers, "no answer")
        continue
    print(query, headers, answer.status_code, zlib.crc32(answer.content))
requests.get(url)
print(sorted(requests.head(url).headers))
"""


def test_a_request_that_may_get_another_answer_goes_to_the_network(
    command: Command, server: ObjectServer, tmp_path: Path
) -> None:
    program, unsure = tmp_path / "job.py", tmp_path / "unsure.py"
    program.write_text(REQUESTS + READING)
    unsure.write_text(UNSURE)
    stage(command, tmp_path, program, server.url)
    fetched(server)
    here = subprocess.run(
        [sys.executable, unsure, server.url], capture_output=True, text=True, check=True
    )
    without = fetched(server)[0]
    after, said = staged(command, tmp_path, unsure, server.url)
    assert after == here.stdout
    with_tier = fetched(server)[0]
    assert with_tier["304"] == 1  # the last GET
    assert with_tier.total() == without.total()
    assert "1 request for objects answered from copies" in said


FORKS = """
import os
def epoch():
    for key in range(6):
        get(f"{key}.bin")
for _ in range(3):
    child = os.fork()
    if not child:
        epoch()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
epoch()
"""


def test_processes_of_a_run_ask_once_and_a_damaged_copy_serves_nobody(
    command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    program, forking = tmp_path / "job.py", tmp_path / "forking.py"
    program.write_text(URLLIB3 + READING)
    forking.write_text(URLLIB3 + FORKS)
    before, tier = stage(command, tmp_path, program, server.url)
    fetched(server)
    _, said = staged(command, tmp_path, forking, server.url)
    assert fetched(server) == (Counter({"304": NUMBER}), 0)
    assert f"{4 * NUMBER} requests for objects answered from copies" in said
    [copy] = tier.glob("staged/url/http/*/data/2.bin")
    copy.chmod(0o600)
    copy.write_bytes(bytes(copy.stat().st_size))
    after, said = staged(command, tmp_path, program, server.url)
    assert after == before
    assert fetched(server)[1] == (bucket / "2.bin").stat().st_size + 4000
    tier.rename(tmp_path / "away")
    after, said = staged(command, tmp_path, program, server.url)
    assert after == before
    assert "the originals are read" in said
    assert fetched(server)[0] == {"200": NUMBER, "206": NUMBER}


MADE = """
for key in range(6):
    s3.put_object(Bucket="data", Key=f"{key}.bin", Body=bytes([key]) * 50_000)
"""
WRITING = """
before = get("2.bin")
s3.put_object(Bucket="data", Key="2.bin", Body=b"new" * 10_000)
assert get("2.bin") == b"new" * 10_000
answer = s3.get_object(Bucket="data", Key="3.bin")
assert answer["ContentLength"] == 50_000 and answer["ETag"] and answer["LastModified"]
"""


def test_an_object_that_the_run_writes_is_read_as_written(
    command: Command, s3_server: str, tmp_path: Path
) -> None:
    made, program, writing = (tmp_path / name for name in ("made.py", "job.py", "writing.py"))
    made.write_text(BOTO3 + 's3.create_bucket(Bucket="data")' + MADE)
    program.write_text(BOTO3 + READING)
    writing.write_text(BOTO3 + WRITING + READING)
    subprocess.run([sys.executable, made, s3_server], check=True)
    before, _ = stage(command, tmp_path, program, s3_server)
    after, said = staged(command, tmp_path, writing, s3_server)
    lines = set(before.splitlines()) ^ set(after.splitlines())
    assert {line.split()[0] for line in lines} == {"2"}
    assert f"{s3_server}/data/2.bin: changed or written" in said
    assert f"{2 * NUMBER - 2 + 2} requests for objects answered from copies" in said


MEANWHILE = """
import glob, os, zlib
url = sys.argv[1] + "/data/{}.bin"
session.head(url.format(4))
print(zlib.crc32(get("4.bin")))
print(zlib.crc32(get("5.bin")))
[copy] = glob.glob(sys.argv[2] + "/staged/url/http/*/data/5.bin")
os.chmod(copy, 0o600)
with open(copy, "r+b") as file:
    file.write(bytes(1000))
print(zlib.crc32(get("5.bin")))
"""


def test_an_etag_alone_tells_a_change_and_a_copy_damaged_in_the_run_serves_nobody(
    command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    program, meanwhile = tmp_path / "job.py", tmp_path / "meanwhile.py"
    program.write_text(REQUESTS + READING)
    meanwhile.write_text(REQUESTS + MEANWHILE)
    _, tier = stage(command, tmp_path, program, server.url)
    changed = bucket / "4.bin"
    before_s = changed.stat().st_mtime_ns // 10**9
    changed.write_bytes(changed.read_bytes()[::-1])
    os.utime(changed, ns=(before_s * 10**9, before_s * 10**9))  # the time of the header is the same
    fetched(server)
    after, said = staged(command, tmp_path, meanwhile, server.url, str(tier))
    sums = [zlib.crc32((bucket / name).read_bytes()) for name in ("4.bin", "5.bin", "5.bin")]
    assert [int(line) for line in after.splitlines()] == sums
    statuses, sent_bytes = fetched(server)
    assert statuses == {"200": 3, "304": 1}  # a HEAD and a GET of 4; 5 asked, served, and fetched
    assert sent_bytes == changed.stat().st_size + (bucket / "5.bin").stat().st_size
    assert "1 request for objects answered from copies" in said
