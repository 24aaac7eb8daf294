"""Small trainings that read from an object server, and jobs with other connections.

    python lab/benchmarks/remote_jobs_loops.py JOB ADDRESS      # prints the loop's clock

A training has 40 steps of 10 ms and batches of four objects of 64 KB.  Imports of clients are in
the jobs with the clients.
"""

import asyncio
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

STEPS, BATCH, STEP_S = 40, 4, 0.01
SHARD_BYTES = 266240  # a tar file of four objects of 64 KB
OBJECTS = STEPS * BATCH
Get = Callable[[int], int]
Batches = Iterable[Any]


def key(number: int) -> str:
    return f"objects/{number:06d}.bin"


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def train(batches: Batches, each: Callable[[], None] = lambda: None) -> None:
    """Print each next() after the first as an interval of time.monotonic, and the loop's time."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    iterator = iter(batches)
    waits: list[tuple[float, float]] = []
    begun_s = 0.0
    for number in range(STEPS):
        asked_s = time.monotonic()
        if next(iterator, None) is None:
            break
        if number:
            waits.append((asked_s, time.monotonic()))
        else:
            begun_s = time.monotonic()
        time.sleep(STEP_S)
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        each()
    print(json.dumps({"waits": waits, "wall_s": time.monotonic() - begun_s}), flush=True)


class RequestedItems(torch.utils.data.Dataset[int]):
    """An item is a GET.  make: run once in each process."""

    def __init__(self, make: Callable[[], Get]) -> None:
        self.make = make
        self.get: Get | None = None
        self.pid = 0

    def __len__(self) -> int:
        return OBJECTS

    def __getitem__(self, number: int) -> int:
        if self.get is None or self.pid != os.getpid():
            self.get, self.pid = self.make(), os.getpid()
        return self.get(number)


def loader(make: Callable[[], Get], workers: int = 0) -> Batches:
    return torch.utils.data.DataLoader(RequestedItems(make), BATCH, num_workers=workers)


def by_hand(make: Callable[[], Get]) -> Iterator[list[int]]:
    get = make()
    for first in range(0, OBJECTS, BATCH):
        yield [get(first + n) for n in range(BATCH)]


def by_processes(make: Callable[[], Get], processes: int) -> Iterator[list[int]]:
    """Use processes of the program's own, with batches from a queue, two ahead."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    queues = [context.Queue(1) for _ in range(processes)]

    def fill(which: int) -> None:
        get = make()
        for batch in range(which, STEPS, processes):
            queues[which].put([get(batch * BATCH + n) for n in range(BATCH)])

    for which in range(processes):
        context.Process(target=fill, args=(which,), daemon=True).start()
    for batch in range(STEPS):
        yield queues[batch % processes].get()


def by_pool(make: Callable[[], Get], processes: int) -> Iterator[list[int]]:
    """Let a pool of processes fetch the items of a batch."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(processes, _begin_pool, (make,)) as pool:
        for first in range(0, OBJECTS, BATCH):
            yield pool.map(_get_in_pool, range(first, first + BATCH), chunksize=1)


def by_pool_ahead(make: Callable[[], Get], processes: int) -> Iterator[list[int]]:
    """Let a pool of processes fetch a batch each, as far ahead as possible."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(processes, _begin_pool, (make,)) as pool:
        yield from pool.imap(_get_batch_in_pool, range(STEPS))


def by_executor_ahead(make: Callable[[], Get], processes: int) -> Iterator[list[int]]:
    """Processes of concurrent.futures, a batch each, as many ahead as there are processes."""
    import multiprocessing
    from collections import deque
    from concurrent.futures import Future, ProcessPoolExecutor

    context = multiprocessing.get_context("fork")
    ahead: deque[Future[list[int]]] = deque()
    with ProcessPoolExecutor(processes, context, _begin_pool, (make,)) as pool:
        for batch in range(STEPS + processes):
            if batch < STEPS:
                ahead.append(pool.submit(_get_batch_in_pool, batch))
            if batch >= processes:
                yield ahead.popleft().result()


def _get_batch_in_pool(batch: int) -> list[int]:
    return [_get_in_pool_with(batch * BATCH + n) for n in range(BATCH)]


def _begin_pool(make: Callable[[], Get]) -> None:
    global _get_in_pool_with
    _get_in_pool_with = make()


_get_in_pool_with: Get = len  # type: ignore[assignment]


