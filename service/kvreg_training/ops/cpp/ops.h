// The ops of torch_ops.py as fused single-thread CPU loops, forward and backward.
//
// All tensors are contiguous fp32. Built with -ffast-math: sums are reassociated and infinities are
// not honoured; evaluation/checks.py compares the logits and gradients with those of transformers.
#pragma once

#include <torch/extension.h>

#include <cmath>
#include <optional>
#include <vector>

namespace kvreg {

using torch::Tensor;

inline float* data(const Tensor& tensor) { return tensor.data_ptr<float>(); }

inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

inline float silu(float x) { return x / (1.f + expf(-x)); }

// d silu(x) / dx, given sigmoid(x).
inline float silu_slope(float x, float sigmoid_x) {
  return sigmoid_x * (1.f + x * (1.f - sigmoid_x));
}

// x [B, T, C], weight [4, C]: a convolution per channel, then SiLU.
Tensor causal_conv_silu_forward(Tensor x, Tensor weight);
std::vector<Tensor> causal_conv_silu_backward(Tensor x, Tensor weight, Tensor grad_y);

// qkv [B, T, C] after convolution and SiLU, log_decay and beta [B, T, HV].
// Returns the output [B, T, HV, V], and the states from which the backward pass recomputes.
std::vector<Tensor> gated_delta_rule_forward(Tensor qkv, Tensor log_decay, Tensor beta,
                                             int key_heads, int value_heads);
std::vector<Tensor> gated_delta_rule_backward(Tensor qkv, Tensor log_decay, Tensor beta,
                                              Tensor saved, Tensor grad_out, int key_heads,
                                              int value_heads);

// y = weight * x / rms(x) [* silu(gate)]. The third gradient exists if there is a gate.
Tensor rms_norm_forward(Tensor x, Tensor weight, std::optional<Tensor> gate, double epsilon);
std::vector<Tensor> rms_norm_backward(Tensor x, Tensor weight, std::optional<Tensor> gate,
                                      Tensor grad_y, double epsilon);

// y = silu(gate) * up
Tensor swiglu_forward(Tensor gate, Tensor up);
std::vector<Tensor> swiglu_backward(Tensor gate, Tensor up, Tensor grad_y);

// Returns the weighted sum. The logits are overwritten by their gradient, which saves a second
// tensor of the size of the vocabulary.
double weighted_cross_entropy(Tensor logits, Tensor targets, Tensor weights);

}  // namespace kvreg
