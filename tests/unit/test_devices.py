"""Which device a rank takes, and what differs between kinds of accelerators, by machines that tests make up."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ddppo import device
from ddppo.collectives.meeting import Wanted, _description
from ddppo.config.algorithm_settings import GrpoSettings
from ddppo.config.rules import validate
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.join import check_collective, device_of_rank
from ddppo.errors import ConfigError
from ddppo.launch.checks import _check_normalized, check_machine
from ddppo.loop.evaluation import load_policy
from ddppo.records.timing import IterationClock
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.support import CHECKOUT


def settings(topology="ddp", *, world_size=4, name="auto", dtype="float32", **dist):
    dist = settings_of("dist", topology=topology, world_size=world_size, **dist)
    return Config(env=EnvConfig(id="CartPole-v1", num_envs=12), dist=dist, device=name, dtype=dtype)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that puts accelerators into this machine, as torch would see them."""

    def put(kind, count, **functions):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        found = torch.device(kind) if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: found)
        monkeypatch.setattr(torch, "get_device_module", lambda *_: SimpleNamespace(**functions))
        monkeypatch.setattr(dist, "is_nccl_available", lambda: kind == "cuda")
        monkeypatch.setattr(dist, "is_xccl_available", lambda: kind == "xpu", raising=False)
        for module in ("ddppo.device", "ddppo.distributed.join", "ddppo.launch.checks"):
            monkeypatch.setattr(f"{module}.has_float64", lambda where: where.type != "mps")

    return put


def of_ranks(config, num_ranks=4):
    return [str(device_of_rank(config, rank, rank, num_ranks)) for rank in range(num_ranks)]


def refusal(function, *arguments, **more):
    with pytest.raises(ConfigError) as e:
        function(*arguments, **more)
    sentence = str(e.value)
    assert "\n" not in sentence
    return sentence


# -- Which device.


@pytest.mark.parametrize(
    ("kind", "count", "name", "expected"),
    [
        ("cpu", 0, "auto", "cpu"),
        ("cpu", 0, "cpu", "cpu"),
        ("cuda", 1, "auto", "cuda:0"),
        ("cuda", 1, "cpu", "cpu"),
        ("cuda", 2, "cuda", "cuda:0"),
        ("cuda", 8, "7", "cuda:7"),
        ("xpu", 2, "auto", "xpu:0"),
        ("xpu", 2, "xpu", "xpu:0"),
        ("xpu", 2, "1", "xpu:1"),
        ("mps", 1, "mps", "mps:0"),
        ("mps", 1, "0", "mps:0"),
        ("privateuseone", 1, "auto", "privateuseone:0"),  # kinds that plugins of torch bring
        ("privateuseone", 2, "1", "privateuseone:1"),
    ],
)
def test_the_setting_names_a_device_of_the_machine(machine, kind, count, name, expected):
    machine(kind, count)
    assert str(device.resolve(name)) == expected


def test_auto_leaves_apples_devices_alone(machine):
    machine("mps", 1)
    assert str(device.resolve("auto")) == "cpu"


@pytest.mark.parametrize(("kind", "count"), [("cuda", 4), ("cuda", 8), ("xpu", 4)])
def test_ranks_of_a_machine_take_its_accelerators_in_order(machine, kind, count):
    machine(kind, count)
    assert of_ranks(settings()) == [f"{kind}:{i}" for i in range(4)]


def test_the_second_machine_begins_with_its_first_accelerator(machine):
    machine("cuda", 2)
    assert [str(device_of_rank(settings(), rank, rank - 2, 2)) for rank in (2, 3)] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_of_ranks_that_step_environments_for_another_only_that_one_has_a_device(machine, name):
    machine("cuda", 1)
    assert of_ranks(settings("env_workers", name=name)) == ["cuda:0", "cpu", "cpu", "cpu"]


def test_a_rank_that_only_steps_needs_no_accelerator_where_there_is_none(machine):
    machine("cpu", 0)
    config = settings("env_workers", name="cuda")
    assert str(device_of_rank(config, 1, 1, 4)) == "cpu"
    assert "torch sees no cuda device here" in refusal(device_of_rank, config, 0, 0, 4)


def test_sums_in_order_are_computed_on_cpus(machine):
    machine("cuda", 4)
    assert of_ranks(settings(reduction="ordered")) == ["cpu"] * 4


