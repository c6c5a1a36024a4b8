"""Which tensors a model must have: their roles, their shapes, and what each file format calls them."""

from dataclasses import dataclass

from headway.model.architecture import Architecture

Shape = tuple[int, ...]


def model_shapes(arch: Architecture) -> dict[str, Shape]:
    """Role in ``ModelWeights`` -> shape."""
    shapes: dict[str, Shape] = {
        "embedding": (arch.vocab_size, arch.hidden_size),
        "final_norm": (arch.hidden_size,),
    }
    if not arch.tied_embeddings:
        shapes["output"] = (arch.vocab_size, arch.hidden_size)
    return shapes


def layer_shapes(arch: Architecture) -> dict[str, Shape]:
    """Role in ``LayerWeights`` -> shape; the same for every layer."""
    hidden, mlp = arch.hidden_size, arch.intermediate_size
    q, kv = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    shapes: dict[str, Shape] = {
        "input_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "mlp_norm": (hidden,),
        "gate": (mlp, hidden),
        "up": (mlp, hidden),
        "down": (hidden, mlp),
    }
    if arch.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if arch.output_bias:
        shapes["o_bias"] = (hidden,)
    if arch.mlp_bias:
        shapes |= {"gate_bias": (mlp,), "up_bias": (mlp,), "down_bias": (hidden,)}
    if arch.qk_norm:
        shapes |= {"q_norm": (arch.head_dim,), "k_norm": (arch.head_dim,)}
    if arch.sandwich_norms:
        shapes |= {"post_attention_norm": (hidden,), "post_mlp_norm": (hidden,)}
    return shapes


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Role -> name; a layer's names follow ``layer_prefix`` with the layer's number in it."""

    model: dict[str, str]
    layer_prefix: str
    layer: dict[str, str]

    def of_layer(self, index: int, role: str) -> str:
        return self.layer_prefix.format(index) + self.layer[role]


def _with_biases(weights: dict[str, str]) -> dict[str, str]:
    return {
        **{role: f"{stem}.weight" for role, stem in weights.items()},
        **{f"{role}_bias": f"{weights[role]}.bias" for role in ("q", "k", "v", "o", "gate", "up", "down")},
    }


GGUF_NAMES = TensorNames(
    model={"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "output": "output.weight"},
    layer_prefix="blk.{}.",
    layer=_with_biases(
        {
            "input_norm": "attn_norm",
            "q": "attn_q",
            "k": "attn_k",
            "v": "attn_v",
            "o": "attn_output",
            "q_norm": "attn_q_norm",
            "k_norm": "attn_k_norm",
            "post_attention_norm": "post_attention_norm",
            "mlp_norm": "ffn_norm",
            "gate": "ffn_gate",
            "up": "ffn_up",
            "down": "ffn_down",
            "post_mlp_norm": "post_ffw_norm",
        }
    ),
)


def hf_names(arch: Architecture) -> TensorNames:
    """Hugging Face's post_attention_layernorm is the norm before the MLP, except where there are sandwich norms: there
    it really comes after attention, and pre_feedforward_layernorm is the one before the MLP."""
    mlp_norm = "pre_feedforward_layernorm" if arch.sandwich_norms else "post_attention_layernorm"
    return TensorNames(
        model={
            "embedding": "model.embed_tokens.weight",
            "final_norm": "model.norm.weight",
            "output": "lm_head.weight",
        },
        layer_prefix="model.layers.{}.",
        layer=_with_biases(
            {
                "input_norm": "input_layernorm",
                "q": "self_attn.q_proj",
                "k": "self_attn.k_proj",
                "v": "self_attn.v_proj",
                "o": "self_attn.o_proj",
                "q_norm": "self_attn.q_norm",
                "k_norm": "self_attn.k_norm",
                "post_attention_norm": "post_attention_layernorm",
                "mlp_norm": mlp_norm,
                "gate": "mlp.gate_proj",
                "up": "mlp.up_proj",
                "down": "mlp.down_proj",
                "post_mlp_norm": "post_feedforward_layernorm",
            }
        ),
    )
