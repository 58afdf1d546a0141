"""CAGE 2 a second time, one game in plain Python: slow, and written from the rules of the challenge.

It shares no table, no code and no representation with `ddppo.domains.cage2`: sessions are a list, ports are sets,
and what the monitor sees is worked out of single connections. Where the rules are silent it follows docs/cage2.md.
"""

from dataclasses import dataclass, field

PORTS_OF = {
    "Defender": {22, 53, 68},
    "Enterprise0": {22},
    **{name: {22, 80, 135, 139, 443, 445, 3389} for name in ("Enterprise1", "Enterprise2")},
    **{name: {22} for name in ("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")},
    **{name: {21, 22} for name in ("User0", "User1")},
    "User2": {135, 139, 445, 3389},
    "User3": {25, 80, 443, 3389},
    "User4": {22, 25, 80, 443, 3390},
}
NAMES = list(PORTS_OF)
WINDOWS = {"Enterprise1", "Enterprise2", "User0", "User1", "User2"}
WEIGHTS = dict(zip(NAMES, [0.1, 1, 1, 1, 0.1, 0.1, 0.1, 1, 0, 0.1, 0.1, 0.1, 0.1], strict=True))
SERVER = "Op_Server0"
REVEALED_BY = {
    **dict.fromkeys(["User1", "User2"], "Enterprise1"),
    **dict.fromkeys(["User3", "User4"], "Enterprise0"),
    "Enterprise2": SERVER,
}
GREEN_TARGETS = ["User0", "User1", "User2", "User3", "User4", "Enterprise0", "Enterprise1", "Enterprise2"]

DECOYS = {  # port that it opens, port that must be free, systems; in the order of actions
    "Apache": (80, 80, "Linux, Windows"),
    "Femitter": (21, 21, "Windows"),
    "Haraka": (25, 25, "Linux"),
    "Smss": (139, 139, "Windows"),
    "SSHD": (22, 22, "Linux, Windows"),
    "Svchost": (3389, 3389, "Windows"),
    "Tomcat": (443, 443, "Linux, Windows"),
    "Vsftpd": (80, 21, "Linux"),
}
BLOCKS = ["Analyse", "Remove", *DECOYS, "Restore"]  # of 13 actions each

PREFERENCE = ["FTP", "Haraka", "SQL", "HTTPS", "HTTP", "EternalBlue", "BlueKeep", "SSH"]
EXPLOITS = dict(zip(PREFERENCE, [21, 25, 3390, 443, 80, 139, 3389, 22], strict=True))  # and their ports
FTP = {"FTP": "root", "SSH": "user"}
WEB = {"HTTPS": "removable", "HTTP": "removable"}
OFFICE = {**WEB, "BlueKeep": "root", "EternalBlue": "fails", "SSH": "user"}
OUTCOMES = {  # on the host's own services; of the hosts that are not named, SSH alone
    "Defender": {"SSH": "fails"},
    **dict.fromkeys(["Enterprise1", "Enterprise2"], OFFICE),
    **dict.fromkeys(["User0", "User1"], FTP),
    "User2": {"EternalBlue": "root", "BlueKeep": "removable"},
    "User3": {**WEB, "Haraka": "root", "BlueKeep": "fails"},
    "User4": {**WEB, "Haraka": "root", "SQL": "root", "SSH": "user"},
}
RED_PORT = 4444  # where an exploit calls back to,
OTHER_PORT = 50000  # from a port that no service has

ACTIVITY_BITS = {"none": [0, 0], "scan": [1, 0], "exploit": [1, 1]}
BELIEF_BITS = {"no": [0, 0], "unknown": [1, 0], "user": [0, 1], "privileged": [1, 1]}


def subnet(name):
    return name.rstrip("0123456789").split("_")[0].replace("Defender", "Enterprise")


