"""Is every step of our CAGE 2 that of CybORG? Steps both side by side, and writes lockstep.csv.

python -m experiments.cage2.lockstep [--episodes 6] [--seed 0]     (CybORG installed: docs/cage2.md)

Both games get the same actions of Blue, and CybORG's agents and exploits get our random numbers in place of theirs.
Rewards, the 52 bits, Red's sessions and Red's operation have to be equal after each step. An episode ends with its
first difference, which is printed.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ddppo.domains.cage2 import rules
from ddppo.domains.cage2.cyborg import CyborgEnv
from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import (
    ACTION,
    ACTIONS,
    EXPLOIT_SLOT,
    GREEN_SLOT,
    HOST,
    HOSTS,
    NOBODY,
    PREFERRED,
)

NUM_STEPS = 100
OPERATIONS = {
    "Sleep": rules.SLEEP,
    "DiscoverRemoteSystems": rules.SWEEP,
    "DiscoverNetworkServices": rules.SCAN,
    "ExploitRemoteService": rules.EXPLOIT,
    "PrivilegeEscalate": rules.ESCALATE,
    "Impact": rules.IMPACT,
}
ANOTHER_SERVICE = {("EternalBlue", "Enterprise1"), ("EternalBlue", "Enterprise2"), ("BlueKeep", "User3")}
ON_DECOY = {("SSHBruteForce", "User2"), ("SSHBruteForce", "User3")}
_FOLDER = Path(__file__).parent


class Dice:
    """Stands for the module `random` in CybORG's modules, and draws what our game drew in the same step."""

    def __init__(self) -> None:
        self.numbers = np.zeros(rules.SLOTS)  # of the step
        self.target = ""  # of Red, in our game
        self.candidates: set[str] = set()  # hosts among which our Meander chose
        self.host_of: dict[Any, str] = {}  # by address

    def first_host(self, addresses: Sequence[Any]) -> Any:
        """Choose the host with which B_line begins."""
        return next(address for address in addresses if self.host_of[address] == self.target)

    def order(self, hosts: list[Any]) -> None:
        """Sort hosts; Meander takes the first that it may. Hosts that ours may not take come first, then our target."""

        def rank(host: Any) -> int:
            name = self.host_of.get(host, host)
            return 1 if name == self.target else 2 if name in self.candidates else 0

        hosts.sort(key=rank)

    def other_exploit(self, weights: Sequence[float]) -> list[float]:
        """Choose one of the exploits that are not preferred."""
        place = max(self.numbers[EXPLOIT_SLOT] - PREFERRED, 0) / (1 - PREFERRED) * len(weights)
        return [sorted(weights, reverse=True)[int(place)]]

    def green(self, options: Sequence[Any]) -> Any:
        """Choose whether Green scans, and then the host."""
        sixteenth = int(self.numbers[GREEN_SLOT] * 16)
        return options[int(sixteenth < 8)] if len(options) == 2 else options[sixteenth]

    def take_over(self, game: Any) -> None:
        """Replace the random numbers of CybORG's agents and exploits."""
        of_class: dict[str, dict[str, Callable[..., Any]]] = {
            "B_lineAgent": {"choice": self.first_host},
            "RedMeanderAgent": {"shuffle": self.order},
            "GreenAgent": {"choice": self.green},
            "ExploitRemoteService": {
                "random": lambda: self.numbers[EXPLOIT_SLOT],
                "choices": self.other_exploit,
            },
            "ExploitAction": {"random": lambda: self.numbers[rules.DETECTION_SLOT]},
        }
        for name, functions in of_class.items():
            module: Any = sys.modules[_class_named(name, type(game).__module__).__module__]
            # The module has `import random`, or `from random import` of these functions.
            if isinstance(getattr(module, "random", None), (ModuleType, SimpleNamespace)):
                module.random = SimpleNamespace(**functions)
            else:
                vars(module).update(functions)


def _class_named(name: str, of_package: str) -> Any:
    """Return the class `name` of the package of a module, wherever its modules define it."""
    package = of_package.split(".")[0]
    for path, module in list(sys.modules.items()):
        found = getattr(module, name, None)
        if path.split(".")[0] == package and isinstance(found, type) and found.__module__ in sys.modules:
            return found
    raise ImportError(f"{package} has no class {name}")


