"""Edge models on MLX, through mlx-lm: the extra `edgewise[mlx]`, for Macs with Apple silicon.

Met by the entry point `mlx` of `edgewise.edge`: `--edge FOLDER`, where MLX wrote the files, or
`--edge-engine mlx`. On Linux MLX computes on the CPU, slowly.
"""
