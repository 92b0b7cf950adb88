// What the caller describes: a model's weights and shape, and one batch of rows. Mirrored field by
// field in decoder.py.
#pragma once

#include <cstdint>

#include "attention.h"
#include "linear.h"

namespace helexa {

extern "C" {

enum KVFormat : int32_t { kKVFloat = 0, kKVBfloat16 = 1, kKVInt8 = 2 };

struct Layer {
  Projection qkv, output, gate_up, down;
  const float* attention_norm;
  const float* mlp_norm;
  const float* query_norm;  // null: none
  const float* key_norm;

  int64_t bytes() const { return qkv.bytes() + output.bytes() + gate_up.bytes() + down.bytes(); }
};

struct Model {
  int32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int32_t window;   // 0: none
  int32_t kv_format;  // a KVFormat
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

  int64_t block_of(int row, int position) const {
    return block_tables[sequences[row] * table_stride + position / kBlockTokens];
  }
};

}  // extern "C"

}  // namespace helexa
