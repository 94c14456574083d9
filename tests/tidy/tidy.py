#!/usr/bin/env python3
"""tidy.py - checks the tree itself: the rules of the design and the house style that a machine can keep.

  tidy.py RULE --root DIR [--build DIR] [--pure NAME=ARCHIVE ...]     one rule over the tree
  tidy.py selftest --root DIR [--cc CC]                               every rule against tests/tidy/samples

Rules (each is a ctest "tidy.RULE"):
  includes   a file includes only its own folder and folders below; cores include only what is pure
  symbols    undefined symbols of pure archives are on the allow-list; pure folders are built as PURE
  flags      compile flags keep the arithmetic contract; instruction-set flags stand under engine/ops and at the hash of pages only
  banned     functions that are unbounded or impure, words that mark unfinished work
  shape      one SPDX line a file, 800 lines a file, 80 lines a function
  paths      no path of somebody's machine in the tree
  failpoint  the release build holds no failpoint (77 = skipped: there is none to look at)

A finding is one line "file:line: text"; any finding makes the exit status 1. The samples show for each rule what it must
find (lines marked "bite", files named bad_*) and what it must leave alone; so a rule that has gone blind fails the test.
A rule is not loosened to make a finding go away: fix the code, or change the design first.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

# Layer order (design, section 3). A folder may include itself and what stands before it, except for the pairs below.
FOLDERS = ["base", "sys", "proto", "kvcache", "model", "net", "engine", "kvtransfer", "cluster", "worker", "router",
           "prefill-worker", "decode-worker", "sim", "cli", "client", "bench"]
NOT_BELOW = {("kvtransfer", "engine"), ("cluster", "engine"), ("cluster", "kvtransfer"),
             ("prefill-worker", "router"), ("decode-worker", "router"), ("decode-worker", "prefill-worker")}
ENGINE_SEES_OF_KVCACHE = {"kvcache/layout.h", "kvcache/block_table.h"}
# The C standard headers that bring no I/O, clock, threads, signals or locale.
PURE_STANDARD = {"assert.h", "ctype.h", "errno.h", "float.h", "inttypes.h", "iso646.h", "limits.h", "math.h",
                 "stdalign.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "stdnoreturn.h", "string.h"}
PURE_EXTRA = {  # file or folder prefix -> further headers
    "base/error.c": {"stdio.h"},       # vsnprintf behind kvs_format; the failing assert's last words
    "base/buf.c": {"stdio.h"},         # vsnprintf behind kvs_buf_printf
    "base/ring.c": {"stdatomic.h"},    # a queue between threads, without threads
    "kvcache/": {"openssl/sha.h", "openssl/evp.h", "xxhash.h"},
    "kvtransfer/core/": {"xxhash.h"},
}
C_LIBRARY = set("""
  memcpy memmove memset memcmp memchr strlen strnlen strcmp strncmp strcasecmp strchr strrchr strstr strspn strcspn
  malloc calloc realloc free aligned_alloc abort qsort bsearch strtoul strtoull strtol strtoll tolower toupper
  floor ceil trunc sqrt floorf ceilf truncf sqrtf __stack_chk_fail _GLOBAL_OFFSET_TABLE_ __ctype_b_loc __errno_location
