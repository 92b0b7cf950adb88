// Draws one token from a row of scores: softmax at a temperature, what top_k, top_p and min_p leave
// of it, and one uniform number looked up in the cumulative distribution, in the order of the
// vocabulary. The rules are those of inference/engine/drawing.py; nothing is sorted but what decides.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "simd.h"

namespace helexa {

extern "C" {

struct Draw {
  int64_t row;
  int32_t top_k;  // 0: all
  float temperature, top_p, min_p;
  float uniform;  // in [0, 1)
};

}  // extern "C"

struct Likeliest {
  int64_t token_id;  // the first of equals
  bool is_finite;    // whether all scores are numbers and the largest is finite
};

// Calls use(i, the scores from i on) for vectors of scores, the last one filled up with minus infinity.
template <typename Use>
HELEXA_INLINE void for_scores(const float* scores, int vocab_size, Use use) {
  const int whole = vocab_size / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) use(i, load(scores + i));
  if (whole == vocab_size) return;
  float last[kLanes];
  std::fill_n(last, kLanes, -INFINITY);
  std::copy(scores + whole, scores + vocab_size, last);
  use(whole, load(last));
}

inline Likeliest likeliest(const float* scores, int vocab_size) {
  f32x16 largest = splat(-INFINITY);
  i32x16 places{}, are_not_numbers{};
  for_scores(scores, vocab_size, [&](int i, f32x16 here) {
    const i32x16 is_larger = here > largest;
    largest = select(is_larger, here, largest);
    places = select(is_larger, i32x16{} + i, places);
    are_not_numbers |= here != here;
  });
  const float best = max(largest);
  int64_t token_id = vocab_size;
  for (int lane = 0; lane < kLanes; lane++)
    if (largest[lane] == best) token_id = std::min(token_id, int64_t(places[lane] + lane));
  return {token_id, !any(are_not_numbers) && std::isfinite(best)};
}

// Minus infinity where a token's bit is not set, least significant first.
inline void forbid(float* scores, int vocab_size, const uint8_t* bits) {
  const int whole = vocab_size / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    uint16_t allowed;
    std::memcpy(&allowed, bits + i / 8, sizeof allowed);
    if (allowed != 0xffff)
      store(scores + i, select_bits(allowed, load(scores + i), splat(-INFINITY)));
  }
  for (int i = whole; i < vocab_size; i++)
    if (!(bits[i / 8] >> (i % 8) & 1)) scores[i] = -INFINITY;
}

class Drawer {
 public:
  // Nothing allocates while it draws.
  void reserve(int vocab_size) {
    const int num_runs = runs_of(vocab_size);
    weights_.reserve(size_t(num_runs) * kRun);
    run_sums_.reserve(num_runs);
    candidates_.reserve(size_t(num_runs) * kRun + kLanes);
  }

  // A token id under `vocab_size`; 0 where the scores are not numbers.
  int64_t draw(const float* scores, int vocab_size, const Draw& wanted) {
    weigh(scores, vocab_size, wanted.temperature);
    if (!std::isfinite(total())) return 0;
    const float smallest = smallest_kept(vocab_size, wanted);
    if (smallest > 0) drop_below(smallest);
    return look_up(wanted.uniform);
  }

 private:
  static constexpr int kRun = 32 * kLanes;  // weights with one sum
  static constexpr int kFew = 64;           // values that are sorted

  static int runs_of(int vocab_size) { return (vocab_size + kRun - 1) / kRun; }

  // e ** ((score - largest) / temperature): the likeliest token's weight is 1.
  void weigh(const float* scores, int vocab_size, float temperature) {
    const int num_runs = runs_of(vocab_size);
    weights_.resize(size_t(num_runs) * kRun);
    run_sums_.resize(num_runs);
    std::fill(weights_.begin() + vocab_size, weights_.end(), 0.0f);
    f32x16 maxima = splat(-INFINITY);
    for_scores(scores, vocab_size, [&](int, f32x16 here) { maxima = vmax(maxima, here); });
    const float largest = max(maxima);
    for_scores(scores, vocab_size, [&](int i, f32x16 here) {
      store(&weights_[i], exp((here - largest) / temperature));
    });
    for (int run = 0; run < num_runs; run++) {
      f32x16 sums{};
      for (int i = 0; i < kRun; i += kLanes) sums += load(&weights_[run * kRun + i]);
      run_sums_[run] = sum(sums);
    }
  }

  double total() const { return std::accumulate(run_sums_.begin(), run_sums_.end(), 0.0); }

