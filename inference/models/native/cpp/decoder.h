// A decoder on CPU: token ids and block tables in, logits out, in one call.
//
// One call is one run of the thread team. Rows are tokens; prompt chunks and single decode rows take
// the same path. Many rows go through the layers in blocks, each in the hands of one member (Wavefront);
// a few are done by all members together, who share every product and meet after it.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "buffers.h"
#include "draw.h"
#include "model.h"
#include "row_pass.h"
#include "thread_team.h"

namespace helexa {

// Calls use.operator()<KV>(), a KVFormat's type.
template <typename Use>
auto with_kv(int kv_format, Use use) {
  if (kv_format == kKVInt8) return use.template operator()<Int8KV>();
  if (kv_format == kKVBfloat16) return use.template operator()<ElementKV<uint16_t>>();
  return use.template operator()<ElementKV<float>>();
}

class Decoder {
 public:
  Decoder(const Model& model, int num_threads)
      : m_(model), layers_(model.layers, model.layers + model.num_layers), team_(num_threads),
        members_(num_threads) {
    m_.layers = layers_.data();
    head_ = m_;
    head_.num_layers = 0;
    head_.join = nullptr;
  }

  // Throws std::bad_alloc, and std::out_of_range for token ids outside the vocabulary, before anything
  // is computed.
  void forward(Batch batch) {
    check_token_ids(batch);
    reserve(batch);
    number_sequences(batch);
    team_.run([&](int member) {
      with_kv(m_.kv_format, [&]<typename KV>() { forward_member<KV>(batch, member); });
    });
  }

  // `scores` (rows, vocab_size); one token id per draw. Throws std::bad_alloc.
  void draw(const float* scores, const Draw* draws, int count, int64_t* token_ids) {
    const int vocab_size = m_.head.out_features;
    for (Member& member : members_) member.drawer.reserve(vocab_size);
    for_rows(count, [&](int i, int member) {
      const float* row = scores + draws[i].row * vocab_size;
      token_ids[i] = members_[member].drawer.draw(row, vocab_size, draws[i]);
    });
  }

  // For each of `num_rows` rows of `scores`.
  void find_likeliest(const float* scores, int num_rows, int64_t* token_ids, bool* are_finite) {
    const int vocab_size = m_.head.out_features;
    for_rows(num_rows, [&](int row, int) {
      const Likeliest found = likeliest(scores + int64_t(row) * vocab_size, vocab_size);
      token_ids[row] = found.token_id;
      are_finite[row] = found.is_finite;
    });
  }

 private:
  struct Member {
    Scratch scratch;
    OwnPlace place;
    Drawer drawer;
  };

  // A row of the embedding is read at each.
  void check_token_ids(const Batch& batch) const {
    if (batch.hidden_rows && !model_of(batch).join) return;
    for (int row = 0; row < batch.num_rows; row++)
      if (batch.token_ids[row] < 0 || batch.token_ids[row] >= m_.embedding.out_features)
        throw std::out_of_range("a token id is outside the vocabulary");
  }

  void number_sequences(Batch& batch) {
    for (int i = 0; i < batch.num_sequences; i++)
      std::fill(sequences_.begin() + batch.query_start[i],
                sequences_.begin() + batch.query_start[i + 1], i);
    batch.sequences = sequences_.data();
  }

  const Model& model_of(const Batch& batch) const { return batch.skips_layers ? head_ : m_; }

  // All that a forward pass allocates: a member's exception could not be caught.
  void reserve(const Batch& batch) {
    const int num_rows = batch.num_rows, num_logit_rows = batch.num_logit_rows;
    const bool gives_all = batch.hidden_out && !batch.logit_rows;
    buffers_.reserve(m_, num_rows);
    sequences_.resize(num_rows);
    block_rows_ = rows_of_block(num_rows);
    const int most_rows = block_rows_ > 0 ? std::max(block_rows_, num_logit_rows) : num_rows;
    const int last_rows = gives_all ? 0 : num_logit_rows;
    const auto inner_floats = [&](int rows) {
      const size_t places = AdaptedRows::most_places(rows, batch.num_sequences);
      return batch.adapters ? places * batch.inner_width : 0;
    };
    const int shared_rows = block_rows_ > 0 ? last_rows : num_rows;
    members_[0].scratch.reserve(m_, shared_rows, kSharedTiles, inner_floats(shared_rows));
    for (Member& member : members_) {
      member.place.row_tiles.reserve(most_rows);
      member.place.runs.reserve(most_rows);
      if (batch.adapters)
        member.place.adapted.reserve(most_rows, batch.num_sequences, batch.inner_width);
      for (const Layer& layer : layers_) {
        if (layer.experts) member.place.routes.reserve(*layer.experts, most_rows);
        if (layer.delta) member.place.delta.reserve(*layer.delta);
        if (layer.latent) member.place.latent.reserve(*layer.latent);
      }
      if (block_rows_ > 0)
        member.scratch.reserve(m_, block_rows_, kOwnTiles, inner_floats(block_rows_));
    }
    if (block_rows_ > 0) {
      wavefront_.reset(num_stages(batch), (num_rows + block_rows_ - 1) / block_rows_,
                       batch.last_seen != nullptr);
      turns_.reset(m_.num_layers);
    }
    wanted_positions_.reserve(num_logit_rows);
    wanted_last_seen_.reserve(num_logit_rows);
    wanted_sequences_.reserve(num_logit_rows);
    picked_.reserve(size_t(num_logit_rows) * std::max(m_.hidden_size, buffers_.row_width));
  }

