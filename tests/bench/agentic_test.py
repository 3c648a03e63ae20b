#!/usr/bin/env python3
"""Tests of scripts/bench/agentic against a small server in this process: accounting, statistics, files, errors. No model."""
import contextlib
import csv
import dataclasses
import http.server
import io
import json
import math
import pathlib
import random
import struct
import sys
import tempfile
import threading
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench" / "agentic_lib"))
import client  # noqa: E402
import main  # noqa: E402
import report  # noqa: E402
import stats  # noqa: E402
import svg  # noqa: E402
import workload  # noqa: E402
import gguf  # noqa: E402  (main makes the peer's modules known)
import served  # noqa: E402


class Fake(http.server.ThreadingHTTPServer):
    """Speaks enough of the API. It has a perfect prefix cache over token lists: the longest prompt and answer seen before."""
    daemon_threads = True

    def __init__(self, **behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour, self.seen, self.bodies, self.lock = behaviour, set(), [], threading.Lock()
        self.queries = self.hits = 0
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (BrokenPipeError, ConnectionResetError)):
            super().handle_error(request, client_address)

    def stop(self):
        self.shutdown()
        self.server_close()

    def admit(self, prompt, answer):
        """Cached tokens of a prompt. Prefixes are remembered by their ends only, as states are."""
        with self.lock:
            cached = next((n for n in range(len(prompt), 0, -1) if hash(tuple(prompt[:n])) in self.seen), 0)
            self.seen.add(hash(tuple(prompt)))
            self.seen.add(hash(tuple(prompt + answer[:-1])))
            self.queries += len(prompt)
            self.hits += cached
        return cached


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, value, status=200):
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        s = self.server
        if self.path == "/v1/models":
            return self.reply({"data": [{"id": "fake"}]})
        if self.path == "/metrics" and "no_metrics" not in s.behaviour:
            return self.reply(f'# HELP x y\nvllm:prefix_cache_queries_total{{model="a b"}} {s.queries}\nvllm:prefix_cache_hits_total {s.hits}\n')
        if self.path == "/props" and "native" in s.behaviour:
            return self.reply({"total_slots": 4})
        if self.path == "/slots" and "native" in s.behaviour:
            return self.reply([{"id": i} for i in range(3)])
        return self.reply({"error": {"message": "not here"}}, 404)

    def do_POST(self):
        s, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with s.lock:
            s.bodies.append((self.path, body))
        if self.path.startswith("/slots"):
            return self.reply({})
        if s.behaviour.get("strict") and "ignore_eos" in body:
            return self.reply({"error": {"message": "unknown field ignore_eos"}}, 400)
        if s.behaviour.get("refuse"):
            return self.reply({"error": {"message": "overloaded"}}, 503)
        prompt = body.get("prompt") or json.dumps(body["messages"] + body.get("tools", [])).split(" ")
        count = body.get("max_tokens", body.get("n_predict"))
        answer = [random.Random(repr(prompt[-4:])).randrange(1000, 2000) for _ in range(count)]
        words = [str(i) for i in answer]
        cached = s.admit(list(prompt), answer if "prompt" in body else words)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = self.native(prompt, answer, cached) if "n_predict" in body else self.openai(body, prompt, answer, cached)
        for event in events:
            self.chunk(f"data: {json.dumps(event)}\n\n")
        if s.behaviour.get("cut") != "now":
            self.chunk("data: [DONE]\n\n" if "n_predict" not in body else "")
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def chunk(self, text):
        data = text.encode()
        if data:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    def native(self, prompt, answer, cached):
        for token in answer:
            yield {"content": "w", "tokens": [token], "stop": False}
        yield {"content": "", "tokens": [], "stop": True, "tokens_evaluated": len(prompt), "tokens_predicted": len(answer),
               "timings": {"cache_n": cached}, "id_slot": 0}

    def openai(self, body, prompt, answer, cached):
        behaviour, chat = self.server.behaviour, "messages" in body
        if behaviour.get("short") and len(answer) > 1:
            answer = answer[:-1]
        for i, token in enumerate(answer):
            if behaviour.get("cut") and i == 2:
                return
            if behaviour.get("fail") and i == 2:
                yield {"error": {"message": "worker lost"}}
                return
            choice = {"index": 0, "finish_reason": None}
            choice.update({"delta": {"content": f"{token} "}} if chat else {"text": f"{token} "})
            if not chat and "mute" not in behaviour:
                choice["token_ids"] = [token]
            yield {"choices": [choice], "usage": None}
        yield {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "length"}]}
        yield {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(answer),
                                        "prompt_tokens_details": {"cached_tokens": cached}}}


