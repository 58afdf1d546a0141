"""Files of rules: a line that says what made them, then one rule a line; read only if whole and true."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddppo.domains.circuits.quantum.rules.rule import Rule, canonical, parse
from ddppo.domains.circuits.quantum.rules.verify import TOLERANCE, difference
from ddppo.errors import ConfigError
from ddppo.files import write_text

VERSION = 1
PACKAGED = Path(__file__).with_name("nam.rules")
_NAME = "ddppo rules"
_REMEDY = "make it again by `python -m ddppo.domains.circuits rules out=...`"


class RuleFile(NamedTuple):
    """The rules of a file, and what its first line says of their making: command, seconds, counts."""

    rules: tuple[Rule, ...]
    made_by: Mapping[str, Any]


def write(path: Path, rules: Sequence[Rule], made_by: Mapping[str, Any]) -> None:
    """Write the rules, those of one source side by side."""
    body = "".join(f"{rule}\n" for rule in rules)
    header = {"format": _NAME, "version": VERSION, "rules": len(rules), "sha256": _sum(body), **made_by}
    write_text(path, f"{json.dumps(header)}\n{body}")


@functools.cache
def packaged() -> RuleFile:
    """Return the rules that come with the package."""
    return read(PACKAGED)


def read(path: Path) -> RuleFile:
    """Return the rules of a file. Raises ConfigError where it is damaged, of another version, or not all are true."""
    try:
        first, _, body = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"rules={path}: cannot be read ({e}): name a file of rules, or {_REMEDY}") from e
    header = _header(path, first)
    lines = body.splitlines()
    if header.get("sha256") != _sum(body) or header.get("rules") != len(lines):
        raise ConfigError(
            f"rules={path}: damaged, its {len(lines)} rules are not those that its first line counts and sums up: "
            f"{_REMEDY}"
        )
    rules = [_true(line, f"rules={path}, line {number}", _REMEDY) for number, line in enumerate(lines, 2)]
    return RuleFile(tuple(rules), header)


def read_own(path: Path) -> list[Rule]:
    """Return the rules that somebody wrote, one a line; # begins a remark. Raises ConfigError unless all are true."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"own={path}: cannot be read ({e}): name a text file with a rule a line") from e
    return [
        _true(line, f"own={path}, line {number}", "correct it, or leave it out")
        for number, line in enumerate((line.partition("#")[0] for line in lines), 1)
        if line.strip()
    ]


def _true(line: str, where: str, remedy: str) -> Rule:
    """Return the rule of a line. Raises ConfigError where it is none, or not true."""
    try:
        rule = parse(line)
    except ValueError as e:
        raise ConfigError(f"{where}: {e}: {remedy}") from e
    if not (wrong := difference(rule)) < TOLERANCE:
        raise ConfigError(f"{where}: `{line.strip()}` is not true, its sides differ by {wrong:.1g}: {remedy}")
    return rule


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Return them so that rules of one source stand side by side, small before large, each once."""
    sources: dict[Any, list[Rule]] = {}
    for rule in dict.fromkeys(map(canonical, rules)):
        sources.setdefault(rule.source, []).append(rule)
    return [rule for group in sources.values() for rule in group]


def _header(path: Path, line: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _NAME:
        raise ConfigError(f"rules={path}: no file of rules, its first line does not say so: {_REMEDY}")
    if header.get("version") != VERSION:
        raise ConfigError(
            f"rules={path}: of version {header.get('version')}, and this program reads version {VERSION}: {_REMEDY}"
        )
    return header


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
