"""AdaFocal without the network: mergeable bin statistics and the update of the gammas.

>>> from calibrators.adafocal import AdaFocalState, BinStatistics
>>> statistics = BinStatistics.from_confidences([0.9, 0.8, 0.7], [True, False, True])
>>> AdaFocalState.initial(bins=15).update(statistics).gammas.shape
(15,)
"""

from calibrators.adafocal.reduce import RowTerms, row_terms
from calibrators.adafocal.state import AdaFocalState, Rule, Settings
from calibrators.adafocal.statistics import BinStatistics, Summary

__all__ = [
    "AdaFocalState",
    "BinStatistics",
    "RowTerms",
    "Rule",
    "Settings",
    "Summary",
    "row_terms",
]
