"""Attainment against rate as an SVG picture."""

from collections.abc import Sequence
from html import escape

from headway.bench.measures import GOODPUT_ATTAINMENT, RunSummary

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 50


def attainment_svg(runs: Sequence[RunSummary], title: str) -> str:
    """Void runs are hollow and not joined; the dashed line is what goodput requires."""
    highest = max(run.rate for run in runs)

    def x(rate: float) -> float:
        return LEFT + rate / highest * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    ordered = sorted(runs, key=lambda run: run.rate)
    sound = [run for run in ordered if not run.void]
    line = " ".join(f"{x(run.rate):.1f},{y(run.attainment):.1f}" for run in sound)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{escape(title)}: requests within the objectives</text>',
        *(_grid_line(y(share / 100), f"{share} %") for share in range(0, 101, 20)),
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(GOODPUT_ATTAINMENT):.1f}" y2="{y(GOODPUT_ATTAINMENT):.1f}" '
        'stroke="firebrick" stroke-dasharray="6 4"/>',
        f'<polyline points="{line}" fill="none" stroke="steelblue" stroke-width="2"/>',
        *(_point(x(run.rate), y(run.attainment), run) for run in ordered),
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">requests a second</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid_line(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _point(x: float, y: float, run: RunSummary) -> str:
    fill = "white" if run.void else "steelblue"
    what = f"{run.rate:g}/s: {run.attainment:.0%}" + (" (void)" if run.void else "")
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="steelblue"><title>{what}</title></circle>'
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{run.rate:g}</text>'
    )
