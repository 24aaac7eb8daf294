"""Define the commands `penstock tiers` and `penstock stage`: arguments in, sentences out.  No
logic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.objects import copy_objects
from penstock.cli.shell import (
    AS_JSON,
    INTERRUPTED,
    TIER,
    here,
    on_one_line,
    print_json,
    print_rich,
    rate,
    say,
    say_some,
    size,
    tell_thawed,
    working,
)
from penstock.errors import TierError, TierGone
from penstock.safe import drafts

if TYPE_CHECKING:
    import subprocess

    from penstock.places.registry import Tier
    from penstock.stage.copy import Copied
    from penstock.stage.plan import Plan
    from penstock.stage.ranks import CommRanks
    from penstock.stage.source import WantedFile

__all__ = ["quarter", "stage_group", "start_filling", "tiers_group"]

CORRUPTED = 1
LOOKED_EVERY_S = 0.02
TO = click.option("--to", "tier", required=True, type=TIER, help="Its name; see tiers list.")


# --- tiers ---------------------------------------------------------------------------------------


@click.group("tiers", short_help="Name the folders for copies, and measure their speed.")
def tiers_group() -> None:
    """Name the folders for copies, and measure their speed.

    \b
      penstock tiers add fast /mnt/nvme --capacity 100GB
      penstock tiers list
    """


@tiers_group.command("add")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--capacity", type=size, help="What copies may take.  [default: what is free]")
@click.option("--no-measure", is_flag=True, help="Not now; stage plan needs it.")
def tiers_add(name: str, folder: Path, capacity: int | None, no_measure: bool) -> None:
    """Make a folder a tier, and measure its ceiling: some ten seconds.

    \b
      penstock tiers add fast /mnt/nvme --capacity 100GB
      penstock tiers add memory /dev/shm/penstock --capacity 8GB
    """
    from penstock.places import registry

    is_new = all(tier.name != name for tier in registry.registered())
    tier = registry.add(name, folder, capacity)
    try:
        tier = tier if no_measure else _measured(tier)
    except BaseException as error:
        if is_new:
            registry.remove(name)
        if isinstance(error, TierError):
            raise TierError(f"{error}; or leave that for later: --no-measure") from error
        raise
    print_rich(_tiers_table([tier]))
    _tell_beyond(tier)


def _tell_beyond(tier: Tier) -> None:
    """Warn of a capacity larger than the file system."""
    from penstock.places.tiers import size_bytes
    from penstock.words import show

    whole = size_bytes(tier.path)
    if tier.capacity_bytes is not None and tier.capacity_bytes > whole > 0:
        say(
            f"{tier.name}: its capacity is {show(tier.capacity_bytes, 'B')}, and its file system "
            f"holds {show(whole, 'B')} in all: copies take what is free there"
        )


@tiers_group.command("measure", short_help="Measure a tier again.")
@click.argument("name", type=TIER, metavar="NAME")
@AS_JSON
def tiers_measure(name: str, as_json: bool) -> None:
    """Measure a tier again: the costs of a file and of a byte, and the largest bandwidth.

    \b
      penstock tiers measure fast
    """
    from dataclasses import asdict

    from penstock.places import registry

    tier = registry.tier_of(name)
    registry.look(tier)
    tier = _measured(tier)
    if as_json:
        print_json(asdict(tier))
    else:
        print_rich(_tiers_table([tier]))


def _measured(tier: Tier) -> Tier:
    from penstock.places import registry
    from penstock.trial import ceiling

    with working("measuring") as progress:
        costs = registry.measure_costs(tier.path)
        try:
            ceilings = ceiling.ceilings_of_path(tier.path, True, 10.0, progress.say)
        except TierError as error:  # small: files can be read there all the same
            say(f"{error}; its ceiling is not measured")
            ceilings = []
    return registry.set_measured(tier.name, costs, ceilings)


@tiers_group.command("list")
@AS_JSON
def tiers_list(as_json: bool) -> None:
    """Show the tiers, their bandwidths and their staged copies.

    \b
      penstock tiers list
    """
    from dataclasses import asdict

    from penstock.places import registry
    from penstock.places.tiers import mount_of
    from penstock.recording import machine
    from penstock.words import show

    tiers = registry.registered()
    if as_json:
        print_json([asdict(tier) for tier in tiers])
        return
    if tiers:
        print_rich(_tiers_table(tiers))
    else:
        click.echo("no tier yet; penstock tiers add NAME FOLDER --capacity 100GB")
    taken = set()
    for tier in tiers:
        with contextlib.suppress(TierError):  # without a folder: shown in the table
            taken.add(mount_of(tier.path).point)
    for place, device, free_bytes in machine.flash():
        if place not in taken:
            click.echo(f"{place} is on NVMe of this node ({device}, {show(free_bytes, 'B')} free)")


@tiers_group.command("remove")
@click.argument("name", type=TIER, metavar="NAME")
def tiers_remove(name: str) -> None:
    """Forget a tier.  Its copies stay where they are: evict them before.

    \b
      penstock stage evict fast && penstock tiers remove fast
    """
    from penstock.places import registry

    tier = registry.remove(name)
    click.echo(f"{tier.name} is forgotten; {tier.path} was left as it is")


def _tiers_table(tiers: list[Tier]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from penstock.stage.manifest import TierPlace
    from penstock.words import show

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("tier", "folder"):
        table.add_column(name, overflow="fold")
    for name in ("capacity", "staged", "reads", "writes", "a file", "state"):
        table.add_column(name, justify="right")
    for tier in tiers:
        staged, state = 0, "not there"
        try:
            staged = sum(entry.identity.size_bytes for entry in TierPlace(tier).entries().values())
            state = "ready"
        except TierGone:
            pass
        except TierError:
            state = "damaged"
        if tier.costs is None and state == "ready":
            state = "not measured"
        cells = (
            tier.name,
            str(tier.path),
            show(tier.capacity_bytes, "B"),
            show(staged, "B"),
            show(tier.read_bps, "B/s"),
            show(tier.write_bps, "B/s"),
            show(tier.costs.open_s if tier.costs else None, "s"),
            state,
        )
        table.add_row(*[Text(cell) for cell in cells])
    return table


# --- stage ---------------------------------------------------------------------------------------


@click.group("stage", short_help="Copy the files that a run waited for to a fast tier.")
def stage_group() -> None:
    """Copy the files that a run waited for to a fast tier, and serve its opens from there.

    \b
      penstock stage plan RUN --to fast --budget 20GB       which files, and what it would bring
      penstock stage copy RUN --to fast --budget 20GB       copies them
      penstock run --staged fast python train.py            the same program, reading the copies
    """


def _plan(run: Path, tier_name: str, budget: int | None, policy: str) -> Plan:
    from penstock.explain.measures import measure
    from penstock.places.registry import look, tier_of
    from penstock.runs.run import open_run
    from penstock.stage.evidence import evidence_of
    from penstock.stage.plan import plan

    tier = tier_of(tier_name)
    look(tier)  # before minutes of reading logs
    with (
        working("reading logs") as progress,
        contextlib.closing(open_run(run, progress.advance)) as opened,
    ):
        progress.say("measuring the run", 0.0)
        evidence = evidence_of(opened)
        read = max(
            (row for row in measure(opened).storage if row.path_class == "data"),
            key=lambda row: row.read_bytes,
            default=None,
        )
        return plan(
            here(run),
            evidence,
            tier,
            budget_bytes=budget,
            policy=policy,
            slow_bps=read.read_ceiling_bps if read else None,
            progress=progress.say,
        )


POLICY = click.option(
    "--policy",
    default="gain",
    show_default=True,
    metavar="NAME",
    help="gain, or for comparison small, hottest, directory, random.",
)
BUDGET = click.option("--budget", type=size, help="At most so much.  [default: the capacity]")


@stage_group.command("plan", short_help="Choose the files of a run that are worth a copy.")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@TO
@BUDGET
@POLICY
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The plan, for stage copy.",
)
@click.option(
    "--picture",
    "drawing",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The curve of gain by bytes: .html, .png, .svg or .pdf.",
)
@AS_JSON
def stage_plan(
    run: Path,
    tier: str,
    budget: int | None,
    policy: str,
    output: Path | None,
    drawing: Path | None,
    as_json: bool,
) -> None:
    """Choose files of a run for a tier: the most data wait removed for the room that they take.

    Shows the expected gain, the gain by bytes staged, and the gain of simpler choices.

    \b
      penstock stage plan runs/tuesday --to fast
      penstock stage plan runs/tuesday --to fast --budget 20GB -o plan.jsonl --picture curve.html
    """
    from penstock.stage import planfile

    made = _plan(run, tier, budget, policy)
    if output is not None:
        planfile.store(made, output)
    if drawing is not None:
        planfile.picture(made, drawing)
    if as_json:
        print_json(planfile.facts_of(made))
    else:
        print_rich(planfile.table_of(made))


@stage_group.command("objects", short_help="List the objects that a run fetched, and how often.")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--to", "tier", type=TIER, help="Only objects for this tier, as far as they fit.")
@BUDGET
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The objects, as lines of JSON, for stage copy.",
)
@AS_JSON
def stage_objects(
    run: Path, tier: str | None, budget: int | None, output: Path | None, as_json: bool
) -> None:
    """List the objects that a run fetched from remote storage: size, bytes, requests, processes.

    Shows the bytes and the time of requests that a copy of each object on the node would save.
    With --to, the objects with the most request time per byte, as far as the tier has room.

    \b
      penstock stage objects runs/tuesday -o objects.jsonl
      penstock stage objects runs/tuesday --to fast --budget 20GB -o objects.jsonl
      penstock stage copy objects.jsonl --to fast
      penstock run --staged fast python train.py
    """
    from penstock.places.registry import look, tier_of
    from penstock.runs.run import open_run
    from penstock.stage import objects

    if tier is None and budget is not None:
        raise click.UsageError("--budget is of a tier: name the tier with --to")
    there = tier_of(tier) if tier is not None else None
    if there is not None:
        look(there)

    with (
        working("reading logs") as progress,
        contextlib.closing(open_run(run, progress.advance)) as opened,
    ):
        made = objects.object_plan(opened)
    if there is not None:
        made = objects.chosen(made, there, budget)
    if output is not None:
        objects.store(made, output)
    if as_json:
        print_json(objects.facts_of(made))
    else:
        for sentence in objects.sentences_of(made):
            click.echo(sentence)


@stage_group.command("copy", short_help="Copy to a tier: a plan, the choice of a run, or a folder.")
@click.argument("what", metavar="RUN|PLAN|FOLDER|URL")
@TO
@BUDGET
@POLICY
@click.option("--limit", type=rate, metavar="SIZE/s", help="At most so many bytes a second.")
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    metavar="N",
    help="[default: 8; 32 where files lie on a server's or a FUSE file system]",
)
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="N", help="Copies a share.")
@click.option(
    "--world-size", type=click.IntRange(min=1), default=1, metavar="N", help="Of so many."
)
@click.option("--mpi", "is_mpi", is_flag=True, help="Shares the work with this MPI job's ranks.")
@click.option(
    "--frozen",
    "is_frozen",
    is_flag=True,
    help="The files do not change: asked once at a run's start, not at each open.",
)
@AS_JSON
def stage_copy(
    what: str,
    tier: str,
    budget: int | None,
    policy: str,
    limit: int | None,
    threads: int | None,
    rank: int,
    world_size: int,
    is_mpi: bool,
    is_frozen: bool,
    as_json: bool,
) -> None:
    """Copy to a tier the files that a plan names, that are chosen from a run, or below a folder.

    A copy is complete or absent, and checked.  Existing copies stay; a killed copying is continued;
    several processes may copy at once.

    \b
      penstock stage copy runs/tuesday --to fast --budget 20GB
      penstock stage copy plan.jsonl --to fast --limit 300MB/s
      penstock stage copy /data/imagenet --to fast
      penstock stage copy /data/imagenet --to fast --frozen    opens ask the slow tier no more
      penstock stage copy objects.jsonl --to fast           of penstock stage objects RUN
      penstock stage copy s3://bucket/train --to fast       needs penstock[remote]
      mpirun -n 4 penstock stage copy plan.jsonl --to fast --mpi    needs penstock[mpi]
      srun -N 4 sh -c 'penstock stage copy plan.jsonl --to shared
          --rank $SLURM_PROCID --world-size $SLURM_NTASKS'
    """
    from penstock.places.registry import tier_of
    from penstock.stage import copy as copying
    from penstock.stage.manifest import TierPlace

    _check_share(is_mpi, rank, world_size)
    ranks = _ranks() if is_mpi else None
    there = tier_of(tier)
    store = None
    what = what.removeprefix("file://")  # an existing file is opened by path
    if "://" in what:
        from penstock.places.stores import open_store

        _copied_whole(budget, policy)
        store = open_store(what)
    wanted: Iterable[WantedFile] = ()
    is_of_objects = store is None and _is_of_objects(what, is_mpi, budget, policy)
    if is_of_objects:
        wanted = ()
    elif store is None and ranks is not None:
        wanted = ranks.first_only(lambda: tuple(_wanted(what, tier, budget, policy)))
    elif store is None:
        wanted = _wanted(what, tier, budget, policy)
    if ranks is not None:
        rank, world_size = ranks.sharing(TierPlace(there))

    def copied() -> Copied:
        with working("copying", is_of_bytes=True) as progress:
            how: Any = {"rank": rank, "world_size": world_size, "limit_bps": limit}
            how |= {"threads": threads, "progress": progress.advance}
            if is_of_objects:
                return copy_objects(Path(what), there, is_frozen, **how)
            return copying.copy(there, wanted, store=store, is_frozen=is_frozen, **how)

    copied_files = ranks.together(copied) if ranks is not None else copied()
    if ranks is None or ranks.rank == 0:
        _tell_copied(copied_files, there, as_json, store is not None)


def _is_of_objects(what: str, is_mpi: bool, budget: int | None, policy: str) -> bool:
    """Return True for a list of objects; refuse options for files only."""
    from penstock.stage import objects

    if not objects.is_plan(Path(what)):
        return False
    _copied_whole(budget, policy)
    if is_mpi:
        raise click.UsageError("--mpi goes with files; objects: --rank and --world-size")
    return True


def _check_share(is_mpi: bool, rank: int, world_size: int) -> None:
    if is_mpi and (rank or world_size > 1):
        raise click.UsageError("--mpi knows the rank: leave out --rank and --world-size")
    if rank >= world_size:
        raise click.UsageError(
            f"--rank {rank} of --world-size {world_size}: ranks count from 0 to one less"
        )


def _ranks() -> CommRanks:
    from penstock.stage.ranks import ranks_of_mpi

    return ranks_of_mpi()


def _wanted(what: str, tier: str, budget: int | None, policy: str) -> Iterable[WantedFile]:
    from penstock.stage import planfile
    from penstock.stage.source import below
    from penstock.trial.ceiling import is_run
    from penstock.words import count, show

    path = Path(what)
    if path.is_dir() and is_run(path):
        made = _plan(path, tier, budget, policy)
        brings = f"expected to remove {show(made.gain_s, 's')} of data wait"
        say(f"{count(made.files, 'file')}, {brings if made.gain_s > 0 else 'nothing to gain'}")
        if made.gain_s <= 0:
            for note in made.notes:
                say(note)
        return made.wanted
    _copied_whole(budget, policy)
    if planfile.is_plan(path):
        return planfile.load(path)
    if not path.exists():
        raise TierError(_nothing_at(what))
    return below(path)


def _copied_whole(budget: int | None, policy: str) -> None:
    for option, is_told in (("--budget", budget is not None), ("--policy", policy != "gain")):
        if is_told:
            raise click.UsageError(
                f"{option} chooses files of a RUN; a plan, a folder or a URL is copied whole"
            )


def _tell_copied(copied: Copied, tier: Tier, as_json: bool, is_url: bool = False) -> None:
    from dataclasses import asdict

    from penstock.words import count, show

    if as_json:
        print_json(asdict(copied))
    else:
        click.echo(
            f"{count(copied.copied, 'file')} copied, {show(copied.copied_bytes, 'B')} in "
            f"{show(copied.seconds, 's')}; {copied.was_there:,} were there"
        )
    if copied.elsewhere:
        say(f"{count(copied.elsewhere, 'file')} another process copied meanwhile")
    for why, number in sorted(copied.skipped.items()):
        say(f"{count(number, 'file')} left out: {why}")
    for note in copied.notes:
        say(note)
    if not as_json and not is_url and copied.copied + copied.was_there:
        click.echo(f"penstock run --staged {tier.name} COMMAND reads them")


@stage_group.command(
    "fill", short_help="Copy while the job reads; what is there is served at once."
)
@click.argument("what", metavar="RUN|PLAN|FOLDER")
@TO
@BUDGET
@click.option(
    "--limit",
    type=rate,
    metavar="SIZE/s",
    help="At most so much of the slow tier.  [default: a quarter of the least measured]",
)
@click.option("--background", is_flag=True, help="Returns as soon as programs can be started.")
@click.option("--follow", is_flag=True, help="RUN goes on: what it reads, until it ends.")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Pause now and then, and write down when: `penstock report` compares.",
)
def stage_fill(
    what: str,
    tier: str,
    budget: int | None,
    limit: int | None,
    background: bool,
    follow: bool,
    journal: Path | None,
) -> None:
    """Copy while the job reads: each copy is served as soon as it is there.

    Staged files give way to files that remove more wait.  For a RUN with a measured ceiling
    (penstock ceiling RUN) the limit is a quarter of the ceiling of the run's slowest file system.

    \b
      penstock stage fill plan.jsonl --to fast --limit 50MB/s --background
      penstock run --staged fast python train.py
      penstock run --fill fast python train.py          both at once; see penstock run --help
    """
    from penstock.places.registry import tier_of
    from penstock.stage.fill import FillStopped, Journal, fill, fill_following
    from penstock.words import count, show

    what = what.removeprefix("file://")
    if "://" in what:
        raise click.UsageError(
            f"{what}: no program opens a URL as a file; penstock stage copy {what} --to {tier}"
        )
    there = tier_of(tier)
    if limit is None and not follow:
        limit = quarter(what)
    if background:
        process, log = start_filling(what, there, budget, limit, follow, journal)
        at = "" if limit is None else f" at {limit / 1e6:.3g} MB/s"
        click.echo(f"filling {there.name}{at}, process {process.pid}; {log}")
        return
    notes = None if journal is None else Journal(journal, tier, limit or 0)

    def ready() -> None:
        say(f"penstock run --staged {tier} COMMAND may start")

    try:
        with working("filling", is_of_bytes=True) as progress:
            if follow:
                from penstock.stage.follow import Following

                seen = Following(Path(what))
                rate_bps = seen.read_bps if limit is None else limit
                ways: Any = {"limit_bps": rate_bps, "ready": ready, "journal": notes}
                copied = fill_following(there, seen.look, lambda: seen.is_over, **ways)
            else:
                ways = {"limit_bps": limit or 0, "ready": ready, "journal": notes}
                wanted = _wanted(what, tier, budget, "gain")
                copied = fill(there, wanted, progress=progress.advance, **ways)
    except FillStopped as stopped:
        say(
            f"stopped: {count(stopped.copied, 'file')} copied, {show(stopped.copied_bytes, 'B')}, "
            f"which stay on {tier}; {stopped.left:,} others not"
        )
        for note in stopped.notes:
            say(note)
        raise SystemExit(INTERRUPTED) from stopped
    _tell_copied(copied, there, as_json=False)


def quarter(what: str, option: str = "--limit") -> int:
    """Return a quarter of the ceiling of the slowest file system with files of the run.

    option: the option for a limit given by the user.  Raises TierError: the ceiling is not known;
    RunError, LogError.
    """
    from penstock.runs.run import open_run
    from penstock.stage.evidence import mounts_of
    from penstock.trial.ceiling import is_run
    from penstock.words import count

    path = Path(what)
    if not path.exists():
        raise TierError(_nothing_at(what))
    if not (path.is_dir() and is_run(path)):
        raise TierError(
            f"how much of the slow tier it may take is not known: give {option} 50MB/s, or of a "
            "RUN measure it: penstock ceiling RUN"
        )
    with contextlib.closing(open_run(path)) as opened:
        mounts = mounts_of(opened)
    unknown = [mount for mount in mounts if not mount.read_bps]
    if unknown or not mounts:
        where = (
            f"{count(unknown[0].files, 'file')} on {unknown[0].mount or what}" if unknown else what
        )
        raise TierError(
            f"how much of the slow tier it may take is not known of {where}: give {option} 50MB/s, "
            f"or measure it: penstock ceiling {what}"
        )
    return int(min(mount.read_bps or 0.0 for mount in mounts) / 4)


def _nothing_at(what: str) -> str:
    return f"{what}: no run, plan, folder or file is there; look at its name"


def start_filling(
    what: str,
    tier: Tier,
    budget: int | None,
    limit: int | None,
    is_following: bool = False,
    journal: Path | None = None,
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `penstock stage fill` in its own process, wait for the map, and return the process and
    the file of its messages.

    Raises TierError in the words of the process.
    """
    import subprocess
    import sys
    import time

    from penstock.stage.manifest import TierPlace

    place = TierPlace(tier)
    place.make()
    # Several runs may fill one tier, so the file is in the run folder. The name does not end in
    # .events, as the processes' logs do.
    log = place.own / "fill.log" if journal is None else journal.with_name("fill.txt")
    command = [sys.executable, "-m", "penstock", "stage", "fill", what, "--to", tier.name]
    command += [] if limit is None else ["--limit", str(limit)]
    command += [] if budget is None else ["--budget", str(budget)]
    command += ["--follow"] if is_following else []
    command += [] if journal is None else ["--journal", str(journal)]
    if journal is None:
        log.unlink(missing_ok=True)  # of the filling before
    with drafts.create(log, 0o600) as output:
        filling = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,  # later messages too: the parent may be gone
            start_new_session=True,
        )
    is_over = False
    while b"may start" not in (said := log.read_bytes()):
        if is_over:
            last = said.strip().rpartition(b"\n")[2].decode(errors="replace")
            raise TierError(last.removeprefix("penstock: "))
        is_over = filling.poll() is not None
        time.sleep(LOOKED_EVERY_S)
    return filling, log


