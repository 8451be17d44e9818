"""Bar charts as SVG, without a library."""

import html
import statistics

_WIDTH, _BAR, _LEFT, _RIGHT = 760, 22, 170, 110
_COLOURS = {"Coppice": "#2d6a4f", "etcd": "#5b8db8", "immudb": "#c77f3a", "Tessera": "#8a5a83"}


def bars(title, unit, rows):
    """A chart of (name, value) rows."""
    height = 60 + (_BAR + 8) * len(rows)
    top = max([value for _, value in rows] + [1e-9])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="26" font-size="16">{html.escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(rows):
        y = 44 + index * (_BAR + 8)
        length = (_WIDTH - _LEFT - _RIGHT) * value / top
        colour = next((colour for word, colour in _COLOURS.items() if name.startswith(word)), "#888888")
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{html.escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 16}">{value:,.4g} {html.escape(unit)}</text>'
            if value < 1000 else
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 16}">{value:,.0f} {html.escape(unit)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def write(directory, cells):
    """Writes one chart for each kind of figures: rates, latencies at half load, or a gap."""
    whats = []
    for figures in cells.values():
        whats += [what for what in figures if what not in whats]
    for what in whats:
        rows, late = [], []
        for system, figures in cells.items():
            events = figures.get(what)
            if not events:
                continue
            rows.append((system, statistics.median(event["records_per_second"] for event in events)))
            late.append((system, statistics.median(event["latency_us"]["p99"] for event in events) / 1000))
        name = what.replace(" ", "-").replace(",", "")
        if what == "killed leader":
            rows = [(system, statistics.median(event["gap_ms"] for event in figures[what]))
                    for system, figures in cells.items() if what in figures]
            (directory / f"{name}.svg").write_text(bars("Without commits after a killed leader", "ms", rows))
        elif what.startswith("half load"):
            (directory / f"{name}.svg").write_text(bars(f"p99 latency, {what}", "ms", late))
        else:
            (directory / f"{name}.svg").write_text(bars(what, "records/s", rows))
