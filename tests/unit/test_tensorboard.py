import re
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from ddppo.config.settings import Config
from ddppo.records.event_file import crc32c
from ddppo.records.metrics import GLOBAL_NAMES, PER_RANK_NAMES, IterationReport
from ddppo.records.tensorboard import LAYOUT, TensorBoardWriter, hyperparameters

OF_RANKS = ("fps", "t_rollout", "t_learn", "t_comm", "t_sync", "rho_comm", "rho_sync")
CHARTS = ("eval_return_mean", "fps", "length_mean", "return_mean", "success_rate")


def config():
    result = Config()
    result.env.id = "CartPole-v1"
    return result


def report(iteration, num_ranks=2, env_steps=None, wall_s=None):
    """A report with every metric of the table; rank r's values are r + 1, the global ones the iteration."""
    return IterationReport(
        iteration,
        512 * iteration if env_steps is None else env_steps,
        0.25 * iteration if wall_s is None else wall_s,
        tuple({name: float(rank + 1) for name in PER_RANK_NAMES} for rank in range(num_ranks)),
        {name: float(iteration) for name in GLOBAL_NAMES},
    )


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.fixture
def written(tmp_path):
    writer = TensorBoardWriter(tmp_path / "tb", config(), 2)
    writer.write(report(1))
    writer.write(report(2))
    writer.close({"eval/return_mean": 490.0, "eval/episodes": 100.0})
    return tmp_path / "tb"


def test_scalars_are_grouped_and_named_as_in_the_table(written):
    tags = set(read(written).Tags()["scalars"])
    assert {tag.split("/")[0] for tag in tags} == {
        "rollout",
        "reward",
        "train",
        "loss",
        "user",
        "algorithm",
        "time",
        "dist",
        "eval",
        "eval_final",
        "eval_by_wall_ms",
        "env",
        "charts",
    }
    per_rank = {f"dist/rank{r}/{part}" for r in (0, 1) for part in OF_RANKS}
    assert {
        t for t in tags if not t.startswith(("eval_final/", "eval_by_wall_ms/", "charts/"))
    } - per_rank == GLOBAL_NAMES | PER_RANK_NAMES - {"rollout/local_steps", "rollout/local_fps"}


def test_the_x_axis_is_env_steps(written):
    assert points(read(written), "train/entropy") == [(512, 1.0), (1024, 2.0)]


def test_times_are_means_over_ranks_beside_those_of_each_rank(written):
    events = read(written)
    assert points(events, "time/t_rollout")[0] == (512, 1.5)
    assert points(events, "dist/rank0/t_rollout")[0] == (512, 1.0)
    assert points(events, "dist/rank1/t_sync")[0] == (512, 2.0)


def test_tensorboard_opens_on_returns(written):
    tags = sorted(read(written).Tags()["scalars"])
    of_ppo = [tag for tag in tags if not tag.startswith("algorithm/")]
    assert of_ppo[:5] == [f"charts/{name}" for name in CHARTS]
    assert points(read(written), "charts/eval_return_mean") == points(read(written), "eval/return_mean")


def test_all_settings_are_there_as_text(written):
    (text,) = read(written).Tensors("config/text_summary")
    assert "env:\n  id: CartPole-v1" in text.tensor_proto.string_val[0].decode()


def test_one_rank_has_no_tags_of_its_own(tmp_path):
    writer = TensorBoardWriter(tmp_path, config(), 1)
    writer.write(report(1, num_ranks=1))
    writer.close()
    assert not [tag for tag in read(tmp_path).Tags()["scalars"] if tag.startswith("dist/rank")]


def test_evaluation_is_also_recorded_against_milliseconds_of_training(written):
    events = read(written)
    assert points(events, "eval_by_wall_ms/return_mean") == [(250, 1.0), (500, 2.0)]
    assert all(
        tag.startswith("eval_by_wall_ms/return_") for tag in events.Tags()["scalars"] if "by_wall" in tag
    )


def stop_and_resume(folder, damage=lambda: None):
    # Milliseconds are far above env_steps here, so that taking one for the other would show.
    first = TensorBoardWriter(folder, config(), 2)
    for iteration, steps, wall_s in ((1, 100, 10.0), (2, 200, 20.0), (3, 300, 30.0)):
        first.write(report(iteration, env_steps=steps, wall_s=wall_s))
    first.close(completed=False)
    damage()
    second = TensorBoardWriter(folder, config(), 2, resumed_at_steps=200, resumed_at_wall_s=20.0)
    second.write(report(4, env_steps=310, wall_s=29.0))
    second.close()


