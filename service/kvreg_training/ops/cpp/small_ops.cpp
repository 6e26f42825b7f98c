// Convolution, norms, SwiGLU and the loss.
#include "ops.h"

#include <cstring>

namespace kvreg {

namespace {

constexpr int kTaps = 4;

// The convolution at one token, without the taps before `first_tap`, whose tokens are zero.
float convolve(const float* x, const float* weight, int channel, int channels, int first_tap) {
  float sum = 0.f;
  for (int tap = first_tap; tap < kTaps; tap++)
    sum += weight[tap * channels + channel] * x[channel - (kTaps - 1 - tap) * channels];
  return sum;
}

float inverse_rms(const float* x, int size, float epsilon) {
  float sum = 0.f;
  for (int i = 0; i < size; i++) sum += x[i] * x[i];
  return 1.f / sqrtf(sum / size + epsilon);
}

}  // namespace

Tensor causal_conv_silu_forward(Tensor x, Tensor weight) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const int channels = x.size(2);
  auto y = torch::empty_like(x);
  const float* w = data(weight);
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t t = 0; t < tokens; t++) {
      const float* x_t = data(x) + (b * tokens + t) * channels;
      float* y_t = data(y) + (b * tokens + t) * channels;
      if (t >= kTaps - 1) {  // The common case, with a constant trip count.
        for (int c = 0; c < channels; c++) y_t[c] = silu(convolve(x_t, w, c, channels, 0));
      } else {
        const int first_tap = kTaps - 1 - t;
        for (int c = 0; c < channels; c++) y_t[c] = silu(convolve(x_t, w, c, channels, first_tap));
      }
    }
  }
  return y;
}

std::vector<Tensor> causal_conv_silu_backward(Tensor x, Tensor weight, Tensor grad_y) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const int channels = x.size(2);
  auto grad_x = torch::zeros_like(x);
  auto grad_weight = torch::zeros_like(weight);
  const float* w = data(weight);
  float* dw = data(grad_weight);
  std::vector<float> grad_sum(channels);
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t t = 0; t < tokens; t++) {
      const int64_t offset = (b * tokens + t) * channels;
      const float* x_t = data(x) + offset;
      const float* dy = data(grad_y) + offset;
      float* dx_t = data(grad_x) + offset;
      float* ds = grad_sum.data();
      const int first_tap = t >= kTaps - 1 ? 0 : kTaps - 1 - t;
      if (first_tap == 0) {
        for (int c = 0; c < channels; c++) {
          const float sum = convolve(x_t, w, c, channels, 0);
          ds[c] = dy[c] * silu_slope(sum, sigmoid(sum));
        }
      } else {
        for (int c = 0; c < channels; c++) {
          const float sum = convolve(x_t, w, c, channels, first_tap);
          ds[c] = dy[c] * silu_slope(sum, sigmoid(sum));
        }
      }
      for (int tap = first_tap; tap < kTaps; tap++) {
        const int back = (kTaps - 1 - tap) * channels;
        const float* x_tap = x_t - back;
        float* dx_tap = dx_t - back;
        const float* w_tap = w + tap * channels;
        float* dw_tap = dw + tap * channels;
        for (int c = 0; c < channels; c++) {
          dw_tap[c] += ds[c] * x_tap[c];
          dx_tap[c] += ds[c] * w_tap[c];
        }
      }
    }
  }
  return {grad_x, grad_weight};
}

Tensor rms_norm_forward(Tensor x, Tensor weight, std::optional<Tensor> gate, double epsilon) {
  const int size = x.size(-1);
  const int64_t rows = x.numel() / size;
  auto y = torch::empty_like(x);
  const float* w = data(weight);
  for (int64_t row = 0; row < rows; row++) {
    const float* x_r = data(x) + row * size;
    float* y_r = data(y) + row * size;
    const float scale = inverse_rms(x_r, size, epsilon);
    for (int i = 0; i < size; i++) y_r[i] = x_r[i] * scale * w[i];
    if (gate) {
      const float* g = data(*gate) + row * size;
      for (int i = 0; i < size; i++) y_r[i] *= silu(g[i]);
    }
  }
  return y;
}

