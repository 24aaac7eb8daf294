"""`penstock tune` finds the faster knobs and undoes the others; a program can refuse a knob.

The search is tested against speeds that are known; the confidence rule against its error rate; the
command with a real DataLoader whose items take a known time."""

import json
import math
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.errors import TierError
from penstock.trial.confidence import interval
from penstock.trial.tune import Outcome, Settings, Tuned, candidates, load, store, tune

# --- the rule ------------------------------------------------------------------------------------


def test_the_interval_misses_the_truth_less_often_than_alpha_however_often_one_looks() -> None:
    chance = random.Random(7)
    misses = 0
    for _ in range(2000):
        ratios: list[float] = []
        for _ in range(20):
            ratios.append(math.exp(chance.gauss(0.1, 0.2)))
            found = interval(ratios, 0.05)
            if not found.low <= math.exp(0.1) <= found.high:
                misses += 1
                break
    assert misses <= 0.05 * 2000


def test_three_pairs_decide_a_clear_effect_and_one_pair_decides_nothing() -> None:
    assert interval([1.5, 1.52, 1.48], 0.05 / 8).low > 1.1
    assert interval([3.0], 0.05).low == 0
    assert interval([], 0.05).high == math.inf


# --- the search ----------------------------------------------------------------------------------


def speeds(noise: float, seed: int, **gains: dict[Any, float]) -> Callable[[Settings], Outcome]:
    """A job of which each knob's value multiplies the speed, with noise."""
    chance = random.Random(seed)

    def run(settings: Settings) -> Outcome:
        rate = 100.0
        for knob, value in settings.items():
            rate *= gains.get(knob, {}).get(value, 1.0)
        seconds = 1000 / (rate * math.exp(chance.gauss(0, noise)))
        return Outcome(1000, seconds, 0.5, ({"workers": 2},))

    return run


def values(start: Outcome) -> dict[str, list[Any]]:
    return candidates(start, 4, None, False)


def test_the_best_of_a_ladder_is_found_and_other_knobs_are_undone() -> None:
    found = tune(speeds(0.01, 1, workers={4: 1.8, 8: 2.5, 16: 2.4}), values, 40, seed=1)
    assert found.settings == {"workers": 8}
    verdicts = {(one.knob, one.value): one.verdict for one in found.trials}
    assert verdicts["workers", 16] == "undone: no gain"
    assert verdicts["ahead", True].startswith("undone")
    assert found.runs <= 40


def test_what_is_slower_than_the_start_is_never_kept() -> None:
    worse = {4: 0.9, 8: 0.8}
    for seed in range(50):
        job = speeds(0.05, seed, workers=worse, ahead={True: 0.97}, prefetch={4: 0.95})
        found = tune(job, values, 30, seed=seed)
        assert found.settings in ({}, {"persistent": True}), found


def test_noise_alone_keeps_a_knob_in_few_of_many_searches() -> None:
    kept = sum(bool(tune(speeds(0.1, n), values, 30, seed=n).settings) for n in range(200))
    assert kept <= 0.05 * 200


def test_a_job_that_is_too_short_or_does_not_wait_says_so() -> None:
    short = tune(lambda _: Outcome(5, 0.3), values, 30)
    assert (short.settings, short.trials, short.runs) == ({}, (), 1)
    assert short.reason.startswith("too short to tune: 5 steps in 0.3 s")
    busy = tune(lambda _: Outcome(1000, 10.0, 0.001), values, 30)
    assert busy.reason == "nothing to gain: the training waits 0.1% of its time for data"


def test_a_knob_that_the_program_refuses_is_undone_with_the_reason() -> None:
    def run(settings: Settings) -> Outcome:
        refused = ("workers of an IterableDataset are the program's own",)
        return Outcome(1000, 10.0, 0.5, ({"workers": 2},), refused * ("workers" in settings))

    found = tune(run, values, 30, seed=1)
    (trial,) = [one for one in found.trials if one.knob == "workers"]
    assert trial.verdict == "not applied: workers of an IterableDataset are the program's own"


