"""What is optional, a folder each. Nothing outside imports it: an entry point is the only door.

    mlx, onnx, transformers    edge engines for models that are folders: `edgewise.edge`
    redact                     placeholders for private words: `edgewise.filters`, `.detectors`
    redis                      limits of keys that several machines share: `edgewise.limits`

`[project.entry-points]` of `pyproject.toml` lists them, as another package would its own; an extra
of the same name installs what each needs (`gateway-redis`; of `redact`, phone numbers alone).
"""
