"""The page "Paste your log": diagnoses a pasted log in the browser and uploads nothing.

paste.js gets the patterns of `importers/text.py` and the sentences of `story/forms/pasted.py` as data.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from joinlab.importers import text
from joinlab.importers.dump import NOISE
from joinlab.ops import Op
from joinlab.program.labels import LIBRARY
from joinlab.recorder.rank_log import MOST_RANKS
from joinlab.story.forms import pasted
from joinlab.timeline import STUCK


def tables() -> dict[str, Any]:
    """The patterns, words and sentences that paste.js uses."""
    return {
        "patterns": {name: re.sub(r"\(\?P<", "(?<", pattern) for name, pattern in text.PATTERNS.items()},
        "ops": {op.value.replace("_", ""): op for op in Op},
        "noise": NOISE,
        "words": {op: op.words for op in Op},
        "sentences": dict(pasted.SENTENCES),
        "waited": pasted.WAITED,
        "same_size": pasted.SAME_SIZE,
        "not_met": text.NOT_MET,
        "stuck": STUCK,
        "library": LIBRARY,
        "most_ranks": MOST_RANKS,
    }


def body() -> str:
    """The page's content."""
    script = (files("joinlab.course") / "paste.js").read_text("utf-8")
    data = json.dumps(tables()).replace("</", "<\\/")
    return f"""<h1>Paste your log</h1>
<p>It may have the watchdog's lines, those of TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=INFO, ncclras or
monitored_barrier, torchrun's report, and tracebacks. This page reads the log in your browser and uploads nothing.</p>
<label for="log">The log, or the part around the hang</label>
<textarea id="log" rows="14" spellcheck="false" autocomplete="off"></textarea>
<div id="story" aria-live="polite"></div>
<p class="soft">For a whole file, also one beside dumps, run <code>python -m joinlab show train.log</code>.</p>
<p><a href="index.html">The story</a></p>
<script>{script}
const tables = {data};
const log = document.getElementById("log");
log.addEventListener("input", () => {{
  const {{ headline, more }} = tell(log.value, tables);
  const none = log.value.trim() ? ["{NOTHING}"] : [];
  document.getElementById("story").replaceChildren(...(headline ? [headline, ...more] : none).map((text, at) =>
    Object.assign(document.createElement(at || !headline ? "p" : "h2"), {{ textContent: text }})));
}});
</script>"""


NOTHING = "No line of this text says what a rank did."
