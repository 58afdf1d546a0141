"""The stand-in accelerator is as strict as CUDA, computes what the CPU computes, and counts what the host waits for."""

import pytest

from tests.device import checks
from tests.device.support import called_on_standin


def test_a_network_learns_on_the_stand_in_to_the_bits_of_the_cpu():
    assert called_on_standin(checks.losses, "sim") == checks.losses("cpu")


def test_the_stand_in_refuses_what_cuda_refuses():
    answers = called_on_standin(checks.refused)
    assert {name: answer for name, answer in answers.items() if answer == "allowed"} == {}
    assert answers["gloo"].startswith("No backend type associated with device type sim")
    assert "Expected all tensors to be on the same device" in answers["two devices"]


def test_it_counts_what_a_host_would_wait_for_and_nothing_else():
    assert called_on_standin(checks.waits) == {
        "item": ["_local_scalar_dense"],
        "if": ["_local_scalar_dense"],
        "cpu": ["_to_copy"],
        "to": ["_to_copy"],
        "copy_": ["copy_"],
        "rows by mask": ["index"],
        "nonzero": ["nonzero"],
        "fill": [],
        "where": [],
        "compute": [],
        "from the host": [],
    }


def test_it_names_the_line_that_waits():
    assert called_on_standin(checks.place_of_item).rpartition(":")[0].endswith("tests/device/checks.py")


def test_without_float64_it_refuses_it_as_mps_does():
    with pytest.raises(AssertionError, match="Cannot convert a MPS Tensor to float64"):
        called_on_standin(checks.float64, STANDIN_WITHOUT_FLOAT64="1")
