"""Large Timelines, made column by column: irregular rounds, so that no fold hides them, and few
mismatches."""

from __future__ import annotations

import numpy as np
import polars as pl

from joinlab.timeline import CALL_COLUMNS, SPAN_COLUMNS, Ending, EndKind, Meta, Timeline

KINDS = (  # origin, op, shape, line of the program
    ("all-reduce (DDP forward() 1)", "all_reduce", [[1]], 12),
    ("broadcast (DDP forward(), buffers)", "broadcast", [[64]], 12),
    ("all-reduce (DDP backward())", "all_reduce", [[4096]], 13),
    ("all-reduce (DDP backward())", "all_reduce", [[512]], 13),
    ("barrier", "barrier", [[1]], 15),
    ("all-gather (loss)", "all_gather", [[2]], 17),
)


def large(ranks: int, each: int) -> Timeline:
    """A run of `ranks` ranks with `each` calls; the last rank does not issue the last one.

    Every rank but the first once issues another call than the others, so that no two ranks share a
    lane.

    large(8, 125_000).calls.height      # 1,000,000, less the one
    """
    made = np.random.default_rng(1)
    kinds = made.integers(0, len(KINDS), each)
    took = made.integers(20_000, 400_000, each)
    begun = np.cumsum(took + np.where(made.random(each) < 0.02, 5_000_000, 30_000))
    frames = []
    for rank in range(ranks):
        last = rank == ranks - 1
        kind = kinds.copy()
        odd = each * 3 // 5 - 10 * (ranks - 1 - rank)
        kind[odd] = (kind[odd] + (rank > 0)) % len(KINDS)
        n = each - last
        enqueued = begun + made.integers(0, 15_000, each)
        done = enqueued + took
        waits = made.random(each) < 0.5
        columns = {
            "rank": np.full(n, rank),
            "seq": np.arange(n),
            "number": np.arange(n) + 1,
            "kind": kind[:n],
            "input": np.arange(n) // 7,
            "enqueued_ns": enqueued[:n],
            "completed_ns": done[:n],
            "waits": waits[:n],
            "value": (np.arange(n) % 97).astype(float),
        }
        frames.append(pl.DataFrame(columns))
    calls = pl.concat(frames).with_columns(pl.lit("default").alias("group"))
    table = pl.DataFrame(
        {
            "kind": range(len(KINDS)),
            "origin": [one[0] for one in KINDS],
            "op": [one[1] for one in KINDS],
            "shape": [one[2] for one in KINDS],
            "call_site": [f"train.py:{one[3]}" for one in KINDS],
            "stack": [["train.py:9 main", f"train.py:{one[3]} step"] for one in KINDS],
        }
    )
    open_ = (pl.col("seq") == each - 1) & (pl.lit(ranks) > 1)
    value = pl.concat_str(pl.lit("[["), pl.col("value"), pl.lit("]]"))
    calls = calls.join(table, on="kind", how="left", maintain_order="left").with_columns(
        pl.lit("float32").alias("dtype"),
        pl.when(pl.col("op") == "all_reduce").then(pl.lit("sum")).alias("reduce_op"),
        pl.when(pl.col("op") == "broadcast").then(0).alias("root"),
        pl.when(pl.col("shape").list.first().list.first() <= 2).then(value).alias("value_in"),
        pl.when((pl.col("shape").list.first().list.first() <= 2) & ~open_)
        .then(value)
        .alias("value_out"),
        pl.col("enqueued_ns").alias("started_ns"),
        pl.when(~open_).then("completed_ns").alias("completed_ns"),
        pl.when(pl.col("waits") | open_)
        .then(pl.col("enqueued_ns") + 1000)
        .alias("host_wait_begin_ns"),
        pl.when(pl.col("waits") & ~open_)
        .then(pl.col("completed_ns") + 500)
        .alias("host_wait_end_ns"),
    )
    missing = [
        pl.lit(None).cast(CALL_COLUMNS[name]).alias(name)
        for name in CALL_COLUMNS
        if name not in calls.columns
    ]
    calls = calls.with_columns(missing).select(
        pl.col(name).cast(kind) for name, kind in CALL_COLUMNS.items()
    )
    hung = Ending(EndKind.HUNG, call=each - 1, group="default", proven=True)
    ends = (hung,) * (ranks - 1) + (Ending(EndKind.FINISHED),)
    meta: Meta = {
        "program": "train",
        "engine": "recorded",
        "backend": "nccl",
        "world_size": ranks,
        "groups": {"default": list(range(ranks))},
        "clock": {"domain": "monotonic"},
    }
    return Timeline(calls, pl.DataFrame(schema=dict(SPAN_COLUMNS)), ends, meta)
