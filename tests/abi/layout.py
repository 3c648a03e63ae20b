#!/usr/bin/env python3
"""Size of every struct and offset of every field of the ABI, measured by the C compiler.

layout.py ROOT --check [--cc CC]   compares with abi/layout.txt (the test)
layout.py ROOT --write [--cc CC]   writes it, after a change that abi/HISTORY.md explains
"""
import argparse
import difflib
import pathlib
import subprocess
import sys
import tempfile

from abi_headers import header_paths, read_structs


def program(root):
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <weft/weft.h>", "int main(void) {"]
    for path in header_paths(root):
        for struct in read_structs(path):
            kind = "" if struct.name != "weft_host" else "struct "
            mark = " frozen" if struct.frozen else ""
            lines.append(f'  printf("{path.name} {struct.name}{mark}: %zu\\n", sizeof({kind}{struct.name}));')
            for f in struct.fields:
                lines.append(f'  printf("  {f.name} %zu\\n", offsetof({kind}{struct.name}, {f.name}));')
    return "\n".join(lines + ["  return 0;", "}", ""])


def measure(root, cc):
    with tempfile.TemporaryDirectory() as tmp:
        source, binary = pathlib.Path(tmp, "layout.c"), pathlib.Path(tmp, "layout")
        source.write_text(program(root))
        subprocess.run([cc, "-std=c11", "-I", pathlib.Path(root, "abi/include"), source, "-o", binary], check=True)
        return subprocess.run([binary], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cc", default="cc")
    args = parser.parse_args()
    now = measure(args.root, args.cc)
    kept = pathlib.Path(args.root, "abi/layout.txt")
    if args.write:
        kept.write_text(now)
    before = kept.read_text() if kept.exists() else ""
    diff = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "abi/layout.txt", "the headers", lineterm=""))
    if not diff:
        print(f"{now.count(':')} structs as in abi/layout.txt")
        return 0
    print("\n".join(diff))
    print("The binary layout of the ABI changed. Growing an unfrozen struct at its end is allowed; anything else breaks "
          "plugins that exist. If it is meant: explain it in abi/HISTORY.md and run tests/abi/layout.py . --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
