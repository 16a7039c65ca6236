"""The pure core: values and decisions, without clocks, sockets and threads.

Words, beside those of `docs/`: the *text* is the committed tokens, the last of which is *pending*:
not decoded yet. A draft keeps a *line*, the text and its own tokens after it, named by its *base*:
the length of the text at which it last started over. An *order* asks it for tokens up to a
position; they come in *frames*. A *round* asks the target for rows after a prefix. *Own* is the
draft in the target's process, *local* what drafts in the orchestrator without a model (a *source*;
a draft service may have some, too). What comes of a round: the target's `Answer`, its `Decode`s,
the `Verdict` on each, the `Outcome` that the controller learns from, the `Commit`. After a *hit*, a
draft that was accepted in full, the line continues; after a *miss* it starts over.

To read it: `outrider/messages.py`, then plan, actions, generation, asking, verdicts, acceptance,
target_progress, remote_draft, draft_progress and draft_line; control, speculate (its `Measured` is
the default), outcomes, forecast, rates, expected_frames, target_costs, own_draft_state and
line_worth; local_drafters and branching. Apart from these stand health, route and allowance of
peers, and text, counts and round_times.
"""
