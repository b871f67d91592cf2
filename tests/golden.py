"""Where golden fixtures lie: the shared folder beside the checkout when present, else the small copies here."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "shared" / "golden"


def golden(name: str) -> Path:
    """The fixture file or folder `name`, from the shared folder or from tests/data."""
    shared = SHARED / name
    return shared if shared.exists() else HERE / "data" / name