def stored(folder, tag):
    """What the files hold, without the purging that readers do."""
    found = []
    for path in folder.iterdir():
        for event in EventFileLoader(str(path)).Load():
            found += [event.step for value in event.summary.value if value.tag == tag]
    return sorted(found)


def test_resume_removes_the_points_after_the_checkpoint_and_keeps_the_checkpoint(tmp_path):
    stop_and_resume(tmp_path)
    assert stored(tmp_path, "train/entropy") == [100, 200, 310]
    assert stored(tmp_path, "eval_by_wall_ms/return_mean") == [10_000, 20_000, 29_000]
    assert stored(tmp_path, "custom_scalars__config__") == [0], "the layout is there once"
    assert sorted(points(read(tmp_path), "train/entropy")) == [(100, 1.0), (200, 2.0), (310, 4.0)]


@pytest.mark.parametrize("size", [5, 15, 40])
def test_resume_survives_an_event_that_a_kill_left_half_written(tmp_path, size):
    def cut():
        (path,) = tmp_path.iterdir()
        content = path.read_bytes()
        path.write_bytes(content + content[:size])

    stop_and_resume(tmp_path, cut)
    assert stored(tmp_path, "train/entropy") == [100, 200, 310]


def test_the_layout_has_pages_for_time_topology_and_stability(written):
    layout = layout_pb2.Layout()
    layout.ParseFromString(read(written).Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    assert [page.title for page in layout.category] == ["returns", "time breakdown", "topology", "stability"]
    parts = layout.category[1].chart[0].multiline.tag
    assert list(parts) == [f"time/t_{p}$" for p in ("iter", "rollout", "learn", "sync", "comm", "other")]


def test_every_chart_of_the_layout_finds_its_tags(written):
    tags = read(written).Tags()["scalars"]
    for charts in LAYOUT.values():
        for patterns in charts.values():
            for pattern in patterns:
                found = [tag for tag in tags if re.match(pattern, tag)]  # as TensorBoard's plugin does
                assert len(found) == (2 if "rank" in pattern else 1), pattern


def test_hyperparameters_belong_to_the_run_itself(written):
    assert not [path for path in written.iterdir() if path.is_dir()]
    events = read(written)
    content = {
        tag: HParamsPluginData.FromString(events.SummaryMetadata(tag).plugin_data.content)
        for tag in events.summary_metadata
        if tag.startswith("_hparams_")
    }
    start = content["_hparams_/session_start_info"].session_start_info
    assert start.hparams["ppo.gamma"].number_value == 0.99
    assert start.hparams["env.id"].string_value == "CartPole-v1"
    first = [info.name for info in content["_hparams_/experiment"].experiment.hparam_infos if info.differs]
    assert sorted(first) == ["dist.world_size", "env.id", "model.name", "ppo.learning_rate", "seed"]
    compared = {info.name.tag for info in content["_hparams_/experiment"].experiment.metric_infos}
    assert "eval_final/return_mean" in compared
    assert points(events, "eval_final/return_mean") == [(1024, 490.0)]
    assert "_hparams_/session_end_info" in content


def test_a_run_that_was_stopped_has_no_end_yet(tmp_path):
    writer = TensorBoardWriter(tmp_path, config(), 1)
    writer.close(completed=False)
    assert "_hparams_/session_end_info" not in read(tmp_path).summary_metadata


def test_hyperparameters_are_flat_numbers_and_strings():
    flat = hyperparameters(config())
    assert flat["model.hidden_sizes"] == "[64, 64]"
    assert flat["ppo.normalize_obs"] == "false"
    assert flat["seed"] == 0
    assert "ppo.target_kl" not in flat, "null is left out"
    assert not [key for key in flat if key.startswith(("log.", "checkpoint."))]


# -- Event files.


def crc_bit_by_bit(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_has_the_value_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 511, 512, 513, 515, 1024, 2500])
def test_the_checksum_of_any_size_is_that_of_its_definition(size):
    content = bytes((7 * i + i // 256) % 256 for i in range(size))
    assert crc32c(content) == crc_bit_by_bit(content)


def test_an_event_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    writer = TensorBoardWriter(tmp_path, config(), 1)
    writer.write(report(1, num_ranks=1))
    assert stored(tmp_path, "train/entropy") == [512]
    writer.close()


def test_writing_imports_no_file_systems_of_tensorboard(tmp_path):
    code = f"""
import sys
from ddppo.config.settings import Config
from ddppo.records.tensorboard import TensorBoardWriter
TensorBoardWriter(__import__("pathlib").Path({str(tmp_path)!r}), Config(), 1).close()
assert not {{"torch.utils.tensorboard", "tensorboard.compat.tensorflow_stub", "boto3"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
