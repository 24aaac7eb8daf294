"""Faults put into the code on purpose, singly: which tests see a fault.

    python lab/benchmarks/mutants.py                  all, and the table of docs/mutants.md again
    python lab/benchmarks/mutants.py findings-or      only this fault; the table stays

The tests run on a copy of the checkout, with the package of the copy.  A fault that the named tests
pass is a survivor: a check is missing.  Before the first fault the tests run without one: if a test
fails then, no fault is tried, since the test's failure would count as a fault seen.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bars import ROOT

import penstock

PAGE = ROOT / "docs" / "mutants.md"
COPY = ROOT / "build" / "mutants"
TIMEOUT_S = 900
PASSED, FAILED, TIMED_OUT = "passed", "failed", f"not done in {TIMEOUT_S} s"
KILLED = "killed"
OF_A_FAULT = {PASSED: "SURVIVED", FAILED: KILLED, TIMED_OUT: KILLED}
PROGRAMS = ("*.so", "inject", "enter", "probe", "faultwatch", "readahead")

FINDINGS = "src/penstock/explain/findings"
VERDICT = "src/penstock/explain/verdict.py"
PLAN = "src/penstock/feed/plan.py"
COMMIT = "src/penstock/save/commit.py"
TARGET = "src/penstock/save/copy/target.py"
RETENTION = "src/penstock/save/drain/retention.py"


class Mutant(NamedTuple):
    """A fault.  before, after: text of the file; tests: words for pytest."""

    name: str
    file: str
    before: str
    after: str
    tests: str


MUTANTS = (
    Mutant(
        "findings-or",
        f"{FINDINGS}/reads.py",
        "if share < METADATA_SHARE.value and per_open",
        "if share < METADATA_SHARE.value or per_open",
        "tests/test_findings.py -k 'metadata or storm'",
    ),
    Mutant(
        "findings-worth",
        f"{FINDINGS}/__init__.py",
        "gain_s = min(said.gain_s, of_s)",
        "gain_s = max(said.gain_s, of_s)",
        "tests/test_findings.py -k 'gain or startup or metadata'",
    ),
    Mutant(
        "findings-sort",
        f"{FINDINGS}/__init__.py",
        "-(entry.gain.value or 0.0)),",
        "(entry.gain.value or 0.0)),",
        "tests/test_findings.py -k 'largest or order or first or sorted or silence or suppress'",
    ),
    Mutant(
        "findings-failures-first",
        f"{FINDINGS}/__init__.py",
        "(entry.rule not in OF_FAILURES,",
        "(entry.rule in OF_FAILURES,",
        "tests/test_findings.py tests/test_failures.py",
    ),
    Mutant(
        "verdict-level",
        VERDICT,
        '"moderately" if share <= HIGHLY',
        '"moderately" if share < HIGHLY',
        "tests/test_verdict.py tests/test_report.py",
    ),
    Mutant(
        "verdict-not",
        VERDICT,
        '"not" if share < MODERATELY',
        '"not" if share <= MODERATELY',
        "tests/test_verdict.py tests/test_report.py",
    ),
    Mutant(
        "verdict-speedup",
        VERDICT,
        "Number(1 / (1 - share)",
        "Number(1 / (1 + share)",
        "tests/test_verdict.py tests/test_report.py",
    ),
    Mutant(
        "devices-swap",
        "src/penstock/explain/queries/machine/devices.sql",
        "kind = 'disk' AND quantity = 'written_bytes'",
        "kind = 'disk' AND quantity = 'read_bytes'",
        "tests/test_system.py -k 'account or cold or draws or amplification or sampled'",
    ),
    Mutant(
        "clocks-median",
        "src/penstock/runs/clocks.py",
        "length_ns = float(np.median(",
        "length_ns = float(np.max(",
        "tests/test_clocks.py",
    ),
    Mutant(
        "plan-block",
        PLAN,
        "is_first.mean() > 0.5",
        "is_first.mean() > 0.05",
        "tests/test_feed_plan.py",
    ),
    Mutant(
        "plan-gap",
        PLAN,
        "MOST_GAP_BYTES = 64 << 10",
        "MOST_GAP_BYTES = 64 << 12",
        "tests/test_feed_plan.py",
    ),
    Mutant(
        "commit-stale-sum",
        COMMIT,
        "if file_sum is None or file_sum.size_bytes != status.st_size:",
        "if file_sum is None:",
        "tests/test_save_commit.py",
    ),
    Mutant(
        "commit-sync-root",
        COMMIT,
        "        fsync_folder(part.root)\n",
        "",
        "tests/test_save_commit.py",
    ),
    Mutant(
        "target-folders",
        TARGET,
        "            for folder, _, _ in os.walk(part):\n"
        "                fsync_folder(folder)\n"
        "        except OSError as error:\n"
        '            raise TierError(f"{part}: cannot be committed',
        "        except OSError as error:\n"
        '            raise TierError(f"{part}: cannot be committed',
        "tests/test_save_durable.py",
    ),
    Mutant(
        "target-manifest-first",
        TARGET,
        "    try:\n        for file in manifest.files:\n",
        "    store.put(beside(name, BESIDE), data)\n"
        "    try:\n        for file in manifest.files:\n",
        "tests/test_save_durable.py",
    ),
    Mutant(
        "target-moves",
        TARGET,
        '.replace(store.path(f"{start}{file.name}"))\n        fsync_folder(part.parent)\n',
        '.replace(store.path(f"{start}{file.name}"))\n',
        "tests/test_save_durable.py",
    ),
    Mutant(
        "target-mark-first",
        TARGET,
        '            self.store.put(f"{self.place}/{INSIDE}", manifest)\n'
        '            self.store.delete(f"{self.place}/{INCOMPLETE}")\n',
        '            self.store.delete(f"{self.place}/{INCOMPLETE}")\n'
        '            self.store.put(f"{self.place}/{INSIDE}", manifest)\n',
        "tests/test_save_generations.py -k mark_of_a_first",
    ),
    Mutant(
        "retention-in-use",
        RETENTION,
        "kept |= _in_use(good) | _with_all_parts(good)",
        "kept |= _with_all_parts(good)",
        "tests/test_save_kept.py tests/test_save_kinds.py",
    ),
    Mutant(
        "retention-parts",
        RETENTION,
        "kept |= _in_use(good) | _with_all_parts(good)",
        "kept |= _in_use(good)",
        "tests/test_save_units.py tests/test_save_parts.py tests/test_save_drain.py",
    ),
    Mutant(
        "retention-failed",
        RETENTION,
        "not (checkpoint.torn or checkpoint.doubt or failure_of(checkpoint, failed))",
        "not (checkpoint.torn or checkpoint.doubt)",
        "tests/test_save_drain.py tests/test_save_verify.py",
    ),
    Mutant(
        "retention-verified",
        RETENTION,
        "copy.manifest.verified_unix_ns and not copy.problem",
        "not copy.problem",
        "tests/test_save_drain.py tests/test_save_commit.py tests/test_save_verify.py",
    ),
    Mutant(
        "machine-retention",
        RETENTION,
        "on_slow = copies.get(checkpoint.identity) or remains_of(checkpoint, copies.values())",
        "on_slow = next(iter(copies.values()), None)",
        "tests/test_save_machine.py",
    ),
    Mutant(
        "machine-generations",
        "src/penstock/save/copy/target.py",
        "return self.is_folder or self.waits or (has_several and has_draft)",
        "return self.is_folder or self.waits or (has_several and has_draft and self.is_drafted)",
        "tests/test_save_machine.py",
    ),
    Mutant(
        "machine-remainders",
        "src/penstock/save/find/formats.py",
        "if row is not shape and id(it) not in rest",
        "if row is not shape",
        "tests/test_save_left_out.py -k half_removed",
    ),
    Mutant(
        "machine-mixture",
        "src/penstock/save/find/copies.py",
        "    there = _as_saved(copy)\n",
        '    return ""\n    there = _as_saved(copy)\n',
        "tests/test_save_machine.py",
    ),
    Mutant(
        "machine-order",
        "src/penstock/save/unit/order.py",
        "turns.get(id(checkpoint), 0),\n            counts[id(checkpoint)],\n"
        "            checkpoint.mtime_ns,",
        "",
        "tests/test_save_machine.py",
    ),
    Mutant(
        "counters-order",
        "native/counters.c",
        "!offset || offset >= counter->last_end;",
        "!offset || offset > counter->last_end;",
        "tests/test_hard_cases.py -k budget",
    ),
    Mutant(
        "counters-sync",
        "native/counters.c",
        "(group == GROUP_read || group == GROUP_write) && !is_sync",
        "(group == GROUP_read || group == GROUP_write) && (!is_sync || op)",
        "tests/test_hard_cases.py -k is_no_access",
    ),
    Mutant(
        "posix-unsure",
        "native/hooks_syscall.c",
        "    if (moves || call->op == OP_LSEEK || call->op == OP_COPY_RANGE)\n"
        "        files_unsure((int)a[0]);\n",
        "",
        "tests/test_recorder.py tests/test_hard_cases.py",
    ),
    Mutant(
        "burst-allocates",
        "native/burst.c",
        '#include "burst.h"\n',
        '#include "burst.h"\n#include <stdlib.h>\nvoid *burst_bad(void);\n'
        "void *burst_bad(void)\n{\n    return malloc(10);\n}\n",
        "tests/test_architecture.py -k 'inside_a_call'",
    ),
)


def main() -> None:
    names = sys.argv[1:]
    mutant_names = {mutant.name for mutant in MUTANTS}
    if set(names) - mutant_names:
        sys.exit(
            f"unknown: {', '.join(sorted(set(names) - mutant_names))}; "
            f"known: {', '.join(mutant_names)}"
        )
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    copy_checkout()
    if failing := failing_without_fault(chosen, COPY):
        sys.exit("without a fault these tests do not pass: " + "; ".join(failing))
    rows = []
    for mutant in chosen:
        verdict, took_s = tried(mutant)
        print(f"{mutant.name:24} {verdict} in {took_s:.0f} s", flush=True)
        rows.append((mutant, verdict))
    if not names:
        PAGE.write_text(page_of(rows))
    if any(verdict != KILLED for _, verdict in rows):
        sys.exit(1)


def copy_checkout() -> None:
    """The sources and tests, with the native parts of the installed package."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)
    package = Path(penstock.__file__).parent
    for pattern in PROGRAMS:
        for path in package.glob(pattern):
            shutil.copy2(path, COPY / "src" / "penstock" / path.name)


