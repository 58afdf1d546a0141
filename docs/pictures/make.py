"""Make the pictures of the README and of the site again: about five minutes on two cores.

    python docs/pictures/make.py [name ...]     # lander, report, circuit, cage2, topologies; all without a name

Runs go to outputs/pictures, and a run that is there is not trained again. Pages become PNGs by chromium, or the
program that the variable CHROMIUM names.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image, ImageSequence

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
RUNS = CHECKOUT / "outputs" / "pictures"
STUDY = CHECKOUT / "experiments" / "scaling_slept_env" / "report" / "report.html"


def ddppo(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", f"ddppo.{command}", *arguments], cwd=CHECKOUT, check=True)


def train(name: str, *settings: str) -> Path:
    """Train into outputs/pictures/<name>, unless a complete run is there; return its folder."""
    run = RUNS / name
    ddppo("train", *settings, "seed=0", "resume=auto", f"hydra.run.dir={run}")
    return run


def photographed(page: str, picture: Path, width: int, height: int, colors: int = 128) -> None:
    """Write a PNG of an HTML page, as a browser shows its upper left part."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or "google-chrome"
    subprocess.run([
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--window-size={width},{height}", f"--screenshot={picture}", page,
    ], check=True, stderr=subprocess.DEVNULL)  # fmt: skip
    with Image.open(picture) as shown:
        shown.convert("RGB").quantize(colors).save(picture, optimize=True)


def lander() -> None:
    """LunarLander after training, a third of the frames at half the size."""
    film = RUNS / "lander.gif"
    ddppo("enjoy", str(train("lander", "env=lunarlander")), f"out={film}")
    with Image.open(film) as shown:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(shown)][::3]
    small = [frame.resize((360, 240), Image.Resampling.LANCZOS).quantize(32) for frame in frames]
    small[0].save(
        HERE / "lander.gif", save_all=True, append_images=small[1:], duration=60, loop=0, optimize=True
    )


def report() -> None:
    """The first screen of the report of experiments/scaling_slept_env."""
    photographed(STUDY.as_uri(), HERE / "report.png", 1100, 780, colors=64)


def circuit() -> None:
    """A circuit of 45 gates, and the 35 gates that `optimise` leaves of it within seconds."""
    smaller = "outputs/pictures/tof_3.qasm"  # relative: the picture has it in its title
    RUNS.mkdir(parents=True, exist_ok=True)
    ddppo("domains.circuits", "optimise", "tof_3", f"out={smaller}", "minutes=0.05")
    for which, name in (("tof_3", "before"), (smaller, "after")):
        picture = HERE / f"circuit_{name}.svg"
        ddppo("domains.circuits", "show", which, "format=svg", "width=760", f"out={picture}")


def cage2() -> None:
    """Step 75 of a game of CAGE 2, as the page of `ddppo.enjoy` draws it."""
    page = RUNS / "game.html"
    run = train("cage2", "env=cage2", "ppo.total_steps=500000", "dist.world_size=1", "eval.final_episodes=20")
    ddppo("enjoy", str(run), f"out={page}")
    photographed(f"{page.as_uri()}#75", HERE / "cage2.png", 1000, 660)


def topologies() -> None:
    """The pictures of docs/topology_graphs.md, with the settings that stand there."""
    page = (HERE.parent / "topology_graphs.md").read_text()
    for name, settings, picture in re.findall(
        r"## (\w+)[^\n]*\n(?:With `([^`]*)`\.\n)?\n!\[.*\]\((pictures/\w+\.svg)\)", page
    ):
        common = [
            "env=cartpole",
            f"distributed={name}",
            "dist.world_size=5",
            "env.num_envs=20",
            *settings.split(),
        ]
        ddppo("fragments", *common, "format=svg", f"out={HERE.parent / picture}")


if __name__ == "__main__":
    for make in (lander, report, circuit, cage2, topologies):
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            make()
