"""The default subject with one real fault: in one case its kernel reads far outside of the cache.

On a GPU that is an illegal access, which ends the CUDA context; on the twin a NaN.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.core.case import Config
from conformance.core.subject import Instance, Subject, Tier
from conformance.core.worker import load_subject
from conformance.subjects import DEFAULT, SUBJECTS

VARIABLE = "SMLA_TEST_PLANT"
"""NUMBER:FILE: the NUMBER-th instance of a process is the faulty one, unless FILE exists."""

WILD_SLOT = 1 << 30


class Planted:
    """Constructs the default subject; counts instances."""

    name = "conformance.tests.isolation.planted:Planted"

    def __init__(self) -> None:
        self._subject: Subject = load_subject(SUBJECTS[DEFAULT])
        self.capabilities = self._subject.capabilities
        number, _, path = os.environ.get(VARIABLE, "0:").partition(":")
        self._left, self._done = int(number), Path(path)

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        """As the default subject."""
        return self._subject.refusals(config, capability)

    def construct(
        self,
        config: Config,
        tier: Tier,
        *,
        interpret: bool,
        wrap: Callable[[Any], Any] | None = None,
    ) -> Instance:
        """As the default subject, but for the one that is faulty."""
        self._left -= 1
        if self._left == 0 and not self._done.exists():
            self._done.touch()
            return self._subject.construct(config, tier, interpret=interpret, wrap=_Wild)
        return self._subject.construct(config, tier, interpret=interpret, wrap=wrap)


class _Wild:
    """A native module that runs with slots of nowhere."""

    def __init__(self, module: Any) -> None:
        self.plan, self._module = module.plan, module

    def run(self, *args: Any) -> None:
        """Overwrite the packed indices, then run."""
        args[7].fill_(WILD_SLOT)
        self._module.run(*args)
