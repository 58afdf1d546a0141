// A network of linear layers with two linear heads, forward and backward: the MLP of ddppo/models/actor_critic.py, or a
// network of a user's own that has such layers (ddppo/ppo/cpp/network.py). Each layer reads the observation or earlier
// layers:
//
//   linear layer   one of them, whole: f(norm(x W^T + b)), norm and activation f optional
//   joined layer   columns of several, beside one another or added: f(norm(their sum)); residual additions, torch.cat
//
// Both heads read a layer or the observation. Layers before the policy's head may also be before the value's: shared.
//
// Rows (samples) are computed in blocks of kBlockRows, which stay in the cache from the observation to the gradient.
// Weights [out, in] are read from torch's flat vector of parameters, and packed for the products by `refresh`, which
// must be called after every change of them. Read from bottom to top: Network, Layer, Linear of layers.hpp, and
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

// Layers -----------------------------------------------------------------------------------------------------------

constexpr long kObs = -1;  // in place of a layer: the observation

// Columns [first, first + width) of what a layer reads, added to its inputs from `column` on.
struct Source {
  long layer, first, width, column;
};

template <class Real>
struct Layer {
  std::vector<Source> sources;             // of a linear layer: one, all of its columns
  long width, out_width;                   // of the outputs, and padded to whole vectors
  std::unique_ptr<Linear<Real>> linear;    // null: a joined layer
  std::unique_ptr<LayerNorm<Real>> norm;   // or null
  Activation kind;
  bool of_policy, of_value;                // whether the head of each depends on it
  bool is_joined;                          // a joined layer reads it
  Buffer<Real> xhat, inverses;             // of the same rows as `outputs`: what the norm keeps for its gradient
  Buffer<Real> outputs;                    // activations: of the current block, or of all rows that are kept
  Buffer<Real> derivatives;                // f'(x) of the same rows, for activations that keep it
  Buffer<Real> slope;                      // the gradient before the activation, of the current block;
                                           // of a layer that is_joined: behind it, until `backward`
  bool is_begun = false;                   // whether layers above have left something in `slope` of this block
  long at = 0;                             // first row of the current block in what is kept

  void allocate(long rows) {
    outputs = Buffer<Real>(rows * out_width);
    if (norm) xhat = Buffer<Real>(rows * out_width), inverses = Buffer<Real>(rows);
    if (keeps_derivative(kind)) derivatives = Buffer<Real>(rows * out_width);
    if (!slope.size()) slope = Buffer<Real>(kBlockRows * out_width);
  }

  // Rows of the current block.
  Real* output() const { return outputs.get() + at * out_width; }
  Real* derivative() const { return keeps_derivative(kind) ? derivatives.get() + at * out_width : nullptr; }

  // x: inputs of a linear layer. add: of a joined one, `add(to)` writes the sum of its sources.
  template <class Add>
  void forward(const Real* x, long rows, Add&& add) const {
    Real* before = norm ? xhat.get() + at * out_width : output();  // before the norm or the activation
    if (linear && !norm)
      return linear->forward(x, rows, Activated<Real>{kind, linear->bias(), output(), derivative(), out_width});
    if (linear)
      linear->forward(x, rows, Affine<Real>{linear->bias(), before, out_width});
    else
      add(before);
    if (norm)
      norm->forward(kind, rows, before, inverses.get() + at, output(), derivative());
    else if (kind != kIdentity)
      activate_rows(rows);
  }

  // Go backward through a linear layer above, from the gradient `dz` by its outputs into `slope`.
  void descend(const Linear<Real>& above, const Real* dz, long rows) {
    above.backward(
        dz, rows,
        Descended<Real>{
            is_joined ? kIdentity : kind, output(), is_joined ? nullptr : derivative(), slope.get(), out_width, is_begun});
    is_begun = true;
  }

  // Add to `slope` the gradient [rows, dz_width] by the columns from `first` on.
  void add_slopes(long first, long num, const Real* dz, long dz_width, long rows) {
    if (!is_begun) std::memset(slope.get(), 0, rows * out_width * sizeof(Real));
    is_begun = true;
    for (long r = 0; r < rows; r++) {
      Real* to = slope.get() + r * out_width + first;
      for (long j = 0; j < num; j++) to[j] += dz[r * dz_width + j];
    }
  }

