"""The panels of a Grafana dashboard, from its JSON: their queries as Grafana sends them, and a
drawing of the answers as SVG."""

import html
import math
import re

_COLUMN, _ROW, _GAP = 60, 30, 8
_COLOURS = ("#2d6a4f", "#c77f3a", "#5b8db8", "#9b5de5", "#b5485d", "#7a8450", "#3a6ea5", "#d4a017", "#6c757d", "#00868b")
_TEXT = {"short": "", "ops": "/s", "s": "s", "bytes": "B", "Bps": "B/s"}


def queries(dashboard, job, rate_interval):
    """(panel, target, query) of each target, with the dashboard's variables filled in."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", rate_interval).replace("$job", job)
            assert "$" not in query, f"{panel['title']}: a variable that nothing fills in: {query}"
            yield panel, target, query


def legend(target, labels):
    """The name of a series in the legend."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found.group(1), ""), target["legendFormat"])


def has_data(series):
    """Whether there is any number; NaN, the result of a division by zero, does not count."""
    return any(math.isfinite(value) for _, points in series for _, value in points)


def shown(value, unit):
    """A value as people read it."""
    if unit == "percentunit":
        return f"{value * 100:.4g} %"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    if unit in ("bytes", "Bps"):
        for size, prefix in [(2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")]:
            if value >= size:
                return f"{value / size:.3g} {prefix}{_TEXT[unit]}"
    return f"{value:,.0f} {_TEXT[unit]}".strip() if value >= 1000 else f"{value:.3g} {_TEXT[unit]}".strip()


def _text(x, y, text, size=11, anchor="start", extra=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"{extra}>{html.escape(text)}</text>'


def _stat(panel, series, box):
    """The last value, on the colour of the threshold that it has reached."""
    left, top, width, height = box
    values = [value for _, points in series for _, value in points if math.isfinite(value)]
    defaults = panel["fieldConfig"]["defaults"]
    colour = "#333333"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if values and (step["value"] is None or values[-1] >= step["value"]):
            colour = {"red": "#b5485d", "green": "#2d6a4f"}[step["color"]]
    shown_value = shown(values[-1], defaults["unit"]) if values else "no data"
    return [_text(left + width / 2, top + height / 2 + 24, shown_value, 30, "middle", f' fill="{colour}"')]


def _stacked(series):
    """Stacks each series on top of those before it."""
    below, result = {}, []
    for name, points in series:
        points = [(time, value + below.get(time, 0)) for time, value in points if math.isfinite(value)]
        below |= dict(points)
        result.append((name, points))
    return result


def _path(points, step, across, up):
    """A line through points, interrupted where one is missing."""
    path, last = [], None
    for time, value in points:
        if not math.isfinite(value):
            continue
        joined = last is not None and time - last < 1.5 * step
        path.append(f"{'L' if joined else 'M'}{across(time):.0f} {up(value):.0f}")
        last = time
    return "".join(path)


def _lines(panel, series, box, span, step, marks):
    """Lines over time, with a scale at the left and names below."""
    left, top, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    if defaults["custom"]["stacking"]["mode"] == "normal":
        series = _stacked(series)
    x0, x1, y0, y1 = left + 62, left + width - 10, top + 30, top + height - 52
    values = [value for _, points in series for _, value in points if math.isfinite(value)]
    top_value = max([*values, 0]) or 1
    begin, end = span
    parts = []

    def across(time):
        return x0 + (x1 - x0) * (time - begin) / (end - begin)

    def up(value):
        return y1 - (y1 - y0) * value / top_value

    for part in (0, 0.5, 1):
        y = up(top_value * part)
        parts += [f'<path d="M{x0} {y:.0f}H{x1}" stroke="#dddddd"/>', _text(x0 - 5, y + 4, shown(top_value * part, defaults["unit"]), 10, "end")]
    for time, _ in marks:
        parts.append(f'<path d="M{across(time):.0f} {y0}V{y1}" stroke="#999999" stroke-dasharray="3 3"/>')
    for time, anchor in ((begin, "start"), (end, "end")):
        parts.append(_text(across(time), y1 + 13, f"{time - begin:.0f} s", 10, anchor))
    x, y, left_out = left + 10, y1 + 28, 0
    for number, (name, points) in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path d="{_path(points, step, across, up)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        wide = 18 + 6 * len(name)
        if x + wide > left + width - 50 and x > left + 10:
            x, y = left + 10, y + 14
        if y > top + height - 6:
            left_out += 1
            continue
        parts += [f'<rect x="{x}" y="{y - 8}" width="8" height="8" fill="{colour}"/>', _text(x + 12, y, name, 10)]
        x += wide
    if left_out:
        parts.append(_text(left + width - 10, top + height - 8, f"+ {left_out}", 10, "end"))
    return parts


def draw(dashboard, answers, span, step, marks, caption):
    """The whole dashboard as SVG. `answers` has, by panel, series of (name, [(time, value)]), with
    a point for each `step` seconds of a span; `marks` are (time, event)."""
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    width, height, head = 24 * _COLUMN + _GAP, bottom * _ROW + _GAP, 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + head}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height + head}" fill="#f4f4f4"/>',
        _text(_GAP, 20, dashboard["title"], 16), _text(_GAP, 38, caption, 12),
    ]
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        box = (grid["x"] * _COLUMN + _GAP, grid["y"] * _ROW + _GAP + head, grid["w"] * _COLUMN - _GAP, grid["h"] * _ROW - _GAP)
        left, top, wide, high = box
        parts += [f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="white" stroke="#cccccc"/>',
                  _text(left + 10, top + 19, panel["title"], 13)]
        series = answers[panel["id"]]
        parts += _stat(panel, series, box) if panel["type"] == "stat" else _lines(panel, series, box, span, step, marks)
    return "\n".join([*parts, "</svg>", ""])
