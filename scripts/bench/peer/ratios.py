"""Pairs of measurements and what may be said of them: ratios within a pair, then their median and range."""
import csv
import json
import math
import statistics


class Pair:
    """One measurement by both programs, one right after the other. Speeds in tokens per second."""

    def __init__(self, what, turn, first, weft, peer):
        self.what, self.turn, self.first, self.weft, self.peer = what, turn, first, weft, peer

    @property
    def ratio(self):
        return self.weft / self.peer


def order(turn, names):
    """Who goes first changes every turn, so that a drifting machine favours nobody."""
    return list(names) if turn % 2 == 0 else list(reversed(names))


def summarize(pairs):
    """One entry per measurement, in the order of first appearance."""
    rows = {}
    for pair in pairs:
        rows.setdefault(pair.what, []).append(pair)
    return [{"what": what, "pairs": len(group), "weft": statistics.median(p.weft for p in group),
             "llama.cpp": statistics.median(p.peer for p in group), "ratio": statistics.median(p.ratio for p in group),
             "ratio_min": min(p.ratio for p in group), "ratio_max": max(p.ratio for p in group)}
            for what, group in rows.items()]


def markdown(rows, title):
    lines = [f"### {title}", "", "| measurement | weft tok/s | llama.cpp tok/s | ratio | min..max | pairs |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [f"| {r['what']} | {r['weft']:.1f} | {r['llama.cpp']:.1f} | **{r['ratio']:.2f}** | "
              f"{r['ratio_min']:.2f}..{r['ratio_max']:.2f} | {r['pairs']} |" for r in rows]
    return "\n".join(lines) + "\n"


def write_csv(path, pairs):
    with open(path, "w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(["what", "turn", "first", "weft_tok_s", "llamacpp_tok_s", "ratio"])
        out.writerows([p.what, p.turn, p.first, f"{p.weft:.3f}", f"{p.peer:.3f}", f"{p.ratio:.4f}"] for p in pairs)


def write_json(path, about, pairs):
    record = dict(about, summary=summarize(pairs), pairs=[dict(vars(p), ratio=p.ratio) for p in pairs])
    with open(path, "w", encoding="utf-8") as f:
        json.dump(record, f, indent=1)


def relative_difference(a, b):
    """Largest difference of two rows of numbers, relative to the largest magnitude in either."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} numbers against {len(b)}")
    if not all(map(math.isfinite, a)) or not all(map(math.isfinite, b)):
        return math.inf
    scale = max(max(map(abs, a)), max(map(abs, b)))
    return max(abs(x - y) for x, y in zip(a, b)) / scale if scale else 0.0