""".split())
SANITIZER = re.compile(r"__(asan|ubsan|tsan|lsan|sanitizer)_\w+$|_ITM_\w+$|__gmon_start__$")
SYMBOLS_EXTRA = {
    "kvs_base": re.compile(r"(vsnprintf|fprintf|fflush|stderr)$"),
    "kvs_kvcache": re.compile(r"(EVP_\w+|SHA256\w*|OPENSSL_\w+|XXH\w+)$"),
    "kvs_proto": re.compile(r"(protobuf_c_\w+|kvasir__v1__\w+)$"),  # the packer and what protoc-c wrote
    "kvs_kvtransfer_core": re.compile(r"(XXH\w+|__cpu_model)$"),  # which hash of a page, not what it says
}
FLAGS_NEEDED = ["-ffp-contract=off", "-std=c17", "-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wvla"]
FLAGS_BANNED = re.compile(r"-(march=native|mtune=native|mcpu=native|Ofast|ffast-math|funsafe-math-optimizations|"
                          r"fassociative-math|freciprocal-math|ffinite-math-only|fno-signed-zeros|fno-math-errno|"
                          r"frounding-math|ffp-contract=(fast|on)|mfpmath=387|std=gnu\w+|w)$")
# Kernels, and the tests that hold them to the processor's own instructions.
KERNEL_FOLDERS = ("engine/ops/", "tests/unit/engine/",
                  "kvtransfer/core/piece_avx2.c")  # integers only (docs/adr/0006)
FLAGS_ISA = re.compile(r"-m(arch=|cpu=|tune=|avx|sse|fma|f16c|bmi|popcnt|lzcnt|amx|xop|aes|pclmul|fpu=)")
BANNED = re.compile(r"(?<![\w.>])(strcpy|strcat|stpcpy|sprintf|vsprintf|gets|atoi|atol|atoll|atof|strtok|strtok_r|alloca|"
                    r"rand|srand|random|srandom|drand48|tmpnam|mktemp|setlocale)\s*\(")
BANNED_OUTSIDE_TESTS = re.compile(r"(?<![\w.>])(system|popen)\s*\(")
TARGET_PRAGMA = re.compile(r"#\s*pragma\s+(GCC|clang)\s+(target|optimize|fp)|__attribute__\s*\(\(\s*(target|optimize)\b")
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|(?i:\bnot (yet )?implemented\b)|(?i:(?<![a-z])(placeholder|stub|dummy)s?(?![a-z]))")
MACHINE_PATHS = re.compile(r"(?<![\w.\-/])/(?:work|root|farm|tmp/h)/|(?<![\w.\-/])/home/(?!user\b)\w+")
SPDX = re.compile(r"^\W*SPDX-License-Identifier: Apache-2\.0(?: \*/)?$", re.M)
FILE_LINES, FUNCTION_LINES = 800, 80
SAMPLES = "tests/tidy/samples/"


# ---- reading the tree ----

def tree(root):
    """Paths of all files that are, or would be, under version control; samples left out."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"], check=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = out.decode().split("\0")
        top = subprocess.run(["git", "-C", root, "rev-parse", "--show-toplevel"], check=True, stdout=subprocess.PIPE)
        if os.path.realpath(top.stdout.decode().strip()) != os.path.realpath(root):
            raise OSError("the tree lies inside another repository")
    except (OSError, subprocess.CalledProcessError):
        names = []
        for at, dirs, files in os.walk(root):
            dirs[:] = [d for d in dirs if d not in (".git", "build", "__pycache__")]
            names += [os.path.relpath(os.path.join(at, f), root) for f in files]
    return sorted(n for n in set(names) if n and not n.startswith(SAMPLES) and os.path.isfile(os.path.join(root, n)))


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def is_c(name):
    return name.endswith((".c", ".h", ".cu", ".cuh"))


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def strip(text, strings=True):
    """C text with comments (and, if asked, what strings hold) blanked out; every line keeps its number."""
    def blank(m):
        t = m.group(0)
        if t[0] == "/":
            return re.sub(r"[^\n]", " ", t)
        return t[0] + " " * (len(t) - 2) + t[-1] if strings else t
    return TOKEN.sub(blank, text)


def is_pure(name):
    parts = name.split("/")
    return parts[0] in ("base", "kvcache") or (parts[0] in FOLDERS and len(parts) > 2 and parts[1] == "core")


# ---- includes ----

def quoted_problem(name, target):
    folder, into = name.split("/")[0], target.split("/")[0]
    if folder == into:
        if is_pure(name) and folder not in ("base", "kvcache") and not target.startswith(folder + "/core/"):
            return f"a core includes {target}, which is not of its core"
        return None
    if into not in FOLDERS:
        return f"{target}: no folder of the tree"
    if (name, target) in (("decode-worker/main.c", "prefill-worker/edge/source.h"), ("prefill-worker/main.c", "decode-worker/edge/sink.h")):
        return None  # a program puts roles together
    if FOLDERS.index(into) > FOLDERS.index(folder) or (folder, into) in NOT_BELOW:
        return f"{folder}/ includes {target}, which is not below it"
    if folder == "engine" and into == "kvcache" and target not in ENGINE_SEES_OF_KVCACHE:
        return f"engine/ includes {target}; of kvcache it sees layout.h and block_table.h only"
    if is_pure(name) and not (into == "base" or into == "kvcache" or target == "proto/msg.h" or is_pure(target)):
        return f"pure code includes {target}, which is not pure"
    return None


