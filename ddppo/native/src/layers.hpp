// Layers of an MLP on rows, and the gradient by their weights: linear layers, and how their products begin and end.
//
// Gradients are summed apart for each shard (see mlp.hpp): a block of rows is cut into pieces of one shard each.
#pragma once

#include <algorithm>
#include <vector>

#include "layer_norm.hpp"

namespace ddppo {

// How products begin and end ---------------------------------------------------------------------------------------
//
// `start` is the value that a sum begins with, and `end` stores the finished sum (see `product` in matrix.hpp).

template <class Real>
struct Activated {  // out = f(bias + product), and slope = f'(bias + product) unless it is null
  Activation kind;
  const Real* bias;
  Real *out, *slope;
  long width;
  V<Real> start(long, long n) const { return Simd<Real>::load(bias + n); }
  void end(long m, long n, V<Real> x) const {
    if (!slope) return Simd<Real>::store(out + m * width + n, activate<Real>(kind, x));
    V<Real> derivative;
    Simd<Real>::store(out + m * width + n, activate<Real>(kind, x, derivative));
    Simd<Real>::store(slope + m * width + n, derivative);
  }
};

template <class Real>
struct Affine {  // out = bias + product
  const Real* bias;
  Real* out;
  long width;
  V<Real> start(long, long n) const { return Simd<Real>::load(bias + n); }
  void end(long m, long n, V<Real> x) const { Simd<Real>::store(out + m * width + n, x); }
};

template <class Real>
struct Added {  // out += product
  Real* out;
  long width;
  V<Real> start(long m, long n) const { return Simd<Real>::load(out + m * width + n); }
  void end(long m, long n, V<Real> x) const { Simd<Real>::store(out + m * width + n, x); }
};

template <class Real>
struct Descended {  // out = product * f', added to what is there if `adds`
  Activation kind;
  const Real *y, *slope;  // f(x), and f'(x), or null if it is a function of y
  Real* out;
  long width;
  bool adds;
  V<Real> start(long, long) const { return V<Real>{}; }
  void end(long m, long n, V<Real> x) const {
    const long at = m * width + n;
    x *= slope ? Simd<Real>::load(slope + at) : derivative<Real>(kind, Simd<Real>::load(y + at));
    Simd<Real>::store(out + at, adds ? Simd<Real>::load(out + at) + x : x);
  }
};

// One linear layer -------------------------------------------------------------------------------------------------

template <class Real>
class Linear {
 public:
  // weight_at and bias_at: positions of the weight [outputs, inputs] and the bias [outputs] in the flat vector of
  // parameters, and in a gradient. bias_at is -1 for a layer without a bias.
  Linear(const Real* parameters, long weight_at, long bias_at, long inputs, long outputs)
      : in(inputs), out(outputs), in_width(padded<Real>(inputs)), out_width(padded<Real>(outputs)),
        weight_(parameters + weight_at), bias_source_(bias_at < 0 ? nullptr : parameters + bias_at), weight_at_(weight_at), bias_at_(bias_at),
        // The gradient of weights is summed as [in, out] if that pads less than [out, in]; and if nothing is padded,
        // directly in the flat gradient.
        transposed_(in * out_width < out * in_width), in_place_(!transposed_ && in == in_width), bias_(out_width),
        forward_(panels(out_width) * in * kPanel<Real>),
        backward_(in_place_ ? 0 : panels(in_width) * out * kPanel<Real>),
        sum_size_(in_place_ ? 0 : transposed_ ? in * out_width : out * in_width) {
    make_sums(1);
  }

  void make_sums(long num_shards) {
    weight_sums_ = Buffer<Real>(num_shards * sum_size_);
    bias_sums_ = Buffer<Real>(num_shards * out_width);
  }

  // Copy the weights into panels, the layout that products read (matrix.hpp): `forward_` for x W^T, `backward_` for dz
  // W.
  void refresh() {
    if (bias_source_) std::copy_n(bias_source_, out, bias_.get());
    for (long o = 0; o < out; o++) {
      Real* column = forward_.get() + (o / kPanel<Real>) * in * kPanel<Real> + o % kPanel<Real>;
      const Real* row = weight_ + o * in;
      for (long i = 0; i < in; i++) column[i * kPanel<Real>] = row[i];
      if (in_place_) continue;
      for (long i0 = 0, p = 0; i0 < in; i0 += kPanel<Real>, p++)
        std::copy_n(row + i0, std::min<long>(kPanel<Real>, in - i0), backward_.get() + (p * out + o) * kPanel<Real>);
    }
  }

