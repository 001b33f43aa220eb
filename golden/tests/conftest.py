"""What golden's tests share: one thread per process, and small sets, one of them to be broken."""

import shutil
import sys

import pytest
import torch

from golden.tests.recipes import FORMATS, small


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A set of three small cases, never to be changed."""
    from golden import store  # needs safetensors, which most tests do without

    folder = tmp_path_factory.mktemp("golden") / "set"
    store.write_set(folder, [small(fmt, name=fmt) for fmt in FORMATS])
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "set")


@pytest.fixture
def ask(monkeypatch, capsys):
    """A function from arguments to (exit code, what was said)."""
    from golden.cli import entry  # needs click

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["golden", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            entry()
        said = capsys.readouterr()
        return left.value.code, said.out + said.err

    return run
