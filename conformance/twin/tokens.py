"""Tokens of C++ and CUDA text: what is left of it without comments and layout.

A lexer of its own rather than the leaves of a parser: a parser that trips over a macro drops or
splits what it cannot place, and a fingerprint must not depend on that. Where it errs (an unclosed
literal), it cuts finer, so that a change is seen and never hidden.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

END_OF_DIRECTIVE = "\n"
"""The token that ends a preprocessor line: the one line break that means something."""

_SPACE = r"(?:[^\S\n]|\\\r?\n)"
_TOKEN = re.compile(
    rf"""
    (?P<layout> {_SPACE}+ )
  | (?P<line> \n )
  | (?P<comment> //(?:\\\r?\n|[^\n])* | /\*.*?\*/ )
  | (?P<raw> (?:u8|[uUL])?R"(?P<mark>[^\s()\\]{{0,16}})\(.*?\)(?P=mark)" )
  | (?P<text> (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | (?:u8|[uUL])?'(?:\\.|[^'\\\n])*' )
  | (?P<number> \.?[0-9](?:[eEpP][+-]|'[0-9a-zA-Z_]|[0-9a-zA-Z_.])* )
  | (?P<word> [^\W\d][\w$]* )
  | (?P<sign> <<<|>>>|<=>|->\*|\.\.\.|<<=|>>=|::|\.\*|->|\+\+|--|\#\#
      |<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|. )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """One token. start: offset of its first character in the text. word: whether a name."""

    text: str
    start: int
    word: bool


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a source text, in order; END_OF_DIRECTIVE after each preprocessor line."""
    directive, fresh = False, True  # inside of one; nothing but layout on this line so far
    before, last = "", ""
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        if kind in ("layout", "comment"):
            continue
        if kind == "line":
            if directive:
                yield Token(END_OF_DIRECTIVE, found.start(), False)
            directive, fresh = False, True
            continue
        directive = directive or (fresh and found[0] == "#")
        fresh = False
        apart = text[found.start() - 1] != last[-1:]
        if directive and before == "define" and found[0] == "(" and apart:
            yield Token(" ", found.start(), False)  # a body in brackets, not a list of parameters
        before, last = last, found[0]
        yield Token(_joined(found[0]) if kind != "raw" else found[0], found.start(), kind == "word")
    if directive:
        yield Token(END_OF_DIRECTIVE, len(text), False)


def digest(words: Iterable[str]) -> str:
    """Hash of a sequence of token texts: 32 hexadecimal digits."""
    made = hashlib.blake2b(digest_size=16)
    for word in words:
        encoded = word.encode()
        made.update(b"%d:" % len(encoded) + encoded)
    return made.hexdigest()


def text_digest(text: str) -> str:
    """Hash of a source text's tokens; equal for texts that differ in comments and layout alone."""
    return digest(token.text for token in tokens(text))


def _joined(text: str) -> str:
    """A literal without the line continuations that the preprocessor takes out of it."""
    return text.replace("\\\r\n", "").replace("\\\n", "") if "\n" in text else text
