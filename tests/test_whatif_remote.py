"""What-if for requests to remote storage: which requests belong together, and what remains."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from netservers import Store, object_store
from penstock.errors import QueryError
from penstock.runs.run import Run
from penstock.trial import remote
from synthetic import MS, Synthetic

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)


def opened(job: Synthetic) -> Run:
    assert job.connection
    return job.run


def remote_rows(begins: list[int], took: int = 20) -> list[Any]:
    return [
        remote._Request(1, 0, begin / 1000, (begin + took) / 1000, took / 2000, 100_000)
        for begin in begins
    ]


def test_requests_in_a_row_are_between_one_chain_and_no_chain() -> None:
    rows = remote_rows([0, 20, 40, 60, 80, 100, 120, 140])
    four = remote.RemoteChange(concurrency=4)
    assert remote._independent_s(rows, four, 4) == pytest.approx(0.040)
    assert remote._dependent_s(rows, four, 4) == pytest.approx(0.160)
    near = remote.RemoteChange(latency_s=0.002)
    assert remote._dependent_s(rows, near, None) == pytest.approx(8 * 0.012)
    assert remote._independent_s(rows, near, 1) == pytest.approx(8 * 0.012)
    far = remote.RemoteChange(bandwidth_bps=1e6)
    assert remote._dependent_s(rows, far, None) == pytest.approx(8 * 0.110)
    assert remote._floor_s(rows, far, 2.0) == pytest.approx(2 * 0.8)
    assert remote._floor_s(rows, remote.RemoteChange(requests_hz=10), 1.0) == pytest.approx(0.8)


def test_requests_that_overlapped_stay_side_by_side_unless_fewer_are_allowed() -> None:
    rows = remote_rows([0, 0, 0, 0, 30, 30])
    assert remote._most_at_once(rows) == 4
    assert remote._busy_s([(one.begin_s, one.end_s) for one in rows]) == pytest.approx(0.040)
    same = remote.RemoteChange()
    assert remote._dependent_s(rows, same, None) == pytest.approx(0.040)
    assert remote._dependent_s(rows, same, 1) == pytest.approx(0.120)
    assert remote._active([*rows, *(one._replace(process=2) for one in rows)]) == pytest.approx(2)


def test_a_request_belongs_to_the_fetch_that_was_under_way() -> None:
    run = Synthetic()
    run.process(1, end=400 * MS)
    run.process(2, parent=1, origin="fork", end=400 * MS)
    for process in (1, 2):
        run.fetch(0, 100 * MS, 0, process=process)
        run.fetch(150 * MS, 250 * MS, 0, process=process)  # the same number in the next epoch
    asked = run.requested
    asked("s:80", 10 * MS, 20 * MS, thread=1, batch=0)
    asked("s:80", 20 * MS, 20 * MS, thread=2)  # of a helper
    asked("s:80", 90 * MS, 80 * MS, thread=3)  # ends in the next fetch
    asked("s:80", 160 * MS, 20 * MS, thread=3)
    asked("s:80", 120 * MS, 20 * MS, thread=2)  # in no fetch
    asked("s:80", 160 * MS, 20 * MS, thread=2, process=2)
    asked("s:80", 300 * MS, 20 * MS, thread=1, process=2)  # a fetching thread's
    asked("s:80", 10 * MS, 20 * MS, process=2)  # the thread is not known
    asked("other:80", 10 * MS, 20 * MS)
    rows, summed = remote._requests(opened(run), ["s:80"])
    at = {(row.process, round(row.begin_s * 1000)): row.group for row in rows}
    first, second = at[1, 10], at[1, 160]
    assert (len(rows), summed, len({first, second, at[2, 10], at[2, 160]})) == (8, 0, 4)
    assert (at[1, 20], at[1, 90]) == (first, first)
    assert (at[1, 120], at[2, 300]) == (remote.UNKNOWN, remote.UNKNOWN)
    notes = list(remote._notes(rows, 0, remote.RemoteChange(latency_s=0.1)))
    assert "2 requests began in no fetch: those of a process count as one batch" in notes


def test_of_two_fetches_under_way_a_helper_asks_for_the_later_one() -> None:
    run = Synthetic()
    run.process(1, end=400 * MS)
    run.fetch(0, 300 * MS, 0, process=1)
    run.span("fetch", 50 * MS, 100 * MS, process=1, thread=2, index=1, a=1)
    for begin in (20, 60, 120):
        run.requested("s:80", begin * MS, 10 * MS, thread=3)
    run.requested("s:80", 60 * MS, 10 * MS, thread=1)
    rows, _ = remote._requests(opened(run), ["s:80"])
    early, *both, late = [row.group for row in rows]
    assert early == late
    assert sorted(both) == sorted({early, *both})


HELPED = """
import sys, time, torch
PORT, HOW = int(sys.argv[1]), sys.argv[2]
url = f"http://localhost:{PORT}"
if HOW == "pool":
    import urllib.request
    from concurrent.futures import ThreadPoolExecutor
    pool = ThreadPoolExecutor(2)
    def get(n):
        return len(urllib.request.urlopen(f"{url}/d/{n}").read())
    def fetch(numbers):
        return list(pool.map(get, numbers))
