"""What Python's imports take, as spans of programs whose modules are known."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SPANS = (
    "select name, a, b / 1e9, duration_ns / 1e9, duration_ns is null from spans "
    "where name like 'import known_%' order by process, start_ns"
)


def package(folder: Path, name: str, source: str) -> None:
    place = folder.joinpath(*name.split("."))
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(source)


def imports(run: Any) -> list[tuple[str, int]]:
    return [(name, depth) for name, depth, *_ in run.sql(SPANS)]


def test_an_import_is_a_span_and_one_of_a_module_that_is_there_is_none(
    recorded: Callable[..., Any], work: Path
) -> None:
    package(work, "known_slow", "import time\nimport known_inner.part\ntime.sleep(0.3)\n")
    package(work, "known_inner", "")
    package(work, "known_inner.part", "")
    run = recorded("""
        import sys
        sys.path.insert(0, ".")
        import known_slow
        for _ in range(50):
            import known_slow
            import known_inner.part
    """)
    # The parent of a module that is asked for is loaded inside its import.
    assert imports(run) == [
        ("import known_slow", 1),
        ("import known_inner", 2),
        ("import known_inner", 3),
    ]
    _, _, cpu_s, took_s, _ = run.sql(SPANS)[0]
    assert took_s >= 0.3
    assert cpu_s <= took_s - 0.29  # what slept was on no CPU


def test_imports_by_importlib_and_in_threads_are_spans_and_failed_ones_end(
    recorded: Callable[..., Any], work: Path
) -> None:
    package(work, "known_a", "")
    package(work, "known_b", "")
    package(work, "known_broken", "raise ValueError('as meant')\n")
    run = recorded("""
        import importlib, sys, threading, traceback
        sys.path.insert(0, ".")
        importlib.import_module("known_a")
        thread = threading.Thread(target=importlib.import_module, args=("known_b",))
        thread.start()
        thread.join()
        for name, error in (("known_broken", ValueError), ("known_absent.part", ImportError)):
            try:
                importlib.import_module(name)
            except error:
                said = traceback.format_exc()
                assert "_find_and_load" not in said or "importlib" in said, said
                assert "penstock" not in said, said
            else:
                raise AssertionError(name)
    """)
    assert imports(run) == [
        ("import known_a", 1),
        ("import known_b", 1),
        ("import known_broken", 1),
        ("import known_absent", 1),
        ("import known_absent", 2),
    ]
    assert not any(is_in_flight for *_, is_in_flight in run.sql(SPANS))
    assert len(run.sql("select distinct thread from spans where name like 'import known_%'")) == 2


def test_a_spawned_process_tells_its_own_imports(recorded: Callable[..., Any], work: Path) -> None:
    package(work, "known_work", "def double(n):\n    return 2 * n\n")
    run = recorded(
        """
        import multiprocessing, sys
        sys.path.insert(0, ".")
        import known_work

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(known_work.double, [1]) == [2]
        """,
        environment={"PYTHONPATH": str(work)},
    )
    rows = run.sql("select distinct process from spans where name = 'import known_work'")
    assert len(rows) == 2


@pytest.mark.parametrize(
    "options", [["-S"], ["-I"], ["-X", "importtime"], ["-X", "frozen_modules=off"]]
)
def test_how_the_interpreter_is_started_does_not_matter(
    recorded_command: Callable[..., Any], work: Path, options: list[str]
) -> None:
    package(work, "known_a", "")
    program = work / "program.py"
    program.write_text("import sys\nsys.path.insert(0, '.')\nimport known_a\n")
    run = recorded_command([sys.executable, *options, program])
    assert imports(run) == [("import known_a", 1)]


def test_the_cpu_time_of_the_start_is_told_where_the_first_step_begins(
    recorded: Callable[..., Any],
) -> None:
    run = recorded("""
        import time
        begun = time.thread_time()
        while time.thread_time() - begun < 0.3:
            pass
        time.sleep(0.2)
        import penstock
        for _ in range(3):
            with penstock.step():
                pass
    """)
    (first, last) = run.sql(
        "select a / 1e9, b, start_ns from spans where name = 'thread cpu' order by start_ns"
    )
    assert 0.3 <= first[0] <= last[0]
    assert first[0] <= first[2] / 1e9 - 0.19  # it slept, too
    assert first[2] < run.sql("select min(start_ns) from spans where kind = 'step'")[0][0]
