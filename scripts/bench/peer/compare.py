#!/usr/bin/env python3
"""Measures weft and llama.cpp on the same weights, one after the other, pair by pair. Started by scripts/bench/peer_llamacpp."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

import check
import models
from engines import Engine, EngineError, IdleWatch, machine_lock
from ratios import Pair, markdown, order, summarize, write_csv, write_json

CONTEXT = 32  # tokens before the decoded ones
DECODE_SECONDS = 1.2  # of the slower program, about
STEPS_MIN, STEPS_MAX = 8, 256
LONG_PROMPT = 4096  # from here on, fewer rounds


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def parse():
    parser = argparse.ArgumentParser(prog="peer_llamacpp", description=__doc__.split(". Started")[0])
    parser.add_argument("--preset", help="mini, bench (default), wide, linear-mini, linear: generated into the cache directory")
    parser.add_argument("--model", help="directory of a checkpoint instead")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of each measurement (5)")
    parser.add_argument("--long-rounds", type=int, default=2, help=f"pairs of prompts from {LONG_PROMPT} tokens on (2)")
    parser.add_argument("--prefill", type=numbers, default=[512], metavar="N,..", help="prompt lengths (512)")
    parser.add_argument("--decode", type=numbers, default=[1, 2, 4, 8, 16, 32], metavar="B,..", help="batch sizes (1,2,4,8,16,32)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both programs (all CPUs)")
    parser.add_argument("--out", help="write NAME.json, NAME.csv and NAME.md here")
    parser.add_argument("--check", action="store_true", help="compare logits instead of speed; exit status 1 when they differ")
    parser.add_argument("--lock", help="flock this file during every pair, for machines shared with other jobs")
    parser.add_argument("--weft-set", action="append", default=[], metavar="KEY=VALUE", help="a setting of weft's model")
    parser.add_argument("--weft-isa", help="newest instruction set weft may use")
    for flag, default in (("--peer-ubatch", "512"), ("--peer-flash", "auto"), ("--peer-repack", "on"), ("--peer-unified", "off"),
                          ("--peer-load", "mmap")):
        parser.add_argument(flag, default=default, help=f"llama.cpp setting ({default})")
    for hidden in ("--weft-bench", "--peer", "--cache"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.preset and args.model:
        parser.error("--preset or --model, not both")
    return args


class Comparison:
    def __init__(self, args, weft, peer):
        self.args, self.engines = args, {"weft": weft, "llama.cpp": peer}
        self.idle = {name: IdleWatch() for name in self.engines}
        self.pairs, self.machine = [], []

    def ask(self, name, line):
        """One program computes, the other is watched: it must not touch the CPU."""
        other = next(n for n in self.engines if n != name)
        with self.idle[other].watching(self.engines[other]):
            return self.engines[name].ask(line)["tok_s"]

    def steps(self, batch):
        """How many steps are worth measuring; asking for a few first also warms both programs."""
        with machine_lock(self.args.lock):
            slower = min(self.ask(name, f"decode {batch} {STEPS_MIN}") for name in self.engines)
        return max(STEPS_MIN, min(STEPS_MAX, round(DECODE_SECONDS * slower / batch)))

    def pair(self, what, line, turn):
        names = order(turn, self.engines)
        with machine_lock(self.args.lock):
            speed = {name: self.ask(name, line) for name in names}
        pair = Pair(what, turn, names[0], speed["weft"], speed["llama.cpp"])
        self.pairs.append(pair)
        print(f"  {what:14} pair {turn + 1}: weft {pair.weft:9.1f}  llama.cpp {pair.peer:9.1f} tok/s  ratio {pair.ratio:5.2f}"
              f"  ({names[0]} first)", flush=True)

    def run(self):
        lines = [(f"prefill {n}", f"prefill {n}", self.args.long_rounds if n >= LONG_PROMPT else self.args.rounds)
                 for n in self.args.prefill]
        lines += [(f"decode batch {b}", f"decode {b} {self.steps(b)}", self.args.rounds) for b in self.args.decode]
        for turn in range(max(rounds for _, _, rounds in lines)):
            self.machine.append(machine(self.args))  # every round: virtual machines change under one's feet
            print(f"round {turn + 1}, machine: {describe(self.machine[-1:])}", flush=True)
            for what, line, rounds in lines:
                if turn < rounds:
                    self.pair(what, line, turn)


def machine(args):
    """Read bandwidth and arithmetic peaks, from weft-bench; empty where it cannot say."""
    with machine_lock(args.lock):
        done = subprocess.run([args.weft_bench, "machine", "--json"], stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def peaks(report):
    """The best rate of each kind, over loops and thread counts."""
    best = {}
    for rate in report.get("rates", []):
        best[rate["kind"]] = max(best.get(rate["kind"], 0.0), rate["best_per_s"])
    return best


def describe(reports):
    """Peaks of one or more measurements of the machine; the range where they differ."""
    found, units = [peaks(r) for r in reports], {"read": "GB/s read", "f32": "GFLOP/s F32", "bf16": "GFLOP/s BF16", "int8": "GOP/s INT8"}
    parts = []
    for kind, unit in units.items():
        values = sorted(f[kind] / 1e9 for f in found if kind in f)
        if values:
            low, high = f"{values[0]:.1f}", f"{values[-1]:.1f}"
            parts.append(f"{low if low == high else low + '..' + high} {unit}")
    return ", ".join(parts) or "not measured"


def start_weft(args, folder, longest, extra=()):
    command = [args.weft_bench, "run", "--stdin", "--model", str(folder), "--threads", str(args.threads), "--max-context",
               str(longest + 16), "--max-sequences", str(max(args.decode + [1]))]
    command += [part for setting in args.weft_set for part in ("--set", setting)]
    if args.weft_isa and "--isa" not in extra:
        command += ["--isa", args.weft_isa]
    return Engine("weft", command + list(extra))


def start_peer(args, gguf, extra=()):
    home = pathlib.Path(args.peer)
    return Engine("llama.cpp", [str(home / "peer_driver"), "--libs", str(home / "lib"), "--model", str(gguf), "--threads",
                                str(args.threads), "--ubatch", args.peer_ubatch, "--flash", args.peer_flash, "--repack",
                                args.peer_repack, "--unified", args.peer_unified, "--load", args.peer_load, *extra])


def report(args, comparison, about):
    rows = summarize(comparison.pairs)
    title = f"weft against llama.cpp: {about['model']}, {args.threads} threads"
    table = markdown(rows, title) + "\n" + "".join(f"- {key}: {value}\n" for key, value in about["notes"].items())
    print("\n" + table, end="")
    if args.out:
        out = pathlib.Path(args.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".md").write_text(table, encoding="utf-8")
        write_csv(out.with_suffix(".csv"), comparison.pairs)
        write_json(out.with_suffix(".json"), about, comparison.pairs)


def measure(args):
    folder = pathlib.Path(args.model) if args.model else models.preset(args.weft_bench, args.cache, args.preset or "bench")
    gguf = models.converted(args.cache, folder)
    weft, peer = start_weft(args, folder, max(args.prefill + [CONTEXT + STEPS_MAX])), start_peer(args, gguf)
    print(f"weft: {weft.about}\nllama.cpp: {peer.about}", flush=True)
    comparison = Comparison(args, weft, peer)
    try:
        comparison.run()
    finally:
        weft.close()
        peer.close()
    idle = {name: f"{watch.share():.2%}" for name, watch in comparison.idle.items()}
    rates = comparison.machine
    notes = {"machine": f"{rates[0].get('cpu', platform.machine())}, {describe(rates)}",
             "weft": f"kernels {weft.about.get('kernels')}",
             "llama.cpp": f"{peer.about['backend']} ({peer.about['features']}), ubatch {peer.about['ubatch']}, flash attention "
                          f"{peer.about['flash']}, repack {'on' if peer.about['repack'] else 'off'}, {peer.about['cache']} cache",
             "on the CPU while waiting": ", ".join(f"{name} {share}" for name, share in idle.items())}
    about = {"model": folder.name, "threads": args.threads, "notes": notes, "machine": rates, "weft": weft.about,
             "llama.cpp": peer.about, "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    report(args, comparison, about)
    if any(watch.share() > 0.01 for watch in comparison.idle.values()):
        print("warning: a waiting program used the CPU; the numbers of the other one are too low", file=sys.stderr)
    return 0


def main():
    args = parse()
    try:
        if args.check:
            return check.run(args, lambda *a: start_weft(args, *a), lambda *a: start_peer(args, *a))
        return measure(args)
    except (EngineError, ValueError, OSError, subprocess.CalledProcessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
