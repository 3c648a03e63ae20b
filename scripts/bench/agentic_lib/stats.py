"""Numbers of one request and of one level, and what may be said of several of them."""
import dataclasses
import math
import re

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+([-+.\w]+)(?:\s|$)")  # a line of /metrics: name, value


def percentile(values, share):
    """Linear between the neighbours in order, as numpy does it; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclasses.dataclass
class Request:
    """One request as the client saw it; seconds. `status` is open, ok, aborted (by us) or error."""
    server: str
    users: int
    round: int
    session: int
    turn: int
    status: str = "open"
    start: float = 0.0
    ttft: float = math.nan
    seconds: float = math.nan
    prompt_tokens: int = 0
    cached_tokens: int = 0
    possible_tokens: int = 0
    output_tokens: int = 0
    gaps: list = dataclasses.field(default_factory=list, repr=False)
    error: str = ""


def token_gaps(arrivals, tokens):
    """Seconds between tokens from the arrival of events [(time, tokens in it or None)]. An event of several tokens divides its
    gap among them; when events do not say how many they hold, `tokens` of the whole answer are spread over them."""
    gaps, events = [], len(arrivals)
    unknown = any(count is None for _, count in arrivals)
    share = (events - 1) / (tokens - 1) if unknown and tokens > events > 1 else 1.0
    for (before, _), (now, count) in zip(arrivals, arrivals[1:]):
        if unknown:
            gaps.append((now - before) * share)
        elif count:
            gaps += [(now - before) / count] * count
    return gaps


@dataclasses.dataclass
class Level:
    """A number of users on one server. `measured` is the hit rate from the server's own counters, None without them."""
    server: str
    users: int
    round: int
    seconds: float
    requests: list
    planned: int
    measured: float = None
    note: str = ""

    def done(self):
        return [r for r in self.requests if r.status == "ok"]


def summarize(levels):
    """One row for the levels of the same server and users (its rounds); times in milliseconds."""
    done = [r for level in levels for r in level.done()]
    every = [r for level in levels for r in level.requests]
    seconds = sum(level.seconds for level in levels)
    prompt, cached, output = (sum(getattr(r, f) for r in done) for f in ("prompt_tokens", "cached_tokens", "output_tokens"))
    rate = lambda n: 60.0 * n / seconds if seconds else math.nan  # noqa: E731
    share = lambda n: n / prompt if prompt else math.nan  # noqa: E731
    ttft, gaps = [1e3 * r.ttft for r in done], [1e3 * g for r in done for g in r.gaps]
    measured = [level.measured for level in levels if level.measured is not None]
    return {"server": levels[0].server, "users": levels[0].users, "rounds": len(levels), "seconds": seconds,
            "requests": len(done), "planned": sum(level.planned for level in levels),
            "aborted": sum(r.status == "aborted" for r in every), "errors": sum(r.status == "error" for r in every),
            "tokens_min": rate(prompt + output), "computed_min": rate(prompt - cached + output), "output_min": rate(output),
            "requests_min": rate(len(done)),
            "ttft_p50": percentile(ttft, .5), "ttft_p95": percentile(ttft, .95), "ttft_p99": percentile(ttft, .99),
            "itl_p50": percentile(gaps, .5), "itl_p90": percentile(gaps, .9), "itl_p95": percentile(gaps, .95),
            "e2e_p50": percentile([1e3 * r.seconds for r in done], .5),
            "hits_claimed": share(cached), "hits_possible": share(sum(r.possible_tokens for r in done)),
            "hits_measured": sum(measured) / len(measured) if measured else math.nan}


def group(levels):
    """Rows in the order of first appearance of (users, server)."""
    rows = {}
    for level in levels:
        rows.setdefault((level.users, level.server), []).append(level)
    return [summarize(found) for _, found in sorted(rows.items(), key=lambda item: item[0][0])]


def counter(text, *names):
    """The sum of a Prometheus counter over its labels, under the first of the names that is there; None without."""
    sums = {}
    for line in text.splitlines():
        sample = SAMPLE.match(line)
        if sample and sample[1] in names:
            sums[sample[1]] = sums.get(sample[1], 0.0) + float(sample[2])
    return next((sums[n] for n in names if n in sums), None)


def measured_hits(before, after):
    """The hit rate that the counters of two /metrics answers tell, or None: prefix cache hits over queries under vLLM's names,
    or cached over all prompt tokens under llama.cpp's."""
    def moved(*names):
        values = [counter(text, *names) for text in (before, after)]
        return None if None in values else values[1] - values[0]
    queries = moved("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries")
    hits = moved("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")
    if queries and hits is not None:
        return (hits + (moved("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_hits") or 0.0)) / queries
    computed, cached = moved("llamacpp:prompt_tokens_total"), moved("llamacpp:prompt_tokens_cached_total")
    if computed is not None and cached is not None and computed + cached > 0:
        return cached / (computed + cached)
    return None