# -- Ranks that would share one.


@pytest.mark.parametrize(
    ("count", "name", "why"),
    [
        (2, "auto", "device=auto: 4 ranks of this machine compute, each with an accelerator of its own, and this "
                    "machine has 2 cuda devices: use fewer ranks, dist.share_device=true, or device=cpu"),
        (1, "cuda", "this machine has 1 cuda device:"),
        (8, "3", "device=3: 4 ranks of this machine compute, each with an accelerator of its own, and they would "
                 "share one: use fewer ranks"),
    ],
)  # fmt: skip
def test_ranks_share_no_accelerator_by_accident(machine, count, name, why):
    machine("cuda", count)
    assert why in refusal(device_of_rank, settings(name=name), 0, 0, 4)
    assert why in refusal(check_machine, settings(name=name), 4)


def test_ranks_share_accelerators_if_told_to(machine):
    machine("cuda", 2)
    assert of_ranks(settings(share_device=True)) == ["cuda:0", "cuda:1"] * 2
    assert of_ranks(settings(share_device=True, name="1")) == ["cuda:1"] * 4
    assert "exceeds this machine's 2 GPUs" in check_machine(settings(share_device=True), 4)
    assert "oversubscribe=refuse" in refusal(
        check_machine, settings(share_device=True, oversubscribe="refuse"), 4
    )


@pytest.mark.parametrize(
    ("more", "why"), [({"name": "cpu"}, "device=cpu"), ({"world_size": 1}, "world_size=1")]
)
def test_sharing_without_anything_to_share_is_refused(more, why):
    assert f"dist.share_device=true has no effect with {why}" in refusal(
        validate, settings("ddp", share_device=True, **more)
    ).replace("dist.world_size", "world_size")


# -- What is refused, a sentence each.


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "gpu",
            "device=gpu: must be one of auto, cpu, cuda, xpu, mps, or the index of an accelerator, e.g. 0",
        ),
        ("cuda:1", "e.g. 0 (use device=1)"),
        ("cuds", "(did you mean cuda?)"),
        ("-1", "device=-1: must be one of"),
        ("1.5", "device=1.5: must be one of"),
    ],
)
def test_an_unknown_device_is_refused_before_torch_is_asked(name, why):
    assert why in refusal(validate, settings(world_size=1, name=name))


