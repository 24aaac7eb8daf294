"""`penstock run --ahead` with the libraries that training programs map files by: py-lmdb,
safetensors, torch, numpy and pyarrow.  The truth is the page cache (cachestat) and the kernel's
count of page faults that read from the disk."""

import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures import thorough
from penstock.installed import native_part
from penstock.places.tiers import MEMORY_KINDS, evict, mount_of
from penstock_lab import tier as slow_tiers
from slowtier import WHY_NO_FUSE
from test_ahead import Ran, ahead, only

pytestmark = [
    pytest.mark.skipif(
        not Path(native_part("readahead")).exists(), reason="the reader is not built: make native"
    ),
]

SIZE = 48 << 20
# The program and the reader race for the rest: who wins depends on the load of the machine.
LEAST = 2 << 20
# So small a file has few gaps left by the time that a busy machine looks at it.
ORDERS = ("random", "in order")
FEW_FAULTS = 30  # of the program and its libraries' own files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder on a disk."""
    if mount_of(tmp_path).kind in MEMORY_KINDS:
        pytest.skip("temporary files are in memory here: nothing can be read ahead")
    return tmp_path


@pytest.fixture
def far(folder: Path) -> Iterator[Path]:
    """Return a folder on a file system that takes 3 ms for each request."""
    if WHY_NO_FUSE:
        pytest.skip(WHY_NO_FUSE)
    behind = folder / "behind"
    behind.mkdir()
    with slow_tiers.slow(behind, latency_s=0.003) as tier:
        yield Path(tier.path)


run = ahead  # the fixture, by another name: parameters are called so


# --- weights -------------------------------------------------------------------------------------

TENSORS = 12
TOUCH = """
before = major_faults()
total = sum(int(tensor.view(torch.uint8)[::4096].sum()) for tensor in state.values())
print(major_faults() - before)
time.sleep(0.3)
"""


