"""Runs one level: so many users at once, each with its sessions one after the other, and what is measured of it."""
import asyncio
import dataclasses
import time

import client
import stats
import workload


@dataclasses.dataclass
class Options:
    """What every request has in common."""
    api: str
    sizes: workload.Sizes
    history: str
    ids: tuple = (256, 8192)
    temperature: float = 1.0
    seed: int = 1
    think: float = 0.1
    think_kind: str = "exponential"
    level_seconds: float = 0.0
    abort: float = 0.0
    prime: bool = True
    key: str = ""
    extra: dict = dataclasses.field(default_factory=dict)
    timeout: float = 1800.0


class Target:
    """A server and how to talk to it. `native` is llama-server's own /completion; `steady` says that it generates exactly as
    many tokens as asked for (ignore_eos)."""

    def __init__(self, name, address, key=""):
        self.name, self.address, self.key = name, client.Address(address), key
        self.model, self.native, self.steady, self.scale = "", False, True, None

    async def learn(self, options):
        """Asks for the model's name and finds out what the server is."""
        status, body = await client.fetch(self.address, "GET", "/v1/models", key=self.key)
        if status != 200:
            raise client.RequestError(client.error_text(status, body), status)
        try:
            self.model = self.model or client.json.loads(body)["data"][0]["id"]
        except (ValueError, KeyError, IndexError):
            raise client.RequestError(f"{self.name}: /v1/models names no model") from None
        if options.api == client.COMPLETIONS:
            status, body = await client.fetch(self.address, "GET", "/props", key=self.key)
            self.native = status == 200 and b"total_slots" in body

    def body(self, options, request, output, seed):
        if self.native:
            return {**request, "n_predict": output, "stream": True, "return_tokens": True, "ignore_eos": True, "cache_prompt": True,
                    "temperature": options.temperature, "samplers": ["temperature"], "seed": seed, **options.extra}
        body = {"model": self.model, **request, "max_tokens": output, "stream": True, "stream_options": {"include_usage": True},
                "temperature": options.temperature, "seed": seed}
        if self.steady:
            body.update(ignore_eos=True, min_tokens=output)
            if options.api == client.COMPLETIONS:
                body["return_token_ids"] = True
        return {**body, **options.extra}

    async def ask(self, options, request, output, seed=0, stop_after=0):
        target = "/completion" if self.native else "/v1/chat/completions" if options.api == client.CHAT else "/v1/completions"
        return await client.stream(self.address, target, self.body(options, request, output, seed), self.key, self.native, stop_after,
                                   options.timeout)

    async def probe(self, options, request, output=1):
        """A request outside the measurement. A server that refuses the fields beyond OpenAI's is asked without them from now on."""
        try:
            return (await self.ask(options, request, output))[1]
        except client.RequestError as problem:
            if self.native or not self.steady or problem.status not in (400, 422):
                raise
            self.steady = False
            return (await self.ask(options, request, output))[1]

    async def spread(self, slot):
        """llama-server keeps prefixes by slot: copies that of one slot into all others, if it was started with a place for it."""
        status, body = await client.fetch(self.address, "GET", "/slots", key=self.key)
        others = [s["id"] for s in client.json.loads(body) if s["id"] != slot] if status == 200 else []
        steps = [(slot, "save")] + [(other, "restore") for other in others] if others else []
        for place, action in steps:
            where = f"/slots/{place}?action={action}"
            status, _ = await client.fetch(self.address, "POST", where, {"filename": "prefix"}, self.key)
            if status != 200:
                return False
        return True

    async def metrics(self):
        try:
            status, body = await client.fetch(self.address, "GET", "/metrics", key=self.key)
        except (client.RequestError, OSError):
            return ""
        return body.decode(errors="replace") if status == 200 else ""


async def calibrate(target, options):
    """How words become tokens, from the prompt tokens that the server counts."""
    asked = workload.probes(options.sizes, options.seed)
    few, many, turn = [(await target.probe(options, request)).prompt_tokens for request in asked]
    return workload.WordScale.fit(options.sizes, few, many, workload.STEP, turn)


async def gives_ids(target, options):
    """Whether answers come with their token ids, so that they can stand in the next prompt."""
    sizes = dataclasses.replace(options.sizes, prefix=4, suffix=4)
    talk = workload.IdTalk(sizes, options.ids, options.history, ("probe",), ("probe",))
    answer = await target.probe(options, talk.request(), 2)
    return answer.has_ids and len(answer.ids) == answer.output_tokens


