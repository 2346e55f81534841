"""Numbers for rows of a table, by which equal ones are found without comparing them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Codes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


def hash_columns(frame: pl.DataFrame, *names: str) -> Codes:
    """One number a row, by the values of several columns. Column by column takes a fifth of hashing
    structs."""
    hashes = np.zeros(frame.height, np.uint64)
    for name in names:
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        if frame[name].null_count() < frame.height:  # skip a column of nulls
            hashes += frame[name].hash().to_numpy()
    return hashes


def mixed(codes: Codes) -> Codes:
    """Scramble numbers, so that sums of them tell different rows apart: the finalizer of
    SplitMix64."""
    codes = codes + np.uint64(0x9E3779B97F4A7C15)
    codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(codes ^ (codes >> np.uint64(31)), np.uint64)