@stage_group.command("status", short_help="Say what is staged on a tier, and what became of it.")
@click.argument("tier", type=TIER)
@AS_JSON
def stage_status(tier: str, as_json: bool) -> None:
    """Show the copies on a tier, and the state of the copies and of their sources.

    \b
      penstock stage status fast
    """
    from dataclasses import asdict

    from penstock.places.registry import tier_of
    from penstock.stage import held
    from penstock.words import count, show

    with working("looking") as progress:
        status = held.status(tier_of(tier), progress.advance)
    if as_json:
        print_json(asdict(status))
        return
    free = show(status.free_bytes, "B")
    click.echo(
        f"{count(status.copies, 'file')} staged, {show(status.size_bytes, 'B')}; "
        f"room for {free} more"
    )
    strays = f"of which the manifest tells nothing, {show(status.stray_bytes, 'B')}"
    for number, what, cure in (
        (status.stale, "of a source that has changed", f"penstock stage evict {tier} --stale"),
        (status.orphans, "of a source that is gone", f"penstock stage evict {tier} --stale"),
        (status.missing, "missing or changed on the tier", "penstock stage copy makes it again"),
        (status.strays, strays, f"penstock stage evict {tier} removes it"),
        (status.dropped, "dropped, as a program wrote to its source", "stage copy serves it again"),
    ):
        if number:
            click.echo(f"{number:,} {what}: the original is read; {cure}")
    if status.not_asked:
        click.echo(
            f"{status.not_asked:,} not asked: of a URL, or of a source that does not answer; "
            "stage copy asks"
        )
    if status.foreign:
        click.echo(f"{count(status.foreign, 'file')} among the copies that is none: left alone")
    if status.parts:
        click.echo(f"{count(status.parts, 'part')} of copies, {show(status.part_bytes, 'B')}")