SMALL = "--users 1,3 --sessions 2 --turns 3 --prefix 200 --suffix 10 --output 6 --new 5 --think 0".split()


class WithServer(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = pathlib.Path(self.folder.name) / "result"

    def fake(self, **behaviour):
        server = Fake(**behaviour)
        self.addCleanup(server.stop)
        return server

    def bench(self, *arguments):
        """(exit status, standard output, standard error)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main.main([*arguments, "--out", str(self.out)])
        return status, out.getvalue(), err.getvalue()

    def rows(self, what):
        with open(f"{self.out}.{what}.csv", newline="", encoding="utf-8") as f:
            return list(csv.DictReader(f))

    def completions(self, server, *more):
        return self.bench("--server", f"a={server.url}", "--api", "completions", *SMALL, *more)


class Runs(WithServer):
    def test_completions(self):
        server = self.fake()
        status, out, err = self.completions(server)
        self.assertEqual((status, err), (0, ""))
        rows = self.rows("requests")
        self.assertEqual(len(rows), (2 + 3) * 3)
        for row in rows:
            turn = int(row["turn"])
            self.assertEqual(int(row["prompt_tokens"]), 210 + 11 * turn)
            self.assertEqual(row["cached_tokens"], row["possible_tokens"])  # the fake forgets nothing
            self.assertEqual(int(row["cached_tokens"]), 210 + 11 * (turn - 1) + 5 if turn else 200)
            self.assertEqual((row["status"], row["output_tokens"]), ("ok", "6"))
        levels = self.rows("levels")
        self.assertEqual([(r["users"], r["requests"], r["errors"]) for r in levels], [("1", "6", "0"), ("3", "9", "0")])
        for row in levels:
            self.assertAlmostEqual(float(row["hits_claimed"]), float(row["hits_measured"]), places=3)
            self.assertAlmostEqual(float(row["hits_claimed"]), workload.hit_rate(workload.Sizes(200, 10, 5, 6, 3)), places=3)
            self.assertAlmostEqual(float(row["output_min"]), 6 * float(row["requests_min"]), delta=0.01)
        self.assertIn("| 3 | a |", out)
        xml.etree.ElementTree.parse(f"{self.out}.svg")

    def test_same_conversations_every_time(self):
        first, second = self.fake(), self.fake()
        self.completions(first, "--users", "1")
        self.completions(second, "--users", "1")
        self.assertEqual([b["prompt"] for _, b in first.bodies], [b["prompt"] for _, b in second.bodies])
        third = self.fake()
        self.completions(third, "--users", "1", "--seed", "2")
        self.assertNotEqual(first.bodies[-1][1]["prompt"], third.bodies[-1][1]["prompt"])

    def test_two_servers_alternate_and_get_the_same(self):
        one, two = self.fake(), self.fake(native=True)
        status, out, err = self.bench("--server", f"a={one.url}", "--server", f"b={two.url}", "--api", "completions", *SMALL)
        self.assertEqual((status, err), (0, ""))
        lines = [line.split()[2] for line in out.splitlines() if " users " in line and "tokens/min  TTFT" in line]
        self.assertEqual(lines, ["a", "b", "b", "a"])
        measured = [sorted(body["prompt"] for path, body in s.bodies if body.get("max_tokens", body.get("n_predict")) == 6)
                    for s in (one, two)]
        self.assertEqual(measured[0], measured[1])
        copies = ["/slots/0?action=save", "/slots/1?action=restore", "/slots/2?action=restore"]  # for each of two levels
        self.assertEqual([path for path, _ in two.bodies if path != "/completion"], copies * 2)
        self.assertIn("a / b", out)

    def test_history_without_ids_is_random(self):
        server = self.fake(mute=True)
        status, out, _ = self.completions(server, "--users", "1")
        self.assertEqual(status, 0)
        self.assertIn("history: random", out)
        row = self.rows("requests")[1]
        self.assertEqual((row["prompt_tokens"], row["cached_tokens"], row["possible_tokens"]), ("221", "210", "210"))

    def test_chat_with_tools(self):
        server = self.fake()
        status, out, err = self.bench("--server", f"a={server.url}", *SMALL, "--prefix", "900", "--new", "60")
        self.assertEqual((status, err), (0, ""))
        body = server.bodies[-1][1]
        self.assertEqual([m["role"] for m in body["messages"]], ["system", "user", "assistant", "tool", "assistant", "tool"])
        call = body["messages"][2]["tool_calls"][0]
        self.assertEqual(body["messages"][3]["tool_call_id"], call["id"])
        json.loads(call["function"]["arguments"])
        self.assertEqual(len(body["tools"]), len(workload.TOOLS))
        self.assertIn("tokens per word", out)
        first = [int(r["prompt_tokens"]) for r in self.rows("requests") if r["turn"] == "0"]
        for tokens in first:
            self.assertAlmostEqual(tokens, 910, delta=10)
        self.assertTrue(all(r["errors"] == "0" for r in self.rows("levels")))

    def test_fields_beyond_openai_are_left_out_when_refused(self):
        server = self.fake(strict=True)
        status, out, _ = self.completions(server, "--users", "1")
        self.assertEqual(status, 0)
        self.assertIn("ignore_eos", out)
        self.assertNotIn("ignore_eos", server.bodies[-1][1])

    def test_aborts_are_no_errors(self):
        server = self.fake()
        status, _, _ = self.completions(server, "--abort", "1")
        self.assertEqual(status, 0)
        self.assertEqual({r["status"] for r in self.rows("requests")}, {"aborted"})
        self.assertEqual([r["aborted"] for r in self.rows("levels")], ["2", "3"])

    def test_level_seconds_cuts(self):
        server = self.fake()
        status, out, _ = self.completions(server, "--level-seconds", "0.000001")
        self.assertEqual(status, 0)
        self.assertIn("cut after", out)

    def test_warm_turns(self):
        server = self.fake()
        status, out, err = self.bench("--server", f"a={server.url}", "--api", "completions", "--scenario", "warm", "--context", "64,512",
                                      "--new", "8,16", "--turns", "2", "--output", "4", "--think", "0")
        self.assertEqual((status, err), (0, ""))
        rows = self.rows("levels")
        self.assertEqual([(r["context"], r["new"], r["turns"]) for r in rows], [(c, n, "2") for c in ("64", "512") for n in ("8", "16")])
        self.assertGreater(float(rows[2]["cached_percent"]), 97.0)
        xml.etree.ElementTree.parse(f"{self.out}.svg")


class Failures(WithServer):
    def fails(self, text, *more, **behaviour):
        status, out, err = self.completions(self.fake(**behaviour), "--users", "1", "--history", "generated", "--no-prime", *more)
        self.assertEqual(status, 1)
        self.assertIn(text, err)
        self.assertTrue(all(r["status"] == "error" and r["error"] for r in self.rows("requests")))

    def test_error_event(self):
        self.fails("worker lost", fail=True)

    def test_cut_connection(self):
        self.fails("cut off", cut="now")

    def test_end_without_finish(self):
        self.fails("without a finish reason", cut="politely")

    def test_refused(self):
        self.fails("HTTP 503: overloaded", refuse=True)

    def test_too_few_tokens(self):
        self.fails("6 tokens asked for, 5 generated", short=True)

    def test_nobody_there(self):
        status, _, err = self.bench("--server", "a=http://127.0.0.1:1", *SMALL)
        self.assertEqual(status, 2)
        self.assertIn("error:", err)

    def test_unreachable_hit_rate(self):
        status, _, err = self.bench("--server", f"a={self.fake().url}", "--api", "completions", "--prefix", "10", "--hit-rate", "0.99")
        self.assertEqual(status, 2)
        self.assertIn("cannot be reached", err)

    def test_bad_arguments(self):
        here = ["--server", "a=b"]
        for wrong in (["--server", "x"], [], here + ["--turns", "0"], here + ["--server", "a=c"], here + ["--ids", "5:3"]):
            with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()):
                main.parse(wrong)
            self.assertEqual(end.exception.code, 2)
        with self.assertRaises(ValueError):
            client.Address("https://somewhere")


class Workload(unittest.TestCase):
    def test_solver_meets_the_target(self):
        rng = random.Random(3)
        for _ in range(200):
            sizes = workload.Sizes(rng.randrange(500, 5000), rng.randrange(1, 80), 1, rng.randrange(1, 80), rng.randrange(2, 12))
            for history in (workload.GENERATED, workload.RANDOM):
                best = workload.hit_rate(sizes, history)
                target = best - rng.random() * 0.3 * best
                try:
                    found = workload.solve_new(sizes, target, history)
                except ValueError:
                    continue
                around = [abs(workload.hit_rate(dataclasses.replace(sizes, new=n), history) - target)
                          for n in (max(1, found.new - 1), found.new, found.new + 1)]
                self.assertEqual(min(around), around[1])

    def test_hit_rate_by_hand(self):
        sizes = workload.Sizes(100, 10, 5, 4, 2)  # prompts of 110 and 119; 100 and 113 of them known
        self.assertAlmostEqual(workload.hit_rate(sizes), 213 / 229)
        self.assertAlmostEqual(workload.hit_rate(sizes, workload.RANDOM), 210 / 229)

    def test_random_history_has_the_same_length(self):
        sizes = workload.Sizes(20, 4, 3, 5, 3)
        talk = workload.IdTalk(sizes, (10, 20), workload.RANDOM, (1,), (1, 2))
        talk.answered(None)
        self.assertEqual(len(talk.request()["prompt"]), sizes.prompt(1))

    def test_thinking(self):
        rng = workload.source(1)
        self.assertEqual(workload.think_time(rng, 0.5, "fixed"), 0.5)
        self.assertEqual(workload.think_time(rng, 0, "exponential"), 0.0)
        self.assertAlmostEqual(sum(workload.think_time(rng, 0.5, "exponential") for _ in range(5000)) / 5000, 0.5, delta=0.05)


class Statistics(unittest.TestCase):
    def test_percentile(self):
        self.assertEqual([stats.percentile([4, 1, 3, 2], s) for s in (0, .5, 1)], [1, 2.5, 4])
        self.assertAlmostEqual(stats.percentile(range(101), .95), 95)
        self.assertTrue(math.isnan(stats.percentile([], .5)))

    def test_gaps(self):
        self.assertEqual(stats.token_gaps([(0.0, 1), (1.0, 1), (3.0, 2)], 4), [1.0, 1.0, 1.0])
        self.assertEqual(stats.token_gaps([(0.0, None), (2.0, None)], 3), [1.0])
        self.assertEqual(stats.token_gaps([(0.0, 1)], 1), [])

    def test_counters(self):
        text = '# TYPE a counter\na{x="1 2",y="}"} 3\na{x="2"} 4 1700000000\nb 1e3\nnot a line\n'
        self.assertEqual((stats.counter(text, "a"), stats.counter(text, "c", "b"), stats.counter(text, "z")), (7.0, 1000.0, None))
        self.assertIsNone(stats.measured_hits("", ""))
        before = "llamacpp:prompt_tokens_total 10\nllamacpp:prompt_tokens_cached_total 0\n"
        self.assertEqual(stats.measured_hits(before, "llamacpp:prompt_tokens_total 15\nllamacpp:prompt_tokens_cached_total 15\n"), 0.75)

    def test_summary(self):
        def request(status, ttft):
            return stats.Request("s", 2, 0, 0, 0, status, 0.0, ttft, 2.0, 100, 90, 95, 10, [0.1, 0.3])
        row = stats.summarize([stats.Level("s", 2, 0, 30.0, [request("ok", 1.0), request("ok", 3.0), request("error", 9.0)], 4, 0.8)])
        self.assertEqual((row["tokens_min"], row["computed_min"], row["output_min"], row["requests_min"]), (440, 80, 40, 4))
        self.assertEqual((row["ttft_p50"], row["itl_p50"], row["errors"], row["hits_claimed"], row["hits_possible"], row["hits_measured"]),
                         (2000, 200, 1, 0.9, 0.95, 0.8))


class Output(unittest.TestCase):
    def test_svg_is_well_formed(self):
        for log in (False, True):
            lines = [("a <&> \"b\"", [(1.0, 2.0, "<1>"), (50.0, 3e6, "2")]), ("none", []), ("nan", [(math.nan, 1.0, "")])]
            drawing = svg.plot(lines, "t & u", "x", "y", log)
            root = xml.etree.ElementTree.fromstring(drawing)
            self.assertEqual(len(root.findall("{*}circle")), 2)
        xml.etree.ElementTree.fromstring(svg.plot([], "", "", ""))

    def test_ticks_cover(self):
        for low, high in ((0, 1), (0, 7.3), (0, 123456), (3, 3)):
            marks = svg.ticks(low, high)
            self.assertTrue(marks[0] <= low and marks[-1] >= high and len(marks) <= 12)

    def test_ratios(self):
        base = {"tokens_min": 10.0, "output_min": 1.0, "ttft_p50": 5.0, "ttft_p95": 6.0, "itl_p50": 1.0}
        rows = [{"server": "a", "users": 1, **base}, {"server": "b", "users": 1, **base, "tokens_min": 2.0}]
        (only,) = report.ratios(rows)
        self.assertEqual((only["pair"], only["tokens_min"], only["ttft_p50"]), ("a / b", 5.0, 1.0))


class Streams(unittest.TestCase):
    def test_tool_calls_are_put_together(self):
        parts = [{"index": 0, "id": "c", "function": {"name": "run", "arguments": "{\"a\""}}, {"index": 0, "function": {"arguments": ":1}"}}]
        events = [{"choices": [{"delta": {"tool_calls": [p]}}]} for p in parts] + [{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]
        answer = client.understand([(float(i), b"data: " + json.dumps(e).encode()) for i, e in enumerate(events)], False)
        self.assertEqual(answer.tool_calls, [{"id": "c", "type": "function", "function": {"name": "run", "arguments": "{\"a\":1}"}}])
        self.assertEqual([when for when, _ in answer.arrivals], [0.0, 1.0])

    def test_garbage(self):
        with self.assertRaises(client.RequestError):
            client.understand([(0.0, b"data: {")], False)


class Served(unittest.TestCase):
    def test_vocabulary_is_added_and_weights_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            plain, full = pathlib.Path(folder) / "a.gguf", pathlib.Path(folder) / "b.gguf"
            writer = gguf.Writer()
            writer.key("general.architecture", gguf.STRING, "x")
            writer.key("tokenizer.ggml.model", gguf.STRING, "none")
            writer.key("x.vocab_size", gguf.U32, 9)
            data = {name: struct.pack("<6f", *(random.random() for _ in range(6))) for name in ("one", "two")}
            for name, values in data.items():
                writer.tensor(name, gguf.F32, (2, 3), lambda values=values: values)
            writer.write(plain)
            served.write(plain, full)
            keys, tensors = gguf.read(full)
            self.assertEqual({name: t[2] for name, t in tensors.items()}, data)
            self.assertEqual((keys["tokenizer.ggml.model"], len(keys["tokenizer.ggml.tokens"]), keys["x.vocab_size"]), ("llama", 9, 9))


if __name__ == "__main__":
    unittest.main()
