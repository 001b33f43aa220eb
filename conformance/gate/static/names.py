"""Whether the functions that a subject calls are still where it looks, and still take its calls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conformance.gate.model import Change, Finding, Weight
from conformance.gate.static.library import Found, Library
from conformance.gate.static.signature import Parameter, Signature, signature
from conformance.gate.uses import Call


@dataclass(frozen=True)
class Sides:
    """Both packages' Python."""

    before: Library
    after: Library


@dataclass(frozen=True)
class Callee:
    """A function that a subject calls, in both packages; all its kinds of calls.

    label: names it in keys: the most public of its names, `MODULE:QUALNAME` or, where it has none,
    `FILE:QUALNAME`.
    """

    label: str
    calls: tuple[Call, ...]
    before: Found | None
    after: Found | None
    gone: tuple[str, ...]

    @property
    def cause(self) -> str:
        """Where the candidate has it."""
        return self.after.cause if self.after is not None else ""

    @property
    def name(self) -> str:
        """Its name for a sentence."""
        return self.label.partition(":")[2]


def callees(sides: Sides, calls: Iterable[Call]) -> list[Callee]:
    """The functions that calls reach, by label."""
    grouped: dict[str, list[Call]] = {}
    for call in calls:
        grouped.setdefault(_label(call), []).append(call)
    return [_callee(sides, label, tuple(these)) for label, these in sorted(grouped.items())]


def judge(sides: Sides, callee: Callee) -> list[Finding]:
    """What an upgrade changes for the calls of one function."""
    found = list(_lost(sides, callee))
    if callee.before is None or callee.after is None:
        return found
    before = signature(sides.before, callee.before)
    after = signature(sides.after, callee.after)
    if before is None and after is None:
        return found
    if before is None or after is None:
        return [*found, _finding(callee, "", Weight.REVIEW, "is no plain function on one side")]
    problems: dict[str, Finding] = {}
    for call in callee.calls:
        for problem in _differences(callee, call, before, after):
            problems.setdefault(problem.key, problem)
    return [*found, *(problems.values() or [_same(callee, before, after)])]


def private(name: str) -> bool:
    """Whether a dotted name leads through something private; `__init__` and such are not."""
    parts = name.replace(":", ".").split(".")
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


def _label(call: Call) -> str:
    return min(
        call.public, key=lambda name: (private(name), len(name), name), default=call.function
    )


def _callee(sides: Sides, label: str, calls: tuple[Call, ...]) -> Callee:
    names = sorted({name for call in calls for name in call.public})
    if not names:
        return Callee(label, calls, sides.before.place(label), sides.after.place(label), ())
    known = [name for name in names if sides.before.find(name) is not None]
    gone = [name for name in known if sides.after.find(name) is None]
    first = min((n for n in names if n not in gone), key=lambda n: (n != label, n), default="")
    before = sides.before.find(label) or sides.before.place(calls[0].function)
    return Callee(label, calls, before, sides.after.find(first) if first else None, tuple(gone))


def _lost(sides: Sides, callee: Callee) -> Iterator[Finding]:
    """Names that lead nowhere in the candidate.

    A private name that is gone while the function lives on elsewhere is for review: who reaches
    for one often looks in several places, and the tiers that run the subject will tell.
    """
    if callee.before is None:
        return
    if callee.after is None and not callee.gone:
        yield _gone(callee, callee.label, Weight.REVIEW, "an inner function", "")
    for name in callee.gone:
        elsewhere = _moved(sides, name)
        one_of_several = callee.after is not None
        spared = one_of_several or (private(name) and elsewhere)
        weight = Weight.REVIEW if spared else Weight.OBJECTION
        yield _gone(callee, name, weight, "a name that the subject uses", elsewhere)


def _gone(callee: Callee, name: str, weight: Weight, what: str, elsewhere: str) -> Finding:
    where = f"; a function of this name is in {elsewhere}" if elsewhere else ""
    return Finding(
        key=f"static/name/{name}",
        change=Change.DELETED,
        weight=weight,
        what=f"{name}, {what}, is gone{where}.",
        before=callee.before.place if callee.before else "",
        after=elsewhere,
        cause=elsewhere.replace(":", ": ") or callee.cause or _nearest(name),
    )


def _nearest(name: str) -> str:
    """The place where a lost name should be."""
    module, _, qualname = name.partition(":")
    return f"{module.replace('.', '/')}: {qualname}"


def _moved(sides: Sides, name: str) -> str:
    """Where the candidate defines what a lost name stood for, as `FILE:QUALNAME`."""
    module, _, qualname = name.partition(":")
    folder = "/".join(module.split(".")[:2])
    for other in sides.after.below(folder):
        found = sides.after.inside(other, qualname)
        if found is not None:
            return found.place
    return ""


def _differences(
    callee: Callee, call: Call, before: Signature, after: Signature
) -> Iterator[Finding]:
    if not call.told or not before.binds(call.positional, call.keywords):
        if str(before) != str(after):
            why = "takes other arguments; how it is called is not told"
            yield _finding(callee, "", Weight.REVIEW, why, str(before), str(after))
        return
    told = [
        *_positions(callee, call, before, after),
        *_keywords(callee, call, before, after),
        *_left_out(callee, call, before, after),
    ]
    yield from told
    if not told and not after.binds(call.positional, call.keywords):
        why = "no longer takes the subject's call"
        yield _finding(callee, "", Weight.OBJECTION, why, str(before), str(after))


