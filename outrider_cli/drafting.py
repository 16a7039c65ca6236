"""The options that say how to speculate, and who drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How to speculate, where a request or the orchestrator says nothing else."""

    n_draft: Annotated[
        int | None, typer.Option(help="Draft exactly so many tokens a round, 0 to 64.")
    ] = None
    n_max: Annotated[
        int | None, typer.Option(help="Draft at most so many tokens a round.", show_default="16")
    ] = None
    n_min: Annotated[
        int | None, typer.Option(help="Verify no draft with fewer tokens.", show_default="0")
    ] = None
    p_min: Annotated[
        float | None,
        typer.Option("--p-min", help="Stop before a less probable token.", show_default="0"),
    ] = None
    run_ahead: Annotated[
        Literal["on", "off"] | None,
        typer.Option(
            metavar="on|off",
            help="Draft while the target verifies.",
            show_default="as it pays",
        ),
    ] = None
    policy: Annotated[
        Literal["measured", "fixed", "classic"] | None,
        typer.Option(
            metavar="NAME",
            help="Who decides the draft length: measured, fixed or classic.",
            show_default="measured",
        ),
    ] = None
    n_parallel: Annotated[
        int | None,
        typer.Option(
            help="Let a draft that runs ahead write so many lines at once, 1 to 8.",
            show_default="1",
        ),
    ] = None
    p_split: Annotated[
        float | None,
        typer.Option(
            "--p-split",
            help="Second choices this probable get a line of their own.",
            show_default="0.02",
        ),
    ] = None
    verification: Annotated[
        Literal["block", "token"] | None,
        typer.Option(
            metavar="NAME",
            help="What the rejection rule judges as one: a block or a token.",
            show_default="block",
        ),
    ] = None
    drafters: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Of model, mtp, eagle3, dflash, dspark, prediction, forced, suffix, copy, "
            "ngram, past; also --spec-type.",
            show_default="all",
        ),
    ] = None

    draft_template: Annotated[
        Literal["own", "target"] | None,
        typer.Option(
            metavar="own|target",
            help="In whose chat template a draft reads a conversation.",
            show_default="target",
        ),
    ] = None

    def known(self) -> dict[str, Any]:
        """Return what was said, by the names of Speculation's fields.

        Raises InvalidRequest for a length that is pinned and chosen at once.
        """
        from outrider.errors import InvalidRequest
        from outrider.messages import MAX_DRAFT
        from outrider.speculation import DraftTemplate, Policy, Verification

        values: dict[str, Any] = {
            "n_max": self.n_max,
            "n_min": self.n_min,
            "p_min": self.p_min,
            "n_parallel": self.n_parallel,
            "p_split": self.p_split,
            "run_ahead": None if self.run_ahead is None else self.run_ahead == "on",
            "policy": Policy(self.policy) if self.policy else None,
            "verification": Verification(self.verification) if self.verification else None,
            "drafters": frozenset(self.drafters.split(",")) if self.drafters else None,
            "draft_template": DraftTemplate(self.draft_template) if self.draft_template else None,
        }
        if self.n_draft is not None:
            if self.n_max is not None or self.policy is not None:
                raise InvalidRequest("n_draft", "pins the length; it excludes n_max and policy")
            if not 0 <= self.n_draft <= MAX_DRAFT:
                raise InvalidRequest("n_draft", f"must be in [0, {MAX_DRAFT}], not {self.n_draft}")
            values |= {"n_max": self.n_draft, "policy": Policy.FIXED}
        return {name: value for name, value in values.items() if value is not None}
