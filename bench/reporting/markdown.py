"""Text in Markdown (GitHub's dialect) of which nothing acts as markup: many names come from others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.analysis.wording import one_line

# An underscore between letters or digits, as in names, is no markup.
_MARKUP = re.compile(r"[\\`*{}\[\]<>#|~!&$@]|(?<![^\W_])_|_(?![^\W_])")


def escaped(words: str) -> str:
    """The text on one line, as it stands: what Markdown or HTML would take for markup has a backslash before it."""
    return _MARKUP.sub(r"\\\g<0>", one_line(words))


def code(words: str) -> str:
    """The text on one line as code, in which nothing is markup; empty where the text is."""
    line = one_line(words)
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    # Markdown takes one space away on both sides, where both have one; a backtick at an end needs it.
    space = " " * (line[:1] == "`" or line[-1:] == "`")
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
