// The MLP of ddppo/models/actor_critic.py, forward and backward: separate or shared hidden layers, and two linear
// heads.
//
// Rows (samples) are computed in blocks of kBlockRows, which stay in the cache from the observation to the gradient.
// Weights [out, in] are read from torch's flat vector of parameters, and packed for the products by `refresh`, which
// must be called after every change of them. Read from bottom to top: Network, Trunk, Linear, and the products of
// matrix.hpp.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "activations.hpp"
#include "matrix.hpp"

namespace ddppo {

constexpr long kBlockRows = 96;

template <class Real>
using V = typename Simd<Real>::V;

// How products begin and end ---------------------------------------------------------------------------------------
//
// `start` is the value that a sum begins with, and `end` stores the finished sum (see `product` in matrix.hpp).

template <class Real>
struct Activated {  // out = f(bias + product)
  Activation kind;
  const Real* bias;
  Real* out;
  long width;
  V<Real> start(long, long n) const { return Simd<Real>::load(bias + n); }
  void end(long m, long n, V<Real> x) const { Simd<Real>::store(out + m * width + n, activate<Real>(kind, x)); }
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
struct Descended {  // out = product * f'(y), added to what is there if `adds`
  Activation kind;
  const Real* y;
  Real* out;
  long width;
  bool adds;
  V<Real> start(long, long) const { return V<Real>{}; }
  void end(long m, long n, V<Real> x) const {
    const long at = m * width + n;
    x *= derivative<Real>(kind, Simd<Real>::load(y + at));
    Simd<Real>::store(out + at, adds ? Simd<Real>::load(out + at) + x : x);
  }
};

// One linear layer -------------------------------------------------------------------------------------------------

template <class Real>
class Linear {
 public:
  // weight [outputs, inputs] and bias [outputs] point into the flat vector of parameters, the other two into the
  // gradient.
  Linear(const Real* weight, const Real* bias, Real* weight_gradient, Real* bias_gradient, long inputs, long outputs)
      : in(inputs), out(outputs), in_width(padded<Real>(inputs)), out_width(padded<Real>(outputs)),
        weight_(weight), bias_source_(bias), weight_gradient_(weight_gradient), bias_gradient_(bias_gradient),
        // The gradient of weights is summed as [in, out] if that pads less than [out, in]; and if nothing is padded,
        // directly in the flat gradient.
        transposed_(in * out_width < out * in_width), in_place_(!transposed_ && in == in_width), bias_(out_width),
        forward_(panels(out_width) * in * kPanel<Real>),
        backward_(in_place_ ? 0 : panels(in_width) * out * kPanel<Real>),
        weight_sum_(in_place_ ? 0 : transposed_ ? in * out_width : out * in_width), bias_sum_(out_width) {}