def _get_in_pool(number: int) -> int:
    return _get_in_pool_with(number)


def by_threads(make: Callable[[], Get], threads: int) -> Iterator[list[int]]:
    local = threading.local()

    def get(number: int) -> int:
        if not hasattr(local, "get"):
            local.get = make()
        return int(local.get(number))

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, OBJECTS, BATCH):
            yield list(pool.map(get, range(first, first + BATCH)))


def by_threads_ahead(make: Callable[[], Get], threads: int) -> Iterator[list[int]]:
    """Threads, a batch each, as many ahead as there are threads."""
    from collections import deque
    from concurrent.futures import Future

    local = threading.local()
    ahead: deque[Future[list[int]]] = deque()

    def get(batch: int) -> list[int]:
        if not hasattr(local, "get"):
            local.get = make()
        return [local.get(batch * BATCH + n) for n in range(BATCH)]

    with ThreadPoolExecutor(threads) as pool:
        for batch in range(STEPS + threads):
            if batch < STEPS:
                ahead.append(pool.submit(get, batch))
            if batch >= threads:
                yield ahead.popleft().result()


def prefetched(batches: Batches) -> Iterator[Any]:
    """Use a thread of the program's own, a batch ahead."""
    import queue

    ready: queue.Queue[Any] = queue.Queue(1)

    def fill() -> None:
        for batch in batches:
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


# Clients


def http_client(address: str) -> Get:
    host = address.partition("//")[2]
    if address.startswith("https"):
        context = ssl._create_unverified_context()
        connection: Any = http.client.HTTPSConnection(host, context=context)
    else:
        connection = http.client.HTTPConnection(host)

    def get(number: int) -> int:
        connection.request("GET", f"/data/{key(number)}")
        return len(connection.getresponse().read())

    return get


def urllib_get(address: str) -> Get:
    def get(number: int) -> int:
        with urllib.request.urlopen(f"{address}/data/{key(number)}") as body:
            return len(body.read())

    return get


def requests_get(address: str) -> Get:
    import requests
    import urllib3

    urllib3.disable_warnings()
    session = requests.Session()
    session.verify = session.trust_env = False
    return lambda number: len(session.get(f"{address}/data/{key(number)}").content)


def urllib3_get(address: str) -> Get:
    import urllib3

    pool = urllib3.PoolManager()
    return lambda number: len(pool.request("GET", f"{address}/data/{key(number)}").data)


def smart_open_get(address: str) -> Get:
    import boto3
    import smart_open

    client = {"client": boto3.client("s3", endpoint_url=address)}

    def get(number: int) -> int:
        with smart_open.open(f"s3://data/{key(number)}", "rb", transport_params=client) as file:
            return len(file.read())

    return get


def gcsfs_get(address: str) -> Get:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # else gcsfs asks the real service
    import gcsfs

    files = gcsfs.GCSFileSystem(endpoint_url=address, token="anon")
    return lambda number: len(files.cat_file(f"data/{key(number)}"))


def httpx_get(address: str) -> Get:
    import httpx

    client = httpx.Client(verify=False)
    return lambda number: len(client.get(f"{address}/data/{key(number)}").content)


def httpx2_get(address: str) -> Get:
    import httpx2

    client = httpx2.Client(verify=False)
    return lambda number: len(client.get(f"{address}/data/{key(number)}").content)


def boto3_get(address: str) -> Get:
    import boto3
    from botocore.config import Config

    s3 = boto3.client("s3", endpoint_url=address, config=Config(retries={"mode": "standard"}))
    return lambda number: len(s3.get_object(Bucket="data", Key=key(number))["Body"].read())


def s3fs_get(address: str) -> Get:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=address, key="id", secret="secret")
    return lambda number: len(files.cat_file(f"data/{key(number)}"))


def fsspec_get(address: str) -> Get:
    import fsspec

    files = fsspec.filesystem("http")
    return lambda number: len(files.cat_file(f"{address}/data/{key(number)}"))


def hub_get(address: str) -> Get:
    os.environ["HF_ENDPOINT"] = address
    from huggingface_hub.utils import get_session

    return lambda number: len(get_session().get(f"{address}/data/{key(number)}").content)


def obstore_get(address: str) -> Get:
    from obstore.store import S3Store

    options = {"allow_http": True, "allow_invalid_certificates": True}
    store = S3Store("data", endpoint=address, region="us-east-1", client_options=options)
    return lambda number: len(store.get(key(number)).bytes())


