"""A command group that imports a command once it is asked for: torch alone takes seconds."""

from importlib import import_module
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """A group of commands at home (`command()`) and elsewhere.

    elsewhere: package.module:attribute of each command, by name.
    """

    elsewhere: ClassVar[dict[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.elsewhere[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
