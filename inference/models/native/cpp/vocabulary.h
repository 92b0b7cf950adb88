// Both ends of a pass: a token's row of the embedding, and logits as the model wants them.
#pragma once

#include <algorithm>
#include <cmath>

#include "linear.h"
#include "model.h"
#include "thread_team.h"

namespace helexa {

// Reads one output feature of a packed table: the embedding of one token.
inline void read_embedding(const Model& m, int token, float* out) {
  const Linear& table = m.embedding;
  const int64_t panel = token / kLanes;
  const int lane = token % kLanes;
  if (table.format == kF32) {
    const float* column = reinterpret_cast<const float*>(table.panels) + panel * m.hidden_size * kLanes;
    for (int k = 0; k < m.hidden_size; k++) out[k] = column[k * kLanes + lane];
    return;
  }
  with_format(table.format, [&]<typename F>(F) {
    const uint8_t* block = table.panels + panel * panel_bytes<F>(table.num_groups());
    read_row<F>(block, table.codebook, table.num_groups(), lane, out);
  });
}

inline void embed_row(const Model& m, int token, float* out) {
  read_embedding(m, token, out);
  if (m.embedding_multiplier == 1.0f) return;
  for (int i = 0; i < m.hidden_size; i++) out[i] *= m.embedding_multiplier;
}

// logits = cap * tanh(logits * multiplier / cap), of some of the vocabulary's panels.
inline void finish_logits(const Model& m, float* all_logits, int num_rows, const Share& panels) {
  const int vocab_size = m.head.out_features;
  const int first = panels.begin * kLanes, last = std::min(vocab_size, panels.end * kLanes);
  const float cap = m.logit_cap;
  for (int row = 0; row < num_rows; row++) {
    float* logits = all_logits + int64_t(row) * vocab_size;
    for (int i = first; i < last; i++) {
      const float x = logits[i] * m.logit_multiplier;
      logits[i] = cap > 0 ? cap * std::tanh(x / cap) : x;
    }
  }
}

}  // namespace helexa
