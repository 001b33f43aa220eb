"""Gate results as one HTML page: no network, no script, every text escaped."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.gate import telling
from conformance.gate.markdown import anchor
from conformance.gate.model import GateResult, Status

HERE = Path(__file__).parent
STYLE = HERE.parent / "report" / "page.css"
_KINDS = {Status.PASS: "pass", Status.FAIL: "bad", Status.NOT_RUN: "open"}
_VERDICTS = {"GO": "pass", "NO-GO": "bad", "INCOMPLETE": "short"}
_WORDS = {"objection": "bad", "tolerated": "known", "review": "short", "note": "open"}


def page(results: Sequence[GateResult], paragraphs: Sequence[str]) -> str:
    """Return the page's HTML; paragraphs: what `verdict.decide` says of each result."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = STYLE.read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        style=Markup(style),
        policy=(
            f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-{digest}'"
        ),
        results=list(zip(results, paragraphs, strict=True)),
        telling=telling,
        anchor=anchor,
        kinds=_KINDS,
        verdicts=_VERDICTS,
        words=_WORDS,
    )
