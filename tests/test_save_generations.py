"""Test that a checkpoint of several files, saved again under the same names, is replaced in a store
without renames (S3): a kill at any request leaves the older or the newer save whole."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures import THOROUGH, thorough
from penstock import cli
from penstock.errors import PenstockError, SaveError
from penstock.places.stores import LocalStore, Store, beside
from penstock.save.checkpoint import ARRIVING, HALF, INCOMPLETE, mark_of_half
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import fetch, recover, take
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.manifest import BESIDE, INSIDE
from penstock.save.verify import UNCHECKED, latest_valid, verify
from remote import s3, s3_server, sftp_server
from saves import safetensors, state

__all__ = ["s3", "s3_server", "sftp_server"]

LAYOUTS = {
    "pair": ("model.safetensors", "optimizer.safetensors"),
    "last": ("last.safetensors", "last_optim.safetensors"),
    "folder": ("last/a.safetensors", "last/b.safetensors"),
}
CHANGES = ("PutObject", "CopyObject", "DeleteObject", "DeleteObjects", "UploadPart")
NOW = DrainSettings(settle_s=0, tries=1)
NEXT = 1 if THOROUGH else 2  # from a request at which a copy is killed to the next


class KilledError(Exception):
    """In the place of SIGKILL: from here on the process sends no request."""


@contextmanager
def killed_at(store: Store, number: int) -> Iterator[list[str]]:
    """Let no request pass from the change of this number on; yields the changes that passed."""
    sent, calls = list[str](), store._fs.s3.meta.events

    def look(model: Any, **_: Any) -> None:
        if model.name in CHANGES:
            if len(sent) == number:
                raise KilledError
            sent.append(model.name)
        elif len(sent) == number:
            raise KilledError

    calls.register_first("before-call.s3", look)
    try:
        yield sent
    finally:
        calls.unregister("before-call.s3", look)


@pytest.fixture
def tier(s3: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    opened = lambda url: s3 if str(url).startswith("s3://") else _local(url)  # noqa: E731
    monkeypatch.setattr("penstock.save.drain.drainer.open_store", opened)
    monkeypatch.setattr("penstock.save.verify.open_store", opened)
    return s3


def _local(url: Any) -> Store:
    from penstock.places.stores import open_store

    return open_store(url)


def saved(fast: Path, names: tuple[str, ...], save: int) -> None:
    for name in names:
        state(fast / name, save, at_s=1_700_000_000 + 10 * save)


def drained(fast: Path, store: Store) -> list[str]:
    with Drainer(fast, store.url, NOW) as working:
        left = working.once()
        assert "another run" not in working.status.warning, working.status.warning
        return left


def value(data: bytes) -> float:
    return float(struct.unpack("<f", data[-4:])[0])


def keys(store: Store) -> set[str]:
    return {one.name for one in store.list() if not one.name.startswith(".penstock/")}


def begun_from(folder: Path, store: Store) -> set[float]:
    """Return the saves that a job on a new node begins from."""
    folder.mkdir()
    choice, _ = recover(folder, store.url, NOW)
    assert choice.checkpoint is not None, choice.rejected
    path = fetch(choice.checkpoint, folder)
    files = [*path.rglob("*.safetensors")] if path.is_dir() else [*folder.glob("*.safetensors")]
    found = {value(one.read_bytes()) for one in files}
    assert len(files) == 2, files
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_saves_under_the_same_names_replace_the_save_before(
    tier: Store, tmp_path: Path, names: tuple[str, ...]
) -> None:
    fast = tmp_path / "fast"
    for save in (1, 2, 3):
        saved(fast, names, save)
        assert drained(fast, tier) == []
    manifest = f"last/{INSIDE}" if "/" in names[0] else f"{names[0]}{BESIDE}"
    assert keys(tier) == {*names, manifest}
    assert {value(tier.read(name)) for name in names} == {3}
    assert begun_from(tmp_path / "new", tier) == {3}


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_a_torn_save_is_refused_as_on_a_folder(
    tier: Store, tmp_path: Path, names: tuple[str, ...]
) -> None:
    fast = tmp_path / "fast"
    for save in (1, 2):
        saved(fast, names, save)
        drained(fast, tier)
    saved(fast, names[:1], 3)
    (left,) = drained(fast, tier)
    assert "1 of its 2 files were written again and 1 were not" in left
    shutil.rmtree(fast)
    assert begun_from(tmp_path / "new", tier) == {2}


def test_a_save_that_is_torn_after_a_fetch_is_refused(tier: Store, tmp_path: Path) -> None:
    fast, names = tmp_path / "fast", LAYOUTS["pair"]
    saved(fast, names, 1)
    drained(fast, tier)
    shutil.rmtree(fast)
    fast.mkdir()
    choice, _ = recover(fast, tier.url, NOW)
    assert choice.checkpoint is not None
    fetch(choice.checkpoint, fast)
    state(fast / names[0], 2)
    (left,) = drained(fast, tier)
    assert "were written again" in left
    state(fast / names[1], 2)
    assert drained(fast, tier) == []
    assert {value(tier.read(name)) for name in names} == {2}


@pytest.mark.parametrize("layout", [thorough("pair", like="folder"), "folder"])
def test_a_kill_at_any_request_leaves_one_save_whole(
    tier: Store, tmp_path: Path, layout: str
) -> None:
    fast, names, save, number = tmp_path / "fast", LAYOUTS[layout], 1, 0
    saved(fast, names, save)
    drained(fast, tier)
    seen, is_over = set[float](), False
    while not is_over:
        save += 1
        saved(fast, names, save)
        with killed_at(tier, number) as sent, suppress(PenstockError):
            is_over = drained(fast, tier) == [] and len(sent) < number
        choice = latest_valid(tier, level="full").checkpoint
        if choice is not None:
            there = {value(tier.read(one.name)) for one in choice.files}
            assert there in ({save - 1}, {save}), number
        found = begun_from(tmp_path / "new", tier)
        assert found in ({save - 1}, {save}), number
        seen |= {save - min(found)}
        assert drained(fast, tier) == []
        assert {value(tier.read(name)) for name in names} == {save}
        assert not [key for key in keys(tier) if ".part/" in key or key.endswith(".half")], number
        number += NEXT
    assert number > 8
    assert seen == {0, 1}


@pytest.mark.parametrize("names", [("model-3.safetensors", "optim-3.safetensors"),
                                   ("adam-3.safetensors", "model-3.safetensors"),
                                   ("step_3/a.safetensors", "step_3/b.safetensors")],
                         ids=["lead first", "lead second", "folder"])  # fmt: skip
def test_the_first_keys_of_a_killed_copy_are_no_checkpoint(
    tier: Store, tmp_path: Path, names: tuple[str, ...]
) -> None:
    fast, number = tmp_path / "fast", 0
    saved(fast, names, 3)
    is_over = False
    while not is_over:
        for key in keys(tier):
            tier.delete(key)
        with killed_at(tier, number) as sent, suppress(PenstockError):
            is_over = drained(fast, tier) == [] and len(sent) < number
        for one in find(tier):
            is_all = {found.name for found in one.files} == set(names)
            assert is_all or not verify(one, "full").is_whole, (number, one)
            assert is_all or not one.why.startswith("one file"), (number, one)
        new = tmp_path / f"new-{number}"
        new.mkdir()
        choice, _ = recover(new, tier.url, NOW)
        assert choice.checkpoint is None or len(choice.checkpoint.files) == 2, number
        number += NEXT
    assert number > 3


def test_the_mark_of_a_first_copy_stays_until_the_manifest_is_there(
    tier: Store, tmp_path: Path
) -> None:
    """At each request the folder has the mark, or the manifest."""
    fast, number, is_over = tmp_path / "fast", 0, False
    saved(fast, ("step_3/a.safetensors", "step_3/b.safetensors"), 3)
    while not is_over:
        for key in keys(tier):
            tier.delete(key)
        with killed_at(tier, number) as sent, suppress(PenstockError):
            is_over = drained(fast, tier) == [] and len(sent) < number
        there = keys(tier)
        assert not there or there & {f"step_3/{INCOMPLETE}", f"step_3/{INSIDE}"}, (number, there)
        assert f"step_3/{INSIDE}" not in there or len(there - {f"step_3/{INCOMPLETE}"}) == 3
        number += NEXT
    assert number > 3


def test_a_single_file_is_old_or_new_at_each_request(tier: Store, tmp_path: Path) -> None:
    fast, number, save = tmp_path / "fast", 0, 1
    saved(fast, ("last.safetensors",), 1)
    drained(fast, tier)
    is_over = False
    while not is_over:
        save += 1
        saved(fast, ("last.safetensors",), save)
        with killed_at(tier, number) as sent, suppress(PenstockError):
            is_over = drained(fast, tier) == [] and len(sent) < number
        choice = latest_valid(tier, level="full").checkpoint
        assert choice is not None, number
        assert value(tier.read(choice.name)) in (save - 1, save)
        assert drained(fast, tier) == []
        number += NEXT
    assert number > 2


def test_a_draft_whose_save_is_gone_is_removed(tier: Store, tmp_path: Path) -> None:
    fast, names = tmp_path / "fast", LAYOUTS["pair"]
    for save in (1, 2):
        saved(fast, names, save)
        with killed_at(tier, 3 if save == 2 else 1000), suppress(PenstockError):
            drained(fast, tier)
    assert any(".part/" in key for key in keys(tier))
    for name in names:
        (fast / name).unlink()
    drained(fast, tier)
    assert not any(".part/" in key for key in keys(tier))
    assert {value(tier.read(name)) for name in names} == {1}


def test_an_older_save_with_more_files_leaves_none(tier: Store, tmp_path: Path) -> None:
    fast, names = tmp_path / "fast", ("last/a.safetensors", "last/b.safetensors")
    saved(fast, (*names, "last/rest.txt"), 1)
    drained(fast, tier)
    (fast / "last" / "rest.txt").unlink()
    saved(fast, names, 2)
    assert drained(fast, tier) == []
    assert keys(tier) == {*names, f"last/{INSIDE}"}


def test_the_contract_holds_on_sftp_too(
    sftp_server: tuple[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sftp://me@127.0.0.1:{sftp_server[0]}/{tmp_path.name}"
    from penstock.places.stores import open_store

    store = open_store(url, password="-", host_key_policy="auto_add")
    opened = lambda one: store if str(one) == url else _local(one)  # noqa: E731
    monkeypatch.setattr("penstock.save.drain.drainer.open_store", opened)
    for names in (LAYOUTS["pair"], LAYOUTS["folder"]):
        fast = tmp_path / names[0].partition("/")[0]
        for save in (1, 2, 3):
            saved(fast, names, save)
            assert drained(fast, store) == []
        assert {value(store.read(name)) for name in names} == {3}
    assert not any(".part/" in key or ".2" in key for key in keys(store))
    assert store.read(LAYOUTS["pair"][0]) == safetensors(3)


FIRST = ("model-1.safetensors", "optim-1.safetensors")


def test_a_first_copy_that_was_killed_is_one_save_or_none(tier: Store, tmp_path: Path) -> None:
    """The source is lost.  All files of one save get their manifest; some of the files go."""
    fast, seen = tmp_path / "fast", set[bool]()
    for number in range(0, 9, NEXT):
        saved(fast, FIRST, 1)
        with suppress(KilledError, PenstockError), killed_at(tier, number) as sent:
            drained(fast, tier)
        before = keys(tier)
        assert (
            latest_valid(tier, level="full").checkpoint is None or f"{FIRST[0]}{BESIDE}" in before
        )
        shutil.rmtree(fast)
        fast.mkdir()
        choice, failed = recover(fast, tier.url, NOW)
        assert failed == []
        is_named = choice.checkpoint is not None
        assert is_named == (before >= {*FIRST}), (before, number)
        assert keys(tier) == ({*FIRST, f"{FIRST[0]}{BESIDE}"} if is_named else set())
        seen.add(is_named)
        for name in keys(tier):
            tier.delete(name)
    assert seen == {True, False}
    assert len(sent) < number


def test_a_first_copy_of_a_step_that_was_written_again_is_of_the_newer_save(
    tier: Store, tmp_path: Path
) -> None:
    """A drain was killed in each of both copies, and then the source was lost."""
    fast = tmp_path / "fast"
    for number in range(0, 9, NEXT):
        saved(fast, FIRST, 1)
        with suppress(KilledError, PenstockError), killed_at(tier, 3):  # both files
            drained(fast, tier)
        saved(fast, FIRST, 2)
        with suppress(KilledError, PenstockError), killed_at(tier, number):
            drained(fast, tier)
        shutil.rmtree(fast)
        fast.mkdir()
        choice, _ = recover(fast, tier.url, NOW)
        found = {value(tier.read(name)) for name in keys(tier) if name in FIRST}
        assert len(found) == (choice.checkpoint is not None), (number, found)
        for name in keys(tier):
            tier.delete(name)


def test_files_under_a_mark_of_older_code_are_never_named(tier: Store, tmp_path: Path) -> None:
    """Such a mark does not list the files: they stay, and do not count."""
    fast = tmp_path / "fast"
    saved(fast, FIRST, 1)
    drained(fast, tier)
    tier.delete(FIRST[1])
    tier.delete(f"{FIRST[0]}{BESIDE}")
    mark = f"{FIRST[0]}{HALF}"
    tier.put(mark, [mark_of_half(FIRST[0], str(fast), 2)])
    shutil.rmtree(fast)
    fast.mkdir()
    for _ in range(2):
        choice, _ = recover(fast, tier.url, NOW)
        assert choice.checkpoint is None
    assert keys(tier) == {FIRST[0], mark}


def test_a_name_with_a_newline_stops_no_other_checkpoint(tier: Store, tmp_path: Path) -> None:
    fast, odd = tmp_path / "fast", "two\nlines-7.safetensors"
    saved(fast, ("step_3/a.safetensors", "step_3/b.safetensors", "step_4/a.safetensors"), 3)
    saved(fast, (odd,), 3)
    (fast / "step_5\nand 6").mkdir()
    saved(fast, ("step_5\nand 6/a.safetensors", "last.safetensors"), 3)
    left = drained(fast, tier)
    there = keys(tier)
    for name in ("step_3/a.safetensors", "step_3/b.safetensors", "last.safetensors"):
        assert name in there
        assert value(tier.read(name)) == 3
    # Copied, or named in one line.
    for name in (odd, "step_5\nand 6/a.safetensors"):
        assert name in there or any(name.partition("\n")[0] in line for line in left)


def test_a_wrong_etag_keeps_a_checkpoint_from_counting(tier: Store, tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    saved(fast, ("step_3/a.safetensors", "step_3/b.safetensors"), 3)

    def spoil(parsed: Any, model: Any, **_: Any) -> None:
        if model.name == "PutObject" and "ETag" in parsed:
            parsed["ETag"] = f'"{7:032x}"'

    calls = tier._fs.s3.meta.events
    calls.register_first("after-call.s3", spoil)
    try:
        left = drained(fast, tier)
    finally:
        calls.unregister("after-call.s3", spoil)
    assert any("step_3" in line and "ETag" in line for line in left), left
    assert f"step_3/{INSIDE}" not in keys(tier)
    assert latest_valid(tier, level="full").checkpoint is None
    assert drained(fast, tier) == []
    assert latest_valid(tier, level="full").checkpoint is not None


def test_the_parts_of_an_upload_that_a_killed_drain_began_are_removed(
    tier: Store, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    saved(fast, ("step_3/a.safetensors", "step_3/b.safetensors"), 3)
    bucket = tier.url.removeprefix("s3://").split("/")[0]
    key = "/".join((*tier.url.removeprefix("s3://").split("/")[1:], "step_2/a.safetensors"))
    tier._fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)

    def uploads() -> list[Any]:
        answer = tier._fs.call_s3("list_multipart_uploads", Bucket=bucket)
        return [one for one in answer.get("Uploads", ()) if one["Key"] == key]

    assert len(uploads()) == 1
    assert drained(fast, tier) == []
    assert not uploads()


@pytest.mark.parametrize("lost", ["", "b.safetensors", "half"])
def test_a_folder_whose_copy_did_not_end_is_taken_by_its_name_alone(
    tier: Store, tmp_path: Path, lost: str
) -> None:
    """The source is lost.  The index names the files, and the format their lengths."""
    fast, new = tmp_path / "fast", tmp_path / "new"
    saved(fast, ("step_3/a.safetensors", "step_3/b.safetensors"), 3)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (fast / "step_3" / "model.safetensors.index.json").write_text(json.dumps(index))
    (fast / "step_3" / "config.json").write_text('{"model_type": "x"}')
    for path in sorted((fast / "step_3").iterdir()):
        data = path.read_bytes()
        if path.name != lost:
            tier.put(f"step_3/{path.name}", [data[:-2] if lost == "half" else data])
    tier.put(f"step_3/{INCOMPLETE}", [b"{}"])
    new.mkdir()
    choice, _ = recover(new, tier.url, NOW)
    assert choice.checkpoint is None
    if lost:
        with pytest.raises(SaveError, match=r"json|safetensors"):
            take("step_3", new, tier)
        assert find(LocalStore(new)) == []
        return
    assert take("step_3", new, tier) == new / "step_3"
    assert {value(path.read_bytes()) for path in new.rglob("*.safetensors")} == {3}
    [one] = find(LocalStore(new))
    assert verify(one, "full").state == UNCHECKED
    saved(new, ("step_2/a.safetensors",), 2)
    choice = latest_valid(new)
    assert choice.checkpoint is not None
    assert choice.checkpoint.name == "step_2"
    with pytest.raises(SaveError, match="no checkpoint"):
        take("step_9", new, tier)


def test_the_command_takes_a_folder_by_its_name(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    saved(slow, ("step_3/a.safetensors",), 3)
    (slow / "step_3" / INCOMPLETE).write_text("{}")
    command = ["save", "recover", str(fast), str(slow), "--take"]
    said = CliRunner().invoke(cli.cli, [*command, "step_3"])
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines()[-1] == str(fast / "step_3")
    said = CliRunner().invoke(cli.cli, [*command, "step_9"])
    assert said.exit_code != 0
    assert "no checkpoint" in f"{said.output}{said.exception}"


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ("", "unchecked (hf, sample), its copy did not end"),
        ("b.safetensors", "NOT WHOLE: b.safetensors: named in model.safetensors.index.json"),
        ("half", "NOT WHOLE: a.safetensors: "),
    ],
)
def test_verify_judges_a_copy_that_did_not_end_by_its_format(
    tier: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: str, verdict: str
) -> None:
    """Exit status 1: a restart does not begin from such a copy."""
    monkeypatch.setattr("penstock.places.stores.open_store", lambda url: tier)
    command, fast = ["save", "verify", tier.url], tmp_path / "fast"
    saved(fast, ("step_3/a.safetensors", "step_3/b.safetensors"), 3)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    tier.put("step_3/model.safetensors.index.json", [json.dumps(index).encode()])
    tier.put("step_3/config.json", [b'{"model_type": "x"}'])
    for path in sorted((fast / "step_3").iterdir()):
        if path.name != lost:
            data = path.read_bytes()
            tier.put(f"step_3/{path.name}", [data[:-2] if lost == "half" else data])
    tier.put(f"step_3/{INCOMPLETE}", [b"{}"])
    said = CliRunner().invoke(cli.cli, command, standalone_mode=False)
    assert f"step_3: {verdict}" in said.output, said.output
    assert "its copy did not end" in said.output
    assert said.return_value == 1
    assert [one.problem for one in find(tier)] == [ARRIVING]
    tier.delete(f"step_3/{INCOMPLETE}")
    said = CliRunner().invoke(cli.cli, command, standalone_mode=False)
    assert said.return_value == (1 if lost else 0), said.output


@pytest.mark.parametrize("n_there", [1, 2])
def test_verify_names_the_files_that_a_copy_of_several_files_lacks(
    tmp_path: Path, n_there: int
) -> None:
    command = ["save", "verify", str(tmp_path)]
    names = ("model-3.safetensors", "optim-3.safetensors")
    saved(tmp_path, names[:n_there], 3)
    [one] = find(LocalStore(tmp_path))
    mark = mark_of_half(one.name, "/gone", 2, "files:x", names)
    (tmp_path / beside(one.name, HALF)).write_bytes(mark)
    said = CliRunner().invoke(cli.cli, command, standalone_mode=False)
    assert said.return_value == 1, said.output
    if n_there == 2:
        assert "unchecked" in said.output
        assert "its copy did not end" in said.output
    else:
        assert "no optim-3.safetensors" in said.output
