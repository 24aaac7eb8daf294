"""A rule, the numbers that it compares with, and what it may say.  Knows no rule."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.explain.measures import Measures, Number
from penstock.explain.remedies import Remedy

__all__ = [
    "NOBODY_WAITED",
    "WORTH",
    "Check",
    "Finding",
    "Fine",
    "Judgement",
    "Rule",
    "RuleResult",
    "Said",
    "Threshold",
    "Unjudged",
]

# Below this share of the wall time a finding is "checked and fine".  From reading what Drishti and
# WisIO say of real jobs: without such a limit the first of 248 reasons explained 7 ms.
WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found.

    gain: seconds that go at most if the cause goes; share: the same as a share of `of`.  Both are
    not measured where the finding is no wait.  shown: the report's table or picture that shows it.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    gain: Number
    share: Number
    remedies: tuple[Remedy, ...]
    shown: str = ""
    of: str = "the wall time"


@dataclass(frozen=True, slots=True)
class Check:
    """A rule without a finding: "fine", "suppressed" by another one, or "not judged", and why."""

    rule: str
    title: str
    state: str
    says: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings, failures first, then the largest gain; all checks, in the order of RULES."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """gain_s None: no wait.  of_s: what the share is of, where that is not the wall time."""

    gain_s: float | None
    evidence: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    shown: str = ""
    of_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fine:
    says: str


@dataclass(frozen=True, slots=True)
class Unjudged:
    says: str


Said = RuleResult | Fine | Unjudged


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with: what it is of, and why it is this number and no other."""

    value: float
    unit: str
    of: str
    because: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A judge of measures: its id and title, the numbers that it compares with, and the rules that
    it silences when it finds something.  of_calls judges a run without steps, in which nobody is
    known to have waited, by the time in calls; without it such a run is not judged."""

    rule: str
    title: str
    judges: Callable[[Measures], Said]
    thresholds: tuple[Threshold, ...] = ()
    suppresses: tuple[str, ...] = ()
    of_calls: Callable[[Measures], Said] | None = None


NOBODY_WAITED = "by the time in calls: without steps nobody is known to have waited for it"
