#!/usr/bin/env python3
"""Writes src/text/unicode_table.cpp from the character classes of the reference regex engine (char_classes.json).

Usage: tools/make_unicode_table.py [char_classes.json] > src/text/unicode_table.cpp
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "tests/data/tokenizer/char_classes.json"
NAMES = {"L": "kLetter", "M": "kMark", "N": "kNumber", "P": "kPunct", "S": "kSymbol", "space": "kSpace"}


def main():
    classes = json.loads(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT).read_text())
    if set(classes) != set(NAMES):
        sys.exit(f"expected the classes {sorted(NAMES)}, found {sorted(classes)}")
    rows = sorted((first, last, NAMES[name]) for name, ranges in classes.items() for first, last in ranges)
    for (_, last, _), (first, _, _) in zip(rows, rows[1:]):
        if first <= last:
            sys.exit(f"U+{first:04X} is in two classes")
    cells = [f"{{0x{first:x}, 0x{last:x}, {name}}}," for first, last, name in rows]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 120:
            lines.append(line)
            line = "   "
        line += " " + cell
    lines.append(line)
    print("// Made by tools/make_unicode_table.py from tests/data/tokenizer/char_classes.json. Do not edit.")
    print('#include "text/unicode.h"\n\nnamespace mdi {\n')
    print("// clang-format off")
    print("const CharRange kCharRanges[] = {")
    print("\n".join(lines))
    print("};\n// clang-format on\n")
    print("const size_t kCharRangeCount = sizeof(kCharRanges) / sizeof(kCharRanges[0]);\n\n}  // namespace mdi")


main()
