"""`penstock run --ahead` with PyTorch loaders of data sets within mapped files: Arrow and arrays.

The test's own socket stands for the reader where the messages are the matter.  The truth of a range
is the file: the bytes there are the bytes that the data set returns.
"""

import os
import random
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.adapters.torch_ahead import HEAD, RANGE
from penstock.adapters.torch_ranges import Mapped, Range, arrow_rows, records
from penstock.recording.ahead import READING, ReadAhead
from test_ahead import Ran, ahead
from test_ahead_loaders import Reader, reader, states
from test_ahead_programs import far, folder

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset  # noqa: E402

__all__ = ["far", "folder", "reader", "run"]

run = ahead  # the fixture, by another name: parameters are called so

NAME, BYTES, OFFSETS_32, OFFSETS_64 = range(4)
NEW_PASS, RANGES, GUESS = 1, 4, 8
ROOT = 0xFFFFFFFF
N_ROWS = 700


def content(place: Range) -> bytes:
    """Return the bytes of a range, as the reader finds them."""
    text = Path(place.path).read_bytes()
    start, end = place.offset, place.offset + place.bytes
    if place.kind != BYTES:
        form = "<2i" if place.kind == OFFSETS_32 else "<2q"
        first, last = struct.unpack_from(form, text, place.at)
        start, end = start + first * place.width, start + last * place.width
    return text[start:end]


class Sent:
    """The flags, the root, and the positions and ranges of each pass that a reader was sent.

    The kernel keeps ten messages: of long passes, take them meanwhile.
    """

    def __init__(self, reader: Reader) -> None:
        self.passes: list[tuple[int, str, list[tuple[int, Range]]]] = []
        self._socket = reader.socket
        self._paths: dict[int, str] = {}

    def take(self) -> list[tuple[int, str, list[tuple[int, Range]]]]:
        while True:
            try:
                text = self._socket.recv(1 << 16)
            except BlockingIOError:
                return self.passes
            _, _, flags, n, *_ = HEAD.unpack_from(text)
            at = HEAD.size
            for _ in range(n):
                position, file, kind, length, *numbers = RANGE.unpack_from(text, at)
                at += RANGE.size + length
                words = os.fsdecode(text[at - length : at])
                if kind == NAME and file == ROOT:
                    self.passes.append((flags, words, []))
                elif kind == NAME:
                    self._paths[file] = words
                else:
                    place = Range(self._paths[file], kind, *numbers)
                    self.passes[-1][2].append((position, place))
            assert at == len(text)


