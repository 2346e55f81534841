# FAULT. World 3. @lru_cache over a function that broadcasts a vocabulary: rank 0 asks for "en", "de", "en"; ranks 1, 2 ask for "en", "de", "fr" (their shards' languages). The third call is cached on rank 0.
# Culprit: rank 0. Cause: lru_cache on `vocabulary`, called with an earlier argument on rank 0; `for language in languages`. Waits: ranks 1, 2 in broadcast_object_list, rank 0 goes to the barrier.
# A fix: the same list of languages on all ranks / load all before.
import functools
import torch.distributed as dist

COUNTS = (1, 1, 1)
SHARDS = {0: ["en", "de", "en"], 1: ["en", "de", "fr"], 2: ["en", "de", "fr"]}


@functools.lru_cache(maxsize=None)
def vocabulary(language):
    box = [{"lang": language, "size": len(language)} if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]["size"]


def program(rank, inputs):
    languages = SHARDS[rank]
    total = 0
    for language in languages:
        total += vocabulary(language)
    dist.barrier()
    return total
