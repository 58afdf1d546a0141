"""Write the reference pages that follow from the code: every setting, and the Python API.

    python docs/reference.py <folder>     # settings.md and api.md in it; `make docs` calls it

Settings come from their dataclasses, as in --help; the API from signatures and docstrings. The pages are not kept in
the repository, so they cannot be out of date.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT))

from ddppo.config.compose import register  # noqa: E402
from ddppo.config.help import shown_default  # noqa: E402
from ddppo.config.presets import presets, schemas  # noqa: E402
from ddppo.config.settings import config_class  # noqa: E402
from ddppo.config.variants import SECTIONS_WITH_VARIANTS, keys_of, known  # noqa: E402

# -- Settings.

SETTINGS = """# Settings

Which settings are there, with which defaults and rules? This page is made from the dataclasses of `ddppo/config` and
of the plugins by `docs/reference.py`; `python -m ddppo.train --help` prints the same, and the presets of each group.
A command sets them by `key=value`; a key that does not exist is refused with the nearest that does. {count} settings.
"""
# The sections in which a reader looks first.
TITLES = {"": "Run", "ppo": "ppo: PPO and GRPO", "dist": "dist: ranks and topologies", "env": "env: the task"}


def settings_page() -> str:
    """Return the page: a table for each section, and for keys that only some variants of a section have."""
    register()
    tables, count = [], 0
    for heading, rows in [*_tables(config_class()), *_of_hydra()]:
        tables += [f"\n{'###' if heading.startswith('with ') else '##'} {heading}"]
        tables += ["| setting | default | meaning |", "|---|---|---|", *rows]
        count += len(rows)
    return SETTINGS.format(count=count) + "\n".join(tables) + "\n"


def _tables(section: type, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    own = [item for item in fields(section) if not _section(item) and item.metadata["meaning"]]
    if own:
        yield TITLES.get(prefix.rstrip("."), prefix.rstrip(".")), [_row(item, prefix) for item in own]
    for item in fields(section):
        if not prefix and item.name in SECTIONS_WITH_VARIANTS:
            yield from _variants(item.name)
        elif (inner := _section(item)) is not None:
            yield from _tables(inner, f"{prefix}{item.name}.")


def _of_hydra() -> Iterator[tuple[str, list[str]]]:
    """Yield the tables of launchers and sweepers, such as hydra/launcher=slurm."""
    for schema, section in schemas().items():
        group, _, name = schema.rpartition("/")
        if group.startswith("hydra/"):
            users = [option for option in presets(group) if option.startswith(name.removesuffix("_schema"))]
            rows = [
                _row(item, group.replace("/", ".") + ".")
                for item in fields(section)
                if item.metadata.get("meaning")
            ]
            yield f"{group}={' and '.join(users)}", rows


def _variants(section: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the table of what all variants have, then one for each set of variants that share further keys."""
    base, chosen_by = SECTIONS_WITH_VARIANTS[section].base, SECTIONS_WITH_VARIANTS[section].chosen_by
    yield from _tables(base, f"{section}.")
    owners: dict[str, list[str]] = {}
    for name, kind in known(section).items():
        for item in fields(kind):
            if item.name not in keys_of(base) and item.metadata.get("meaning"):
                owners.setdefault(_row(item, f"{section}."), []).append(name)
    for names in dict.fromkeys(map(tuple, owners.values())):
        rows = [row for row, of_row in owners.items() if tuple(of_row) == names]
        yield f"with {' or '.join(f'`{chosen_by}={name}`' for name in names)}", rows


def _section(item: Any) -> type | None:
    inner = item.default_factory
    return inner if isinstance(inner, type) and is_dataclass(inner) else None


def _row(item: Any, prefix: str) -> str:
    rule, meaning = item.metadata, item.metadata["meaning"]
    if not all(choice in meaning for choice in rule["choices"]):
        meaning += f" ({', '.join(rule['choices'])})"
    words = {"low": "at least", "above": "above", "high": "at most"}
    bounds = [
        f"{word} {rule[name]:g}"
        for name, word in words.items()
        if abs(rule[name] or 0) < 1e15 and rule[name] is not None
    ]
    meaning += f" ({', '.join(bounds)})" if bounds else ""
    default = "required" if item.default == "???" else f"`{shown_default(item) or chr(34) * 2}`"
    return f"| `{prefix}{item.name}` | {default} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    """Return text as Markdown that shows it as it is; what is between backticks stays code."""
    parts = text.split("`")
    parts[::2] = [escape(part, quote=False).replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


# -- The API.

API = """# Python API

