// The bindings for fused_ops.py.
#include "ops.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("causal_conv_silu_forward", &kvreg::causal_conv_silu_forward);
  module.def("causal_conv_silu_backward", &kvreg::causal_conv_silu_backward);
  module.def("gated_delta_rule_forward", &kvreg::gated_delta_rule_forward);
  module.def("gated_delta_rule_backward", &kvreg::gated_delta_rule_backward);
  module.def("rms_norm_forward", &kvreg::rms_norm_forward);
  module.def("rms_norm_backward", &kvreg::rms_norm_backward);
  module.def("swiglu_forward", &kvreg::swiglu_forward);
  module.def("swiglu_backward", &kvreg::swiglu_backward);
  module.def("weighted_cross_entropy", &kvreg::weighted_cross_entropy);
}
