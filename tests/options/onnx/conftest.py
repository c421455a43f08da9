"""Without ONNX Runtime these are skipped; Edgewise imports it, with telemetry off."""

from tests.onnx_models import require_onnx

require_onnx()
