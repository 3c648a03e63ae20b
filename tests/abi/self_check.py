#!/usr/bin/env python3
"""The ABI checks themselves: each must notice a header that was spoilt in its way, and let growth at the end pass.
Usage: self_check.py ROOT"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent

# (script, arguments, file, text, replacement, must fail)
CASES = [
    ("lint.py", [], "host.h", "/* [any] never blocks. msg:", "/* never blocks. msg:", True),
    ("lint.py", [], "host.h", "[any] never blocks", "[anyone] never blocks", True),
    ("lint.py", [], "storage.h", "out: fill, max entries", "max entries", True),
    ("lint.py", [], "speculator.h", "[n]; borrow */", "[n] */", True),
    ("layout.py", ["--check"], "scheduler.h", "  uint32_t tenant;", "  uint64_t tenant;", True),
    ("baseline.py", ["--check"], "scheduler.h", "  uint32_t tenant;", "  uint64_t tenant;", True),
    ("baseline.py", ["--check"], "scheduler.h", "  uint32_t tenant;", "  int32_t tenant;", True),
    ("baseline.py", ["--check"], "base.h", "WEFT_AGAIN = 1,", "WEFT_AGAIN = 9,", True),
    ("baseline.py", ["--check"], "scheduler.h", "weft_status why, uint64_t step);", "weft_status why);", True),
    ("baseline.py", ["--check"], "scheduler.h", "may be empty; borrow */", "may be empty; borrow */\n  uint64_t grown;", False),
]


def main(root):
    errors = []
    for script, arguments, name, text, replacement, must_fail in CASES:
        with tempfile.TemporaryDirectory() as tmp:
            shutil.copytree(pathlib.Path(root, "abi"), pathlib.Path(tmp, "abi"))
            header = pathlib.Path(tmp, "abi/include/weft", name)
            before = header.read_text()
            if text not in before:
                errors.append(f"{name} no longer contains {text!r}: give this case a text that is there")
                continue
            header.write_text(before.replace(text, replacement, 1))
            result = subprocess.run([sys.executable, HERE / script, tmp, *arguments], capture_output=True, text=True)
            failed = result.returncode not in (0, 77)
            if result.returncode != 77 and failed != must_fail:
                errors.append(f"{script}: {text!r} -> {replacement!r} in {name}: expected exit status "
                              f"{'not 0' if must_fail else '0'}, came {result.returncode}\n{result.stdout}{result.stderr}")
    print("\n".join(errors) or f"{len(CASES)} spoilt headers judged as expected")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
