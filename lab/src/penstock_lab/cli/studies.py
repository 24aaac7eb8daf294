"""The studies of `penstock bench`: arguments in, tables out.  No logic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    short,
    working,
)
from penstock.runs import ctrl_c
from penstock_lab.cli.asked import asked

if TYPE_CHECKING:
    from penstock_lab.study import StudyResult

__all__ = ["COMMANDS", "data_sets", "going_on", "numbers", "ready", "sized"]

PLACES = ("disk", "throttled", "latency", "seek")
COMMANDS: list[click.Command] = []


def _study(
    name: str, short: str, places: tuple[str, ...], choices: tuple[str, ...] = PLACES
) -> Callable[[Any], Any]:
    """Add the common options of studies' commands.  places: the usual places of the study.  known:
    the possible places."""

    def decorated(function: Any) -> Any:
        for option in reversed([
            click.argument("folder", type=NEW_FOLDER),
            click.option(
                "--on", "places", multiple=True, type=click.Choice(choices), default=places,
                show_default=True, help="On which storage; can be given several times.",
            ),
            click.option(
                "--scale", type=click.Choice(["ci", "small", "full"]), default="small",
                show_default=True, help="How much is read: seconds, minutes, the study's own.",
            ),
            click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True),
            click.option("--seed", type=int, default=1, show_default=True),
            click.option("-y", "--yes", is_flag=True, help="Do not ask, however much is written."),
        ]):  # fmt: skip
            function = option(function)
        command = click.command(name, short_help=short)(function)
        COMMANDS.append(command)
        return command

    return decorated


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of processes or threads, one number or several: 1,2,4,8."""
    try:
        counts = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: write numbers, 1,2,4,8") from error
    if counts[0] < 1 or counts[-1] > 256:
        raise click.BadParameter(f"{text!r}: 1 to 256 of them are possible")
    return counts


def sized(
    sizes: Mapping[str, Mapping[str, Any]], others: NumberRange | None = None
) -> Callable[[Any], Any]:
    """Add --scale to a study with options for each size: the size sets the options that are not
    given.  others: also accepted, as the number that the study calls its scale."""

    def chosen(context: click.Context, option: click.Parameter, value: str) -> Any:
        if value not in sizes and others is None:
            raise click.BadParameter(f"{value!r} is not one of {', '.join(sizes)}")
        if value not in sizes:
            return others.convert(value, option, context) if others else value
        context.default_map = dict(sizes[value])
        return sizes[value].get("scale", value)

    return click.option(
        "--scale", is_eager=True, default="full", show_default=True, callback=chosen,
        expose_value=others is not None, metavar="|".join([*sizes, *(["SHARE"] if others else [])]),
        help="How much is measured: seconds, minutes, the study's own"
        + ("; or a share of the state of 733 MB." if others else "."),
    )  # fmt: skip


