// Layer normalisation (Ba et al. 2016, arXiv:1607.06450) between a linear layer and its activation, forward and backward:
// y = f(gain * xhat + shift), where xhat are the entries of a row minus their mean, over their standard deviation.
//
// A row depends on no other. Entry n of a row is added to chain n % kChains, and chains are added in pairs, on every
// processor alike, so that sums do not depend on the width of its vectors.
#pragma once

#include <algorithm>

#include "activations.hpp"

namespace ddppo {

template <class Real>
class LayerNorm {
  using S = Simd<Real>;
  static constexpr int kChains = 16, kVectors = kChains / S::lanes;
  static constexpr Real kEpsilon = Real(1e-5);  // torch's

 public:
  // gain_at and shift_at: positions of the two vectors [width] in the flat vector of parameters, and in a gradient.
  LayerNorm(const Real* parameters, long gain_at, long shift_at, long width)
      : width_(width), padded_(padded<Real>(width)), gain_source_(parameters + gain_at),
        shift_source_(parameters + shift_at), gain_at_(gain_at), shift_at_(shift_at), gain_(padded_), shift_(padded_),
        is_inside_(padded_) {
    std::fill_n(is_inside_.get(), width, Real(1));
    make_sums(1);
  }

  void make_sums(long num_shards) {
    gain_sums_ = Buffer<Real>(num_shards * padded_);
    shift_sums_ = Buffer<Real>(num_shards * padded_);
  }

  void refresh() {
    std::copy_n(gain_source_, width_, gain_.get());
    std::copy_n(shift_source_, width_, shift_.get());
  }

  // From x [rows, padded width]: write f(gain * xhat + shift) to `out`, the derivative of f there to `slope` unless it
  // is null, xhat over x, and the inverse of each row's standard deviation to `inverses`.
  void forward(Activation kind, long rows, Real* x, Real* inverses, Real* out, Real* slope) const {
    for (long r = 0; r < rows; r++, x += padded_, out += padded_) {
      const Real mean = sum([x](long n) { return S::load(x + n); }) / Real(width_);
      const Real square = sum([this, x, mean](long n) {
        const V<Real> off = inside(n, S::load(x + n) - S::all(mean));
        S::store(x + n, off);
        return off * off;
      });
      const Real inverse = inverses[r] = Real(1) / std::sqrt(square / Real(width_) + kEpsilon);
      for (long n = 0; n < padded_; n += S::lanes) {
        const V<Real> xhat = S::load(x + n) * inverse;
        const V<Real> z = fma(S::load(gain_.get() + n), xhat, S::load(shift_.get() + n));
        S::store(x + n, xhat);
        if (!slope) {
          S::store(out + n, activate<Real>(kind, z));
          continue;
        }
        V<Real> derivative;
        S::store(out + n, activate<Real>(kind, z, derivative));
        S::store(slope + r * padded_ + n, derivative);
      }
    }
  }

  // The gradient by x, written over that by gain * xhat + shift, `dz`; both [rows, padded width].
  void backward(const Real* xhat, const Real* inverses, long rows, Real* dz) const {
    const Real share = Real(1) / Real(width_);
    for (long r = 0; r < rows; r++, xhat += padded_, dz += padded_) {
      const Real mean = share * sum([this, dz](long n) {
        const V<Real> scaled = S::load(dz + n) * S::load(gain_.get() + n);
        S::store(dz + n, scaled);
        return scaled;
      });
      const Real slope = share * sum([xhat, dz](long n) { return S::load(dz + n) * S::load(xhat + n); });
      for (long n = 0; n < padded_; n += S::lanes) {
        const V<Real> off = fma(S::load(xhat + n), S::all(-slope), S::load(dz + n) - S::all(mean));
        S::store(dz + n, inside(n, off * inverses[r]));
      }
    }
  }

  void zero_gradient(long shard, Real*) {
    for (Buffer<Real>* sums : {&gain_sums_, &shift_sums_})
      std::memset(sums->get() + shard * padded_, 0, padded_ * sizeof(Real));
  }

  // Add the gradient by gain and shift for rows of xhat and dz, as `backward` gets it, all of one shard.
  void accumulate(const Real* xhat, const Real* dz, long rows, long shard) {
    add_rows<Real>(shift_sums_.get() + shard * padded_, rows, padded_, [=, width = padded_](long r, long n) {
      return S::load(dz + r * width + n);
    });
    add_rows<Real>(gain_sums_.get() + shard * padded_, rows, padded_, [=, width = padded_](long r, long n) {
      return S::load(dz + r * width + n) * S::load(xhat + r * width + n);
    });
  }

  void write_gradient(long shard, Real* gradient) {
    std::copy_n(gain_sums_.get() + shard * padded_, width_, gradient + gain_at_);
    std::copy_n(shift_sums_.get() + shard * padded_, width_, gradient + shift_at_);
  }

 private:
  // The entries [n, n + lanes) of a row, with 0 in its padding.
  V<Real> inside(long n, V<Real> x) const { return S::load(is_inside_.get() + n) > V<Real>{} ? x : V<Real>{}; }

  // The sum over a row of `entry(n)`, the vector that begins at n, which is 0 in the padding.
  template <class F>
  Real sum(F&& entry) const {
    V<Real> vectors[kVectors] = {};
    long n = 0;
    for (; n + kChains <= padded_; n += kChains)
      for (int j = 0; j < kVectors; j++) vectors[j] += entry(n + j * S::lanes);
    for (int j = 0; n < padded_; n += S::lanes, j++) vectors[j] += entry(n);
    Real chains[kChains];
    for (int j = 0; j < kVectors; j++) S::store(chains + j * S::lanes, vectors[j]);
    for (int half = kChains / 2; half > 0; half /= 2)
      for (int j = 0; j < half; j++) chains[j] += chains[j + half];
    return chains[0];
  }

  const long width_, padded_;
  const Real *gain_source_, *shift_source_;
  const long gain_at_, shift_at_;
  Buffer<Real> gain_, shift_, is_inside_;
  Buffer<Real> gain_sums_, shift_sums_;  // [num_shards, padded width]
};

}  // namespace ddppo
