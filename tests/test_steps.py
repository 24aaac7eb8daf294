"""Which calls make a step, what its thread had of its CPUs, and where no computation was seen.

One program trains in many ways, each in a window of its own; each way's steps are counted by hand.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import UNCOMPILED
from penstock.explain.live import Monitor
from penstock.explain.measures import measure
from penstock.explain.questions import prepare
from penstock.explain.report import report_of
from penstock.runs.run import Run, open_run

pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)

# Steps of each way are in its name's row of COUNTS.
TRAININGS = """
import json, sys, threading, time
import penstock, torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
ways = {}

def way(function):
    ways[function.__name__] = function

def model():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return net, torch.optim.SGD(net.parameters(), 0.1)

def update(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def by_hand(n=3, wait_s=0.03):
    net, optimizer = model()
    for _ in range(n):
        time.sleep(wait_s)
        update(net, optimizer)

@way
def hand_loop():
    by_hand()

@way
def no_module():
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

@way
def two_optimizers():
    (one, first), (other, second) = model(), model()
    open("data", "wb").write(bytes(100))
    for _ in DataLoader(range(8), batch_size=2):
        update(one, first)
        with open("data", "rb", buffering=0) as data:
            data.read(100)
        update(other, second)

@way
def two_optimizers_without_a_loader():
    (one, first), (other, second) = model(), model()
    for _ in range(5):
        update(one, first)
        update(other, second)

@way
def in_turns():
    (one, first), (other, second) = model(), model()
    for number, _ in enumerate(DataLoader(range(6), batch_size=1)):
        update(*((one, first) if number % 2 else (other, second)))

@way
def twice_a_batch():
    net, optimizer = model()
    for _ in DataLoader(range(3), batch_size=1):
        update(net, optimizer)
        update(net, optimizer)

@way
def one_optimizer_a_parameter():
    net, _ = model()
    for parameter in net.parameters():
        own = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(lambda parameter, own=own: own.step())
    for _ in range(4):
        net(torch.ones(2, 4)).sum().backward()

@way
def accumulated():
    net, optimizer = model()
    for number in range(6):
        time.sleep(0.03)
        net(torch.ones(2, 4)).sum().backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()

@way
def with_evaluation():
    net, optimizer = model()
    for _ in range(2):
        update(net, optimizer)
        with torch.no_grad():
            for _ in range(2):
                time.sleep(0.03)
                net(torch.ones(2, 4))

@way
def beside_a_thread():
    net, _ = model()
    done = threading.Event()
    def others():
        while not done.wait(0.001):
            net(torch.ones(2, 4)).sum().backward()
    thread = threading.Thread(target=others)
    thread.start()
    by_hand(4)
    done.set()
    thread.join()

@way
def sleeps_and_computes():
    net, optimizer = model()
    update(net, optimizer)
    truth = []
    for _ in range(4):
        begun = time.perf_counter_ns(), time.thread_time_ns()
        time.sleep(0.05)
        until = time.thread_time() + 0.03
        while time.thread_time() < until: pass
        update(net, optimizer)
        truth.append((time.perf_counter_ns() - begun[0], time.thread_time_ns() - begun[1]))
    json.dump(truth, open("truth.json", "w"))

@way
def explicit_around_the_update():
    net, optimizer = model()
    for _ in range(3):
        time.sleep(0.03)
        with penstock.step():
            update(net, optimizer)

@way
def explicit_around_all():
    net, optimizer = model()
    for _ in range(3):
        with penstock.step():
            time.sleep(0.03)
            update(net, optimizer)

for name, train in ways.items():
    with penstock.record(name):
        train()
"""
COUNTS = {
    "hand_loop": 3,
    "no_module": 3,
    "two_optimizers": 4,
    "two_optimizers_without_a_loader": 5,
    "in_turns": 6,
    "twice_a_batch": 6,  # an optimizer that steps again begins another step
    "one_optimizer_a_parameter": 4,
    "accumulated": 2,
    "with_evaluation": 2,
    "beside_a_thread": 4,
    "sleeps_and_computes": 5,
    "explicit_around_the_update": 3,
    "explicit_around_all": 3,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Run]]:
    """The run of a way, by its name."""
    folder = tmp_path_factory.mktemp("trainings")
    finished = subprocess.run(
        [sys.executable, "-c", UNCOMPILED + TRAININGS],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
    opened: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in opened:
            opened[name] = open_run(folder / name)
        return opened[name]

    yield run
    for one in opened.values():
        one.close()


def prepared(run: Run, query: str) -> list[tuple[Any, ...]]:
    """Rows of a query that may read the prepared tables of steps."""
    with run.connection.cursor() as engine:
        prepare(engine, ("steps", "step_balances", "input_stretches"))
        return list(engine.execute(query).fetchall())


@pytest.mark.parametrize("name", COUNTS)
def test_all_steps_count_once_whoever_marks_them(trained: Callable[[str], Run], name: str) -> None:
    run = trained(name)
    assert prepared(run, "select count(*) from steps") == [(COUNTS[name],)]

    known = measure(run)
    assert known.training.steps == COUNTS[name]
    assert known.training.wall_s > 0


def test_steps_of_several_optimizers_are_numbered_one_by_one(trained: Callable[[str], Run]) -> None:
    found = prepared(
        trained("two_optimizers"), "select index - min(index) over () from steps order by start_ns"
    )
    assert found == [(0,), (1,), (2,), (3,)]


def test_a_call_between_two_optimizers_is_one_of_their_step(trained: Callable[[str], Run]) -> None:
    run = trained("two_optimizers")
    found = run.sql(
        "select step - min(step) over () from events where path like '%/data' and op = 'read'"
        " order by start_ns"
    )
    assert list(found) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("name", ["two_optimizers", "one_optimizer_a_parameter", "hand_loop"])
def test_a_watch_counts_the_same_steps(trained: Callable[[str], Run], name: str) -> None:
    monitor = Monitor(trained(name).folder)
    monitor.look()
    assert monitor.look().steps == COUNTS[name]


def test_a_balance_is_the_threads_own_clock_from_step_to_step(
    trained: Callable[[str], Run],
) -> None:
    run = trained("sleeps_and_computes")
    rows = prepared(
        run,
        "select end_ns - start_ns, cpu_ns, delay_ns, blocked_ns from step_balances"
        " where index is not null order by start_ns",
    )[1:]
    truth = json.loads((run.folder / ".." / "truth.json").read_text())
    assert len(rows) == len(truth) == 4
    for (wall_ns, cpu_ns, delay_ns, blocked_ns), (took_ns, used_ns) in zip(
        rows, truth, strict=True
    ):
        assert wall_ns == pytest.approx(took_ns, rel=0.1)
        assert cpu_ns == pytest.approx(used_ns, abs=5_000_000)
        if delay_ns is None:
            continue  # this kernel does not count it
        assert 45_000_000 < blocked_ns <= wall_ns - cpu_ns - delay_ns


def test_what_a_hand_written_loop_waits_for_lies_in_its_input_stretches(
    trained: Callable[[str], Run],
) -> None:
    tight = "select began, ended, end_ns - start_ns from input_stretches where is_tight"
    found = prepared(trained("hand_loop"), f"{tight} and began = 'step ended'")
    assert len(found) == 2  # before the first step nothing is known
    assert all(ended == "forward" and ns >= 30_000_000 for _, ended, ns in found)
    found = prepared(trained("beside_a_thread"), f"{tight} and began = 'step ended'")
    assert len(found) == 3  # the other thread's forward passes end none
    assert all(ns >= 30_000_000 for _, _, ns in found)


@pytest.mark.parametrize("name", ["hand_loop", "no_module"])
def test_clearing_gradients_lies_inside_an_input_stretch(
    trained: Callable[[str], Run], name: str
) -> None:
    inside = (
        "select count(*) from spans as s join input_stretches as i on i.thread = s.thread"
        " and s.start_ns between i.start_ns and i.end_ns and s.b <= i.cpu_ns"
        " where s.name = 'clear gradients'"
    )
    assert prepared(trained(name), inside) == [(2,)]  # before the first step there is no stretch


def test_a_batch_that_is_accumulated_is_waited_for_after_a_backward_pass(
    trained: Callable[[str], Run],
) -> None:
    found = prepared(
        trained("accumulated"),
        "select began, ended, end_ns - start_ns >= 30000000 from input_stretches order by start_ns",
    )
    waited, updated = ("backward ended", "forward", True), ("backward ended", "optimizer", False)
    step = [waited, waited, updated]
    assert found == [*step, ("step ended", "forward", True), *step]


def test_an_evaluation_between_steps_bounds_nothing_tightly(
    trained: Callable[[str], Run],
) -> None:
    found = prepared(
        trained("with_evaluation"),
        "select began, ended, is_tight, end_ns - start_ns >= 30000000 from input_stretches"
        " where began <> 'backward ended' order by start_ns",
    )
    assert found == [
        ("step ended", "evaluation", True, True),
        ("evaluation", "backward", False, True),
        ("step ended", "evaluation", True, True),
    ]


def test_without_modules_no_stretch_is_tight_but_the_one_before_an_update(
    trained: Callable[[str], Run],
) -> None:
    found = prepared(
        trained("no_module"),
        "select began, ended from input_stretches where not is_tight order by start_ns",
    )
    assert found == [("step ended", "backward")] * 2


@pytest.mark.parametrize("name", ["explicit_around_the_update", "explicit_around_all"])
def test_the_wait_around_marked_steps_lies_in_their_stretches_too(
    trained: Callable[[str], Run], name: str
) -> None:
    found = prepared(
        trained(name),
        "select began, ended from input_stretches"
        " where is_tight and end_ns - start_ns >= 30000000 order by start_ns",
    )
    outside = ("step ended", "step began")
    assert found == ([outside] * 2 if "update" in name else [("step began", "forward")] * 3)


COMPILED = """
import sys, warnings
import penstock, torch
import torch._dynamo.utils
from torch._dynamo.utils import counters

warnings.filterwarnings("error", "Using .torch.compile")
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, batch):
        return self.inner(batch).relu()

