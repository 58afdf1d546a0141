// A multi-layer perceptron with two linear heads, forward and backward: the MLP of ddppo/models/actor_critic.py, or a
// network of a user's own that has such layers (ddppo/ppo/cpp/network.py). Hidden layers are shared by policy and values,
// or belong to one of them:
//
//   observation -> shared layers -> layers of the policy -> policy's head
//                               \-> layers of the values -> value's head
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
struct Trunk {  // hidden layers in a row, perhaps none
  struct Hidden {
    Linear<Real> linear;
    std::unique_ptr<LayerNorm<Real>> norm;  // behind the product, or null
    Activation kind;
    Buffer<Real> xhat, inverses;  // of the same rows as `output`: what the norm keeps for its gradient
    Buffer<Real> output;          // activations: of the current block, or of all rows that are kept
    Buffer<Real> derivative;      // f'(x) of the same rows, for activations that keep it
    Buffer<Real> slope;           // the gradient before the activation, of the current block
  };
  std::vector<Hidden> layers;
  long at = 0;  // first row of the current block in what is kept

  bool empty() const { return layers.empty(); }
  Hidden& last() { return layers.back(); }

  void allocate(long rows) {
    for (Hidden& layer : layers) {
      const long size = rows * layer.linear.out_width;
      layer.output = Buffer<Real>(size);
      if (layer.norm) layer.xhat = Buffer<Real>(size), layer.inverses = Buffer<Real>(rows);
      if (keeps_derivative(layer.kind)) layer.derivative = Buffer<Real>(size);
      if (!layer.slope.size()) layer.slope = Buffer<Real>(kBlockRows * layer.linear.out_width);
    }
  }

  // Rows of the current block.
  Real* output(const Hidden& layer) const { return layer.output.get() + at * layer.linear.out_width; }
  Real* xhat(const Hidden& layer) const { return layer.xhat.get() + at * layer.linear.out_width; }
  Real* inverses(const Hidden& layer) const { return layer.inverses.get() + at; }
  Real* derivative(const Hidden& layer) const {
    return keeps_derivative(layer.kind) ? layer.derivative.get() + at * layer.linear.out_width : nullptr;
  }
  // The outputs of the last layer, or x without layers.
  const Real* output(const Real* x) const { return empty() ? x : output(layers.back()); }

  const Real* forward(const Real* x, long rows) {
    for (const Hidden& layer : layers) {
      const Linear<Real>& linear = layer.linear;
      const long width = linear.out_width;
      if (!layer.norm) {
        linear.forward(x, rows, Activated<Real>{layer.kind, linear.bias(), output(layer), derivative(layer), width});
      } else {
        linear.forward(x, rows, Affine<Real>{linear.bias(), xhat(layer), width});
        layer.norm->forward(layer.kind, rows, xhat(layer), inverses(layer), output(layer), derivative(layer));
      }
      x = output(layer);
    }
    return x;
  }

  // Go backward through a layer above, from the gradient `dz` by its outputs into the slopes of the last layer here;
  // `adds`: to those that another layer above has left there.
  void descend(const Linear<Real>& above, const Real* dz, long rows, bool adds) {
    descend_to(layers.back(), above, dz, rows, adds);
  }

  // Backward from the last layer, with its gradient in `slope`, to the first. x: inputs of the first.
  void backward(const Real* x, long rows, const std::vector<Piece>& pieces, const Gradients<Real>& to) {
    for (std::size_t l = layers.size(); l-- > 0;) {
      Hidden& layer = layers[l];
      Real* dz = layer.slope.get();
      if (layer.norm) {
        const long width = layer.linear.out_width;
        for (const auto& [shard, first, num] : pieces)
          layer.norm->accumulate(xhat(layer) + first * width, dz + first * width, num, shard);
        layer.norm->backward(xhat(layer), inverses(layer), rows, dz);
      }
      accumulate_pieces<Real>(layer.linear, l ? output(layers[l - 1]) : x, dz, pieces, to);
      if (l) descend_to(layers[l - 1], layer.linear, dz, rows, false);
    }
  }

 private:
  void descend_to(Hidden& layer, const Linear<Real>& above, const Real* dz, long rows, bool adds) {
    above.backward(
        dz, rows,
        Descended<Real>{
            layer.kind, output(layer), derivative(layer), layer.slope.get(), layer.linear.out_width, adds});
  }
};

// The network ------------------------------------------------------------------------------------------------------

struct HiddenShape {
  long width;
  Activation activation;
  bool has_norm;
};

enum { kShared, kPolicy, kValue, kNumTrunks };

