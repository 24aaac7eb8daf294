"""The parts of a rule: thresholds and possible results.  Knows no particular rule."""

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

# Below 2 % of the wall time a finding is "checked and fine".  From reports of Drishti and WisIO on
# real jobs: without a limit the first of 248 reasons explained 7 ms.
WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a rule.

    gain: the most seconds saved by removing the cause.  share: the gain as a share of `of`.  Gain
    and share are "not measured" if the finding is no wait.  shown: the report's table or picture
    with the evidence.
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
    """A rule without a finding, and the reason.

    state: "fine", "suppressed" by another finding, or "not judged".  applies: False if the run
    lacks the rule's subject, for example checkpoints.
    """

    rule: str
    title: str
    state: str
    says: str
    applies: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings, failures first, then the largest gain; all checks, in the order of RULES."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of a rule.

    gain_s: None if the finding is no wait.  of_s: the denominator of the share, if not the wall
    time.
    """

    gain_s: float | None
    evidence: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    shown: str = ""
    of_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fine:
    """No finding.  applies: False if the run lacks the rule's subject."""

    says: str
    applies: bool = True


@dataclass(frozen=True, slots=True)
class Unjudged:
    says: str


Said = RuleResult | Fine | Unjudged


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number used by a rule: its meaning, and the reason for its value."""

    value: float
    unit: str
    of: str
    because: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A judge of measures: id and title, thresholds, and suppressed rules.

    of_calls: the judge of a run without steps.  No wait is known in a run without steps, so
    of_calls judges the time in calls.  A rule without of_calls does not judge a run without steps.
    """

    rule: str
    title: str
    judges: Callable[[Measures], Said]
    thresholds: tuple[Threshold, ...] = ()
    suppresses: tuple[str, ...] = ()
    of_calls: Callable[[Measures], Said] | None = None


NOBODY_WAITED = "by the time in calls: without steps nobody is known to have waited for it"
