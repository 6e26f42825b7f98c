// The gated delta rule, token by token: a state per sequence and value head, in the L1 cache.
#include "ops.h"

#include <algorithm>
#include <cstring>

namespace kvreg {

namespace {

constexpr int kHead = 32;  // Size of a key head and of a value head.
constexpr int kStateSize = kHead * kHead;
constexpr int kLanes = 8;  // Partial sums that let the compiler use one vector register.

// The backward pass recomputes this many tokens at a time from a saved state.
constexpr int kTokensPerSave = 32;
constexpr float kLengthEpsilon = 1e-6f;
const float kQueryScale = 1.f / sqrtf(static_cast<float>(kHead));

// The offsets of the vectors of one token and value head in a row [queries, keys, values].
struct HeadOffsets {
  int query, key, value;
  HeadOffsets(int value_head, int key_heads, int value_heads) {
    const int key_head = value_head / (value_heads / key_heads);
    query = key_head * kHead;
    key = (key_heads + key_head) * kHead;
    value = (2 * key_heads + value_head) * kHead;
  }
};

// Scales to unit length; the query also by 1/sqrt(head). Returns the inverse lengths.
void to_unit_length(const float* query, const float* key, float* unit_query, float* unit_key,
                    float& inverse_query, float& inverse_key) {
  float query_sum = 0.f, key_sum = 0.f;
  for (int i = 0; i < kHead; i++) {
    query_sum += query[i] * query[i];
    key_sum += key[i] * key[i];
  }
  inverse_query = 1.f / sqrtf(query_sum + kLengthEpsilon);
  inverse_key = 1.f / sqrtf(key_sum + kLengthEpsilon);
  const float scale = inverse_query * kQueryScale;
  for (int i = 0; i < kHead; i++) {
    unit_query[i] = query[i] * scale;
    unit_key[i] = key[i] * inverse_key;
  }
}

// The intermediates of the forward pass of one saved span, token by token.
struct Span {
  std::vector<float> decayed_states, queries, keys, reads, corrections;
  std::vector<float> inverse_queries, inverse_keys, decays;
  Span()
      : decayed_states(kTokensPerSave * kStateSize),
        queries(kTokensPerSave * kHead),
        keys(kTokensPerSave * kHead),
        reads(kTokensPerSave * kHead),
        corrections(kTokensPerSave * kHead),
        inverse_queries(kTokensPerSave),
        inverse_keys(kTokensPerSave),
        decays(kTokensPerSave) {}
};

}  // namespace

std::vector<Tensor> gated_delta_rule_forward(Tensor qkv, Tensor log_decay, Tensor beta,
                                             int key_heads, int value_heads) {
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), channels = qkv.size(2);
  TORCH_CHECK(channels == (2 * key_heads + value_heads) * kHead,
              "the fused gated delta rule is built for heads of ", kHead);
  const int64_t saves = (tokens + kTokensPerSave - 1) / kTokensPerSave;
  auto out = torch::empty({batch, tokens, value_heads, kHead}, qkv.options());
  auto saved = torch::empty({batch, value_heads, saves, kHead, kHead}, qkv.options());
  for (int64_t b = 0; b < batch; b++) {
    for (int h = 0; h < value_heads; h++) {
      const HeadOffsets at(h, key_heads, value_heads);
      alignas(64) float state[kStateSize];
      memset(state, 0, sizeof state);
      for (int64_t t = 0; t < tokens; t++) {
        if (t % kTokensPerSave == 0) {
          const int64_t save = (b * value_heads + h) * saves + t / kTokensPerSave;
          memcpy(data(saved) + save * kStateSize, state, sizeof state);
        }
        const float* row = data(qkv) + (b * tokens + t) * channels;
        const int64_t gate = (b * tokens + t) * value_heads + h;
        alignas(64) float query[kHead], key[kHead], read[kHead], correction[kHead], result[kHead];
        float inverse_query, inverse_key;
        to_unit_length(row + at.query, row + at.key, query, key, inverse_query, inverse_key);
        const float* value = row + at.value;
        const float decay = expf(data(log_decay)[gate]), strength = data(beta)[gate];
        for (int j = 0; j < kHead; j++) read[j] = result[j] = 0.f;
        for (int i = 0; i < kHead; i++) {
          const float k = key[i];
          float* s = state + i * kHead;
          for (int j = 0; j < kHead; j++) {
            s[j] *= decay;
            read[j] += s[j] * k;
          }
        }
        for (int j = 0; j < kHead; j++) correction[j] = strength * (value[j] - read[j]);
        for (int i = 0; i < kHead; i++) {
          const float k = key[i], q = query[i];
          float* s = state + i * kHead;
          for (int j = 0; j < kHead; j++) {
            s[j] += k * correction[j];
            result[j] += s[j] * q;
          }
        }
        memcpy(data(out) + gate * kHead, result, sizeof result);
      }
    }
  }
  return {out, saved};
}

