"""y = x Wᵀ, without a bias, whose weight is never drawn at random."""

from torch import nn


class Linear(nn.Linear):
    """y = x Wᵀ. The weight is left empty: a run's weights are always loaded, never drawn here."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass
