"""Every rule of CAGE 2 about exploits, decoys, Blue's powers, rewards and observations, one position each."""

import numpy as np
import pytest

from ddppo.domains.cage2 import PLUGIN, rules
from ddppo.domains.cage2.rules import ACTIONS, HOST, HOSTS, OP_SERVER, ports_as_bits
from tests.domains.cage2.cage2_play import (
    EXPLOIT,
    NO,
    PRIVILEGED,
    QUIET,
    SCAN,
    UNKNOWN,
    USER,
    act,
    compromised,
    exploit,
    hold,
    play,
    scan,
    seen,
    tell,
)

OP_HOST0 = HOST["Op_Host0"]
SYSTEM, OF_USER, NOTHING = 2, 1, 0
WEB = {"HTTPSRFI": OF_USER, "HTTPRFI": OF_USER}
OFFICE = {**WEB, "BlueKeep": SYSTEM, "SSHBruteForce": OF_USER, "EternalBlue": NOTHING}
LINUX_BOX = {"SSHBruteForce": OF_USER}
OUTCOMES = {  # of every exploit that a host's own ports allow
    "Defender": {"SSHBruteForce": NOTHING},
    "Enterprise0": LINUX_BOX,
    "Enterprise1": OFFICE,
    "Enterprise2": OFFICE,
    "Op_Host0": LINUX_BOX,
    "Op_Host1": LINUX_BOX,
    "Op_Host2": LINUX_BOX,
    "Op_Server0": LINUX_BOX,
    "User1": {"FTPDirectoryTraversal": SYSTEM, "SSHBruteForce": OF_USER},
    "User2": {"EternalBlue": SYSTEM, "BlueKeep": OF_USER},
    "User3": {"HarakaRCE": SYSTEM, **WEB, "BlueKeep": NOTHING},
    "User4": {"HarakaRCE": SYSTEM, "SQLInjection": SYSTEM, **WEB, "SSHBruteForce": OF_USER},
}
OPERATIONAL = ["Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"]
LINUX_SERVERS = ["Defender", "Enterprise0", *OPERATIONAL]
DECOYS = {  # decoy -> the exploit that it catches, and the hosts that it works on
    "Apache": ("HTTPRFI", [*LINUX_SERVERS, "User0", "User1", "User2"]),
    "Femitter": ("FTPDirectoryTraversal", ["Enterprise1", "Enterprise2", "User2"]),
    "HarakaSMPT": ("HarakaRCE", LINUX_SERVERS),
    "Smss": ("EternalBlue", ["User0", "User1"]),
    "SSHD": ("SSHBruteForce", ["User2", "User3"]),
    "Svchost": ("BlueKeep", ["User0", "User1"]),
    "Tomcat": ("HTTPSRFI", [*LINUX_SERVERS, "User0", "User1", "User2"]),
    "Vsftpd": (None, [*LINUX_SERVERS, "User3", "User4"]),
}


