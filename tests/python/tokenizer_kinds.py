"""Makes small tokenizers of every supported kind, and the strings they are compared on.

Used by tokenizer_vectors.py (writes the committed vectors) and tokenizer_compare.py (compares the program with Hugging
Face's library on many strings). Needs `tokenizers`, `sentencepiece`, `tiktoken` from PyPI.
"""
import base64
import json
import os
import random

TEXT = """The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it? We've seen 3.14159 and 2024-11-15.
def main(argc, argv): return argv[0] + "\\n" if argc else None  # comment
Über die Brücke gehen wir täglich, naïve café résumé, Łódź, señor, façade, coöperate, Straße.
Привет мир, как дела сегодня? Это небольшой текст для обучения.
日本語のテキストです。今日は天気がいいですね。中文分词也需要测试。한국어 문장입니다.
مرحبا بالعالم هذا نص قصير. नमस्ते दुनिया यह एक छोटा पाठ है. สวัสดีชาวโลก
Numbers: 1 22 333 4444 55555, hex 0xDEADBEEF, maths: x^2 + y^2 = z^2; a <= b && c >= d || !e.
Emoji: 😀 👍🏽 🇩🇪 👨‍👩‍👧‍👦 are many code points. Ligatures ﬁ ﬂ, fullwidth ＡＢＣ, half ½, ① and ℌ.
tabs\tand   many    spaces\r\nand lines\n\n\nend. HELLO World hElLo wOrLd the the the and and of to in a is that
"""
WORDS = TEXT.split()
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "[TOOL]"]


