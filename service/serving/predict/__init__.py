"""The predict route: calibrated probabilities and, with labels, a report on them."""

from service.serving.predict.openapi import OPENAPI
from service.serving.predict.route import predict_route
from service.serving.predict.shortcut import Shortcut

__all__ = ["OPENAPI", "Shortcut", "predict_route"]
