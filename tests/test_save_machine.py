"""Whatever happens to a program, a drain and a fast tier: the newest whole checkpoint is never
lost, and `recover` names a checkpoint that is whole and of one save."""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fixtures import times
from penstock.places.stores import LocalStore
from penstock.save import commit
from penstock.save.checkpoint import Checkpoint
from penstock.save.copy import target
from penstock.save.drain import drainer as drain
from penstock.save.drain import retention
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import fetch, recover
from penstock.save.drain.retention import Keep, prune
from penstock.save.drain.working import DrainSettings

NOW = DrainSettings(settle_s=0, tries=1)
SHARDS = [f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)]
INDEX = "model.safetensors.index.json"

# The files of save N in each layout, in the order of the program's writes.
LAYOUTS = {
    "three files": ["model-{n}.safetensors", "optim-{n}.safetensors", "ema-{n}.safetensors"],
    "ranks": ["model_{n:06d}.safetensors", "optim_{n:06d}_rank0.pt", "optim_{n:06d}_rank1.pt",
              "meta_{n:06d}.json"],
    "folder": ["step_{n}/weights.npz", "step_{n}/optimizer.msgpack", "step_{n}/args.json"],
    "accelerate": ["checkpoint_{n}/model.safetensors", "checkpoint_{n}/optimizer.bin",
                   "checkpoint_{n}/random_states_0.pkl"],
    "shards of a step": [*(f"step_{{n}}/{name}" for name in SHARDS), f"step_{{n}}/{INDEX}"],
    "one file": ["epoch={n}.safetensors"],
    # The same names in each save.
    "parts": ["model.safetensors", "optimizer.safetensors", "scheduler.safetensors"],
    "model": ["out/config.json", *(f"out/{name}" for name in SHARDS), f"out/{INDEX}"],
    "loose shards": [*SHARDS, INDEX],
}  # fmt: skip


ROLES = ("model", "optim", "ema", "scheduler", "generator", "critic")
ENDINGS = ("safetensors", "pt", "npz", "msgpack")


@st.composite
def units(draw: st.DrawFn) -> list[str]:
    """Return the files of a save in the order of writing, with names of a random grammar: roles,
    ranks, the place and the form of the step, folders, and a description at either end."""
    roles = draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=4, unique=True))
    n_ranks = draw(st.sampled_from([0, 0, 2, 3]))
    ending, dash = draw(st.sampled_from(ENDINGS)), draw(st.sampled_from("-_"))
    number = draw(st.sampled_from(["{n}", "{n}00", "{n:06d}", "{n:04d}0"]))
    places = ["behind", "before", "word", "folder", "nested", "none", "fixed folder"]
    place = draw(st.sampled_from(places))
    rows = [f"{role}{dash}rank{rank}" for role in roles for rank in range(n_ranks)] or roles
    # Beside one file without a step, a description is no part of the save.
    described = draw(st.sampled_from(["", "", "first", "last"])) if len(rows) > 1 else ""
    # Without a step and a folder, only these descriptions belong to a save.
    known = ["state", "trainer_state"] if place == "none" else ["meta", "args"]
    texts = [draw(st.sampled_from(known))] if described else []
    names = [(row, ending) for row in rows]
    names = [(text, "json") for text in texts if described == "first"] + names
    names += [(text, "json") for text in texts if described == "last"]
    folder = draw(st.sampled_from(["step", "epoch", "iter", "ckpt"])) + dash + number
    made = {
        "behind": lambda row: f"{row}{dash}{number}",
        "before": lambda row: f"step{number}{dash}{row}",
        "word": lambda row: f"{row}{dash}step{dash}{number}",
        "folder": lambda row: f"{folder}/{row}",
        "nested": lambda row: f"run/{folder}/state/{row}",
        "none": lambda row: row,
        "fixed folder": lambda row: f"last/{row}",
    }[place]
    return [f"{made(row)}.{end}" for row, end in names]


class Killed(BaseException):
    pass