std::vector<Tensor> rms_norm_backward(Tensor x, Tensor weight, std::optional<Tensor> gate,
                                      Tensor grad_y, double epsilon) {
  const int size = x.size(-1);
  const int64_t rows = x.numel() / size;
  auto grad_x = torch::empty_like(x);
  auto grad_weight = torch::zeros_like(weight);
  std::vector<Tensor> grads = {grad_x, grad_weight};
  if (gate) grads.push_back(torch::empty_like(*gate));
  const float* w = data(weight);
  float* dw = data(grad_weight);
  std::vector<float> grad_normed(size);
  for (int64_t row = 0; row < rows; row++) {
    const float* x_r = data(x) + row * size;
    const float* dy = data(grad_y) + row * size;
    float* dx = data(grad_x) + row * size;
    const float scale = inverse_rms(x_r, size, epsilon);
    if (gate) {
      const float* g = data(*gate) + row * size;
      float* dg = data(grads[2]) + row * size;
      for (int i = 0; i < size; i++) {
        const float s = sigmoid(g[i]);
        grad_normed[i] = dy[i] * g[i] * s;
        dg[i] = dy[i] * x_r[i] * scale * w[i] * silu_slope(g[i], s);
      }
      dy = grad_normed.data();
    }
    float along = 0.f;
    for (int i = 0; i < size; i++) along += dy[i] * w[i] * x_r[i];
    along *= scale * scale / size;
    for (int i = 0; i < size; i++) {
      dx[i] = scale * (dy[i] * w[i] - x_r[i] * along);
      dw[i] += dy[i] * x_r[i] * scale;
    }
  }
  return grads;
}

Tensor swiglu_forward(Tensor gate, Tensor up) {
  auto y = torch::empty_like(gate);
  const int64_t size = gate.numel();
  const float *g = data(gate), *u = data(up);
  float* out = data(y);
  for (int64_t i = 0; i < size; i++) out[i] = silu(g[i]) * u[i];
  return y;
}

std::vector<Tensor> swiglu_backward(Tensor gate, Tensor up, Tensor grad_y) {
  auto grad_gate = torch::empty_like(gate);
  auto grad_up = torch::empty_like(up);
  const int64_t size = gate.numel();
  const float *g = data(gate), *u = data(up), *dy = data(grad_y);
  float *dg = data(grad_gate), *du = data(grad_up);
  for (int64_t i = 0; i < size; i++) {
    const float s = sigmoid(g[i]);
    dg[i] = dy[i] * u[i] * silu_slope(g[i], s);
    du[i] = dy[i] * g[i] * s;
  }
  return {grad_gate, grad_up};
}

double weighted_cross_entropy(Tensor logits, Tensor targets, Tensor weights) {
  const int64_t rows = logits.size(0);
  const int vocabulary = logits.size(1);
  const int64_t* target = targets.data_ptr<int64_t>();
  double loss = 0;
  for (int64_t row = 0; row < rows; row++) {
    float* l = data(logits) + row * vocabulary;
    const float weight = data(weights)[row];
    if (weight == 0.f) {
      memset(l, 0, vocabulary * sizeof(float));
      continue;
    }
    float highest = l[0];
    for (int i = 1; i < vocabulary; i++) highest = l[i] > highest ? l[i] : highest;
    const float target_logit = l[target[row]] - highest;
    float sum = 0.f;
    for (int i = 0; i < vocabulary; i++) {
      l[i] = expf(l[i] - highest);
      sum += l[i];
    }
    loss += weight * (logf(sum) - target_logit);
    const float scale = weight / sum;
    for (int i = 0; i < vocabulary; i++) l[i] *= scale;
    l[target[row]] -= weight;
  }
  return loss;
}

}  // namespace kvreg
