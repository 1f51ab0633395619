"""A Llama-style byte language model whose attention is NSA, or dense for comparison."""

from nsa.model.transformer import LanguageModel, build_model

__all__ = ["LanguageModel", "build_model"]
