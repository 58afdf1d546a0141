// Products of small matrices in SIMD registers.
//
// Every entry of a product is one chain of fused multiply-adds over k = 0, 1, ..., whichever tile computes it. So the
// bits of a row of activations do not depend on the rows beside it, on their number, or on the width of a vector.
// Results at any W rest on this. The library is compiled with -ffp-contract=off: a multiply-add is fused exactly where
// `fma` is written, and the compiler fuses no other.
#pragma once

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace ddppo {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 6, kTileVectors = 4;  // 24 of 32 registers accumulate
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kVectorBytes = 32, kTileRows = 6, kTileVectors = 2;  // 12 of 16
#else
constexpr int kVectorBytes = 16, kTileRows = 4, kTileVectors = 2;
#endif

template <class Real>
struct Simd {
  typedef Real V __attribute__((vector_size(kVectorBytes)));
  typedef Real Unaligned __attribute__((vector_size(kVectorBytes), aligned(sizeof(Real)), may_alias));
  static constexpr int lanes = kVectorBytes / sizeof(Real);

  static V load(const Real* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static void store(Real* p, V x) { *reinterpret_cast<Unaligned*>(p) = x; }
  static V all(Real x) { return x - V{}; }
};

template <class Real>
using V = typename Simd<Real>::V;

// a * b + c, rounded once. Processors without the instruction (x86 before 2013) round twice, in every tile alike.
inline Simd<float>::V fma(Simd<float>::V a, Simd<float>::V b, Simd<float>::V c) {
#if defined(__AVX512F__)
  return Simd<float>::V(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return Simd<float>::V(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__aarch64__)
  return Simd<float>::V(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
  return a * b + c;
#endif
}

inline Simd<double>::V fma(Simd<double>::V a, Simd<double>::V b, Simd<double>::V c) {
#if defined(__AVX512F__)
  return Simd<double>::V(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return Simd<double>::V(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c)));
#elif defined(__aarch64__)
  return Simd<double>::V(vfmaq_f64(float64x2_t(c), float64x2_t(a), float64x2_t(b)));
#else
  return a * b + c;
#endif
}

template <class Real>
constexpr int padded(int n) {
  constexpr int lanes = Simd<Real>::lanes;
  return (n + lanes - 1) / lanes * lanes;
}

// An array aligned to vectors, zero at first.
template <class Real>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size) {
    data_ = static_cast<Real*>(::operator new(size * sizeof(Real) + kVectorBytes, std::align_val_t(64)));
    std::memset(data_, 0, size * sizeof(Real) + kVectorBytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { ::operator delete(data_, std::align_val_t(64)); }
  Real* get() const { return data_; }
  std::size_t size() const { return size_; }
  void zero() { std::memset(data_, 0, size_ * sizeof(Real)); }

 private:
  Real* data_ = nullptr;
  std::size_t size_ = 0;
};

// Add to `sums` [width] the vectors that entry(r, n) returns for rows r = 0, 1, ..., rows - 1 and columns from n on.
template <class Real, class F>
inline void add_rows(Real* sums, long rows, long width, F&& entry) {
  for (long n = 0; n < width; n += Simd<Real>::lanes) {
    // Four chains of sums, so that additions do not wait for one another.
    V<Real> chains[4] = {Simd<Real>::load(sums + n)};
    long r = 0;
    for (; r + 4 <= rows; r += 4)
      for (int j = 0; j < 4; j++) chains[j] += entry(r + j, n);
    for (; r < rows; r++) chains[0] += entry(r, n);
    Simd<Real>::store(sums + n, (chains[0] + chains[1]) + (chains[2] + chains[3]));
  }
}

// The left factor of a product: entry (m, k) is data[m * row + k * column].
template <class Real>
struct Left {
  const Real* data;
  long row, column;
};

// The right factor: its columns are grouped in panels as wide as a tile. Panels are `panel` numbers apart, and the rows
// of a panel `row` numbers.
template <class Real>
struct Right {
  const Real* data;
  long row, panel;
};

template <class Real>
constexpr int kPanel = kTileVectors * Simd<Real>::lanes;

// A row-major matrix of n columns (a multiple of a vector), as the right factor.
template <class Real>
Right<Real> rows_of(const Real* data, long n) {
  return {data, n, kPanel<Real>};
}

// One tile of the product, M rows by N vectors, whose sums stay in registers.
template <int M, int N, class Real, class Finish>
inline void tile(Left<Real> a, const Real* b, long b_row, long depth, Finish&& finish, long m0, long n0) {
  using S = Simd<Real>;
  typename S::V sum[M][N];
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) sum[m][n] = finish.start(m0 + m, n0 + n * S::lanes);
  const Real* left = a.data + m0 * a.row;
  for (long k = 0; k < depth; k++) {
    typename S::V right[N];
    for (int n = 0; n < N; n++) right[n] = S::load(b + k * b_row + n * S::lanes);
    for (int m = 0; m < M; m++) {
      const typename S::V x = S::all(left[m * a.row + k * a.column]);
      for (int n = 0; n < N; n++) sum[m][n] = fma(x, right[n], sum[m][n]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) finish.end(m0 + m, n0 + n * S::lanes, sum[m][n]);
}

template <int N, class Real, class Finish>
inline void panel_product(
    Left<Real> a, const Real* b, long b_row, long m_end, long depth, Finish&& finish, long n0) {
  long m = 0;
  for (; m + kTileRows <= m_end; m += kTileRows) tile<kTileRows, N>(a, b, b_row, depth, finish, m, n0);
  for (; m + 2 <= m_end; m += 2) tile<2, N>(a, b, b_row, depth, finish, m, n0);
  if (m < m_end) tile<1, N>(a, b, b_row, depth, finish, m, n0);
}

// The product of a [m, depth] and b [depth, n]; n is a multiple of a vector. finish.start(row, column) returns the
// vector that sums begin with, such as a bias; finish.end(row, column, sums) stores the sums, such as after an
// activation.
template <class Real, class Finish>
void product(Left<Real> a, Right<Real> b, long m, long n, long depth, Finish&& finish) {
  for (long n0 = 0, p = 0; n0 < n; n0 += kPanel<Real>, p++) {
    const Real* panel = b.data + p * b.panel;
    switch ((n - n0) / Simd<Real>::lanes) {
      case 1: panel_product<1>(a, panel, b.row, m, depth, finish, n0); break;
#if defined(__AVX512F__)
      case 2: panel_product<2>(a, panel, b.row, m, depth, finish, n0); break;
      case 3: panel_product<3>(a, panel, b.row, m, depth, finish, n0); break;
#endif
      default: panel_product<kTileVectors>(a, panel, b.row, m, depth, finish, n0); break;
    }
  }
}

}  // namespace ddppo
