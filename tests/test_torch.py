"""Trainings whose batches, steps and saves are counted by hand, and the spans that they leave."""

import contextlib
import ctypes
import inspect
import json
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import PENSTOCK, UNCOMPILED
from penstock.explain.measures import measure
from penstock.recording import recorder
from penstock.runs.run import open_run

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)

Recorded = Callable[..., Any]

# 12 items in batches of 4: 3 batches a pass.  Each item reads one file of its own.
DATA = """
import os, sys, time, threading
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Files(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, number):
        with open(f"item-{number}", "rb") as file:
            return torch.tensor([float(len(file.read()))])

def make_files():
    for number in range(12):
        open(f"item-{number}", "wb").write(bytes(1000 + number))

def model():
    net = torch.nn.Linear(1, 1)
    return net, torch.optim.SGD(net.parameters(), 0.1)

def train(net, optimizer, batch):
    optimizer.zero_grad()
    net(batch.float().reshape(-1, 1)).sum().backward()
    optimizer.step()
"""


def source(body: str, begin: str = UNCOMPILED) -> str:
    return begin + DATA + textwrap.dedent(body)


def rows(run: Any, query: str) -> list[tuple[Any, ...]]:
    return list(run.sql(query))


def spans(run: Any, name: str, *columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    chosen = ", ".join(f'"{column}"' for column in columns)
    return rows(
        run,
        f"select {chosen} from spans where name = '{name}' and {where} order by process, start_ns",
    )


# Every batch: one wait in the main process, one fetch wherever it was fetched


LOADERS = {
    "no workers": ("num_workers=0", 0),
    "fork": ("num_workers=2, multiprocessing_context='fork'", 2),
    "spawn": ("num_workers=2, multiprocessing_context='spawn'", 2),
    "forkserver": ("num_workers=2, multiprocessing_context='forkserver'", 2),
    "persistent": ("num_workers=2, persistent_workers=True", 2),
    "persistent spawn": (
        "num_workers=2, persistent_workers=True, multiprocessing_context='spawn'",
        2,
    ),
    "prefetching": ("num_workers=3, prefetch_factor=4", 3),
    "timeout": ("num_workers=1, timeout=60", 1),
}


@pytest.fixture(scope="module")
def loaders_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The run of one program in which each of LOADERS makes two passes: iterators 2 n + 1 and
    2 n + 2 of loader n."""
    folder = tmp_path_factory.mktemp("loaders")
    program = folder / "program.py"
    program.write_text(
        source("""
        if __name__ == "__main__":
            make_files()
            for options in sys.argv[1:]:
                loader = eval(f"DataLoader(Files(), batch_size=4, {options})")
                for epoch in range(2):
                    assert len(list(loader)) == 3
                del loader
        """)
    )
    command = [PENSTOCK, "run", "-q", "-o", "run", "--", sys.executable, program]
    command += [options for options, _ in LOADERS.values()]
    ran = subprocess.run(command, cwd=folder, timeout=240, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    with open_run(folder / "run") as run:
        yield run


@pytest.mark.parametrize("name", LOADERS)
def test_every_batch_is_one_wait_and_one_fetch_of_the_same_number(
    loaders_run: Any, name: str
) -> None:
    run, (_, workers) = loaders_run, LOADERS[name]
    first = 2 * list(LOADERS).index(name) + 1
    ours = f"a in ({first}, {first + 1})"
    ended = "and duration_ns is not null"
    waits = rows(
        run,
        "select s.a, s.index from spans s where name = 'data wait' and index is not null"
        " and not exists (from spans d where d.name = 'delivered' and d.process = s.process"
        f" and d.a = s.a and d.b = s.index + 1) and {ours} order by s.start_ns",
    )
    assert waits == [(iterator, index) for iterator in (first, first + 1) for index in range(3)]
    assert sorted(spans(run, "fetch", "a", "index", where=f"{ours} {ended}")) == waits
    assert sorted(spans(run, "fetch delay", "a", "index", where=ours)) in (waits, [])
    loaders = spans(run, "loader", "index", "a", "b", where=f"index in ({first}, {first + 1})")
    assert loaders == [(first, workers, 4), (first + 1, workers, 4)]
    main = "(select process from spans where name = 'loader')"
    fetched_by_main = spans(run, "fetch", "index", where=f"process in {main} and {ours}")
    assert len(fetched_by_main) == (6 if not workers else 0)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_worker_says_its_number_its_iterator_and_who_made_it(
    loaders_run: Any, start: str
) -> None:
    first = 2 * list(LOADERS).index(start) + 1
    iterators = (first, first + 1)
    main_pid = rows(loaders_run, "select pid from processes where parent is null")[0][0]
    found = sorted(spans(loaders_run, "worker", "a", "index", "b", where=f"a in {iterators}"))
    assert found == [(a, index, main_pid) for a in iterators for index in (0, 1)]


def test_the_files_of_a_batch_are_read_inside_its_fetch(recorded: Recorded) -> None:
    run = recorded(
        source("""
        make_files()
        list(DataLoader(Files(), batch_size=4, num_workers=2))
        """)
    )
    inside = rows(
        run,
        "select s.index, count(*), sum(e.moved_bytes) from spans s join events e"
        " on e.thread = s.thread and e.start_ns between s.start_ns and s.start_ns + s.duration_ns"
        " where s.name = 'fetch' and e.path like '%/item-%' and e.op = 'read' and e.moved_bytes > 0"
        " group by 1 order by 1",
    )
    assert inside == [(n, 4, sum(1000 + 4 * n + item for item in range(4))) for n in range(3)]


def test_a_wait_is_as_long_as_the_call_of_next(recorded: Recorded, work: Path) -> None:
    run = recorded(
        source("""
        class Slow(Files):
            def __getitem__(self, number):
                threading.Event().wait(0.02)
                return super().__getitem__(number)

        make_files()
        with open("measured", "w") as measured:
            for workers in (0, 2):
                batches = iter(DataLoader(Slow(), batch_size=4, num_workers=workers))
                for _ in range(3):
                    start_ns = time.perf_counter_ns()
                    next(batches)
                    measured.write(f"{time.perf_counter_ns() - start_ns}\\n")
        """)
    )
    measured = [int(line) for line in (work / "measured").read_text().split()]
    recorded_ns = [ns for (ns,) in spans(run, "data wait", "duration_ns")]
    assert len(recorded_ns) == 6
    differences = [outer - inner for outer, inner in zip(measured, recorded_ns, strict=True)]
    assert min(differences) >= 0
    assert sorted(differences)[2] < 1_000_000  # ours is within, and less than a millisecond less


def test_a_fetch_tells_processor_time_from_waiting(recorded: Recorded) -> None:
    run = recorded(
        source("""
        class Asleep(Dataset):
            def __len__(self): return 1
            def __getitem__(self, number):
                threading.Event().wait(0.3)
                return 0

        class Busy(Dataset):
            def __len__(self): return 1
            def __getitem__(self, number):
                end = time.thread_time() + 0.3
                while time.thread_time() < end: pass
                return 0

        for data in (Asleep(), Busy()):
            list(DataLoader(data, num_workers=1))
        """)
    )
    (asleep_ns,), (busy_ns,) = sorted(spans(run, "fetch", "b"))
    assert asleep_ns < 100_000_000
    assert 290_000_000 <= busy_ns < 400_000_000


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_a_pool_of_threads_reads_is_waited_for_in_reads(
    recorded: Recorded, work: Path, workers: int
) -> None:
    # A call that is slow without a processor, as on a slow disk: a pipe takes 64 KiB, then sendfile
    # blocks until somebody empties it.
    run = recorded(
        source(
            f"""
        from concurrent.futures import ThreadPoolExecutor

        class Pooled(Dataset):
            pool = None

            def __len__(self):
                return 4

            def read(self, number):
                begun = time.perf_counter()
                self.sent(number)
                with open(f"clocked-{{number}}", "a") as clocked:
                    clocked.write(f"{{time.perf_counter() - begun}}\\n")

            def sent(self, number):
                end, begin = os.pipe()
                threading.Timer(0.1, self.empty, (end,)).start()
                with open(f"large-{{number}}", "rb", buffering=0) as file:
                    sent = 0
                    while sent < 128 << 10:
                        sent += os.sendfile(begin, file.fileno(), sent, 128 << 10)
                os.close(begin)

            def empty(self, end):
                while os.read(end, 1 << 20):
                    pass

            def __getitem__(self, number):
                self.pool = self.pool or ThreadPoolExecutor(2)
                list(self.pool.map(self.read, range(2)))
                return number

        if __name__ == "__main__":
            for number in range(2):
                open(f"large-{{number}}", "wb").write(bytes(128 << 10))
            net, optimizer = model()
            for batch in DataLoader(Pooled(), num_workers={workers}):
                train(net, optimizer, batch)
        """,
            begin="",
        )  # without the compiler, the first batch imports modules: it reads them
    )
    known = measure(run)
    # The first of the four batches belongs to start-up; the two reads of a batch are at once: half
    # of what both clocked is waited for, some 0.3 s or more.
    clocked_s = sum(
        float(line)
        for number in range(2)
        for line in (work / f"clocked-{number}").read_text().split()[1:]
    )
    assert 0.25 < known.wait_s("read") < 0.75 * clocked_s
    assert known.wait_s("blocked") < 0.5 * known.wait_s("read")
    assert sum(known.wait_parts.values()) == pytest.approx(known.training.data_wait_s)
    assert known.epochs[0].read_bytes == 4 * 2 * (128 << 10)
    blocking_s = sum(row.blocking_s for row in known.files)
    assert blocking_s == pytest.approx(known.data_storage_s, rel=0.1)


@pytest.mark.parametrize("workers", [0, 1])
def test_starting_a_loader_is_waited_for(recorded: Recorded, work: Path, workers: int) -> None:
    """By a data set whose copies for its workers cost 0.2 s, or whose own iterator does."""
    run = recorded(
        source(f"""
        class Listed(IterableDataset):
            def __getstate__(self):
                time.sleep(0.2)
                return self.__dict__

            def __iter__(self):
                if not {workers}:
                    time.sleep(0.2)
                return iter(range(8))

        if __name__ == "__main__":
            net, optimizer = model()
            started = "forkserver" if {workers} else None
            loader = DataLoader(
                Listed(), batch_size=4, num_workers={workers}, multiprocessing_context=started
            )
            for _ in range(2):
                begun = time.perf_counter()
                batches = iter(loader)
                took_s = time.perf_counter() - begun
                for batch in batches:
                    train(net, optimizer, batch)
            open("took", "w").write(str(took_s))
        """)
    )
    ids = [a for (a,) in spans(run, "loader start", "a")]
    assert ids == [number for (number,) in spans(run, "loader", "index")]
    known = measure(run)
    # The first pass begins before the training, so one of the two counts.
    assert 0.2 <= known.wait_s("loader start") <= float((work / "took").read_text())
    assert sum(known.wait_parts.values()) == pytest.approx(known.training.data_wait_s)
    assert known.epochs[1].data_wait_s >= 0.2


def test_ending_the_workers_of_a_loop_that_is_left_early_is_the_end_of_the_pass(
    recorded: Recorded,
) -> None:
    run = recorded(
        source("""
        class Slow(Files):
            def __getitem__(self, number):
                time.sleep(0.1)  # a worker ends when it has made its batch
                return super().__getitem__(number)

        if __name__ == "__main__":
            make_files()
            net, optimizer = model()
            batches = iter(DataLoader(Slow(), batch_size=2, num_workers=2))
            for _ in range(4):
                train(net, optimizer, next(batches))
                del batches
                batches = iter(DataLoader(Slow(), batch_size=2, num_workers=2))
            train(net, optimizer, next(batches))
        """)
    )
    ended = spans(run, "loader end", "a", "duration_ns")
    loaders = [number for (number,) in spans(run, "loader", "index")]
    assert [number for number, _ in ended][:4] == loaders[:4]
    known = measure(run)
    # The last loader's workers end after the training.
    assert known.wait_s("pass end") == pytest.approx(sum(ns for _, ns in ended[:4]) / 1e9, rel=1e-6)
    assert known.wait_s("pass end") >= 0.1
    assert known.wait_s("not observed") < 0.01  # a busy machine: not the end of a pass
    assert sum(known.wait_parts.values()) == pytest.approx(known.training.data_wait_s)


def test_the_recorders_own_reading_makes_no_events(recorded: Recorded) -> None:
    library: Any = ctypes.CDLL(str(Path(penstock.__file__).with_name("librec.so")))
    if not hasattr(library, "penstock_run_delay"):
        pytest.skip("this library has no penstock_run_delay")
    run = recorded(source("make_files(); list(DataLoader(Files(), num_workers=1))"))
    assert len(spans(run, "fetch delay", "index")) == 12
    assert rows(run, "select count(*) from events where path like '%schedstat%'") == [(0,)]


# Loaders of every kind


def test_workers_that_end_unevenly_deliver_what_they_say(recorded: Recorded) -> None:
    # Worker 0 has 1 batch, worker 1 has 3: batches 0 to 6 are asked for, 0, 1, 3, 5 come.
    run = recorded(
        source("""
        class Uneven(IterableDataset):
            def __iter__(self):
                worker = torch.utils.data.get_worker_info().id
                yield from range(4 if worker == 0 else 12)

        got = [len(batch) for batch in DataLoader(Uneven(), batch_size=4, num_workers=2)]
        assert got == [4] * 4, got
        """)
    )
    assert delivered(run) == [0, 1, 3, 5, None]


def delivered(run: Any) -> list[int | None]:
    """The numbers of the batches that came: as announced, unless a `delivered` says otherwise."""
    found = rows(
        run,
        "select name, index, start_ns from spans where name in ('data wait', 'delivered')"
        " order by start_ns",
    )
    came: list[int | None] = []
    for name, index, _ in found:
        if name == "data wait":
            came.append(index)
        else:
            came[-1] = index
    return came


@pytest.mark.skipif(
    "in_order" not in inspect.signature(torch.utils.data.DataLoader.__init__).parameters,
    reason="this torch delivers in order only",
)
def test_batches_out_of_order_are_told_by_the_number_that_came(recorded: Recorded) -> None:
    # Worker 0 is held at batch 0 until worker 1 has delivered 1 and 3.
    run = recorded(
        source("""
        class Held(Dataset):
            def __len__(self): return 4
            def __getitem__(self, number):
                while number == 0 and not os.path.exists("go"): time.sleep(0.01)
                return number

        got = []
        for batch in DataLoader(Held(), batch_size=None, num_workers=2, in_order=False):
            got.append(int(batch))
            if got[-1] == 3: open("go", "w").close()
        assert sorted(got) == [0, 1, 2, 3] and got[:2] == [1, 3], got
        """)
    )
    assert delivered(run)[:2] == [1, 3]
    assert sorted(index for index in delivered(run) if index is not None) == [0, 1, 2, 3]


@pytest.mark.parametrize("options", ["num_workers=0", "num_workers=2, persistent_workers=True"])
def test_a_datapipe_keeps_its_seed_and_gives_the_id(recorded: Recorded, options: str) -> None:
    run = recorded(
        source(f"""
        from torch.utils.data import IterDataPipe

        class Pipe(IterDataPipe):
            def __iter__(self):
                yield from range(8)

        loader = DataLoader(Pipe(), batch_size=4, {options})
        for epoch in range(2):
            assert len(list(loader)) > 0
        """)
    )
    waits = {(a, n) for a, n in spans(run, "data wait", "a", "index") if n is not None}
    fetches = set(spans(run, "fetch", "a", "index"))
    assert len({a for a, _ in waits}) == 2
    assert waits & fetches >= {(a, 0) for a, _ in waits}
    assert {a for a, _ in fetches} == {a for a, _ in waits}


def test_a_loader_inside_another_counts_once(recorded: Recorded) -> None:
    run = recorded(
        source("""
        class Nested(Dataset):
            def __len__(self): return 3
            def __getitem__(self, number):
                return len(list(DataLoader(Files())))

        make_files()
        for workers in (0, 1):
            assert len(list(DataLoader(Nested(), batch_size=None, num_workers=workers))) == 3
        """)
    )
    assert spans(run, "loader", "a") == [(0,), (1,)]
    ends = [index for index in delivered(run) if index is None]
    assert len(ends) == 2
    assert [index for index in delivered(run) if index is not None] == [0, 1, 2] * 2
    assert sorted(spans(run, "fetch", "a", "index")) == [(a, n) for a in (1, 2) for n in range(3)]


def test_leaving_a_loop_early_ends_the_loader_there(recorded: Recorded) -> None:
    run = recorded(
        source("""
        import penstock
        make_files()
        for workers in (0, 2):
            for batch in DataLoader(Files(), num_workers=workers):
                break
            with penstock.span("afterwards"):
                pass
        """)
    )
    ends = rows(
        run,
        "select count(*) from spans l join spans a on a.name = 'afterwards'"
        " where l.name = 'loader' and l.start_ns + l.duration_ns <= a.start_ns",
    )
    assert ends == [(3,)]  # the first before both, the second before the last


def test_a_worker_that_raises_is_the_trainings_affair(recorded: Recorded) -> None:
    run = recorded(
        source("""
        class Broken(Files):
            def __getitem__(self, number):
                if number == 5: raise KeyError("five")
                return super().__getitem__(number)

        make_files()
        for workers in (0, 2):
            try:
                list(DataLoader(Broken(), batch_size=4, num_workers=workers))
            except KeyError as error:
                assert "five" in str(error)
            else:
                raise SystemExit("no error")
        """)
    )
    assert delivered(run) == [0, -2, 0, -2]  # none came, and the pass was not over
    # A worker that outlives the loop is ended by a signal, when the program ends.
    unfinished = "duration_ns is null and name not in ('step', 'step balance', 'worker')"
    assert rows(run, f"select name from spans where {unfinished}") == []


def test_a_loader_deleted_by_another_thread_ends_when_its_own_thread_goes_on(
    recorded: Recorded,
) -> None:
    run = recorded(
        source("""
        make_files()
        held = [iter(DataLoader(Files()))]
        next(held[0])
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        list(DataLoader(Files()))
        """)
    )
    assert [ns is None for (ns,) in spans(run, "loader", "duration_ns")] == [False, False]


# Steps


def test_a_barrier_is_known_as_such(recorded: Recorded) -> None:
    run = recorded(
        """
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for _ in range(3):
            dist.barrier()
        dist.destroy_process_group()
        """
    )
    assert len(spans(run, "barrier", "duration_ns", where="duration_ns > 0")) == 3


def test_a_step_ends_with_each_outermost_optimizer_step(recorded: Recorded) -> None:
    run = recorded(
        source("""
        class Around(torch.optim.SGD):
            def __init__(self, parameters, inner):
                super().__init__(parameters, 0.1)
                self.inner = inner
            def step(self, closure=None):
                self.inner.step()

        make_files()
        net, inner = model()
        optimizer = Around(net.parameters(), inner)
        for _ in range(2):
            for batch in DataLoader(Files(), batch_size=4):
                train(net, optimizer, batch)
        """)
    )
    steps = rows(run, "select index, b from spans where kind = 'step' and duration_ns is not null")
    assert sorted(steps) == [(number, 0) for number in range(6)]
    assert len(spans(run, "optimizer", "index")) == 6
    first = rows(run, "select min(start_ns) from spans where kind = 'step'")[0][0]
    assert first <= spans(run, "data wait", "start_ns")[0][0]


def test_steps_that_the_program_marks_win(recorded: Recorded) -> None:
    run = recorded(
        source("""
        import penstock
        make_files()
        net, optimizer = model()
        for batch in DataLoader(Files(), batch_size=4):
            with penstock.step():
                train(net, optimizer, batch)
        """)
    )
    steps = rows(run, "select index, b from spans where kind = 'step' and duration_ns is not null")
    assert sorted(steps) == [(number, 1) for number in range(3)]


def test_an_optimizer_that_raises_is_forgotten_by_its_next_step(recorded: Recorded) -> None:
    run = recorded(
        source("""
        class Fails(torch.optim.SGD):
            fails = False
            def step(self, closure=None):
                if self.fails: raise RuntimeError("no step")
                return super().step(closure)

        net, _ = model()
        optimizer = Fails(net.parameters(), 0.1)
        for fails in (False, True, True, False, False):
            optimizer.fails = fails
            try:
                train(net, optimizer, torch.ones(1, 1))
            except RuntimeError:
                pass
        """)
    )
    steps = rows(run, "select index from spans where kind = 'step' and duration_ns is not null")
    # Three of the five calls return.  The first step begins with its first forward.
    assert sorted(steps) == [(0,), (1,), (2,)]


@pytest.mark.slow
def test_a_compiled_optimizer_compiles_as_it_would_without_us(
    recorded: Recorded, work: Path
) -> None:
    program = source(
        """
    import torch._dynamo.utils
    net, optimizer = model()
    net(torch.ones(1, 1)).sum().backward()
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    step(), step()
    counters = torch._dynamo.utils.counters
    with open("counted", "w") as file:
        print(sum(counters["graph_break"].values()), dict(counters["stats"]), file=file)
    """,
        begin="",
    )
    subprocess.run([sys.executable, "-c", program], cwd=work, capture_output=True, check=True)
    without_us = (work / "counted").read_text()
    (work / "counted").unlink()
    recorded(program)
    assert (work / "counted").read_text() == without_us


# Checkpoints


def test_a_save_is_a_checkpoint_that_holds_its_file(recorded: Recorded) -> None:
    run = recorded(
        source("""
        net, _ = model()
        for number in range(3):
            torch.save(net.state_dict(), f"saved-{number}.pt")
        torch.load("saved-1.pt")
        """)
    )
    assert spans(run, "checkpoint", "index") == [(0,), (1,), (2,)]
    assert len(spans(run, "restore", "index")) == 1
    inside = rows(
        run,
        "select s.index, any_value(parse_filename(e.path)) from spans s join events e"
        " on e.thread = s.thread and e.start_ns between s.start_ns and s.start_ns + s.duration_ns"
        " where s.name = 'checkpoint' and e.op_group = 'write' and e.path like '%saved%'"
        " group by 1 order by 1",
    )
    assert inside == [(number, f"saved-{number}.pt") for number in range(3)]


def test_a_distributed_checkpoint_is_one_checkpoint(recorded: Recorded) -> None:
    run = recorded(
        source("""
        import warnings
        import torch.distributed.checkpoint as distributed
        warnings.simplefilter("ignore")
        net, _ = model()
        state = {"model": net.state_dict()}
        distributed.save(state, checkpoint_id="sharded")
        distributed.load(state, checkpoint_id="sharded")
        """)
    )
    assert len(spans(run, "checkpoint", "index")) == 1
    assert len(spans(run, "restore", "index")) == 1


# Into every process, and out of nobody's way


@pytest.mark.parametrize("is_before", [True, False], ids=["torch first", "record first"])
def test_record_follows_torch_whichever_comes_first(tmp_path: Path, is_before: bool) -> None:
    from penstock.runs.run import open_run

    lines = ["import penstock; window = penstock.record('run')", DATA]
    ordered = "\n".join(reversed(lines) if is_before else lines)
    program = (
        UNCOMPILED
        + ordered
        + textwrap.dedent("""
        make_files()
        net, optimizer = model()
        for workers in (0, 2):
            for batch in DataLoader(Files(), batch_size=4, num_workers=workers):
                train(net, optimizer, batch)
        torch.save(net.state_dict(), "saved.pt")
        window.stop()
        list(DataLoader(Files()))
        torch.save(net.state_dict(), "saved.pt")
    """)
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    with open_run(tmp_path / "run") as run:
        assert [index for index in delivered(run) if index is not None] == [0, 1, 2] * 2
        assert len(spans(run, "checkpoint", "index")) == 1
        assert len(spans(run, "fetch", "index")) == 6


def test_the_bootstrap_leaves_no_trace_in_path_environment_or_output() -> None:
    # -S -E: no site-packages, so that penstock cannot be imported otherwise.
    bootstrap = Path(penstock.__file__).parent / "adapters" / "bootstrap.py"
    program = textwrap.dedent("""
        import importlib.util, os, sys
        assert importlib.util.find_spec("penstock") is None
        before = list(sys.path), dict(os.environ)
        path = sys.argv[1]
        names = {"__name__": "penstock_bootstrap", "__file__": path}
        exec(compile(open(path).read(), path, "exec"), names)
        assert (list(sys.path), dict(os.environ)) == before
        import penstock, penstock.adapters.torch
        package = os.path.dirname(os.path.dirname(path))
        assert penstock.__file__ == os.path.join(package, "__init__.py")
        assert "torch" not in sys.modules and "numpy" not in sys.modules
    """)
    finished = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program, bootstrap], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == finished.stderr == ""


def test_a_module_keeps_the_loader_and_the_source_it_would_have(recorded: Recorded) -> None:
    recorded("""
        import inspect, torch, torch.utils.data.dataloader as module
        loader = module.__spec__.loader
        assert module.__loader__ is loader and "exec_module" not in vars(loader)
        assert "class DataLoader" in inspect.getsource(module)
        assert module._utils.worker._worker_loop.__module__ == "torch.utils.data._utils.worker"
    """)


def test_a_torch_without_our_names_is_left_as_it_is() -> None:
    from penstock.adapters import torch as adapter

    for name, patch in adapter.PATCHES.items():
        module = types.ModuleType(name)
        before = dict(vars(module))
        with contextlib.suppress(AttributeError):  # the installer makes a note of it
            patch(module)
        assert vars(module) == before


@pytest.mark.alone
@pytest.mark.slow
def test_a_batch_costs_at_most_thirty_microseconds(tmp_path: Path) -> None:
    # Without workers the main process pays for both sides.  13 us on one EPYC core; 20 to 24 where
    # a thread's CPU clock takes 0.9 us, six times a batch.  CPU time in units of a loop that took
    # 12 us on the EPYC core: a neighbour who comes and goes slows both.
    program = source("""
        import penstock, statistics

        class Nothing(Dataset):
            def __len__(self): return 10000
            def __getitem__(self, number): return 1.0

        def loop_us():
            start_s = time.thread_time()
            for _ in range(1000):
                for number in range(1000): number
            return (time.thread_time() - start_s) / 1000 * 1e6

        def batch_us():
            before_us, start_s = loop_us(), time.thread_time()
            for item in DataLoader(Nothing(), batch_size=None, collate_fn=float): pass
            us = (time.thread_time() - start_s) / 10000 * 1e6
            return us / (before_us + loop_us()) * 2 * 12

        without = statistics.median(batch_us() for _ in range(9))
        with penstock.record(sys.argv[1]):
            recorded = statistics.median(batch_us() for _ in range(9))
        print(recorded - without)
    """)
    finished = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert float(finished.stdout) < 30


def test_recorder_is_not_recording_here() -> None:
    assert not recorder.is_recording()


# Page faults


def test_major_page_faults_of_a_fetch_are_told_as_the_kernel_counts_them(
    recorded: Recorded, tmp_path: Path
) -> None:
    run = recorded(
        source("""
            import json, mmap, os, random, resource
            size = 64 << 20
            with open("mapped", "wb") as file:
                file.write(os.urandom(size))
                file.flush()
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file = open("mapped", "rb")
            pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            pages.madvise(mmap.MADV_RANDOM)

            class Mapped(Dataset):
                def __len__(self):
                    return 64

                def __getitem__(self, number):
                    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
                    for _ in range(8):
                        pages[random.randrange(size)]
                    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before

            faults = [int(batch.sum()) for batch in DataLoader(Mapped(), batch_size=8)]
            json.dump(faults, open("faults.json", "w"))
        """)
    )
    (truth,) = tmp_path.rglob("faults.json")
    counted = json.loads(truth.read_text())
    if not any(counted):
        pytest.skip("this file system keeps in memory what it was told to drop: no page faults")
    told = dict(spans(run, "fetch faults", "index", "b"))
    assert len(told) == sum(n > 0 for n in counted)
    for index, faults in enumerate(counted):
        # Collating a batch may fault too, in a library's page: never fewer than the item's own.
        assert faults <= told.get(index, 0) <= faults + 20
