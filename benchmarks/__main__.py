"""Run the benchmarks and print a table for each topic: `python -m benchmarks`.

The exit code is 1 if a target is missed.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import (
    agreement,
    apply,
    auto,
    calibration_error,
    capacity,
    confidence,
    dashboard,
    evaluate,
    linear,
    local,
    losses,
    memory,
    ours,
    serving,
    smart,
    temperature,
)
from benchmarks.output import Results, Topic, machine, write, write_topic
from benchmarks.timing import ForeignLoad

Size = tuple[int, int]

FULL: dict[str, list[Size]] = {
    "temperature": [(10_000, 1000), (50_000, 100), (1_000_000, 10)],
    "ece": [(1_000_000, 10)],
    "smart": [(2_000, 1000), (10_000, 100), (50_000, 100), (10_000, 1000)],
    "evaluate": [(1_000_000, 10)],
    "auto": [(10_000, 100), (50_000, 100), (10_000, 1000)],
    "confidence": [(10_000, 1000), (2_000, 10)],
    "linear": [(10_000, 1000), (10_000, 100)],
    "agreement": [(2_000, 4)],
    "apply": [(10_000, 1000)],
    "memory": [(50_000, 1000)],
    "serving": [(1, 1000)],
    "capacity": [(2_000, 10), (10_000, 100)],
    "local": [(1, 10), (1, 1000), (100, 1000)],
    "losses": [(1024, 1000)],
    "dashboard": [(1_000, 50)],
}
QUICK: dict[str, list[Size]] = {
    "temperature": [(500, 100), (2_000, 20), (10_000, 10)],
    "ece": [(20_000, 10)],
    "smart": [(1_000, 100), (3_000, 20)],
    "evaluate": [(20_000, 10)],
    "auto": [(500, 20)],
    "confidence": [(500, 10)],
    "linear": [(500, 20)],
    "agreement": [(2_000, 4)],
    "apply": [(500, 1000)],
    "memory": [(2_000, 1000)],
    "serving": [(1, 1000)],
    "capacity": [(500, 10)],
    "local": [(1, 10)],
    "losses": [(64, 100)],
    "dashboard": [(60, 2)],
}


def size(text: str) -> Size:
    """Parse `10000x1000` as (10000, 1000)."""
    try:
        n, k = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a size is written ROWSxCLASSES, not {text!r}") from None
    return n, k


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"from {', '.join(FULL)}")
    parser.add_argument(
        "--sizes", nargs="+", type=size, metavar="NxK", help="sizes to run instead of the default"
    )
    parser.add_argument("--rounds", type=int, help="number of alternating rounds")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per contender and size")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of calibrd and torch"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test with small sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    chosen = parser.parse_args()
    if unknown := set(chosen.topics) - set(FULL):
        parser.error(f"unknown topic {', '.join(sorted(unknown))}; known: {', '.join(FULL)}")
    return chosen


def topics(options: argparse.Namespace) -> Iterable[Topic]:
    """Yield the results of the chosen topics."""
    sizes = QUICK if options.quick else FULL
    budget = options.budget

    def rounds(usual: int) -> int:
        return options.rounds or (2 if options.quick else usual)

    runs: dict[str, Callable[[list[Size]], Iterable[Topic]]] = {
        "temperature": lambda at: temperature.run(at, rounds(7), budget),
        "ece": lambda at: calibration_error.run(at, rounds(15), budget),
        "auto": lambda at: auto.run(at, rounds(3), 3 * budget),
        "evaluate": lambda at: evaluate.run(at, rounds(5), budget),
        "smart": lambda at: smart.run(at, rounds(3), 8 * budget),
        "confidence": lambda at: confidence.run(
            at, rounds(5), 2.0 if options.quick else 3 * budget
        ),
        "linear": lambda at: linear.run(at, rounds(5), 3 * budget),
        "agreement": agreement.run,
        "apply": lambda at: apply.run(at, rounds(41), budget),
        "memory": memory.run,
        "serving": lambda at: serving.run(at, rounds(7), 0.5 if options.quick else 3.0),
        "capacity": lambda at: capacity.run(at, options.quick),
        "local": lambda at: local.run(at, rounds(61), budget),
        "losses": lambda at: losses.run(at, rounds(41), budget),
        "dashboard": lambda at: dashboard.run(at, rounds(21)),
    }
    for name in options.topics or FULL:
        yield from runs[name](options.sizes or sizes[name])


def use_threads(threads: int) -> None:
    """Limit torch and calibrators to a number of threads."""
    import torch

    torch.set_num_threads(threads)
    if not ours.set_threads(threads):
        write("warning: calibrators.set_threads cannot be imported")


def main() -> int:
    """Run the chosen topics, write their tables, and return the exit code."""
    options = arguments()
    use_threads(options.threads)
    results = Results(machine(options.threads))
    for key, value in results.machine.items():
        write(f"{key}: {value}")
    load = ForeignLoad()
    for topic in topics(options):
        results.add(topic, load.cores)
        write_topic(topic, load.cores)
        load = ForeignLoad()
    if options.json:
        options.json.write_text(json.dumps(results.to_dict(), indent=2) + "\n")
    return verdict(results, options.quick)


def verdict(results: Results, quick: bool) -> int:
    """Return the exit code; with small sizes, targets are not judged."""
    write()
    for topic in results.topics:
        for target in topic.targets:
            write(f"{target}  [{topic.title}]")
    if quick:
        ran = all(target.value is not None for target in results.targets)
        write(
            f"quick: sizes too small to judge; {'everything ran' if ran else 'NOT everything ran'}"
        )
        return 0 if ran else 1
    missed = sum(not target.passed for target in results.targets)
    write(f"{'PASS' if results.passed else 'FAIL'}: {missed} of {len(results.targets)} missed")
    return 0 if results.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
