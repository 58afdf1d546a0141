// The MLP of ddppo/models/actor_critic.py, forward and backward: separate or shared hidden layers, and two linear
// heads.
//
// Rows (samples) are computed in blocks of kBlockRows, which stay in the cache from the observation to the gradient.
// Weights [out, in] are read from torch's flat vector of parameters, and packed for the products by `refresh`, which
// must be called after every change of them. Read from bottom to top: Network, Trunk, Linear of layers.hpp, and
// the products of matrix.hpp.
//
// A loss that torch computes needs the outputs of a whole minibatch first: `forward_rows` keeps the activations of all its
// rows, and `accumulate` then goes backward from them.
//
// The rows of a gradient belong to S shards, whose gradients are summed apart (dist.reduction=ordered; else S = 1).
// Only products that sum over rows are computed by shard. All other numbers of a row depend on that row alone, so a
// block may hold rows of several shards.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "layers.hpp"

namespace ddppo {

constexpr long kBlockRows = 96;

// Hidden layers ----------------------------------------------------------------------------------------------------

template <class Real>
struct Trunk {
  std::vector<Linear<Real>> layers;
  std::vector<LayerNorm<Real>> norms;  // one behind each layer, or none at all
  std::vector<Buffer<Real>> xhats, inverses;  // of the same rows as `outputs`: what norms keep for their gradient
  std::vector<Buffer<Real>> outputs;  // activations: of the current block, or of all rows that are kept
  std::vector<Buffer<Real>> derivatives;  // f'(x) of the same rows, for activations that keep it
  std::vector<Buffer<Real>> slopes;   // gradients before the activation, of the current block
  long at = 0;                        // first row of the current block in `outputs`

  void allocate(Activation kind, long rows) {
    outputs.clear();
    derivatives.clear();
    xhats.clear();
    inverses.clear();
    for (const auto& layer : layers) {
      outputs.emplace_back(rows * layer.out_width);
      if (!norms.empty()) xhats.emplace_back(rows * layer.out_width), inverses.emplace_back(rows);
      if (keeps_derivative(kind)) derivatives.emplace_back(rows * layer.out_width);
    }
    while (slopes.size() < layers.size()) slopes.emplace_back(kBlockRows * layers[slopes.size()].out_width);
  }

  Real* output(std::size_t l) const { return outputs[l].get() + at * layers[l].out_width; }
  Real* derivative_of(std::size_t l) const {
    return derivatives.empty() ? nullptr : derivatives[l].get() + at * layers[l].out_width;
  }

  Real* xhat(std::size_t l) const { return xhats[l].get() + at * layers[l].out_width; }
  Real* inverses_of(std::size_t l) const { return inverses[l].get() + at; }

  const Real* forward(Activation kind, const Real* x, long rows) {
    for (std::size_t l = 0; l < layers.size(); l++) {
      const long width = layers[l].out_width;
      if (norms.empty()) {
        layers[l].forward(x, rows, Activated<Real>{kind, layers[l].bias(), output(l), derivative_of(l), width});
      } else {
        layers[l].forward(x, rows, Affine<Real>{layers[l].bias(), xhat(l), width});
        norms[l].forward(kind, rows, xhat(l), inverses_of(l), output(l), derivative_of(l));
      }
      x = output(l);
    }
    return x;
  }