class LevelRun:
    """One level on one server. Conversations depend on seed, round, users, session and turn alone: every server gets the same."""

    def __init__(self, target, options, users, sessions, turn_of_run=0):
        self.target, self.options, self.users, self.sessions, self.round = target, options, users, sessions, turn_of_run
        self.requests, self.queue, self.deadline, self.shared, self.note = [], list(range(sessions)), None, 0, ""

    def key(self, *more):
        return (self.options.seed, self.round, self.users, *more)

    def talk(self, session):
        o = self.options
        if o.api == client.CHAT:
            return workload.ChatTalk(o.sizes, self.target.scale, o.history, self.key(), self.key(session))
        return workload.IdTalk(o.sizes, o.ids, o.history, self.key(), self.key(session))

    def over(self):
        return self.deadline is not None and time.monotonic() >= self.deadline

    async def run(self):
        """Returns the Level; an interrupt leaves what was measured so far in self.requests."""
        o = self.options
        if o.prime:
            answer = await self.target.probe(o, self.talk(0).priming())
            self.shared = answer.prompt_tokens
            if self.target.native:
                copied = await self.target.spread(answer.slot)
                self.note = "" if copied else "the shared prefix could not be copied into every slot"
        before, start = await self.target.metrics(), time.monotonic()
        if o.level_seconds:
            self.deadline = start + o.level_seconds
        await asyncio.gather(*(self.user(number) for number in range(self.users)))
        seconds = time.monotonic() - start
        return self.level(seconds, stats.measured_hits(before, await self.target.metrics()))

    def level(self, seconds, measured=None):
        planned = self.sessions * self.options.sizes.turns
        finished = len(self.requests)
        note = f"cut after {finished} of {planned} requests" if finished < planned and self.over() else self.note
        return stats.Level(self.target.name, self.users, self.round, seconds, self.requests, planned, measured, note)

    async def user(self, number):
        """Takes sessions until none is left."""
        rng = workload.source(*self.key("user", number))
        while self.queue and not self.over():
            session = self.queue.pop(0)
            await self.session(session, rng)

    async def session(self, session, rng):
        talk, known, o = self.talk(session), 0, self.options
        for turn in range(o.sizes.turns):
            await asyncio.sleep(workload.think_time(rng, o.think, o.think_kind))
            if self.over():
                return
            request = stats.Request(self.target.name, self.users, self.round, session, turn)
            self.requests.append(request)
            answer = await self.turn(request, talk, rng)
            if answer is None:
                return
            request.possible_tokens = min(known if turn else self.shared, request.prompt_tokens)
            known = workload.repeated(answer.prompt_tokens, answer.output_tokens, o.history)
            talk.answered(answer)

    async def turn(self, request, talk, rng):
        """One request; None when the session cannot go on."""
        o = self.options
        stop_after = rng.randrange(1, o.sizes.output) if o.abort and o.sizes.output > 1 and rng.random() < o.abort else 0
        seed = workload.source(*self.key(request.session, request.turn, "seed")).randrange(1 << 31)
        request.start = time.monotonic()
        try:
            start, answer = await self.target.ask(o, talk.request(), o.sizes.output, seed, stop_after)
        except client.RequestError as problem:
            request.status, request.error = "error", str(problem)
            return None
        if answer is None:
            request.status = "aborted"
            return None
        request.prompt_tokens, request.cached_tokens = answer.prompt_tokens, answer.cached_tokens
        request.output_tokens, request.seconds = answer.output_tokens, time.monotonic() - start
        wrong = self.complaint(answer)
        if wrong:
            request.status, request.error = "error", wrong
            return None
        request.ttft, request.seconds = answer.arrivals[0][0] - start, answer.arrivals[-1][0] - start
        request.status = "ok"
        request.gaps = stats.token_gaps(answer.arrivals, answer.output_tokens)
        return answer

    def complaint(self, answer):
        """What is wrong with a complete answer, or nothing."""
        if not answer.arrivals:
            return f"no output arrived, though {answer.output_tokens} tokens are counted"
        if not answer.prompt_tokens:
            return "the server counted no prompt tokens (is stream_options.include_usage understood?)"
        if answer.cached_tokens > answer.prompt_tokens:
            return f"{answer.cached_tokens} tokens cached of a prompt of {answer.prompt_tokens}"
        if self.target.steady and answer.output_tokens != self.options.sizes.output:
            return f"{self.options.sizes.output} tokens asked for, {answer.output_tokens} generated"
        return ""
