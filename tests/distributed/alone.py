"""The train door, sure that no process group and no other process came to life."""

import multiprocessing
import sys

import torch.distributed as dist

from ddppo import train

if __name__ == "__main__":
    dist.init_process_group = lambda *args, **more: sys.exit("a process group was started")
    train.main()
    assert not dist.is_initialized()
    assert not multiprocessing.active_children()
