// A small pool of threads that share out numbered items. Results never depend on who took which item.
//
// The calling thread works too. A worker that finds nothing spins briefly (the next op of a step is microseconds away),
// then sleeps. The caller waits for items, not for workers: a worker that the operating system holds back while another
// process runs delays nobody unless it holds an item, because the others take what is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item) for every item in [0, num_items), in any order, on any thread; returns when all are done. Every
  // thread flushes denormals meanwhile. Calls from several threads take turns; a body must not call this, nor throw.
  template <class Body>
  void for_each(int64_t num_items, const Body& body) {
    run(num_items, [](const void* context, int64_t item) { (*static_cast<const Body*>(context))(item); }, &body);
  }

 private:
  using Function = void (*)(const void* context, int64_t item);

  void run(int64_t num_items, Function function, const void* context);
  void work(uint32_t generation);
  void worker_loop();
  void wait_for_generation_after(uint32_t seen);

  // A job is published by storing its parts and then {generation, next item} in one word. An item is claimed by a
  // compare-and-swap of that word, which fails for a latecomer whose generation has passed: so the parts that a
  // successful claimant read before belong to the current job.
  std::atomic<uint64_t> ticket_{0};  // generation << 32 | next item
  std::atomic<uint32_t> num_items_{0};
  std::atomic<Function> function_{nullptr};
  std::atomic<const void*> context_{nullptr};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> published_{0};  // the generation again, as a word to sleep on
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};
  std::mutex turn_;
  std::vector<std::thread> workers_;
};

}  // namespace octavo
