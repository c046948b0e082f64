"""The whole workflow: upload, fit, read the report, promote, predict, and apply locally.

    make serve &                                            # or any calibrd service
    CALIBRD_URL=http://127.0.0.1:8000 python examples/first_fit.py

The logits are those of a small network on 10,000 images of Fashion-MNIST.
"""

from pathlib import Path

import numpy as np

import calibrd

DATA = Path(__file__).parent / "data"
cal = np.load(DATA / "fashion_ce__cal.npz")
test = np.load(DATA / "fashion_ce__test.npz")

with calibrd.Client() as client:
    # identical data is sent only once: a second run uploads nothing
    dataset = client.upload(cal["logits"], cal["labels"])
    print(f"uploaded {dataset.rows:,} rows, {dataset.classes} classes\n")

    version = client.fit("fashion", dataset=dataset, method="smart", seed=0)
    print(version.summary())
    version.report.save("fashion_report.html")

    # production moves to the new version; client.rollback("fashion") undoes this
    client.promote("fashion", version, reason="first fit")
    move = client.history("fashion")[0]
    print(f"\nproduction: {move.from_version} -> {move.to_version} ({move.reason})")

    # over HTTP
    remote = client.predict("fashion@production", test["logits"][:3])
    print("\nconfidence of three test images:", remote.max(axis=1).round(3))

    # in this process: the map is verified, cached, and usable while the service is unreachable
    local = client.load("fashion@production")
    probabilities = local.apply(test["logits"])
    print("largest difference between the two:", f"{np.abs(probabilities[:3] - remote).max():.1e}")

    # on images that were not used for fitting
    judged = client.evaluate("fashion@production", test["logits"], test["labels"])
    print(f"ECE on {judged.n:,} new images: {100 * judged.metrics['ece']:.2f} %, ", end="")
    print(f"a perfectly calibrated model would show {100 * judged.noise_floor.mean:.2f} %")
