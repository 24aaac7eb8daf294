"""`penstock bench`: arguments in, exit status out.  No logic; a command imports what it needs."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.shell import (
    AS_JSON,
    NEW_FOLDER,
    NumberRange,
    duration,
    print_json,
    print_markdown,
    rate,
    say,
    size,
    working,
)
from penstock_lab.cli import studies
from penstock_lab.cli.asked import asked

__all__ = ["bench"]


@click.group(short_help="Published studies of training I/O; slow tiers, data sets.")
def bench() -> None:
    """Experiments: published studies of training I/O, repeated on your storage; slow tiers for a
    machine that has only fast; data sets with published sizes.

    \b
      penstock bench read read --scale ci
      penstock bench compare here/read.json there/read.json
      penstock bench tier make slow /data --bandwidth 200MB/s --iops 2000 --latency 1ms
      penstock bench data imagenet-chien images --scale 0.1
      penstock bench ladder work
      penstock bench checkpoint work --slow /lustre/me
    """


@bench.group()
def tier() -> None:
    """Slow storage for a machine that has only fast.

    \b
      penstock bench tier make slow /data --bandwidth 200MB/s --iops 2000 --latency 1ms
      penstock bench tier list
      penstock bench tier remove slow
    """


@tier.command("make", short_help="Make a slow tier over a folder, and measure it.")
@click.argument("name")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--bandwidth", type=rate, metavar="RATE", help="Of all users together: 200MB/s.")
@click.option("--iops", type=NumberRange(min=1), metavar="N", help="Reads and writes a second.")
@click.option("--latency", type=duration, metavar="TIME", help="Of each read and write: 1ms.")
@click.option("--jitter", type=NumberRange(0, 100), default=0, metavar="PERCENT")
@click.option("--stream", type=rate, metavar="RATE", help="Of one request alone.")
@click.option(
    "--metadata",
    type=duration,
    metavar="TIME",
    help="Of an open, a stat ...  [default: the latency]",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    metavar="N",
    help="Requests served at once.",
)
@click.option(
    "--seek", type=duration, metavar="TIME", help="Of a jump of the one head that all share: 2ms."
)
@click.option(
    "--limit-memory",
    "memory",
    type=size,
    metavar="SIZE",
    help="For what `tier run` starts; page cache included.",
)
@click.option(
    "--at",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where it is mounted.  [default: FOLDER-NAME]",
)
@click.option(
    "--by",
    "kind",
    type=click.Choice(["fuse", "cgroup"]),
    default="fuse",
    show_default=True,
    help="A mount, or limits of the disk itself.",
)
@click.option("--unverified", is_flag=True, help="Do not measure that it keeps its speed.")
def tier_make(
    name: str,
    folder: Path,
    bandwidth: int | None,
    iops: float | None,
    latency: float | None,
    jitter: float,
    stream: int | None,
    metadata: float | None,
    slots: int,
    seek: float | None,
    memory: int | None,
    at: Path | None,
    kind: str,
    unverified: bool,
) -> None:
    """Make a slow tier over a folder, and measure that it is as slow as it says.

    By fuse: FOLDER's files are seen slowly below the mount, by every program; needs /dev/fuse,
    libfuse3 and a C compiler, and fusermount3 unless root.  By cgroup: the disk below FOLDER is
    limited exactly, in bandwidth and requests, for what `tier run NAME` starts; needs root.

    \b
      penstock bench tier make slow /data --bandwidth 200MB/s --iops 2000 --latency 1ms
      penstock bench tier make cloud /data --by cgroup --bandwidth 200MB/s --iops 2000
      penstock bench tier make small /data --by cgroup --limit-memory 1GiB --bandwidth 1GB/s
    """
    from penstock_lab import tier as tiers

    speed = tiers.Speed(
        bandwidth,
        iops,
        latency or 0.0,
        jitter / 100,
        stream,
        metadata if metadata is not None else latency or 0.0 if kind == "fuse" else 0.0,
        slots,
        seek or 0.0,
    )
    with working("mounting") as progress:
        made = tiers.make(
            name,
            folder,
            speed,
            kind=kind,
            at=at,
            memory_bytes=memory,
            is_verified=not unverified,
            progress=progress.say,
        )
    click.echo(f"{made.name}: {made.path}: {made.measured or 'not measured'}")
    click.echo(f"`penstock bench tier remove {made.name}` undoes it", err=True)


@tier.command("list", short_help="Show the slow tiers, and whether they are alive.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the requests so far.")
def tier_list(as_json: bool) -> None:
    """Show the slow tiers, whether they are alive, and what they were asked for.

    \b
      penstock bench tier list
      penstock bench tier list --json | jq '.[].requests'
    """
    import json
    from dataclasses import asdict

    from penstock_lab import tier as tiers

    tiers_made = tiers.made()
    if as_json:
        shown = [
            asdict(slow_tier)
            | {
                "is_alive": slow_tier.is_alive(),
                "requests": asdict(slow_tier.requests())
                if slow_tier.stats and slow_tier.is_alive()
                else None,
            }
            for slow_tier in tiers_made
        ]
        click.echo(json.dumps(shown, indent=1))
        return
    for slow_tier in tiers_made:
        state = slow_tier.measured or "not measured"
        if not slow_tier.is_alive():
            state = f"gone; `penstock bench tier remove {slow_tier.name}` tidies up"
        click.echo(
            f"{slow_tier.name}: {slow_tier.kind}, {slow_tier.path}: {slow_tier.speed.words()}; "
            f"{state}"
        )
        if slow_tier.stats and slow_tier.is_alive():
            asked = slow_tier.requests()
            click.echo(f"  {asked.reads:,} reads, {asked.read_bytes:,} B; {asked.writes:,} writes")
            for size, number in sorted(asked.read_sizes.items()):
                click.echo(f"  reads up to {size:>9,} B: {number:,}")


@tier.command("remove", short_help="Undo slow tiers.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def tier_remove(names: tuple[str, ...]) -> None:
    """Undo slow tiers: unmount, take the groups away.  The folder's files stay.  One that cannot be
    undone does not keep the others.

    \b
      penstock bench tier remove slow
    """
    from penstock_lab import tier as tiers

    tiers.remove(*names)


@tier.command(
    "run",
    short_help="Run a command under a tier's limits.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def tier_run(name: str, command: tuple[str, ...]) -> int:
    """Run a command in a tier's control group: under its limits of the disk and of memory.

    \b
      penstock bench tier run cloud python train.py
    """
    from penstock_lab import tier as tiers

    return tiers.run_in(tiers.tier_of(name), command)


@bench.command("data", short_help="Make a data set with the sizes that a study published.")
@click.argument("kind")
@click.argument("folder", type=NEW_FOLDER)
@click.option(
    "--scale",
    type=NumberRange(),
    default=1.0,
    show_default=True,
    metavar="SHARE",
    help="Of the records; their sizes stay.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["folder", "lmdb", "tfrecord", "tar"]),
    default="folder",
    show_default=True,
)
@click.option("--raw", "is_raw", is_flag=True, help="256 x 256 pixels in place of each JPEG.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--most",
    type=size,
    default="2.2GB",
    show_default=True,
    metavar="SIZE",
    help="Of each set that `all` makes; it has 100 records at least.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, however much is written.")
def data_command(
    kind: str, folder: Path, scale: float, form: str, is_raw: bool, seed: int, most: int, yes: bool
) -> None:  # fmt: skip
    """Make a data set with the sizes that a study published, in a folder that is not there yet.

    Kinds: imagenet, imagenet-chien, imagenet-stream, imagenet-alexnet, caltech101 (real JPEG
    files), malware (listings of bytes), cifar10.  all: each of them, and each form, counted again
    and removed; FOLDER gets data.md, .csv, .json and .png.

    \b
      penstock bench data imagenet-chien images              16,384 files, median 112 kB
      penstock bench data malware malware --scale 0.01       108 files, median 4 MB
      penstock bench data caltech101 caltech --as lmdb
      penstock bench data imagenet raw --raw --scale 0.01 --as lmdb
      penstock bench data all data --most 500MB
    """
    from penstock_lab import data
    from penstock_lab.needs import look_for

    if kind == "all":
        if is_raw or form != "folder":
            raise click.UsageError("all: makes every form, raw ones too; leave out --as and --raw")
        studies.data_sets(folder, most, scale, seed, yes)
        return
    planned = data.plan(kind, form, scale, seed, is_raw)
    look_for(data.needs(planned))
    asked(folder, planned.disk_bytes, yes)
    with working("making") as progress:
        made = data.make(planned, folder, progress.say)
    click.echo(f"{folder}: {made.words()}")


@bench.command("ladder", short_help="Measure LMDB readers from Caffe's to Penstock's.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--lmdb",
    "given",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="An LMDB that is there.  [default: one of random records is made in FOLDER/lmdb]",
)
@studies.sized(
    {
        "ci": {"data": "50MB", "processes": "1,4", "repeats": 1, "for_s": "500ms"},
        "small": {"processes": "1,8", "repeats": 1, "for_s": "3s"},
        "full": {},
    }
)
@click.option("--data", type=size, default="2GB", show_default=True, metavar="SIZE")
@click.option("--record", type=size, default="30670", show_default=True, metavar="SIZE")
@click.option(
    "--on",
    multiple=True,
    type=click.Choice(["disk", "throttled", "latency", "memory"]),
    help="On which storage; can be given several times.  [default: all]",
)
@click.option(
    "--processes",
    type=studies.numbers,
    default="1,2,4,8",
    show_default=True,
    metavar="N,N...",
    help="How many processes use records.",
)
@click.option("--rungs", default="", metavar="NAME,...", help="Only these.  [default: all]")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--for", "for_s", type=duration, default="5s", show_default=True, metavar="TIME")
@click.option("--batch", type=click.IntRange(1, 100_000), default=32, show_default=True)
@click.option("--compute", type=duration, metavar="TIME", help="Slept after each batch.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, however much is written.")
def ladder_command(
    folder: Path,
    given: Path | None,
    data: int,
    record: int,
    on: tuple[str, ...],
    processes: tuple[int, ...],
    rungs: str,
    repeats: int,
    for_s: float,
    batch: int,
    compute: float | None,
    seed: int,
    yes: bool,
) -> None:
    """Measure LMDB readers from Caffe's to Penstock's, one change at a time.

    FOLDER gets ladder.md, .csv, .json and .png.  Storage: the disk as it is; throttled to 200 MB/s
    and 2,000 requests/s (needs root); a FUSE tier of 1 ms; memory for a quarter of the data (needs
    root).  Each run begins with the file out of memory, or not at all.  Interrupted, the same
    command goes on.

    \b
      penstock bench ladder ladder
      penstock bench ladder quick --scale small       2 GB, 1 and 8 processes, one run of 3 s each
      penstock bench ladder disk --data 200MB --on disk --processes 1,4 --repeats 1 --for 2s
      penstock bench ladder mine --lmdb train.lmdb --on latency --rungs get,get-random,feed-shuffled
    """
    from penstock_lab import ladder, places
    from penstock_lab.rungs import RUNGS

    settings = ladder.LadderSettings(
        tuple(_chosen(rungs, list(RUNGS))),
        processes,
        tuple(place for place in ladder.PLACES if place in on or not on),
        repeats,
        for_s,
        batch,
        compute or 0.0,
        seed,
    )
    source = given or folder / "lmdb"
    studies.ready(folder, ladder.NEEDS)
    places.refuse_without(settings.places, source)
    if given is None and not (source / "data.mdb").exists():
        asked(folder, ladder.lmdb_bytes(data), yes, less="less --data")
    with studies.going_on(folder), working("making the LMDB") as progress:
        kept = ladder.opened(folder, settings)
        if given is None:
            ladder.make_lmdb(source, data, record, seed, progress.say)
        machine = ladder.machine_of(source, kept)
        runs, remarks = ladder.climb(source, settings, folder, progress.say)
        written = ladder.write_results(folder, runs, machine, remarks)
    print_markdown(ladder.markdown_of(runs, machine, remarks))
    click.echo(f"wrote {', '.join(map(str, written))}", err=True)


def _chosen(text: str, choices: list[str], what: str = "rung") -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in choices:
            raise click.BadParameter(f"{name}: no such {what}; there are: {', '.join(choices)}")
    return [name for name in choices if name in names or not names]


@bench.command("checkpoint", short_help="Measure what checkpoints cost, to each tier and through.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--slow",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="On the slow tier.  [default: one is made over FOLDER, by FUSE]",
)
@click.option(
    "--ratio",
    type=NumberRange(1.01, 1000),
    default=3.85,
    show_default=True,
    help="How much slower the tier is that is made.",
)
@click.option("--ways", default="", metavar="NAME,...", help="Only these.  [default: all]")
@click.option("--steps", type=click.IntRange(1, 1_000_000), default=100, show_default=True)
@click.option("--every", type=click.IntRange(1, 1_000_000), default=20, show_default=True)
@click.option("--compute", type=duration, default="200ms", show_default=True, metavar="TIME")
@click.option("--asleep", is_flag=True, help="A step sleeps, as beside an accelerator.")
@studies.sized(
    {
        "ci": {"scale": 0.01, "steps": 10, "every": 5, "compute": "20ms", "repeats": 1},
        "small": {"scale": 0.1, "steps": 40, "every": 10, "compute": "50ms"},
        "full": {"scale": 1.0},
    },
    NumberRange(0.001, 100),
)
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the order of the runs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, however much is written.")
def checkpoint_command(
    folder: Path,
    slow: Path | None,
    ratio: float,
    ways: str,
    steps: int,
    every: int,
    compute: float,
    asleep: bool,
    scale: float,
    repeats: int,
    seed: int,
    yes: bool,
) -> None:
    """Measure what checkpoints cost a training: none, to each tier, through the fast one.

    FOLDER is on the fast tier, and gets checkpoint.md, .csv, .json and .png.  The state has the
    shapes of AlexNet with Adam's moments.  Ways: none, slow, fast, drain (torch.save to the fast
    tier and `penstock save drain`), checkpointer.  Interrupted, the same command goes on.

    \b
      penstock bench checkpoint /nvme/bench --slow /lustre/me
      penstock bench checkpoint work                   a slow tier is made; needs /dev/fuse
      penstock bench checkpoint quick --scale 0.1 --repeats 1 --compute 50ms
    """
    from penstock_lab import checkpoint

    settings = checkpoint.CheckpointSettings(
        tuple(_chosen(ways, list(checkpoint.WAYS), "way")), steps, every, compute, asleep, scale,
        repeats, ratio, seed,
    )  # fmt: skip
    studies.ready(folder, checkpoint.NEEDS, () if slow else ("latency",))
    if checkpoint.is_one_device(folder, slow):
        say(f"{slow} is on the device of {folder}: neither is faster, and the result says so")
    at_once = checkpoint.needed_bytes(settings, folder, slow)
    asked(folder, checkpoint.written_bytes(settings), yes, at_once)
    with studies.going_on(folder), working("measuring") as progress:
        runs = checkpoint.measure(folder, settings, slow, progress.say)
        machine = checkpoint.machine_of(folder)
        written = checkpoint.write_results(folder, runs, machine)
    print_markdown(checkpoint.markdown_of(runs, machine, checkpoint.least_of(folder)))
    click.echo(f"wrote {', '.join(map(str, written))}", err=True)


@bench.command("model")
@click.argument(
    "ladder_json",
    metavar="LADDER.json",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="For model.md, .json and .png.  [default: beside the ladder]",
)
@click.option("--to", "most", type=click.IntRange(1, 1_000_000), default=9216, show_default=True)
@click.option("--per-node", type=click.IntRange(1, 1024), default=36, show_default=True)
@click.option("--cores", type=click.IntRange(1, 1024), metavar="N", help="[default: per node]")
@click.option("--bandwidth", type=rate, default="10GB/s", show_default=True, metavar="RATE")
@click.option("--iops", type=NumberRange(min=1), default=200_000, show_default=True)
@click.option("--latency", type=duration, default="1ms", show_default=True, metavar="TIME")
@click.option("--link", type=rate, default="10GB/s", show_default=True, metavar="RATE")
def model_command(
    ladder_json: Path,
    output: Path | None,
    most: int,
    per_node: int,
    cores: int | None,
    bandwidth: int,
    iops: float,
    latency: float,
    link: int,
) -> None:
    """Extend a ladder to more processes, by simulation.

    What is assumed is printed first; each measured point is simulated too, and the error shown.
    The storage that all nodes share, and each node's link, are what you say: the defaults are no
    machine's.

    \b
      penstock bench model ladder/ladder.json
      penstock bench model ladder/ladder.json --bandwidth 40GB/s --iops 1000000 --per-node 64
    """
    from penstock_lab import model, study

    study.pyplot()
    folder = output or ladder_json.parent
    points, machine = model.read_points(ladder_json)
    storage = model.SharedStorage(bandwidth, iops, latency, link)
    ahead = int(machine.get("read_ahead_kib") or 128) << 10
    here = int(machine.get("cpus") or 1)
    with working("simulating") as progress:
        checks = model.checked(points, here, ahead)
        curves = model.extended(points, storage, per_node, cores or per_node, most, progress.say)
        words = f"{per_node} processes and {cores or per_node} cores a node"
        text = model.markdown_of(checks, curves, storage, words)
        written = model.write_results(folder, text, points, checks, curves, storage)
    print_markdown(text)
    click.echo(f"wrote {', '.join(map(str, written))}", err=True)


@bench.command("provenance", short_help="Hold LMDBIO's formula against where records lie.")
@click.argument("folder", type=NEW_FOLDER)
@click.option("--records", type=click.IntRange(1, 100_000), default=4000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, however much is written.")
@AS_JSON
def provenance_command(folder: Path, records: int, seed: int, yes: bool, as_json: bool) -> None:
    """Hold LMDBIO's provenance formula against where records lie.

    The formula computes the page of each record from how the LMDB was written, without reading it.
    FOLDER gets one LMDB after the other, of several record sizes and ways to write; each is
    removed.  provenance.md, .csv and .json stay.  Counts, no times.

    \b
      penstock bench provenance /tmp/provenance
      penstock bench provenance /tmp/provenance --records 500 --json
    """
    import dataclasses

    from penstock_lab import ladder, provenance, study
    from penstock_lab.needs import look_for

    study.refuse_folder(folder)
    look_for(ladder.NEEDS)
    asked(folder, provenance.needed_bytes(records), yes, less="fewer --records")
    was_there = folder.exists()
    try:
        with working("writing LMDBs") as progress:
            databases = provenance.measure(folder, records, progress=progress.advance, seed=seed)
        written = provenance.write_results(folder, databases, records, seed)
    finally:
        if not was_there and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
    if as_json:
        print_json([dataclasses.asdict(each) for each in databases])
    else:
        print_markdown(provenance.markdown(databases) + "\n")
    click.echo(f"wrote {', '.join(map(str, written))}", err=True)


for _command in studies.COMMANDS:
    bench.add_command(_command)