def failing_without_fault(mutants: Sequence[Mutant], checkout: Path) -> list[str]:
    """Return the tests of the mutants, as words for pytest, that fail in the sound checkout."""
    return [
        f"{tests} ({verdict})"
        for tests in dict.fromkeys(mutant.tests for mutant in mutants)
        if (verdict := outcome(tests, checkout)) != PASSED
    ]


def tried(mutant: Mutant) -> tuple[str, float]:
    """Return killed, SURVIVED or why the fault could not be tried, and the seconds of the try."""
    path = COPY / mutant.file
    text = path.read_text()
    if text.count(mutant.before) < 1:
        return "not there: its text has changed", 0.0
    path.write_text(text.replace(mutant.before, mutant.after, 1))
    begin_s = time.monotonic()
    try:
        if path.suffix == ".c" and not built():
            return "does not compile", time.monotonic() - begin_s
        verdict = outcome(mutant.tests, COPY)
        return OF_A_FAULT.get(verdict, verdict), time.monotonic() - begin_s
    finally:
        path.write_text(text)
        if path.suffix == ".c":
            built()


def built() -> bool:
    words = ["make", "-s", "src/penstock/librec.so"]
    return subprocess.run(words, cwd=COPY, capture_output=True).returncode == 0


def outcome(tests: str, checkout: Path) -> str:
    """Return PASSED, FAILED, TIMED_OUT or that pytest ran no test, of tests in a checkout."""
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x"]
    paths = f"{checkout / 'src'}{os.pathsep}{checkout / 'lab' / 'src'}"
    try:
        done = subprocess.run(
            [*words, *shlex.split(tests)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    return {0: PASSED, 1: FAILED}.get(done.returncode, f"no tests (pytest: {done.returncode})")


def page_of(rows: list[tuple[Mutant, str]]) -> str:
    survivors = [mutant.name for mutant, verdict in rows if verdict != KILLED]
    lines = [
        "# Faults put in on purpose",
        "",
        "`make mutants` puts one fault at a time into a copy of the checkout and runs the tests",
        "beside it. A fault that these tests pass shows a missing check. The command first runs",
        "the tests without a fault and refuses to go on if one fails. The command writes this",
        "page.",
        "",
        f"{len(rows)} faults, {len(rows) - len(survivors)} seen by a test"
        + (f"; not seen: {', '.join(survivors)}." if survivors else "."),
        "",
        "| fault | file | tests | result |",
        "| --- | --- | --- | --- |",
    ]
    for mutant, verdict in rows:
        tests = mutant.tests.replace("|", "\\|")
        lines.append(f"| {mutant.name} | `{mutant.file}` | `{tests}` | {verdict} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
