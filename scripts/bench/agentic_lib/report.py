"""Tables, CSV files and plots of finished levels."""
import csv
import math

import svg

REQUEST_FIELDS = ["server", "users", "round", "session", "turn", "status", "start_s", "ttft_ms", "e2e_ms", "itl_p50_ms", "itl_p95_ms",
                  "prompt_tokens", "cached_tokens", "possible_tokens", "output_tokens", "error"]


def text(value, digits=1):
    if value is None or isinstance(value, float) and not math.isfinite(value):
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table(rows, columns):
    """A markdown table; columns are (title, key or function, digits)."""
    cell = lambda row, what, digits: text(what(row) if callable(what) else row[what], digits)  # noqa: E731
    lines = ["| " + " | ".join(title for title, _, _ in columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell(row, what, digits) for _, what, digits in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def percent(key):
    return lambda row: 100.0 * row[key]


LEVEL_COLUMNS = [("users", "users", 0), ("server", "server", 0), ("tokens/min", "tokens_min", 0), ("computed/min", "computed_min", 0),
                 ("output/min", "output_min", 0), ("req/min", "requests_min", 1), ("TTFT p50 ms", "ttft_p50", 0), ("p95", "ttft_p95", 0),
                 ("p99", "ttft_p99", 0), ("ITL p50 ms", "itl_p50", 1), ("p95", "itl_p95", 1), ("hits % claimed", percent("hits_claimed"), 1),
                 ("measured", percent("hits_measured"), 1), ("possible", percent("hits_possible"), 1),
                 ("requests", lambda r: f"{r['requests']}/{r['planned']}", 0), ("errors", "errors", 0)]


def ratios(rows):
    """The first server against each other one, level by level: more tokens per minute, shorter waiting."""
    servers = list(dict.fromkeys(row["server"] for row in rows))
    at = {(row["server"], row["users"]): row for row in rows}
    found = []
    for users in sorted({row["users"] for row in rows}):
        mine = at.get((servers[0], users))
        for other in servers[1:]:
            theirs = at.get((other, users))
            if mine and theirs:
                found.append({"users": users, "pair": f"{servers[0]} / {other}",
                              **{key: mine[key] / theirs[key] if theirs[key] else math.nan
                                 for key in ("tokens_min", "output_min", "ttft_p50", "ttft_p95", "itl_p50")}})
    return found


def markdown(rows, title, notes):
    parts = [f"### {title}\n\n", table(rows, LEVEL_COLUMNS)]
    pairs = ratios(rows)
    if pairs:
        parts += ["\nRatios:\n\n", table(pairs, [("users", "users", 0), ("", "pair", 0), ("tokens/min", "tokens_min", 2),
                                                ("output/min", "output_min", 2), ("TTFT p50", "ttft_p50", 3), ("TTFT p95", "ttft_p95", 3),
                                                ("ITL p50", "itl_p50", 2)])]
    return "".join(parts) + "\n" + "".join(f"- {note}\n" for note in notes)


def pareto(rows, title):
    """Tokens per minute of all users together over tokens per second that a user sees (from the 90th percentile of gaps)."""
    series = {}
    for row in rows:
        speed = 1e3 / row["itl_p90"] if row["itl_p90"] else math.nan
        series.setdefault(row["server"], []).append((speed, row["tokens_min"], str(row["users"])))
    return svg.plot(list(series.items()), title, "tokens per second and user (1 / ITL p90)", "tokens per minute, prompt and output")


def write_requests(path, levels, percentile):
    with open(path, "w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(REQUEST_FIELDS)
        for level in levels:
            first = min((r.start for r in level.requests), default=0.0)
            for r in level.requests:
                gaps = [1e3 * g for g in r.gaps]
                out.writerow([r.server, r.users, r.round, r.session, r.turn, r.status, text(r.start - first, 4), text(1e3 * r.ttft, 2),
                              text(1e3 * r.seconds, 2), text(percentile(gaps, .5), 3), text(percentile(gaps, .95), 3), r.prompt_tokens,
                              r.cached_tokens, r.possible_tokens, r.output_tokens, r.error])


def write_rows(path, rows):
    """One line per row of numbers, with the names of the first row."""
    with open(path, "w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(rows[0] if rows else [])
        out.writerows([text(value, 4) for value in row.values()] for row in rows)


WARM_COLUMNS = [("server", "server", 0), ("context", "context", 0), ("cold TTFT ms", "cold_ms", 0), ("new tokens", "new", 0),
                ("warm TTFT p50 ms", "warm_p50", 1), ("min", "warm_min", 1), ("max", "warm_max", 1),
                ("cached % of the prompt", "cached_percent", 1), ("turns", "turns", 0)]


def warm(rows, title, notes):
    return f"### {title}\n\n" + table(rows, WARM_COLUMNS) + "\n" + "".join(f"- {note}\n" for note in notes)


def warm_plot(rows, title):
    """TTFT of a warm turn over the length of the context, one line per server and number of new tokens."""
    series = {}
    for row in rows:
        point = (row["context"], row["warm_p50"], text(row["warm_p50"], 0))
        series.setdefault(f"{row['server']}, {row['new']} new", []).append(point)
    return svg.plot(list(series.items()), title, "tokens of context", "TTFT of a warm turn, ms (median)", log_x=True)
