"""Films of tasks: whatever render() returns is a right picture or is refused before play, and never costs scores."""

import json

import numpy as np
import pytest

from ddppo import evaluate
from ddppo.enjoy import EnjoyConfig, enjoy
from ddppo.errors import ConfigError, EnvError, TrainingError
from ddppo.policies.pictures import Film
from tests.unit.policy_tasks import run_folder

imageio = pytest.importorskip("imageio.v3", reason="needs the extra video: pip install '.[video]'")
RGB = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
GREY = np.stack([RGB[..., 0]] * 3, axis=-1)


def run_of(path, how):
    return run_folder(path, "DrawnEnv", kwargs={"how": how})


def frames_of(*rendered):
    film = Film("Task-v0", "video=true")
    for each in rendered:
        film.add(each)
    return film.frames


@pytest.fixture
def call(monkeypatch, capsys):
    """Call ddppo.evaluate in this process; returns (exit code, stdout, stderr)."""

    def call_door(*arguments):
        monkeypatch.setattr("sys.argv", ["evaluate.py", *map(str, arguments)])
        try:
            evaluate.main()
        except SystemExit as e:
            return e.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return call_door


@pytest.mark.parametrize(
    ("rendered", "frame"),
    [
        (RGB, RGB),
        (RGB[::-1, ::-1], RGB[::-1, ::-1]),
        (RGB.astype(np.int64), RGB),
        (RGB.astype(">u2"), RGB),
        (RGB / 255, RGB),
        ((RGB / 255).astype(np.float32), RGB),
        (RGB.astype(np.float32), RGB),
        (RGB > 40, np.where(RGB > 40, 255, 0)),
        (RGB[..., 0], GREY),
        (RGB[..., :1], GREY),
        (RGB[..., 0][None], GREY),
        (np.moveaxis(RGB, -1, 0), RGB),
        (np.dstack([RGB, RGB[..., :1]]), RGB),
        (RGB[None], RGB),
        ([RGB], RGB),
    ],
)
def test_what_means_a_picture_becomes_one(rendered, frame):
    (found,) = frames_of(rendered)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, frame)


def test_pictures_of_other_libraries_are_taken_for_what_they_hold():
    torch, image = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    for rendered in (torch.from_numpy(RGB), image.fromarray(RGB)):
        np.testing.assert_array_equal(frames_of(rendered)[0], RGB)


@pytest.mark.parametrize(
    ("rendered", "said"),
    [
        (None, "returned None"),
        ("red", "returned a str"),
        ((RGB, RGB), "returned a tuple"),
        (RGB.tolist(), "returned a list"),
        (3.0, "returned a float"),
        (np.zeros((8, 8, 2)), r"returned float64 \[8, 8, 2\]"),
        (np.zeros((2, 8, 8, 3)), r"returned float64 \[2, 8, 8, 3\]"),
        (np.zeros((0, 8, 3)), r"returned float64 \[0, 8, 3\]"),
        (np.zeros((8, 8, 3), complex), "returned complex128"),
        (np.full((8, 8, 3), "x"), "returned <U1"),
        (RGB * 1.0 - 9, "from -9 to 80"),
        (np.full((8, 8, 3), 256), "from 256 to 256"),
        (np.full((8, 8, 3), np.nan), "from nan to nan"),
    ],
)
def test_what_means_none_is_refused_with_what_came_and_what_is_wanted(rendered, said):
    with pytest.raises(ConfigError, match=f"video=true: Task-v0 draws no pictures.*{said}.*of uint8"):
        frames_of(rendered)


def test_an_array_that_the_task_draws_into_again_is_copied():
    canvas = RGB.copy()
    film = Film("Task-v0", "video=true")
    film.add(canvas)
    canvas[:] = 0
    np.testing.assert_array_equal(film.frames[0], RGB)


def test_floats_to_255_that_begin_with_a_black_frame_are_no_fractions(tmp_path):
    film = Film("Task-v0", "video=true")
    film.add(np.full((4, 4, 3), 1.0))
    film.add(np.full((4, 4, 3), 200.0))
    film.write(tmp_path / "x.gif", 10)
    assert [picture.max() for picture in imageio.imread(tmp_path / "x.gif")] == [1, 200]


def test_frames_of_several_sizes_are_padded_to_the_largest(tmp_path):
    film = Film("Task-v0", "video=true")
    for height, width in ((9, 5), (4, 8)):
        film.add(np.full((height, width, 3), 200, np.uint8))
    film.write(tmp_path / "x.gif", 10)
    first, second = imageio.imread(tmp_path / "x.gif")
    assert first.shape == second.shape == (9, 8, 3)
    assert (first[:, :5].min(), first[:, 5:].max()) == (200, 0)
    assert (second[:4].min(), second[4:].max()) == (200, 0)


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (84, 84, 3)])
def test_any_size_is_encoded_without_a_word(tmp_path, shape, capfd):
    film = Film("Task-v0", "video=true")
    for _ in range(3):
        film.add(np.zeros(shape, np.uint8))
    film.write(tmp_path / "x.mp4", 30)
    assert (tmp_path / "x.mp4").stat().st_size > 0
    assert capfd.readouterr() == ("", "")


