"""tests/workloads/burst_loop.c saves under a burst buffer until it is killed: what must be there
afterwards.  For tests/test_burst.py and lab/benchmarks/soak_save.py."""

from pathlib import Path

from penstock.save.burst.drain import finish
from penstock.save.burst.file import entries
from penstock.save.drain.working import DrainSettings
from penstock.save.verify import latest_valid

__all__ = ["AT_ONCE", "SIZE", "Saves"]

AT_ONCE = DrainSettings(settle_s=0.0, tries=3)
SIZE = 40_000  # of each file, without its header


class Saves:
    """One folder and one tier, through many ends of the program.

    first: the number that it is to begin with; torn: files put aside so far.
    """

    def __init__(self, fast: Path, work: Path) -> None:
        self.fast, self.work = fast, work
        self.first = self.torn = 0

    def look(self, said: list[str]) -> None:
        """After an end: brings home what is left, and compares with what the program has said.

        Raises AssertionError: something closed is lost, a file is torn, or a link is left.
        """
        finish(self.fast, AT_ONCE)
        whole = [line.split() for line in said if line.endswith("\n")]
        closed = {name: int(number) for name, number in whole}
        for name in ("last", "best"):
            path = self.work / f"{name}.safetensors"
            assert not path.is_symlink(), path
            if name in closed:
                wanted = {closed[name] & 0xFF, closed[name] + 1 & 0xFF}
                assert number_in(path) in wanted, (path, closed)
        for path in self.work.glob("step-*.safetensors"):
            # Killed between the open and the first write of a name that was not there before.
            is_empty = not path.stat().st_size and int(path.stem[5:]) > closed.get("step", -1)
            assert is_empty or number_in(path) == int(path.stem[5:]) & 0xFF, (path, closed)
            if is_empty:
                path.unlink()
        for path in self.work.glob("*.torn"):
            path.unlink()
            self.torn += 1
        self.first = closed.get("last", self.first - 1) + 1

    def end(self) -> None:
        """After the last: nothing is left over.  Raises AssertionError."""
        finish(self.fast, AT_ONCE)
        left = [path for path in self.work.iterdir() if path.name.startswith(".")]
        assert not left, left
        kept = [one.home.name for one in entries(self.fast)]
        assert not kept, kept
        assert latest_valid(self.work, level="full").path is not None


def number_in(path: Path) -> int:
    """What the file was saved with.  Raises AssertionError: it is not whole."""
    data = path.read_bytes()
    assert len(data) > SIZE and data[-SIZE:] == data[-1:] * SIZE, f"{path} is torn"  # noqa: PT018
    return data[-1]
