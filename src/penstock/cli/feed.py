"""Define the commands `penstock feed`: show, verify and time a data set.  No logic; a part of
`cli`.

Exit status: 0 success, 1 `verify` found damage, 2 an unusable request.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.shell import AS_JSON, ProgressBar, duration, print_json, write_text
from penstock.safe.harmless import cell
from penstock.words import count, show

if TYPE_CHECKING:
    from penstock.feed.index import Index
    from penstock.feed.verify import Checked
    from penstock.trial.feed import Benched

__all__ = ["feed"]

DAMAGED = 1  # the exit status of `verify` after damage
SHOWN_PROBLEMS = 20
PRINTED_AT_ONCE = 4096  # records, of a list of all
SHOWN_COLUMNS = 20
LOOKED_AT = 64  # records with examined first bytes, spread over the data set
LOOKED_AT_BYTES = 1 << 20  # of each record at most, as some kinds show at their end

DATA_SET = click.argument("path", nargs=-1, required=True)
DATABASE = click.option(
    "--database", metavar="NAME", help="The database in an LMDB that holds several."
)
KIND = click.option(
    "--kind",
    metavar="KIND",
    help="lmdb, tar, tfrecord, parquet or folder, instead of what the files look like.",
)


@click.group("feed", short_help="Look into a data set: LMDB, tar, TFRecord, Parquet, folders.")
def feed() -> None:
    """Look into a data set: LMDB, tar (WebDataset), TFRecord, Parquet, folders of files.

    \b
      penstock feed inspect train.lmdb
      penstock feed verify 'shards/*.tar'
      penstock feed bench train.lmdb
    """


@feed.command("inspect", short_help="Say what is in a data set: records, sizes, keys.")
@DATA_SET
@DATABASE
@KIND
@AS_JSON
@click.option("--records", is_flag=True, help="Each record's bounds instead, one a line.")
@click.option("--csv", "as_csv", is_flag=True, help="With --records: as CSV, with a header.")
@click.option("--no-cache", is_flag=True, help="Make the index anew, keep none.")
def inspect_command(
    path: tuple[str, ...],
    database: str | None,
    kind: str | None,
    as_json: bool,
    records: bool,
    as_csv: bool,
    no_cache: bool,
) -> None:
    """Say what is in a data set: records, sizes, keys, and what they look like.

    PATH is a file, a folder, a pattern or several of them.  Reads the places of all records and
    the first bytes of a few; with --records no record.

    Exit status 2: there is no data set, or it cannot be read; `penstock feed verify` says what of
    it is damaged.

    In keys and names what is no printable text is escaped as Python does it (\\n, \\xff), and a
    backslash is doubled.

    \b
      penstock feed inspect train.lmdb
      penstock feed inspect 'shards/train-{000..127}.tar'
      penstock feed inspect images/ --json | jq .records
      penstock feed inspect train.lmdb --records | head
      penstock feed inspect 'shards/*.tar' --records --csv > bounds.csv
    """
    from penstock.feed.index import open_index

    if as_csv and not records:
        raise click.UsageError("--csv is of a list of records: say --records --csv")
    if as_json and records:
        raise click.UsageError("--json is of the whole; a list for programs is --records --csv")
    with ProgressBar("indexing") as bar:
        index = open_index(
            _asked(path), cache=not no_cache, progress=bar.advance, kind=kind, database=database
        )
    if records:
        _print_records(index, as_csv)
        return
    facts = _facts(index)
    if as_json:
        print_json(facts)
        return
    _print_facts(facts)


@feed.command("verify", short_help="Look at every record: its place, and every sum kept of it.")
@DATA_SET
@DATABASE
@KIND
@AS_JSON
def verify_command(
    path: tuple[str, ...], database: str | None, kind: str | None, as_json: bool
) -> int:
    """Look at every record of a data set: its place, and every sum that its format keeps.

    Exit status 0: whole; 1: something is damaged; 2: there is no data set, none that is read here,
    or one that may not be read by you.  What no record holds (a tar's links and files without an
    extension, hidden files, a database beside the records) is reported, and is no damage.

    \b
      penstock feed verify train.lmdb
      penstock feed verify 'train-*-of-01024'
    """
    from penstock.feed.verify import check

    with ProgressBar("looking at records") as bar:
        checked = check(_asked(path), bar.advance, database, kind)
    if as_json:
        print_json(_as_json(checked))
    else:
        _print_checked(checked)
    return DAMAGED if checked.problems else 0


@feed.command("bench", short_help="Measure how fast a data set can be read here.")
@DATA_SET
@DATABASE
@KIND
@AS_JSON
@click.option(
    "--for",
    "--seconds",
    "seconds",
    type=duration,
    default="3s",
    show_default=True,
    metavar="TIME",
    help="For each reader; one that reads ahead goes on until four of its portions were given.",
)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, metavar="RECORDS")
@click.option(
    "--picture",
    "--plot",
    "plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also a page with a picture, FILE.html.",
)
def bench_command(
    path: tuple[str, ...],
    database: str | None,
    kind: str | None,
    as_json: bool,
    seconds: float,
    batch: int,
    plot: Path | None,
) -> None:
    """Measure how fast a data set can be read here: in order and shuffled, against the ceiling
    and, for an LMDB, against py-lmdb.

    Each reader begins with the files out of memory; where that is not so, the row says it.  What
    takes less than 0.05 s is too short to measure: no ratio is computed.

    Exit status 2: there is no data set, it holds no record, or it cannot be read.

    \b
      penstock feed bench train.lmdb
      penstock feed bench 'shards/*.tar' --for 10s --picture speed.html
    """
    from penstock.feed.index import open_index
    from penstock.trial.feed import measure, page_of, to_json

    if plot is not None:
        _refuse_plot(plot)
    with ProgressBar("indexing") as bar:
        index = open_index(_asked(path), progress=bar.advance, kind=kind, database=database)
    with ProgressBar("reading") as bar:
        benched = measure(index, seconds, batch, bar.advance, database)
    if as_json:
        print_json(to_json(benched))
    else:
        _print_benched(benched)
    if plot is not None:  # last: the results are printed even if the page fails
        write_text(page_of(benched), plot, otherwise="the page was not written")


def _refuse_plot(plot: Path) -> None:
    """Refuse a page at an unusable path, before anything is measured.

    Raises FeedError: no page can be written there.
    """
    from penstock.errors import FeedError

    if plot.suffix.lower() not in (".html", ".htm"):
        raise FeedError(f"{plot}: the plot is a page; name it {plot.with_suffix('.html').name}")
    nearest = plot if plot.exists() else plot.parent
    if not nearest.exists():
        raise FeedError(f"{plot}: there is no folder {plot.parent}; make it, or name another")
    if not os.access(nearest, os.W_OK):
        raise FeedError(f"{plot}: {nearest} may not be written to by you; name another place")


def _print_benched(benched: Benched) -> None:
    ceiling = benched.ceiling_bps
    click.echo(
        f"{benched.kind}: {count(benched.n_records, 'record')} of "
        f"{show(benched.record_bytes, 'B')} in all"
    )
    click.echo(
        f"{'reader':24} {'order':8} {'records/s':>11} {'MB/s':>8} {'ceiling':>8} {'device':>7}"
    )
    for rate in benched.rates:
        part = benched.share(rate)
        share = f"{100 * part:.0f} %" if part is not None else "–"
        more = f"{rate.amplification:.2f}x" if rate.amplification is not None else "–"
        note = "" if rate.is_measured else f"  too short: {show(rate.seconds, 's')}"
        note += "" if rate.is_cold else f"  not cold: {rate.why_not_cold}"
        click.echo(
            f"{rate.reader:24} {rate.order:8} {_rounded(rate.records_hz):>11} "
            f"{_rounded(rate.bandwidth_bps / 1e6):>8} {share:>8} {more:>7}{note}"
        )
    if ceiling:
        best = max(benched.ceilings, key=lambda each: each.bandwidth_bps)
        click.echo(
            f"ceiling: {ceiling / 1e6:,.0f} MB/s, {best.order} reads of "
            f"{show(best.request_bytes, 'B')}, {best.threads} at a time"
        )
        if any((benched.share(rate) or 0) > 1 for rate in benched.rates):
            click.echo("  more than 100 %: the storage gave less while its ceiling was measured")
    for each in benched.missing:
        click.echo(each)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _asked(path: tuple[str, ...]) -> str | list[str]:
    return path[0] if len(path) == 1 else list(path)


def _facts(index: Index) -> dict[str, Any]:
    import numpy as np

    n = len(index)
    facts: dict[str, Any] = {
        "path": index.path,
        "kind": index.kind,
        "files": len(index.files),
        "file_bytes": index.file_bytes,
        "records": n,
        "record_bytes": index.total_bytes,
        "left_out": [each._asdict() for each in index.left_out],
    }
    if index.kind == "lmdb":
        facts["lmdb"] = [_lmdb_facts(file) for file in index.files]
    if index.kind == "parquet" and n:
        facts["parquet"] = _parquet_facts(index)
    if not n:
        return facts
    least, half, most = np.quantile(index.length, [0, 0.5, 1])
    n_looks = 0 if index.kind == "parquet" else min(n, LOOKED_AT)  # a row group has no head
    places = np.unique(np.linspace(0, n - 1, n_looks).astype(int)).tolist()
    looks = [_looks(_record(index, place)) for place in places]
    facts |= {
        "smallest_bytes": int(least),
        "median_bytes": int(half),
        "largest_bytes": int(most),
        "first_key": _text(index.key(0)),
        "last_key": _text(index.key(n - 1)),
        "is_in_file_order": _is_in_file_order(index),
        "looked_at": len(places),
        "looks_like": sorted(set(looks), key=looks.count, reverse=True),
    }
    return facts


def _looks(record: bytes) -> str:
    from penstock.errors import FeedError
    from penstock.feed.decode import SAMPLE, content_of, sample

    content = content_of(record)
    if content != SAMPLE:
        return content
    try:
        members = sample(record)
    except FeedError:  # a long record, read only in part, or a tar instead of a sample
        return content
    return " + ".join(f"{name} ({content_of(part)})" for name, part in members.items())


def _is_in_file_order(index: Index) -> bool:
    """Return True if neighbours in the index are neighbours in the file.

    Within a page of LMDB, neighbours in the index are not neighbours in the file.
    """
    import numpy as np

    grain = 4096 if index.kind == "lmdb" else 1
    steps, files = np.diff(index.offset // grain), np.diff(index.file.astype(np.int64))
    return bool(((steps >= 0) | (files > 0)).all())


def _lmdb_facts(file: str) -> dict[str, Any]:
    from penstock.feed import pages
    from penstock.feed.byte_file import opened

    with opened(file) as source:
        meta = pages.read_meta(source, file)
    return {
        "data_version": meta.layout.version,
        "page_bytes": meta.page_bytes,
        "transaction": meta.txnid,
    }


def _parquet_facts(index: Index) -> dict[str, Any]:
    from penstock.feed.parquet import RowGroups

    groups = RowGroups.of(index)
    types = {field.name: str(field.type) for field in groups.schema}
    return {
        "rows": groups.n_rows,
        "fewest_rows": int(groups.rows.min()),
        "most_rows": int(groups.rows.max()),
        "columns": types,
    }


def _record(index: Index, place: int) -> bytes:
    """Return a record, or the examined part of its begin."""
    from penstock.errors import FeedError
    from penstock.feed.byte_file import opened

    path = index.files[index.file[place]]
    try:
        with opened(path) as file:
            n_bytes = min(int(index.length[place]), LOOKED_AT_BYTES)
            return file.pread(n_bytes, int(index.offset[place]))
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}; is it readable by you?") from error


def _text(key: bytes) -> str:
    """Return a foreign name as text without control characters; the bytes can be derived from the
    text."""
    from penstock.views.paper import Paper

    return Paper.clean(key.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))


def _print_records(index: Index, as_csv: bool) -> None:
    """Print every record's bounds, part by part, so the output is never in memory as a whole."""
    import csv
    import io

    files = [_text(os.fsencode(path)) for path in index.files]
    widths = [
        len(f"{int(most.max(initial=0)):,}") for most in (index.offset, index.length)
    ]  # of the cells of a column
    if as_csv:
        click.echo("key,file,offset,length")
    with ProgressBar("writing") as bar:
        for start in range(0, len(index), PRINTED_AT_ONCE):
            rows = _bounds(index, start, min(start + PRINTED_AT_ONCE, len(index)))
            text = io.StringIO()
            if as_csv:
                table = csv.writer(text, lineterminator="\n")
                table.writerows(
                    (cell(_text(key)), cell(files[file]), *span) for key, file, *span in rows
                )
            else:
                for key, file, offset, length in rows:
                    numbers = f"{offset:{widths[0]},}  {length:{widths[1]},}"
                    text.write(f"{numbers}  {files[file]}  {_text(key)}\n")
            click.echo(text.getvalue(), nl=False)
            if not sys.stdout.isatty():  # else the lines themselves show the progress
                bar.advance(start, len(index))


