"""The command `python -m ddppo.rollouts`: rollouts of a run on the terminal, as a page, and as a log for Inspect.

`view` is the command; `fitting` applies the filters, `listed` and `in_full` are the terminal's views, `page` makes the
HTML file and `write_inspect` the `.eval` file. Texts of rollouts are shown, never interpreted: a policy may type
anything, HTML and control characters of terminals included.
"""

import html
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from omegaconf import MISSING
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddppo.config.fields import setting
from ddppo.domains.text.rollouts import RolloutRecord, read_rollouts
from ddppo.errors import ConfigError, RunFolderError, near
from ddppo.files import jsonable, replacing, write_text

_LISTED = 20  # rollouts of a list, unless `most` says otherwise
_COLUMNS = (
    *("name", "task", "tier", "return", "advantage", "success", "ended by", "turns", "tokens"),
    "last line",  # of the policy
)
_BETWEEN = 3  # blanks between two columns
_MOST_WIDE = 10_000  # columns of a terminal: rich narrows no column of a table that fits
_ROUNDING = 1e-12
_IN_FILE_NAMES = " !#$&'()+,;=@[]{}"  # beside letters, digits and _.-~
_MOST_NAMED = 12  # values that a message lists
# Characters that change what a terminal or browser shows around them: controls, and marks of writing direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(slots=True)
class RolloutsConfig:
    run: str = setting(MISSING, "the run folder")
    # Which rollouts.
    name: str | None = setting(None, "one rollout in full, by its name in the list, such as 12.5")
    task: str | None = setting(None, "rollouts of this task")
    tier: str | None = setting(None, "rollouts of tasks of this tier")
    kind: str | None = setting(
        None,
        "training, evaluation (also by ddppo.evaluate), or group (played by a program, docs/groups.md)",
        choices=("training", "evaluation", "group"),
    )
    iteration: str | None = setting(None, "iteration of training, or a range: 10..20, 10.., ..20")
    env: str | None = setting(None, "global index of the environment, or a range")
    group: str | None = setting(None, "group of rollouts that began equally, or a range")
    success: bool | None = setting(None, "true: the task was achieved; false: it was not")
    ended_by: str | None = setting(
        None, "why it ended: terminated, time_limit, max_turns, tokens, prompt or failed (docs/text.md)"
    )
    min_return: float | None = setting(None, "least return")
    max_return: float | None = setting(None, "greatest return")
    contains: str | None = setting(
        None, "text in the prompt, a command or an answer; upper and lower case are equal"
    )
    # Which of these, and how they are shown.
    best: int | None = setting(None, "so many of the highest return", low=1)
    worst: int | None = setting(None, "so many of the lowest return", low=1)
    most: int = setting(_LISTED, "rollouts of the list, the newest; best and worst show all of theirs", low=1)
    full: bool = setting(False, "show each rollout of the list in full")
    # Files.
    html: str | None = setting(None, "file for a page with the rollouts and filters, such as page.html")
    inspect: str | None = setting(None, "file for the viewer of Inspect (inspect-ai), such as run.eval")


def view(options: RolloutsConfig, width: int | None = None) -> str:
    """Return the text for the terminal; write the files that the options ask for. Raises ConfigError, StorageError."""
    for key, path, suffix in (("html", options.html, ".html"), ("inspect", options.inspect, ".eval")):
        if path is not None and (Path(path).suffix != suffix or not Path(path).absolute().parent.is_dir()):
            raise ConfigError(f"{key}={path}: a file that ends in {suffix}, in a folder that is there")
    run_dir = Path(options.run)
    records = read_rollouts(run_dir)
    found = fitting(records, options)
    # Files hold all rollouts that fit; the terminal lists some.
    lines = []
    if options.html is not None:
        write_text(Path(options.html), page(found, str(run_dir)))
        lines.append(f"{options.html}: a page of {counted(found)}")
    if options.inspect is not None:
        write_inspect(Path(options.inspect), found, str(run_dir))
        lines.append(f"{options.inspect}: {counted(found)}, for `inspect view start --log-dir <its folder>`")
    if lines:
        return "\n".join(lines)
    if len(found) == 1 or options.full:
        return "\n\n".join(in_full(record) for record in newest(found, _num_shown(found, options)))
    return listed(found, len(records), _num_shown(found, options), width)