def _positions(
    callee: Callee, call: Call, before: Signature, after: Signature
) -> Iterator[Finding]:
    """Arguments given by position that mean something else now, or may not be given so."""
    new = after.in_order
    for index, old in enumerate(before.in_order[: call.positional]):
        here = new[index] if index < len(new) else None
        if here is not None and here.name == old.name:
            continue
        place = f"argument {index + 1}, {old.name},"
        if here is None:
            if old.name in after:
                why = f"takes {place} by name alone now"
            elif after.takes("*"):
                why = f"takes {place} as one of *arguments now"
            else:
                why = f"no longer takes {place} which the subject gives by position"
            yield _finding(callee, old.name, Weight.OBJECTION, why, str(before), str(after))
        elif old.name in after or here.name in before:
            why = f"means {here.name} by argument {index + 1}, which meant {old.name}"
            yield _finding(callee, old.name, Weight.OBJECTION, why, str(before), str(after))
        else:
            why = f"calls argument {index + 1} {here.name} now, given by position"
            yield _finding(callee, old.name, Weight.REVIEW, why, old.name, here.name)


def _keywords(callee: Callee, call: Call, before: Signature, after: Signature) -> Iterator[Finding]:
    """Arguments given by name that no longer bind."""
    by_position = {one.name for one in after.in_order[: call.positional]}
    for name in sorted(call.keywords):
        if name in by_position:
            why = f"takes {name} by position {_ordinal(after, name)} now, and would get it twice"
            yield _finding(callee, name, Weight.OBJECTION, why, str(before), str(after))
        elif name in {one.name for one in after.parameters if one.kind == "positional only"}:
            why = f"takes {name} by position alone now"
            yield _finding(callee, name, Weight.OBJECTION, why, str(before), str(after))
        elif name not in after and name in before:
            if after.takes("**"):
                why = f"takes {name} as one of **arguments now"
                yield _finding(callee, name, Weight.REVIEW, why, str(before), str(after))
            else:
                why = f"no longer takes the argument {name}{_renamed(before, after)}"
                yield _finding(callee, name, Weight.OBJECTION, why, str(before), str(after))


def _left_out(callee: Callee, call: Call, before: Signature, after: Signature) -> Iterator[Finding]:
    """Arguments that the subject leaves out and that are required now, or default otherwise."""
    given = after.given(call.positional, call.keywords)
    for new in after.parameters:
        if new.name in given or new.kind in ("*", "**"):
            continue
        old = before.get(new.name)
        if new.required:
            if old is None or not old.required:
                why = f"needs the argument {new.name}, which the subject does not give"
                yield _finding(callee, new.name, Weight.OBJECTION, why, _shown(old), _shown(new))
        elif old is not None and old.default is not None and old.default != new.default:
            yield Finding(
                key=f"static/default/{callee.label}/{new.name}",
                change=Change.CHANGED,
                weight=Weight.OBJECTION,
                what=f"{callee.name}: the default of {new.name}, which the subject leaves out, "
                f"was {old.default} and is {new.default}.",
                before=_shown(old),
                after=_shown(new),
                cause=callee.cause,
            )


def _same(callee: Callee, before: Signature, after: Signature) -> Finding:
    equal = str(before) == str(after)
    more = [one.name for one in after.parameters if one.name not in before]
    less = [one.name for one in before.parameters if one.name not in after]
    said = [f"new: {', '.join(more)}"] * bool(more) + [f"gone: {', '.join(less)}"] * bool(less)
    changed = f"takes the subject's calls, its other arguments changed ({'; '.join(said)})"
    if not said:
        changed = "takes the subject's calls, its other arguments changed"
    return _finding(
        callee,
        "",
        Weight.NOTE,
        "takes the same arguments" if equal else changed,
        str(before),
        str(after),
        Change.UNCHANGED if equal else Change.CHANGED,
    )


def _finding(
    callee: Callee,
    parameter: str,
    weight: Weight,
    what: str,
    before: str = "",
    after: str = "",
    change: Change = Change.CHANGED,
) -> Finding:
    return Finding(
        key=f"static/signature/{callee.label}" + (f"/{parameter}" if parameter else ""),
        change=change,
        weight=weight,
        what=f"{callee.name} {what}.",
        before=before,
        after=after,
        cause=callee.cause,
    )


def _renamed(before: Signature, after: Signature) -> str:
    """A guess at what a lost argument is called now: the only new one."""
    new = [one.name for one in after.parameters if one.name not in before]
    return f"; new is {new[0]}" if len(new) == 1 else ""


def _ordinal(after: Signature, name: str) -> int:
    return [one.name for one in after.in_order].index(name) + 1


def _shown(one: Parameter | None) -> str:
    if one is None:
        return ""
    return one.name if one.default is None else f"{one.name}={one.default}"