def _bounds(index: Index, start: int, end: int) -> list[tuple[bytes, int, int, int]]:
    """Return (key, number of the file, offset, length) of records start to end."""
    first = int(index.key_end[start - 1]) if start else 0
    ends = (index.key_end[start:end] - first).tolist()
    keys = index.keys[first : first + ends[-1]].tobytes()
    columns = (index.file, index.offset, index.length)
    return list(
        zip(
            (keys[at:to] for at, to in zip([0, *ends], ends, strict=False)),
            *(column[start:end].tolist() for column in columns),
            strict=True,
        )
    )


def _print_facts(facts: dict[str, Any]) -> None:
    n, kind = facts["records"], facts["kind"]
    is_apart = facts["record_bytes"] and kind != "folder"  # each file is a record
    share = facts["file_bytes"] / facts["record_bytes"] if is_apart else 0
    click.echo(
        f"{kind}: {count(n, 'record')}, {show(facts['record_bytes'], 'B')} in "
        f"{count(facts['files'], 'file')} of "
        f"{show(facts['file_bytes'], 'B')}" + (f" ({share:.2f} times the records)" if share else "")
    )
    for about in facts.get("lmdb", [])[:1]:
        more = f", {len(facts['lmdb'])} files like it" if len(facts["lmdb"]) > 1 else ""
        click.echo(
            f"  data version {about['data_version']}, pages of {about['page_bytes']:,} bytes, "
            f"transaction {about['transaction']}{more}"
        )
    _print_left_out(facts["left_out"])
    if not n:
        return
    if "parquet" in facts:
        _print_parquet(facts["parquet"])
    click.echo(
        f"  a record: {show(facts['smallest_bytes'], 'B')} to {show(facts['largest_bytes'], 'B')}, "
        f"median {show(facts['median_bytes'], 'B')}"
    )
    click.echo(f"  keys: {facts['first_key']} … {facts['last_key']}")
    order = "in the order of the file" if facts["is_in_file_order"] else "not in the file's order"
    click.echo(f"  order: {order}")
    if facts["looked_at"]:
        looks = _text(", ".join(facts["looks_like"]).encode("utf-8", "surrogateescape"))
        click.echo(f"  they look like: {looks} ({facts['looked_at']} seen)")


