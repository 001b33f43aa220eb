"""What the documents show of the gate is what there is: sessions, options, files, verdicts."""

import re
import shlex
from pathlib import Path

import pytest

from conformance.bundle.cli import bundle_command
from conformance.gate import policy, store
from conformance.gate.cli import gate_command
from conformance.gate.model import TIERS
from conformance.gate.verdict import Answer
from conformance.gate.versions import linked, table

ROOT = Path(__file__).parents[3]
DOCS = ("README.md", "SECURITY.md", "docs/ci/flashinfer-gate.yml", ".ci/run")
GATES = sorted((ROOT / "docs" / "evidence" / "gates").glob("*.json"))
MATRIX = ROOT / "docs" / "versions.md"


def lines(name: str, session: str) -> list[list[str]]:
    """The words behind `nox -s SESSION --` in each place of a document."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found = re.findall(rf"(?:-s|ends \d) {session} -- ([^\n`|#]*)", text)
    return [shlex.split(words.replace("...", "X")) for words in found]


@pytest.mark.parametrize("name", DOCS)
def test_commands_that_are_shown_have_these_options(name: str) -> None:
    known = {
        session: {option for param in command.params for option in param.opts}
        for session, command in (("gate", gate_command), ("bundle", bundle_command))
    }
    shown = {session: lines(name, session) for session in known}
    assert any(shown.values()) or name == "SECURITY.md", f"{name} shows no command"
    for session, commands in shown.items():
        for words in commands:
            options = [word for word in words if word.startswith("--")]
            assert set(options) <= known[session], f"{name}: {words}"
    assert f"def {'gate'}(session" in (ROOT / "noxfile.py").read_text()


def test_the_example_of_a_ci_takes_each_exit_code_for_what_it_is() -> None:
    text = (ROOT / DOCS[2]).read_text()
    cpu, hopper = text.split("\n  hopper:\n")
    assert f'test "$code" = {int(Answer.GO)} || test "$code" = {int(Answer.INCOMPLETE)}' in cpu
    assert 'exit "$code"' in hopper
    assert "${{ inputs" not in "".join(re.findall(r"run: \|\n((?:          .*\n)+)", text)), (
        "an input is pasted into a shell"
    )
    assert f"gate-report/{store.MARKDOWN}" in cpu


def test_the_policy_that_is_shown_can_be_read() -> None:
    shown = policy.read(ROOT / "docs" / "gate-policy.toml")
    assert shown.tolerated and dict(shown.limits), shown


def test_the_matrix_is_what_its_gates_say() -> None:
    assert MATRIX.read_text() == table(linked(GATES, MATRIX))
    for target, place in re.findall(r"\]\(([^)#]+)#([^)]+)\)", MATRIX.read_text()):
        assert f'<a id="{place}"></a>' in (MATRIX.parent / target).read_text(), f"{target}#{place}"


def test_the_matrix_has_both_subjects_on_each_release() -> None:
    results = [result for result, _ in linked(GATES, MATRIX)]
    releases = {path.stem for path in GATES}
    assert len(releases) >= 9
    for subject in ("smla", "vllm"):
        of_it = {r.candidate.version: r for r in results if r.subject == subject}
        assert set(of_it) == releases
        for result in of_it.values():
            assert [tier.tier for tier in result.tiers] == list(TIERS)
            for tier in result.tiers:
                assert tier.status != "not run" or (tier.reason and tier.command), tier


def test_no_gate_that_is_kept_names_a_machine() -> None:
    for path in GATES:
        for file in (path, path.with_suffix(".md")):
            found = re.findall(r"(?<![\w.:/])/(?!dev/null)[a-z]+/[\w./-]+", file.read_text())
            assert not found, f"{file.name}: {found[:3]}"
