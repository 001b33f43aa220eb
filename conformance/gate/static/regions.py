"""Whether the text that decides behaviour is the same in both packages, region by region."""

from collections.abc import Iterable, Mapping

from conformance.gate.model import Change, Finding, Weight
from conformance.gate.static.library import LOCALS, Found, Library
from conformance.gate.static.mentions import closure, one_step, text_digest
from conformance.gate.static.names import Callee, Sides
from conformance.gate.static.native import Native
from conformance.gate.uses import Uses
from conformance.twin.sources import ELSEWHERE
from conformance.twin.tokens import digest
from conformance.twin.tokens import text_digest as native_digest

Units = Mapping[tuple[str, str], str]
"""Pieces of text by (file, name), each as its hash."""

GENERATOR = "flashinfer.jit:gen_batch_mla_module"
_GENERATORS = "flashinfer/jit/"
_DATA = "flashinfer/data/"
_SHOWN = 4  # names in a finding's sentence
_KEPT = 60  # names in a finding's `after`
_WHAT = {
    "planner": "what the planner's native plan leads to",
    "kernel": "what the kernel's launch leads to",
    "bindings": "the native module's own sources and what generates and builds it",
    "rest": "what other included headers hold outside of functions and types",
    "libraries": "the library headers that the native module includes",
    "wrapper": "the Python that the subject runs, and what it leads to",
}


def judge(before: Native, after: Native, sides: Sides) -> list[Finding]:
    """The native regions."""
    old, new = native(before, sides.before), native(after, sides.after)
    libraries = _libraries(before, after)
    return [
        *(_compared(name, old[name], new[name]) for name in old),
        _compared("libraries", *libraries),
    ]


def judge_wrapper(sides: Sides, uses: Uses, callees: Iterable[Callee], folder: str) -> Finding:
    """The region of the Python that a subject runs."""
    called = list(callees)
    old = _python(sides.before, uses, [one.before for one in called], folder)
    new = _python(sides.after, uses, [one.after for one in called], folder)
    return _compared("wrapper", old, new, frozenset(uses.reached))


def native(sources: Native, library: Library) -> dict[str, Units]:
    """The native regions of one package but the libraries."""
    reached = {
        method: sources.reach(function) if function else {}
        for method, function in (
            ("planner", sources.exports.get("plan", "")),
            ("kernel", sources.exports.get("run", "")),
        )
    }
    found: dict[str, Units] = {
        name: {
            (_DATA + file, part.name): part.digest
            for (file, _), part in parts.items()
            if file not in sources.bindings
        }
        for name, parts in reached.items()
    }
    bindings = {
        (_DATA + file, part.name): part.digest
        for file in sources.bindings
        for part in sources.parts(file).values()
    }
    generator = library.find(GENERATOR)
    made = closure(library, [generator], _GENERATORS) if generator is not None else {}
    seen = {place for region in found.values() for place in region}
    rest = {
        (_DATA + file, name): part.digest
        for (file, name), part in sources.rest.items()
        if (_DATA + file, name) not in seen and file not in sources.bindings
    }
    return found | {"bindings": bindings | _units(made.values()), "rest": rest}


def _python(
    library: Library, uses: Uses, called: Iterable[Found | None], folder: str
) -> dict[tuple[str, str], str]:
    places = {place.partition(f".{LOCALS}")[0] for place in uses.reached}
    roots = [library.place(place) for place in sorted(places) if "<" not in place]
    known = [one for one in (*roots, *called) if one is not None]
    return _units(one_step(library, known, folder).values())


def _units(found: Iterable[Found]) -> dict[tuple[str, str], str]:
    return {(one.module.file, one.qualname): text_digest(one) for one in found}


def _libraries(before: Native, after: Native) -> tuple[Units, Units]:
    """Files of both sides; only those whose bytes differ are read for what they say."""
    same = {
        name
        for name in set(before.foreign) & set(after.foreign)
        if before.bytes(name) == after.bytes(name)
    }
    old, new = (
        {
            (_DATA + name, ""): "same" if name in same else native_digest(side.text(name))
            for name in side.foreign
        }
        for side in (before, after)
    )
    return old, new


def _compared(
    region: str, before: Units, after: Units, ran: frozenset[str] = frozenset()
) -> Finding:
    """A region's finding: its text is the same, or where it differs.

    ran: functions that are told of first, as `FILE:QUALNAME`.
    """

    def rank(place: tuple[str, str]) -> tuple[bool, bool, tuple[str, str]]:
        return place[1] == ELSEWHERE, ":".join(place) not in ran, place

    key = f"static/region/{region}"
    what = _WHAT[region]
    if not after:
        return Finding(
            key, Change.DELETED, Weight.REVIEW,
            f"Cannot be found in the candidate: {what}.", _total(before), "", "",
        )  # fmt: skip
    moved = _moved(before, after)
    old = {moved.get(place, place): text for place, text in before.items()}
    both = old.keys() & after.keys()
    changed = sorted((place for place in both if old[place] != after[place]), key=rank)
    added = sorted(after.keys() - old.keys(), key=rank)
    deleted = sorted(old.keys() - after.keys(), key=rank)
    if not (changed or added or deleted):
        return Finding(
            key, Change.UNCHANGED, Weight.NOTE, f"Unchanged: {what}.",
            _total(before), _total(after), "",
        )  # fmt: skip
    told = [_told(changed, "changed"), _told(added, "new"), _told(deleted, "gone")]
    first = (changed or added or deleted)[0]
    return Finding(
        key=key,
        change=Change.CHANGED,
        weight=Weight.REVIEW,
        what=f"Changed, review: {what}: {'; '.join(part for part in told if part)}.",
        before=_total(before),
        after=_listed({"changed": changed, "new": added, "gone": deleted}),
        cause=f"{first[0]}: {first[1]}" if first[1] else first[0],
    )


def _moved(before: Units, after: Units) -> dict[tuple[str, str], tuple[str, str]]:
    """Pieces that stand in another file now: the only one of their name that is gone, and new."""
    gone, new = ({}, {})  # type: dict[str, list[tuple[str, str]]], dict[str, list[tuple[str, str]]]
    for found, places in (
        (gone, before.keys() - after.keys()),
        (new, after.keys() - before.keys()),
    ):
        for place in places:
            found.setdefault(place[1], []).append(place)
    return {
        places[0]: new[name][0]
        for name, places in gone.items()
        if name and len(places) == 1 and len(new.get(name, ())) == 1
    }


def _told(places: list[tuple[str, str]], verb: str) -> str:
    """Some of the names, by file."""
    if not places:
        return ""
    files: dict[str, list[str]] = {}
    for file, name in places[:_SHOWN]:
        files.setdefault(file.rpartition("/")[2], []).append(name)
    shown = ", ".join(
        f"{file}: {', '.join(names)}" if any(names) else file for file, names in files.items()
    )
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return f"{verb} {shown}{more}"


def _listed(kinds: Mapping[str, list[tuple[str, str]]]) -> str:
    """All of the names, up to _KEPT."""
    lines = [
        f"{kind} {file}: {name}" if name else f"{kind} {file}"
        for kind, places in kinds.items()
        for file, name in places
    ]
    more = [f"and {len(lines) - _KEPT} more"] if len(lines) > _KEPT else []
    return "\n".join([*lines[:_KEPT], *more])


def _total(units: Units) -> str:
    """A region's size and hash."""
    words = [word for place, text in sorted(units.items()) for word in (*place, text)]
    return f"{len(units)} parts of {len({file for file, _ in units})} files, {digest(words)[:16]}"