def obstore_async(address: str) -> Iterator[list[int]]:
    """All of a batch at once, by obstore in an event loop of the training thread."""
    from obstore.store import S3Store

    options = {"allow_http": True, "allow_invalid_certificates": True}
    store = S3Store("data", endpoint=address, region="us-east-1", client_options=options)
    loop = asyncio.new_event_loop()

    async def get(number: int) -> int:
        return len(await (await store.get_async(key(number))).bytes_async())

    async def batch(first: int) -> list[int]:
        return await asyncio.gather(*(get(first + n) for n in range(BATCH)))

    for first in range(0, OBJECTS, BATCH):
        yield loop.run_until_complete(batch(first))


def pyarrow_get(address: str) -> Get:
    from pyarrow import fs

    scheme, _, host = address.partition("://")
    files = fs.S3FileSystem(
        endpoint_override=host, scheme=scheme, region="us-east-1", access_key="i", secret_key="s"
    )
    return lambda number: len(files.open_input_stream(f"data/{key(number)}").read())


def s3torchconnector_get(address: str) -> Get:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    at = address.replace("localhost", "127.0.0.1")
    client = S3Client(
        "us-east-1", endpoint=at, s3client_config=S3ClientConfig(force_path_style=True)
    )
    return lambda number: len(client.get_object("data", key(number)).read())


def tensorstore_s3_get(address: str) -> Get:
    import tensorstore as ts

    about = {"driver": "s3", "bucket": "data", "endpoint": address, "aws_region": "us-east-1"}
    store = ts.KvStore.open(about | {"aws_credentials": {"type": "environment"}}).result()
    return lambda number: len(store.read(key(number)).result().value)


def tensorstore_get(address: str) -> Get:
    import tensorstore as ts

    store = ts.KvStore.open({"driver": "http", "base_url": f"{address}/data/"}).result()
    return lambda number: len(store.read(key(number)).result().value)


def curl_get(address: str) -> Get:
    def get(number: int) -> int:
        url = f"{address}/data/{key(number)}"
        return len(subprocess.run(["curl", "-ks", url], stdout=subprocess.PIPE, check=True).stdout)

    return get


def wget_get(address: str) -> Get:
    def get(number: int) -> int:
        url = f"{address}/data/{key(number)}"
        command = ["wget", "-q", "--no-check-certificate", "-O", "-", url]
        return len(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    return get


def curl_pipeline(address: str) -> Iterator[list[int]]:
    """Run a shell pipeline for each shard: curl, and tar for unpacking."""
    for number in range(STEPS):
        url = f"{address}/data/shards/{number:03d}.tar"
        command = f"curl -s {url} | tar -xO"
        with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as pipe:
            assert pipe.stdout is not None
            yield [len(pipe.stdout.read())]


def curl_ahead(address: str) -> Iterator[list[int]]:
    """Run a single curl for all shards, and read the output at once."""
    urls = f"{address}/data/shards/[000-{STEPS - 1:03d}].tar"
    with subprocess.Popen(["curl", "-s", urls], stdout=subprocess.PIPE) as pipe:
        assert pipe.stdout is not None
        for _ in range(STEPS):
            yield [len(pipe.stdout.read(SHARD_BYTES))]


def httpx_in_a_loop_thread(address: str) -> Iterator[list[int]]:
    """Fetch a whole batch at once by httpx in an event loop of another thread, a batch ahead."""
    import httpx

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    client = httpx.AsyncClient()

    async def batch(number: int) -> list[int]:
        urls = [f"{address}/data/{key(number * BATCH + n)}" for n in range(BATCH)]
        return [len(response.content) for response in await asyncio.gather(*map(client.get, urls))]

    following = asyncio.run_coroutine_threadsafe(batch(0), loop)
    for number in range(STEPS):
        ready = following
        if number + 1 < STEPS:
            following = asyncio.run_coroutine_threadsafe(batch(number + 1), loop)
        yield ready.result()


def in_a_loop(address: str) -> Iterator[list[int]]:
    """All of a batch at once, by aiohttp in an event loop of the training thread."""
    import aiohttp

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(_session(aiohttp))

    async def get(number: int) -> int:
        async with session.get(f"{address}/data/{key(number)}") as answer:
            return len(await answer.read())

    async def batch(first: int) -> list[int]:
        return await asyncio.gather(*(get(first + n) for n in range(BATCH)))

    for first in range(0, OBJECTS, BATCH):
        yield loop.run_until_complete(batch(first))


async def _session(aiohttp: Any) -> Any:
    return aiohttp.ClientSession()


def in_a_loop_thread(address: str) -> Iterator[list[int]]:
    """The same, in an event loop of another thread."""
    import aiohttp

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    session = asyncio.run_coroutine_threadsafe(_session(aiohttp), loop).result()

    async def get(number: int) -> int:
        async with session.get(f"{address}/data/{key(number)}") as answer:
            return len(await answer.read())

    async def batch(first: int) -> list[int]:
        return [await get(first + n) for n in range(BATCH)]

    for first in range(0, OBJECTS, BATCH):
        yield asyncio.run_coroutine_threadsafe(batch(first), loop).result()


def shards(address: str) -> Iterator[Any]:
    """Read tar files of four objects each by webdataset's pipe:curl."""
    import webdataset

    urls = [f"pipe:curl -s {address}/data/shards/{number:03d}.tar" for number in range(STEPS)]
    yield from webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).batched(BATCH)