@pytest.mark.parametrize(
    ("kind", "count", "name", "why"),
    [
        ("cpu", 0, "cuda", "device=cuda, but torch sees no cuda device here: use device=cpu, or device=auto"),
        ("cpu", 0, "mps", "device=mps, but torch sees no mps device here"),
        ("cpu", 0, "0", "device=0, but torch sees no accelerator here"),
        ("cuda", 1, "1", "device=1: this machine has 1 cuda device, numbered from 0: use device=0, or device=auto"),
        ("xpu", 8, "8", "device=8: this machine has 8 xpu devices, numbered from 0: use device=0 or 7"),
        ("cuda", 2, "xpu", "device=xpu, but torch sees 2 cuda devices here: use device=cuda, or device=cpu"),
        ("mps", 1, "cuda", "device=cuda, but torch sees 1 mps device here: use device=mps"),
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_refused(machine, kind, count, name, why):
    machine(kind, count)
    config = settings(world_size=1, name=name)
    assert why in refusal(check_machine, config, 1)
    assert why in refusal(device_of_rank, config, 0, 0, 1)


def test_float64_is_refused_where_the_device_has_none(machine):
    machine("mps", 1)
    config = settings(world_size=1, name="mps", dtype="float64")
    assert refusal(check_machine, config, 1) == (
        "dtype=float64 with device=mps, which computes in float32 at most: use dtype=float32, or device=cpu"
    )
    assert "with device=0, here mps" in refusal(check_machine, replace(config, device="0"), 1)
    assert "dtype=float64 with device=mps" in refusal(load_policy, config, {})


def test_observations_in_float64_are_not_normalised_where_the_device_has_none(machine):
    machine("mps", 1)
    config = settings(world_size=1, name="mps")
    config.ppo.normalize_obs = True
    spec = EnvSpec(ArraySpec((3,), "float64"), ActionSpec("discrete", (2,)))
    assert (
        "ppo.normalize_obs=true with device=mps, which computes in float32 at most, and CartPole-v1 observes"
        in (refusal(_check_normalized, config, spec, is_far=False))
    )


def test_grpo_is_refused_where_the_device_has_no_float64(machine):
    machine("mps", 1)
    config = replace(settings(world_size=1, name="mps"), ppo=GrpoSettings())
    assert "returns of a group are compared in float64, which it lacks" in refusal(check_machine, config, 1)


def test_two_ranks_on_one_mps_device_are_refused_and_so_are_its_collectives(machine):
    machine("mps", 1)
    assert "this machine has 1 mps device:" in refusal(check_machine, settings(name="mps", world_size=2), 2)
    shared = {"name": "mps", "world_size": 2, "share_device": True}
    assert refusal(check_machine, settings(**shared, collective="nccl"), 2) == (
        "dist.collective=nccl needs a GPU that it reaches for each of the 2 ranks of this machine, which has 1 of type "
        "mps: use dist.collective=shm or gloo, or fewer ranks"
    )
    assert refusal(check_machine, settings(**shared, grad_sync="ddp"), 2) == (
        "dist.grad_sync=ddp with device=mps: torch.distributed has no backend that reaches its memory: use "
        "dist.grad_sync=flat"
    )


@pytest.mark.parametrize(("kind", "collective"), [("cuda", "xccl"), ("xpu", "nccl")])
def test_a_collective_of_another_kind_of_accelerator_is_refused(machine, kind, collective):
    machine(kind, 4)
    assert f"dist.collective={collective} needs a GPU that it reaches" in refusal(
        check_collective, settings(collective=collective), torch.device(kind, 0), 4
    )


def test_collectives_between_accelerators_need_one_for_each_rank(machine):
    machine("cuda", 2)
    config = settings(collective="nccl", share_device=True)
    assert "which has 2 of type cuda" in refusal(check_collective, config, torch.device("cuda", 0), 4)


@pytest.mark.parametrize("collective", ["nccl", "xccl"])
def test_collectives_between_ranks_that_have_no_accelerator_are_refused_before_the_start(collective):
    assert "ranks of the role environments only step" in refusal(
        validate, settings("env_workers", collective=collective)
    )
    assert f"dist.collective={collective} needs GPUs, but device=cpu" in refusal(
        validate, settings(collective=collective, name="cpu")
    )


def test_a_matmul_precision_that_a_cpu_lacks_is_refused(machine):
    machine("cpu", 0)
    config = replace(settings(world_size=1), matmul_precision="high")
    assert "matmul_precision=high has no effect with device=auto, here cpu" in refusal(
        check_machine, config, 1
    )
    machine("cuda", 1)
    assert check_machine(config, 1) is None


@pytest.mark.parametrize(
    ("kind", "count", "name", "why"),
    [
        ("cpu", 0, "auto", "device=auto, here cpu: the CPU is no device to share"),
        ("cuda", 2, "auto", "device=auto, here cuda: each of 2 ranks has its own"),
        ("cuda", 1, "auto", None),
        ("cuda", 2, "1", None),
    ],
)
def test_sharing_a_device_that_is_not_shared_is_refused(machine, kind, count, name, why):
    machine(kind, count)
    config = settings(world_size=2, name=name, share_device=True)
    config.dist.reduction = "fast"
    if why is None:
        check_machine(config, 2)
    else:
        assert f"dist.share_device=true has no effect with {why}: leave it out" in refusal(
            check_machine, config, 2
        )


# -- Backends.


@pytest.mark.parametrize(
    ("kind", "backend", "has_ddp"),
    [
        ("cpu", "gloo", True),
        ("cuda", "nccl", True),
        ("xpu", "xccl", True),
        ("mps", "gloo", False),
        ("privateuseone", "gloo", False),
    ],
)
def test_a_device_has_a_backend(machine, kind, backend, has_ddp):
    machine(kind, 2)
    where = torch.device(kind, 0) if kind != "cpu" else torch.device("cpu")
    assert (device.backend_of(where), device.has_ddp(where)) == (backend, has_ddp)
    assert device.bound(where, backend) == ({"device_id": where} if backend != "gloo" else {})


def test_a_build_of_torch_without_nccl_goes_by_way_of_the_host(machine, monkeypatch):
    machine("cuda", 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert device.backend_of(torch.device("cuda", 0)) == "gloo"
    assert device.has_ddp(torch.device("cuda", 0))


def test_the_backend_of_a_process_group_is_bound_to_the_ranks_device(machine, monkeypatch):
    from ddppo.collectives import meeting

    machine("xpu", 2)
    given = {}
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **more: given.update(more, backend=backend)
    )
    wanted = Wanted("auto", torch.device("xpu", 1), own_device=True, timeout_s=1.0)
    one = meeting._Meeting(None, [_description(wanted)] * 2, wanted)
    monkeypatch.setattr(meeting, "ProcessGroup", lambda *_, **__: "made")
    one.group_of_all(SimpleNamespace(rank=1, world_size=2, members=(0, 1)))
    assert (given["backend"], given["device_id"]) == ("xccl", torch.device("xpu", 1))


# -- What a device does.


def test_nothing_is_asked_of_an_accelerator_for_a_cpu(monkeypatch):
    def never(*_):
        raise AssertionError("asked")

    for name in ("synchronize", "set_device_index"):
        monkeypatch.setattr(torch.accelerator, name, never)
    cpu = torch.device("cpu")
    device.synchronize(cpu)
    device.select(cpu)
    assert (device.name_of(cpu), device.peak_memory(cpu), device.has_float64(cpu)) == ("cpu", None, True)


def test_the_clock_waits_for_the_device_at_the_end_of_a_phase(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    clock = IterationClock([SimpleNamespace(records=[], waits=[], sends=[])], torch.device("xpu", 1))
    with clock.phase("rollout"):
        pass
    assert waited == [torch.device("xpu", 1)]


def test_names_and_memory_are_those_of_torchs_module_for_the_device(machine):
    resets = []
    machine(
        "cuda", 2,
        get_device_name=lambda where: f"card {where.index}",
        max_memory_allocated=lambda where: 1000 + where.index,
        reset_peak_memory_stats=resets.append,
    )  # fmt: skip
    second = torch.device("cuda", 1)
    assert (device.name_of(second), device.peak_memory(second), resets) == ("card 1", 1001.0, [second])
    # Apple's module has neither a name nor a peak.
    machine("mps", 1, current_allocated_memory=lambda: 7)
    assert (device.name_of(torch.device("mps", 0)), device.peak_memory(torch.device("mps", 0))) == (
        "mps",
        7.0,
    )
    machine("privateuseone", 1)
    assert device.peak_memory(torch.device("privateuseone", 0)) is None


def test_numerics_are_set_and_taken_back(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is taken back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    before = torch.get_float32_matmul_precision()
    try:
        for name, of_torch in (("bf16", "medium"), ("medium", "medium"), ("tf32", "high"), ("high", "high")):
            device.set_numerics(name, deterministic=True)
            assert torch.get_float32_matmul_precision() == of_torch
        assert torch.are_deterministic_algorithms_enabled()
        assert device.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        device.set_numerics("highest", deterministic=False)
    assert before == torch.get_float32_matmul_precision() == "highest"
    assert not torch.are_deterministic_algorithms_enabled()


def test_graphs_of_cuda_need_no_new_torch_and_are_recorded_beside_other_threads(machine, monkeypatch):
    said = []

    @contextmanager
    def noted(*of, **more):
        said.append(more.get("capture_error_mode", "stream"))
        yield

    machine(
        "cuda", 1,
        Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
        current_stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
        stream=noted,
        graph=noted,
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: said.append("started again")),
    )  # fmt: skip
    monkeypatch.delattr(torch.accelerator, "Graph", raising=False)  # torch below 2.12
    assert device.has_graphs(torch.device("cuda"))
    assert not device.has_graphs(torch.device("xpu"))
    device.recorded_kernels(lambda: said.append("called"))()
    assert said == ["stream", "called", "called", "stream", "thread_local", "called", "started again"]


def test_only_one_file_names_a_kind_of_accelerator():
    found = [
        str(path.relative_to(CHECKOUT))
        for path in sorted((CHECKOUT / "ddppo").rglob("*.py"))
        if "cuda" in path.read_text()
    ]
    assert found == ["ddppo/device.py"]


def test_a_device_that_this_build_lacks_is_not_one_without_float64():
    device.has_float64.cache_clear()
    assert device.has_float64(torch.device("xpu"))
    assert not device.has_float64(torch.device("mps"))
