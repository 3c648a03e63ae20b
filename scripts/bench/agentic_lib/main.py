#!/usr/bin/env python3
"""Multi-turn load of agents for any server with OpenAI's API: shared prefix, turns that add a little to a long prompt, thinking
in between. Several servers take turns. Started by scripts/bench/agentic; see scripts/bench/README.md."""
import argparse
import asyncio
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import signal
import sys
import time

import client
import driver
import report
import servers
import stats
import workload

sys.path.append(str(servers.ROOT / "scripts" / "bench" / "peer"))
from engines import machine_lock  # noqa: E402


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def id_range(text):
    low, _, high = text.partition(":")
    if not high.isdigit() or not low.isdigit() or int(low) >= int(high):
        raise argparse.ArgumentTypeError(f"expected LOW:HIGH, got \"{text}\"")
    return int(low), int(high)


def parse(arguments=None):
    p = argparse.ArgumentParser(prog="agentic", description=__doc__.split(". Started")[0])
    who = p.add_argument_group("servers")
    who.add_argument("--server", action="append", default=[], metavar="NAME=URL", help="a running one: http://HOST:PORT or unix:/PATH")
    who.add_argument("--spawn", action="append", default=[], choices=["weft", "llama"], help="start one; llama-server is built once")
    who.add_argument("--preset", default="bench", help="model of spawned servers, as weft-bench knows it (bench)")
    who.add_argument("--model", help="or a directory of a checkpoint")
    who.add_argument("--model-name", default="", help="for servers that serve several (the first)")
    who.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of spawned servers (all CPUs)")
    who.add_argument("--weft-arg", action="append", default=[], metavar="ARG", help="another argument of weftd, as --weft-arg=--x")
    who.add_argument("--llama-arg", action="append", default=[], metavar="ARG", help="another argument of llama-server")
    who.add_argument("--llama-slots", type=int, default=0, help="slots of llama-server (as many as users)")
    who.add_argument("--api-key-file", help="file with the key to send")
    what = p.add_argument_group("workload")
    what.add_argument("--scenario", choices=["agentic", "warm"], default="agentic", help="many sessions; or the TTFT of warm turns")
    what.add_argument("--api", choices=[client.CHAT, client.COMPLETIONS], help="messages and tools, or token ids (--spawn: ids)")
    what.add_argument("--users", type=numbers, default=[1, 2, 4, 8, 16, 32], metavar="N,..", help="levels of concurrency (1,2,4,8,16,32)")
    what.add_argument("--sessions", type=int, default=4, help="sessions of a level at least, and one per user (4)")
    what.add_argument("--turns", type=int, default=6, help="requests of a session (6)")
    what.add_argument("--prefix", type=int, default=2048, help="tokens that all sessions share: system prompt and tools (2048)")
    what.add_argument("--suffix", type=int, default=64, help="tokens of a session's own in its first prompt (64)")
    what.add_argument("--new", type=numbers, metavar="N,..", help="new tokens of a turn (from --hit-rate; scenario warm: 64)")
    what.add_argument("--output", type=int, default=32, help="tokens that every request generates (32)")
    what.add_argument("--hit-rate", type=float, default=0.95, help="share of prompt tokens that repeat, to solve --new for (0.95)")
    what.add_argument("--think", type=float, default=0.1, help="mean seconds before a turn (0.1)")
    what.add_argument("--think-kind", choices=["exponential", "fixed"], default="exponential")
    what.add_argument("--history", choices=["auto", workload.GENERATED, workload.RANDOM], default="auto",
                      help="answers in later prompts: what was generated, or random text as long (auto: generated if every server tells)")
    what.add_argument("--context", type=numbers, default=[1024, 8192, 32768], metavar="N,..", help="scenario warm: context lengths")
    what.add_argument("--temperature", type=float, default=1.0, help="(1.0)")
    what.add_argument("--ids", type=id_range, metavar="LOW:HIGH", help="range of token ids (256:8192; --spawn: from the model)")
    what.add_argument("--abort", type=float, default=0.0, help="share of requests that the client leaves midway (0)")
    what.add_argument("--no-prime", action="store_true", help="let the first session bring in the shared prefix")
    what.add_argument("--body", type=json.loads, default={}, metavar="JSON", help="more fields for every request")
    what.add_argument("--seed", type=int, default=1)
    how = p.add_argument_group("run")
    how.add_argument("--rounds", type=int, default=1, help="repetitions with other conversations (1)")
    how.add_argument("--level-seconds", type=float, default=0.0, help="begin no turn after so long (0: no limit)")
    how.add_argument("--timeout", type=float, default=1800.0, help="seconds for one request (1800)")
    how.add_argument("--lock", help="flock this file during every level, for machines shared with other jobs")
    how.add_argument("--out", metavar="NAME", help="write NAME.md, NAME.requests.csv, NAME.levels.csv and NAME.svg")
    args = p.parse_args(arguments)
    check(p, args)
    return args