# --- Arrow ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a Hugging Face data set in two mapped files, of several batches of rows."""
    datasets = pytest.importorskip("datasets")
    kinds = {
        "image": datasets.Value("binary"),
        "text": datasets.Value("large_string"),
        "ids": datasets.List(datasets.Value("int32")),
        "box": datasets.List(datasets.Value("float32"), length=4),
        "meta": {"name": datasets.Value("string"), "label": datasets.Value("int64")},
    }
    folder = tmp_path_factory.mktemp("rows")
    parts = []
    for part in range(2):
        path = str(folder / f"{part}.arrow")
        with datasets.arrow_writer.ArrowWriter(
            path=path, features=datasets.Features(kinds), writer_batch_size=90
        ) as writer:
            for number in range(part * N_ROWS // 2, (part + 1) * N_ROWS // 2):
                writer.write(row_of(number))
            writer.finalize()
        parts.append(datasets.Dataset.from_file(path))
    return datasets.concatenate_datasets(parts)


def row_of(number: int) -> dict[str, Any]:
    drawn = random.Random(number)
    return {
        "image": drawn.randbytes(3000 + number),
        "text": f"text {number} " * (number % 7),
        "ids": list(range(number, number + number % 50)),
        "box": [float(number)] * 4,
        "meta": {"name": f"n{number}", "label": number},
    }


def contents_of(number: int) -> list[bytes]:
    row = row_of(number)
    return [
        row["image"],
        row["text"].encode(),
        np.array(row["ids"], np.int32).tobytes(),
        np.array(row["box"], np.float32).tobytes(),
        row["meta"]["name"].encode(),
        number.to_bytes(8, "little"),
    ]


def test_the_bytes_of_each_row_are_where_the_ranges_are(rows: Any) -> None:
    places = arrow_rows(rows, Mapped())
    assert places is not None
    for number in range(0, N_ROWS, 13):
        assert sorted(map(content, places(number))) == sorted(contents_of(number))


def test_rows_that_were_shuffled_selected_or_chosen_by_column(rows: Any) -> None:
    shuffled = rows.shuffle(seed=3).select(range(5, 300))
    places = arrow_rows(shuffled, Mapped())
    assert places is not None
    for number in range(0, 295, 29):
        label = shuffled[number]["meta"]["label"]
        assert sorted(map(content, places(number))) == sorted(contents_of(label))
    formatted = arrow_rows(rows.with_format("numpy", columns=["ids"]), Mapped())
    assert formatted is not None
    assert [content(place) for place in formatted(77)] == [contents_of(77)[2]]
    sliced = arrow_rows(rows.select(range(100, 500)), Mapped())
    assert sliced is not None
    assert sorted(map(content, sliced(3))) == sorted(contents_of(103))


def test_a_loader_sends_the_rows_in_its_order_and_nothing_else_changes(
    rows: Any, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = Sent(reader)

    def labels(data: Any) -> list[Any]:
        torch.manual_seed(4)
        numbers = []
        for batch in DataLoader(data, 16, shuffle=True, collate_fn=list):
            numbers += [row["meta"]["label"] for row in batch]
            messages.take()
        return [numbers, states()]

    both = Subset(ConcatDataset([rows, rows]), range(650, 800))
    seen, seen_again = labels(rows), labels(both)
    passes = messages.take()
    monkeypatch.undo()
    assert [labels(rows), labels(both)] == [seen, seen_again]
    assert [flags for flags, _, _ in passes] == [NEW_PASS | RANGES] * 2
    for (_, root, ranges), (numbers, _) in zip(passes, (seen, seen_again), strict=True):
        assert root == os.path.dirname(ranges[0][1].path) + "/"
        images = [content(place) for _, place in ranges[::6]]
        assert images == [row_of(number)["image"] for number in numbers]
        assert [position for position, _ in ranges[::6]] == list(range(len(numbers)))


# --- records -------------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """A data set of a mapped array, with the sizes that are its attributes."""

    def __init__(self, array: Any, n: int, **sizes: int) -> None:
        self.array, self.n = array, n
        self.__dict__.update(sizes)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> Any:
        return self.array[number]


@pytest.fixture
def tokens(tmp_path: Path) -> Any:
    path = tmp_path / "tokens.bin"
    path.write_bytes(os.urandom(2_000_002))
    return np.memmap(path, np.uint16, mode="r")


def test_parts_windows_and_rows_of_mapped_arrays(tokens: Any, tmp_path: Path) -> None:
    n, mapped = len(tokens), Mapped()
    parts = records(Items(tokens, (n - 1) // 128, block_size=128), mapped)
    windows = records(Items(tokens, n - 128), mapped)
    skipped = records(Items(tokens[100:], n - 228), mapped)
    assert parts is not None
    assert windows is not None
    assert skipped is not None
    for number in (0, 5, 700, (n - 1) // 128 - 1):
        end = 128 * (number + 1) + 1
        assert content(parts(number)[0]) == tokens[128 * number : end].tobytes()
        assert content(windows(number)[0]) == tokens[number : number + 129].tobytes()
        assert content(skipped(number)[0]) == tokens[100 + number :][:129].tobytes()
    np.save(tmp_path / "rows.npy", np.arange(400_000).reshape(1000, 400))
    array = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for rows_of_array in (array, torch.from_numpy(array)):
        places = records(Items(rows_of_array, 1000), mapped := Mapped())
        assert places is not None
        assert content(places(999)[0]) == array[999].tobytes()


def test_nothing_is_sent_of_what_is_in_memory_or_not_known(tokens: Any, reader: Reader) -> None:
    """Controls: data in memory, sizes without a relation to the samples, a removed file."""
    sets: list[Any] = [
        Items(np.array(tokens), 1000, block_size=1000),
        Items(torch.zeros(1000, 1000), 1000),
        Items(tokens, 100),  # parts of 9,902 to 10,000 items
        Items(tokens[::2], len(tokens) // 2),
        Items(tokens, 3 * len(tokens)),
        Items(tokens[:1000], 1000),  # small
    ]
    for data in sets:
        next(iter(DataLoader(data, 4, sampler=range(8))))
    os.remove(tokens.filename)
    next(iter(DataLoader(Items(tokens, len(tokens) - 128), 4, sampler=range(8))))
    assert Sent(reader).take() == []


def test_nothing_is_sent_of_rows_in_memory(reader: Reader) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["word " * 1000] * 500})
    assert sum(len(batch) for batch in DataLoader(data, 8, collate_fn=list)) == 500
    assert Sent(reader).take() == []


# --- the reader itself ---------------------------------------------------------------------------

TOKENS = """
import hashlib, numpy as np, torch
from torch.utils.data import DataLoader, Dataset

class Tokens(Dataset):
    def __init__(self):
        self.tokens = np.memmap(path, np.uint16, mode="r")
        self.block = 1024
    def __len__(self):
        return len(self.tokens) // self.block
    def __getitem__(self, number):
        {number}
        return torch.from_numpy(self.tokens[number * self.block:][:self.block].astype(np.int64))

if __name__ == "__main__":
    torch.manual_seed(1)
    digest, data = hashlib.sha256(), Tokens()
    time.sleep(0.3)
    for n, batch in zip(range(40), DataLoader(data, 8, shuffle=True, num_workers={workers})):
        digest.update(batch.numpy().tobytes())
        time.sleep(0.03)
    print(digest.hexdigest(), torch.rand(1).item())
"""


def token_file(behind: Path) -> None:
    with (behind / "tokens.bin").open("wb") as file:
        for _ in range(96):
            file.write(os.urandom(1 << 20))


@pytest.mark.alone  # the guess has to be seen right before most samples are read
@pytest.mark.parametrize("workers", [0, 2])
def test_records_are_read_in_the_order_of_the_loader(
    far: Path, folder: Path, run: Ran, workers: int
) -> None:
    """The file is larger than the limit: without the order, nothing could be read."""
    token_file(folder / "behind")
    source = TOKENS.format(number="", workers=workers)
    facts, printed = run(source, far / "tokens.bin", "--ahead-limit", "20MB")
    (words,) = facts["files"]
    assert (words[0], words[6]) == ("loader", f"{far}/tokens.bin")
    assert words[1] >= 0.4 * 320 * 2048
    assert words[2] >= 0.5 * words[1] - 1024 * 2050, "read, and not yet handed out"
    assert words[2] >= 0.3 * 320 * 2048
    assert run(source, far / "tokens.bin", "--ahead-limit", "1MB")[1] == printed


def test_records_in_an_order_of_the_data_sets_own_are_not_read(
    far: Path, folder: Path, run: Ran
) -> None:
    token_file(folder / "behind")
    source = TOKENS.format(number="number = len(self) - 1 - number", workers=0)
    facts, _ = run(source, far / "tokens.bin", "--ahead-limit", "20MB")
    loader = [words for words in facts["files"] if words[6] == f"{far}/tokens.bin"]
    assert all(words[0] == "off" for words in loader)
    assert "its samples are not where they were expected" in [words[5] for words in loader]
    assert [words[1] for words in loader] == [0] * len(loader)


ROWS = """
import hashlib, torch, datasets
from torch.utils.data import DataLoader

if __name__ == "__main__":
    torch.manual_seed(1)
    digest, data = hashlib.sha256(), datasets.Dataset.from_file(path)
    time.sleep(0.3)
    loader = DataLoader(data, 8, shuffle=True, num_workers={workers}, collate_fn=list)
    for n, batch in zip(range(40), loader):
        digest.update(b"".join(row["image"] for row in batch))
        time.sleep(0.05)
    print(digest.hexdigest(), torch.rand(1).item())
"""


@pytest.mark.alone  # samples have to be read before the program asks
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_read_in_the_order_of_the_loader(
    far: Path, folder: Path, run: Ran, workers: int
) -> None:
    datasets = pytest.importorskip("datasets")
    with datasets.arrow_writer.ArrowWriter(
        path=str(folder / "behind/data.arrow"),
        features=datasets.Features({"image": datasets.Value("binary")}),
        writer_batch_size=100,
    ) as writer:
        for _ in range(1500):
            writer.write({"image": os.urandom(40_000)})
        writer.finalize()
    source = ROWS.format(workers=workers)
    facts, printed = run(source, far / "data.arrow", "--ahead-limit", "20MB")
    words = next(words for words in facts["files"] if words[0] == "loader")
    assert words[6] == f"{far}/data.arrow"
    assert words[1] >= 0.5 * 320 * 40_000
    assert words[2] >= words[1] - 22_000_000 - 320 * 10_000
    assert run(source, far / "data.arrow", "--ahead-limit", "1MB")[1] == printed


def hostile(drawn: random.Random, path: bytes) -> bytes:
    """Return a message with entries of which any number may be wrong."""
    wrong = [0, 1, 4, 4095, 4096, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1]

    def number(bits: int, least: int = 0) -> int:
        value = drawn.choice([*wrong, drawn.getrandbits(bits)])
        return max(least, value) & ((1 << bits) - 1)

    entries: Sequence[bytes] = [
        RANGE.pack(0, drawn.choice([0, 1, 4095, 4096, ROOT]), NAME, len(path), 0, 0, 0, 0) + path,
        *(
            RANGE.pack(
                *(drawn.randrange(5000), drawn.choice([0, 1, 2, number(32)]), drawn.randrange(6)),
                *(drawn.choice([0, 0, number(16)]), number(32)),
                *(number(64), number(64), number(64)),
            )
            for _ in range(40)
        ),
    ]
    flags = drawn.choice([4, 5, 7, 12, 13, 0, 1, number(32)])
    dispatched = drawn.choice([0, 10, 5000, number(64)])
    head = HEAD.pack(
        *(0x31414850, drawn.randrange(3), flags, drawn.choice([len(entries), number(32)])),
        *(drawn.choice([0, dispatched]), dispatched, number(64)),
    )
    text = head + b"".join(entries)
    return text[: drawn.choice([len(text), len(text), drawn.randrange(len(text))])]


def test_hostile_messages_do_not_end_the_reader(folder: Path) -> None:
    """The messages are of this user; the reader stays, and reads nothing that is not there."""
    path = folder / "data.bin"
    path.write_bytes(os.urandom(3 << 20))
    drawn = random.Random(7)
    with (
        ReadAhead(1 << 30, folder / "run") as reading,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as loader,
    ):
        loader.bind("")
        loader.settimeout(20)
        loader.connect("\0" + reading.environ["PENSTOCK_AHEAD"])
        for n in range(3000):
            loader.send(hostile(drawn, os.fsencode(drawn.choice([path, folder, "/dev/zero", "x"]))))
            if n % 500 == 0:
                time.sleep(0.05)  # some ranges are read
                os.truncate(path, drawn.randrange(1 << 20, 3 << 20))
    assert reading.state == READING
