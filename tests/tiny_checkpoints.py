"""Small random models of every family, written as a safetensors folder or as GGUF: the checkpoints the tests load.

A ``TinyModel`` is a config.json and float32 tensors under their Hugging Face names. ``write_folder`` and ``write_gguf``
return the model as the file holds it (rounded to the format), so that a reader can be compared with it exactly.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
K_FORMATS = ("Q4_K", "Q5_K", "Q6_K")  # rows must be multiples of 256: use ``tiny_model(..., **WIDE)``
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("Ġt", "he"), ("Ġ", "w"), ("o", "r"))
EOS, BOS = 258, 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_BASE: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}
_FAMILY: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 16},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 32, "sliding_window": 24},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "rope_theta": 1e6},
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 3,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class TinyModel:
    family: str
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]  # float32, Hugging Face names and row order


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model; ``changes`` replace entries (None removes one)."""
    config = {**_BASE, **_FAMILY[family], **changes}
    return {key: value for key, value in config.items() if value is not None}


def tiny_model(family: str, seed: int = 0, **changes: Any) -> TinyModel:
    config = tiny_config(family, **changes)
    rng = np.random.default_rng(seed)
    tensors = {name: _random_tensor(name, shape, family, rng) for name, shape in _shapes(family, config).items()}
    return TinyModel(family, config, tensors)


def head_dim(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _shapes(family: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, f, d = config["hidden_size"], config["intermediate_size"], head_dim(config)
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], h)}
    for i in range(config["num_hidden_layers"]):
        attention, mlp, layer = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp.", f"model.layers.{i}."
        linear = {"q_proj": (q, h), "k_proj": (kv, h), "v_proj": (kv, h), "o_proj": (h, q)}
        shapes |= {f"{attention}{name}.weight": shape for name, shape in linear.items()}
        if config.get("attention_bias") or family == "qwen2":
            biased = linear if config.get("attention_bias") else ("q_proj", "k_proj", "v_proj")
            shapes |= {f"{attention}{name}.bias": linear[name][:1] for name in biased}
        linear = {"gate_proj": (f, h), "up_proj": (f, h), "down_proj": (h, f)}
        shapes |= {f"{mlp}{name}.weight": shape for name, shape in linear.items()}
        if config.get("mlp_bias"):
            shapes |= {f"{mlp}{name}.bias": shape[:1] for name, shape in linear.items()}
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family == "gemma3":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        shapes |= {f"{layer}{name}.weight": (h,) for name in norms}
        if family in ("qwen3", "gemma3"):
            shapes |= {f"{attention}{name}.weight": (d,) for name in ("q_norm", "k_norm")}
    shapes["model.norm.weight"] = (h,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], h)
    return shapes


def _random_tensor(name: str, shape: tuple[int, ...], family: str, rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_normal(shape)
    if "norm" in name:
        values = 0.1 * values + (0.0 if family == "gemma3" else 1.0)  # Gemma stores its norms minus one
    elif len(shape) == 1:
        values = 0.1 * values
    else:
        values /= np.sqrt(shape[1])
    return values.astype(np.float32)


# -- safetensors ---------------------------------------------------------------------------------------------------


def write_folder(model: TinyModel, folder: Path, dtype: str = "F32", shards: int = 1) -> TinyModel:
    """config.json, tokenizer files and model.safetensors (or ``shards`` files and an index)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config))
    write_json_tokenizer(folder, model.config["vocab_size"])
    rounded = {name: to_dtype(values, dtype) for name, values in model.tensors.items()}
    names = list(rounded)
    parts = [names[i::shards] for i in range(shards)]
    files = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    for part, file in zip(parts, files, strict=True):
        (folder / file).write_bytes(safetensors_bytes({n: rounded[n] for n in part}, dtype))
    if shards > 1:
        weight_map = {name: file for part, file in zip(parts, files, strict=True) for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return replace(model, tensors={name: from_dtype(values, dtype) for name, values in rounded.items()})


def to_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 -> F32, F16 or BF16 (as uint16, rounded to nearest even)."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype])


def from_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values.astype(np.float32)


def safetensors_bytes(tensors: dict[str, np.ndarray], dtype: str) -> bytes:
    """The format by hand, since the safetensors package writes no bfloat16 from NumPy."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        start, end = end, end + values.nbytes
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values())


