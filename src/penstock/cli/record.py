"""Define the commands that record: arguments in, exit status out."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from penstock.cli.objects import served_objects
from penstock.cli.run_tiers import (
    ahead_bytes,
    check_container,
    check_options,
    check_pairs,
    filled,
    map_of,
    tuned,
)
from penstock.cli.shell import (
    AS_JSON,
    FOR_GROUP,
    NEW_FILE,
    NEW_FOLDER,
    REDUCED_OR_RUN,
    RUN_FOLDER,
    RUN_TO_COME,
    TIER,
    ProgressBar,
    debug,
    duration,
    ended_like_ctrl_c,
    fail,
    print_json,
    rate,
    say,
    short,
    size,
    waiting_time,
)
from penstock.errors import PenstockError, RunError, StartError
from penstock.runs import ctrl_c

if TYPE_CHECKING:
    from penstock.recording.launch import RankOfJob
    from penstock.recording.session import Session

from penstock.cli.shell import (
    BAD_INPUT,
    opened_run,
    print_report,
    report_of_run,
    version,
)

__all__ = [
    "attach_command",
    "gather_command",
    "reduce_command",
    "run_command",
    "watch_command",
    "window_command",
]

REDUCING_S = 120.0  # for a rank's logs of some hundred MB, all ranks of a node at once
LOOK_S = 1.0  # how often a running job is looked at


def _keep_argv(_context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    """Set the variable for the recorder in the program's environment."""
    from penstock.recording import launch

    if is_wanted:
        os.environ[launch.KEEP_ARGV] = "1"


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "-o",
    "--output",
    type=NEW_FOLDER,
    metavar="FOLDER",
    help="The folder of the run.  [default: penstock-runs/PROGRAM-DATE-TIME]",
)
@click.option(
    "--budget",
    type=size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Disk space for single events, per process; later calls are only counted.",
)
@click.option("-q", "--quiet", is_flag=True, help="No report at the end.")
@click.option(
    "--reduce",
    "is_reduced",
    is_flag=True,
    help="For thousands of ranks: keep and report sums by rank.",
)
@click.option(
    "--data",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A file or folder of the data set: measure its part in memory before and after.",
)
@click.option("--paused", is_flag=True, help="Record nothing until `penstock window RUN start`.")
@click.option("--staged", type=TIER, help="Read staged files from their copies on this tier.")
@click.option(
    "--verify", is_flag=True, help="With --staged: verify all copies first; fail if a copy is bad."
)
@click.option(
    "--fill",
    type=TIER,
    help="Copy the files that the program reads to this tier; read the copies.",
)
@click.option(
    "--fill-from",
    metavar="RUN|PLAN|FOLDER",
    help="With --fill: copy the files that an earlier run waited for, or of a plan or folder.",
)
@click.option(
    "--fill-limit",
    type=rate,
    metavar="SIZE/s",
    help="With --fill: limit of the copying.  [default: the program's own rate; with --fill-from "
    "a quarter of the run's measured ceiling]",
)
@click.option(
    "--burst-buffer",
    type=TIER,
    help="Write checkpoints to this tier or folder; copy them to their paths beside the program.",
)
@click.option(
    "--burst-pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Files for the burst buffer: '*.pt', or 'ckpt-*/' for folders.  Repeatable.  [default:"
    " the files of torch, safetensors, Lightning, Keras, TensorFlow]",
)
@click.option(
    "--burst-limit", type=rate, metavar="RATE", help="Limit of this copying, such as 300MB/s."
)
@click.option(
    "--wait-at-most",
    "wait_s",
    type=duration,
    metavar="TIME",
    help="With --burst-buffer: limit of the wait after the program's end; then exit status 75.",
)
@click.option(
    "--ahead",
    "is_ahead",
    is_flag=True,
    help="Read mapped files and folders of small files into memory ahead of the program.",
)
@click.option(
    "--ahead-limit",
    type=size,
    metavar="SIZE",
    help="With --ahead: the most bytes read and not yet used.  [default: half of the free memory]",
)
@click.option(
    "--tuned",
    "tune_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Apply the settings that `penstock tune` found.",
)
@click.option(
    "--container",
    "inside",
    metavar="WORDS",
    help="Command that starts a container, up to its image: the program runs there.",
)
@FOR_GROUP
@click.option(
    "--keep-argv",
    is_flag=True,
    expose_value=False,
    callback=_keep_argv,
    help="Record all arguments unchanged, including passwords, tokens and keys.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(
    command: tuple[str, ...],
    output: Path | None,
    budget: int,
    quiet: bool,
    is_reduced: bool,
    data: tuple[Path, ...],
    paused: bool,
    staged: str | None,
    verify: bool,
    fill: str | None,
    fill_from: str | None,
    fill_limit: int | None,
    burst_buffer: str | None,
    patterns: tuple[str, ...],
    burst_limit: int | None,
    wait_s: float | None,
    is_ahead: bool,
    ahead_limit: int | None,
    tune_file: Path | None,
    inside: str | None,
    group: bool,
) -> None:
    """Run a program, record its I/O, report at its end.

    The program's arguments, descriptors, signals and exit status are unchanged.  If Penstock
    cannot record, the program runs without a recording.

    \b
      penstock run python train.py --epochs 3
      penstock run -o runs/tuesday torchrun --nproc-per-node 4 train.py
      penstock run -q --budget 200MB -- ./train -o model
      penstock run --data /data/train python train.py
      penstock run --staged fast python train.py
      penstock run --fill fast python train.py --epochs 3
      penstock run --burst-buffer /nvme/me --burst-pattern '*.npy' python train.py
      penstock run --tuned penstock-tune.toml python train.py
      penstock run --container 'apptainer exec --nv train.sif' python train.py
    """
    from penstock.recording import container, launch

    is_ahead, staged = tuned(tune_file, is_ahead, staged)
    check_options(staged, verify, fill, fill_limit if fill_from is None else fill_from)
    check_pairs(
        ("--burst-... and --wait-at-most go with --burst-buffer TIER", burst_buffer),
        (patterns, burst_limit, wait_s),
    )
    check_pairs(("--ahead-limit goes with --ahead", is_ahead), (ahead_limit,))
    check_container(inside, (staged, fill, burst_buffer))
    box = container.Container.parse(inside) if inside is not None else None
    copies = map_of(staged, verify) if staged is not None else None
    burst = _burst_of(burst_buffer, patterns) if burst_buffer is not None else None
    job = launch.rank_of_job(os.environ)
    run = _begun(command, output, budget, paused, copies, burst, job, group)
    started: Sequence[str] = command if box is None else run.enter(box, command, budget)
    if box is None and run.folder is not None and container.seems_inside():
        container.describe(run.folder)
    draining: Any = contextlib.nullcontext()
    with filled(run, fill, fill_from, fill_limit, quiet), served_objects(run, staged, quiet):
        if burst is not None and run.folder is not None:
            draining = _drained_beside(burst[0].parent, run.folder, budget, burst_limit, wait_s)
        try:
            status = run.run(started, draining, box, data, ahead_bytes(is_ahead, ahead_limit))
        except StartError as error:
            run.give_up()
            fail(str(error), error.status)
    if run.folder is not None:
        _finish(run.folder, run.facts, status, quiet, job, is_reduced)
    _exit_like(status or getattr(draining, "status", 0))


