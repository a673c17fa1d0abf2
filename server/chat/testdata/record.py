# Adds to each conversation of conversations.json the prompt that Python's jinja2 makes of it, set up
# as transformers has it:
#   python3 record.py [encoding_dsv4.py]
# Given the program that is released beside DeepSeek-V4, it compares the prompts of v4.jinja with
# its own. Recorded with jinja2 3.1.6.
import copy
import importlib.util
import json
import pathlib
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

here = pathlib.Path(__file__).parent


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message):
    raise ValueError(message)


def compiled(path):
    e = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    e.filters["tojson"] = tojson
    e.globals["raise_exception"] = refuse
    return e.from_string(path.read_text(encoding="utf-8"))


def read(messages):
    messages, order = copy.deepcopy(messages), {}
    for m in messages:
        if isinstance(m.get("content"), list):
            m["content"] = "".join(p["text"] for p in m["content"])
        for call in m.get("tool_calls", []):
            try:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            except ValueError:
                call["function"]["arguments"] = {"arguments": call["function"]["arguments"]}
    for i, m in enumerate(messages):  # results side by side, by the order of their calls
        if m.get("tool_calls"):
            order = {c["id"]: k for k, c in enumerate(m["tool_calls"])}
            rest = messages[i + 1:]
            n = next((k for k, x in enumerate(rest) if x["role"] not in ("user", "tool")), len(rest))
            results = iter(sorted((x for x in rest[:n] if x["role"] == "tool"), key=lambda x: order.get(x.get("tool_call_id"), 0)))
            messages[i + 1:i + 1 + n] = [next(results) if x["role"] == "tool" else x for x in rest[:n]]
    return messages


def released(program, c):
    messages, variables = copy.deepcopy(c["messages"]), c.get("variables", {})
    for m in messages:
        if isinstance(m.get("content"), list):
            m["content"] = "".join(p["text"] for p in m["content"])
    if c.get("tools"):
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system"})
        messages[0]["tools"] = c["tools"]
    return program.encode_messages(messages, "thinking" if variables.get("thinking", True) else "chat",
                                   drop_thinking=variables.get("drop_thinking", True),
                                   reasoning_effort=variables.get("reasoning_effort"))


program = None
if len(sys.argv) > 1:
    spec = importlib.util.spec_from_file_location("released", sys.argv[1])
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

path = here / "conversations.json"
conversations = json.loads(path.read_text(encoding="utf-8"))
for name, c in conversations.items():
    template = here / c["template"] if "template" in c else here.parent / "v4.jinja"
    c["prompt"] = compiled(template).render(
        messages=read(c["messages"]), add_generation_prompt=True, bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>", **({"tools": c["tools"]} if c.get("tools") else {}), **c.get("variables", {}))
    if program and "template" not in c and released(program, c) != c["prompt"]:
        sys.exit(f"{name}: the released program gives\n{released(program, c)!r}\nnot\n{c['prompt']!r}")
path.write_text(json.dumps(conversations, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
