"""Compare two versions of a calibrator on the same rows."""
