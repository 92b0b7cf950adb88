// A team of threads that runs one function together, and the barrier they meet at.
// A forward pass is one run with a few hundred barriers. A waiter spins for a few microseconds, as
// long as a partner that is running takes, and then sleeps: where another process holds the
// partner's core, spinning on would only keep the partner from being scheduled.
#pragma once

#include <atomic>
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

class ThreadTeam {
 public:
  explicit ThreadTeam(int size) : size_(size) {
    for (int member = 1; member < size; member++)
      workers_.emplace_back([this, member] { work(member); });
  }

  ~ThreadTeam() {
    stopping_ = true;
    run_number_.fetch_add(1);
    run_number_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

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
    for (int spins = 0; spins < kSpins; spins++) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      relax();
    }
    phase_.wait(phase, std::memory_order_acquire);
  }

 private:
  static constexpr int kSpins = 300;

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
  std::vector<std::thread> workers_;
};

// The part [begin, end) of `count` items that `member` of `size` owns.
struct Share {
  int begin, end;
  Share(int count, int member, int size)
      : begin(int(int64_t(count) * member / size)),
        end(int(int64_t(count) * (member + 1) / size)) {}
};

}  // namespace helexa
