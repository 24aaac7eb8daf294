"""A training from an LMDB of JPEGs on slow storage, read by py-lmdb and by FeedDataset.

    python lab/benchmarks/feed_training.py              needs root for the throttled volume
    python lab/benchmarks/feed_training.py --page       the page again, from the kept results

Each training is recorded by `penstock run`, after eviction of the file; the result of `penstock
compare` for the two goes into docs/experiments/feed.json, and the page beside is made from the
result.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bars import PENSTOCK, ROOT, Bar, machine, report, scratch
from peers import compared, versions

from penstock.errors import PenstockError
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.feed import open_index
from penstock.places import tiers
from penstock.runs.run import open_run
from penstock_lab import data
from penstock_lab.places import LATENCY_BPS, LATENCY_S, THROTTLED_BPS, THROTTLED_HZ
from penstock_lab.tier import capped, slow

COMMAND = "python lab/benchmarks/feed_training.py"
RESULTS = ROOT / "docs" / "experiments" / "feed.json"
PAGE = ROOT / "docs" / "experiments" / "feed.md"
NOT_BOUND = 0.05  # of the wall time: a report's limit for "not input bound"

TRAINING = """
import io, sys
import lmdb, numpy, torch
from PIL import Image
path, reader = sys.argv[1:]
labels = [int(line) for line in open(path + "/labels.txt")]

def decoded(data, i):
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (64, 64))
        small = image.convert("RGB").resize((64, 64))
    pixels = torch.from_numpy(numpy.asarray(small).copy())
    return pixels.permute(2, 0, 1).float() / 255, labels[i]

class Plain(torch.utils.data.Dataset):
    env = None
    def __init__(self):
        with lmdb.open(path, readonly=True, lock=False) as env:
            self.n = env.stat()["entries"]
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        if self.env is None:
            self.env = lmdb.open(path, readonly=True, lock=False, readahead=False, meminit=False)
        with self.env.begin() as txn:
            return decoded(txn.get(b"%08d" % i), i)

if reader == "feed":
    from penstock.adapters.torch import FeedDataset
    dataset = FeedDataset(path, decode=lambda record: decoded(record.tobytes(), int(record.key)))
else:
    dataset = Plain()
torch.manual_seed(1)
torch.set_num_threads(1)
loader = torch.utils.data.DataLoader(dataset, 32, shuffle=True, num_workers=1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 5), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 5, 2), torch.nn.ReLU(),
    torch.nn.Flatten(), torch.nn.LazyLinear(8))