TRAININGS: dict[str, Callable[[str], Batches]] = {
    "http.client, training thread": lambda at: by_hand(lambda: http_client(at)),
    "http.client, workers 0": lambda at: loader(lambda: http_client(at)),
    "http.client, workers 2": lambda at: loader(lambda: http_client(at), 2),
    "http.client, TLS": lambda at: by_hand(lambda: http_client(at)),
    "urllib, workers 0": lambda at: loader(lambda: urllib_get(at)),
    "requests, workers 0": lambda at: loader(lambda: requests_get(at)),
    "requests, TLS, workers 0": lambda at: loader(lambda: requests_get(at)),
    "requests, workers 2": lambda at: loader(lambda: requests_get(at), 2),
    "requests, 2 threads": lambda at: by_threads(lambda: requests_get(at), 2),
    "requests, prefetch thread": lambda at: prefetched(by_hand(lambda: requests_get(at))),
    "urllib3, workers 0": lambda at: loader(lambda: urllib3_get(at)),
    "requests, 2 processes ahead": lambda at: by_processes(lambda: requests_get(at), 2),
    "requests, pool of 2 processes": lambda at: by_pool(lambda: requests_get(at), 2),
    "requests, pool of 2 processes ahead": lambda at: by_pool_ahead(lambda: requests_get(at), 2),
    "requests, executor of 2 processes ahead": lambda at: by_executor_ahead(
        lambda: requests_get(at), 2
    ),
    "requests, 2 threads ahead": lambda at: by_threads_ahead(lambda: requests_get(at), 2),
    "httpx, workers 0": lambda at: loader(lambda: httpx_get(at)),
    "httpx2, workers 0": lambda at: loader(lambda: httpx2_get(at)),
    "huggingface_hub, workers 2": lambda at: loader(lambda: hub_get(at), 2),
    "boto3, workers 0": lambda at: loader(lambda: boto3_get(at)),
    "boto3, workers 2": lambda at: loader(lambda: boto3_get(at), 2),
    "boto3, 4 threads": lambda at: by_threads(lambda: boto3_get(at), 4),
    "boto3, training thread": lambda at: by_hand(lambda: boto3_get(at)),
    "smart_open, workers 0": lambda at: loader(lambda: smart_open_get(at)),
    "gcsfs, workers 0": lambda at: loader(lambda: gcsfs_get(at)),
    "s3fs, workers 2": lambda at: loader(lambda: s3fs_get(at), 2),
    "s3fs, workers 0": lambda at: loader(lambda: s3fs_get(at)),
    "fsspec http, workers 0": lambda at: loader(lambda: fsspec_get(at)),
    "aiohttp, event loop": in_a_loop,
    "aiohttp, loop in a thread": in_a_loop_thread,
    "curl a file, workers 0": lambda at: loader(lambda: curl_get(at)),
    "wget a file, workers 0": lambda at: loader(lambda: wget_get(at)),
    "curl | tar": curl_pipeline,
    "one curl for all shards": curl_ahead,
    "httpx, loop in a thread, ahead": httpx_in_a_loop_thread,
    "webdataset pipe:curl": shards,
    "obstore, training thread": lambda at: by_hand(lambda: obstore_get(at)),
    "obstore, TLS, workers 0": lambda at: loader(lambda: obstore_get(at)),
    "obstore, event loop": obstore_async,
    "obstore, 2 threads": lambda at: by_threads(lambda: obstore_get(at), 2),
    "pyarrow, training thread": lambda at: by_hand(lambda: pyarrow_get(at)),
    "s3torchconnector, training thread": lambda at: by_hand(lambda: s3torchconnector_get(at)),
    "tensorstore s3, training thread": lambda at: by_hand(lambda: tensorstore_s3_get(at)),
    "tensorstore, training thread": lambda at: by_hand(lambda: tensorstore_get(at)),
}


