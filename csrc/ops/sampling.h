// Choosing a token from a row of logits, as octavo/backends/reference/sampling.py defines it, without sorting the
// vocabulary: candidates are selected by threshold and partial selection, and only as many as are needed are ordered.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/runtime.h"

namespace octavo {

// One row's parameters. Neutral values change nothing.
struct SamplingRow {
  float temperature = 0, top_p = 1, min_p = 0, uniform = 0;
  int top_k = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  const int32_t* history_ids = nullptr;
  const int32_t* history_counts = nullptr;
  int64_t history_size = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int64_t bias_size = 0;
};

// The chosen token of logits [vocabulary]. Throws Refusal if the largest logit is not finite, or if the
// biases ban every token; Refusal for an id outside the vocabulary.
int32_t choose_token(const KernelTable& kernels, const float* logits, int64_t vocabulary, const SamplingRow& row);

// Log-softmax at `chosen` and at the `count` most likely tokens (by descending logit, equal ones by ascending id), and
// the rank of `chosen` from 1. `ids` and `logprobs` have 1 + count places. Throws as choose_token does.
void log_probabilities(const KernelTable& kernels, const float* logits, int64_t vocabulary, int32_t chosen, int count,
                       int32_t* ids, float* logprobs, int32_t* rank);

}  // namespace octavo
