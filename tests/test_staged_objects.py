"""Objects copied to a tier and served from there: against the log of the server that has them."""

import functools
import http.server
import os
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fixtures import PENSTOCK, kinds
from penstock_lab.objects import Asked, ObjectServer, certificate
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
HTTPX = """
import httpx, sys
client = httpx.Client()
def get(key):
    return client.get(f"{sys.argv[1]}/data/{key}").content
def part(key, first, last):
    range = {"Range": f"bytes={first}-{last}"}
    with client.stream("GET", f"{sys.argv[1]}/data/{key}", headers=range) as answer:
        return b"".join(answer.iter_bytes())
"""
HTTPX_ASYNC = """
import asyncio, httpx, sys
loop = asyncio.new_event_loop()
client = httpx.AsyncClient()
def get(key, headers=None):
    async def body():
        async with client.stream("GET", f"{sys.argv[1]}/data/{key}", headers=headers) as answer:
            return b"".join([piece async for piece in answer.aiter_bytes()])
    return loop.run_until_complete(body())
def part(key, first, last):
    return get(key, {"Range": f"bytes={first}-{last}"})
"""
URLLIB = """
import sys
from urllib.request import Request, urlopen
def get(key):
    with urlopen(f"{sys.argv[1]}/data/{key}") as answer:
        assert answer.status == 200 and answer.msg == "OK" and answer.getheader("Content-Length")
        return answer.read()
def part(key, first, last):
    asked = Request(f"{sys.argv[1]}/data/{key}", headers={"Range": f"bytes={first}-{last}"})
    with urlopen(asked) as answer:
        return b"".join(iter(lambda: answer.read(1000), b""))
"""
CLIENTS = {
    "boto3": BOTO3, "s3fs": S3FS, "requests": REQUESTS, "urllib3": URLLIB3, "fsspec": FSSPEC,
    "httpx": HTTPX, "httpx async": HTTPX_ASYNC, "urllib": URLLIB,
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


LIKE = {"urllib3": "requests", "fsspec": "s3fs", "httpx async": "httpx"}


@pytest.mark.parametrize("client", kinds(CLIENTS, LIKE))
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


LARGE = """
import sys, zlib
url = f"{sys.argv[1]}/data/0.bin"
def boto3_():
    import boto3
    s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
        aws_access_key_id="a", aws_secret_access_key="b")
    return s3.get_object(Bucket="data", Key="0.bin")["Body"].iter_chunks(1 << 20)
def requests_():
    import requests
    return requests.get(url, stream=True).iter_content(1 << 20)
def httpx_():
    import httpx
    return [httpx.get(url).content]
def urllib_():
    from urllib.request import urlopen
    return iter(lambda answer=urlopen(url): answer.read(300_000), b"")
def aiohttp_():
    import aiohttp, asyncio
    async def body():
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return [piece async for piece in answer.content.iter_any()]
    return asyncio.run(body())
for read in (boto3_, requests_, httpx_, urllib_, aiohttp_):
    total = checksum = 0
    for piece in read():
        total, checksum = total + len(piece), zlib.crc32(piece, checksum)
    print(total, checksum)
"""


def test_an_object_that_is_not_read_at_once_comes_whole_from_the_tier(
    command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    """More than 8 MiB is read piece by piece."""
    data = os.urandom(9 << 20) + b"end"
    (bucket / "0.bin").write_bytes(data)
    program, large = tmp_path / "job.py", tmp_path / "large.py"
    program.write_text(REQUESTS + READING)
    large.write_text(LARGE)
    stage(command, tmp_path, program, server.url)
    fetched(server)
    after, said = staged(command, tmp_path, large, server.url)
    assert after.splitlines() == [f"{len(data)} {zlib.crc32(data)}"] * 5
    assert fetched(server) == (Counter({"304": 1}), 0)
    assert "5 requests for objects answered from copies" in said


@pytest.fixture
def plain_server(bucket: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """The standard library's server: no ETag, no range.  Yields address and answers."""
    answers: list[tuple[str, int]] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            answers.append((self.command, int(code)))

    handler = functools.partial(Handler, directory=os.fspath(bucket.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", answers
        running.shutdown()
        thread.join()


WHOLE = """
import zlib
for key in range(6):
    print(key, zlib.crc32(get(f"{key}.bin")), flush=True)
"""


@pytest.mark.parametrize("client", ["requests", "fsspec", "httpx", "urllib"])
def test_of_an_object_without_an_etag_the_time_of_change_is_asked(
    client: str,
    command: Command,
    plain_server: tuple[str, list[tuple[str, int]]],
    bucket: Path,
    tmp_path: Path,
) -> None:
    url, answers = plain_server
    program = tmp_path / "job.py"
    program.write_text(CLIENTS[client] + WHOLE)
    before, _ = stage(command, tmp_path, program, url)
    answers.clear()
    after, _ = staged(command, tmp_path, program, url)
    assert after == before
    assert Counter(answers) == {("HEAD", 200): NUMBER}
    content(bucket / "3.bin", 33)
    os.utime(bucket / "3.bin", (1_700_000_000, 1_700_000_000))
    answers.clear()
    after, said = staged(command, tmp_path, program, url)
    [line] = set(after.splitlines()) - set(before.splitlines())
    assert line == f"3 {zlib.crc32((bucket / '3.bin').read_bytes())}"
    assert Counter(answers) == {("HEAD", 200): NUMBER, ("GET", 200): 1}
    assert f"{url}/data/3.bin: changed" in said


# --- servers with TLS, kills, changes and tiers that end -----------------------------------------


@pytest.fixture
def tls_server(bucket: Path, tmp_path: Path) -> Iterator[tuple[ObjectServer, Path]]:
    """A server with a certificate of its own, and the file of the signing authority."""
    context, authority = certificate(tmp_path)
    with ObjectServer(bucket.parent, tls=context, keep=True) as running:
        yield running, authority


TRUSTING = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.mark.parametrize("client", kinds(CLIENTS, LIKE | {"s3fs": "boto3", "urllib": "requests"}))
def test_over_tls_a_staged_run_gets_no_object_again(
    client: str,
    command: Command,
    tls_server: tuple[ObjectServer, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, authority = tls_server
    for name in TRUSTING:
        monkeypatch.setenv(name, str(authority))
    program = tmp_path / "job.py"
    program.write_text(CLIENTS[client] + READING)
    before, _ = stage(command, tmp_path, program, server.url)
    fetched(server)
    after, said = staged(command, tmp_path, program, server.url)
    assert after == before
    statuses, sent_bytes = fetched(server)
    assert sent_bytes == 0
    assert statuses["304"] == NUMBER
    assert f"{2 * NUMBER} requests for objects answered from copies" in said


def test_a_server_that_is_not_trusted_is_named_and_nothing_is_copied(
    command: Command,
    tls_server: tuple[ObjectServer, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, authority = tls_server
    program = tmp_path / "job.py"
    program.write_text(REQUESTS + READING)
    with monkeypatch.context() as trusting:
        trusting.setenv("REQUESTS_CA_BUNDLE", str(authority))
        objects = listed(command, tmp_path, program, server.url)
    done = command("stage", "copy", objects, "--to", "fast")
    assert done.stdout.startswith("0 files copied")
    assert f"{NUMBER} files left out: the server's certificate is not trusted" in done.stderr


def listed(command: Command, tmp_path: Path, program: Path, *words: str) -> Path:
    """Record a run; return the list of the fetched objects, for a tier of its own."""
    (tmp_path / "fast").mkdir(exist_ok=True)
    command("tiers", "add", "fast", tmp_path / "fast", "--no-measure")
    command("run", "-q", "-o", tmp_path / "run-0", sys.executable, program, *words)
    objects = tmp_path / "objects.jsonl"
    command("stage", "objects", tmp_path / "run-0", "-o", objects)
    return objects


def test_without_room_for_any_object_there_is_no_list_to_copy(
    command: Command,
    server: ObjectServer,
    tmp_path: Path,
    small_disk: Callable[[int], AbstractContextManager[Path]],
) -> None:
    program = tmp_path / "job.py"
    program.write_text(REQUESTS + READING)
    listed(command, tmp_path, program, server.url)
    with small_disk(1 << 20) as disk:
        command("tiers", "add", "small", disk, "--no-measure")
        chosen = tmp_path / "chosen.jsonl"
        words = "stage", "objects", tmp_path / "run-0", "--to", "small", "-o", chosen
        done = command(*words, status=2)
    assert "small: none of 6 objects fits" in done.stderr
    assert not chosen.exists()


PARTS = """
import os, zlib
for key in range(6):
    for first in (0, 5_000_000, int(sys.argv[2]) - 4000):
        print(key, first, zlib.crc32(part(f"{key}.bin", first, first + 999)), flush=True)
"""
CHUNK_BYTES = 64 << 20  # of a copy that goes on after a kill


def larger(bucket: Path, size_bytes: int) -> Path:
    """Make object 0 large, the others long enough for PARTS; return the path of object 0."""
    for number in range(NUMBER):
        data = os.urandom(1 << 20) * (size_bytes // (1 << 20) + 1 if number == 0 else 6)
        (bucket / f"{number}.bin").write_bytes(data[:size_bytes])
    return bucket / "0.bin"


@pytest.mark.parametrize("size_bytes", [9 << 20, CHUNK_BYTES + (6 << 20)])
def test_a_copying_that_is_killed_within_an_object_leaves_no_part_to_any_program(
    size_bytes: int, command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    large = larger(bucket, size_bytes)
    hanging = size_bytes - (1 << 20)  # the end of the object does not come
    words = server.url, "5_004_000"
    program = tmp_path / "job.py"
    program.write_text(REQUESTS + PARTS)
    objects = listed(command, tmp_path, program, *words)
    before = command("run", "-q", sys.executable, program, *words).stdout
    server.choose = lambda asked: "hang-mid" if asked.end - 1 > hanging else ""
    parts = tmp_path / "fast" / ".penstock" / "parts"
    copying = subprocess.Popen(
        [PENSTOCK, "stage", "copy", objects, "--to", "fast"],
        env=os.environ | {"PENSTOCK_TIERS": str(tmp_path / "tiers.json")},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    copies = tmp_path / "fast" / "staged"

    def copied() -> int:
        return len(list(copies.rglob("*.bin")))

    def is_cut() -> bool:
        """Return True if all but the last bytes of the large object are there."""
        chunks = sum(len(path.read_bytes().splitlines()) - 1 for path in parts.glob("*.known"))
        is_long = size_bytes <= CHUNK_BYTES or chunks == 1
        return copied() == NUMBER - 1 and bool(server.counts.in_flight) and is_long

    wait_until(is_cut)
    copying.kill()
    copying.wait()
    assert list(parts.glob("*.part"))
    assert copied() == NUMBER - 1
    server.choose = None
    after, said = staged(command, tmp_path, program, *words)
    assert (after, list(parts.glob("*.part")) != []) == (before, True)
    assert "answered from copies" not in said  # the list of objects comes after the copies
    fetched(server)
    done = command("stage", "copy", objects, "--to", "fast")
    assert done.stdout.startswith("1 file copied"), done.stdout
    again = fetched(server)[1]
    assert again == size_bytes - (CHUNK_BYTES if size_bytes > CHUNK_BYTES else 0)
    assert not list(parts.iterdir())
    assert zlib.crc32(next(copies.rglob("0.bin")).read_bytes()) == zlib.crc32(large.read_bytes())
    after, said = staged(command, tmp_path, program, *words)
    assert (after, fetched(server)[1]) == (before, 0)
    assert f"{3 * NUMBER} requests for objects answered from copies" in said


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_an_object_that_changes_while_it_is_copied_is_left_out_alone(
    how: str, command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    large = larger(bucket, 9 << 20)
    words = server.url, "5_004_000"
    program = tmp_path / "job.py"
    program.write_text(REQUESTS + PARTS)
    objects = listed(command, tmp_path, program, *words)
    data = large.read_bytes()

    def choose(asked: Asked) -> str:
        if asked.path.endswith("/0.bin") and asked.first >= 4 << 20 and large.exists():
            large.unlink() if how == "gone" else large.write_bytes(data[::-1])
        return ""

    server.choose = choose
    done = command("stage", "copy", objects, "--to", "fast")
    server.choose = None
    assert done.stdout.startswith(f"{NUMBER - 1} files copied"), done.stdout + done.stderr
    assert "1 file left out: changed while it was copied" in done.stderr
    large.write_bytes(data[::-1])
    here = subprocess.run([sys.executable, program, *words], capture_output=True, text=True)
    after, said = staged(command, tmp_path, program, *words)
    assert after == here.stdout
    assert f"{3 * NUMBER - 3} requests for objects answered from copies" in said


REPLACED = """
import os, time, zlib
print(zlib.crc32(get("4.bin")))
open(sys.argv[2] + "/asked", "x").close()
while not os.path.exists(sys.argv[2] + "/replaced"):
    time.sleep(0.01)
answer = session.get(f"{sys.argv[1]}/data/4.bin")
print(zlib.crc32(answer.content), answer.headers["ETag"])
print(requests.get(f"{sys.argv[1]}/data/4.bin?now").headers["ETag"])
"""


def test_a_copy_that_another_copying_replaces_serves_no_run_that_knows_the_former(
    command: Command, server: ObjectServer, bucket: Path, tmp_path: Path
) -> None:
    """Size and time, in seconds as of HTTP, of both versions are equal."""
    path, second_ns = bucket / "4.bin", 1_700_000_000 * 10**9
    os.utime(path, ns=(second_ns, second_ns))
    program, replacing = tmp_path / "job.py", tmp_path / "replacing.py"
    program.write_text(REQUESTS + READING)
    replacing.write_text(REQUESTS + REPLACED)
    stage(command, tmp_path, program, server.url)
    contents = path.read_bytes(), path.read_bytes()[::-1]

    def replace() -> None:
        wait_until((tmp_path / "asked").exists)
        path.write_bytes(contents[1])
        os.utime(path, ns=(second_ns + 1000, second_ns + 1000))
        done = command("stage", "copy", tmp_path / "objects.jsonl", "--to", "fast")
        assert done.stdout.startswith("1 file copied")
        (tmp_path / "replaced").touch()

    thread = threading.Thread(target=replace)
    thread.start()
    after, said = staged(command, tmp_path, replacing, server.url, str(tmp_path))
    thread.join()
    first, second, now = after.splitlines()
    assert int(first) == zlib.crc32(contents[0])
    assert second == f"{zlib.crc32(contents[1])} {now}"
    assert "1 request for objects answered from copies" in said


def test_a_tier_that_fills_up_while_objects_are_copied_keeps_the_whole_ones(
    command: Command,
    server: ObjectServer,
    bucket: Path,
    tmp_path: Path,
    small_disk: Callable[[int], AbstractContextManager[Path]],
) -> None:
    larger(bucket, 6 << 20)
    words = server.url, "5_004_000"
    program = tmp_path / "job.py"
    program.write_text(REQUESTS + PARTS)
    with small_disk(64 << 20) as disk:
        (tmp_path / "fast").symlink_to(disk)
        objects = listed(command, tmp_path, program, *words)
        before = command("run", "-q", sys.executable, program, *words).stdout
        others = disk / "others"

        def choose(asked: Asked) -> str:
            """Leave room for two and a half objects, once the copying has begun."""
            if asked.method == "GET" and not others.exists():
                free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
                with open(others, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, free - (15 << 20))
            return ""

        server.choose = choose
        done = command("stage", "copy", objects, "--to", "fast", status=2)
        server.choose = None
        assert "fast: full after" in done.stderr
        whole = list((disk / "staged").rglob("*.bin"))
        for path in whole:
            assert path.read_bytes() == (bucket / path.name).read_bytes()
        parts = list((disk / ".penstock" / "parts").iterdir())
        assert not parts
        after, said = staged(command, tmp_path, program, *words)
        assert after == before
        if whole:
            assert f"{3 * len(whole)} requests for objects answered from copies" in said
        others.unlink()
        command("stage", "copy", objects, "--to", "fast")
        after, said = staged(command, tmp_path, program, *words)
        assert after == before
        assert f"{3 * NUMBER} requests for objects answered from copies" in said


VANISHING = """
import subprocess
def epoch():
    for key in range(6):
        print(key, zlib.crc32(get(f"{key}.bin")), flush=True)
import zlib
epoch()
subprocess.run(sys.argv[2:], check=True)
epoch()
"""


@pytest.mark.parametrize("client", kinds(CLIENTS, LIKE | {"s3fs": "boto3", "urllib": "requests"}))
@pytest.mark.parametrize("how", ["renamed", "unmounted"])
def test_a_tier_that_vanishes_in_mid_run_costs_requests_and_no_byte(
    how: str,
    client: str,
    command: Command,
    server: ObjectServer,
    tmp_path: Path,
    small_disk: Callable[[int], AbstractContextManager[Path]],
) -> None:
    program, vanishing = tmp_path / "job.py", tmp_path / "vanishing.py"
    program.write_text(CLIENTS[client] + WHOLE)
    vanishing.write_text(CLIENTS[client] + VANISHING)
    with small_disk(64 << 20) as disk:
        tier = disk / "tier"
        tier.mkdir()
        (tmp_path / "fast").symlink_to(tier)
        objects = listed(command, tmp_path, program, server.url)
        command("stage", "copy", objects, "--to", "fast")
        ends = ["mv", str(tier), str(disk / "away")]
        if how == "unmounted":
            ends = ["umount", "-l", str(disk)]
        fetched(server)
        after, said = staged(command, tmp_path, vanishing, server.url, *ends)
        if how == "unmounted":  # for the end of the fixture
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    first, second = after.splitlines()[:NUMBER], after.splitlines()[NUMBER:]
    assert first == second
    statuses, _ = fetched(server)
    assert (statuses["304"], statuses["200"] >= NUMBER) == (NUMBER, True)
    assert f"{NUMBER} requests for objects answered from copies" in said
