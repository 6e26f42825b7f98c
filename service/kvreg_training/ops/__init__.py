"""The differentiable ops of training, as plain torch and as C++."""
