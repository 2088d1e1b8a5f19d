"""A pretend accelerator on the CPU: it refuses what CUDA refuses, mixed devices, CPU generators.

It has two devices, of which the first is the current one until somebody says otherwise, and records
graphs as CUDA does: what runs on the current device alone, without running it.

    with pretend():
        model.to(NAME); ...

Built on PyTorch's Python-only private backend: a wrapper tensor says that it lives on NAME and
holds an ordinary CPU tensor. One use a process. It sees devices, not numerics, streams or speed.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"
CPU = torch.device("cpu")
_setup_privateuseone_for_python_backend(NAME)
module = torch.get_device_module(NAME)
module.get_rng_state = lambda device=None: torch.get_rng_state()
module.set_rng_state = lambda state, device=None: None
module.get_amp_supported_dtype = lambda: [torch.bfloat16]
module.device_count = lambda: 2
module.current = 0
module.current_device = lambda: module.current
module.recording = None


@contextlib.contextmanager
def _device(device):
    """What `torch.cuda.device` is: inside, the device is the current one."""
    before, module.current = module.current, torch.device(device).index
    try:
        yield
    finally:
        module.current = before


@contextlib.contextmanager
def _graph(graph, pool=None):
    module.recording, graph.device = graph, module.current
    try:
        yield
    finally:
        module.recording = None


class Graph:
    """The operators of a recording, played back into the tensors that they gave."""

    replays = 0

    def __init__(self):
        self.steps, self.device = [], None

    def pool(self):
        return self

    def replay(self):
        Graph.replays += 1
        for func, args, kwargs, out in self.steps:
            new = func(*args, **kwargs)
            if out is not None:
                tree_map(lambda old, value: old.copy_(value), out, new)

    def take(self, func, args, kwargs):
        """Note an operator; its outputs are made now, what it changes is changed in a replay."""
        if func._schema.is_mutable:
            self.steps.append((func, args, kwargs, None))
            return args[0]
        out = func(*args, **kwargs)
        given = _storages((args, kwargs))
        if not _storages(out) <= given:  # a view needs no step
            self.steps.append((func, args, kwargs, out))
        return out


def _storages(values):
    return {x.untyped_storage().data_ptr() for x in tree_leaves(values) if torch.is_tensor(x)}


module.device, module.graph, module.CUDAGraph = _device, _graph, Graph


class PlacedGenerator(torch.Generator):
    """A generator that remembers the device it was made for."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made.place = torch.device(device).type
        return made


class Pretend(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, index):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device(NAME, index),
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner, index):
        self.inner = inner

    def __repr__(self):
        return f"Pretend({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """The operator on the inner tensors; RuntimeError where CUDA would refuse."""
    tensors, wanted = [], []
    tree_map(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, (args, kwargs))

    def inner(x):
        if isinstance(x, torch.device):
            wanted.append(x)
            return CPU if x.type == NAME else x
        return x.inner if isinstance(x, Pretend) else x

    args_in, kwargs_in = tree_map(inner, args), tree_map(inner, kwargs)
    here = [x for x in tensors if isinstance(x, Pretend)]
    elsewhere = [x for x in tensors if not isinstance(x, Pretend) and x.dim() > 0]
    if here and elsewhere and "copy" not in func.__name__:
        raise RuntimeError(f"{func}: {NAME} meets cpu")
    places = {x.device.index for x in here}
    if len(places) > 1 and "copy" not in func.__name__:
        raise RuntimeError(f"{func}: {NAME}:0 meets {NAME}:1")
    asked = [x for x in wanted if x.type == NAME]
    if kwargs.get("generator") is not None and (here or asked):
        raise RuntimeError(f"{func}: a CPU generator cannot draw on {NAME}")
    stays = bool(asked) or (not wanted and bool(here))
    index = module.current if asked and asked[0].index is None else None
    index = index if index is not None else asked[0].index if asked else max(places, default=0)
    graph = module.recording
    if graph is not None and stays and index == graph.device:
        if elsewhere:
            raise RuntimeError(f"{func}: not permitted while a graph is recorded")
        out = graph.take(func, args_in, kwargs_in)
    elif graph is not None and here and not stays:
        raise RuntimeError(f"{func}: not permitted while a graph is recorded")
    else:
        out = func(*args_in, **kwargs_in)
    if not func._schema.returns:
        return None
    base = func.__name__.split(".")[0]
    if base.endswith("_") and not base.endswith("__") and args:
        return args[0]
    return tree_map(
        lambda x: (
            Pretend(x, index)
            if isinstance(x, torch.Tensor) and stays and not isinstance(x, Pretend)
            else x
        ),
        out,
    )


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class _Function(TorchFunctionMode):
    """What C++ does before dispatch: building from lists, indexing with lists, tolist."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device, generator = kwargs.get("device"), kwargs.get("generator")
        place = "cpu" if device is None else torch.device(device).type
        if generator is not None and getattr(generator, "place", "cpu") != place:
            raise RuntimeError(f"Expected a '{place}' device type for generator")
        if (
            device is not None
            and torch.device(device).type == NAME
            and func in (torch.tensor, torch.as_tensor)
        ):
            kwargs.pop("device")
            return func(*args, **kwargs).to(torch.device(device))
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(
            args[0], Pretend
        ):
            args = (args[0], _placed(args[1], args[0].device), *args[2:])
        if func is torch.Tensor.tolist and isinstance(args[0], Pretend):
            return args[0].inner.tolist()
        return func(*args, **kwargs)


def _placed(index, device):
    if isinstance(index, tuple):
        return tuple(_placed(i, device) for i in index)
    if isinstance(index, list):
        index = torch.tensor(
            index, dtype=torch.bool if index and isinstance(index[0], bool) else torch.long
        )
    return (
        index.to(device)
        if isinstance(index, torch.Tensor) and not isinstance(index, Pretend)
        else index
    )


@contextlib.contextmanager
def pretend():
    """Inside, NAME is a device."""
    real, torch.Generator = torch.Generator, PlacedGenerator
    try:
        # a backward pass in a thread of its own would leave the modes
        with torch.autograd.set_multithreading_enabled(False), _Dispatch(), _Function():
            yield
    finally:
        torch.Generator = real
