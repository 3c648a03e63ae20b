#!/usr/bin/env python3
"""Checks what a script can check of the house style; run by ctest, prints path:line: message and exits 1 on findings.

  rooms     a room of daemon/ includes only rooms above it in daemon/CMakeLists.txt
  size      files of at most 600 lines (generated tables aside), functions of at most 70, lines of at most 132 columns
  headers   every header begins with a comment that says what it is for, and is included by somebody
  banned    calls that hide errors or block: strcpy, sprintf, atoi, system, exit, usleep, dlopen outside the loader
  leftovers TODO and its relatives; paths that exist on one machine only
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = "base wire loop config service http api text gateway router cluster fabric plugin engine sim admin bench ctl main".split()
SOURCES = sorted(p for d in ("daemon", "plugins", "tests", "abi") for p in (ROOT / d).rglob("*")
                 if p.suffix in (".cpp", ".h", ".hpp", ".c") and "node_modules" not in p.parts and "baseline" not in p.parts)
FILE_LINES_MAX, FUNCTION_LINES_MAX, COLUMNS_MAX = 600, 70, 132
BANNED = [
    (r"\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok)\s*\(", "unbounded or unchecked C call", r"tests/"),
    (r"(?<!\w)(::|std::)system\s*\(", "system()", None),
    (r"(?<![\w:.>_])(::|std::)?exit\s*\(", "exit() in a library; return an error", r"child_check|_fuzz|tests/"),
    (r"\b(usleep|alarm)\s*\(", "sleeping by hand", r"tests/"),
    (r"\bdlopen\s*\(", "dlopen outside the loader", r"plugin/loader|tests/|plugins/"),
    (r"(?<!secure_)\bgetenv\s*\(", "getenv; use secure_getenv", r"tests/"),
]
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|(?<![\w.])/(work|root|home)/\w")
findings = []


def report(path, line, message):
    findings.append(f"{path.relative_to(ROOT)}:{line}: {message}")


def check_rooms(path, lines):
    if path.parts[len(ROOT.parts)] != "daemon":
        return
    room = path.parts[len(ROOT.parts) + 1]
    if room not in ROOMS:
        return report(path, 1, f"room {room} is not in the list of rooms")
    for number, line in enumerate(lines, 1):
        m = re.match(r'#include "(\w+)/', line)
        if m and m.group(1) in ROOMS and ROOMS.index(m.group(1)) > ROOMS.index(room):
            report(path, number, f"room {room} must not use room {m.group(1)}, which stands below it")


def check_size(path, lines):
    if len(lines) > FILE_LINES_MAX and not path.name.endswith("_data.cpp"):
        report(path, 1, f"{len(lines)} lines, at most {FILE_LINES_MAX}: probably two things in one file")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX and not path.name.endswith("_data.cpp") and "R\"" not in line and "://" not in line:
            report(path, number, f"{len(line)} columns, at most {COLUMNS_MAX}")
    if path.suffix == ".cpp" and "tests" not in path.parts and not path.name.endswith("_data.cpp"):
        check_functions(path, lines)


def check_functions(path, lines):
    """A function body starts at a line that ends in '{' and holds a ')' at namespace or class depth, ends at its '}'."""
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and re.match(r"^(\S.*\)|\S.*\) (const|noexcept|override).*) \{$", line) and not line.startswith(("namespace", "struct", "class", "#")):
            start = number
        elif start is not None and line == "}":
            if number - start > FUNCTION_LINES_MAX:
                report(path, start, f"function of {number - start} lines, at most {FUNCTION_LINES_MAX}")
            start = None


def check_text(path, lines):
    name = str(path.relative_to(ROOT))
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]
        code = re.sub(r'"(\\.|[^"\\])*"', '""', code)
        for pattern, message, allowed in BANNED:
            if re.search(pattern, code) and not (allowed and re.search(allowed, name)):
                report(path, number, message)
        if LEFTOVER.search(line):
            report(path, number, "left open in the code, or a path of one machine")


def check_headers(path, lines, included):
    if path.suffix not in (".h", ".hpp"):
        return
    first = next((line for line in lines if line.strip()), "")
    if not first.startswith(("//", "/*")):
        report(path, 1, "a header begins with a comment that says what it is for")
    if path.name not in included and "abi" not in path.parts:
        report(path, 1, "nobody includes this header")


def main():
    texts = {p: p.read_text(encoding="utf-8").split("\n") for p in SOURCES}
    included = {pathlib.PurePath(m).name for lines in texts.values() for line in lines
                for m in re.findall(r'#include [<"]([^">]+)[">]', line)}
    for path, lines in texts.items():
        check_rooms(path, lines)
        check_size(path, lines)
        check_text(path, lines)
        check_headers(path, lines, included)
    print("\n".join(findings) if findings else f"tidy: {len(SOURCES)} files, nothing to say")
    return 1 if findings else 0


sys.exit(main())
