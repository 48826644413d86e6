#include "runtime/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

#include "runtime/float_mode.h"

namespace octavo {
namespace {

constexpr auto kSpin = std::chrono::microseconds(60);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { worker_loop(); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  ++published_;
  futex_wake_all(published_);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t num_items, Function function, const void* context) {
  FlushDenormals flush;
  if (num_items <= 1 || workers_.empty()) {
    for (int64_t item = 0; item < num_items; ++item) function(context, item);
    return;
  }
  std::lock_guard<std::mutex> lock(turn_);
  const uint32_t generation = published_.load(std::memory_order_relaxed) + 1;
  const uint64_t ticket = static_cast<uint64_t>(generation) << 32;
  ticket_.store(ticket | UINT32_MAX, std::memory_order_seq_cst);  // no item to claim while the parts change
  num_items_.store(static_cast<uint32_t>(num_items), std::memory_order_release);
  function_.store(function, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  num_done_.store(0, std::memory_order_release);
  ticket_.store(ticket, std::memory_order_release);
  published_.store(generation, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) futex_wake_all(published_);

  work(generation);
  // Items that others hold: short, unless the operating system took their core away; then let it have ours.
  for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_items; ++spins) {
    if (spins < 2000) {
      pause();
    } else {
      sched_yield();
    }
  }
}

// Takes items of that generation until none is left.
void ThreadPool::work(uint32_t generation) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == generation) {
    const uint32_t item = static_cast<uint32_t>(ticket);
    const Function function = function_.load(std::memory_order_acquire);
    const void* context = context_.load(std::memory_order_acquire);
    if (item >= num_items_.load(std::memory_order_acquire)) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    function(context, item);
    num_done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker_loop() {
  FlushDenormals flush;
  uint32_t seen = 0;
  for (;;) {
    wait_for_generation_after(seen);
    if (stopping_.load(std::memory_order_acquire)) return;
    seen = published_.load(std::memory_order_acquire);
    work(seen);
  }
}

void ThreadPool::wait_for_generation_after(uint32_t seen) {
  const auto spin_end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (published_.load(std::memory_order_acquire) != seen) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < spin_end);
  num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
  while (published_.load(std::memory_order_seq_cst) == seen) futex_wait(published_, seen);
  num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace octavo
