"""The laboratory as a distribution: the version, and the command."""

import subprocess
from importlib import metadata

from fixtures import PENSTOCK


def test_the_laboratory_has_the_version_of_the_product() -> None:
    assert metadata.version("penstock-lab") == metadata.version("penstock")
    assert f"penstock=={metadata.version('penstock')}" in (metadata.requires("penstock-lab") or [])


def test_penstock_bench_lists_the_studies() -> None:
    done = subprocess.run([PENSTOCK, "bench", "--help"], check=True, capture_output=True, text=True)
    for command in ("tier", "data", "ladder", "diagnosis", "checkpoint"):
        assert command in done.stdout