def test_a_film_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no frame"):
        Film("Task-v0", "video=true").write(tmp_path / "x.gif", 10)


def test_an_encoder_that_fails_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("ffmpeg says\nmuch")

    monkeypatch.setattr(imageio, "imwrite", fail)
    film = Film("Task-v0", "video=true")
    film.add(RGB)
    with pytest.raises(TrainingError, match=r"x\.gif cannot be encoded: ffmpeg says$"):
        film.write(tmp_path / "x.gif", 10)
    assert list(tmp_path.iterdir()) == []


# -- ddppo.evaluate and ddppo.enjoy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "num_frames", "shape"), [("rgb", 6, (7, 5)), ("list", 15, (7, 5)), ("grows", 6, (11, 5))]
)
def test_a_video_shows_every_state(tmp_path, call, how, num_frames, shape):
    run = run_of(tmp_path, how)
    code, stdout, stderr = call(run, "episodes=1", "video=true", "video_format=gif", "json=true")
    assert (code, stderr) == (0, "")
    pictures = imageio.imread(json.loads(stdout)["video"])
    assert pictures.shape == (num_frames, *shape, 3)
    assert pictures[-1].max() >= 200


@pytest.mark.parametrize(("how", "said"), [("none", "returned None"), ("text", "returned a str")])
def test_what_is_no_picture_is_refused_before_an_episode_is_played(tmp_path, call, monkeypatch, how, said):
    monkeypatch.setattr("ddppo.policies.scores.evaluated", None)
    code, stdout, stderr = call(run_of(tmp_path, how), "video=true")
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [("raises", "the brush broke"), ("none later", "returned None"), ("leaves", "SystemExit")],
)
def test_a_video_that_fails_in_the_midst_of_its_episode_costs_no_scores(tmp_path, call, how, said):
    run, out = run_of(tmp_path, how), tmp_path / "scores.json"
    code, stdout, stderr = call(run, "episodes=2", "video=true", f"out={out}")
    assert code == 5
    assert "mean    15.00" in stdout
    assert stderr.startswith(f"error: the scores of {run} stand, but its video failed: ")
    assert said in stderr
    assert (
        f"repeat it by: python -m ddppo.evaluate run={run} checkpoint=last episodes=1 seed=0 video=true"
        in stderr
    )
    assert stderr.count("\n") == 1
    whole = json.loads(out.read_text())
    assert whole["returns"] == [15.0, 15.0]
    assert said in whole["video_failed"]


def test_a_video_that_is_interrupted_costs_no_scores(tmp_path, call):
    code, stdout, _ = call(run_of(tmp_path, "interrupted"), "episodes=2", "video=true")
    assert code == 130
    assert "mean    15.00" in stdout


def test_scores_are_printed_where_their_file_cannot_be_written(tmp_path, call, monkeypatch):
    def full(path, value):
        raise evaluate.StorageError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(evaluate, "write_json", full)
    code, stdout, stderr = call(run_of(tmp_path, "rgb"), "episodes=2", f"out={tmp_path / 'x.json'}")
    assert code == 5
    assert "mean    15.00" in stdout
    assert "No space left on device" in stderr


def test_a_run_that_fails_costs_the_others_no_scores(tmp_path, call, monkeypatch):
    from ddppo.policies import scores

    runs = [run_of(tmp_path / name, "rgb") for name in ("a", "b", "c")]
    played = scores.evaluated

    def fails(of, *args):
        if of.run_dir == runs[1]:
            raise TrainingError("the task broke")
        return played(of, *args)

    monkeypatch.setattr(scores, "evaluated", fails)
    code, stdout, stderr = call(*runs, "episodes=1")
    assert code == 5
    assert [line.split()[0] for line in stdout.splitlines()[1:3]] == [str(runs[0]), str(runs[2])]
    assert stderr == f"error: {runs[1]} has no scores: the task broke\n"


def test_enjoy_says_the_returns_of_a_film_that_fails_later(tmp_path, capsys):
    out = tmp_path / "x.gif"
    with pytest.raises(ConfigError, match="returned None"):
        enjoy(EnjoyConfig(str(run_of(tmp_path / "a", "none")), out=str(out)))
    assert capsys.readouterr().out == ""
    with pytest.raises(EnvError, match="the brush broke"):
        enjoy(EnjoyConfig(str(run_of(tmp_path / "b", "raises")), out=str(out)))
    assert not out.exists()
