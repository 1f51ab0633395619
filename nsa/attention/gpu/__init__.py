"""NSA on NVIDIA GPUs: Triton kernels for forward and backward, any group of 1 to 16 heads.

`function` joins the kernels to one autograd function. `band` attends to contiguous ranges of keys
(compressed branch, window, dense prefix, recent blocks), `gathered` to selected blocks. `scores`
makes the selection, `index` inverts it, and `gates` mixes the branches. Nothing here waits for the
GPU: sizes that depend on data stay on the device.
"""
