"""Grammars of JSON Schemas derive only texts that the package `jsonschema` accepts. Usage: json_schemas.py TOOL [SCHEMAS]

Random schemas of all keywords that are known; every text must parse and validate."""
import json
import random
import subprocess
import sys

import jsonschema

tool = sys.argv[1]
count = int(sys.argv[2]) if len(sys.argv) > 2 else 1500
rng = random.Random(4)
names = ["a", "b", "name", "größe", "with \"quote\"", "x y", "$id"]
patterns = ["^[a-z]+$", "^\\d{3}-\\d{4}$", "^(ab|cd)*e?$", "[A-Z][a-z]{1,3}", "^a|b$", "^[^a-c\"]{2,4}$", "^\\w+@\\w+\\.de$", "^.{1,3}$", "^\\\\x\"$"]


def bounds(low, high, keys):
    out = {}
    if rng.random() < 0.6:
        out[keys[0]] = rng.randint(low, high)
    if rng.random() < 0.6:
        out[keys[1]] = rng.randint(out.get(keys[0], low), high + 3)
    return out


def literal():
    return rng.choice([1, -2.5, "text", "q\"\\\n", None, True, [1, "x"], {"k": 0}, 1e30, ""])


def schema(depth, defs):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "any"]
    if depth > 0:
        kinds += ["object", "array", "tuple", "anyOf", "oneOf", "map", "ref", "types", "allOf"] * 2
    kind = rng.choice(kinds)
    if kind == "string":
        extra = rng.choice([{}, bounds(0, 6, ("minLength", "maxLength")), {"pattern": rng.choice(patterns)},
                            {"format": rng.choice(["date", "time", "date-time", "uuid", "ipv4", "email"])}])
        return {"type": "string", **extra}
    if kind in ("integer", "number"):
        keys = (rng.choice(["minimum", "exclusiveMinimum"]), rng.choice(["maximum", "exclusiveMaximum"]))
        low = rng.choice([-1200, -50, -3, 0, 0.5, 7, 98, 1000])
        out = {"type": kind}
        if rng.random() < 0.7:
            out[keys[0]] = low
        if rng.random() < 0.7:
            out[keys[1]] = low + rng.choice([2, 3, 11, 500, 123456])
        return out
    if kind == "enum":
        return {"enum": [literal() for _ in range(rng.randint(1, 4))]}
    if kind == "const":
        return {"const": literal()}
    if kind == "any":
        return rng.choice([{}, True, {"description": "anything"}])
    if kind == "object":
        some = rng.sample(names, rng.randint(0, 4))
        out = {"type": "object", "title": "T", "properties": {n: schema(depth - 1, defs) for n in some}}
        out["required"] = [n for n in some if rng.random() < 0.6] + (["other"] if rng.random() < 0.2 else [])
        if "other" not in out["required"] and rng.random() < 0.7:
            out["additionalProperties"] = False
        return out
    if kind == "map":
        return {"type": "object", "additionalProperties": schema(depth - 1, defs)}
    if kind == "array":
        return {"type": "array", "items": schema(depth - 1, defs), **bounds(0, 3, ("minItems", "maxItems"))}
    if kind == "tuple":
        items = [schema(depth - 1, defs) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if kind == "anyOf":
        return {"anyOf": [schema(depth - 1, defs) for _ in range(rng.randint(1, 3))], "default": None}
    if kind == "allOf":
        return {"allOf": [schema(depth - 1, defs)]}
    if kind == "oneOf":
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "v": schema(depth - 1, defs)}, "required": ["kind"]}
                          for k in ("first", "second")]}
    if kind == "types":
        return {"type": rng.sample(["string", "integer", "boolean", "null"], 2), "maxLength": 4, "minimum": 3}
    if kind == "ref":
        return {"$ref": "#/$defs/" + rng.choice(defs)}
    return {"type": kind}


def document():
    defs = ["One", "Two~1x"]
    out = schema(3, defs)
    if not isinstance(out, dict):
        out = {}
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/One"}, {"type": "null"}]}},
            "required": ["v", "next"], "additionalProperties": False}
    return {**out, "$defs": {"One": tree, "Two/x": schema(1, ["One"])}}


schemas = [document() for _ in range(count)]
lines = "".join(json.dumps(s) + "\n" for s in schemas)
answers = subprocess.run([tool, "5"], input=lines.encode(), capture_output=True, check=True).stdout.decode().splitlines()
assert len(answers) == len(schemas)
# `time` of the package is that of draft 3, without the offset that RFC 3339 has.
checker = jsonschema.FormatChecker(["date", "uuid", "ipv4", "email"])
n_texts = n_refused = 0
for one, line in zip(schemas, answers):
    answer = json.loads(line)
    if isinstance(answer, dict):
        n_refused += 1
        reason = answer["refused"]
        assert "bounds without a number" in reason or "beside" in reason or "begins with itself" in reason or "never ends" in reason, (one, reason)
        continue
    validator = jsonschema.Draft202012Validator(one, format_checker=checker)
    for text in answer:
        n_texts += 1
        try:
            validator.validate(json.loads(text))
        except (jsonschema.ValidationError, json.JSONDecodeError) as error:
            sys.exit(f"FAILED: {json.dumps(one)}\ngave {text!r}\n{error}")
print(f"{len(schemas)} schemas, {n_refused} refused, {n_texts} texts valid")
assert n_texts > count