def check(parser, args):
    if not args.server and not args.spawn:
        parser.error("no server: --server NAME=URL or --spawn weft|llama")
    if any("=" not in s for s in args.server):
        parser.error("--server wants NAME=URL")
    names = [s.split("=", 1)[0] for s in args.server] + args.spawn
    if len(set(names)) < len(names):
        parser.error("two servers of one name")
    counts = [args.turns, args.output, args.prefix, args.suffix, args.sessions, args.rounds, *args.users, *(args.new or [])]
    if min(counts + [c - 1 for c in args.context]) < 1:
        parser.error("sizes and numbers must be at least 1")
    if not 0 < args.hit_rate < 1:
        parser.error("--hit-rate is between 0 and 1")
    args.api = args.api or (client.COMPLETIONS if args.spawn else client.CHAT)


class Bench:
    """Servers, what they were asked, and what came of it."""

    def __init__(self, args):
        self.args, self.levels, self.notes, self.rows = args, [], [], []
        self.key = pathlib.Path(args.api_key_file).read_text(encoding="utf-8").split()[0] if args.api_key_file else ""
        self.spawned, self.targets, self.idle = {}, {}, {}
        new = args.new[0] if args.new else 1
        sizes = workload.Sizes(args.prefix, args.suffix, new, args.output, args.turns)
        self.options = driver.Options(args.api, sizes, args.history, args.ids or (256, 8192), args.temperature, args.seed, args.think,
                                      args.think_kind, args.level_seconds, args.abort, not args.no_prime, self.key, args.body, args.timeout)
        self.names = [s.split("=", 1)[0] for s in args.server] + args.spawn

    def solved(self, history):
        """Sizes with the new tokens asked for, or those that give the hit rate."""
        if self.args.new:
            return self.options.sizes
        return workload.solve_new(self.options.sizes, self.args.hit_rate, history)

    def longest(self):
        """Tokens of the longest prompt with its answer, and some to spare."""
        args = self.args
        if args.scenario == "warm":
            return max(args.context) + (args.turns + 1) * (max(args.new or [64]) + args.output) + 64
        return max(self.solved(h).prompt(args.turns) for h in (workload.GENERATED, workload.RANDOM)) + args.output + 64

    def spawn(self):
        args = self.args
        if not args.spawn:
            return
        folder, gguf = servers.weights(args.preset, args.model)
        if not args.ids:
            self.options.ids = servers.ids_of(folder)
        users = max(args.users) if args.scenario == "agentic" else 1
        context = -(-self.longest() // 256) * 256
        for name in args.spawn:
            if name == "weft":
                self.spawned[name] = servers.Weft(folder, users, context, args.threads, args.weft_arg)
            else:
                self.spawned[name] = servers.Llama(gguf(), context, args.threads, args.llama_slots, args.llama_arg)

    def target(self, name, users):
        """The server, running and known."""
        urls = dict(s.split("=", 1) for s in self.args.server)
        server = self.spawned.get(name)
        if server is not None:
            server.ready_for(users)
        address = server.address if server else urls[name]
        target = self.targets.get(name)
        if target is None or target.address.text != address:
            fresh = driver.Target(name, address, self.key)
            fresh.model = self.args.model_name
            asyncio.run(fresh.learn(self.options))
            if target is not None:
                fresh.steady, fresh.scale = target.steady, target.scale
            self.targets[name] = fresh
        return self.targets[name]

    def prepare(self):
        """What must be known before the first level: sizes, the history that every server can give, words per token."""
        args = self.args
        with machine_lock(args.lock):
            found = [self.target(name, 1) for name in self.names]
        if args.history == "auto":
            self.options.history = workload.GENERATED
            if args.api == client.COMPLETIONS and not all(asyncio.run(driver.gives_ids(t, self.options)) for t in found):
                self.options.history = workload.RANDOM
        if self.options.history == workload.RANDOM:
            self.notes.append("history: random text of the length of each answer; answers themselves are never reused")
        if args.scenario == "agentic":
            self.options.sizes = self.solved(self.options.history)
        if args.api == client.CHAT:
            scale = asyncio.run(driver.calibrate(found[0], self.options))
            for target in found:
                target.scale = scale
            self.notes.append(f"{scale.per_word:.2f} tokens per word")
        for target in found:
            if not target.steady:
                self.notes.append(f"{target.name} knows no ignore_eos: answers may be shorter than asked for")

    @contextlib.contextmanager
    def watching(self, busy):
        """CPU time of the spawned servers that should be idle meanwhile."""
        others = [s for name, s in self.spawned.items() if name != busy and s.process is not None]
        before, start = [s.cpu_seconds() for s in others], time.monotonic()
        yield
        for server, used in zip(others, before):
            total = self.idle.setdefault(server.name, [0.0, 0.0])
            total[0] += server.cpu_seconds() - used
            total[1] += time.monotonic() - start

    def level(self, name, users, turn):
        with machine_lock(self.args.lock):
            target = self.target(name, users)
            run = driver.LevelRun(target, self.options, users, max(users, self.args.sessions), turn)
            start = time.monotonic()
            try:
                with self.watching(name):
                    level = asyncio.run(run.run())
            except KeyboardInterrupt:
                self.levels.append(dataclasses.replace(run.level(time.monotonic() - start), note="interrupted"))
                raise
        self.levels.append(level)
        row = stats.summarize([level])
        print(f"  {users:3} users  {name:8} {row['tokens_min']:10.0f} tokens/min  TTFT p50 {row['ttft_p50']:7.0f} ms"
              f"  ITL p50 {row['itl_p50']:6.1f} ms  hits {100 * row['hits_claimed']:5.1f} %"
              f"  {row['requests']}/{row['planned']} requests in {level.seconds:.1f} s"
              f"{'  ' + level.note if level.note else ''}", flush=True)

    def agentic(self):
        sizes = self.options.sizes
        print(f"prompts of {sizes.prompt(0)} to {sizes.prompt(sizes.turns - 1)} tokens: {sizes.prefix} shared, {sizes.suffix} own, "
              f"{sizes.new} new and {sizes.output} generated per turn, {sizes.turns} turns; "
              f"possible hits {100 * workload.hit_rate(sizes, self.options.history):.1f} %", flush=True)
        count = 0
        for turn in range(self.args.rounds):
            for users in self.args.users:
                for name in self.names if count % 2 == 0 else reversed(self.names):
                    self.level(name, users, turn)
                count += 1

    def warm(self):
        """One session: a context is put in, then turns with few new tokens each."""
        news = self.args.new or [64]
        for context in self.args.context:
            for name in self.names:
                with machine_lock(self.args.lock):
                    target = self.target(name, 1)
                    with self.watching(name):
                        self.rows += [self.warm_row(target, context, new) for new in news]

    def warm_row(self, target, context, new):
        suffix = min(self.args.suffix, context // 2)
        sizes = workload.Sizes(context - suffix, suffix, new, self.args.output, self.args.turns + 1)
        options = dataclasses.replace(self.options, sizes=sizes, prime=False, seed=f"{self.args.seed}/{context}/{new}")
        if self.args.api == client.CHAT:
            target.scale = asyncio.run(driver.calibrate(target, options))
        run = driver.LevelRun(target, options, 1, 1)
        level = asyncio.run(run.run())
        self.levels.append(level)
        warm = [r for r in level.done() if r.turn > 0]
        ttft = [1e3 * r.ttft for r in warm]
        cached, prompts = sum(r.cached_tokens for r in warm), sum(r.prompt_tokens for r in warm)
        row = {"server": target.name, "context": context, "new": new, "cold_ms": 1e3 * level.requests[0].ttft,
               "warm_p50": stats.percentile(ttft, .5), "warm_min": min(ttft, default=math.nan), "warm_max": max(ttft, default=math.nan),
               "cached_percent": 100.0 * cached / max(1, prompts), "turns": len(warm)}
        print(f"  {target.name:8} context {context:6}: cold {row['cold_ms']:8.0f} ms, {new} new tokens {row['warm_p50']:7.1f} ms",
              flush=True)
        return row

    def finish(self):
        """Prints and writes the report; returns the exit status."""
        args, failed = self.args, [r for level in self.levels for r in level.requests if r.status == "error"]
        self.notes += [f"{name}: {server.about()}" for name, server in self.spawned.items()]
        self.notes += [f"{name} while waiting: {used / passed:.2%} of a CPU" for name, (used, passed) in self.idle.items() if passed]
        self.notes += [f"{level.server}, {level.users} users: {level.note}" for level in self.levels if level.note]
        warm = args.scenario == "warm"
        rows = self.rows if warm else stats.group(self.levels)
        title = f"{'Warm turns' if warm else 'Agents'}: {args.model or args.preset if args.spawn else args.api}"
        body = report.warm(rows, title, self.notes) if warm else report.markdown(rows, title, self.notes)
        print("\n" + body, end="")
        if args.out and rows:
            out = pathlib.Path(args.out)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.with_name(out.name + ".md").write_text(body, encoding="utf-8")
            report.write_rows(out.with_name(out.name + ".levels.csv"), rows)
            report.write_requests(out.with_name(out.name + ".requests.csv"), self.levels, stats.percentile)
            plot = report.warm_plot(rows, title) if warm else report.pareto(rows, title)
            out.with_name(out.name + ".svg").write_text(plot, encoding="utf-8")
        for name, (used, passed) in self.idle.items():
            if passed and used / passed > 0.01:
                print(f"warning: {name} used the CPU while it waited; the numbers of the others are too low", file=sys.stderr)
        for r in failed[:20]:
            print(f"error: {r.server}, {r.users} users, session {r.session}, turn {r.turn}: {r.error}", file=sys.stderr)
        if failed:
            print(f"error: {len(failed)} of {sum(len(level.requests) for level in self.levels)} requests failed", file=sys.stderr)
        return 1 if failed else 0

    def close(self):
        for server in self.spawned.values():
            server.stop()


def main(arguments=None):
    args = parse(arguments)
    bench = None
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        bench = Bench(args)
        bench.spawn()
        bench.prepare()
        bench.warm() if args.scenario == "warm" else bench.agentic()
        return bench.finish()
    except KeyboardInterrupt:
        if bench is not None and bench.levels:
            bench.finish()
        print("interrupted", file=sys.stderr)
        return 130
    except (client.RequestError, servers.ServerError, ValueError, OSError) as problem:
        if bench is not None and bench.levels:
            bench.finish()
        print(f"error: {problem}", file=sys.stderr)
        return 2
    finally:
        if bench is not None:
            bench.close()


if __name__ == "__main__":
    sys.exit(main())
