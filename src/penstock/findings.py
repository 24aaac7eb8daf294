"""Measures in, findings out: what the numbers mean, what to do about it, and what it would bring.

A rule is a function from measures to a finding, to a check that found nothing, or to the reason why
it cannot judge.  No rule changes anything, prints anything or knows another rule: what one finding
says about another is data (`suppresses`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.measures import Measures, Number

__all__ = ["RULES", "Check", "Finding", "Judgement", "Remedy", "Rule", "judge"]

# Less than this share of the wall time is not worth a change: the finding becomes "checked and
# fine".  From the study of Drishti's and WisIO's outputs, whose first findings explained 0.1 %.
WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do: in words, and as a command in which RUN stands for the run's folder.

    word names the part of Penstock that does it ("whatif", "feed", "stage", "save") or what the
    user changes ("loader", "code", "system").  command is "" where there is none.
    """

    word: str
    says: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found.

    gain: seconds of the wall time that are gone at most if the cause is gone, by critical wait;
    share: the same of the wall time.  shown: key of the report's table or picture that shows it.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    gain: Number
    share: Number
    remedies: tuple[Remedy, ...]
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A rule that has no finding: "fine", "suppressed" by another, or "not judged", and why."""

    rule: str
    title: str
    state: str
    says: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A judge of measures: its id, what it looks for, where its threshold comes from, and whom it
    silences when it finds."""

    rule: str
    title: str
    judges: Callable[[Measures], Finding | Check]
    source: str
    suppresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings, largest gain first, and all checks, in the order of RULES."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]


RULES: tuple[Rule, ...] = ()


def judge(measures: Measures) -> Judgement:
    """Asks every rule."""
    found: list[Finding] = []
    checks: list[Check] = []
    for rule in RULES:
        said = rule.judges(measures)
        if isinstance(said, Check):
            checks.append(said)
        elif said.share.value is not None and said.share.value < WORTH:
            checks.append(Check(rule.rule, rule.title, "fine", said.evidence[0]))
        else:
            found.append(said)
    for finding in tuple(found):
        for rule in RULES:
            if rule.rule == finding.rule:
                for other in tuple(found):
                    if other.rule in rule.suppresses:
                        found.remove(other)
                        why = f"suppressed by {finding.rule}: {other.evidence[0]}"
                        checks.append(Check(other.rule, other.title, "suppressed", why))
    order = [rule.rule for rule in RULES]
    checks.sort(key=lambda check: order.index(check.rule))
    found.sort(key=lambda finding: -(finding.gain.value or 0.0))
    return Judgement(tuple(found), tuple(checks))