@functools.cache  # a zip archive contains the time
def content(name: str, save: int) -> bytes:
    """Return content that the name's format accepts as whole, with the save's number at the end."""
    if name.endswith(INDEX):
        return json.dumps({"weight_map": {one: one for one in SHARDS}, "save": save}).encode()
    if name.endswith(".json"):
        return json.dumps({"save": save}).encode()
    if name.endswith(".safetensors"):
        head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        return struct.pack("<Q", len(head)) + head + struct.pack("<2f", save, save)
    return made_by[name.rpartition(".")[2]](save)


def _npz(save: int) -> bytes:
    import io

    import numpy as np

    file = io.BytesIO()
    np.savez(file, save=save)
    return file.getvalue()


def _torch(save: int) -> bytes:
    import io
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", str(save))
    return file.getvalue()


def _pickle(save: int) -> bytes:
    import pickle

    return pickle.dumps(save)


made_by = {
    "npz": _npz, "pt": _torch, "bin": _torch, "pkl": _pickle,
    "msgpack": lambda save: b"\xce" + struct.pack(">I", save),
    "txt": lambda save: str(save).encode(),
}  # fmt: skip


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Raise Killed at the given number of file system changes inside the block."""
    left = [number]

    def counted(do: Any) -> Any:
        def now(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise Killed
            return do(*given, **named)

        return now

    held = list[commit.Claim]()

    def claimed(*given: Any) -> commit.Claim:
        held.append(commit.claim(*given))
        return held[-1]

    with (
        mock.patch.object(drain, "claim", claimed),
        mock.patch.object(Path, "replace", counted(Path.replace)),
        mock.patch.object(Path, "rename", counted(Path.rename)),
        mock.patch.object(Path, "unlink", counted(Path.unlink)),
        mock.patch.object(LocalStore, "put", counted(LocalStore.put)),
        mock.patch.object(LocalStore, "delete", counted(LocalStore.delete)),
        mock.patch.object(target, "discard", counted(commit.discard)),
        mock.patch.object(retention, "discard", counted(commit.discard)),
        suppress(Killed),
    ):
        yield
    for one in held:  # the kernel releases the claims
        one.close()


class Tiers(RuleBasedStateMachine):
    """A model of the tiers.  saves: number of the last whole save; safe: number of the newest save
    known to be on the slow tier or whole on the fast tier."""

    @initialize(
        layout=st.one_of(st.sampled_from(list(LAYOUTS.values())), units()),
        before=st.sampled_from([0, 7]),
    )
    def begin(self, layout: list[str], before: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-machine-"))
        self.fast, self.slow = self.root / "fast", self.root / "slow"
        self.fast.mkdir()
        self.layout = layout
        self.in_place = not any("{n" in name for name in self.layout)
        self.n = before  # from 7 the names change their order at the tenth save
        self.torn = self.clock = 0
        self.on_fast: int | None = None  # the newest save that is whole on the fast tier
        self.on_slow = 0  # the slow tier has at least this save, whole
        self.is_torn = False  # the program was killed in the middle of the last save
        self.save()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def _write(self, n_files: int) -> None:
        """Write a save.  A killed program continues from the save before and repeats the step."""
        self.n += not self.torn or self.in_place
        self.clock += 1
        for place, name in enumerate(self.layout[:n_files]):
            path = self.fast / name.format(n=self.n)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(path.name, self.n))
            at_s = 1.7e9 + 100 * self.clock + place / 10
            os.utime(path, (at_s, at_s))

    @rule()
    def save(self) -> None:
        self._write(len(self.layout))
        self.on_fast, self.torn = self.n, 0
        self.is_torn = False

    # After three incomplete saves in a row, a missing part looks like a part that the program no
    # longer saves.
    @precondition(lambda self: self._is_known() and self.torn < 2)
    @rule(share=st.floats(0.01, 0.99))
    def save_killed(self, share: float) -> None:
        if len(self.layout) == 1:
            return
        # A new configuration beside the files of the save before is no mixture of two states.
        least = 2 if self.layout[0].endswith(".json") else 1
        self._write(max(least, min(len(self.layout) - 1, int(share * len(self.layout)))))
        self.is_torn, self.torn = True, self.torn + 1
        if self.in_place:  # over the save before
            self.on_fast = None

    def _is_known(self) -> bool:
        """Return whether a tier has a whole save to compare a part with."""
        return self.on_slow == self.n if self.in_place else bool(self.on_fast or self.on_slow)

    def _keep(self, fast: int, last: int | None) -> Keep:
        return Keep(fast=fast, last=last, foreign=True)

    @rule(fast=st.integers(0, 2), last=st.sampled_from([None, 1, 2]))
    def drain(self, fast: int, last: int | None) -> None:
        one = DrainSettings(settle_s=0, tries=1, keep=self._keep(fast, last))
        with Drainer(self.fast, self.slow, one) as working:
            failed = working.once()
        assert bool(failed) == self.is_torn, failed
        self.on_slow = max(self.on_slow, self.on_fast or 0)
        if fast == 0:
            self.on_fast = None

    @rule(at=st.integers(1, 40), fast=st.integers(0, 2), last=st.sampled_from([None, 1]))
    def drain_killed(self, at: int, fast: int, last: int | None) -> None:
        one = DrainSettings(settle_s=0, tries=1, keep=self._keep(fast, last))
        with killed_at(at), Drainer(self.fast, self.slow, one) as working:
            working.once()
        if fast == 0:  # files removed from the fast tier were on the slow tier
            self._look_which()

    def _look_which(self) -> None:
        if self.on_fast is not None and not self._is_there(self.on_fast):
            self.on_slow = max(self.on_slow, self.on_fast)
            self.on_fast = None

    def _is_there(self, n: int) -> bool:
        return all((self.fast / name.format(n=n)).exists() for name in self.layout)

    @rule(fast=st.integers(0, 2), last=st.sampled_from([None, 1]))
    def prune(self, fast: int, last: int | None) -> None:
        prune(LocalStore(self.fast), LocalStore(self.slow), self._keep(fast, last))
        self._look_which()

    @precondition(lambda self: self.on_slow > 0)
    @rule()
    def lose_fast(self) -> None:
        shutil.rmtree(self.fast)
        self.fast.mkdir()
        self.on_fast, self.is_torn = None, False

    @precondition(lambda self: self.on_slow > 0)
    @rule(at=st.integers(1, 25))
    def lose_fast_in_a_drain(self, at: int) -> None:
        """The node is lost in the middle of a drain: the copies of before must be whole."""
        with killed_at(at), Drainer(self.fast, self.slow, NOW) as working:
            working.once()
        self.lose_fast()

    @rule(is_fetched=st.booleans())
    def recover(self, is_fetched: bool) -> None:
        choice, _ = recover(self.fast, self.slow, NOW)
        one = choice.checkpoint
        newest = max(self.on_fast or 0, self.on_slow)
        assert (one is None) == (newest == 0), choice
        if one is None:
            return
        found = self._save_of(one)
        assert found >= newest
        self.on_slow = max(self.on_slow, self.on_fast or 0)
        is_there = one.store.url == str(self.fast)
        if is_fetched and not is_there and not self.is_torn:
            fetch(one, self.fast)
            self.on_fast = found

    def _save_of(self, one: Checkpoint) -> int:
        """Return the number of the save; assert that all files are present and of this save."""
        assert isinstance(one.store, LocalStore)
        there = {one.inner(found): one.store.path(found.name) for found in one.files}
        for n in range(self.n, 0, -1):
            start = len(one.folder)
            wanted = [name.format(n=n) for name in self.layout]
            inner = [name[start:] for name in wanted]
            if set(inner) <= set(there) and all(
                there[name].read_bytes() == content(name.rpartition("/")[2], n) for name in inner
            ):
                return n
        raise AssertionError(f"a mixture, or a part: {sorted(there)}")

    @invariant()
    def slow_has_no_mixture(self) -> None:
        """Check that every counted copy is of one save, also without a drain."""
        from penstock.save.verify import latest_valid

        if getattr(self, "slow", None) is None or not self.slow.is_dir():
            return
        choice = latest_valid(self.slow, level="full")
        if choice.checkpoint is not None:
            self._save_of(choice.checkpoint)


Tiers.TestCase.settings = settings(
    max_examples=times(150),
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.generate],
)
pytest.mark.slow(Tiers.TestCase)
TestTiers = Tiers.TestCase
