"""A stand-in accelerator for tests: device `sim`, whose tensors keep their bytes in CPU tensors that nothing else sees.

    install()                              # once in a process, before anything computes; it cannot be undone
    x = torch.ones(3, device="sim")        # also torch.device(torch.accelerator.current_accelerator().type)
    with counted() as copies:
        x.sum().item()
    assert [each.op for each in copies] == ["_local_scalar_dense"]

It refuses what CUDA refuses: numpy(), memory addresses, operations on two devices, and Gloo. It lists in `copies` all
that would make the host wait for a real device. Numbers are those of the CPU, because CPU kernels compute them.

It is a Python backend for torch's PrivateUse1. A process has one, forever, so tests run in processes that are forked
from a server which has it (tests/device/support.py), never in pytest's own. torch 2.13.
"""

import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

aten = torch.ops.aten
NAME, HOST = "sim", torch.device("cpu")
COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)
# The shape or the value of their results is read by the host. (x[mask] too, unless it is a fill: see `_waits`.)
READ_BY_HOST = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive",
    "repeat_interleave", "bincount",
}  # fmt: skip


class HostCopy(NamedTuple):
    """One moment at which the host waits for the device."""

    # _to_copy (.cpu(), .to), copy_, _local_scalar_dense (.item()), nonzero, ..., synchronize, or from_host: a copy to
    # the device that does not ask not to be waited for, as torch.tensor(numbers, device=) makes one too
    op: str
    where: str  # file:line of the call that is nearest to it outside torch
    nbytes: int  # bytes of the tensor that is read


copies: list[HostCopy] = []  # of this process, in order
_refuses_waits = False


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Raise RuntimeError where the host would wait, as torch.cuda.set_sync_debug_mode("error") does."""
    global _refuses_waits
    _refuses_waits, before = True, _refuses_waits
    try:
        yield
    finally:
        _refuses_waits = before


@contextmanager
def counted() -> Iterator[list[HostCopy]]:
    """List the host copies of the enclosed block; the list is complete when the block ends."""
    first, found = len(copies), []
    try:
        yield found
    finally:
        found += copies[first:]


class Sim(torch.Tensor):
    """A tensor of device sim:0. `raw` is the CPU tensor that holds its bytes."""

    @staticmethod
    def __new__(cls, raw):
        if raw.dtype == torch.float64 and "STANDIN_WITHOUT_FLOAT64" in os.environ:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"
            )
        # Made in inference mode it would have no version counter, but views of ordinary tensors taken there need one.
        with torch.inference_mode(mode=False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
                device=f"{NAME}:0",
            )  # fmt: skip
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, op, types_, args=(), kwargs=None):
        # c10d's operations are to find by themselves that no backend takes this device.
        if op.namespace not in ("aten", "prims"):
            with torch._C._DisableTorchDispatch():
                return op(*args, **(kwargs or {}))
        # In inference mode autograd, which decomposes composite operations, was left out.
        parts = op.decompose(*args, **(kwargs or {}))
        return _run(op, args, kwargs or {}) if parts is NotImplemented else parts

    # Methods that read bytes of a tensor past the dispatcher.

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        # torch moves its own pointer only, and the parameter would go on showing the old bytes: learning changes
        # nothing, and no test fails. ddppo makes parameters views of one vector so.
        torch.Tensor.data.__set__(self, other)
        self.raw = other.raw

    def __deepcopy__(self, memo):
        made = Sim(self.raw.clone()).requires_grad_(self.requires_grad)
        made._is_param = getattr(self, "_is_param", False)
        return memo.setdefault(id(self), made)

    def __reduce_ex__(self, protocol):
        # Files hold CPU tensors, as torch.load(map_location="cpu") gives of a GPU's file.
        return self.detach().cpu().__reduce_ex__(protocol)

    def numpy(self, *, force=False):
        if not force:
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")
        return self.detach().cpu().numpy()

    def __array__(self, *_, **__):
        return self.numpy()

    def tolist(self):
        return self.detach().cpu().tolist()

    def __repr__(self, **_):
        return f"Sim({self.raw!r})"

    def __format__(self, spec):
        return format(self.item() if self.dim() == 0 else repr(self), spec)

    def _refused(self, *_, **__):
        # Its memory is no address that a host can read. A real one would crash the process.
        raise RuntimeError(f"the host cannot address memory of {NAME}:0: .cpu() first")

    data_ptr = share_memory_ = __dlpack__ = _refused


def _run(op, args, kwargs):
    """Compute an operation with the CPU tensors of its arguments, and wrap its results as tensors of the device."""
    flat, spec = tree_flatten((args, kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    own = [t for t in tensors if isinstance(t, Sim)]
    # 1. Where does the result go?
    if op is aten.copy_.default:
        device = args[0].device
    else:
        device = kwargs.get("device") or torch.device(NAME if own else "cpu")
    # 2. What would CUDA refuse, and what would it wait for?
    _check_devices(op, args, tensors, own)
    generator = kwargs.get("generator")
    if generator is not None and device.type == NAME and generator.device.type != NAME:
        raise RuntimeError(
            f"Expected a '{NAME}' device type for generator but found '{generator.device.type}'"
        )
    if (how := _waits(op, args, own, device)) is not None:
        found = HostCopy(how, _place(), own[0].nbytes if own else 0)
        copies.append(found)
        if _refuses_waits:
            raise RuntimeError(f"called a synchronizing operation: {found.op} {found.where}")

    # 3. Compute on the CPU.
    def lowered(x):
        if isinstance(x, Sim):
            return x.raw
        return HOST if isinstance(x, torch.device) and x.type == NAME else x

    args, kwargs = tree_unflatten([lowered(x) for x in flat], spec)
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = None
    out = op(*args, **kwargs)
    if device.type == "cpu":
        return tensors[0] if op is aten.copy_.default else out
    # 4. Operations in place return the tensor that they were given, so its wrapper too.
    wrappers = {id(t.raw): t for t in own}

    return tree_map(lambda x: _wrapped(x, wrappers), out)


def _wrapped(x, wrappers):
    if not isinstance(x, torch.Tensor):
        return x
    return wrappers[id(x)] if id(x) in wrappers else Sim(x)


def _check_devices(op, args, tensors, own):
    """Raise RuntimeError for tensors on two devices. A number, which is a CPU tensor without dimensions, may be one."""
    if not own or op in COPIES:
        return
    if op in INDEXED:  # indices may be on the CPU
        indexed, indices, *values = args[:3] if op is not aten.index.Tensor else args[:2]
        if not isinstance(indexed, Sim) and any(isinstance(i, Sim) for i in indices):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            )
        others = [t for t in values if isinstance(t, torch.Tensor)]
        tensors, own = [indexed, *others], [t for t in (indexed, *others) if isinstance(t, Sim)]
    if own and any(not isinstance(t, Sim) and t.dim() for t in tensors):
        raise RuntimeError(
            f"{op}: Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu!"
        )


def _waits(op, args, own, device):
    """Return by what name the host waits for the device in this operation; None if it does not."""
    if not own:
        return None
    name = op.overloadpacket.__name__
    if op is aten.copy_.default and not isinstance(args[1], Sim):
        # From memory of the host that is not pinned: CUDA waits unless it is asked not to.
        return None if len(args) > 2 and args[2] else "from_host"
    if op in COPIES:
        return name if device.type == "cpu" else None
    if op in INDEXED and any(isinstance(i, Sim) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        # x[mask] has as many rows as the mask has ones. Only x[mask] = number is a fill.
        return name if op is aten.index.Tensor or args[2].numel() != 1 else None
    return name if name in READ_BY_HOST else None


def _place():
    """Return file:line of the innermost frame that is neither torch's nor this file's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    path = frame.f_code.co_filename
    return f"{path[path.find('/ddppo/') + 1 :] if '/ddppo/' in path else path}:{frame.f_lineno}"