def trained(call, net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (call(torch.ones(2, 4)) + call(torch.zeros(2, 4))).sum().backward()
        optimizer.step()

def compiled_module():
    net = Net()
    trained(torch.compile(net, backend="eager"), net)

def module_in_eager_one():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.compile(Net(), backend="eager"))
    trained(net, net)

def module_compiled_in_place():
    net = Net()
    net.compile(backend="eager")
    trained(net, net)

def compiled_function():
    net = Net()
    trained(torch.compile(lambda batch: net(batch), backend="eager"), net)

ways = (compiled_module, module_in_eager_one, module_compiled_in_place, compiled_function)
for way in ways:
    torch._dynamo.reset()
    if len(sys.argv) > 1:
        with penstock.record(f"{sys.argv[1]}/{way.__name__}"):
            way()
    else:
        way()
    print(way.__name__, sum(counters["graph_break"].values()), dict(counters["stats"]))
"""


@pytest.mark.slow
def test_compiled_code_is_compiled_as_often_as_without_us(tmp_path: Path) -> None:
    def printed(*arguments: str) -> str:
        finished = subprocess.run(
            [sys.executable, "-c", COMPILED, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    assert printed(".") == printed()
    for name in ("compiled_module", "module_in_eager_one", "compiled_function"):
        with open_run(tmp_path / name) as run:
            ended = {row[0] for row in prepared(run, "select ended from input_stretches")}
            assert prepared(run, "select count(*) from steps") == [(3,)]
        assert ended == {"backward" if name == "compiled_function" else "forward", "optimizer"}


WITHOUT_WITH = """
import penstock, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for number in range(5):
    {step}
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("step", ["penstock.step(number)", "with penstock.step(number): pass"])
def test_a_step_without_with_is_said_and_stops_no_automatic_step(
    step: str, recorded: Callable[..., Run]
) -> None:
    run = recorded(UNCOMPILED + WITHOUT_WITH.format(step=step))
    measures = measure(run)
    told = [gap for gap in report_of(measures).gaps if gap.what.startswith("steps marked by")]
    assert measures.training.steps == 5
    if step.startswith("with"):
        assert told == []
        return
    [gap] = told
    assert gap.state == "not measured"
    assert "write `with penstock.step():`" in gap.why
