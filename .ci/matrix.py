"""Try the wheel of `make wheels` on several releases of Debian, each in a root folder of its own.

    python .ci/matrix.py DIST [PLACE...]

mmdebstrap makes each root folder, as any user, and removes it afterwards.  The wheel and what it
needs are installed there without a network; then the demonstration runs and the tests of TESTS,
which come from the sdist.  The log of a place is build/matrix/PLACE.log.

On a busy machine all tests take longer than the limit of MINUTES.  TESTS="recorder log" in the
environment is the choice of fewer files of tests; the line of the place then names them.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOGS = ROOT / "build" / "matrix"
MINUTES = 40  # an emulated processor, and a Python from its source, take minutes
TESTED_WITH = ("hypothesis", "pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist")
TESTS = (
    *("recorder", "log", "run", "kill", "launch", "imports", "clocks", "connections"),
    *("burst", "stage_copy"),
)
PACKAGES = ("curl", "gcc", "libc6-dev", "mount", "openssl", "procps", "strace")
FOR_PYTHON = (
    *("libbz2-dev", "libffi-dev", "liblzma-dev", "libsqlite3-dev", "libssl-dev", "make"),
    *("xz-utils", "zlib1g-dev"),
)


@dataclass(frozen=True)
class Place:
    """A release of Debian, its processor and the Python that is tried there."""

    name: str
    suite: str
    python: str
    architecture: str = "amd64"
    source: str = ""
    """The release whose source package of Python is compiled, as its own is older than 3.11."""
    tests: tuple[str, ...] = TESTS

    @property
    def machine(self) -> str:
        return {"amd64": "x86_64", "arm64": "aarch64"}[self.architecture]


PLACES = (
    Place("debian-11", "bullseye", "3.11", source="bookworm"),
    Place("debian-12", "bookworm", "3.11"),
    Place("debian-13", "trixie", "3.13"),
    Place("debian-sid", "sid", "3.14"),
    Place("debian-12-aarch64", "bookworm", "3.11", architecture="arm64", tests=("log", "recorder")),
)

FOLDER = "opt/penstock"  # in the place's root folder
INSIDE = """
set -e
cd "$(dirname "$0")"
echo "127.0.0.1 localhost" > /etc/hosts
export HOME="$PWD" LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if ls python*.orig.tar.* >/dev/null 2>&1; then
    tar xf python*.orig.tar.*
    cd Python-*
    ./configure --quiet >/dev/null 2>&1
    make -s -j2 install >/dev/null 2>&1
    cd ..
