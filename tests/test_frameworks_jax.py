"""Trainings by JAX, fed by torch's loader and by Grain, saved by Orbax.

Nothing in these programs knows of Penstock.  A jitted update is one opaque call, so what marks the
steps is the loader's iteration, or penstock.step().
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import thorough
from penstock.explain.measures import measure
from test_frameworks_torch import needs, waits_for_batches

Recorded = Callable[..., Any]

pytestmark = needs("jax")

# 24 items in batches of 4: 6 batches a pass.  Each item reads one file of its own.
DATA = """
import os, sys, time
import numpy as np
import jax, jax.numpy as jnp

class Files:
    def __len__(self):
        return 24
    def __getitem__(self, number):
        with open(f"item-{int(number)}", "rb") as file:
            return np.frombuffer(file.read()[:8], np.uint8).astype(np.float32)
    def __repr__(self):
        return "Files"

def make_files():
    for number in range(24):
        open(f"item-{number}", "wb").write(bytes(1000 + number))

@jax.jit
def update(weights, batch):
    return weights - 1e-9 * jax.grad(lambda w: (batch @ w).sum())(weights)
"""
ITEMS = sum(1000 + number for number in range(24))


def source(body: str) -> str:
    return DATA + textwrap.dedent(body)


def read_in(run: Any, of: str) -> int:
    """Bytes of items read by threads or processes of which `of` is true."""
    rows = run.sql(
        "select coalesce(sum(e.moved_bytes), 0) from events e join threads t using (thread)"
        f" where e.op = 'read' and e.path like '%/item-%' and {of}"
    )
    return int(rows[0][0])


@needs("torch")
@pytest.mark.parametrize("workers", [0, thorough(1, like="0")])
def test_torchs_loader_marks_steps_where_jax_hides_them(recorded: Recorded, workers: int) -> None:
    run = recorded(
        source(f"""
        from torch.utils.data import DataLoader

        if __name__ == "__main__":
            make_files()
            weights = jnp.zeros(8)
            options = {{}}
            if {workers}:
                options = dict(multiprocessing_context="spawn", persistent_workers=True)
            loader = DataLoader(
                Files(), batch_size=4, num_workers={workers}, collate_fn=np.stack, **options
            )
            for epoch in range(2):
                for batch in loader:
                    weights = update(weights, batch)
        """)
    )
    known = measure(run)
    assert known.training.steps == 12
    assert [(epoch.batches, epoch.workers) for epoch in known.epochs] == [(6, workers)] * 2
    assert waits_for_batches(run) == 12
    assert "not observed" not in known.wait_parts


# An item takes 10 ms of a processor, so that batches are waited for however long JAX compiles.
GRAIN = """
import grain
from absl import flags

class Work(grain.transforms.Map):
    def map(self, item):
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return item

if __name__ == "__main__":
    flags.FLAGS(sys.argv[:1])  # Grain's workers read them
    make_files()
    sampler = grain.samplers.IndexSampler(
        24, shuffle=True, seed=1, num_epochs=2, shard_options=grain.sharding.NoSharding()
    )
    loader = grain.DataLoader(
        data_source=Files(), sampler=sampler, operations=[Work(), grain.transforms.Batch(4)],
        worker_count=WORKERS,
    )
"""


@needs("grain")
@pytest.mark.parametrize("workers", [0, thorough(2, like="0")])
def test_grains_outermost_iterator_is_waited_for(recorded: Recorded, workers: int) -> None:
    run = recorded(
        source(GRAIN.replace("WORKERS", str(workers)))
        + """
    weights = jnp.zeros(8)
    for batch in loader:
        weights = update(weights, batch)
"""
    )
    known = measure(run)
    assert known.training.steps == 12
    assert known.training.mains == 1  # its workers' iterators are no training
    # A pipeline is iterators within iterators, and in other threads: the outermost counts, once.
    main = "process = (select min(process) from processes) and thread = 0"
    waits = run.sql(f"select count(*) from spans where name = 'data wait' and {main}")
    assert waits == [(12 + 1,)]
    assert known.training.waits == 12 - 1
    assert read_in(run, "not t.is_main") == 2 * ITEMS
    in_workers = "t.process in (select process from spans where name = 'worker')"
    assert read_in(run, in_workers) == (2 * ITEMS if workers else 0)
    # What workers do on a processor is not known, so the rest of a wait for them is not blamed.
    assert ("not observed" in known.wait_parts) == bool(workers)


@needs("grain")
def test_a_grain_dataset_counts_once_and_steps_marked_by_hand_win(recorded: Recorded) -> None:
    run = recorded(
        source("""
        import grain, penstock

        class Doubled(grain.transforms.Map):
            def map(self, item):
                return 2 * item

        make_files()
        weights = jnp.zeros(8)
        data = grain.MapDataset.source(Files()).shuffle(seed=1).map(Doubled()).batch(4)
        for number, batch in enumerate(data.to_iter_dataset()):
            if number % 2:
                continue
            with penstock.step():
                weights = update(weights, batch)
        """)
    )
    known = measure(run)
    assert known.training.steps == 3
    assert waits_for_batches(run) == 6


@needs("grain")
def test_a_pipeline_of_the_programs_own_can_still_be_sent_to_workers(recorded: Recorded) -> None:
    run = recorded(
        source("""
        import cloudpickle, grain

        class Own(grain.DatasetIterator):
            def __next__(self):
                return next(self._parent)
            def get_state(self):
                return self._parent.get_state()
            def set_state(self, state):
                self._parent.set_state(state)

        class OwnDataset(grain.IterDataset):
            def __iter__(self):
                return Own(self._parent.__iter__())

        make_files()
        data = OwnDataset(grain.MapDataset.source(Files()).batch(4).to_iter_dataset())
        copy = cloudpickle.loads(cloudpickle.dumps(data))  # as Grain sends it
        assert len(list(copy)) == 6
        """)
    )
    assert waits_for_batches(run) == 6


@needs("orbax.checkpoint")
def test_an_orbax_save_is_one_checkpoint(recorded: Recorded, work: Path) -> None:
    run = recorded(
        source("""
        import orbax.checkpoint as ocp

        if __name__ == "__main__":
            state = {"weights": jnp.zeros((64, 64))}
            here = os.getcwd()
            with ocp.StandardCheckpointer() as saver:
                saver.save(f"{here}/one", state)
            with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as saver:
                saver.save(f"{here}/two", args=ocp.args.StandardSave(state))
                saver.restore(f"{here}/two")
            with ocp.CheckpointManager(f"{here}/three") as manager:
                manager.save(0, args=ocp.args.StandardSave(state))
        """)
    )
    saves = run.sql("select count(*), count(duration_ns) from spans where name = 'checkpoint'")
    assert saves == [(3, 3)]
    assert run.sql("select count(*) from spans where name = 'restore'") == [(1,)]
    assert (work / "three" / "0").is_dir()
