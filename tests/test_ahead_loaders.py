"""`penstock run --ahead` with PyTorch loaders, which send the order of their files to the reader.

The test's own socket stands for the reader where the messages are the matter; the batches of the
same loader without a wrapper, and the states of the generators, are the truth.
"""

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.places.tiers import evict
from test_ahead import Ran, ahead
from test_ahead_folders import made
from test_ahead_programs import far, folder

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.adapters.torch_ahead import wrap_next_index  # noqa: E402

__all__ = ["far", "folder", "run"]

run = ahead  # the fixture, by another name: parameters are called so

N_FILES = 300
HEAD, ENTRY = struct.Struct("<IIIIQQQ"), struct.Struct("<QI")
NEW_PASS, ONLY_DISPATCHED = 1, 2


class Reader:
    """Receives what loaders send, as native/ahead does."""

    def __init__(self) -> None:
        self.name = f"penstock-test-{os.getpid()}-{random.getrandbits(32):x}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{self.name}")
        self.socket.setblocking(False)
        self.are_all_sent = True
        self._passes: list[tuple[int, list[str], list[str]]] = []

    def answer(self, wish: int) -> None:
        """Answer the sender of the oldest message: 0 all, 1 few, 2 nothing."""
        text, sender = self.socket.recvfrom(1 << 16)
        number = HEAD.unpack_from(text)[1]
        self.socket.sendto(struct.pack("<II", number, wish), sender)

    def passes(self) -> list[tuple[int, list[str], list[str]]]:
        """Return the flags, the folder and the files of each pass, in the order of positions.

        The kernel keeps some hundred messages: of long passes, take them meanwhile.
        """
        passes = self._passes
        while True:
            try:
                text = self.socket.recv(1 << 16)
            except BlockingIOError:
                return passes
            _, _, flags, n, done, dispatched, _ = HEAD.unpack_from(text)
            assert done <= dispatched
            at = HEAD.size
            for number in range(n):
                position, length = ENTRY.unpack_from(text, at)
                at += ENTRY.size + length
                path = os.fsdecode(text[at - length : at])
                if flags & NEW_PASS and not number:
                    passes.append((flags, [path], []))
                    continue
                if self.are_all_sent and not flags & ONLY_DISPATCHED:
                    assert position == len(passes[-1][2]), "each position once, in order"
                passes[-1][2].append(path)
            assert at == len(text)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Wrap the loaders of this process; yield the reader that gets their order."""
    from torch.utils.data import dataloader

    made_here = Reader()
    kind = dataloader._BaseDataLoaderIter
    wrapped = wrap_next_index(made_here.name)(kind._next_index)
    monkeypatch.setattr(kind, "_next_index", wrapped)
    yield made_here
    made_here.socket.close()


class Files(Dataset[Any]):
    """A data set like ImageFolder; its samples are the numbers, so that batches tell the order."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.samples = [(str(path), 0) for path in sorted(root.iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> int:
        torch.rand(1), random.random()  # as a transform that is drawn
        return number


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("files")
    for number in range(N_FILES):
        (root / f"{number:05}.jpg").touch()
    return Files(root)


class Odd(RandomSampler):
    """A sampler of a class that is not known."""


def seeded() -> Any:
    return torch.Generator().manual_seed(5)


ORDERS: dict[str, Callable[[Files], dict[str, Any]]] = {
    "in order": lambda data: {"batch_size": 7},
    "shuffled": lambda data: {"batch_size": 7, "shuffle": True},
    "large batches": lambda data: {"batch_size": 299, "shuffle": True, "drop_last": True},
    "generator": lambda data: {"batch_size": 7, "shuffle": True, "generator": seeded()},
    "replacement": lambda data: {
        "batch_size": 7,
        "sampler": RandomSampler(data, True, 500, generator=seeded()),
    },
    "several rounds": lambda data: {"sampler": RandomSampler(data, False, 700)},
    "weighted": lambda data: {
        "batch_size": 7,
        "sampler": WeightedRandomSampler(torch.arange(1.0, len(data) + 1).tolist(), 400),
    },
    "subset": lambda data: {"batch_size": 7, "sampler": SubsetRandomSampler(range(3, 200, 2))},
    "distributed": lambda data: {
        "batch_size": 7,
        "sampler": DistributedSampler(data, num_replicas=2, rank=1, seed=4),
    },
    "batches": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 9, True)},
    "list": lambda data: {"batch_size": 7, "sampler": list(range(0, 300, 3))},
    "no batches": lambda data: {"batch_size": None, "shuffle": True},
}


def states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate()]


