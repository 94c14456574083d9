#!/usr/bin/env python3
"""make_jinja_cases.py - renders every template of jinja_cases.jsonl with the PyPI package jinja2 (3.1.6) and writes the result
beside it: "out", or "error": true where jinja2 raises. The first line holds what the templates are given.

  make_jinja_cases.py                 renews jinja_cases.jsonl in place
  make_jinja_cases.py --add TEMPLATE  adds one

The environment is the one that model hubs use for chat templates: sandboxed, trim_blocks, lstrip_blocks, loop controls, their
own tojson. No case may depend on an address or on the day (strftime_now stands at 2025-01-15 12:00).
SPDX-License-Identifier: Apache-2.0
"""
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja_cases.jsonl")


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2025, 1, 15, 12, 0).strftime(f)
    return env


def main():
    with open(PATH, encoding="utf-8", newline="") as f:
        given, *cases = [json.loads(line) for line in f.read().split("\n") if line]
    if sys.argv[1:2] == ["--add"]:
        cases += [{"template": t} for t in sys.argv[2:]]
    env = environment()
    lines = [given]
    for case in cases:
        try:
            out = env.from_string(case["template"]).render(
                messages=given["messages"], tools=None, documents=None, add_generation_prompt=True, bos_token="<s>",
                eos_token="</s>", **given["extra"])
            lines.append({"template": case["template"], "out": out})
        except Exception:  # whatever jinja2 raises, ours must refuse too
            lines.append({"template": case["template"], "error": True})
    with open(PATH, "w", encoding="utf-8", newline="") as f:
        f.write("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines))


if __name__ == "__main__":
    main()
