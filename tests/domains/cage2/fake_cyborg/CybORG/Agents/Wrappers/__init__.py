import numpy as np

from CybORG.CybORG import HOSTS

ON_HOSTS = (
    "Restore", "Remove", "Analyse", "DecoyApache", "DecoyFemitter", "DecoyHarakaSMPT", "DecoySmss", "DecoySSHD",
    "DecoySvchost", "DecoyTomcat", "DecoyVsftpd",
)  # fmt: skip


class ChallengeWrapper:
    """Speaks in numbers, as Gym did before 0.26; its order of actions is not that of the challenge."""

    def __init__(self, agent_name, env, reward_threshold=None, max_steps=None):
        assert agent_name == "Blue"
        self.env = env
        self.played = []
        self.actions = []  # before a reset CybORG's has those of Red

    def reset(self):
        self.list_actions()
        self.env.reset()
        return self.observation()

    def list_actions(self):
        kinds = {name: type(name, (), {}) for name in ("Sleep", "Monitor", *ON_HOSTS)}
        self.actions = [kinds["Monitor"](), kinds["Sleep"]()]
        for name in ON_HOSTS:
            for host in reversed(HOSTS):
                self.actions.append(kinds[name]())
                self.actions[-1].hostname = host

    def step(self, action=None):
        action = self.actions[action]
        self.played.append(f"{type(action).__name__} {getattr(action, 'hostname', '')}".strip())
        self.env.play(action)
        roots = sum("root" in users for users in self.env.sessions.values())
        return self.observation(), round(-0.1 * roots, 1), False, {}

    def observation(self):
        bits = [[0, 0, "root" in users, bool(users)] for users in self.env.sessions.values()]
        return np.array(bits, dtype=int).reshape(-1)

    def get_agent_state(self, agent):
        return self.env.get_agent_state(agent)

    def get_attr(self, attribute):
        return {"possible_actions": self.actions}[attribute]
