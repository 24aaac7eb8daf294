"""The other tools of each section of docs/performance.md, and the tools' versions here.  Knows how
each tool reports its version; knows no figure."""

import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from bars import ROOT

__all__ = ["COMPARED", "compared", "versions"]

_LMDB = dict.fromkeys(
    ("feed_index", *(f"feed:{part}" for part in
                     ("disk", "processes", "hot", "throttled", "latency", "memory"))),
    ("py-lmdb",),
)  # fmt: skip
# By section, in the order of the rows.
COMPARED: dict[str, tuple[str, ...]] = {
    "overhead": ("strace", "dftracer", "Darshan"),
    "counts": ("strace",),
    **_LMDB,
    "feed:others": ("torch", "webdataset", "TensorFlow"),
    "feed_parquet": ("pyarrow",),
    "feed_training": ("py-lmdb", "torch"),
    "checkpointer": ("torch",),
    "checkpointer_training": ("torch",),
}
_PACKAGES = {"py-lmdb": ("lmdb",), "TensorFlow": ("tensorflow-cpu", "tensorflow")}


def versions(section: str) -> dict[str, str]:
    """Return the versions of the tools of a section, as installed here."""
    versions_by_name = {name: _version(name) for name in COMPARED.get(section, ())}
    return {name: version for name, version in versions_by_name.items() if version}


def compared(section: str, peer_versions: dict[str, str]) -> str:
    """Return a sentence with the tools of a section and their versions at the measurement; "" for a
    section without other tools."""
    names = COMPARED.get(section, ())
    words = [
        f"{name} {peer_versions[name]}" if name in peer_versions else f"{name} (no version kept)"
        for name in names
    ]
    return f"Compared with {', '.join(words)}." if words else ""


def _version(name: str) -> str:
    if name == "strace":
        return _strace()
    if name == "dftracer":
        return _peer("dftracer")
    if name == "Darshan":
        return _darshan()
    for package in _PACKAGES.get(name, (name,)):
        try:
            return metadata.version(package).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return ""


def _strace() -> str:
    if not shutil.which("strace"):
        return ""
    output = subprocess.run(["strace", "-V"], capture_output=True, text=True).stdout
    match = re.search(r"version (\S+)", output)
    return match[1] if match else ""


def _peer(package: str) -> str:
    """Return the version of a package in the peers' environment of `make bench`."""
    sites = [str(site) for site in (ROOT / "build" / "peers").glob("lib/python3*/site-packages")]
    distributions = metadata.distributions(name=package, path=sites)
    return next((each.version for each in distributions), "")


def _darshan() -> str:
    """Return the version of the runtime, from the description for pkg-config beside the library."""
    from penstock_lab.control import darshan_library

    folder = Path(darshan_library()).parent / "pkgconfig"
    for described in folder.glob("darshan-runtime.pc"):
        match = re.search(r"^Version:\s*(\S+)", described.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return ""
