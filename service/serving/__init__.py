"""Apply calibration maps to what callers send: predict, and the Open Inference Protocol."""