def rule_includes(root, args):
    found = []
    names = set(tree(root))
    for name in sorted(names):
        folder = name.split("/")[0]
        if folder not in FOLDERS or not is_c(name):
            continue
        text = strip(read(root, name), strings=False)
        for number, line in enumerate(text.split("\n"), 1):
            m = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>|(\S+))', line)
            if not m:
                continue
            problem = None
            if m.group(1):
                target = m.group(1)
                near = os.path.normpath(os.path.join(os.path.dirname(name), target))
                if "/" not in target or (target not in names and near in names):
                    target = near
                problem = quoted_problem(name, target)
            elif m.group(2):
                header = m.group(2)
                extra = set().union(*(v for k, v in PURE_EXTRA.items() if name.startswith(k)))
                if header.split("/")[0] in FOLDERS and header in names:
                    problem = f"<{header}> is ours: use quotes"
                elif is_pure(name) and header not in PURE_STANDARD and header not in extra:
                    problem = f"pure code includes <{header}>"
            else:
                problem = "an include that cannot be read without the preprocessor"
            if problem:
                found.append((name, number, problem))
    return found


# ---- symbols ----

def nm(archive, *flags):
    out = subprocess.run(["nm", *flags, archive], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return {line.split()[-1] for line in out.stdout.decode().split("\n") if re.match(r"\s*[0-9a-f]*\s+[A-Za-z] \S", line)}


def rule_symbols(root, args):
    found = []
    archives = dict(a.split("=", 1) for a in args.pure)
    defined = set()
    for path in archives.values():
        defined |= nm(path, "-g", "--defined-only")
    for name, path in sorted(archives.items()):
        extra = SYMBOLS_EXTRA.get(name)
        for symbol in sorted(nm(path, "-u")):
            allowed = symbol in defined or symbol in C_LIBRARY or SANITIZER.match(symbol) or \
                re.match(r"__(mem|str)\w+_chk$", symbol) or (extra and extra.match(symbol))
            if not allowed:
                found.append((name, 0, f"a pure archive needs '{symbol}', which is not on the allow-list of tidy.py"))
    for entry in compile_commands(args):
        name = os.path.relpath(entry["file"], root)
        target = re.search(r"CMakeFiles/([^/]+)\.dir/", entry.get("output", ""))
        if is_pure(name) and target and target.group(1) not in archives:
            found.append((name, 0, f"pure code is built into '{target.group(1)}', which is not declared PURE"))
    return found


# ---- flags ----

def compile_commands(args):
    path = os.path.join(args.build, "compile_commands.json") if args.build else None
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def rule_flags(root, args):
    found = []
    entries = compile_commands(args)
    if not entries:
        return [(str(args.build), 0, "no compile_commands.json with entries: configure with a preset first")]
    for entry in entries:
        name = os.path.relpath(entry["file"], root)
        flags = entry.get("arguments") or shlex.split(entry["command"])
        generated = name.startswith("..") or name.startswith("build/")
        needed = ["-ffp-contract=off"] if generated else FLAGS_NEEDED
        found += [(name, 0, f"compiled without {f}") for f in needed if f not in flags]
        last = [f for f in flags if f.startswith("-ffp-contract=")]
        if last and last[-1] != "-ffp-contract=off":
            found.append((name, 0, f"compiled with {last[-1]}"))
        for flag in flags:
            if FLAGS_BANNED.match(flag) and not flag.startswith("-ffp-contract=") and not (generated and flag == "-w"):
                found.append((name, 0, f"compiled with {flag}"))
            elif FLAGS_ISA.match(flag) and not name.startswith(KERNEL_FOLDERS):
                found.append((name, 0, f"compiled with {flag} outside of engine/ops"))
    return found


# ---- banned ----

def rule_banned(root, args):
    found = []
    for name in tree(root):
        if not is_c(name):
            continue
        text = read(root, name)
        code = strip(text).split("\n")
        for number, (line, raw) in enumerate(zip(code, text.split("\n")), 1):
            m = BANNED.search(line) or (None if name.startswith("tests/") else BANNED_OUTSIDE_TESTS.search(line))
            if m and not line.lstrip().startswith("#"):
                found.append((name, number, f"{m.group(1)}() is banned"))
            if TARGET_PRAGMA.search(line) and not name.startswith(KERNEL_FOLDERS):
                found.append((name, number, "compiler target or optimization switched in the source"))
            m = MARKS.search(raw)
            if m:
                found.append((name, number, f"'{m.group(0)}' marks unfinished work"))
    return found


# ---- shape ----

def functions(text):
    """(line, length) of each function body: '{' alone in column 0 (our format), or a line of column 0 that ends in ') {'."""
    start = None
    for number, line in enumerate(strip(text).split("\n"), 1):
        if start is None and (line.rstrip() == "{" or re.match(r"[A-Za-z_].*\)\s*\{\s*$", line)):
            start = number
        elif start is not None and line.startswith("}"):
            yield start, number - start + 1
            start = None


def rule_shape(root, args):
    found = []
    for name in tree(root):
        if not (is_c(name) or name.endswith((".py", ".proto"))):
            continue
        text = read(root, name)
        spdx = len(SPDX.findall(text))
        if spdx != 1:
            found.append((name, 1, f"{spdx} SPDX lines; one is due, in the comment at the top"))
        lines = text.count("\n")
        if lines > FILE_LINES:
            found.append((name, lines, f"{lines} lines; a file has {FILE_LINES} at most"))
        if is_c(name):
            found += [(name, at, f"a function of {n} lines; {FUNCTION_LINES} at most")
                      for at, n in functions(text) if n > FUNCTION_LINES]
    return found


# ---- paths ----

def rule_paths(root, args):
    found = []
    for name in tree(root):
        if name == "tests/tidy/tidy.py":
            continue
        with open(os.path.join(root, name), "rb") as f:
            data = f.read()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            m = MACHINE_PATHS.search(line)
            if m:
                found.append((name, number, f"'{m.group(0)}' is a path of somebody's machine"))
    return found


# ---- failpoint ----

def holds_failpoint(path):
    with open(path, "rb") as f:
        if b"KVASIR_FAILPOINTS_SET" in f.read():
            return True
    out = subprocess.run(["nm", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    return re.search(r"\bkvs_failpoint_\w+", out) is not None


def rule_failpoint(root, args):
    release = os.path.join(root, "build", "release")
    at = os.path.join(release, "bin")
    programs = sorted(os.listdir(at)) if os.path.isdir(at) else []
    if not programs:
        print("skipped: build/release holds no programs; run ./dev build first")
        sys.exit(77)
    found = [(f"build/release/bin/{p}", 0, "a release program holds failpoints") for p in programs
             if holds_failpoint(os.path.join(at, p))]
    print(f"looked at {len(programs)} release programs: {' '.join(programs)}")
    return found


RULES = {"includes": rule_includes, "symbols": rule_symbols, "flags": rule_flags, "banned": rule_banned,
         "shape": rule_shape, "paths": rule_paths, "failpoint": rule_failpoint}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("rule", choices=sorted(RULES) + ["selftest"])
    p.add_argument("--root", required=True)
    p.add_argument("--build")
    p.add_argument("--cc", default="cc")
    p.add_argument("--pure", action="append", default=[], metavar="NAME=ARCHIVE")
    args = p.parse_args()
    args.root = os.path.realpath(args.root)
    if args.rule == "selftest":
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        sys.dont_write_bytecode = True
        import selftest
        return selftest.run(args, RULES)
    found = RULES[args.rule](args.root, args)
    for name, number, text in found:
        print(f"{name}:{number}: {text}")
    print(f"tidy.{args.rule}: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
