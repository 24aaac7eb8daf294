"""`penstock save`: arguments and exit codes of the checkpoint commands; no logic.

Exit status: 0 success, 1 a checkpoint is not whole or could not be drained, 2 wrong arguments,
75 not finished within --wait-at-most.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.burst import UNFINISHED
from penstock.cli.draining import (
    NOT_WHOLE,
    WAIT,
    DrainAnswer,
    drained,
    end_drain,
    fetch_choice,
    has_come,
    input_ended,
    led_elsewhere,
    limit_drain,
    mend_places,
    of_folder,
    take_named,
    tell_choice,
    tell_failed,
    told_drained,
    told_lines,
    unknown_files,
    warned_once,
)
from penstock.cli.shell import AS_JSON, ProgressBar, duration, print_json, print_table, rate

if TYPE_CHECKING:
    from penstock.places.stores import Store, StoredFile
    from penstock.save.checkpoint import Checkpoint
    from penstock.save.drain.retention import Keep
    from penstock.save.drain.working import DrainSettings, Working
    from penstock.save.unit.rules import NameRule
    from penstock.save.unit.spans import Saves
    from penstock.save.verify import RestartChoice

__all__ = ["save"]


class _Folder(click.Path):
    """A variable that is not set is no name of the folder where we are."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            self.fail("a tier without a name", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Folder(exists=True, file_okay=False, path_type=Path)
GC_OBJECTS = 100_000  # with Python's 700, a third of a search of 20,000 files is collection


def _named(context: click.Context, parameter: click.Parameter, slow: str | None) -> str | None:
    if slow == "":
        raise click.BadParameter("a tier without a name", context, parameter)
    return slow


