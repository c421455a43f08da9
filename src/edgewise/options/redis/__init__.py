"""Limits of keys in a Redis, which gateways on several machines share: `edgewise[gateway-redis]`.

Met by the entry points of `edgewise.limits`, one for each scheme of its URLs: `--limits redis://...`.
"""
