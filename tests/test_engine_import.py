"""Two tabs that open at once on a server that has just started: each in a process of its own, since an import happens once."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

HELD = """
import sys, threading
from importlib.abc import MetaPathFinder

at, reached, go_on = sys.argv[1], threading.Event(), threading.Event()

class Hold(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == at and not reached.is_set():
            reached.set()
            assert go_on.wait(60)

sys.meta_path.insert(0, Hold())
from bastion.jobs import PairChoice
from bastion.jobs.engine_import import engine_imported
from bastion.jobs.offers import offered_methods, registry_name
from bastion.jobs.pairs import memory_words

failed, results = [], {}

def tab(name, work):
    def run():
        try:
            results[name] = work()
        except BaseException as error:
            failed.append(repr(error))
    thread = threading.Thread(target=run)
    thread.start()
    return thread

first = tab("first", offered_methods)
assert reached.wait(120)
assert not engine_imported(), "a part of it counts as the whole"
others = [tab("memory", lambda: memory_words(PairChoice("qwen3-4b"), "cpu")), tab("name", lambda: registry_name("ddtree:8")),
          tab("second", offered_methods)]
others[0].join(2)
assert not results, "another tab went past the first one's import"
go_on.set()
for thread in (first, *others):
    thread.join(120)
assert failed == [], failed
assert engine_imported() and results["first"] == results["second"] and results["name"] == "ddtree:8" and "GB" in results["memory"], results
"""


def run(script: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_second_tab_waits_for_the_whole_engine():
    run(HELD, "transformers.cache_utils")


def test_so_it_does_while_the_last_of_it_is_imported():
    run(HELD, "bastion.decoding.loop")
