"""Sources of sequences, and how ranks share them."""

from nsa.data.batches import Batches, BatchPlan, Source, open_source

__all__ = ["BatchPlan", "Batches", "Source", "open_source"]