@click.group(
    "save",
    short_help="Checkpoints on a fast tier, drained to a slow one.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def save() -> None:
    """Checkpoints on a fast tier, drained to a slow one: list, verify, drain, recover, prune.

    Works for any framework without a change to the training, which saves to the fast tier; the
    drain runs beside the training.

    \b
      python train.py --output /nvme/run1 &
      penstock save drain /nvme/run1 /lustre/run1 --watch --follow $! --keep-fast 2 --foreign
      penstock save recover /nvme/run1 /lustre/run1      after a crash, before the next job
    """
    # A search makes several objects per file, never in a cycle.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS)


@save.command("ls")
@click.argument("tiers", nargs=-1, required=True, metavar="TIER...")
@AS_JSON
@click.option(
    "--explain", is_flag=True, help="Name the files of each, why they are one, and what is missing."
)
@click.option(
    "--run",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="RUN",
    help="Also group the files that one save of this recorded run wrote.",
)
def ls_command(tiers: tuple[str, ...], as_json: bool, explain: bool, run: Path | None) -> None:
    """List checkpoints of tiers, in each tier the highest step first.

    A tier is a folder or a URL (s3://, gs://, sftp://).  A checkpoint is a set of files that belong
    together: the files of a format, the folder of a step, the files of one step (model-300.pt,
    optim-300.pt).

    \b
      penstock save ls /nvme/run1 /lustre/run1
      penstock save ls /nvme/run1 --explain
      penstock save ls s3://bucket/run1 --json
    """
    from penstock.places.stores import open_store
    from penstock.save.explain import copies_elsewhere, unfinished
    from penstock.save.find.formats import find
    from penstock.save.unit.written import saves_of_run

    rows = []
    rest: dict[str, list[StoredFile]] = {tier: [] for tier in tiers}
    for tier in tiers:
        if "://" not in tier and not os.path.isdir(tier):  # noqa: PTH112 - a text, as it was given
            checkpoints, _ = _checkpoints_at(tier)
            if not checkpoints:
                raise click.ClickException(f"{tier}: no checkpoint and no folder")
        else:
            store = open_store(tier)
            saves = saves_of_run(run, store) if run is not None else ()
            copies = copies_elsewhere(store) if explain else ()
            checkpoints = find(store, rest=rest[tier], saves=saves, others=copies)
        for checkpoint in checkpoints:
            verified = bool(checkpoint.manifest and checkpoint.manifest.verified_unix_ns)
            rows.append(
                {
                    "tier": tier,
                    "name": checkpoint.name,
                    "step": checkpoint.step,
                    "kind": checkpoint.kind,
                    "size_bytes": checkpoint.size_bytes,
                    "mtime_ns": checkpoint.mtime_ns,
                    "has_manifest": checkpoint.manifest is not None,
                    "is_verified_copy": verified,
                    "problem": checkpoint.problem
                    or checkpoint.torn
                    or (unfinished(checkpoint) if explain else ""),
                    "why": checkpoint.why + (f"; {checkpoint.doubt}" if checkpoint.doubt else ""),
                    "doubt": checkpoint.doubt,
                    "files": {file.name: file.size_bytes for file in checkpoint.files},
                }
            )
    if explain and not as_json:
        _explain(rows, rest)
        return
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("no checkpoint found", err=True)
        return
    print_table(
        ["tier", "name", "step", "kind", "MB", "saved", "state"],
        [
            (
                row["tier"], row["name"], row["step"], row["kind"],
                f"{row['size_bytes'] / 1e6:,.1f}",  # type: ignore[operator]
                time.strftime("%Y-%m-%d %H:%M", time.localtime(row["mtime_ns"] / 1e9)),  # type: ignore[operator]
                _state_of(row),
            )
            for row in rows
        ],
    )  # fmt: skip


MOST_NAMED = 12


def _explain(rows: Sequence[dict[str, Any]], rest: dict[str, list[StoredFile]]) -> None:
    from penstock.views.paper import Paper

    def rows_of(files: dict[str, int]) -> Iterator[str]:
        for name, size_bytes in list(files.items())[:MOST_NAMED]:
            yield f"    {size_bytes / 1e6:10,.1f} MB  {name}"
        if len(files) > MOST_NAMED:
            yield f"    and {len(files) - MOST_NAMED:,} more files"

    lines = list[str]()
    for row in rows:
        step = "" if row["step"] is None else f", step {row['step']}"
        lines.append(f"{row['tier']}: {row['name']}{step}: {row['why'] or row['kind']}")
        lines += [*rows_of(row["files"]), f"    {_state_of(row)}"]
    for tier, files in rest.items():
        if files:
            lines.append(f"{tier}: files of no checkpoint; a drain copies them, too")
            lines += rows_of({file.name: file.size_bytes for file in files})
    for line in lines or ["no checkpoint found"]:
        click.echo(Paper.clean(line))


def _state_of(row: dict[str, Any]) -> str:
    if row["problem"]:
        return str(row["problem"])
    if row["doubt"]:
        return f"unchecked: {row['doubt']}"
    if row["is_verified_copy"]:
        return "verified copy"
    return "committed" if row["has_manifest"] else "of another program"


@save.command("verify")
@click.argument("place", metavar="RUN")
@click.option("--full", "level", flag_value="full", help="Every byte, from the device.")
@click.option("--sizes", "level", flag_value="sizes", help="Names and sizes only.")
@AS_JSON
@click.option("--forgive", is_flag=True, help="Forget restarts that have failed, then verify.")
def verify_command(place: str, level: str | None, as_json: bool, forgive: bool) -> int:
    """Verify the checkpoints of a run.  Exit status 1: a checkpoint is not whole, or a copy did
    not end.

    RUN is a tier or one checkpoint.  Without an option a sample of the checksums is compared.
    Checkpoints of other programs are judged by the rules of each format.  "whole": checksums cover
    all of the data and were compared.  "complete by length": every file has the length and the
    marks that the format requires (safetensors, HDF5, NumPy, GGUF, msgpack, pickles; any format
    with --sizes).  "complete by name": all files are there.  "unchecked": a file has no content
    that can be checked.  A copy that did not end is NOT WHOLE by the format, else unchecked.

    \b
      penstock save verify runs/llm/checkpoints
      penstock save verify runs/llm/checkpoints/step-1000 --full
      penstock save verify s3://bucket/run1 --json
    """
    from penstock.save import verify as verifying
    from penstock.save.find.unended import is_unended, judgeable
    from penstock.views.paper import Paper

    wanted = level or "sample"
    checkpoints, is_one = _checkpoints_at(place)
    if not checkpoints:
        raise click.ClickException(f"{place}: no checkpoint found")
    if forgive:
        count = verifying.forgive(checkpoints[0].store, checkpoints[0] if is_one else None)
        click.echo(f"penstock: {count} failed restarts forgotten", err=True)
    failures = verifying.remembered(checkpoints[0].store)
    verdicts = []
    with ProgressBar("verifying", is_of_bytes=True) as bar:
        for checkpoint in judgeable(checkpoints, are_all=not is_one):
            tell = functools.partial(bar.advance, what=f"verifying {checkpoint.name}")
            verdicts.append(verifying.verify(checkpoint, wanted, tell))
    if as_json:
        rows = [
            {
                "name": verdict.checkpoint.name,
                "step": verdict.checkpoint.step,
                "kind": verdict.checkpoint.kind,
                "state": verdict.state.lower(),
                # None: no problem is known, and too little was checked.
                "is_whole": verdict.is_checked or (None if verdict.is_whole else False),
                "level": verdict.level,
                "problems": verdict.problems,
                "checked_bytes": verdict.checked_bytes,
                "unprotected_bytes": verdict.unprotected_bytes,
                "remarks": verdict.remarks,
                "failed_restart": verifying.failure_of(verdict.checkpoint, failures),
            }
            for verdict in verdicts
        ]
        print_json(rows)
    else:
        for verdict in verdicts:
            failure = verifying.failure_of(verdict.checkpoint, failures)
            click.echo(Paper.clean(_verdict_line(verdict, failure)))
    ended = all(verdict.is_whole and not is_unended(verdict.checkpoint) for verdict in verdicts)
    return 0 if ended else NOT_WHOLE


def _verdict_line(verdict: Any, failure: str) -> str:
    from penstock.save.checkpoint import UNENDED

    name = verdict.checkpoint.name
    if not verdict.is_whole:
        doubt = (verdict.checkpoint.doubt,) if verdict.checkpoint.doubt == UNENDED else ()
        return f"{name}: NOT WHOLE: {'; '.join([*verdict.problems, *doubt])}"
    said = [f"{name}: {verdict.state} ({verdict.checkpoint.kind}, {verdict.level})"]
    if verdict.unchecked or verdict.by_name:
        names = verdict.unchecked or verdict.by_name
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        nothing = "nothing can be checked in" if verdict.unchecked else "no length is known of"
        said.append(f"{nothing} {names[0]}{more}")
    elif verdict.checkpoint.manifest is not None and verdict.checkpoint.manifest.state:
        said.append("the copy has the bytes of FAST, whose contents nothing could check")
    if verdict.checkpoint.doubt:
        said.append(verdict.checkpoint.doubt)
    if verdict.checkpoint.doubt == UNENDED and verdict.checkpoint.is_folder:
        said.append(f"`penstock save recover FAST SLOW --take {name}` copies the folder")
    if verdict.checked_bytes:
        said.append(f"{verdict.checked_bytes / 1e6:,.1f} MB compared")
    if verdict.unprotected_bytes:
        said.append(f"{verdict.unprotected_bytes / 1e6:,.1f} MB without any checksum")
    if failure:
        said.append(f"but passed over: {failure} (--forgive forgets that)")
    return ", ".join([*said, *verdict.remarks])


def _checkpoints_at(place: str) -> tuple[list[Checkpoint], bool]:
    """Return the checkpoints of a tier and False; or, for a folder or file of a checkpoint, the
    checkpoint and True."""
    from penstock.places.stores import LocalStore, open_store
    from penstock.save.check.judges import is_text
    from penstock.save.checkpoint import Checkpoint
    from penstock.save.find.formats import find, find_file, find_folder

    # TensorFlow names a checkpoint by the common beginning of several files' names: ckpt-12.
    if "://" not in place and not any(map(os.path.lexists, (place, f"{place}.index"))):
        raise click.ClickException(f"{place}: no such folder or file")
    above, _, name = place.rstrip("/").rpartition("/")
    above = above or ("." if "://" not in place else "")
    if above and not above.endswith(":/"):
        with contextlib.suppress(Exception):  # the folder above may be nobody's business
            store = open_store(above)
            single = find_file(store, name)
            if single:
                inner = [single]
            elif isinstance(store, LocalStore) and store.path(name).is_dir():
                inner = find_folder(store, name)
            else:
                inner = [
                    checkpoint for checkpoint in find(store)
                    if checkpoint.name == name or name in {part.name for part in checkpoint.files}
                ]  # fmt: skip
            if inner:
                return inner, True
            if isinstance(store, LocalStore) and (status := store.stat(name)) is not None:
                with contextlib.closing(store.open(name)) as file:
                    is_told = is_text(file, status.size_bytes)
                if not is_told:  # a file of no checkpoint is judged if named directly
                    return [Checkpoint(store, name, "files", False, (status,), None)], True
    return find(open_store(place)), False


def _keep_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--keep-fast", type=click.IntRange(min=0), metavar="N",
                         help="The fast tier keeps its newest N; others go once verified."),
            click.option("--keep-last", type=click.IntRange(min=1), metavar="N",
                         help="The slow tier keeps its newest N.  [default: all]"),
            click.option("--every", type=click.IntRange(min=0), default=0, metavar="STEPS",
                         help="... and each whose step is a multiple of this."),
            click.option("--best", default="", metavar="METRIC",
                         help="... and the best by this metric; -METRIC: larger is better."),
            click.option("--best-n", type=click.IntRange(min=1), default=1, metavar="N",
                         help="... the best N of them.  [default: 1]"),
            click.option("--foreign", is_flag=True,
                         help="Checkpoints of other programs may go from the fast tier too."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def _keep(
    keep_fast: int | None,
    keep_last: int | None,
    every: int,
    best: str,
    best_n: int,
    foreign: bool,
) -> Keep | None:
    """Return the rules for removal; None without an option for removal: nothing is removed."""
    from penstock.save.drain.retention import Keep

    if keep_fast is None and keep_last is None:
        if every or best or foreign:
            raise click.UsageError("say how many stay: --keep-fast N or --keep-last N")
        return None
    fast = keep_fast if keep_fast is not None else sys.maxsize
    return Keep(fast, keep_last, every, best, best_n, foreign)


@save.command("drain", short_help="Copy finished checkpoints from FAST to SLOW, verified.")
@click.argument("fast", type=_Folder(file_okay=False, path_type=Path))
@click.argument("slow", required=False, callback=_named)
@click.option("--limit", type=rate, metavar="RATE", help="Limit of the copying, such as 300MB/s.")
@click.option(
    "--once/--watch",
    default=True,
    help="Drain the present checkpoints, or also later ones.  [default: --once]",
)
@click.option("--concurrency", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--quiet-io", is_flag=True, help="Run with the lowest priority of CPU and disk.")
@click.option(
    "--run",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="RUN",
    help="Pause while this run's data wait rises; group the files that one save of the run wrote.",
)
@click.option(
    "--follow",
    type=click.IntRange(min=1),
    metavar="PID",
    help="With --watch: end after this process, when everything is drained ...",
)
@click.option(
    "--grace",
    type=duration,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="... or this time after the end of the process.",
)
@WAIT
@click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="NAMES",
    help="Files that are one checkpoint: 'model-{step}.pt optim-{step}.pt'.  Kept with both tiers.",
)
@click.option("--share-slow", is_flag=True, help="SLOW may have another job's checkpoints.")
@click.option("--follow-input", is_flag=True, hidden=True, help="... when standard input ends.")
@click.option("--owner", default="", hidden=True, help="The run whose files its log tells of.")
@_keep_options
def drain_command(
    fast: Path,
    slow: str | None,
    limit: float | None,
    once: bool,
    concurrency: int,
    quiet_io: bool,
    run: Path | None,
    follow: int | None,
    grace: float,
    wait_s: float | None,
    units: tuple[str, ...],
    share_slow: bool,
    follow_input: bool,
    owner: str,
    keep_fast: int | None,
    keep_last: int | None,
    every: int,
    best: str,
    best_n: int,
    foreign: bool,
) -> int:
    """Copy finished checkpoints from FAST to SLOW, verified.  Exit status 1: a copy failed.

    SLOW is a folder or a URL (s3://, gs://, sftp://).  Without SLOW: the files that `penstock run
    --burst-buffer FAST` has left are copied to the paths that the program named.  Bytes copied by a
    killed drain are not copied again.  Nothing is removed unless --keep-fast or --keep-last is
    given; checkpoints that other programs saved, as torch.save does, only with --foreign.  The
    status is in FAST/.penstock/drain.json, and as OpenMetrics in drain.prom there.

    \b
      penstock save drain /nvme/run1 /lustre/run1
      penstock save drain /nvme/run1 /lustre/run1 --watch --limit 300MB/s &
      penstock save drain /nvme/run1 /lustre/run1 --watch --keep-fast 2 --foreign &
      penstock save drain /nvme/run1 s3://bucket/run1 --watch --run penstock-runs/train-1 &
      penstock save drain /nvme/tier                         after `penstock run --burst-buffer`

    With --watch, FAST may come later.  --wait-at-most counts from the end of the --follow process.
    """  # fmt: skip
    from penstock.save.drain import working as running
    from penstock.save.drain.drainer import Drainer

    is_followed = follow is not None or follow_input
    _check_follow(is_followed, once, wait_s)
    keep = _keep(keep_fast, keep_last, every, best, best_n, foreign)
    if slow is None and keep is not None:
        raise click.UsageError("--keep-... are about FAST and SLOW: name SLOW")
    saves = _saves_of(run, fast if slow is not None else Path("/"))  # a burst buffer: anywhere
    settings = _settings_of(limit, concurrency, keep, units, saves, share_slow)
    if quiet_io:
        running.be_quiet()
    over = input_ended if follow_input else end_drain(follow)
    if not fast.is_dir() and not has_come(fast, slow, once, over):
        return NOT_WHOLE
    share = _share_of(run) if run is not None else None
    with ProgressBar("draining", is_of_bytes=True) as bar:
        listener = functools.partial(told_lines if once else warned_once(), bar)
        if slow is None:
            from penstock.save.burst.home import Burst

            working: Working = Burst(
                fast, settings, share=share, listener=listener, owner=owner, is_patient=follow_input
            )
        else:
            patience_s = running.PATIENCE_S * is_followed  # the drain of a killed training ends
            answer = DrainAnswer(fast, slow, listener)
            working = Drainer(fast, slow, settings, patience_s, share=share, listener=answer)
            answer.wait_for(working)
        tell = drained(working, once, over, grace, wait_s)
    return tell()


def _check_follow(is_followed: bool, once: bool, wait_s: float | None) -> None:
    if is_followed and once:
        raise click.UsageError("--follow goes with --watch")
    if wait_s is not None and not (once or is_followed):
        raise click.UsageError("--wait-at-most with --watch is about what --follow has followed")


def _settings_of(
    limit: float | None,
    concurrency: int,
    keep: Keep | None,
    units: Sequence[str],
    saves: Callable[[], Saves] | None,
    share_slow: bool,
) -> DrainSettings:
    from penstock.save.drain.working import DrainSettings

    return DrainSettings(
        limit, concurrency, keep=keep, rules=_rules_of(units), saves=saves, is_shared=share_slow
    )


def _rules_of(units: Sequence[str]) -> tuple[NameRule, ...]:
    from penstock.save.unit.rules import NameRule

    return tuple(map(NameRule.of, units))


def _saves_of(run: Path | None, fast: Path) -> Callable[[], Saves] | None:
    """Return a function that reads from a run the files written by each save on a tier."""

    def saves() -> Saves:
        from penstock.places.stores import LocalStore
        from penstock.save.unit.written import saves_of_run

        return saves_of_run(run, LocalStore(fast)) if run is not None else ()

    return saves if run is not None else None


def _share_of(run: Path) -> Callable[[], float | None]:
    """Return a function for the data wait's share of a recorded run's last second.

    None while the share is not known, and after the end of the run.
    """
    from penstock.errors import PenstockError
    from penstock.explain.live import Monitor

    monitors: list[Monitor] = []

    def share() -> float | None:
        with contextlib.suppress(PenstockError):  # its first log may come later than the drain
            if not monitors:
                monitors.append(Monitor(run))
            live = monitors[0].look()
            waits = [
                second.data_wait for second in live.seconds[-3:] if second.data_wait is not None
            ]
            return waits[-1] if waits and live.state != "over" else None
        return None

    return share


@save.command(
    "recover", short_help="After a crash: drain the rest, name the checkpoint to resume from."
)
@click.argument("fast", type=_Folder(file_okay=False, path_type=Path))
@click.argument("slow", required=False, callback=_named)
@click.option("--limit", type=rate, metavar="RATE", help="Limit of the copying, such as 300MB/s.")
@click.option("--concurrency", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--full",
    "level",
    flag_value="full",
    help="Compare every byte of the checkpoint to resume from.",
)
@click.option(
    "--fetch",
    is_flag=True,
    help="Copy this checkpoint to FAST, made if missing, if it is only on SLOW.",
)
@click.option(
    "--take",
    metavar="NAME",
    help="Copy the folder NAME of SLOW to FAST, also if its copy did not end; it is unchecked.",
)
@AS_JSON
@WAIT
def recover_command(
    fast: Path,
    slow: str | None,
    limit: float | None,
    concurrency: int,
    level: str | None,
    fetch: bool,
    take: str | None,
    as_json: bool,
    wait_s: float | None,
) -> int:
    """After a crash: remove unfinished copies, drain the rest, name the checkpoint to resume from.

    For the epilog of a batch job, or for the start of the next job.  Standard output has only the
    path; standard error has the reason why a newer checkpoint was passed over.  --json: an object
    of path and reasons; without a checkpoint to resume from the path is null.

    Files that `penstock run --burst-buffer FAST` has left are first copied to their own paths; SLOW
    may then be omitted.  If the fast tier was lost, SLOW is the folder that the program wrote to:
    links to the lost tier are replaced by the earlier files.

    \b
      penstock save recover /nvme/run1 /lustre/run1
      python train.py --resume "$(penstock save recover /nvme/run1 /lustre/run1)"
      penstock save recover /nvme/run1 s3://bucket/run1 --fetch
      penstock save recover /nvme/tier                       after `penstock run --burst-buffer`
    """
    from penstock.save.copy import copying
    from penstock.save.drain import working as running
    from penstock.save.drain.recover import recover

    settings = running.DrainSettings(limit_bps=limit, concurrency=concurrency)
    if as_json and (slow is None or take is not None):
        raise click.UsageError("--json needs SLOW, and does not work with --take")
    if (fast / "burst" / "home").is_dir():
        return _recover_burst(fast, slow, settings, wait_s, level, as_json)
    is_lost = not (fast.is_dir() and any(fast.iterdir()))
    if slow is not None and is_lost and "://" not in slow and mend_places(slow, fast):
        return _name_newest(slow, fast, level, as_json)
    _need_folder(fast, makes=fetch and slow is not None)
    if slow is None:
        raise click.UsageError(f"{fast}: no burst buffer of a run; name SLOW")
    if take is not None:
        return take_named(take, fast, slow)
    with ProgressBar("draining", is_of_bytes=True) as bar, contextlib.ExitStack() as stack:
        limited, limits = limit_drain(stack, wait_s)
        try:
            choice, failed = recover(
                fast, slow, settings, level=level or "sample",
                patience_s=min(running.PATIENCE_S, wait_s or math.inf),
                listener=functools.partial(warned_once(), bar), drainer=limited, makes_slow=False,
            )  # fmt: skip
        except copying.DrainStopped:
            return limits[0].tell_stopped()
    tell_failed(failed)
    elsewhere = led_elsewhere(slow, fast)
    tell_choice(choice, elsewhere if choice.checkpoint else [*elsewhere, *unknown_files(slow)])
    choice, where = fetch_choice(choice, fast, slow) if fetch else (choice, choice.where)
    _answer(choice, of_folder(choice, where), failed, as_json)
    return NOT_WHOLE if failed or not where else 0


def _need_folder(fast: Path, makes: bool) -> None:
    """Make the fast tier of a new node, or raise UsageError."""
    if makes and fast.parent.is_dir() and not os.path.lexists(fast):
        fast.mkdir()
    if not fast.is_dir():
        raise click.UsageError(
            f"{fast}: no such folder, and no link of a burst buffer leads there; after the loss of "
            f"a node: mkdir -p {shlex.quote(os.fspath(fast))}, then this command with --fetch"
        )


def _answer(choice: RestartChoice, where: str, failed: Sequence[str], as_json: bool) -> None:
    """Print the path to start from; as JSON also state, rejected checkpoints and failed copies."""
    if as_json:
        passed_over = [{"path": path, "reason": why} for path, why in choice.rejected]
        print_json(
            {
                "path": where or None,
                "step": choice.step,
                "state": choice.state or None,
                "passed_over": passed_over,
                "not_drained": list(failed),
            }
        )
    elif where:
        click.echo(where)


def _recover_burst(
    fast: Path,
    slow: str | None,
    settings: Any,
    wait_s: float | None,
    level: str | None,
    as_json: bool,
) -> int:
    """Copy the files on the tier of a burst buffer, and name the checkpoint in SLOW."""
    status = _finish_burst(fast, settings, wait_s)
    if slow is None or status not in (0, NOT_WHOLE, UNFINISHED):
        return status
    mend_places(slow, fast)
    return _name_newest(slow, fast, level, as_json) or status


def _finish_burst(fast: Path, settings: Any, wait_s: float | None) -> int:
    from penstock.save.burst import drain as burstdrain
    from penstock.save.copy.copying import DrainStopped

    with ProgressBar("draining", is_of_bytes=True) as bar, contextlib.ExitStack() as stack:
        limited, limits = limit_drain(stack, wait_s)
        try:
            status, failed = burstdrain.finish(
                fast, settings, listener=functools.partial(told_lines, bar), drainer=limited
            )
        except DrainStopped:
            return limits[0].tell_stopped()
    told_drained(status, is_aside=True)  # standard output is the path to begin from
    tell_failed(failed)
    return NOT_WHOLE if failed else 0


def _name_newest(slow: str, fast: Path, level: str | None, as_json: bool) -> int:
    from penstock.save.verify import latest_valid

    choice = latest_valid(slow, level=level or "sample")
    elsewhere = led_elsewhere(slow, fast)
    tell_choice(choice, elsewhere if choice.checkpoint else [*elsewhere, *unknown_files(slow)])
    where = "" if choice.checkpoint is None else choice.where
    _answer(choice, where, (), as_json)
    return 0 if where else NOT_WHOLE


@save.command("prune")
@click.argument("fast", type=FOLDER)
@click.argument("slow", required=False, callback=_named)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@AS_JSON
@_keep_options
def prune_command(
    fast: Path,
    slow: str | None,
    dry_run: bool,
    as_json: bool,
    keep_fast: int | None,
    keep_last: int | None,
    every: int,
    best: str,
    best_n: int,
    foreign: bool,
) -> int:
    """Remove checkpoints by rule.

    From FAST only what lies verified on SLOW; never the last whole one, and never what Penstock has
    neither committed nor drained (--foreign lets drained ones of other programs go from FAST).

    \b
      penstock save prune /nvme/run1 /lustre/run1 --keep-fast 2
      penstock save prune /nvme/run1 /lustre/run1 --keep-last 3 --every 5000 --best loss --dry-run
    """  # fmt: skip
    from penstock.places.stores import open_store
    from penstock.save.drain import retention

    keep = _keep(keep_fast, keep_last, every, best, best_n, foreign)
    if keep is None:
        raise click.UsageError("say how many stay: --keep-fast N or --keep-last N")
    if keep_last is not None and slow is None:
        raise click.UsageError("--keep-last is about SLOW: name it")
    on_fast, on_slow = open_store(fast), open_store(slow) if slow else None
    if best and on_slow is not None and not _has_metric(on_slow, best.lstrip("-")):
        metric = best.lstrip("-")
        click.echo(f"penstock: no manifest on {slow} has a metric {metric!r}", err=True)
    if dry_run:
        from_fast, from_slow = retention.plan(on_fast, on_slow, keep)
        doomed = [checkpoint for checkpoint, _ in from_fast] + list(from_slow)
        places = [checkpoint.where for checkpoint in doomed]
        freed_bytes = sum(checkpoint.size_bytes for checkpoint in doomed)
    else:
        gone = retention.prune(on_fast, on_slow, keep)
        places = [on_fast.where(name) for name in gone.fast]
        places += [on_slow.where(name) if on_slow else name for name in gone.slow]
        freed_bytes = gone.freed_bytes
    if as_json:
        print_json({"removed": places, "freed_bytes": freed_bytes, "is_dry_run": dry_run})
        return 0
    for place in places:
        click.echo(place)
    if not dry_run:
        click.echo(f"penstock: {freed_bytes / 1e6:,.1f} MB freed", err=True)
    return 0


def _has_metric(store: Store, metric: str) -> bool:
    from penstock.save.find.formats import find

    manifests = [checkpoint.manifest for checkpoint in find(store)]
    return any(metric in manifest.metrics for manifest in manifests if manifest is not None)