def _num_shown(found: Sequence[RolloutRecord], options: RolloutsConfig) -> int:
    """Return how many rollouts the terminal shows: `best` and `worst` have given their numbers already."""
    is_ranking = options.best is not None or options.worst is not None
    return len(found) if is_ranking else options.most


def newest(records: Sequence[RolloutRecord], most: int) -> Sequence[RolloutRecord]:
    """Return the last `most` records: half of them of evaluations, half of training, as far as there are so many."""
    if most >= len(records):
        return records
    training = [record for record in records if record.kind == "training"]
    evaluations = [record for record in records if record.kind != "training"]
    num_evaluations = min(len(evaluations), max((most + 1) // 2, most - len(training)))
    first = len(training) - (most - num_evaluations)
    return training[first:] + evaluations[len(evaluations) - num_evaluations :]


# -- Filters.


def fitting(records: Sequence[RolloutRecord], options: RolloutsConfig) -> list[RolloutRecord]:
    """Return the records that fit the options. Raises ConfigError if none does, naming the filter that excludes all."""
    low = -float("inf") if options.min_return is None else options.min_return
    high = float("inf") if options.max_return is None else options.max_return
    sought = (options.contains or "").lower()
    filters: list[tuple[str, Any, Callable[[RolloutRecord], bool]]] = [
        ("name", options.name, lambda r: r.name == options.name),
        ("task", options.task, lambda r: r.task == options.task),
        ("tier", options.tier, lambda r: r.tier == options.tier),
        ("kind", options.kind, lambda r: r.kind == options.kind),
        ("iteration", options.iteration, _within("iteration", options.iteration)),
        ("env", options.env, _within("env", options.env)),
        ("group", options.group, _within("group", options.group)),
        ("success", options.success, lambda r: r.is_success is options.success),
        ("ended_by", options.ended_by, lambda r: r.ended_by == options.ended_by),
        ("min_return", options.min_return, lambda r: r.episode_return is not None and r.episode_return >= low),
        ("max_return", options.max_return, lambda r: r.episode_return is not None and r.episode_return <= high),
        ("contains", options.contains, lambda r: any(sought in text.lower() for text in _texts(r))),
    ]  # fmt: skip
    found = list(records)
    for key, value, fits in filters:
        if value is None:
            continue
        kept = [record for record in found if fits(record)]
        if not kept:
            raise ConfigError(
                f"{key}={_shown(value)}: none of {counted(found)} fits{_known(key, value, found)}"
            )
        found = kept
    return _extremes(found, options)


def _extremes(records: list[RolloutRecord], options: RolloutsConfig) -> list[RolloutRecord]:
    """Return the best and the worst rollouts, if the options ask for them, else all. Failed rollouts have no return."""
    if options.best is None and options.worst is None:
        return records
    ranked = sorted(
        (r for r in records if r.episode_return is not None), key=lambda r: -(r.episode_return or 0)
    )
    best = ranked[: options.best or 0]
    worst = ranked[-options.worst :] if options.worst else []
    return [*best, *(record for record in worst if record not in best)]


def _within(key: str, given: str | None) -> Callable[[RolloutRecord], bool]:
    """Return the test of a number or range: 12, 10..20, 10.., ..20. Raises ConfigError if it is neither."""
    if given is None:
        return lambda record: True
    found = re.fullmatch(r"(?P<low>\d*)(?P<range>\.\.)?(?P<high>\d*)", given.strip())
    if found is None or not (found["low"] or found["high"]) or (found["high"] and not found["range"]):
        raise ConfigError(f"{key}={given}: a number, or a range such as 10..20, 10.. or ..20")
    low = int(found["low"] or 0)
    high = int(found["high"] or 10**18) if found["range"] else low

    def fits(record: RolloutRecord) -> bool:
        number = getattr(record, key)
        has_key = key == "iteration" or record.kind != "evaluation"
        return number is not None and has_key and low <= number <= high

    return fits


def _known(key: str, value: Any, records: Sequence[RolloutRecord]) -> str:
    """Return, for a message, the values of a filter that records have."""
    if key not in ("name", "task", "tier", "ended_by", "kind", "iteration", "group"):
        return ""
    names = [str(x) for x in dict.fromkeys(getattr(record, key) for record in records) if x is not None]
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    if not names:
        return f": they have no {key}"
    return f"{near(str(value), names)}: there are {', '.join(names[:_MOST_NAMED])}{more}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(record: RolloutRecord) -> Iterable[str]:
    for text in (
        record.system,
        record.prompt,
        *(x for t in record.turns for x in (t.typed, t.action, t.answer)),
    ):
        if text:
            yield text


def counted(records: Sequence[RolloutRecord]) -> str:
    return f"{len(records):,} rollout{'s' if len(records) != 1 else ''}"


# -- The terminal.


def listed(records: Sequence[RolloutRecord], num_all: int, most: int, width: int | None = None) -> str:
    """Return a table with a line for each of the newest `most` records."""
    shown = newest(records, most)
    rows = []
    for record in shown:
        last = record.turns[-1] if record.turns else None
        line = "" if last is None else (last.action if last.action is not None else last.typed) or ""
        cells = (
            record.name, record.task or "", record.tier or "", _number(record.episode_return),
            _number(record.advantage, sign="+"), {True: "yes", False: "no", None: ""}[record.is_success],
            record.ended_by or "", str(len(record.turns)),
            "" if record.num_tokens is None else str(record.num_tokens), line.split("\n")[0],
        )  # fmt: skip
        rows.append([visible(cell) for cell in cells])
    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False)
    left = Console(
        width=width
    ).width  # for the last column, after the others, which keep the widths of their cells
    for name, *column in zip(_COLUMNS, *rows, strict=True):
        of_column = max(map(len, (name, *column)))
        if name == _COLUMNS[-1]:
            of_column = max(len(name), min(of_column, left))
        left -= of_column + _BETWEEN
        is_number = name in ("return", "advantage", "turns", "tokens")
        justify: Any = "right" if is_number else "left"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=of_column)
    for cells_of_row in rows:
        table.add_row(*map(Text, cells_of_row))
    is_cut = len(shown) < len(records)
    some = f", of which {len(shown)} are listed (most={len(records)} lists all)" if is_cut else ""
    fit = f"{len(records):,} of {num_all:,} rollouts fit" if len(records) < num_all else counted(records)
    output = io.StringIO()
    Console(width=_MOST_WIDE, file=output, force_terminal=False).print(table)
    lines = [line.rstrip() for line in output.getvalue().rstrip().splitlines()]
    return "\n".join([f"{fit}{some}; name=<name> shows one in full", "", *lines])