elif HOW == "boto3":
    import io, boto3
    from boto3.s3.transfer import TransferConfig
    s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1",
        aws_access_key_id="x", aws_secret_access_key="x")
    large = TransferConfig(multipart_threshold=1024, multipart_chunksize=1024, max_concurrency=2)
    def fetch(numbers):
        file = io.BytesIO()
        s3.download_fileobj("bucket", "key", file, Config=large)
        return [len(file.getvalue())] * len(numbers)
else:
    import asyncio, threading, aiohttp
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    limit = asyncio.Semaphore(2)
    async def get(client, n):
        async with limit, client.get(f"{url}/d/{n}") as answer:
            return len(await answer.read())
    async def get_all(numbers):
        async with aiohttp.ClientSession() as client:
            return await asyncio.gather(*(get(client, n) for n in numbers))
    def fetch(numbers):
        return asyncio.run_coroutine_threadsafe(get_all(numbers), loop).result()
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitems__(self, numbers):
        return fetch(numbers)
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
        time.sleep(0.001)
"""


@needs_library
@pytest.mark.parametrize("how", ["pool", "boto3", "event loop"])
def test_requests_of_helper_threads_are_laid_out_within_their_fetch(
    recorded_command: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    """Eight fetches one after another, each of at least one answer of the server: 20 ms."""
    pytest.importorskip("torch")
    pytest.importorskip({"pool": "torch", "boto3": "boto3", "event loop": "aiohttp"}[how])
    program = tmp_path / "job.py"
    program.write_text(HELPED)
    with object_store(Store(delay_s=0.02, body=bytes(4096))) as store:
        run = recorded_command([sys.executable, program, str(store.port), how])
    rows, summed = remote._requests(run, [f"localhost:{store.port}"])
    assert (len(rows), summed) == (len(store.requests), 0)
    fetches = {row.group for row in rows}
    assert (len(fetches), min(fetches)) == (8, 1)
    if how == "boto3":  # a thread between asks for nothing: the wait has no endpoint
        return
    answer = remote.whatif_remote(run, remote.RemoteChange(concurrency=32))
    assert (answer.requests, answer.at_once) == (32, 2)
    assert 8 * 0.02 <= answer.independent_s < answer.dependent_s
    assert not [note for note in answer.notes if "batch" in note]


def test_a_run_without_requests_has_no_answer_for_another_endpoint() -> None:
    run = Synthetic()
    run.process(1, end=100 * MS)
    run.connection  # noqa: B018
    with pytest.raises(QueryError, match="no data wait for recorded requests"):
        remote.whatif_remote(run.run, remote.RemoteChange(concurrency=2))
