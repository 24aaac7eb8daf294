"""The language of docstrings and comments: plain technical English, as far as a program counts it.

A reader has to resolve each pronoun, so a sentence with many pronouns is hard to understand at the
first reading.  The limits are a ratchet: a wing may come below its limit, and never above it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
LAB = Path(__file__).parent.parent / "lab" / "src"

PRONOUNS = re.compile(
    r"(it|its|they|them|this|that|those|these|one|ones|which|what|whose|who|such)"
)

# Pronouns per 1,000 words of docstrings and of comments, by wing.
LIMITS = {
    "adapters": (42, 47),
    "cli": (38, 32),
    "explain": (38, 34),
    "feed": (97, 97),
    "interop": (31, 30),
    "log": (34, 36),
    "places": (35, 37),
    "recording": (43, 56),
    "runs": (36, 41),
    "safe": (32, 38),
    "save": (72, 77),
    "stage": (45, 38),
    "trial": (32, 30),
    "views": (48, 36),
}

# Pronouns per 1,000 words of the comments of all queries.
LIMIT_OF_QUERIES = 55


def per_thousand(texts: Iterator[str]) -> float:
    words = [word for text in texts for word in re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())]
    return 1000 * sum(bool(PRONOUNS.fullmatch(word)) for word in words) / max(1, len(words))


def docstrings(text: str) -> Iterator[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented):
            yield ast.get_docstring(node) or ""


def comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.parametrize("wing", LIMITS)
def test_a_wing_needs_no_more_pronouns_than_before(wing: str) -> None:
    texts = [path.read_text() for path in sorted((SOURCE / wing).rglob("*.py"))]
    of_docstrings, of_comments = LIMITS[wing]
    assert per_thousand(part for text in texts for part in docstrings(text)) <= of_docstrings
    assert per_thousand(part for text in texts for part in comments(text)) <= of_comments


def test_the_queries_need_no_more_pronouns_than_before() -> None:
    texts = [path.read_text() for path in sorted(SOURCE.rglob("*.sql"))]
    remarks = (part for text in texts for part in re.findall("--.*", text))
    assert per_thousand(remarks) <= LIMIT_OF_QUERIES


def test_every_wing_has_a_limit() -> None:
    wings = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert wings == set(LIMITS)