def in_full(record: RolloutRecord) -> str:
    """Return the whole conversation of a rollout, with the reward of each turn."""
    heading = f"{record.name}  {record.task or 'a task without a name'}"
    heading += f" ({record.tier})" if record.tier else ""
    lines = [heading, f"    {outcome(record)}", f"    {origin(record)}"]
    for name, text in (("system", record.system), ("prompt", record.prompt)):
        if text:
            lines += ["", name, *_indented(text)]
    for at, turn in enumerate(record.turns, start=1):
        # The raw text only where it says more than the line: a language model's words around a command.
        action, typed = turn.action, turn.typed
        first, *rest = (typed or "" if action is None else action).split("\n") or [""]
        lines += ["", f"{at} > {first}", *(f"    {line}" for line in rest)]
        if typed is not None and action is not None and typed.strip() != action.strip():
            lines += ["    typed:", *_indented(typed, "    | ")]
        lines += _indented(turn.answer) if turn.answer else []
        lines.append(f"    [{said_of(turn)}]")
    return "\n".join(visible(line).rstrip() for line in lines)


def outcome(record: RolloutRecord) -> str:
    """Return the result of a rollout in words: return, success, and why it ended."""
    parts = ["no return" if record.episode_return is None else f"return {_number(record.episode_return)}"]
    parts[0] += f" ({of})" if (of := _parts(record.reward_parts)) else ""
    if record.group_mean is not None:
        parts.append(f"mean of its group {_number(record.group_mean)}")
    if record.advantage is not None:
        parts.append(f"advantage {_number(record.advantage, sign='+')}")
    if record.is_success is not None:
        parts.append("success" if record.is_success else "no success")
    if record.score is not None:
        parts.append(f"score {_number(record.score)}")
    parts.append(f"ended by {record.ended_by}" + (f" ({record.error})" if record.error else ""))
    return ", ".join(parts)