def _begun(
    command: tuple[str, ...],
    output: Path | None,
    budget: int,
    is_paused: bool,
    copies: Path | None,
    burst: tuple[Path, tuple[str, ...]] | None,
    job: RankOfJob | None,
    is_for_group: bool,
) -> Session:
    """Begin a run; report a folder other than the requested folder."""
    from penstock.recording import session

    run = session.begin(
        command,
        output,
        budget,
        version=version(),
        say=say,
        is_paused=is_paused,
        copies=copies,
        burst=burst,
        job=job,
        is_for_group=is_for_group,
    )
    if run.folder is None or output is None or run.folder == output.expanduser().absolute():
        return run
    if job is None or job.rank == 0:
        say(f"{output} is not empty; this run goes to {short(run.folder)}")
    return run


def _burst_of(name: str, patterns: tuple[str, ...]) -> Any:
    from penstock.cli.burst import burst_of

    return burst_of(name, patterns)


def _drained_beside(*words: Any) -> Any:
    from penstock.cli.burst import DrainedBeside

    return DrainedBeside(*words)


def _finish(
    folder: Path,
    facts: dict[str, Any] | None,
    status: int | None,
    quiet: bool,
    job: RankOfJob | None = None,
    is_reduced: bool = False,
) -> None:
    """Finish a recorded run.  An error here is reported, and changes no exit status.

    facts: to write; None: already written."""
    from penstock.recording import session

    again = f"penstock report {short(folder)}"
    try:
        if is_reduced:
            with ctrl_c.heard():
                _reduce_own(folder, job)
        if facts is not None:
            session.write_end(folder, facts, status, say, job)
        if job is not None and job.rank:
            return  # rank 0 reports for all ranks
        if job is not None:
            _await_ranks(folder, job, again, is_reduced)
        if is_reduced:
            with ctrl_c.heard():
                _report_reduced(folder, quiet)
        elif not quiet:
            sys.stdout.flush()
            with ctrl_c.heard(), opened_run(folder) as run:
                print_report(report_of_run(run), sys.stderr, is_brief=True)
    except KeyboardInterrupt:
        say(f"report interrupted; `{again}` makes it")
    except OSError as error:
        debug()
        say(f"no report: {error}; `{again}` tries again")
    except PenstockError as error:
        debug()
        from penstock.log.texts import logs_in

        if folder.is_dir() and not logs_in(folder):
            say(f"no report: {_unseen(folder)}")
        else:
            say(f"no report: {error}")
    except Exception as error:
        debug()
        say(f"no report: {error!r}; `PENSTOCK_DEBUG=1 {again}` shows where, please report it")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an error would replace the job's exit status


