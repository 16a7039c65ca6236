"""A head in a file of its own, as the model of a draft service."""

from __future__ import annotations

from dataclasses import replace

from outrider.engine.gguf_check import check_draft
from outrider.engine.head_model import HeadModel
from outrider.engine.heads import Head
from outrider.engine.identity import FilesDigest, identity_of
from outrider.engine.llama_head_files import open_head_file
from outrider.engine.llama_heads import HeadContext
from outrider.engine.llama_loading import (
    LlamaConfig,
    cores_of,
    facts_of,
    is_on_gpu,
    is_quantised,
)
from outrider.engine.llama_sampling import ChainSampler, Samplers
from outrider.engine.llama_threads import pinned_threads
from outrider.engine.model import Layout, ModelDescription, Rollback
from outrider.errors import InvalidConfig
from outrider.sampling import SamplingParameters
from outrider.speculation import HeadKind
from outrider.threads import available_threads


class LlamaHeadModel(HeadModel):
    """An MTP head by llama.cpp. Raises InvalidConfig with what is wrong, in a line."""

    def __init__(self, config: LlamaConfig) -> None:
        checked = check_draft(config.path)
        if checked.head is not None and (fault := _fault_away(checked.head)):
            raise InvalidConfig("model", f"{config.path} {fault}: name it there as --draft-model")
        config = replace(config, thread_count=config.thread_count or available_threads())
        layout = Layout(False, bool(config.flash_attention) or is_quantised(config.cache_type_v))
        with FilesDigest(checked.files) as files:
            head = open_head_file(config, layout)
            settings = head.context, config.cache_type_k, config.cache_type_v
            identity = identity_of(files.digest(), settings)
        self._threads = pinned_threads(cores_of(config))
        if self._threads is not None:
            self._threads.attach(head.context_pointer)
        description = ModelDescription(
            name=head.name,
            identity=identity,
            hidden_row_width=head.row_width,
            head_kind=head.kind,
            context=head.context,
            sequence_count=head.sequence_count,
            batch_rows=head.batch_rows,
            vocabulary=head.vocabulary.describe(),
            rollback=Rollback.FULL,
            can_exchange=False,
            thread_count=config.thread_count,
            is_on_gpu=is_on_gpu(config, head.model),
            layouts=(layout,),
            layout=layout,
            **facts_of(head.model),
        )
        super().__init__(head, _Words(head), description)

    def close(self) -> None:
        super().close()
        if self._threads is not None:
            self._threads.close()


def _fault_away(head: Head) -> str:
    """Return why a head drafts in its target's process alone; empty where it does elsewhere."""
    if head.kind is not HeadKind.MTP:
        return f"is {head.kind.words}, which reads layers of its target"
    if head.block_count > 1:
        return f"has {head.block_count} MTP blocks, which draft beside their target"
    return ""


class _Words:
    """The vocabulary in a head's file."""

    def __init__(self, head: HeadContext) -> None:
        self._vocabulary = head.vocabulary
        self._samplers = Samplers(head.vocabulary.pointer, head.vocabulary.size, head.context)
        self.token_texts, self.token_names = head.vocabulary.texts, head.vocabulary.names
        self.tokenize = head.vocabulary.tokenize

    def sampler(
        self, parameters: SamplingParameters, seed: int = 0, choice: int = 0
    ) -> ChainSampler:
        return self._samplers.sampler(parameters, seed, choice)

    def close(self) -> None:
        self._vocabulary.close()
