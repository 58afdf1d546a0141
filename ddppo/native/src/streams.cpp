// The random streams of ddppo/seeding.py, with the same bits as NumPy's: Philox 4x64-10 (Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3"), its doubles, and the shuffle of Generator.permutation.
#include <cstdint>

namespace {

class Philox {
 public:
  Philox(const uint64_t* key, uint64_t a, uint64_t b) : key_{key[0], key[1]}, counter_{0, 0, a, b} {}

  uint64_t next64() {
    if (place_ == 4) {
      // No stream is 2^64 blocks long, so the counter's first word does not overflow.
      counter_[0]++;
      encrypt();
      place_ = 0;
    }
    return block_[place_++];
  }

  uint32_t next32() {  // the lower half first
    if (has_half_) {
      has_half_ = false;
      return half_;
    }
    const uint64_t whole = next64();
    has_half_ = true;
    half_ = static_cast<uint32_t>(whole >> 32);
    return static_cast<uint32_t>(whole);
  }

  double uniform() { return static_cast<double>(next64() >> 11) * (1.0 / 9007199254740992.0); }

 private:
  void encrypt() {
    uint64_t c[4] = {counter_[0], counter_[1], counter_[2], counter_[3]}, k0 = key_[0], k1 = key_[1];
    for (int round = 0; round < 10; round++) {
      const auto p0 = static_cast<unsigned __int128>(0xD2E7470EE14C6C93ULL) * c[0];
      const auto p1 = static_cast<unsigned __int128>(0xCA5A826395121157ULL) * c[2];
      const uint64_t next[4] = {
          static_cast<uint64_t>(p1 >> 64) ^ c[1] ^ k0, static_cast<uint64_t>(p1),
          static_cast<uint64_t>(p0 >> 64) ^ c[3] ^ k1, static_cast<uint64_t>(p0)};
      for (int i = 0; i < 4; i++) c[i] = next[i];
      k0 += 0x9E3779B97F4A7C15ULL;
      k1 += 0xBB67AE8584CAA73BULL;
    }
    for (int i = 0; i < 4; i++) block_[i] = c[i];
  }

  const uint64_t key_[2];
  uint64_t counter_[4], block_[4] = {};
  int place_ = 4;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace

// Division of a number below 2^32 by multiplication (Lemire, Kaser and Kurz 2019, arXiv:1902.01961).
struct Division {
  explicit Division(int64_t divisor) : one(divisor == 1), inverse(~uint64_t{0} / static_cast<uint64_t>(divisor) + 1) {}
  int64_t operator()(int64_t x) const {
    return one ? x : static_cast<int64_t>((static_cast<unsigned __int128>(inverse) * static_cast<uint64_t>(x)) >> 64);
  }
  const bool one;
  const uint64_t inverse;
};

extern "C" {

// Write uniform numbers on [0, 1) to out [num_rows, num_envs]; column i is stream (key, first_env + i, iteration).
void stream_uniform(
    const uint64_t* key, uint64_t first_env, uint64_t iteration, int64_t num_rows, int64_t num_envs, double* out) {
  for (int64_t i = 0; i < num_envs; i++) {
    Philox stream(key, first_env + static_cast<uint64_t>(i), iteration);
    for (int64_t t = 0; t < num_rows; t++) out[t * num_envs + i] = stream.uniform();
  }
}

// Write a permutation of 0, ..., n - 1 by stream (key, a, b); n is at most 2^32.
void stream_permutation(const uint64_t* key, uint64_t a, uint64_t b, int64_t n, int64_t* out) {
  Philox stream(key, a, b);
  for (int64_t i = 0; i < n; i++) out[i] = i;
  for (int64_t i = n - 1; i > 0; i--) {
    // A number from 0 to i: draw as many bits as i has, and draw again if the number is larger.
    uint32_t mask = static_cast<uint32_t>(i), drawn;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    do drawn = stream.next32() & mask;
    while (drawn > static_cast<uint32_t>(i));
    const int64_t kept = out[i];
    out[i] = out[drawn];
    out[drawn] = kept;
  }
}

// Write this rank's share of an epoch to `out`: from the samples t * num_envs + i in `order`, those of environments
// first, ..., first + local - 1, renumbered as t * local + (i - first). `bounds` [M + 1] cut `order` into minibatches,
// and `out_bounds` cut `out` at the same samples. n is below 2^32.
void stream_share(
    const int64_t* order, int64_t n, int64_t num_envs, int64_t first, int64_t local, const int64_t* bounds,
    int64_t num_bounds, int64_t* out, int64_t* out_bounds) {
  const Division by_envs(num_envs);
  int64_t count = 0, bound = 0;
  for (int64_t k = 0; k < n; k++) {
    while (bound < num_bounds && bounds[bound] == k) out_bounds[bound++] = count;
    const int64_t t = by_envs(order[k]);
    const int64_t i = order[k] - t * num_envs - first;
    if (i >= 0 && i < local) out[count++] = t * local + i;
  }
  while (bound < num_bounds) out_bounds[bound++] = count;
}

// Sort the samples of each minibatch by shard, stably (ppo/minibatches.py:by_shard). Shard s has the environments
// [s per_shard, (s + 1) per_shard). out_bounds [M S + 1] cut `out` into the parts of shards.
void stream_by_shard(
    const int64_t* order, int64_t num_envs, int64_t num_shards, const int64_t* bounds, int64_t num_minibatches,
    int64_t* out, int64_t* out_bounds) {
  const Division by_envs(num_envs), by_shard(num_envs / num_shards);
  auto shard_of = [&](int64_t sample) { return by_shard(sample - by_envs(sample) * num_envs); };
  for (int64_t m = 0; m < num_minibatches; m++) {
    // Count, then place: `ends` are where the next sample of a shard goes.
    int64_t* ends = out_bounds + m * num_shards + 1;
    for (int64_t s = 0; s < num_shards; s++) ends[s] = 0;
    for (int64_t k = bounds[m]; k < bounds[m + 1]; k++) ends[shard_of(order[k])]++;
    for (int64_t s = 0, next = bounds[m]; s < num_shards; s++) {
      const int64_t count = ends[s];
      ends[s] = next;
      next += count;
    }
    for (int64_t k = bounds[m]; k < bounds[m + 1]; k++) out[ends[shard_of(order[k])]++] = order[k];
  }
  out_bounds[0] = bounds[0];
}

}  // extern "C"
