// A team of threads that runs one function together, and the barrier they meet at. A forward pass is one
// run: of few rows with a few hundred barriers, of many in stages that blocks of rows go through, each done
// by whichever member is free.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace helexa {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Decides how long a waiter spins before it sleeps. A partner that runs comes within microseconds, one that
// was woken a little later within some twenty: that is worth spinning for. Where another process
// holds the partner's core, a sleeping waiter's core is where the partner continues, and spinning keeps
// it waiting: after three waits in vain the next ones hardly spin, until one tries it again.
class Patience {
 public:
  // Waits until `is_enough` holds of the value, whose every change is notified.
  template <typename T, typename IsEnough>
  void wait(const std::atomic<T>& value, IsEnough is_enough) {
    if (is_enough(value.load(std::memory_order_acquire))) return;
    const int in_vain = in_vain_.load(std::memory_order_relaxed);
    const bool is_hurried = in_vain < 0;
    if (is_hurried) in_vain_.store(in_vain + 1, std::memory_order_relaxed);
    const auto end = Clock::now() + (is_hurried ? kShortSpin : kSpin);
    do {
      for (int i = 0; i < kPolls; i++) {  // looking at the clock takes as long as one or two
        relax();
        if (!is_enough(value.load(std::memory_order_acquire))) continue;
        if (in_vain > 0) in_vain_.store(0, std::memory_order_relaxed);
        return;
      }
    } while (Clock::now() < end);
    if (!is_hurried)
      in_vain_.store(in_vain + 1 < kMostInVain ? in_vain + 1 : -kHurried, std::memory_order_relaxed);
    for (T seen; !is_enough(seen = value.load(std::memory_order_acquire));)
      value.wait(seen, std::memory_order_acquire);
  }

 private:
  using Clock = std::chrono::steady_clock;
  // Longer than a sleeping partner takes to wake, also in a virtual machine: where it is shorter, each
  // sleeps because the other slept.
  static constexpr std::chrono::nanoseconds kSpin{40'000}, kShortSpin{500};
  static constexpr int kPolls = 8, kMostInVain = 3, kHurried = 16;

  // Long waits in vain, one after the other; below zero: so many short ones are still to come. Shared by
  // all members: a count that another one's store loses is no harm.
  std::atomic<int> in_vain_{0};
};

class ThreadTeam {
 public:
  // Throws std::system_error where the system gives no more threads.
  explicit ThreadTeam(int size) : size_(size) {
    try {
      for (int member = 1; member < size; member++)
        workers_.emplace_back([this, member] { work(member); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~ThreadTeam() { stop(); }

  int size() const { return size_; }

  // Calls task(member) for every member at once and returns when all are done. One caller only.
  void run(const std::function<void(int)>& task) {
    task_ = &task;
    run_number_.fetch_add(1);
    run_number_.notify_all();
    task(0);
    barrier();
  }

  void barrier() {
    const unsigned phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    patience_.wait(phase_, [&](unsigned now) { return now != phase; });
  }

 private:
  void stop() {
    stopping_ = true;
    run_number_.fetch_add(1);
    run_number_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  void work(int member) {
    unsigned seen = 0;
    for (;;) {
      run_number_.wait(seen);
      seen = run_number_.load();
      if (stopping_) return;
      (*task_)(member);
      barrier();
    }
  }

  const int size_;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<unsigned> run_number_{0};
  std::atomic<unsigned> phase_{0};
  std::atomic<int> arrived_{0};
  std::atomic<bool> stopping_{false};
  Patience patience_;
  std::vector<std::thread> workers_;
};

// The part [begin, end) of `count` items that `member` of `size` owns.
struct Share {
  int begin, end;
  Share(int count, int member, int size)
      : begin(int(int64_t(count) * member / size)),
        end(int(int64_t(count) * (member + 1) / size)) {}
};

// The members that do the same rows together: a whole team, or one of them alone.
class Crew {
 public:
  Crew() = default;
  Crew(ThreadTeam& team, int member) : team_(&team), member_(member) {}

  int size() const { return team_ ? team_->size() : 1; }
  int member() const { return member_; }
  bool leads() const { return member_ == 0; }
  Share share(int count) const { return Share(count, member_, size()); }
  void barrier() const {
    if (team_) team_->barrier();
  }

 private:
  ThreadTeam* team_ = nullptr;  // null: alone
  int member_ = 0;
};

// Counts of what is done, which only grow and which members wait for.
class Progress {
 public:
  // All are zero again. Called before any member works.
  void reset(int size) {
    if (int(counts_.size()) < size) counts_ = std::vector<std::atomic<int>>(size);
    for (auto& count : counts_) count = 0;
  }

  void wait(int index, int least) {
    patience_.wait(counts_[index], [&](int count) { return count >= least; });
  }

  void set(int index, int count) {
    counts_[index].store(count, std::memory_order_release);
    counts_[index].notify_all();
  }

 private:
  std::vector<std::atomic<int>> counts_;
  Patience patience_;
};

// A stage of a block begins when the stage before is done for it and for every block in front of it,
// or for all blocks where rows see ahead: those may hold what it reads. Members take stage by stage,
// block by block, so one that is slow, or whose core another process holds, keeps the others waiting
// for the block in its hands at most.
class Wavefront {
 public:
  // Called before any member works.
  void reset(int num_stages, int num_blocks, bool sees_ahead) {
    num_stages_ = num_stages;
    num_blocks_ = num_blocks;
    sees_ahead_ = sees_ahead;
    next_ = 0;
    stages_done_.reset(num_blocks);
  }

  // Calls do_stage(stage, block) until every stage has been begun. Called by every member.
  template <typename DoStage>
  void work(DoStage do_stage) {
    for (int task; (task = next_.fetch_add(1)) < num_stages_ * num_blocks_;) {
      const int stage = task / num_blocks_, block = task % num_blocks_;
      const int last = sees_ahead_ ? num_blocks_ - 1 : block;
      for (int i = 0; i <= last; i++) stages_done_.wait(i, stage);
      do_stage(stage, block);
      stages_done_.set(block, stage + 1);
    }
  }

 private:
  int num_stages_ = 0, num_blocks_ = 0;
  bool sees_ahead_ = false;
  std::atomic<int> next_{0};
  Progress stages_done_;  // of each block
};

}  // namespace helexa
