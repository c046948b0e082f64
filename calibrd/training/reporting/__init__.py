"""Send a training run to the service without delaying training."""
