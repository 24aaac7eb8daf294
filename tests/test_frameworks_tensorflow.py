"""Trainings by TensorFlow and Keras.  Nothing in these programs knows of Penstock, except where a
window is asked for; their batches, steps, saves and waits are counted or clocked by them."""

import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.measures import measure
from penstock.runs.run import open_run
from test_frameworks_torch import holds_within_two_per_cent_of_wall, slow_reads

Recorded = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("tensorflow"),
    reason="TensorFlow is not installed (1.4 GB): pip install 'penstock[frameworks]'",
)

# 24 files in batches of 4: 6 batches a pass, read by C++ threads.
DATA = """
import json, os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import keras

def files():
    for number in range(24):
        open(f"item-{number}", "wb").write(bytes(100_000 + number))
    def parse(path):
        bytes_of_it = tf.io.decode_raw(tf.io.read_file(path), tf.uint8)
        return tf.cast(bytes_of_it[:8], tf.float32), tf.constant([0.0])
    data = tf.data.Dataset.from_tensor_slices([f"item-{number}" for number in range(24)])
    return data.map(parse, num_parallel_calls=2).batch(4).prefetch(1)

def model():
    net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    return net
"""


def source(*parts: str) -> str:
    return "".join([DATA, *map(textwrap.dedent, parts)])


def read_by_threads(run: Any) -> int:
    """Bytes of items that other threads than the training's read."""
    rows = run.sql(
        "select coalesce(sum(e.moved_bytes), 0) from events e join threads t using (thread)"
        " where e.op = 'pread' and e.path like '%/item-%' and not t.is_main"
    )
    return int(rows[0][0])


ITEMS = sum(100_000 + number for number in range(24))


def test_keras_fit_has_a_step_and_a_wait_for_each_batch(recorded: Recorded, work: Path) -> None:
    run = recorded(
        source("""
        model().fit(
            files(), validation_data=files(), epochs=2, verbose=0,
            callbacks=[keras.callbacks.ModelCheckpoint("epoch-{epoch}.keras")],
        )
        """)
    )
    known = measure(run)
    assert known.training.steps == 12
    # The first batch is start-up.  Validation waits too: 6 batches, twice.
    assert known.training.waits == 2 * (6 + 6) - 1
    assert [epoch.batches for epoch in known.epochs] == [6 + 6, 6 + 6]
    assert [Path(save.path or "").suffix for save in known.checkpoints] == [".keras"] * 2
    assert all(save.blocks for save in known.checkpoints)
    assert read_by_threads(run) == 4 * ITEMS  # training and validation, twice
    parts = {"read", "metadata", "cpu", "not scheduled", "blocked", "pass end"}
    assert set(known.wait_parts) <= parts
    told = sum(known.wait_parts.values())
    assert told == pytest.approx(known.training.data_wait_s, rel=1e-9)


def test_a_loop_over_a_dataset_has_a_wait_and_a_step_for_each_batch(recorded: Recorded) -> None:
    run = recorded(
        source("""
        net, optimizer = keras.layers.Dense(1), keras.optimizers.SGD(1e-3)

        @tf.function
        def train(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((net(x) - y) ** 2)
            variables = net.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        net.build((None, 8))
        optimizer.build(net.trainable_variables)
        data = files()
        for epoch in range(2):
            for x, y in data:
                train(x, y)
        """)
    )
    known = measure(run)
    assert known.training.steps == 12
    assert known.training.waits == 12 - 1
    assert [(epoch.batches, epoch.workers) for epoch in known.epochs] == [(6, 0), (6, 0)]
    assert read_by_threads(run) == 2 * ITEMS
    assert "not observed" not in known.wait_parts


def test_a_graph_that_takes_the_iterator_is_waited_for_as_keras_is(recorded: Recorded) -> None:
    run = recorded(
        source("""
        net = keras.layers.Dense(1)
        net.build((None, 8))

        @tf.function
        def train(iterator):
            x, y = next(iterator)
            return tf.reduce_sum((net(x) - y) ** 2)

        for epoch in range(2):
            iterator = iter(files())
            try:
                while True:
                    train(iterator)
            except tf.errors.OutOfRangeError:
                pass
        """)
    )
    known = measure(run)
    assert known.training.steps == 12
    assert known.training.waits == 12 - 1
    assert "pass end" in known.wait_parts  # each pass ends with a call that gets no batch


def test_steps_that_the_program_marks_win_over_iterations(recorded: Recorded) -> None:
    run = recorded(
        source("""
        import penstock
        for x, y in files():
            with penstock.step():
                pass
        """)
    )
    steps = run.sql("select index, b from spans where kind = 'step' and duration_ns is not null")
    assert sorted(step for step in steps if step[1] == 1) == [(number, 1) for number in range(6)]
    assert measure(run).training.steps == 6


def test_every_way_to_save_is_one_checkpoint(recorded: Recorded, work: Path) -> None:
    run = recorded(
        source("""
        net = model()
        for x, y in files().take(2):
            net.train_on_batch(x, y)
        net.save("whole.keras")
        net.save_weights("some.weights.h5")
        tf.train.Checkpoint(model=net).save("saved/one")
        tf.saved_model.save(tf.Module(), "exported")
        keras.saving.load_model("whole.keras")
        """)
    )
    known = measure(run)
    paths = [save.path or "" for save in known.checkpoints]
    assert len(paths) == 4, paths
    for path, part in zip(
        paths, ("whole.keras", "some.weights.h5", "saved", "exported"), strict=True
    ):
        assert f"{work}/{part}" in path
    assert run.sql("select count(*) from spans where name = 'restore'") == [(1,)]


