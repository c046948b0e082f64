"""The new process of topic 5: it imports first, then loads, fits and prints its peak as JSON."""

import json
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

PAGE = resource.getpagesize()
SAMPLE_SECONDS = 0.001


def resident() -> int:
    """Return the resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def high_water_mark() -> int | None:
    """Return the peak of the resident memory in bytes; None if unknown."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def reset_high_water_mark() -> bool:
    """Reset the peak after the imports; some containers forbid it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


class Sampler(threading.Thread):
    """Thread that samples the resident size as often as it can."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.samples = 0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Sample the resident memory until it is stopped."""
        while not self._stop_asked.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, resident())
            self.samples += 1

    def finish(self) -> None:
        """Stop sampling and take a last sample."""
        self._stop_asked.set()
        self.join()
        self.peak = max(self.peak, resident())


def prepare(method: str) -> Any:
    """Import everything, and run the fit once on a few rows."""
    import torch

    from benchmarks import ours, rivals
    from benchmarks.data import draw

    def by_probmetrics(sample: Any) -> Any:
        return rivals.probmetrics("temp-scaling")(*rivals.as_tensors(sample))

    fits = {
        "temperature": ours.fit_temperature,
        "smart": ours.fit_smart,
        "probmetrics": by_probmetrics,
    }
    fit = fits[method]
    fit(draw(200, 10))
    torch.softmax(torch.zeros(256, 256), 1)
    return fit


def main() -> int:
    """Fit once and print the memory as JSON."""
    method, logits_file, labels_file = sys.argv[1:]
    fit = prepare(method)
    from benchmarks.data import Sample

    was_reset = reset_high_water_mark()
    before = resident()
    sampler = Sampler()
    sampler.start()
    sample = Sample(np.load(logits_file), np.load(labels_file))
    start = time.perf_counter()
    fit(sample)
    seconds = time.perf_counter() - start
    sampler.finish()
    size = sample.logits.nbytes
    mark = high_water_mark() if was_reset else None
    sampled = (sampler.peak - before) / size
    high_water = None if mark is None else (mark - before) / size
    maxrss = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / size
    found = {
        # ru_maxrss survives exec, so it may be the parent's: used only without a high-water mark
        "peak": max(sampled, maxrss if high_water is None else high_water),
        "high_water": high_water,
        "sampled": sampled,
        "maxrss": maxrss,
        "samples": sampler.samples,
        "seconds": seconds,
    }
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
