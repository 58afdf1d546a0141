"""The verb `compare`: a circuit beside smaller ones, on the terminal and as a page that steps through their rewrites.

`compare` reads and verifies, `beside` adds other optimisers, `page` makes the HTML file. compare.html is its template:
its script draws circuits from lists of gates, with the layout of quantum/drawing.py.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.domains.circuits.quantum import Circuit, equivalence
from ddppo.domains.circuits.quantum.benchmarks import noted
from ddppo.domains.circuits.quantum.circuit import Gate
from ddppo.domains.circuits.quantum.costs import COSTS, cost, counts, measures
from ddppo.domains.circuits.quantum.drawing import as_svg, as_text, label, wire_names
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS, NAM, GateSet, gate_set
from ddppo.domains.circuits.quantum.others import OPTIMISERS, installed, optimised
from ddppo.domains.circuits.quantum.rewriting import Rewriter, differing_gates, merged
from ddppo.domains.circuits.task.journal import FOLDER
from ddppo.domains.circuits.task.lineage import RewritesFile, read_rewrites, repeated, rewriter_of, started
from ddppo.errors import ConfigError, StorageError, in_one_line
from ddppo.files import write_text
from ddppo.study.page.chart import Axis, Chart
from ddppo.study.page.html import TEMPLATES, stylesheet
from ddppo.terminal import warn

_MOST_DRAWN = 400_000  # gates of all circuits on a page that are drawn whole after a rewrite
_COLOURS = ("blue", "red", "green", "purple", "orange", "ink")


@dataclass(slots=True)
class ComparisonOptions:
    circuit: str = setting(MISSING, "the original circuit")
    results: list[str] = setting(
        meaning="smaller ones: OpenQASM files, files of rewrites, or run folders of env=circuit",
        factory=list,
    )
    html: str | None = setting(None, "file for a page with pictures and all rewrites, such as page.html")
    rules: str | None = setting(None, "the file of rules that rewrites were found by; the package's if null")
    gate_set: str = setting(NAM.name, "in which gates are counted", choices=tuple(GATE_SETS))
    others: bool = setting(True, "run qiskit and pyzx beside them, where they are installed")
    seed: int = setting(0, "of the random states that stand for a unitary of many qubits", low=0)


@dataclass(slots=True)
class ComparedCircuit:
    """One circuit that is compared with the original."""

    name: str
    circuit: Circuit
    seconds: float | None = None  # until it was found; None if that is not known
    improvements: list[dict[str, float]] = field(default_factory=list)  # each best on the way, with wall_s
    at_random: list[tuple[float, float]] = field(
        default_factory=list
    )  # seconds of CPU and gates of random rewriting
    rewrites: RewritesFile | None = None
    verified: str = ""
    is_equal: bool = True


def compare(options: ComparisonOptions) -> int:
    """Print a table of the circuits, and write the page; return 1 if one of them differs from the original, else 0."""
    if options.html is not None:
        path = Path(options.html)
        if path.suffix != ".html" or not path.absolute().parent.is_dir():
            raise ConfigError(f"html={options.html}: a file that ends in .html, in a folder that is there")
    # 1. Read all files, and repeat all rewrites.
    original, names, _ = noted(options.circuit)
    results = [each for given in options.results for each in _read(given, original, options.rules)]
    results.append(ComparedCircuit("rotations merged", merged(original)))
    # 2. Other optimisers, and a verdict on every circuit.
    if options.others:
        results += beside(original)
    for each in results:
        each.verified, each.is_equal = _verdict(original, each.circuit, options.seed)
    # 3. The table and the page.
    chosen = gate_set(options.gate_set)
    print(f"{options.circuit}: {counts(original, chosen)}\n")
    print(_table(original, results, chosen))
    if options.html is not None:
        write_text(Path(options.html), page(options, original, names, results))
        print(f"\n{options.html}: circuits before and after, cost over time, and each rewrite")
    return 0 if all(each.is_equal for each in results) else 1


def _read(given: str, original: Circuit, rules: str | None) -> list[ComparedCircuit]:
    """Return the circuits of a file, or the one of a run folder that started from the original. Raises ConfigError."""
    path = Path(given)
    if path.is_dir():
        files = sorted((path / FOLDER).glob("*.json"))
        if not files:
            raise ConfigError(f"results={given}: a folder without {FOLDER}/*.json, so no run of env=circuit")
        fitting = [each for each in files if _starts_from(each, original)]
        if not fitting:
            held = ", ".join(each.stem for each in files)
            raise ConfigError(
                f"results={given}: its circuits ({held}) do not start from the original circuit"
            )
        return [_of_run(each, f"{path.name}, {each.stem}", original, rules) for each in fitting]
    if path.suffix == ".json":
        return [_of_rewrites(path, path.stem, original, rules)]
    circuit = noted(given).circuit
    if circuit.num_qubits != original.num_qubits:
        raise ConfigError(
            f"results={given}: it has {circuit.num_qubits} qubits, and the original {original.num_qubits}: compare "
            "circuits of as many"
        )
    return [ComparedCircuit(given, circuit)]


def _starts_from(path: Path, original: Circuit) -> bool:
    held = read_rewrites(path)
    return held.original is not None and held.original.canonical() == original.canonical()


def _of_rewrites(path: Path, name: str, original: Circuit, rules: str | None) -> ComparedCircuit:
    held = read_rewrites(path)
    circuit = repeated(held, original, rewriter_of(held, rules))
    found = [each for each in held.improvements if "wall_s" in each and "gates" in each]
    return ComparedCircuit(name, circuit, found[-1]["wall_s"] if found else None, found, rewrites=held)


def _of_run(path: Path, name: str, original: Circuit, rules: str | None) -> ComparedCircuit:
    """Return the circuit of a run, beside random rewriting for as long if the run's cost is the number of gates."""
    result = _of_rewrites(path, name, original, rules)
    try:
        told = json.loads((path.parent.parent / "summary.json").read_text(encoding="utf-8"))
        of_run = told["task"]["circuits"][path.stem]
        found = [(float(each["cpu_s"]), float(each["cost"])) for each in of_run["at_random"]["improvements"]]
        end, start = float(of_run["at_random"]["cpu_s"]), float(of_run["original"]["cost"])
    except (OSError, ValueError, KeyError, TypeError):  # a run that has not ended, or an older one
        return result
    if start == len(original):
        result.at_random = [(0.0, start), *found, (end, found[-1][1] if found else start)]
    return result


