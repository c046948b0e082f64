"""The Open Inference Protocol (KServe V2, Triton's HTTP) for calibration maps."""

from service.serving.inference_protocol.openapi import OPENAPI
from service.serving.inference_protocol.routes import inference_routes

__all__ = ["OPENAPI", "inference_routes"]
