"""Settings: one table, four places, and no name or value that is not in it."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from conformance import settings
from conformance.settings import SETTINGS, Settings, SettingsError, load

ROOT = Path(__file__).parents[3]


def write_table(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_nothing_set_gives_the_defaults(tmp_path: Path) -> None:
    assert load(environ={}, folder=tmp_path) == Settings()
    assert load(environ={}, folder=tmp_path).changed() == []


def test_option_wins_over_variable_and_variable_over_table(tmp_path: Path) -> None:
    write_table(tmp_path, "[tool.smla]\nworkers = 1\nkernels = 'torch'\ntier = 'twin'\n")
    environ = {"SMLA_WORKERS": "2", "SMLA_KERNELS": "interpret", "HOME": "/nowhere"}
    chosen = load({"workers": "3", "tier": None}, environ=environ, folder=tmp_path)
    assert (chosen.workers, chosen.kernels, chosen.tier) == ("3", "interpret", "twin")
    assert chosen.changed() == [
        "workers = 3 (--workers)",
        "kernels = interpret (SMLA_KERNELS)",
        f"tier = twin ([tool.smla] of {tmp_path / 'pyproject.toml'})",
    ], "each setting in force is told with where it came from"


def test_the_nearest_pyproject_with_the_table_counts(tmp_path: Path) -> None:
    write_table(tmp_path, "[tool.smla]\nworkers = 7\nreport = 'out'\n")
    write_table(tmp_path / "a", "[project]\nname = 'x'\n")
    (tmp_path / "a/b").mkdir()
    chosen = load(environ={}, folder=tmp_path / "a/b")
    assert chosen.workers == "7", "a pyproject.toml without the table is passed over"
    assert chosen.report == tmp_path / "out", "a folder of the table is relative to its file"
    write_table(tmp_path / "a", "[tool.smla]\nworkers = 8\n")
    chosen = load(environ={}, folder=tmp_path / "a/b")
    assert (chosen.workers, chosen.report.name) == ("8", "conformance-report"), "tables do not mix"


def test_folders_of_variables_are_relative_to_the_current_folder(tmp_path: Path) -> None:
    chosen = load(environ={"SMLA_CACHE_ROOT": "c", "SMLA_REPORT": "/r"}, folder=tmp_path)
    assert (chosen.cache_root, chosen.report) == (tmp_path / "c", Path("/r"))


def test_an_empty_variable_is_none_except_where_empty_means_something(tmp_path: Path) -> None:
    empty = {setting.variable: "" for setting in SETTINGS.values()}
    assert load(environ=empty, folder=tmp_path).changed() == [
        "torch_index = (empty) (SMLA_TORCH_INDEX)"
    ]


BAD = {
    "cache_root": ["3"],
    "report": ["true"],
    "workers": ["'many'", "-1", "1.5", "true"],
    "kernels": ["'cuda'", "1"],
    "tier": ["'gpu'", "''"],
    "watchdog_twin": ["-1", "-3", "'soon'", "nan", "inf", "true"],
    "watchdog_hopper": ["-0.5", "[]"],
    "log_level": ["'loud'", "10"],
    "nox_target": ["'tpu'"],
    "torch_index": ["'cpu'", "1"],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in BAD.items() for value in values]
)
def test_a_bad_value_is_told_with_place_and_remedy(tmp_path: Path, key: str, value: str) -> None:
    path = write_table(tmp_path, f"[tool.smla]\n{key} = {value}\n")
    with pytest.raises(SettingsError) as caught:
        load(environ={}, folder=tmp_path)
    text = str(caught.value)
    for part in (str(path), key, "found ", SETTINGS[key].allowed, "to fix:"):
        assert part in text, f"expected {part!r} in: {text}"


def test_variables_of_the_suite_s_own_tests_are_left_to_them(tmp_path: Path) -> None:
    assert load(environ={"SMLA_TEST_FAULTS": "{}"}, folder=tmp_path) == Settings()
    assert load(environ={"SMLA_FLASHINFER_TRIAL": "1"}, folder=tmp_path) == Settings()


def test_every_setting_has_bad_values_in_this_file() -> None:
    assert set(BAD) == set(SETTINGS)


@pytest.mark.parametrize(
    ("table", "environ", "name"),
    [
        ("[tool.smla]\nworker = 1\n", {}, "worker"),
        ("", {"SMLA_WORKER": "1"}, "SMLA_WORKER"),
        ("", {"SMLA_TIER": "gpu"}, "SMLA_TIER"),
        ("[tool]\nsmla = 3\n", {}, "tool.smla"),
        ("tool = {smla", {}, "pyproject.toml"),
    ],
)
def test_what_is_not_in_the_table_is_an_error(
    tmp_path: Path, table: str, environ: dict[str, str], name: str
) -> None:
    write_table(tmp_path, table)
    with pytest.raises(SettingsError, match=r"found .*allowed: .*to fix: ") as caught:
        load(environ=environ, folder=tmp_path)
    assert name in str(caught.value), f"expected {name!r} in: {caught.value}"


def test_the_docstring_s_table_is_the_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (settings.__doc__ or "").splitlines()
        if line.startswith("| ") and "SMLA_" in line
    ]
    expected = [[s.key, s.variable, s.allowed] for s in SETTINGS.values()]
    assert [row[:3] for row in rows] == expected
    defaults = {field.name: field.default for field in fields(Settings)}
    for key, _, _, shown in rows:
        default = defaults[key]
        told = f"{default:g}" if isinstance(default, float) else str(default)
        assert default is None or shown == told, f"{key}: the table says {shown}, it is {told}"


def test_settings_need_the_standard_library_alone() -> None:
    import sys

    for name in ("settings", "ownership"):
        tree = ast.parse((ROOT / f"conformance/{name}.py").read_text())
        used = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        strange = used - set(sys.stdlib_module_names)
        assert not strange, f"conformance.{name} imports {strange}"