def states() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {f"layer{n}": torch.randn(SIZE // TENSORS // 4) for n in range(TENSORS)}


@pytest.mark.parametrize(
    "load",
    [
        "state = load_file(path)",
        "state = {n: o.get_tensor(n) for o in [safe_open(path, 'pt')] for n in o.keys()}",
        "state = {n: o.get_slice(n)[:] for o in [safe_open(path, 'pt')] for n in o.keys()}",
    ],
    ids=["load_file", "safe_open", "get_slice"],
)
def test_weights_that_safetensors_touches_at_once_are_read_ahead_on_a_slow_tier(
    far: Path, run: Ran, load: str
) -> None:
    """These calls touch all pages before they return: the reader overtakes the load itself."""
    pytest.importorskip("safetensors.torch").save_file(states(), far / "w.safetensors")
    facts, printed = loaded(far / "w.safetensors", run, load)
    assert int(printed) <= FEW_FAULTS
    assert only(facts).order == "weights"
    assert only(facts).read_bytes >= LEAST


def test_weights_by_torch_load_are_in_memory_before_they_are_used(
    folder: Path,
    run: Ran,
) -> None:
    pytest.importorskip("torch").save(states(), folder / "w.pt")
    facts, printed = loaded(folder / "w.pt", run, "state = torch.load(path, mmap=True)")
    assert int(printed) <= FEW_FAULTS
    assert only(facts).order == "weights"
    assert only(facts).read_bytes > 0.5 * SIZE  # the program touches nothing before


def loaded(path: Path, run: Ran, load: str) -> tuple[dict[str, Any], str]:
    evict(path)
    source = f"""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file
    {load}
    await_resident(0.97 * {SIZE})
    """
    return run(textwrap.dedent(source) + TOUCH, path)


# --- data sets -----------------------------------------------------------------------------------

RECORD_BYTES = 20_000
RECORDS = SIZE // 24_576

LMDB = """
import lmdb, torch
from torch.utils.data import DataLoader, Dataset

class Records(Dataset):
    env = None
    def __len__(self):
        return {records}
    def __getitem__(self, number):
        if self.env is None:
            self.env = lmdb.open(path, readonly=True, lock=False, readahead=False, subdir=False)
        time.sleep(0.0003)
        with self.env.begin() as txn:
            return len(txn.get(b"%08d" % number))

def main():
    torch.manual_seed(1)
    options = dict(num_workers={workers}, multiprocessing_context={context!r}, shuffle=True)
    assert {records} == sum(map(len, DataLoader(Records(), 16, **options)))
    await_resident(0.9 * {size})

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), thorough(2, "fork", like="spawn"), (2, "spawn")],
    ids=["none", "fork", "spawn"],
)
def test_an_lmdb_of_shuffled_records_comes_into_memory_as_a_whole(
    folder: Path,
    run: Ran,
    workers: int,
    context: str | None,
) -> None:
    lmdb = pytest.importorskip("lmdb")
    pytest.importorskip("torch")
    path = folder / "train.lmdb"
    with lmdb.open(str(path), map_size=1 << 30, sync=False, subdir=False) as env:
        with env.begin(write=True) as txn:
            for number in range(RECORDS):
                txn.put(b"%08d" % number, random.randbytes(RECORD_BYTES))
        env.sync(True)
    evict(path)
    size = path.stat().st_size
    source = LMDB.format(records=RECORDS, workers=workers, context=context, size=size)
    facts, _ = run(source, path)
    file = only(facts)
    assert file.order in ORDERS
    assert file.read_bytes >= LEAST
    assert file.hit_bytes > 0.5 * file.read_bytes


def test_tokens_at_random_offsets_come_into_memory_as_a_whole(
    far: Path,
    run: Ran,
) -> None:
    facts, _ = run(
        """
        import numpy as np
        rng = np.random.default_rng(1)
        def get_batch():  # as nanoGPT's, which maps the file anew for each batch
            tokens = np.memmap(path, dtype=np.uint16, mode="r")
            places = rng.integers(len(tokens) - 1025, size=12)
            return np.stack([tokens[at : at + 1025].astype(np.int64) for at in places])
        until_s = time.monotonic() + 60
        while resident_bytes(path) < 0.97 * 48 * 2**20 and time.monotonic() < until_s:
            get_batch()
            time.sleep(0.005)
        """,
        made(far / "train.bin"),
    )
    assert only(facts).order in ORDERS
    assert only(facts).read_bytes >= LEAST


def test_shuffled_rows_of_an_arrow_file_come_into_memory_as_a_whole(
    far: Path,
    run: Ran,
) -> None:
    pa = pytest.importorskip("pyarrow")
    path = far / "data.arrow"
    with pa.OSFile(str(path), "wb") as sink:
        schema = pa.schema([("bytes", pa.binary(4096))])
        with pa.ipc.new_stream(sink, schema) as writer:
            for _ in range(SIZE // (100 * 4096)):
                rows = pa.array([random.randbytes(4096)] * 100, pa.binary(4096))
                writer.write_batch(pa.record_batch([rows], schema=schema))
    evict(path)
    facts, _ = run(
        """
        import pyarrow as pa
        table = pa.ipc.open_stream(pa.memory_map(path)).read_all()
        rows = list(range(table.num_rows))
        random.Random(1).shuffle(rows)
        for row in rows[:3000]:
            table.slice(row, 1).to_pylist()
            time.sleep(0.0003)
        await_resident(0.9 * 48 * 2**20)
        """,
        path,
    )
    assert only(facts).order in ORDERS
    assert only(facts).read_bytes >= LEAST


def test_a_program_that_advises_the_kernel_and_touches_heads_in_order_is_not_random(
    far: Path,
    run: Ran,
) -> None:
    """The program is faster than the reader until it has seen all heads: nothing that was read
    ahead is touched until then.  This is no reason to stop."""
    facts, _ = run(
        """
        memory = mapped()
        for at in range(0, len(memory), 100 * 4096):
            memory.madvise(mmap.MADV_WILLNEED, at, min(100 * 4096, len(memory) - at))
            memory[at]
        for _ in range(3000):
            memory[random.randrange(len(memory))]
            time.sleep(0.0003)
        await_resident(0.97 * len(memory))
        """,
        made(far / "data.bin"),
    )
    assert only(facts).order in ORDERS, facts
    assert only(facts).hit_bytes > 0.5 * only(facts).read_bytes


def made(path: Path) -> Path:
    """Write a cold file."""
    path.write_bytes(random.randbytes(SIZE))
    evict(path)
    return path
