"""What the agents say: sizes of a conversation, the hit rate that follows from them, and the conversations themselves.

A session is `turns` requests. Its first prompt is the shared prefix and a suffix of its own; each later one is the prompt
before, the answer to it and `new` tokens (a tool result or a question). Everything follows from the seed.
"""
import dataclasses
import json
import random

GENERATED, RANDOM = "generated", "random"  # what stands in the history where the answers were


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Tokens of each part."""
    prefix: int
    suffix: int
    new: int
    output: int
    turns: int

    def prompt(self, turn):
        return self.prefix + self.suffix + turn * (self.new + self.output)


def repeated(prompt, output, history):
    """Tokens of a finished turn that the next prompt begins with and that a server can have kept. The last token of an answer
    was never given to the model; answers that are replaced by random tokens are of no use at all."""
    return prompt + max(0, output - 1) if history == GENERATED else prompt


def hit_rate(sizes, history=GENERATED):
    """The best possible share of prompt tokens that need not be computed, once the shared prefix is known."""
    total = sum(sizes.prompt(t) for t in range(sizes.turns))
    known = sizes.prefix + sum(repeated(sizes.prompt(t), sizes.output, history) for t in range(sizes.turns - 1))
    return known / total


def solve_new(sizes, target, history=GENERATED):
    """The sizes with as many new tokens per turn as give the target: more of them lower the hit rate."""
    if sizes.turns < 2:
        raise ValueError(f"a hit rate needs at least 2 turns, not {sizes.turns}")
    best = hit_rate(dataclasses.replace(sizes, new=1), history)
    if target > best:
        raise ValueError(f"a hit rate of {target:.3f} cannot be reached: with one new token per turn it is {best:.3f}; "
                         "take a longer prefix, a shorter suffix or a shorter output")
    low, high = 1, 2
    while hit_rate(dataclasses.replace(sizes, new=high), history) > target:
        low, high = high, high * 2
        if high > 1 << 24:
            raise ValueError(f"a hit rate of {target:.3f} cannot be reached: it stays higher, however much is new")
    while high - low > 1:
        middle = (low + high) // 2
        if hit_rate(dataclasses.replace(sizes, new=middle), history) > target:
            low = middle
        else:
            high = middle
    return min((dataclasses.replace(sizes, new=n) for n in (low, high)), key=lambda s: abs(hit_rate(s, history) - target))


def source(*key):
    """Random numbers of their own for every part of a run, so that no part depends on the order of the others."""
    return random.Random("/".join(map(str, key)))


def think_time(rng, mean, kind):
    return mean if kind == "fixed" else rng.expovariate(1.0 / mean) if mean > 0 else 0.0


class IdTalk:
    """A conversation made of token ids."""

    def __init__(self, sizes, ids, history, prefix_key, own_key):
        self.sizes, self.ids, self.history, self.rng = sizes, ids, history, source(*own_key, "talk")
        self.shared = self.draw(source(*prefix_key, "prefix"), sizes.prefix)
        self.prompt = self.shared + self.draw(self.rng, sizes.suffix)

    def draw(self, rng, count):
        return [rng.randrange(*self.ids) for _ in range(count)]

    def priming(self):
        return {"prompt": self.shared}

    def request(self):
        return {"prompt": self.prompt}

    def answered(self, answer):
        """Adds what came back (or something as long) and what the next turn says."""
        given = self.draw(self.rng, self.sizes.output) if self.history == RANDOM else answer.ids
        self.prompt = self.prompt + list(given) + self.draw(self.rng, self.sizes.new)


WORDS = ("river stone lamp garden winter paper window silver market forest engine letter bridge copper morning signal yellow "
         "station mirror island hammer valley pocket thunder basket harbor pencil meadow rocket candle blanket planet turtle "
         "orange village ladder cotton dragon finger ticket button circle ribbon tunnel anchor saddle violin carpet").split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(max(0, count)))


def _tool(name, about, **fields):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in fields.items()},
        "required": [next(iter(fields))]}}}


TOOLS = [_tool("read_file", "Reads a file of the project.", path=("string", "Path below the project"), first=("integer", "First line")),
         _tool("write_file", "Replaces a file.", path=("string", "Path below the project"), text=("string", "The new contents")),
         _tool("list_files", "Names the files in a directory.", path=("string", "Directory")),
         _tool("search", "Finds lines that contain a text.", text=("string", "What to look for"), limit=("integer", "Most lines")),
         _tool("run", "Runs a command and returns its output.", command=("string", "The command line"), seconds=("number", "Time limit"))]


@dataclasses.dataclass(frozen=True)
class WordScale:
    """How words become tokens on a server, from a few probes: tokens of a word, and how many words fill each part."""
    per_word: float
    system_words: int
    suffix_words: int
    new_words: int

    @classmethod
    def fit(cls, sizes, few, many, step, turn):
        """`few` and `many` are tokens of prompts whose system text differs by `step` words; `turn` those of one with a turn more
        (an answer and a tool result of `FEW` words) than `few`."""
        per_word = (many - few) / step
        if per_word <= 0:
            raise ValueError(f"the server counts {few} and {many} prompt tokens for texts that differ by {step} words")
        overhead = turn - few - FEW * per_word
        fill = lambda tokens: max(1, round(tokens / per_word))  # noqa: E731
        return cls(per_word, fill(sizes.prefix - few + FEW * per_word), fill(sizes.suffix), fill(sizes.new - overhead))


FEW, STEP = 16, 512  # words of the probes


class ChatTalk:
    """A conversation of an agent with tools. Turns are tool results and, every third time, a question of the user."""

    def __init__(self, sizes, scale, history, prefix_key, own_key):
        self.sizes, self.scale, self.history, self.rng = sizes, scale, history, source(*own_key, "talk")
        self.system = {"role": "system", "content": "You are an agent. " + words(source(*prefix_key, "prefix"), scale.system_words)}
        self.messages = [self.system, {"role": "user", "content": words(self.rng, scale.suffix_words)}]
        self.turn = 0

    def priming(self):
        return {"messages": [self.system, {"role": "user", "content": "Begin."}], "tools": TOOLS}

    def request(self):
        return {"messages": self.messages, "tools": TOOLS}

    def answered(self, answer):
        if self.history == RANDOM:
            text, reasoning, calls = words(self.rng, max(1, round(self.sizes.output / self.scale.per_word))), "", []
        else:
            text, reasoning, calls = answer.text, answer.reasoning, answer.tool_calls
        self.turn += 1
        reply = {"role": "assistant", "content": text}
        if reasoning:
            reply["reasoning_content"] = reasoning
        said = words(self.rng, self.scale.new_words)
        if self.turn % 3 == 0 and not calls:
            self.messages = self.messages + [reply, {"role": "user", "content": said}]
            return
        if not calls:
            arguments = json.dumps({"path": "/".join(self.rng.choice(WORDS) for _ in range(3))})
            calls = [{"id": f"read_file:{self.turn}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}]
        reply["tool_calls"] = calls
        results = [{"role": "tool", "tool_call_id": call["id"], "content": said if i == 0 else "done"} for i, call in enumerate(calls)]
        self.messages = self.messages + [reply] + results


def probes(sizes, seed):
    """Three requests whose prompt tokens, as the server counts them, calibrate WordScale: few words, many, one turn more."""
    plain = Sizes(sizes.prefix, sizes.suffix, sizes.new, 8, 2)
    def talk(system_words):
        return ChatTalk(plain, WordScale(1.0, system_words, 1, FEW), RANDOM, (seed, "probe"), (seed, "probe"))
    longer = talk(FEW)
    longer.answered(None)
    return [talk(FEW).request(), talk(FEW + STEP).request(), longer.request()]
