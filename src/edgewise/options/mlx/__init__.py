"""Edge models on MLX, through mlx-lm: on Macs with Apple silicon, or slowly on Linux's CPU."""
