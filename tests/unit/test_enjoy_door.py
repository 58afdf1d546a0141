"""The door `ddppo.enjoy`: a policy in a window or in a file."""

import re

import pytest

from ddppo.enjoy import EnjoyConfig, enjoy
from ddppo.errors import ConfigError, EnvError
from ddppo.policies import playing
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.loading import trained
from ddppo.policies.playing import film_instead_of_window
from tests.unit.policy_tasks import run_folder


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return str(run_folder(tmp_path_factory.mktemp("run"), "CartPole-v1"))


def test_a_window_shows_the_episodes_that_evaluation_plays(cartpole, monkeypatch, capsys):
    pytest.importorskip("pygame", reason="needs the extra video: pip install '.[video]'")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    enjoy(EnjoyConfig(cartpole, episodes=2, fps=1000))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["episode 0", "episode 1"]


def test_without_a_screen_a_file_is_recommended(cartpole, monkeypatch):
    pygame = pytest.importorskip("pygame", reason="needs the extra video: pip install '.[video]'")
    pygame.display.quit()
    monkeypatch.setenv("SDL_VIDEODRIVER", "nothing")
    with pytest.raises(EnvError, match=r"CartPole-v1 failed: error: .*: without a screen write a file"):
        enjoy(EnjoyConfig(cartpole))


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_file_holds_a_picture_of_every_state(tmp_path, suffix, capsys):
    imageio = pytest.importorskip("imageio.v3", reason="needs the extra video: pip install '.[video]'")
    run = run_folder(tmp_path, "BitsEnv")
    out = tmp_path / f"policy.{suffix}"
    enjoy(EnjoyConfig(str(run), out=str(out), episodes=2, deterministic=False))
    assert "episode 1: return 15.00, 5 steps" in capsys.readouterr().out
    if suffix == "gif":  # of a film imageio's reader leaves its process to the garbage collector
        pictures = imageio.imread(out)
        assert pictures.shape[:1] == (12,)
        assert pictures[5].mean() == pytest.approx(200, abs=10)
    assert out.stat().st_size > 100
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"out": "policy.png"}, r"ends in \.gif or \.mp4"),
        ({"out": "/no/such/folder/policy.gif"}, "there is no folder /no/such/folder"),
        ({"run": "/no/such/run"}, "not a run folder"),
        ({"checkpoint": "best"}, r"best\.pt does not exist"),
    ],
)
def test_a_mistake_is_a_sentence(cartpole, options, said):
    if "out" in options:
        pytest.importorskip("imageio", reason="needs the extra video: pip install '.[video]'")
    with pytest.raises(ConfigError, match=said):
        enjoy(EnjoyConfig(**{"run": cartpole, **options}))


def test_a_task_without_pictures_says_so(tmp_path):
    pytest.importorskip("imageio", reason="needs the extra video: pip install '.[video]'")
    run = run_folder(tmp_path, "tests.unit.seen_tasks:seen/Picture-v0", normalized=False)
    with pytest.raises(ConfigError, match="render_mode"):
        enjoy(EnjoyConfig(str(run), out=str(tmp_path / "x.gif")))


@pytest.fixture
def no_display(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_display_the_episodes_go_to_a_new_file_and_the_command_says_so(no_display, capsys):
    pytest.importorskip("imageio", reason="needs the extra video: pip install '.[video]'")
    run = str(run_folder(no_display / "run", "BitsEnv"))
    for number, name in ((1, "BitsEnv-v0.mp4"), (2, "BitsEnv-v0_2.mp4")):
        enjoy(EnjoyConfig(run))
        said = capsys.readouterr().out
        assert re.search(rf"no display: the episodes go to {name} instead of a window", said), number
    assert len(list(no_display.glob("*.mp4"))) == 2


def test_a_task_that_prints_itself_needs_no_display(no_display):
    policy = LoadedPolicy(trained(run_folder(no_display / "run", "PrintedEnv")))
    assert film_instead_of_window(policy) is None


def test_missing_opengl_is_named_with_what_to_set(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    fault = EnvError(
        "Hopper-v5 failed: FatalError: no context, in __init__ (gymnasium/mujoco_rendering.py:76)"
    )
    assert "here with MUJOCO_GL=egl" in playing._how_to_draw(fault)
    assert "MUJOCO_GL=osmesa (apt install" in playing._how_to_draw(fault)
    assert playing._how_to_draw(EnvError("Hopper-v5 failed: KeyError: 'x'")) == ""
