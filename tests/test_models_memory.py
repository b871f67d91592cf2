"""What a pair needs is said from its numbers, what does not fit is refused, and what the hub refuses is explained."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import load_file

from bastion import load_pair
from bastion.errors import UserError
from bastion.jobs.request import PairChoice
from bastion.jobs.runner import load
from bastion.models import PRESETS, memory_needed
from bastion.models.device import free_memory
from bastion.models.memory import said_before_loading
from tests.golden import golden
from tests.tiny_folders import write_drafter, write_target

GATED = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return write_target(folder / "target"), write_drafter(folder / "drafter")


@pytest.mark.parametrize(
    "name, parameters, drafter_parameters",
    [  # the model cards' numbers, in thousands of millions: parameters with and without what is shared
        ("qwen3-4b", 4.02, 0.54),
        ("qwen3-8b", 8.19, 1.05),
        ("llama-3.1-8b", 8.03, 1.18),
    ],
)
def test_presets_need_two_bytes_a_parameter_and_a_cache(name, parameters, drafter_parameters):
    need = memory_needed(name, dtype="bfloat16", context=1)
    assert need.weights == pytest.approx(2e9 * parameters, rel=0.005)
    assert need.drafter == pytest.approx(2e9 * drafter_parameters, rel=0.01)
    assert memory_needed(PRESETS[name], dtype="float32").weights == 2 * need.weights
    long = memory_needed(name, context=1000)
    layers, drafter_layers = PRESETS[name].shape.layers, 5
    assert long.kv_cache == 2 * layers * 8 * 128 * 1000 * 2 and need.kv_cache * 1000 == long.kv_cache
    assert long.drafter - need.drafter == 2 * drafter_layers * 8 * 128 * 999 * 2
    assert long.total == long.weights + long.kv_cache + long.drafter


def test_the_drafters_of_the_presets_read_five_layers():
    """The published default, `build_target_layer_ids`, for five draft layers."""
    from bastion.drafters.dflash import build_target_layer_ids

    for preset in list(PRESETS.values())[1:]:
        assert preset.drafter_features == len(build_target_layer_ids(preset.shape.layers, preset.drafter_shape.layers)) == 5


def test_folders_are_reckoned_as_their_weights_weigh(folders):
    target, drafter = folders
    need = memory_needed(str(target), str(drafter), dtype="float32", context=100)
    matrices = lambda folder: sum(t.nbytes for t in load_file(folder / "model.safetensors").values() if t.ndim == 2)  # noqa: E731
    assert need.weights == matrices(target)
    cache = 2 * 2 * 16 * 100 * 4
    assert need.kv_cache == 4 * cache and need.drafter == matrices(drafter) + cache
    assert memory_needed(str(target)).drafter == 0
    assert memory_needed(json.loads((target / "config.json").read_text()), dtype="float32", context=100).weights == need.weights


def test_a_pruned_head_of_speculators_is_counted():
    folder = golden("drafters/B_speculators/dflash_pruned_full_attn")
    need = memory_needed(PRESETS["qwen3-8b"], str(folder), dtype="float32", context=1)
    weights = load_file(folder / "model.safetensors")
    matrices = sum(tensor.nbytes for tensor in weights.values() if tensor.ndim == 2)
    assert need.drafter == matrices + 2 * 2 * 2 * 16 * 4


def test_what_is_not_known_is_not_guessed(tmp_path):
    assert memory_needed("somebody/some-model") is None
    assert memory_needed({"model_type": "strange"}) is None
    for damage in ({"num_attention_heads": 0}, {"hidden_size": "wide"}, {"dflash_config": [1]}):
        assert memory_needed("qwen3-8b", {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8,
                                          "vocab_size": 9, **damage}).drafter == 0
    (tmp_path / "config.json").write_text("[")
    assert memory_needed(str(tmp_path)) is None
    assert said_before_loading("somebody/some-model", None, "float32") == ""
    with pytest.raises(UserError, match="number type"):
        memory_needed("qwen3-8b", dtype="int4")


def test_words_name_every_part():
    words = memory_needed("qwen3-8b").words()
    assert words == "19.2 GB in bfloat16 (weights 16.4, KV cache of 4096 tokens 0.6, drafter 2.2)"
    assert said_before_loading("qwen3-8b", None, "bfloat16") == f"needs about {words}"
    assert said_before_loading("smollm2-135m", None, "float32") == ""


def large(folder, tmp_path):
    """The same folder with a config that claims to be a large model."""
    import shutil

    copy = shutil.copytree(folder, tmp_path / "large")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"vocab_size": 1 << 36}))
    return copy


def test_what_does_not_fit_is_refused_with_numbers_before_it_is_loaded(folders, tmp_path):
    heard = []
    with pytest.raises(UserError) as caught:
        load_pair(large(folders[0], tmp_path), device="cpu", dtype="float32", on_notice=heard.append)
    message = str(caught.value)
    assert "does not fit" in message and "17592 GB in float32" in message and "GB free" in message and "--force" in message
    assert "--dtype bfloat16" in message and "\n" not in message
    assert len(heard) == 1 and "17592 GB" in heard[0]


def test_forced_it_is_tried_all_the_same(folders, monkeypatch):
    monkeypatch.setattr("bastion.models.pair.WORTH_SAYING", 0)
    monkeypatch.setattr("bastion.models.pair.free_memory", lambda device: 1000)
    heard = []
    with pytest.raises(UserError, match="0.0 GB free"):
        load_pair(*folders, device="cpu", dtype="float32")
    assert load_pair(*folders, device="cpu", dtype="float32", force=True, on_notice=heard.append).drafter.depth == 5
    assert "drafter" in heard[0]
    monkeypatch.setenv("BASTION_FORCE_LOAD", "1")
    assert load_pair(folders[0], device="cpu", dtype="float32").drafter is None


def test_a_preset_is_measured_by_its_published_sizes(folders, monkeypatch):
    """Its drafter too, before either is here."""
    preset = replace(PRESETS["qwen3-8b"], target=str(folders[0]), drafter=str(folders[1]))
    monkeypatch.setitem(PRESETS, "qwen3-8b", preset)
    monkeypatch.setattr("bastion.models.pair.free_memory", lambda device: 10 * 10**9)
    with pytest.raises(UserError, match=r"qwen3-8b does not fit: it needs about 3\d\.\d GB in float32 .* cpu has 10\.0 GB free"):
        load_pair("qwen3-8b", device="cpu", dtype="float32")
    heard = []
    pair = load_pair("qwen3-8b", device="cpu", dtype="float32", force=True, on_notice=heard.append)
    assert pair.name == "qwen3-8b" and pair.drafter.depth == 5 and heard[0].startswith("Loading qwen3-8b: it needs about 3")


def test_free_memory_of_this_machine():
    free = free_memory(torch.device("cpu"))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free <= total


def test_a_container_with_less_memory_counts(monkeypatch):
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8000 kB\n", "/sys/fs/cgroup/memory.max": "5000\n",
             "/sys/fs/cgroup/memory.current": "2000\n"}
    monkeypatch.setattr("bastion.models.device._read", lambda path: files.get(path, ""))
    assert free_memory(torch.device("cpu")) == 3000
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert free_memory(torch.device("cpu")) == 8000 * 1024
    files.clear()
    assert free_memory(torch.device("cpu")) is None


def test_a_job_says_it_too(monkeypatch):
    monkeypatch.delenv("BASTION_DTYPE")

    class Said:
        def enter(self, state, words):
            self.words = words

    class Engine:
        loaded = staticmethod(lambda choice: False)
        device = staticmethod(lambda choice: "cuda:0")
        load = staticmethod(lambda choice: choice)

    job = Said()
    load(job, Engine(), PairChoice("qwen3-8b"))
    assert "19.2 GB in bfloat16" in job.words
    load(job, Engine(), PairChoice("smollm2-135m"))
    assert "a few seconds" in job.words


# ---- the hub -----------------------------------------------------------------------------------

class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for a gated model and for one that is not there."""

    def do_HEAD(self):
        gated = GATED in self.path
        self.send_response(401 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("X-Error-Message", "Access to this model is restricted." if gated else "Repository not found")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def generate(tmp_path, endpoint, *options):
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0", "BASTION_HOME": str(tmp_path / "home")}
    for name in ("HF_TOKEN", "HF_HUB_CACHE"):
        environment.pop(name, None)
    return subprocess.run([sys.executable, "-m", "bastion", "generate", "--prompt", "Hi", *options], env=environment,
                          capture_output=True, text=True, timeout=240)


def one_sentence(done):
    assert done.returncode == 2 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_gated_model_says_how_to_get_it(hub, tmp_path):
    said = one_sentence(generate(tmp_path, hub, "--pair", "llama-3.1-8b"))
    assert "gated" in said and f"https://huggingface.co/{GATED}" in said and "accept its licence" in said and "hf auth login" in said


def test_a_name_that_is_not_there(hub, tmp_path):
    said = one_sentence(generate(tmp_path, hub, "--target", "nobody/no-such-model"))
    assert "no such model" in said and "private" in said


def test_without_a_network_it_says_so_at_once(tmp_path):
    said = one_sentence(generate(tmp_path, "http://127.0.0.1:9", "--pair", "qwen3-8b"))
    assert "Qwen/Qwen3-8B" in said and "no network" in said and "hf download" in said and "--target FOLDER" in said
