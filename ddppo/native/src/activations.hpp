// Activation functions on SIMD vectors, and their derivatives as functions of the activation's value y = f(x): the
// backward pass keeps y and not x.
#pragma once

#include "matrix.hpp"

namespace ddppo {

enum Activation { kTanh, kRelu, kElu, kLeakyRelu };

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

template <class Real>
inline typename Simd<Real>::V activate(Activation kind, typename Simd<Real>::V x) {
  const typename Simd<Real>::V zero{};
  switch (kind) {
    case kTanh: return tanh_of(x);
    case kRelu: return x < zero ? zero : x;
    case kLeakyRelu: return x < zero ? x * Real(0.01) : x;
    case kElu: return each<Real>(x, [](Real v) { return v > 0 ? v : std::expm1(v); });
  }
  __builtin_unreachable();
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
  }
  __builtin_unreachable();
}

}  // namespace ddppo
