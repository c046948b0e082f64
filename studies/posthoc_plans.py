"""Options, plans and output shared by the parts of the study of post-hoc methods."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kept import Found, put_between, run_all
from logit_sets import is_shifted, set_names, split_numbers
from posthoc_fitting import Plan, run

from calibrators.charts import to_svg

Recipe = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """The folders of a study: the sets, the finished fits, and the tables and charts."""

    folder: Path
    kept: Path
    out: Path
    processes: int

    @property
    def names(self) -> list[str]:
        """All test sets."""
        return set_names(self.folder)

    @property
    def same(self) -> list[str]:
        """The sets that are not shifted."""
        return [name for name in self.names if not is_shifted(name)]

    def planned(
        self, names: Sequence[str], recipes: Sequence[Recipe], splits: int | None = None
    ) -> Iterator[Plan]:
        """Yield each recipe on each split of each set, or on the first ``splits``."""
        for name in names:
            for number in split_numbers(self.folder, name)[:splits]:
                for method, params in recipes:
                    yield Plan(name, number, method, tuple(params.items()))

    def fitted(
        self, plans: Iterator[Plan], work: Callable[..., Found] = run, place: str = ""
    ) -> list[Found]:
        """Return the results of these plans; ``place`` is a subfolder of ``kept``."""
        return run_all(list(plans), work, self.folder, self.kept / place, self.processes)

    def show(self, name: str, text: str) -> None:
        """Print a table and write it into the page."""
        sys.stdout.write(text)
        put_between(self.out / "posthoc.md", name, text)

    def draw(self, name: str, chart: dict[str, Any]) -> None:
        """Write a chart beside the page."""
        (self.out / name).write_text(to_svg(chart))
