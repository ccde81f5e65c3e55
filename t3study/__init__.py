"""The T3 study (Pati et al., ASPLOS 2024): its sublayers, published results compared with ours, its figures."""