  // From the gradient in `slope` to that by the weights, and in `slope` by the inputs of the norm. x: inputs of a linear
  // layer.
  void backward(const Real* x, long rows, const std::vector<Piece>& pieces, const Gradients<Real>& to) {
    Real* dz = slope.get();
    if (is_joined && kind != kIdentity)
      for (long i = 0; i < rows * out_width; i += Simd<Real>::lanes) {
        const V<Real> by = derivative() ? Simd<Real>::load(derivative() + i)
                                        : ddppo::derivative<Real>(kind, Simd<Real>::load(output() + i));
        Simd<Real>::store(dz + i, Simd<Real>::load(dz + i) * by);
      }
    if (norm) {
      const Real* kept = xhat.get() + at * out_width;
      for (const auto& [shard, first, num] : pieces)
        norm->accumulate(kept + first * out_width, dz + first * out_width, num, shard);
      norm->backward(kept, inverses.get() + at, rows, dz);
    }
    if (linear) accumulate_pieces<Real>(*linear, x, dz, pieces, to);
  }

 private:
  void activate_rows(long rows) const {
    for (long i = 0; i < rows * out_width; i += Simd<Real>::lanes) {
      const V<Real> x = Simd<Real>::load(output() + i);
      if (!derivative()) {
        Simd<Real>::store(output() + i, activate<Real>(kind, x));
        continue;
      }
      V<Real> by;
      Simd<Real>::store(output() + i, activate<Real>(kind, x, by));
      Simd<Real>::store(derivative() + i, by);
    }
  }
};

// The network ------------------------------------------------------------------------------------------------------

struct LayerShape {
  long width;
  Activation activation;
  bool has_linear, has_norm;
  std::vector<Source> sources;
};

struct Shape {
  std::vector<LayerShape> layers;  // each behind those that it reads
  long policy, value;              // the layers that the heads read, or kObs
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
  // offsets: positions in the flat vector of weight and bias (-1 for none), for every layer, the policy's head and the
  // value's head. Gain and shift of a norm follow those of its linear layer. With has_log_std, log_std comes last.
  Network(const Shape& shape, const std::vector<long>& offsets, const Real* parameters)
      : shape(shape), x_(kBlockRows * padded<Real>(shape.obs_size)) {
    std::size_t at = 0;
    auto linear = [&](long in, long out) {
      at += 2;
      return std::make_unique<Linear<Real>>(parameters, offsets[at - 2], offsets[at - 1], in, out);
    };
    auto width = [&](long layer) { return layer == kObs ? shape.obs_size : layers_[layer].width; };
    for (const auto& [out, activation, has_linear, has_norm, sources] : shape.layers) {
      Layer<Real> layer{};
      layer.sources = sources, layer.kind = activation, layer.width = out, layer.out_width = padded<Real>(out);
      if (has_linear) layer.linear = linear(width(sources[0].layer), out);
      if (has_norm) {
        layer.norm = std::make_unique<LayerNorm<Real>>(parameters, offsets[at], offsets[at + 1], out);
        at += 2;
      }
      layers_.push_back(std::move(layer));
    }
    policy_head_ = linear(width(shape.policy), shape.num_outputs);
    value_head_ = linear(width(shape.value), 1);
    if (shape.policy != kObs) layers_[shape.policy].of_policy = true;
    if (shape.value != kObs) layers_[shape.value].of_value = true;
    for (long l = long(layers_.size()); l-- > 0;)
      for (const Source& source : layers_[l].sources)
        if (source.layer != kObs) {
          layers_[source.layer].of_policy |= layers_[l].of_policy;
          layers_[source.layer].of_value |= layers_[l].of_value;
          layers_[source.layer].is_joined |= !layers_[l].linear;
        }
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
      forward_layers(rows, [](const Layer<Real>& layer) { return layer.of_policy; });
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
      forward_layers(rows, [](const Layer<Real>& layer) { return layer.of_value; });
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
    for (Layer<Real>& layer : layers_) {
      if (layer.linear) f(*layer.linear);
      if (layer.norm) f(*layer.norm);
    }
    f(*policy_head_);
    f(*value_head_);
  }

