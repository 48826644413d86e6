#include "ops/decoder.h"

#include <algorithm>

namespace octavo {
namespace {

// Rows of the MLP at a time: its widest result then stays in the cores' L2 caches.
constexpr int64_t kMlpRows = 256;

// Arrays of one pass, in the runtime's scratch memory.
struct Buffers {
  Rows<float> residual, normed, qkv, mixed, update, gate_up, activated;
};

Buffers allocate(Runtime& runtime, const Decoder& decoder, int64_t num_tokens) {
  const int64_t hidden = decoder.embedding->num_columns(), block = std::min(num_tokens, kMlpRows);
  int64_t intermediate = 0, qkv = 0;
  for (const DecoderLayer& layer : decoder.layers) {
    intermediate = std::max(intermediate, layer.down->num_columns());
    qkv = std::max(qkv, layer.qkv->num_features());
  }
  const int64_t mixed = decoder.num_heads * decoder.head_dim;
  const int64_t widths[] = {hidden, hidden, qkv, mixed, hidden, 2 * intermediate, intermediate};
  const int64_t heights[] = {num_tokens, num_tokens, num_tokens, num_tokens, num_tokens, block, block};
  Buffers buffers{};
  Rows<float>* all[] = {&buffers.residual, &buffers.normed, &buffers.qkv,      &buffers.mixed,
                        &buffers.update,   &buffers.gate_up, &buffers.activated};
  int64_t total = 0;
  for (int i = 0; i < 7; ++i) {
    // An odd number of cache lines per row: rows that lie a power of two apart would share a few sets of the cache.
    const int64_t stride = ((widths[i] + 15) / 16 | 1) * 16;
    *all[i] = {nullptr, heights[i], widths[i], stride};
    total += heights[i] * stride;
  }
  float* next = runtime.decoder.require(static_cast<size_t>(total));
  for (Rows<float>* rows : all) {
    rows->data = next;
    next += rows->num_rows * rows->stride;
  }
  return buffers;
}

Rows<float> slice(Rows<float> x, int64_t first, int64_t count) { return {x.row(first), count, x.num_columns, x.stride}; }

class Pass {
 public:
  Pass(Runtime& runtime, const Decoder& decoder, const int32_t* slots, const AttentionBatch& batch, KVCache& cache)
      : runtime_(runtime), k_(runtime.kernels), decoder_(decoder), slots_(slots), batch_(batch), cache_(cache),
        b_(allocate(runtime, decoder, batch.num_tokens)) {}

  void run(const int32_t* input_ids, Rows<float> out) {
    embedding(runtime_, *decoder_.embedding, input_ids, b_.residual);
    const size_t count = decoder_.layers.size();
    for (size_t i = 0; i < count; ++i) {
      const DecoderLayer& layer = decoder_.layers[i];
      const bool first = i == 0;
      attention_block(layer, static_cast<int>(i), first);
      mlp_block(layer);
    }
    for_each_row(runtime_, batch_.num_tokens, out.num_columns, [&](int64_t row) {
      k_.add(b_.update.row(row), b_.residual.row(row), out.num_columns);
      k_.rms_norm(b_.residual.row(row), decoder_.final_norm, decoder_.epsilon, out.num_columns, out.row(row));
    });
  }

 private:
  // Adds the last update to the residual stream, norms it, and makes it the left operand of `weight`: rows first …
  // first + count - 1.
  LeftOperand normed_operand(const float* norm, const Weight& weight, bool has_update, int64_t first, int64_t count) {
    const LeftOperand left = allocate_left(runtime_, count, weight);
    const int64_t hidden = weight.num_columns();
    for_each_row(runtime_, left.padded_rows, hidden * 2, [&](int64_t i) {
      float* normed = b_.normed.row(std::min(first + i, b_.normed.num_rows - 1));
      if (i < count) {
        if (has_update) k_.add(b_.update.row(first + i), b_.residual.row(first + i), hidden);
        k_.rms_norm(b_.residual.row(first + i), norm, decoder_.epsilon, hidden, normed);
      }
      left.fill(k_, i, i < count ? normed : nullptr);
    });
    return left;
  }