def _reduce_own(folder: Path, job: RankOfJob | None) -> None:
    """Reduce the local rank's recording to sums, for rank 0 to add.  Report a failure."""
    from penstock.explain.reduce import reduce_rank

    try:
        if job is None:
            reduce_rank(folder, None)
        else:
            host = os.uname().nodename.replace("/", "_") if job.is_first_here else None
            reduce_rank(folder, job.rank, job.size, host)
    except PenstockError as error:
        debug()
        say(f"not reduced: {error}")


def _report_reduced(folder: Path, quiet: bool) -> None:
    from penstock.explain.reduce import merge_ranks, report_of_reduced

    path = merge_ranks(folder)
    if not quiet:
        sys.stdout.flush()
        print_report(report_of_reduced(path, short(path)), sys.stderr, is_brief=True)


def _await_ranks(folder: Path, job: RankOfJob, again: str, is_reduced: bool) -> None:
    """Wait for the other ranks: a report on half of the ranks would cover half of the run."""
    from penstock.recording import launch

    ended = joined = 0
    wait_s = launch.OTHERS_S + REDUCING_S * is_reduced
    with ProgressBar("waiting for the other ranks") as progress:
        for ended, joined in launch.ranks_ended(folder, wait_s):
            progress.advance(ended, joined)
    if ended < joined:
        say(f"{joined - ended} of {joined} ranks still run; later: `{again}`")
    if joined < job.size:
        say(
            f"{joined} of {job.size} ranks are recorded in {short(folder)}; folders of other nodes "
            "become one run with `penstock gather`"
        )


@click.command("attach")
@click.argument("pid", type=click.IntRange(min=1))
@click.option("--children", is_flag=True, help="Its running descendants too, such as workers.")
@click.option(
    "--for", "seconds", type=duration, metavar="TIME", help="Leave after so long: 60s, 5m."
)
@click.option(
    "-o",
    "--output",
    type=NEW_FOLDER,
    metavar="FOLDER",
    help="The folder of the run.  [default: penstock-runs/PROGRAM-DATE-TIME]",
)
@click.option(
    "--budget",
    type=size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Disk space for single events, per process; later calls are only counted.",
)
@click.option("-q", "--quiet", is_flag=True, help="No report at the end.")
@click.option(
    "--stop", is_flag=True, help="Only end a recording that nobody ends: its attach was killed."
)
@FOR_GROUP
def attach_command(
    pid: int,
    children: bool,
    seconds: float | None,
    output: Path | None,
    budget: int,
    quiet: bool,
    stop: bool,
    group: bool,
) -> int:
    """Record a process that runs already.

    The recording ends with Ctrl-C, with the process, or after the time of --for.

    The process goes on; one of its threads is stopped for some milliseconds while the recorder
    is loaded, and again at the end.  Programs that the process starts meanwhile are recorded too.

    \b
      penstock attach 4711                     until Ctrl-C, then the report
      penstock attach 4711 --children --for 60s -o runs/tuesday
      penstock attach $(pgrep -f train.py)
      penstock attach 4711 --children --stop   an earlier attach was killed and could not leave
    """
    from penstock.recording import attach, session

    if stop:
        return _stop_recording(pid, attach.descendants(pid) if children else [])
    facts = {**session.facts_of(attach.command_of(pid), version()), "attached": pid}
    folder, left = _attached(pid, facts, children, seconds, output, budget, group)
    _finish(folder, None, None, quiet)
    return left


