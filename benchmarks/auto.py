"""Topic: the default method, fitted and judged on one core, compared with a contest of methods."""

from collections.abc import Iterable

from benchmarks import data
from benchmarks.evaluate import Clock, one_thread
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, alternate, milliseconds
from calibrators import CalibrationSet, fit_and_judge
from calibrators.methods.additive import Additive
from calibrators.methods.auto import Auto
from calibrators.methods.temperature import TemperatureScaling
from calibrators.registry import all_methods, keeps_class

JUDGED, CONTEST = "auto, judged", "contest of all methods, judged"
ADDITIVE, SCALED = "additive", "temperature"
# limits in processor seconds, by size
MAX_JUDGED = {10_000: 2.0, 50_000: 5.0}
MAX_ADDITIVE = 0.3


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size."""
    for n, k in sizes:
        sample = data.draw(n, k)
        with one_thread():
            topic = compare(CalibrationSet(sample.logits, sample.labels), rounds, budget)
        yield topic


def compare(given: CalibrationSet, rounds: int, budget: float) -> Topic:
    """Time the default method and its parts.

    The contest cross-validates every method that keeps the class, as ``auto`` did before it became
    the additive map.
    """
    names = tuple(name for name in all_methods() if keeps_class(name) and name != ADDITIVE)
    clocks = {
        JUDGED: Clock(lambda: fit_and_judge(Auto(), given)),
        CONTEST: Clock(lambda: fit_and_judge(Auto(candidates=names), given)),
        ADDITIVE: Clock(lambda: Additive().fit(given)),
        SCALED: Clock(lambda: TemperatureScaling().fit(given)),
    }
    contenders = [Contender(name, clock) for name, clock in clocks.items()]
    measured = alternate(contenders, rounds, budget)
    fastest = {name: clock.fastest for name, clock in clocks.items()}
    added, scaled = fastest[ADDITIVE], fastest[SCALED]
    after = None if added is None or scaled is None else added - scaled
    rows: list[Row] = [
        {
            "method": name,
            "processor ms": milliseconds(fastest[name]),
            "ms": milliseconds(found.median),
            "runs": found.runs,
            "failure": found.error,
        }
        for name, found in measured.items()
    ]
    most = MAX_JUDGED.get(given.n, max(MAX_JUDGED.values()))
    return Topic(
        f"the default method, {given.n} x {given.k} float32, one core",
        rows,
        [
            Target("processor seconds of auto, judged", fastest[JUDGED], most),
            Target("processor seconds of additive after TS", after, MAX_ADDITIVE),
        ],
    )
