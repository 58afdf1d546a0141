"""Pictures of a game of CAGE 2: what they show is the game's true state, as text, as a page and as pixels."""

import numpy as np
import pytest

from ddppo.domains.cage2.drawing import HEIGHT, WIDTH, as_pixels, as_svg, as_text, scene
from ddppo.domains.cage2.env import CageEnv
from ddppo.domains.cage2.rules import ACTION, HOST
from ddppo.errors import ConfigError
from ddppo.policies.pictures import FilmPage, check_pictures


def played(actions, mode="ansi", **settings):
    """Return a game after the actions, and the rewards."""
    env = CageEnv(render_mode=mode, **settings)
    env.reset(seed=3)
    return env, [env.step(ACTION[action])[1] for action in actions]


def test_the_text_shows_who_holds_each_host_what_blue_believes_the_actions_and_the_score():
    env, rewards = played(["Sleep"] * 6)
    text = env.render()
    shown = {
        line.strip(" BR").split()[0]: line[:34] for line in text.splitlines() if line.startswith("   User")
    }
    held = {f"User{i}": int(env.games.compromised[0, HOST[f"User{i}"]]) for i in range(5)}
    assert held["User0"] == 2
    assert sum(level > 0 for level in held.values()) > 1
    for name, level in held.items():
        if name in shown:
            assert ("[root]" in shown[name], "[user]" in shown[name]) == (level == 2, level == 1)
    assert text.startswith(
        f"step 6 of 100 · score {sum(rewards):.1f}, last step {rewards[-1]:.1f} · OTService up"
    )
    assert "Blue: Sleep" in text
    assert "\nRed:  " in text


def test_the_hosts_of_the_last_actions_are_marked_and_decoys_counted():
    env, _ = played(["DecoyApache Op_Host0", "Restore Enterprise1"])
    lines = env.render().splitlines()
    assert any("B  Enterprise1" in line for line in lines)
    assert any("Op_Host0 1d" in line for line in lines)
    assert sum(line.count(" R ") + line.count("BR ") for line in lines[4:]) == 1  # Red scans a host


def test_before_the_first_step_nothing_has_happened():
    text = played([])[0].render()
    assert text.startswith("step 0 of 100 · score 0.0 · OTService up\nBlue: -\nRed:  -\n")


def test_a_service_that_is_down_is_said_with_its_cost():
    env, _ = played(["Sleep"] * 40)
    assert env.games.state_of.down[0]
    assert "OTService down: -10 a step" in env.render()


def test_the_page_and_the_pixels_draw_each_host_coloured_by_who_holds_it():
    env, rewards = played(["Sleep"] * 12)
    shown = scene(env.games, [ACTION["Sleep"]] * 12, rewards, 100)
    svg, pixels = as_svg(shown), as_pixels(shown)
    assert all(f">{name}</text>" in svg for name in HOST)
    assert svg.count('fill="#ef8a80"') == (env.games.compromised[0] == 2).sum()
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    red = (pixels == np.array([0xEF, 0x8A, 0x80])).all(axis=2)
    assert red.sum() > 5000 * (env.games.compromised[0] == 2).sum()
    assert as_text(shown) == env.render()


def test_pictures_show_the_score_of_the_game_without_alignment():
    env, rewards = played(["Restore Enterprise1", "Restore User1"], order="critical_first")
    assert sum(rewards) > 0  # with the alignment reward
    assert "score -2.0, last step -1.0" in env.render()


def test_a_page_of_a_game_holds_every_state_and_a_task_without_pages_is_refused(tmp_path):
    env, _ = played(["Sleep"] * 3, mode="html")
    page = FilmPage("ddppo/CAGE2-v0", "out=game.html")
    page.add(env.render())
    env.step(0)
    page.add(env.render())
    page.write(tmp_path / "game.html", fps=2)
    text = (tmp_path / "game.html").read_text()
    assert text.count('<div class="frame">') == 2
    assert 'max="1"' in text
    with pytest.raises(ConfigError, match=r"out=x: CartPole-v1 draws no page: .* returned NoneType"):
        FilmPage("CartPole-v1", "out=x").add(None)
    check_pictures(tmp_path / "game.html", "out=game.html")


def test_an_unknown_render_mode_is_refused():
    with pytest.raises(ConfigError, match="render_mode=film: one of human, ansi, html, rgb_array"):
        CageEnv(render_mode="film")
