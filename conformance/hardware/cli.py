"""The commands `record` and `replay`."""

import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from conformance import tiers
from conformance.core import environment
from conformance.core.request import INSTALLED
from conformance.core.run import Exit
from conformance.core.subject import Subject, Tier
from conformance.core.worker import load_subject
from conformance.hardware import files, recording
from conformance.hardware.errors import HardwareError, refusal
from conformance.hardware.files import HardwareRecord, Origin
from conformance.hardware.recording import SceneRecord
from conformance.hardware.replay import admit, found_here, replay, told
from conformance.hardware.scenes import SCENES, Scene
from conformance.installed import stands_on_the_twin
from conformance.subjects import DEFAULT, factory_of
from conformance.twin.semantics import BY_FINGERPRINT, BY_VERSION, fingerprint

OUT = Path("hardware-record")
_log = logging.getLogger(__name__)


@click.command("record")
@click.option("--tier", type=click.Choice(tiers.NAMES), default="hopper", show_default=True,
              help="twin: a rehearsal, which is no evidence.")  # fmt: skip
@click.option("--flashinfer", type=click.Choice([*BY_VERSION, INSTALLED]), default=INSTALLED,
              show_default=True, help="Version that the twin simulates.")  # fmt: skip
@click.option("--subject", default=DEFAULT, show_default=True,
              help="A subject with the capability `native`.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True,
              help="A folder that does not exist yet.")  # fmt: skip
def record_command(tier: str, flashinfer: str, subject: str, out: Path) -> None:
    """Record what this host's GPU plans, packs and computes, for a replay without one.

    Exit codes: 0 recorded, 2 no Hopper GPU, 3 asked wrongly or not recordable.
    """
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    files.check_free(out)
    if tier == "hopper":
        if flashinfer != INSTALLED:
            raise refusal(
                f"--flashinfer {flashinfer}",
                found="a version to simulate on the tier hopper",
                allowed="the installed one, which the GPU runs",
                remedy="leave the option out, or add --tier twin",
            )
        from conformance.bench.machine import obstacle  # chooses the GPU

        if (reason := obstacle()) is not None:
            console.print(f"not run: record: {reason}; to rehearse it: --tier twin", markup=False)
            sys.exit(Exit.INCOMPLETE)
    factory = factory_of(subject)
    with _entered(tier, flashinfer) as (where, version, kernel):
        judged: Subject = load_subject(factory)
        scenes = {}
        for scene in SCENES:
            scenes[scene.name] = _recorded(scene, judged, where)
    origin = Origin(
        made_on=tier,
        flashinfer=version,
        kernel=kernel,
        subject=judged.name,
        subject_version=getattr(judged, "version", ""),
        environment=environment.describe(),
    )
    size = files.write(HardwareRecord(origin, scenes), SCENES, out)
    console.print(
        f"recorded {told(origin)}: {len(scenes)} scenes, {size / 1e3:.0f} KB in {out}", markup=False
    )
    if kernel not in BY_FINGERPRINT:
        console.print(
            f"its kernel's sources ({kernel}) are unknown to the twin: no replay before "
            "conformance.twin.semantics has a row for them",
            markup=False,
        )


@click.command("replay")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--rehearsal", is_flag=True, help="Take records that were made on the twin, too.")
def replay_command(folders: tuple[Path, ...], rehearsal: bool) -> None:
    """Replay hardware records on the twin; by default, those of this repository.

    Exit codes: 0 as recorded, 1 something differs, 2 there is no record, 3 one cannot be used.
    """
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    chosen = folders or tuple(found_here())
    if not chosen:
        console.print(
            "not run: replay: no hardware record in this repository; to make one, on a Hopper GPU: "
            "python -m conformance record --out FOLDER",
            markup=False,
        )
        sys.exit(Exit.INCOMPLETE)
    records = [(folder, admit(folder, SCENES, rehearsal=rehearsal)) for folder in chosen]
    differing = 0
    for folder, record in records:
        worst, wrong = 0.0, 0
        for replayed in replay(record, SCENES):
            for difference in replayed.differences:
                console.print(f"{folder.name}: {difference}", markup=False)
            wrong += bool(replayed.differences)
            worst = max(worst, replayed.ratio or 0.0)
        differing += wrong
        console.print(
            f"{told(record.origin)}: {len(SCENES) - wrong} of {len(SCENES)} scenes as the twin has "
            f"them, worst output {worst:.2f} of its bound",
            markup=False,
        )
    sys.exit(Exit.DOES_NOT if differing else Exit.CONFORMS)


@contextmanager
def _entered(tier: str, flashinfer: str) -> Iterator[tuple[Tier, str, str]]:
    """Give the tier, FlashInfer's version and its kernel's fingerprint."""
    if tier == "twin" and flashinfer != INSTALLED:
        known = BY_VERSION[flashinfer]
        yield tiers.tier("twin", flashinfer), flashinfer, known.fingerprint
        return
    if tier == "twin":
        stands_on_the_twin()
        with tiers.installed() as where:
            yield where, where.simulates, fingerprint(_data())
        return
    yield tiers.tier("hopper"), str(environment.describe()["flashinfer"]), fingerprint(_data())


def _recorded(scene: Scene, subject: Subject, tier: Tier) -> SceneRecord:
    try:
        return recording.record(scene, subject, tier)
    except HardwareError:
        raise
    except Exception as problem:  # whatever a subject or FlashInfer raises
        _log.debug("scene %s", scene.name, exc_info=True)
        raise refusal(
            f"scene {scene.name}",
            found=f"{type(problem).__name__}: {problem}",
            allowed="a subject that runs every scene and shows its schedule",
            remedy="see `python -m conformance run --smoke`, and --log-level debug here",
        ) from problem


def _data() -> Path:
    """Return the `data` folder of the FlashInfer on the path, which need not be imported."""
    spec = importlib.util.find_spec("flashinfer")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        return Path(root) / "data"
    raise refusal(
        "FlashInfer",
        found="none on the path",
        allowed="an installed flashinfer-python",
        remedy="python -m pip install flashinfer-python, or --tier twin with --flashinfer VERSION",
    )