  float smallest_kept(int vocab_size, const Draw& wanted) {
    const int most = wanted.top_k > 0 ? std::min(wanted.top_k, vocab_size) : vocab_size;
    if (most == vocab_size && wanted.top_p >= 1) return wanted.min_p;
    if (wanted.top_p <= 0) return 1.0f;
    double mass = total();
    if (most < vocab_size) {
      gather(bound_of_largest(most));
      mass = keep_largest(most);
      if (wanted.top_p >= 1) return std::max(wanted.min_p, candidates_[candidates_.size() - 1]);
    } else {
      // All that weigh less than this weigh less together than what top_p leaves out. Half of it,
      // because sums are rounded.
      gather(float((1 - wanted.top_p) * mass / vocab_size / 2));
    }
    return std::max(wanted.min_p, reach(wanted.top_p * mass));
  }

  // At most the `count`-th largest weight: that many places have a maximum as large, each of its
  // own weights. Zero where the vocabulary has too few.
  float bound_of_largest(int count) {
    const int num_places = std::max(1024, (4 * count + kLanes - 1) / kLanes * kLanes);
    if (num_places > int(weights_.size())) return 0;
    candidates_.assign(weights_.begin(), weights_.begin() + num_places);
    int place = 0;
    for (size_t i = num_places; i < weights_.size(); i += kLanes) {
      store(&candidates_[place], vmax(load(&candidates_[place]), load(&weights_[i])));
      place = place + kLanes < num_places ? place + kLanes : 0;
    }
    std::nth_element(candidates_.begin(), candidates_.begin() + (count - 1), candidates_.end(),
                     std::greater<float>());
    return candidates_[count - 1];
  }

  // The weights from `bound` on, and over zero, in any order.
  void gather(float bound) {
    candidates_.resize(weights_.size() + kLanes);
    float* end = candidates_.data();
    const f32x16 least = splat(std::max(bound, std::numeric_limits<float>::min()));
    for (size_t i = 0; i < weights_.size(); i += kLanes)
      end += store_from(end, load(&weights_[i]), least);
    candidates_.resize(end - candidates_.data());
  }

  // The `count` largest candidates, the smallest of them last. Returns what they weigh.
  double keep_largest(int count) {
    if (count < int(candidates_.size())) {
      std::nth_element(candidates_.begin(), candidates_.begin() + (count - 1), candidates_.end(),
                       std::greater<float>());
      candidates_.resize(count);
    } else {
      std::iter_swap(std::min_element(candidates_.begin(), candidates_.end()),
                     candidates_.end() - 1);
    }
    return std::accumulate(candidates_.begin(), candidates_.end(), 0.0);
  }

  // The candidate with which the largest ones first weigh `target` together. Quickselect by weight
  // instead of by number.
  float reach(double target) {
    float *begin = candidates_.data(), *end = begin + candidates_.size(), found = 1.0f;
    double before = 0;
    while (end - begin > kFew) {
      const float a = begin[0], b = begin[(end - begin) / 2], c = end[-1];
      const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
      float* higher = std::partition(begin, end, [=](float value) { return value > pivot; });
      float* lower = std::partition(higher, end, [=](float value) { return value == pivot; });
      const double with_higher = std::accumulate(begin, higher, before);
      const double with_pivots = with_higher + double(pivot) * double(lower - higher);
      if (with_higher >= target) {
        end = higher;
      } else if (with_pivots >= target) {
        return pivot;
      } else {
        before = with_pivots;
        begin = lower;
        found = pivot;
      }
    }
    std::sort(begin, end, std::greater<float>());
    for (; begin < end && before < target; begin++) {
      before += *begin;
      found = *begin;
    }
    return found;
  }

  void drop_below(float smallest) {
    for (size_t run = 0; run < run_sums_.size(); run++) {
      f32x16 sums{};
      for (int i = 0; i < kRun; i += kLanes) {
        float* at = &weights_[run * kRun + i];
        const f32x16 kept = select(load(at) >= smallest, load(at), f32x16{});
        store(at, kept);
        sums += kept;
      }
      run_sums_[run] = sum(sums);
    }
  }

  // The first token with which the weights sum to more than `uniform` of the total.
  int64_t look_up(float uniform) const {
    const double target = uniform * total();
    double before = 0;
    size_t run = 0;
    while (run + 1 < run_sums_.size() && before + run_sums_[run] <= target)
      before += run_sums_[run++];
    int64_t last = 0;  // a run's sum may be more than its weights', one after the other
    for (int64_t i = run * kRun; i < int64_t(run + 1) * kRun; i++) {
      if (weights_[i] == 0) continue;
      before += weights_[i];
      last = i;
      if (before > target) break;
    }
    return last;
  }

  std::vector<float> weights_;  // of a whole number of runs; zero beyond the vocabulary
  std::vector<float> run_sums_;
  std::vector<float> candidates_;
};

}  // namespace helexa
