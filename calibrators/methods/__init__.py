"""Calibration methods, one per file: a recipe (Calibrator) and its map (CalibrationMap)."""
