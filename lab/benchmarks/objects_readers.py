"""One reader of lab/benchmarks/objects.py in a process of its own: reads each record of a data set
in a store once, shuffled, for SECONDS at the most.  Stands alone, for the peers' environment.

    python objects_readers.py READER LAYOUT ADDRESS INDEX      # INDEX: name, offset, length a line
"""

import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BATCH = 64
AT_ONCE = 64  # threads of a reader without its own number
WORKERS = 4  # processes of a DataLoader
SECONDS = 15.0  # of a slow reader
REGION = "us-east-1"
Records = Iterator[Any]


def spans(path: str) -> list[tuple[str, int, int]]:
    with open(path) as file:
        rows = (line.split() for line in file)
        return [(name, int(offset), int(length)) for name, offset, length in rows]


def shuffled(path: str) -> list[tuple[str, int, int]]:
    shuffled_spans = spans(path)
    random.Random(3).shuffle(shuffled_spans)
    return shuffled_spans


def in_threads(read: Callable[[tuple[str, int, int]], Any], path: str) -> Records:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(read, shuffled(path))


def feed(layout: str, address: str, index: str) -> Records:
    """Make the index before the clock starts, as for the other readers."""
    from penstock.feed import Feed

    name = f"s3://data/{layout}/" + ("*.tar" if layout == "shards" else "")
    reader = Feed(name, BATCH, shuffle="global", seed=3)
    yield None
    for batch in reader:
        yield from batch.views()


def plain(layout: str, address: str, index: str) -> Records:
    """The ceiling: nothing but requests for the records, on connections that stay open."""
    import http.client

    host = urllib.parse.urlsplit(address).netloc
    of_thread = threading.local()

    def read(span: tuple[str, int, int]) -> bytes:
        name, offset, length = span
        if not hasattr(of_thread, "connection"):
            of_thread.connection = http.client.HTTPConnection(host)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        of_thread.connection.request("GET", f"/data/{layout}/{name}", headers=headers)
        return bytes(of_thread.connection.getresponse().read())

    yield None
    yield from in_threads(read, index)


def boto3(layout: str, address: str, index: str) -> Records:
    import boto3 as library
    from botocore.config import Config

    config = Config(max_pool_connections=AT_ONCE)
    client = library.client("s3", endpoint_url=address, region_name=REGION, config=config)

    def read(span: tuple[str, int, int]) -> bytes:
        name, offset, length = span
        asked = f"bytes={offset}-{offset + length - 1}"
        answer = client.get_object(Bucket="data", Key=f"{layout}/{name}", Range=asked)
        return bytes(answer["Body"].read())

    yield None
    yield from in_threads(read, index)


def s3torchconnector(layout: str, address: str, index: str) -> Records:
    """Read objects by the map-style data set, shards by the iterable one, as a range read takes
    0.13 s in this library."""
    from s3torchconnector import S3ClientConfig, S3MapDataset
    from torch.utils.data import DataLoader

    config = S3ClientConfig(force_path_style=True)
    store = {"region": REGION, "endpoint": address, "s3client_config": config}
    if layout == "objects":
        dataset = S3MapDataset.from_prefix("s3://data/objects/", transform=_content, **store)
        len(dataset)  # lists
        loader = DataLoader(
            dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, collate_fn=list
        )
        yield None
        for batch in loader:
            yield from batch
        return
    from s3torchconnector import S3IterableDataset

    dataset = S3IterableDataset.from_prefix(
        "s3://data/shards/", transform=_members, enable_sharding=True, **store
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=WORKERS)
    yield None
    for shard in loader:
        yield from shard


def _members(item: Any) -> list[bytes]:
    """Return the records of a shard, in the order of the shard."""
    import tarfile

    with tarfile.open(fileobj=item, mode="r|") as tar:
        return [tar.extractfile(member).read() for member in tar]


def _content(item: Any) -> bytes:
    return bytes(item.read())


def webdataset(layout: str, address: str, index: str) -> Records:
    import webdataset as wds
    from torch.utils.data import DataLoader

    names = sorted({name for name, _, _ in spans(index)})
    urls = [f"pipe:curl -s {address}/data/shards/{name}" for name in names]
    dataset = wds.WebDataset(urls, shardshuffle=len(urls), seed=3).shuffle(1000)
    loader = DataLoader(dataset.to_tuple("bin"), batch_size=None, num_workers=WORKERS)
    yield None
    for (record,) in loader:
        yield record


def litdata(layout: str, address: str, index: str) -> Records:
    import litdata as library

    # The client refuses http://, the protocol of a server on loopback.
    library.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    with tempfile.TemporaryDirectory() as cache:
        dataset = library.StreamingDataset(
            library.streaming.resolver.Dir(path=cache, url="s3://data/litdata"),
            shuffle=True,
            seed=3,
            storage_options={"endpoint_url": address, "region_name": REGION},
        )
        loader = library.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=0, collate_fn=list
        )  # with workers the loop did not come to an end here
        yield None
        for batch in loader:
            yield from batch


def mosaic(layout: str, address: str, index: str) -> Records:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = address
    with tempfile.TemporaryDirectory() as cache:
        dataset = StreamingDataset(
            remote="s3://data/mds", local=cache, shuffle=True, batch_size=BATCH, shuffle_seed=3
        )
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=list)
        yield None
        for batch in loader:
            for item in batch:
                yield item["bin"]


READERS = (feed, plain, boto3, s3torchconnector, webdataset, litdata, mosaic)


def number_of(record: Any) -> int:
    """Return the number at the begin of a record; in a record of a tar, behind the header."""
    head = bytes(memoryview(record)[:520])
    return int.from_bytes(head[512:520] if head[8:12] != b"PSTK" else head[:8], "little")


def main() -> None:
    name, layout, address, index = sys.argv[1:]
    wanted = len(spans(index))
    reader = next(each for each in READERS if each.__name__ == name)(layout, address, index)
    next(reader)
    begun = time.perf_counter()
    numbers, n_bytes = set(), 0
    for record in reader:
        numbers.add(number_of(record))
        n_bytes += len(record)
        if time.perf_counter() - begun > SECONDS:
            break
    seconds = time.perf_counter() - begun
    assert seconds > SECONDS or numbers == set(range(wanted)), (len(numbers), wanted)
    reader.close()
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    print(
        json.dumps(
            {
                "seconds": seconds,
                "bytes": n_bytes,
                "records": len(numbers),
                "cpu_s": sum(each.ru_utime + each.ru_stime for each in used),
                "peak_bytes": max(each.ru_maxrss for each in used) << 10,
            }
        )
    )


if __name__ == "__main__":
    main()
