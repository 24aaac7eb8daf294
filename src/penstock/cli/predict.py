"""The command `penstock predict`: arguments in, a table out.  penstock.trial.predict decides."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import click

from penstock.cli.shell import (
    RUN_FOLDER,
    ProgressBar,
    duration,
    ended_like_ctrl_c,
    print_rich,
    size,
)

__all__ = ["predict_command"]

MOST_READERS = 256


@click.command("predict", short_help="Predict the wait on other storage, or with more workers.")
@click.argument("run", type=RUN_FOLDER)
@click.option(
    "--tier",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Storage to measure: the run's own reads, from copies in this folder; they are removed.",
)
@click.option("--latency", type=duration, metavar="TIME", help="Storage as stated: of a request.")
@click.option("--bandwidth", type=size, metavar="SIZE", help="Bytes a second, for all ranks.")
@click.option(
    "--requests", type=click.IntRange(1), metavar="N", help="Requests a second, for all ranks."
)
@click.option("--workers", type=click.IntRange(0, 1024), metavar="N", help="Of each loader.")
@click.option(
    "--prefetch", type=click.IntRange(1, 1024), metavar="N", help="Batches ahead, of each worker."
)
@click.option("--processors", type=click.FloatRange(0.1), metavar="N", help="CPUs of each rank.")
@click.option(
    "--ranks", type=click.IntRange(1, 1024), default=1, metavar="N", help="Ranks, on nodes each."
)
@click.option("--memory", type=size, metavar="SIZE", help="Page cache of a node. [default: enough]")
@click.option("--for", "for_s", type=duration, metavar="TIME", default="30s", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output.")
def predict_command(
    run: Path,
    tier: Path | None,
    latency: float | None,
    bandwidth: int | None,
    requests: int | None,
    workers: int | None,
    prefetch: int | None,
    processors: float | None,
    ranks: int,
    memory: int | None,
    for_s: float,
    as_json: bool,
) -> None:
    """Predict how long a recorded training would wait on other storage, or with other workers.

    From the calls and CPU time of each batch, by a model of PyTorch's DataLoader.  The model has to
    reproduce the run as recorded within a tenth; else nothing is predicted.

    \b
      penstock predict RUN --tier /mnt/nvme
      penstock predict RUN --latency 1ms --bandwidth 200MB --workers 8
      penstock predict RUN --latency 1ms --bandwidth 2GB --ranks 16 --processors 8
    """
    from penstock.runs.run import open_run
    from penstock.trial import predict

    stated = (latency, bandwidth, requests)
    if tier is not None and any(value is not None for value in stated):
        raise click.UsageError("--tier is measured: leave out --latency, --bandwidth, --requests")
    costs = None
    with (
        ended_like_ctrl_c(),
        ProgressBar("reading logs") as progress,
        contextlib.closing(open_run(run, progress.advance)) as opened,
    ):
        if tier is not None:
            readers = min(MOST_READERS, max(1, workers or predict.workers_of(opened)) * ranks)
            costs = predict.costs_on(opened, tier, readers, for_s=for_s, progress=progress.say)
        elif any(value is not None for value in stated):
            costs = predict.stated(latency or 0.0, bandwidth or math.inf, requests or math.inf)
        change = predict.Scenario(costs, workers, prefetch, processors, ranks, memory)
        answer = predict.predict(opened, change, str(run))
    if as_json:
        click.echo(predict.to_json(answer))
    else:
        print_rich(predict.table_of(answer))
