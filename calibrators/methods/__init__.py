"""One file for each calibration method: a recipe (Calibrator) and its map (CalibrationMap)."""
