"""What the user asked for: methods under the names that were typed, each with its k."""

from dataclasses import dataclass, replace
from typing import Self

from ..catalog import FULL, METHODS, Method
from ..errors import UserError

DEFAULT_K = 1000


@dataclass(frozen=True)
class MethodCall:
    """A method under the name that the user typed."""

    name: str
    method: Method
    pattern: str | None = None  # the glob of names:PATTERN
    own_code: bool = False  # package.module:function of the user

    @property
    def selects(self) -> bool:
        return self.method.kind == "selector"

    @property
    def makes_features(self) -> bool:
        return self.method.kind == "features"

    @property
    def chooses(self) -> bool:
        """Whether some of its parameters are chosen by their scores."""
        return self.selects or self.method.subset is not None

    @property
    def is_compact(self) -> bool:
        """Whether its posterior is over k parameters or features."""
        return self.selects or self.makes_features

    @property
    def is_full(self) -> bool:
        return self.method is METHODS[FULL]

    def is_nested(self, pool: str) -> bool:
        """Whether the choice for a small k is a prefix of that for a larger one; false if the pool grows with k."""
        return self.method.nested and not (self.method.pooled and pool in ("2k", "paper"))


@dataclass(frozen=True)
class Choice:
    """A method with its k; k is None if the method takes none, for the default, or if `retain` decides."""

    call: MethodCall
    k: int | None
    retain: float | None = None  # the fraction of the full network's ipv to reach (--k auto)

    def for_network(self, n_params: int) -> Self:
        """The same with the default k filled in; a k above p is refused."""
        if not self.call.method.takes_k or self.retain is not None:
            return replace(self, k=None)
        k = min(DEFAULT_K, n_params) if self.k is None else self.k
        if k > n_params:
            raise UserError(
                f"--k {k} is more than the {n_params} trainable parameters of the model",
                hint=f"choose k between 1 and {n_params}, or leave --k out",
            )
        return replace(self, k=k)