@pytest.fixture(params=["C++", "NumPy"], autouse=True)
def _stepped_by(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr("ddppo.domains.cage2.games.step_in_cpp", lambda: None)
    elif reason := PLUGIN.cpp.why_not():
        pytest.skip(reason)


def game(num_games=1, **settings):
    """Return games in which Red has a way to every subnet."""
    games = play(num_games, **settings)
    hold(games, "Enterprise0", "lasting")
    return games


@pytest.mark.parametrize("host", OUTCOMES)
def test_an_exploit_comes_to_what_its_host_allows(host):
    for name, outcome in OUTCOMES[host].items():
        games = play(64)  # some of which detect it; and to SQL there is an alternative
        hold(games, "Enterprise1" if host == "Enterprise0" else "Enterprise0", "lasting")
        exploit(games, host, name)
        assert compromised(games, host).max() == outcome, name
        assert games.state_of.success.all() == games.state_of.success.any() == (outcome != NOTHING), name
        shows = EXPLOIT if outcome != NOTHING or name == "SSHBruteForce" else QUIET
        assert max(seen(games, host, i)[0] for i in range(64)) == shows, name


def test_red_itself_gets_system_or_a_user_on_user0_where_it_began():
    for name in ("FTPDirectoryTraversal", "SSHBruteForce"):
        games = game()
        exploit(games, "User0", name)
        assert games.state_of.success[0]
        assert compromised(games, "User0")[0] == SYSTEM


@pytest.mark.parametrize("decoy", DECOYS)
def test_a_decoy_works_where_its_port_is_free_and_the_system_is_its_own(decoy):
    for host in HOSTS:
        games = game()
        act(games, f"Decoy{decoy} {host.name}")
        is_there = bool(games.state_of.decoys[0].any())
        assert is_there == (host.name in DECOYS[decoy][1]), host.name
    assert sum(action.startswith(f"Decoy{decoy} ") for action in ACTIONS) == len(HOSTS)


@pytest.mark.parametrize("decoy", [name for name, (caught, _) in DECOYS.items() if caught])
def test_an_exploit_that_hits_a_decoy_fails_and_looks_like_a_scan_but_that_of_ssh(decoy):
    caught, hosts = DECOYS[decoy]
    for host in hosts:
        games = game()
        act(games, f"Decoy{decoy} {host}")
        before = compromised(games, host)[0]
        exploit(games, host, caught)
        assert not games.state_of.success[0]
        assert seen(games, host) == ((EXPLOIT, USER) if caught == "SSHBruteForce" else (SCAN, NO))
        assert compromised(games, host)[0] == before


def test_vsftpd_can_be_set_again_and_catches_nothing_where_a_service_has_its_port():
    games = game()
    for _ in range(2):
        act(games, "DecoyVsftpd Enterprise0")
        exploit(games, "Enterprise0", "HTTPRFI")
        assert not games.state_of.success[0]
    games = game()
    act(games, "DecoyVsftpd User3")
    exploit(games, "User3", "HTTPRFI")
    assert games.state_of.success[0]


def test_red_sees_a_decoy_when_it_scans_again_and_tries_it_in_vain_when_it_is_gone():
    games = game()
    scan(games, "Enterprise0")
    ports = games.state_of.seen[0, 1]
    act(games, "DecoyHarakaSMPT Enterprise0")
    assert games.state_of.seen[0, 1] == ports
    scan(games, "Enterprise0")
    assert games.state_of.seen[0, 1] != ports
    hold(games, "Enterprise1", "lasting")
    act(games, "Restore Enterprise0")
    exploit(games, "Enterprise0", "HarakaRCE")
    assert not games.state_of.success[0]
    assert seen(games, "Enterprise0")[0] == QUIET


def test_red_takes_the_preferred_exploit_three_times_in_four_and_else_any_other():
    games = game(40_000)
    tell(games, rules.EXPLOIT, "User4")
    scan(games, "User4")
    tell(games, rules.EXPLOIT, "User4")
    act(games)
    root = (compromised(games, "User4") == SYSTEM).mean()  # Haraka, or SQL, one of four others
    by_ssh = (
        (games.state_of.lasting & (1 << 12)) != 0
    ).mean()  # SSH, and what of two others was not detected
    assert root == pytest.approx(0.75 + 0.25 / 4, abs=0.01)
    assert by_ssh == pytest.approx(0.25 / 4 * (1 + 2 * 0.05), abs=0.005)


def test_an_exploit_is_detected_in_19_of_20_cases_and_else_looks_like_a_scan():
    games = game(40_000)
    exploit(games, "Enterprise1", "HTTPSRFI")
    activity = games.obs.reshape(-1, 13, 4)[:, 2, :2].copy()
    assert (activity[:, 0] == 1).all()
    assert activity[:, 1].mean() == pytest.approx(0.95, abs=0.005)
    act(games, "Remove Enterprise1")  # ends those that were detected, and only those
    np.testing.assert_array_equal(compromised(games, "Enterprise1") == NOTHING, activity[:, 1] == 1)


@pytest.mark.parametrize(
    ("host", "name", "ends"),
    [
        ("Enterprise1", "HTTPRFI", True),
        ("User2", "BlueKeep", True),
        ("User4", "SSHBruteForce", False),
        ("User1", "FTPDirectoryTraversal", False),
    ],
)
def test_remove_ends_sessions_of_users_but_those_of_ssh(host, name, ends):
    games = game()
    exploit(games, host, name)
    assert seen(games, host) == (EXPLOIT, USER)
    act(games, f"Remove {host}")
    assert (compromised(games, host)[0] == NOTHING) == ends
    assert seen(games, host) == (QUIET, UNKNOWN)


def test_an_escalated_session_is_ended_by_restore_alone():
    games = game()
    exploit(games, "Enterprise1", "HTTPRFI")
    tell(games, rules.ESCALATE, "Enterprise1")
    act(games)
    assert compromised(games, "Enterprise1")[0] == SYSTEM
    act(games, "Remove Enterprise1")
    assert compromised(games, "Enterprise1")[0] == SYSTEM
    assert act(games, "Restore Enterprise1")[0] == -1.0
    assert compromised(games, "Enterprise1")[0] == NOTHING
    assert seen(games, "Enterprise1")[1] == NO


def test_red_keeps_system_on_user0_when_that_is_restored():
    games = game()
    act(games, "Restore User0")
    assert compromised(games, "User0")[0] == SYSTEM


def test_remove_leaves_a_host_that_is_taken_for_clean_as_it_is():
    games = game()
    act(games, "Remove User3")
    assert seen(games, "User3") == (QUIET, NO)


@pytest.mark.parametrize(("name", "has_files"), [("HTTPSRFI", True), ("SSHBruteForce", False)])
def test_analyse_finds_the_files_of_every_exploit_but_ssh(name, has_files):
    games = game()
    exploit(games, "Enterprise1", name)
    act(games, "Analyse Enterprise1")
    assert seen(games, "Enterprise1")[1] == (PRIVILEGED if has_files else USER)
    exploit(games, "Enterprise1", "SSHBruteForce")  # and an exploit that is seen has the last word
    assert seen(games, "Enterprise1")[1] == USER


def test_analyse_finds_the_files_of_an_escalation_until_a_restore():
    games = game()
    exploit(games, "Op_Host1", "SSHBruteForce")
    tell(games, rules.ESCALATE, "Op_Host1")
    act(games, "Analyse Op_Host1")  # which comes before Red
    assert seen(games, "Op_Host1")[1] == USER
    act(games, "Analyse Op_Host1")
    assert seen(games, "Op_Host1")[1] == PRIVILEGED
    act(games, "Restore Op_Host1")
    act(games, "Analyse Op_Host1")
    assert seen(games, "Op_Host1")[1] == NO


@pytest.mark.parametrize(
    ("host", "name"),
    [("Enterprise1", "EternalBlue"), ("Enterprise2", "EternalBlue"), ("User3", "BlueKeep")],
)
def test_an_exploit_of_a_port_without_the_service_that_it_attacks_leaves_no_event(host, name):
    games = play(200, green="active")
    hold(games, "Enterprise0", "lasting")
    exploit(games, host, name)
    assert not games.state_of.success.any()
    assert not games.state_of.files.any()
    activity = games.obs.reshape(-1, 13, 4)[:, HOST[host]]
    assert not activity[:, 1:].any()
    assert 0 < activity[:, 0].mean() < 0.2  # Green's scans alone


@pytest.mark.parametrize("host", ["User2", "User3"])
def test_ssh_on_its_decoy_tries_ten_passwords_on_one_port_and_reads_as_an_exploit(host):
    games = game()
    act(games, f"DecoySSHD {host}")
    exploit(games, host, "SSHBruteForce")
    assert not games.state_of.success[0]
    assert compromised(games, host)[0] == NOTHING
    assert seen(games, host) == (EXPLOIT, USER)
    act(games, f"Restore {host}")
    exploit(games, host, "SSHBruteForce")  # the decoy is gone
    assert seen(games, host) == (QUIET, NO)


@pytest.mark.parametrize(
    ("decoy", "operation", "shows"),
    [
        # The monitor lists the new decoy and the connections of the step: a scan has at least 3 entries on 3 ports,
        # an exploit 3 on one port, or a connection from port 4444; any other list that begins with a decoy is nothing.
        ("DecoyTomcat Enterprise0", "scan", QUIET),  # the decoy, ports 22 and 443
        ("DecoyTomcat Defender", "scan", SCAN),  # the decoy, ports 22, 53, 68 and 443
        ("DecoySmss User1", "scan", SCAN),  # the decoy, ports 21, 22 and 139
        (
            "DecoyTomcat Enterprise0",
            "HTTPSRFI",
            EXPLOIT,
        ),  # the decoy, and port 443 twice: the exploit that it caught
        ("DecoyTomcat Enterprise0", "SSHBruteForce", EXPLOIT),  # port 22 eleven times
        ("DecoySmss User1", "FTPDirectoryTraversal", EXPLOIT),  # port 21, and one from 4444
        ("DecoyTomcat Enterprise0", None, QUIET),  # the decoy alone
        ("DecoyFemitter Enterprise0", "scan", SCAN),  # the system is wrong, so there is no decoy
    ],
)
def test_a_decoy_set_in_the_same_step_is_listed_with_what_happens_on_its_host(decoy, operation, shows):
    games, host = game(), decoy.split()[1]
    hold(games, "Enterprise1", "lasting")
    if operation == "scan":
        scan(games, host, decoy)
    elif operation is None:
        tell(games, rules.SCAN, "User4")
        act(games, decoy)
    else:
        exploit(games, host, operation, decoy)
    assert seen(games, host)[0] == shows
    if operation == "scan":  # the next one reads as ever
        scan(games, host)
        assert seen(games, host)[0] == SCAN


def test_a_missed_exploit_reads_as_nothing_in_the_step_that_sets_a_decoy():
    games = game(4000)
    exploit(games, "Enterprise1", "HTTPSRFI", "DecoyFemitter Enterprise1")
    activity = games.obs.reshape(-1, 13, 4)[:, 2, :2]
    assert {tuple(row) for row in activity.astype(int)} == {(0, 0), (1, 1)}
    assert activity[:, 1].mean() == pytest.approx(0.95, abs=0.02)


def test_greens_scan_of_two_ports_reads_as_nothing_where_a_decoy_is_set():
    games = play(400, red="sleep", green="active")
    act(games, "DecoyTomcat Enterprise0")
    assert not games.obs.reshape(-1, 13, 4)[:, 1].any()
    act(games)
    assert games.obs.reshape(-1, 13, 4)[:, 1, 0].any()


def test_greens_scan_hides_an_exploit_where_it_reaches_other_ports_too():
    games = play(4000, green="active")
    hold(games, "Enterprise0", "lasting")
    exploit(games, "User4", "HarakaRCE")  # 5 ports: of a scan and an exploit only a scan is seen
    activity = games.obs.reshape(-1, 13, 4)[:, 12, :2]
    assert (activity[:, 0] == 1).all()
    assert activity[:, 1].mean() == pytest.approx(0.95 * (1 - 1 / 16), abs=0.02)
    assert {tuple(row) for row in games.obs.reshape(-1, 13, 4)[:, 8, :2].astype(int)} == {(0, 0), (1, 0)}
    exploit(
        games, "User1", "FTPDirectoryTraversal"
    )  # 2 ports, and a third one on which it is answered: a scan
    assert games.obs.reshape(-1, 13, 4)[:, 9, 1].mean() == pytest.approx(0.95 * (1 - 1 / 16), abs=0.02)
    exploit(games, "User1", "SSHBruteForce")  # 11 events on one port and a scan of another: a scan
    assert games.obs.reshape(-1, 13, 4)[:, 9, 1].mean() == pytest.approx(1 - 1 / 16, abs=0.02)
    exploit(games, "Enterprise0", "SSHBruteForce")  # its only port
    assert (games.obs.reshape(-1, 13, 4)[:, 1, 1] == 1).all()


def test_green_scans_eight_hosts_alike_in_half_of_the_steps():
    games = play(16_000, red="sleep", green="active")
    act(games)
    scanned = games.obs.reshape(-1, 13, 4)[:, :, 0].mean(0)
    np.testing.assert_allclose(scanned[[1, 2, 3, 8, 9, 10, 11, 12]], 1 / 16, atol=0.01)
    assert not scanned[[0, 4, 5, 6, 7]].any()


def test_the_reward_weighs_the_hosts_on_which_red_has_root():
    for h, host in enumerate(HOSTS):
        games = play(red="sleep")
        games.state_of.root[:] |= 1 << h
        assert act(games)[0] == -host.tenths / 10
    games = play(red="sleep")
    games.state_of.lasting[:] = (1 << 13) - 1
    assert act(games)[0] == 0.0
    games.state_of.root[:] = (1 << 13) - 1
    assert act(games)[0] == -4.8
    assert act(games, "Restore User1")[0] == -5.7


def impacted(**settings):
    """Return a game in which Red has root on Op_Server0 and has harmed OTService, and the reward of that step."""
    games = game(**settings)
    exploit(games, "Op_Server0", "SSHBruteForce")
    tell(games, rules.ESCALATE, "Op_Server0")
    act(games)
    tell(games, rules.IMPACT, "Op_Server0")
    return games, act(games)[0]


def test_impact_costs_10_in_each_step_until_the_server_is_restored():
    games, reward = impacted()
    assert reward == -11.0
    assert act(games, "Remove Op_Server0")[0] == -11.0
    assert act(games, "Restore Op_Server0")[0] == -1.0
    assert not games.state_of.success[0]


@pytest.mark.parametrize(("quirk", "reward"), [(False, -11.0), (True, -1.0)])
def test_after_a_restore_impact_costs_nothing_where_that_quirk_is_wanted(quirk, reward):
    games, _ = impacted(faithful_ot_quirk=quirk)
    act(games, "Restore Op_Server0")
    exploit(games, "Op_Server0", "SSHBruteForce")
    tell(games, rules.ESCALATE, "Op_Server0")
    act(games)
    tell(games, rules.IMPACT, "Op_Server0")
    assert act(games)[0] == reward
    assert games.state_of.success[0]


def test_impact_needs_a_session_and_knowledge_of_the_service():
    games = game()
    hold(games, "Op_Server0")  # but no escalation there told of the service
    tell(games, rules.IMPACT, "Op_Server0")
    assert act(games)[0] == -1.0
    games, _ = impacted()
    games.state_of.down[:] = False
    games.state_of.root[:] ^= 1 << OP_SERVER
    games.state_of.lasting[:] ^= 1 << OP_SERVER
    tell(games, rules.IMPACT, "Op_Server0")
    assert act(games)[0] == 0.0


@pytest.mark.parametrize(
    ("operation", "succeeds", "shows"),
    [(rules.SWEEP, False, QUIET), (rules.SCAN, True, SCAN), (rules.EXPLOIT, False, EXPLOIT)],
)
def test_red_reaches_the_operational_subnet_from_an_enterprise_host_alone(operation, succeeds, shows):
    for host, has_way in (("User1", False), ("Op_Server0", False), ("Enterprise2", True)):
        games = play()
        hold(games, host)
        games.state_of.seen[:, OP_HOST0] = ports_as_bits(22)
        tell(games, operation, "Op_Host0")
        act(games)
        assert games.state_of.success[0] == (succeeds or has_way)  # a scan finds nothing, and does not fail
        assert seen(games, "Op_Host0")[0] == (shows if has_way else QUIET)


def test_an_escalation_reveals_the_next_host():
    revealed = {"User1": 2, "User2": 2, "User3": 1, "User4": 1, "Enterprise2": OP_SERVER}
    for host, known in revealed.items():
        games = play()
        hold(games, host, "lasting")
        tell(games, rules.ESCALATE, host)
        games.state_of.known[:] = 0
        act(games)
        assert games.state_of.known[0] == 1 << known
        assert compromised(games, host)[0] == SYSTEM
