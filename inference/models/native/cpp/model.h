// A model's weights and shape, and one batch of rows, as the caller describes them. Python reads
// the structs here (library.py).
#pragma once

#include <cstdint>

#include "linear.h"
#include "low_rank.h"

namespace helexa {

constexpr int kBlockTokens = 32;  // of a block of the cache

extern "C" {

enum KVFormat : int32_t { kKVFloat = 0, kKVBfloat16 = 1, kKVInt8 = 2 };

enum NormKind : int32_t { kRms = 0, kLayerNorm = 1 };

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

enum Scoring : int32_t { kSoftmax = 0, kSigmoid = 1, kSoftmaxOfChosen = 2 };

// A mixture of experts in place of a layer's gate_up and down. All experts that are chosen from are of
// the same formats.
struct Experts {
  int32_t num_experts;        // to choose from
  int32_t per_token;          // how many are chosen for a row
  int32_t intermediate_size;  // of the widest
  int32_t scoring;            // a Scoring
  int32_t normalizes;         // whether weights of a row's experts are made to add up to one
  int32_t has_shared;         // whether one more follows, which all rows go through
  int32_t weighs_inputs;      // whether weights meet what experts read, not what they give
  int32_t num_groups;         // of neighbouring experts; one: experts are chosen from all
  int32_t groups_per_token;   // how many of them a row's experts are chosen from
  int32_t group_experts;      // how many of a group's best decide what it is worth: one or two
  float weight_scale;         // of the weights of a row's experts, but the shared one's
  const float* choice_bias;   // what scores are raised by where the best are chosen; null: nothing
  Linear router;              // floats; its last output, if there is one more, is the shared one's gate
  const Projection* gate_up;  // (num_all(),)
  const Projection* down;

  int num_all() const { return num_experts + has_shared; }
  int per_group() const { return num_experts / num_groups; }
  int num_scores() const { return router.out_features; }
  bool gates_shared() const { return router.out_features > num_experts; }
  int entries_per_row() const { return per_token + has_shared; }

  bool reads_codes() const { return is_any(&Projection::reads_codes); }
  bool reads_half_sums() const { return is_any(&Projection::reads_half_sums); }
  bool reads_values() const { return is_any(&Projection::reads_values); }
  int64_t bytes() const {
    int64_t total = 0;
    for (int i = 0; i < num_all(); i++) total += gate_up[i].bytes() + down[i].bytes();
    return total;
  }

 private:
  bool is_any(bool (Projection::*is)() const) const {
    return (gate_up[0].*is)() || (has_shared && (gate_up[num_experts].*is)());
  }
};

// Divides a row by its size, and weighs its features.
struct Norm {
  const float* weight;  // null: there is none, and rows stay as they are
  const float* bias;    // null: none
};

// Gated DeltaNet in place of a layer's attention: see recurrent.h. A row of the layer's `qkv` is
//   queries, keys (num_key_heads each) | values | gates (num_value_heads each) | betas | decays
struct DeltaNet {
  int32_t num_key_heads, num_value_heads, key_head_dim, value_head_dim;
  int32_t conv_kernel;            // rows that a convolution reads, its own included
  int32_t are_value_heads_tiled;  // whether value head i is of key head i % num_key_heads
  const float* conv_weight;       // (conv_kernel, conv_channels())
  const float* decay_rate;        // (num_value_heads,)
  const float* dt_bias;           // (num_value_heads,)
  const float* norm;              // (value_head_dim,)

  int group() const { return num_value_heads / num_key_heads; }
  int key_features() const { return num_key_heads * key_head_dim; }
  int value_features() const { return num_value_heads * value_head_dim; }
  int conv_channels() const { return 2 * key_features() + value_features(); }
  int row_width() const { return conv_channels() + value_features() + 2 * num_value_heads; }
  int64_t conv_floats() const { return int64_t(conv_kernel - 1) * conv_channels(); }
  int64_t head_floats() const { return int64_t(key_head_dim) * value_head_dim; }
  int value_head(int key_head, int i) const {
    return are_value_heads_tiled ? key_head + i * num_key_heads : key_head * group() + i;
  }
};

// A gated convolution in place of a layer's attention: see convolution.h. A row of the layer's `qkv` is
//   before | after | values (channels each)
struct ShortConv {
  int32_t channels;
  int32_t kernel;       // rows that it reads, its own included
  const float* weight;  // (kernel, channels)
  const float* bias;    // (channels,); null: none

  int row_width() const { return 3 * channels; }
  int64_t conv_floats() const { return int64_t(kernel - 1) * channels; }
};

// Mamba-2 in place of a layer's attention: see recurrent.h. A row of the layer's `qkv` is
//   gates (features) | values (features) | keys | queries (num_groups each) | steps (num_heads)
struct Mamba {
  int32_t num_heads, head_dim, num_groups, state_size;
  int32_t conv_kernel;       // rows that a convolution reads, its own included
  const float* conv_weight;  // (conv_kernel, conv_channels())
  const float* conv_bias;    // (conv_channels(),); null: none
  const float* decay_rate;   // (num_heads,)
  const float* step_bias;    // (num_heads,)
  const float* skip;         // (num_heads,)
  const float* norm;         // (features(),)

  int features() const { return num_heads * head_dim; }
  int heads_per_group() const { return num_heads / num_groups; }
  int group_features() const { return num_groups * state_size; }
  int conv_channels() const { return features() + 2 * group_features(); }
  int row_width() const { return features() + conv_channels() + num_heads; }
  int64_t conv_floats() const { return int64_t(conv_kernel - 1) * conv_channels(); }
  int64_t head_floats() const { return int64_t(head_dim) * state_size; }
  int64_t state_floats() const { return num_heads * head_floats(); }
};

// Multi-head latent attention in place of a layer's attention: see latent_attention.h. A row of the
// layer's `qkv` is
//   queries (num_heads), or what they are compressed to | latent (kv_rank) | rotary key (rotary_dim)
struct Latent {
  int32_t kv_rank, rotary_dim, plain_dim, value_dim;
  int32_t query_rank;        // 0: queries are not compressed
  const float* query_norm;   // (query_rank,)
  const float* latent_norm;  // (kv_rank,)
  Projection queries;        // of what they are compressed to
  Linear to_keys;            // (num_heads * kv_rank, plain_dim): each head's queries as wide as latents
  Linear to_values;          // (num_heads * value_dim, kv_rank)

  int width() const { return kv_rank + rotary_dim; }
  int query_dim() const { return plain_dim + rotary_dim; }
  int first_width(int num_heads) const { return query_rank ? query_rank : num_heads * query_dim(); }
  int64_t bytes() const {
    const int64_t of_queries = query_rank ? queries.bytes() : 0;
    return of_queries + to_keys.bytes() + to_values.bytes();
  }
};

struct Layer {
  Projection qkv, output, gate_up, down;
  Norm input_norm, mixed_norm, mlp_norm, mlp_added_norm;
  const float* query_norm;  // null: none
  const float* key_norm;
  const float* cosines;  // (max_positions, rotary_dim / 2)
  const float* sines;
  const Experts* experts;  // null: gate_up and down
  const DeltaNet* delta;   // in place of attention, as one of the next two
  const ShortConv* conv;
  const Mamba* mamba;
  const Latent* latent;
  int32_t rotary_dim;   // of each head's first features; 0: none are rotated
  int32_t window;       // 0: none
  int32_t is_chunked;     // whether a row sees its chunk of `window` tokens, not the last `window`
  int32_t grows_queries;  // whether they are multiplied by the model's query_growth
  int32_t cache_index;  // of its keys and values, or of its states

  bool has_state() const { return delta || conv || mamba; }
  int64_t bytes() const {
    const int64_t of_mlp = experts ? experts->bytes() : gate_up.bytes() + down.bytes();
    return qkv.bytes() + output.bytes() + of_mlp + (latent ? latent->bytes() : 0);
  }
};

// The input of a layer that predicts further tokens, in place of a token's embedding: that embedding and
// the row given beside it, each behind a norm of its own, side by side through one product.
struct Join {
  Norm embedding, hidden;
  Linear product;  // (hidden_size, 2 * hidden_size)
};

struct Model {
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int32_t kv_format;   // a KVFormat
  int32_t norm_kind;   // a NormKind
  int32_t activation;  // an Activation
  int32_t is_gated;    // whether gate_up has gates, before what goes up
  int32_t is_parallel;  // whether a layer's MLP reads what its mixer reads
  int32_t is_qk_norm_wide;  // whether query_norm and key_norm are of all heads together
  int32_t is_qk_norm_after_rotation;  // whether they are of rotated heads
  int32_t is_rope_interleaved;  // whether neighbours are rotated together, and not halves
  int32_t has_output_gate;      // whether a row of qkv begins with gates, as wide as queries
  float norm_eps;
  float query_scale;  // of scores, beyond one over the root of head_dim
  float score_cap, logit_cap;  // 0: none
  float embedding_multiplier, residual_multiplier, logit_multiplier;
  const float* query_growth;  // of queries, by position; null: none
  const Layer* layers;
  Norm final_norm;
  Linear embedding;  // out_features = vocab_size; a table, read by row
  Linear head;
  const Join* join;  // null: the first layer reads embeddings, or hidden_rows as they are

  int query_width() const { return num_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
  int gate_width() const { return has_output_gate ? query_width() : 0; }
  int qkv_width() const { return gate_width() + query_width() + 2 * kv_width(); }
  int heads_per_kv_head() const { return num_heads / num_kv_heads; }

  int row_width(const Layer& layer) const {
    if (layer.conv) return layer.conv->row_width();
    if (layer.mamba) return layer.mamba->row_width();
    if (layer.latent) return latent_row_width(*layer.latent);
    return layer.delta ? layer.delta->row_width() : qkv_width();
  }
  // Behind what is compressed come the queries that are made of it.
  int latent_row_width(const Latent& l) const {
    return l.width() + num_heads * l.query_dim() + l.query_rank;
  }
  // Whether what a part of the layer computes is added to the rows as it is.
  bool adds_plainly(const Norm& after) const {
    return !after.weight && residual_multiplier == 1.0f && !is_parallel;
  }
  // Whether its last layer needs earlier rows for the states that it leaves, also where
  // their logits are not wanted.
  bool ends_with_state() const { return num_layers > 0 && layers[num_layers - 1].has_state(); }
};

// The images' part in a step of sequences with images.
struct Images {
  const float* cosines;     // (num_rows, rotary_dim / 2) what rows are rotated by; null: their positions
  const float* sines;
  const int64_t* image_rows;  // (num_rows,) which of the rows below it is; below 0: its token's own
  const float* embeddings;  // (num_image_rows, hidden_size)
  const float* deepstack;   // (num_deepstack, num_image_rows, hidden_size), added after the first layers
  int32_t num_image_rows;
  int32_t num_deepstack;    // fewer than layers
};

// Where a sequence's state is read, and where the next one is written.
struct StateSlots {
  int64_t from, to;
};

struct Batch {
  int32_t num_rows;
  int32_t num_sequences;
  int32_t num_logit_rows;
  int32_t table_stride;
  const int32_t* token_ids;    // (num_rows,)
  const int32_t* positions;    // (num_rows,)
  const int32_t* query_start;  // (num_sequences + 1,) first row of each, in order of position; num_rows
  const int32_t* block_table;  // (num_sequences, table_stride)
  const int32_t* logit_rows;   // (num_logit_rows,) rows whose next token is wanted; null: all
  uint8_t* keys;               // (layers with attention, num_blocks, num_kv_heads, region_bytes), or latents
  uint8_t* values;             // the same
  int64_t num_blocks;
  const int32_t* state_reads;  // (num_sequences,) slots of the states before, where layers keep any
  const int32_t* state_writes; // and after these rows
  float* conv_states;          // (layers with states, num_state_slots, conv_floats())
  float* states;               // (…, num_state_slots, num_value_heads, head_floats())
  int64_t num_state_slots;
  float* logits;               // (num_logit_rows, vocab_size)
  const Adapter* const* adapters;  // (num_sequences,) null where it has none; null: none has
  int32_t inner_width;         // the most that a projection of any of them has between down and up
  const Images* images;    // null: no sequence has any
  const float* hidden_rows;  // (num_rows, hidden_size) what earlier layers gave; null: token_ids are embedded; with a Join both are read
  float* hidden_out;         // (num_logit_rows, hidden_size) in place of logits; null: logits are computed
  int32_t skips_layers;      // whether hidden_rows go to the head at once
  const int32_t* last_seen;  // (num_rows,) the last position that each attends to; null: its own
  const int32_t* sequences;    // (num_rows,) which each row is of; the decoder's own

  int last_seen_by(int row) const { return int((last_seen ? last_seen : positions)[row]); }

  // Slots of row `first`'s sequence, whose earlier rows in this step have left their states.
  StateSlots state_slots(int first) const {
    const bool continues = first > 0 && sequences[first] == sequences[first - 1];
    const int64_t to = state_writes[sequences[first]];
    return {continues ? to : state_reads[sequences[first]], to};
  }
  // A layer's states, of whose slots each has so many floats.
  float* layer_conv_states(const Layer& layer, int64_t slot_floats) const {
    return conv_states + layer.cache_index * num_state_slots * slot_floats;
  }
  float* layer_states(const Layer& layer, int64_t slot_floats) const {
    return states + layer.cache_index * num_state_slots * slot_floats;
  }
  // Whether the last layer is done for all rows together with the layers before it.
  bool ends_in_layers(const Model& m) const {
    return m.ends_with_state() || (hidden_out && !logit_rows);
  }
  int64_t block_of(int row, int position) const {
    return block_table[int64_t(sequences[row]) * table_stride + position / kBlockTokens];
  }
};

}  // extern "C"

// The rows of a batch as a layer's `qkv` gave them.
struct LayerRows {
  const Model& m_;
  const Batch& batch_;
  const Layer& layer_;
  float* const rows_;  // of the whole batch, `stride_` apart
  const int stride_;

  float* row(int row) const { return rows_ + int64_t(row) * stride_; }
};

}  // namespace helexa
