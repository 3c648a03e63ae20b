#!/usr/bin/env python3
"""Every ABI header compiles alone, in every language version plugins may use, without a warning. Usage: compile.py ROOT

Also checks that no struct has hidden padding (-Wpadded), and that these checks can fail at all.
"""
import pathlib
import shutil
import subprocess
import sys

from abi_headers import header_paths

FLAGS = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
C_VERSIONS = ["c11", "c17"]
CXX_VERSIONS = ["c++11", "c++17", "c++20"]
PLUGIN = """
static weft_status open_it(const weft_host *host, weft_plugin **out, weft_err *err) {
  (void)host; (void)err; *out = NULL; return WEFT_OK;
}
static void close_it(weft_plugin *plugin) { (void)plugin; }
static const weft_interface kInterfaces[] = {{NULL, NULL, NULL, NULL}};
static const weft_desc kDesc = {sizeof(weft_desc), WEFT_MAGIC, WEFT_ABI_MAJOR, WEFT_ABI_MINOR, "sample", "1.0",
                                "x", "y", kInterfaces, open_it, close_it};
WEFT_PLUGIN(sample, "1.0", &kDesc);
"""


def compiles(root, compiler, language, version, source, extra=()):
    result = subprocess.run([compiler, "-x", language, f"-std={version}", *FLAGS, *extra, "-I",
                             pathlib.Path(root, "abi/include"), "-"], input=source, capture_output=True, text=True)
    return result.returncode == 0, result.stderr


def main(root):
    families = [(cc, cxx) for cc, cxx in (("gcc", "g++"), ("clang", "clang++")) if shutil.which(cc) and shutil.which(cxx)]
    failures, blind, runs = [], [], 0
    headers = [f"#include <weft/{path.name}>\n" for path in header_paths(root)]
    sources = headers + ["#include <weft/weft.h>\n" + PLUGIN, "".join(headers) + "".join(reversed(headers))]
    for cc, cxx in families:
        for compiler, language, versions in ((cc, "c", C_VERSIONS), (cxx, "c++", CXX_VERSIONS)):
            for version in versions:
                for source in sources:
                    ok, stderr = compiles(root, compiler, language, version, source)
                    runs += 1
                    if not ok:
                        failures.append(f"{compiler} -std={version}: {source.splitlines()[0]}\n{stderr}")
        for language, compiler, version in (("c", cc, "c11"), ("c++", cxx, "c++11")):
            ok, stderr = compiles(root, compiler, language, version, "#include <weft/weft.h>\n", ["-Wpadded"])
            if not ok:
                failures.append(f"{compiler}: a struct has hidden padding, add reserved fields\n{stderr}")
        padded = "#include <weft/base.h>\nstruct bad { uint32_t a; uint64_t b; };\nstruct bad use_it;\n"
        if compiles(root, cc, "c", "c11", padded, ["-Wpadded"])[0]:
            blind.append(cc)
    # clang lays out a struct only when something uses it; one compiler that sees padding is enough.
    if len(blind) == len(families):
        failures.append(f"{blind}: -Wpadded found nothing in a struct with padding: this test would not notice any")
    print("\n".join(failures) or f"{runs} compilations with {', '.join(cc for cc, _ in families)}")
    return 1 if failures or not families else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
