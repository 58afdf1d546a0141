"""Several studies of one folder in one figure: strong scaling in full lines, weak scaling dashed."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddppo.study.measure.speedup import Study
from ddppo.study.page.figure_style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Plot,
    from_zero,
    style,
    workers_axis,
)

_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
_LINES = {"strong": "-", "weak": "--"}


def plots(studies: Sequence[Study]) -> list[Plot]:
    """Draw speedup and efficiency of the studies that have several W; nothing where fewer than two do."""
    shown = [study for study in studies if len(study.rows) > 1]
    if len(shown) < 2:
        return []
    sizes = sorted({w for study in shown for w in study.world_sizes})
    with style():
        figure = Figure(figsize=(11, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        _lines(left, shown, "speedup")
        ends = (sizes[0], sizes[-1])
        if all(study.baseline == 1 for study in shown):
            left.plot(ends, ends, color=GREY, linestyle=":", label="ideal")
        left.set_yscale("log", base=2)
        left.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        left.set_ylabel("speedup S(W) (1)")
        left.set_title("Speedup by throughput")
        _lines(right, shown, "efficiency")
        right.plot(ends, (1, 1), color=GREY, linestyle=":", label="ideal")
        from_zero(right)
        right.set_ylabel("efficiency E(W) (1)")
        right.set_title("Efficiency by throughput")
        for axes in (left, right):
            workers_axis(axes, sizes)
        figure.legend(*right.get_legend_handles_labels(), loc="outside right upper")
    caption = (
        "All studies of the folder, medians over seeds. Full lines: strong scaling, W workers share one batch, so an "
        "ideal iteration is W times shorter. Dashed: weak scaling, each worker keeps its batch, so an ideal iteration "
        "takes as long and collects W times the steps."
    )
    return [Plot("studies", caption, figure)]


def _lines(axes: Axes, studies: Sequence[Study], quantity: str) -> None:
    tasks = list(dict.fromkeys(study.env_id for study in studies))
    for study in studies:
        axes.plot(
            study.world_sizes,
            [getattr(row, quantity).median for row in study.rows],
            color=_COLOURS[tasks.index(study.env_id) % len(_COLOURS)],
            linestyle=_LINES[study.rule],
            marker="o" if study.rule == "strong" else "s",
            label=f"{study.env_id}, {study.rule}",
        )
