"""Functions that test_standin.py calls in processes with the stand-in accelerator."""

import numpy as np
import torch
import torch.distributed as dist

from tests.device.standin import counted


def losses(device):
    """Return 20 losses of a small network that learns on the device."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)).to(device)
    x, y = torch.randn(256, 4).to(device), torch.randn(256, 2).to(device)
    adam, found = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(20):
        loss = ((model(x) - y) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()
        found.append(loss.detach())
    return torch.stack(found).tolist()


def refused():
    """Return what the device answers to all that CUDA refuses."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x, y, numbers = torch.ones(3, device="sim"), torch.ones(3), torch.Generator()
    attempts = {
        "numpy": lambda: x.numpy(),
        "np.asarray": lambda: np.asarray(x),
        "address": lambda: x.data_ptr(),
        "share_memory_": lambda: x.share_memory_(),
        "two devices": lambda: x + y,
        "out": lambda: torch.add(x, x, out=y),
        "cat": lambda: torch.cat([x, y]),
        "values": lambda: x.__setitem__(torch.tensor([0, 1, 2]), y),
        "indices": lambda: y[torch.arange(2, device="sim")],
        "generator": lambda: torch.randn(3, device="sim", generator=numbers),
        "gloo": lambda: dist.all_reduce(x),
    }
    answers = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (RuntimeError, TypeError) as e:
            answers[name] = str(e)
    dist.all_reduce(x.cpu())
    return {name: answers.get(name, "allowed") for name in attempts}


def waits():
    """Return the operations of which the host waits, of each line."""
    x, y = torch.arange(4.0, device="sim"), torch.ones(4, device="sim")
    mask = x > 1
    lines = {
        "item": lambda: x.sum().item(),
        "if": lambda: bool(mask.any()),
        "cpu": lambda: x.cpu(),
        "to": lambda: x.to("cpu", torch.float64),
        "copy_": lambda: torch.zeros(4).copy_(x),
        "rows by mask": lambda: x[mask],
        "nonzero": lambda: mask.nonzero(),
        "fill": lambda: y.__setitem__(mask, 0.0),
        "where": lambda: torch.where(mask, x, y),
        "compute": lambda: (x * y).sum().clamp(max=1).sqrt(),
        "from the host": lambda: torch.ones(4).to("sim"),
    }
    found = {}
    for name, line in lines.items():
        with counted() as copies:
            line()
        found[name] = [each.op for each in copies]
    return found


def place_of_item():
    with counted() as copies:
        torch.ones(1, device="sim").item()
    return copies[0].where


def float64():
    return torch.zeros(2, dtype=torch.float64, device="sim").tolist()
