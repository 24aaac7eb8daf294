"""What the recorder hears of TensorFlow's own function, played by two small libraries."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.runs.run import open_run


@pytest.fixture
def caller(workload: Callable[..., Path]) -> tuple[Path, Path]:
    """The library that has the function, and the one that imports it."""
    provider = workload("libtensorflow_framework_known", "-shared", "-fPIC")
    return provider, workload("tensorflow_caller", "-shared", "-fPIC", str(provider))


def test_the_adapters_import_no_framework() -> None:
    program = """
import sys
import penstock.adapters, penstock.adapters.keras
known = {"torch", "tensorflow", "keras", "jax", "grain", "orbax", "lightning", "transformers"}
known |= {"accelerate", "safetensors", "numpy"}
assert not known & set(sys.modules), known & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


PROGRAM = """
import ctypes, sys
import penstock

provider, caller = sys.argv[1:]
def load():
    library = ctypes.CDLL(caller)  # for its importers only, as Python loads TensorFlow
    return lambda us: library.fetched(ctypes.c_uint64(us))
def counted():
    known = ctypes.CDLL(provider)
    return tuple(ctypes.c_uint64.in_dll(known, name).value for name in ("calls", "told_us"))
"""


def heard(run: Any) -> list[int]:
    return [
        us for (us,) in run.sql("select a from spans where name = 'get next' order by start_ns")
    ]


def test_each_batch_is_a_span_and_the_original_is_called(
    recorded: Callable[..., Any], caller: tuple[Path, Path]
) -> None:
    run = recorded(
        textwrap.dedent(PROGRAM)
        + textwrap.dedent("""
        fetched = load()
        for us in (100, 20, 3):
            fetched(us)
        assert counted() == (3, 123), counted()
        """),
        args=caller,
    )
    assert heard(run) == [100, 20, 3]
    cpu = run.sql("select b from spans where name = 'get next' order by start_ns")
    assert cpu == sorted(cpu)
    assert cpu[0][0] > 0


@pytest.mark.parametrize("is_loaded_before", [True, False], ids=["loaded before", "loaded after"])
def test_a_window_hears_what_happens_in_it_and_leaves_the_slot_as_it_was(
    tmp_path: Path, caller: tuple[Path, Path], is_loaded_before: bool
) -> None:
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(f"""
        fetched = load() if {is_loaded_before} else None
        for number in range(2):
            if fetched is not None:
                fetched(1000)
            with penstock.record(f"window-{{number}}"):
                fetched = fetched or load()
                fetched(number)
        fetched(1000)
    """)
    finished = subprocess.run(
        [sys.executable, "-c", program, *caller], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    for number in range(2):
        with open_run(tmp_path / f"window-{number}") as run:
            assert heard(run) == [number]
