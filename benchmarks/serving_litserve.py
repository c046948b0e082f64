"""The same map behind LitServe, with LitServe's JSON format."""

import sys
from typing import Any

import litserve as ls
import numpy as np

from benchmarks.serving_ours import MAP
from calibrators import archive


class Calibrate(ls.LitAPI):  # type: ignore[misc]
    """LitServe API of one map."""

    def setup(self, device: str) -> None:
        """Load the map."""
        self.map = archive.load(archive.dump(MAP))

    # no type hints: LitServe would make them part of its HTTP interface
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Return the logits of a request."""
        return np.asarray(request["logits"], dtype=np.float32)

    def predict(self, logits: Any) -> Any:
        """Return calibrated probabilities."""
        return self.map.apply(logits)

    def encode_response(self, probabilities):  # type: ignore[no-untyped-def]
        """Return the JSON of a response."""
        return {"probabilities": probabilities.tolist()}


if __name__ == "__main__":
    server = ls.LitServer(Calibrate(), accelerator="cpu", workers_per_device=1)
    server.run(
        port=int(sys.argv[1]), num_api_servers=1, log_level="error", generate_client_file=False
    )
