"""One picture: how fast a large array goes up and down, a bar for each contender."""

from __future__ import annotations

from html import escape

from .rounds import Run

WIDTH, LEFT, ROW, BAR, TOP = 760, 210, 44, 15, 44
COLOURS = {"up": "#3b6ea5", "down": "#d08c3f"}
OURS = "shardserve"


def plot(run: Run, nbytes: int) -> str:
    """An SVG; speeds beyond the longest that a socket reaches are cut and written out."""
    speeds = {
        way: {name: nbytes / run.rounds(way).band(name).median / 1e9 for name in run.quantities.get(way, {})}
        for way in COLOURS
    }
    names = list(speeds["up"])
    longest = max([speed for way in speeds.values() for speed in way.values() if speed < 20], default=1.0)
    height = TOP + ROW * len(names) + 10
    parts = [_text(LEFT, 18, f"GB/s for {nbytes >> 20} MiB of float32 (longer is better)", weight="bold")]
    for number, (way, colour) in enumerate(COLOURS.items()):
        parts += [_bar(LEFT + 110 * number, 26, 12, 10, colour), _text(LEFT + 18 + 110 * number, 35, way)]
    for position, name in enumerate(names):
        y = TOP + ROW * position
        weight = "bold" if name.startswith(OURS) else "normal"
        parts.append(_text(LEFT - 10, y + 22, name, anchor="end", weight=weight))
        for number, (way, colour) in enumerate(COLOURS.items()):
            parts += _speed(speeds[way][name], longest, y + 2 + number * (BAR + 2), colour)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    style = 'font-family="sans-serif" font-size="13"'
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{background}\n' + "\n".join(parts) + "\n</svg>\n"


def _speed(speed: float, longest: float, y: int, colour: str) -> list[str]:
    room = WIDTH - LEFT - 160
    length = room * min(speed, longest) / longest
    said = f"{speed:.2f}" if speed < 20 else "a view, nothing moves"
    return [_bar(LEFT, y, max(length, 1), BAR, colour), _text(LEFT + round(length) + 6, y + 12, said)]


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {place} fill="#222">{escape(text)}</text>'