def beside(original: Circuit) -> list[ComparedCircuit]:
    """Return what qiskit and pyzx make of the circuit, as far as they are installed; a failure is a warning."""
    results = []
    for name in filter(installed, OPTIMISERS):
        try:
            results.append(ComparedCircuit(name, *optimised(name, original)))
        except Exception as e:  # other people's code may raise anything
            warn(f"{name} is left out: {in_one_line(e)}")
    return results


def _verdict(original: Circuit, circuit: Circuit, seed: int) -> tuple[str, bool]:
    """Return in words how the circuit was compared with the original, and whether it may be equal."""
    try:
        verdict = equivalence.verify(original, circuit, seed, equivalence.MOST_WHOLE_QUBITS)
    except ConfigError as e:  # more qubits than memory holds
        return f"not compared: {e}", True
    return str(verdict), verdict.is_equal


def _rows(original: Circuit, results: Sequence[ComparedCircuit], gate_set: GateSet) -> list[list[str]]:
    heading = ["", *COSTS, "seconds", "rewrites", "verified"]
    costs = [cost(name, gate_set) for name in COSTS]
    rows = [["original", *(f"{each(original):g}" for each in costs), "", "", ""]]
    rows += [
        [
            each.name,
            *(f"{of(each.circuit):g}" for of in costs),
            "" if each.seconds is None else f"{each.seconds:.3g}",
            "" if each.rewrites is None else f"{len(each.rewrites.rewrites):,}",
            each.verified,
        ]
        for each in results
    ]
    return [heading, *rows]


