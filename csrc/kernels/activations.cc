// Rounds a row of activations to whole numbers of 16 bits: the left operand of a product with codes.
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr float kLargestWhole = 32767;
// Groups that stay below this are zero: their step, or what undoes it, would leave the range of floats.
constexpr float kSmallest = 0x1p-100f;

F32x16 magnitude(F32x16 x) { return from_bits(and_u32(bits(x), broadcast_u32(0x7fffffff))); }

int32_t sum16(const int16_t* numbers) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += numbers[i];
  return sum;
}

// 32 numbers to q and the step with which x ≈ step * q. The step of a group with an infinity or a NaN is a NaN.
float round_group(F32x16 low, F32x16 high, int16_t* numbers) {
  const float largest = reduce_max(max(magnitude(low), magnitude(high)));
  const float finite = reduce_add(add(sub(low, low), sub(high, high)));  // 0, or a NaN
  const bool is_zero = !(largest >= kSmallest) || finite != 0;
  const F32x16 factor = broadcast(is_zero ? 0.0f : kLargestWhole / largest);
  const F32x16 zero = zero_f32();
  store_i16(numbers, to_int(is_zero ? zero : mul(low, factor)));
  store_i16(numbers + 16, to_int(is_zero ? zero : mul(high, factor)));
  return is_zero ? finite : largest / kLargestWhole;
}

}  // namespace

void round_to_whole(const float* x, int64_t n, int64_t padded, const WholeRow& row, uint8_t* tile_row, int64_t tile_step) {
  for (int64_t k = 0; k < padded; k += 32) {
    int16_t* const numbers = row.numbers + k;
    const int64_t g = k / 32;
    const float step = row.steps[g] = round_group(load_up_to(x + k, n - k), load_up_to(x + k + 16, n - k - 16), numbers);
    const int32_t low = sum16(numbers), high = sum16(numbers + 16);
    row.sums[g] = {low + high, step * static_cast<float>(low + high)};
    row.sums16[2 * g] = {low, step * static_cast<float>(low)};
    row.sums16[2 * g + 1] = {high, step * static_cast<float>(high)};
    if (!tile_row) continue;
    uint8_t* const target = tile_row + g * tile_step;
    for (int i = 0; i < 32; ++i) {
      const int number = numbers[i / 8 * 8 + kTileOrder[i % 8]];
      target[i] = static_cast<uint8_t>(number >> 8);
      target[i + 32] = static_cast<uint8_t>(number);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
