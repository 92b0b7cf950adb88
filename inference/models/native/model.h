// What the caller describes: a model's weights and shape, and one batch of rows. Mirrored field by
// field in decoder.py.
#pragma once

#include <cstdint>

#include "attention.h"
#include "linear.h"
#include "low_rank.h"

namespace helexa {

extern "C" {

enum KVFormat : int32_t { kKVFloat = 0, kKVBfloat16 = 1, kKVInt8 = 2 };

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
  Linear router;              // floats; its last output, if there is one more, is the shared one's gate
  const Projection* gate_up;  // (num_all(),)
  const Projection* down;

  int num_all() const { return num_experts + has_shared; }
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

struct Layer {
  Projection qkv, output, gate_up, down;
  const float* attention_norm;
  const float* mlp_norm;
  const float* query_norm;  // null: none
  const float* key_norm;
  const Experts* experts;  // null: gate_up and down

  int64_t bytes() const {
    const int64_t of_mlp = experts ? experts->bytes() : gate_up.bytes() + down.bytes();
    return qkv.bytes() + output.bytes() + of_mlp;
  }
};

struct Model {
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int32_t window;   // 0: none
  int32_t kv_format;  // a KVFormat
  int32_t is_qk_norm_wide;  // whether query_norm and key_norm are of all heads together
  float rms_norm_eps;
  const Layer* layers;
  const float* final_norm;
  Linear embedding;  // out_features = vocab_size; a table, read by row
  Linear head;
  const float* cosines;  // (max_positions, head_dim / 2)
  const float* sines;

  int query_width() const { return num_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
  int qkv_width() const { return query_width() + 2 * kv_width(); }
  int heads_per_kv_head() const { return num_heads / num_kv_heads; }
};

struct Batch {
  int32_t num_rows;
  int32_t num_logit_rows;
  int32_t table_stride;
  const int64_t* token_ids;    // (num_rows,)
  const int64_t* positions;    // (num_rows,)
  const int64_t* sequences;    // (num_rows,) row of block_tables; a sequence's rows in order
  const int64_t* block_tables; // (num_sequences, table_stride)
  const int64_t* logit_rows;   // (num_logit_rows,) rows whose next token is wanted
  uint8_t* keys;               // (num_layers, num_blocks, num_kv_heads, the format's region_bytes)
  uint8_t* values;             // the same
  int64_t num_blocks;
  float* logits;               // (num_logit_rows, vocab_size)
  const Adapter* const* adapters;  // (num_sequences,) null where it has none; null: nobody has one
  int32_t inner_width;         // the most of any of them

  int64_t block_of(int row, int position) const {
    return block_tables[sequences[row] * table_stride + position / kBlockTokens];
  }
};

}  // extern "C"

}  // namespace helexa
