// Keys and values in 8 bits, multiplied as they are: four codes a lane and instruction.
//
// A token's key has a float16 scale for every 32 features, its value a float for every 64 (the last
// group: what is left). Before that, keys are spread by a Hadamard transform, and so are the queries
// that meet them: a product of two vectors does not change by it, and the one feature in which a
// model's keys are ten times larger than in the others no longer decides what the others are
// rounded to. For every (block, kv head), with as many bytes for either kind of scale:
//
//   keys      codes + 128 (head_dim / 4, kBlockTokens, 4), then scales (key groups, kBlockTokens)
//   values    codes (kBlockTokens / 4, head_dim, 4), then scales (value groups, kBlockTokens)
//
// Queries have a scale for each group too. Weights have one for the block, after the values' scales
// were multiplied into them: 255 is the block's own largest.
#pragma once

#include <algorithm>
#include <numeric>

#include "attention.h"
#include "products.h"

namespace helexa {

constexpr int kValueGroup = 64;
constexpr int kCodeOffset = 128;  // keys are the unsigned side of the product
constexpr float kLargestCode = 127.0f;
constexpr float kLargestWeightCode = 255.0f;
constexpr float kSmallestWeight = 1e-30f;  // a block whose weights are all under it counts nothing

inline int num_groups(int head_dim, int group) { return (head_dim + group - 1) / group; }

// Features of the group that begins at `feature`.
inline int features_left(int head_dim, int group, int feature) {
  return std::min(group, head_dim - feature);
}

// The lanes that differ by 2**Bit, added and subtracted.
template <int Bit>
inline f32x16 butterfly(f32x16 x) {
  constexpr int d = 1 << Bit;
  f32x16 other, sign;
  for (int i = 0; i < kLanes; i++) {
    set_lane(other, i, x[i ^ d]);
    set_lane(sign, i, i & d ? -1.0f : 1.0f);
  }
  return x * sign + other;
}

// Features that are transformed together: the largest power of two that divides the head, 16 at least.
inline int spread_features(int head_dim) { return std::min(64, head_dim & -head_dim); }

// A Hadamard transform of each such run, not normalised: a product of two grows by the run's length.
inline void spread(float* values, int head_dim) {
  for (int i = 0; i < head_dim; i += kLanes) {
    const f32x16 x = load(values + i);
    store(values + i, butterfly<3>(butterfly<2>(butterfly<1>(butterfly<0>(x)))));
  }
  const int run = spread_features(head_dim);
  for (int half = kLanes; half < run; half *= 2)
    for (int i = 0; i < head_dim; i += kLanes) {
      if (i & half) continue;
      const f32x16 a = load(values + i), b = load(values + i + half);
      store(values + i, a + b);
      store(values + i + half, a - b);
    }
}

// Not a number where one of them is none: codes would hide it, and a scale shows it in the logits.
inline float largest_magnitude(const float* values, int features) {
  f32x16 largest{}, zeros{};
  for (int i = 0; i < features; i += kLanes) {
    const f32x16 x = load(values + i);
    largest = vmax(largest, vmax(x, -x));
    zeros += x - x;
  }
  return any(zeros != zeros) ? __builtin_nanf("") : max(largest);
}

// Signed codes of values that a scale was chosen for.
inline void quantize_bytes(const float* values, int features, float scale, int8_t* codes) {
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < features; i += kLanes) {
    const f32x16 x = load(values + i) * inverse;
    const f32x16 code = vmin(splat(kLargestCode), vmax(splat(-kLargestCode), x));
    store_bytes(codes + i, round_to_int(code));
  }
}

