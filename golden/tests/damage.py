"""Damage to golden sets, for tests: cut, forged, exchanged."""

import hashlib
import json

from safetensors.torch import load_file, save

from golden import manifest, store
from golden.tests.recipes import small


def edit(folder, change):
    """Change the manifest's JSON by a function."""
    path = folder / manifest.NAME
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def forge(folder, name, change):
    """Change a file's tensors, and the manifest with it, as one who wants to be believed."""
    path = folder / f"{name}.safetensors"
    tensors = load_file(path)
    change(tensors)
    content = save(tensors)
    path.write_bytes(content)

    def record(found):
        for case in found["cases"]:
            if case["file"]["name"] == path.name:
                case["file"] |= {
                    "bytes": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }

    edit(folder, record)


def cut(folder):
    path = folder / "e4m3.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def bit(folder):
    path = folder / "e4m3.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def no_safetensors(folder):
    path = folder / "e4m3.safetensors"
    content = b"\xff" * 64
    path.write_bytes(content)
    file = {"name": path.name, "bytes": 64, "sha256": hashlib.sha256(content).hexdigest()}
    edit(folder, lambda found: found["cases"][1].update(file=file))


def halve(folder):
    path = folder / manifest.NAME
    path.write_text(path.read_text()[:-100])


def case_of(found):
    return found["cases"][1]


def nudge(name, row, column, relative):
    def change(tensors):
        tensors[name][row, column] *= 1 + relative

    return change


def drop(folder):
    """Take a case out of the set without a trace."""
    (folder / "e4m3.safetensors").unlink()
    edit(folder, lambda m: m["cases"].pop(1))


def exchange(folder):
    """Put another case of the name in the place of one, whole by itself."""
    drop(folder)
    store.append(folder, small("e4m3", name="e4m3", contexts=[7, 8, 9]))
