"""The command line: the same jobs as the pages, from a shell.

Exit status 0 on success, 2 on bad input with one clear line on standard error. Commands import
torch only when they run, so `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from bastion import __version__
from bastion.cli.app import app
from bastion.cli.bench import bench
from bastion.cli.calibrate import calibrate
from bastion.cli.compare import compare
from bastion.cli.fetch import fetch
from bastion.cli.generate import generate
from bastion.cli.runs import runs
from bastion.cli.train import train
from bastion.cli.doctor import doctor
from bastion.errors import UserError

BAD_INPUT = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, invoke_without_command=True)
@click.version_option(__version__, prog_name="bastion")
@click.pass_context
def cli(context: click.Context) -> None:
    """BASTION Studio: speculative decoding with draft trees, every step on show."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (generate, compare, calibrate, bench, train, runs, fetch, doctor, app):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; bad input is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still shows the rest
    try:
        result = cli.main(args=arguments, prog_name="bastion", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        return _complain(error.format_message())
    except UserError as error:
        return _complain(str(error))
    except (click.Abort, KeyboardInterrupt):
        print("bastion: stopped", file=sys.stderr)
        return INTERRUPTED


def _complain(words: str) -> int:
    print(f"bastion: {' '.join(words.split())}", file=sys.stderr)
    return BAD_INPUT
