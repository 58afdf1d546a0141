"""Devices: which one a rank computes on, how it is reached, and all that differs between kinds of them.

    device=auto     an accelerator of this machine, one for each rank; the CPU if there is none, or if it is Apple's
    device=cpu
    device=cuda     NVIDIA's, and AMD's, which torch's builds for ROCm call cuda too
    device=xpu      Intel's
    device=mps      Apple's
    device=1        the accelerator with this index, of any kind that torch knows

torch knows one kind of accelerator in a process (torch.accelerator), and most calls are the same for all of them. This
file has the others, and is the only one of ddppo that names a kind. docs/devices.md is the page for users.

Settings are checked without torch, which takes a second to import: functions that need it import it.
"""

import functools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddppo.errors import ConfigError, near

if TYPE_CHECKING:
    import torch

# -- The setting `device`.


NAMES = ("auto", "cpu", "cuda", "xpu", "mps")
MEANING = (
    "auto (an accelerator if there is one, else the CPU), cpu, cuda, xpu, mps, or the index of an accelerator, e.g. 0; "
    "each rank that computes takes an accelerator of its own (docs/devices.md)"
)
# auto leaves it out: a small network is slower there than in C++ on the CPU, and nothing of ddppo was run there yet.
_NOT_BY_ITSELF = "mps"


def check_name(name: str) -> None:
    """Raise ConfigError if `name` is no value of the setting. Whether the device is there: `resolve`."""
    if name in NAMES or name.isdecimal():
        return
    hint = near(name, NAMES)
    if found := re.fullmatch(r"[a-z]+:(\d+)", name):
        hint = f" (use device={found[1]})"
    raise ConfigError(
        f"device={name}: must be one of {', '.join(NAMES)}, or the index of an accelerator, e.g. 0{hint}"
    )


def takes_accelerator(name: str) -> bool:
    """Return whether a value of the setting asks for an accelerator, or for an error if there is none."""
    return name not in ("auto", "cpu")


def accelerators() -> tuple[str, int]:
    """Return the kind of this machine's accelerators and their number; ("cpu", 0) if torch sees none."""
    import torch

    if not torch.accelerator.is_available():
        return "cpu", 0
    found = torch.accelerator.current_accelerator()
    assert found is not None, "torch.accelerator is available and names no accelerator"
    return found.type, torch.accelerator.device_count()


def resolve(name: str, *, place: int = 0, num_places: int = 1, share: bool = False) -> "torch.device":
    """Return the device of a rank.

    Args:
        name: the setting.
        place, num_places: the rank's number among those ranks of this machine that need a device, and their number.
        share: whether several ranks may take one accelerator.

    Raises ConfigError if it is not there, or if ranks would share it and may not.
    """
    import torch

    check_name(name)
    kind, count = accelerators()
    if name == "cpu" or (name == "auto" and kind in ("cpu", _NOT_BY_ITSELF)):
        return torch.device("cpu")
    # 1. Is it there?
    is_index = name.isdecimal()
    if not count:
        wanted = "accelerator" if is_index else f"{name} device"
        raise ConfigError(
            f"device={name}, but torch sees no {wanted} here: use device=cpu, or device=auto for an accelerator if "
            "there is one"
        )
    if is_index and int(name) >= count:
        raise ConfigError(
            f"device={name}: this machine has {_counted(count, kind)}, numbered from 0: use device="
            f"{' or '.join(dict.fromkeys(('0', str(count - 1))))}, or device=auto"
        )
    if not is_index and name not in ("auto", kind):
        known = kind if kind in NAMES else "auto"
        raise ConfigError(
            f"device={name}, but torch sees {_counted(count, kind)} here: use device={known}, or device=cpu"
        )
    # 2. Is there one for each rank?
    num_usable = 1 if is_index else count
    if num_places > num_usable and not share:
        which = "they would share one" if is_index else f"this machine has {_counted(count, kind)}"
        raise ConfigError(
            f"device={name}: {num_places} ranks of this machine compute, each with an accelerator of its own, and "
            f"{which}: use fewer ranks, dist.share_device=true, or device=cpu"
        )
    return torch.device(kind, int(name) if is_index else place % count)


def described(name: str) -> "torch.device":
    """Return a device of the kind that the setting names, for rules about kinds; it need not be there."""
    import torch

    if name == "auto":
        return resolve("auto")
    if name.isdecimal():
        kind, _ = accelerators()
        return torch.device("cuda" if kind == "cpu" else kind, int(name))
    return torch.device(name)


def _counted(count: int, kind: str) -> str:
    return f"{count} {kind} device{'s' if count != 1 else ''}"


# -- Collectives.


# torch.distributed's backends that reach an accelerator's memory. From all others, numbers travel through the host's.
BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
_REACHED_BY_GLOO = ("cpu", "cuda")  # DistributedDataParallel works on these over Gloo too