# -- Blue: each returns an action ------------------------------------------------------------------------------------


def anything(rng: np.random.Generator, games: Games) -> int:
    return int(rng.integers(len(ACTIONS)))


def repairs(rng: np.random.Generator, games: Games) -> int:
    """Half of the time nothing, else an Analyse, a Remove or a Restore."""
    kinds = [ACTION[f"{kind} Defender"] for kind in ("Analyse", "Remove", "Restore", "Restore")]
    return int(rng.integers(2)) if rng.random() < 0.5 else int(rng.choice(kinds) + rng.integers(len(HOSTS)))


def decoys(rng: np.random.Generator, games: Games) -> int:
    """Three times in four a decoy, often on the host that Red attacks, else a repair."""
    target = int(games.state_of.target[0])
    host = target if target < NOBODY and rng.random() < 0.5 else int(rng.integers(len(HOSTS)))
    if rng.random() < 0.75:
        return ACTION[f"{rules.DECOYS[rng.integers(len(rules.DECOYS))].name} {HOSTS[host].name}"]
    return ACTION[f"Restore {HOSTS[host].name}"]


def sshd(rng: np.random.Generator, games: Games) -> int:
    """Decoys of SSH where they work, and Restores there."""
    kind = "DecoySSHD" if games.state_of.time[0] < 12 or rng.random() < 0.5 else "Restore"
    return ACTION[f"{kind} {rng.choice(['User2', 'User3'])}"]


def cut_off(rng: np.random.Generator, games: Games) -> int:
    """Restore the Enterprise hosts just before B_line scans Op_Server0, most of the time."""
    phase, first = int(games.state_of.phase[0]), int(games.state_of.first[0])
    before = {8: 5, 9: 5, 10: 9}.get(phase)  # the phase that attacks the host to restore
    if before is None or rng.random() < 0.2:
        return anything(rng, games) if rng.random() < 0.2 else ACTION["Sleep"]
    return ACTION[f"Restore {HOSTS[rules.TARGETS[before, first]].name}"]


BLUES = {"anything": anything, "repairs": repairs, "decoys": decoys, "sshd": sshd, "cut_off": cut_off}


# -- Both games, side by side ----------------------------------------------------------------------------------------


