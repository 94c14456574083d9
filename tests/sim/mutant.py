#!/usr/bin/env python3
"""Builds one mutant of the simulator and shows that it is caught (sim/mutants/README says what a mutant file holds).

Only the mutated object is compiled; it stands before the archives on the link line, so that its twin inside them is not taken.
Exit status 0: caught within the stated number of seeds (which one is printed). 1: it survived, its text no longer fits, or it does not
compile. 77: this build tree was not made with Ninja, from which the link line is read.
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys


def parse(path):
    text = open(path, encoding="utf-8").read()
    head, *hunks = re.split(r"^--- original\n", text, flags=re.M)
    keys = dict(line.split(" ", 1) for line in head.split("\n") if line and not line.startswith("#"))
    what = head.split("\n", 1)[0].lstrip("# ")
    pairs = []
    for hunk in hunks:
        original, replacement = re.split(r"\n--- replacement\n", hunk)
        pairs.append((original, replacement.rstrip("\n")))
    return what, keys["file"], keys["scenario"], int(keys["seeds"]), pairs


def mutate(root, name, pairs):
    text = open(os.path.join(root, name), encoding="utf-8").read()
    for original, replacement in pairs:
        count = text.count(original)
        if count != 1:
            sys.exit(f"FAILED: the text to replace occurs {count} times in {name}:\n{original}")
        text = text.replace(original, replacement)
    return text


def compile_object(build, root, name, text, stem):
    source = os.path.join(root, name)
    entries = [e for e in json.load(open(os.path.join(build, "compile_commands.json"))) if e["file"] == source]
    # Discovery is compiled twice: for the daemons, and for the simulator, which is the one to break.
    entry = next((e for e in entries if "kvs_sim.dir" in e["command"]), entries[0] if entries else None)
    if entry is None:
        sys.exit(f"FAILED: {name} is not compiled in this build")
    copy, out = stem + ".c", stem + ".o"
    with open(copy, "w", encoding="utf-8") as f:
        f.write(text)
    command = shlex.split(entry["command"])
    command[command.index("-o") + 1] = out
    command = [copy if word == source else word for word in command]
    command += ["-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-unused-parameter", "-Wno-unused-function"]
    done = subprocess.run(command, cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: the mutant of {name} does not compile:\n{done.stdout}")
    return out


def link(build, obj, program):
    if not os.path.exists(os.path.join(build, "build.ninja")):
        print("skipped: this build tree was not made with Ninja")
        sys.exit(77)
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "kvasir-sim"], check=True, stdout=subprocess.PIPE, text=True).stdout
    line = [x for x in lines.split("\n") if " -o bin/kvasir-sim " in x][-1]
    command = [w for w in shlex.split(line) if w not in (":", "&&")]
    at = command.index("-o")
    command[at + 1] = program
    first = next(i for i, w in enumerate(command) if w.endswith(".o"))
    command.insert(first, obj)
    subprocess.run(command, cwd=build, check=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--root", required=True)
    a.add_argument("--build", required=True)
    a.add_argument("mutant")
    a = a.parse_args()
    what, name, scenario, seeds, pairs = parse(a.mutant)
    folder = os.path.join(a.build, "mutants")
    os.makedirs(folder, exist_ok=True)
    stem = os.path.join(folder, os.path.splitext(os.path.basename(a.mutant))[0])
    link(a.build, compile_object(a.build, a.root, name, mutate(a.root, name, pairs), stem), stem)
    path = os.path.join(a.root, "sim", "scenarios", scenario + ".sim")
    try:
        run = subprocess.run([stem, "--scenario", path, "--seed", "1", "--seeds", str(seeds), "--quiet"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=100, errors="replace")
        out, status = run.stdout, run.returncode
    except subprocess.TimeoutExpired as e:
        out, status = (e.stdout or b"").decode(errors="replace") + "\nFAILED seed ?: it never ends", 1
    os.remove(stem)
    found = re.findall(r"^FAILED seed (\S+): (.*)$", out, flags=re.M)
    seen = re.findall(r"^until then: kv_messages=(\d+) faults=(\d+)$", out, flags=re.M)
    if status != 0 and found:
        moved, faults = map(int, seen[-1]) if seen else (0, 0)
        print(f"caught at seed {found[-1][0]} of {seeds} ({scenario}), {moved} messages of KV and {faults} faults until then: {what}\n  {found[-1][1]}")
        return 0
    print(f"FAILED: this mutant survives {seeds} seeds of {scenario}: {what}\n{out[-2000:]}")
    return 1


sys.exit(main())
