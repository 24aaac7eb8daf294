"""Loaders that stand on no framework: a wait is seen where a program reads them, once a batch."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import penstock
from fixtures import PENSTOCK, UNCOMPILED
from penstock.explain.measures import measure
from penstock.explain.questions import prepare
from penstock.explain.verdict import level_of, verdict_of
from penstock.runs.run import open_run

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
    program = UNCOMPILED + COMMON + textwrap.dedent(body) + "\nwindow.stop()\n"
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


ALONE = {
    "webdataset": """
        sys.modules["torch"] = None  # as where it is not installed
        import webdataset
        batches = webdataset.DataPipeline(lambda: ((item(n),) for n in range(8)),
                                          webdataset.batched(2))
    """,
    "spdl.pipeline": """
        import spdl.pipeline
        made = spdl.pipeline.PipelineBuilder().add_source(range(8)).pipe(item).aggregate(2)
        pipeline = made.add_sink(1).build(num_threads=1)
        pipeline.start()
        batches = pipeline.get_iterator(timeout=60)
    """,
}


@pytest.mark.parametrize("module", ALONE)
def test_a_loader_is_seen_in_a_program_without_a_framework(tmp_path: Path, module: str) -> None:
    pytest.importorskip(module, reason=f"no {module}: pip install 'penstock[frameworks]'")
    body = """
        for batch in batches:
            with penstock.step():
                time.sleep(0.01)
        assert not sys.modules.get("torch")
        os._exit(0)  # without an end of threads that a pipeline left
    """
    program = "import os, sys, time, penstock\ndef item(n):\n    time.sleep(0.025)\n    return n\n"
    program += textwrap.dedent(ALONE[module]) + textwrap.dedent(body)
    words = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open_run(tmp_path / "run") as run:
        known = measure(run)
    assert [row.batches for row in known.epochs] == [4]


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


# --- loaders without an adapter -------------------------------------------------------------------

# 80 items of 10 ms, 2 a batch; a step computes for 10 ms.  Prints the share of `next` in the wall
# time, by the program's own clock, from the first batch on.
CLOCKED = (
    UNCOMPILED
    + """
import json, sys, time
import numpy as np, penstock, torch
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x):
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return self.linear(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def slow(x):
    time.sleep(0.01)
    return x

def by_two(items):
    items = iter(items)
    for one in items:
        other = next(items)
        yield one, other

def train(batches):
    batches = iter(batches)
    next(batches)
    begun, wait_s = time.perf_counter(), 0.0
    while True:
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        at = time.perf_counter()
        is_over = next(batches, None) is None
        wait_s += time.perf_counter() - at
        if is_over:
            break
    print(json.dumps(wait_s / (time.perf_counter() - begun)))

if __name__ == "__main__":
    made()
    window = penstock.record("run")
    main()
    window.stop()
"""
)
STRANGERS = {
    "datasets": (
        "datasets",
        """
        import datasets
        def numbers():
            yield from ({"x": number} for number in range(80))
        def made():
            pass
        def main():
            rows = datasets.IterableDataset.from_generator(numbers).map(slow)
            train(rows.batch(2))
        """,
    ),
    "litdata": (
        "litdata",
        """
        import litdata
        def row(number):
            return {"x": np.full(8, number)}
        def made():
            litdata.optimize(row, list(range(80)), "lit", chunk_size=20, num_workers=1)
        def main():
            class Rows(litdata.StreamingDataset):
                def __getitem__(self, number):
                    return slow(super().__getitem__(number))
            train(by_two(Rows("lit")))
        """,
    ),
    "MosaicML streaming": (
        "streaming",
        """
        import streaming
        def made():
            with streaming.MDSWriter(out="mds", columns={"x": "int"}) as writer:
                for number in range(80):
                    writer.write({"x": number})
        def main():
            class Rows(streaming.StreamingDataset):
                def __getitem__(self, number):
                    return slow(super().__getitem__(number))
            train(by_two(Rows(local="mds", batch_size=2)))
        """,
    ),
    "SPDL": (
        "spdl.pipeline",
        """
        import spdl.pipeline
        def made():
            pass
        def main():
            built = spdl.pipeline.PipelineBuilder().add_source(range(80)).pipe(slow).aggregate(2)
            pipeline = built.add_sink(1).build(num_threads=1)
            with pipeline.auto_stop():
                train(pipeline.get_iterator(timeout=60))
        """,
    ),
    "DALI": (
        "nvidia.dali",
        """
        from nvidia.dali import fn, pipeline_def
        def item(number):
            if number >= 80:
                raise StopIteration
            return slow(np.full(8, number))
        @pipeline_def(batch_size=2, num_threads=1, device_id=None)
        def rows():
            def one(info):
                return item(info.idx_in_epoch)
            return fn.external_source(one, batch=False)
        def made():
            pass
        def main():
            pipeline = rows()
            pipeline.build()
            def batches():
                while True:
                    try:
                        yield pipeline.run()
                    except StopIteration:
                        return
            train(batches())
        """,
    ),
    # A cluster of one CPU takes 10 s to start and a minute on a busy machine.
    "Ray Data": (
        "ray.data",
        """
        import shutil, tempfile
        import ray, ray.data
        def made():
            global folder
            folder = tempfile.mkdtemp(prefix="ray")  # a long path is too long for its sockets
            ray.init(
                num_cpus=1, object_store_memory=80 << 20, include_dashboard=False,
                log_to_driver=False, logging_level="ERROR", _temp_dir=folder,
            )
            ray.data.DataContext.get_current().enable_progress_bars = False
        def main():
            rows = ray.data.range(80, override_num_blocks=8).map(slow)
            train(rows.iter_batches(batch_size=2))
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
        """,
    ),
}
SLOW = {"Ray Data"}


@pytest.mark.parametrize(
    ("module", "body"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, case in STRANGERS.items()
    ],
)
def test_the_wait_for_a_loader_of_others_is_within_the_bounds(
    tmp_path: Path, module: str, body: str
) -> None:
    """And a level is stated only if it is the level of the program's own clock."""
    pytest.importorskip(module, reason=f"no {module}: pip install {module}")
    program = tmp_path / "program.py"
    head, begin = CLOCKED.split('if __name__ == "__main__":')
    program.write_text(head + textwrap.dedent(body) + 'if __name__ == "__main__":' + begin)
    finished = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    truth = float(finished.stdout.splitlines()[-1])
    with open_run(tmp_path / "run") as run:
        verdict = verdict_of(measure(run))
    told = verdict.stall.value
    least = verdict.stall_least.value or told or 0.0  # without bounds: not judged at all
    most = verdict.stall_most.value or (1.0 if told is None else told)
    assert least - 0.03 <= truth <= most + 0.03
    near = {level_of(truth - 0.03), level_of(truth + 0.03)}
    if verdict.headline.startswith("AT LEAST"):
        near |= {"moderately"}
    assert verdict.level in {"unknown", *near}