def _attached(
    pid: int,
    facts: dict[str, Any],
    children: bool,
    seconds: float | None,
    output: Path | None,
    budget: int,
    group: bool,
) -> tuple[Path, int]:
    """Record a running process and new children; return the run's folder and the exit status.

    The run belongs to the process's owner, also if root records.  The owner may be hostile."""
    from penstock.recording import attach, launch, session
    from penstock.recording.beside import PageFaultWatch
    from penstock.recording.faultwatch import MEASURED
    from penstock.recording.threads import Look

    with attach.as_owner(pid):
        folder = launch.make_folder(attach.command_of(pid), output, is_for_group=group)
        family = attach.descendants(pid) if children else []
        # Before the recorder is loaded: the samples belong to the next log.
        with PageFaultWatch(folder, attach.why_apart(pid), [pid, *family]) as faults:
            try:
                launch.write_facts(folder, facts)
                joined = attach.join(pid, folder, budget)
            except BaseException:
                launch.give_up(folder)
                raise
            say(f"process {pid} is recorded into {short(folder)}{_still(joined.still_s)}")
            look = Look([pid, *attach.descendants(pid)])
            _watch_attached(pid, family, folder, seconds, budget)
            if still := attach.standing(look):
                facts["still"] = still
            left = _leave_all(folder, [pid, *family])
        if faults.state != MEASURED:
            facts["page_faults"] = faults.state
        with contextlib.suppress(RunError):  # the folder is missing: _finish reports the error
            session.write_end(folder, facts, None, say)
    return folder, left


def _stop_recording(pid: int, children: Sequence[int]) -> int:
    """Stop recording a process and its children; report failures.  Return the exit status.

    An ended child has no recording to stop, whenever it ended.
    """
    from penstock.recording import attach

    status = 0
    for process in (pid, *children):
        try:
            if not attach.is_running(process):
                if process != pid:
                    continue
                raise RunError(f"process {pid}: not there; `ps` lists those that are")
            left = attach.leave(process) if attach.has_recorder(process) else None
            ended = "is recorded no more" if left else "was not recorded"
            say(f"process {process} {ended}")
        except RunError as error:
            if process != pid and not attach.is_running(process):
                continue
            say(str(error))
            status = BAD_INPUT
    return status


def _watch_attached(
    pid: int, family: Sequence[int], folder: Path, seconds: float | None, budget: int
) -> None:
    """Wait until Ctrl-C, the end of the process or the end of the seconds."""
    import time

    from penstock.recording import attach

    try:
        with ended_like_ctrl_c(), ProgressBar("recording") as progress:
            for child in family:
                _join_child(child, folder, budget)
            if seconds is None:
                say("Ctrl-C ends the recording, not the program")
            begin_s = time.monotonic()
            while attach.is_running(pid):
                passed_s = time.monotonic() - begin_s
                if seconds is not None and passed_s >= seconds:
                    break
                if seconds is not None:
                    progress.advance(round(1000 * passed_s), round(1000 * seconds))
                time.sleep(min(LOOK_S / 5, (seconds or LOOK_S) / 5))
    except KeyboardInterrupt:
        pass


def _join_child(pid: int, folder: Path, budget: int) -> None:
    """Record a child too; report a failure, unless the child has ended."""
    from penstock.recording import attach

    if pid in attach.recorded(folder):  # started after the recording of the parent
        return
    try:
        joined = attach.join(pid, folder, budget)
        say(f"process {pid} too{_still(joined.still_s)}")
    except RunError as error:
        if attach.is_running(pid):
            say(str(error))


def _still(seconds: float | None) -> str:
    return f"; a thread stood still for {seconds * 1e3:.0f} ms" if seconds is not None else ""


