#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/refusal.h"

namespace octavo {
namespace {

struct Candidate {
  float value;
  int32_t id;
};

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

float finite_max(const KernelTable& kernels, const float* logits, int64_t vocabulary) {
  const float largest = kernels.max_value(logits, vocabulary);
  if (!std::isfinite(largest)) {
    throw Refusal("the largest logit is " + std::to_string(largest) +
                             ": the model's weights are damaged, or a computation overflowed");
  }
  return largest;
}

int32_t checked_id(int32_t id, int64_t vocabulary) {
  if (id < 0 || id >= vocabulary) {
    throw Refusal("token id " + std::to_string(id) + " is not one of the " + std::to_string(vocabulary) +
                                " of the vocabulary");
  }
  return id;
}

bool adjusts(const SamplingRow& row) { return row.history_size > 0 || row.bias_size > 0; }

// Penalties, then biases, in the order of octavo.SamplingParams.
void adjust(float* logits, int64_t vocabulary, const SamplingRow& row) {
  for (int64_t i = 0; i < row.history_size; ++i) {
    float& logit = logits[checked_id(row.history_ids[i], vocabulary)];
    const float count = static_cast<float>(row.history_counts[i]);
    if (row.repetition_penalty != 1) {
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (count > 0) logit -= row.presence_penalty;
    logit -= row.frequency_penalty * count;
  }
  for (int64_t i = 0; i < row.bias_size; ++i) logits[checked_id(row.bias_ids[i], vocabulary)] += row.bias_values[i];
}

// The most likely candidates up to and including the one at which their sum reaches `share` of the total; at least one.
// Ordered in growing runs, because the answer is usually short.
void keep_top_p(std::vector<Candidate>& candidates, double total, double share) {
  double sum = 0;
  size_t ordered = 0;
  for (size_t run = 64; ordered < candidates.size(); run *= 8) {
    const size_t end = std::min(candidates.size(), ordered + run);
    const auto first = candidates.begin() + static_cast<std::ptrdiff_t>(ordered);
    const auto last = candidates.begin() + static_cast<std::ptrdiff_t>(end);
    if (last != candidates.end()) std::nth_element(first, last, candidates.end(), more_likely);
    std::sort(first, last, more_likely);
    for (; ordered < end; ++ordered) {
      if (ordered > 0 && sum / total >= share) {
        candidates.resize(ordered);
        return;
      }
      sum += static_cast<double>(candidates[ordered].value);
    }
  }
}

double sum_of(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += static_cast<double>(c.value);
  return sum;
}

// By inversion of the cumulative distribution over candidates in ascending id order.
int32_t draw(const std::vector<Candidate>& candidates, double uniform) {
  const double target = uniform * sum_of(candidates);
  double sum = 0;
  for (const Candidate& c : candidates) {
    sum += static_cast<double>(c.value);
    if (sum > target) return c.id;
  }
  return candidates.back().id;
}

}  // namespace

int32_t choose_token(const KernelTable& kernels, const float* logits, int64_t vocabulary, const SamplingRow& row) {
  float largest = finite_max(kernels, logits, vocabulary);
  thread_local std::vector<float> adjusted, weights;
  if (adjusts(row)) {
    adjusted.assign(logits, logits + vocabulary);
    adjust(adjusted.data(), vocabulary, row);
    logits = adjusted.data();
    largest = kernels.max_value(logits, vocabulary);
    if (largest == -INFINITY) throw Refusal("no token is left: logit_bias bans them all");
  }
  if (row.temperature == 0) return static_cast<int32_t>(std::find(logits, logits + vocabulary, largest) - logits);

  // Weights are exp((logit - largest) / temperature): the most likely token's is 1.
  if (row.temperature != 1) {
    if (logits != adjusted.data()) adjusted.assign(logits, logits + vocabulary);
    for (float& logit : adjusted) logit /= row.temperature;
    logits = adjusted.data();
    largest /= row.temperature;
  }
  weights.resize(static_cast<size_t>(vocabulary));
  kernels.sum_exp(logits, vocabulary, largest, weights.data());

  thread_local std::vector<Candidate> candidates;
  candidates.clear();
  for (int32_t id = 0; id < vocabulary; ++id) {
    const float weight = weights[static_cast<size_t>(id)];
    if (weight > 0 && weight >= row.min_p) candidates.push_back({weight, id});
  }
  const bool by_rank = (row.top_k > 0 && static_cast<size_t>(row.top_k) < candidates.size()) || row.top_p < 1;
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + row.top_k - 1, candidates.end(), more_likely);
    candidates.resize(static_cast<size_t>(row.top_k));
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  if (row.top_p < 1) keep_top_p(candidates, sum_of(candidates), static_cast<double>(row.top_p));
  if (by_rank) {
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  return draw(candidates, static_cast<double>(row.uniform));
}

void log_probabilities(const KernelTable& kernels, const float* logits, int64_t vocabulary, int32_t chosen, int count,
                       int32_t* ids, float* logprobs, int32_t* rank) {
  const float largest = finite_max(kernels, logits, vocabulary);
  const double log_sum = std::log(kernels.sum_exp(logits, vocabulary, largest, nullptr));
  const Candidate own{logits[checked_id(chosen, vocabulary)], chosen};
  int32_t before = 0;
  thread_local std::vector<Candidate> best;  // a heap whose front is the least likely of the best so far
  best.clear();
  for (int32_t id = 0; id < vocabulary; ++id) {
    const Candidate c{logits[id], id};
    before += more_likely(c, own);
    if (static_cast<int>(best.size()) < count) {
      best.push_back(c);
      std::push_heap(best.begin(), best.end(), more_likely);
    } else if (count > 0 && more_likely(c, best.front())) {
      std::pop_heap(best.begin(), best.end(), more_likely);
      best.back() = c;
      std::push_heap(best.begin(), best.end(), more_likely);
    }
  }
  std::sort_heap(best.begin(), best.end(), more_likely);
  const auto log_probability = [&](float logit) { return static_cast<float>(static_cast<double>(logit - largest) - log_sum); };
  ids[0] = chosen;
  logprobs[0] = log_probability(own.value);
  for (int i = 0; i < count; ++i) {
    ids[1 + i] = best[static_cast<size_t>(i)].id;
    logprobs[1 + i] = log_probability(best[static_cast<size_t>(i)].value);
  }
  *rank = before + 1;
}

}  // namespace octavo
