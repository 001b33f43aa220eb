"""The hopper tier: the suite and a benchmark on a GPU here, or result archives from a GPU host."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.core import environment, gpus
from conformance.core.request import Identity
from conformance.gate import bare, results
from conformance.gate.alternate import ROUNDS
from conformance.gate.errors import ResultsError
from conformance.gate.evidence import TIER, Evidence, barely, gaps, records_of, weigh
from conformance.gate.measure import MeasureError, Place, measure
from conformance.gate.measured import SCHEMA, Measured
from conformance.gate.model import Change, Finding, Side, Status, TierResult, Weight, not_run, ran
from conformance.gate.package import Package
from conformance.gate.suite_run import SuiteRun, run_suite
from conformance.listing import case_ids
from conformance.subjects import DEFAULT

_UNMEASURED = Finding(
    key=f"{TIER}/not-measured",
    change=Change.UNCHANGED,
    weight=Weight.REVIEW,
    what="speed and waits of these two packages were not compared on a GPU",
)


@dataclass(frozen=True)
class Asked:
    """Which subject is judged. given: its name on a command line; factory: package.module:name."""

    given: str
    factory: str
    identity: Identity


def judge(
    asked: Asked,
    baseline: Package,
    candidate: Package,
    report: Path,
    archives: Sequence[Path] = (),
    *,
    rehearse: bool = False,
) -> TierResult:
    """Return what this tier says of a candidate.

    archives: what `gate` wrote on GPU hosts, of either package; where there are any, no GPU here
    is used. report: a folder for records and what the packages build. rehearse: go through all of
    it on the CPU; the result is that the tier did not run. Raises ResultsError for an archive that
    is damaged, of another suite, or of neither package.
    """
    sides = (baseline.side, candidate.side)
    if archives:
        with tempfile.TemporaryDirectory(prefix="gate-results-") as scratch:
            evidence, measured = from_archives(asked, archives, sides, Path(scratch))
        return weighed(asked, baseline.side, candidate.side, evidence, measured)
    if not rehearse and gpus.HOPPER not in gpus.visible_capabilities():
        return _absent(asked, baseline.side, candidate.side, "no Hopper GPU is visible")
    evidence, measured, why = here(asked, baseline, candidate, report, rehearse=rehearse)
    result = weighed(asked, baseline.side, candidate.side, evidence, measured, why)
    if not rehearse:
        return result
    return replace(
        result,
        status=Status.NOT_RUN,
        reason="a rehearsal on the CPU says nothing of a GPU",
        command=_ways(asked, baseline.side, candidate.side),
    )


def from_archives(
    asked: Asked, archives: Sequence[Path], sides: Sequence[Side], scratch: Path
) -> tuple[list[Evidence], list[Measured]]:
    """Return what archives hold of a subject; scratch: a new folder to unpack them into."""
    suite = environment.describe()
    evidence: list[Evidence] = []
    measured: list[Measured] = []
    for number, archive in enumerate(archives):
        found = results.read(archive, scratch / str(number), suite)
        side = results.side_of(found, sides)
        if found.rehearsal:
            raise ResultsError(
                f"results {archive}: found a rehearsal on the {found.tier} tier; allowed: results "
                "of a Hopper GPU; to fix: run the bundle's gate on a GPU host, without --rehearse"
            )
        for run in found.runs:
            if _same(asked, run.subject, run.version):
                evidence.append(
                    Evidence(
                        side,
                        asked.identity.name,
                        run.version,
                        tuple(r for file in found.records(run) for r in file.records),
                        where=archive.name,
                        gpu=str((found.environment.get("gpu") or {}).get("name", "")),
                        command=" ".join(found.command),
                    )
                )
        for name in found.figures:
            value = found.figure(name)
            if isinstance(value, dict) and str(value.get("schema", "")).startswith(SCHEMA[:-1]):
                measured.append(Measured.of_json(value, f"{archive}, {name}"))
    return evidence, measured


def here(
    asked: Asked, baseline: Package, candidate: Package, report: Path, *, rehearse: bool
) -> tuple[list[Evidence], list[Measured], str]:
    """Run the suite on both packages and then the benchmark, on this machine's GPU.

    The third of what is returned is why there is no benchmark, empty where there is one.
    """
    folder, evidence, places = report / TIER, [], {}
    more = {"TRITON_INTERPRET": "1"} if rehearse else {gpus.VARIABLE: _first_gpu()}
    for name, package in (("candidate", candidate), ("baseline", baseline)):
        child = bare.environment(package.folder, folder / "built" / package.digest[:12])
        places[name] = Place(package.side, {**child, **more}, package.folder)
        run = SuiteRun(asked.given, asked.factory, asked.identity, package.side, package.folder)
        evidence.append(run_suite(run, child, folder / name, rehearse=rehearse))
    try:
        with tempfile.TemporaryDirectory(prefix="gate-measure-") as scratch:
            rounds = 2 if rehearse else ROUNDS
            measured = measure(
                asked.factory, places, Path(scratch), rounds=rounds, rehearse=rehearse
            )
    except MeasureError as problem:
        return evidence, [], str(problem)
    (folder / "measured.json").write_text(measured.text())
    return evidence, [measured], ""


def weighed(
    asked: Asked,
    baseline: Side,
    candidate: Side,
    evidence: Sequence[Evidence],
    measured: Sequence[Measured],
    unmeasured: str = "",
) -> TierResult:
    """Return what evidence says: an objection fails the tier, and only a whole run passes it.

    evidence: of this subject; what is of other packages does not count. measured: what is of
    another subject or pair does not count. unmeasured: why there is no benchmark, where that is
    known.
    """
    before, after = records_of(evidence, baseline), records_of(evidence, candidate)
    if not after:
        if evidence:
            reason = f"the results are of the baseline alone, none of {candidate.version}"
        else:
            reason = f"no results of {asked.given} were given"
        return _absent(asked, baseline, candidate, reason)
    ours, extra, unused = _of_pair(asked, baseline, candidate, measured)
    where = ", ".join(dict.fromkeys(one.where for one in evidence))
    findings = [*weigh(before, after, where), *extra]
    if not ours:
        why = f": {unmeasured}" if unmeasured else ""
        findings.append(replace(_UNMEASURED, what=f"{_UNMEASURED.what}{why}"))
    if (hidden := barely(after)) is not None:
        findings.append(hidden)
    facts: dict[str, Any] = {
        "cases": len({record.case for record in after}),
        "baseline": f"{len({record.case for record in before})} cases" if before else "not seen",
        "gpu": ", ".join(sorted({one.gpu for one in evidence if one.gpu})),
        "results": where,
        "shapes measured": len({label for one in ours for label in one.shapes}),
    }
    if unused:
        facts["benchmarks left out"] = unused
    result = ran(TIER, tuple(findings), tuple(f for one in ours for f in one.figures), facts)
    open_ = gaps(case_ids((TIER,)), before, after)
    if baseline.digest != candidate.digest:
        open_ += [] if before else ["the baseline's suite was not run on a GPU"]
        open_ += [] if result.figures else ["no benchmark has timed the two beside each other"]
    if open_:
        facts["not whole"] = open_
    if result.status is Status.PASS and open_:
        more = f", and {len(open_) - 1} more reasons" if len(open_) > 1 else ""
        return replace(
            result,
            status=Status.NOT_RUN,
            reason=f"{open_[0]}{more}",
            command=_ways(asked, baseline, candidate),
        )
    return result


def _of_pair(
    asked: Asked, baseline: Side, candidate: Side, measured: Sequence[Measured]
) -> tuple[list[Measured], list[Finding], int]:
    """The benchmarks of this pair and subject, their findings, and how many others there are."""
    ours = [
        one
        for one in measured
        if (one.baseline.digest, one.candidate.digest) == (baseline.digest, candidate.digest)
        and (one.subject, one.subject_version) == (asked.identity.name, asked.identity.version)
    ]
    found: dict[str, Finding] = {}
    for one in ours:
        for finding in one.findings:
            if finding.key not in found or finding.objects:
                found[finding.key] = finding
    return ours, [*found.values()], len(measured) - len(ours)


def _same(asked: Asked, subject: str, version: str) -> bool:
    """Whether results of a subject, as another host's command line named it, are of this one."""
    if version != asked.identity.version:
        return False
    return subject in (asked.given, asked.factory) or _bare(subject) == _bare(asked.given)


def _bare(subject: str) -> str:
    """A name without its version or place, which differ from host to host."""
    for mark in ("==", "@"):
        subject = subject.partition(mark)[0]
    return subject


def _first_gpu() -> str:
    names = gpus.names(os.environ.get(gpus.VARIABLE), gpus.visible_capabilities())
    return names[0]


def _absent(asked: Asked, baseline: Side, candidate: Side, reason: str) -> TierResult:
    return not_run(TIER, reason, _ways(asked, baseline, candidate))


def _ways(asked: Asked, baseline: Side, candidate: Side) -> str:
    """The two ways to get this tier to run."""
    subject = "" if asked.given == DEFAULT else f" --subject {shlex.quote(asked.given)}"
    pair = f"{shlex.quote(baseline.asked)} {shlex.quote(candidate.asked)}"
    again = f"python -m conformance gate {pair}{subject}"
    return "\n".join(
        (
            "# on a Hopper host with a network",
            again,
            "# for one without: here, there, and here again",
            f"python -m conformance bundle {pair}",
            f"python smla-{candidate.version}-sm90.pyz gate --against "
            f"smla-{baseline.version}-sm90.pyz{subject}",
            f"{again} --results FILE",
        )
    )