  // Backward from the last layer, with its gradient in slopes.back(), to the first.
  void backward(
      Activation kind, const Real* x, long rows, const std::vector<Piece>& pieces, const Gradients<Real>& to) {
    for (std::size_t l = layers.size(); l-- > 0;) {
      Real* dz = slopes[l].get();
      if (!norms.empty()) {
        for (const auto& [shard, first, num] : pieces)
          norms[l].accumulate(
              xhat(l) + first * layers[l].out_width, dz + first * layers[l].out_width, num, shard);
        norms[l].backward(xhat(l), inverses_of(l), rows, dz);
      }
      accumulate_pieces<Real>(layers[l], l ? output(l - 1) : x, dz, pieces, to);
      if (l)
        layers[l].backward(
            dz, rows,
            Descended<Real>{
                kind, output(l - 1), derivative_of(l - 1), slopes[l - 1].get(), layers[l - 1].out_width, false});
    }
  }
};

// The network ------------------------------------------------------------------------------------------------------

struct Shape {
  Activation activation;
  bool shared_trunk, layer_norm;
  // Of a box: log standard deviations are parameters beside the network, or the second half of the policy head's
  // outputs, limited to kLogStdLow and kLogStdHigh.
  bool has_log_std, puts_out_log_std;
  long obs_size, num_outputs;  // of the policy head
  std::vector<long> hidden;
};

constexpr double kLogStdLow = -20, kLogStdHigh = 2;  // LOG_STD_RANGE of ddppo/config/model_settings.py

template <class Real>
inline V<Real> limited(V<Real> log_std) {
  const V<Real> low = Simd<Real>::all(Real(kLogStdLow)), high = Simd<Real>::all(Real(kLogStdHigh));
  log_std = log_std < low ? low : log_std;
  return log_std > high ? high : log_std;
}

template <class Real>
class Network {
 public:
  // offsets: positions in the flat vector of weight and bias, for every layer of the policy's trunk, of the value's
  // trunk unless it is shared, of the policy's head and of the value's head. With layer_norm, gain and shift follow
  // those of each layer of a trunk. With has_log_std, log_std comes last.
  Network(const Shape& shape, const std::vector<long>& offsets, const Real* parameters)
      : shape(shape), x_(kBlockRows * padded<Real>(shape.obs_size)) {
    std::size_t at = 0;
    auto linear = [&](long in, long out) {
      Linear<Real> layer(parameters, offsets[at], offsets[at + 1], in, out);
      at += 2;
      return layer;
    };
    for (int t = 0; t < num_trunks(); t++) {
      long in = shape.obs_size;
      for (long out : shape.hidden) {
        trunks_[t].layers.push_back(linear(in, out));
        if (shape.layer_norm) {
          trunks_[t].norms.emplace_back(parameters, offsets[at], offsets[at + 1], out);
          at += 2;
        }
        in = out;
      }
    }
    policy_head_ = std::make_unique<Linear<Real>>(linear(shape.hidden.back(), shape.num_outputs));
    value_head_ = std::make_unique<Linear<Real>>(linear(shape.hidden.back(), 1));
    if (shape.has_log_std) log_std_ = parameters + (log_std_at_ = offsets[at]);
    allocate_outputs(kBlockRows);
    dparams_ = Buffer<Real>(kBlockRows * policy_head_->out_width);
    dvalues_ = Buffer<Real>(kBlockRows * value_head_->out_width);
  }

  const Shape shape;

  long num_params() const { return shape.num_outputs * (shape.has_log_std ? 2 : 1); }
  // The parameters beside the network, or null.
  const Real* log_std() const { return log_std_; }

  void make_sums(long num_shards) {
    for_each_layer([&](auto& layer) { layer.make_sums(num_shards); });
  }

  // Pack the current weights. Call it after they have changed and before the functions below.
  void refresh() {
    for_each_layer([](auto& layer) { layer.refresh(); });
  }

  // Write action parameters [n, num_params] of observations [n, obs_size].
  void policy_rows(const Real* obs, long n, Real* params) {
    move_to(0);
    for (long r0 = 0; r0 < n; r0 += kBlockRows) {
      const long rows = std::min(kBlockRows, n - r0);
      load(obs + r0 * shape.obs_size, nullptr, 0, rows);
      forward_policy(rows);
      copy_params(rows, params + r0 * num_params());
    }
  }

