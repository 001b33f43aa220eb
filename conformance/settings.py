"""The suite's settings, from the command line, the environment and `[tool.smla]`, in one table.

| `[tool.smla]` key | variable | allowed | default |
|---|---|---|---|
| cache_root | SMLA_CACHE_ROOT | a folder | the user's cache folder, `smla` in it |
| report | SMLA_REPORT | a folder | conformance-report |
| workers | SMLA_WORKERS | auto, logical, or a whole number | auto |
| kernels | SMLA_KERNELS | auto, torch, interpret | auto |
| tier | SMLA_TIER | auto, twin, hopper | auto |
| watchdog_twin | SMLA_WATCHDOG_TWIN | seconds, 0: no limit | 300 |
| watchdog_hopper | SMLA_WATCHDOG_HOPPER | seconds, 0: no limit | 120 |
| log_level | SMLA_LOG_LEVEL | debug, info, warning, error | warning |
| nox_target | SMLA_NOX_TARGET | cpu, gpu | asked of the driver |
| torch_index | SMLA_TORCH_INDEX | a URL, or empty: pip's own settings | download.pytorch.org's |

A command-line option wins over the variable, the variable over the key in the nearest
pyproject.toml, of the current folder or a parent, that has the table. A relative folder is relative
to that file, else to the current folder. An empty variable counts as none, SMLA_TORCH_INDEX
excepted. A key, variable or value that is not in this table is an error; variables SMLA_TEST_* are
left to the suite's own tests.

The standard library alone, since the noxfile reads settings before anything is installed.
"""

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PREFIX = "SMLA_"
_TESTS = "SMLA_TEST_"
TRIAL = "SMLA_FLASHINFER_TRIAL"
"""The library's own variable: no setting, and not refused as an unknown one."""

_TABLE = "[tool.smla]"


class SettingsError(ValueError):
    """A setting has an unknown name or a bad value; the message says which, where, and what to do.

    Ends a command with 3.
    """

    def __init__(self, subject: str, *, found: object, allowed: str, remedy: str) -> None:
        super().__init__(f"{subject}: found {found}; allowed: {allowed}; to fix: {remedy}")


@dataclass(frozen=True)
class Setting:
    """One row of the table. read: a value and the folder it is relative to, to the typed value.

    empty: an empty variable is a value of its own.
    """

    key: str
    allowed: str
    read: Callable[[object, Path], object]
    empty: bool = False

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"{PREFIX}{self.key.upper()}"


@dataclass(frozen=True)
class Settings:
    """Every setting's value; None where the table's default is found out later.

    sources: where each value that is not a default came from, in words.
    """

    cache_root: Path | None = None
    report: Path = Path("conformance-report")
    workers: str = "auto"
    kernels: str = "auto"
    tier: str = "auto"
    watchdog_twin: float = 300.0
    watchdog_hopper: float = 120.0
    log_level: str = "warning"
    nox_target: str | None = None
    torch_index: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def rows(self) -> list[tuple[str, str, str]]:
        """(key, value, source) of every setting, in the table's order."""
        return [
            (key, _shown(getattr(self, key)), self.sources.get(key, "default")) for key in SETTINGS
        ]

    def changed(self) -> list[str]:
        """One line for each setting that is not its default."""
        return [f"{key} = {value} ({source})" for key, value, source in self.rows()
                if source != "default"]  # fmt: skip


