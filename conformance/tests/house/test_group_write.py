"""The four kinds of write of NUM-10 are not judged of a subject that reads caches alone."""

from typing import Any

import pytest

from conformance.core.case import parse
from conformance.core.lab import Lab
from conformance.core.subject import Unobservable
from conformance.core.worker import load_subject
from conformance.subjects import SUBJECTS
from conformance.tests.requirements import test_group
from conformance.tiers import tier

JUDGE = test_group.test_group_scales_are_applied_read_and_written
CASES: list[str] = JUDGE.judge.cases("twin")
WRITES = {"write-group", "write-tensor", "write-strange", "write-attend"}


@pytest.mark.parametrize("how", sorted(test_group.CHECKS))
def test_writes_alone_need_the_capability(how: str) -> None:
    small = [id for id in CASES if f"how={how}/" in id and "width=small" in id]
    subject: Any = load_subject(SUBJECTS["smla"])
    subject.capabilities = subject.capabilities - {"cache-write"}
    lab = Lab(parse(small[0]), subject, tier("twin", "0.7.2.post1"), "torch")
    if how in WRITES:
        with pytest.raises(Unobservable, match="cache-write"):
            JUDGE(lab)
    else:
        JUDGE(lab)
