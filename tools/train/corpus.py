#!/usr/bin/env python3
"""Builds the training text from Debian packages under free licences.

Usage: corpus.py OUT_DIR [--install]      (--install: apt-get install the packages first, as root)
Writes OUT_DIR/train.jsonl and OUT_DIR/heldout.jsonl, a document a line: {"source", "text"} or {"source", "turns": [[question,
answer], ...]}. A page, a chapter or a group of words goes whole to one side, with the dialogues made from it: one of 50 is
held out, by a checksum of its name.
"""

import argparse
import collections
import gzip
import json
import pathlib
import re
import subprocess
import zlib
from html.parser import HTMLParser

from dialogues import bible_turns, section_turns, small_talk, wordnet_documents

# package -> licence of what is taken from it
PACKAGES = {
    "bible-kjv": "public domain", "bible-kjv-text": "public domain", "sqlite3-doc": "public domain", "wordnet-base": "WordNet 3.0",
    "postgresql-doc-15": "PostgreSQL", "python3.11-doc": "PSF", "perl-doc": "Artistic or GPL", "debian-policy": "GPL-2+",
    "debian-faq": "GPL-2+", "developers-reference": "GPL-2+", "dict-jargon": "public domain", "dict-devil": "public domain",
}
BLOCK = {"p", "li", "dd", "dt", "div", "h1", "h2", "h3", "h4", "td", "th", "blockquote", "section", "ul", "ol", "dl", "tr", "table", "body"}
SKIP = {"pre", "script", "style", "table", "title", "nav", "svg", "form"}
SPACES = re.compile(r"\s+")
UNICODE = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u00b6": "", "\u2014": " - ", "\u2013": "-", "\u2026": "..."})


def tidy(text):
    return SPACES.sub(" ", text.translate(UNICODE)).strip()


def is_prose(text):
    """A sentence or more, mostly letters; not a list of names, a signature or a navigation line."""
    letters = sum(ch.isalpha() or ch == " " for ch in text)
    return len(text) >= 40 and letters > 0.85 * len(text) and text[-1] in ".:?!)" and text[0].isupper() and text.count(" ") >= 6


