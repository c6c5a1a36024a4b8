"""Tokenizers described by tokenizer.json, with the roles that tokenizer_config.json gives to special tokens."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

from headway.engine.vocabulary import BYTE_TOKENS, TokenizerSpec, TokenKind, Vocabulary
from headway.errors import CheckpointError, UnsupportedModel

MAX_VOCABULARY = 1 << 22
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_json_tokenizer(data: bytes, config: Mapping[str, Any]) -> TokenizerSpec:
    """Raises CheckpointError for a broken file, UnsupportedModel for a tokenizer that cannot be decoded exactly."""
    try:
        tree = json.loads(data)
        encoder = Encoder.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"tokenizer.json cannot be read: {error}. Download it again.") from error
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True  # text that spells a control token stays text
    decoders = list(_parts(tree.get("decoder"), "decoders"))
    byte_level = _is_byte_level(decoders)
    names = {name: text for name in _NAMES if (text := _content(config.get(name))) is not None}
    ids = encoder.get_vocab(with_added_tokens=True)
    bos, eos = ids.get(names.get("bos_token", "")), ids.get(names.get("eos_token", ""))
    prefix_ids, suffix_ids = _affixes(encoder)
    if bos is not None and config.get("add_bos_token") is not None:  # says more than the post-processor
        prefix_ids = (bos,) if config["add_bos_token"] else ()
    return TokenizerSpec(
        vocabulary=_vocabulary(tree, ids, byte_level=byte_level),
        encoder=encoder,
        inner_encoder=_inner_encoder(tree, encoder),
        special_tokens={token["id"]: _added_token(token) for token in tree["added_tokens"] if token["special"]},
        strips_space=any(_strips_space(decoder) for decoder in decoders),
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        names=names,
    )


def _parts(node: dict[str, Any] | None, children: str) -> Iterator[dict[str, Any]]:
    """A tokenizer.json component and, where it is a sequence, its parts in order."""
    if node is None:
        return
    if node["type"] == "Sequence":
        for child in node[children]:
            yield from _parts(child, children)
    else:
        yield node


def _is_byte_level(decoders: list[dict[str, Any]]) -> bool:
    kinds = {decoder["type"] for decoder in decoders}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"Metaspace", "ByteFallback"}:
        return False
    found = ", ".join(sorted(kinds)) or "none"
    raise UnsupportedModel(
        f"tokenizer.json has a decoder that is not supported ({found}): only byte-level BPE and SentencePiece are."
    )


def _strips_space(decoder: dict[str, Any]) -> bool:
    if decoder["type"] == "Metaspace":
        return bool(decoder.get("prepend_scheme", "always") != "never" and decoder.get("add_prefix_space", True))
    return bool(decoder["type"] == "Strip" and decoder.get("content") == " " and decoder.get("start"))


def _vocabulary(tree: dict[str, Any], ids: dict[str, int], *, byte_level: bool) -> Vocabulary:
    size = max(ids.values(), default=-1) + 1
    if size > MAX_VOCABULARY:
        raise CheckpointError(f"tokenizer.json has an id of {size - 1}; at most {MAX_VOCABULARY} ids are accepted.")
    tokens, kinds = [""] * size, [int(TokenKind.UNUSED)] * size
    byte_tokens = frozenset() if byte_level else frozenset(BYTE_TOKENS)
    for token, token_id in ids.items():
        tokens[token_id] = token
        kinds[token_id] = TokenKind.BYTE if token in byte_tokens else TokenKind.NORMAL
    for added in tree["added_tokens"]:
        kinds[added["id"]] = TokenKind.CONTROL if added["special"] else TokenKind.USER_DEFINED
    unknown = _unknown(tree["model"])
    if unknown in ids:
        kinds[ids[unknown]] = TokenKind.UNKNOWN
    return Vocabulary(tokens, kinds, byte_level=byte_level)


def _unknown(model: dict[str, Any]) -> str | None:
    if model.get("unk_id") is not None:  # Unigram gives a position in its list
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _added_token(token: dict[str, Any]) -> AddedToken:
    options = {key: token[key] for key in ("single_word", "lstrip", "rstrip", "special")}
    return AddedToken(token["content"], normalized=False, **options)


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _affixes(encoder: Encoder) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after every text."""
    inner = encoder.encode("a", add_special_tokens=False).ids
    outer = encoder.encode("a", add_special_tokens=True).ids
    for start in range(len(outer) - len(inner), -1, -1):
        if outer[start : start + len(inner)] == inner:
            return tuple(outer[:start]), tuple(outer[start + len(inner) :])
    raise UnsupportedModel("tokenizer.json has a post-processor that changes the text's own tokens.")


def _inner_encoder(tree: dict[str, Any], encoder: Encoder) -> Encoder:
    """The same encoder without the prefix space that only the start of a text gets; it shares the vocabulary."""
    parts = list(_parts(tree.get("pre_tokenizer"), "pretokenizers"))
    if not any(part.get("prepend_scheme") == "first" for part in parts):
        return encoder
    parts = [part | {"prepend_scheme": "never"} if "prepend_scheme" in part else part for part in parts]
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    chain = {"type": "Sequence", "pretokenizers": parts}
    inner = Encoder.from_str(json.dumps(tree | {"added_tokens": [], "pre_tokenizer": chain, "model": empty}))
    inner.model = encoder.model
    added = sorted(tree["added_tokens"], key=lambda token: token["id"])
    inner.add_tokens([_added_token(token) for token in added])
    inner.encode_special_tokens = True
    return inner
