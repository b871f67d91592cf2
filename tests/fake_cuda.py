"""A CUDA device that is not there: arithmetic runs on the CPU, but tensors say that they are on `cuda:0`.

What never shows on a CPU shows here: tensors of two devices in one operator fail as they would on a GPU, and
every wait for the device is counted, by the line of `bastion` that asked for it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

HERE = Path(__file__).resolve().parent.parent / "bastion"
CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten._local_scalar_dense.default}
ANYWHERE = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
"""Indices of these may lie on the CPU."""


class OnCuda(torch.Tensor):
    """A tensor on the fake device; `here` holds what is in it."""

    @staticmethod
    def __new__(cls, here: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype, device="meta",
            requires_grad=False,
        )

    def __init__(self, here: torch.Tensor):
        self.here = here

    @property
    def device(self):
        return CUDA

    @property
    def is_cuda(self):
        return True

    def __repr__(self):
        return f"OnCuda({self.here!r})"

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("an operator on the fake device outside of FakeCuda")


class FakeCuda(TorchDispatchMode):
    """While it is entered, `cuda` is a device. waits: how often the host waited for it, by "file.py: line of code"."""

    def __init__(self):
        super().__init__()
        self.waits: Counter[str] = Counter()

    def wait(self, *_) -> None:
        frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(HERE)]
        last = frames[-1] if frames else None
        self.waits[f"{Path(last.filename).name}: {last.line}" if last else "elsewhere"] += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves, spec = tree_flatten((args, kwargs))
        there = [leaf for leaf in leaves if isinstance(leaf, OnCuda)]
        asked = kwargs.get("device")  # "meta" where C++ makes a tensor beside one of ours
        to = None if asked is None else torch.device(asked)
        if func in COPIES:
            self._count_copy(func, args, to, kwargs)
        elif there and func not in ANYWHERE:
            for leaf in leaves:
                if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnCuda) and leaf.dim() > 0:
                    raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got cuda:0 and cpu")
        on_cuda = to.type != "cpu" if to is not None else bool(there)
        if func is aten.copy_.default:
            on_cuda = isinstance(args[0], OnCuda)
        inner = [leaf.here if isinstance(leaf, OnCuda) else CPU if isinstance(leaf, torch.device) else leaf for leaf in leaves]
        plain_args, plain_kwargs = tree_unflatten(inner, spec)
        if func.__name__.startswith("nonzero") and there or func is aten.masked_select.default:
            self.wait()  # how many there are is known to the device alone
        found = func(*plain_args, **{**plain_kwargs, **({"pin_memory": False} if "pin_memory" in plain_kwargs else {})})
        if not on_cuda:
            return found
        if func.__name__.split(".")[0].endswith("_") or "out" in kwargs:
            return args[0] if "out" not in kwargs else kwargs["out"]
        return tree_map(lambda leaf: OnCuda(leaf) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnCuda) else leaf, found)

    def _count_copy(self, func, args, to, kwargs) -> None:
        if func is aten._local_scalar_dense.default:
            if isinstance(args[0], OnCuda):
                self.wait()
        elif func is aten._to_copy.default:
            if isinstance(args[0], OnCuda) and to is not None and to.type == "cpu":
                self.wait()
        elif isinstance(args[1], OnCuda) and not isinstance(args[0], OnCuda):
            self.wait()


@contextmanager
def fake_cuda():
    """Yields the FakeCuda in force."""
    mode = FakeCuda()
    nothing = lambda *_, **__: None  # noqa: E731
    made = torch.tensor

    def tensor(data, *args, device=None, **kwargs):
        found = made(data, *args, **kwargs)  # C++ makes it under no mode, so it is sent there afterwards
        return found if device is None or torch.device(device).type != "cuda" else OnCuda(found)

    with ExitStack() as stack:
        for name, value in {
            "torch.tensor": tensor,
            "torch._C._InferenceMode": lambda mode: torch.no_grad(),  # its tensors and wrapped ones do not mix
            "torch.cuda._lazy_init": nothing,
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.synchronize": mode.wait,
            "torch.cuda.get_device_name": lambda *_: "Fake",
            "torch.cuda.mem_get_info": lambda *_: (1 << 34, 1 << 34),
        }.items():
            stack.enter_context(mock.patch(name, value))
        stack.enter_context(mode)
        yield mode