def load(
    given: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Return the settings in force; raise SettingsError for the first that is wrong.

    given: values of command-line options by key; None: the option was not given.
    environ, folder: the process's own when left out.
    """
    environ = os.environ if environ is None else environ
    folder = Path.cwd() if folder is None else folder
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for layer in (_from_pyproject(folder), _from_environment(environ, folder)):
        values |= {key: value for key, (value, _) in layer.items()}
        sources |= {key: source for key, (_, source) in layer.items()}
    for key, value in (given or {}).items():
        if value is not None:
            option = f"--{key.replace('_', '-')}"
            values[key] = _read(SETTINGS[key], value, folder, option)
            sources[key] = option
    merged: dict[str, Any] = {**values, "sources": sources}
    return Settings(**merged)


def find_table(folder: Path) -> tuple[Path, Mapping[str, object]] | None:
    """The nearest pyproject.toml with the table, at or above a folder, and the table."""
    for place in (folder, *folder.absolute().parents):
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            table = tomllib.loads(path.read_text()).get("tool", {}).get("smla")
        except (OSError, ValueError, AttributeError) as problem:
            raise SettingsError(
                str(path), found=f"no readable TOML ({problem})", allowed="a TOML file",
                remedy="mend the file",
            ) from problem  # fmt: skip
        if table is None:
            continue
        if not isinstance(table, dict):
            raise SettingsError(
                f"{path}, tool.smla", found=repr(table), allowed=f"a table {_TABLE}",
                remedy="make it a table of the keys in conformance/settings.py",
            )  # fmt: skip
        return path, table
    return None


def _from_pyproject(folder: Path) -> dict[str, tuple[object, str]]:
    found = find_table(folder)
    if found is None:
        return {}
    path, table = found
    layer = {}
    for key, value in table.items():
        where = f"{_TABLE} of {path}"
        setting = _known(key, f"{where}, key {key!r}", SETTINGS)
        layer[key] = (_read(setting, value, path.parent, f"{where}, {key}"), where)
    return layer


def _from_environment(environ: Mapping[str, str], folder: Path) -> dict[str, tuple[object, str]]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    layer = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.startswith(_TESTS) or name == TRIAL:
            continue
        setting = _known(name, f"environment variable {name}", by_variable)
        text = environ[name]
        if text or setting.empty:
            layer[setting.key] = (_read(setting, text, folder, name), name)
    return layer


def _known(name: str, subject: str, known: Mapping[str, Setting]) -> Setting:
    if name not in known:
        raise SettingsError(
            subject,
            found="no setting of this name",
            allowed=", ".join(sorted(known)),
            remedy="correct the name, or remove it",
        )
    return known[name]


def _read(setting: Setting, value: object, folder: Path, source: str) -> object:
    try:
        return setting.read(value, folder)
    except (TypeError, ValueError):
        raise SettingsError(
            source,
            found=repr(value) if not isinstance(value, Path) else str(value),
            allowed=setting.allowed,
            remedy=f"set {setting.key} to one of these, or leave it out",
        ) from None


def _folder(value: object, base: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError
    return base / Path(value).expanduser()


def _word(*allowed: str) -> Callable[[object, Path], object]:
    def read(value: object, _: Path) -> object:
        if value not in allowed:
            raise ValueError
        return value

    return read


def _workers(value: object, _: Path) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    text = str(value)
    if text not in ("auto", "logical") and not (text.isascii() and text.isdigit()):
        raise ValueError
    return text


def _seconds(value: object, _: Path) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError
    return seconds


def _url(value: object, _: Path) -> object:
    if not isinstance(value, str) or (value and "://" not in value):
        raise ValueError
    return value


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value) or "(empty)"


_SETTINGS = (
    Setting("cache_root", "a folder", _folder),
    Setting("report", "a folder", _folder),
    Setting("workers", "auto, logical, or a whole number", _workers),
    Setting("kernels", "auto, torch, interpret", _word("auto", "torch", "interpret")),
    Setting("tier", "auto, twin, hopper", _word("auto", "twin", "hopper")),
    Setting("watchdog_twin", "seconds, 0: no limit", _seconds),
    Setting("watchdog_hopper", "seconds, 0: no limit", _seconds),
    Setting("log_level", "debug, info, warning, error", _word("debug", "info", "warning", "error")),
    Setting("nox_target", "cpu, gpu", _word("cpu", "gpu")),
    Setting("torch_index", "a URL, or empty: pip's own settings", _url, empty=True),
)
SETTINGS: Mapping[str, Setting] = {setting.key: setting for setting in _SETTINGS}
"""The table's rows by key."""

assert [*SETTINGS] == [f.name for f in fields(Settings)][:-1]
