#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small tokenizers with the settings of published ones, and encodes texts with them.

    make.py FOLDER [--vocab N] [--cases N] [--seed S]

Writes FOLDER/<family>.json, a tokenizer.json, and FOLDER/<family>.expected.json: a list of objects with `text` and what
the package tokenizers makes of it: `ids`; `plain` if special tokens are taken for text and that differs; `added` if the
post-processor adds something; `decoded` if that is not the text. The files beside this one come from
`make.py . --vocab 500 --cases 24`; the tests of the tokenizer make more of them where the package is installed.
"""

import argparse
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def isolated(pattern):
    return Split(Regex(pattern), "isolated")


def bytes_only():
    return ByteLevel(add_prefix_space=False, use_regex=False)


FAMILIES = {
    "gpt2": dict(pre=ByteLevel(add_prefix_space=False), specials=["<|endoftext|>"]),
    "llama3": dict(pre=Sequence([isolated(LLAMA3), bytes_only()]), ignore_merges=True, begin="<|begin_of_text|>",
                   specials=["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]),
    "qwen3": dict(pre=Sequence([isolated(QWEN), bytes_only()]), normalizer=normalizers.NFC(),
                  specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], others=["<think>", "</think>"]),
    "gpt-oss": dict(pre=Sequence([Split(Regex(O200K), "removed", invert=True), bytes_only()]),
                    specials=["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>"]),
    "deepseek": dict(pre=Sequence([isolated(r"\p{N}{1,3}"), isolated("[一-龥\u3040-\u309f\u30a0-\u30ff]+"),
                                   isolated(DEEPSEEK), bytes_only()]), specials=["<｜begin▁of▁sentence｜>"]),
    "starcoder": dict(pre=Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
                      specials=["<|endoftext|>", "<fim_prefix>"]),
    # Combinations that no published family has, for the behaviours that those leave out.
    "prefixed": dict(pre=ByteLevel(add_prefix_space=True), specials=["<s>", "</s>"], roberta=True,
                     normalizer=normalizers.Sequence([normalizers.NFKC()]),
                     tokens=[AddedToken("<mask>", lstrip=True, rstrip=True, special=True),
                             AddedToken("whole", single_word=True), AddedToken("ﬁx", normalized=True)]),
    "behaviours": dict(pre=Sequence([Split("::", "merged_with_previous"), Split(Regex(r"[\d_]"), "merged_with_next"),
                                     Punctuation("contiguous"), Split(Regex(r"\w+"), "contiguous", invert=True),
                                     Digits(), bytes_only()]), specials=["<|endoftext|>"],
                       normalizer=normalizers.NFD()),
}

SENTENCES = [
    "The quick brown fox doesn't jump; it's LAZY, they'LL say. We've 12345 of 1,234.5 apples -- I'd bet!",
    "Il était une fois, à Noël, une forêt où l'œuf naïf coûtait 3½ €; ça m'a plu.",
    "Über Straßen und Öfen: „Größe“ heißt hier 10^6 µm².", "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "我能吞下玻璃而不伤身体。今天是2024年12月31日，天气晴。", "いろはにほへと ちりぬるを。カタカナとＡＢＣ１２３。", "다람쥐 헌 쳇바퀴에 타고파. 각",
    "הקיפוד והדג שׁלום בְּרֵאשִׁית", "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ ١٢٣٤٥", "नमस्ते दुनिया, कैसे हो? १२३", "สวัสดีชาวโลก ยินดีที่ได้รู้จัก",
    "emoji 👩‍👩‍👧‍👦 and 🏳️‍🌈 and 👍🏽 and 🇩🇪!!!", "e\u0301 vs \u00e9, A\u030a vs \u212b, \u1100\u1161\u11a8 vs \uac01, \ufb01x \u0132",
    "def f(x):\n\treturn {'a': x**2}  # comment\n\n\n    if x != 3:\r\n        pass\r\n\r\n", "https://example.org/a/b?c=d&e=%20#f//",
    "   leading,  inner   and trailing    ", "\n\n \n\t\n", "\u00a0\u2003\u3000wide\u2028spaces\u0085\u180e.", "a'S b'ſ c'ReD 'tis 'K 'K",
    "x" * 70 + " " + "ab" * 60 + " " + "0123456789" * 7, "::a::::b_1_2__3 4٤५ x\u200dy\u200cz ⅫⅣ ²³", "\0\x01\x7f\x80\xad\ufeff\ufffd\U0010ffff",
    "whole wholes a-whole <mask>x  <mask>  y ﬁx fix", "ẛ̣ q̣̇ Ω Å ﷺ ㎏ Ⅷ ½",
]


def random_text(source, specials):
    kind = source.randrange(6)
    if kind == 0:
        ranges = [(0x20, 0x7f), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x590), (0x590, 0x900), (0x900, 0xe80), (0x1100, 0x1200),
                  (0x1e00, 0x2100), (0x2100, 0x2c00), (0x3040, 0x3100), (0x4e00, 0x5200), (0xac00, 0xae00), (0xfb00, 0xfe00),
                  (0x10300, 0x10400), (0x1f300, 0x1f700)]
        low, high = source.choice(ranges)
        return "".join(chr(source.randrange(low, high)) if source.random() < 0.8 else source.choice(" \n\t'1a") for _ in
                       range(source.randrange(1, 60)))
    if kind == 1:
        return "".join(source.choice("ab AB'st1 \n\r\t.,/_:!é") for _ in range(source.randrange(1, 200)))
    if kind == 2:
        return "".join(source.choice(SENTENCES) + source.choice(["", " ", "\n", *specials]) for _ in range(3))
    if kind == 3:
        return "".join(source.choice(specials + ["<|", "|>", " ", "  ", "x", "\n"]) for _ in range(source.randrange(1, 12)))
    if kind == 4:
        return source.choice([" ", "\n", "a", "ab", "1", "é", "\u0301", "語"]) * source.randrange(1, 400) + source.choice(["", "x"])
    start = source.randrange(1000)
    return "".join(map(chr, range(0x4e00 + start, 0x4e00 + start + source.randrange(1, 90))))


def make(family, settings, texts, vocab):
    tokenizer = Tokenizer(models.BPE(ignore_merges=settings.get("ignore_merges", False)))
    if "normalizer" in settings:
        tokenizer.normalizer = settings["normalizer"]
    tokenizer.pre_tokenizer = settings["pre"]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(settings["specials"])
    tokenizer.add_tokens(settings.get("others", []))
    for token in settings.get("tokens", []):
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    if settings.get("begin"):
        name = settings["begin"]
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{name} $A", special_tokens=[(name, tokenizer.token_to_id(name))])])
    elif settings.get("roberta"):
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def expectation(tokenizer, text):
    result = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    added = tokenizer.encode(text).ids
    decoded = tokenizer.decode(result["ids"], skip_special_tokens=False)
    result.update({name: value for name, value, usual in [("plain", plain, result["ids"]), ("added", added, result["ids"]),
                                                          ("decoded", decoded, text)] if value != usual})
    return result


# Every construct of which two regular expression engines may think differently, for one character.
CLASSES = [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"[^\S\n]", r"[\w-]", r"\v", ".", r"(?i:s)", "(?i:k)", "(?i:[à-þ])", r"\p{Han}",
           r"\p{Greek}", r"\P{L}", r"\p{^M}", "[一-龥\u3040-\u309f]", r"[a\-z\]\[]", r"\x41|\x{1F600}|\u00e9", "^x?", "x?$", "[^\r\n\\p{L}\\p{N}]",
           *[rf"\p{{{name}}}" for name in "L Lu Ll Lt Lm Lo M Me N Nd Nl No P S Z C Cc Cf Co".split()]]


def write_classes(folder):
    """What is left of characters if those that match are removed: of all that Python knows, but of the long uniform blocks
    only the ends."""
    blocks = [(0x3410, 0x4dc0), (0x4e20, 0x9fa0), (0xac20, 0xd790), (0xe010, 0xf8f0), (0x13000, 0x1d000), (0x20010, 0x10fffd)]
    text = "".join(chr(code) for code in range(0x110000) if not any(low <= code < high for low, high in blocks))
    text = "".join(character for character in text if unicodedata.category(character) not in ("Cn", "Cs"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=ByteLevel.alphabet(), show_progress=False))
    result = {"text": text, "classes": []}
    for pattern in CLASSES:
        tokenizer.pre_tokenizer = Sequence([Split(Regex(pattern), "removed"), bytes_only()])
        rest = tokenizer.decode(tokenizer.encode(text).ids)
        result["classes"].append({"tokenizer": tokenizer.to_str(), "pattern": pattern, "rest": rest})
    (folder / "classes.expected").write_text(json.dumps(result), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--vocab", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--classes", action="store_true", help="write FOLDER/classes.expected too")
    options = parser.parse_args()
    if options.classes:
        write_classes(options.folder)
    for family, settings in FAMILIES.items():
        source = random.Random(f"{family} {options.seed}")
        specials = settings["specials"] + settings.get("others", []) + [token.content for token in settings.get("tokens", [])]
        training = SENTENCES + [random_text(source, [" "]) for _ in range(200)]
        tokenizer = make(family, settings, training, options.vocab)
        tokenizer.save(str(options.folder / f"{family}.json"), pretty=False)
        texts = (SENTENCES + [random_text(source, specials) for _ in range(options.cases)])[:options.cases]
        lines = [json.dumps(expectation(tokenizer, text), ensure_ascii=False) for text in texts]
        (options.folder / f"{family}.expected.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
