"""The hook of mkdocs.yml: a link from a page to a file outside docs becomes plain text."""

import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page without links that leave docs."""
    depth = page.file.src_uri.count("/")
    outside = re.compile(rf"\[([^\]]+)\]\((?:\.\./){{{depth + 1}}}[^)]*\)")
    return outside.sub(r"\1", markdown)
