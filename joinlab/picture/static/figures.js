// Views within a page, each in a shadow root: the styles of neither reach the other. No module: browsers
// load none from a folder.

import { bytesOf, unpack } from "./data.js";
import { element } from "./dom.js";
import { First } from "./first.js";
import { Positions, show } from "./positions.js";
import { Store } from "./store.js";

const sheet = new CSSStyleSheet();
sheet.replaceSync(joinlabStyles);

const kept = {};

globalThis.joinlab = {
  keep(name, packed) {
    kept[name] = unpack(bytesOf(packed));
  },

  async draw(place) {
    const { figure, run, position } = place.dataset,
      data = await kept[figure.replace(/.*\//, "")],
      live = element("div.live"),
      root = place.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [sheet];
    root.append(element("div", {}, element("slot.still"), live));
    const model = new Store({ alone: new URL(`${figure}.html`, location.href).href }),
      view = data.positions ? new Positions(live, model, data) : new First(live, model);
    if (!data.positions) show(view, data, data.shown[Number(run)]);
    view.goTo(new URLSearchParams(position));
  },
};
