"""Streaming requests to a server, by hand over a socket, because only that gives the arrival of every event. Lines are kept
with their time while a stream runs and understood after it has ended: the client shares its CPUs with the server."""
import asyncio
import dataclasses
import json
import time
import urllib.parse

CHAT, COMPLETIONS = "chat", "completions"


class RequestError(RuntimeError):
    """The server did not answer as it should. `status` is that of HTTP, 0 when there was none."""

    def __init__(self, text, status=0):
        super().__init__(text)
        self.status = status


class Address:
    """http://HOST:PORT[/BASE] or unix:/PATH."""

    def __init__(self, text):
        self.text, self.path, self.base = text, None, ""
        if text.startswith("unix:"):
            self.path, self.host = text[len("unix:"):], "localhost"
            return
        url = urllib.parse.urlsplit(text)
        if url.scheme != "http" or not url.hostname:
            raise ValueError(f"expected http://HOST:PORT or unix:/PATH, got \"{text}\"")
        self.host, self.port, self.base = url.hostname, url.port or 80, url.path.rstrip("/").removesuffix("/v1")

    async def connect(self):
        if self.path is not None:
            return await asyncio.open_unix_connection(self.path, limit=1 << 26)
        return await asyncio.open_connection(self.host, self.port, limit=1 << 26)


async def _send(address, method, target, body, key, timeout):
    """Opens a connection, sends a request, reads the head of the answer: (reader, writer, status, headers)."""
    reader, writer = await asyncio.wait_for(address.connect(), timeout)
    head = f"{method} {address.base}{target} HTTP/1.1\r\nHost: {address.host}\r\nConnection: close\r\n"
    if key:
        head += f"Authorization: Bearer {key}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        writer.write(head.encode() + b"\r\n" + (body or b""))
        line = await asyncio.wait_for(reader.readline(), timeout)
        parts = line.split()
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1."):
            raise RequestError(f"no HTTP answer but {line[:80]!r}" if line else "the connection was closed before an answer")
        headers = {}
        while (line := await asyncio.wait_for(reader.readline(), timeout)).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
    except BaseException:
        writer.close()
        raise
    return reader, writer, int(parts[1]), headers


async def _pieces(reader, headers):
    """The body as it comes."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while True:
            size = await reader.readline()
            if not size.strip():
                raise RequestError("the stream was cut off")
            count = int(size.split(b";")[0], 16)
            data = await reader.readexactly(count + 2)
            if count == 0:
                return
            yield data[:count]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while data := await reader.read(1 << 16):
            yield data


async def fetch(address, method, target, body=None, key="", timeout=60.0):
    """A whole answer: (status, bytes)."""
    data = None if body is None else json.dumps(body).encode()
    reader, writer, status, headers = await _send(address, method, target, data, key, timeout)
    try:
        return status, b"".join([piece async for piece in _pieces(reader, headers)])
    except (asyncio.IncompleteReadError, OSError) as problem:
        raise RequestError(f"the answer was cut off ({problem})") from problem
    finally:
        writer.close()


@dataclasses.dataclass
class Answer:
    """What came back. `arrivals` are (time, tokens or None) of every event that carried output."""
    arrivals: list = dataclasses.field(default_factory=list)
    ids: list = dataclasses.field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    tool_calls: list = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished: bool = False
    has_ids: bool = False
    slot: int = -1


def _usage(answer, usage):
    answer.prompt_tokens = usage.get("prompt_tokens", 0)
    answer.output_tokens = usage.get("completion_tokens", 0)
    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or usage.get("cached_tokens") or 0


def _tool_calls(answer, parts):
    """Pieces of tool calls, put together by index."""
    for part in parts:
        at = part.get("index", len(answer.tool_calls))
        while len(answer.tool_calls) <= at:
            answer.tool_calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = answer.tool_calls[at]
        call["id"] = part.get("id") or call["id"]
        for field in ("name", "arguments"):
            call["function"][field] += (part.get("function") or {}).get(field) or ""


def _openai_event(answer, when, event):
    """A chunk of /v1/chat/completions or /v1/completions."""
    if event.get("usage"):
        _usage(answer, event["usage"])
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        ids = choice.get("token_ids")
        if ids:
            answer.ids += ids
        answer.has_ids |= ids is not None
        if delta.get("tool_calls"):
            _tool_calls(answer, delta["tool_calls"])
        if text or reasoning or ids or delta.get("tool_calls"):
            answer.arrivals.append((when, len(ids) if ids is not None else None))
        answer.text += text
        answer.reasoning += reasoning
        answer.finished |= choice.get("finish_reason") is not None


def _native_event(answer, when, event):
    """A chunk of llama-server's own /completion, which takes and returns token ids."""
    ids = event.get("tokens") or []
    if ids:
        answer.ids += ids
        answer.has_ids = True
        answer.arrivals.append((when, len(ids)))
    answer.text += event.get("content") or ""
    if event.get("stop"):
        timings = event.get("timings") or {}
        answer.finished, answer.prompt_tokens = True, event.get("tokens_evaluated", 0)
        answer.output_tokens, answer.slot = event.get("tokens_predicted", 0), event.get("id_slot", -1)
        answer.cached_tokens = timings.get("cache_n", 0)


def _problem(value):
    return str(value.get("message") or value) if isinstance(value, dict) else str(value)


def understand(lines, native):
    """The answer that [(time, line)] of an event stream tell. Raises RequestError for an error event or a stream without end."""
    answer = Answer()
    for when, line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            continue
        try:
            event = json.loads(data)
        except ValueError:
            raise RequestError(f"an event is no JSON: {data[:80]!r}") from None
        if event.get("error"):
            raise RequestError(f"error event: {_problem(event['error'])}")
        (_native_event if native else _openai_event)(answer, when, event)
    if not answer.finished:
        raise RequestError(f"the stream ended without a finish reason after {len(answer.arrivals)} events")
    return answer


def error_text(status, body):
    try:
        return f"HTTP {status}: {_problem(json.loads(body).get('error') or body.decode())}"
    except (ValueError, AttributeError):
        return f"HTTP {status}: {body[:200].decode(errors='replace')}"


async def stream(address, target, body, key="", native=False, stop_after=0, timeout=1800.0):
    """Sends a request and reads its stream: (start, Answer). With `stop_after` the connection is closed after so many events,
    as by an agent that changed its mind, and the answer is None."""
    start, lines = time.monotonic(), []
    try:
        whole = await asyncio.wait_for(_stream(address, target, json.dumps(body).encode(), key, stop_after, timeout, lines), timeout)
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as problem:
        raise RequestError(f"{type(problem).__name__} after {time.monotonic() - start:.1f} s: {problem}") from problem
    return start, understand(lines, native) if whole else None


async def _stream(address, target, data, key, stop_after, timeout, lines):
    """Fills `lines` with (time, line); false when it left before the end."""
    rest, events = b"", 0
    reader, writer, status, headers = await _send(address, "POST", target, data, key, timeout)
    try:
        if status != 200:
            raise RequestError(error_text(status, b"".join([piece async for piece in _pieces(reader, headers)])), status)
        async for piece in _pieces(reader, headers):
            now = time.monotonic()
            *complete, rest = (rest + piece).split(b"\n")
            fresh = [(now, line) for line in complete if line.startswith(b"data:")]
            lines += fresh
            events += len(fresh)
            if stop_after and events >= stop_after:
                return False
        lines.append((time.monotonic(), rest))
        return True
    finally:
        writer.close()
