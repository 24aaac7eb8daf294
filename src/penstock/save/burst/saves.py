"""Follow the saves of the programs with files on a burst buffer's tier.

The module decides whether a save has ended, whether the files are of two saves, and when the
earlier files may be removed.  The module knows rounds, marks and earlier files, and copies nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import TierError
from penstock.save.burst.file import FOLDER
from penstock.save.overwritten.beforehand import Beforehand
from penstock.save.overwritten.earlier import EarlierFolders
from penstock.save.overwritten.mixture import (
    Mixture,
    forget_mixtures,
    is_mixed,
    mark_mixture,
    mixture_of,
)
from penstock.save.overwritten.rounds import Rounds
from penstock.save.unit.spans import Saves

__all__ = ["BurstSaves"]


class BurstSaves:
    """The saves on a tier, for a drain.  warn: reports a text to the user.  recorded: returns the
    files of each save of the recorded run; None: there is no recording."""

    def __init__(
        self,
        tier: Path,
        clock: Callable[[], float],
        recorded: Callable[[], Saves] | None,
        warn: Callable[[str], Any],
    ) -> None:
        self._tier, self._recorded, self._warn = tier, recorded, warn
        self.rounds = Rounds(tier)
        self.beforehand = Beforehand(self.rounds, tier)
        self.earlier = EarlierFolders(tier / FOLDER, clock, self.rounds.is_ended)
        self._mixtures: list[Mixture] = []  # marked by the drain

    def let_go(
        self, homes: Mapping[str, str], is_over: bool, ask: Callable[[], dict[str, str]]
    ) -> None:
        """Remove the earlier files of saves that are home completely.  homes: the paths of the
        files on the tier, by name; ask: returns `homes` anew; is_over: no program writes any more.
        Raises TierError."""
        with suppress(TierError):  # the next look tries again
            if is_over:
                self.rounds.learn(self._recorded)
                forget_mixtures(map(Path, self.rounds.ended()))
                self._mark_unended(set(homes.values()))
            self.beforehand.end(set(homes.values()), is_over)
        self.earlier.let_go(homes, is_over, ask)

    def _mark_unended(self, left: Container[str]) -> None:
        """Mark the folders of a save whose program has ended between two files.  left: paths that
        are links to the tier.  Raises TierError."""
        for family, again, missing in self.rounds.unended():
            if any(path in left for path in (*again, *missing)):
                continue
            paths = [Path(path) for path in (*again, *missing)]
            mixture = mixture_of(again, missing)
            if mixture is None:  # the save before is back, or a file was removed
                if not is_mixed(paths):
                    self.rounds.give_up(family)
                continue
            mark_mixture(mixture)
            if mixture not in self._mixtures:
                self._mixtures.append(mixture)
                folder = os.path.commonpath(mixture.folders)
                said = (
                    f"{folder}: {mixture.why(Path(folder))}; `penstock save recover "
                    f"{self._tier} {folder}` puts back the save before"
                )
                self._warn(said)
