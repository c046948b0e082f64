"""AdaFocal: a focal loss whose strength in each confidence bin depends on its calibration."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrators.adafocal import AdaFocalState, Settings
from calibrators.errors import ParameterError
from calibrators.fitting.parameters import field_hints
from calibrators.losses.base import Reduction, WeightedCrossEntropy
from calibrators.losses.focal import powered


class AdaFocalLoss(WeightedCrossEntropy):
    """``-(1 - p)^g log p`` for gamma g >= 0, else ``-(1 + p)^|g| log p``, for the label's p.

    A sample gets the gamma of the bin of ``state`` that contains its p; neither the bin nor gamma
    carries a gradient. Set ``state`` after each validation pass. It is part of ``state_dict``, so
    checkpoints restore it. The parameters are the fields of ``calibrators.adafocal.Settings``.
    Use it if training is so long that the network becomes overconfident.

    Reference: Ghosh et al., AdaFocal: calibration-aware adaptive focal loss, 2022, section 5.2,
    Eq. 5.

    >>> from calibrators.adafocal import BinStatistics
    >>> loss = AdaFocalLoss()
    >>> round(loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])).item(), 4)
    0.0497
    >>> loss.state = loss.state.update(BinStatistics.from_confidences([0.9, 0.8], [True, False]))
    """

    name: ClassVar[str] = "adafocal"
    summary: ClassVar[str] = (
        "focal loss whose gammas adapt to the model's calibration; set `state`, or use `AdaFocal`"
    )

    def __init__(
        self,
        state: AdaFocalState | None = None,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        **settings: Any,
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index)
        if state is not None and settings:
            raise ParameterError("bad_parameter", "pass either a state or settings, not both")
        known = field_hints(Settings)
        for name in settings.keys() - known.keys():
            raise TypeError(f"unknown setting {name!r}: known settings are {', '.join(known)}")
        self.state = AdaFocalState.begin(Settings(**settings)) if state is None else state

    @property
    def state(self) -> AdaFocalState:
        """The current edges and gammas; assign a new state after each update."""
        return self._state

    @state.setter
    def state(self, state: AdaFocalState) -> None:
        if not isinstance(state, AdaFocalState):
            raise ParameterError(
                "bad_parameter", f"state must be an AdaFocalState, got {type(state).__name__}"
            )
        self._state = state
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, ...]] = {}

    @classmethod
    def hyper_parameters(cls) -> dict[str, Any]:
        """Return the annotated types of the settings and the parameters shared by all losses."""
        return {**field_hints(Settings), **super().hyper_parameters()}

    def weighted(self, surprisal: Tensor) -> Tensor:
        """Return the losses (n,), given the surprisals of the labels."""
        return powered(surprisal, self._gammas(torch.exp(-surprisal.detach())))

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self.state.to_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.state = AdaFocalState.from_dict(state)

    def extra_repr(self) -> str:
        """Return the text inside ``repr``."""
        return f"bins={self.state.settings.bins}, step={self.state.step}"

    def _gammas(self, probability: Tensor) -> Tensor:
        """Return the gamma of each sample, given the probability of its label."""
        edges, gammas, accuracy = self._on(probability)
        place = torch.bucketize(probability, edges, right=True)
        settings = self.state.settings
        if settings.rule == "calfocal_per_sample" and self.state.step:
            exponent = settings.rate * (probability - accuracy[place])
            return exponent.exp().clamp(max=settings.highest)
        return gammas[place]

    def _on(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return the inner edges, gammas and accuracies with the device and dtype of the batch."""
        place = (like.device, like.dtype)
        if place not in self._tables:
            state = self.state
            self._tables[place] = tuple(
                torch.tensor(array, dtype=like.dtype, device=like.device)
                for array in (state.edges[1:-1], state.gammas, state.accuracy)
            )
        return self._tables[place]


class CalFocalLoss(AdaFocalLoss):
    """Memoryless predecessor of AdaFocal: each bin's gamma is ``exp(rate (C - A))``.

    With ``per_sample``, the sample's own p takes the place of C. As in the paper, gammas have no
    upper bound; ``gamma_max`` only applies to AdaFocal. Use it in ablations, because it shows the
    effect of AdaFocal's memory. Gammas are never negative here, so this loss cannot raise
    confidence above that of cross-entropy.

    Reference: Ghosh et al., AdaFocal: calibration-aware adaptive focal loss, 2022, section 5.1:
    Eq. 3, and Eq. 2 with ``per_sample``.

    >>> CalFocalLoss(per_sample=True).state.settings.rule
    'calfocal_per_sample'
    """

    name: ClassVar[str] = "calfocal"
    summary: ClassVar[str] = "AdaFocal's memoryless predecessor; set `state`, or use `AdaFocal`"

    def __init__(
        self,
        state: AdaFocalState | None = None,
        *,
        per_sample: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        **settings: Any,
    ) -> None:
        if "rule" in settings or (state is not None and per_sample):
            raise ParameterError("bad_parameter", "pass per_sample without rule and without state")
        if state is None:
            settings["rule"] = "calfocal_per_sample" if per_sample else "calfocal"
        super().__init__(state, reduction=reduction, ignore_index=ignore_index, **settings)

    @classmethod
    def hyper_parameters(cls) -> dict[str, Any]:
        """Return the annotated types of ``per_sample`` and the parameters shared with AdaFocal."""
        inherited = super().hyper_parameters()
        names = ("bins", "rate", "reduction", "ignore_index")
        return {"per_sample": bool, **{name: inherited[name] for name in names}}
