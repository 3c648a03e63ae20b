#!/usr/bin/env python3
"""Compares the headers with those of the released ABI, kept in abi/baseline/weft/: no field moved, nothing went away.

baseline.py ROOT --check   0 = compatible, 77 = libabigail is absent (ctest shows "skipped"; the field check still ran)
baseline.py ROOT --write   takes today's headers as the baseline; once per release, with an entry in abi/HISTORY.md

Two looks at the same question: the offsets of all fields (layout.py), and libabigail's comparison of all types in the debug
information, which also sees changed types of fields and parameters, and enumerators. Growth at the end is allowed.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import layout
from abi_headers import header_paths, read_structs

SKIPPED = 77
# What abidiff's report says at the leaf of a change that plugins would notice; the lines above it only repeat it.
BROKEN = re.compile(r"deletion|offset changed|name changed|entity changed|pointer type changed|was removed|was added"
                    r"|from value '|[1-9]\d* [Rr]emoved")


def build(root, structs, out):
    """A shared object whose debug information holds every type of the headers under root/abi/include."""
    source, library = out / "abi.c", out / "abi.so"
    uses = "\n".join(f"struct {name} *use_{name};" for name in structs)
    source.write_text(f"#include <weft/weft.h>\n{uses}\n")
    # gcc by name: clang drops unused types in spite of the flag
    subprocess.run(["gcc", "-std=c11", "-g", "-gdwarf-4", "-fno-eliminate-unused-debug-types", "-shared", "-fPIC", "-I",
                    root / "abi/include", source, "-o", library], check=True)
    return library


def fields(text):
    """layout.py's text -> {struct: (size, frozen, {field: offset})}"""
    out, name = {}, None
    for line in text.splitlines():
        if line.startswith("  "):
            field, offset = line.split()
            out[name][2][field] = offset
        else:
            left, size = line.split(": ")
            name = left.split()[1]
            out[name] = (int(size), left.endswith(" frozen"), {})
    return out


def moved(old, new):
    errors = []
    for name, (size, frozen, members) in old.items():
        if name not in new:
            errors.append(f"{name}: the struct is gone")
            continue
        if new[name][0] < size or (frozen and new[name][0] != size):
            errors.append(f"{name}: {'frozen, ' if frozen else ''}size was {size}, is {new[name][0]}")
        errors += [f"{name}.{m}: offset was {o}, is {new[name][2].get(m, 'gone')}" for m, o in members.items()
                   if new[name][2].get(m) != o]
    return errors


def types_differ(old_root, new_root, tmp):
    structs = [s.name for path in header_paths(old_root) for s in read_structs(path)]
    libraries = []
    for i, root in enumerate((old_root, new_root)):
        (tmp / str(i)).mkdir()
        libraries.append(build(root, structs, tmp / str(i)))
    result = subprocess.run(["abidiff", "--non-reachable-types", "--harmless", "--no-show-locs", *libraries], capture_output=True, text=True)
    if result.returncode & 3:
        return [result.stderr]
    # The exit status calls growth incompatible too; the report is the better judge.
    return [result.stdout] if BROKEN.search(result.stdout) else []


def main(root, mode):
    root = pathlib.Path(root).resolve()
    kept = root / "abi/baseline/weft"
    if mode == "--write":
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for path in header_paths(root):
            shutil.copy(path, kept)
        return 0
    with tempfile.TemporaryDirectory() as tmp:
        old_root = pathlib.Path(tmp, "old")
        shutil.copytree(kept, old_root / "abi/include/weft")
        errors = moved(fields(layout.measure(old_root, "cc")), fields(layout.measure(root, "cc")))
        missing = [tool for tool in ("gcc", "abidiff") if not shutil.which(tool)]
        if not errors and not missing:
            errors = types_differ(old_root, root, pathlib.Path(tmp))
    if errors:
        print("\n".join(errors))
        print("The ABI broke. Undo the change, or give it a new interface id or a new ABI major (abi/HISTORY.md says how).")
        return 1
    if missing:
        print(f"fields are compatible; types skipped: {', '.join(missing)} not found, install abigail-tools")
        return SKIPPED
    print("compatible with abi/baseline")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
