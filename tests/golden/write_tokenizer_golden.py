"""Writes tokenizers.json: the ids that other people's tokenizers give for hard text. Needed only to add a case.

    pip install '.[oracle]'
    python tests/golden/write_tokenizer_golden.py smollm2-135m=MODEL.gguf gemma3-270m=MODEL.gguf

A byte-level vocabulary is read by transformers. Its conversion from GGUF keeps GPT-2's words for every name in
``tokenizer.ggml.pre``, where SmolLM2's own tokenizer.json cuts digits apart first: the ids of " ½" differ, so that step
is put back. A SentencePiece vocabulary is read by sentencepiece itself, from the pieces and scores in the file: the
conversion in transformers leaves runs of spaces to merging, where SentencePiece matches the longest run first.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

GOLDEN = Path(__file__).with_name("tokenizers.json")
TEXTS = [
    "you're I'LL we'Ve it'S they'd",
    "1234567 3.14159 1,000,000 ½ ² ٣٤٥ Ⅷ 2024-01-31T12:00:00Z",
    "你好，世界。日本語のテキスト、한국어 문장도.",
    "🦙 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 ✊🏽",
    "  two  spaces   three    four\ttab\t\ttabs \t mixed ",
    "\n\n\nlines\n \n\r\nwindows\r\n\r\r old\n\n",
    "def f(x):\n    if x > 0:\n        return {'a': [1, 2], \"b\": x**2}\n\t# done\n",
    "https://example.org/a/b?c=d&e=%20f#g user@example.com C:\\path\\file.txt",
    "e\u0301 a\u0308\u0323 ñ n\u0303 Å A\u030a ﬁ Ａ",
    "שלום עולם مرحبا بالعالم \u202eltr\u202c",
    "zero\u200bwidth\u200djoin\u200cnon\ufeffbom",
    "<|im_start|>user\n<|im_end|> <bos><eos><start_of_turn> </s> <unk> [INST]",
    "<table><tr><td>cell</td></tr></table><h1>x</h1>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbb ababababababab",
    " " * 40 + "x" + "\n" * 40 + "y" + "\t" * 9,
    "\u2581already \u2581\u2581 marked <0x0A> <0xE2><0x82>",
    "𝕳𝖊𝖑𝖑𝖔 \U00010348 \U0010fffd \x00\x01\x7f",
    "-----=====*****____!!!!????....,,,,;;;;",
    "हिन्दी में पाठ ภาษาไทย தமிழ் မြန်မာ",
    "The quick brown fox jumps over the lazy dog. The end. . The",
    "CamelCaseWords snake_case_words kebab-case-words SHOUTING iPhone McDonald's",
    "> </ a> </b ><> > </ >",
    " ",
    "\n",
    "",
]


def main() -> None:
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    golden["texts"] = TEXTS
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        golden[name] = token_ids(Path(path))
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in golden.items()]
    GOLDEN.write_text("{" + ",\n".join(lines) + "}\n")


def token_ids(path: Path) -> list[list[int]]:
    fields = gguf.GGUFReader(path).fields
    metadata = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}
    return (
        sentencepiece_ids(metadata) if metadata["tokenizer.ggml.model"] == "llama" else byte_level_ids(path, metadata)
    )


def byte_level_ids(path: Path, metadata: dict[str, Any]) -> list[list[int]]:
    encoder = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    encoder.encode_special_tokens = True
    if metadata["tokenizer.ggml.pre"] == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        encoder.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return [encoder.encode(text, add_special_tokens=False).ids for text in TEXTS]


def sentencepiece_ids(metadata: dict[str, Any]) -> list[list[int]]:
    model = sentencepiece_model_pb2.ModelProto()
    rows = zip(*(metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")), strict=True)
    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    for token_id, (token, score, kind) in enumerate(rows):
        piece = token.replace(" ", "\u2581") if kind == 4 else token
        model.pieces.add(piece=piece, score=score, type=2 if token_id == unknown else kind)
    trainer = model.trainer_spec
    trainer.model_type, trainer.byte_fallback, trainer.unk_id = trainer.BPE, True, unknown
    trainer.bos_id, trainer.eos_id = metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]
    normalizer = model.normalizer_spec
    normalizer.name, normalizer.remove_extra_whitespaces = "identity", False
    normalizer.add_dummy_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return [processor.encode(text) for text in TEXTS]


if __name__ == "__main__":
    main()
