"""Redaction: private words leave as placeholders, and come back as what they stand for.

Met by the entry points `redact` of `edgewise.filters` and those of its classes of words in
`edgewise.detectors`: `--redact on`. Only phone numbers need the extra, `edgewise[redact]`. What a
filter and a detector are, and the setting, stay with the clouds: `edgewise.cloud.redaction`.
"""