def test_the_runs_are_never_more_than_allowed() -> None:
    for most in range(6, 20):
        n = 0
        job = speeds(0.3, most, workers={4: 1.2})

        def counted(settings: Settings) -> Outcome:
            nonlocal n
            n += 1
            return job(settings)  # noqa: B023 - called before the next turn

        tune(counted, values, most, seed=2)
        assert n <= most


# --- the file ------------------------------------------------------------------------------------


def test_the_file_has_the_knobs_and_every_trial(tmp_path: Path) -> None:
    path = tmp_path / "tune.toml"
    found = tune(speeds(0.01, 1, workers={4: 1.8}), values, 40, seed=1)
    store(found, ["python", 'a "b".py'], path)
    assert load(path) == {"workers": 4}
    facts = tomllib.loads(path.read_text())
    assert len(facts["trials"]) == len(found.trials)
    assert facts["command"] == ["python", 'a "b".py']


@pytest.mark.parametrize(
    "text", ["[knobs", "[knobs]\nworkers = -1", "[knobs]\nworkers = true", "[knobs]\nrm = 'x'",
             "knobs = 3", "[knobs]\nstaged = 1"],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tune.toml"
    path.write_text(text)
    with pytest.raises(TierError):
        load(path)


def test_a_result_without_a_setting_is_a_file_too(tmp_path: Path) -> None:
    store(Tuned({}, (), Outcome(1, 1.0), 1, "too short"), ["x"], tmp_path / "t.toml")
    assert load(tmp_path / "t.toml") == {}


# --- with torch ----------------------------------------------------------------------------------

TRAINING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, number):
        time.sleep(0.005)  # as storage that answers after 5 ms
        return number

class Stream(IterableDataset):
    def __iter__(self):
        yield from range(100)

if __name__ == "__main__":
    data = Stream() if "stream" in sys.argv else Slow()
    loader = DataLoader(data, batch_size=4, num_workers=int(sys.argv[1]))
    print(sorted(int(number) for batch in loader for number in batch) == list(range(len(loader) * 4)
          if "stream" not in sys.argv else range(100)), loader.num_workers, loader.prefetch_factor)
"""


@pytest.fixture
def training(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return path


def penstock(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, *words], capture_output=True, text=True, timeout=400)


def test_the_knobs_of_a_file_reach_the_loader(tmp_path: Path, training: Path) -> None:
    path = tmp_path / "tune.toml"
    path.write_text("[knobs]\nworkers = 3\nprefetch = 5\npersistent = true\n")
    words = ("run", "-q", "-o", tmp_path / "run", "--tuned", path, sys.executable, training)
    assert penstock(*words, "1").stdout.split() == ["True", "3", "5"]


def test_workers_of_a_stream_are_left_alone(tmp_path: Path, training: Path) -> None:
    """Two workers would bring each of its items twice."""
    path = tmp_path / "tune.toml"
    path.write_text("[knobs]\nworkers = 2\n")
    words = ("run", "-q", "-o", tmp_path / "run", "--tuned", path, sys.executable, training)
    assert penstock(*words, "0", "stream").stdout.split() == ["True", "0", "None"]


@pytest.mark.alone
def test_more_workers_for_items_that_wait_are_found(tmp_path: Path, training: Path) -> None:
    path = tmp_path / "tune.toml"
    words = ("--runs", "10", "--seed", "1", "--json", "--", sys.executable, training, "1")
    done = penstock("tune", "-o", path, *words)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert load(path) == facts["settings"]
    assert facts["settings"].get("workers", 1) in (2, 4)
    assert "kept" in [trial["verdict"] for trial in facts["trials"]]
    assert (facts["file"], facts["command"][1:]) == (str(path), [str(training), "1"])


def test_a_program_that_fails_ends_the_search(tmp_path: Path) -> None:
    done = penstock("tune", "-o", tmp_path / "t", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert done.returncode == 1
    assert "the trial ended with status 3" in done.stderr
    assert not (tmp_path / "t").exists()
