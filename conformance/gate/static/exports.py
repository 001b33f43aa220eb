"""What the native module's plan and run are given: their parameters, as the bindings spell them."""

from collections.abc import Iterator, Sequence

from conformance.gate.model import Change, Finding, Weight
from conformance.gate.static.native import Native
from conformance.gate.uses import Uses
from conformance.twin.tokens import tokens

_OPEN, _CLOSE = ("(", "<", "["), (")", ">", "]")


def judge(before: Native, after: Native, uses: Uses | None) -> list[Finding]:
    """One finding for each method that either module exports.

    Other parameters are an objection for a subject that calls the method by itself. One that goes
    through a function of FlashInfer's Python is given them by that: a review.
    """
    found = []
    for method in sorted({*before.exports, *after.exports}):
        old, new = (parameters(native, method) for native in (before, after))
        alike = old is not None and old == new
        change = Change.UNCHANGED if alike else Change.CHANGED
        weight = Weight.NOTE if alike else _weight(method, uses)
        what = f"The native module's {method} takes the same parameters."
        if not alike:
            told = f"{_told(old)}, now {_told(new)}"
            what = f"The native module's {method} takes other parameters: {told}."
        cause = f"csrc/batch_mla_sm90*.cu: {after.exports.get(method, method)}"
        shown = ["; ".join(one or ()) for one in (old, new)]
        found.append(
            Finding(
                f"static/native/{method}",
                change,
                weight,
                what,
                before=shown[0],
                after=shown[1],
                cause="" if alike else cause,
            )
        )
    return found


def parameters(native: Native, method: str) -> tuple[str, ...] | None:
    """The types of an exported method's parameters, without their names; None where it has none."""
    function = native.exports.get(method)
    for name in native.bindings if function else ():
        words = [token.text for token in tokens(native.text(name))]
        for at, word in enumerate(words[:-1]):
            if word == function and words[at + 1] == "(" and at and _is_type(words[at - 1]):
                return tuple(_types(words[at + 2 :]))
    return None


def _weight(method: str, uses: Uses | None) -> Weight:
    if uses is None or method not in uses.native:
        return Weight.REVIEW
    through = any(call.function.endswith(f".{method}") for call in uses.calls)
    return Weight.REVIEW if through else Weight.OBJECTION


def _is_type(word: str) -> bool:
    """Whether a word may stand before a function's name where it is declared, not called."""
    return (word.isidentifier() and word != "return") or word in (">", "*", "&")


def _types(words: Sequence[str]) -> Iterator[str]:
    """The parameters up to the bracket that closes them, each without its last word, its name."""
    depth = 0
    current: list[str] = []
    for word in words:
        if depth == 0 and word in (",", ")"):
            if current:
                yield " ".join(current[:-1] or current)
            current = []
            if word == ")":
                return
            continue
        depth += (word in _OPEN) - (word in _CLOSE)
        current.append(word)


def _told(types: tuple[str, ...] | None) -> str:
    return "none" if types is None else f"{len(types)} of them"
