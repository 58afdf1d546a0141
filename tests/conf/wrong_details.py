"""Settings of PPO's details (docs/ppo_details.md) that cannot be: command lines with what is said of them."""

LINES = {
    "ppo.clip_schedule=liner": "must be one of none, linear, cosine (did you mean linear",
    "ppo.clip_schedule=adaptive": "ppo.clip_schedule=adaptive: must be one of none, linear, cosine",
}
