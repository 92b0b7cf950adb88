// Stages that blocks of rows go through, each done by whichever member of a team is free.
#pragma once

#include <atomic>
#include <vector>

#include "thread_team.h"

namespace helexa {

// A stage of a block begins when the stage before is done for it and for every block in front of it,
// or for all blocks where rows see ahead: those may hold what it reads. Members take stage by stage,
// block by block, so one that is slow, or whose core another process holds, keeps the others waiting
// for the block in its hands at most.
class Wavefront {
 public:
  // Before anybody works.
  void reset(int num_stages, int num_blocks, bool sees_ahead) {
    num_stages_ = num_stages;
    num_blocks_ = num_blocks;
    sees_ahead_ = sees_ahead;
    next_ = 0;
    if (int(done_.size()) < num_blocks) done_ = std::vector<std::atomic<int>>(num_blocks);
    for (auto& stages : done_) stages = 0;
  }

  // Calls do_stage(stage, block) until no stage is left that nobody has begun. By every member.
  template <typename DoStage>
  void work(DoStage do_stage) {
    for (int task; (task = next_.fetch_add(1)) < num_stages_ * num_blocks_;) {
      const int stage = task / num_blocks_, block = task % num_blocks_;
      const int last = sees_ahead_ ? num_blocks_ - 1 : block;
      for (int i = 0; i <= last; i++)
        patience_.wait(done_[i], [&](int stages) { return stages >= stage; });
      do_stage(stage, block);
      done_[block].store(stage + 1, std::memory_order_release);
      done_[block].notify_all();
    }
  }

 private:
  int num_stages_ = 0, num_blocks_ = 0;
  bool sees_ahead_ = false;
  std::atomic<int> next_{0};
  std::vector<std::atomic<int>> done_;  // stages, of each block
  Patience patience_;
};

// Whose turn it is to do what blocks of rows must do one after the other, in each layer.
class Turns {
 public:
  // Before anybody works.
  void reset(int num_layers) {
    if (int(blocks_done_.size()) < num_layers)
      blocks_done_ = std::vector<std::atomic<int>>(num_layers);
    for (auto& blocks : blocks_done_) blocks = 0;
  }

  // Until all blocks in front have had theirs. They were taken earlier, so somebody works on them.
  void wait(int layer, int block) {
    patience_.wait(blocks_done_[layer], [&](int blocks) { return blocks >= block; });
  }

  void pass_on(int layer, int block) {
    blocks_done_[layer].store(block + 1, std::memory_order_release);
    blocks_done_[layer].notify_all();
  }

 private:
  std::vector<std::atomic<int>> blocks_done_;
  Patience patience_;
};

}  // namespace helexa
