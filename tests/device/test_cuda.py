"""On a CUDA device: where torch sees the host wait, and recorded kernels. Skipped without one; passed on an H200.

`torch.cuda.set_sync_debug_mode("error")` raises at .item(), .cpu(), rows chosen by a mask, and copies of memory that is
not pinned. The stand-in accelerator counts the same (test_device_rollouts.py).
"""

import pytest
import torch

from tests.device import checks
from tests.device.test_device_rollouts import CASES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine"),
]


@pytest.mark.parametrize("compiles", ["off", "torch"])
@pytest.mark.parametrize("case", ["cartpole_device", "quadruped"])
def test_no_step_of_a_rollout_and_no_epoch_waits_for_the_device(case, compiles):
    settings, most = CASES[case]
    assert checks.trained_without_waiting(*settings, f"compile={compiles}", "device=cuda") <= most


def test_a_memory_of_the_model_and_normalisers_wait_no_more_often_than_the_page_says():
    settings, most = CASES["normalisers and lstm"]
    assert checks.trained_without_waiting(*settings, "device=cuda") <= most


def test_recorded_kernels_learn_what_the_cpu_learns():
    settings, _ = CASES["quadruped"]
    found = checks.compared(*settings, "compile=torch", "device=cuda", of_cpu={"compile": "off"})
    assert found["graphs"] == "minibatches, acting, environments"
    assert found["parameters"] < 1e-3
