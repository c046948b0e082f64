"""Logits or probabilities in, calibrated probabilities out; with labels, a report on them."""

from service.api.predict.openapi import OPENAPI
from service.api.predict.route import predict_routes

__all__ = ["OPENAPI", "predict_routes"]
