"""Slow tiers and control groups in tests: whether they can be made here, and that none stays."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import MissingDependency, TierError
from penstock_lab import tier as slow_tiers
from penstock_lab.tier import capped


def _why_no_fuse() -> str:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there or not for this user"
    try:
        slow_tiers.build()
    except MissingDependency as error:
        return str(error)
    return ""


WHY_NO_FUSE = _why_no_fuse()
needs_fuse = pytest.mark.skipif(bool(WHY_NO_FUSE), reason=WHY_NO_FUSE)


def mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if " fuse.slowfs " in line]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    yield
    left = [mount for mount in mounts() if str(tmp_path) in mount]
    for mount in left:
        subprocess.run(["umount", "-l", mount], check=False)
    assert not left


def _refused(**limits: int) -> str:
    try:
        with capped("/tmp", **limits):
            return ""
    except TierError as error:
        return str(error)


WHY_NO_DISK = _refused(bandwidth=1 << 30)
WHY_NO_MEMORY = _refused(memory_bytes=1 << 30)