  LeftOperand operand(Rows<float> x, const Weight& weight) {
    const LeftOperand left = allocate_left(runtime_, x.num_rows, weight);
    for_each_row(runtime_, left.padded_rows, x.num_columns,
                 [&](int64_t row) { left.fill(k_, row, row < x.num_rows ? x.row(row) : nullptr); });
    return left;
  }

  void attention_block(const DecoderLayer& layer, int index, bool first) {
    const int64_t tokens = batch_.num_tokens, dim = decoder_.head_dim;
    const LeftOperand left = normed_operand(layer.input_norm, *layer.qkv, !first, 0, tokens);
    multiply(runtime_, left, *layer.qkv, layer.qkv_bias, b_.qkv);
    const Heads<float> q{b_.qkv.data, tokens, decoder_.num_heads, dim, b_.qkv.stride, dim};
    const Heads<float> k{b_.qkv.data + decoder_.num_heads * dim, tokens, decoder_.num_kv_heads, dim, b_.qkv.stride, dim};
    const Heads<float> v{k.data + decoder_.num_kv_heads * dim, tokens, decoder_.num_kv_heads, dim, b_.qkv.stride, dim};
    norm_heads(q, layer.q_norm);
    norm_heads(k, layer.k_norm);
    rotary_embedding(runtime_, q, batch_.positions, decoder_.cos_sin);
    rotary_embedding(runtime_, k, batch_.positions, decoder_.cos_sin);
    const auto constant = [](const Heads<float>& x) {
      return Heads<const float>{x.data, x.num_rows, x.num_heads, x.head_dim, x.stride, x.head_stride};
    };
    cache_.write(runtime_, index, constant(k), constant(v), slots_);
    paged_attention(runtime_, constant(q), cache_, index, batch_, decoder_.attention_scale, layer.sliding_window, b_.mixed);
    multiply(runtime_, operand(b_.mixed, *layer.o), *layer.o, nullptr, b_.update);
  }

  void norm_heads(Heads<float> x, const float* norm) {
    if (!norm) return;
    for_each_row(runtime_, x.num_rows, x.num_heads * x.head_dim, [&](int64_t row) {
      for (int64_t h = 0; h < x.num_heads; ++h) {
        k_.rms_norm(x.head(row, h), norm, decoder_.epsilon, x.head_dim, x.head(row, h));
      }
    });
  }

  void mlp_block(const DecoderLayer& layer) {
    const int64_t intermediate = layer.down->num_columns();
    for (int64_t first = 0; first < batch_.num_tokens; first += kMlpRows) {
      const int64_t count = std::min(kMlpRows, batch_.num_tokens - first);
      const LeftOperand left = normed_operand(layer.post_attention_norm, *layer.gate_up, true, first, count);
      const Rows<float> gate_up = slice(b_.gate_up, 0, count), activated = slice(b_.activated, 0, count);
      multiply(runtime_, left, *layer.gate_up, nullptr, gate_up);
      const LeftOperand gated = allocate_left(runtime_, count, *layer.down);
      for_each_row(runtime_, gated.padded_rows, intermediate * 4, [&](int64_t row) {
        if (row < count) {
          k_.silu_and_mul(gate_up.row(row), gate_up.row(row) + intermediate, intermediate, activated.row(row));
        }
        gated.fill(k_, row, row < count ? activated.row(row) : nullptr);
      });
      multiply(runtime_, gated, *layer.down, nullptr, slice(b_.update, first, count));
    }
  }

  Runtime& runtime_;
  const KernelTable& k_;
  const Decoder& decoder_;
  const int32_t* slots_;
  const AttentionBatch& batch_;
  KVCache& cache_;
  const Buffers b_;
};

}  // namespace

void decode(Runtime& runtime, const Decoder& decoder, const int32_t* input_ids, const int32_t* slots,
            const AttentionBatch& batch, KVCache& cache, Rows<float> out) {
  if (batch.num_tokens == 0) return;
  Pass(runtime, decoder, slots, batch, cache).run(input_ids, out);
}

}  // namespace octavo
