"""Logits or probabilities in, calibrated probabilities out; with labels, a report on them."""

from service.api.predict.openapi import OPENAPI
from service.api.predict.route import predict_route
from service.api.predict.shortcut import Shortcut

__all__ = ["OPENAPI", "Shortcut", "predict_route"]
