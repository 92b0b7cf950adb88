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

// Elements of T that one step along the summed dimension takes per lane.
template <typename T>
constexpr int kPerStep = sizeof(float) / sizeof(T);

// Where an element lies within its (block, kv head): `summed` is its place along the dimension that is summed
// over, features of keys and tokens of values, `other` along the other one, which is `width` long.
template <typename T>
inline int element_index(int summed, int other, int width) {
  return (summed / kPerStep<T> * width + other) * kPerStep<T> + summed % kPerStep<T>;
}

// One step for sixteen sums: a float each, or a pair of bfloat16. `First`: with the first of a pair.
template <bool First = false>
HELEXA_INLINE f32x16 multiply_add(f32x16 total, const float* from, float factor) {
  return total + load(from) * factor;
}

template <bool First = false>
HELEXA_INLINE f32x16 multiply_add(f32x16 total, const uint16_t* from, PairFactors factors) {
  return add_pair_products(total, First ? load_words(from) & 0xffff : load_words(from), factors);
}

// What elements of the last argument's type are multiplied by, of floats that may be there as pairs as well.
inline const float* factors_of(const float* floats, const uint32_t*, const float*) { return floats; }
inline const PairFactors* factors_of(const float* floats, const uint32_t* pairs, const uint16_t*) {
#if defined(HELEXA_MULTIPLIES_PAIRS)
  return pairs;
#else
  return reinterpret_cast<const PairFactors*>(floats);
#endif
}

template <typename T, int Queries>
inline void score_stripe(QueryTile& tile, int first, const T* keys, int head_dim) {
  f32x16 left[Queries], right[Queries];
  for (int q = 0; q < Queries; q++) left[q] = right[q] = f32x16{};
  for (int step = 0; step < head_dim / kPerStep<T>; step++) {
    const T* key = keys + step * kBlockTokens * kPerStep<T>;
    for (int q = 0; q < Queries; q++) {
      const auto factor = factors_of(tile.queries[first + q], tile.query_pairs[first + q], keys)[step];
      left[q] = multiply_add(left[q], key, factor);
      right[q] = multiply_add(right[q], key + kLanes * kPerStep<T>, factor);
    }
  }
  for (int q = 0; q < Queries; q++) {
    store(tile.scores[first + q], left[q]);
    store(tile.scores[first + q] + kLanes, right[q]);
  }
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
    const auto add_step = [&]<bool First>(int step) {
      const T* value = values + (step * head_dim + d) * kPerStep<T>;
      for (int q = 0; q < Queries; q++) {
        const auto factor = factors_of(tile.scores[first + q], tile.weight_pairs[first + q], values)[step];
        left[q] = multiply_add<First>(left[q], value, factor);
        right[q] = multiply_add<First>(right[q], value + other * kPerStep<T>, factor);
      }
    };
    for (int step = 0; step < num_steps; step++) add_step.template operator()<false>(step);
    if (is_odd) add_step.template operator()<true>(num_steps);
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
      store_element(to_keys + element_index<T>(d, token, kBlockTokens), key[d]);
      store_element(to_values + element_index<T>(token, d, head_dim), value[d]);
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
      for (int i = 0; i < num_tokens * width; i += kLanes) store(room + i, load_bf16(from + i));
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
