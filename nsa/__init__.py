"""The workload: Native Sparse Attention, its model, data and trainer."""
