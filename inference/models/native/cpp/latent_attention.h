// Multi-head latent attention of a batch's rows (DeepSeek-AI 2024, arXiv:2405.04434): what is kept of a
// token is its latent and one rotated key, for all heads together, and queries meet them as they are:
//
//   q · (W_k c) = (W_kᵀ q) · c        queries become as wide as latents,
//   Σ w (W_v c) = W_v (Σ w c)         and each head makes its values of what the weights sum up.
//
// All heads meet the same latents, so queries lie side by side, sixteen in a vector, and a block's tokens
// are multiplied into them one after the other:
//
//   queries   (width, 16)             scores    (kBlockTokens, 16)
//   context   (kBlockTokens, width)   outputs   (16, kv_rank)
//
// Sums go over features and over tokens in their order, and a masked token weighs exactly zero, so a
// query's result does not depend on which other queries share its vector.
#pragma once

#include <algorithm>

#include "activations.h"
#include "attention.h"
#include "element_kv.h"
#include "int8_kv.h"
#include "linear.h"
#include "model.h"
#include "rows.h"

namespace helexa {

// One member's sixteen queries, and one head's rows.
struct LatentScratch {
  Lines<float> queries, context, outputs, values;
  Lines<TileGroup> groups;
  alignas(64) float weights[kBlockTokens * kLanes];

  void reserve(const Latent& l) {
    const size_t widest = std::max(l.plain_dim, l.kv_rank);
    grow(queries, size_t(l.width()) * kLanes);
    grow(context, size_t(kBlockTokens) * l.width());
    grow(outputs, size_t(kLanes) * l.kv_rank);
    grow(values, kTileRows * widest);
    grow(groups, widest / kGroup + 1);
  }

  Activations activations(int width) { return {values.data(), groups.data(), width}; }
};

template <int Tokens>
inline void score_latents(const float* queries, const float* context, int width, f32x16* scores) {
  f32x16 totals[Tokens];
#pragma GCC unroll 8
  for (int t = 0; t < Tokens; t++) totals[t] = f32x16{};
  for (int i = 0; i < width; i++) {
    const f32x16 query = load(queries + i * kLanes);
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; t++) totals[t] += query * context[t * width + i];
  }
#pragma GCC unroll 8
  for (int t = 0; t < Tokens; t++) scores[t] = totals[t];
}

// Adds to `Vectors` times sixteen features of four queries the weighted tokens. `weights` (tokens, 16).
template <int Vectors>
inline void gather_latents(const float* weights, const float* context, int num_tokens, int width,
                           float* outputs, int output_width) {
  constexpr int kQueries = 4;
  f32x16 totals[kQueries][Vectors];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) totals[q][v] = load(outputs + q * output_width + v * kLanes);
  for (int t = 0; t < num_tokens; t++) {
    f32x16 latent[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) latent[v] = load(context + t * width + v * kLanes);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++) totals[q][v] += latent[v] * weights[t * kLanes + q];
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; q++)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) store(outputs + q * output_width + v * kLanes, totals[q][v]);
}

// One layer's latents, and the rows that write and read them. Of each row:
//   queries, or what they are compressed to | latent | rotary key | queries of what is compressed
template <typename KV>
class LatentRows : LayerRows {
 public:
  explicit LatentRows(const LayerRows& rows)
      : LayerRows(rows), shape_(*layer_.latent), width_(shape_.width()),
        blocks_(batch_.keys + layer_.cache_index * batch_.num_blocks * block_bytes()) {}

  // Rotates the row's queries and its key, norms its latent, and keeps both.
  void rotate_and_keep(int index) const {
    const int position = int(batch_.positions[index]), rotary = shape_.rotary_dim;
    const int64_t at = int64_t(position) * (rotary / 2);
    const float *cosine = layer_.cosines + at, *sine = layer_.sines + at;
    for (int head = 0; head < m_.num_heads; head++)
      rotate(query(index, head) + shape_.plain_dim, cosine, sine);
    float* latent = row(index) + shape_.first_width(m_.num_heads);
    rms_norm_row(latent, shape_.latent_norm, shape_.kv_rank, m_.norm_eps, latent);
    rotate(latent + shape_.kv_rank, cosine, sine);
    uint8_t* block = block_of(index, position);
    KV::write_latent(block + position % kBlockTokens * KV::latent_bytes(width_), latent, width_);
  }

  // The queries of `head` of `count` rows from `first` on, kTileRows at most, as wide as latents.
  // `absorbed` (count, num_heads, width).
  void absorb(int first, int count, int head, LatentScratch& own, float* absorbed) const {
    const Activations x = own.activations(shape_.plain_dim);
    for (int r = 0; r < count; r++) {
      const float* from = query(first + r, head);
      fill(x, r, from, shape_.to_keys);
      std::copy_n(from + shape_.plain_dim, shape_.rotary_dim,
                  at(absorbed, r * m_.num_heads + head) + shape_.kv_rank);
    }
    times(shape_.to_keys, head, shape_.kv_rank, x, count, at(absorbed, head), m_.num_heads * width_);
  }

