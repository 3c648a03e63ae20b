#!/usr/bin/env python3
"""Every function pointer of the ABI has a thread label, every pointer an ownership word. Usage: lint.py ROOT

Function pointers: the comment above names a label such as [any] or [init|slow], and for each pointer or string parameter
"name: borrow|keep|fill|give" (several names may share a word). self, plugin and host need none: they are always borrow
(weft/threads.h says so). "as NAME" and "as in NAME" take over the words of another function.
Fields: the comment beside the field or above the struct holds an ownership word. A header may settle all its data
pointers at once in its first comment with "stay borrowed".
"""
import re
import sys

from abi_headers import header_paths, read_structs

LABELS = {"init", "loop", "engine", "fast", "slow", "any"}
WORDS = r"(?:borrow|keep|fill|give)"
ALWAYS_BORROWED = {"self", "plugin", "host"}


def parameters(decl):
    """Parameters of a function pointer declaration as (name, text); nested function pointers count as one."""
    start = re.search(r"\(\s*\*\s*\w+\s*\)\s*\(", decl).end()
    depth, parts, current = 1, [], ""
    for c in decl[start:]:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if depth == 0:
            break
        if c == "," and depth == 1:
            parts.append(current)
            current = ""
        else:
            current += c
    parts.append(current)
    out = []
    for part in (p.strip() for p in parts):
        if part in ("", "void"):
            continue
        callback = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", part)
        name = callback.group(1) if callback else re.search(r"(\w+)\s*(?:\[\w*\])?$", part).group(1)
        out.append((name, part, bool(callback)))
    return out


def has_word(comment, name):
    # "a, b: fill" - the name, perhaps in a list of names, then a colon and the word.
    return re.search(rf"\b{name}\b(?:\s*(?:,|and)\s*\w+)*\s*:\s*{WORDS}", comment) is not None


def check_function(struct, f, errors):
    where = f"{struct.header}:{f.line}: {struct.name}.{f.name}"
    label = re.match(r"\[([a-z|]+)\]", f.comment)
    if not label or not set(label.group(1).split("|")) <= LABELS:
        errors.append(f"{where}: expected a thread label such as [any] or [init|slow] first in the comment, came "
                      f"{f.comment[:40]!r}; see weft/threads.h")
    inherits = re.search(r"\bas (?:in )?\w+", f.comment) is not None
    for name, text, callback in parameters(f.decl):
        pointer = "*" in text or text.startswith(("weft_str ", "weft_bytes "))
        if not pointer or callback or name in ALWAYS_BORROWED or inherits:
            continue
        if not has_word(f.comment, name):
            errors.append(f"{where}: parameter {name}: expected \"{name}: borrow|keep UNTIL|fill|give\" in the comment, "
                          "came none; see weft/base.h")
    result = f.decl.split("(")[0]
    if "*" in result and not re.search(rf"Result: {WORDS}", f.comment):
        errors.append(f"{where}: expected \"Result: borrow|keep UNTIL|give\" in the comment, came none")


def check_struct(struct, blanket, errors):
    above = struct.comment + " " + struct.first_line
    for f in struct.fields:
        if f.is_function:
            check_function(struct, f, errors)
        elif "*" in f.decl and not blanket and f.name != "impl":
            if not re.search(rf"\b{WORDS}\b", f.comment + " " + above):
                errors.append(f"{struct.header}:{f.line}: {struct.name}.{f.name}: expected an ownership word in its comment, "
                              "came none; see weft/base.h")
    if struct.fields and not struct.frozen and struct.fields[0].name not in ("struct_size", "head"):
        errors.append(f"{struct.header}:{struct.line}: {struct.name}: expected struct_size or head first, or the word "
                      f"frozen on its first line, came {struct.fields[0].name}")


def main(root):
    errors, functions = [], 0
    for path in header_paths(root):
        blanket = "stay borrowed" in path.read_text().split("*/")[0]
        for struct in read_structs(path):
            functions += sum(f.is_function for f in struct.fields)
            check_struct(struct, blanket, errors)
    print("\n".join(errors) or f"{functions} function pointers, all with labels and ownership words")
    return 1 if errors or functions == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
