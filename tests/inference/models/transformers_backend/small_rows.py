"""Tiny random models of decoders that transformers computes: a config has a small value for each
field that it declares, and what a type needs beside."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from tests.inference.models.families.rows import THETA, Row

SMALL: dict[str, Any] = {
    **dict.fromkeys(("num_experts_per_tok", "num_experts", "num_local_experts"), 4),
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "hc_mult": 2,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    "qk_rope_head_dim": 8,
    "rotary_dim": 8,
    "max_seq_len": 128,
    "conv_kernel": 4,
    "expand": 2,
    # An indexer of many heads. With few heads many tokens score nothing at all, and which of them
    # are chosen is chance.
    **dict.fromkeys(("index_n_heads", "index_head_dim", "index_topk"), 16),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), 20),
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "state_size": 8,
    "chunk_size": 8,
    "attention_hidden_size": 128,
    "attention_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "d_rel": 4,
    "rel_extent": 64,
    "vocab_size_per_layer_input": 96,
    "swa_num_attention_heads": 4,
    "swa_head_dim": 16,
    "swa_num_key_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
}
WHOLE = {
    *("biogpt", "bloom", "codegen", "ctrl", "gpt-sw3", "gpt2", "gpt_neo", "gpt_neox", "gptj"),
    *("gpt_neox_japanese", "modernbert-decoder", "mpt", "opt", "persimmon", "xglm", "zamba"),
    "zamba2",
}
"""The types with as many heads of keys as of queries, beside those of latent attention."""
ALTERNATING: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
HYBRID = {"layers_block_type": ["mamba", "hybrid"]}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
CONVOLVED = {"layer_types": ["hybrid_sliding", "hybrid"]}
DBRX_EXPERTS = {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}
DEEPSEEK_V4_LAYERS = ("sliding", "compressed_sparse", "heavily_compressed")
OWN: dict[str, dict[str, Any]] = {
    "axk2": {"gated_norm_rank": 8, "n_group": None, "topk_group": None},
    "bailing_hybrid": {"num_hidden_layers": 4, "head_dim": 16, "layer_group_size": 2}
    | {"q_lora_rank": 16, "n_group": 2, "num_experts": 8, "num_experts_per_tok": 2},
    "cohere_compass_text": ALTERNATING
    | {"rope_parameters": {"full_attention": THETA, "sliding_attention": THETA}},
    "cwm": {"eos_token_id": 0},  # its own lies outside of a small vocabulary
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 2, "rope_parameters": THETA}
    | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}}
    | {"ffn_config": DBRX_EXPERTS},
    # Groups of four tokens and of sixteen, whose last is not whole at most chunks' ends.
    "deepseek_v4": {"num_key_value_heads": 1, "num_hidden_layers": 3, "head_dim": 16}
    | {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}}
    | {"partial_rotary_factor": 0.5, "index_topk": 4, "o_groups": 2, "o_lora_rank": 16}
    | {"mlp_layer_types": ["hash_moe", "moe", "moe"]}
    | {"layer_types": [f"{kind}_attention" for kind in DEEPSEEK_V4_LAYERS]},
    "doge": {"keep_window_size": 512},
    "dots3_note_text": {"shared_experts_intermediate_size": 32},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128},
    "gemma3n_text": ALTERNATING
    | {"num_kv_shared_layers": 2, "laurel_rank": 8, "altup_num_inputs": 2}
    | {"activation_sparsity_pattern": [0.0] * 4},
    "gemma4_unified_text": ALTERNATING
    | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "global_head_dim": 16},
    "glm_moe_dsa": {"n_group": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 20},
    "granitemoeshared": {"shared_intermediate_size": 32},
    "hy_v4": {"head_dim": 24, "n_group": 1},
    "inkling_text": CONVOLVED,
    "inkling2_text": CONVOLVED,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "jetmoe": {"kv_channels": 16},
    "kimi_linear": LINEAR
    | {"q_lora_rank": None, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8}
    | {"linear_head_dim": 16, "linear_num_heads": 4, "mlp_layer_types": ["dense", "sparse"]},
    "lfm3": {"num_hidden_layers": 4},
    "longcat_flash": {"num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32}
    | {"n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "mimo_v2_flash": ALTERNATING | {"v_head_dim": 8, "mlp_layer_types": ["dense"] + ["sparse"] * 3},
    "minimax": {"num_hidden_layers": 3, "block_size": 16}
    | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "modernbert-decoder": {"local_attention": 40},
    "olmo_hybrid": LINEAR,
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "qwen4_exp_text": {"num_local_experts": 4, "shared_expert_intermediate_size": 32}
    | {"layer_types": ["linear_attention", "indexed_attention"], "hc_count": 2}
    | {"hc_lowrank": 8, "ple_layer_ids": [1], "ple_embed_dim": 16, "heads_per_ngram": 2}
    | {"ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 4}
    | {"split_ngram_parts": 2, "eos_token_id": 0, "indexer_n_heads": 8}
    | {"indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16}
    | {"indexer_compress_ratio": 4},
    # Two recurrent blocks, then one of attention.
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 20}
    | {"w_init_variance_scale": 1.0},
    "rwkv": {"rescale_every": 1, "attention_hidden_size": 64},
    "xglm": {"ffn_dim": 96, "init_std": 0.25},
    "xlstm": {"hidden_size": 128, "num_heads": 4, "chunk_size": 16}
    | {"autocast_kernel_dtype": "float32"},
    "zamba": HYBRID | {"n_mamba_heads": 4},
    # Below that, transformers' decode has another rule than its prefill.
    "zamba2": HYBRID
    | {"n_mamba_heads": 8, "mamba_ngroups": 2, "adapter_rank": 8, "time_step_min": 1e-06},
    "zaya": {"router_hidden_size": 16, "num_experts_per_tok": 1},
}
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


def small_row(model_type: str, **changes: Any) -> Row:
    declared = AutoConfig.for_model(model_type).to_dict()
    config = {name: SMALL[name] for name in SMALL if name in declared}
    if "qk_rope_head_dim" in declared:
        config |= {"num_key_value_heads": 4, "head_dim": 8}
    elif model_type in WHOLE:
        config["num_key_value_heads"] = 4
    return Row(
        model_type=model_type,
        config=config | OWN.get(model_type, {}) | changes,
        without=NOT_TAKEN.get(model_type, ()),
        louder=LOUDER.get(model_type, {}),
    )
