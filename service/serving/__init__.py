"""Apply calibration maps over HTTP: predict, and the Open Inference Protocol."""