def origin(record: RolloutRecord) -> str:
    """Return where a rollout is from, in words."""
    num_turns = f"{len(record.turns)} turn{'s' * (len(record.turns) != 1)}"
    if record.kind == "group":
        return f"member {record.env} of group {record.iteration}; seed {record.seed}; {num_turns}"
    where = f"iteration {record.iteration}, environment {record.env}, group {record.group}"
    if record.kind == "evaluation":
        where = f"episode {record.env} of the evaluation after {record.env_steps:,} steps"
    counts = f"{num_turns}, {record.num_tokens} tokens"
    learned = f"policy after {record.policy} iteration{'s' * (record.policy != 1)}"
    return f"{where}; {learned}; seed {record.seed}; {counts}"


def said_of(turn: Any) -> str:
    """Return what is known of a turn: its reward and parts, its tokens, whether its tool failed."""
    parts = [] if turn.num_tokens is None else [f"{turn.num_tokens} token{'s' * (turn.num_tokens != 1)}"]
    if turn.action is None:  # an answer without an action tells the policy that it typed none
        why = "cut short and not played" if turn.answer is None else "no command, and not played"
        return "; ".join([why, *parts])
    if turn.reward is not None:
        of = _parts(turn.reward_parts)
        parts.insert(0, f"reward {_number(turn.reward, sign='+')}" + (f": {of}" if of else ""))
    if turn.tool_failed:
        parts.append("the command failed")
    return "; ".join(parts) or "no answer"


def _parts(parts: Mapping[str, float]) -> str:
    """Return the parts of a reward that are not 0, up to rounding."""
    return ", ".join(f"{name} {_number(x, sign='+')}" for name, x in parts.items() if abs(x) > _ROUNDING)


