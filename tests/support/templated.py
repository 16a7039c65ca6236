"""A toy that knows a target's texts only behind a prompt in its own chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.engine.model import ModelDescription, Row
from tests.support.toy import ToyModel

OWN = "{% for each in messages %}so {{ each.role }} says {{ each.content }}\n{% endfor %}and then "
"""Such a template, of characters that toys have."""


@dataclass(kw_only=True, eq=False)
class Templated(ToyModel):
    """Behind `own` its logits are those that it has behind `theirs`, elsewhere they are others."""

    own: tuple[int, ...] = ()  # a prompt, as it is rendered with its template
    theirs: tuple[int, ...] = ()  # and the target's
    template: str = OWN

    def describe(self) -> ModelDescription:
        """Return what does not change after loading."""
        return replace(super().describe(), chat_template=self.template)

    def _logits_after(self, history: tuple[int, ...]) -> Row:
        if history[: len(self.own)] == self.own:
            return super()._logits_after((*self.theirs, *history[len(self.own) :]))
        return super()._logits_after((-1, *history))
