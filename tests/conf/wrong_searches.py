"""Settings of contexts and of searches that cannot be: command lines with what is said of them."""

_TASK = "env=gym env.id=tests.domains.cage2.ordered:tests/Ordered-v0 ppo.rollout_steps=10 search.name=orders"
_RUN = f"{_TASK} search.budget_episodes=80 ppo.total_steps=800"
_BUDGET = "search.budget_episodes=80 ppo.rollout_steps=10 ppo.total_steps=800"

LINES = {
    "env.context=0": "env.context=0: must be at least 1",
    "env.context=3 env.backend=gym_vector": "which resets environments without options: use env.backend=sync or pool",
    "env.context=3 env.backend=batched": "with env.context=3 every environment is wrapped separately",
    "search.beta=3": "search.beta=3.0 has no effect without a search: use experiment=workflows, or leave it out",
    "search.inherit=same": "search.inherit=same has no effect without a search",
    f"{_TASK} search.budget_episodes=80": "use ppo.total_steps=800",
    f"{_RUN} env.num_envs=100 search.budget_episodes=80": "is less than one episode of each of the 100 environments",
    f"{_RUN} search.inherit=best": "search.inherit=best: must be one of nothing, shared, same, nearest",
    f"{_RUN} search.gate_compliance=1.5": "search.gate_compliance=1.5: must be at most 1",
    f"{_RUN} search.max_episodes_per_order=0": "must be at least 1",
    f"{_RUN} search.beta=-1": "search.beta=-1.0: must be at least 0",
    f"{_RUN} distributed=async_actors dist.world_size=3": "all environments get the next order together",
    f"{_RUN} ppo.algorithm=grpo": "use ppo.algorithm=ppo",
    f"{_RUN} ppo.normalize_obs=true": "change with every trial, so that a kept policy would see other observations",
    f"{_RUN} env.backend=remote": "use env.backend=auto",
    f"{_RUN} search.name=order": "must be one of orders (did you mean orders?), or null",
    f"{_RUN} search.name=no_such_pkg.searches:make": "cannot be made: ModuleNotFoundError",
    f"{_RUN} search.name=tests.conf.wrong_searches:nothing": "has no ask(): see ddppo.domains.cage2.search.campaign.Pr",
    f"search.name=orders {_BUDGET}": "env.id=CartPole-v1 observes no context of 25 numbers",
    f"search.name=orders {_BUDGET} env.context=25": "publishes no results of episodes, which a search compares",
}


def nothing(**settings):
    return object()