def _print_parquet(about: dict[str, Any]) -> None:
    columns = [f"{name} ({kind})" for name, kind in about["columns"].items()]
    more = ["…"] if len(columns) > SHOWN_COLUMNS else []
    shown = _text(", ".join(columns[:SHOWN_COLUMNS] + more).encode("utf-8", "surrogateescape"))
    click.echo(
        f"  {count(about['rows'], 'row')}; a record is a row group of {about['fewest_rows']:,} to "
        f"{about['most_rows']:,} rows"
    )
    click.echo(f"  columns: {shown}")


def _print_left_out(left_out: list[dict[str, Any]]) -> None:
    for each in left_out:
        what = f"{count(each['n'], each['noun'])} {each['why']}".rstrip()
        names = ", ".join(_text(os.fsencode(name)) for name in each["names"])
        more = ", …" if each["n"] > len(each["names"]) else ""
        click.echo(f"  in no record: {what} ({names}{more})")


def _as_json(checked: Checked) -> dict[str, Any]:
    return checked._asdict() | {
        "problems": [each._asdict() for each in checked.problems],
        "left_out": [each._asdict() for each in checked.left_out],
    }


def _print_checked(checked: Checked) -> None:
    from penstock.views.paper import Paper

    for each in checked.problems[:SHOWN_PROBLEMS]:
        where = "" if each.record is None else f"{each.file}: record {each.record:,} "
        click.echo(Paper.clean(f"{where}{each.what}"))
    if len(checked.problems) > SHOWN_PROBLEMS:
        click.echo(f"and {len(checked.problems) - SHOWN_PROBLEMS:,} more; --json has all")
    n = len(checked.problems)
    whole = "nothing is damaged" if checked.left_out else "nothing is wrong"
    whole = "contents not checked" if checked.kind == "folder" else whole
    verdict = count(n, "problem") if n else whole
    click.echo(f"{checked.kind}: {_extent(checked)}: {verdict}")
    _print_left_out(_as_json(checked)["left_out"])
    if checked.not_seen:
        click.echo(f"  {checked.not_seen}")


def _extent(checked: Checked) -> str:
    """Return the examined extent, and the extent that could not be examined."""
    unit = "folder" if checked.kind == "folder" else "file"
    if checked.n_records is None:
        return f"an unknown number of records in {count(checked.n_files, unit)}"
    records = (
        f"{count(checked.n_records, 'record')}, {show(checked.n_bytes, 'B')} in "
        f"{count(checked.n_files - checked.n_unknown, 'file')}"
    )
    if not checked.n_unknown:
        return records
    return f"{records}, an unknown number in {checked.n_unknown:,} more" + (
        "" if unit == "file" else f" {unit}{'s' * (checked.n_unknown != 1)}"
    )