  // Replaces sixteen queries of `rows`, from `first` on, by the latents that each sums up.
  void attend(RowTile rows, int first, LatentScratch& own, float* absorbed) const {
    const int count = std::min(kLanes, rows.count * m_.num_heads - first);
    if (count <= 0) return;
    alignas(64) int32_t seen[kLanes];
    std::fill_n(seen, kLanes, -1);
    int last = 0;
    take_queries(at(absorbed, first), count, own);
    for (int q = 0; q < count; q++) {
      seen[q] = batch_.last_seen_by(rows.first_row + (first + q) / m_.num_heads);
      last = std::max(last, int(seen[q]));
    }
    const i32x16 last_seen = load_words(seen);
    f32x16 maxima = splat(kNoScore), totals{};
    for (int start = 0; start <= last; start += kBlockTokens) {
      const int num_tokens = std::min(kBlockTokens, last - start + 1);
      const float* context =
          KV::read_latents(block_of(rows.first_row, start), num_tokens, width_, own.context.data());
      f32x16 scores[kBlockTokens];
      score(own, context, num_tokens, scores);
      weigh(own, scores, start, num_tokens, last_seen, count, maxima, totals);
      gather(own, context, num_tokens, count);
    }
    for (int q = 0; q < count; q++) {
      const float factor = 1.0f / totals[q];
      const float* from = own.outputs.data() + int64_t(q) * shape_.kv_rank;
      float* to = at(absorbed, first + q);
      for (int i = 0; i < shape_.kv_rank; i++) to[i] = from[i] * factor;
    }
  }

  // The values of `head` of `count` rows, kTileRows at most, of what `attend` left: `outputs` (count,
  // num_heads * value_dim).
  void make_values(int count, int head, LatentScratch& own, float* absorbed, float* outputs) const {
    const Activations x = own.activations(shape_.kv_rank);
    for (int r = 0; r < count; r++) fill(x, r, at(absorbed, r * m_.num_heads + head), shape_.to_values);
    times(shape_.to_values, head, shape_.value_dim, x, count, outputs + head * shape_.value_dim,
          m_.num_heads * shape_.value_dim);
  }

 private:
  int64_t block_bytes() const { return kBlockTokens * KV::latent_bytes(shape_.width()); }
  uint8_t* block_of(int row, int position) const {
    return blocks_ + batch_.block_of(row, position) * block_bytes();
  }
  float* query(int index, int head) const {
    const int first = shape_.query_rank ? shape_.query_rank + width_ : 0;
    return row(index) + first + head * shape_.query_dim();
  }
  float* at(float* absorbed, int query) const { return absorbed + int64_t(query) * width_; }

  void rotate(float* features, const float* cosine, const float* sine) const {
    const int half = shape_.rotary_dim / 2;
    if (m_.is_rope_interleaved) rotate_neighbours(features, cosine, sine, half);
    else rotate_halves(features, cosine, sine, half);
  }

  static void fill(const Activations& x, int row, const float* from, const Linear& next) {
    std::copy_n(from, x.width, x.values + int64_t(row) * x.width);
    quantize_for(next, x, row);
  }

  // The `features` outputs of `w` that are the head's.
  static void times(const Linear& w, int head, int features, const Activations& x, int count,
                    float* out, int stride) {
    const int first = head * features;
    linear(w, x, count, first / kLanes, (first + features) / kLanes, {out - first, stride}, false);
  }

  void take_queries(const float* from, int count, LatentScratch& own) const {
    const float scale = kLog2E * m_.query_scale / std::sqrt(float(m_.head_dim));
    std::fill(own.queries.begin(), own.queries.end(), 0.0f);
    std::fill(own.outputs.begin(), own.outputs.end(), 0.0f);
    for (int q = 0; q < count; q++)
      for (int i = 0; i < width_; i++)
        own.queries[int64_t(i) * kLanes + q] = from[int64_t(q) * width_ + i] * scale;
  }

  void score(const LatentScratch& own, const float* context, int num_tokens, f32x16* scores) const {
    const float* queries = own.queries.data();
    int t = 0;
    for (; t + 8 <= num_tokens; t += 8)
      score_latents<8>(queries, context + int64_t(t) * width_, width_, scores + t);
    for (; t < num_tokens; t++)
      score_latents<1>(queries, context + int64_t(t) * width_, width_, scores + t);
  }

  // Weights relative to the running maxima; what was summed so far is brought to those.
  void weigh(LatentScratch& own, f32x16* scores, int start, int num_tokens, i32x16 last_seen, int count,
             f32x16& maxima, f32x16& totals) const {
    f32x16 larger = maxima;
    for (int t = 0; t < num_tokens; t++) {
      scores[t] = select(i32x16{} + (start + t) <= last_seen, scores[t], splat(-__builtin_inff()));
      larger = vmax(larger, scores[t]);
    }
    if (any(larger > maxima)) {
      const f32x16 correction = exp2(maxima - larger);
      totals = totals * correction;
      for (int q = 0; q < count; q++) {
        float* output = own.outputs.data() + int64_t(q) * shape_.kv_rank;
        for (int i = 0; i < shape_.kv_rank; i++) output[i] *= correction[q];
      }
      maxima = larger;
    }
    for (int t = 0; t < num_tokens; t++) {
      const f32x16 weight = exp2(scores[t] - maxima);
      totals += weight;
      store(own.weights + t * kLanes, weight);
    }
  }

  void gather(LatentScratch& own, const float* context, int num_tokens, int count) const {
    const int rank = shape_.kv_rank;
    for (int q = 0; q < count; q += 4) {
      float* outputs = own.outputs.data() + int64_t(q) * rank;
      int i = 0;
      for (; i + 4 * kLanes <= rank; i += 4 * kLanes)
        gather_latents<4>(own.weights + q, context + i, num_tokens, width_, outputs + i, rank);
      for (; i < rank; i += kLanes)
        gather_latents<1>(own.weights + q, context + i, num_tokens, width_, outputs + i, rank);
    }
  }

  const Latent& shape_;
  const int width_;
  uint8_t* const blocks_;
};

}  // namespace helexa