class Blocks(HTMLParser):
    """(tag, text) of the blocks of a page."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.blocks, self.parts, self.tag, self.skip = [], [], "p", []

    def flush(self, tag):
        text = tidy("".join(self.parts))
        if text:
            self.blocks.append((self.tag, text))
        self.parts, self.tag = [], tag

    def handle_starttag(self, tag, attrs):
        if tag in SKIP:
            self.skip.append(tag)
        if tag in BLOCK:
            self.flush(tag)
        elif tag == "br":
            self.parts.append(" ")

    def handle_endtag(self, tag):
        if tag in self.skip:
            while self.skip.pop() != tag:
                pass
        if tag in BLOCK:
            self.flush("p")

    def handle_data(self, data):
        if not self.skip:
            self.parts.append(data)


def page_sections(path):
    """[(heading, [paragraph, ...]), ...] of an HTML page."""
    parser = Blocks()
    parser.feed(path.read_text(errors="replace"))
    parser.flush("p")
    sections = [("", [])]
    for tag, text in parser.blocks:
        if tag in ("h1", "h2", "h3", "h4"):
            text = re.sub(r"^(Chapter |Appendix )?[0-9A-Z]{0,3}(\.[0-9]+)*\.? +", "", text).strip()
            if 3 < len(text) < 80:
                sections.append((text, []))
        elif is_prose(text):
            sections[-1][1].append(text)
    return sections


def pages(source, folder, seen, skip=("genindex", "search", "whatsnew", "changes", "keyword", "bookindex", "contents", "release")):
    for path in sorted(pathlib.Path(folder).rglob("*.html")):
        if not path.is_file() or any(s in str(path) for s in skip):
            continue
        text, new = [], []
        for heading, paragraphs in page_sections(path):
            fresh = [p for p in paragraphs if p not in seen]
            seen.update(fresh)
            new.append((heading, fresh))
            if heading and fresh:
                text.append(heading)
            text += fresh
        body = "\n\n".join(text)
        if len(body) > 200:
            yield path.name, {"source": source, "text": body}
        for turns in section_turns(new):
            yield path.name, {"source": source + "-chat", "turns": turns}


def pod_pages(folder, seen):
    for path in sorted(pathlib.Path(folder).glob("perl*.pod")):
        if re.search(r"delta|toc|uniprops|perl\d", path.name):
            continue
        text = []
        for block in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            for _ in range(4):
                block = re.sub(r"[A-Z]<<+ (.*?) >>+|[A-Z]<([^<>]*)>", lambda m: (m.group(1) or m.group(2) or "").split("|")[0], block, flags=re.S)
            if block.startswith("=head"):
                text.append(tidy(block.split(" ", 1)[-1]).capitalize())
            elif not block.startswith(("=", " ", "\t")):
                block = tidy(block)
                if is_prose(block) and block not in seen:
                    seen.add(block)
                    text.append(block)
        if len(text) > 5:
            yield path.name, {"source": "perl", "text": "\n\n".join(text)}


def bible():
    """Chapters as running text, and the verses for the dialogues."""
    names = "Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth 1_Samuel 2_Samuel 1_Kings 2_Kings 1_Chronicles 2_Chronicles Ezra Nehemiah Esther Job Psalms Proverbs Ecclesiastes Song_of_Solomon Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos Obadiah Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans 1_Corinthians 2_Corinthians Galatians Ephesians Philippians Colossians 1_Thessalonians 2_Thessalonians 1_Timothy 2_Timothy Titus Philemon Hebrews James 1_Peter 2_Peter 1_John 2_John 3_John Jude Revelation".split()
    out = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    books = []
    chapters = collections.OrderedDict()
    for line in out.splitlines():
        m = re.match(r"(\S+?)(\d+):(\d+) (.*)", line)
        if not m:
            continue
        if m[1] not in books:
            books.append(m[1])
        chapters.setdefault((names[books.index(m[1])].replace("_", " "), int(m[2])), []).append(tidy(m[4]))
    for (book, chapter), verses in chapters.items():
        key = f"{book} {chapter}"
        yield key, {"source": "bible", "text": f"{book}, chapter {chapter}\n\n" + "\n".join(verses)}
        for turns in bible_turns(book, chapter, verses):
            yield key, {"source": "bible-chat", "turns": turns}


def dictionary(name, source):
    raw = gzip.open(f"/usr/share/dictd/{name}.dict.dz", "rt", errors="replace").read()
    text = []
    for block in re.split(r"\n\s*\n", raw):
        block = tidy(block.replace("{", "").replace("}", ""))
        if len(block) >= 40 and not block.startswith("00-") and sum(ch.isalpha() or ch == " " for ch in block) > 0.85 * len(block):
            text.append(block)
    for i in range(0, len(text), 20):
        yield f"{name} {i}", {"source": source, "text": "\n\n".join(text[i : i + 20])}


def documents():
    seen = set()
    yield from bible()
    yield from pages("sqlite", "/usr/share/doc/sqlite3", seen)
    yield from pages("postgresql", "/usr/share/doc/postgresql-doc-15/html", seen)
    yield from pages("python", "/usr/share/doc/python3.11/html", seen)
    yield from pages("debian", "/usr/share/doc/debian-policy", seen)
    yield from pages("debian", "/usr/share/doc/debian/FAQ", seen)
    yield from pages("debian", "/usr/share/developers-reference", seen)
    yield from pod_pages("/usr/share/perl/5.36.0/pod", seen)
    yield from dictionary("jargon", "jargon")
    yield from dictionary("devil", "devil")
    yield from wordnet_documents("/usr/share/wordnet")
    for turns in small_talk():
        yield "", {"source": "talk-chat", "turns": turns}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    if options.install:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], check=True)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    count, size = collections.Counter(), collections.Counter()
    with open(out / "train.jsonl", "w") as train, open(out / "heldout.jsonl", "w") as heldout:
        for key, d in documents():
            count[d["source"]] += 1
            size[d["source"]] += len(d["text"]) if "text" in d else sum(len(q) + len(a) for q, a in d["turns"])
            held = key and zlib.crc32(key.encode()) % 50 == 0
            (heldout if held else train).write(json.dumps(d, ensure_ascii=False) + "\n")
    for source in count:
        print(f"{source:16} {count[source]:7} documents {size[source] / 1e6:7.2f} MB")


if __name__ == "__main__":
    main()