# -- GGUF ----------------------------------------------------------------------------------------------------------


def write_gguf(model: TinyModel, path: Path, format: str = "F32", metadata: dict[str, Any] | None = None) -> TinyModel:
    """One GGUF file with every matrix in ``format`` and vectors in F32. ``metadata`` adds keys."""
    architecture = {"mistral": "llama"}.get(model.family, model.family)
    writer = GGUFWriter(path, architecture)
    _write_config(writer, architecture, model.config)
    _write_gguf_tokenizer(writer, model.config["vocab_size"])
    for key, value in (metadata or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    held = {name: _write_tensor(writer, model, name, values, format) for name, values in model.tensors.items()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(model, tensors=held)


def _write_config(writer: GGUFWriter, architecture: str, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
    if "sliding_window_pattern" in config:
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", config["sliding_window_pattern"])


def _write_tensor(writer: GGUFWriter, model: TinyModel, name: str, values: np.ndarray, format: str) -> np.ndarray:
    """Adds one tensor under its GGUF name and returns the float32 values it now stands for, in Hugging Face order."""
    if model.family == "gemma3" and "norm" in name:
        values = values + np.float32(1)
    raw, held = (values, values) if values.ndim == 1 else encode(values, format)
    if model.family in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
        raw = raw[interleaved_rows(len(raw), head_dim(model.config))]
    raw_dtype = None if values.ndim == 1 or format in ("F32", "F16") else GGMLQuantizationType[format]
    writer.add_tensor(gguf_name(name, model.family), np.ascontiguousarray(raw), raw_dtype=raw_dtype)
    return held - np.float32(1) if model.family == "gemma3" and "norm" in name else held


def interleaved_rows(num_rows: int, dim: int) -> np.ndarray:
    """Hugging Face row to put at each row of a Llama GGUF: the halves of a head become alternating rows."""
    return np.arange(num_rows).reshape(-1, 2, dim // 2).swapaxes(1, 2).reshape(-1)


def encode(values: np.ndarray, format: str) -> tuple[np.ndarray, np.ndarray]:
    """(what the file holds, the float32 values that stands for). K-quants get random blocks: no encoder is at hand."""
    if format in ("F32", "F16"):
        raw = to_dtype(values, format)
        return raw, raw.astype(np.float32)
    if format in K_FORMATS:
        raw = random_blocks(format, *values.shape, np.random.default_rng(values.size))
    else:
        raw = gguf.quants.quantize(values, GGMLQuantizationType[format])
    return raw, gguf.quants.dequantize(raw, GGMLQuantizationType[format])


def random_blocks(format: str, n: int, k: int, rng: np.random.Generator, scale: float = 0.01) -> np.ndarray:
    """Bytes [n, row] of random blocks with finite scales of about ``scale``."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[format]]
    blocks = rng.integers(0, 256, (n, k // block_size, block_bytes), dtype=np.uint8)
    for at in {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q6_K": [208]}.get(format, [0, 2]):
        halves = rng.standard_normal((n, k // block_size, 1)).astype(np.float16) * np.float16(scale)
        blocks[:, :, at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(n, -1)


def gguf_name(name: str, family: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    inner = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm" if family == "gemma3" else "ffn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    stem, kind = name.rsplit(".", 1)
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{inner[rest]}.{kind}"


# -- a byte-level tokenizer ----------------------------------------------------------------------------------------


def tokens(vocab_size: int) -> list[str]:
    """256 bytes in the byte-level alphabet, three special tokens, the results of ``MERGES``, then unused tokens."""
    listed = [*byte_alphabet(), *SPECIAL_TOKENS, *("".join(pair) for pair in MERGES)]
    return [*listed, *(f"<unused{i}>" for i in range(vocab_size - len(listed)))]


def byte_alphabet() -> list[str]:
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write_json_tokenizer(folder: Path, vocab_size: int) -> None:
    vocab = {token: i for i, token in enumerate(tokens(vocab_size))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL_TOKENS, *(t for t in vocab if t.startswith("<unused"))])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_gguf_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    listed = tokens(vocab_size)
    control = {t for t in listed if t in SPECIAL_TOKENS or t.startswith("<unused")}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(listed)
    writer.add_token_types([3 if token in control else 1 for token in listed])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
