"""DESIGN.md's layers: every import is parsed, and an arrow that points up is a failure.

`LAYERS` is the order. Imports inside functions count: a lazy arrow still is an arrow. torch and
transformers belong to three layers, streamlit to the pages, and what a viewer without torch opens
must not reach torch by way of another module either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

TOP = "top"  # app.py, pages/, the command line, and the package's own front door
LAYERS = [TOP, "figures", "jobs", "analysis", "records", "decoding", "drafters", "models", "latency", "trees", "leaf"]
LEAVES = {"step", "errors", "home", "token_text"}
TORCH_LAYERS = {"decoding", "drafters", "models"}
WITHOUT_TORCH = {"figures", "analysis", "records", "latency", "trees", "leaf"}
"""Layers that may not name a torch layer even lazily: they read what decoding left behind."""
OPENED_BY_VIEWERS = WITHOUT_TORCH | {"jobs", TOP}
"""Layers whose modules must import where torch is not installed."""
TORCH = {"torch", "transformers", "accelerate", "torchvision"}
STREAMLIT = {"streamlit"}


@dataclass(frozen=True)
class Import:
    module: str  # dotted name of the module that is imported
    line: int
    eager: bool  # runs when the importing module is loaded


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(root: Path) -> dict[str, Path]:
    """Module name -> file, for all of bastion/, app.py and pages/."""
    files = [*root.glob("bastion/**/*.py"), *root.glob("app.py"), *root.glob("pages/**/*.py")]
    return {module_name(path, root): path for path in files}


def layer_of(module: str) -> str | None:
    """The layer of a module; None for what is not ours; KeyError for ours without a layer."""
    parts = module.split(".")
    if parts[0] in ("app", "pages"):
        return TOP
    if parts[0] != "bastion":
        return None
    if len(parts) == 1 or parts[1] in ("cli", "__main__"):
        return TOP
    if parts[1] in LEAVES or parts[1] == "__version__":
        return "leaf"
    if parts[1] in LAYERS[1:-1]:
        return parts[1]
    raise KeyError(module)


def imports(path: Path, module: str, known: dict[str, Path]) -> list[Import]:
    """Every import of a file, relative ones resolved, `import_module("...")` included."""
    found = []
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def add(name: str, line: int, eager: bool) -> None:
        found.append(Import(name, line, eager))

    def visit(node: ast.AST, eager: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, node.lineno, eager)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                # `from bastion import records` names a module, `from bastion.records import Run` a class.
                add(inner if inner in known or inner == "bastion.__version__" else base, node.lineno, eager)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            literal = node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
            if name in ("import_module", "__import__") and literal:
                add(node.args[0].value, node.lineno, eager)
        for child in ast.iter_child_nodes(node):
            lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            visit(child, eager and not lazy and not (typing_only and child in node.body))

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


def violations(root: Path) -> list[str]:
    """One line per broken rule, file and line first."""
    known = sources(root)
    table = {module: imports(path, module, known) for module, path in known.items()}
    faults = []
    for module, found in table.items():
        where = known[module].relative_to(root)
        try:
            layer = layer_of(module)
        except KeyError:
            faults.append(f"{where}: {module} has no layer; give it one in LAYERS or LEAVES")
            continue
        is_page = not module.startswith("bastion")
        for one in found:
            place, outside = f"{where}:{one.line}", one.module.split(".")[0]
            if outside in TORCH and layer not in TORCH_LAYERS:
                faults.append(f"{place}: {layer} imports {outside}")
            if outside in STREAMLIT and not is_page:
                faults.append(f"{place}: {layer} imports {outside}")
            try:
                target = layer_of(one.module)
            except KeyError:
                faults.append(f"{place}: {one.module} has no layer")
                continue
            if target is None:
                continue
            if LAYERS.index(target) < LAYERS.index(layer):
                faults.append(f"{place}: {layer} points up to {target} ({one.module})")
            if layer in WITHOUT_TORCH and target in TORCH_LAYERS:
                faults.append(f"{place}: {layer} must do without {target} ({one.module})")
            # The front door is loaded before any module behind it, so it may not bring one along.
            if module == "bastion" and one.eager and target != "leaf":
                faults.append(f"{place}: the front door imports {one.module} before it is asked for")
        if layer in OPENED_BY_VIEWERS and (chain := chain_to_torch(module, table)):
            faults.append(f"{where}: loads torch by way of {' > '.join(chain)}")
    return faults


def chain_to_torch(module: str, table: dict[str, list[Import]]) -> list[str] | None:
    """The modules through which loading `module` loads torch, or None."""
    waiting, seen = [[module]], {module}
    while waiting:
        chain = waiting.pop()
        for one in table[chain[-1]]:
            if not one.eager:
                continue
            if one.module.split(".")[0] in TORCH:
                return [*chain, one.module]
            for loaded in packages_of(one.module):
                if loaded in table and loaded not in seen:
                    seen.add(loaded)
                    waiting.append([*chain, loaded])
    return None


def packages_of(module: str) -> Iterator[str]:
    """A module and the packages whose __init__ runs before it."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def test_every_arrow_points_down():
    assert violations(REPOSITORY) == []


