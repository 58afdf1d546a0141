"""Sweeps of hydra/sweeper=gp_ucb that cannot be, with what is said of them."""

LINES = {
    "": "has nothing to choose: give a setting an interval or several values",
    "ppo.gamma=0.9": "has nothing to choose",
    "ppo.gamma=interval(1,0)": "must be two finite numbers, the lower one first",
    "ppo.learning_rate=tag(log,interval(0,1))": "no logarithm at its lower end: must be above 0",
    "ppo.gamma=tag(lin,interval(0,1))": "the only tag is log, of an interval or a range",
    "ppo.num_epochs=interval(1.5,4)": "ppo.num_epochs is a whole number, and so must the ends be",
    "ppo.gamma=interval(0,1) hydra.sweeper.direction=minimize": "would look for the worst",
    "ppo.gamma=interval(0,1) objective=time_to_target": "hydra.sweeper.direction=minimize",
    "ppo.gamma=interval(0,1) hydra.sweeper.n_trials=0": "hydra.sweeper.n_trials=0: must be at least 1",
    "ppo.gamma=interval(0,1) hydra.sweeper.beta=-1": "hydra.sweeper.beta=-1.0: must be at least 0",
    "ppo.gamma=interval(0,1) hydra.sweeper.n_jobs=many": "hydra.sweeper.n_jobs",
    "ppo.gamma=interval(0,1) hydra.sweeper.samples=3": "hydra.sweeper.samples",
    "ppo.gamma=interval(0,1) hydra.sweeper.params=3": "hydra.sweeper.params",
    "ppo.gama=interval(0,1)": "did you mean ppo.gamma",
}