@stage_group.command("evict")
@click.argument("tier", type=TIER)
@click.option(
    "--free", "free_bytes", type=size, help="Only as many as give so much room more than there is."
)
@click.option("--stale", is_flag=True, help="Only those whose source has changed or is gone.")
@AS_JSON
def stage_evict(tier: str, free_bytes: int | None, stale: bool, as_json: bool) -> None:
    """Remove copies: all of them, or those of least gain per byte.  Never anything else.

    \b
      penstock stage evict fast --free 10GB
      penstock stage evict fast --stale
      penstock stage evict fast
    """
    from penstock.places.registry import tier_of
    from penstock.stage import held
    from penstock.words import count, show

    if stale and free_bytes is not None:
        raise click.UsageError("--free or --stale, not both")
    gone = held.evict(tier_of(tier), free_bytes=free_bytes, is_stale_only=stale)
    if as_json:
        print_json(gone._asdict())
        return
    what = show(gone.size_bytes, "B")
    if free_bytes is not None:  # in whole blocks, as room is counted
        what = f"{show(gone.room_bytes, 'B')} more room than before"
    click.echo(f"copies of {count(gone.copies, 'file')} removed, {what}")
    if free_bytes is not None and gone.room_bytes < free_bytes:
        say(f"that is less than {show(free_bytes, 'B')}: no copy is left on {tier}")


