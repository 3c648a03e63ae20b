"""Reads abi/include/weft/*.h: structs, their fields and function pointers, with the comments that belong to them.

The headers are written in a narrow style (one declaration per ';', comments before or behind), so a small reader suffices;
what it cannot read it reports, so that the style stays narrow.
"""
import pathlib
import re
from dataclasses import dataclass, field

STRUCT = re.compile(r"(?:typedef\s+)?struct\s+(\w+)\s*\{")
COMMENT = re.compile(r"/\*(.*?)\*/", re.S)


@dataclass
class Field:
    name: str
    decl: str
    comment: str  # the comment before the declaration and those behind it on its lines
    line: int
    is_function: bool = False


@dataclass
class Struct:
    name: str
    header: str
    line: int
    comment: str
    frozen: bool
    fields: list = field(default_factory=list)


def header_paths(root):
    return sorted(pathlib.Path(root, "abi", "include", "weft").glob("*.h"))


def strip_comments(text):
    return COMMENT.sub(lambda m: " " * len(m.group(0)) if "\n" not in m.group(0)
                       else re.sub(r"[^\n]", " ", m.group(0)), text)


def clean(comment):
    """One line, without the stars that begin continuation lines."""
    return " ".join(re.sub(r"\n\s*\*(?!/)", "\n", comment).split())


def matching_brace(code, start):
    depth = 0
    for i in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    raise ValueError("no closing brace")


def comment_before(text, pos):
    """The comment that ends directly before pos (only blanks between)."""
    head = text[:pos].rstrip()
    if not head.endswith("*/"):
        return ""
    return head[head.rfind("/*") + 2:-2]


def names_in(decl):
    """Field names of one declaration (comments removed): "const void *q, *k" -> q, k."""
    function = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", decl)
    if function:
        return [function.group(1)], True
    names = []
    for part in decl.split(","):
        m = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part.strip())
        if not m:
            raise ValueError(f"cannot read declaration: {decl.strip()!r}")
        names.append(m.group(1))
    return names, False


def read_structs(path):
    text = path.read_text()
    code = strip_comments(text)
    out = []
    for m in STRUCT.finditer(code):
        open_at = m.end() - 1
        close_at = matching_brace(code, open_at)
        first_line = text[m.start():text.index("\n", open_at)]
        struct = Struct(m.group(1), path.name, text.count("\n", 0, m.start()) + 1, comment_before(text, m.start()),
                        "frozen" in first_line)
        struct.first_line = first_line
        pos = open_at + 1
        while True:
            end = code.find(";", pos, close_at)
            if end < 0:
                break
            decl = code[pos:end]
            begin = pos + len(decl) - len(decl.lstrip())
            line_end = text.find("\n", end)
            behind = " ".join(COMMENT.findall(text[begin:line_end]))
            # a comment that starts on this line and goes on below
            tail = text[end:line_end]
            if "/*" in tail and "*/" not in tail:
                behind += text[end + tail.index("/*") + 2:text.index("*/", end)]
            comment = comment_before(text, begin) if "\n" in text[pos:begin] or pos == open_at + 1 else ""
            names, is_function = names_in(decl)
            for name in names:
                struct.fields.append(Field(name, " ".join(decl.split()), clean(comment + " " + behind),
                                           text.count("\n", 0, begin) + 1, is_function))
            pos = end + 1
        out.append(struct)
    return out
