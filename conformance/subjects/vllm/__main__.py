"""`python -m conformance.subjects.vllm SOURCE OUT.zip`: cut what the subject needs out of a vLLM.

SOURCE is a wheel, an unpacked folder, `vllm` for the installed one, or `vllm==VERSION`. The cut, a
few hundred KiB, goes to machines without network: `--subject vllm@OUT.zip`.
"""

import sys
from pathlib import Path

import click

from conformance.core.request import SuiteError
from conformance.subjects.vllm.source import cut, fetched, read


@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def main(source: str, out: Path) -> None:
    """Cut the files that the subject needs out of a vLLM."""
    name, _, version = source.partition("==")
    try:
        if name == "vllm":
            found = read(str(fetched(version)) if version else "")
        else:
            found = read(source)
    except SuiteError as problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(3)
    cut(found, out)
    click.echo(f"{out}: {len(found.files)} files of vLLM {found.version}")


if __name__ == "__main__":
    main()