@stage_group.command("verify")
@click.argument("tier", type=TIER)
@click.option("--evict", "is_mending", is_flag=True, help="Removes the copies that are damaged.")
@AS_JSON
def stage_verify(tier: str, is_mending: bool, as_json: bool) -> int:
    """Read every copy and compare it with its checksum.  Exit status 1: some are damaged, or frozen
    and their source has changed.

    \b
      penstock stage verify fast
      penstock stage verify fast --evict && penstock stage copy plan.jsonl --to fast
    """
    from penstock.places.registry import tier_of
    from penstock.stage import held
    from penstock.words import count, show

    with working("verifying", is_of_bytes=True) as progress:
        checked = held.verify(tier_of(tier), progress=progress.advance, is_mending=is_mending)
    bad = [(damage.entry.source, damage.why) for damage in checked.corrupted]
    if as_json:
        facts = {"copies": checked.copies, "stale": checked.stale, "corrupted": bad}
        print_json(facts | {"thawed": list(checked.thawed)})
    else:
        read = show(checked.bytes_read, "B")
        click.echo(f"copies of {count(checked.copies, 'file')}, {read} read, {len(bad):,} damaged")
    say_some([f"{on_one_line(source)}: {why}" for source, why in bad], "; --json lists all")
    tell_thawed(checked.thawed)
    again = f"penstock stage copy RUN --to {tier} makes them again"
    if bad and is_mending:
        say(f"these are removed, and the originals are read; {again}")
    elif bad:
        say(f"penstock stage verify {tier} --evict removes them; then {again}")
    return CORRUPTED if bad or checked.thawed else 0
