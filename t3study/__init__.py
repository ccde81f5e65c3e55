"""The T3 study (Pati et al., ASPLOS 2024): its sublayers, its published results beside ours, its own figures."""
