import random

import numpy as np

USERS = [f"User{i}" for i in range(5)]
HOSTS = [
    "Defender",
    *(f"Enterprise{i}" for i in range(3)),
    *(f"Op_Host{i}" for i in range(3)),
    "Op_Server0",
    *USERS,
]


class CybORG:
    """In every step Red gets a session on a host, by the dice of both generators of the process; Restore ends those."""

    def __init__(self, scenario_file, environment="sim", env_config=None, agents=None):
        self.scenario_file, self.agents = scenario_file, agents
        self.num_reads = 0
        self.reset()

    def reset(self, agent=None):
        self.sessions = {host: [] for host in HOSTS}
        self.sessions["User0"] = ["SYSTEM"]

    def play(self, action):
        if type(action).__name__ == "Restore":
            self.sessions[action.hostname] = []
        self.sessions[random.choice(HOSTS)].append(["user", "root"][np.random.randint(2)])

    def get_agent_state(self, agent_name):
        assert agent_name == "True"
        self.num_reads += 1
        blue = {"Agent": "Blue", "Username": "SYSTEM"}
        hosts = {
            host: {
                "Sessions": [blue, *({"Agent": "Red", "Username": user} for user in users)],
                "Processes": [],
            }
            for host, users in self.sessions.items()
        }
        return {"success": "TRUE", **hosts, "Defender_router": {}}
