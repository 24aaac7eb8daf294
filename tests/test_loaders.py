"""Loaders that stand on no framework: a wait is seen where a program reads them, once a batch."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import penstock
from penstock.measures import measure
from penstock.questions import prepare
from penstock.run import open_run

pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)

# 12 items of 25 ms, 2 a batch: 6 batches.
COMMON = """
import threading, queue, time
import penstock, torch

def item(number):
    time.sleep(0.025)
    return number

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def update():
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def train(batches):
    for batch in batches:
        update()

update()  # what takes seconds the first time, while a loader reads ahead
window = penstock.record("run")
"""
NODES = """
import torchdata.nodes as nodes
node = nodes.ParallelMapper(nodes.IterableWrapper(range(12)), item, num_workers=1, method="thread")
batches = nodes.Prefetcher(nodes.Batcher(node, 2), prefetch_factor=1)
"""
LOADERS = {
    "torchdata Loader": ("torchdata.nodes", NODES + "train(nodes.Loader(batches))"),
    "torchdata node": ("torchdata.nodes", NODES + "batches.reset(); train(batches)"),
    "spdl": (
        "spdl.pipeline",
        """
        import spdl.pipeline
        made = spdl.pipeline.PipelineBuilder().add_source(range(12)).pipe(item).aggregate(2)
        pipeline = made.add_sink(1).build(num_threads=1)
        with pipeline.auto_stop():
            train(pipeline.get_iterator(timeout=60))
        """,
    ),
    "webdataset": (
        "webdataset",
        """
        import webdataset
        source = lambda: ((item(number),) for number in range(12))
        train(webdataset.DataPipeline(source, webdataset.batched(2)))
        """,
    ),
}


@pytest.mark.parametrize(("module", "body"), LOADERS.values(), ids=LOADERS)
def test_a_batch_is_one_wait_of_the_thread_that_reads(
    tmp_path: Path, module: str, body: str
) -> None:
    pytest.importorskip(module, reason=f"no {module}: pip install 'penstock[frameworks]'")
    ran(tmp_path, body)
    with open_run(tmp_path / "run") as run:
        known = measure(run)
        names = {name for (name,) in run.sql("select key from notes where key like 'adapter%'")}
    assert not names
    assert known.training.steps == 6
    assert sum(row.batches for row in known.epochs) == 6
    # The first batch is start-up; five times 50 ms come after it.
    assert known.training.data_wait_s > 0.2
    assert known.training.pooled_waits == 5


def ran(folder: Path, body: str) -> None:
    program = COMMON + textwrap.dedent(body) + "\nwindow.stop()\n"
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def test_webloader_is_seen_as_the_dataloader_that_it_reads(tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="no webdataset: pip install 'penstock[frameworks]'")
    ran(
        tmp_path,
        """
        import webdataset
        source = lambda: ((item(number),) for number in range(12))
        data = webdataset.DataPipeline(source, webdataset.batched(2))
        train(webdataset.WebLoader(data, batch_size=None, num_workers=1))
        """,
    )
    with open_run(tmp_path / "run") as run:
        known = measure(run)
    assert known.training.steps == 6
    assert known.training.pooled_waits == 0
    assert [row.fetches for row in known.workers] == [6]


def test_waits_of_a_thread_that_feeds_the_steps_are_kept_apart(tmp_path: Path) -> None:
    ran(
        tmp_path,
        """
        class Items(torch.utils.data.Dataset):
            __len__ = lambda self: 12
            __getitem__ = lambda self, number: item(number)

        taken = queue.Queue(2)
        def drain():
            for batch in torch.utils.data.DataLoader(Items(), 2):
                taken.put(batch)
            taken.put(None)
        threading.Thread(target=drain).start()
        train(iter(taken.get, None))
        """,
    )
    with open_run(tmp_path / "run") as run, run.connection.cursor() as engine:
        prepare(engine, ("helper_waits", "steps", "mains"))
        waits = engine.execute(
            "select h.end_ns - h.start_ns >= 50000000 and t.is_main = false from helper_waits h"
            " join threads t on t.thread = h.thread where index is not null order by h.start_ns"
        ).fetchall()
        assert engine.execute("select steps from mains").fetchall() == [(6,)]
    assert waits[:6] == [(True,)] * 6