# Jobs with data waits, but not for a network


class Decoded(torch.utils.data.Dataset[int]):
    """An item costs 5 ms of CPU."""

    def __len__(self) -> int:
        return OBJECTS

    def __getitem__(self, number: int) -> int:
        spin(0.005)
        return number


def decoded() -> Batches:
    """Return batches that cost 20 ms of CPU."""
    return torch.utils.data.DataLoader(Decoded(), BATCH)


def metrics_thread(address: str) -> None:
    """Send metrics from a thread as W&B does: a POST after the other, from a queue."""
    import queue

    import requests

    ready: queue.Queue[int] = queue.Queue()

    def send() -> None:
        session = requests.Session()
        while True:
            session.put(f"{address}/data/metrics", data=b"x" * 500 * ready.get())

    threading.Thread(target=send, daemon=True).start()
    train(decoded(), lambda: ready.put(1))


def metrics_inline(address: str) -> None:
    """Wait at each fifth step for the metrics to be taken."""
    import requests

    session, steps = requests.Session(), iter(range(STEPS))

    def each() -> None:
        if next(steps) % 5 == 0:
            session.put(f"{address}/data/metrics", data=b"x" * 500)

    train(decoded(), each)


def subscriber(address: str) -> None:
    """Listen in a thread at a silent broker, as for messages or a database."""
    host, _, port = address.partition("//")[2].partition(":")

    def listen() -> None:
        with socket.create_connection((host, int(port))) as peer:
            peer.recv(1)

    threading.Thread(target=listen, daemon=True).start()
    train(decoded())


def sleeping_worker(address: str) -> None:
    """Workers sleep, while a thread of theirs polls a server."""

    class Sleeps(torch.utils.data.Dataset[int]):
        is_polling = False

        def __len__(self) -> int:
            return OBJECTS

        def __getitem__(self, number: int) -> int:
            if not self.is_polling:
                self.is_polling = True
                threading.Thread(target=poll, daemon=True).start()
            time.sleep(0.01)
            return number

    def poll() -> None:
        get = http_client(address)
        while True:
            get(0)

    train(torch.utils.data.DataLoader(Sleeps(), BATCH, num_workers=1))


def gloo(_: str) -> None:
    """Two ranks exchange gradients by gloo on loopback; batches cost CPU."""
    import torch.distributed as dist

    if "RANK" not in os.environ:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        children = [
            subprocess.Popen([sys.executable, *sys.argv], env=os.environ | ranks | {"RANK": str(n)})
            for n in range(2)
        ]
        sys.exit(max(child.wait() for child in children))
    dist.init_process_group("gloo")
    gradient = torch.ones(100_000)
    train(decoded(), lambda: dist.all_reduce(gradient) and None)
    dist.destroy_process_group()


def rpc_workers(_: str) -> None:
    """Get batches over loopback from a decoding process of the job."""
    import multiprocessing

    ready, port = multiprocessing.Pipe()

    def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port.send(listener.getsockname()[1])
            peer, _ = listener.accept()
            for _ in range(STEPS):
                spin(0.03)
                peer.sendall(bytes(65536))

    process = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
    process.start()

    def batches() -> Batches:
        with socket.create_connection(("127.0.0.1", ready.recv())) as peer:
            for _ in range(STEPS):
                yield peer.recv(65536, socket.MSG_WAITALL)

    train(batches())


OTHERS: dict[str, Callable[[str], None]] = {
    "metrics, thread": metrics_thread,
    "metrics, training thread": metrics_inline,
    "subscriber": subscriber,
    "workers sleep, a thread polls": sleeping_worker,
    "gloo, 2 ranks": gloo,
    "batches from a process of the job": rpc_workers,
}

if __name__ == "__main__":
    job, where = sys.argv[1:3]
    if job in TRAININGS:
        train(TRAININGS[job](where))
    else:
        OTHERS[job](where)
