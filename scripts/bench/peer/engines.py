"""Two programs that speak the same line protocol, one at a time: commands go to stdin, one JSON line comes back."""
import contextlib
import fcntl
import json
import os
import pathlib
import subprocess
import time


class EngineError(RuntimeError):
    pass


def cpu_seconds(pid):
    """User and system time of all threads of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Engine:
    """A loaded program. `ask` blocks until it has answered, so only one of two engines computes at any time."""

    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.ask("info")

    @property
    def pid(self):
        return self.process.pid

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            raise EngineError(f"{self.name} ended while answering \"{line[:60]}\" (exit status {self.process.wait()})")
        answer = json.loads(reply)
        if "error" in answer:
            raise EngineError(f"{self.name}: \"{line[:60]}\": {answer['error']}")
        return answer

    def close(self):
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write("quit\n")
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class IdleWatch:
    """Adds up what a program burns while it should be waiting: time on the CPU over time passed."""

    def __init__(self):
        self.busy = self.passed = 0.0

    @contextlib.contextmanager
    def watching(self, engine):
        busy, start = cpu_seconds(engine.pid), time.monotonic()
        yield
        self.busy += cpu_seconds(engine.pid) - busy
        self.passed += time.monotonic() - start

    def share(self):
        return self.busy / self.passed if self.passed else 0.0


@contextlib.contextmanager
def machine_lock(path):
    """Holds an flock on `path` (if any) for one measurement: on a shared machine, others take the same lock."""
    if not path:
        yield
        return
    with open(path, "a", encoding="ascii") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