def visible(text: str) -> str:
    """Return the text with escapes such as \\x1b in place of control characters, newlines and tabs excepted."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(text: str, by: str = "    ") -> list[str]:
    return [f"{by}{line}" for line in text.rstrip("\n").split("\n")]


def _number(x: float | None, sign: str = "") -> str:
    return "" if x is None else f"{x:{sign}.3g}" if abs(x) < 1e4 else f"{x:{sign}.6g}"


# -- The report of a run or a sweep (ddppo.report).


def excerpts(run_dir: Path) -> list[tuple[str, str]]:
    """Return headings and texts of the best and the worst rollout of each tier.

    They are of the last evaluation, or, of tiers that it has not, of training.
    """
    try:
        records = read_rollouts(run_dir)
    except RunFolderError:  # the folder is empty
        return []
    last = max((r.env_steps or 0 for r in records if r.kind == "evaluation"), default=0)
    found = []
    for tier in dict.fromkeys(record.tier for record in records):
        of_tier = [r for r in records if r.tier == tier and r.episode_return is not None]
        evaluated = [r for r in of_tier if r.kind == "evaluation" and r.env_steps == last]
        chosen = sorted(evaluated or of_tier, key=lambda r: r.episode_return or 0.0)
        where = f"{counted(chosen)} of {f'the evaluation after {last:,} steps' if evaluated else 'training'}"
        for name, record in (("best", chosen[-1:]), ("worst", chosen[:1] if len(chosen) > 1 else [])):
            found += [(f"{tier or 'tasks'}: the {name} of {where}", in_full(each)) for each in record]
    return found


# -- The page: one file, with the records as JSON inside.


def page(records: Sequence[RolloutRecord], title: str) -> str:
    """Return the HTML page. Its script shows texts as text, so that HTML in a rollout stays text."""
    shown = [
        asdict(record) | {"name": record.name, "outcome": outcome(record), "origin": origin(record)}
        | {"said": [said_of(turn) for turn in record.turns]}
        for record in records
    ]  # fmt: skip
    data = json.dumps(jsonable({"title": title, "rollouts": shown}), allow_nan=False)
    # Inside a script only "<" could end it. JSON has it in texts alone, where it may be written as an escape.
    template = Path(__file__).with_name("rollouts.html").read_text(encoding="utf-8")
    return template.replace("{{ title }}", html.escape(title)).replace(
        "{{ data }}", data.replace("<", "\\u003c")
    )


# -- Inspect's viewer. A .eval file is a zip of JSON: header, summaries, and a file for each sample.


def write_inspect(path: Path, records: Sequence[RolloutRecord], title: str) -> None:
    """Write the records as a log of Inspect (inspect-ai 0.3). Raises StorageError.

    A sample is a task, and its epochs are its rollouts. Scores are the return, success, and the parts of the reward;
    all else is metadata.
    """
    samples, epochs = [], dict[str, int]()
    for record in records:
        # The id is in the name of a file of the zip, in which the viewer finds no folders.
        of_task = quote(record.task or "task", safe=_IN_FILE_NAMES)
        epochs[of_task] = epochs.get(of_task, 0) + 1
        samples.append(_sample(record, of_task, epochs[of_task]))
    # 1. The header: the run as an evaluation that is complete.
    now = datetime.now(UTC).isoformat(timespec="seconds")
    spec = {
        "eval_id": f"ddppo-{zlib.crc32(title.encode()):08x}", "run_id": "ddppo", "created": now,
        "task": Path(title).name or "run",
        "task_id": "ddppo", "task_version": 0, "task_attribs": {}, "task_args": {}, "model_args": {},
        # Tasks have unequal numbers of rollouts: the viewer multiplies samples by epochs, so epochs are 1 here.
        "dataset": {"name": title, "samples": len(samples)},
        "model": "ddppo/policy", "model_generate_config": {}, "config": {"epochs": 1},
        "packages": {}, "metadata": {"run": title},
    }  # fmt: skip
    plan = {"name": "plan", "steps": [], "config": {}}
    start = {"version": 2, "eval": spec, "plan": plan}
    results = {
        "total_samples": len(samples), "completed_samples": len(samples), "scores": _means(samples),
    }  # fmt: skip
    header = {
        "version": 2, "status": "success", "eval": spec, "plan": plan, "results": results,
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
    }  # fmt: skip
    summaries = [
        {key: sample[key] for key in ("id", "epoch", "input", "target", "scores", "metadata")}
        | {"completed": True}
        for sample in samples
    ]
    # 2. The files of the zip.
    files: dict[str, Any] = {"_journal/start.json": start, "summaries.json": summaries, "header.json": header}
    files |= {f"samples/{each['id']}_epoch_{each['epoch']}.json": each for each in samples}
    with replacing(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, json.dumps(jsonable(content)))


def _sample(record: RolloutRecord, of_task: str, epoch: int) -> dict[str, Any]:
    """Return a rollout as a sample: messages of system, user, assistant and tool in turn."""
    prompt = record.prompt or ""
    messages: list[dict[str, Any]] = []
    if record.system:
        messages.append({"role": "system", "content": record.system})
    messages.append({"role": "user", "content": prompt})
    typed = ""
    for at, turn in enumerate(record.turns, start=1):
        typed = (turn.typed if turn.typed is not None else turn.action) or ""
        message: dict[str, Any] = {"role": "assistant", "source": "generate", "content": typed}
        # A line that was played is a call of a tool, whose answer keeps its columns. The content is all that was typed.
        if turn.action is not None:
            message["content"] = "" if typed.strip() == turn.action.strip() else typed
            message["tool_calls"] = [
                {"id": str(at), "function": "play", "arguments": {"line": turn.action}, "type": "function"}
            ]
        messages.append(message)
        if turn.answer is not None:
            answer = f"{turn.answer}\n[{said_of(turn)}]"
            of_call = {"role": "tool", "tool_call_id": str(at), "function": "play"}
            messages.append((of_call if turn.action is not None else {"role": "user"}) | {"content": answer})
    scores = {"return": {"value": record.episode_return if record.episode_return is not None else 0.0}}
    if record.is_success is not None:
        scores["success"] = {"value": float(record.is_success)}
    scores |= {name: {"value": x} for name, x in record.reward_parts.items()}
    kept = {
        key: x
        for key, x in asdict(record).items()
        if key not in ("turns", "prompt", "system", "reward_parts")
    }
    choice = {"message": {"role": "assistant", "source": "generate", "content": typed}, "stop_reason": "stop"}
    return {
        "id": of_task, "epoch": epoch, "input": prompt, "target": "", "messages": messages,
        "output": {"model": "ddppo/policy", "choices": [choice]}, "scores": scores,
        "metadata": kept | {"name": record.name}, "store": {}, "events": [], "model_usage": {},
    }  # fmt: skip


def _means(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean of each score over samples, as Inspect lists them."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in sample["scores"].items():
            values.setdefault(name, []).append(score["value"])
    return [
        {
            "name": name, "scorer": name, "params": {},
            "metrics": {"mean": {"name": "mean", "value": sum(each) / len(each), "params": {}}},
        }
        for name, each in values.items()
    ]  # fmt: skip