def epochs(
    files: Files,
    options: dict[str, Any],
    workers: int,
    look: Callable[[], object] = lambda: None,
) -> tuple[list[list[int]], Any]:
    """Run two epochs, of which the first ends early; return the numbers and the states."""
    torch.manual_seed(3)
    random.seed(3)
    loader = DataLoader(files, num_workers=workers, **options)
    numbers: list[list[int]] = []
    seen = []
    for most in (5, 1000):
        numbers.append([])
        for n, batch in enumerate(loader):
            look()
            numbers[-1] += batch.reshape(-1).tolist() if hasattr(batch, "reshape") else [batch]
            seen.append((states(), torch.rand(1).item()))
            if n == most:
                break
        generator = options.get("generator") or getattr(options.get("sampler"), "generator", None)
        seen.append((states(), generator.get_state().tolist() if generator else None))
    return numbers, seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", list(ORDERS))
def test_the_order_is_sent_ahead_and_nothing_else_changes(
    files: Files, reader: Reader, monkeypatch: pytest.MonkeyPatch, order: str, workers: int
) -> None:
    if workers and order not in ("shuffled", "replacement"):
        pytest.skip("the order is made in the main process; two kinds are enough")
    options = ORDERS[order]
    sent_to = epochs(files, options(files), workers, reader.passes)
    passes = reader.passes()
    monkeypatch.undo()
    assert epochs(files, options(files), workers) == sent_to
    assert [flags for flags, _, _ in passes] == [NEW_PASS] * 2
    for numbers, (_, root, paths) in zip(sent_to[0], passes, strict=True):
        assert root == [files.root]
        wanted = [files.samples[number][0] for number in numbers]
        assert paths[: len(wanted)] == wanted
        assert len(paths) > len(wanted) or len(wanted) >= 98


def test_of_a_sampler_that_is_not_known_batches_are_sent_when_they_are_handed_out(
    files: Files, reader: Reader
) -> None:
    loader = DataLoader(files, 10, sampler=Odd(files))
    iterator = iter(loader)
    next(iterator)
    ((flags, _, paths),) = reader.passes()
    assert flags == NEW_PASS | ONLY_DISPATCHED
    assert len(paths) == 10


def test_an_order_that_the_program_changes_meanwhile_is_dropped(
    files: Files, reader: Reader
) -> None:
    generator = seeded()
    sampler = RandomSampler(files, True, 2000, generator=generator)
    numbers = []
    for n, batch in enumerate(DataLoader(files, 10, sampler=sampler)):
        numbers += batch.tolist()
        reader.passes()
        if n == 10:
            generator.manual_seed(9)
    passes = reader.passes()
    assert [flags for flags, _, _ in passes] == [NEW_PASS, NEW_PASS | ONLY_DISPATCHED]
    paths = passes[1][2]
    assert paths == [files.samples[number][0] for number in numbers[-len(paths) :]]


@pytest.mark.parametrize(("wish", "n_sent"), [(0, 200), (1, 13), (2, 0)])
def test_a_loader_sends_what_the_reader_asks_for(
    files: Files, reader: Reader, wish: int, n_sent: int
) -> None:
    """Of files that are in memory it sends few, of a wrong guess nothing: also in the next pass."""
    loader = DataLoader(files, 10, sampler=range(200))
    reader.are_all_sent = False
    next(iter(loader))
    reader.answer(wish)
    batches = iter(loader)
    next(batches)  # sends, and takes the answer
    del batches
    while reader.passes():
        reader._passes.clear()
    numbers = [int(number) for batch in loader for number in batch]
    assert numbers == list(range(200))
    assert [len(paths) for _, _, paths in reader.passes()] == ([n_sent] if n_sent else [])


def test_nothing_is_sent_to_a_descriptor_that_the_program_put_in_place(
    files: Files, reader: Reader
) -> None:
    """As of a program that closes all descriptors, and opens connections of its own."""
    before = sockets()
    batches = iter(DataLoader(files, 10))
    next(batches)
    (number,) = [number for link, number in sockets().items() if link not in before]
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    os.dup2(mine.fileno(), number)
    assert sum(len(batch) for batch in batches) == N_FILES - 10
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(100)
    os.close(number)  # nobody else closed it
    mine.close()
    other.close()


def sockets() -> dict[str, int]:
    """Return the descriptors of sockets, by the kernel's name."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links[os.readlink(f"/proc/self/fd/{name}")] = int(name)
    return {link: number for link, number in links.items() if link.startswith("socket:")}


class Named(Files):
    """Names without their folder, as of a list of labels."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.names = [os.path.basename(path) for path, _ in self.samples]
        del self.samples

    def __len__(self) -> int:
        return len(self.names)


class Pairs(Files):
    """Images and masks."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.images = [Path(path) for path, _ in self.samples]
        self.masks = [str(path) for path in self.images[::-1]]
        del self.samples

    def __len__(self) -> int:
        return len(self.images)


class Drawn(Dataset[Any]):
    """A data set of which each item is drawn anew, and which may not be asked before its time."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, number: int) -> Any:
        self.asked.append(number)
        return self.inner[number]


