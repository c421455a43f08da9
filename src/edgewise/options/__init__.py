"""Optional parts of Edgewise, a folder each. No other code imports them, except by entry points.

    mlx, onnx, transformers    edge engines for models that are folders: `edgewise.edge`
    redact                     placeholders for private words: `edgewise.filters`, `.detectors`
    redis                      limits of keys that several machines share: `edgewise.limits`

The entry points are listed in `pyproject.toml`, as another package would list its own. An extra of
the same name installs what a part needs (`gateway-redis` for redis; `redact` needs its extra for
phone numbers only).
"""
