// BLAKE2b without a key (RFC 7693), which hashlib.blake2b computes in Python. For little-endian machines.
#pragma once
#include <cstdint>
#include <cstring>

class Blake2b {
 public:
  explicit Blake2b(uint64_t digest_size) {
    std::memcpy(state_, kStart, sizeof state_);
    state_[0] ^= 0x01010000 ^ digest_size;
  }

  void update(const void* given, uint64_t size) {
    const auto* bytes = static_cast<const uint8_t*>(given);
    while (size) {
      if (filled_ == 128) compress(false);  // a full block waits, as the last one is marked
      const uint64_t taken = size < 128 - filled_ ? size : 128 - filled_;
      std::memcpy(block_ + filled_, bytes, taken);
      filled_ += taken, bytes += taken, size -= taken;
    }
  }

  void finish(uint8_t* digest, uint64_t digest_size) {
    std::memset(block_ + filled_, 0, 128 - filled_);
    compress(true);
    std::memcpy(digest, state_, digest_size);
  }

 private:
  static constexpr uint64_t kStart[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                         0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                         0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
  static constexpr uint8_t kOrder[10][16] = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

  static uint64_t turned(uint64_t x, int by) { return (x >> by) | (x << (64 - by)); }

  static void mix(uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint64_t x, uint64_t y) {
    a += b + x, d = turned(d ^ a, 32);
    c += d, b = turned(b ^ c, 24);
    a += b + y, d = turned(d ^ a, 16);
    c += d, b = turned(b ^ c, 63);
  }

  void compress(bool is_last) {
    count_ += filled_;
    filled_ = 0;
    uint64_t v[16], words[16];
    std::memcpy(words, block_, sizeof words);
    std::memcpy(v, state_, sizeof state_);
    std::memcpy(v + 8, kStart, sizeof kStart);
    v[12] ^= count_;
    if (is_last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
      const uint8_t* at = kOrder[round % 10];
      for (int i = 0; i < 4; i++) mix(v[i], v[4 + i], v[8 + i], v[12 + i], words[at[2 * i]], words[at[2 * i + 1]]);
      for (int i = 0; i < 4; i++)
        mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], words[at[8 + 2 * i]],
            words[at[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) state_[i] ^= v[i] ^ v[8 + i];
  }

  uint64_t state_[8], count_ = 0, filled_ = 0;
  uint8_t block_[128] = {};
};