_THREADS = click.option(
    "--threads", type=numbers, metavar="N,N...",
    help="How many read.  [default: the scale's]",
)  # fmt: skip


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Print the remains of an interruption, and how to continue."""
    try:
        with ctrl_c.heard():
            yield
    except KeyboardInterrupt:
        from penstock_lab import study

        if study.rows_of(folder / "runs.jsonl"):
            say(f"what was measured is in {short(folder)}: the same command goes on")
        elif made := study.data_in(folder):
            say(f"nothing was measured yet; {short(made)} stays: the same command goes on")
        elif (folder / "runs.jsonl").exists():
            say("nothing was measured yet: the same command begins anew")
        raise


def ready(folder: Path, needs: Mapping[str, str], on: Sequence[str] = ()) -> None:
    """Check that all needs of a study are present, before any question and any write."""
    from penstock_lab import places, study
    from penstock_lab.needs import look_for

    study.refuse_folder(folder)
    study.pyplot()
    look_for(needs)
    places.refuse_without(on, folder)


def _carried_out(folder: Path, what: str, carry: Callable[[Any], StudyResult]) -> None:
    """Run a study, write and show the results."""
    from penstock_lab import study

    with going_on(folder), working(what) as progress:
        result = carry(progress.say)
        written = study.write_found(folder, result)
    print_markdown(study.markdown_of(result))
    click.echo(f"wrote {', '.join(map(str, written))}", err=True)


def data_sets(folder: Path, most_bytes: int, scale: float, seed: int, yes: bool) -> None:
    """`penstock bench data all`: count every set in every form."""
    from penstock_lab import sets

    if not 0 < scale <= 1:
        raise click.BadParameter(f"a scale of {scale:g}: more than 0, at most 1")
    settings = sets.SetsSettings(most_bytes, scale, seed)
    ready(folder, {})
    asked(folder, sets.largest_bytes(settings), yes)
    _carried_out(folder, "making", lambda say: sets.measured(folder, settings, say))


@_study("ceiling", "Measure what storage gives at most, beside fio if asked.", ("disk",))
@click.option(
    "--fio", "is_beside_fio", is_flag=True, help="Measure each case by fio as well, three times."
)
def ceiling_command(folder: Path, yes: bool, is_beside_fio: bool, **options: Any) -> None:
    """Measure the most that storage gives, with the requests of IOR, fio and mdtest.

    FOLDER gets ceiling.md, .csv, .json and .png.  Sequential and random reads and writes of 4 KiB,
    64 KiB and 1 MiB, by threads and by a queue, through the page cache and past the page cache;
    files made, looked at, opened and removed.  A file is made in FOLDER and removed.  Data read
    through the page cache is evicted first, or there is no run.  After an interruption, the same
    command continues.  `penstock ceiling PATH` is the short answer.

    \b
      penstock bench ceiling /mnt/nvme/ceiling
      penstock bench ceiling full --fio --scale full
      penstock bench ceiling here --on disk --on latency --repeats 1
    """
    from penstock_lab import storage

    settings = storage.StorageSettings(is_beside_fio=is_beside_fio, **options)
    ready(folder, storage.needs(settings), settings.places)
    asked(folder, storage.needed_bytes(settings.scale), yes)
    _carried_out(folder, "measuring", lambda say: storage.measured(folder, settings, say))


@_study("read", "Read images with more and more threads (Chien 2018).", ("disk", "latency"))
@click.option(
    "--loader",
    "loaders",
    multiple=True,
    type=click.Choice(["threads", "torch", "tf.data"]),
    default=["threads"],
    show_default=True,
    help="Whose; can be given several times.",
)
@_THREADS
def read_command(folder: Path, yes: bool, **options: Any) -> None:
    """Read images with more and more threads: only read, decode, and resize.  Chien 2018.

    FOLDER gets read.md, .csv, .json and .png, and the images: 16,384 JPEG files of 112 kB in the
    median at full scale (2 GB), 256 at small.  Each run begins with the files out of memory, or
    not at all.  Interrupted, the same command goes on.

    \b
      penstock bench read read
      penstock bench read read-full --on latency --on seek --scale full
      penstock bench read loaders --loader threads --loader tf.data --loader torch --repeats 1
    """
    from penstock_lab import inputs

    settings = inputs.InputsSettings(**options)
    ready(folder, inputs.needs_to_read(settings), settings.places)
    asked(folder, inputs.needed_to_read(folder, settings), yes)
    _carried_out(folder, "reading", lambda say: inputs.read(folder, settings, say))


@_study("train", "Hide input behind computing (Chien 2018).", ("disk", "latency"))
@click.option(
    "--model",
    type=click.Choice(["sleep", "alexnet", "alexnet-tensorflow"]),
    default="sleep",
    show_default=True,
    help="What a step computes: a time that is swept, or AlexNet in PyTorch or TensorFlow.",
)
@_THREADS
def train_command(folder: Path, yes: bool, **options: Any) -> None:
    """Hide input behind computing: prefetch, threads, and how long a step computes.  Chien 2018.

    FOLDER gets train.md, .csv, .json and .png, and the images: Caltech-101's sizes, 12 kB in the
    median.  The picture shows the stall fraction over compute / input: a step that computes longer
    than its input takes hides all of it, if something reads ahead.

    \b
      penstock bench train train
      penstock bench train full --scale full --on disk --threads 1,4 --repeats 1     # 40 minutes
      penstock bench train alexnet --model alexnet --on latency --repeats 1
      penstock bench train keras --model alexnet-tensorflow --on latency --repeats 1
    """
    from penstock_lab import inputs

    settings = inputs.InputsSettings(**options)
    ready(folder, inputs.needs_to_train(settings), settings.places)
    asked(folder, inputs.needed_to_train(folder, settings), yes)
    _carried_out(folder, "training", lambda say: inputs.train(folder, settings, say))


@_study("control", "A job that is not I/O-bound must be called so (Layton 2021).", ("disk",))
def control_command(folder: Path, yes: bool, **options: Any) -> None:
    """A job that is not I/O-bound must be called so: CIFAR-10, a checkpoint an epoch.  Layton 2021.

    FOLDER gets control.md, .csv, .json and .png: the verdict, the checkpoints that were named
    beside those that were made, and how many files the job opens; how many Darshan kept of them,
    where it is installed (darshan-config on the PATH).  Needs PyTorch.

    \b
      penstock bench control control
      penstock bench control control-full --scale full --repeats 1
    """
    from penstock_lab import control

    settings = control.ControlSettings(**options)
    ready(folder, control.needs(settings), settings.places)
    asked(folder, control.needed_bytes(folder, settings), yes)
    _carried_out(folder, "training", lambda say: control.measured(folder, settings, say))


@_study(
    "diagnosis", "Jobs with a known wait: is the report right?",
    ("disk", "latency", "seek", "narrow", "throttled"),
    ("disk", "latency", "seek", "narrow", "throttled"),
)  # fmt: skip
@click.option(
    "--neighbours",
    type=click.IntRange(0, 64),
    default=0,
    metavar="N",
    help="Run N other programs that use a CPU each beside every job.",
)
@click.option(
    "--traceml",
    default="",
    metavar="PROGRAM",
    help="Give each job to this traceml too; its environment needs PyTorch.",
)
@click.option(
    "--drishti",
    default="",
    metavar="PROGRAM",
    help="Give the Darshan log of each job to this drishti too.",
)
def diagnosis_command(folder: Path, yes: bool, **options: Any) -> None:
    """Train with each loader, storage and fault, and compare the report with the job's own clocks.

    The faults: none, slow storage, decoding, mapped files, listing folders, a remote server,
    checkpoints, busy CPUs, a CPU quota, stragglers, worker start.
    FOLDER gets diagnosis.md, .csv, .json and .png: the level, the seconds and the main cause that
    the report states beside the true ones, and how many jobs it is confidently wrong about.  Needs
    PyTorch; `throttled` needs root.

    \b
      penstock bench diagnosis whole
      penstock bench diagnosis quick --scale ci --repeats 1      # 20 jobs
      penstock bench diagnosis busy --neighbours 4
      penstock bench diagnosis beside --traceml ~/traceml/bin/traceml --drishti ~/d/bin/drishti
    """
    from penstock_lab import diagnosis

    settings = diagnosis.DiagnosisSettings(**options)
    ready(folder, diagnosis.needs(settings), settings.places)
    asked(folder, diagnosis.needed_bytes(folder, settings), yes)
    _carried_out(folder, "training", lambda say: diagnosis.measured(folder, settings, say))


@_study("window", "Windows beside the device, and what they cost (tf-Darshan 2020).", ("seek",))
def window_command(folder: Path, yes: bool, **options: Any) -> None:
    """Windows of a recording beside the device's own counters, and what recording costs.

    tf-Darshan's STREAM: 16 threads read files and nothing else, once without a recorder, once
    recorded whole, once with a window every 5 steps.  FOLDER gets window.md, .csv, .json and .png,
    and the files: 1 GB of images and 7 GB of listings at full scale.

    \b
      penstock bench window window
      penstock bench window window-full --on disk --on latency --scale full
    """
    from penstock_lab import windows

    settings = windows.WindowsSettings(**options)
    ready(folder, windows.needs(settings), settings.places)
    asked(folder, windows.needed_bytes(folder, settings), yes)
    _carried_out(folder, "reading", lambda say: windows.measured(folder, settings, say))


@_study(
    "cases", "Many threads, few, and a fast tier: tf-Darshan's two cases.", ("seek", "parallel"),
    (*PLACES, "parallel"),
)  # fmt: skip
def cases_command(folder: Path, yes: bool, **options: Any) -> None:
    """Many threads for small files, one for large ones, and the smallest of those on a fast tier.

    tf-Darshan's two cases (Chien et al. 2020), and Penstock's own choice of files for as many
    bytes.  The fast tier is imitated too, at 1.6 GB/s.  FOLDER gets cases.md, .csv, .json and .png,
    and the files: 1.2 GB of images, 48 GB of listings and 3.7 GB of copies at full scale, 510 MB in
    all at small.

    \b
      penstock bench cases cases
      penstock bench cases cases --on parallel --repeats 5
    """
    from penstock_lab import cases

    settings = cases.CasesSettings(**options)
    ready(folder, cases.needs(settings), settings.places)
    asked(folder, cases.needed_bytes(folder, settings), yes)
    _carried_out(folder, "reading", lambda say: cases.measured(folder, settings, say))


@_study("mlperf", "Accelerator utilisation of MLPerf Storage's workloads.", ("disk", "latency"))
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    type=click.Choice(["unet3d", "resnet50", "cosmoflow"]),
    default=["unet3d", "resnet50", "cosmoflow"],
    show_default=True,
    help="Which; can be given several times.",
)
@click.option(
    "--accelerator",
    "accelerators",
    multiple=True,
    type=click.Choice(["a100", "h100"]),
    default=["a100", "h100"],
    show_default=True,
    help="Whose computing times; can be given several times.",
)
@click.option(
    "--dlio",
    default="",
    metavar="PROGRAM",
    help="Run each case by this dlio_benchmark too, before and after, over the same files.",
)
def mlperf_command(folder: Path, yes: bool, **options: Any) -> None:
    """Accelerator utilisation (AU) of MLPerf Storage's three training workloads, as DLIO counts it.

    Samples, batches and computing times as published for A100 and H100; a step sleeps.  At small
    scale unet3d has batches of 1, at ci everything is smaller; bytes asked for a second stay.
    FOLDER gets mlperf.md, .csv, .json and .png, and the samples: 7.0 GB at small, 540 GB at full
    scale, of which unet3d is 516.  unet3d needs PyTorch, the others TensorFlow.

    \b
      penstock bench mlperf mlperf
      penstock bench mlperf mlperf-full --on throttled --workload cosmoflow --scale full
      penstock bench mlperf beside --on latency --dlio ~/dlio/bin/dlio_benchmark --repeats 1
    """
    from penstock_lab import mlperf

    settings = mlperf.MlperfSettings(**options)
    ready(folder, mlperf.needs(settings), settings.places)
    asked(folder, mlperf.needed_bytes(folder, settings), yes)
    _carried_out(folder, "training", lambda say: mlperf.measured(folder, settings, say))


@_study(
    "factors", "What keeps a training from its ideal throughput (Bae 2019).",
    ("local", "shared"), ("local", "shared"),
)  # fmt: skip
def factors_command(folder: Path, yes: bool, **options: Any) -> None:
    """What keeps a training from its ideal throughput: storage, data, order, container.  Bae 2019.

    Four nodes, each with a mount and so a page cache of its own, train in step from LMDBs of the
    paper's record sizes; ideal is the same from memory.  FOLDER gets factors.md, .csv, .json and
    .png, with the steps of each run, where their throughput changes, and what the nodes' memory
    held beside 1 - (1 - 1/P)^e.  FOLDER also gets the LMDBs: 1 GB at small, 5 GB at full scale.

    \b
      penstock bench factors factors
      penstock bench factors factors --on shared --repeats 1
    """
    from penstock_lab import factors

    settings = factors.FactorsSettings(**options)
    ready(folder, factors.needs(settings), settings.places)
    asked(folder, factors.needed_bytes(folder, settings), yes)
    _carried_out(folder, "training", lambda say: factors.measured(folder, settings, say))


@_study(
    "scale", "More ranks, and a simulation of many more (Bae and Pumma 2019).",
    ("shared", "latency"), ("shared", "latency"),
)  # fmt: skip
@click.option(
    "--launcher",
    "launchers",
    multiple=True,
    type=click.Choice(["torchrun", "mpirun"]),
    default=["torchrun", "mpirun"],
    show_default=True,
    help="What starts ranks; can be given several times.",
)
@click.option(
    "--ranks", type=numbers, metavar="N,N...",
    help="How many.  [default: 1 to 4; 1,2,4 at ci]",
)  # fmt: skip
@click.option(
    "--bandwidth", "bandwidth_bps", type=rate, default="10GB/s", show_default=True, metavar="RATE",
    help="Of the simulated storage.",
)  # fmt: skip
@click.option("--iops", "requests_hz", type=NumberRange(min=1), default=200_000, show_default=True)
@click.option(
    "--latency", "latency_s", type=duration, default="1ms", show_default=True, metavar="TIME"
)
@click.option(
    "--link", "link_bps", type=rate, default="10GB/s", show_default=True, metavar="RATE",
    help="Of each simulated node.",
)  # fmt: skip
def scale_command(folder: Path, yes: bool, **options: Any) -> None:
    """More ranks, and a simulation of many more.  Bae 2019, Pumma 2019.

    1 to 4 real ranks, or as many as are asked for, by torchrun and mpirun read through one slow
    tier, step by step together: weak scaling (as much for each) and strong (as much in all); the
    stall of each rank.  From one rank that only reads, and what a sum over two costs, a simulation
    is made, put beside every measured point, and, where repeats of that rank agree, taken to 2,048
    nodes and 9,216 processes on the storage that the options describe.  FOLDER gets scale.md, .csv,
    .json and .png, and an LMDB: 0.3 GB at small scale, more with more ranks.

    \b
      penstock bench scale scale
      penstock bench scale fast --bandwidth 200GB/s --iops 5000000 --link 12.5GB/s
      penstock bench scale many --launcher mpirun --on shared --ranks 1,2,4,8,16
    """
    from penstock_lab import scale

    settings = scale.ScaleSettings(**options)
    ready(folder, scale.needs(settings), settings.places)
    asked(folder, scale.needed_bytes(folder, settings), yes)
    _carried_out(folder, "training", lambda say: scale.measured(folder, settings, say))


@_study(
    "exchange", "Sums over ranks beside formulas, and at Bae 2019's nodes.",
    ("loopback", "near", "far"), ("loopback", "near", "far"),
)  # fmt: skip
def exchange_command(folder: Path, yes: bool, **options: Any) -> None:
    """Measure sums over ranks by gloo beside the formulas of ring and tree.  Bae 2019.

    Ranks sum 4 kB to 4 MB over the loopback device and between network name spaces of a set latency
    and bandwidth, which need root and /dev/net/tun.  Half of the points fit the formulas, the
    others are predicted.  The formulas then give the speed-up from 512 to 2,048 nodes, and the
    latency and bandwidth that the published one needs.  FOLDER gets exchange.md, .csv, .json and
    .png.

    \b
      penstock bench exchange exchange
      penstock bench exchange quick --on loopback --scale ci --repeats 1
    """
    from penstock_lab import exchange

    settings = exchange.ExchangeSettings(**options)
    ready(folder, exchange.needs(settings))
    _carried_out(folder, "summing", lambda say: exchange.measured(folder, settings, say))


@_study(
    "burst", "A burst buffer for an unchanged program (Chien 2018).",
    ("tiers",), ("tiers",),
)  # fmt: skip
@click.option(
    "--saver",
    "savers",
    multiple=True,
    type=click.Choice(["torch", "tensorflow"]),
    default=["torch", "tensorflow"],
    show_default=True,
    help="What the program saves with; can be given several times.",
)
def burst_command(folder: Path, yes: bool, **options: Any) -> None:
    """Save to a slow tier, under `penstock run --burst-buffer`, and by drain and Checkpointer.

    Two slow file systems are the tiers, of bandwidths whose ratio goes from 1 to 10.  A program
    saves with torch.save or TensorFlow's own saver and is not changed for the burst buffer.  FOLDER
    gets burst.md, .csv, .json and .png: what each way adds to the loop, and the ratio from which
    the published 2.6 times hold.  Chien 2018.

    \b
      penstock bench burst burst
      penstock bench burst quick --saver torch --scale ci --repeats 1
    """
    from penstock_lab import bursts

    settings = bursts.BurstSettings(**options)
    ready(folder, bursts.needs(settings))
    asked(folder, bursts.needed_bytes(settings), yes)
    _carried_out(folder, "saving", lambda say: bursts.measured(folder, settings, say))


@_study(
    "nodes", "LMDB readers on nodes that share one server (Pumma 2019).", ("server",), ("server",)
)
def nodes_command(folder: Path, yes: bool, **options: Any) -> None:
    """Read an LMDB on 1 to 8 nodes with page caches of their own and one storage server.

    The nodes are mounts; what the server is asked for is counted.  Caffe's reader lets each node
    read everything, so that it falls with the nodes; what reads a record once does not.  Half of
    the points give the times of a record, the others are predicted, and the times are extended to
    9,216 processes.  FOLDER gets nodes.md, .csv, .json and .png, and an LMDB of 0.2 GB at small.

    \b
      penstock bench nodes nodes
      penstock bench nodes quick --scale ci --repeats 1
    """
    from penstock_lab import nodes

    settings = nodes.NodesSettings(**options)
    ready(folder, nodes.needs(settings), settings.places)
    asked(folder, nodes.needed_bytes(folder, settings), yes)
    _carried_out(folder, "reading", lambda say: nodes.measured(folder, settings, say))


@click.command("compare", short_help="Compare two results of one study.")
@click.argument("a", metavar="A.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("b", metavar="B.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@AS_JSON
def compare_command(a: Path, b: Path, as_json: bool) -> None:
    """Compare two results of a study: two machines, two tiers, before and after.

    A case is better or worse where the two differ by more than 5 % and their repeats do not
    overlap; without repeats there is no verdict.  The differences between the machines and the
    settings stand first.

    \b
      penstock bench compare old/read.json new/read.json
      penstock bench compare a/ladder.json b/ladder.json --json | jq '.differences[0]'
    """
    from penstock_lab import beside

    comparison = beside.compared(a, b)
    if as_json:
        print_json(beside.to_json(comparison))
        return
    print_markdown(beside.markdown_of(comparison, (str(a), str(b))))


COMMANDS.append(compare_command)
