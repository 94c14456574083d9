"""selftest.py - shows for each rule of tidy.py that it bites, on the small trees in samples/.

Line rules (includes, banned, paths): the findings must be exactly the lines marked "bite". File rules (shape, flags,
symbols, failpoint): every bad_* sample must be found and no good_* one. Samples too long to keep (800 lines) or that must not
stand in the tree (paths of machines) are completed in a temporary folder.
SPDX-License-Identifier: Apache-2.0
"""
import os
import shutil
import subprocess
import tempfile
import types


def copy_sample(args, rule, to):
    at = os.path.join(args.root, "tests", "tidy", "samples", rule)
    shutil.copytree(at, to)
    for folder, _, files in os.walk(to):
        for f in files:
            path = os.path.join(folder, f)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("@SLASH@", "/"))
    return to


def line_rule(args, rule, fn, to):
    """Problems: lines that should have been found and were not, and the other way round."""
    root = copy_sample(args, rule, to)
    want = set()
    for folder, _, files in os.walk(root):
        for f in files:
            path = os.path.join(folder, f)
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if "/* bite */" in line or "# bite" in line:
                        want.add((os.path.relpath(path, root), number))
    got = {(name, number) for name, number, _ in fn(root, types.SimpleNamespace(build=None, pure=[]))}
    return [f"{rule}: {n}:{i} was not found" for n, i in sorted(want - got)] + \
           [f"{rule}: {n}:{i} was found and is fine" for n, i in sorted(got - want)], len(want)


def file_rule(rule, bad, good, found_in):
    return [f"{rule}: {n} was not found" for n in sorted(bad) if not found_in(n)] + \
           [f"{rule}: {n} was found and is fine" for n in sorted(good) if found_in(n)], len(bad)


def shape(args, fn, to):
    root = copy_sample(args, "shape", to)
    head = "/* A generated sample.\n * SPDX-License-Identifier: Apache-2.0 */\n"
    samples = {"bad_long_file.c": head + "int x;\n" * 799, "good_long_file.c": head + "int x;\n" * 798,
               "bad_long_function.c": head + "int f(void)\n{\n" + "    f();\n" * 79 + "}\n",
               "bad_brace.c": head + "int f(void) {\n" + "    f();\n" * 79 + "}\n",
               "good_long_function.c": head + "int f(void)\n{\n" + "    f();\n" * 78 + "}\n"}
    for name, text in samples.items():
        with open(os.path.join(root, name), "w", encoding="utf-8") as f:
            f.write(text)
    found = {name for name, _, _ in fn(root, args)}
    names = os.listdir(root)
    return file_rule("shape", [n for n in names if n.startswith("bad_")], [n for n in names if n.startswith("good_")],
                     lambda n: n in found)


def flags(args, fn, to):
    root = copy_sample(args, "flags", to)
    found = set()
    names = sorted(os.listdir(root))
    for name in names:
        build = os.path.join(to + "-build", name)
        os.makedirs(build)
        shutil.copy(os.path.join(root, name), os.path.join(build, "compile_commands.json"))
        if fn("/src", types.SimpleNamespace(build=build)):
            found.add(name)
    missing = fn("/src", types.SimpleNamespace(build=to + "-nowhere"))
    problems, bites = file_rule("flags", [n for n in names if n.startswith("bad_")],
                                [n for n in names if n.startswith("good_")], lambda n: n in found)
    return problems + ([] if missing else ["flags: a build without compile_commands.json passes"]), bites + 1


def symbols(args, fn, to):
    root = copy_sample(args, "symbols", to)
    found = set()
    names = [n for n in sorted(os.listdir(root)) if n.endswith(".c")]
    for name in names:
        source = os.path.join(root, name)
        subprocess.run([args.cc, "-O1", "-fno-builtin", "-c", source, "-o", source + ".o"], check=True)
        archive = source + ".a"
        subprocess.run(["ar", "rcs", archive, source + ".o"], check=True)
        if fn(root, types.SimpleNamespace(build=None, pure=["kvs_sample=" + archive])):
            found.add(name)
    problems, bites = file_rule("symbols", [n for n in names if n.startswith("bad_")],
                                [n for n in names if n.startswith("good_")], lambda n: n in found)
    archive = os.path.join(root, "good_core.c.a")
    for target, wrong in (("kvs_router_edge", True), ("kvs_sample", False)):
        build = os.path.join(to + "-" + target)
        os.makedirs(build)
        with open(os.path.join(build, "compile_commands.json"), "w", encoding="utf-8") as f:
            f.write('[{"file": "%s/router/core/x.c", "output": "router/CMakeFiles/%s.dir/core/x.c.o"}]' % (root, target))
        got = fn(root, types.SimpleNamespace(build=build, pure=["kvs_sample=" + archive]))
        if bool(got) != wrong:
            problems.append(f"symbols: a core built into {target}: {got}")
    return problems, bites + 1


def failpoint(args, fn, to):
    """A program with the symbol, one with the text only (a stripped one), and a clean one."""
    bodies = {"good_clean": "int main(void) { return 0; }",
              "bad_symbol": "int kvs_failpoint_hit(const char *n); int kvs_failpoint_hit(const char *n) { return n != 0; }\n"
                            "int main(void) { return kvs_failpoint_hit(\"x\"); }",
              "bad_text": "const char *volatile t = \"KVASIR_FAILPOINTS_SET\"; int main(void) { return t == 0; }"}
    found = set()
    for name, body in bodies.items():
        at = os.path.join(to, name, "build", "release", "bin")
        os.makedirs(at)
        source = os.path.join(to, name + ".c")
        with open(source, "w", encoding="utf-8") as f:
            f.write(body)
        subprocess.run([args.cc, source, "-o", os.path.join(at, "kvasir")], check=True)
        if name == "bad_text":
            subprocess.run(["strip", os.path.join(at, "kvasir")], check=True)
        if fn(os.path.join(to, name), args):
            found.add(name)
    problems, bites = file_rule("failpoint", [n for n in bodies if n.startswith("bad_")],
                                [n for n in bodies if n.startswith("good_")], lambda n: n in found)
    try:
        fn(os.path.join(to, "nothing"), args)
        problems.append("failpoint: no release build, and no word of it")
    except SystemExit as e:
        if e.code != 77:
            problems.append(f"failpoint: skips with {e.code}")
    return problems, bites + 1


def run(args, rules):
    problems = []
    with tempfile.TemporaryDirectory() as tmp:
        for rule in ("includes", "banned", "paths"):
            found, bites = line_rule(args, rule, rules[rule], os.path.join(tmp, rule))
            print(f"{rule}: {bites} bad lines")
            problems += found if bites else [f"{rule}: no bad sample"]
        for rule, check in (("shape", shape), ("flags", flags), ("symbols", symbols), ("failpoint", failpoint)):
            found, bites = check(args, rules[rule], os.path.join(tmp, rule))
            print(f"{rule}: {bites} bad samples")
            problems += found if bites else [f"{rule}: no bad sample"]
    for text in problems:
        print(text)
    print(f"tidy.selftest: {len(problems)} problems")
    return 1 if problems else 0