struct Shape {
  std::vector<HiddenShape> trunks[kNumTrunks];
  // Of a box: log standard deviations are parameters beside the network, or the second half of the policy head's
  // outputs, limited to kLogStdLow and kLogStdHigh.
  bool has_log_std, puts_out_log_std;
  long obs_size, num_outputs;  // of the policy head
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
  // offsets: positions in the flat vector of weight and bias (-1 for none), for every hidden layer of the three trunks,
  // of the policy's head and of the value's head. Gain and shift of a layer with a norm follow its own. With
  // has_log_std, log_std comes last.
  Network(const Shape& shape, const std::vector<long>& offsets, const Real* parameters)
      : shape(shape), x_(kBlockRows * padded<Real>(shape.obs_size)) {
    std::size_t at = 0;
    auto linear = [&](long in, long out) {
      at += 2;
      return Linear<Real>(parameters, offsets[at - 2], offsets[at - 1], in, out);
    };
    long widths[kNumTrunks];  // of the outputs
    for (int t = 0; t < kNumTrunks; t++) {
      long& in = widths[t] = t == kShared ? shape.obs_size : widths[kShared];
      for (const auto& [out, activation, has_norm] : shape.trunks[t]) {
        trunks_[t].layers.push_back({linear(in, out), nullptr, activation, {}, {}, {}, {}, {}});
        if (has_norm) {
          trunks_[t].last().norm =
              std::make_unique<LayerNorm<Real>>(parameters, offsets[at], offsets[at + 1], out);
          at += 2;
        }
        in = out;
      }
    }
    policy_head_ = std::make_unique<Linear<Real>>(linear(widths[kPolicy], shape.num_outputs));
    value_head_ = std::make_unique<Linear<Real>>(linear(widths[kValue], 1));
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
      forward_shared(rows);
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
      forward_shared(rows);
      forward_value(rows);
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
  template <class F>
  void for_each_layer(F&& f) {
    for (Trunk<Real>& trunk : trunks_)
      for (auto& layer : trunk.layers) {
        f(layer.linear);
        if (layer.norm) f(*layer.norm);
      }
    f(*policy_head_);
    f(*value_head_);
  }

  // Forward of a block of rows, whose observations are loaded.
  void forward(long rows) {
    forward_shared(rows);
    forward_policy(rows);
    forward_value(rows);
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
    // Backward: heads, the layers of each, and the shared ones, into which both lead.
    const Real* shared = trunks_[kShared].output(x_.get());
    bool is_begun = false;  // whether the shared layers have slopes
    auto to_shared = [&](const Linear<Real>& above, const Real* dz) {
      if (trunks_[kShared].empty()) return;
      trunks_[kShared].descend(above, dz, rows, is_begun);
      is_begun = true;
    };
    auto branch = [&](Linear<Real>& head, Trunk<Real>& trunk, const Real* dz) {
      accumulate_pieces<Real>(head, trunk.output(shared), dz, pieces, to);
      if (trunk.empty()) return to_shared(head, dz);
      trunk.descend(head, dz, rows, false);
      trunk.backward(shared, rows, pieces, to);
      to_shared(trunk.layers.front().linear, trunk.layers.front().slope.get());
    };
    branch(*policy_head_, trunks_[kPolicy], dparams_.get());
    branch(*value_head_, trunks_[kValue], dvalues_.get());
    trunks_[kShared].backward(x_.get(), rows, pieces, to);
  }

  // Copy a block of observations into x_, padded to whole vectors.
  void load(const Real* obs, const int64_t* order, long first, long rows) {
    const long size = shape.obs_size, width = padded<Real>(size);
    for (long r = 0; r < rows; r++)
      std::copy_n(obs + (order ? order[first + r] : r + first) * size, size, x_.get() + r * width);
  }

  void forward_shared(long rows) { trunks_[kShared].forward(x_.get(), rows); }
  void forward_policy(long rows) { forward(trunks_[kPolicy], *policy_head_, rows, params()); }
  void forward_value(long rows) { forward(trunks_[kValue], *value_head_, rows, values()); }

  void forward(Trunk<Real>& trunk, const Linear<Real>& head, long rows, Real* out) {
    const Real* hidden = trunk.forward(trunks_[kShared].output(x_.get()), rows);
    head.forward(hidden, rows, Affine<Real>{head.bias(), out, head.out_width});
  }

  // Outputs of the current block, which begins at row `at` of those that are kept.
  Real* params() const { return params_.get() + trunks_[kPolicy].at * params_width(); }
  Real* values() const { return values_.get() + trunks_[kPolicy].at * values_width(); }

  void move_to(long at) {
    for (Trunk<Real>& trunk : trunks_) trunk.at = at;
  }

  void allocate_outputs(long rows) {
    for (Trunk<Real>& trunk : trunks_) trunk.allocate(rows);
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

  const Real* log_std_ = nullptr;
  long log_std_at_ = 0, kept_rows_ = kBlockRows;
  Trunk<Real> trunks_[kNumTrunks];
  std::unique_ptr<Linear<Real>> policy_head_, value_head_;
  Buffer<Real> x_, params_, values_, dparams_, dvalues_;
};

}  // namespace ddppo
