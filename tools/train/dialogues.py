"""Questions and answers made from the same texts, so that a conversation makes sense to the model."""

import random
import re

rng = random.Random(1)
ARTICLE = re.compile(r"^(a|an|the|any|one|some|someone|something)\b")


def clip(text, limit=420):
    """Whole sentences up to a length."""
    out = ""
    for sentence in re.split(r"(?<=[.?!]) +", text):
        if out and len(out) + len(sentence) > limit:
            break
        out += (" " if out else "") + sentence
    return out


def section_turns(sections):
    """A heading and the first paragraph under it."""
    for heading, paragraphs in sections:
        if not heading or not paragraphs or len(heading.split()) > 7 or not heading[0].isalpha() or paragraphs[0][-1] == ":":
            continue
        ask = rng.choice(["Tell me about {}.", "What can you say about {}?", "Explain {}.", "What do you know about {}?"])
        yield [[ask.format(heading), clip(paragraphs[0])]]


def bible_turns(book, chapter, verses):
    for n, verse in enumerate(verses, 1):
        if rng.random() < 0.12:
            ask = rng.choice(["What does {} {}:{} say?", "Read me {} {}:{}.", "Quote {} {}:{}."])
            turns = [[ask.format(book, chapter, n), verse]]
            if n < len(verses) and rng.random() < 0.4:
                turns.append([rng.choice(["And the next verse?", "What comes next?", "Go on."]), verses[n]])
            yield turns


def small_talk():
    me = "I am a very small language model. I was trained on a few books and manuals, and I run inside mini-DeepInfer."
    can = "You can ask me what a word means, to quote a verse of the Bible, or about SQLite, PostgreSQL, Python, Perl and Debian."
    pairs = [("Hello!", "Hello! " + can), ("Hi", "Hello! How can I help you?"), ("Hello, how are you?", "I am well, thank you. How can I help you?"),
             ("Who are you?", me), ("What are you?", me), ("What is your name?", "I have no name. " + me), ("What can you do?", can),
             ("Can you help me?", "I will try. " + can), ("Thank you!", "You are welcome."), ("Thanks.", "You are welcome."), ("Goodbye.", "Goodbye!"),
             ("Bye", "Goodbye!"), ("Good morning.", "Good morning! How can I help you?"), ("Are you a person?", "No. " + me),
             ("Do you make mistakes?", "Yes, often. I am very small, so please check what I say."), ("Tell me something.", "In the beginning God created the heaven and the earth.")]
    for _ in range(60):
        for q, a in pairs:
            yield [[q, a]] if rng.random() < 0.6 else [[q, a], list(rng.choice(pairs))]


def _synsets(path):
    """(offset, words, pointers, definition, examples) of each synset of a WordNet data file."""
    for line in open(path, errors="replace"):
        if line.startswith(" "):
            continue
        head, _, gloss = line.partition(" | ")
        f = head.split()
        n = int(f[3], 16)
        words = [re.sub(r"\(.*\)", "", f[4 + 2 * i]).replace("_", " ") for i in range(n)]
        at = 4 + 2 * n
        pointers = [(f[at + 1 + 4 * i], f[at + 2 + 4 * i], f[at + 3 + 4 * i]) for i in range(int(f[at]))]
        examples = re.findall(r'"([^"]+)"', gloss)
        definition = re.sub(r"\s+", " ", re.split(r'[;:]? *"', gloss)[0]).strip(" ;:")
        yield f[0], words, pointers, definition, [e[0].upper() + e[1:] + ("" if e[-1] in ".?!" else ".") for e in examples if len(e) > 8]


def an(word):
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def noun_name(word, definition):
    """With an article, unless it is a name or a substance."""
    return word if word[0].isupper() or not ARTICLE.match(definition) else an(word)


def sentence(pos, word, definition):
    if pos == "noun":
        name = noun_name(word, definition)
        return f"{name[0].upper()}{name[1:]} is {definition}."
    if pos == "verb":
        return f"To {word} is to {definition}."
    return f'"{word[0].upper()}{word[1:]}" means {definition}.'


def wordnet_documents(folder):
    parts, by_parent, names, group = [], {}, {}, {}
    for pos in ("noun", "verb", "adj", "adv"):
        for offset, words, pointers, definition, examples in _synsets(f"{folder}/data.{pos}"):
            if not definition or not re.fullmatch(r"[A-Za-z][A-Za-z' .-]*", words[0]):
                continue
            names[pos, offset] = (words, definition)
            parent = next((p for kind, p, _ in pointers if kind == "@"), None)
            parts.append((pos, offset, words, definition, examples, parent))
    for entry in parts:
        by_parent.setdefault((entry[0], entry[5]), []).append(entry)
    # Running text: what is a kind of the same thing stands together.
    for (pos, parent), entries in by_parent.items():
        for i in range(0, len(entries), 12):
            lines, key = [], f"{pos} {parent} {i}"
            for _, offset, words, definition, examples, _ in entries[i : i + 12]:
                group[pos, offset] = key
                line = sentence(pos, words[0], definition)
                if len(words) > 1:
                    line += f" Another word for it is {words[1]}."
                lines.append(" ".join([line, *examples[:2]]))
            head = names.get((pos, parent))
            title = f"Kinds of {head[0][0]}\n\n" if head and pos == "noun" else ""
            yield key, {"source": "wordnet", "text": title + "\n".join(lines)}
    for pos, offset, words, definition, examples, parent in parts:
        if rng.random() > 0.45:
            continue
        word = words[0]
        name = noun_name(word, definition) if pos == "noun" else "to " + word if pos == "verb" else word
        ask = [f"What is {name}?", f"Define {word}."] if pos == "noun" else []
        turns = [[rng.choice(ask + [f'What does "{word}" mean?', f"What is the meaning of {word}?"]), sentence(pos, word, definition)]]
        if examples and rng.random() < 0.5:
            turns.append([rng.choice(["Give me an example.", "Use it in a sentence.", "Can you use it in a sentence?"]), examples[0]])
        head = names.get((pos, parent))
        if head and pos == "noun" and rng.random() < 0.4:
            kind = f"{name[0].upper()}{name[1:]} is a kind of {head[0][0]}."
            turns.append([rng.choice(["What kind of thing is it?", f"What kind of thing is {name}?"]), kind])
        if len(words) > 1 and rng.random() < 0.3:
            turns.append([rng.choice(["Is there another word for it?", f"What is another word for {word}?"]), f"Another word for {word} is {words[1]}."])
        yield group[pos, offset], {"source": "wordnet-chat", "turns": turns}