std::vector<Tensor> gated_delta_rule_backward(Tensor qkv, Tensor log_decay, Tensor beta,
                                              Tensor saved, Tensor grad_out, int key_heads,
                                              int value_heads) {
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), channels = qkv.size(2);
  const int64_t saves = saved.size(2);
  auto grad_qkv = torch::zeros_like(qkv);
  auto grad_log_decay = torch::empty_like(log_decay);
  auto grad_beta = torch::empty_like(beta);
  Span span;
  for (int64_t b = 0; b < batch; b++) {
    for (int h = 0; h < value_heads; h++) {
      const HeadOffsets at(h, key_heads, value_heads);
      alignas(64) float grad_state[kStateSize];
      memset(grad_state, 0, sizeof grad_state);
      for (int64_t save = saves - 1; save >= 0; save--) {
        const int64_t first = save * kTokensPerSave;
        const int span_tokens = std::min<int64_t>(kTokensPerSave, tokens - first);
        alignas(64) float state[kStateSize];
        memcpy(state, data(saved) + ((b * value_heads + h) * saves + save) * kStateSize,
               sizeof state);
        for (int u = 0; u < span_tokens; u++) {
          const int64_t token = b * tokens + first + u;
          const float* row = data(qkv) + token * channels;
          const float* value = row + at.value;
          float *key = &span.keys[u * kHead], *correction = &span.corrections[u * kHead];
          float* decayed = &span.decayed_states[u * kStateSize];
          to_unit_length(row + at.query, row + at.key, &span.queries[u * kHead], key,
                         span.inverse_queries[u], span.inverse_keys[u]);
          const float decay = expf(data(log_decay)[token * value_heads + h]);
          const float strength = data(beta)[token * value_heads + h];
          span.decays[u] = decay;
          alignas(64) float read[kHead];
          for (int j = 0; j < kHead; j++) read[j] = 0.f;
          for (int i = 0; i < kHead; i++) {
            const float k = key[i];
            const float* s = state + i * kHead;
            float* d = decayed + i * kHead;
            for (int j = 0; j < kHead; j++) {
              const float x = s[j] * decay;
              d[j] = x;
              read[j] += x * k;
            }
          }
          for (int j = 0; j < kHead; j++) {
            span.reads[u * kHead + j] = read[j];
            correction[j] = strength * (value[j] - read[j]);
          }
          for (int i = 0; i < kHead; i++) {
            const float k = key[i];
            float* s = state + i * kHead;
            const float* d = decayed + i * kHead;
            for (int j = 0; j < kHead; j++) s[j] = d[j] + k * correction[j];
          }
        }
        for (int u = span_tokens - 1; u >= 0; u--) {
          const int64_t token = b * tokens + first + u;
          const int64_t gate = token * value_heads + h;
          const float* value = data(qkv) + token * channels + at.value;
          float* grad_row = data(grad_qkv) + token * channels;
          const float *query = &span.queries[u * kHead], *key = &span.keys[u * kHead];
          const float *read = &span.reads[u * kHead];
          const float* decayed = &span.decayed_states[u * kStateSize];
          const float strength = data(beta)[gate], decay = span.decays[u];
          alignas(64) float correction[kHead], grad_result[kHead], grad_correction[kHead];
          alignas(64) float grad_read[kHead], grad_query[kHead], grad_key[kHead];
          memcpy(correction, &span.corrections[u * kHead], sizeof correction);
          memcpy(grad_result, data(grad_out) + gate * kHead, sizeof grad_result);

          // result = query^T (decayed + key correction^T)
          float result_correction = 0.f;
          for (int j = 0; j < kHead; j++) {
            result_correction += grad_result[j] * correction[j];
            grad_correction[j] = 0.f;
          }
          for (int i = 0; i < kHead; i++) {
            const float q = query[i], k = key[i];
            float query_sum = 0.f, key_sum = 0.f;
            float* ds = grad_state + i * kHead;
            const float* d = decayed + i * kHead;
            for (int j = 0; j < kHead; j++) {
              const float x = ds[j] + q * grad_result[j];
              ds[j] = x;
              query_sum += d[j] * grad_result[j];
              key_sum += x * correction[j];
              grad_correction[j] += k * x;
            }
            grad_query[i] = query_sum + k * result_correction;
            grad_key[i] = key_sum;
          }

          // correction = beta (value - read)
          float strength_sum = 0.f;
          float* grad_value = grad_row + at.value;
          for (int j = 0; j < kHead; j++) {
            strength_sum += grad_correction[j] * (value[j] - read[j]);
            grad_value[j] += strength * grad_correction[j];
            grad_read[j] = -strength * grad_correction[j];
          }

          // read = decayed^T key, decayed = decay * state
          alignas(64) float decay_sums[kLanes] = {0};
          for (int i = 0; i < kHead; i++) {
            const float k = key[i];
            float key_sum = 0.f;
            float* ds = grad_state + i * kHead;
            const float* d = decayed + i * kHead;
            for (int j = 0; j < kHead; j += kLanes) {
              for (int lane = 0; lane < kLanes; lane++) {
                const float x = ds[j + lane] + k * grad_read[j + lane];
                key_sum += d[j + lane] * grad_read[j + lane];
                decay_sums[lane] += x * d[j + lane];
                ds[j + lane] = x * decay;
              }
            }
            grad_key[i] += key_sum;
          }
          float decay_sum = 0.f;
          for (int lane = 0; lane < kLanes; lane++) decay_sum += decay_sums[lane];
          data(grad_log_decay)[gate] = decay_sum;
          data(grad_beta)[gate] = strength_sum;

          // Unit length: the component of the gradient along the vector vanishes.
          float query_along = 0.f, key_along = 0.f;
          for (int i = 0; i < kHead; i++) {
            query_along += query[i] * grad_query[i];
            key_along += key[i] * grad_key[i];
          }
          query_along /= kQueryScale * kQueryScale;
          const float query_scale = span.inverse_queries[u] * kQueryScale;
          const float key_scale = span.inverse_keys[u];
          for (int i = 0; i < kHead; i++) {
            grad_row[at.query + i] += query_scale * (grad_query[i] - query[i] * query_along);
            grad_row[at.key + i] += key_scale * (grad_key[i] - key[i] * key_along);
          }
        }
      }
    }
  }
  return {grad_qkv, grad_log_decay, grad_beta};
}

}  // namespace kvreg