model(torch.zeros(1, 3, 64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""


DATA = (
    "pictures of `penstock bench data`, of ImageNet's sizes, as photographs compress; the label is "
    "the one of eight tints that a picture has"
)


def made(folder: Path, n: int) -> Path:
    """Make an LMDB of JPEGs with the labels beside the LMDB, unless present."""
    path, kind = folder / f"pictures-{n}.lmdb", data.KINDS["imagenet-chien"]
    if not (path / "labels.txt").exists():
        planned = data.plan(kind.name, "lmdb", n / kind.n)
        data.make(planned, path)
        (path / "labels.txt").write_text("\n".join(str(label % 8) for label in planned.labels))
    return path


def training(folder: Path, path: Path, reader: str, wrap: Callable[[list[str]], list[str]]) -> Path:
    """Record a training; path: of the LMDB, as seen there."""
    run = folder / reader
    shutil.rmtree(run, ignore_errors=True)
    tiers.evict(path / "data.mdb")
    program = folder / "training.py"
    program.write_text(TRAINING)
    command = [PENSTOCK, "run", "-q", "-o", run, "--", sys.executable, program, path, reader]
    subprocess.run(wrap(list(map(str, command))), check=True)
    return run


# --- storage -------------------------------------------------------------------------------------


@contextmanager
def throttled(path: Path) -> Iterator[tuple[Path, Callable[[list[str]], list[str]]]]:
    with capped(path, bandwidth=THROTTLED_BPS, iops=THROTTLED_HZ) as group:
        yield path, group.wrapped


@contextmanager
def far(path: Path) -> Iterator[tuple[Path, Callable[[list[str]], list[str]]]]:
    with slow(path, bandwidth=LATENCY_BPS, latency_s=LATENCY_S) as tier:
        yield Path(tier.path), list


STORAGE = {
    "a volume of 200 MB/s and 2,000 requests/s": throttled,
    "a tier of 1 ms latency": far,
}


@dataclass(frozen=True, slots=True)
class FedTraining:
    """A recorded training.  stall_share: share of data wait in the wall time of the steps."""

    reader: str
    wall_s: float
    data_wait_s: float
    stall_share: float
    steps: int
    verdict: str


def seen(run: Path, reader: str) -> FedTraining:
    with open_run(run) as opened:
        measures = measure(opened)
    training, verdict = measures.training, report_of(measures).verdict
    wall_s, wait_s = training.wall_s or 0.0, training.data_wait_s or 0.0
    return FedTraining(reader, wall_s, wait_s, wait_s / wall_s, training.steps, verdict.headline)


# --- the page ------------------------------------------------------------------------------------


PREFACE = """# Feed: a training whose wait is gone

    {command}

Written by that command, from feed.json. A small convolutional network is trained for one epoch
from an LMDB of {records:,} JPEGs of {record_kb:.0f} KB, shuffled, in batches of 32, by one worker:
once by py-lmdb as most data sets use it (`readahead=False, lock=False`), once with `FeedDataset`
in its place. The program is the same but for the data set. Each training is recorded by `penstock
run`, with the LMDB out of memory before it; the data wait is what the training was blocked for a
batch.

{about}

{machine}. {day}. {beside}"""


def page(results: dict) -> str:
    about = textwrap.fill(f"The data: {results['data']}.", 100)
    beside = compared("feed_training", results.get("peers", {}))
    lines = [PREFACE.format(command=COMMAND, about=about, beside=beside, **results)]
    for place, result in results["places"].items():
        lines += ["", f"## On {place}", ""]
        lines += ["| reader | training | data wait | of the training | verdict of the report |"]
        lines += ["| --- | ---: | ---: | ---: | --- |"]
        for each in (FedTraining(**run) for run in result["runs"]):
            lines.append(
                f"| {each.reader} | {each.wall_s:.1f} s | {each.data_wait_s:.2f} s | "
                f"{each.stall_share:.1%} | {each.verdict} |".replace("%", " %")
            )
        lines += ["", "`penstock compare` says:", ""]
        lines += [f"    {line}".rstrip() for line in result["compare"].rstrip().splitlines()]
    lines += ["", *[f"* {why}" for why in results["missing"]]]
    return "\n".join(lines).rstrip() + "\n"


def main(folder: Path | None = None, n: int = 1000) -> list[Bar]:
    place = folder or scratch("feed-training")
    path = made(place, n)
    places: dict[str, dict] = {}
    missing, bars, here = [], [], machine()
    for name, storage in STORAGE.items():
        try:
            with storage(path) as (there, wrap):
                runs = [training(place, there, reader, wrap) for reader in ("lmdb", "feed")]
        except PenstockError as error:
            missing.append(f"not measured on {name}: {error}")
            continue
        said = subprocess.run(
            [PENSTOCK, "compare", *(run.name for run in runs)],
            cwd=place, env=os.environ | {"COLUMNS": "100"}, capture_output=True, text=True,
        )  # fmt: skip
        before, after = (seen(run, run.name) for run in runs)
        places[name] = {"runs": [asdict(before), asdict(after)], "compare": said.stdout}
        print(said.stdout)
        bars.append(
            Bar(
                f"a training on {name}: data wait, FeedDataset against py-lmdb",
                f"< {NOT_BOUND:.0%}".replace("%", " %"),
                f"{after.data_wait_s:.2f} s ({after.stall_share:.1%}) against "
                f"{before.data_wait_s:.2f} s ({before.stall_share:.1%})".replace("%", " %"),
                after.stall_share < NOT_BOUND,
                COMMAND,
            )
        )
    results = {
        "machine": here, "day": day(), "peers": versions("feed_training"), "records": n,
        "data": DATA,
        "record_kb": open_index(path).total_bytes / n / 1e3, "places": places, "missing": missing,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(results))
    return bars


def day() -> str:
    from datetime import UTC, datetime

    return str(datetime.now(UTC).date())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.page:
        PAGE.write_text(page(json.loads(RESULTS.read_text())))
    else:
        report(main(asked.folder, asked.records))
