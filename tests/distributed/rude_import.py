"""The rude twin of rude_tasks.py, as rude by its import as by all that follows."""

import gymnasium as gym

from tests.distributed.rude_tasks import HARMLESS, RUDE, START_METHOD, Rude, misbehave

misbehave([each for each in (*RUDE, *HARMLESS) if each != START_METHOD])
gym.register("RudeByImport-v0", entry_point=Rude, max_episode_steps=10)
