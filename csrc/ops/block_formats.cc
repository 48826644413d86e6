#include "ops/block_formats.h"

#include "runtime/refusal.h"
#include "simd/half.h"

namespace octavo {
namespace {

float half_at(const uint8_t* p) { return half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)); }

uint8_t signed_code(int code) { return static_cast<uint8_t>(static_cast<int8_t>(code)); }

// 16 bytes → 32 nibbles: the low ones, then the high ones.
void nibbles32(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = p[i] & 15;
    codes[i + 16] = p[i] >> 4;
  }
}

// 32 bytes → 64 nibbles: the low ones, then the high ones.
void nibbles64(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    codes[i] = p[i] & 15;
    codes[i + 32] = p[i] >> 4;
  }
}

void unpack_q4_0(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  scales[0] = half_at(b);
  nibbles32(b + 2, codes);
}

void unpack_q4_1(const uint8_t* b, uint8_t* codes, float* scales, float* minima) {
  scales[0] = half_at(b);
  minima[0] = half_at(b + 2);
  nibbles32(b + 4, codes);
}

void fifth_bits(const uint8_t* p, uint8_t* codes, int offset) {
  for (int i = 0; i < 32; ++i) codes[i] = signed_code((codes[i] | ((p[i / 8] >> (i % 8)) & 1) << 4) - offset);
}

void unpack_q5_0(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  scales[0] = half_at(b);
  nibbles32(b + 6, codes);
  fifth_bits(b + 2, codes, 16);
}

void unpack_q5_1(const uint8_t* b, uint8_t* codes, float* scales, float* minima) {
  scales[0] = half_at(b);
  minima[0] = half_at(b + 2);
  nibbles32(b + 8, codes);
  fifth_bits(b + 4, codes, 0);
}

void unpack_q8_0(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  scales[0] = half_at(b);
  for (int i = 0; i < 32; ++i) codes[i] = b[2 + i];
}

void unpack_q2_k(const uint8_t* b, uint8_t* codes, float* scales, float* minima) {
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(b[g] & 15);
    minima[g] = -(dmin * static_cast<float>(b[g] >> 4));
  }
  for (int i = 0; i < 256; ++i) codes[i] = (b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
}

void unpack_q3_k(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  const float d = half_at(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = (b[96 + g % 8] >> (g / 8 * 4)) & 15, high = (b[104 + g % 4] >> (g / 4 * 2)) & 3;
    scales[g] = d * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int low = (b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3, third = (b[i % 32] >> (i / 32)) & 1;
    codes[i] = static_cast<uint8_t>(low | third << 2);
  }
}

void six_bit_scales(const uint8_t* b, float* scales, float* minima) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t* p = b + 4;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? p[g] & 63 : (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
    const int minimum = g < 4 ? p[g + 4] & 63 : (p[g + 4] >> 4) | (p[g] >> 6) << 4;
    scales[g] = d * static_cast<float>(scale);
    minima[g] = -(dmin * static_cast<float>(minimum));
  }
}

void unpack_q4_k(const uint8_t* b, uint8_t* codes, float* scales, float* minima) {
  six_bit_scales(b, scales, minima);
  for (int i = 0; i < 4; ++i) nibbles64(b + 16 + 32 * i, codes + 64 * i);
}

void unpack_q5_k(const uint8_t* b, uint8_t* codes, float* scales, float* minima) {
  six_bit_scales(b, scales, minima);
  for (int i = 0; i < 4; ++i) nibbles64(b + 48 + 32 * i, codes + 64 * i);
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(codes[i] | ((b[16 + i % 32] >> (i / 32)) & 1) << 4);
}

void unpack_q6_k(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  const float d = half_at(b + 208);
  for (int g = 0; g < 16; ++g) scales[g] = d * static_cast<float>(static_cast<int8_t>(b[192 + g]));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, j = i % 128;
    const int low = (b[64 * half + j % 64] >> (j / 64 * 4)) & 15, high = (b[128 + 32 * half + j % 32] >> (j / 32 * 2)) & 3;
    codes[i] = signed_code((low | high << 4) - 32);
  }
}

void unpack_iq4_nl(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  scales[0] = half_at(b);
  nibbles32(b + 2, codes);
}

void unpack_iq4_xs(const uint8_t* b, uint8_t* codes, float* scales, float*) {
  const float d = half_at(b);
  const int high = b[2] | b[3] << 8;
  for (int g = 0; g < 8; ++g) {
    const int low = (b[4 + g / 2] >> (g % 2 * 4)) & 15;
    scales[g] = d * static_cast<float>((low | ((high >> (2 * g)) & 3) << 4) - 32);
    nibbles32(b + 8 + 16 * g, codes + 32 * g);
  }
}

constexpr int8_t kPlain[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr int8_t kMinus4[16] = {-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
constexpr int8_t kMinus8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr PackKind kNibble = PackKind::kNibble, kByte = PackKind::kByte;
constexpr ScaleKind kHalf = ScaleKind::kF16, kFloat = ScaleKind::kF32, kNoScale = ScaleKind::kNone;

// Scales that a block stores as halves stay halves; products of two numbers become floats, which hold them exactly.
constexpr BlockFormat kFormats[] = {
    {"F32", 1, 4, PackKind::kF32, kNoScale, false, 32, nullptr, nullptr},
    {"F16", 1, 2, PackKind::kF16, kNoScale, false, 32, nullptr, nullptr},
    {"BF16", 1, 2, PackKind::kBf16, kNoScale, false, 32, nullptr, nullptr},
    {"Q4_0", 32, 18, kNibble, kHalf, false, 32, kMinus8, unpack_q4_0},
    {"Q4_1", 32, 20, kNibble, kHalf, true, 32, kPlain, unpack_q4_1},
    {"Q5_0", 32, 22, kByte, kHalf, false, 32, nullptr, unpack_q5_0},
    {"Q5_1", 32, 24, kByte, kHalf, true, 32, nullptr, unpack_q5_1},
    {"Q8_0", 32, 34, kByte, kHalf, false, 32, nullptr, unpack_q8_0},
    {"Q2_K", 256, 84, kNibble, kFloat, true, 16, kPlain, unpack_q2_k},
    {"Q3_K", 256, 110, kNibble, kFloat, false, 16, kMinus4, unpack_q3_k},
    {"Q4_K", 256, 144, kNibble, kFloat, true, 32, kPlain, unpack_q4_k},
    {"Q5_K", 256, 176, kByte, kFloat, true, 32, nullptr, unpack_q5_k},
    {"Q6_K", 256, 210, kByte, kFloat, false, 16, nullptr, unpack_q6_k},
    {"IQ4_NL", 32, 18, kNibble, kHalf, false, 32, kIq4, unpack_iq4_nl},
    {"IQ4_XS", 256, 136, kNibble, kFloat, false, 32, kIq4, unpack_iq4_xs},
};

}  // namespace

const BlockFormat& block_format(const std::string& label) {
  for (const BlockFormat& format : kFormats) {
    if (label == format.label) return format;
  }
  throw Refusal("the native backend does not know the tensor type " + label);
}

}  // namespace octavo
