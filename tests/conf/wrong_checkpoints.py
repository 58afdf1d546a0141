"""What a run cannot begin with, go on from or keep: command lines with what is said of them."""

LINES = {
    "resume=auto": "in a folder with a fixed name, and there is none: add hydra.run.dir=<folder>",
    "resume=auto hydra.run.dir=runs/${stamp:%H}": "is another at every start: add hydra.run.dir=<folder>",
    "resume=auto hydra.run.dir={run} ppo.gamma=0.5": "holds another run: settings differ: ",
    "resume=auto hydra.run.dir={run} env=pendulum": "choose another hydra.run.dir, or give the settings of that run",
    "resume=auto hydra.run.dir={list}": "config.yaml is not the configuration of a run: it holds a list",
    "resume=auto hydra.run.dir=/proc/nothing": "is not a folder that can be written to",
    "resume={run} init_from={run}": "exclude one another: a resumed run has its own parameters",
    "resume={run} ppo.total_steps=128 env.backend=sync": "keep env.backend and dist.topology: resume_state=approximate",
    "resume_state=roughly": "must be one of exact, approximate",
    "init_from={missing}": "there is no such run folder or checkpoint",
    "init_from={empty}": "not a run folder, it has no checkpoints",
    "init_from={uncheckpointed}": "not a run folder, it has no checkpoints",
    "init_from={file}": "is damaged, or not a checkpoint",
    "init_from={damaged}": "is damaged, and",
    "init_from={run} env=circuit": "no parameter fits the model of this run",
    "checkpoint.every_minutes=-1": "must be at least 0",
    "checkpoint.every_minutes=inf": "must be",
    "checkpoint.keep=0": "must be at least 1",
}