def test_the_whole_repository_is_read():
    modules = sources(REPOSITORY)
    assert {"bastion", "bastion.step", "bastion.trees.best_first", "bastion.latency.roofline"} <= set(modules)
    assert {layer for layer in map(layer_of, modules) if layer} >= {"trees", "latency", "leaf", TOP}


CLEAN = {
    "bastion/__init__.py": "def __getattr__(name):\n    from bastion.decoding import decode\n    return decode\n",
    "bastion/step.py": "import numpy\n",
    "bastion/errors.py": "",
    "bastion/trees/__init__.py": "from bastion.step import GrowthLog\n",
    "bastion/trees/tree.py": "from . import other\nfrom ..errors import UserError\n",
    "bastion/trees/other.py": "",
    "bastion/models/__init__.py": "import torch\n",
    "bastion/decoding/__init__.py": "from bastion import models, trees\nimport transformers\n",
    "bastion/records/__init__.py": "from bastion.trees import DraftTree\n",
    "bastion/jobs/__init__.py": "import bastion.records\ndef work():\n    from bastion.decoding import decode\n",
    "bastion/figures/__init__.py": "from bastion import records\nimport plotly\n",
    "bastion/cli.py": "from bastion import __version__\nfrom bastion.jobs import submit\n",
    "app.py": "import streamlit\nfrom bastion.jobs import submit\n",
    "pages/explore.py": "import streamlit as st\nfrom bastion.figures import tree\n",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_clean_house_passes(tmp_path):
    assert violations(plant(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bastion/trees/bad.py", "from bastion.latency import x\n", "trees points up to latency"),
        ("bastion/trees/bad.py", "from ..records import Run\n", "trees points up to records"),
        ("bastion/trees/bad.py", "def f():\n    import bastion.jobs\n", "trees points up to jobs"),
        ("bastion/trees/bad.py", "from bastion import decode\n", "trees points up to top"),
        ("bastion/trees/bad.py", "class A:\n    def f(self):\n        import torch\n", "trees imports torch"),
        ("bastion/trees/bad.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch.nn\n", "imports torch"),
        ("bastion/step.py", "from bastion.trees import x\n", "leaf points up to trees"),
        ("bastion/models/bad.py", "from bastion.decoding import x\n", "models points up to decoding"),
        ("bastion/models/bad.py", "import streamlit\n", "models imports streamlit"),
        ("bastion/decoding/bad.py", "import importlib\nimportlib.import_module('bastion.records')\n", "decoding points up to records"),
        ("bastion/records/bad.py", "def f():\n    from bastion.decoding import x\n", "records must do without decoding"),
        ("bastion/records/bad.py", "import bastion.models\n", "by way of bastion.records.bad > bastion.models > torch"),
        ("bastion/figures/bad.py", "from transformers import AutoTokenizer\n", "figures imports transformers"),
        ("bastion/figures/bad.py", "import streamlit.components.v2\n", "figures imports streamlit"),
        ("bastion/jobs/bad.py", "from bastion.decoding import decode\n", "jobs/bad.py: loads torch by way of"),
        ("bastion/jobs/bad.py", "from bastion.figures import x\n", "jobs points up to figures"),
        ("bastion/jobs/bad.py", "def f():\n    import torch\n", "jobs imports torch"),
        ("bastion/cli.py", "import streamlit\n", "top imports streamlit"),
        ("bastion/cli.py", "def f():\n    import torch\n", "top imports torch"),
        ("bastion/__init__.py", "from bastion.decoding import decode\n", "front door"),
        ("bastion/utils.py", "", "bastion.utils has no layer"),
        ("pages/bad.py", "import bastion.mystery\n", "bastion.mystery has no layer"),
        ("pages/bad.py", "import torch\n", "top imports torch"),
        ("app.py", "try:\n    import transformers\nexcept ImportError:\n    pass\n", "top imports transformers"),
    ],
)
def test_planted_faults_are_found(tmp_path, name, text, expected):
    faults = violations(plant(tmp_path, CLEAN | {name: text}))
    assert any(expected in fault and fault.startswith(name) for fault in faults), faults