  // Copy the weights into panels, the layout that products read (matrix.hpp): `forward_` for x W^T, `backward_` for dz
  // W.
  void refresh() {
    std::copy_n(bias_source_, out, bias_.get());
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

  void zero_gradient() {
    if (in_place_) std::memset(weight_gradient_, 0, in * out * sizeof(Real));
    else weight_sum_.zero();
    bias_sum_.zero();
  }

  // Add the gradient by weights and biases for rows of inputs x and output gradients dz.
  void accumulate(const Real* x, const Real* dz, long rows) {
    if (transposed_)
      product<Real>(
          {x, 1, in_width}, rows_of(dz, out_width), in, out_width, rows, Added<Real>{weight_sum_.get(), out_width});
    else
      product<Real>(
          {dz, 1, out_width}, rows_of(x, in_width), out, in_width, rows,
          Added<Real>{in_place_ ? weight_gradient_ : weight_sum_.get(), in_width});
    for (long n = 0; n < out_width; n += Simd<Real>::lanes) {
      // Four chains of sums, so that additions do not wait for one another.
      V<Real> sums[4] = {Simd<Real>::load(bias_sum_.get() + n)};
      long r = 0;
      for (; r + 4 <= rows; r += 4)
        for (int j = 0; j < 4; j++) sums[j] += Simd<Real>::load(dz + (r + j) * out_width + n);
      for (; r < rows; r++) sums[0] += Simd<Real>::load(dz + r * out_width + n);
      Simd<Real>::store(bias_sum_.get() + n, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }

  // Copy the sums to the flat gradient.
  void write_gradient() const {
    std::copy_n(bias_sum_.get(), out, bias_gradient_);
    if (in_place_) return;
    for (long o = 0; o < out; o++)
      for (long i = 0; i < in; i++)
        weight_gradient_[o * in + i] =
            transposed_ ? weight_sum_.get()[i * out_width + o] : weight_sum_.get()[o * in_width + i];
  }

  const Real* bias() const { return bias_.get(); }

  const long in, out, in_width, out_width;

 private:
  Right<Real> weight_rows() const {  // [out, in_width]
    return in_place_ ? rows_of(weight_, in) : Right<Real>{backward_.get(), kPanel<Real>, out * kPanel<Real>};
  }

  static long panels(long width) { return (width + kPanel<Real> - 1) / kPanel<Real>; }

  const Real *weight_, *bias_source_;
  Real *weight_gradient_, *bias_gradient_;
  const bool transposed_, in_place_;
  Buffer<Real> bias_, forward_, backward_, weight_sum_, bias_sum_;
};

// Hidden layers ----------------------------------------------------------------------------------------------------

template <class Real>
struct Trunk {
  std::vector<Linear<Real>> layers;
  std::vector<Buffer<Real>> outputs, slopes;  // of the current block: activations, and gradients before the activation

  void allocate() {
    for (const auto& layer : layers) {
      outputs.emplace_back(kBlockRows * layer.out_width);
      slopes.emplace_back(kBlockRows * layer.out_width);
    }
  }

  const Real* forward(Activation kind, const Real* x, long rows) {
    for (std::size_t l = 0; l < layers.size(); l++) {
      layers[l].forward(x, rows, Activated<Real>{kind, layers[l].bias(), outputs[l].get(), layers[l].out_width});
      x = outputs[l].get();
    }
    return x;
  }

  // Backward from the last layer, with its gradient in slopes.back(), to the first.
  void backward(Activation kind, const Real* x, long rows) {
    for (std::size_t l = layers.size(); l-- > 0;) {
      const Real* dz = slopes[l].get();
      layers[l].accumulate(l ? outputs[l - 1].get() : x, dz, rows);
      if (l)
        layers[l].backward(
            dz, rows,
            Descended<Real>{kind, outputs[l - 1].get(), slopes[l - 1].get(), layers[l - 1].out_width, false});
    }
  }
};

// The network ------------------------------------------------------------------------------------------------------

struct Shape {
  Activation activation;
  bool shared_trunk, is_box;
  long obs_size, num_outputs;  // of the policy head
  std::vector<long> hidden;
};

template <class Real>
class Network {
 public:
  // offsets: positions in the flat vector of weight and bias, for every layer of the policy's trunk, of the value's
  // trunk unless it is shared, of the policy's head and of the value's head. For box actions log_std comes last.
  Network(const Shape& shape, const std::vector<long>& offsets, const Real* parameters, Real* gradient)
      : shape(shape), x_(kBlockRows * padded<Real>(shape.obs_size)) {
    std::size_t at = 0;
    auto linear = [&](long in, long out) {
      Linear<Real> layer(
          parameters + offsets[at], parameters + offsets[at + 1], gradient + offsets[at], gradient + offsets[at + 1], in,
          out);
      at += 2;
      return layer;
    };
    for (int t = 0; t < num_trunks(); t++) {
      long in = shape.obs_size;
      for (long out : shape.hidden) {
        trunks_[t].layers.push_back(linear(in, out));
        in = out;
      }
      trunks_[t].allocate();
    }
    policy_head_ = std::make_unique<Linear<Real>>(linear(shape.hidden.back(), shape.num_outputs));
    value_head_ = std::make_unique<Linear<Real>>(linear(shape.hidden.back(), 1));
    if (shape.is_box) {
      log_std_ = parameters + offsets[at];
      log_std_gradient_ = gradient + offsets[at];
    }
    params_ = Buffer<Real>(kBlockRows * policy_head_->out_width);
    values_ = Buffer<Real>(kBlockRows * value_head_->out_width);
    dparams_ = Buffer<Real>(kBlockRows * policy_head_->out_width);
    dvalues_ = Buffer<Real>(kBlockRows * value_head_->out_width);
    dlog_std_ = Buffer<Real>(shape.num_outputs);
  }

  const Shape shape;

  long num_params() const { return shape.num_outputs * (shape.is_box ? 2 : 1); }
  const Real* log_std() const { return log_std_; }

  // Pack the current weights. Call it after they have changed and before the functions below.
  void refresh() {
    for_each_layer([](Linear<Real>& layer) { layer.refresh(); });
  }

  // Write action parameters [n, num_params] of observations [n, obs_size].
  void policy_rows(const Real* obs, long n, Real* params) {
    for (long r0 = 0; r0 < n; r0 += kBlockRows) {
      const long rows = std::min(kBlockRows, n - r0);
      load(obs + r0 * shape.obs_size, nullptr, 0, rows);
      forward_policy(rows);
      for (long r = 0; r < rows; r++) {
        Real* row = params + (r0 + r) * num_params();
        std::copy_n(params_.get() + r * policy_head_->out_width, shape.num_outputs, row);
        if (shape.is_box) std::copy_n(log_std_, shape.num_outputs, row + shape.num_outputs);
      }
    }
  }

  // Write values [n] of observations [n, obs_size].
  void value_rows(const Real* obs, long n, Real* values) {
    for (long r0 = 0; r0 < n; r0 += kBlockRows) {
      const long rows = std::min(kBlockRows, n - r0);
      load(obs + r0 * shape.obs_size, nullptr, 0, rows);
      head(*value_head_, trunks_[num_trunks() - 1].forward(shape.activation, x_.get(), rows), rows, values_.get());
      for (long r = 0; r < rows; r++) values[r0 + r] = values_.get()[r * value_head_->out_width];
    }
  }

  // Compute the gradient of a loss that is a sum over n rows. For each block of rows `loss(first, rows, params, values,
  // dparams, dvalues, dlog_std)` gets the outputs, writes the gradient by them, and adds the gradient by log_std. Rows
  // of params and values are params_width and values_width apart. order: the observations of the rows; null: the first
  // n.
  template <class Loss>
  void accumulate(const Real* obs, const int64_t* order, long n, Loss&& loss) {
    for_each_layer([](Linear<Real>& layer) { layer.zero_gradient(); });
    dlog_std_.zero();
    for (long r0 = 0; r0 < n; r0 += kBlockRows) {
      const long rows = std::min(kBlockRows, n - r0);
      // Forward, loss, backward, block by block.
      load(obs, order, r0, rows);
      const Real* hidden = forward_policy(rows);
      const Real* value_hidden =
          shape.shared_trunk ? hidden : trunks_[1].forward(shape.activation, x_.get(), rows);
      head(*value_head_, value_hidden, rows, values_.get());
      loss(r0, rows, params_.get(), values_.get(), dparams_.get(), dvalues_.get(), dlog_std_.get());
      descend(*policy_head_, trunks_[0], dparams_.get(), rows, false);
      descend(*value_head_, trunks_[num_trunks() - 1], dvalues_.get(), rows, shape.shared_trunk);
      for (int t = 0; t < num_trunks(); t++) trunks_[t].backward(shape.activation, x_.get(), rows);
    }
  }

  long params_width() const { return policy_head_->out_width; }
  long values_width() const { return value_head_->out_width; }

  // Write the gradient that `accumulate` computed to the flat vector.
  void write_gradient() {
    for_each_layer([](Linear<Real>& layer) { layer.write_gradient(); });
    if (shape.is_box) std::copy_n(dlog_std_.get(), shape.num_outputs, log_std_gradient_);
  }

 private:
  int num_trunks() const { return shape.shared_trunk ? 1 : 2; }

  template <class F>
  void for_each_layer(F&& f) {
    for (int t = 0; t < num_trunks(); t++)
      for (auto& layer : trunks_[t].layers) f(layer);
    f(*policy_head_);
    f(*value_head_);
  }

  // Copy a block of observations into x_, padded to whole vectors.
  void load(const Real* obs, const int64_t* order, long first, long rows) {
    const long size = shape.obs_size, width = padded<Real>(size);
    for (long r = 0; r < rows; r++)
      std::copy_n(obs + (order ? order[first + r] : r + first) * size, size, x_.get() + r * width);
  }

  void head(const Linear<Real>& layer, const Real* hidden, long rows, Real* out) {
    layer.forward(hidden, rows, Affine<Real>{layer.bias(), out, layer.out_width});
  }

  const Real* forward_policy(long rows) {
    const Real* hidden = trunks_[0].forward(shape.activation, x_.get(), rows);
    head(*policy_head_, hidden, rows, params_.get());
    return hidden;
  }

  // Backward through a head: into the gradient before the trunk's last activation.
  void descend(Linear<Real>& layer, Trunk<Real>& trunk, const Real* dz, long rows, bool adds) {
    const Real* hidden = trunk.outputs.back().get();
    layer.accumulate(hidden, dz, rows);
    layer.backward(dz, rows, Descended<Real>{shape.activation, hidden, trunk.slopes.back().get(), layer.in_width, adds});
  }

  const Real* log_std_ = nullptr;
  Real* log_std_gradient_ = nullptr;
  Trunk<Real> trunks_[2];
  std::unique_ptr<Linear<Real>> policy_head_, value_head_;
  Buffer<Real> x_, params_, values_, dparams_, dvalues_, dlog_std_;
};

}  // namespace ddppo
