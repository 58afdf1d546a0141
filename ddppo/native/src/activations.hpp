// Activation functions on SIMD vectors, and their derivatives. Those of tanh and the kinds of ReLU are functions of the
// activation's value y = f(x), so the backward pass keeps y alone. SiLU and GELU fall and rise again: for them the forward
// pass keeps f'(x) beside y.
#pragma once

#include "matrix.hpp"

namespace ddppo {

enum Activation { kTanh, kRelu, kElu, kLeakyRelu, kSilu, kGelu, kIdentity };

inline bool keeps_derivative(Activation kind) { return kind == kSilu || kind == kGelu; }

// Apply a function of one number to every entry of a vector.
template <class Real, class F>
inline typename Simd<Real>::V each(typename Simd<Real>::V x, F&& f) {
  for (int i = 0; i < Simd<Real>::lanes; i++) x[i] = f(x[i]);
  return x;
}

// A polynomial by Horner's scheme with fused multiply-adds; the coefficient of the highest power comes first.
template <class... Rest>
inline Simd<float>::V polynomial(Simd<float>::V x, float first, Rest... rest) {
  Simd<float>::V sum = Simd<float>::all(first);
  ((sum = fma(sum, x, Simd<float>::all(rest))), ...);
  return sum;
}

inline Simd<double>::V exp_of(Simd<double>::V x) {
  return each<double>(x, [](double v) { return std::exp(v); });
}

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2 and Taylor's series to r^7; 0 or infinity beyond the range of float32.
inline Simd<float>::V exp_of(Simd<float>::V x) {
  typedef int32_t Int __attribute__((vector_size(kVectorBytes)));
  using F = Simd<float>::V;
  const F low = Simd<float>::all(-87.0f), high = Simd<float>::all(88.7f);
  F bounded = x < low ? low : x;
  bounded = bounded > high ? high : bounded;
  const F magic = Simd<float>::all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F n = fma(bounded, Simd<float>::all(1.44269504088896341f), magic) - magic;
  const F rough = fma(n, Simd<float>::all(-0.693145751953125f), bounded);
  const F r = fma(n, Simd<float>::all(-1.42860677e-06f), rough);
  const F p = polynomial(r, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f);
  const Int exponent = (__builtin_convertvector(n, Int) + 127) << 23;
  F scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  const F result = p * scale;
  const F ended = x < low ? F{} : result;
  return x > high ? Simd<float>::all(__builtin_inff()) : ended;
}

// tanh(x) = x P(x^2) / Q(x^2), fitted for |x| <= 8 by least squares of the relative error, which is below 4e-7 in
// float32. Beyond 8 the value is tanh(8).
inline Simd<float>::V tanh_of(Simd<float>::V x) {
  const Simd<float>::V bound = Simd<float>::all(8.0f);
  x = x > bound ? bound : x;
  x = x < -bound ? -bound : x;
  const Simd<float>::V u = x * x;
  const Simd<float>::V p = polynomial(
      u, 2.35092845500164e-11f, -1.4704484839892728e-08f, 9.878749929529511e-06f, 0.0029858720206013606f,
      0.12979232933056667f, 0.9999999811771398f);
  const Simd<float>::V q =
      polynomial(u, 0.00023720461224349055f, 0.02402796627599897f, 0.4631254900353952f, 1.0f);
  return x * p / q;
}

inline Simd<double>::V tanh_of(Simd<double>::V x) {
  return each<double>(x, [](double value) { return std::tanh(value); });
}

// SiLU: y = x s, dy/dx = s (1 + x (1 - s)), s = 1 / (1 + exp(-x)).
template <class Real>
inline typename Simd<Real>::V silu(typename Simd<Real>::V x, typename Simd<Real>::V& slope) {
  const typename Simd<Real>::V one = Simd<Real>::all(1), s = one / (one + exp_of(-x));
  slope = s * fma(x, one - s, one);
  return x * s;
}

// The tail 1 - Phi(|x|) of the standard normal distribution; density is exp(-x^2 / 2).
inline Simd<double>::V normal_tail(Simd<double>::V size, Simd<double>::V) {
  return each<double>(size, [](double v) { return 0.5 * std::erfc(v * 0.70710678118654752440); });
}

// Abramowitz and Stegun, "Handbook of mathematical functions", 7.1.26, whose error is below 1.5e-7, with its argument
// divided by sqrt(2).
inline Simd<float>::V normal_tail(Simd<float>::V size, Simd<float>::V density) {
  const Simd<float>::V one = Simd<float>::all(1.0f), t = one / fma(size, Simd<float>::all(0.23164189f), one);
  return 0.5f * density * t * polynomial(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f);
}

// GELU: y = x Phi(x), dy/dx = Phi(x) + x phi(x).
template <class Real>
inline typename Simd<Real>::V gelu(typename Simd<Real>::V x, typename Simd<Real>::V& slope) {
  using V = typename Simd<Real>::V;
  const V density = exp_of(Real(-0.5) * x * x), tail = normal_tail(x < V{} ? -x : x, density);
  const V share = x < V{} ? tail : Simd<Real>::all(1) - tail;
  slope = fma(x * density, Simd<Real>::all(Real(0.39894228040143267794)), share);
  return x * share;
}

template <class Real>
inline typename Simd<Real>::V activate(Activation kind, typename Simd<Real>::V x) {
  const typename Simd<Real>::V zero{};
  switch (kind) {
    case kTanh: return tanh_of(x);
    case kRelu: return x < zero ? zero : x;
    case kLeakyRelu: return x < zero ? x * Real(0.01) : x;
    case kIdentity: return x;
    case kElu: return each<Real>(x, [](Real v) { return v > 0 ? v : std::expm1(v); });
    case kSilu:
    case kGelu: break;
  }
  __builtin_unreachable();
}

// Return f(x), and for those that `keeps_derivative` names f'(x).
template <class Real>
inline typename Simd<Real>::V activate(Activation kind, typename Simd<Real>::V x, typename Simd<Real>::V& slope) {
  if (kind == kSilu) return silu<Real>(x, slope);
  if (kind == kGelu) return gelu<Real>(x, slope);
  return activate<Real>(kind, x);
}

// f'(x) as a function of y = f(x).
template <class Real>
inline typename Simd<Real>::V derivative(Activation kind, typename Simd<Real>::V y) {
  const typename Simd<Real>::V zero{}, one = Simd<Real>::all(1);
  switch (kind) {
    case kTanh: return fma(-y, y, one);
    case kRelu: return y > zero ? one : zero;
    case kLeakyRelu: return y > zero ? one : Simd<Real>::all(Real(0.01));
    case kElu: return y > zero ? one : y + one;
    case kIdentity: return one;
    case kSilu:
    case kGelu: break;
  }
  __builtin_unreachable();
}

}  // namespace ddppo