def draws(key, step):
    """Return the step's four numbers in [0, 1): splitmix64 of the key, which counts four a step."""
    numbers = []
    for slot in range(4):
        z = (key + (4 * step + slot + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        numbers.append(((z ^ (z >> 31)) >> 11) / 2**53)
    return numbers


def pick(candidates, number):
    return candidates[int(number * len(candidates))]


@dataclass
class Session:
    is_root: bool
    is_removable: bool = False  # while it is a user's
    is_first: bool = False  # Red's own on User0, which a Restore leaves


@dataclass
class Host:
    name: str
    sessions: list = field(default_factory=list)
    has_files: bool = False
    decoys: set = field(default_factory=set)
    seen: set = field(default_factory=set)  # ports, by Red's last scan
    belief: str = "no"  # what Blue takes it for

    @property
    def open_ports(self):
        return PORTS_OF[self.name] | self.decoys

    @property
    def has_root(self):
        return any(session.is_root for session in self.sessions)


class Sleeper:
    def choose(self, game, number):
        return None, None


class BLine:
    """Goes straight to the server, by one of the four hosts of users."""

    AFTER_FAILURE = (0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13)

    def __init__(self):
        self.place = 0
        self.plan = None

    def choose(self, game, number):
        if self.plan is None:
            self.plan = self.by_way_of(pick(["User1", "User2", "User3", "User4"], number))
        else:
            self.place = min(self.place + 1, 14) if game.has_succeeded else self.AFTER_FAILURE[self.place]
        if self.plan[self.place] == ("exploit", SERVER) and not game.hosts[SERVER].seen:
            self.place = 1  # it has no address to attack, and begins again
        return self.plan[self.place]

    def by_way_of(self, user):
        def taken(name):
            return [("scan", name), ("exploit", name), ("escalate", name)]

        plan = [("sweep", "User"), *taken(user), *taken(REVEALED_BY[user]), ("sweep", "Enterprise")]
        return [*plan, *taken("Enterprise2"), *taken(SERVER), ("impact", SERVER)]


class Meander:
    """Takes whatever it knows of, one kind of operation before the next."""

    def __init__(self):
        self.swept, self.scanned = set(), set()
        self.exploited, self.escalated = set(), set()  # or tried, and not failed since
        self.entered = set()  # hosts on which an exploit ever succeeded

    def choose(self, game, number):
        self.learn(game)
        if SERVER in self.escalated:
            return "impact", SERVER
        subnets = [s for s in ("Enterprise", "Op", "User") if s in game.known_subnets - self.swept]
        known = [name for name in NAMES if name in game.known_hosts]
        for operation, candidates, done in (
            ("sweep", subnets, self.swept),
            ("scan", [name for name in known if name not in self.scanned], self.scanned),
            ("escalate", [name for name in NAMES if self.may_escalate(name)], self.escalated),
            ("exploit", [name for name in known if name not in self.exploited], self.exploited),
        ):
            if candidates:
                chosen = pick(candidates, number)
                done.add(chosen)
                return operation, chosen
        return None, None

    def may_escalate(self, name):
        is_in = name in self.exploited if name in self.entered else name == "User0"
        return is_in and name not in self.escalated

    def learn(self, game):
        operation, target = game.operation, game.target
        if operation == "exploit" and game.has_succeeded:
            self.entered.add(target)
        elif operation == "exploit":
            self.exploited.discard(target)
            operational = {name for name in self.escalated if subnet(name) == "Op"}
            self.drop(operational or {n for n in self.escalated if n.startswith("Enterprise")})
        elif operation in ("escalate", "impact") and not game.has_succeeded:
            self.drop({target})

    def drop(self, names):
        self.escalated -= names
        self.exploited -= names


AGENTS = {"sleep": Sleeper, "b_line": BLine, "meander": Meander}


class Game:
    """One episode. In a step Blue acts, then Green, then Red, then the monitor looks."""

    def __init__(self, key, red, has_green, has_quirk):
        self.key, self.has_green, self.has_quirk = key, has_green, has_quirk
        self.time = 0
        self.hosts = {name: Host(name) for name in NAMES}
        self.hosts["User0"].sessions = [Session(is_root=True, is_first=True)]
        self.is_down = self.is_immune = False  # OTService
        self.red = AGENTS[red]()
        self.operation = self.target = None  # Red's last
        self.has_succeeded = False
        self.known_hosts, self.known_subnets = {"User0"}, {"User"}
        self.knows_service = False
        self.connections = {}  # of this step: host -> (its port, Red's or None)
        self.new_decoy = None  # the host on which Blue set a decoy in this step

    def step(self, action):
        """Do Blue's action; return the reward, the 52 bits, and per host 0, 1 (a user's session), 2 (root)."""
        green, red, *exploit = draws(self.key, self.time)
        self.connections = {name: [] for name in NAMES}
        verb, host, self.new_decoy = None, None, None
        if action >= 2:
            block, index = divmod(action - 2, 13)
            verb, host = BLOCKS[block], self.hosts[NAMES[index]]
        finds_files = verb == "Analyse" and host.has_files
        self.defend(verb, host)
        if self.has_green and int(16 * green) < 8:
            self.connect(GREEN_TARGETS[int(16 * green)])
        self.operation, self.target = self.red.choose(self, red)
        self.has_succeeded = self.attack(*exploit)
        obs = self.observe(verb, host, finds_files)
        self.time += 1
        loss = sum(WEIGHTS[name] for name in NAMES if self.hosts[name].has_root)
        reward = -round(loss + 10 * self.is_down + (verb == "Restore"), 1)
        return reward, obs, [2 if h.has_root else int(bool(h.sessions)) for h in self.hosts.values()]

    def defend(self, verb, host):
        if verb == "Remove":
            host.sessions = [s for s in host.sessions if s.is_root or not s.is_removable]
        elif verb in DECOYS:
            opens, checks, systems = DECOYS[verb]
            if checks not in host.open_ports and ("Windows" if host.name in WINDOWS else "Linux") in systems:
                host.decoys.add(opens)
                self.new_decoy = host.name
        elif verb == "Restore":
            host.sessions = [s for s in host.sessions if s.is_first]
            host.decoys, host.has_files = set(), False
            if host.name == SERVER:
                self.is_down = False
                self.is_immune |= self.has_quirk

    def connect(self, name):
        """Scan a host: connect to each of its ports."""
        self.connections[name] += [(port, None) for port in self.hosts[name].open_ports]

    def has_way(self, to):
        return to != "Op" or any(h.sessions for h in self.hosts.values() if subnet(h.name) == "Enterprise")

    def attack(self, choice, detection):
        """Do Red's operation; return whether it succeeded."""
        if self.operation is None:
            return False
        if self.operation == "sweep":
            return self.sweep()
        host = self.hosts[self.target]
        if self.operation == "scan":
            if self.has_way(subnet(host.name)):
                host.seen = host.open_ports
                self.connect(host.name)
            return True  # without a way too
        if self.operation == "exploit":
            return self.has_way(subnet(host.name)) and self.exploit(host, choice, detection)
        if not host.sessions:
            return False
        return self.escalate(host) if self.operation == "escalate" else self.harm()

    def sweep(self):
        if not self.has_way(self.target):
            return False
        self.known_hosts |= {name for name in NAMES if subnet(name) == self.target}
        return True

    def escalate(self, host):
        host.has_files |= not host.has_root
        for session in host.sessions:
            session.is_root = True
        if host.name in REVEALED_BY:
            self.known_hosts.add(REVEALED_BY[host.name])
        self.known_subnets.add(subnet(host.name))
        self.knows_service |= host.name == SERVER
        return True

    def harm(self):
        self.is_down |= self.knows_service and not self.is_immune
        return self.knows_service

    def exploit(self, host, choice, detection):
        name = self.chosen_exploit(host.seen, choice)
        if name is None or EXPLOITS[name] not in host.open_ports:
            return False
        port, is_detected = EXPLOITS[name], detection < 0.95
        is_decoy = port not in PORTS_OF[host.name]
        outcome = "fails" if is_decoy else OUTCOMES.get(host.name, {"SSH": "user"})[name]
        made = self.connections[host.name]
        if name == "SSH":
            made += [(port, None)] * 10  # a password each
        elif is_decoy:
            made += [(port, None)] * 2
        if outcome == "fails":
            return False
        made.append((port, None))
        if name != "SSH":
            host.has_files = True
            if is_detected:
                made.append((OTHER_PORT, RED_PORT))
        host.sessions.append(Session(outcome == "root", is_detected and outcome == "removable"))
        return True

    def chosen_exploit(self, seen, number):
        allowed = [name for name, port in EXPLOITS.items() if port in seen]
        if "SQL" in allowed and not seen & {80, 443}:
            allowed.remove("SQL")
        if len(allowed) > 1 and number >= 0.75:
            return pick(allowed[1:], (number - 0.75) / 0.25)
        return allowed[0] if allowed else None

    def observe(self, verb, own, finds_files):
        if verb == "Restore":
            own.belief = "no"
        elif verb == "Remove" and own.belief != "no":
            own.belief = "unknown"
        activities = {name: activity(made, name == self.new_decoy) for name, made in self.connections.items()}
        for name in NAMES:
            if activities[name] == "exploit":
                self.hosts[name].belief = "user"
        if finds_files:
            own.belief = "privileged"
        bits = [ACTIVITY_BITS[activities[h.name]] + BELIEF_BITS[h.belief] for h in self.hosts.values()]
        return [bit for four in bits for bit in four]


def activity(connections, has_new_decoy):
    """Return what the monitor takes a host's connections of one step for. It lists a new decoy with them."""
    num_entries, ports = len(connections) + has_new_decoy, {port for port, _ in connections}
    if num_entries >= 3 and len(ports) >= 3:
        return "scan"
    is_answered = any(red_port == RED_PORT for _, red_port in connections)
    if is_answered or (num_entries >= 3 and len(ports) == 1):
        return "exploit"
    return "none" if has_new_decoy or not connections else "scan"
