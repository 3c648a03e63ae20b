"""Servers that the tool starts itself: weftd, and llama-server of the pinned llama.cpp, both on the same weights."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
START_SECONDS = 300


class ServerError(RuntimeError):
    pass


def _stat(pid):
    """(session, CPU ticks) of a process, None when it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return int(fields[3]), int(fields[11]) + int(fields[12])


def binary(name):
    """A program of this tree's builds; WEFT_BIN names another directory."""
    folders = [os.environ["WEFT_BIN"]] if "WEFT_BIN" in os.environ else [ROOT / "build" / b / "bin" for b in ("release", "test")]
    for folder in map(pathlib.Path, folders):
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    raise ServerError(f"{name} not found: run scripts/build first, or set WEFT_BIN to the directory it is in")


def ids_of(folder):
    """Token ids that stand for text in a model directory: below the special ones, which all presets keep at the end."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    special = [c[k] for c in (config, text) for k in ("bos_token_id", "eos_token_id", "pad_token_id", "media_placeholder_token_id")
               if isinstance(c.get(k), int)]
    return 16, min([text["vocab_size"]] + [s for s in special if s > 16])


class Spawned:
    """A server process in a session of its own, so that its children are found and end with it."""

    def __init__(self, name):
        self.name, self.process, self.folder, self.address = name, None, None, None

    def launch(self, command):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-agentic-"))
        self.log = self.folder / f"{self.name}.log"
        command = [part.replace("{folder}", str(self.folder)) for part in command]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                            start_new_session=True)

    def fail(self, what):
        tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
        self.stop()
        raise ServerError(f"{self.name} {what}:\n{tail}")

    def until(self, ready):
        """Waits until `ready()` gives something."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.fail(f"ended while starting (exit status {self.process.returncode})")
            found = ready()
            if found:
                return found
            time.sleep(0.1)
        return self.fail(f"was not ready within {START_SECONDS} s")

    def cpu_seconds(self):
        """CPU time of the process and everything it started."""
        if self.process is None:
            return 0.0
        found = [_stat(p) for p in os.listdir("/proc") if p.isdigit()]
        return sum(s[1] for s in found if s and s[0] == self.process.pid) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.process = self.folder = self.address = None


class Weft(Spawned):
    """weftd on a free port. It stays up for the whole run: its cache meets every level as the one before left it."""

    def __init__(self, model, users, context, threads, extra):
        super().__init__("weft")
        self.users, self.command = users, [
            binary("weftd"), "--model", str(model), "--listen", "127.0.0.1:0", "--socket", "{folder}/weft.sock", "--trust-user-plugins",
            "--max-sequences", str(users), "--max-context", str(context), "--threads", str(threads), "--log-level", "warning", *extra]

    def ready_for(self, users):
        if self.process is not None:
            return
        self.launch(self.command)
        self.address = self.until(self._listening)
        waited = subprocess.run(self._ctl("wait", "--timeout", str(START_SECONDS)), capture_output=True, text=True, check=False)
        if waited.returncode:
            self.fail(f"did not become ready ({waited.stderr.strip()})")

    def _ctl(self, *words):
        return [binary("weftctl"), "--socket", str(self.folder / "weft.sock"), *words]

    def _listening(self):
        done = subprocess.run(self._ctl("--json", "status"), capture_output=True, text=True, check=False)
        try:
            listen = json.loads(done.stdout)["listen"][0]
        except (ValueError, KeyError, IndexError):
            return None
        return None if listen.endswith(":0") else f"http://{listen}"

    def about(self):
        return " ".join(self.command[1:])


class Llama(Spawned):
    """llama-server with as many slots as users. It is started anew for every level: fewer slots are faster and keep more of the
    context of each, and a session finds the slot it had before."""

    def __init__(self, gguf, context, threads, slots, extra):
        super().__init__("llama")
        self.program, self.gguf, self.context, self.threads, self.slots, self.extra = None, gguf, context, threads, slots, extra
        self.running = 0

    def ready_for(self, users):
        users = self.slots or users
        if self.process is not None and self.running == users:
            return
        self.stop()
        if self.program is None:
            done = subprocess.run([str(ROOT / "scripts" / "bench" / "peer_server")], stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise ServerError("llama-server could not be built")
            self.program = done.stdout.strip()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [self.program, "-m", str(self.gguf), "--host", "127.0.0.1", "--port", str(port), "--offline", "--metrics",
                   "--slot-save-path", "{folder}", *self.settings(users)]
        self.launch(command)
        self.until(lambda: self._healthy(port))
        self.address, self.running = f"http://127.0.0.1:{port}", users

    def settings(self, users):
        """What was found fastest; see scripts/bench/README.md."""
        return ["-np", str(users), "-c", str(users * self.context), "-t", str(self.threads), "-tb", str(self.threads), *LLAMA_SETTINGS,
                *self.extra]

    @staticmethod
    def _healthy(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def about(self):
        return " ".join(self.settings(self.slots or self.running or 1)) + " (slots and context as needed)"


LLAMA_SETTINGS = ["-ub", "1024", "--ctx-checkpoints", "32", "--checkpoint-min-step", "0", "--cache-ram", "8192"]


def weights(preset, model):
    """(model directory, its GGUF file made on demand) for a preset or a checkpoint of one's own."""
    sys.path.append(str(ROOT / "scripts" / "bench" / "peer"))
    import models  # noqa: PLC0415
    import served  # noqa: PLC0415
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "weft" / "peer"
    folder = pathlib.Path(model) if model else models.preset(binary("weft-bench"), cache, preset)
    return folder, lambda: served.served(models.converted(cache, folder))
