"""Run the service: health, metrics, doctor, backup, sweep."""
