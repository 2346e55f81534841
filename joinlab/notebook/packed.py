"""Packed: a widget whose script and style travel compressed, as bytes; as text they would take three times as much.

Every widget sends its script to the browser again, so comments and indents stay behind. What is sent as the widget's
own script only unpacks the other.
"""

from __future__ import annotations

import gzip
import json
import re

import anywidget
import traitlets

_LOADER = """\
export default {
  async render(context) {
    const stream = new Blob([context.model.get("_script")]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = await new Response(stream, { headers: { "Content-Type": "text/javascript" } }).blob();
    const url = URL.createObjectURL(script);
    const { default: widget, css } = await import(url);
    URL.revokeObjectURL(url);
    const style = document.createElement("style"), el = document.createElement("div");
    style.textContent = css;
    context.el.replaceChildren(style, el);
    return widget.render({ ...context, el });
  },
};
"""


class Packed(anywidget.AnyWidget):
    """A widget of anywidget's, of which a subclass sets `_script`: see `pack_script`."""

    _esm = _LOADER
    _script = traitlets.Bytes().tag(sync=True)


def pack_script(script: str, style: str) -> traitlets.Bytes:
    """An ES module whose default export has a `render`, and its style sheet, as the trait `_script` of a Packed."""
    code = re.sub(r"(?m)(^ *| )// .*|^ +", "", script)  # a space follows: the // of an address stays
    module = f"{code}\nexport const css = {json.dumps(style)};\n"
    packed: traitlets.Bytes = traitlets.Bytes(gzip.compress(module.encode(), mtime=0))
    return packed.tag(sync=True)
