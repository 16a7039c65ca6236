"""Renders a conversation in the chat templates of drafts, for those that are to read it so."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from orchestrator.chat.template import ChatTemplate
from orchestrator.paired_drafts import PairedDraft
from outrider import logs
from outrider.errors import InvalidRequest
from outrider.messages import MAX_PROMPT_BYTES
from outrider.request import Conversation

_MOST_COMPILED = 8
_MOST_SAID = 256

_Key = tuple[str, str, str]
"""A template's source, and the texts of BOS and EOS in it."""


class DraftTemplates:
    """The templates of drafts, each compiled once; why one is not used is said once."""

    def __init__(self) -> None:
        # Those used last, at most _MOST_COMPILED; one that does not compile stands as its error.
        self._compiled: OrderedDict[_Key, ChatTemplate | InvalidRequest] = OrderedDict()
        # Of which draft's model which reason was said; at most _MOST_SAID, oldest first.
        self._said: OrderedDict[tuple[bytes, str], None] = OrderedDict()

    async def render(self, conversation: Conversation, draft: PairedDraft) -> str:
        """Return what a draft is to read as its prompt; empty where that is the target's prompt.

        A template is a stranger's program and can hang this process: that of a draft that joined
        is run only where drafts are trusted. A head reads the target's text: its rows are of that.
        """
        if not draft.has_model or draft.rates.is_head:
            return ""
        source = draft.peer.chat_template
        if not source:
            return self._leave(draft, "it has no chat template")
        if not draft.is_trusted:
            return self._leave(draft, "it joined, and is not trusted (--trust-drafts)")
        template = await self._template(draft, source)
        if isinstance(template, InvalidRequest):
            return self._leave(draft, f"its {template}")
        try:
            prompt = await asyncio.to_thread(_render, template, conversation)
        except InvalidRequest as error:  # what it says may be of the text, which no log has
            return self._leave(draft, f"its chat template refuses a conversation ({error.field})")
        if len(prompt.encode()) > MAX_PROMPT_BYTES:
            return self._leave(draft, f"a conversation has more than {MAX_PROMPT_BYTES} bytes")
        return prompt

    async def _template(self, draft: PairedDraft, source: str) -> ChatTemplate | InvalidRequest:
        model = draft.peer.model
        assert model is not None
        key = (source, model.bos_token_text, model.eos_token_text)
        known = self._compiled.get(key)
        if known is None:
            known = await asyncio.to_thread(_compile, *key)
            self._compiled[key] = known
        self._compiled.move_to_end(key)
        if len(self._compiled) > _MOST_COMPILED:
            self._compiled.popitem(last=False)
        return known

    def _leave(self, draft: PairedDraft, reason: str) -> str:
        model, address = draft.peer.model, draft.peer.address
        said = (model.identity if model is not None else b"", reason)
        if said not in self._said:
            self._said[said] = None
            message = "draft reads the target's template"
            logs.warning("outrider.orchestrator", message, address=address, detail=reason)
        if len(self._said) > _MOST_SAID:
            self._said.popitem(last=False)
        return ""


class OwnPrompts:
    """One request's conversation, for whichever draft gets to draft its text."""

    def __init__(self, templates: DraftTemplates, conversation: Conversation) -> None:
        self._templates = templates
        self._conversation = conversation

    async def prompt_for(self, draft: PairedDraft) -> str:
        """Return what a draft is to read as its prompt; empty where that is the target's prompt."""
        return await self._templates.render(self._conversation, draft)


def _compile(source: str, bos: str, eos: str) -> ChatTemplate | InvalidRequest:
    try:
        return ChatTemplate(source, bos_token=bos, eos_token=eos)
    except InvalidRequest as error:
        return error


def _render(template: ChatTemplate, conversation: Conversation) -> str:
    prompt = template.render(
        conversation.chat,
        strftime_now=time.strftime,
        tools=conversation.tools or None,
        add_generation_prompt=conversation.add_generation_prompt,
        chat_template_kwargs=conversation.variables,
    )
    return prompt + conversation.continuation
