"""Optional parts of Edgewise, one in each folder. Other code finds them by entry points only.

    folder                     what it adds                                  entry point group
    mlx, onnx, transformers    edge engines for models that are folders      `edgewise.edge`
    redact                     a filter that hides private words from cloud  `edgewise.filters`,
                               models, and detectors of such words           `edgewise.detectors`
    redis                      token counts of API keys for many machines    `edgewise.limits`

The entry points are listed in `pyproject.toml`, as another package would list its own. The extra
named like a folder installs what its part needs; that of redis is called `gateway-redis`, and
redact needs its extra for phone numbers only.
"""
