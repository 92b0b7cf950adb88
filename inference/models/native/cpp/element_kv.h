// Keys and values as they are, float or bfloat16.
//
// Keys lie transposed within their block, so that one vector holds one feature of sixteen tokens
// and scores need no sum across lanes; values lie token by token. As bfloat16 both come in pairs,
// neighbouring features of a key, neighbouring tokens of a value, because that is what the CPU's
// bfloat16 dot product multiplies:
//
//             float                         bfloat16
//   keys      (head_dim, kBlockTokens)      (head_dim / 2, kBlockTokens, 2)
//   values    (kBlockTokens, head_dim)      (kBlockTokens / 2, head_dim, 2)
//
// each for every (block, kv head).
#pragma once

#include "attention.h"
#include "products.h"

namespace helexa {

// Where one element of a key or value lies within its (block, kv head).
template <typename T>
inline int key_index(int feature, int token) {
  if (sizeof(T) == sizeof(float)) return feature * kBlockTokens + token;
  return (feature / 2 * kBlockTokens + token) * 2 + feature % 2;
}

template <typename T>
inline int value_index(int token, int feature, int head_dim) {
  if (sizeof(T) == sizeof(float)) return token * head_dim + feature;
  return (token / 2 * head_dim + feature) * 2 + token % 2;
}

// One step along the summed dimension, for sixteen sums: a float each, or a pair of bfloat16.
inline f32x16 multiply_add(f32x16 total, const float* from, float factor) {
  return total + load(from) * factor;
}

inline f32x16 multiply_add(f32x16 total, const uint16_t* from, PairFactors factors) {
  return add_pair_products(total, load_words(from), factors);
}

inline const PairFactors* pair_factors(const float* floats, const uint32_t* pairs) {
#if defined(HELEXA_MULTIPLIES_PAIRS)
  return pairs;
#else
  return reinterpret_cast<const PairFactors*>(floats);
#endif
}

inline const float* score_factors(const QueryTile& tile, int q, const float*) {
  return tile.queries[q];
}
inline const PairFactors* score_factors(const QueryTile& tile, int q, const uint16_t*) {
  return pair_factors(tile.queries[q], tile.query_pairs[q]);
}
inline const float* gather_factors(const QueryTile& tile, int q, const float*) {
  return tile.scores[q];
}
inline const PairFactors* gather_factors(const QueryTile& tile, int q, const uint16_t*) {
  return pair_factors(tile.scores[q], tile.weight_pairs[q]);
}

// Elements of T that one summed step takes per lane.
template <typename T>
constexpr int kPerStep = sizeof(float) / sizeof(T);

template <typename T, int Queries>
inline void score_stripe(QueryTile& tile, int first, const T* keys, int head_dim) {
  f32x16 left[Queries], right[Queries];
  for (int q = 0; q < Queries; q++) left[q] = right[q] = f32x16{};
  for (int step = 0; step < head_dim / kPerStep<T>; step++) {
    const T* key = keys + step * kBlockTokens * kPerStep<T>;
    for (int q = 0; q < Queries; q++) {
      const auto factor = score_factors(tile, first + q, keys)[step];
      left[q] = multiply_add(left[q], key, factor);
      right[q] = multiply_add(right[q], key + kLanes * kPerStep<T>, factor);
    }
  }
  for (int q = 0; q < Queries; q++) {
    store(tile.scores[first + q], left[q]);
    store(tile.scores[first + q] + kLanes, right[q]);
  }
}

// The same with the first of a pair of bfloat16, or with a float.
inline f32x16 multiply_add_first(f32x16 total, const uint16_t* from, PairFactors factors) {
  return add_pair_products(total, load_words(from) & 0xffff, factors);
}
inline f32x16 multiply_add_first(f32x16 total, const float* from, float factor) {
  return multiply_add(total, from, factor);
}

// The first `num_tokens` of the block; Full: all of them, known to the compiler.
template <typename T, int Queries, bool Full>
inline void gather_stripe(QueryTile& tile, int first, const T* values, int num_tokens, int head_dim) {
  const int num_steps = (Full ? kBlockTokens : num_tokens) / kPerStep<T>;
  const bool is_odd = !Full && num_tokens % kPerStep<T> != 0;
  for (int d = 0; d < head_dim; d += 2 * kLanes) {
    const bool pair = d + kLanes < head_dim;
    f32x16 left[Queries], right[Queries];
    for (int q = 0; q < Queries; q++) {
      left[q] = load(tile.outputs[first + q] + d);
      right[q] = pair ? load(tile.outputs[first + q] + d + kLanes) : f32x16{};
    }
    // A lone last vector is summed twice rather than branched on; the copy is dropped.
    const int other = pair ? kLanes : 0;
    for (int step = 0; step < num_steps; step++) {
      const T* value = values + (step * head_dim + d) * kPerStep<T>;
      for (int q = 0; q < Queries; q++) {
        const auto factor = gather_factors(tile, first + q, values)[step];
        left[q] = multiply_add(left[q], value, factor);
        right[q] = multiply_add(right[q], value + other * kPerStep<T>, factor);
      }
    }
    if (is_odd) {
      const T* value = values + (num_steps * head_dim + d) * kPerStep<T>;
      for (int q = 0; q < Queries; q++) {
        const auto factor = gather_factors(tile, first + q, values)[num_steps];
        left[q] = multiply_add_first(left[q], value, factor);
        right[q] = multiply_add_first(right[q], value + other * kPerStep<T>, factor);
      }
    }
    for (int q = 0; q < Queries; q++) {
      store(tile.outputs[first + q] + d, left[q]);
      if (pair) store(tile.outputs[first + q] + d + kLanes, right[q]);
    }
  }
}

#if defined(HELEXA_MULTIPLIES_PAIRS)
// `count` floats, a multiple of 16, as bfloat16.
inline void pair_up(const float* from, uint32_t* pairs, int count) {
  int i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes)
    store_pairs(pairs + i / 2, load(from + i), load(from + i + kLanes));
  for (; i < count; i += 2)
    pairs[i / 2] = narrow_bf16(from[i]) | uint32_t(narrow_bf16(from[i + 1])) << 16;
}
#endif

