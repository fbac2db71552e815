"""Tensors that are made one by one, when they are asked for: all of them at once would be a second model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class OnDemand(Mapping[str, Tensor]):
    """Name → tensor. Each access makes its tensor anew, from what `makers` refer to at that time."""

    makers: Mapping[str, Callable[[], Tensor]]

    def __getitem__(self, name: str) -> Tensor:
        return self.makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)
