"""pytest-xdist's options for workers behind gateways, and what goes to those on other hosts."""

import logging
from dataclasses import replace
from pathlib import Path

import execnet

from conformance.core.request import Request, SuiteError

_CHECKOUT = Path(__file__).parents[2]
_ROOMS = ("smla", "golden", "conformance", "fuzz")
"""The folders of the checkout that a worker on another host gets a copy of: its own would be of
another state."""
_END_S = 5.0
_log = logging.getLogger(__name__)


def gateway_options(request: Request, tier: str) -> list[str]:
    """Return the options for a request's gateways; raise SuiteError for a folder that is none."""
    options = ["--dist=load", "--maxschedchunk=1"]
    for spec in request.tx:
        options.append(f"--tx={spec}{_environment(tier)}")
    folders = [_CHECKOUT / room for room in _ROOMS]
    for folder in request.rsyncdirs:
        if not folder.is_dir():
            raise SuiteError(
                f"--rsyncdir {folder}: found no folder; allowed: a folder of a package; to fix: "
                "correct the path"
            )
        folders.append(folder)
    for folder in folders:
        # With "=": as a word of its own xdist would look for its place on the other host.
        options.append(f"--rsyncdir={folder.absolute()}")
    return [*options, "--rsyncignore=__pycache__"]


def answering(request: Request) -> Request:
    """Return the request without the gateways that do not answer, as after the death of a host.

    pytest-xdist starts on all of them or not at all. Raises SuiteError where none is left.
    """
    left = []
    for spec in request.tx:
        if _answers(spec):
            left.append(spec)
        else:
            _log.warning("--tx %s does not answer; going on without it", spec)
    if request.tx and not left:
        raise SuiteError(
            f"--tx: found no gateway that answers, of {len(request.tx)}; allowed: one at least; to "
            "fix: look after the hosts, then run it again"
        )
    return replace(request, tx=tuple(left))


def _answers(spec: str) -> bool:
    count, several, one = spec.partition("*")
    group = execnet.Group()
    try:
        group.makegateway(one if several and count.isdigit() else spec)
    except Exception as problem:  # execnet raises anything here
        _log.debug("--tx %s: %r", spec, problem)
        return False
    finally:
        group.terminate(timeout=_END_S)
    return True


def _environment(tier: str) -> str:
    """Return what of the environment a worker on another host would lack, as part of a spec."""
    told = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if tier == "twin":
        told["TRITON_INTERPRET"] = "1"
    return "".join(f"//env:{name}={value}" for name, value in told.items())