Which functions and classes may a program of yours use? They are grouped by what you want to do, with their signatures
and docstrings, which `docs/reference.py` reads from the code. Examples: [python.md](python.md) and
[the guide](guide/README.md).
"""
PUBLIC = {
    "Train, evaluate, act": (
        "ddppo.api:train", "ddppo.api:evaluate", "ddppo.policies.acting:load_policy",
        "ddppo.policies.acting:LoadedPolicy", "ddppo.api:Summary", "ddppo.errors:ConfigError",
        "ddppo.errors:TrainingError",
    ),
    "A network of your own": (
        "ddppo.models.actor_critic:ActorCritic", "ddppo.models.recurrent:Recurrent", "ddppo.config.fields:setting",
    ),
    "An algorithm of your own": ("ddppo.algorithms.contract:Algorithm", "ddppo.algorithms.contract:Transitions"),
    "A topology of your own": (
        "ddppo.distributed.topologies.contract:TopologySpec", "ddppo.distributed.topologies.base:Topology",
        "ddppo.distributed.topologies.base:RankContext",
    ),
    "Environments": ("ddppo.envs.vec_env:VecEnv", "ddppo.envs.vec_env:EnvStep"),
    "A package of your own": ("ddppo.plugins:Plugin", "ddppo.plugins:Backend"),
    "Served environments and groups": (
        "ddppo.serve.client.sessions:SyncEnvPool", "ddppo.serve.client.sessions:AsyncEnvPool",
        "ddppo.domains.text.groups:SyncGroupPool", "ddppo.domains.text.groups:AsyncGroupPool",
    ),
}  # fmt: skip


def api_page() -> str:
    lines = [API]
    for heading, paths in PUBLIC.items():
        lines.append(f"## {heading}\n")
        for path in paths:
            module, name = path.split(":")
            lines.append(_described(getattr(importlib.import_module(module), name), name, module))
    return "\n".join(lines)


def _described(thing: Any, name: str, module: str) -> str:
    source = module.replace(".", "/") + ".py"
    text = f"### {name}\n\n`from {module} import {name}` · [source](../{source})\n"
    text += f"\n```python\n{name}{_signature(thing)}\n```\n\n{_docstring(thing)}\n"
    if not inspect.isclass(thing):
        return text
    for method, function in vars(thing).items():
        plain = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
        plain = plain.fget if isinstance(plain, property) else plain
        if (
            (method.startswith("_") and method != "__call__")
            or not inspect.isfunction(plain)
            or not plain.__doc__
        ):
            continue
        shown = "" if isinstance(function, property) else _signature(plain)
        text += f"\n**`{name}.{method}`**\n\n```python\n{method}{shown}\n```\n\n{_docstring(plain)}\n"
    return text


def _signature(thing: Any) -> str:
    try:
        shown = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    shown = re.sub(r"<factory>|<object object at 0x\w+>", "...", shown)
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)  # an annotation that is a string
    shown = re.sub(
        r"\b(?:collections\.abc|typing|pathlib|os|numpy\.random|ddppo(?:\.[a-z_\d]+)+)\.(?=[A-Z])", "", shown
    )
    if len(shown) < 90:
        return shown
    parts = re.split(r",\s(?![^\[\(]*[\]\)])", shown[1 : shown.rindex(")")])
    return "(\n" + "".join(f"    {part},\n" for part in parts) + shown[shown.rindex(")") :]


def _docstring(thing: Any) -> str:
    """Return a docstring as Markdown: `Args:` and its like in bold with their lines as a list, the rest as it is."""
    text = (
        "" if (own := thing.__doc__) is None or own.startswith(f"{getattr(thing, '__name__', '')}(") else own
    )
    shown = []
    for line in inspect.cleandoc(text).splitlines():
        heading = re.fullmatch(r"(Args|Returns|Raises|Example|Attributes):", line)
        argument = re.fullmatch(r"    (\w+(?:, \w+)*): (.*)", line)
        if heading:
            shown += ["", f"**{heading[1]}**", ""]
        elif argument:
            shown.append(f"- `{argument[1]}`: {_cell(argument[2])}")
        else:
            shown.append(line if line.startswith("    ") and not line.startswith("        ") else _cell(line))
    return "\n".join(shown)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.md").write_text(settings_page())
    (folder / "api.md").write_text(api_page())
