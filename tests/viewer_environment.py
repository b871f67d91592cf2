"""A virtual environment with what requirements-viewer.txt asks for and nothing else, made without a network.

The packages are linked from the environment that runs the tests, each requirement's own requirements
included, as pip would have put them there.
"""

from __future__ import annotations

import re
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def requirements(file: str) -> list[Requirement]:
    """The requirements that a file lists itself; those of a file it names with -r are not among them."""
    lines = (ROOT / file).read_text().splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-r "))]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(wanted: list[Requirement]) -> dict[str, metadata.Distribution]:
    """The distributions that these requirements bring along, by name, as installed here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(wanted)
    while waiting:
        requirement = waiting.pop()
        name = canonical(requirement.name)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
            continue
        if name in found:
            continue
        found[name] = metadata.distribution(requirement.name)
        waiting += [Requirement(text) for text in found[name].requires or [] if "extra ==" not in text]
    return found


def viewer_python(folder: Path) -> Path:
    """The interpreter of a new environment in `folder` that holds the viewer's packages alone."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in installed_with(requirements("requirements-viewer.txt")).values():
        for file in distribution.files or []:
            top = file.parts[0]
            if top in ("..", "__pycache__") or (site / top).exists():
                continue
            (site / top).symlink_to(Path(distribution.locate_file(top)).resolve())
    return folder / "bin" / "python"
