"""Draws lines through points as an SVG file: the plots of this tool need no other program."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 520, 90, 30, 50, 60
COLORS = ["#0b6e99", "#c4452d", "#3b8132", "#8250a0", "#a06a00", "#555555"]


def ticks(low, high, wanted=6):
    """Round numbers that cover low..high."""
    if not high > low:
        high = low + 1
    raw = (high - low) / wanted
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def number(value):
    if value and abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


class Axis:
    def __init__(self, values, start, end, log=False):
        self.log, self.start, self.end = log, start, end
        if log:
            low, high = math.log10(min(values)), math.log10(max(values))
            pad = 0.08 * (high - low) or 0.5
            self.low, self.high = low - pad, high + pad
            self.marks = sorted(set(values))
        else:
            self.marks = ticks(0.0, max(values) if values else 1.0)
            self.low, self.high = self.marks[0], self.marks[-1]

    def at(self, value):
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _text(x, y, text, size=13, anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {extra}>{escape(text)}</text>'


def plot(series, title, x_label, y_label, log_x=False):
    """`series` is [(name, [(x, y, label of the point)])]; points that are no finite numbers are left out."""
    series = [(name, [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]) for name, points in series]
    every = [p for _, points in series for p in points] or [(1.0, 1.0, "")]
    x = Axis([p[0] for p in every], LEFT, WIDTH - RIGHT, log_x)
    y = Axis([p[1] for p in every], HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" fill="#222222">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           _text(WIDTH / 2, 26, title, 16)]
    for mark in x.marks:
        out += [f'<line x1="{x.at(mark):.1f}" x2="{x.at(mark):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>',
                _text(x.at(mark), HEIGHT - BOTTOM + 18, number(mark))]
    for mark in y.marks:
        out += [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.at(mark):.1f}" y2="{y.at(mark):.1f}" stroke="#e4e4e4"/>',
                _text(LEFT - 8, y.at(mark) + 4, number(mark), anchor="end")]
    out += [_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, x_label),
            _text(22, (TOP + HEIGHT - BOTTOM) / 2, y_label, extra=f'transform="rotate(-90 22 {(TOP + HEIGHT - BOTTOM) / 2:.1f})"')]
    for i, (name, points) in enumerate(series):
        color = COLORS[i % len(COLORS)]
        places = [(x.at(px), y.at(py), label) for px, py, label in points]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in places)
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{line}"/>')
        for a, b, label in places:
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{color}"/>',
                    _text(a + 7, b - 7, label, 12, "start", f'style="fill:{color}"')]
        out += [f'<rect x="{WIDTH - RIGHT - 170}" y="{TOP + 8 + 20 * i}" width="12" height="12" fill="{color}"/>',
                _text(WIDTH - RIGHT - 152, TOP + 19 + 20 * i, name, 13, "start")]
    return "\n".join(out + ["</svg>"]) + "\n"
