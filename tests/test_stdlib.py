"""The standard library's own tests of what does I/O pass under the recorder as without it."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fixtures import thorough

pytestmark = pytest.mark.slow

PENSTOCK = Path(sysconfig.get_path("scripts")) / "penstock"
MODULES = [
    "test_io",
    "test_os",
    "test_fileio",
    "test_mmap",
    "test_subprocess",
    "test_multiprocessing_fork",
    "test_multiprocessing_spawn",
    "test_tempfile",
    "test_shutil",
    # Of asyncio what makes calls on descriptors and processes; the rest is arithmetic and waiting.
    *(
        thorough(f"test_asyncio.test_{name}", like="sendfile, os and subprocess")
        for name in ("events", "streams", "subprocess", "unix_events")
    ),
    "test_asyncio.test_sendfile",
]


@pytest.mark.parametrize("module", MODULES)
def test_the_standard_librarys_tests_pass_as_without(module: str, tmp_path: Path) -> None:
    if not importlib.util.find_spec("test") or not importlib.util.find_spec(f"test.{module}"):
        pytest.skip(f"this interpreter does not ship {module}")
    recorded = unittest([PENSTOCK, "run", "-q", "-o", tmp_path / "run", "--"], module, tmp_path)
    assert "Ran " in recorded
    failed = failures(recorded)
    if failed:  # as without: the machine's own failures are not the recorder's
        assert failed <= failures(unittest([], module, tmp_path)), recorded[-8000:]


def unittest(launcher: list[str | Path], module: str, folder: Path) -> str:
    finished = subprocess.run(
        [*launcher, sys._base_executable, "-m", "unittest", "-v", f"test.{module}"],  # type: ignore[attr-defined]
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=900,
    )
    return finished.stdout


def failures(text: str) -> set[str]:
    """The names of the tests that failed, by unittest's closing blocks; a crash is one more."""
    failed = set(re.findall(r"^(?:FAIL|ERROR): (.+?)(?: \[.*)?$", text, re.MULTILINE))
    if not re.search(r"^(OK|FAILED)\b", text, re.MULTILINE):
        failed.add("the whole: it did not come to its end")
    return failed
