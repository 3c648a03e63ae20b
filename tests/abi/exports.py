#!/usr/bin/env python3
"""Each plugin file exports exactly weft_plugin_query_v1 and shows its note, also after strip. Usage: exports.py FILE..."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

SYMBOL = "weft_plugin_query_v1"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check(path):
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", path).splitlines() if line.strip()]
    errors = []
    if symbols != [SYMBOL]:
        errors.append(f"{path}: expected exactly the dynamic symbol {SYMBOL}, came {symbols}; link with abi/plugin.map")
    with tempfile.TemporaryDirectory() as tmp:
        stripped = str(pathlib.Path(tmp, "stripped.so"))
        shutil.copy(path, stripped)
        subprocess.run(["strip", stripped], check=True)
        for file in (path, stripped):
            # Wide output puts owner and size on one line: "weft 0x00000060 ..."
            lines = [line.split() for line in run("readelf", "-nW", file).splitlines()]
            if not any(parts[:2] == ["weft", "0x00000060"] for parts in lines):
                errors.append(f"{file}: expected a weft note of 0x60 bytes in readelf -n, came none; use WEFT_PLUGIN")
    return errors


def main(paths):
    errors = [e for path in paths for e in check(path)]
    print("\n".join(errors) or f"{len(paths)} plugins export {SYMBOL} alone and carry their note")
    return 1 if errors or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