fi
python$PYTHON -m venv tried
. tried/bin/activate
pip install --quiet --no-index --find-links house 'penstock[html,images]' $TESTED_WITH
echo "place: $(ldd --version | head -1 | sed 's/.* //') $(python -VV)"
penstock --version
PENSTOCK_PROGRESS=off penstock demo -o demo
test -s demo/compare.html
echo "place: demo"
tar xf penstock-*.tar.gz
cd penstock-*/
python -m pytest -q -n 2 -p no:cacheprovider -m 'not slow' $TESTS
"""


def house(place: Place, dist: Path, folder: Path) -> None:
    """Collect the wheel and what it needs, as wheels of the place, in the folder."""
    wheel = next(dist.glob(f"penstock-*manylinux*_{place.machine}.whl"), None)
    if wheel is None:
        raise SystemExit(f"{dist} has no wheel for {place.machine}: make wheels")
    older = (17, *range(24, 32 if place.suite == "bullseye" else 35))
    platforms = [f"--platform=manylinux_2_{minor}_{place.machine}" for minor in older]
    if place.machine == "x86_64":
        platforms.append("--platform=manylinux2014_x86_64")
    words = os.environ.get("PIP_EXTRA", "").split()
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", *words, "--dest", folder),
        *("--only-binary=:all:", f"--python-version={place.python}", *platforms),
        *(f"{wheel}[html,images]", *TESTED_WITH),
    ]
    subprocess.run(command, check=True)


def source_of_python(place: Place) -> list[str]:
    """Return the hooks that fetch the source package from the mirror of the place itself."""
    sources = '"$1"/etc/apt/sources.list'
    main = f"s/^deb \\(.* \\){place.suite} main$/deb-src \\1{place.source} main/p"
    return [
        f"--setup-hook=sed -n '{main}' {sources} > {sources}.d/source.list",
        f'--customize-hook=cd "$1"/{FOLDER} && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get source'
        f" --quiet --download-only python{place.python}",
    ]  # fmt: skip


def try_out(place: Place, dist: Path) -> bool:
    """Make the place, try the wheel there, print a line; whether all went well."""
    log = LOGS / f"{place.name}.log"
    start = time.monotonic()
    chosen = os.environ.get("TESTS", "").split()
    tests = [name for name in place.tests if name in chosen or not chosen]
    if not tests:
        raise SystemExit(f"{place.name}: none of {' '.join(chosen)} is in {' '.join(place.tests)}")
    with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as made:
        brought = Path(made)
        (brought / "house").mkdir()
        house(place, dist, brought / "house")
        sdist = max(dist.glob("penstock-*.tar.gz"), key=lambda path: path.stat().st_mtime)
        shutil.copy(sdist, brought)
        variables = {
            "PYTHON": place.python,
            "TESTED_WITH": " ".join(TESTED_WITH),
            "TESTS": " ".join(f"tests/test_{name}.py" for name in tests),
        }
        lines = [f"{name}='{value}'\n" for name, value in variables.items()]
        (brought / "inside.sh").write_text("".join(lines) + INSIDE)
        python = FOR_PYTHON if place.source else (f"python{place.python}-venv",)
        command = [
            *("mmdebstrap", "--variant=apt", "--format=null"),
            # A mirror may hold sid as it was weeks ago; its signature is checked all the same.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            f"--architectures={place.architecture}",
            f"--include={','.join((*PACKAGES, *python))}",
            f'--customize-hook=mkdir "$1"/{FOLDER}',
            *(source_of_python(place) if place.source else ()),
            *(f"--customize-hook=copy-in {path} /{FOLDER}" for path in sorted(brought.iterdir())),
            # mmdebstrap waits for a hook, also when it is ended: the limit is the hook's own.
            f'--customize-hook=timeout {MINUTES}m chroot "$1" sh /{FOLDER}/inside.sh',
            *(place.suite, "-"),
        ]
        with log.open("wb") as output:
            # A session of its own: what Ctrl-C ends is mmdebstrap, which then removes its folder.
            ended = subprocess.run(
                ["timeout", "--foreground", f"{MINUTES}m", *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
    text = log.read_text(errors="replace")
    versions = re.search(r"^place: (\S+) Python (\S+)", text, re.MULTILINE)
    counts = re.findall(r"^=*\s*((?:\d+ failed, )?\d+ passed.*) in [\d.]+s", text, re.MULTILINE)
    is_well = ended.returncode == 0 and bool(versions) and len(counts) == 1
    row = (
        f"{place.name:18} {place.machine:8}",
        f"glibc {versions[1]}, Python {versions[2]}" if versions else "not installed",
        "demo ran" if "\nplace: demo\n" in text else "no demo",
        counts[-1] if counts else "no tests",
        f"of {' '.join(tests)} only" if chosen else "",
        f"{time.monotonic() - start:.0f} s",
        "" if is_well else f"FAILED: {log}",
    )
    print(" · ".join(part for part in row if part), flush=True)
    return is_well


def main() -> None:
    if not shutil.which("mmdebstrap"):
        raise SystemExit("mmdebstrap is not installed: apt-get install mmdebstrap")
    dist = Path(sys.argv[1])
    wanted = sys.argv[2:] or [place.name for place in PLACES]
    unknown = set(wanted) - {place.name for place in PLACES}
    if unknown:
        names = ", ".join(place.name for place in PLACES)
        raise SystemExit(f"no place {', '.join(sorted(unknown))}; there are {names}")
    LOGS.mkdir(parents=True, exist_ok=True)
    emulator = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
    well = []
    for place in PLACES:
        if place.name not in wanted:
            continue
        if place.machine != os.uname().machine and not emulator.exists():
            print(
                f"{place.name}: NOT TRIED: the kernel does not start programs of {place.machine}:"
                " apt-get install qemu-user-static binfmt-support"
            )
            well.append(False)
            continue
        well.append(try_out(place, dist))
    if not all(well):
        raise SystemExit(1)


main()
