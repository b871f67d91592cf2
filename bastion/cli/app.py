"""`bastion app`: the pages, in the browser."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import click

from bastion.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the page.  [default: Streamlit's, 8501]")
@click.option("--headless", is_flag=True, help="Do not open a browser window.")
def app(port: int | None, headless: bool) -> int:
    """Open BASTION Studio in the browser."""
    page = ROOT / "app.py"
    if not page.is_file():
        raise UserError(f"There is no {page}: run the app from a clone of the repository.")
    if importlib.util.find_spec("streamlit") is None:
        raise UserError("Streamlit is not installed: run `pip install -r requirements.txt`.")
    command = [sys.executable, "-m", "streamlit", "run", str(page)]
    if port is not None:
        command.append(f"--server.port={port}")
    if headless:
        command.append("--server.headless=true")
    try:
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        return 0