def test_a_callback_records_the_batches_it_was_asked_for(tmp_path: Path) -> None:
    from penstock.runs.run import open_run

    program = source("""
        from penstock.adapters.keras import window_callback
        model().fit(
            files(), epochs=2, verbose=0, callbacks=[window_callback("window", 3, 8)]
        )
        for x, y in files():  # afterwards nothing is recorded
            pass
    """)
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    with open_run(tmp_path / "window") as run:
        known = measure(run)
        assert known.training.steps == 6
        assert known.training.waits == 6 - 1
        windows = run.sql("select count(*) from spans where kind = 'window' and duration_ns > 0")
        assert windows == [(1,)]


def test_a_window_that_cannot_begin_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    program = source("""
        from penstock.adapters.keras import window_callback
        model().fit(files(), epochs=1, verbose=0, callbacks=[window_callback("taken", 1, 2)])
        print("trained")
    """)
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.stdout == "trained\n", finished.stderr
    assert "batches are not recorded: taken" in finished.stderr


# Each element reads until 60 ms have passed in preads, then works for 20 ms; a step takes 40 ms.
SLOW = """
open("slow", "wb").write(bytes(1 << 20))
fd, spent = os.open("slow", os.O_RDONLY), []

def elements():
    for number in range(30):
        begin, read = time.perf_counter_ns(), 0
        for _ in range(4):
            os.lseek(fd, 0, os.SEEK_SET)
            call = time.perf_counter_ns()
            os.read(fd, 1 << 20)
            read += time.perf_counter_ns() - call
        end = time.perf_counter_ns() + 20_000_000
        while time.perf_counter_ns() < end:
            pass
        spent.append((begin, time.perf_counter_ns(), read))
        yield [float(number)] * 8, [0.0]

# Nothing of the next element is made while the step computes, so that all of it is waited for.
options = tf.data.Options()
options.autotune.enabled = False
options.experimental_optimization.inject_prefetch = False
kinds = (tf.TensorSpec((8,)), tf.TensorSpec((1,)))
data = tf.data.Dataset.from_generator(elements, output_signature=kinds).batch(1)
data = data.with_options(options)
"""


@pytest.mark.alone
@pytest.mark.slow
def test_keras_wait_and_its_share_in_file_calls_are_what_the_job_clocked(
    recorded: Recorded, work: Path, workload: Callable[..., Path]
) -> None:
    run = recorded(
        source(
            SLOW,
            """
            class Compute(keras.callbacks.Callback):
                calls = []
                def on_train_batch_begin(self, batch, logs=None):
                    self.begin = time.perf_counter_ns()
                def on_train_batch_end(self, batch, logs=None):
                    self.calls.append((self.begin, time.perf_counter_ns()))
                    time.sleep(0.04)
                    self.end = time.perf_counter_ns()

            compute = Compute()
            model().fit(data, epochs=1, verbose=0, steps_per_epoch=30, callbacks=[compute])
            json.dump([spent, compute.end, compute.calls], open("truth", "w"))
            """,
        ),
        environment=slow_reads(workload),
    )
    # A batch is waited for inside the call of the graph, whose update takes next to nothing.
    truth = json.loads((work / "truth").read_text())
    holds_within_two_per_cent_of_wall(measure(run), *truth)


@pytest.mark.alone
@pytest.mark.slow
def test_a_loops_wait_and_its_share_in_file_calls_are_what_the_job_clocked(
    recorded: Recorded, work: Path, workload: Callable[..., Path]
) -> None:
    run = recorded(
        source(
            SLOW,
            """
            waits, batches = [], iter(data)
            for number in range(30):
                begin = time.perf_counter_ns()
                next(batches)
                waits.append((begin, time.perf_counter_ns()))
                time.sleep(0.04)
                end = time.perf_counter_ns()
            json.dump([spent, end, waits], open("truth", "w"))
            """,
        ),
        environment=slow_reads(workload),
    )
    known = measure(run)
    truth = json.loads((work / "truth").read_text())
    # The last iteration has no wait after it that would end it, and so is no step.
    assert known.training.steps == 29
    spent, _, waits = truth
    holds_within_two_per_cent_of_wall(known, spent, waits[-1][1], waits)


@pytest.mark.parametrize("is_callback", [False, True], ids=["by hand", "profile_batch"])
def test_a_profile_opens_and_closes_a_window_of_a_paused_run(work: Path, is_callback: bool) -> None:
    profiled = """
        callbacks = [keras.callbacks.TensorBoard("tb", profile_batch=(3, 4))]
        model().fit(files(), epochs=2, verbose=0, callbacks=callbacks)
        """
    by_hand = """
        net, data = model(), files()
        net.fit(data, epochs=1, verbose=0)
        tf.profiler.experimental.start("tb")
        net.fit(data, epochs=1, verbose=0)
        tf.profiler.experimental.stop()
        net.fit(data, epochs=1, verbose=0)
        """
    (work / "train.py").write_text(source(profiled if is_callback else by_hand))
    command = [sys.executable, "-m", "penstock", "run", "--paused", "-q", "-o", "run"]
    subprocess.run([*command, sys.executable, "train.py"], cwd=work, check=True, timeout=240)
    with open_run(work / "run") as run:
        known = measure(run)
        if is_callback:
            assert 1 <= known.training.steps <= 3  # batches 3 and 4; the window ends within a step
        else:
            assert known.training.steps == 6
            assert read_by_threads(run) == ITEMS
        assert known.pauses
