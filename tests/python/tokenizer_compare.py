"""Compares the program's tokenizers with Hugging Face's, sentencepiece's and tiktoken's on 2,000 strings per kind.

  tokenizer_compare.py TOOL [--write DIR]

TOOL is nmlp_tokenize_lines. --write makes the fixtures and vectors of tests/data/tokenizers anew instead.
"""
import base64
import os
import subprocess
import sys
import tempfile

import tokenizer_kinds as kinds

N_STRINGS = 2000
N_VECTORS = 160


class Kind:
    """A tokenizer's file, the truth about it, and whether its template is used."""

    def __init__(self, name, file, encode, decode, template):
        self.name, self.file, self.encode, self.decode, self.template = name, file, encode, decode, template


def json_kind(name, make, folder):
    from tokenizers import Tokenizer
    file = os.path.join(folder, name + ".json")
    make().save(file, pretty=False)
    t = Tokenizer.from_file(file)
    return Kind(name, file, lambda s: t.encode(s).ids, lambda ids: t.decode(ids, skip_special_tokens=False), True)


def spm_kind(name, file):
    import sentencepiece
    sp = sentencepiece.SentencePieceProcessor(model_file=file)
    # sentencepiece shows unknown tokens in a way of its own; `tokenizers` and we show their name.
    # It also drops all white space at the start, also what a text wrote as U+2581.
    def decode(ids):
        pieces = sp.id_to_piece(ids[:2])
        spaces = len(pieces) == 2 and pieces[0] == "▁" and pieces[1].startswith("▁")
        return None if sp.unk_id() in ids or spaces else sp.decode(ids)
    return Kind(name, file, sp.encode, decode, False)


def tiktoken_kind(folder):
    import tiktoken
    ranks = kinds.tiktoken_ranks()
    file = os.path.join(folder, "ranks.tiktoken")
    with open(file, "w", encoding="ascii") as f:
        f.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    e = tiktoken.Encoding("made", pat_str=kinds.TIKTOKEN_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return Kind("tiktoken", file, e.encode_ordinary, e.decode, False)


def all_kinds(folder):
    for name, make in kinds.JSON_KINDS.items():
        yield json_kind(name, make, folder)
    for name, file in kinds.sentencepiece_models(folder).items():
        yield spm_kind(name, file)
    yield tiktoken_kind(folder)


def texts_for(kind, n):
    """Control symbols in text are tokens for us, and text for sentencepiece and tiktoken."""
    texts = kinds.strings(2 * n, 7)
    if not kind.template:
        texts = [s for s in texts if not any(special in s for special in kinds.SPECIAL if special != "[TOOL]")]
    return texts[:n]


def truth(kind, text):
    ids = kind.encode(text)
    return ids, kind.decode(ids)


def compare(tool, kind):
    texts = texts_for(kind, N_STRINGS)
    lines = subprocess.run([tool, kind.file, "template" if kind.template else "none"], check=True,
                           input="".join(t.encode().hex() + "\n" for t in texts), capture_output=True, text=True,
                           ).stdout.splitlines()
    wrong = 0
    for text, line in zip(texts, lines, strict=True):
        ids, decoded = truth(kind, text)
        got_ids, _, got_text = line.partition("|")
        same = got_ids == " ".join(map(str, ids))
        if same and decoded is not None:
            same = bytes.fromhex(got_text).decode() == decoded
        if not same:
            wrong += 1
            if wrong <= 3:
                print(f"{kind.name}: {text!r}\n  {line}\n  {ids} {decoded!r}")
    print(f"{kind.name}: {len(texts)} strings, {wrong} differ")
    return wrong


def write(kind, folder):
    """One line per text: the text in hexadecimal, the ids, and what they decode to ("=": the text, "-": not compared)."""
    extension = ".json" if kind.template else os.path.splitext(kind.file)[1]
    with open(kind.file, "rb") as source, open(os.path.join(folder, kind.name + extension), "wb") as target:
        target.write(source.read())
    with open(os.path.join(folder, kind.name + ".vectors"), "w", encoding="ascii") as f:
        for text in texts_for(kind, N_VECTORS):
            ids, decoded = truth(kind, text)
            shown = "-" if decoded is None else "=" if decoded == text else decoded.encode().hex()
            f.write(f"{text.encode().hex()}\t{' '.join(map(str, ids))}\t{shown}\n")


def main():
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) == 4 and sys.argv[2] == "--write":
            for kind in all_kinds(folder):
                write(kind, sys.argv[3])
            return 0
        return 1 if sum(compare(sys.argv[1], kind) for kind in all_kinds(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
