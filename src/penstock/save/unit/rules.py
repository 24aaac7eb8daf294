"""Read and keep the user's rules: the names of the files that form a checkpoint.

The module knows names, and the file in which a tier keeps the rules; `units` and `ruled` apply the
rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import SaveError
from penstock.places.stores import Store
from penstock.save.commit import STATE
from penstock.save.kept import kept_json

__all__ = ["NameRule", "add_rules", "rules_of"]

RULES = f"{STATE}/units.json"
MOST_RULES_BYTES, MOST_RULES = 64 << 10, 100


@dataclass(frozen=True, slots=True)
class NameRule:
    """A user's rule: file names in a folder, with {step}, and * for any text.  Every name is
    required."""

    text: str
    patterns: tuple[re.Pattern[str], ...]

    def names(self, name: str) -> bool:
        """Return True if a file name matches the rule."""
        is_match = any(pattern.fullmatch(name) for pattern in self.patterns)
        return is_match and not self.is_over_folders and not self.is_of_a_step

    @classmethod
    def of(cls, text: str) -> NameRule:
        """Parse a rule.  Raises SaveError: the text is not a valid rule."""
        names = text.split()
        if not names or len(text) > 1000 or "\0" in text or not all(map(_is_relative, names)):
            raise SaveError(
                f"--unit {text!r}: names of the files of a checkpoint, as 'model-{{step}}.pt "
                "optim-{step}.pt' or 'weights/{step}.pt states/{step}.pt'; {step} is the step, * "
                "is anything"
            )
        has_step = {name.count("{step}") for name in names}
        if len(has_step) > 1 or max(has_step) > 1:
            raise SaveError(f"--unit {text!r}: {{step}} once in each name, or in none")
        made = cls(" ".join(names), tuple(map(_pattern, names)))
        if why := made._why_useless(names):
            raise SaveError(f"--unit {text!r}: {why}")
        return made

    @property
    def is_over_folders(self) -> bool:
        """Return True if the names are in several folders."""
        return "/" in self.text

    @property
    def is_of_a_step(self) -> bool:
        """Return True for a single name with {step}: the rule states the number of the step, and
        that a save needs no file in another folder.  Other files of the folder with an equal step
        stay parts."""
        return len(self.patterns) == 1 and "{step}" in self.text and "*" not in self.text

    @property
    def depths(self) -> tuple[int, ...]:
        """Return the number of folders and files in each name."""
        return tuple(name.count("/") + 1 for name in self.text.split())

    def _why_useless(self, names: Sequence[str]) -> str:
        """Return why a rule has no effect; an empty string: the rule is useful."""
        for name in names:
            if not re.search(r"[^\W_]", name.replace("{step}", "").replace("*", "")):
                return f"{name} is the name of any file; give the words of the name"
        if len(set(names)) < len(names):
            return "the same name twice; name each file once"
        # `step_{step}.pt` alone is useful: see is_of_a_step.
        if len(names) == 1 and "*" not in names[0] and "{step}" not in names[0]:
            return "one name: a file is a checkpoint by itself; name all files that belong together"
        samples = [name.replace("{step}", "7").replace("*", "x") for name in names]
        for first, pattern in enumerate(self.patterns):
            for later in range(first + 1, len(names)):
                if pattern.fullmatch(samples[later]):
                    return f"{names[first]} is also the name of each {names[later]}"
        return ""


def _is_relative(name: str) -> bool:
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"(\{step\}|\*)", name)
    made = {"{step}": r"(?P<step>\d{1,18})", "*": r"[^/]*"}
    return re.compile("".join(made.get(piece, re.escape(piece)) for piece in pieces))


def rules_of(store: Store) -> tuple[NameRule, ...]:
    """Return the rules kept with a tier.  Raises TierError."""
    with suppress(KeyError, TypeError, SaveError):
        rows = (kept_json(store, RULES, MOST_RULES_BYTES) or {"rules": []})["rules"]
        return tuple(NameRule.of(str(row)) for row in rows[:MOST_RULES])
    return ()


def add_rules(store: Store, rules: Sequence[NameRule]) -> None:
    """Keep rules with a tier.  Raises TierError."""
    kept = {rule.text: None for rule in (*rules_of(store), *rules)}
    store.put(RULES, json.dumps({"version": 1, "rules": list(kept)[-MOST_RULES:]}).encode())
