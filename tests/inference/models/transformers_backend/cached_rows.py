"""Tiny random models of decoders that transformers computes with its own cache."""

from __future__ import annotations

from typing import Any

from tests.inference.models.families.rows import THETA, Row

WHOLE: dict[str, Any] = {"num_key_value_heads": 4}
LATENT: dict[str, Any] = (
    WHOLE
    | {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    | {"v_head_dim": 16, "head_dim": 8}
)
ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
INDEX: dict[str, Any] = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 16}
"""An indexer of many heads. With few heads many tokens score nothing at all, and which of them are
chosen is chance."""
LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
SPARSE: dict[str, Any] = LOCAL | {"moe_intermediate_size": 32}
FOUR: dict[str, Any] = {"num_hidden_layers": 4}
ALTERNATING: dict[str, Any] = FOUR | {
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
LINEAR: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
STATE: dict[str, Any] = {"state_size": 8, "conv_kernel": 4, "expand": 2}
MAMBA: dict[str, Any] = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
SHARED: dict[str, Any] = (
    WHOLE
    | MAMBA
    | {"layers_block_type": ["mamba", "hybrid"], "attention_hidden_size": 128}
    | {"attention_head_dim": 32}
)
PER_LAYER: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96}
CONVOLVED: dict[str, Any] = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 20,
    "d_rel": 4,
    "rel_extent": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "layer_types": ["hybrid_sliding", "hybrid"],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "axk1": LATENT | ROUTED,
    "axk2": LATENT | ROUTED | INDEX | {"gated_norm_rank": 8, "n_group": None, "topk_group": None},
    "bailing_hybrid": LATENT
    | SPARSE
    | FOUR
    | {"head_dim": 16, "layer_group_size": 2, "n_group": 2, "topk_group": 1},
    "bloom": WHOLE,
    "codegen": WHOLE | {"rotary_dim": 8},
    "cohere_compass_text": ALTERNATING
    | {"rope_parameters": {"full_attention": THETA, "sliding_attention": THETA}},
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}
    | {"rope_parameters": THETA}
    | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}}
    | {
        "ffn_config": {
            "hidden_size": 64,
            "ffn_hidden_size": 32,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        }
    },
    "deepseek_v32": LATENT | ROUTED | INDEX,
    # Groups of four tokens and of sixteen, whose last is not whole at most chunks' ends.
    "deepseek_v4": LATENT
    | ROUTED
    | INDEX
    | {"num_key_value_heads": 1, "num_hidden_layers": 3, "head_dim": 16}
    | {"partial_rotary_factor": 0.5, "sliding_window": 20}
    | {
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        ]
    }
    | {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}}
    | {"index_topk": 4, "mlp_layer_types": ["hash_moe", "moe", "moe"], "o_groups": 2}
    | {"o_lora_rank": 16, "hc_mult": 2},
    "diffllama": {},
    "doge": {"keep_window_size": 512},
    "dots3_note_text": LATENT | SPARSE | INDEX | {"shared_experts_intermediate_size": 32},
    "falcon": {},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_d_state": 8}
    | {"mamba_n_groups": 2, "mamba_chunk_size": 8},
    "falcon_mamba": STATE,
    "gemma3n_text": ALTERNATING
    | PER_LAYER
    | {"num_kv_shared_layers": 2, "laurel_rank": 8, "altup_num_inputs": 2}
    | {"activation_sparsity_pattern": [0.0] * 4},
    "gemma4_unified_text": ALTERNATING | PER_LAYER | {"global_head_dim": 16},
    "glm_moe_dsa": LATENT | ROUTED | INDEX | {"n_group": 1},
    "gpt_neo": WHOLE | {"attention_types": [[["global", "local"], 1]], "window_size": 20},
    "gpt_neox_japanese": WHOLE,
    "gptj": WHOLE | {"rotary_dim": 8},
    "hy_v4": LATENT | ROUTED | INDEX | {"head_dim": 24, "n_group": 1, "hc_mult": 2},
    "inkling_text": CONVOLVED,
    "inkling2_text": CONVOLVED,
    "jamba": MAMBA | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "jetmoe": LOCAL | {"kv_channels": 16},
    "kimi_linear": LATENT
    | SPARSE
    | LINEAR
    | {"q_lora_rank": None, "num_local_experts": 8, "linear_head_dim": 16}
    | {"linear_num_heads": 4, "mlp_layer_types": ["dense", "sparse"]},
    "lfm3": FOUR | {"sliding_window": 20},
    "longcat_flash": LATENT
    | {"num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32}
    | {"n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2},
    "mamba": STATE,
    "mamba2": STATE | {"num_heads": 8, "n_groups": 2, "chunk_size": 8},
    "mimo_v2_flash": ALTERNATING
    | {"v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32, "mlp_layer_types": ["dense"] + ["sparse"] * 3},
    "minimax": SPARSE
    | {"num_hidden_layers": 3, "block_size": 16}
    | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "mpt": WHOLE | {"max_seq_len": 128},
    "olmo_hybrid": LINEAR
    | {"linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 4}
    | {"linear_num_value_heads": 4},
    "qwen4_exp_text": SPARSE
    | {"num_experts": 4, "shared_expert_intermediate_size": 32, "linear_key_head_dim": 8}
    | {"linear_value_head_dim": 16, "linear_num_key_heads": 4, "linear_num_value_heads": 4}
    | {"layer_types": ["linear_attention", "indexed_attention"], "hc_count": 2}
    | {"hc_lowrank": 8, "ple_layer_ids": [1], "ple_embed_dim": 16, "heads_per_ngram": 2}
    | {"ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 4}
    | {"split_ngram_parts": 2, "eos_token_id": 0, "indexer_n_heads": 8}
    | {"indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16}
    | {"indexer_compress_ratio": 4},
    # Two recurrent blocks, then one of attention.
    "recurrent_gemma": {
        "num_hidden_layers": 3,
        "attention_window_size": 20,
        "w_init_variance_scale": 1.0,
    },
    "rwkv": {"rescale_every": 1},
    "xglm": WHOLE | {"ffn_dim": 96, "init_std": 0.25},
    "xlstm": {"hidden_size": 128, "num_heads": 4, "chunk_size": 16}
    | {"autocast_kernel_dtype": "float32"},
    "zamba": SHARED | {"n_mamba_heads": 4},
    # Below that, transformers' decode has another rule than its prefill.
    "zamba2": SHARED
    | {"n_mamba_heads": 8, "mamba_ngroups": 2, "chunk_size": 8, "adapter_rank": 8}
    | {"time_step_min": 1e-06},
    "zaya": {"moe_intermediate_size": 32, "num_experts": 4, "router_hidden_size": 16},
}
"""What differs from the sizes of ``rows``."""
LOUDER = {
    "recurrent_gemma": {"linear_out": 20.0},
    "rwkv": {"embeddings": 5000.0, "attention.output": 8.0},
}
NOT_TAKEN = {
    "falcon": ("head_dim",),
    "dbrx": (
        *("head_dim", "num_key_value_heads", "hidden_size", "num_attention_heads"),
        *("num_hidden_layers", "max_position_embeddings"),
    ),
}


def cached_row(model_type: str) -> Row:
    return Row(
        model_type=model_type,
        config=CONFIGS[model_type],
        without=NOT_TAKEN.get(model_type, ()),
        louder=LOUDER.get(model_type, {}),
    )