def strings(n, seed):
    """n varied strings: words, white space, all scripts, combining marks, newer characters, special tokens, noise."""
    rng = random.Random(seed)
    blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F),
              (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2100, 0x218F), (0x2460, 0x24FF),
              (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F),
              (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x2EBF0, 0x2EC20),
              (0x16D40, 0x16D79), (0x10D40, 0x10D85)]
    spaces = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", " \n "]
    pieces = {
        "word": lambda: rng.choice(WORDS),
        "space": lambda: rng.choice(spaces),
        "char": lambda: chr(rng.randint(*rng.choice(blocks))),
        "digits": lambda: str(rng.randint(0, 10 ** rng.randint(1, 9))),
        "special": lambda: rng.choice(SPECIAL),
        "punct": lambda: rng.choice(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`'\""),
        "part": lambda: rng.choice(WORDS)[: rng.randint(1, 4)],
    }
    out = ["", " ", "  ", "a", " a", "a ", "\n", "▁", " ▁a", "<s>", " <s> a", "a<s>b", "hello world", " hello  world "]
    while len(out) < n:
        kinds = rng.choices(list(pieces), weights=[6, 5, 3, 2, 1, 2, 2], k=rng.randint(1, 14))
        glue = rng.choice(["", " ", ""])
        out.append(glue.join(pieces[k]() for k in kinds))
    return out[:n]


def _bpe_chars(vocab_size, normalizer, pre, decoder, bos=True, byte_fallback=True, fuse=True):
    from tokenizers import Tokenizer, models, processors, trainers
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=byte_fallback))
    t.normalizer, t.pre_tokenizer = normalizer, pre
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    # Rare characters are left out, so that some text needs bytes or the unknown token.
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, limit_alphabet=110, show_progress=False)
    t.train_from_iterator(TEXT.splitlines(keepends=True) * 3, trainer)
    data = json.loads(t.to_str())
    data["added_tokens"] = [a for a in data["added_tokens"] if a["id"] < 3]
    t = Tokenizer.from_str(json.dumps(data))
    t.decoder = decoder
    if bos:
        t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def _llama_decoder(strip=1):
    from tokenizers import decoders
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama_legacy():
    from tokenizers import normalizers
    return _bpe_chars(700, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
                      _llama_decoder())


def llama_metaspace():
    from tokenizers import pre_tokenizers
    return _bpe_chars(700, None, pre_tokenizers.Metaspace("▁", "first", split=False), _llama_decoder())


def metaspace_always():
    from tokenizers import decoders, pre_tokenizers
    return _bpe_chars(600, None, pre_tokenizers.Metaspace("▁", "always"), decoders.Metaspace("▁", "always"))


def gemma_style():
    from tokenizers import normalizers, pre_tokenizers
    return _bpe_chars(700, normalizers.Replace(" ", "▁"), pre_tokenizers.Split("▁", "merged_with_previous"),
                      _llama_decoder(strip=0))


def bpe_unknown():
    from tokenizers import normalizers, pre_tokenizers
    return _bpe_chars(400, normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.Strip()]),
                      pre_tokenizers.Metaspace("▁", "always"), _llama_decoder(), byte_fallback=False, fuse=False)


def bpe_unknown_fused():
    from tokenizers import Regex, normalizers, pre_tokenizers
    return _bpe_chars(400, normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]),
                      pre_tokenizers.Sequence([pre_tokenizers.Metaspace("▁", "first"), pre_tokenizers.Digits(True)]),
                      _llama_decoder(), byte_fallback=False, bos=False)


def unigram(normalizer=None):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizer or normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("``", '"')])
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    t.decoder = decoders.Metaspace("▁", "always")
    t.train_from_iterator(TEXT.splitlines() * 3, trainers.UnigramTrainer(
        vocab_size=450, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 1)])
    return t


def unigram_precompiled():
    """The normalisation table comes from a sentencepiece model."""
    from tokenizers import Tokenizer, normalizers
    t = unigram(normalizers.Sequence([normalizers.NFC()]))
    data = json.loads(t.to_str())
    data["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap()).decode()},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]}
    return Tokenizer.from_str(json.dumps(data))


def byte_level():
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT.splitlines(keepends=True) * 3, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    return t


def byte_level_hex():
    r"""\h is a hexadecimal digit, \w has marks, ^ and $ stand at lines."""
    from tokenizers import Regex, pre_tokenizers
    t = byte_level()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"0x\h+|^\w+|[\w']+$"), "isolated"),
                                               pre_tokenizers.ByteLevel(True, use_regex=True)])
    return t


JSON_KINDS = {f.__name__: f for f in (llama_legacy, llama_metaspace, metaspace_always, gemma_style, bpe_unknown,
                                      bpe_unknown_fused, unigram, unigram_precompiled, byte_level, byte_level_hex)}


def _train_spm(folder, name, **options):
    import sentencepiece
    text = os.path.join(folder, "spm.txt")
    with open(text, "w", encoding="utf-8") as f:
        f.write((TEXT.replace("\r\n", "\n") + "\n") * 3)
    sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=os.path.join(folder, name), minloglevel=2,
                                             user_defined_symbols=["[TOOL]"], **options)
    return os.path.join(folder, name + ".model")


_SPM = {
    "spm_bpe": dict(model_type="bpe", vocab_size=650, byte_fallback=True, character_coverage=0.98,
                    normalization_rule_name="identity", remove_extra_whitespaces=False),
    "spm_unigram": dict(model_type="unigram", vocab_size=420, character_coverage=0.98, hard_vocab_limit=False,
                        normalization_rule_name="identity"),
}


def sentencepiece_models(folder):
    return {name: _train_spm(folder, name, **options) for name, options in _SPM.items()}


# A table of its own keeps the fixture small: the built-in nmt_nfkc takes 240 KB.
RULES = {"ﬁ": "fi", "ﬂ": "fl", "Ａ": "A", "Ｂ": "B", "Ｃ": "C", "½": "1/2", "①": "1", "ℌ": "H", "\u3000": " ", "\u00a0": " ",
         "\t": " ", "\n": " ", "\r": "", "e\u0301": "é", "E\u0301": "É", "u\u0308": "ü", "\u200b": "", "\u212b": "\u00c5"}


def charsmap(folder="/tmp"):
    """The precompiled table of RULES, out of a model trained with them."""
    import tempfile
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        model = spm_with_rules(temporary)
        from sentencepiece import sentencepiece_model_pb2
        proto = sentencepiece_model_pb2.ModelProto()
        with open(model, "rb") as f:
            proto.ParseFromString(f.read())
        return proto.normalizer_spec.precompiled_charsmap


def spm_with_rules(folder):
    tsv = os.path.join(folder, "rules.tsv")
    with open(tsv, "w", encoding="utf-8") as f:
        for source, target in RULES.items():
            f.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
    return _train_spm(folder, "spm_rules", model_type="unigram", vocab_size=400, character_coverage=0.98,
                      hard_vocab_limit=False, normalization_rule_tsv=tsv)


def tiktoken_ranks():
    """Ranks of a byte-level vocabulary: bytes first, then what training joined."""
    t = json.loads(byte_level().to_str())
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    alphabet, n = {}, 0
    for b in range(256):
        if b in bs:
            alphabet[chr(b)] = b
        else:
            alphabet[chr(256 + n)] = b
            n += 1
    tokens = [bytes([b]) for b in range(256)]
    for merge in t["model"]["merges"]:
        joined = bytes(alphabet[c] for c in "".join(merge))
        if joined not in tokens:
            tokens.append(joined)
    return {token: rank for rank, token in enumerate(tokens)}


TIKTOKEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                    r"|\s+(?!\S)|\s+")