  // Write values [n] of observations [n, obs_size].
  void value_rows(const Real* obs, long n, Real* values) {
    move_to(0);
    for (long r0 = 0; r0 < n; r0 += kBlockRows) {
      const long rows = std::min(kBlockRows, n - r0);
      load(obs + r0 * shape.obs_size, nullptr, 0, rows);
      head(*value_head_, trunks_[num_trunks() - 1].forward(shape.activation, x_.get(), rows), rows, this->values());
      copy_values(rows, values + r0);
    }
  }

  // Write action parameters and values of n rows of a minibatch, from row `begin` on, and keep all activations for the
  // next call of `accumulate` of the same rows.
  void forward_rows(const Real* obs, const int64_t* order, long begin, long n, Real* params, Real* values) {
    if (n > kept_rows_) allocate_outputs(kept_rows_ = n + n / 4);
    for (long r0 = 0; r0 < n; r0 += kBlockRows) {
      const long rows = std::min(kBlockRows, n - r0);
      move_to(r0);
      load(obs, order, begin + r0, rows);
      forward(rows);
      copy_params(rows, params + r0 * num_params());
      copy_values(rows, values + r0);
    }
  }

  // Compute, for each shard, the gradient of a loss that is a sum over rows. Shard s has the rows [bounds[s],
  // bounds[s + 1]); row r is the observation order[r], or observation r if order is null. For the rows of a piece
  // `loss(shard, first, rows, params, values, dparams, dvalues, dlog_std)` gets the outputs, writes the gradient by
  // them (by limited log standard deviations), and adds the gradient by log_std; `first` is a row of the minibatch. Rows of params and values are
  // params_width and values_width apart. is_kept: `forward_rows` was called for these rows.
  template <class Loss>
  void accumulate(
      const Real* obs, const int64_t* order, const int64_t* bounds, bool is_kept, const Gradients<Real>& to,
      Loss&& loss) {
    for (long s = 0; s < to.num_shards; s++) {
      for_each_layer([&](auto& layer) { layer.zero_gradient(s, to.of(s)); });
      if (shape.has_log_std) std::fill_n(to.of(s) + log_std_at_, shape.num_outputs, Real(0));
    }
    // Cut each shard into pieces of kBlockRows and a rest, wherever it begins in the minibatch, so that its sums are
    // the same beside any other shards. Fill blocks with whole pieces.
    std::vector<Piece> pieces;
    long begin = bounds[0], filled = 0;  // of the block: its first row, and its number of rows
    auto finish = [&] {
      if (filled) {
        move_to(is_kept ? begin - bounds[0] : 0);
        load(obs, order, begin, filled);
        if (!is_kept) forward(filled);
        block(begin, filled, pieces, to, loss);
      }
      pieces.clear();
      begin += filled;
      filled = 0;
    };
    for (long s = 0; s < to.num_shards; s++)
      for (long r = bounds[s]; r < bounds[s + 1]; r += kBlockRows) {
        const long rows = std::min<long>(kBlockRows, bounds[s + 1] - r);
        if (filled + rows > kBlockRows) finish();
        pieces.push_back({s, filled, rows});
        filled += rows;
      }
    finish();
    for (long s = 0; s < to.num_shards; s++)
      for_each_layer([&](auto& layer) { layer.write_gradient(s, to.of(s)); });
  }

  long params_width() const { return policy_head_->out_width; }
  long values_width() const { return value_head_->out_width; }

 private:
  int num_trunks() const { return shape.shared_trunk ? 1 : 2; }

  template <class F>
  void for_each_layer(F&& f) {
    for (int t = 0; t < num_trunks(); t++) {
      for (auto& layer : trunks_[t].layers) f(layer);
      for (auto& norm : trunks_[t].norms) f(norm);
    }
    f(*policy_head_);
    f(*value_head_);
  }

  // Forward of a block of rows, whose observations are loaded.
  void forward(long rows) {
    const Real* hidden = forward_policy(rows);
    const Real* value_hidden = shape.shared_trunk ? hidden : trunks_[1].forward(shape.activation, x_.get(), rows);
    head(*value_head_, value_hidden, rows, values());
  }

