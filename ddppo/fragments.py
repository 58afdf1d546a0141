"""The command `python -m ddppo.fragments`: how a topology shares the work among ranks, as a picture or as programs.

The picture shows which ranks step, act and learn, and their messages. With `out=<folder>` the command writes programs
instead: one for each role, from the templates in ddppo/templates/fragments. They train as ddppo.train does, without
evaluations and checkpoints, and are what a topology of one's own can start from (docs/guide/topology.md).
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ddppo.config.fields import setting
from ddppo.config.rank_rules import batch_shape
from ddppo.config.settings import Config
from ddppo.distributed.topologies.contract import Layout, Sizes
from ddppo.distributed.topologies.drawing import as_mermaid, as_svg, as_text
from ddppo.distributed.topologies.known import find
from ddppo.files import stored
from ddppo.launch.arguments import composed
from ddppo.options import door, parse, parted

_USAGE = """python -m ddppo.fragments [settings of ddppo.train] [key=value ...]
python -m ddppo.fragments distributed=sync_actors dist.world_size=5
python -m ddppo.fragments distributed=env_workers dist.world_size=5 format=mermaid
python -m ddppo.fragments distributed=ddp dist.world_size=4 format=svg out=ddp.svg
python -m ddppo.fragments env=cartpole distributed=sync_actors dist.world_size=5 out=programs"""


@dataclass(slots=True)
class FragmentsConfig:
    format: str | None = setting(
        None,
        "format of the picture; null is text without out=, and programs with it",
        choices=("text", "mermaid", "svg"),
    )
    out: str | None = setting(
        None,
        "with format=, a file for the picture; without it, a new folder for programs; null prints the picture",
    )


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    arguments, overrides = parted(FragmentsConfig, sys.argv[1:])
    options = parse(FragmentsConfig, arguments, usage=_USAGE)
    config = composed(overrides)
    if options.out is not None and options.format is None:
        from ddppo.distributed.topologies.programs import check_folder, write_programs

        folder = Path(options.out)
        check_folder(folder)
        for path in write_programs(config, fragments(config), folder, overrides):
            print(path)
        print(f"\nsh {folder / 'run.sh'}    # starts all {config.dist.world_size} ranks")
        return
    title = f"{config.dist.topology}, W={config.dist.world_size}, {config.env.id}"
    layout = fragments(config)
    graph = {
        "text": lambda: as_text(layout, f"{title}: {find(config.dist.topology).meaning}"),
        "mermaid": lambda: as_mermaid(layout),
        "svg": lambda: as_svg(layout, title),
    }[options.format or "text"]()
    if options.out is None:
        print(graph)
        return
    with stored(Path(options.out)):
        Path(options.out).write_text(graph, encoding="utf-8")


def fragments(config: Config) -> Layout:
    """Return the layout with the bytes of messages for this task and model. Raises ConfigError for a wrong run."""
    import numpy as np
    import torch

    from ddppo.algorithms.build import algorithm_class, build_networks
    from ddppo.distributed.gradient_sync import FlatParameters
    from ddppo.envs.probing.probe import probe
    from ddppo.launch.checks import check
    from ddppo.spaces import leaves

    # The sizes of messages follow from the task's spaces, the model's parameters and the batch.
    check(config)
    spec, shape = probe(config.env), batch_shape(config)
    model, kind = build_networks(config, spec), algorithm_class(config)
    acting = FlatParameters(model).slices(kind.synchronised)
    number = getattr(torch, config.dtype).itemsize
    mask = spec.mask_size or 0
    if spec.is_text:  # a step is a token, an int64; the task itself returns characters
        obs = action = 8
        raw_obs = sum(leaf.size for leaf in leaves(spec.obs))
    else:
        obs = mask + sum(leaf.size * (number if leaf.is_float else 1) for leaf in leaves(spec.obs))
        raw_obs = mask + sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in leaves(spec.obs))
        action = (number if spec.action.kind == "box" else 8) * int(np.prod(spec.action.shape))
    sizes = Sizes(
        num_envs=shape.num_envs,
        rollout_steps=shape.rollout_steps,
        num_gradients=shape.num_epochs * shape.num_minibatches,
        obs_bytes=obs,
        raw_obs_bytes=raw_obs,
        action_bytes=action,
        parameter_bytes=number * sum(p.numel() for p in model.parameters()),
        float_bytes=number,
        num_learners=getattr(config.dist, "num_learners", None),
        env_shares=tuple(getattr(config.dist, "env_shares", ())),
        acting_bytes=number * sum(end - start for start, end in acting),
        step_numbers=4 if kind.learner_class is not None else 1,  # PPO and GRPO, or others
        turns=(config.env.max_turns or shape.rollout_steps) if spec.is_text else 0,
        turn_bytes=spec.action.sizes[0] if spec.is_text else 0,
    )
    return find(config.dist.topology).of(config.dist.world_size, sizes)


if __name__ == "__main__":
    main()