// T: float, or uint16_t for bfloat16.
template <typename T>
struct ElementKV {
  static constexpr bool kIsFloat = sizeof(T) == sizeof(float);

  // Bytes of the keys, or the values, of one (block, kv head).
  static int64_t region_bytes(int head_dim) {
    return int64_t(head_dim) * kBlockTokens * sizeof(T);
  }

  static void write(uint8_t* keys, uint8_t* values, int token, float* key, const float* value,
                    int head_dim) {
    T* to_keys = reinterpret_cast<T*>(keys);
    T* to_values = reinterpret_cast<T*>(values);
    for (int d = 0; d < head_dim; d++) {
      store_element(to_keys + key_index<T>(d, token), key[d]);
      store_element(to_values + value_index<T>(token, d, head_dim), value[d]);
    }
  }

  static void prepare_query(QueryTile& tile, int q, int head_dim) {
#if defined(HELEXA_MULTIPLIES_PAIRS)
    if (!kIsFloat) pair_up(tile.queries[q], tile.query_pairs[q], head_dim);
#endif
  }

  static void attend_block(QueryTile& tile, const uint8_t* keys, const uint8_t* values,
                           const BlockView& block, int head_dim) {
    in_stripes(tile.count, [&]<int Queries>(int q) {
      score_stripe<T, Queries>(tile, q, reinterpret_cast<const T*>(keys), head_dim);
    });
    for (int q = 0; q < tile.count; q++) {
      f32x16 weights[2];
      softmax_step<!kIsFloat>(tile, q, block, head_dim, weights);
      keep_weights(tile, q, weights);
    }
    if (block.is_full()) gather<true>(tile, values, block, head_dim);
    else gather<false>(tile, values, block, head_dim);
  }

  // Bytes of a token's latent and rotary key, where a layer keeps those: token by token.
  static int64_t latent_bytes(int width) { return int64_t(width) * sizeof(T); }

  static void write_latent(uint8_t* to, const float* from, int width) {
    T* elements = reinterpret_cast<T*>(to);
    for (int i = 0; i < width; i++) store_element(elements + i, from[i]);
  }

  // A block's first tokens as floats: where they lie, or in `room`.
  static const float* read_latents(const uint8_t* block, int num_tokens, int width, float* room) {
    const T* from = reinterpret_cast<const T*>(block);
    if constexpr (kIsFloat) return from;
    else {
      for (int i = 0; i < num_tokens * width; i += kLanes) store(room + i, load_weights(from + i));
      return room;
    }
  }

 private:
  static void keep_weights(QueryTile& tile, int q, const f32x16* weights) {
#if defined(HELEXA_MULTIPLIES_PAIRS)
    if (!kIsFloat) return store_pairs(tile.weight_pairs[q], weights[0], weights[1]);
#endif
    store(tile.scores[q], weights[0]);
    store(tile.scores[q] + kLanes, weights[1]);
  }

  template <bool Full>
  static void gather(QueryTile& tile, const uint8_t* values, const BlockView& block, int head_dim) {
    in_stripes(tile.count, [&]<int Queries>(int q) {
      gather_stripe<T, Queries, Full>(tile, q, reinterpret_cast<const T*>(values), block.num_tokens,
                                      head_dim);
    });
  }
};

}  // namespace helexa