def backend_of(device: "torch.device") -> str:
    """Return the backend of torch.distributed for tensors of this device: nccl, xccl, or gloo by way of the host."""
    import torch.distributed as dist

    name = BACKENDS.get(device.type, "gloo")
    is_there = getattr(dist, f"is_{name}_available", None)
    return name if is_there is not None and is_there() else "gloo"


def has_ddp(device: "torch.device") -> bool:
    """Return whether DistributedDataParallel can sum gradients of this device (dist.grad_sync=ddp)."""
    return device.type in _REACHED_BY_GLOO or backend_of(device) != "gloo"


def bound(device: "torch.device", backend: str) -> dict[str, Any]:
    """Return the arguments of init_process_group by which a backend that reaches the device belongs to it.

    NCCL then makes its communicator at once, so that a fault is seen at the start and not in the first collective.
    """
    return {"device_id": device} if backend in BACKENDS.values() else {}


# -- What a device does.


def select(device: "torch.device") -> None:
    """Make an accelerator the current one of this process: libraries such as NCCL work on the current one."""
    if device.type != "cpu":
        import torch

        torch.accelerator.set_device_index(device)


def synchronize(device: "torch.device") -> None:
    """Wait until the device has done all that was asked of it, so that a clock may be read; nothing on a CPU."""
    if device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def name_of(device: "torch.device") -> str:
    """Return the product's name as torch knows it, else the kind: "cpu", "NVIDIA H100", "mps"."""
    if device.type == "cpu":
        return "cpu"
    import torch

    get_name = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if get_name is None else str(get_name(device))


def peak_memory(device: "torch.device") -> float | None:
    """Return the most bytes that tensors took on the device since the last call; None on a CPU.

    Apple's devices count no peak: there it is what tensors take now.
    """
    if device.type == "cpu":
        return None
    import torch

    module = torch.get_device_module(device)
    if not hasattr(module, "reset_peak_memory_stats"):
        now = getattr(module, "current_allocated_memory", None)
        return None if now is None else float(now())
    most = float(module.max_memory_allocated(device))
    module.reset_peak_memory_stats(device)
    return most


def has_graphs(device: "torch.device") -> bool:
    """Return whether torch can record kernels of this device and start them by one call (`recorded_kernels`)."""
    import torch

    return device.type == "cuda" or (device.type == "xpu" and hasattr(torch.accelerator, "Graph"))


def recorded_kernels(function: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels that `function` starts on the current device, and return what starts all of them again.

    The function runs twice before, because the first call loads kernels and allocates memory. torch.cuda has graphs in
    every version that ddppo takes, torch.accelerator from 2.12 on.
    """
    import torch

    module = torch.get_device_module(accelerators()[0])
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    with module.stream(stream):
        function()
        function()
    if hasattr(module, "CUDAGraph"):
        graph = module.CUDAGraph()
        # thread_local: other threads, such as NCCL's, may ask the device meanwhile.
        recording: Any = module.graph(graph, stream=stream, capture_error_mode="thread_local")
    else:
        graph = recording = torch.accelerator.Graph()
    with module.stream(stream), recording:
        function()
    module.current_stream().wait_stream(stream)
    return graph.replay


def wide_dtype(device: "torch.device") -> "torch.dtype":
    """Return the type in which sums over many samples are kept on the device: float64, or float32 where that is all."""
    import torch

    return torch.float64 if has_float64(device) else torch.float32


@functools.cache
def has_float64(device: "torch.device") -> bool:
    """Return whether the device has float64. Apple's have none. One that is not there has it: `resolve` says so."""
    if device.type in ("cpu", "cuda", "mps"):
        return device.type != "mps"
    import torch

    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except TypeError:
        return False
    except (RuntimeError, AssertionError):  # no such device in this build or machine, or no memory left
        return True
    return True


def in_words(name: str, device: "torch.device") -> str:
    """Return the setting, and the kind of device that it means here unless it says so."""
    return f"device={name}" + (f", here {device.type}" if name != device.type else "")


def check_dtype(dtype: str, name: str, device: "torch.device") -> None:
    """Raise ConfigError if the device that the setting `name` means cannot compute in the model's type."""
    if dtype == "float64" and not has_float64(device):
        raise ConfigError(
            f"dtype=float64 with {in_words(name, device)}, which computes in float32 at most: use dtype=float32, or "
            "device=cpu"
        )


_FORMATS = {"tf32": "high", "bf16": "medium"}  # names of formats, for torch's own words


def set_numerics(matmul_precision: str, *, deterministic: bool) -> None:
    """Set how torch multiplies float32 matrices, and whether its kernels may give other results in every run.

    Call it before the device is used. cuBLAS is deterministic only with a workspace of fixed size.
    """
    import torch

    precision = _FORMATS.get(matmul_precision, matmul_precision)
    if torch.get_float32_matmul_precision() != precision:
        torch.set_float32_matmul_precision(precision)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call itself takes half a second
        torch.use_deterministic_algorithms(deterministic)