def _leave_all(folder: Path, joined: Sequence[int]) -> int:
    """End the recording of all processes recorded into a folder; return the exit status."""
    from penstock.recording import attach

    errors = attach.leave_all(folder, joined)
    for pid, error in errors.items():
        say(f"{error}; it is recorded on: `penstock attach {pid} --stop` tries again")
    return BAD_INPUT if errors else 0


def _unseen(folder: Path) -> str:
    """Return why a program left no log."""
    if not Path("/proc/self").exists():
        return f"nothing was recorded ({short(folder)} holds no log): /proc is not mounted here"
    return (
        f"nothing of the program was seen ({short(folder)} holds no log): it is static, "
        "set-user-ID, built for another libc, or cleans its environment; docs/limits.md says more"
    )


def _exit_like(status: int) -> NoReturn:
    """Exit as the program did: a shell and a batch system distinguish a signal from a status."""
    if status >= 0:
        sys.exit(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left a core file
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to take away
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    sys.exit(128 - status)


@click.command("gather")
@click.argument("folders", nargs=-1, required=True, type=RUN_FOLDER)
@click.option(
    "-o",
    "--output",
    type=NEW_FOLDER,
    required=True,
    metavar="FOLDER",
    help="The folder of the run.",
)
@FOR_GROUP
@AS_JSON
def gather_command(folders: tuple[Path, ...], output: Path, group: bool, as_json: bool) -> None:
    """Make one run of the folders that a job's nodes wrote.

    For nodes without a common file system: copy their folders here, each under its own name.
    After an interruption the same command continues.  Folders of different jobs, and a rank in two
    folders, are refused.

    \b
      penstock gather node1/run node2/run -o runs/tuesday
      penstock gather nodes/*/run -o runs/tuesday && penstock report runs/tuesday
    """
    from dataclasses import asdict

    from penstock.runs.gather import gather
    from penstock.words import count, show

    with ended_like_ctrl_c(), ProgressBar("gathering", is_of_bytes=True) as progress:
        done = gather(folders, output, progress.advance, group)
    for path, why in done.left_out.items():
        say(f"{path}: left out: {why}")
    if done.missing:
        named = ", ".join(map(str, done.missing[:8])) + ", …" * (len(done.missing) > 8)
        say(f"{len(done.missing)} of {done.size} ranks are missing: {named}")
    if done.growing:
        say(
            f"{count(done.growing, 'process')} had not ended when this was gathered, or ended "
            "without a word: what came later is not in it"
        )
    if as_json:
        print_json(asdict(done))
        return
    ranks = f"{done.ranks} of {count(done.size, 'rank')}, " if done.size else ""
    click.echo(f"{short(done.folder)}: {ranks}{count(done.logs, 'log')}, {show(done.n_bytes, 'B')}")


@click.command("reduce")
@click.argument("sources", nargs=-1, required=True, type=REDUCED_OR_RUN)
@click.option(
    "-o", "--output", type=NEW_FILE, required=True, metavar="FILE", help="A name in .reduced."
)
@click.option("--mpi", "is_mpi", is_flag=True, help="Shares the work with this MPI job's ranks.")
@click.option(
    "--logs",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    help="How many logs are read at once, all of a rank together.",
)
def reduce_command(sources: tuple[Path, ...], output: Path, is_mpi: bool, logs: int) -> None:
    """Reduce runs of many ranks to one small file, by rank.

    For thousands of ranks: exact sums (calls, bytes, times, waits by rank and time, number of ranks
    that read each file) in some megabytes, without single calls.  Each node can reduce its own
    folder; the same command merges the files.

    \b
      penstock reduce runs/tuesday -o tuesday.reduced && penstock report tuesday.reduced
      penstock reduce node*/run.reduced -o all.reduced
      mpirun -n 64 penstock reduce runs/tuesday -o tuesday.reduced --mpi
    """
    from penstock.explain.reduce import SUFFIX, Team, reduce_all
    from penstock.words import show

    if output.suffix != SUFFIX:
        raise click.UsageError(f"the file's name ends in {SUFFIX}")
    if output.exists():
        raise click.UsageError(f"{output} is there already; name a new file")
    team = Team.of_mpi() if is_mpi else Team()
    with ended_like_ctrl_c(), ProgressBar("reducing") as progress:
        reduce_all(sources, output, logs, team, progress.advance)
    if team.rank == 0:
        click.echo(f"{short(output)}: {show(output.stat().st_size, 'B')}")


@click.command("watch")
@click.argument("run", type=RUN_TO_COME)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="STEPS",
    help="Without a terminal: a line for so many steps.",
)
@click.option(
    "--metrics",
    "address",
    metavar="[HOST:]PORT",
    help="Serve the numbers in OpenMetrics, to this machine unless HOST is given.",
)
@click.option(
    "--wait",
    "wait_s",
    type=waiting_time,
    default="0",
    show_default=True,
    metavar="TIME",
    help="Wait so long for the run to begin: 60s, 5m.",
)
@AS_JSON
def watch_command(run: Path, every: int, address: str | None, wait_s: float, as_json: bool) -> None:
    """Show the waits of a running job.

    On a terminal: a panel, once a second.  Elsewhere: a line every --every steps.  Ctrl-C ends the
    watch, not the job.  --json: an object a line, once a second.

    \b
      penstock watch penstock-runs/train-20250301-101500
      penstock watch runs/tuesday --every 500 >> io.log &
      penstock watch runs/tuesday --wait 60 --metrics :9108 &
      penstock watch runs/tuesday --json | jq .recent.stall
    """
    from penstock.views import live, metrics

    monitor, was_over = _monitor(run, wait_s)
    if was_over and not as_json:
        click.echo(f"{short(run)} is over; `penstock report {short(run)}` explains it")
        return
    with contextlib.ExitStack() as stack:
        tell: Callable[[Any], None] = lambda value: None  # noqa: E731
        if address is not None:
            server = stack.enter_context(metrics.Metrics(address))
            say(f"metrics at http://{server.address}/metrics")
            tell = server.tell
        if as_json:
            for value in _looks(monitor, tell):
                click.echo(live.to_json(value))
            return
        live.show_on(_looks(monitor, tell), sys.stdout, every)
    click.echo(f"`penstock report {short(run)}` explains it")