def _table(original: Circuit, results: Sequence[ComparedCircuit], gate_set: GateSet) -> str:
    rows = _rows(original, results, gate_set)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in (0, len(widths) - 1) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


# -- The page


def page(
    options: ComparisonOptions,
    original: Circuit,
    names: Sequence[str] | None,
    results: Sequence[ComparedCircuit],
) -> str:
    """Return the HTML page."""
    names = wire_names(original, names)
    least = min(results, key=lambda each: len(each.circuit))
    pictures = [
        (f"{name}: {counts(circuit)}", as_svg(circuit, names, f"{name}: {counts(circuit)}"))
        for name, circuit in [
            ("Before", original),
            *((f"After, {each.name}", each.circuit) for each in results),
        ]
    ]
    gates = _Gates()
    told = [each for each in results if each.rewrites is not None and each.rewrites.rewrites]
    drawn = _MOST_DRAWN // max(1, len(told))
    data = {
        "wires": list(names),
        "paths": [
            {"name": each.name}
            | _steps(each.rewrites, original, rewriter_of(each.rewrites, options.rules), gates, drawn)
            for each in told
            if each.rewrites is not None
        ],
        "gates": gates.listed,
    }  # fmt: skip
    words = [options.circuit, *options.results, *([f"rules={options.rules}"] if options.rules else [])]
    words += [f"gate_set={options.gate_set}"] if options.gate_set != NAM.name else []
    return TEMPLATES.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=f"{options.circuit}: {len(original)} gates to {len(least.circuit)}",
        least=least.name,
        rows=_rows(original, results, gate_set(options.gate_set)),
        pictures=pictures,
        charts=_charts(len(original), results),
        # Inside a script only "<" could end it; JSON has it in texts alone, where it may be an escape.
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        has_rewrites=bool(told),
        command=f"python -m ddppo.domains.circuits compare {' '.join(words)} html={options.html}",
        style=stylesheet("chart.css"),
    )


_TEMPLATE = Path(__file__).with_name("compare.html")


def _charts(before: int, results: Sequence[ComparedCircuit]) -> list[Chart]:
    """Return gates against seconds, and against steps. Results without a record of their improvements have no line."""
    charts = []
    for key, axis in (("wall_s", "seconds"), ("env_steps", "steps of all environments")):
        chart = Chart(f"gates_{key}", f"Least gates against {axis}", Axis(axis, "log10"), Axis("gates"))
        known = [each for each in results if each.improvements and all(key in at for at in each.improvements)]
        end = max((each.improvements[-1][key] for each in known), default=0.0)
        for each, colour in zip(known, _COLOURS * len(known), strict=False):
            # The line goes down where a better circuit was found, and is level in between.
            xs, ys = [max(each.improvements[0][key] / 2, 1e-3)], [float(before)]
            for found in each.improvements:
                at = max(found[key], 1e-3)
                xs += [at, at]
                ys += [ys[-1], found["gates"]]
            chart.line([*xs, max(end, xs[-1])], [*ys, ys[-1]], colour, each.name)
        if key == "wall_s":
            for each in results:
                if each.at_random:
                    chart.line(*_stairs(each.at_random), "ink", f"{each.name}: at random", dashed=True)
        if known:
            charts.append(chart)
    return charts


