"""The conformance cases that use each instance of the subject for one step at most.

Found by counting (`fuzz.mutants.counting`), kept in `single-step.json`, and run in copies.
"""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from conformance.core.case import parse
from conformance.core.record import Outcome, read_records
from conformance.core.run import Exit
from conformance.listing import case_ids
from conformance.mutants.copies import run_copy
from conformance.mutants.model import Mutant, MutantError
from conformance.subjects import DEFAULT, SUBJECTS
from fuzz.mutants.copies import copied, module

FILE = Path(__file__).with_name("single-step.json")
SCHEMA = "smla-single-step/1"
LANE = "torch"
"""How kernels run in these cases: as drawn histories have them."""

_MINUTES = 60
_COUNTED = ("build", "forward", "replay", "trial")


@dataclass(frozen=True)
class Single:
    """The twin's cases by requirement, each by its number, the last part of its id.

    one: that use an instance, and none twice. none: that use none. many: that use one twice; so
    does a construction that tries a batch and then another one.
    passed: mutants that pass all of `one` and `none`, each with a digest of edit and cases, and
    behind it the names of those that were planted beside it, if any.
    """

    one: Mapping[str, Sequence[int]]
    none: Mapping[str, Sequence[int]]
    many: Mapping[str, Sequence[int]]
    passed: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def cases(self) -> list[str]:
        """Return the ids of all cases that use each instance once at most."""
        return [case for case in case_ids(["twin"]) if self.uses(case) < 2]

    def uses(self, case: str) -> int:
        """Return 0, 1, or 2 for more: how often a case uses an instance; raise MutantError."""
        parsed = parse(case)
        for number, part in enumerate((self.none, self.one, self.many)):
            if parsed.number in part.get(parsed.requirement, ()):
                return number
        raise MutantError(
            f"{case}: found in no list; allowed: every case of the twin; to fix: "
            "python -m fuzz mutants --count"
        )

    def proof(self, mutant: Mutant) -> str:
        """Return what `passed` holds of a mutant that has passed."""
        text = "\0".join((mutant.digest, *self.cases()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def has(self, mutant: Mutant, *, alone: bool = False) -> bool:
        """Whether a mutant, as it is now, has passed the cases as they are now."""
        proof, *beside = self.passed.get(mutant.name, [""])
        return proof == self.proof(mutant) and not (alone and beside)

    def with_passed(self, mutants: Sequence[Mutant], known: Iterable[Mutant]) -> "Single":
        """Return the same with mutants that have passed together, or one that has alone.

        Those that are no more are left out.
        """
        names, planted = {other.name for other in known}, [mutant.name for mutant in mutants]
        passed = {name: proof for name, proof in self.passed.items() if name in names}
        for mutant in mutants:
            beside = [name for name in planted if name != mutant.name]
            passed[mutant.name] = [self.proof(mutant), *beside]
        return replace(self, passed=passed)

    def write(self, path: Path) -> None:
        """Write it; the file is whole at any time."""
        whole = path.with_suffix(".whole")
        parts = [f'"schema": {json.dumps(SCHEMA)}']
        for name, table in asdict(self).items():  # a line for each requirement, and each mutant
            lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()]
            parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        whole.write_text("{" + ",\n".join(parts) + "}\n")
        os.replace(whole, path)


def read_single(path: Path = FILE) -> Single:
    """Return a file's cases; raise MutantError unless it is one of this schema."""
    try:
        table = json.loads(path.read_text())
        if table.pop("schema", None) != SCHEMA:
            raise ValueError(f"no schema {SCHEMA}")
        return Single(**table)
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        raise MutantError(
            f"{path}: found {problem}; allowed: cases as --count writes them; to fix: run it"
        ) from problem


def uses(selection: Sequence[str]) -> dict[str, int]:
    """Run cases of the sources as they are; return the most that each uses an instance.

    0 where nothing is built. selection: options of `conformance run`; none is the whole twin tier.
    Raises MutantError unless every case passes.
    """
    with copied(None) as root:
        file, report = root.parent / "events.tsv", root.parent / "report"
        file.touch()
        subject = f"fuzz.mutants.counting:Counting@{SUBJECTS[DEFAULT]},{file}"
        command = ["conformance", "run", "--tier", "twin", "-n", "0", "--kernels", LANE]
        command += ["--report", str(report), "--subject", subject, *selection]
        output = module(root, *command, minutes=_MINUTES).stdout
        records = read_records(report) if report.is_dir() else []
        events = [line.split("\t") for line in file.read_text().splitlines()]
    failed = [record.case for record in records if record.outcome is not Outcome.PASS]
    if failed or not records:
        raise MutantError(f"the unchanged sources fail {failed[:3]}:\n{output[-2000:]}")
    counts = Counter((case, instance, event) for case, instance, event in events)
    most = {record.case: 0 for record in records}
    for (case, _, event), count in counts.items():
        if event in _COUNTED and case in most:
            most[case] = max(most[case], count)
    return most


def counted(most: Mapping[str, int], passed: Mapping[str, Sequence[str]]) -> Single:
    """Return the cases by how often they use an instance, in the order of the suite's list."""
    parts: list[dict[str, list[int]]] = [defaultdict(list), defaultdict(list), defaultdict(list)]
    for case in case_ids(["twin"]):
        parsed = parse(case)
        parts[min(most[case], 2)][parsed.requirement].append(parsed.number)
    none, one, many = map(dict, parts)
    return Single(one, none, many, passed)


def survives(mutant: Mutant, single: Single) -> str:
    """Return the first case of `single` that notices a mutant and what it says; empty for none."""
    cases = single.cases()
    chosen = [word for case in cases for word in ("--case", case)]
    ran = run_copy(mutant, LANE, ["-x", *chosen], minutes=_MINUTES)
    for record in ran.records:
        if record.outcome is not Outcome.PASS:
            return f"{record.case}: {record.message}"
    if ran.code != Exit.CONFORMS or len(ran.records) != len(cases):
        return f"{len(ran.records)} cases ran:\n{ran.output[-2000:]}"
    return ""
