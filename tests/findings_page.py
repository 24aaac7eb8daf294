"""docs/findings.md from the rules and their examples: `python tests/findings_page.py` writes it."""

from pathlib import Path

from findings_examples import EXAMPLES, example
from penstock.explain.findings import WORTH, describe_rules
from penstock.explain.report import report_of
from penstock.views.terminal import render_finding
from penstock.words import per_cent

PLACE = Path(__file__).parent.parent / "docs" / "findings.md"
WIDTH = 92  # in a code block, on a page of 100 columns

LEAST = per_cent(WORTH).replace(".0", "")
HEAD = f"""# Findings

What `penstock report` may find, by rule, with the numbers that the rule compares with and why it is
these: a source that can be read, or "chosen" and the reason. Each example is what a terminal shows
of a run that was made to have this trouble (`tests/findings_examples.py`); RUN stands for the run's
folder.

A gain is an upper bound: the time in which the step loop was blocked by the cause;
`penstock whatif` measures what would be left of it. A finding worth less than {LEAST} of the wall
time is "checked and fine": without such a limit WisIO gave 248 reasons for one job with 0.69 s of
I/O, the first for 7 ms.

"""


def page() -> str:
    """The whole page."""
    return HEAD + describe_rules({rule: shown(rule) for rule in EXAMPLES})


def shown(rule: str) -> str:
    """What a terminal shows of the finding in its example."""
    report = report_of(example(rule))
    (finding,) = [one for one in report.findings if one.rule == rule]
    return render_finding(finding, WIDTH)


if __name__ == "__main__":
    PLACE.write_text(page())
