"""Counts turns of phrase that make a reader stumble, in docstrings, comments, messages and pages.

``python -m tests.prose`` prints the figure, hits per 100 sentences, and the files with most; ``-v`` prints
each hit. A hit is a sentence to read aloud, not a fault by itself. Well-kept packages have 1 to 5 (httpx 0.8,
pyiceberg 0.7, dlt 1.7, SQLAlchemy 1.9, attrs 4.8; counted with these patterns on 2026-11-28).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
# What a reader of the project reads.
READ: Final = ("tidesink", "docs", "README.md", "CONTRIBUTING.md")
FEWEST_WORDS: Final = 3
PATTERNS: Final = {
    "an opening without a noun": r"^(What|Whether|Where|That|Those|Whose|How)\b(?!.*\?)",
    "a vague verb": r"\b(tells?|told|says?|said|knows|known to|takes? (?!place|a while|effect|over)|taken"
    r"|stands? (?!for|alone)|goes on|went|goes (?!through|to)|gives? (?!up))\b",
    "where there, where it": r"\bwhere (there|it|they|one|some|none|no)\b",
    "one that, those that": r"\b([Oo]ne|[Tt]hose|[Ss]uch) (that|which|of which|whose)\b",
    "alone, for only": r"\balone\b",
    "is none": r"\b(is|are|was|were|has|have|had) none\b",
    "behind and beside, of time": r"\b(behind|beside)\b",
    "has not, no more": r"\b(has|have|had) not\b(?! (been|yet|changed|found))|\bno more\b|\bany ?more\b",
    "is of": r"\b(is|are|was|were) of (?!type|class|the form)\b",
    "a fronted genitive": r"^(Of|In|For|By) (a|an|each|one|such|all|what|those|two|some)\b"
    r".*,? (the|its|it|they)\b",
    "gone": r"\b(is|are|was|were) gone\b",
    "as far as": r"\bas far as\b|\bso much\b",
    "let go": r"\blet(s)? go\b",
    "a docstring that refers elsewhere": r"^As (the|in|for|``|that|those)\b.{0,60}$",
}
_COMPILED: Final = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`")
_BLOCK: Final = re.compile(r"```.*?```", re.DOTALL)
_ENDS: Final = re.compile(r"\n\s*\n|\n\s*[-*|]\s|(?<=[.!?;:])\s+|\|")


class Hit(NamedTuple):
    """A sentence with one of the patterns."""

    path: Path
    line: int
    pattern: str
    sentence: str


class Counted(NamedTuple):
    """The sentences of some files, and the hits in them."""

    sentences: int
    hits: list[Hit]

    @property
    def figure(self) -> float:
        """Hits per 100 sentences."""
        return 100 * len(self.hits) / self.sentences if self.sentences else 0.0


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, its code left out; fragments of one or two words are none."""
    for part in _ENDS.split(_CODE.sub("X", _BLOCK.sub(" ", text))):
        sentence = " ".join(part.split())
        if len(sentence.split()) >= FEWEST_WORDS:
            yield sentence


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of a module's docstrings, comments and messages of errors; of a page, its whole text."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        yield 1, source
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield getattr(node, "lineno", 1), docstring
        elif isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type", "# noqa", "#!")):
            yield token.start[0], token.string.lstrip("# ")


def count(paths: Iterable[Path]) -> Counted:
    """Count the hits in files and folders."""
    total, hits = 0, []
    for root in paths:
        files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in {".py", ".md"})
        for path in files:
            for line, text in texts_of(path):
                for sentence in sentences(text):
                    total += 1
                    found = [name for name, pattern in _COMPILED.items() if pattern.search(sentence)]
                    hits += [Hit(path, line, name, sentence) for name in found]
    return Counted(total, hits)


def main(arguments: list[str]) -> None:
    """Print the figure of the project, or of the given paths."""
    show = sys.stdout.write
    paths = [Path(one) for one in arguments if one != "-v"] or [ROOT / name for name in READ]
    counted = count(paths)
    if "-v" in arguments:
        for hit in counted.hits:
            show(f"{hit.path}:{hit.line}: [{hit.pattern}] {hit.sentence[:150]}\n")
    for name, number in Counter(hit.pattern for hit in counted.hits).most_common():
        show(f"{number:6}  {name}\n")
    most = Counter(str(hit.path) for hit in counted.hits).most_common(8)
    show(f"most: {', '.join(f'{path} {number}' for path, number in most)}\n")
    show(f"{counted.figure:.1f} per 100 sentences of {counted.sentences}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