# -- Registering the device with torch.


_kept: list[torch.library.Library] = []  # kernels live as long as their library


def install() -> None:
    """Make `sim` the accelerator of this process. With STANDIN_WITHOUT_FLOAT64=1 it has no float64, as MPS."""
    # Here, not above: checks.py is read with older versions of torch too, where a GPU takes the stand-in's place.
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, backend_module=_module())
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    # Functions that make tensors (zeros, randn, tensor) have no argument to dispatch on: kernels for the device.
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        strange = ("sparse", "quantized", "cudnn", "nested", "from_file", "_make_dep")
        if not full.startswith("aten::") or any(word in name for word in strange):
            continue
        op = getattr(getattr(aten, name, None), overload or "default", None)
        takes = op._schema.arguments if op is not None else ()
        if any(a.name == "device" for a in takes) and not any("Tensor" in str(a.type) for a in takes):
            library.impl(full.removeprefix("aten::"), _made_there(op), "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    # Else torch takes fused cells, which CPUs have none of.
    for name in ("lstm", "gru"):
        decomposed = torch._decomp.decomposition_table[getattr(aten, name).input]
        library.impl(f"{name}.input", decomposed, "AutogradPrivateUse1")
    # The device guard of Python backends cannot synchronise, and it has no allocator.
    torch.accelerator.synchronize = _synchronize


def _made_there(op):
    device = torch.device(NAME, 0)
    return lambda *args, **kwargs: _run(op, args, kwargs | {"device": device})


def _copy_from(source, to, non_blocking=False):
    return _run(aten.copy_.default, (to, source, non_blocking), {})


def _synchronize(*_):
    copies.append(HostCopy("synchronize", _place(), 0))


def _module():
    """Return what torch.get_device_module("sim") gives."""
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count, module.current_device = (
        (lambda: 1),
        (lambda: 0),
    )  # torch's guard for Python knows one device
    module.get_device_name = lambda *_: "stand-in accelerator"
    module.set_device = module.manual_seed = module.manual_seed_all = lambda *_: None
    module.synchronize = _synchronize
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    # There is no allocator to ask, so these count nothing.
    module.max_memory_allocated = module.memory_allocated = lambda *_: 0
    module.reset_peak_memory_stats = lambda *_: None
    return module
