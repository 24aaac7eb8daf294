"""Build wheels that run on any Linux with glibc 2.28, for x86-64 and aarch64, without a container.

    python .ci/wheels.py DIST [ARCHITECTURE...]

The compiler is zig's (ziglang, a package of the index), which has the headers and symbols of each
glibc.  auditwheel checks each wheel, the tag is manylinux_2_28, and the wheel of this machine is
installed into a new environment and tried.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

GLIBC = "2.28"
TAG = f"manylinux_{GLIBC.replace('.', '_')}"
OLDER = ("manylinux_2_17", "manylinux_2_26", "manylinux_2_27")  # also run on 2.28
ARCHITECTURES = ("x86_64", "aarch64")
TOOLS = (
    *("auditwheel>=6", "build", "cmake", "ninja"),
    *("scikit-build-core>=0.11", "wheel", "ziglang>=0.13"),
)
ROOT = Path(__file__).parent.parent


def tools() -> Path:
    """Return the Python of an environment with the tools."""
    folder = ROOT / "build" / "wheels-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, clear=True)
    words = os.environ.get("PIP_EXTRA", "").split()
    subprocess.run([python, "-m", "pip", "install", "--quiet", *words, *TOOLS], check=True)
    return python


def build(python: Path, architecture: str, dist: Path) -> Path:
    """Build, check and tag a wheel; return its path."""
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as made:
        compiler = Path(made) / "cc"
        target = f"{architecture}-linux-gnu.{GLIBC}"
        compiler.write_text(f'#!/bin/sh\nexec "{python}" -m ziglang cc -target {target} "$@"\n')
        compiler.chmod(0o755)
        environ = os.environ | {
            "CC": str(compiler),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "CMAKE_ARGS": "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "
            f"-DCMAKE_SYSTEM_PROCESSOR={architecture}",
            "LDFLAGS": "-Wl,--no-gc-sections",  # the table of hooks is a section of its own
            "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
            "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig"),
            "ZIG_LOCAL_CACHE_DIR": str(ROOT / "build" / "zig"),
        }
        command = [python, "-m", "build", "--wheel", "--no-isolation", "-o", made, ROOT]
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
        (wheel,) = Path(made).glob("*.whl")
        shown = subprocess.run(
            [python, "-m", "auditwheel", "show", wheel], check=True, capture_output=True, text=True
        ).stdout
        if not any(f'"{tag}_{architecture}"' in shown for tag in (TAG, *OLDER)):
            raise SystemExit(f"{wheel.name}: not {TAG}:\n{shown}")
        dist.mkdir(parents=True, exist_ok=True)
        for old in dist.glob(f"penstock-*{TAG}_{architecture}.whl"):
            old.unlink()
        tag = ["--platform-tag", f"{TAG}_{architecture}", wheel]
        said = subprocess.run(
            [python, "-m", "wheel", "tags", *tag],
            check=True, capture_output=True, text=True, cwd=made,
        ).stdout  # fmt: skip
        tagged = Path(made) / said.split()[-1]
        return Path(os.fspath(tagged.rename(dist / tagged.name)))


def sdist(python: Path, dist: Path) -> Path:
    """Build the source distribution; return its path."""
    command = [python, "-m", "build", "--sdist", "--no-isolation", "-o", dist, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return max(dist.glob("penstock-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def try_out(wheel: Path) -> None:
    """Install the wheel into a new environment; record, report and demonstrate with it."""
    with tempfile.TemporaryDirectory(prefix="penstock-tried-") as made:
        venv.create(made, with_pip=True)
        words = os.environ.get("PIP_EXTRA", "").split()
        install = [f"{made}/bin/python", "-m", "pip", "install", "--quiet", *words, wheel]
        subprocess.run(install, check=True)
        subprocess.run(
            [f"{made}/bin/penstock", "demo", "-o", "demo"],
            check=True, cwd=made, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if not (Path(made) / "demo" / "compare.html").is_file():
            raise SystemExit(f"{wheel.name}: penstock demo made no comparison")


def main() -> None:
    dist = Path(sys.argv[1])
    python = tools()
    for architecture in sys.argv[2:] or ARCHITECTURES:
        wheel = build(python, architecture, dist)
        is_tried = architecture == os.uname().machine
        if is_tried:
            try_out(wheel)
        print(f"{wheel}: {wheel.stat().st_size:,} bytes{', penstock demo ran' * is_tried}")
    made = sdist(python, dist)
    print(f"{made}: {made.stat().st_size:,} bytes")


main()