class Pair:
    """One of our games and one of CybORG's."""

    def __init__(self, red: str, has_green: bool) -> None:
        self.red = red
        self.ours = Games(1, red, "active" if has_green else "sleep", faithful_ot_quirk=True)
        self.theirs = CyborgEnv(red, NUM_STEPS, true_state_every=1)
        self.controller = self.theirs.game.get_attr("environment_controller")
        self.dice = Dice()
        self.dice.take_over(self.controller)
        if has_green:
            green = _class_named("GreenAgent", type(self.controller).__module__)
            self.controller.agent_interfaces["Green"].agent = green()

    def play(self, blue: str, seed: int, seen: Counter[str]) -> tuple[int, str]:
        """Play an episode; return the steps that are equal, and the first difference or nothing."""
        rng = np.random.default_rng(seed)
        self.ours.reset(np.zeros(1, np.int64), rng.integers(2**64, size=1, dtype=np.uint64))
        self.theirs.reset(seed=seed)
        self.dice.host_of = dict(self.controller.state.ip_addresses)
        for step in range(NUM_STEPS):
            action = BLUES[blue](rng, self.ours)
            difference = self._step(action, seen)
            if difference:
                return step, f"{self.red}, {blue}, seed {seed}, step {step}, {ACTIONS[action]}: {difference}"
        return NUM_STEPS, ""

    def _step(self, action: int, seen: Counter[str]) -> str:
        state, phase = self.ours.state_of, int(self.ours.state_of.phase[0])
        self.dice.numbers = rules.draws(state.key, state.time)[:, 0]
        self.dice.candidates = self._candidates() if self.red == "meander" else set()
        (reward,) = self.ours.step(np.array([action]))
        operation, target = int(state.operation[0]), int(state.target[0])
        self.dice.target = "" if target == NOBODY else HOSTS[target].name
        obs, their_reward, *_ = self.theirs.step(action)
        # Count where the rules matter that were found last.
        green = getattr(self.controller.get_last_action("Green"), "hostname", None)
        exploit = type(getattr(self._red_action(), "sub_action", None)).__name__, self.dice.target
        attacked = self.dice.target if operation in (rules.SCAN, rules.EXPLOIT) else None
        own = ACTIONS[action].partition(" ")[2] if rules.OPENED[action] else ""
        seen["begins_again"] += phase == 11 and int(state.phase[0]) == rules.FIRST_SCAN
        seen["decoy_beside_connections"] += own in (attacked, green)
        seen["exploit_of_another_service"] += exploit in ANOTHER_SERVICE
        seen["ssh_on_its_decoy"] += exploit in ON_DECOY
        seen["green_beside_ftp"] += exploit == ("FTPDirectoryTraversal", green)
        pairs: list[tuple[str, Any, Any]] = [
            ("reward", round(float(reward), 1), round(float(their_reward), 1)),
            ("Red's operation", (operation, self._area(operation, target)), self._their_operation()),
        ]
        for h, host in enumerate(HOSTS):
            bits = slice(4 * h, 4 * h + 4)
            pairs += [
                (f"bits of {host.name}", self.ours.obs[0, bits].tolist(), obs[bits].tolist()),
                (f"access to {host.name}", self.ours.compromised[0, h], self.theirs.compromised[h]),
            ]
        return "; ".join(
            f"{name} {ours}, CybORG's {theirs}" for name, ours, theirs in pairs if ours != theirs
        )

    def _candidates(self) -> set[str]:
        """Return the hosts among which our Meander is about to choose."""
        # A random number is the place of the host among them: these numbers meet each of 13 hosts or fewer.
        num_places = 2 * len(HOSTS)
        trials = rules.State(num_places)
        trials.records[:] = self.ours.state_of.records
        rules.meander(trials, np.tile((np.arange(num_places) + 0.5) / num_places, (rules.SLOTS, 1)))
        return {HOSTS[target].name for target in trials.target.tolist() if target < NOBODY}

    def _red_action(self) -> Any:
        return self.controller.get_last_action("Red")

    def _their_operation(self) -> tuple[int, str]:
        action = self._red_action()
        operation = OPERATIONS[type(action).__name__]
        host: Any = getattr(action, "hostname", self.dice.host_of.get(getattr(action, "ip_address", None)))
        if hasattr(action, "subnet"):
            host = next(name for address, name in self.dice.host_of.items() if address in action.subnet)
        return operation, self._area(operation, HOST.get(host, NOBODY))

    @staticmethod
    def _area(operation: int, host: int) -> str:
        """Return the target's name: of a sweep the subnet, else the host."""
        if operation == rules.SLEEP or host == NOBODY:
            return ""
        return HOSTS[host].subnet if operation == rules.SWEEP else HOSTS[host].name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=6, help="of each red, green and blue")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    total: Counter[str] = Counter()
    for red in rules.AGENTS:
        for has_green in (False, True):
            pair = Pair(red, has_green)
            for place, blue in enumerate(BLUES):
                seen: Counter[str] = Counter()
                steps, differences = 0, []
                for episode in range(given.episodes):
                    equal, difference = pair.play(blue, (given.seed + episode) * len(BLUES) + place, seen)
                    steps += equal
                    differences += [difference] if difference else []
                total.update(seen)
                green = "active" if has_green else "sleep"
                counts = {"steps": steps, "episodes": given.episodes, "that differ": len(differences)}
                rows.append({"red": red, "green": green, "blue": blue, **counts, **seen})
                print(*rows[-1].values(), *differences, sep="\n  " if differences else " ", flush=True)
    with (_FOLDER / "lockstep.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    steps, differ = (sum(int(str(row[key])) for row in rows) for key in ("steps", "that differ"))
    print(f"{steps:,} steps are equal; {differ} of {given.episodes * len(rows)} episodes differ")
    print(", ".join(f"{name}: {count}" for name, count in total.items()))


if __name__ == "__main__":
    main()
