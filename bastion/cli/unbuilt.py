"""Commands whose names are taken and that are not built yet: they refuse in one line."""

from __future__ import annotations

import click

from bastion.errors import UserError


def _refusing(name: str, purpose: str, instead: str) -> click.Command:
    @click.command(name, context_settings={"ignore_unknown_options": True}, help=f"{purpose} Not built yet.",
                   short_help=f"{purpose} Not built yet.")
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        raise UserError(f"`bastion {name}` is not built yet: {instead}.")

    return command


doctor = _refusing("doctor", "Check this installation.", "`bastion fetch` checks the model and `bastion calibrate` the device")