template <int Queries>
[[gnu::noinline]] void score_codes(QueryTile& tile, int first, const uint8_t* keys, int head_dim) {
  const uint8_t* scales = keys + head_dim * kBlockTokens;
  f32x16 scores[Queries][2];
#pragma GCC unroll 8
  for (int q = 0; q < Queries; q++) scores[q][0] = scores[q][1] = f32x16{};
  for (int group = 0; group < num_groups(head_dim, kKeyGroup); group++) {
    const int begin = group * kKeyGroup;
    const int end = begin + features_left(head_dim, kKeyGroup, begin);
    i32x16 near[Queries], far[Queries];
#pragma GCC unroll 8
    for (int q = 0; q < Queries; q++)
      near[q] = far[q] = i32x16{} + tile.query_offsets[first + q][group];
    for (int d = begin; d < end; d += 4) {
      const i32x16 near_key = load_words(keys + d * kBlockTokens);
      const i32x16 far_key = load_words(keys + d * kBlockTokens + 4 * kLanes);
#pragma GCC unroll 8
      for (int q = 0; q < Queries; q++) {
        const i32x16 query = repeat_bytes(tile.query_codes[first + q] + d);
        near[q] = add_byte_products<255>(near[q], near_key, query);
        far[q] = add_byte_products<255>(far[q], far_key, query);
      }
    }
    const f32x16 near_scale = load_f16(scales), far_scale = load_f16(scales + 2 * kLanes);
    scales += 2 * kBlockTokens;
#pragma GCC unroll 8
    for (int q = 0; q < Queries; q++) {
      const float scale = tile.query_scales[first + q][group];
      scores[q][0] += to_float(near[q]) * (near_scale * scale);
      scores[q][1] += to_float(far[q]) * (far_scale * scale);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < Queries; q++) {
    store(tile.scores[first + q], scores[q][0]);
    store(tile.scores[first + q] + kLanes, scores[q][1]);
  }
}

// The values' scales of a block's first `num_tokens`; nothing is there of what lies behind them.
struct ValueScales {
  f32x16 left, right;
  float seen;  // zero; not a number where one of them is none, which the codes of weights would hide

  HELEXA_INLINE ValueScales(const float* scales, int num_tokens)
      : left(load(scales)), right(load(scales + kLanes)) {
    if (num_tokens < kBlockTokens) {
      left = select(token_positions(0) < num_tokens, left, f32x16{});
      right = select(token_positions(kLanes) < num_tokens, right, f32x16{});
    }
    const f32x16 zeros = (left - left) + (right - right);
    seen = any(zeros != zeros) ? __builtin_nanf("") : 0.0f;
  }
};

// Weights times the values' scales, as codes.
HELEXA_INLINE void quantize_weights(QueryTile& tile, int q, const f32x16* weights,
                                    const ValueScales& scales) {
  const f32x16 left = weights[0] * scales.left, right = weights[1] * scales.right;
  const float largest = max(vmax(left, right));
  const float inverse = largest > kSmallestWeight ? kLargestWeightCode / largest : 0.0f;
  int8_t* codes = reinterpret_cast<int8_t*>(tile.weight_codes[q]);
  store_bytes(codes, round_to_int(left * inverse));
  store_bytes(codes + kLanes, round_to_int(right * inverse));
  tile.weight_scales[q] = largest * (1.0f / kLargestWeightCode) + scales.seen;
}

// Adds `Vectors` times sixteen features, from `d` on, of the weighted values.
template <int Queries, int Vectors>
[[gnu::noinline]] void gather_codes(QueryTile& tile, int first, const uint8_t* values, int d,
                                    int head_dim) {
  i32x16 totals[Queries][Vectors];
#pragma GCC unroll 8
  for (int q = 0; q < Queries; q++)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) totals[q][v] = i32x16{};
  for (int token = 0; token < kBlockTokens; token += 4) {
    const uint8_t* from = values + token * head_dim + 4 * d;
    i32x16 codes[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) codes[v] = load_words(from + 4 * kLanes * v);
#pragma GCC unroll 8
    for (int q = 0; q < Queries; q++) {
      const i32x16 weights = repeat_bytes(tile.weight_codes[first + q] + token);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v++)
        totals[q][v] = add_byte_products<255>(totals[q][v], weights, codes[v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < Queries; q++) {
    float* outputs = tile.outputs[first + q] + d;
    const float scale = tile.weight_scales[first + q];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) {
      float* to = outputs + kLanes * v;
      store(to, load(to) + to_float(totals[q][v]) * scale);
    }
  }
}

// Calls use(first feature, features, scale) for each group of `width` values.
template <int Group, typename Use>
HELEXA_INLINE void for_groups(const float* values, int width, Use use) {
  for (int begin = 0; begin < width; begin += Group) {
    const int features = features_left(width, Group, begin);
    use(begin, features, largest_magnitude(values + begin, features) / kLargestCode);
  }
}

struct Int8KV {
  static int64_t region_bytes(int head_dim) {
    const int scale_bytes = num_groups(head_dim, kValueGroup) * int(sizeof(float));
    return int64_t(head_dim + scale_bytes) * kBlockTokens;
  }

  // Spreads `key` on the way.
  static void write(uint8_t* keys, uint8_t* values, int token, float* key, const float* value,
                    int head_dim) {
    spread(key, head_dim);
    write_key(keys, token, key, head_dim);
    write_value(values, token, value, head_dim);
  }

  static void prepare_query(QueryTile& tile, int q, int head_dim) {
    float* query = tile.queries[q];
    spread(query, head_dim);
    for_groups<kKeyGroup>(query, head_dim, [&](int begin, int features, float scale) {
      int8_t* codes = tile.query_codes[q] + begin;
      quantize_bytes(query + begin, features, scale, codes);
      tile.query_scales[q][begin / kKeyGroup] = scale / float(spread_features(head_dim));
      const int32_t total = std::accumulate(codes, codes + features, 0);
      tile.query_offsets[q][begin / kKeyGroup] = -kCodeOffset * total;
    });
  }

  static void attend_block(QueryTile& tile, const uint8_t* keys, const uint8_t* values,
                           const BlockView& block, int head_dim) {
    in_stripes(tile.count,
               [&]<int Queries>(int q) { score_codes<Queries>(tile, q, keys, head_dim); });
    for (int q = 0; q < tile.count; q++) {
      f32x16 weights[2];
      softmax_step<true>(tile, q, block, head_dim, weights);
      store(tile.scores[q], weights[0]);
      store(tile.scores[q] + kLanes, weights[1]);
    }
    for (int begin = 0; begin < head_dim; begin += kValueGroup)
      gather_group(tile, values, begin, block.num_tokens, head_dim);
  }

  // Bytes of a token's latent and rotary key: codes, then a float for each group of them. Not spread: a
  // latent is normed as a whole, and the rotary key has groups of its own.
  static int64_t latent_bytes(int width) {
    return width + int64_t(num_groups(width, kValueGroup)) * int64_t(sizeof(float));
  }

  static void write_latent(uint8_t* to, const float* from, int width) {
    uint8_t* scales = to + width;
    for_groups<kValueGroup>(from, width, [&](int begin, int features, float scale) {
      std::memcpy(scales + begin / kValueGroup * sizeof scale, &scale, sizeof scale);
      quantize_bytes(from + begin, features, scale, reinterpret_cast<int8_t*>(to) + begin);
    });
  }

  // A block's first tokens as floats, in `room`.
  static const float* read_latents(const uint8_t* block, int num_tokens, int width, float* room) {
    for (int t = 0; t < num_tokens; t++, block += latent_bytes(width), room += width)
      for (int begin = 0; begin < width; begin += kValueGroup) {
        float scale;
        std::memcpy(&scale, block + width + begin / kValueGroup * sizeof scale, sizeof scale);
        const int end = begin + features_left(width, kValueGroup, begin);
        for (int i = begin; i < end; i += kLanes) store(room + i, load_i8(block + i) * scale);
      }
    return room - int64_t(num_tokens) * width;
  }

 private:
  static void write_key(uint8_t* keys, int token, const float* key, int head_dim) {
    uint8_t* scales = keys + head_dim * kBlockTokens;
    for_groups<kKeyGroup>(key, head_dim, [&](int begin, int features, float exact) {
      const _Float16 scale = _Float16(exact);
      std::memcpy(scales + 2 * (begin / kKeyGroup * kBlockTokens + token), &scale, sizeof scale);
      int8_t codes[kKeyGroup];
      quantize_bytes(key + begin, features, float(scale), codes);
      for (int i = 0; i < features; i++)
        keys[((begin + i) / 4 * kBlockTokens + token) * 4 + i % 4] = uint8_t(codes[i] + kCodeOffset);
    });
  }

  static void write_value(uint8_t* values, int token, const float* value, int head_dim) {
    for_groups<kValueGroup>(value, head_dim, [&](int begin, int features, float scale) {
      std::memcpy(values + value_scales(begin, head_dim) + token * sizeof scale, &scale, sizeof scale);
      int8_t codes[kValueGroup];
      quantize_bytes(value + begin, features, scale, codes);
      for (int i = 0; i < features; i++)
        values[(token / 4 * head_dim + begin + i) * 4 + token % 4] = uint8_t(codes[i]);
    });
  }

  // Where the scales lie of the values' features from `begin` on, a token each.
  static int64_t value_scales(int begin, int head_dim) {
    return int64_t(head_dim) * kBlockTokens +
           begin / kValueGroup * kBlockTokens * int64_t(sizeof(float));
  }

  static void gather_group(QueryTile& tile, const uint8_t* values, int begin, int num_tokens,
                           int head_dim) {
    const ValueScales scales(
        reinterpret_cast<const float*>(values + value_scales(begin, head_dim)), num_tokens);
    for (int q = 0; q < tile.count; q++) {
      const f32x16 weights[2] = {load(tile.scores[q]), load(tile.scores[q] + kLanes)};
      quantize_weights(tile, q, weights, scales);
    }
    const int features = features_left(head_dim, kValueGroup, begin);
    in_stripes(tile.count, [&]<int Queries>(int q) {
      if (features == kValueGroup) {
        gather_codes<Queries, kValueGroup / kLanes>(tile, q, values, begin, head_dim);
        return;
      }
      for (int d = begin; d < begin + features; d += kLanes)
        gather_codes<Queries, 1>(tile, q, values, d, head_dim);
    });
  }
};

}  // namespace helexa
