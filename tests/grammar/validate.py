"""Checks answers against their schemas, independently of the program: each line of the file is {"schema", "instance"},
the instance as JSON text. Prints what is invalid; the exit code says whether anything is."""

import json
import sys

from jsonschema import Draft202012Validator

wrong = 0
with open(sys.argv[1], encoding="utf-8") as lines:
    for number, line in enumerate(lines):
        case = json.loads(line)
        try:
            instance = json.loads(case["instance"])
        except ValueError as error:
            print(f"line {number}: not JSON: {error}: {case['instance']!r}")
            wrong += 1
            continue
        validator = Draft202012Validator(case["schema"], format_checker=Draft202012Validator.FORMAT_CHECKER)
        for error in validator.iter_errors(instance):
            print(f"line {number}: {error.message}\n  schema {case['schema']}\n  instance {case['instance']}")
            wrong += 1
sys.exit(wrong > 0)
