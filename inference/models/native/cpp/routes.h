// Which rows go to which expert, and with which weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "model.h"
#include "simd.h"

namespace helexa {

// The entries of some rows: one for each row and expert of that row, sorted by expert, and an expert's by
// row. A row that is no number has entries as any other, whose weights are no numbers either.
class Routes {
 public:
  // Room for `num_rows` rows: nothing that is done with them allocates.
  void reserve(const Experts& e, int num_rows) {
    const size_t num_entries = size_t(num_rows) * e.entries_per_row();
    grow(chosen_, num_entries);
    grow(chosen_weights_, num_entries);
    grow(rows_, num_entries);
    grow(weights_, num_entries);
    grow(ends_, e.num_all() + 1);
    grow(likely_, size_t(e.num_experts) + kLanes);
    grow(best_, std::max(e.per_token, e.groups_per_token));
    grow(worth_, e.num_groups);
  }

  // Of `scores` (num_rows, e.num_scores()).
  void sort(const Experts& e, const float* scores, int num_rows) {
    const int per_row = e.entries_per_row(), num_all = e.num_all();
    for (int row = 0; row < num_rows; row++) {
      const float* own = scores + int64_t(row) * e.num_scores();
      choose(e, own, &chosen_[size_t(row) * per_row], &chosen_weights_[size_t(row) * per_row]);
    }
    std::fill_n(ends_.begin(), num_all + 1, 0);
    const int num_entries = num_rows * per_row;
    for (int i = 0; i < num_entries; i++) ends_[chosen_[i] + 1]++;
    for (int expert = 0; expert < num_all; expert++) ends_[expert + 1] += ends_[expert];
    // ends_[expert] is where it begins, and is moved to its end entry by entry.
    for (int i = 0; i < num_entries; i++) {
      const int at = ends_[chosen_[i]]++;
      rows_[at] = i / per_row;
      weights_[at] = chosen_weights_[i];
    }
    num_entries_ = num_entries;
  }

  int num_entries() const { return num_entries_; }
  int end(int expert) const { return ends_[expert]; }
  const int32_t* rows() const { return rows_.data(); }
  const float* weights() const { return weights_.data(); }

 private:
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }

  // Experts and weights of one row; of equal scores the first are taken.
  void choose(const Experts& e, const float* scores, int32_t* experts, float* weights) {
    if (e.choice_bias || e.num_groups > 1) {
      raise_scores(e, scores);
      if (e.num_groups > 1) leave_out_groups(e);
      choose_best(likely_.data(), e.num_experts, e.per_token);
    } else {
      choose_best(scores, e.num_experts, e.per_token);
    }
    if (e.scoring == kSigmoid) {
      for (int i = 0; i < e.per_token; i++) weights[i] = sigmoid(scores[best_[i]]);
    } else {
      soften(e, scores, weights);
    }
    if (e.normalizes) {
      float total = 0;
      for (int i = 0; i < e.per_token; i++) total += weights[i];
      for (int i = 0; i < e.per_token; i++) weights[i] /= total;
    }
    if (e.weight_scale != 1.0f)
      for (int i = 0; i < e.per_token; i++) weights[i] *= e.weight_scale;
    std::copy_n(best_.begin(), e.per_token, experts);
    if (!e.has_shared) return;
    experts[e.per_token] = e.num_experts;
    weights[e.per_token] = e.gates_shared() ? sigmoid(scores[e.num_experts]) : 1.0f;
  }

  // Sigmoids, or a softmax over all, and what raises them.
  void raise_scores(const Experts& e, const float* scores) {
    if (e.scoring == kSigmoid) {
      for (int i = 0; i < e.num_experts; i++) likely_[i] = sigmoid(scores[i]);
    } else {
      const float largest = *std::max_element(scores, scores + e.num_experts);
      float total = 0;
      for (int i = 0; i < e.num_experts; i++) total += likely_[i] = std::exp(scores[i] - largest);
      for (int i = 0; i < e.num_experts; i++) likely_[i] /= total;
    }
    if (e.choice_bias)
      for (int i = 0; i < e.num_experts; i++) likely_[i] += e.choice_bias[i];
  }

  // Minus infinity for experts outside the best groups. A group is worth its best expert, or its two best.
  void leave_out_groups(const Experts& e) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    for (int group = 0; group < e.num_groups; group++) {
      float best = kNone, second = kNone;
      for (int i = group * e.per_group(); i < (group + 1) * e.per_group(); i++) {
        second = std::max(second, std::min(best, likely_[i]));
        best = std::max(best, likely_[i]);
      }
      worth_[group] = e.group_experts == 1 ? best : best + second;
    }
    choose_best(worth_.data(), e.num_groups, e.groups_per_token);
    const auto end = best_.begin() + e.groups_per_token;
    for (int i = 0; i < e.num_experts; i++)
      if (std::find(best_.begin(), end, i / e.per_group()) == end) likely_[i] = kNone;
  }

  void choose_best(const float* scores, int num_experts, int count) {
    int held = 0;
    for (int expert = 0; expert < num_experts; expert++) {
      // Where comparisons say nothing, some are taken all the same.
      if (held == count && !(scores[expert] > scores[best_[held - 1]])) continue;
      int at = held < count ? held++ : held - 1;
      for (; at > 0 && scores[expert] > scores[best_[at - 1]]; at--) best_[at] = best_[at - 1];
      best_[at] = expert;
    }
  }

  // Softmax over all experts, or over the chosen ones.
  void soften(const Experts& e, const float* scores, float* weights) {
    const bool is_of_chosen = e.scoring == kSoftmaxOfChosen;
    const int count = is_of_chosen ? e.per_token : e.num_experts;
    const int padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int i = 0; i < count; i++) likely_[i] = scores[is_of_chosen ? best_[i] : i];
    std::fill(likely_.begin() + count, likely_.begin() + padded,
              -std::numeric_limits<float>::infinity());
    // The first of the chosen ones, unless a bias chose them.
    const f32x16 largest =
        splat(e.choice_bias ? *std::max_element(scores, scores + e.num_experts) : scores[best_[0]]);
    f32x16 totals{};
    for (int i = 0; i < padded; i += kLanes) {
      const f32x16 likely = exp(load(&likely_[i]) - largest);
      totals += likely;
      store(&likely_[i], likely);
    }
    const float total = sum(totals);
    for (int i = 0; i < e.per_token; i++) weights[i] = likely_[is_of_chosen ? i : best_[i]] / total;
  }

  static float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

  int num_entries_ = 0;
  std::vector<int32_t> chosen_, rows_, ends_, best_;
  std::vector<float> chosen_weights_, weights_, likely_, worth_;
};

}  // namespace helexa
