"""Kernels in C for CPUs, compiled where there is a compiler."""
