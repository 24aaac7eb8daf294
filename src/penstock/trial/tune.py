"""Find the knobs of a training job for the highest speed; keep only measured gains.

Knows no process: a caller runs the job with given settings and returns the speed.  docs/tune.md has
the rules.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import TierError
from penstock.safe import drafts
from penstock.trial.confidence import Interval, interval

__all__ = [
    "KNOBS",
    "LOADER_KNOBS",
    "Knob",
    "Outcome",
    "Settings",
    "Trial",
    "Tuned",
    "candidates",
    "facts",
    "load",
    "store",
    "tune",
]

Knob = int | bool | str
Settings = dict[str, Knob]
LOADER_KNOBS = ("workers", "prefetch", "persistent", "pin")
KNOBS = (*LOADER_KNOBS, "ahead", "staged")
ALPHA = 0.05  # of all comparisons together
LEAST_GAIN = 1.02  # a smaller gain is not worth a setting
MOST_PAIRS = 5  # of a comparison
LEAST_PAIRS = 2
LEAST_STEPS, LEAST_S = 20, 1.0  # of a run with a meaningful speed
MOST_COUNT = 1000  # of workers and batches; more is damage
LEAST_WAIT = 0.02  # share of the training time: with less there is nothing to gain


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.  steps in seconds: the training without start-up.  wait_share: data wait
    / training time.  loaders: options of DataLoaders; refused: why a knob was not applied."""

    steps: int
    seconds: float
    wait_share: float = 1.0
    loaders: tuple[Settings, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def rate_hz(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A comparison of a knob's value with the settings before.  verdict: kept, undone, or the
    reason for no trial."""

    knob: str
    value: Knob
    gain: Interval
    verdict: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result: settings to keep, all trials, the speeds of the first run, and why there is
    nothing to tune."""

    settings: Settings
    trials: tuple[Trial, ...]
    start: Outcome
    runs: int
    reason: str = ""


def candidates(start: Outcome, cpus: int, tier: str | None, has_gpu: bool) -> dict[str, list[Knob]]:
    """Return the values to try for each knob, knobs with the largest usual gain first.

    Values of a knob are a ladder: the next value is tried after the value before was kept.
    """
    workers = max((int(loader.get("workers", 0)) for loader in start.loaders), default=0)
    tried: dict[str, list[Knob]] = {}
    if tier is not None:
        tried["staged"] = [tier]
    if start.loaders:
        ladder = [workers * 2**n if workers else 2 ** (n - 1) for n in (1, 2, 3)]
        # Workers waiting for storage need no CPU.
        tried["workers"] = [number for number in ladder if number <= max(4, 4 * cpus)]
    tried["ahead"] = [True]
    if start.loaders:
        tried["prefetch"] = [4, 8]
        tried["persistent"] = [True]
        if has_gpu:
            tried["pin"] = [True]
    return tried


@dataclass
class _Search:
    run: Callable[[Settings], Outcome]
    most_runs: int
    alpha: float
    chance: random.Random
    runs: int = 0
    trials: list[Trial] = field(default_factory=list)

    def measured(self, settings: Settings) -> Outcome:
        self.runs += 1
        return self.run(settings)

    def compare(self, before: Settings, after: Settings) -> tuple[Interval, str]:
        """Run pairs in random order until the interval decides; return why after is undone."""
        ratios: list[float] = []
        gain = interval(ratios, self.alpha)
        while len(ratios) < MOST_PAIRS and self.runs + 2 <= self.most_runs:
            pair = [before, after]
            self.chance.shuffle(pair)
            done = [self.measured(setting) for setting in pair]
            old, new = done if pair[0] is before else reversed(done)
            if new.refused:
                return gain, f"not applied: {new.refused[0]}"
            if not (old.rate_hz and new.rate_hz):
                return gain, "undone: the program made no steps"
            ratios.append(new.rate_hz / old.rate_hz)
            gain = interval(ratios, self.alpha)
            if gain.low > 1:
                is_worth = gain.ratio >= LEAST_GAIN
                return gain, "" if is_worth else "undone: it gains less than 2 %"
            if len(ratios) >= LEAST_PAIRS and gain.ratio < LEAST_GAIN:
                return gain, "undone: no gain"
        return gain, "undone: not decided" if ratios else "not tried: no run is left"


def tune(
    run: Callable[[Settings], Outcome],
    values: Callable[[Outcome], dict[str, list[Knob]]],
    most_runs: int,
    seed: int | None = None,
) -> Tuned:
    """Search knob by knob from the program's own settings.

    run: runs the job with settings.  values: the candidates, from the first run.  most_runs: of the
    job, all together.
    """
    first = run({})
    start = run({}) if not _reason(first) else first  # the first fills the caches
    used = 1 if start is first else 2
    if reason := _reason(start):
        return Tuned({}, (), start, used, reason)
    tried = values(start)
    n = sum(map(len, tried.values())) + 1
    search = _Search(run, most_runs - 2, ALPHA / n, random.Random(seed), used)
    settings: Settings = {}
    for knob, value in _ladders(tried, search.trials):
        gain, why = search.compare(settings, settings | {knob: value})
        search.trials.append(Trial(knob, value, gain, why or "kept"))
        if not why:
            settings = settings | {knob: value}
    search.most_runs = most_runs
    if len(settings) > 1:  # each was a gain alone; together against the start
        gain, why = search.compare({}, settings)
        if gain.pairs and gain.ratio < 1:
            settings = {}
            why = why or "undone: slower than the start"
        search.trials.append(Trial("all", "together", gain, "kept" if settings else why))
    return Tuned(settings, tuple(search.trials), start, search.runs)


def _ladders(tried: dict[str, list[Knob]], trials: list[Trial]) -> Iterator[tuple[str, Knob]]:
    for knob, ladder in tried.items():
        for value in ladder:
            yield knob, value
            if trials[-1].verdict != "kept":
                break


def _reason(start: Outcome) -> str:
    """Return why there is nothing to tune, or ""."""
    if start.steps < LEAST_STEPS or start.seconds < LEAST_S:
        return (
            f"too short to tune: {start.steps} steps in {start.seconds:.1f} s, and at least "
            f"{LEAST_STEPS} in {LEAST_S:g} s are needed"
        )
    if start.wait_share < LEAST_WAIT:
        return f"nothing to gain: the training waits {start.wait_share:.1%} of its time for data"
    return ""


# --- the file ------------------------------------------------------------------------------------


def facts(tuned: Tuned) -> dict[str, Any]:
    """Return the result as values for JSON; a bound that is infinite is None."""
    trials = [
        {
            "knob": trial.knob,
            "value": trial.value,
            "verdict": trial.verdict,
            "pairs": trial.gain.pairs,
            **{
                name: bound if math.isfinite(bound) else None
                for name in ("ratio", "low", "high")
                for bound in (getattr(trial.gain, name),)
            },
        }
        for trial in tuned.trials
    ]
    return {
        "settings": tuned.settings,
        "runs": tuned.runs,
        "reason": tuned.reason,
        "start_steps_per_s": tuned.start.rate_hz,
        "trials": trials,
    }


def store(tuned: Tuned, command: Iterable[str], path: Path) -> None:
    """Write the result for `penstock run --tuned`, with all trials.  Raises OSError."""
    lines = [
        "# Written by penstock tune; penstock run --tuned applies [knobs].",
        f"command = {_toml(list(command))}",
        f"runs = {tuned.runs}",
        f"reason = {_toml(tuned.reason)}",
        "",
        "[knobs]",
        *(f"{knob} = {_toml(value)}" for knob, value in tuned.settings.items()),
    ]
    for trial in tuned.trials:
        lines += ["", "[[trials]]", f"knob = {_toml(trial.knob)}", f"value = {_toml(trial.value)}"]
        lines += [f"verdict = {_toml(trial.verdict)}", f"pairs = {trial.gain.pairs}"]
        for name in ("ratio", "low", "high"):
            number = getattr(trial.gain, name)
            lines.append(f"{name} = {'inf' if math.isinf(number) else f'{number:.4f}'}")
    drafts.write(path, "\n".join([*lines, ""]).encode())


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)


def load(path: Path) -> Settings:
    """Return the knobs of a file by `store`.  Raises TierError: no such file, or a foreign file."""
    try:
        facts = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TierError(f"{path}: {why}; penstock tune -- COMMAND writes it") from error
    knobs = facts.get("knobs", {})
    kinds = {"workers": int, "prefetch": int, "staged": str}
    for knob, value in knobs.items() if isinstance(knobs, dict) else [("knobs", knobs)]:
        is_sound = knob in KNOBS and type(value) is kinds.get(knob, bool)
        if not is_sound or (type(value) is int and not 0 <= value < MOST_COUNT):
            raise TierError(f"{path}: {knob} = {value!r} is no setting known here")
    return dict(knobs)