def _monitor(run: Path, wait_s: float) -> tuple[Any, bool]:
    """Return a monitor of the run, and whether the run is over; wait for the begin of a run."""
    import time

    from penstock.explain.live import Monitor

    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            monitor = Monitor(run, short(run))
            return monitor, monitor.was_over()
        except RunError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(0.1)


def _looks(monitor: Any, tell: Callable[[Any], None]) -> Iterator[Any]:
    """Yield the run once a second until the end of the run."""
    import time

    while True:
        begun_s = time.monotonic()
        value = monitor.look()
        tell(value)
        yield value
        if value.state == "over":
            return
        time.sleep(max(0.1, LOOK_S - (time.monotonic() - begun_s)))


@click.command("window")
@click.argument("run", type=RUN_FOLDER)
@click.argument("wish", type=click.Choice(["start", "stop"]), metavar="start|stop")
@click.option(
    "--timeout",
    type=waiting_time,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="How long to wait for the processes to answer.",
)
def window_command(run: Path, wish: str, timeout: float) -> int:
    """Start or pause the recording of a running job.

    The processes of the job look for a request at the begin and end of a step, and where a worker
    fetches a batch.  Exit status 1: no process has answered in time; the request stays for the next
    step.

    \b
      penstock run --paused -o runs/tuesday python train.py &
      penstock window runs/tuesday start; sleep 60; penstock window runs/tuesday stop
    """
    from penstock.recording import control, window

    asked = control.RECORD if wish == "start" else control.PAUSE
    answer = window.window(run, asked, timeout)
    done = "recording" if wish == "start" else "paused"
    if answer.answered:
        n = len(answer.answered)
        click.echo(f"{n} process{'es' * (n > 1)} {done}: {_pids(answer.answered)}")
    if answer.silent:
        say(f"no answer in {timeout:g} s: {_pids(answer.silent)}; between two steps they will")
    if answer.deaf and not answer.answered:
        say(f"cannot be asked, no step and no batch so far: {_pids(answer.deaf)}")
    if not (answer.answered or answer.silent or answer.deaf):
        say(f"{run}: its last process ended before it answered; nothing was asked of any")
    return 0 if answer.answered else 1


def _pids(pids: tuple[int, ...]) -> str:
    more = f" and {len(pids) - 8} more" if len(pids) > 8 else ""
    return ", ".join(map(str, pids[:8])) + more