def _stairs(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the corners of a line that is level until each next point. Times below a millisecond become one."""
    xs, ys = [max(points[0][0], 1e-3)], [points[0][1]]
    for at, gates in points[1:]:
        xs += [max(at, 1e-3)] * 2
        ys += [ys[-1], gates]
    return xs, ys


class _Gates:
    """Numbers gates in the order in which they appear, so that the page names each once."""

    def __init__(self) -> None:
        self.listed: list[list[Any]] = []  # [wires, label] of each
        self._numbers: dict[Gate, int] = {}

    def numbers(self, gates: Sequence[Gate]) -> list[int]:
        for gate in gates:
            if gate not in self._numbers:
                self._numbers[gate] = len(self.listed)
                self.listed.append([list(gate.wires), label(gate)])
        return [self._numbers[gate] for gate in gates]


def _steps(
    held: RewritesFile, original: Circuit, rewriter: Rewriter, gates: _Gates, most_drawn: int
) -> dict[str, Any]:
    """Return the rewrites for the page: the circuit at first, and of each rewrite its rule, the gates that go and come.

    Whole circuits follow each rewrite, or, if they would have more than `most_drawn` gates in all, every n-th.
    """
    circuit = started(original, held.start).canonical()
    first = gates.numbers(circuit.gates())
    every = 1 + len(held.rewrites) * len(circuit) // most_drawn
    steps = []
    for number, (node, rule) in enumerate(held.rewrites, 1):
        after, _ = rewriter.apply(circuit, node, rule)
        gone, come = differing_gates(circuit, after)
        before_gates, after_gates = circuit.gates(), after.gates()
        is_drawn = number % every == 0 or number == len(held.rewrites)
        steps.append({
            "rule": rule,
            "gates": len(after),
            "gone": gates.numbers([before_gates[i] for i in gone]),
            "come": gates.numbers([after_gates[i] for i in come]),
            "at": come.tolist(),
            "circuit": gates.numbers(after_gates) if is_drawn else None,
        })  # fmt: skip
        circuit = after
    used = sorted({step["rule"] for step in steps})
    return {
        "first": first, "start": "rotations merged" if held.start == "merge" else "the circuit as given",
        "steps": steps, "rules": {rule: str(rewriter.rules[rule]) for rule in used},
    }  # fmt: skip


# -- The report of a run (ddppo.report)


def excerpts(run_dir: Path) -> list[tuple[str, str]]:
    """Write a page for each original circuit of a run, beside its file of rewrites.

    Return for each a heading, and a text: the page, the command that makes it anew beside other optimisers, and the
    circuit.
    """
    found = []
    for path in sorted((run_dir / FOLDER).glob("*.json")):
        held = read_rewrites(path)
        if held.original is None or held.smaller is None:
            continue
        before, after = measures(held.original), measures(held.smaller)
        numbers = ", ".join(f"{what} {before[what]:g} to {after[what]:g}" for what in before)
        original = shlex.quote(name_of(path))
        heading = f"{path.stem}: {numbers}, by {len(held.rewrites):,} rewrites"
        command = (
            f"python -m ddppo.domains.circuits show {path.with_suffix('.qasm')} format=qasm\n"
            f"python -m ddppo.domains.circuits compare {original} {run_dir} html={path.stem}.html"
        )
        written = _page_of_run(path, run_dir)
        found.append((heading, f"{held.verified}\n{written}\n{command}\n\n{as_text(held.smaller)}"))
    return found


def _page_of_run(path: Path, run_dir: Path) -> str:
    """Write the page of a run's circuit, verified as the run did it and without other optimisers; say where it is."""
    html = path.with_suffix(".html")
    options = ComparisonOptions(name_of(path), [str(run_dir)], html=str(html), others=False)
    try:
        held = read_rewrites(path)
        assert held.original is not None, path  # `excerpts` has looked
        result = _of_run(path, path.stem, held.original, None)
        result.verified = held.verified
        write_text(html, page(options, held.original, None, [result]))
    except (ConfigError, StorageError) as e:
        return f"no page with pictures: {in_one_line(e)}"
    return f"pictures, cost over time and each rewrite: {html}"


def name_of(path: Path) -> str:
    """Return the circuit as the run's user named it, which a file of rewrites holds."""
    return str(json.loads(path.read_text(encoding="utf-8")).get("name", path.stem))