  // Work of some microseconds for each row: one member does a few before others would be awake.
  template <typename Use>
  void for_rows(int count, Use use) {
    constexpr int kFew = 4;
    const int num_members = count <= kFew ? 1 : team_.size();
    const auto do_share = [&](int member) {
      const Share mine(count, member, num_members);
      for (int i = mine.begin; i < mine.end; i++) use(i, member);
    };
    if (num_members == 1) do_share(0);
    else team_.run(do_share);
  }

  // Tiles of experts' rows that are done at once: by a team, which meets between the steps, and by one
  // member, which finds the step before in its cache.
  static constexpr int kSharedTiles = 64, kOwnTiles = 8;

  // One to come to each layer, and one more where the last has to be done for all rows.
  int num_stages(const Batch& batch) const {
    const Model& m = model_of(batch);
    return std::max(1, m.num_layers + (m.num_layers > 0 && batch.ends_in_layers(m)));
  }

  // Half of every member's share, within bounds; none where there are too few rows for a block each.
  // Each block reads all weights: those of a layer that stays in a cache are there for the next, others
  // are worth it for many rows only. An expert meets few of a block's rows: there it takes more.
  int rows_of_block(int num_rows) const {
    constexpr int kMost = 4 * kTileRows;
    constexpr int64_t kCachedBytes = 8 << 20;
    if (const int least = rows_for_experts(); least > 0) {
      const int each = (num_rows + team_.size() - 1) / team_.size();
      return each < least ? 0 : (each + kTileRows - 1) / kTileRows * kTileRows;
    }
    const int least = layers_.empty() || layers_[0].bytes() <= kCachedBytes ? kTileRows : kMost;
    if (num_rows < least * team_.size()) return 0;
    return std::clamp(num_rows / (2 * team_.size()) / kTileRows * kTileRows, least, kMost);
  }

  // Rows that fill two tiles of each expert, if all are as likely; none where there are no experts.
  int rows_for_experts() const {
    int most = 0;
    for (const Layer& layer : layers_) {
      if (!layer.experts) continue;
      const int rows = 2 * kTileRows * layer.experts->num_experts / layer.experts->per_token;
      most = std::max({most, rows, 4 * kTileRows});
    }
    return most;
  }

  template <typename KV>
  void forward_member(const Batch& batch, int member) {
    const Crew together(team_, member);
    const Model& m = model_of(batch);
    Scratch &shared = members_[0].scratch, &mine = members_[member].scratch;
    OwnPlace& place = members_[member].place;
    if (block_rows_ > 0) {
      wavefront_.work([&](int layer, int block) {
        const int first = block * block_rows_, last = std::min(batch.num_rows, first + block_rows_);
        const Workplace at{buffers_, mine, place, &turns_, block};
        RowPass<KV>(m, batch, first, last, Crew(), at).come_to(layer);
      });
      together.barrier();
    } else {
      RowPass<KV> rows(m, batch, 0, batch.num_rows, together, {buffers_, shared, place});
      for (int layer = 0; layer < num_stages(batch); layer++) rows.come_to(layer);
    }
    if (batch.num_logit_rows == 0) return;
    if (together.leads()) keep_logit_rows(batch);
    together.barrier();
    RowPass<KV> rows(m, wanted_, 0, wanted_.num_rows, together, {buffers_, shared, place});
    rows.finish();
  }

  // Once its keys and values are written the last layer has nothing to do for rows without logits:
  // the others move to the front, as the batch `wanted_`.
  void keep_logit_rows(const Batch& batch) {
    wanted_ = batch;
    const int n = wanted_.num_rows = batch.num_logit_rows;
    bool are_all = n == batch.num_rows;
    for (int i = 0; batch.logit_rows && i < n; i++) are_all &= batch.logit_rows[i] == i;
    if (are_all) return;
    wanted_.images = nullptr;  // they are in the rows
    pick_rows(batch.positions, batch.logit_rows, n, 1, wanted_positions_);
    pick_rows(batch.sequences, batch.logit_rows, n, 1, wanted_sequences_);
    wanted_.positions = wanted_positions_.data();
    if (batch.last_seen) {
      pick_rows(batch.last_seen, batch.logit_rows, n, 1, wanted_last_seen_);
      wanted_.last_seen = wanted_last_seen_.data();
    }
    wanted_.sequences = wanted_sequences_.data();
    pick_rows(buffers_.hidden.data(), batch.logit_rows, n, m_.hidden_size, picked_);
    std::copy(picked_.begin(), picked_.end(), buffers_.hidden.begin());
    pick_rows(buffers_.projected.data(), batch.logit_rows, n, buffers_.row_width, picked_);
    std::copy(picked_.begin(), picked_.end(), buffers_.projected.begin());
  }

  template <typename T>
  static void pick_rows(const T* from, const int32_t* rows, int count, int width,
                        std::vector<T>& to) {
    to.resize(int64_t(count) * width);
    for (int i = 0; i < count; i++)
      std::copy_n(from + rows[i] * width, width, to.begin() + int64_t(i) * width);
  }

  Model m_;
  Model head_;  // the same without layers
  const std::vector<Layer> layers_;
  ThreadTeam team_;
  std::vector<Member> members_;
  Buffers buffers_;
  int block_rows_ = 0;  // none: all rows by all members together
  Wavefront wavefront_;
  Progress turns_;
  Batch wanted_{};
  std::vector<int32_t> sequences_, wanted_positions_, wanted_last_seen_, wanted_sequences_;
  std::vector<float> picked_;
};

}  // namespace helexa
