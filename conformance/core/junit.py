"""JUnit files, written from the records: pytest's own would lose what ran before a process died."""

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from conformance.core.record import Outcome, Record

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {
    Outcome.FAIL: "failure",
    Outcome.CRASH: "error",
    Outcome.HANG: "error",
    Outcome.SKIPPED: "skipped",
    Outcome.UNOBSERVABLE: "skipped",
    Outcome.REFUSED: "skipped",
    Outcome.XFAIL: "skipped",
    Outcome.XPASS: "failure",
}


def junit_path(asked: Path, tier: str) -> Path:
    """Return a tier's file: `x.xml` gives `x-twin.xml`."""
    return asked.with_name(f"{asked.stem}-{tier}{asked.suffix or '.xml'}")


def write_junit(path: Path, tier: str, records: Sequence[Record]) -> None:
    """Write a tier's records as one test suite, a test case each."""
    kinds = [_ELEMENTS.get(record.outcome, "") for record in records]
    suite = ElementTree.Element(
        "testsuite",
        name=f"conformance {tier}",
        tests=str(len(records)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=f"{sum(record.seconds or 0.0 for record in records):.3f}",
    )
    for record, kind in zip(records, kinds, strict=True):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{tier}.{record.requirement}",
            name=record.case,
            time=f"{record.seconds or 0.0:.3f}",
        )
        if kind:
            message = _NOT_XML.sub("?", record.message)
            first = message.partition("\n")[0]
            element = ElementTree.SubElement(case, kind, message=f"{record.outcome}: {first}")
            element.text = f"{message}\n{record.repro}"
    root = ElementTree.Element("testsuites")
    root.append(suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