  // Loss and backward of a block of rows, which begins at row `begin` of the minibatch.
  template <class Loss>
  void block(long begin, long rows, const std::vector<Piece>& pieces, const Gradients<Real>& to, Loss&& loss) {
    for (const auto& [shard, first, num] : pieces)
      loss(
          shard, begin + first, num, params() + first * params_width(), values() + first * values_width(),
          dparams_.get() + first * params_width(), dvalues_.get() + first * values_width(),
          shape.has_log_std ? to.of(shard) + log_std_at_ : nullptr);
    if (shape.puts_out_log_std) limit_slopes(rows);
    descend(*policy_head_, trunks_[0], dparams_.get(), rows, false, pieces, to);
    descend(*value_head_, trunks_[num_trunks() - 1], dvalues_.get(), rows, shape.shared_trunk, pieces, to);
    for (int t = 0; t < num_trunks(); t++) trunks_[t].backward(shape.activation, x_.get(), rows, pieces, to);
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
    head(*policy_head_, hidden, rows, params());
    return hidden;
  }

  // Outputs of the current block, which begins at row `at` of those that are kept.
  Real* params() const { return params_.get() + trunks_[0].at * params_width(); }
  Real* values() const { return values_.get() + trunks_[0].at * values_width(); }

  void move_to(long at) {
    for (Trunk<Real>& trunk : trunks_) trunk.at = at;
  }

  void allocate_outputs(long rows) {
    for (int t = 0; t < num_trunks(); t++) trunks_[t].allocate(shape.activation, rows);
    params_ = Buffer<Real>(rows * params_width());
    values_ = Buffer<Real>(rows * values_width());
  }

  // Copy the outputs of the current block: [rows, num_params] and [rows].
  void copy_params(long rows, Real* to) const {
    for (long r = 0; r < rows; r++, to += num_params()) {
      std::copy_n(params() + r * params_width(), shape.num_outputs, to);
      if (shape.has_log_std) std::copy_n(log_std_, shape.num_outputs, to + shape.num_outputs);
      if (shape.puts_out_log_std)
        for (long j = shape.num_outputs / 2; j < shape.num_outputs; j++)
          to[j] = std::min(std::max(to[j], Real(kLogStdLow)), Real(kLogStdHigh));
    }
  }
  void copy_values(long rows, Real* to) const {
    for (long r = 0; r < rows; r++) to[r] = values()[r * values_width()];
  }

  // Outputs beyond the limits of log standard deviations have no gradient. A NaN keeps its own.
  void limit_slopes(long rows) {
    for (long r = 0; r < rows; r++)
      for (long j = shape.num_outputs / 2; j < shape.num_outputs; j++) {
        const Real x = params()[r * params_width() + j];
        if (x < Real(kLogStdLow) || x > Real(kLogStdHigh)) dparams_.get()[r * params_width() + j] = 0;
      }
  }

  // Backward through a head: into the gradient before the trunk's last activation.
  void descend(
      Linear<Real>& layer, Trunk<Real>& trunk, const Real* dz, long rows, bool adds, const std::vector<Piece>& pieces,
      const Gradients<Real>& to) {
    const Real* hidden = trunk.output(trunk.layers.size() - 1);
    accumulate_pieces<Real>(layer, hidden, dz, pieces, to);
    const Real* derivative = trunk.derivative_of(trunk.layers.size() - 1);
    layer.backward(
        dz, rows,
        Descended<Real>{shape.activation, hidden, derivative, trunk.slopes.back().get(), layer.in_width, adds});
  }

  const Real* log_std_ = nullptr;
  long log_std_at_ = 0, kept_rows_ = kBlockRows;
  Trunk<Real> trunks_[2];
  std::unique_ptr<Linear<Real>> policy_head_, value_head_;
  Buffer<Real> x_, params_, values_, dparams_, dvalues_;
};

}  // namespace ddppo
