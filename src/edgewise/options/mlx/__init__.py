"""Edge models on MLX, through mlx-lm: Macs with Apple silicon; on Linux, the CPU, slowly."""
