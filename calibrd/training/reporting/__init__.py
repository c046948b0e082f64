"""Send a training run to the service without holding up the training."""