  // The product of inputs x [rows, in_width] and the weights.
  template <class Finish>
  void forward(const Real* x, long rows, Finish&& finish) const {
    product<Real>({x, in_width, 1}, {forward_.get(), kPanel<Real>, in * kPanel<Real>}, rows, out_width, in, finish);
  }

  // The gradient by the inputs, from the gradient by the outputs dz [rows, out_width].
  template <class Finish>
  void backward(const Real* dz, long rows, Finish&& finish) const {
    product<Real>({dz, out_width, 1}, weight_rows(), rows, in_width, out, finish);
  }

  // Begin the gradient of a shard. `gradient` here and below: the flat gradient of that shard.
  void zero_gradient(long shard, Real* gradient) {
    std::memset(weight_sum(shard, gradient), 0, (in_place_ ? in * out : sum_size_) * sizeof(Real));
    std::memset(bias_sum(shard), 0, out_width * sizeof(Real));
  }

  // Add the gradient by weights and biases for rows of inputs x and output gradients dz, all of one shard.
  void accumulate(const Real* x, const Real* dz, long rows, long shard, Real* gradient) {
    Real* weights = weight_sum(shard, gradient);
    if (transposed_)
      product<Real>({x, 1, in_width}, rows_of(dz, out_width), in, out_width, rows, Added<Real>{weights, out_width});
    else
      product<Real>({dz, 1, out_width}, rows_of(x, in_width), out, in_width, rows, Added<Real>{weights, in_width});
    add_rows<Real>(bias_sum(shard), rows, out_width, [dz, width = out_width](long r, long n) {
      return Simd<Real>::load(dz + r * width + n);
    });
  }

  // Copy the sums of a shard to its flat gradient.
  void write_gradient(long shard, Real* gradient) {
    if (bias_source_) std::copy_n(bias_sum(shard), out, gradient + bias_at_);
    if (in_place_) return;
    const Real* sums = weight_sum(shard, gradient);
    for (long o = 0; o < out; o++)
      for (long i = 0; i < in; i++)
        gradient[weight_at_ + o * in + i] = transposed_ ? sums[i * out_width + o] : sums[o * in_width + i];
  }

  const Real* bias() const { return bias_.get(); }

  const long in, out, in_width, out_width;

 private:
  Right<Real> weight_rows() const {  // [out, in_width]
    return in_place_ ? rows_of(weight_, in) : Right<Real>{backward_.get(), kPanel<Real>, out * kPanel<Real>};
  }

  Real* weight_sum(long shard, Real* gradient) {
    return in_place_ ? gradient + weight_at_ : weight_sums_.get() + shard * sum_size_;
  }
  Real* bias_sum(long shard) { return bias_sums_.get() + shard * out_width; }

  static long panels(long width) { return (width + kPanel<Real> - 1) / kPanel<Real>; }

  const Real *weight_, *bias_source_;
  const long weight_at_, bias_at_;
  const bool transposed_, in_place_;
  Buffer<Real> bias_, forward_, backward_;
  const long sum_size_;  // of weight_sums_ for a shard
  Buffer<Real> weight_sums_, bias_sums_;
};

// Neighbouring rows of a block that belong to one shard.
struct Piece {
  long shard, first, rows;  // first: in the block
};

// Where gradients go: [num_shards, num_parameters].
template <class Real>
struct Gradients {
  Real* data;
  long num_shards, num_parameters;
  Real* of(long shard) const { return data + shard * num_parameters; }
};

template <class Real>
void accumulate_pieces(
    Linear<Real>& layer, const Real* x, const Real* dz, const std::vector<Piece>& pieces, const Gradients<Real>& to) {
  for (const auto& [shard, first, rows] : pieces)
    layer.accumulate(x + first * layer.in_width, dz + first * layer.out_width, rows, shard, to.of(shard));
}

}  // namespace ddppo