  // Forward of a block of rows, whose observations are loaded.
  void forward(long rows) {
    forward_layers(rows, [](const Layer<Real>&) { return true; });
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
    // Backward: heads, then each layer behind all that read it.
    for (Layer<Real>& layer : layers_) layer.is_begun = false;
    auto pass = [&](const Linear<Real>& above, long below, const Real* dz) {
      if (below != kObs) layers_[below].descend(above, dz, rows);
    };
    auto head = [&](Linear<Real>& linear, long below, const Real* dz) {
      accumulate_pieces<Real>(linear, output(below), dz, pieces, to);
      pass(linear, below, dz);
    };
    head(*policy_head_, shape.policy, dparams_.get());
    head(*value_head_, shape.value, dvalues_.get());
    for (std::size_t l = layers_.size(); l-- > 0;) {
      Layer<Real>& layer = layers_[l];
      const long first = layer.sources[0].layer;
      layer.backward(output(first), rows, pieces, to);
      if (layer.linear)
        pass(*layer.linear, first, layer.slope.get());
      else
        for (const Source& source : layer.sources)
          if (source.layer != kObs)
            layers_[source.layer].add_slopes(
                source.first, source.width, layer.slope.get() + source.column, layer.out_width, rows);
    }
  }

  // Copy a block of observations into x_, padded to whole vectors.
  void load(const Real* obs, const int64_t* order, long first, long rows) {
    const long size = shape.obs_size, width = padded<Real>(size);
    for (long r = 0; r < rows; r++)
      std::copy_n(obs + (order ? order[first + r] : r + first) * size, size, x_.get() + r * width);
  }

  template <class F>
  void forward_layers(long rows, F&& is_needed) {
    for (const Layer<Real>& layer : layers_)
      if (is_needed(layer))
        layer.forward(output(layer.sources[0].layer), rows, [&](Real* to) { join(layer, rows, to); });
  }
  void forward_policy(long rows) { forward(*policy_head_, shape.policy, rows, params()); }
  void forward_value(long rows) { forward(*value_head_, shape.value, rows, values()); }

  void forward(const Linear<Real>& head, long layer, long rows, Real* out) {
    head.forward(output(layer), rows, Affine<Real>{head.bias(), out, head.out_width});
  }

  // Write the sum of the sources of a joined layer, in their order. The first of them cover all columns.
  void join(const Layer<Real>& layer, long rows, Real* to) const {
    long covered = 0;
    for (const auto& [below, first, width, column] : layer.sources) {
      const Real* from = output(below) + first;
      const long step = below == kObs ? padded<Real>(shape.obs_size) : layers_[below].out_width;
      for (long r = 0; r < rows; r++) {
        Real* out = to + r * layer.out_width + column;
        if (covered < layer.width)
          std::copy_n(from + r * step, width, out);
        else
          for (long j = 0; j < width; j++) out[j] += from[r * step + j];
      }
      covered += width;
    }
  }

  // The outputs of a layer for the current block, or its observations.
  const Real* output(long layer) const { return layer == kObs ? x_.get() : layers_[layer].output(); }

  // Outputs of the current block, which begins at row `at` of those that are kept.
  Real* params() const { return params_.get() + at_ * params_width(); }
  Real* values() const { return values_.get() + at_ * values_width(); }

  void move_to(long at) {
    at_ = at;
    for (Layer<Real>& layer : layers_) layer.at = at;
  }

  void allocate_outputs(long rows) {
    for (Layer<Real>& layer : layers_) layer.allocate(rows);
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
  long log_std_at_ = 0, kept_rows_ = kBlockRows, at_ = 0;  // at_: first row of the current block in what is kept
  std::vector<Layer<Real>> layers_;
  std::unique_ptr<Linear<Real>> policy_head_, value_head_;
  Buffer<Real> x_, params_, values_, dparams_, dvalues_;
};

}  // namespace ddppo