def paths_of(reader: Reader, dataset: Any) -> list[str]:
    next(iter(DataLoader(dataset, 4)))
    return reader.passes()[-1][2]


def test_the_files_of_data_sets_of_several_kinds(files: Files, reader: Reader) -> None:
    root = Path(files.root)
    all_paths = [path for path, _ in files.samples]
    assert paths_of(reader, Subset(files, [7, 3])) == [all_paths[7], all_paths[3]]
    assert paths_of(reader, ConcatDataset([Subset(files, [5]), files])) == [
        all_paths[5],
        *all_paths,
    ]
    assert paths_of(reader, Named(root)) == all_paths
    both = zip(all_paths, all_paths[::-1], strict=True)
    pairs = Pairs(root)
    next(iter(DataLoader(pairs, 4)))
    messages = reader.socket.recv(1 << 16)
    assert all(os.fsencode(path) in messages for pair in list(both)[:50] for path in pair)


def test_a_data_set_is_not_asked_for_samples(files: Files, reader: Reader) -> None:
    drawn = Drawn(Drawn(files))
    assert paths_of(reader, drawn) == [path for path, _ in files.samples]
    assert (drawn.asked, drawn.inner.asked) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_data_set_without_files_sends_nothing(reader: Reader) -> None:
    assert sum(len(batch) for batch in DataLoader(list(range(50)), 8)) == 50  # type: ignore[arg-type]
    data = torch.utils.data.TensorDataset(torch.zeros(30, 2))
    assert sum(len(batch) for (batch,) in DataLoader(data, 8)) == 30
    assert reader.passes() == []


# --- the reader itself ---------------------------------------------------------------------------

PROGRAM = """
import hashlib, os, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset

class Folder(Dataset):
    def __init__(self):
        self.samples = [(str(file), 0) for file in sorted(Path(path).rglob("*.jpg"))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, number):
        return {item}

if __name__ == "__main__":
    torch.manual_seed(1)
    digest = hashlib.sha256()
    for batch in DataLoader(Folder(), 16, shuffle=True, num_workers=2):
        digest.update(str(batch).encode())
        {after}
    print(digest.hexdigest(), torch.rand(1).item())
"""
READ = "(hash(Path(self.samples[number][0]).read_bytes()[:8].hex()) and number)"


def test_files_are_read_in_the_order_of_the_loader(far: Path, folder: Path, run: Ran) -> None:
    made(folder / "behind", 5)
    # A batch takes the time that the reader needs for it.
    source = PROGRAM.format(item=READ, after="time.sleep(0.02)")
    facts, printed = run(source, far / "set")
    (words,) = facts["files"]
    assert (words[0], words[6]) == ("loader", f"{far}/set/")
    assert words[1] >= 0.5 * 600 * 50_000
    assert words[2] >= 0.9 * words[1]
    again, printed_again = run(source, far / "set")
    assert printed_again == printed
    read_again = sum(entry[1] for entry in again["files"])
    assert read_again <= 0.05 * 600 * 50_000, "nearly everything is in memory now"


def test_files_that_the_program_does_not_open_are_read_no_further(
    far: Path, folder: Path, run: Ran
) -> None:
    made(folder / "behind", 5)
    source = PROGRAM.format(item="number", after="time.sleep(0.05)")
    facts, _ = run(source, far / "set")
    (words,) = facts["files"]
    assert words[0] == "off"
    assert "fewer than a quarter of the files" in words[5]
    assert words[2] == 0


def test_files_that_the_program_reads_past_the_page_cache_are_read_no_further(
    folder: Path, run: Ran
) -> None:
    files = made(folder, 5)
    for file in files.rglob("*.jpg"):
        file.write_bytes(os.urandom(65536))
        evict(file)
    item = "direct(self.samples[number][0])"
    source = PROGRAM.format(item=item, after="").replace(
        "class Folder",
        """
import mmap
room = mmap.mmap(-1, 1 << 16)
def direct(file):
    handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
    got = os.readv(handle, [room])
    time.sleep(0.02)
    os.close(handle)
    return got

class Folder""",
    )
    facts, _ = run(source, files)
    (words,) = facts["files"]
    assert (words[0], words[5]) == ("off", "the program reads past the page cache (O_DIRECT)")


def test_a_limit_bounds_what_is_read_and_not_yet_used(far: Path, folder: Path, run: Ran) -> None:
    """The program stops after its third batch: no more than the limit is read for what follows."""
    made(folder / "behind", 5)
    after = "if len(seen := globals().get('seen', []) + [batch]) == 3: time.sleep(2); break"
    source = PROGRAM.format(item=READ, after=after)
    facts, _ = run(source, far / "set", "--ahead-limit", "5MB")
    handed_out = (3 + 2 * 2) * 16 * 50_000
    assert 4_000_000 <= facts["files"][0][1] <= handed_out + 5_000_000
