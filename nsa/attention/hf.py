"""A language model with Native Sparse Attention for Hugging Face's `transformers`.

    from nsa.attention.hf import NsaConfig, NsaForCausalLM

    model = NsaForCausalLM.from_pretrained(FOLDER)     # what `python -m nsa.export` wrote
    model.generate(ids, max_new_tokens=100)

`AutoModelForCausalLM` and `AutoConfig` know it once this module is imported. It is the network of
`nsa.model`: pre-norm blocks of attention and SwiGLU, embeddings untied.

Not covered: prompts of different lengths in a batch (padding), beam search, embeddings as inputs.
With separate documents nothing is cached: the whole text is read for each new token.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from nsa.attention.cache import NsaCache
from nsa.attention.compression import BlockMlp
from nsa.attention.module import NativeSparseAttention
from nsa.attention.network import Network
from nsa.attention.packing import separated_documents


class NsaConfig(PretrainedConfig):
    """Shape of the model, in the words of other models, and the paper's l, d, l', n and w.

    `compression` is mean or mlp. `separator` is the token that ends a document; None: documents are
    one text.
    """

    model_type = "nsa"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        vocab_size: int = 256,
        hidden_size: int = 768,
        intermediate_size: int = 2048,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        num_key_value_heads: int = 2,
        head_dim: int = 64,
        max_position_embeddings: int = 2048,
        rope_theta: float = 10_000.0,
        rms_norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        compression_block: int = 32,
        compression_stride: int = 16,
        selection_block: int = 64,
        selected_blocks: int = 16,
        window: int = 512,
        compression: str = "mean",
        separator: int | None = None,
        **others: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        self.compression_block = compression_block
        self.compression_stride = compression_stride
        self.selection_block = selection_block
        self.selected_blocks = selected_blocks
        self.window = window
        self.compression = compression
        self.separator = separator
        others.setdefault("tie_word_embeddings", False)
        super().__init__(**others)


class LayerCaches(list[NsaCache]):
    """One cache a layer, as `generate` carries them from token to token, and returns them."""

    is_compileable = False  # `generate` reads it from caches that it continues

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far."""
        return self[layer_idx].length


class NsaForCausalLM(Network, PreTrainedModel, GenerationMixin):
    """Tokens in, logits over the next token out."""

    config_class = NsaConfig
    config: NsaConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = False
    _no_split_modules = ("Block",)

    def __init__(self, config: NsaConfig) -> None:
        super().__init__(config)
        self.add_network(
            partial(_attention, config),
            layers=config.num_hidden_layers,
            vocab=config.vocab_size,
            dim=config.hidden_size,
            ffn_width=config.intermediate_size,
            norm_eps=config.rms_norm_eps,
        )
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: LayerCaches | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **_others: Any,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Read tokens.

        Args:
            input_ids: int64 [B, S]: a whole text, or what follows the tokens in `past_key_values`.
            attention_mask: All ones: padding is not supported.
            past_key_values: From an earlier call with `use_cache`; takes these tokens too.
            labels: int64 [B, S], -100 where none: the loss of each from the tokens before it.
            logits_to_keep: Only those of so many last tokens; 0 = all.
            num_items_in_batch: What the loss is divided by, where a batch comes in parts.

        Raises:
            ValueError: A mask that hides tokens, caches of another kind, or more tokens than the
                caches have room for.
        """
        _refuse_padding(attention_mask)
        _refuse_others(past_key_values)
        hidden = self.embedding(input_ids)
        caches = past_key_values
        if caches is None and use_cache and self.config.separator is None and labels is None:
            caches = self.start_caches(len(input_ids), like=hidden)
        documents = None
        if self.config.separator is not None:
            documents = separated_documents(input_ids, self.config.separator)
        hidden = self.run_layers(hidden, caches, documents)
        logits = self.head(self.norm(hidden[:, -logits_to_keep:]))
        loss = None
        if labels is not None:
            loss = _loss(logits, labels, num_items_in_batch)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        # The class's annotation wants a Cache of transformers; what generate does with it is ours.
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=caches)

    def generate(
        self, *arguments: Any, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        """Continue texts: that of `GenerationMixin`, whose arguments these are.

        The mask, which tokenizers give, is looked at once. `generate` itself would make one of
        every token that equals the padding's.

        Raises:
            ValueError: A mask that hides tokens, or caches of another kind.
        """
        _refuse_padding(attention_mask)
        _refuse_others(options.get("past_key_values"))
        return super().generate(*arguments, **options)

    @torch.no_grad()
    def start_caches(self, B: int, *, like: Tensor | None = None) -> LayerCaches:
        """Empty caches of B sequences, with room for `max_position_embeddings` tokens each.

        `like` as `NativeSparseAttention.start_cache`; needed if weights are quantised or offloaded.
        """
        most = self.config.max_position_embeddings
        return LayerCaches(
            block.attention.start_cache(B, most, like=like) for block in self.layers()
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: LayerCaches | None = None,
        use_cache: bool = True,
        **_others: Any,
    ) -> dict[str, Any]:
        """What `forward` is given for the next token: that which the caches do not hold."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        if seen >= input_ids.shape[1] > 0:
            raise ValueError(
                f"past_key_values hold {seen} tokens and the text has {input_ids.shape[1]}: give a"
                " text that continues those, or no past_key_values"
            )
        return {
            "input_ids": input_ids[:, seen:],
            "past_key_values": past_key_values,
            "use_cache": use_cache,
            "logits_to_keep": 1,
        }

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, BlockMlp):
            module.draw_weights()
        elif isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # caches are the model's own


def _refuse_others(caches: object) -> None:
    if caches is not None and not isinstance(caches, LayerCaches):
        raise ValueError(
            f"past_key_values are a {type(caches).__name__}: this model needs its own"
            " (LayerCaches), which an earlier call or start_caches returns"
        )


def _refuse_padding(attention_mask: Tensor | None) -> None:
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("padding is not supported: give texts of one length, or one at a time")


def _loss(logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
    pairs = logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten()
    if items is None:
        return nn.functional.cross_entropy(*pairs)
    total = nn.functional.cross_entropy(*pairs, reduction="sum")
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


def _attention(config: NsaConfig) -> NativeSparseAttention:
    return NativeSparseAttention(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        l=config.compression_block,
        d=config.compression_stride,
        l_sel=config.selection_block,
        n_sel=config.selected_blocks,
        w=config.window,
        compression=config.compression,
        rope_theta=config.rope_theta,
    )


AutoConfig.register("nsa", NsaConfig, exist_ok=True)
AutoModelForCausalLM.register(NsaConfig, NsaForCausalLM, exist_ok=True)
