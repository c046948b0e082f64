"""The calibration service: upload, fit, version, promote, predict, report."""
