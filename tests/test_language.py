"""The language of docstrings and comments: plain technical English, as far as a program counts it.

A reader has to resolve each pronoun, so a sentence with many pronouns is hard to understand at the
first reading.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"

PRONOUNS = re.compile(
    r"(it|its|they|them|this|that|those|these|one|ones|which|what|whose|who|such)"
)

# Pronouns per 1,000 words of a part's docstrings, and of its comments.  httpx, sqlite-utils and
# pyinstrument have 10 to 20 in their docstrings.
LIMIT = 25
WINGS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


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


def c_comments(text: str) -> Iterator[str]:
    """Yield the comments of C.  The first two branches skip literals: "/*" inside is no comment."""
    parts = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(/\*.*?\*/|//[^\n]*)'
    for match in re.finditer(parts, text, re.DOTALL):
        yield match[1] or ""


PYTHON = {wing: sorted((SOURCE / wing).rglob("*.py")) for wing in WINGS} | {
    "the top of the package": sorted(SOURCE.glob("*.py")),
    "the laboratory": sorted((ROOT / "lab").rglob("*.py")),
}
C = {name: sorted((ROOT / name).rglob("*.[ch]")) for name in ("native", "lab")}


@pytest.mark.parametrize("part", PYTHON)
def test_a_part_of_the_code_needs_few_pronouns(part: str) -> None:
    texts = [path.read_text() for path in PYTHON[part]]
    assert texts
    assert per_thousand(words for text in texts for words in docstrings(text)) <= LIMIT
    assert per_thousand(words for text in texts for words in comments(text)) <= LIMIT


@pytest.mark.parametrize("part", C)
def test_the_comments_of_c_need_few_pronouns(part: str) -> None:
    texts = [path.read_text() for path in C[part]]
    assert texts
    assert per_thousand(words for text in texts for words in c_comments(text)) <= LIMIT


def test_the_queries_need_few_pronouns() -> None:
    texts = [path.read_text() for path in sorted(SOURCE.rglob("*.sql"))]
    remarks = (part for text in texts for part in re.findall("--.*", text))
    assert per_thousand(remarks) <= LIMIT


# Turns that a stranger has to read twice, each with what to write; from the style guide's pairs.
FORBIDDEN = {
    r"told apart|tell apart": "distinguished",
    r"\b(is|are) told\b": "is reported",
    r"\bas ever\b": "unchanged",
    r"\bone of those\b": "name the thing",
    r"\b(leads|lies) elsewhere\b": "has another target",
    r"without a processor": "without a CPU",
    r"is made of it\b": "is computed",
    r"files' worth": "gain",
    r"\bof them for a\b": "name the thing",
    r"writes anew": "repeats",
}


def prose() -> Iterator[tuple[str, str]]:
    """Every text that a user or a developer reads: documents, and Python without its tests."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *SOURCE.rglob("*.py")]:
        yield str(path.relative_to(ROOT)), " ".join(path.read_text().split())


def test_no_text_has_a_turn_that_has_to_be_read_twice() -> None:
    turns = [
        f"{name}: {match[0]!r}: {better}"
        for name, text in prose()
        for turn, better in FORBIDDEN.items()
        for match in re.finditer(turn, text, re.IGNORECASE)
    ]
    assert turns == []


def test_the_glossary_has_every_word_that_a_report_defines() -> None:
    from penstock.explain.report import DEFINITIONS

    glossary = (ROOT / "docs" / "glossary.md").read_text()
    words = {word for line in re.findall(r"\*\*(.+?)\*\*", glossary) for word in line.split(", ")}
    # A speed-up, two frameworks and sums of threads are sentences of a report, not words.
    sentences = ("at most ", "tf.data ", "time in calls", "compute or data wait")
    missing = [
        word
        for definition in DEFINITIONS
        if not definition.word.startswith(sentences)
        for word in definition.word.split(", ")
        if word not in words
    ]
    assert missing == []


def test_the_changelog_is_a_page() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 90
